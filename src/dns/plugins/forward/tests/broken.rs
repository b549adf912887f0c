//! Tests of invalid `forward` lines and their errors.

use super::TestServer;

const TO: &str = "an address such as 192.0.2.1, [2001:db8::1]:53, tls://192.0.2.1%dns.example.com or \
                  https://192.0.2.1/dns-query, a file like /etc/resolv.conf, or a host's name";
const OPTIONS: &str = "doh_method, except, expire, failfast_all_unhealthy_upstreams, failover, force_tcp, \
                       health_check, max_age, max_concurrent, max_connect_attempts, max_fails, max_idle_conns, next, \
                       next_on_nodata, policy, prefer_udp, read_timeout, resolver, source_address, tls, tls_servername";

#[test]
fn invalid_line_is_rejected_with_its_position() {
    for (line, error) in [
        ("forward", "1: forward needs a zone, and the upstreams: forward . 192.0.2.1".to_owned()),
        ("forward 192.0.2.53", "9: forward needs a zone before the upstream: forward . 192.0.2.53".to_owned()),
        (
            "forward tls://192.0.2.53:853",
            "9: forward needs a zone before the upstream: forward . tls://192.0.2.53:853".to_owned(),
        ),
        ("forward .", "9: forward needs an upstream after the zone \".\": forward . 192.0.2.1".to_owned()),
        ("forward a..b 192.0.2.1", "9: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8".to_owned()),
        (
            "forward . grpc://192.0.2.1",
            "11: grpc:// is no way to reach an upstream; there are dns:// (UDP and TCP), tls:// (RFC 7858) and \
             https:// (RFC 8484)"
                .to_owned(),
        ),
        (
            "forward . https://192.0.2.1/dns-query{?dns}",
            "11: \"/dns-query{?dns}\" isn't a path such as /dns-query; it has no parameters, and doh_method GET adds \
             the parameter dns"
                .to_owned(),
        ),
        (
            "forward . https://192.0.2.1?dns",
            "11: \"?dns\" isn't a path such as /dns-query; it has no parameters, and doh_method GET adds the \
             parameter dns"
                .to_owned(),
        ),
        ("forward . https:///dns-query", format!("11: \"https:///dns-query\" isn't {TO}")),
        ("forward . https://192.0.2.300/", format!("11: \"https://192.0.2.300/\" isn't {TO}")),
        ("forward . https://user@dns.example", format!("11: \"https://user@dns.example\" isn't {TO}")),
        ("forward . https://-a.example", format!("11: \"https://-a.example\" isn't {TO}")),
        ("forward . 192.0.2.1:0", "11: \"0\" isn't a port: a number from 1 to 65535".to_owned()),
        ("forward . 192.0.2.1:domain", "11: \"domain\" isn't a port: a number from 1 to 65535".to_owned()),
        ("forward . 192.0.2.300", format!("11: \"192.0.2.300\" isn't {TO}")),
        ("forward . [::1", format!("11: \"[::1\" isn't {TO}")),
        ("forward . a!b", format!("11: \"a!b\" isn't {TO}")),
        ("forward . \"\"", format!("11: \"\" isn't {TO}; maybe a variable isn't set")),
        (
            "forward . 192.0.2.1%eth0",
            "11: %eth0 is a network interface after an IPv6 address, or a certificate's name with tls:// and https://; \
             it isn't allowed here"
                .to_owned(),
        ),
        ("forward . fe80::1%nowhere", "11: there is no network interface \"nowhere\"".to_owned()),
        ("forward . tls://192.0.2.1%a..b", "11: \"a..b\" isn't a name that a certificate can have".to_owned()),
        ("forward . /nowhere/x", "11: /nowhere/x: No such file or directory (os error 2)".to_owned()),
        (
            "forward . tls:///etc/resolv.conf",
            "11: tls:// needs an address or a host's name, not a file".to_owned(),
        ),
    ] {
        assert_eq!(TestServer::error(line), format!("Corefile:2:{error}"), "{line}");
    }
    let sixteen: Vec<String> = (1..=16).map(|last| format!("192.0.2.{last}")).collect();
    assert_eq!(
        TestServer::error(&format!("forward . {}", sixteen.join(" "))),
        "Corefile:2:167: forward takes 15 upstreams at most, and here are 16"
    );
}

