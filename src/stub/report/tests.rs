use std::path::{Path, PathBuf};

use super::*;
use crate::stub::test_support::{ALL_RESOLVERS, forwarding, platforms, recorded};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stub.md")
}

/// Returns the page with what is printed for each recorded cluster or resolver, in the code block behind the comment
/// that names it.
fn with_output(page: &str) -> (String, Vec<String>) {
    let (mut text, mut names, mut rest) = (String::new(), Vec::new(), page);
    while let Some((before, after)) = rest.split_once("<!-- output: ") {
        let (name, after) = after.split_once(" -->\n\n```text\n").unwrap();
        let (_, after) = after.split_once("```\n").unwrap();
        let (dns, resolver) = match name {
            "dnsmasq" => (ClusterDns::default(), Some(Resolver::Dnsmasq)),
            "systemd-resolved" => (ClusterDns::default(), Some(Resolver::SystemdResolved)),
            name => (recorded(name), None),
        };
        let printed = report(&dns, &forwarding(), resolver).join("\n");
        text.push_str(&format!("{before}<!-- output: {name} -->\n\n```text\n{printed}\n```\n"));
        names.push(name.to_owned());
        rest = after;
    }
    (text + rest, names)
}

#[test]
fn page_has_what_is_printed_for_each_platform() {
    let found = std::fs::read_to_string(page()).unwrap();
    let (made, mut names) = with_output(&found);
    if std::env::var_os("LB_LINKER_WRITE_DOCS").is_some() {
        std::fs::write(page(), &made).unwrap();
    } else {
        assert!(found == made, "docs/stub.md isn't what `lb-linker stub` prints: run `make docs`");
    }
    names.sort();
    let mut expected = platforms();
    expected.extend(["dnsmasq".to_owned(), "systemd-resolved".to_owned()]);
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn every_resolver_can_be_printed_for_any_cluster() {
    for name in platforms() {
        for resolver in ALL_RESOLVERS {
            let printed = report(&recorded(&name), &forwarding(), Some(resolver)).join("\n");
            assert!(printed.contains("lb.internal"), "{name}, {resolver:?}: {printed}");
        }
    }
}

#[test]
fn present_configuration_is_recognized() {
    let mut dns = recorded("gke-kube-dns");
    let domains = dns.config_maps[0].data.as_mut().unwrap();
    domains.insert("stubDomains".to_owned(), r#"{"lb.internal": ["10.96.77.7"]}"#.to_owned());
    assert!(report(&dns, &forwarding(), None).join("\n").contains("kube-dns forwards lb.internal already"));
    let mut dns = recorded("openshift");
    let servers = json!([{"name": "lb-linker", "zones": ["lb.internal"],
        "forwardPlugin": {"policy": "Sequential", "upstreams": ["10.96.0.9"]}}]);
    dns.dns_operator.as_mut().unwrap().data["spec"]["servers"] = servers;
    let printed = report(&dns, &forwarding(), None).join("\n");
    assert!(printed.contains(r#"{"op":"replace","path":"/spec/servers/0""#), "{printed}");
    dns.dns_operator.as_mut().unwrap().data["spec"]["servers"][0]["forwardPlugin"]["upstreams"] =
        json!(["10.96.77.7"]);
    assert!(report(&dns, &forwarding(), None).join("\n").contains("forwards the zones already"));
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
    let expected = "forwards lb.internal to 10.96.0.9 in line 24, which isn't the address of Service \
                    lb-linker/lb-linker. lb-linker didn't add this block: correct it by hand, or remove it";
    assert!(printed.contains(expected) && !printed.contains("--apply` adds"), "{printed}");
    let printed = of(&format!("# BEGIN lb-linker stub\n{block}# END lb-linker stub\n"));
    let expected = "forwards lb.internal to 10.96.0.9 in line 25, which isn't the address of Service \
                    lb-linker/lb-linker. It needs this block instead: ";
    assert!(printed.contains(expected) && printed.contains("--apply` adds"), "{printed}");
}
