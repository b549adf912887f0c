use crate::dns::server::config::*;
use crate::store::{OnGone, Store};

fn configured(text: &str) -> Result<Configuration, String> {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    configure(Path::new("Corefile"), text, &FileSources::SYSTEM, &context).map_err(|error| error.to_string())
}

fn error(text: &str) -> String {
    configured(text).expect_err(text)
}

/// Formats the listeners as `address: zone zone; address: …`.
fn listeners(text: &str) -> String {
    let show = |listener: &Listener| {
        let zones: Vec<String> = listener.zones.iter().map(|(zone, _)| zone.to_ascii()).collect();
        format!("{}: {}", listener.at, zones.join(" "))
    };
    configured(text).unwrap().listeners.iter().map(show).collect::<Vec<_>>().join("; ")
}

#[test]
fn blocks_with_the_same_address_share_a_listener() {
    for (text, expected) in [
        (".\nwhoami", "dns://:53: ."),
        ("a.example b.example:54 {\nwhoami\n}", "dns://:53: a.example.; dns://:54: b.example."),
        ("a.example {\nwhoami\n}\n. {\nwhoami\n}", "dns://:53: a.example. ."),
        (
            "a.example {\nbind 127.0.0.1 127.0.0.2\nwhoami\n}\n. {\nbind 127.0.0.1\nwhoami\n}",
            "dns://127.0.0.1:53: a.example. .; dns://127.0.0.2:53: a.example.",
        ),
        ("10.0.0.0/15:54 {\nwhoami\n}", "dns://:54: 0.10.in-addr.arpa. 1.10.in-addr.arpa."),
    ] {
        assert_eq!(listeners(text), expected, "{text}");
    }
}

