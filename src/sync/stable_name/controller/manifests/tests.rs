use hickory_proto::rr::Name;
use serde_json::{Value, json};

use super::*;
use crate::model::hostname::Hostname;
use crate::model::link::{Ingress, ObservedService};
use crate::store::{Input, OnGone};
use crate::sync::test_support::metrics;

struct Manifests {
    overrides: ManifestOverrides,
    policy: HostnamePolicy,
}

impl Manifests {
    fn new() -> Self {
        let store = Store::new(OnGone::Dropped);
        store.set_known(Input::Services);
        let (unselected, selection) = (Arc::default(), Arc::default());
        Self {
            overrides: ManifestOverrides::new(
                Arc::new(store),
                unselected,
                selection,
                metrics(),
                ObjectLog::default(),
                &Findings::default(),
            ),
            policy: HostnamePolicy::default(),
        }
    }

    /// Sets the target of a Service, which lets namespace shop follow it; `None` for a blank status.
    fn service(&self, namespace: &str, name: &str, host: Option<&str>) {
        let hostnames = host.map(|host| Hostname::from(&Name::from_ascii(format!("{host}.")).unwrap()));
        self.overrides.store.apply(ObservedService {
            key: ServiceKey::new(namespace, name),
            uid: format!("{namespace}/{name}").as_str().into(),
            created: None,
            resource_version: None,
            ingress: Ingress { hostnames: hostnames.into_iter().collect(), addresses: Vec::new() },
            ports: Arc::default(),
            annotations: Annotations {
                allow_from: [Arc::from("shop")].into(),
                ttl: Some(9),
                ..Default::default()
            },
            refused: false,
            has_finalizer: false,
            persisted: None,
        });
    }

    fn delete(&self, namespace: &str, name: &str) {
        self.overrides.store.gone(
            &ServiceKey::new(namespace, name),
            &format!("{namespace}/{name}"),
            None,
            Instant::now(),
        );
    }

