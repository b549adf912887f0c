//! The zones of the lb-linker behind a Service, by the flags of its Deployment.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::Forwarding;
use super::own_service::LABEL;
use crate::model::excerpt::examples;

/// The name of the container in `deploy/` and in the chart.
const CONTAINER: &str = "lb-linker";
/// The default of `--zone`.
const DEFAULT: &str = "lb.internal";

/// Returns a warning if the only Deployment of lb-linker in the namespace of its Service has other zones. Nothing is known
/// of one with a Corefile, and without the permission to list Deployments.
pub async fn unserved(client: &Client, forwarding: &Forwarding) -> Option<String> {
    let (namespace, _) = forwarding.service.split_once('/')?;
    // Decoding the whole type would add half a megabyte to the program.
    let kind = ApiResource::erase::<Deployment>(&());
    let deployments = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind);
    let (key, label) = LABEL;
    let two = ListParams::default().labels(&format!("{key}={label}")).limit(2);
    let found = deployments.list(&two).await.ok()?;
    let [deployment] = &*found.items else { return None };
    warning(
        &format!("{namespace}/{}", deployment.name_any()),
        &zones_of(&deployment.data)?,
        &forwarding.zones,
    )
}

fn warning(deployment: &str, served: &[String], wanted: &[String]) -> Option<String> {
    let is_served = |zone: &str| {
        served.iter().any(|served| {
            zone.strip_suffix(&**served).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    };
    let missing: Vec<&str> = wanted.iter().map(String::as_str).filter(|zone| !is_served(zone)).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "Deployment {deployment} serves {}, and not {}: give it --zone {}, too",
            examples(served),
            missing.join(", "),
            missing.join(" --zone ")
        )
    })
}

/// Returns the zones that the flags of a Deployment name; `None` if a Corefile, or another object, does.
fn zones_of(deployment: &Value) -> Option<Vec<String>> {
    let containers = deployment.pointer("/spec/template/spec/containers")?.as_array()?;
    let container = containers.iter().find(|container| container["name"] == CONTAINER)?;
    let items = |field: &str| container[field].as_array().into_iter().flatten();
    let words: Vec<&str> = items("command").chain(items("args")).filter_map(Value::as_str).collect();
    let variable = |name: &str| items("env").find(|variable| variable["name"] == name);
    let has_corefile = !values(&words, "--corefile").is_empty() || variable("LB_LINKER_COREFILE").is_some();
    if has_corefile || items("envFrom").next().is_some() {
        return None;
    }
    let zones = match (values(&words, "--zone"), variable("LB_LINKER_ZONE")) {
        (zones, _) if !zones.is_empty() => zones,
        (_, Some(variable)) => vec![variable["value"].as_str()?],
        (_, None) => vec![DEFAULT],
    };
    if zones.iter().any(|zones| zones.contains("$(")) {
        return None;
    }
    let zones = zones.iter().flat_map(|zones| zones.split(','));
    Some(zones.map(|zone| zone.trim_end_matches('.').to_ascii_lowercase()).collect())
}

/// Returns the values of a flag.
fn values<'a>(words: &[&'a str], flag: &str) -> Vec<&'a str> {
    let value = |(at, word): (usize, &&'a str)| match word.strip_prefix(flag)? {
        "" => words.get(at + 1).copied(),
        rest => rest.strip_prefix('='),
    };
    words.iter().enumerate().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zones_are_those_of_the_flags_of_a_deployment() {
        let of = |container: Value| {
            let mut container = container;
            container["name"] = "lb-linker".into();
            let containers = json!([{"name": "other", "args": ["--zone=x"]}, container]);
            let zones = zones_of(&json!({"spec": {"template": {"spec": {"containers": containers}}}}));
            zones.map(|zones| zones.join(" "))
        };
        let (zone, corefile) = ("LB_LINKER_ZONE", "LB_LINKER_COREFILE");
        for (container, expected) in [
            (json!({}), Some("lb.internal")),
            (
                json!({"args": ["run", "--zone=a.example.,B.example", "--zone", "c.example"]}),
                Some("a.example b.example c.example"),
            ),
            (json!({"command": ["/lb-linker", "--zone=a.example"]}), Some("a.example")),
            (json!({"env": [{"name": zone, "value": "a.example"}]}), Some("a.example")),
            (
                json!({"args": ["--zone=b.example"], "env": [{"name": zone, "value": "a.example"}]}),
                Some("b.example"),
            ),
            (json!({"env": [{"name": zone, "valueFrom": {}}]}), None),
            (json!({"args": ["--corefile=/c"]}), None),
            (json!({"args": ["--zone=$(ZONE)"]}), None),
            (json!({"envFrom": [{"configMapRef": {"name": "flags"}}]}), None),
            (json!({"env": [{"name": corefile, "value": "/c"}]}), None),
        ] {
            assert_eq!(of(container.clone()).as_deref(), expected, "{container}");
        }
        assert_eq!(zones_of(&json!({})), None);
    }

    #[test]
    fn zone_that_the_deployment_lacks_is_named_with_its_flag() {
        let zones = |zones: &[&str]| zones.iter().map(ToString::to_string).collect::<Vec<_>>();
        let served = zones(&["lb.internal"]);
        assert_eq!(warning("a/b", &served, &served), None);
        assert_eq!(warning("a/b", &served, &zones(&["a.lb.internal"])), None, "it lies in a served zone");
        let expected = "Deployment a/b serves lb.internal, and not b.example, c.example: give it --zone b.example --zone \
                        c.example, too";
        let wanted = zones(&["lb.internal", "b.example", "c.example"]);
        assert_eq!(warning("a/b", &served, &wanted).as_deref(), Some(expected));
    }
}
