use super::*;
use crate::stub::platform::{DNS_LABELS, KUBE_DNS};
use crate::stub::test_support::{forwarding, platforms, recorded};
use crate::stub::verify;

const CUSTOM: &str = "# BEGIN lb-linker stub lb.internal\nlb.internal:53 {\n    errors\n    forward . 10.96.77.7\n}\n\
                      # END lb-linker stub lb.internal\n";

fn changes(steps: Vec<PlannedChange>) -> Vec<Change> {
    let change = |step| match step {
        PlannedChange::Change(change) => Some(change),
        PlannedChange::Done(text) if text.contains(" stay: ") => None,
        other => panic!("{other:?}"),
    };
    steps.into_iter().filter_map(change).collect()
}

/// Returns the cluster with the ConfigMaps that the API server has after the changes.
fn after(mut dns: ClusterDns, changes: &[Change]) -> ClusterDns {
    for change in changes {
        if dns.config_map(&change.config_map).is_none() {
            dns.config_maps.push(config_map(&change.config_map));
        }
        let map = dns.config_maps.iter_mut().find(|map| name(map) == change.config_map).unwrap();
        let data = map.data.get_or_insert_default();
        let backup = match change.backup {
            Backup::Set => change.before.clone(),
            Backup::Keep => data.get(&change.backup_key()).cloned(),
            Backup::Remove => None,
        };
        for (key, value) in [(change.key.clone(), change.after.clone()), (change.backup_key(), backup)] {
            match value {
                Some(value) => drop(data.insert(key, value)),
                None => drop(data.remove(&key)),
            }
        }
    }
    dns
}

#[test]
fn apply_changes_unmanaged_config_maps_of_coredns_only() {
    let keys = |steps: Vec<PlannedChange>| -> Vec<String> {
        let text = |step: PlannedChange| match step {
            PlannedChange::Change(change) => format!("{}/{}", change.config_map, change.key),
            PlannedChange::Managed { change, by } => format!("managed by {by}: {}", change.config_map),
            PlannedChange::Done(text) => format!("done: {text}"),
            PlannedChange::Refused(text) => format!("refused: {text}"),
        };
        steps.into_iter().map(text).collect()
    };
    let refused = |reason: &str| format!("refused: {reason}; `lb-linker stub` prints what to do");
    for name in platforms() {
        let expected = match &*name {
            "kubeadm" | "kubespray-switches" | "minikube" => vec!["coredns/Corefile".to_owned()],
            "nodelocal" => vec!["coredns/Corefile".to_owned(), "node-local-dns/Corefile".to_owned()],
            "kubespray" => vec!["coredns/Corefile".to_owned(), "nodelocaldns/Corefile".to_owned()],
            "aks" | "k3s" => vec!["coredns-custom/lb-linker.server".to_owned()],
            "eks" => vec!["managed by the EKS add-on: coredns".to_owned()],
            "kops" => vec!["managed by kOps: coredns".to_owned()],
            "rke2" => {
                vec![refused("neither ConfigMap kube-system/coredns nor one of NodeLocal DNSCache was found")]
            }
            _ => vec![refused("this cluster DNS isn't configured by a ConfigMap of CoreDNS")],
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
            assert!(matches!(step, PlannedChange::Done(_)), "{name}: {step:?}");
        }
        let removed = after(applied.clone(), &changes(to_remove(&applied, &forwarding().zones)));
        assert!(matches!(&*to_remove(&removed, &forwarding().zones), [PlannedChange::Done(_)]), "{name}");
        for map in &before.config_maps {
            let data = |map: &ConfigMap| map.data.clone().unwrap_or_default();
            let now = removed.config_map(map.metadata.name.as_deref().unwrap()).unwrap();
            assert_eq!(data(now), data(map), "{name}");
        }
    }
}

#[test]
fn backup_keeps_the_value_before_the_first_change() {
    let dns = recorded("kubeadm");
    let original = value(dns.config_map(COREDNS).unwrap(), COREFILE).unwrap();
    let first = changes(to_apply(&dns, &forwarding()));
    assert_eq!((first[0].backup, first[0].before.as_deref()), (Backup::Set, Some(original)));
    assert_eq!((first[0].version.as_deref(), first[0].restart.as_deref()), (Some("243"), None));
    let moved = Forwarding { addresses: vec!["10.96.0.99".parse().unwrap()], ..forwarding() };
    let applied = after(dns.clone(), &first);
    let second = changes(to_apply(&applied, &moved));
    assert_eq!(second[0].backup, Backup::Keep);
    let applied = after(applied, &second);
    assert_eq!(value(applied.config_map(COREDNS).unwrap(), "Corefile.before-lb-linker"), Some(original));
    let removed = after(applied.clone(), &changes(to_remove(&applied, &moved.zones)));
    assert_eq!(removed.config_map(COREDNS).unwrap().data, dns.config_map(COREDNS).unwrap().data);
}

