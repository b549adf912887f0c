use super::*;
use crate::stub::test_support::{forwarding, platforms, recorded};

const CUSTOM: &str = "# BEGIN lb-linker stub\nlb.internal:53 {\n    errors\n    forward . 10.96.77.7\n}\n\
                      # END lb-linker stub\n";

fn changes(steps: Vec<Step>) -> Vec<Change> {
    let change = |step| match step {
        Step::Change(change) => change,
        other => panic!("{other:?}"),
    };
    steps.into_iter().map(change).collect()
}

/// Returns the cluster after the changes, as the API server would.
fn after(mut dns: ClusterDns, changes: &[Change]) -> ClusterDns {
    for change in changes {
        if dns.config_map(&change.config_map).is_none() {
            dns.config_maps.push(config_map(&change.config_map));
        }
        let map = dns.config_maps.iter_mut().find(|map| name(map) == change.config_map).unwrap();
        let data = map.data.get_or_insert_default();
        for (key, value) in
            [(change.key.clone(), &change.after), (format!("{}{BACKUP}", change.key), &change.backup)]
        {
            match value {
                Some(value) => drop(data.insert(key, value.clone())),
                None => drop(data.remove(&key)),
            }
        }
    }
    dns
}

#[test]
fn apply_changes_what_has_a_config_map_of_its_own() {
    let keys = |steps: Vec<Step>| -> Vec<String> {
        let text = |step: Step| match step {
            Step::Change(change) => format!("{}/{}", change.config_map, change.key),
            Step::Done(text) => format!("done: {text}"),
            Step::Refused(text) => format!("refused: {text}"),
        };
        steps.into_iter().map(text).collect()
    };
    let refused = |reason: &str| format!("refused: {reason}; `lb-linker stub` prints what to do");
    let other = || refused("this cluster DNS isn't configured by a ConfigMap of CoreDNS");
    for name in platforms() {
        let expected = match &*name {
            "kubeadm" => vec!["coredns/Corefile".to_owned()],
            "nodelocal" => vec!["coredns/Corefile".to_owned(), "node-local-dns/Corefile".to_owned()],
            "kubespray" => vec!["coredns/Corefile".to_owned(), "nodelocaldns/Corefile".to_owned()],
            "aks" | "k3s" => vec!["coredns-custom/lb-linker.server".to_owned()],
            "eks" => vec![refused(
                "ConfigMap kube-system/coredns is managed by the EKS add-on, which would undo a change",
            )],
            "rke2" => {
                vec![refused("neither ConfigMap kube-system/coredns nor one of NodeLocal DNSCache was found")]
            }
            _ => vec![other()],
        };
        assert_eq!(keys(to_apply(&recorded(&name), &forwarding())), expected, "{name}");
    }
}

#[test]
fn apply_is_idempotent_and_remove_restores_the_config_maps() {
    for name in ["kubeadm", "nodelocal", "kubespray", "aks", "k3s"] {
        let before = recorded(name);
        let applied = after(before.clone(), &changes(to_apply(&before, &forwarding())));
        for step in to_apply(&applied, &forwarding()) {
            assert!(matches!(step, Step::Done(_)), "{name}: {step:?}");
        }
        let removed = after(applied.clone(), &changes(to_remove(&applied)));
        assert!(matches!(&*to_remove(&removed), [Step::Done(_)]), "{name}");
        for map in &before.config_maps {
            let data = |map: &ConfigMap| map.data.clone().unwrap_or_default();
            let now = removed.config_map(map.metadata.name.as_deref().unwrap()).unwrap();
            assert_eq!(data(now), data(map), "{name}");
        }
    }
}

#[test]
fn change_keeps_the_value_before_it() {
    let dns = recorded("kubeadm");
    let [change] = &changes(to_apply(&dns, &forwarding()))[..] else { panic!() };
    assert_eq!(change.backup.as_deref(), value(dns.config_map(COREDNS).unwrap(), COREFILE));
    assert_eq!((change.backup.as_ref(), change.version.as_deref()), (change.before.as_ref(), Some("243")));
    assert!(change.reloads);
}

