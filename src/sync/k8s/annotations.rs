//! The annotations that load balancers and the other objects with names have in common.
//!
//! `prefixes` are those of `--annotation-prefixes`: annotations with one of them and the name of one of ours count, too, but
//! a setting is that of the first annotation, and ours come first.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::model::clusters;
pub(crate) use crate::model::hostname_policy::PREFIX;
use crate::model::hostname_policy::{HOSTNAME, INTERNAL_HOSTNAME, is_hostname};
use crate::model::names;
use crate::model::rejection::{ListEntries, RejectedField, Rejection};
use crate::sync::k8s::service::{IngressEntry, entries_in_use, host_name};

/// The annotation with the TTL of the object's records, in seconds.
pub(crate) const TTL: &str = "linker.hsj.com/ttl";
/// The annotation with the namespaces whose Services, load balancers and StableNames may refer to the object's names.
pub(crate) const ALLOW_FROM: &str = "linker.hsj.com/allow-from";
/// The annotation with which an object opts in (`"true"`) or out (`"false"`).
pub const MANAGED: &str = "linker.hsj.com/managed";
/// The annotation with hostnames and addresses in place of those in the object's status.
pub(crate) const TARGET: &str = "linker.hsj.com/target";
/// The annotation, with another program's prefix, with the program that reads the object.
const CONTROLLER: &str = "controller";
/// The value of [`CONTROLLER`] for a program that gives names to objects.
const DNS_CONTROLLER: &str = "dns-controller";
/// The annotations of objects with names and a target, such as Ingresses.
pub(crate) const OF_TARGETS: [&str; 5] = [ALLOW_FROM, HOSTNAME, MANAGED, TARGET, TTL];
/// The annotations of routes, whose targets are those of Gateways and ListenerSets.
pub(crate) const OF_ROUTES: [&str; 4] = [ALLOW_FROM, HOSTNAME, MANAGED, TTL];
/// The annotations of load balancers.
pub(crate) const OF_LOAD_BALANCERS: [&str; 6] =
    [ALLOW_FROM, HOSTNAME, INTERNAL_HOSTNAME, MANAGED, TARGET, TTL];
/// The maximum TTL in seconds that an object may request: caches keep an old target for that long.
pub(crate) const MAX_TTL: u32 = 3600;

pub(crate) fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the keys and the values of an annotation of ours and of those with the same name and another program's prefix.
fn all<'a>(
    metadata: &'a ObjectMeta,
    ours: &'static str,
    prefixes: &[String],
) -> impl Iterator<Item = (Cow<'static, str>, &'a str)> {
    let foreign = with_prefixes(ours.trim_start_matches(PREFIX), prefixes).map(Cow::from);
    let keys = std::iter::once(Cow::from(ours)).chain(foreign);
    keys.filter_map(|key| annotation(metadata, &key).map(|text| (key, text)))
}

fn with_prefixes(name: &str, prefixes: &[String]) -> impl Iterator<Item = String> {
    prefixes.iter().map(move |prefix| format!("{prefix}{name}"))
}

/// Returns the value of [`MANAGED`]; without it, `false` for an object that is another program's.
pub(crate) fn opted<'a>(metadata: &'a ObjectMeta, prefixes: &[String]) -> Option<&'a str> {
    let is_passed_over = || {
        let mut controllers =
            with_prefixes(CONTROLLER, prefixes).filter_map(|key| annotation(metadata, &key));
        controllers.next().is_some_and(|controller| controller != DNS_CONTROLLER)
    };
    annotation(metadata, MANAGED).or_else(|| is_passed_over().then_some("false"))
}

/// Returns the TTL that the object requests; adds an invalid one to `unusable`. With another program's prefix it may be a
/// duration.
pub(crate) fn ttl(metadata: &ObjectMeta, prefixes: &[String], unusable: &mut Vec<Rejection>) -> Option<u32> {
    let (key, text) = all(metadata, TTL, prefixes).next()?;
    let is_ours = key == TTL;
    let ttl = text.parse().ok().or_else(|| if is_ours { None } else { seconds(text) });
    if let Some(ttl) = ttl.filter(|ttl| *ttl <= MAX_TTL) {
        return Some(ttl);
    }
    let mut rejection = Rejection::new(RejectedField::Annotation, format!("annotation {key}"));
    let or_duration = if is_ours { "" } else { ", nor a duration such as 1m30s up to it" };
    rejection.reject(text, &format!("not a number of seconds from 0 to {MAX_TTL}{or_duration}"));
    unusable.push(rejection);
    None
}