#[test]
fn former_block_of_lb_linker_isnt_backed_up() {
    const BACKUP_KEY: &str = "lb-linker.server.before-lb-linker";
    let moved = Forwarding { addresses: vec!["10.96.0.99".parse().unwrap()], ..forwarding() };
    let dns = recorded("aks");
    let applied = after(dns.clone(), &changes(to_apply(&dns, &forwarding())));
    let second = changes(to_apply(&applied, &moved));
    assert_eq!((second[0].before.as_deref(), second[0].backup), (Some(CUSTOM), Backup::Keep));
    assert_eq!(value(after(applied, &second).config_map(COREDNS_CUSTOM).unwrap(), BACKUP_KEY), None);

    // Other text in the key stays.
    let [by_hand, rest] = ["lb.internal:53 {\n    forward . 10.96.0.9\n}\n", "a:53 {\n}\n"];
    let with = |text: &str| {
        let mut dns = dns.clone();
        let mut map = config_map(COREDNS_CUSTOM);
        map.data = Some([(SERVER_KEY.to_owned(), text.to_owned())].into());
        dns.config_maps.retain(|map| name(map) != COREDNS_CUSTOM);
        dns.config_maps.push(map);
        dns
    };
    let [PlannedChange::Refused(reason)] = &to_apply(&with(by_hand), &moved)[..] else { panic!() };
    assert!(
        reason.starts_with("kube-system/coredns-custom:lb-linker.server:1: lb.internal is forw"),
        "{reason}"
    );
    let [PlannedChange::Refused(reason)] = &to_remove(&with(by_hand), &moved.zones)[..] else { panic!() };
    assert!(
        reason.contains("lb-linker.server:1: the block of zone lb.internal has no marker lines"),
        "{reason}"
    );
    for text in [rest.to_owned(), format!("{CUSTOM}{rest}"), format!("{rest}{CUSTOM}")] {
        let changed = after(with(&text), &changes(to_apply(&with(&text), &moved)));
        let map = changed.config_map(COREDNS_CUSTOM).unwrap();
        assert_eq!(value(map, BACKUP_KEY), (text == rest).then_some(rest));
        let mut without_key = changed.clone();
        let map = without_key.config_maps.iter_mut().find(|map| name(map) == COREDNS_CUSTOM).unwrap();
        map.data.as_mut().unwrap().remove(SERVER_KEY);
        let removed = after(changed.clone(), &changes(to_remove(&changed, &moved.zones)));
        let data = removed.config_map(COREDNS_CUSTOM).unwrap().data.clone().unwrap();
        assert_eq!(data, [(SERVER_KEY.to_owned(), rest.to_owned())].into());
        if text == rest {
            let removing = changes(to_remove(&without_key, &moved.zones));
            assert!(
                diff(&removing[0]).iter().any(|line| line.contains(BACKUP_KEY)),
                "{:?}",
                diff(&removing[0])
            );
            let data = after(without_key, &removing).config_map(COREDNS_CUSTOM).unwrap().data.clone();
            assert_eq!(data, Some([(SERVER_KEY.to_owned(), rest.to_owned())].into()));
        }
    }
}

#[test]
fn second_zone_is_applied_and_removed_beside_the_first() {
    let second = Forwarding { zones: vec!["lab.internal".to_owned()], ..forwarding() };
    for name in ["kubeadm", "nodelocal", "kubespray", "aks", "k3s"] {
        let before = recorded(name);
        let first = after(before.clone(), &changes(to_apply(&before, &forwarding())));
        let both = after(first.clone(), &changes(to_apply(&first, &second)));
        for forwarding in [forwarding(), second.clone()] {
            let steps = to_apply(&both, &forwarding);
            assert!(steps.iter().all(|step| matches!(step, PlannedChange::Done(_))), "{name}: {steps:?}");
        }
        let data =
            |dns: &ClusterDns| -> Vec<_> { dns.config_maps.iter().map(|map| map.data.clone()).collect() };
        let steps = to_remove(&both, &second.zones);
        let stay = "lb-linker's blocks for lb.internal stay: --zone lb.internal takes them out";
        assert_eq!(steps.last(), Some(&PlannedChange::Done(stay.to_owned())), "{name}");
        let removed = after(both.clone(), &changes(steps));
        assert_eq!(data(&removed), data(&first), "{name}");
        let [PlannedChange::Done(none), PlannedChange::Done(_)] = &to_remove(&removed, &second.zones)[..]
        else {
            panic!()
        };
        assert!(
            none.contains(" has a block of lb-linker for lab.internal; what was added"),
            "{name}: {none}"
        );
        // In the other order.
        let removed = after(both.clone(), &changes(to_remove(&both, &forwarding().zones)));
        let removed = after(removed.clone(), &changes(to_remove(&removed, &second.zones)));
        for map in &before.config_maps {
            let now = removed.config_map(map.metadata.name.as_deref().unwrap()).unwrap();
            assert_eq!(now.data.clone().unwrap_or_default(), map.data.clone().unwrap_or_default(), "{name}");
        }
        let at_once =
            Forwarding { zones: [forwarding().zones, second.zones.clone()].concat(), ..forwarding() };
        assert_eq!(
            data(&after(before.clone(), &changes(to_apply(&before, &at_once)))),
            data(&both),
            "{name}"
        );
    }
}