#[test]
fn node_local_block_has_its_siblings_bind_and_no_cache() {
    let dns = recorded("nodelocal");
    let [_, change] = &changes(to_apply(&dns, &forwarding()))[..] else { panic!() };
    let added = change.after.as_ref().unwrap().strip_prefix(change.before.as_ref().unwrap()).unwrap();
    let expected = "# BEGIN lb-linker stub\nlb.internal:53 {\n    bind 169.254.20.10 10.96.0.10\n    errors\n    \
                    forward . 10.96.77.7 {\n        force_tcp\n    }\n}\n# END lb-linker stub\n";
    assert_eq!(added, expected);
}

#[test]
fn hand_made_blocks_are_left_alone() {
    let with = |name: &str, map: &str, key: &str, text: &str| {
        let mut dns = recorded(name);
        let map = dns.config_maps.iter_mut().find(|it| it.metadata.name.as_deref() == Some(map)).unwrap();
        map.data.get_or_insert_default().entry(key.to_owned()).or_default().push_str(text);
        to_apply(&dns, &forwarding())
    };
    let right = "lb.internal:53 {\n    forward . 10.96.77.7\n}\n";
    let wrong = "lb.internal:53 {\n    forward . 10.96.0.9\n}\n";
    let step = &with("kubeadm", COREDNS, COREFILE, right)[0];
    assert_eq!(step, &Step::Done("ConfigMap kube-system/coredns forwards lb.internal already".to_owned()));
    let step = &with("kubeadm", COREDNS, COREFILE, wrong)[0];
    assert!(
        matches!(step, Step::Refused(text) if text.starts_with("kube-system/coredns:Corefile:24:1: ")),
        "{step:?}"
    );
    // NodeLocal DNSCache may ask CoreDNS.
    let by_core_dns = "lb.internal:53 {\n    forward . __PILLAR__CLUSTER__DNS__\n}\n";
    let step = &with("nodelocal", "node-local-dns", COREFILE, by_core_dns)[1];
    assert!(matches!(step, Step::Done(_)), "{step:?}");
    let step = &with("aks", COREDNS_CUSTOM, "mine.server", right)[0];
    assert_eq!(
        step,
        &Step::Done(
            "ConfigMap kube-system/coredns-custom, key mine.server forwards lb.internal already".to_owned()
        )
    );
    let step = &with("aks", COREDNS_CUSTOM, "mine.server", wrong)[0];
    assert!(
        matches!(step, Step::Refused(text) if text.starts_with("kube-system/coredns-custom:mine.server:1: ")),
        "{step:?}"
    );
    assert_eq!(
        changes(with("aks", COREDNS_CUSTOM, "mine.override", wrong))[0].after.as_deref(),
        Some(CUSTOM)
    );
}

#[test]
fn managed_config_maps_are_refused() {
    let mut dns = recorded("kubeadm");
    let applied = after(dns.clone(), &changes(to_apply(&dns, &forwarding())));
    dns.config_maps[0].metadata.labels =
        Some([("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned())].into());
    let text = "ConfigMap kube-system/coredns is managed by Helm, which would undo a change; `lb-linker stub` prints \
                what to do";
    assert_eq!(to_apply(&dns, &forwarding()), [Step::Refused(text.to_owned())]);
    dns.config_maps[0].data.clone_from(&applied.config_maps[0].data);
    assert!(matches!(&*to_apply(&dns, &forwarding()), [Step::Done(_)]));
    assert!(matches!(&*to_remove(&dns), [Step::Refused(_)]));
}

#[test]
fn diff_shows_the_changed_lines_with_context() {
    let change = |before: Option<&str>, after: Option<&str>| Change {
        config_map: COREDNS.to_owned(),
        key: COREFILE.to_owned(),
        before: before.map(ToOwned::to_owned),
        after: after.map(ToOwned::to_owned),
        backup: None,
        version: None,
        reloads: true,
    };
    for (before, after, expected) in [
        (Some("a\nb\nc\nd\n"), Some("a\nb\nc\nd\ne\n"), &["  c", "  d", "+ e"][..]),
        (Some("a\nb\nc\nd\ne\nf\n"), Some("a\nb\nc\nx\ne\nf\n"), &["  b", "  c", "- d", "+ x", "  e", "  f"]),
        (Some("a\na\n"), Some("a\na\na\n"), &["  a", "  a", "+ a"]),
        (None, Some("a\n"), &["+ a"]),
        (Some("a\n\nb\n"), None, &["- a", "-", "- b"]),
    ] {
        let found = diff(&change(before, after));
        assert_eq!(found[0], "ConfigMap kube-system/coredns, key Corefile:");
        assert_eq!(&found[1..], expected);
    }
}