/// Returns the whole seconds of a duration as Go writes it, such as `1m30s`.
fn seconds(text: &str) -> Option<u32> {
    let is_of_go = text.chars().all(|c| c.is_ascii_digit() || "hmsnuµμ.".contains(c));
    let duration: SignedDuration = Some(text).filter(|_| is_of_go)?.parse().ok()?;
    duration.as_secs().try_into().ok()
}

/// Which hostnames of an object count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HostnameSource {
    /// Those of its spec and of its annotations.
    #[default]
    All,
    /// Those of its annotations.
    Annotations,
    /// Those of its spec.
    Spec,
}

impl HostnameSource {
    /// Reads the annotation with this name and another program's prefix: `ingress-hostname-source` of Ingresses, or
    /// `gateway-hostname-source` of routes. Adds an invalid value, which doesn't count, to `unusable`.
    pub(crate) fn of(
        metadata: &ObjectMeta,
        name: &str,
        prefixes: &[String],
        unusable: &mut Vec<Rejection>,
    ) -> Self {
        let mut all =
            with_prefixes(name, prefixes).filter_map(|key| Some((annotation(metadata, &key)?, key)));
        let Some((text, key)) = all.next() else { return Self::All };
        match &*text.trim().to_ascii_lowercase() {
            "annotation-only" => Self::Annotations,
            "defined-hosts-only" => Self::Spec,
            _ => {
                let mut rejection = Rejection::new(RejectedField::Annotation, format!("annotation {key}"));
                rejection.reject(text, "neither annotation-only nor defined-hosts-only");
                unusable.push(rejection);
                Self::All
            }
        }
    }
}

/// The hostnames and addresses that an object names as its target: those of its annotation [`TARGET`], or else of its
/// status.
#[derive(Debug)]
pub(crate) struct TargetEntries<'a> {
    pub(crate) entries: Cow<'a, [IngressEntry]>,
    /// What of the annotation is neither a hostname nor an address, or doesn't count; `None` for a status.
    pub(crate) annotated: Option<Rejection>,
}

impl<'a> TargetEntries<'a> {
    /// Reads the annotation, or `status` if there is none. An annotation without entries counts as absent.
    pub(crate) fn of(metadata: &ObjectMeta, prefixes: &[String], status: &'a [IngressEntry]) -> Self {
        let lists = all(metadata, TARGET, prefixes).map(|(key, text)| (key, ListEntries::of(text)));
        let mut lists = lists.filter(|(_, list)| !list.accepted.is_empty() || list.ignored > 0);
        let Some((key, ListEntries { accepted, ignored })) = lists.next() else {
            return Self { entries: status.into(), annotated: None };
        };
        let mut rejection = Rejection::new(RejectedField::Target, format!("the entry in annotation {key}"));
        rejection.ignore(ignored, ListEntries::LIMIT);
        let mut entries = Vec::new();
        for text in accepted {
            let (is_address, own) = (text.parse::<IpAddr>().is_ok(), || Some(text.to_owned()));
            match is_address {
                true => entries.push(IngressEntry { ip: own(), hostname: None }),
                false if is_hostname(text) => entries.push(IngressEntry { hostname: own(), ip: None }),
                false => rejection.reject(text, "neither a hostname nor an IPv4 or IPv6 address"),
            }
        }
        Self { entries: entries.into(), annotated: Some(rejection) }
    }

    /// Returns the hostnames that are valid.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = Name> {
        let entries = entries_in_use(&self.entries).into_iter();
        entries.filter_map(|entry| entry.hostname.as_deref()).filter_map(|host| host_name(host).ok())
    }
}

/// Adds an invalid value of [`MANAGED`] to `unusable`.
pub(crate) fn check_managed(metadata: &ObjectMeta, unusable: &mut Vec<Rejection>) {
    if let Some(text) = annotation(metadata, MANAGED).filter(|text| !["true", "false"].contains(text)) {
        let mut rejection = Rejection::new(RejectedField::Annotation, format!("annotation {MANAGED}"));
        rejection.reject(text, "neither true nor false");
        unusable.push(rejection);
    }
}