#[test]
fn zone_that_kubernetes_has_is_a_conflict() {
    let conflict = |dns: &ClusterDns, zone: &str| kubernetes_conflict(dns, &[zone.to_owned()], true);
    for name in ["kubeadm", "nodelocal", "kubespray", "aks", "k3s", "eks"] {
        let dns = recorded(name);
        for (zone, verb) in [
            ("cluster.local", "equals"),
            ("svc.cluster.local", "lies in"),
            ("local", "holds"),
            ("10.in-addr.arpa", "lies in"),
        ] {
            let reason = conflict(&dns, zone).unwrap();
            assert!(reason.starts_with("kube-system/coredns:Corefile:"), "{name}: {reason}");
            let expected =
                format!("; --zone {zone} {verb} it, and would hide names of the cluster: give a zone");
            assert!(reason.contains(&expected), "{name}: {reason}");
        }
        for zone in ["lb.internal", "lb.local", "xcluster.local"] {
            assert_eq!(conflict(&dns, zone), None, "{name}: {zone}");
        }
    }
    let mut dns = recorded("kubeadm");
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    *corefile = corefile.replace("kubernetes cluster.local in-addr.arpa ip6.arpa", "kubernetes corp.example");
    assert!(conflict(&dns, "lb.corp.example").unwrap().contains("kubernetes answers for corp.example here"));
    assert_eq!(conflict(&dns, "lb.internal"), None);
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    *corefile = corefile.replace("kubernetes corp.example", "kubernetes");
    assert_eq!(conflict(&dns, "lb.internal"), None, "below the root the cluster has only Services and Pods");
    for (zone, own) in
        [("svc", "svc here; --zone svc equals it"), ("a.pod", "pod here; --zone a.pod lies in it")]
    {
        let reason = conflict(&dns, zone).unwrap();
        assert!(reason.contains(&format!("the plugin kubernetes answers for {own}")), "{reason}");
    }
    // A file that the Corefile imports uses a snippet of the Corefile.
    let mut importing = recorded("aks");
    let main = importing.config_maps.iter_mut().find(|map| name(map) == COREDNS).unwrap();
    let corefile = main.data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    *corefile = format!("(corp) {{\n    errors\n}}\n{corefile}");
    let custom = importing.config_maps.iter_mut().find(|map| name(map) == COREDNS_CUSTOM).unwrap();
    let server = "corp.example:53 {\n    import corp\n    kubernetes corp.example\n}\n".to_owned();
    custom.data.get_or_insert_default().insert("corp.server".to_owned(), server);
    assert!(conflict(&importing, "lb.corp.example").unwrap().contains("coredns-custom:corp.server:3"));
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    *corefile = corefile.replace("    kubernetes {", "    kubernetes {$DOMAIN} corp.example {");
    assert!(conflict(&dns, "corp.example").unwrap().contains("equals it"));
    let reason = conflict(&dns, "lb.internal").unwrap();
    assert!(
        reason.contains("kubernetes has an environment variable")
            && reason.ends_with("write the value instead"),
        "{reason}"
    );
    assert_eq!(kubernetes_conflict(&dns, &["lb.internal".to_owned()], false), None);
}

#[test]
fn plugin_that_coredns_lacks_is_named_with_its_line() {
    for name in ["kubeadm", "nodelocal", "kubespray", "aks", "k3s", "eks"] {
        assert_eq!(unknown_plugins(&recorded(name)), [""; 0], "{name}");
    }
    let mut dns = recorded("kubeadm");
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    *corefile = corefile.replace("cache 30 {", "clients\n    records {\n    }\n    cahce 30 {");
    *corefile = format!(
        "(shared) {{\n    minimal\n    lgo\n}}\n{corefile}a {{\n    import shared\n}}\nb {{\n    import shared\n}}\n"
    );
    let warnings = unknown_plugins(&dns);
    let starts = [
        r#""clients"; unless"#,
        r#""records"; unless"#,
        r#""cahce"; is it cache?; unless"#,
        r#""lgo"; is it log?; unless"#,
    ];
    assert_eq!(warnings.len(), starts.len(), "{warnings:#?}");
    for (warning, start) in warnings.iter().zip(starts) {
        assert!(warning.starts_with("kube-system/coredns:Corefile:"), "{warning}");
        assert!(warning.contains(&format!("CoreDNS has no plugin {start}")), "{warning}");
    }
}

#[test]
fn plugin_that_coredns_lacks_is_named_in_overrides() {
    let mut dns = recorded("k3s");
    let mut custom = config_map(COREDNS_CUSTOM);
    custom.data = Some([("a.override".to_owned(), "log\nlgo\n".to_owned())].into());
    dns.config_maps.retain(|map| name(map) != COREDNS_CUSTOM);
    dns.config_maps.push(custom);
    let warnings = unknown_plugins(&dns);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].starts_with("kube-system/coredns-custom:a.override:2:1: "), "{warnings:#?}");
}

#[test]
fn value_that_an_earlier_version_replaced_is_restored() {
    let mut dns = recorded("aks");
    let former = "a:53 {\n}\n";
    let mut map = config_map(COREDNS_CUSTOM);
    let backup_key = format!("{SERVER_KEY}{BACKUP}");
    map.data = Some([(SERVER_KEY.to_owned(), CUSTOM.to_owned()), (backup_key, former.to_owned())].into());
    dns.config_maps.retain(|map| name(map) != COREDNS_CUSTOM);
    dns.config_maps.push(map);
    let removed = after(dns.clone(), &changes(to_remove(&dns, &forwarding().zones)));
    let data = removed.config_map(COREDNS_CUSTOM).unwrap().data.clone();
    assert_eq!(data, Some([(SERVER_KEY.to_owned(), former.to_owned())].into()));
}

