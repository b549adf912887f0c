//! The policy for the target of a Service, and for the DNS names that the Service requests.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use hickory_proto::rr::Name;

use super::rejection::{ListEntries, MAX_ENTRIES, MAX_ENTRY_BYTES, RejectedField, Rejection};
use crate::model::hostname::to_presentation;
pub use crate::model::names::in_stored_form;
use crate::model::owner::Zone;
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;
use crate::model::{clusters, names};

/// The prefix of all annotations of lb-linker.
pub const PREFIX: &str = "linker.hsj.com/";
/// The annotation with further DNS names of a load balancer. On an external target, it records the custom hostnames of
/// the link.
pub const HOSTNAME: &str = "linker.hsj.com/hostname";
/// The annotations with the DNS names of a load balancer in zones of *k8s_gateway*: the first that is there counts.
const OF_K8S_GATEWAY: [&str; 2] = ["coredns.io/hostname", "external-dns.alpha.kubernetes.io/hostname"];
/// The annotation with the DNS names of a load balancer that lead to its cluster IPs.
pub const INTERNAL_HOSTNAME: &str = "linker.hsj.com/internal-hostname";

#[derive(Clone, Debug, Default)]
pub struct HostnamePolicy {
    pub targets: TargetPolicy,
    /// The zones with their rules, if there are zones of *k8s_gateway*.
    pub zones: Vec<Zone>,
    /// The labels below the other zones that are reserved for the zones' own records; empty means
    /// [`names::RESERVED_LABEL`].
    pub reserved_labels: Vec<String>,
    /// The zones in which load balancers have no names.
    pub closed_zones: Vec<Name>,
    /// Further annotations with DNS names, in addition to [`HOSTNAME`].
    pub hostname_annotations: Vec<String>,
    /// Prefixes of annotations that count as those with our prefix do, behind them; each ends with `/`.
    pub annotation_prefixes: Vec<String>,
    /// The namespaces in which Services may request any name in the zones; `*` for all, and `west/*` for all of a remote
    /// cluster.
    pub hostname_namespaces: BTreeSet<String>,
    /// The name of the home cluster, with which objects of remote clusters name its namespaces.
    pub home: Arc<str>,
    /// The names of the remote clusters. Below each zone the label is reserved for the cluster's objects.
    pub remotes: Arc<[Arc<str>]>,
}

/// The names that an object asks for in one of its fields.
#[derive(Debug, Default)]
pub struct RequestedNames<'a> {
    /// What each of the names is, in sentences.
    pub field: String,
    pub names: Vec<&'a str>,
    /// The number of entries that don't count.
    pub ignored: usize,
}

impl<'a> RequestedNames<'a> {
    fn of(annotation: &str, text: &'a str) -> Self {
        let ListEntries { accepted: names, ignored } = ListEntries::of(text);
        Self { field: format!("the DNS name in annotation {annotation}"), names, ignored }
    }
}

// === impl HostnamePolicy ===

impl HostnamePolicy {
    /// Returns the name that external targets of deleted Services point at with `--on-delete tombstone`: it is in the
    /// first zone of links, and doesn't exist.
    pub fn tombstone(&self) -> String {
        let zone = self.targets.zones.first().map(to_presentation).unwrap_or_default();
        format!("{}.{zone}", names::DELETED)
    }

