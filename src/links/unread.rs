//! Why it isn't known whether a name or a load balancer exists.

use super::LinkFilter;
use super::facts::LinkFacts;
use crate::model::clusters;
use crate::model::names;
use crate::model::owner::{Source, Zone};

impl LinkFacts {
    /// Returns which objects haven't been read, if one of them may have this DNS name, which no known object has.
    #[must_use]
    pub fn unread_of_name(&self, name: &str) -> Option<String> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let zones = self.store.zones();
        let contains = |zone: &&Zone| {
            let above = name.strip_suffix(&*names::text(&zone.origin));
            above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
        };
        let closest = zones.iter().filter(contains).max_by_key(|zone| zone.origin.len())?;
        self.store.unlisted_source(closest).map(Source::unread)
    }

    /// As [`Self::unread_of_name`], for the load balancer or the DNS name of a filter.
    #[must_use]
    pub fn unread_of_link(&self, filter: &LinkFilter) -> Option<String> {
        let service = filter.service.as_deref()?;
        // No Service has a dot in its name.
        if service.contains('.') {
            return self.unread_of_name(service);
        }
        let cluster = filter.namespace.as_deref().map(|namespace| clusters::split(namespace).0);
        let is_meant = |zone: &&Zone| {
            zone.cluster.is_some() && cluster.is_none_or(|cluster| zone.cluster.as_deref() == cluster)
        };
        let zones = self.store.zones();
        zones.iter().filter(is_meant).find_map(|zone| self.store.unlisted_source(zone)).map(Source::unread)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hickory_proto::rr::Name;

    use super::*;
    use crate::store::{OnGone, Store};

    #[test]
    fn names_of_an_unread_cluster_are_not_known() {
        let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
        let zones = zone.with_remotes(&["east".into(), "west".into()]);
        let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zones.clone()));
        let services_of = |cluster: &str| Source { cluster: Some(cluster.into()), ..Source::SERVICES };
        store.set_listed(&services_of("east"), &zones);
        let facts = LinkFacts::of(Arc::clone(&store));
        let of_link = |namespace: Option<&str>, service: &str| {
            let filter = LinkFilter::new(namespace.map(ToOwned::to_owned), Some(service.to_owned()));
            facts.unread_of_link(&filter.unwrap())
        };
        let unread = Some("cluster west isn't read".to_owned());
        for (name, expected) in [
            ("web.shop.west.lb.internal", &unread),
            ("WEB.shop.West.lb.internal.", &unread),
            ("web.shop.east.lb.internal", &None),
            ("web.shop.northwest.lb.internal", &None),
            ("web.shop.lb.internal", &None),
            ("web.example.com", &None),
        ] {
            assert_eq!(facts.unread_of_name(name), *expected, "{name}");
            assert_eq!(of_link(None, name), *expected, "{name}");
        }
        for (service, expected) in
            [("west/shop/web", &unread), ("east/shop/web", &None), ("shop/web", &None), ("web", &unread)]
        {
            assert_eq!(of_link(None, service), *expected, "{service}");
        }
        assert_eq!(facts.notice().as_deref(), unread.as_deref());
        assert_eq!(facts.notice_of_reading(), facts.notice());
        store.set_listed(&services_of("west"), &zones);
        assert_eq!(facts.notice(), None);
        assert_eq!(of_link(None, "web"), None);
    }

    #[test]
    fn names_of_an_unread_source_are_not_known() {
        let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
        let zone = Zone { sources: vec![Source::SERVICES, Source::INGRESSES], ..zone };
        let facts = LinkFacts::of(Arc::new(Store::new(OnGone::Dropped).with_zones([zone])));
        let unread = facts.unread_of_name("shop.lb.internal");
        assert_eq!(unread.as_deref(), Some("the Ingress objects haven't been read yet"));
    }
}