#[test]
fn own_blocks_in_two_keys_are_changed_one_by_one() {
    let dns = recorded("aks");
    let mut applied = after(dns.clone(), &changes(to_apply(&dns, &forwarding())));
    let corefile = applied.config_maps.iter_mut().find(|map| name(map) == COREDNS).unwrap();
    let corefile = corefile.data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    corefile.push_str(&CUSTOM.replace("lb.internal", "lab.internal"));
    let moved = |zones: Vec<String>| Forwarding {
        zones,
        addresses: vec!["10.96.0.99".parse().unwrap()],
        ..forwarding()
    };
    let both = moved([forwarding().zones, vec!["lab.internal".to_owned()]].concat());
    let [PlannedChange::Refused(reason)] = &to_apply(&applied, &both)[..] else { panic!() };
    assert!(reason.starts_with("kube-system/coredns-custom:lb-linker.server:2: lb.internal is"), "{reason}");
    assert!(reason.ends_with("; give this zone alone, by --zone lb.internal"), "{reason}");
    let [change] = &changes(to_apply(&applied, &moved(forwarding().zones)))[..] else { panic!() };
    assert_eq!(change.config_map, COREDNS_CUSTOM);
}

#[test]
fn remove_restores_a_value_without_final_line_break() {
    let mut dns = recorded("kubeadm");
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    corefile.truncate(corefile.trim_end().len());
    let applied = after(dns.clone(), &changes(to_apply(&dns, &forwarding())));
    let removed = after(applied.clone(), &changes(to_remove(&applied, &forwarding().zones)));
    assert_eq!(removed.config_maps[0].data, dns.config_maps[0].data);
}

#[test]
fn remove_reports_a_block_without_markers() {
    let mut dns = recorded("kubeadm");
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    corefile.push_str("lb.internal:53 {\n    errors\n    forward . 10.96.77.7\n}\n");
    let text = "kube-system/coredns:Corefile:24: the block of zone lb.internal has no marker lines of lb-linker around \
                it: remove it by hand";
    assert_eq!(to_remove(&dns, &forwarding().zones), [PlannedChange::Refused(text.to_owned())]);
    // An upgrade by kubeadm drops comments, and so the markers; the backup is removed even so.
    let data = dns.config_maps[0].data.as_mut().unwrap();
    data.insert("Corefile.before-lb-linker".to_owned(), "former".to_owned());
    let steps = to_remove(&dns, &forwarding().zones);
    assert_eq!(steps[1], PlannedChange::Refused(text.to_owned()));
    assert!(
        matches!(&steps[0], PlannedChange::Change(change) if change.backup == Backup::Remove),
        "{steps:?}"
    );
    assert_eq!(changes(steps[..1].to_vec())[0].after, changes(steps[..1].to_vec())[0].before);
}

#[test]
fn restart_names_the_workload_without_reload() {
    let mut dns = recorded("kubespray");
    for map in &mut dns.config_maps {
        let corefile = map.data.as_mut().unwrap().get_mut(COREFILE).unwrap();
        *corefile = corefile.replace("    reload\n", "");
    }
    let restarts: Vec<Option<String>> =
        changes(to_apply(&dns, &forwarding())).into_iter().map(|change| change.restart).collect();
    let command = |workload: &str| Some(format!("kubectl -n kube-system rollout restart {workload}"));
    assert_eq!(restarts, [command("deployment coredns"), command("daemonset nodelocaldns")]);
}

#[test]
fn zone_with_a_block_gets_no_second_block() {
    let forwarding =
        Forwarding { zones: vec!["a.internal".to_owned(), "b.internal".to_owned()], ..forwarding() };
    let right = "a.internal {\n    forward . 10.96.77.7\n}\n";
    let with = |name: &str, map: &str, key: &str| {
        let mut dns = recorded(name);
        let map = dns.config_maps.iter_mut().find(|it| it.metadata.name.as_deref() == Some(map)).unwrap();
        map.data.get_or_insert_default().entry(key.to_owned()).or_default().push_str(right);
        dns
    };
    for (dns, changed) in [
        (with("aks", COREDNS_CUSTOM, "mine.server"), COREDNS_CUSTOM),
        (with("aks", COREDNS, COREFILE), COREDNS_CUSTOM),
        (with("kubeadm", COREDNS, COREFILE), COREDNS),
    ] {
        let [change] = &changes(to_apply(&dns, &forwarding))[..] else { panic!() };
        assert_eq!(change.config_map, changed);
        assert!(change.lines.contains("stub b.internal\nb.internal:53 {\n"), "{}", change.lines);
    }
    // node-cache makes blocks of the domains in this ConfigMap.
    let mut dns = recorded("nodelocal");
    let stub_domains = r#"{"a.internal": ["10.96.77.7"], "b.internal": ["10.96.77.7"]}"#;
    let mut map = config_map(KUBE_DNS);
    map.data = Some([("stubDomains".to_owned(), stub_domains.to_owned())].into());
    dns.config_maps.push(map);
    assert!(matches!(&to_apply(&dns, &forwarding)[1], PlannedChange::Done(_)));
}

