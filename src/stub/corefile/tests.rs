use super::*;
use crate::stub::Forwarding;
use crate::stub::test_support::forwarding;

const NAME: &str = "kube-system/coredns:Corefile";
const PLAIN: &str = ".:53 {\n    errors\n    forward . /etc/resolv.conf\n    reload\n}\n";
const ADDED: &str = "# BEGIN lb-linker stub lb.internal\nlb.internal:53 {\n    errors\n    forward . 10.96.77.7\n}\n\
                     # END lb-linker stub lb.internal\n";

fn try_add(text: &str) -> Result<String, CorefileError> {
    add_zones(text, &["lb.internal"])
}

fn add_zones(text: &str, zones: &[&str]) -> Result<String, CorefileError> {
    let corefile = Corefile::parse(NAME, text)?;
    let zones = zones.iter().map(|&zone| zone.to_owned()).collect();
    corefile.with_lines(&lines_of(&corefile, &Forwarding { zones, ..forwarding() }, false)?)
}

fn add(text: &str) -> Result<String, String> {
    try_add(text).map_err(|error| error.to_string())
}

fn lines_for(
    corefile: &Corefile<'_>,
    forwarding: &Forwarding,
    by_tcp: bool,
) -> Result<String, CorefileError> {
    Ok(text_of_zones(&lines_of(corefile, forwarding, by_tcp)?))
}

fn lines_of(
    corefile: &Corefile<'_>,
    forwarding: &Forwarding,
    by_tcp: bool,
) -> Result<Vec<ZoneLines>, CorefileError> {
    let listeners = listeners([corefile])?.into_iter();
    let zones = &forwarding.zones;
    let wanted = listeners.flat_map(|it| zones.iter().map(move |zone| (zone.clone(), it.clone())));
    Ok(zone_lines(forwarding, &wanted.collect::<Vec<_>>(), by_tcp))
}

fn remove(text: &str) -> String {
    remove_zones(text, &["lb.internal"]).unwrap()
}