/// Returns the namespaces of [`ALLOW_FROM`], sorted and without duplicates, and the invalid part of the annotation.
pub(crate) fn allow_from(metadata: &ObjectMeta, home: &str) -> (Arc<[Arc<str>]>, Option<Rejection>) {
    let cluster = clusters::cluster_of(metadata.namespace.as_deref().unwrap_or_default());
    let ListEntries { accepted, ignored } =
        ListEntries::of(annotation(metadata, ALLOW_FROM).unwrap_or_default());
    let mut rejection =
        Rejection::new(RejectedField::Annotation, format!("the namespace in annotation {ALLOW_FROM}"));
    rejection.ignore(ignored, ListEntries::LIMIT);
    let mut namespaces: Vec<Arc<str>> = Vec::new();
    for namespace in accepted {
        let (of, plain) = clusters::split(namespace);
        if plain != "*" && !names::is_label(plain) || of.is_some_and(|cluster| !names::is_label(cluster)) {
            let why = "neither the name of a namespace nor *, also not with a cluster, as in west/shop";
            rejection.reject(namespace, why);
            continue;
        }
        let namespace = clusters::seen_from(cluster, namespace, home);
        if !namespaces.iter().any(|known| **known == *namespace) {
            namespaces.push(namespace.into());
        }
    }
    namespaces.sort_unstable();
    (shared(namespaces), rejection.non_empty())
}

/// Returns the annotations with our prefix that objects of the kind `what`, which have those in `own`, can't have:
/// mistyped ones, or those of other objects.
pub(crate) fn unknown(
    metadata: &ObjectMeta,
    hostname_annotations: &[String],
    what: &str,
    own: &[&str],
) -> Option<Rejection> {
    let mut rejection = Rejection::new(RejectedField::Annotation, "the annotation");
    let is_known = |key: &String| own.contains(&&**key) || hostname_annotations.contains(key);
    let ours = metadata.annotations.iter().flatten().map(|(key, _)| key);
    for key in ours.filter(|key| key.starts_with(PREFIX) && !is_known(key)) {
        rejection.reject(key, &format!("{what} have {}", own.join(", ")));
    }
    rejection.non_empty()
}