#[test]
fn imported_blocks_count_on_the_port_of_the_corefile() {
    let with = |port: u16, zone: &str| {
        let mut dns = recorded("aks");
        let map = dns
            .config_maps
            .iter_mut()
            .find(|map| map.metadata.name.as_deref() == Some(COREDNS_CUSTOM))
            .unwrap();
        let text = format!("{zone}lb.internal:{port} {{\n    forward . 10.96.77.7\n}}\n");
        map.data.get_or_insert_default().insert("mine.server".to_owned(), text);
        dns
    };
    let other = "corp.example:5353 {\n    forward . 192.0.2.1\n}\n";
    let done = PlannedChange::Done("ConfigMap kube-system/coredns forwards lb.internal already".to_owned());
    assert_eq!(to_apply(&with(53, other), &forwarding()), [done]);
    for zone in ["", other] {
        let [change] = &changes(to_apply(&with(5300, zone), &forwarding()))[..] else { panic!() };
        assert_eq!((change.config_map.as_str(), change.after.as_deref()), (COREDNS_CUSTOM, Some(CUSTOM)));
    }
}

#[test]
fn each_port_of_a_root_block_gets_the_zone() {
    let with = |server: &str, lines: &str| {
        let mut dns = recorded("aks");
        let map = |dns: &mut ClusterDns, name: &str, key: &str, text: &str| {
            let map = dns.config_maps.iter_mut().find(|map| map.metadata.name.as_deref() == Some(name));
            map.unwrap().data.get_or_insert_default().entry(key.to_owned()).or_default().push_str(text);
        };
        map(&mut dns, COREDNS, COREFILE, ".:5353 {\n    bind 10.0.0.1\n}\n");
        map(&mut dns, COREDNS_CUSTOM, "mine.server", server);
        map(&mut dns, COREDNS_CUSTOM, "mine.override", lines);
        to_apply(&dns, &forwarding())
    };
    let block = |addresses: &str, bind: &str| {
        format!("{addresses} {{\n{bind}    errors\n    forward . 10.96.77.7\n}}\n")
    };
    let bind = "    bind 10.0.0.1\n";
    for (server, expected) in [
        ("", block("lb.internal:53", "") + &block("lb.internal:5353", bind)),
        ("lb.internal:53 {\n    forward . 10.96.77.7\n}\n", block("lb.internal:5353", bind)),
        (".:5300 {\n}\n", block("lb.internal:53 lb.internal:5300", "") + &block("lb.internal:5353", bind)),
    ] {
        let after =
            format!("# BEGIN lb-linker stub lb.internal\n{expected}# END lb-linker stub lb.internal\n");
        assert_eq!(changes(with(server, "log\n"))[0].after.as_ref(), Some(&after), "{server}");
    }
    let [PlannedChange::Refused(reason)] = &with("", "  bind eth0\n")[..] else { panic!() };
    assert!(
        reason.starts_with("kube-system/coredns-custom:mine.override has a bind for blocks that import it"),
        "{reason}"
    );
    let [PlannedChange::Refused(reason)] = &with(".:{$PORT} {\n}\n", "")[..] else { panic!() };
    assert!(reason.starts_with("kube-system/coredns-custom:mine.server:1:1: .:{$PORT} has"), "{reason}");
}

#[test]
fn block_added_before_the_import_stays_in_the_corefile() {
    let mut dns = recorded("k3s");
    dns.config_maps[0].metadata.annotations = None;
    dns.config_maps[0].data.as_mut().unwrap().get_mut(COREFILE).unwrap().push_str(CUSTOM);
    assert!(matches!(&to_apply(&dns, &forwarding())[..], [PlannedChange::Done(_)]));
    let moved = Forwarding { addresses: vec!["10.96.0.99".parse().unwrap()], ..forwarding() };
    let changes = changes(to_apply(&dns, &moved));
    assert_eq!((changes.len(), changes[0].config_map.as_str()), (1, COREDNS));
}

#[test]
fn config_map_without_a_corefile_is_refused() {
    let mut dns = recorded("kubeadm");
    dns.config_maps[0].data = None;
    let text = "ConfigMap kube-system/coredns has no key Corefile";
    assert_eq!(to_apply(&dns, &forwarding()), [PlannedChange::Refused(text.to_owned())]);
}

#[test]
fn node_local_block_copies_bind_and_has_no_cache() {
    let dns = recorded("nodelocal");
    let [_, change] = &changes(to_apply(&dns, &forwarding()))[..] else { panic!() };
    let added = change.after.as_ref().unwrap().strip_prefix(change.before.as_ref().unwrap()).unwrap();
    let expected = "# BEGIN lb-linker stub lb.internal\nlb.internal:53 {\n    bind 169.254.20.10 10.96.0.10\n    \
                    errors\n    forward . 10.96.77.7 {\n        force_tcp\n    }\n}\n\
                    # END lb-linker stub lb.internal\n";
    assert_eq!(added, expected);
}

