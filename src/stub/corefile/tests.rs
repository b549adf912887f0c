use super::*;
use crate::stub::test_support::forwarding;

const NAME: &str = "kube-system/coredns:Corefile";
const PLAIN: &str = ".:53 {\n    errors\n    forward . /etc/resolv.conf\n    reload\n}\n";
const ADDED: &str = "# BEGIN lb-linker stub\nlb.internal:53 {\n    errors\n    forward . 10.96.77.7\n}\n\
                     # END lb-linker stub\n";

fn add(text: &str) -> Result<String, String> {
    let corefile = Corefile::parse(NAME, text).map_err(|error| error.to_string())?;
    let lines = corefile.lines_to_add(&forwarding(), false);
    corefile.with_block(&lines).map_err(|error| error.to_string())
}

fn remove(text: &str) -> String {
    Corefile::parse(NAME, text).unwrap().without_block().unwrap()
}

#[test]
fn block_is_added_once_and_removed_without_a_trace() {
    for text in [PLAIN, "", "# only a comment\n", ".:53 {\n}\n(snippet) {\n    errors\n}\n"] {
        let with = add(text).unwrap();
        assert_eq!(with, format!("{text}{ADDED}"));
        assert_eq!(add(&with).unwrap(), with);
        assert_eq!(remove(&with), text);
    }
    assert_eq!(add(".:53 {\n}").unwrap(), format!(".:53 {{\n}}\n{ADDED}"));
    assert_eq!(remove(PLAIN), PLAIN);
}

#[test]
fn former_block_is_replaced_where_it_stands() {
    let former = ADDED.replace("10.96.77.7", "10.96.0.9");
    let text = format!("a:53 {{\n}}\n{former}b:53 {{\n}}\n");
    assert_eq!(add(&text).unwrap(), format!("a:53 {{\n}}\n{ADDED}b:53 {{\n}}\n"));
    assert_eq!(remove(&text), "a:53 {\n}\nb:53 {\n}\n");
}

#[test]
fn block_takes_port_and_bind_of_the_root_block() {
    let text = "cluster.local:1053 {\n    bind 192.0.2.1\n}\n.:1053 {\n    bind 169.254.20.10 10.96.0.10\n    bind fd00::a\n}\n";
    let corefile = Corefile::parse(NAME, text).unwrap();
    let expected = "# BEGIN lb-linker stub\nlb.internal:1053 {\n    bind 169.254.20.10 10.96.0.10 fd00::a\n    errors\n    \
                    forward . 10.96.77.7 {\n        force_tcp\n    }\n}\n# END lb-linker stub\n";
    assert_eq!(corefile.lines_to_add(&forwarding(), true), expected);
    let mut forwarding = forwarding();
    forwarding.zones.push("lb.example".to_owned());
    forwarding.addresses = vec!["fd00::7".parse().unwrap()];
    forwarding.port = 5353;
    let lines = corefile.lines_to_add(&forwarding, false);
    assert!(lines.contains("\nlb.internal:1053 lb.example:1053 {\n"), "{lines}");
    assert!(lines.contains("    forward . [fd00::7]:5353\n"), "{lines}");
}

#[test]
fn port_is_that_of_the_root_address_else_the_first() {
    for (text, expected) in [
        ("tls://.:853 .:1053 {\n}\n", "lb.internal:1053"),
        ("corp.example:5353 . {\n}\n", "lb.internal:53"),
        ("corp.example:1053 {\n}\n", "lb.internal:1053"),
    ] {
        let lines = Corefile::parse(NAME, text).unwrap().lines_to_add(&forwarding(), false);
        assert!(lines.contains(&format!("\n{expected} {{\n")), "{text}: {lines}");
    }
}