    /// Returns the DNS names that a Service requests and may have, in their order, without duplicates and default
    /// names, and a [`Rejection`] for each annotation with names that aren't granted. `annotation` returns the value
    /// of an annotation of the Service; `selected` are the zones of *k8s_gateway* in which it has names.
    #[must_use]
    pub fn hostnames<'a>(
        &self,
        key: &ServiceKey,
        annotation: impl Fn(&str) -> Option<&'a str>,
        selected: &[&Zone],
    ) -> (Vec<Arc<str>>, Vec<Rejection>) {
        let requested = self.annotated_names(annotation);
        let check = |name: &str| self.check_selected(key.namespace(), name, selected);
        self.granted("a Service", requested, check, |name| self.is_default_name(key, name))
    }

    /// Returns the DNS names that a load balancer has in zones of *k8s_gateway*, unless other objects have them, as
    /// [`Self::hostnames`] does.
    #[must_use]
    pub fn k8s_gateway_names<'a>(
        &self,
        key: &ServiceKey,
        annotation: impl Fn(&str) -> Option<&'a str>,
        selected: &[&Zone],
    ) -> (Vec<Arc<str>>, Vec<Rejection>) {
        let has_names = |name: &str| self.k8s_gateway_zone(name).is_none_or(|zone| selected.contains(&zone));
        if selected.is_empty() {
            return Default::default();
        }
        let annotated =
            OF_K8S_GATEWAY.iter().find_map(|name| Some(RequestedNames::of(name, annotation(name)?)));
        let is_annotated = annotated.is_some();
        let RequestedNames { field, names, ignored } = annotated.unwrap_or_default();
        let asked = names.iter().flat_map(|name| Zone::k8s_gateway_names(&self.zones, name));
        let own = |zone: &Zone| format!("{}.{}.{}", key.name(), key.namespace(), names::text(&zone.origin));
        let own = selected.iter().copied().filter(|_| !is_annotated).map(own);
        let names: Vec<String> = asked.chain(own).collect();
        let names = names.iter().map(String::as_str).filter(|name| has_names(name)).collect();
        let check = |name: &str| self.check_granted(key.namespace(), name);
        // The name servers have the names of their Services.
        let passed_over = |name: &str| !is_annotated && check(name).is_err();
        self.granted("a Service", [RequestedNames { field, names, ignored }], check, passed_over)
    }

    /// Returns the zone of *k8s_gateway* that contains a name, given in lower case.
    fn k8s_gateway_zone(&self, name: &str) -> Option<&Zone> {
        let wire = if self.zones.is_empty() { None } else { names::wire_of(name) }?;
        Zone::closest(&self.zones, &wire).filter(|zone| zone.k8s_gateway.is_some())
    }

    /// Returns the internal DNS names that a Service requests and may have, as [`Self::hostnames`] does. `hostnames` are
    /// its other names, which don't lead to its cluster IPs.
    #[must_use]
    pub fn internal_hostnames<'a>(
        &self,
        key: &ServiceKey,
        hostnames: &[Arc<str>],
        annotation: impl Fn(&str) -> Option<&'a str>,
        selected: &[&Zone],
    ) -> (Vec<Arc<str>>, Vec<Rejection>) {
        let annotations = self.keys_of(INTERNAL_HOSTNAME);
        let requested = annotations.filter_map(|name| Some(RequestedNames::of(&name, annotation(&name)?)));
        let check = |name: &str| match hostnames.iter().any(|other| **other == *name) {
            _ if self.is_default_name(key, name) => {
                Err("it is a default name of the load balancer, and leads to the load balancer's target"
                    .to_owned())
            }
            true => Err("it is one of the load balancer's hostnames, which lead to its target".to_owned()),
            false => self.check_selected(key.namespace(), name, selected),
        };
        self.granted("a Service", requested, check, |_| false)
    }

    /// Returns the DNS names in the annotations of an object. `annotation` returns the value of an annotation.
    pub fn annotated_names<'a>(
        &self,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> impl Iterator<Item = RequestedNames<'a>> {
        let further = self.hostname_annotations.iter().map(|name| Cow::from(&**name));
        let annotations = self.keys_of(HOSTNAME).chain(further);
        annotations.filter_map(move |name| Some(RequestedNames::of(&name, annotation(&name)?)))
    }

    /// Returns whether an annotation with this key may count.
    #[must_use]
    pub fn may_count(&self, key: &str) -> bool {
        let has_prefix = |prefix: &String| key.starts_with(&**prefix);
        key.starts_with(PREFIX)
            || self.annotation_prefixes.iter().any(has_prefix)
            || self.hostname_annotations.iter().any(|known| known == key)
    }

    /// Returns the keys of an annotation of ours, and with the prefixes of others.
    fn keys_of(&self, ours: &'static str) -> impl Iterator<Item = Cow<'_, str>> {
        let name = ours.trim_start_matches(PREFIX);
        let of_others = self.annotation_prefixes.iter().map(move |prefix| format!("{prefix}{name}").into());
        std::iter::once(ours.into()).chain(of_others)
    }

    /// Returns those of the requested names that `check` accepts, in lower case, in their order and without duplicates, and
    /// a [`Rejection`] for each field with other names. Names that are `passed_over` are neither.
    #[must_use]
    pub fn granted<'a>(
        &self,
        what: &str,
        requested: impl IntoIterator<Item = RequestedNames<'a>>,
        check: impl Fn(&str) -> Result<(), String>,
        passed_over: impl Fn(&str) -> bool,
    ) -> (Vec<Arc<str>>, Vec<Rejection>) {
        let (mut granted, mut unusable): (Vec<Arc<str>>, Vec<Rejection>) = Default::default();
        for RequestedNames { field, names, ignored } in requested {
            let mut rejection = Rejection::new(RejectedField::Hostname, field);
            rejection.ignore(ignored, ListEntries::LIMIT);
            for name in names {
                let lower = in_stored_form(name);
                if granted.iter().any(|known| **known == *lower) || passed_over(&lower) {
                    continue;
                }
                let outcome = if granted.len() < MAX_ENTRIES {
                    check(&lower)
                } else {
                    Err(format!("{what} may have {MAX_ENTRIES} names at most"))
                };
                match outcome {
                    Ok(()) => granted.push(lower.into()),
                    Err(why) => rejection.reject(name, &why),
                }
            }
            unusable.extend(rejection.non_empty());
        }
        (granted, unusable)
    }

    /// Checks a further DNS name of an object. Returns the name in lower case and without a dot at the end; `None` for
    /// one of the object's default names, which need no request.
    ///
    /// # Errors
    /// The reason why the name is denied.
    pub fn check(&self, key: &ServiceKey, name: &str) -> Result<Option<String>, String> {
        let name = in_stored_form(name);
        if self.is_default_name(key, &name) {
            return Ok(None);
        }
        self.check_granted_to_service(key.namespace(), &name).map(|()| Some(name))
    }

    /// Checks whether a Service or StableName of the namespace may have a name, given in lower case.
    fn check_granted_to_service(&self, namespace: &str, name: &str) -> Result<(), String> {
        self.check_granted(namespace, name)?;
        let below =
            |zone: &&Name| name.strip_suffix(&*to_presentation(zone)).is_some_and(|rest| rest.ends_with('.'));
        match self.closed_zones.iter().find(below) {
            Some(zone) => {
                Err(format!("Services have no names in {}, which has other sources", to_presentation(zone)))
            }
            None => Ok(()),
        }
    }

    /// As [`Self::check_granted_to_service`], for a Service with names in these zones of *k8s_gateway* alone.
    fn check_selected(&self, namespace: &str, name: &str, selected: &[&Zone]) -> Result<(), String> {
        self.check_granted_to_service(namespace, name)?;
        match self.k8s_gateway_zone(name).filter(|zone| !selected.contains(zone)) {
            Some(zone) => Err(format!(
                "the labels of the load balancer give it no names in {}",
                names::text(&zone.origin)
            )),
            None => Ok(()),
        }
    }

    /// Returns whether the domain `label` directly below a zone, including all names below it, is reserved. A name that
    /// is reserved in one zone is reserved in all, because zones may be added and removed.
    fn is_reserved(&self, label: &str) -> bool {
        let default = [names::RESERVED_LABEL.to_owned()];
        let reserved_labels =
            if self.reserved_labels.is_empty() { &default[..] } else { &self.reserved_labels };
        reserved_labels.iter().any(|apex| names::is_reserved(label.as_bytes(), apex.as_bytes()))
    }

    /// Returns whether a name is a default name of the Service, even if another Service holds it.
    fn is_default_name(&self, key: &ServiceKey, name: &str) -> bool {
        if self.k8s_gateway_zone(name).is_some() {
            return false;
        }
        let below = |zone| name.strip_suffix(&*to_presentation(zone))?.strip_suffix('.');
        let (namespace, service) = key.parts();
        let dashed = key.cluster().is_none().then(|| names::dashed_label(namespace, service));
        let own = [Some(format!("{service}.{}", clusters::domain_of(namespace))), dashed];
        self.targets.zones.iter().filter_map(below).any(|name| own.iter().flatten().any(|own| own == name))
    }

    /// Returns those of `hostnames` that a Service of the namespace may still have.
    #[must_use]
    pub fn still_granted(&self, namespace: &str, hostnames: Vec<Arc<str>>) -> Vec<Arc<str>> {
        hostnames.into_iter().filter(|name| self.check_granted_records(namespace, name).is_ok()).collect()
    }

    /// Returns whether objects of some namespace may have a name, given in lower case.
    #[must_use]
    pub fn is_granted_to_any(&self, name: &str) -> bool {
        let below = |zone| name.strip_suffix(&*to_presentation(zone))?.strip_suffix('.');
        let mut labels = self.targets.zones.iter().find_map(below).unwrap_or_default().rsplit('.');
        let own = labels.next().map(|top| match self.is_remote(top) {
            true => clusters::in_cluster(Some(top), labels.next().unwrap_or_default()).into_owned(),
            false => top.to_owned(),
        });
        let free = self.hostname_namespaces.iter().cloned();
        own.into_iter().chain(free).any(|namespace| self.check_granted(&namespace, name).is_ok())
    }

    fn is_remote(&self, label: &str) -> bool {
        self.remotes.iter().any(|cluster| **cluster == *label)
    }

    /// Checks whether an object of the namespace may have a name, given in lower case, in a zone that has its source.
    ///
    /// # Errors
    /// The reason why the name is denied.
    pub fn check_granted(&self, namespace: &str, name: &str) -> Result<(), String> {
        let below = self.check_granted_records(namespace, name)?;
        match below.split('.').find(|label| label.starts_with('_')) {
            Some(label) => Err(format!("names with a label like {label} are reserved")),
            None => Ok(()),
        }
    }

    /// Checks as [`Self::check_granted`] whether an object may declare records of any type at a name: labels may begin with
    /// `_`, as in `_sip._tcp` (RFC 8552 section 1.1). Returns the part of the name below its zone.
    ///
    /// # Errors
    /// The reason why the name is denied.
    pub fn check_granted_records<'a>(&self, namespace: &str, name: &'a str) -> Result<&'a str, String> {
        let labels: Vec<&str> = name.split('.').collect();
        let plain = if labels[0] == "*" { &labels[1..] } else { &labels[..] };
        if name.len() > MAX_ENTRY_BYTES || !plain.iter().all(|label| is_name_label(label)) {
            return Err(
                "not a DNS name of letters, digits, underscores and hyphens within labels; only the first label may be *"
                    .to_owned(),
            );
        }
        if self.targets.zones.iter().any(|zone| to_presentation(zone) == name) {
            return Err("the zone itself is reserved".to_owned());
        }
        let Some((zone, below)) = self.targets.zones.iter().find_map(|zone| {
            let zone = to_presentation(zone);
            let below = name.strip_suffix(&*zone)?.strip_suffix('.')?;
            Some((zone, below))
        }) else {
            let zones: Vec<String> = self.targets.zones.iter().map(to_presentation).collect();
            return Err(format!("it lies in none of lb-linker's zones ({})", zones.join(", ")));
        };
        if let Some(of_k8s_gateway) = self.k8s_gateway_zone(name) {
            let is_reserved = names::wire_of(below).is_none_or(|below| of_k8s_gateway.reserves(&below));
            return match is_reserved {
                true => Err(format!("{name} is reserved for {zone} itself")),
                false => Ok(below),
            };
        }
        let labels: Vec<&str> = below.split('.').collect();
        if let Some(top) = labels.last().filter(|top| self.is_reserved(top)) {
            return Err(format!("{top}.{zone}, with all names below it, is reserved"));
        }
        let cluster = clusters::cluster_of(namespace);
        if let Some(top) = labels.last().filter(|top| self.is_remote(top) && cluster != Some(**top)) {
            return Err(format!("{top}.{zone}, with all names below it, is reserved for cluster {top}"));
        }
        let domain = clusters::domain_of(namespace);
        let own = below.strip_suffix(&*domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'));
        let anywhere = self.hostname_namespaces.iter().any(|allowed| clusters::means(allowed, namespace));
        // The domain of the cluster itself exists without an owner.
        if own || anywhere && cluster != Some(below) {
            Ok(below)
        } else {
            Err(format!(
                "{} may have names below {domain}.{zone} only, unless --hostname-namespaces lists {}",
                clusters::in_words(namespace),
                if cluster.is_some() { namespace } else { "it" }
            ))
        }
    }
}