#[test]
fn hand_made_blocks_arent_changed() {
    let with = |name: &str, map: &str, key: &str, text: &str| {
        let mut dns = recorded(name);
        let map = dns.config_maps.iter_mut().find(|it| it.metadata.name.as_deref() == Some(map)).unwrap();
        map.data.get_or_insert_default().entry(key.to_owned()).or_default().push_str(text);
        to_apply(&dns, &forwarding())
    };
    let right = "lb.internal:53 {\n    forward . 10.96.77.7\n}\n";
    let wrong = "lb.internal:53 {\n    forward . 10.96.0.9\n}\n";
    let step = &with("kubeadm", COREDNS, COREFILE, right)[0];
    assert_eq!(
        step,
        &PlannedChange::Done("ConfigMap kube-system/coredns forwards lb.internal already".to_owned())
    );
    let step = &with("kubeadm", COREDNS, COREFILE, wrong)[0];
    assert!(
        matches!(step, PlannedChange::Refused(text) if text.starts_with("kube-system/coredns:Corefile:24: ")),
        "{step:?}"
    );
    // NodeLocal DNSCache may forward to CoreDNS.
    let by_core_dns =
        "lb.internal:53 {\n    bind 169.254.20.10 10.96.0.10\n    forward . __PILLAR__CLUSTER__DNS__\n}\n";
    let step = &with("nodelocal", "node-local-dns", COREFILE, by_core_dns)[1];
    assert!(matches!(step, PlannedChange::Done(_)), "{step:?}");
    let step = &with("aks", COREDNS_CUSTOM, "mine.server", right)[0];
    assert_eq!(
        step,
        &PlannedChange::Done("ConfigMap kube-system/coredns forwards lb.internal already".to_owned())
    );
    let step = &with("aks", COREDNS_CUSTOM, "mine.server", wrong)[0];
    assert!(
        matches!(step, PlannedChange::Refused(text) if text.starts_with("kube-system/coredns-custom:mine.server:1: ")),
        "{step:?}"
    );
    assert_eq!(
        changes(with("aks", COREDNS_CUSTOM, "mine.override", wrong))[0].after.as_deref(),
        Some(CUSTOM)
    );
}

/// Returns the step for CoreDNS with this Corefile, and with these keys of [`COREDNS_CUSTOM`].
fn step_for(corefile: &str, custom: &[(&str, &str)]) -> PlannedChange {
    let mut dns = recorded("kubeadm");
    let data = dns.config_maps[0].data.as_mut().unwrap();
    data.insert(COREFILE.to_owned(), corefile.to_owned());
    let mut map = config_map(COREDNS_CUSTOM);
    map.data = Some(custom.iter().map(|&(key, text)| (key.to_owned(), text.to_owned())).collect());
    dns.config_maps.push(map);
    to_apply(&dns, &forwarding()).remove(0)
}

