//! The links that the target of a link leads through: each target but the last is a name of the next link.

use std::sync::Arc;

use super::Store;
use crate::model::link::{Link, Target};
use crate::model::service_key::ServiceKey;

/// The maximum number of nested look-ups for a target. With more, a mistake or an attack, DNS answers SERVFAIL.
pub const MAX_LOOK_UPS: usize = 8;
/// The maximum number of links that a chain is followed through, to find a circle.
const MAX_CHAIN: usize = 16;
/// Maximum number of links of a circle that are named.
const MAX_NAMED: usize = 4;

/// Why DNS doesn't follow a chain to its end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The chain leads in a circle of these links.
    #[error("its target leads in a circle, so DNS answers SERVFAIL: {}", path(.0))]
    Circle(Vec<ServiceKey>),
    #[error("its target needs more than {MAX_LOOK_UPS} look-ups, so DNS answers SERVFAIL")]
    TooLong,
}

/// Returns the names of the links of a circle, from the first one back to it.
fn path(circle: &[ServiceKey]) -> String {
    let mut named: Vec<String> = circle.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let last = if circle.len() > MAX_NAMED { Some("…".to_owned()) } else { named.first().cloned() };
    named.extend(last);
    named.join(" → ")
}

impl Store {
    /// Returns the last link that the target of a link leads to: the link itself, unless its target is a name of a link.
    ///
    /// # Errors
    /// If DNS doesn't follow the chain to its end.
    pub fn last_of_chain(&self, link: &Arc<Link>) -> Result<Arc<Link>, ChainError> {
        let mut seen = vec![link.key.clone()];
        let mut next = Arc::clone(link);
        while let Some(Target::Hostname(host)) = &next.target
            && let Some(owner) = self.link_of_host(&host.name())
            && seen.len() <= MAX_CHAIN
        {
            if let Some(position) = seen.iter().position(|key| *key == owner.key) {
                return Err(ChainError::Circle(seen.split_off(position)));
            }
            seen.push(owner.key.clone());
            next = owner;
        }
        // A hostname outside the zones is one more look-up.
        let look_ups = seen.len() + usize::from(matches!(next.target, Some(Target::Hostname(_))));
        if look_ups > MAX_LOOK_UPS { Err(ChainError::TooLong) } else { Ok(next) }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;
    use crate::model::hostname::Hostname;
    use crate::model::link::{Annotations, Ingress, ObservedService};
    use crate::store::OnGone;
    use crate::store::metrics::LinkMetrics;

    #[test]
    fn path_of_a_circle_ends_with_its_first_link() {
        let circle = |number: u8| (0..number).map(|i| ServiceKey::new("shop", &format!("n{i}"))).collect();
        let end =
            |number| ChainError::Circle(circle(number)).to_string().split_once(": ").unwrap().1.to_owned();
        assert_eq!(end(1), "shop/n0 → shop/n0");
        assert_eq!(end(4), "shop/n0 → shop/n1 → shop/n2 → shop/n3 → shop/n0");
        assert_eq!(end(5), "shop/n0 → shop/n1 → shop/n2 → shop/n3 → …");
    }

    #[test]
    fn links_that_lead_in_a_circle_are_counted() {
        let origin = Name::from_ascii("lb.internal.").unwrap();
        let store = Arc::new(Store::new(OnGone::Kept).with_zones([&origin]));
        let apply = |name: &str, host: &str| {
            store.apply(ObservedService {
                key: ServiceKey::new("shop", name),
                uid: name.into(),
                created: None,
                resource_version: None,
                ingress: Ingress {
                    hostnames: vec![Hostname::from(&Name::from_ascii(host).unwrap())],
                    addresses: Vec::new(),
                },
                ports: Arc::default(),
                annotations: Annotations::default(),
                refused: false,
                has_finalizer: false,
                persisted: None,
            });
        };
        let registry = prometheus::Registry::new();
        registry.register(Box::new(LinkMetrics::new(Arc::clone(&store)).unwrap())).unwrap();
        let counts = |number: usize| {
            let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            assert!(page.contains(&format!("\nlb_linker_target_circles {number}\n")), "{page}");
        };
        apply("web", "a.example.");
        apply("one", "two.shop.lb.internal.");
        apply("two", "web.shop.lb.internal.");
        counts(0);
        apply("two", "one.shop.lb.internal.");
        counts(2);
    }
}
