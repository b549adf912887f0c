use serde_json::{Value, json};

use super::*;

fn of<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

#[test]
fn binding_of_a_release_names_one_service_account() {
    let binding = |role: &str, subjects: Value| -> ClusterRoleBinding {
        of(json!({"metadata": {"name": "dns.dns-lb-linker"}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}}))
    };
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": "dns"});
    let release = "dns.dns-lb-linker";
    let [ours, theirs] = ["ours", "theirs"].map(account);
    assert_eq!(service_account(&binding(release, json!([ours]))), Ok(ServiceKey::new("dns", "ours")));
    let text = "ClusterRoleBinding dns.dns-lb-linker isn't that of a release, because ";
    for (role, subjects, reason) in [
        (release, json!([ours, theirs]), "it names 2 subjects instead of one ServiceAccount"),
        (
            release,
            json!([{"kind": "Group", "name": "all"}]),
            "it names 1 subjects instead of one ServiceAccount",
        ),
        (release, Value::Null, "it names 0 subjects instead of one ServiceAccount"),
        ("lb-linker", json!([theirs]), "its role is lb-linker"),
    ] {
        assert_eq!(service_account(&binding(role, subjects)), Err(format!("{text}{reason}")));
    }
}

#[test]
fn empty_selector_selects_no_pod() {
    let labels: BTreeMap<String, String> = of(json!({"a": "1", "b": "2"}));
    for (selector, is_selected) in [
        (json!({"a": "1"}), true),
        (json!({"a": "1", "b": "2"}), true),
        (json!({"a": "1", "c": "3"}), false),
        (json!({"a": "2"}), false),
        (json!({}), false),
        (Value::Null, false),
    ] {
        assert_eq!(selects(&of(json!({"spec": {"selector": selector}})), &labels), is_selected, "{selector}");
    }
}

#[test]
fn dns_port_needs_udp_and_a_cluster_ip() {
    let port = |ip: &str, ports: Value| dns_port(&of(json!({"spec": {"clusterIPs": [ip], "ports": ports}})));
    let udp = json!({"port": 53, "protocol": "UDP"});
    assert_eq!(port("10.0.0.53", json!([udp])), Some(53));
    assert_eq!(port("10.0.0.53", json!([{"name": "dns", "port": 5353, "protocol": "UDP"}])), Some(5353));
    assert_eq!(port("None", json!([udp])), None);
    assert_eq!(port("10.0.0.53", json!([{"port": 53, "protocol": "TCP"}])), None);
}