/// Returns the custom hostnames in the value of an external target's annotation [`HOSTNAME`], sorted.
#[must_use]
pub fn recorded_hostnames(annotation: Option<&str>) -> Vec<Arc<str>> {
    let names = annotation.into_iter().flat_map(|names| ListEntries::of(names).accepted);
    let mut names: Vec<Arc<str>> = names.map(Into::into).collect();
    names.sort_unstable();
    names
}

/// Returns whether a text is a hostname, and not an address that is written wrong: RFC 1123, section 2.1.
#[must_use]
pub fn is_hostname(text: &str) -> bool {
    let name = in_stored_form(text);
    let top = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(is_name_label) && !top.chars().all(|c| c.is_ascii_digit())
}

/// Returns whether lb-linker gives a name this label. RFC 1123, section 2.1: a hyphen is neither first nor last.
fn is_name_label(label: &str) -> bool {
    (1..=names::MAX_LABEL).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(
        hostname_policy: &HostnamePolicy,
        annotations: &serde_json::Value,
    ) -> (Vec<Arc<str>>, Vec<Rejection>) {
        hostname_policy.hostnames(&ServiceKey::new("default", "web"), |name| annotations[name].as_str(), &[])
    }

    fn hostname_policy() -> HostnamePolicy {
        let zones = ["lb.internal.", "other.example."].map(|zone| Name::from_ascii(zone).unwrap()).to_vec();
        HostnamePolicy { targets: TargetPolicy { zones, ..Default::default() }, ..Default::default() }
    }

    #[test]
    fn names_below_the_own_namespace_are_granted_without_duplicates() {
        let text = "Shop.default.lb.internal., *.shop.default.lb.internal,,shop.default.lb.internal, \
                    a.b.default.other.example";
        let (names, unusable) = asked(&hostname_policy(), &json!({HOSTNAME: text}));
        let expected =
            ["shop.default.lb.internal", "*.shop.default.lb.internal", "a.b.default.other.example"];
        assert_eq!(names, expected.map(Arc::from));
        assert_eq!(unusable, []);
        let own = "web.default.lb.internal,web-default.other.example";
        assert_eq!(
            asked(&hostname_policy(), &json!({HOSTNAME: own})),
            (vec![], vec![]),
            "default names need no request"
        );
    }

    #[test]
    fn clusters_have_domains_of_their_own() {
        let policy = HostnamePolicy {
            remotes: ["west".into(), "east".into()].into(),
            hostname_namespaces: ["free", "west/free", "east/*"].map(str::to_owned).into(),
            ..hostname_policy()
        };
        for (namespace, name, expected) in [
            ("west/shop", "a.shop.west.lb.internal", true),
            ("west/shop", "*.shop.west.other.example", true),
            ("west/shop", "shop.west.lb.internal", false),
            ("west/shop", "a.other.west.lb.internal", false),
            ("west/shop", "a.shop.lb.internal", false),
            ("west/shop", "a.shop.east.lb.internal", false),
            ("west/free", "a.lb.internal", true),
            ("west/free", "a.shop.lb.internal", true),
            ("west/free", "*.west.lb.internal", true),
            ("west/free", "west.lb.internal", false),
            ("west/free", "a.free.east.lb.internal", false),
            ("west/free", "a.dns.lb.internal", false),
            ("east/any", "a.lb.internal", true),
            ("free", "a.lb.internal", true),
            ("free", "a.shop.west.lb.internal", false),
            ("free", "west.lb.internal", false),
            ("west", "a.west.lb.internal", false),
            ("shop", "a.shop.lb.internal", true),
        ] {
            let granted = policy.check_granted(namespace, name);
            assert_eq!(granted.is_ok(), expected, "{namespace} {name}: {granted:?}");
        }
        assert!(policy.is_granted_to_any("a.shop.west.lb.internal"));
        assert!(
            !HostnamePolicy { hostname_namespaces: BTreeSet::new(), ..policy }
                .is_granted_to_any("west.lb.internal")
        );
    }

    #[test]
    fn checked_name_is_lower_case_and_has_no_dot_at_the_end() {
        let check = |name| hostname_policy().check(&ServiceKey::new("default", "web"), name);
        for name in ["shop.default.lb.internal", "Shop.Default.lb.internal", "shop.default.LB.internal."] {
            assert_eq!(check(name), Ok(Some("shop.default.lb.internal".to_owned())), "{name}");
        }
        assert_eq!(check("WEB.default.lb.internal."), Ok(None));
        assert!(check("shop.default.lb.internal..").is_err());
    }

    #[test]
    fn hostnames_outside_the_policy_are_refused_with_a_reason() {
        for (name, why) in [
            ("shop.other.lb.internal", "below default.lb.internal only"),
            ("shop.lb.internal", "below default.lb.internal only"),
            ("default.lb.internal", "below default.lb.internal only"),
            ("*.lb.internal", "below default.lb.internal only"),
            ("lb.internal", "the zone itself is reserved"),
            ("xlb.internal", "none of lb-linker's zones"),
            ("shop.example.com", "none of lb-linker's zones (lb.internal, other.example)"),
            ("x.dns.lb.internal", "reserved"),
            ("deleted.lb.internal", "reserved"),
            ("_tcp.shop.default.lb.internal", "reserved"),
            ("a.*.default.lb.internal", "not a DNS name"),
            ("a..default.lb.internal", "not a DNS name"),
            ("-.default.lb.internal", "not a DNS name"),
            ("-a.default.lb.internal", "not a DNS name"),
            ("b.a-.default.lb.internal", "not a DNS name"),
            ("sh op.default.lb.internal", "not a DNS name"),
        ] {
            let (names, unusable) = asked(&hostname_policy(), &json!({HOSTNAME: name}));
            assert!(names.is_empty(), "{name}");
            assert!(unusable[0].to_string().contains(why), "{name}: {}", unusable[0]);
        }
        let long = format!("{}.default.lb.internal", "x".repeat(64));
        assert_eq!(asked(&hostname_policy(), &json!({HOSTNAME: long})).1.len(), 1);
    }

    #[test]
    fn some_namespace_may_have_a_name_unless_it_is_reserved() {
        for (free, name, expected) in [
            (None, "a.b.c.lb.internal", true),
            (None, "a.lb.internal", false),
            (None, "dns.lb.internal", false),
            (None, "a.dns.lb.internal", false),
            (None, "a.b.example.com", false),
            (Some("infra"), "a.lb.internal", true),
            (Some("*"), "a.lb.internal", true),
            (Some("*"), "lb.internal", false),
        ] {
            let hostname_namespaces = free.map(str::to_owned).into_iter().collect();
            let hostname_policy = HostnamePolicy { hostname_namespaces, ..hostname_policy() };
            assert_eq!(hostname_policy.is_granted_to_any(name), expected, "{name} {free:?}");
        }
    }

    #[test]
    fn zone_with_other_sources_has_no_names_of_services() {
        let closed_zones = vec![Name::from_ascii("other.example.").unwrap()];
        let hostname_policy = HostnamePolicy { closed_zones, ..hostname_policy() };
        let text = "a.default.lb.internal,a.default.other.example";
        let (names, unusable) = asked(&hostname_policy, &json!({HOSTNAME: text}));
        assert_eq!(names, ["a.default.lb.internal"].map(Arc::from));
        let why = "\"a.default.other.example\" isn't served: Services have no names in other.example";
        assert!(unusable[0].to_string().contains(why), "{}", unusable[0]);
        assert!(
            hostname_policy.check(&ServiceKey::new("default", "web"), "a.default.other.example").is_err()
        );
    }

    #[test]
    fn listed_namespaces_may_have_any_name_but_reserved_ones() {
        for namespaces in ["default", "*"] {
            let hostname_policy =
                HostnamePolicy { hostname_namespaces: [namespaces.to_owned()].into(), ..hostname_policy() };
            let text = "shop.lb.internal,*.lb.internal,x.other.lb.internal,dns.lb.internal,shop.example.com";
            let (names, unusable) = asked(&hostname_policy, &json!({HOSTNAME: text}));
            assert_eq!(names.len(), 3, "{names:?}");
            let rejection = unusable[0].to_string();
            assert!(rejection.contains("\"dns.lb.internal\""), "{rejection}");
            assert!(rejection.contains("\"shop.example.com\""), "{rejection}");
            assert_eq!(unusable.len(), 1, "{unusable:?}");
        }
    }

    #[test]
    fn configured_annotations_are_read_as_well() {
        let theirs = "external-dns.alpha.kubernetes.io/hostname";
        let annotations = json!({theirs: "b.default.lb.internal", HOSTNAME: "a.default.lb.internal"});
        assert_eq!(asked(&hostname_policy(), &annotations).0.len(), 1);
        let hostname_policy =
            HostnamePolicy { hostname_annotations: vec![theirs.to_owned()], ..hostname_policy() };
        let (names, _) = asked(&hostname_policy, &annotations);
        assert_eq!(names, ["a.default.lb.internal", "b.default.lb.internal"].map(Arc::from));
    }

    #[test]
    fn names_after_the_first_100_are_one_rejection() {
        let names: Vec<String> = (0..14_000).map(|i| format!("n{i}.default.lb.internal")).collect();
        let (granted, unusable) = asked(&hostname_policy(), &json!({HOSTNAME: names.join(",")}));
        assert_eq!(granted, names[..100].iter().map(|name| Arc::from(&**name)).collect::<Vec<Arc<str>>>());
        let [rejection] = &unusable[..] else { panic!("{unusable:?}") };
        assert!(
            rejection.to_string().ends_with("ignored: 13900; the first 100 count, of at most 253 bytes each")
        );

        let theirs = "coredns.io/hostname";
        let hostname_policy =
            HostnamePolicy { hostname_annotations: vec![theirs.to_owned()], ..hostname_policy() };
        let both = json!({HOSTNAME: names[..100].join(","), theirs: names[50..103].join(",")});
        let (granted, unusable) = asked(&hostname_policy, &both);
        assert_eq!((granted.len(), unusable.len()), (100, 1));
        assert!(unusable[0].to_string().contains("a Service may have 100 names at most"), "{}", unusable[0]);
    }

    #[test]
    fn thousands_of_invalid_names_are_one_short_rejection() {
        let names: Vec<String> = (0..14_000).map(|i| format!("{i}\u{1b}[2J.example\n")).collect();
        let (granted, unusable) = asked(&hostname_policy(), &json!({HOSTNAME: names.join(",")}));
        let [rejection] = &unusable[..] else { panic!("{unusable:?}") };
        let text = rejection.to_string();
        assert!(granted.is_empty() && text.len() < 1024, "{text}");
        assert!(text.contains("; and 97 more; entries that are ignored: 13900;"), "{text}");
        assert!(!text.chars().any(char::is_control), "{text}");
    }

    #[test]
    fn names_recorded_on_an_external_target_are_bounded() {
        let names: Vec<String> = (0..14_000).map(|i| format!("n{i}.default.lb.internal")).collect();
        assert_eq!(recorded_hostnames(Some(&names.join(","))).len(), 100);
    }
}