#[test]
fn corefiles_with_wrong_braces_or_markers_are_refused() {
    for (text, expected) in [
        // Without braces the block would become a part of the only block.
        (".:53\nforward . /etc/resolv.conf\n", ":2:1: a block at this place would change other blocks"),
        (".:53 {\n", ":1:6: this { isn't closed"),
        (
            "# BEGIN lb-linker stub\n",
            ":1:1: one line \"# BEGIN lb-linker stub\" has to stand before one line",
        ),
        ("# END lb-linker stub\n# BEGIN lb-linker stub\n", ":2:1: one line"),
        ("# BEGIN lb-linker stub\n# BEGIN lb-linker stub\n# END lb-linker stub\n", ":1:1: one line"),
        // A marker inside of another block.
        (
            ".:53 {\n# BEGIN lb-linker stub\n    errors\n# END lb-linker stub\n}\n",
            ":2:1: only the block that lb-linker has added may stand between its marker lines",
        ),
        (
            "# BEGIN lb-linker stub\na {\n}\nb {\n}\n# END lb-linker stub\n",
            ":1:1: only the block that lb-linker has added may stand between its marker lines",
        ),
        (
            "# BEGIN lb-linker stub\na {\n    cache\n}\n# END lb-linker stub\n",
            ":1:1: only the block that lb-linker has added may stand between its marker lines",
        ),
    ] {
        let error = add(text).unwrap_err();
        assert!(error.starts_with(&format!("{NAME}{expected}")), "{text:?}: {error}");
    }
}

#[test]
fn blocks_of_zones_tell_where_they_forward() {
    let blocks = |text: &str| -> Vec<(usize, Vec<String>, bool)> {
        let corefile = Corefile::parse(NAME, text).unwrap();
        let blocks = corefile.blocks_of(&forwarding().zones).into_iter();
        blocks.map(|block| (block.line, block.upstreams, block.is_ours)).collect()
    };
    let found = |line, upstreams: &[&str], is_ours| {
        vec![(line, upstreams.iter().map(|&it| it.to_owned()).collect::<Vec<_>>(), is_ours)]
    };
    for (text, expected) in [
        (PLAIN, vec![]),
        (ADDED, found(2, &["10.96.77.7"], true)),
        (
            "dns://LB.internal. {\n forward . 192.0.2.1 192.0.2.2\n}\n",
            found(1, &["192.0.2.1", "192.0.2.2"], false),
        ),
        ("lb.internal {\n forward internal. 192.0.2.1\n}\n", found(1, &["192.0.2.1"], false)),
        ("a:53 b:53 lb.internal:53 {\n forward lb.internal 192.0.2.1\n}\n", found(1, &["192.0.2.1"], false)),
        ("\nlb.internal {\n forward web.lb.internal 192.0.2.1\n}\n", found(2, &[], false)),
        ("lb.internal {\n errors\n}\n", found(1, &[], false)),
        // Pods send queries to no other port, and by no other transport.
        (".:53 {\n}\nlb.internal:5300 {\n forward . 192.0.2.1\n}\n", vec![]),
        ("tls://lb.internal {\n forward . 192.0.2.1\n}\n", vec![]),
        ("https://. {\n whoami\n}\n", vec![]),
    ] {
        assert_eq!(blocks(text), expected, "{text}");
    }
}

#[test]
fn addresses_of_the_service_are_recognized() {
    for (argument, is_ours) in [
        ("10.96.77.7", true),
        ("10.96.77.7:53", true),
        ("dns://10.96.77.7", true),
        ("10.96.77.7:5353", false),
        ("tls://10.96.77.7", false),
        ("10.96.77.70", false),
    ] {
        assert_eq!(forwarding().is_upstream(argument), is_ours, "{argument}");
    }
}

#[test]
fn only_imports_outside_server_blocks_are_found() {
    let imports = |text: &str| Corefile::parse(NAME, text).unwrap().imports_servers();
    assert!(imports(".:53 {\n    import custom/*.override\n}\nimport custom/*.server\n"));
    assert!(imports("import /etc/coredns/custom/*.server\n.:53 {\n}\n"));
    assert!(!imports(".:53 {\n    import custom/*.override\n    import custom/*.server\n}\n"));
    assert!(!imports("# import custom/*.server\n"));
}