#[test]
fn invalid_option_is_rejected_with_its_position() {
    for (option, error) in [
        ("except", "1: except needs zones"),
        ("except a..b", "8: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
        ("force_tcp x", "11: force_tcp takes no arguments, and here is \"x\""),
        ("prefer_udp x", "12: prefer_udp takes no arguments, and here is \"x\""),
        ("expire", "1: expire needs a duration such as 10s"),
        ("expire 5", "8: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
        ("max_age 1s 2s", "12: max_age takes 1 argument at most, and here is \"2s\""),
        ("max_idle_conns -1", "16: \"-1\" isn't a number from 0 on"),
        ("read_timeout 0s", "14: read_timeout has to be longer than 0"),
        ("max_fails x", "11: \"x\" isn't a number from 0 on"),
        ("max_connect_attempts", "1: max_connect_attempts needs a number"),
        ("max_concurrent many", "16: \"many\" isn't a number from 0 on"),
        ("policy", "1: policy needs random, round_robin or sequential"),
        ("policy least", "8: \"least\" isn't a policy: random, round_robin or sequential"),
        ("health_check", "1: health_check needs a duration such as 500ms"),
        ("health_check x", "14: \"x\" isn't a duration such as 30s, 1m30s or 500ms"),
        ("health_check 1s rec", "17: \"rec\" isn't an option of health_check: no_rec, or domain and a name"),
        ("health_check 1s domain", "17: domain needs a name"),
        ("health_check 1s domain a..b", "24: \"a..b\" isn't a domain name"),
        ("next", "1: next needs response codes"),
        ("next NODATA", "6: \"NODATA\" isn't a response code such as NXDOMAIN or SERVFAIL"),
        ("next_on_nodata x", "16: next_on_nodata takes no arguments, and here is \"x\""),
        ("failover SERVFAIL NOERROR", "19: failover can't name NOERROR, which isn't an error"),
        (
            "failfast_all_unhealthy_upstreams x",
            "34: failfast_all_unhealthy_upstreams takes no arguments, and here is \"x\"",
        ),
        ("source_address {$LB_LINKER_UNSET}", "16: \"\" isn't an IP address; maybe a variable isn't set"),
        ("source_address x", "16: \"x\" isn't an IP address"),
        ("resolver", "1: resolver needs addresses"),
        ("resolver a.example", "10: \"a.example\" isn't an address such as 192.0.2.1 or 192.0.2.1:53"),
        ("doh_method", "1: doh_method needs GET or POST"),
        ("doh_method get", "12: \"get\" isn't GET or POST"),
        ("tls a b c d", "11: tls takes 3 arguments at most, and here is \"d\""),
        ("tls /nowhere/ca.pem", "5: /nowhere/ca.pem: No such file or directory (os error 2)"),
        ("tls_servername", "1: tls_servername needs the name in the upstreams' certificates"),
        ("tls_servername a..b", "16: \"a..b\" isn't a name that a certificate can have"),
        ("policy random {\n}", "1: policy takes no braces"),
    ] {
        let found = TestServer::error(&format!("forward . 192.0.2.1 {{\n{option}\n}}"));
        assert_eq!(found, format!("Corefile:3:{error}"), "{option}");
    }
    for (options, error) in [
        ("tcp", format!("3:1: forward has no option \"tcp\"; its options are {OPTIONS}")),
        ("fore_tcp", "3:1: forward has no option \"fore_tcp\"; is it force_tcp?".to_owned()),
        ("expire 10s\nmax_age 9s", "2:1: max_age (9s) has to be at least as long as expire (10s)".to_owned()),
    ] {
        let found = TestServer::error(&format!("forward . 192.0.2.1 {{\n{options}\n}}"));
        assert_eq!(found, format!("Corefile:{error}"), "{options}");
    }
    for scheme in ["tls", "https"] {
        let line = format!("forward . {scheme}://192.0.2.1%a.example {{\ntls_servername b.example\n}}");
        let clash = "Corefile:2:11: tls_servername \"b.example\" is there, too: one name is enough";
        assert_eq!(TestServer::error(&line), clash);
    }
}

#[test]
fn upstreams_that_may_never_be_asked_are_warned_of() {
    let left_out = |place: &str, text: &str| {
        format!(
            "Corefile:2:{place}: {text:?} isn't asked: an upstream before it has the same address and port, and is asked \
             in another way"
        )
    };
    for (block, line, warnings) in [
        (
            ".",
            "https://192.0.2.1/a https://192.0.2.1/b tls://192.0.2.1:443 https://192.0.2.1/a",
            vec![left_out("31", "https://192.0.2.1/b"), left_out("51", "tls://192.0.2.1:443")],
        ),
        (".", "192.0.2.1 dns://192.0.2.1:53 tls://192.0.2.1 https://192.0.2.1", vec![]),
    ] {
        let (_, configuration) = TestServer::configured(&format!("{block} {{\nforward . {line}\n}}\n"));
        let found: Vec<String> =
            configuration.blocks[0].builder.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(found, warnings, "{block} {line}");
    }
}

#[test]
fn own_listeners_resolve_no_host_names_of_upstreams() {
    let refused = |place: &str, server: &str, listener: &str| {
        Some(format!(
            "Corefile:{place}: {server} is lb-linker itself, at {listener}: the host names of upstreams have to be \
             resolved by another server"
        ))
    };
    for (blocks, forward, expected) in [
        (". {", "tls://dns.example {\nresolver 127.0.0.1\n}", refused("3:10", "127.0.0.1:53", "dns://:53")),
        ("corp {", "tls://dns.example {\nresolver 0.0.0.0\n}", refused("3:10", "0.0.0.0:53", "dns://:53")),
        (
            ".:54 {\nwhoami\n}\ncorp {",
            "https://dns.example {\nresolver 127.0.0.1 127.0.0.1:54\n}",
            refused("6:10", "127.0.0.1:53", "dns://:53"),
        ),
        (
            "a {\nbind 127.0.0.9\nwhoami\n}\nb {\nbind 127.0.0.8",
            "dns.example {\nresolver 192.0.2.1\nresolver 127.0.0.9\n}",
            refused("9:10", "127.0.0.9:53", "dns://127.0.0.9:53"),
        ),
        (". {", "https://dns.example {\nresolver 127.0.0.1 192.0.2.1\n}", None),
        (".:54 {", "https://dns.example {\nresolver 127.0.0.1\n}", None),
        ("grpc://.:53 {", "https://dns.example {\nresolver 127.0.0.1\n}", None),
        (". {", "192.0.2.1 {\nresolver 127.0.0.1\n}", None),
    ] {
        let text = format!("{blocks}\nforward . {forward}\n}}\n");
        assert_eq!(TestServer::refusal(&text), expected, "{text}");
    }
}