/// Returns a list that links share. An empty one, as of nearly all objects, takes no memory.
pub(crate) fn shared(list: Vec<Arc<str>>) -> Arc<[Arc<str>]> {
    if list.is_empty() { Arc::default() } else { list.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NEW: &str = "external-dns.kubernetes.io/";
    const OLD: &str = "external-dns.alpha.kubernetes.io/";

    fn prefixes() -> Vec<String> {
        [NEW, OLD].map(ToOwned::to_owned).to_vec()
    }

    fn metadata(annotations: Value) -> ObjectMeta {
        serde_json::from_value(json!({"annotations": annotations})).unwrap()
    }

    fn text(rejections: &[Rejection]) -> String {
        rejections.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn ttl_with_a_foreign_prefix_may_be_a_duration() {
        for (value, expected) in [
            ("60", Some(60)),
            ("0", Some(0)),
            ("1m30s", Some(90)),
            ("1h", Some(3600)),
            ("0.5h", Some(1800)),
            ("1.9s", Some(1)),
            ("90000ms", Some(90)),
            ("3600", Some(3600)),
            ("3601", None),
            ("61m", None),
            ("-1s", None),
            ("1 hour", None),
            ("PT1M", None),
            ("", None),
            ("99999999999999999999h", None),
        ] {
            let mut unusable = Vec::new();
            let annotations = metadata(json!({format!("{NEW}ttl"): value}));
            assert_eq!(ttl(&annotations, &prefixes(), &mut unusable), expected, "{value}");
            let why = text(&unusable);
            assert_eq!(why.contains("nor a duration such as 1m30s"), expected.is_none(), "{value}: {why}");
            assert_eq!(ttl(&annotations, &[], &mut Vec::new()), None, "the prefix isn't given");
        }
    }

    #[test]
    fn setting_of_the_first_prefix_counts() {
        let annotations = |ours: &str, new: &str, old: &str| {
            let all = [(TTL, ours), (&*format!("{NEW}ttl"), new), (&*format!("{OLD}ttl"), old)];
            let given = all.into_iter().filter(|(_, value)| !value.is_empty());
            metadata(Value::Object(given.map(|(key, value)| (key.to_owned(), json!(value))).collect()))
        };
        for (all, expected) in [
            (("1", "2", "3"), Some(1)),
            (("", "2", "3"), Some(2)),
            (("", "", "3"), Some(3)),
            (("1m", "2", "3"), None),
            (("", "x", "3"), None),
        ] {
            let (ours, new, old) = all;
            assert_eq!(ttl(&annotations(ours, new, old), &prefixes(), &mut Vec::new()), expected, "{all:?}");
        }
    }

    #[test]
    fn target_annotation_takes_the_place_of_the_status() {
        let status = [IngressEntry { hostname: None, ip: Some("192.0.2.9".to_owned()) }];
        let shown = |annotations: Value| {
            let metadata = metadata(annotations);
            let TargetEntries { entries, annotated } = TargetEntries::of(&metadata, &prefixes(), &status);
            let entries = entries.iter().map(|IngressEntry { hostname, ip }| {
                hostname.as_ref().map(|host| format!("host {host}")).or(ip.clone()).unwrap()
            });
            let why = annotated.and_then(Rejection::non_empty).map(|rejection| rejection.to_string());
            (entries.collect::<Vec<_>>().join(" "), why.unwrap_or_default())
        };
        let (new, old) = (format!("{NEW}target"), format!("{OLD}target"));
        for (annotations, expected) in [
            (json!({}), "192.0.2.9"),
            (
                json!({TARGET: " a.example. , 192.0.2.1,2001:db8::1 "}),
                "host a.example. 192.0.2.1 2001:db8::1",
            ),
            (json!({TARGET: ""}), "192.0.2.9"),
            (json!({TARGET: " , "}), "192.0.2.9"),
            (json!({TARGET: "", &new: "a.example"}), "host a.example"),
            (json!({TARGET: "b.example", &new: "a.example"}), "host b.example"),
            (json!({&old: "c.example", &new: "a.example"}), "host a.example"),
        ] {
            assert_eq!(shown(annotations.clone()), (expected.to_owned(), String::new()), "{annotations}");
        }
        for wrong in ["http://a.example", "a b", "192.0.2.300", "[2001:db8::1]", "a..example", "192.0.2.0/24"]
        {
            let (entries, why) = shown(json!({TARGET: format!("{wrong},a.example")}));
            let expected = format!(
                "the entry in annotation {TARGET} \"{wrong}\" isn't served: neither a hostname nor an IPv4 or IPv6 \
                 address"
            );
            assert_eq!((&*entries, why), ("host a.example", expected));
        }
        let many = (0..130).map(|number| format!("192.0.2.{number}")).collect::<Vec<_>>().join(",");
        let (entries, why) = shown(json!({&new: many}));
        assert_eq!(entries.split(' ').count(), 100);
        assert!(why.contains(&*new) && why.contains("entries that are ignored: 30"), "{why}");
    }

    #[test]
    fn object_of_another_controller_is_opted_out() {
        let (new, old) = (format!("{NEW}controller"), format!("{OLD}controller"));
        for (annotations, expected) in [
            (json!({}), None),
            (json!({&new: "dns-controller"}), None),
            (json!({&new: "other"}), Some("false")),
            (json!({&old: ""}), Some("false")),
            (json!({&old: "other", &new: "dns-controller"}), None),
            (json!({&new: "other", MANAGED: "true"}), Some("true")),
            (json!({&new: "dns-controller", MANAGED: "false"}), Some("false")),
        ] {
            let metadata = metadata(annotations);
            assert_eq!(opted(&metadata, &prefixes()), expected, "{metadata:?}");
            assert_eq!(opted(&metadata, &[]), annotation(&metadata, MANAGED), "the prefix isn't given");
        }
    }

    #[test]
    fn hostname_source_is_annotations_or_spec() {
        let name = "gateway-hostname-source";
        for (value, expected) in [
            ("annotation-only", HostnameSource::Annotations),
            (" Defined-Hosts-Only", HostnameSource::Spec),
            ("both", HostnameSource::All),
            ("", HostnameSource::All),
        ] {
            let annotations = metadata(json!({format!("{OLD}{name}"): value}));
            let mut unusable = Vec::new();
            assert_eq!(
                HostnameSource::of(&annotations, name, &prefixes(), &mut unusable),
                expected,
                "{value}"
            );
            let is_wrong = expected == HostnameSource::All;
            assert_eq!(text(&unusable).contains("neither annotation-only nor"), is_wrong, "{value}");
            assert_eq!(HostnameSource::of(&annotations, name, &[], &mut Vec::new()), HostnameSource::All);
        }
    }
}