    /// Applies StableName shop/web with this spec and status, and returns the changes of links.
    fn web(&self, spec: &Value, status: Value) -> Vec<String> {
        let object = json!({"apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"namespace": "shop", "name": "web"}, "spec": spec, "status": status});
        self.apply(&[Arc::new(serde_json::from_value(object).unwrap())])
    }

    fn apply(&self, objects: &[Arc<StableName>]) -> Vec<String> {
        let changes = self.overrides.apply(objects, &self.policy);
        changes.iter().map(ToString::to_string).collect()
    }

    fn link(&self) -> Option<Arc<Link>> {
        self.overrides.store.get(&ServiceKey::new("shop", "web"))
    }

    /// Returns the source in use and the target of shop/web.
    fn target(&self) -> (String, String) {
        let link = self.link().unwrap();
        let target = link.target.as_ref().map(ToString::to_string).unwrap_or_default();
        (link.active_override().map(|by| by.source.to_string()).unwrap_or_default(), target)
    }

    fn error(&self) -> Option<String> {
        self.overrides
            .known
            .lock()
            .object_errors
            .of(&ServiceKey::new("shop", "web"))
            .map(|error| error.to_string())
    }
}

fn spec() -> Value {
    json!({"sources": [
        {"name": "seoul", "service": {"name": "web"}},
        {"name": "busan", "service": {"name": "web", "namespace": "shop-dr"}},
        {"name": "fixed", "hostname": "lb.example.com"},
    ]})
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = spec();
    spec[field] = value;
    spec
}

fn pair(source: &str, target: &str) -> (String, String) {
    (source.to_owned(), target.to_owned())
}

#[test]
fn first_source_with_a_target_is_in_use() {
    let manifests = Manifests::new();
    assert_eq!(manifests.web(&spec(), Value::Null), ["link shop/web: none → lb.example.com"]);
    assert_eq!(manifests.target(), pair("fixed", "lb.example.com"));
    manifests.service("shop-dr", "web", Some("dr.example"));
    assert_eq!(manifests.web(&spec(), Value::Null), ["link shop/web: lb.example.com → dr.example"]);
    manifests.service("shop", "web", Some("a.example"));
    assert_eq!(manifests.web(&spec(), Value::Null), ["link shop/web: dr.example → a.example"]);
    assert_eq!(manifests.target(), pair("seoul", "a.example"));
    assert_eq!(manifests.web(&spec(), Value::Null), [""; 0]);
    // The settings of the Service of the same name are inherited, also when it is gone.
    assert_eq!(manifests.link().unwrap().annotations.ttl, Some(9));
    manifests.delete("shop", "web");
    assert_eq!(manifests.web(&spec(), Value::Null), ["link shop/web: a.example → dr.example"]);
    assert_eq!(manifests.link().unwrap().annotations.ttl, Some(9));
    assert_eq!(manifests.error().unwrap(), "source seoul: there is no LoadBalancer Service web");
}

#[test]
fn blank_status_keeps_the_target() {
    let manifests = Manifests::new();
    manifests.service("shop", "web", Some("a.example"));
    manifests.web(&spec(), Value::Null);
    manifests.service("shop", "web", None);
    assert_eq!(manifests.web(&spec(), Value::Null), [""; 0]);
    assert_eq!(manifests.target(), pair("seoul", "a.example"));
}

#[test]
fn pinned_source_is_used_once_it_has_a_target() {
    let manifests = Manifests::new();
    manifests.service("shop", "web", Some("a.example"));
    manifests.web(&with("pin", json!("fixed")), Value::Null);
    assert_eq!(manifests.target(), pair("fixed", "lb.example.com"));
    // Nothing moves while the pinned source has no target.
    manifests.web(&with("pin", json!("busan")), Value::Null);
    assert_eq!(manifests.target(), pair("fixed", "lb.example.com"));
    manifests.service("shop-dr", "web", Some("dr.example"));
    manifests.web(&with("pin", json!("busan")), Value::Null);
    assert_eq!(manifests.target(), pair("busan", "dr.example"));
}

#[test]
fn status_is_the_decision() {
    let manifests = Manifests::new();
    manifests.service("shop", "web", Some("a.example"));
    manifests.service("shop-dr", "web", Some("dr.example"));
    let target = json!({"source": "busan", "hostname": "old.example", "serviceUID": "shop-dr/web"});
    manifests.web(&spec(), json!({"target": target}));
    assert_eq!(manifests.target(), pair("busan", "old.example"));
    let former = json!({"history": [{"source": "seoul", "display": "a.example", "reason": "Withdrawn"}]});
    assert_eq!(manifests.web(&spec(), former), ["link shop/web: old.example → withdrawn"]);
    let denied = json!({"target": {"source": "fixed", "addresses": ["127.0.0.1"]}});
    manifests.web(&spec(), denied);
    assert_eq!(manifests.target(), pair("", ""));
    assert_eq!(manifests.error().unwrap(), "the target in its status isn't allowed or can't be read");
    manifests.web(&spec(), json!({}));
    assert_eq!((manifests.target(), manifests.error()), (pair("seoul", "a.example"), None));
}

#[test]
fn removed_stable_name_returns_the_link_to_its_service() {
    let manifests = Manifests::new();
    manifests.service("shop", "web", Some("a.example"));
    manifests.web(&with("pin", json!("fixed")), Value::Null);
    assert_eq!(manifests.apply(&[]), ["link shop/web: lb.example.com → a.example"]);
    assert!(manifests.link().unwrap().overridden.is_none());
    manifests.web(&with("pin", json!("fixed")), Value::Null);
    manifests.delete("shop", "web");
    manifests.apply(&[]);
    assert!(manifests.link().is_none());
}

#[test]
fn deleted_source_withdraws_and_absent_source_announces_nothing() {
    let manifests = Manifests::new();
    let spec = json!({"sources": [{"name": "busan", "service": {"name": "web", "namespace": "shop-dr"}}]});
    manifests.web(&spec, Value::Null);
    let link = manifests.link().unwrap();
    assert!(link.target.is_none() && link.overridden.is_some() && link.active_override().is_none());
    let refused = "source busan: no LoadBalancer Service shop-dr/web lets namespace shop follow it";
    assert_eq!(manifests.error().unwrap(), refused);
    // The Service of the same name, which isn't a source, keeps its link until the first target.
    manifests.service("shop", "web", Some("a.example"));
    manifests.web(&spec, Value::Null);
    assert_eq!(manifests.target(), pair("", "a.example"));
    manifests.service("shop-dr", "web", Some("dr.example"));
    manifests.web(&spec, Value::Null);
    assert_eq!(manifests.target(), pair("busan", "dr.example"));
    manifests.delete("shop-dr", "web");
    assert_eq!(manifests.web(&spec, Value::Null), ["link shop/web: dr.example → withdrawn"]);
}

#[test]
fn tcp_checks_refuse_no_source() {
    let manifests = Manifests::new();
    manifests.web(&with("check", json!({"tcpPort": 443})), Value::Null);
    assert_eq!(manifests.target(), pair("fixed", "lb.example.com"));
}

#[test]
fn target_policy_applies_to_sources() {
    let manifests = Manifests::new();
    let spec = json!({"sources": [{"name": "inside", "addresses": ["10.96.0.1"]},
        {"name": "fixed", "hostname": "lb.example.com"}]});
    let mut denying = Manifests::new();
    denying.policy.targets.denied_nets.push("10.96.0.0/12".parse().unwrap());
    manifests.web(&spec, Value::Null);
    denying.web(&spec, Value::Null);
    assert_eq!(manifests.target(), pair("inside", "10.96.0.1"));
    assert_eq!(denying.target(), pair("fixed", "lb.example.com"));
    assert!(denying.error().unwrap().starts_with("source inside: 10.96.0.1: "), "{:?}", denying.error());
}