#[test]
fn invalid_configurations_are_refused_with_a_position() {
    for (text, expected) in [
        ("", "Corefile:1:1: there is no server block; one begins with a line such as: .:53 {"),
        (
            ". {\nwhoami\n}\nexample.org . {\nwhoami\n}",
            "Corefile:4:13: . is served on dns://:53 already: see line 1",
        ),
        (
            "a. {\nview v\nwhoami\n}\na. b. {\nview v {\nexpr do()\n}\nwhoami\n}",
            "Corefile:5:1: a. is served in the view v on dns://:53 already: see line 1",
        ),
        (
            "a. a. {\nview v\nwhoami\n}",
            "Corefile:1:4: a. is served in the view v on dns://:53 already: see line 1",
        ),
        (
            ". {\nwhoami\n}\nexample.org {\nbind 127.0.0.1\nwhoami\n}",
            "Corefile:4:1: line 1 has dns://:53 on that port already: where one block of a port has bind, all need it",
        ),
        (
            ". {\nwhoami\n}\nexample.org {\nbind 0.0.0.0\nwhoami\n}",
            "Corefile:4:1: line 1 has [::]:53 already, which overlaps with 0.0.0.0:53: both blocks need the same bind",
        ),
        (
            "https3://. {\nwhoami\n}",
            "Corefile:1:1: https3:// isn't supported; the schemes are dns://, tls://, https://, grpc:// and quic://",
        ),
        (
            ".:1053 {\nforward . 192.0.2.1 127.0.0.1:1053\n}",
            "Corefile:2:21: 127.0.0.1:1053 is this block's own listener dns://:1053: every query would loop",
        ),
        (
            "quic://. {\nwhoami\n}",
            "Corefile:1:1: a quic:// block needs the plugin tls, with a certificate and its key",
        ),
        (
            ". {\nwhoami\n}\nhttps://. {\nshed\n}",
            "Corefile:5:1: shed is about UDP, and https:// blocks have none: leave it out",
        ),
        (
            "https://. {\nwhoami\n}\ngrpc://. {\nwhoami\n}",
            "Corefile:4:1: line 1 has https://:443 on that port already",
        ),
        (
            ". {\nwhoami\n}\ntls://. {\nshed\n}",
            "Corefile:5:1: shed is about UDP, and tls:// blocks have none: leave it out",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn different_proxies_of_a_listener_are_warned_of() {
    let expected = "Corefile:1:1: the blocks of dns://:53 have different lines proxyproto, and only the first one has \
                    an effect";
    for (of_second, of_third, number) in [
        ("", "", 0),
        ("proxyproto {\nallow 192.0.2.0/24\nallow 10.0.0.1\n}", "", 0),
        ("", "proxyproto {\nallow 192.0.2.0/24\n}", 1),
        ("proxyproto {\nallow 192.0.2.0/24 10.0.0.1\ndefault reject\n}", "", 1),
    ] {
        let first = "whoami\nproxyproto {\nallow 10.0.0.1 192.0.2.0/24\n}";
        let text =
            format!("a {{\n{first}\n}}\nb {{\nwhoami\n{of_second}\n}}\nc {{\nwhoami\n{of_third}\n}}\n");
        let configured = configured(&text).unwrap();
        let warnings = configured.blocks.iter().flat_map(|block| &block.builder.warnings);
        let warnings: Vec<String> = warnings.map(ToString::to_string).collect();
        assert_eq!(warnings, vec![expected; number], "{of_second} {of_third}");
    }
}

#[test]
fn quic_behind_proxies_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    let [of_server, of_key] = [("c", certificate), ("k", key.serialize_pem())].map(|(name, pem)| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    });
    assert_eq!(
        error(&format!(
            "quic://. {{\ntls {of_server} {of_key}\nproxyproto {{\nallow 10.0.0.1\n}}\nwhoami\n}}"
        )),
        "Corefile:1:1: a quic:// block can't have proxyproto: PROXY headers aren't read by QUIC"
    );
}

#[test]
fn tls_listeners_without_a_certificate_are_warned_of() {
    let text = "https://. tls://. tls://a.example:8853 {\nwhoami\n}\ntls://b.example:8853 {\nwhoami\n}\n";
    let configured = configured(text).unwrap();
    let warnings = configured.blocks.iter().flat_map(|built| &built.builder.warnings);
    let warnings: Vec<String> = warnings.map(ToString::to_string).collect();
    let expected = [("1:11", "tls://:853"), ("1:19", "tls://:8853")].map(|(place, listener)| {
        format!(
            "Corefile:{place}: {listener} answers by TCP without TLS, because the block has no plugin tls; right only \
             behind a proxy that has the certificate"
        )
    });
    assert_eq!(warnings, expected);
    let of_listeners = configured.listeners.iter().map(|listener| configured.connection_config(listener));
    assert!(of_listeners.into_iter().all(|connection_config| connection_config.tls.is_none()));
}

#[test]
fn http_endpoints_of_all_addresses_share_a_port() {
    for (first, second, expected) in [
        ("0.0.0.0:9153", ":9153", ["[::]:9153", "[::]:9153"]),
        (":9153", "0.0.0.0:9153", ["[::]:9153", "[::]:9153"]),
        ("0.0.0.0:9153", ":9154", ["0.0.0.0:9153", "[::]:9154"]),
        ("0.0.0.0:0", ":0", ["0.0.0.0:0", "[::]:0"]),
    ] {
        let text = format!("a.example {{\nprometheus {first}\n}}\nb.example {{\nprometheus {second}\n}}");
        let blocks = configured(&text).unwrap().blocks;
        let address = |built: &BuiltBlock| built.builder.endpoints[0].address.to_string();
        assert_eq!(blocks.iter().map(address).collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn unknown_plugin_error_lists_or_suggests_plugins() {
    let supported = crate::dns::plugins::names().join(", ");
    assert_eq!(
        error(". {\nresolver\n}"),
        format!("Corefile:2:1: there is no plugin \"resolver\"; there are {supported}")
    );
    for (typo, meant) in
        [("whoam", "whoami"), ("forwrad", "forward"), ("cach", "cache"), ("lb-linker", "lb_linker")]
    {
        assert_eq!(
            error(&format!(". {{\n{typo}\n}}")),
            format!("Corefile:2:1: there is no plugin {typo:?}; is it {meant}?")
        );
    }
}

#[test]
fn all_errors_of_plugins_are_found_at_once() {
    let text =
        "https3://. {\nwhoami\n}\na.example {\nforward\nroute53 x\nwhoami x\nalias\nwhoam\n}\n. {\nany x\n}";
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let blocks = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
    let errors = build_all(Path::new("Corefile"), &blocks, &context).unwrap_err();
    let expected = [
        "1:1: https3:// isn't supported; the schemes are dns://, tls://, https://, grpc:// and quic://",
        "6:1: CoreDNS's plugin route53 isn't supported; forward the zone to the VPC's resolver, 169.254.169.253",
        "8:1: alias is an external plugin, which CoreDNS's own image lacks, too: forward its names to a CoreDNS that has \
         it, or leave it out",
        "9:1: there is no plugin \"whoam\"; is it whoami?",
        "5:1: forward needs",
        "7:8: whoami takes no arguments, and here is \"x\"",
        "12:5: any takes no arguments, and here is \"x\"",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.to_string().starts_with(&format!("Corefile:{expected}")), "{error}");
    }
    assert_eq!(error(text), errors[0].to_string());
}

#[test]
fn equal_blocks_have_equal_fingerprints() {
    let identities = |text: &str| -> Vec<BlockFingerprint> {
        configured(text).unwrap().blocks.into_iter().map(|built| built.fingerprint).collect()
    };
    let first = identities("a.example {\nwhoami\n}\nb.example {\nwhoami\n}");
    let second =
        identities("# words\nb.example {\n  whoami # the same\n}\na.example {\n  chaos\n  whoami\n}");
    assert_eq!(first[1], second[0]);
    assert_ne!(first[0], second[1]);
}

#[test]
fn cluster_zones_are_those_of_the_plugins_without_reverse_zones() {
    let zones = |text: &str| {
        let parsed = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
        cluster_zones(&parsed).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let text = "cluster.local 10.0.0.0/8 {\nkubernetes\n}\n. {\nkubernetes k8s.test in-addr.arpa ip6.arpa\n\
                k8s_external example.org\n}\n.:54 {\nkubernetes\n}\n";
    assert_eq!(zones(text), ["cluster.local.", "k8s.test.", "example.org.", "svc.", "pod."]);
    assert!(zones("lb.internal {\nlb_linker\n}\n").is_empty());
}

#[test]
fn links_depend_on_the_zones_of_other_blocks() {
    let fingerprints = |others: &str| {
        let text = format!("lb.internal {{\nlb_linker\n}}\n. {{\nwhoami\n}}\n{others}");
        let built = configured(&text).unwrap().blocks;
        built.into_iter().map(|built| built.fingerprint).collect::<Vec<_>>()
    };
    let [links, k8s, other_k8s] =
        ["b.test {\nlb_linker\n}\n", "k8s.test {\nkubernetes\n}\n", "k8s.example {\nkubernetes\n}\n"];
    let of = |others: &[&str]| fingerprints(&others.concat());
    for (one, other, is_same) in [
        (of(&[k8s]), of(&[other_k8s]), false),
        (of(&[k8s]), of(&[k8s, links]), false),
        (of(&[k8s, other_k8s, links]), of(&[links, other_k8s, k8s]), true),
    ] {
        assert_eq!([one[0] == other[0], one[1] == other[1]], [is_same, true]);
    }
}

#[test]
fn text_of_a_corefile_shows_its_parsed_form() {
    let text = "(common) {\n  whoami # a comment\n}\n.:{$PORT:1053}, example.org {\n  import common\n  \
                bind 127.0.0.1 { \n except \"127.0.0.2\"\n }\n}\n";
    let blocks = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
    assert_eq!(
        text_of(&blocks),
        ".:1053 example.org {\n    whoami\n    bind 127.0.0.1 {\n        except 127.0.0.2\n    }\n}\n"
    );
}

#[test]
fn quoted_token_is_read_as_the_same_token() {
    for word in ["a", "a b", "a\\\"b", "a\"b", "\"a\"", "a\\", "#a", "{a}", ""] {
        let text = format!(". {{\nwhoami {}\n}}\n", quoted(word));
        let blocks = parse(Path::new("Corefile"), &text, &FileSources::SYSTEM).unwrap();
        assert_eq!(blocks[0].lines[0].tokens[1].text, word, "{text}");
    }
}
