use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::*;
use crate::stub::test_support::{forwarding, platforms, recorded};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stub.md")
}

/// The platforms whose report isn't on the page: it says in its own words what they have in common.
const OFF_THE_PAGE: [&str; 8] = [
    "eks-auto-mode",
    "gke-autopilot",
    "gke-cloud-dns",
    "k3s",
    "kops",
    "kubespray-switches",
    "minikube",
    "rke2",
];

/// Returns the lines of a report without its first sentence: those from the line that begins with `from` to the one
/// before the line that begins with `to`.
fn excerpt(report: &[String], from: &str, to: Option<&str>) -> String {
    let paragraphs = report.iter().skip_while(|line| !line.is_empty()).skip(1);
    let begins = |line: &&String, text: &str| line.starts_with(text);
    let lines = paragraphs.skip_while(|line| !begins(line, from));
    let lines = lines.take_while(|line| to.is_none_or(|to| !begins(line, to)));
    lines.map(String::as_str).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// Returns the page with the printed report in the code block after each comment `output: NAME [from TEXT] [to TEXT]`,
/// and the names of clusters and resolvers in these comments.
fn with_output(page: &str) -> (String, Vec<String>) {
    let (mut text, mut names, mut rest) = (String::new(), Vec::new(), page);
    while let Some((before, after)) = rest.split_once("<!-- output: ") {
        let (comment, after) = after.split_once(" -->\n\n```text\n").unwrap();
        let (_, after) = after.split_once("```\n").unwrap();
        let (part, to) = comment.split_once(" to ").map_or((comment, None), |(part, to)| (part, Some(to)));
        let (name, from) = part.split_once(" from ").unwrap_or((part, ""));
        let (dns, resolver) = match name {
            "dnsmasq" => (ClusterDns::default(), Some(Resolver::Dnsmasq)),
            "systemd-resolved" => (ClusterDns::default(), Some(Resolver::SystemdResolved)),
            name => (recorded(name), None),
        };
        let printed = excerpt(&report(&dns, &forwarding(), resolver), from, to);
        assert!(!printed.is_empty(), "{comment}");
        text.push_str(&format!("{before}<!-- output: {comment} -->\n\n```text\n{printed}\n```\n"));
        names.push(name.to_owned());
        rest = after;
    }
    (text + rest, names)
}

/// The report of a cluster's DNS that could be read.
fn report(dns: &ClusterDns, forwarding: &Forwarding, wanted: Option<Resolver>) -> Vec<String> {
    super::report(dns, forwarding, wanted, true)
}

#[test]
fn dns_that_cant_be_read_isnt_called_unknown() {
    let printed = super::report(&ClusterDns::default(), &forwarding(), None, false).join(" ");
    assert!(printed.contains("Which DNS the cluster has can't be read. If it is a CoreDNS,"), "{printed}");
}

#[test]
fn stub_page_has_the_printed_report_of_each_platform() {
    let found = std::fs::read_to_string(page()).unwrap();
    let (made, mut names) = with_output(&found);
    if std::env::var_os("LB_LINKER_WRITE_DOCS").is_some() {
        std::fs::write(page(), &made).unwrap();
    } else {
        assert!(found == made, "docs/stub.md isn't what `lb-linker stub` prints: run `make docs`");
    }
    names.extend(OFF_THE_PAGE.map(str::to_owned));
    names.sort();
    names.dedup();
    let mut expected = platforms();
    expected.extend(["dnsmasq".to_owned(), "systemd-resolved".to_owned()]);
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn report_begins_with_the_zones_and_the_service() {
    let sentence = "The cluster DNS has to forward lb.internal to 10.96.77.7, the address of Service \
                    lb-linker/lb-linker.  ";
    for name in platforms() {
        let printed = report(&recorded(&name), &forwarding(), None).join(" ");
        assert!(printed.starts_with(sentence), "{name}: {printed}");
    }
}

#[test]
fn dns_that_cant_forward_gets_the_two_other_ways() {
    for (name, part) in [
        ("eks-auto-mode", "Nodes of EKS Auto Mode: their DNS"),
        ("gke-autopilot", "GKE Autopilot: its DNS"),
        (
            "gke-cloud-dns",
            "GKE with Cloud DNS (/etc/resolv.conf of a Pod names the server 169.254.169.254): it",
        ),
    ] {
        let printed = report(&recorded(name), &forwarding(), None).join(" ");
        let expected =
            format!("{part} can't forward a zone to an address in the cluster. Instead, use - a sidecar");
        assert!(printed.contains(&expected), "{printed}");
        assert!(
            printed.ends_with("<service>-<namespace>-ext.external-targets.svc.cluster.local."),
            "{printed}"
        );
        assert!(!printed.contains("forward . 10.96.77.7"), "{printed}");
    }
}

#[test]
fn k3s_gets_a_config_map_of_its_own() {
    let printed = report(&recorded("k3s"), &forwarding(), None).join(" ");
    let expected =
        "k3s: ConfigMap kube-system/coredns-custom needs this key, which the Corefile of CoreDNS imports:";
    assert!(printed.contains(expected), "{printed}");
    assert!(printed.contains("metadata: {name: coredns-custom, namespace: kube-system}"), "{printed}");
    assert!(printed.contains("lb-linker.server: |         # BEGIN lb-linker stub"), "{printed}");
}

#[test]
fn eks_gets_the_whole_corefile() {
    let printed = report(&recorded("eks"), &forwarding(), None).join("\n");
    let corefile =
        printed.split_once("    corefile: |4\n").unwrap().1.split_once("\nThe first command").unwrap().0;
    assert!(corefile.starts_with("        .:53 {\n            errors\n"), "{corefile}");
    let block =
        "\n        lb.internal:53 {\n            errors\n            forward . 10.96.77.7\n        }\n";
    assert!(corefile.contains(block), "{corefile}");
}

#[test]
fn unknown_cluster_dns_gets_the_block() {
    let printed = report(&recorded("rke2"), &forwarding(), None).join(" ");
    assert!(
        printed.contains("No known cluster DNS was found. If it is a CoreDNS, its Corefile needs this block")
    );
    assert!(
        printed.contains("lb.internal:53 {         errors         forward . 10.96.77.7     }"),
        "{printed}"
    );
}

#[test]
fn every_resolver_can_be_printed_for_any_cluster() {
    for name in platforms() {
        for &resolver in Resolver::value_variants() {
            let printed = report(&recorded(&name), &forwarding(), Some(resolver)).join("\n");
            assert!(printed.contains("lb.internal"), "{name}, {resolver:?}: {printed}");
        }
    }
}

#[test]
fn present_gke_and_openshift_configuration_is_recognized() {
    let mut dns = recorded("gke-kube-dns");
    let domains = dns.config_maps[0].data.as_mut().unwrap();
    domains.insert("stubDomains".to_owned(), r#"{"lb.internal": ["10.96.77.7"]}"#.to_owned());
    assert!(report(&dns, &forwarding(), None).join("\n").contains("kube-dns forwards lb.internal already"));
    let mut dns = recorded("openshift");
    let servers = json!([{"name": "lb-linker", "zones": ["lb.internal"],
        "forwardPlugin": {"policy": "Sequential", "upstreams": ["10.96.0.9"]}}]);
    dns.dns_operator.as_mut().unwrap().data["spec"]["servers"] = servers;
    let printed = report(&dns, &forwarding(), None).join("\n");
    assert!(
        printed
            .contains(r#"{"op":"test","path":"/spec/servers/0/name","value":"lb-linker"},{"op":"replace""#),
        "{printed}"
    );
    dns.dns_operator.as_mut().unwrap().data["spec"]["servers"][0]["forwardPlugin"]["upstreams"] =
        json!(["10.96.77.7"]);
    assert!(report(&dns, &forwarding(), None).join("\n").contains("operator forwards lb.internal already"));
}

#[test]
fn second_zone_is_printed_beside_the_first() {
    let second = Forwarding { zones: vec!["lab.internal".to_owned()], ..forwarding() };
    let mut dns = recorded("openshift");
    let server = |name: &str, zones: &[&str], upstream: &str| json!({"name": name, "zones": zones, "forwardPlugin": {"policy": "Sequential", "upstreams": [upstream]}});
    for (servers, expected) in [
        (
            json!([server("lb-linker", &["lb.internal"], "10.96.77.7")]),
            r#""path":"/spec/servers/0","value":{"forwardPlugin":{"policy":"Sequential","upstreams":["10.96.77.7"]},"name":"lb-linker","zones":["lb.internal","lab.internal"]}}]"#,
        ),
        (
            json!([server("lb-linker", &["lb.internal"], "10.96.0.9")]),
            r#"[{"op":"add","path":"/spec/servers/-","value":{"forwardPlugin":{"policy":"Sequential","upstreams":["10.96.77.7"]},"name":"lb-linker-2","zones":["lab.internal"]}}]"#,
        ),
        (
            json!([server("lb-linker", &["lb.internal", "lab.internal"], "10.96.0.9")]),
            "OpenShift: dns.operator/default, server lb-linker: lab.internal stands there beside zones of another address: ",
        ),
        (
            json!([
                server("lb-linker", &["lb.internal"], "10.96.0.9"),
                server("lb-linker-2", &["lab.internal"], "10.0.0.1")
            ]),
            r#""path":"/spec/servers/1","value":{"forwardPlugin":{"policy":"Sequential","upstreams":["10.96.77.7"]},"name":"lb-linker-2","zones":["lab.internal"]}}]"#,
        ),
    ] {
        dns.dns_operator.as_mut().unwrap().data["spec"]["servers"] = servers;
        let printed = report(&dns, &second, None).join("\n");
        let without_breaks = printed.replace('\n', " ");
        assert!(without_breaks.contains(expected), "{printed}");
    }
    // The key that the Corefile imports has all zones.
    let mut dns = recorded("aks");
    let PlannedChange::Change(first) = core_dns(&dns, &forwarding()).unwrap() else { panic!() };
    let map =
        dns.config_maps.iter_mut().find(|map| map.metadata.name.as_deref() == Some(COREDNS_CUSTOM)).unwrap();
    map.data.get_or_insert_default().insert(first.key, first.after.unwrap());
    let printed = report(&dns, &second, None).join("\n");
    for zone in ["lb.internal", "lab.internal"] {
        assert!(
            printed.contains(&format!("        # BEGIN lb-linker stub {zone}\n        {zone}:53 {{\n")),
            "{printed}"
        );
    }
}

#[test]
fn block_for_a_former_address_is_pointed_out() {
    let of = |block: &str| {
        let mut dns = recorded("kubeadm");
        dns.config_maps[0].data.as_mut().unwrap().get_mut("Corefile").unwrap().push_str(block);
        report(&dns, &forwarding(), None).join(" ")
    };
    let block = "lb.internal:53 {\n    forward . 10.96.0.9\n}\n";
    let printed = of(block);
    let expected = "CoreDNS: kube-system/coredns:Corefile:24: lb.internal is forwarded to 10.96.0.9, and Service \
                    lb-linker/lb-linker has the address 10.96.77.7; lb-linker didn't add this block";
    assert!(printed.contains(expected) && !printed.contains("--apply` writes"), "{printed}");
    let printed = of(&format!("# BEGIN lb-linker stub\n{block}# END lb-linker stub\n"));
    assert!(printed.contains("needs this block: ") && printed.contains("--apply` writes"), "{printed}");
}

#[test]
fn managed_config_map_isnt_offered_to_apply() {
    let mut dns = recorded("kubeadm");
    dns.config_maps[0].metadata.annotations =
        Some([("meta.helm.sh/release-name".to_owned(), "coredns".to_owned())].into());
    let printed = report(&dns, &forwarding(), None).join(" ");
    assert!(printed.contains("Helm manages this ConfigMap and would undo a change"), "{printed}");
    assert!(printed.contains("forward . 10.96.77.7") && !printed.contains("--apply"), "{printed}");
}

#[test]
fn hostile_stub_domains_stay_one_word_of_the_shell() {
    let mut dns = recorded("gke-kube-dns");
    let domains = dns.config_maps[0].data.as_mut().unwrap();
    domains.insert("stubDomains".to_owned(), r#"{"x'; touch /tmp/y; echo '": ["192.0.2.1"]}"#.to_owned());
    let printed = report(&dns, &forwarding(), None).join("\n");
    assert!(printed.contains(r"x'\''; touch /tmp/y; echo '\''"), "{printed}");
}

#[test]
fn openshift_server_of_another_name_is_respected() {
    let mut dns = recorded("openshift");
    let operator = dns.dns_operator.as_mut().unwrap();
    operator.data["spec"]["servers"][0]["zones"] = json!(["lb.internal"]);
    let printed = report(&dns, &forwarding(), None).join(" ");
    assert!(
        printed.contains("dns.operator/default, server corp: lb.internal is forwarded to 192.0.2.53"),
        "{printed}"
    );
    let operator = dns.dns_operator.as_mut().unwrap();
    operator.data["spec"]["servers"][0]["forwardPlugin"]["upstreams"] = json!(["10.96.77.7"]);
    let printed = report(&dns, &forwarding(), None).join(" ");
    assert!(printed.contains("operator forwards lb.internal already"), "{printed}");
}