fn refusal(step: PlannedChange) -> String {
    match step {
        PlannedChange::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hand_made_block_counts_where_root_block_listens() {
    const EXCEPT: &str = "bind eth0 {\n except 10.0.0.1\n}";
    let root = |bind: &str| format!(".:53 {{\n{bind}\n}}\n");
    let by_hand = |bind: &str| format!("lb.internal {{\n{bind}\nforward . 10.96.77.7\n}}\n");
    let both = by_hand("bind 10.0.0.1") + &by_hand("bind 10.0.0.2");
    for (root_bind, blocks) in [
        ("", by_hand("")),
        ("bind 10.0.0.1 10.0.0.2", by_hand("bind 10.0.0.2\nbind 10.0.0.1")),
        ("bind 10.0.0.1", by_hand("bind 10.0.0.1 10.0.0.2")),
        ("bind fd00::a", by_hand("bind FD00:0::A")),
        ("bind 10.0.0.1 10.0.0.2", both),
        ("bind 10.0.0.1 10.0.0.2 {\n except 10.0.0.2\n}", by_hand("bind 10.0.0.1")),
        (EXCEPT, by_hand(EXCEPT)),
    ] {
        let step = step_for(&(root(root_bind) + &blocks), &[]);
        assert!(matches!(step, PlannedChange::Done(_)), "{root_bind}: {step:?}");
    }
    // CoreDNS refuses a second block for the same addresses, and one beside a block without bind.
    for (root_bind, bind, reason) in [
        ("bind 10.0.0.1", "", "has no bind, but the block for all names has bind 10.0.0.1"),
        ("", "bind 10.0.0.1", "has bind 10.0.0.1, but the block for all names has no bind"),
        (
            "bind 10.0.0.1 10.0.0.2",
            "bind 10.0.0.1",
            "has bind 10.0.0.1, but the block for all names has bind 10.0.0.1 10.0.0.2",
        ),
        ("bind 10.0.0.1", "bind eth0", "has bind eth0, but the block for all names has bind 10.0.0.1"),
        ("bind eth0", EXCEPT, "has bind eth0 { except 10.0.0.1 }, but the block for all names has bind eth0"),
    ] {
        let expected = format!(
            "kube-system/coredns:Corefile:4: lb.internal on port 53 {reason}, so that queries may not reach it; lb-linker \
             didn't add this block: correct it by hand, or remove it"
        );
        assert_eq!(refusal(step_for(&(root(root_bind) + &by_hand(bind)), &[])), expected);
    }
    let first = "bind 10.0.0.1";
    for (roots, blocks, added) in [
        (root(first), by_hand("bind 10.0.0.2"), first),
        (root(first), by_hand("bind 0.0.0.0"), first),
        (root(first) + &root("bind 10.0.0.2"), by_hand("bind 10.0.0.2"), first),
    ] {
        let [change] = &changes(vec![step_for(&(roots + &blocks), &[])])[..] else { panic!() };
        let expected = CUSTOM.replace("    errors", &format!("    {added}\n    errors"));
        assert_eq!(change.lines, expected, "{blocks}");
    }
}

#[test]
fn imports_that_cant_be_read_are_refused() {
    for (corefile, place) in [
        (".:53 {\n    import /etc/coredns/x.conf\n}\n", ":2:12: /etc/coredns/x.conf"),
        ("corp.example, .:53 {\n    import x.conf\n}\n", ":2:12: x.conf"),
        (".:53 {\n}\nlb.internal {\n    import x.conf\n}\n", ":4:12: x.conf"),
        (".:53 {\n}\nimport zones/*.conf\n", ":3:8: zones/*.conf"),
        (".:53 {\n}\nimport zones/mine.server\n", ":3:8: zones/mine.server"),
        ("import custom/*.override\n.:53 {\n}\n", ":1:8: custom/*.override"),
        ("(a) {\n    import x.conf\n}\n.:53 {\n    import a\n}\n", ":2:12: x.conf"),
    ] {
        let reason = refusal(step_for(corefile, &[]));
        let expected = format!("kube-system/coredns:Corefile{place} is a file that isn't known here, ");
        assert!(reason.starts_with(&expected), "{corefile}: {reason}");
    }
    let main = ".:53 {\n    import custom/*.override\n}\nimport ../custom/*.server\n";
    for corefile in
        [main, ".:53 {\n}\ncorp.example {\n    import x.conf\n}\n", "(a) {\n}\n.:53 {\n    import a\n}\n"]
    {
        let step = step_for(corefile, &[("a.override", "log\n"), ("b.server", "corp.example:5300 {\n}\n")]);
        assert_eq!(changes(vec![step])[0].lines, CUSTOM, "{corefile}");
    }
    let reason = refusal(step_for(main, &[("a.server", "lb.internal {\n    import b\n}\n")]));
    assert!(reason.starts_with("kube-system/coredns-custom:a.server:2:12: b is a file"), "{reason}");
    // The files that the Corefile imports may use its snippets.
    let with_snippet = format!("(b) {{\n    forward . 10.96.77.7\n}}\n{main}");
    let step = step_for(&with_snippet, &[("a.server", "lb.internal {\n    import b\n}\n")]);
    assert!(matches!(step, PlannedChange::Done(_)), "{step:?}");
    let reason = refusal(step_for(main, &[("a.override", "import b\n")]));
    assert!(reason.starts_with("kube-system/coredns-custom:a.override has an import for blocks"), "{reason}");

    // NodeLocal DNSCache doesn't mount coredns-custom.
    let mut dns = recorded("nodelocal");
    let map = dns.config_maps.iter_mut().find(|map| name(map) == "node-local-dns").unwrap();
    let corefile = map.data.as_mut().unwrap().get_mut(COREFILE).unwrap();
    *corefile = corefile.replace("    loop\n", "    import custom/*.override\n");
    let reason = refusal(to_apply(&dns, &forwarding()).remove(1));
    assert!(
        reason.starts_with("kube-system/node-local-dns:Corefile:42:12: custom/*.override is"),
        "{reason}"
    );
}

#[test]
fn managed_config_maps_are_refused() {
    let mut dns = recorded("kubeadm");
    let applied = after(dns.clone(), &changes(to_apply(&dns, &forwarding())));
    dns.config_maps[0].metadata.labels =
        Some([("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned())].into());
    assert!(matches!(&*to_apply(&dns, &forwarding()), [PlannedChange::Managed { by, .. }] if by == "Helm"));
    dns.config_maps[0].data.clone_from(&applied.config_maps[0].data);
    assert!(matches!(&*to_apply(&dns, &forwarding()), [PlannedChange::Done(_)]));
    let steps = to_remove(&dns, &forwarding().zones);
    let [PlannedChange::Managed { change, .. }] = &*steps else { panic!("{steps:#?}") };
    let lines = diff(change);
    assert!(
        change.is_removal() && lines.iter().any(|line| line.starts_with("- lb.internal:53 {")),
        "{lines:#?}"
    );
}

#[test]
fn backup_that_a_managing_tool_has_left_is_removed() {
    let before = recorded("kubeadm");
    let applied = after(before.clone(), &changes(to_apply(&before, &forwarding())));
    let managed = Some([("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned())].into());
    for end in ["", "\n"] {
        let mut dns = applied.clone();
        dns.config_maps[0].metadata.labels.clone_from(&managed);
        let data = dns.config_maps[0].data.get_or_insert_default();
        // The tool has set the key back that it knows.
        let text = data["Corefile.before-lb-linker"].trim_end().to_owned() + end;
        data.insert(COREFILE.to_owned(), text);
        let removal = changes(to_remove(&dns, &forwarding().zones));
        assert_eq!((removal[0].backup, &removal[0].before), (Backup::Remove, &removal[0].after));
        let removed = after(dns, &removal);
        assert!(matches!(&*to_remove(&removed, &forwarding().zones), [PlannedChange::Done(_)]));
    }
}

#[test]
fn diff_shows_the_changed_lines_with_context() {
    let change = |before: Option<&str>, after: Option<&str>| Change {
        config_map: COREDNS.to_owned(),
        key: COREFILE.to_owned(),
        before: before.map(ToOwned::to_owned),
        after: after.map(ToOwned::to_owned),
        lines: String::new(),
        backup: Backup::Keep,
        version: None,
        restart: None,
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

/// Returns a recorded cluster whose Services lead to the Pods of `deploy/cluster-dns/`.
fn switched(platform: &str) -> ClusterDns {
    let mut dns = recorded(platform);
    for service in &mut dns.services {
        let label = (DNS_LABELS[0].to_owned(), LB_LINKER_DNS.to_owned());
        service.spec.as_mut().unwrap().selector = Some([label].into());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/cluster-dns/20-corefile.yaml");
    dns.config_maps.push(serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap());
    dns
}

const NOTHING_TO_ADD: &str = "the cluster DNS is lb-linker and answers for lb.internal itself (ConfigMap \
                             kube-system/lb-linker-cluster-dns): nothing is to be added";

#[test]
fn nothing_is_added_where_the_cluster_dns_is_lb_linker() {
    let lost = "; but CoreDNS has no block for lb.internal: after the way back to it, these names aren't answered before \
                `lb-linker stub --apply --service kube-system/lb-linker-cluster-dns --zone lb.internal`";
    for platform in ["kubeadm", "aks", "eks", "k3s"] {
        let steps = to_apply(&switched(platform), &forwarding());
        assert_eq!(steps, [PlannedChange::Done(format!("{NOTHING_TO_ADD}{lost}"))], "{platform}");
    }
    // After `--apply` before the switch.
    for platform in ["kubeadm", "aks", "k3s"] {
        let added = changes(to_apply(&recorded(platform), &forwarding()));
        let steps = to_apply(&after(switched(platform), &added), &forwarding());
        assert_eq!(steps, [PlannedChange::Done(NOTHING_TO_ADD.to_owned())], "{platform}");
    }
    // NodeLocal DNSCache forwards the zone nowhere by itself.
    let steps = to_apply(&switched("nodelocal"), &forwarding());
    assert!(matches!(&*steps, [PlannedChange::Done(_), PlannedChange::Change(change)]
        if change.config_map == "node-local-dns"));
    // Only one of the Services is switched.
    let mut dns = switched("nodelocal");
    dns.services[0].spec.as_mut().unwrap().selector = None;
    assert_eq!(changes(to_apply(&dns, &forwarding())).len(), 2);
}

#[test]
fn what_lb_linker_lacks_as_the_cluster_dns_is_told_apart() {
    let text = "the cluster DNS is lb-linker, and ConfigMap kube-system/lb-linker-cluster-dns has no lb_linker for \
                lb.internal: add a block";
    for (change, expected) in [
        (("lb.internal:53", "old.internal:53"), text),
        (("lb.internal:53", "lb.internal:5353"), text),
        (("lb.internal:53", "tls://lb.internal"), text),
        (("lb.internal:53 {", "lb.internal:53"), "kube-system/lb-linker-cluster-dns:Corefile:"),
    ] {
        let mut dns = switched("kubeadm");
        edit(&mut dns, LB_LINKER_DNS, COREFILE, |text| text.replace(change.0, change.1));
        let reason = refusal(to_apply(&dns, &forwarding()).remove(0));
        assert!(reason.starts_with(expected), "{reason}");
        assert_eq!(verify::wrong_blocks(&dns, &forwarding(), true), [reason]);
    }
    let mut dns = switched("kubeadm");
    dns.config_maps.retain(|map| name(map) != LB_LINKER_DNS);
    let reason = refusal(to_apply(&dns, &forwarding()).remove(0));
    assert!(reason.ends_with("doesn't exist or can't be read"), "{reason}");
    dns.config_maps.push(config_map(LB_LINKER_DNS));
    let reason = refusal(to_apply(&dns, &forwarding()).remove(0));
    assert_eq!(reason, "ConfigMap kube-system/lb-linker-cluster-dns has no key Corefile");
}

#[test]
fn lb_linker_in_the_corefile_of_core_dns_keeps_its_warning() {
    for (map, key) in [(COREDNS, COREFILE), (COREDNS_CUSTOM, "mine.server")] {
        let mut dns = recorded("k3s");
        edit(&mut dns, map, key, |text| text + "lb.internal:53 {\n    lb_linker\n}\n");
        let expected = "ConfigMap kube-system/coredns has lb_linker for lb.internal: with lb-linker's image nothing is to be \
                        added";
        assert_eq!(to_apply(&dns, &forwarding()), [PlannedChange::Done(expected.to_owned())], "{map}");
        let [warning] = &unknown_plugins(&dns)[..] else { panic!("{map}") };
        assert!(warning.contains("lb_linker") && warning.contains("CoreDNS loads no change"), "{warning}");
        assert_eq!(verify::wrong_blocks(&dns, &forwarding(), true), [] as [&str; 0]);
        let others = Forwarding { zones: vec!["other.internal".to_owned()], ..forwarding() };
        let reason = refusal(to_apply(&dns, &others).remove(0));
        assert!(reason.contains("but not for other.internal: with lb-linker's image"), "{reason}");
    }
}

/// Changes the value of a key, which may be missing.
fn edit(dns: &mut ClusterDns, map: &str, key: &str, change: impl FnOnce(String) -> String) {
    if dns.config_map(map).is_none() {
        dns.config_maps.push(config_map(map));
    }
    let map = dns.config_maps.iter_mut().find(|it| name(it) == map).unwrap();
    let data = map.data.get_or_insert_default();
    let text = data.remove(key).unwrap_or_default();
    data.insert(key.to_owned(), change(text));
}