fn remove_zones(text: &str, zones: &[&str]) -> Result<String, String> {
    let zones: Vec<String> = zones.iter().map(|&zone| zone.to_owned()).collect();
    let corefile = Corefile::parse(NAME, text).map_err(|error| error.to_string())?;
    corefile.without(&zones).map_err(|error| error.to_string())
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
fn second_zone_is_added_beside_the_first() {
    let first = add(PLAIN).unwrap();
    let both = add_zones(&first, &["lab.internal"]).unwrap();
    let second = ADDED.replace("lb.internal", "lab.internal");
    assert_eq!(both, format!("{PLAIN}{ADDED}{second}"));
    assert_eq!(add(&both).unwrap(), both);
    assert_eq!(add_zones(PLAIN, &["lb.internal", "lab.internal"]).unwrap(), both);
    assert_eq!(remove(&both), format!("{PLAIN}{second}"));
    assert_eq!(remove_zones(&both, &["lab.internal"]).unwrap(), first);
    assert_eq!(remove_zones(&both, &["b.internal", "internal"]).unwrap(), both);
    assert_eq!(remove_zones(&both, &["lab.internal", "lb.internal"]).unwrap(), PLAIN);
    // Another address of the Service.
    let former = both.replace("10.96.77.7", "10.96.0.9");
    assert_eq!(add(&former).unwrap(), former.replacen("10.96.0.9", "10.96.77.7", 1));
    let twice = format!("{ADDED}{ADDED}");
    let error = add(&twice).unwrap_err();
    assert!(
        error.starts_with(&format!("{NAME}:7:1: lb-linker has added a block for this zone above")),
        "{error}"
    );
}

#[test]
fn markers_without_a_zone_are_for_the_zones_between_them() {
    let old = ADDED.replace("stub lb.internal", "stub");
    assert_eq!(add(&format!("{PLAIN}{old}a {{\n}}\n")).unwrap(), format!("{PLAIN}{ADDED}a {{\n}}\n"));
    assert_eq!(remove(&format!("{PLAIN}{old}")), PLAIN);
    assert_eq!(remove_zones(&format!("{PLAIN}{old}"), &["a.internal"]).unwrap(), format!("{PLAIN}{old}"));
    let two = old.replace("lb.internal:53 {", "lb.internal:53 lab.internal:53 {");
    let expected = format!(
        "{NAME}:1:1: lb-linker has added this block for lab.internal, lb.internal together: give all"
    );
    for result in [add(&two), remove_zones(&two, &["lb.internal"])] {
        let error = result.unwrap_err();
        assert!(error.starts_with(&expected), "{error}");
    }
    let both = ["lab.internal", "lb.internal"];
    assert_eq!(remove_zones(&two, &both).unwrap(), "");
    let second = ADDED.replace("lb.internal", "lab.internal");
    assert_eq!(add_zones(&two, &both).unwrap(), format!("{second}{ADDED}"));
}

#[test]
fn zones_of_kubernetes_are_found_with_their_positions() {
    let text = "(k) {\n    kubernetes Corp.example. {\n        ttl 5\n    }\n}\n.:53 {\n    import k\n    \
                kubernetes {$DOMAIN} cluster.local in-addr.arpa\n}\nb.example:53 {\n    kubernetes\n}\n";
    let corefile = Corefile::parse(NAME, text).unwrap();
    let zones = corefile.zones_of("kubernetes");
    let known = zones.iter().filter(|it| it.is_known());
    let found: Vec<(&str, usize)> = known.map(|it| (it.zone.as_str(), it.position.line)).collect();
    let expected = [("corp.example", 2), ("cluster.local", 8), ("in-addr.arpa", 8), ("b.example", 10)];
    assert_eq!(found, expected);
    assert_eq!(zones.len(), expected.len() + 1);
}

#[test]
fn block_takes_port_and_bind_of_the_root_block() {
    let text = "cluster.local:1053 {\n    bind 192.0.2.1\n}\n.:1053 {\n    bind 169.254.20.10 10.96.0.10\n    bind fd00::a\n}\n";
    let corefile = Corefile::parse(NAME, text).unwrap();
    let expected = "# BEGIN lb-linker stub lb.internal\nlb.internal:1053 {\n    bind 169.254.20.10 10.96.0.10\n    \
                    bind fd00::a\n    errors\n    forward . 10.96.77.7 {\n        force_tcp\n    }\n}\n\
                    # END lb-linker stub lb.internal\n";
    assert_eq!(lines_for(&corefile, &forwarding(), true).unwrap(), expected);
    let mut forwarding = forwarding();
    forwarding.zones.push("lb.example".to_owned());
    forwarding.addresses = vec!["fd00::7".parse().unwrap()];
    forwarding.port = 5353;
    let lines = lines_for(&corefile, &forwarding, false).unwrap();
    assert!(lines.contains("stub lb.internal\nlb.internal:1053 {\n"), "{lines}");
    assert!(lines.contains("stub lb.example\nlb.example:1053 {\n"), "{lines}");
    assert!(lines.contains("    forward . [fd00::7]:5353\n"), "{lines}");
}

#[test]
fn zone_is_on_each_plain_port_of_the_root_blocks() {
    let both = "lb.internal:5353 lb.internal:53";
    for (text, expected) in [
        ("tls://.:853 .:1053 {\n}\n", "lb.internal:1053"),
        ("corp.example:5353 . {\n}\n", "lb.internal:53"),
        ("corp.example:1053 {\n}\n", "lb.internal:1053"),
        (".:5353 {\n}\n.:53 {\n}\n", both),
        (".:5353 .:53 {\n}\n", both),
        (".:5353, dns://.\n{\n}\n", both),
        (".:5353 {\n}\n:53 {\n}\nhttps://.:443 {\n}\n", both),
        (".:5353 {\n}\n.:053 {\n}\ncorp.example:5300 {\n}\n", both),
        (".:5353 {\n    view a\n}\n. {\n}\n.:5353 {\n}\n", both),
        // A variable in the address of a block that is no root block, or that adds no port.
        (".:53 {\n}\ncorp.example:{$PORT} {\n}\n{$DOMAIN}:53 {\n}\n", "lb.internal:53"),
    ] {
        let lines = lines_for(&Corefile::parse(NAME, text).unwrap(), &forwarding(), false).unwrap();
        assert!(lines.contains(&format!("stub lb.internal\n{expected} {{\n")), "{text}: {lines}");
        assert_eq!(add(&add(text).unwrap()), add(text), "{text}");
        assert_eq!(remove(&add(text).unwrap()), text);
    }
}

#[test]
fn bind_is_copied_whole_for_each_root_block() {
    let bind = "    bind eth0 {\n        except 10.0.0.5\n    }\n    bind \"a b\" {$POD_IP}\n";
    let text = format!(".:53 {{\n{bind}}}\n.:5353 {{\n    bind 10.0.0.9\n}}\n.:5300 {{\n{bind}}}\n");
    let forward = "    errors\n    forward . 10.96.77.7\n}\n";
    let added = format!(
        "# BEGIN lb-linker stub lb.internal\nlb.internal:53 lb.internal:5300 {{\n{bind}{forward}lb.internal:5353 {{\n    \
         bind 10.0.0.9\n{forward}# END lb-linker stub lb.internal\n"
    );
    assert_eq!(add(&text).unwrap(), format!("{text}{added}"));
    assert_eq!(add(&add(&text).unwrap()), add(&text));
    assert_eq!(remove(&add(&text).unwrap()), text);
    let text = ".:53 {\n    bind 10.0.0.1 10.0.0.2 {\n        except 10.0.0.2\n    }\n}\n";
    assert_eq!(Corefile::parse(NAME, text).unwrap().bind(), ["10.0.0.1"]);
}

#[test]
fn ports_that_arent_known_are_refused_with_the_reason() {
    for (text, place, reason) in [
        (".:{$PORT} {\n}\n", ":1:1: .:{$PORT}", "has an environment variable of CoreDNS"),
        (".:53 {\n}\n.:{%PORT%} {\n}\n", ":3:1: .:{$PORT}", "has an environment variable of CoreDNS"),
        (".:53 {\n}\n{$ADDRESS} {\n}\n", ":3:1: {$ADDRESS}", "has an environment variable of CoreDNS"),
        (".:53 {\n}\n{$ZONE}:5353 {\n}\n", ":3:1: {$ZONE}:5353", "has an environment variable of CoreDNS"),
        ("corp.example:{$PORT} {\n}\n", ":1:1: corp.example", "has an environment variable of CoreDNS"),
        (".:65536 {\n}\n", ":1:1: ", "a port is a number from 0 to 65535"),
        ("tls://.:853 {\n}\n", ":1:1: ", "no block answers by plain DNS"),
        (
            ".:53 {\n    view a\n    bind 10.0.0.1 10.0.0.2\n}\n.:53 {\n    bind 10.0.0.1\n}\n",
            ":1:1: ",
            "on this port, blocks with view",
        ),
    ] {
        let error = add(text).unwrap_err();
        assert!(error.starts_with(&format!("{NAME}{place}")) && error.contains(reason), "{text:?}: {error}");
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
        ("# END lb-linker stub\n# BEGIN lb-linker stub\n", ":1:1: one line"),
        ("# BEGIN lb-linker stub\n# BEGIN lb-linker stub\n# END lb-linker stub\n", ":2:1: one line"),
        (
            "# BEGIN lb-linker stub a\na {\n    forward . 10.0.0.1\n}\n# END lb-linker stub b\n",
            ":5:1: one line",
        ),
        // Blocks for another zone than that of the markers.
        (
            "# BEGIN lb-linker stub a\nb {\n    forward . 10.0.0.1\n}\n# END lb-linker stub a\n",
            ":1:1: only the block that lb-linker has added may stand between its marker lines",
        ),
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
            "# BEGIN lb-linker stub\na {\n    forward . 10.0.0.1\n}\nb {\n    bind lo\n    forward . 10.0.0.2\n}\n\
             # END lb-linker stub\n",
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
        let blocks = corefile.blocks_of(&forwarding().zones, Some(&[53])).into_iter();
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
        ("lb.internal:{$PORT} {\n forward . 192.0.2.1\n}\n", found(1, &["192.0.2.1"], false)),
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
