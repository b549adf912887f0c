use std::io::Write;
use std::path::Path;

use clap::Parser;

use crate::cli::flags::*;

#[derive(Parser)]
struct TestCli {
    #[command(flatten)]
    flags: Flags,
}

fn flags(arguments: &[&str]) -> Flags {
    TestCli::try_parse_from([&["lb-linker"], arguments].concat()).unwrap().flags
}

fn wrong(arguments: &[&str]) -> String {
    let Err(error) = TestCli::try_parse_from([&["lb-linker"], arguments].concat()) else {
        panic!("{arguments:?} should be refused")
    };
    error.to_string().lines().next().unwrap().to_owned()
}

#[test]
fn invalid_values_are_refused_with_a_hint() {
    for (arguments, sentence) in [
        (["--zone", "a..b"], "error: invalid value 'a..b' for '--zone <ZONE>': not a zone's name"),
        (["--zone", "."], "error: invalid value '.' for '--zone <ZONE>': not a zone's name"),
        (["--zone", ""], "error: invalid value '' for '--zone <ZONE>': not a zone's name"),
        (["--zone", "lb.internal,"], "error: invalid value '' for '--zone <ZONE>': not a zone's name"),
        (
            ["--zone", "10.in-addr.arpa"],
            "error: invalid value '10.in-addr.arpa' for '--zone <ZONE>': a reverse zone",
        ),
        (["--zone", "arpa"], "error: invalid value 'arpa' for '--zone <ZONE>': a reverse zone"),
        (["--zone", "*.a"], "error: invalid value '*.a' for '--zone <ZONE>': not a zone's name"),
        (["--upstream", "127.0.0.1:0"], "error: invalid value '127.0.0.1:0' for '--upstream"),
        (
            ["--listen", "dns:53"],
            "error: invalid value 'dns:53' for '--listen <ADDRESS:PORT>': not an address and port such as 127.0.0.1:53, [::1]:53 or :53",
        ),
        (
            ["--delete-delay", "ten"],
            "error: invalid value 'ten' for '--delete-delay <DURATION>': not a duration such as 0s, 90s, 10m or 1h30m",
        ),
        (
            ["--delete-delay", "-5s"],
            "error: invalid value '-5s' for '--delete-delay <DURATION>': not a duration such as 0s, 90s, 10m or 1h30m",
        ),
        (
            ["--target-namespace", "A_b"],
            "error: invalid value 'A_b' for '--target-namespace <NAME>': not a namespace's name: lower-case letters, digits and hyphens, 63 at most",
        ),
        (
            ["--instance", "a b"],
            "error: invalid value 'a b' for '--instance <NAME>': not the name of an instance: 1 to 317 letters, digits, hyphens, underscores, dots and slashes",
        ),
        (
            ["--upstream", "8.8.8"],
            "error: invalid value '8.8.8' for '--upstream <ADDRESS[:PORT]|tls://ADDRESS[%NAME][:PORT]|FILE|none>': neither an address such as 192.0.2.1 or 192.0.2.1:53, nor a file's path with a slash in it, nor \"none\"",
        ),
    ] {
        let said = wrong(&[&format!("{}={}", arguments[0], arguments[1])]);
        assert!(said.starts_with(sentence), "{said}");
    }
}

#[test]
fn short_forms_of_addresses_are_understood() {
    let flags = flags(&["--listen=:5353", "--upstream=192.0.2.1,[2001:db8::1]:54,2001:db8::2"]);
    assert_eq!(flags.listen, ["[::]:5353".parse().unwrap()]);
    let upstreams: Vec<String> = flags.upstreams().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(upstreams, ["192.0.2.1:53", "[2001:db8::1]:54", "[2001:db8::2]:53"]);
}

#[test]
fn resolv_conf_yields_name_servers_or_an_error() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let upstream = format!("--upstream={}", file.path().display());
    let error = flags(&[&upstream]).upstreams().unwrap_err().to_string();
    assert!(error.contains("names no nameserver") && error.contains("none"), "{error}");
    writeln!(file, "search example.\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions ndots:5 unheard-of\nnameserver what\nsurprise\nnameservers 192.0.2.9\nnameserver fe80::1%7")
        .unwrap();
    let servers = flags(&[&upstream]).upstreams().unwrap();
    let shown: Vec<String> = servers.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%7]:53"]);
    let missing = flags(&["--upstream=/nonexistent/resolv.conf"]).upstreams().unwrap_err().to_string();
    assert!(missing.starts_with("--upstream /nonexistent/resolv.conf: No such file"), "{missing}");
}

#[test]
fn own_listener_as_upstream_is_refused() {
    for (listen, upstream) in [
        ("127.0.0.1:5301", "127.0.0.1:5301"),
        (":5301", "127.0.0.1:5301"),
        ("0.0.0.0:53", "127.0.0.53"),
        (":53", "::1"),
        ("127.0.0.1:5301", "0.0.0.0:5301"),
        ("[::1]:53", "[::]"),
        (":5301", "[::]:5301"),
    ] {
        let flags = flags(&[&format!("--listen={listen}"), &format!("--upstream={upstream}")]);
        assert!(matches!(flags.upstreams(), Err(ConfigError::OwnListener { .. })), "{listen} {upstream}");
    }
    assert!(flags(&["--listen=:5301", "--upstream=127.0.0.1:5302"]).upstreams().is_ok());
    assert!(flags(&["--listen=:53", "--upstream=192.0.2.1"]).upstreams().is_ok());
    // `resolvers` is for commands without listeners, so it accepts an upstream with the address of `--listen`.
    let flags_of_scan = flags(&["--upstream=127.0.0.53,tls://192.0.2.1,none"]);
    assert_eq!(flags_of_scan.resolvers().unwrap(), ["127.0.0.53:53".parse().unwrap()]);
}

#[test]
fn nested_zones_and_repeated_addresses_are_refused() {
    let wrong = |arguments: &[&str]| flags(arguments).validate().unwrap_err().to_string();
    assert_eq!(
        wrong(&["--zone=lb.internal,a.lb.internal"]),
        "--zone a.lb.internal: it lies in --zone lb.internal, whose names it would hide"
    );
    assert_eq!(wrong(&["--zone=lb.internal,LB.internal."]), "--zone lb.internal is given twice");
    assert_eq!(wrong(&["--listen=:53,[::]:53"]), "--listen [::]:53 is given twice");
    assert!(flags(&["--zone=lb.internal,blb.internal", "--listen=:53,127.0.0.1:54"]).validate().is_ok());
}

#[test]
fn tls_upstream_needs_an_address_and_may_have_a_server_name() {
    for (text, shown) in [
        ("tls://192.0.2.1", Some("tls://192.0.2.1:853")),
        ("tls://192.0.2.1:8853", Some("tls://192.0.2.1:8853")),
        ("tls://192.0.2.1%dns.example.com", Some("tls://192.0.2.1%dns.example.com:853")),
        ("tls://192.0.2.1%dns.example.com:8853", Some("tls://192.0.2.1%dns.example.com:8853")),
        ("tls://2001:db8::1", Some("tls://[2001:db8::1]:853")),
        ("tls://[2001:db8::1]:8853", Some("tls://[2001:db8::1]:8853")),
        ("tls://2001:db8::1%dns.example.com", Some("tls://[2001:db8::1]%dns.example.com:853")),
        ("tls://[2001:db8::1]%dns.example.com:8853", Some("tls://[2001:db8::1]%dns.example.com:8853")),
        ("tls://dns.example.com", None),
        ("tls://192.0.2.1%", None),
        ("tls://192.0.2.1%not a name", None),
        ("tls://192.0.2.1:0", None),
        ("tls://192.0.2.1%dns.example.com:0", None),
        ("https://192.0.2.1", None),
    ] {
        let parsed = text.parse::<UpstreamSpec>();
        assert_eq!(parsed.as_ref().map(ToString::to_string).ok().as_deref(), shown, "{text}: {parsed:?}");
        // The displayed form can be parsed again.
        if let Ok(spec) = parsed {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }
}

#[test]
fn each_http_port_can_be_switched_off() {
    const FLAGS: [(&str, &str); 3] = [("metrics", "prometheus "), ("health", "health "), ("ready", "ready ")];
    let lines = |arguments: &[&str], plugin: &str| {
        let text = flags(arguments).built_in_corefile();
        text.lines().filter(|line| line.trim_start().starts_with(plugin)).count()
    };
    for upstream in ["none", "192.0.2.1"] {
        let upstream = format!("--upstream={upstream}");
        for (flag, plugin) in FLAGS {
            let flag = format!("--{flag}-listen=none");
            for (_, other) in FLAGS {
                let is_there = lines(&[&upstream, &flag], other) > 0;
                assert_eq!(is_there, other != plugin, "{other} with {flag}");
            }
        }
    }
    assert_eq!(flags(&["--admin-listen=none"]).admin_listen.address(), None);
    assert!(flags(&["--admin-listen=none"]).effective().contains(&("--admin-listen", "none".to_owned())));
    assert!(
        wrong(&["--metrics-listen=off"])
            .ends_with("not an address and port such as 127.0.0.1:9153, [::1]:9153 or :9153, nor \"none\"")
    );
    assert!(wrong(&["--admin-listen=:8053"]).contains("not a loopback address and port such as"));
}

#[test]
fn http_ports_are_for_this_machine_outside_a_pod() {
    let lines = |arguments: &[&str], in_pod: bool| {
        let text = flags(arguments).built_in_corefile_in(in_pod);
        let words = ["prometheus ", "health ", "ready "];
        let is_http = |line: &&str| words.iter().any(|word| line.starts_with(word));
        text.lines().map(str::trim).filter(is_http).map(ToOwned::to_owned).collect::<Vec<String>>()
    };
    let given = ["--upstream=none", "--metrics-listen=:9154", "--ready-listen=192.0.2.1:8181"];
    for (in_pod, ip) in [(true, "[::]"), (false, "127.0.0.1")] {
        for arguments in [
            &["--upstream=none"][..],
            &["--upstream=none", "--manifests=d"],
            &["--upstream=none", "--kubeconfig=k"],
        ] {
            let expected =
                [format!("health {ip}:8080 {{"), format!("ready {ip}:8181"), format!("prometheus {ip}:9153")];
            assert_eq!(lines(arguments, in_pod), expected);
        }
        let expected =
            [format!("health {ip}:8080 {{"), "ready 192.0.2.1:8181".into(), "prometheus [::]:9154".into()];
        assert_eq!(lines(&given, in_pod), expected);
    }
}

#[test]
fn zones_with_names_of_the_cluster_are_refused() {
    let wrong = |arguments: &[&str]| flags(arguments).validate().unwrap_err().to_string();
    for (zone, verb) in [("cluster.local", "equals"), ("LOCAL.", "holds"), ("svc.cluster.local", "lies in")] {
        let name = zone.trim_end_matches('.').to_lowercase();
        let expected = format!(
            "--zone {name} {verb} cluster.local, the domain of the cluster's own names (--cluster-domain), and would hide \
             them: give a zone outside of it"
        );
        assert_eq!(wrong(&[&format!("--zone=lb.internal,{zone}")]), expected);
    }
    assert!(wrong(&["--cluster-domain=internal"]).starts_with("--zone lb.internal lies in internal, "));
    assert!(flags(&["--zone=cluster.local", "--cluster-domain=corp.example"]).validate().is_ok());
    // The Corefile has the zones.
    assert!(flags(&["--corefile=f", "--cluster-domain=internal"]).validate().is_ok());
}

#[test]
fn process_that_only_reads_has_the_instance_of_run() {
    let instance = |arguments: &[&str]| flags(arguments).read_only().policy(String::new()).instance;
    assert_eq!(instance(&[]).as_deref(), Some("lb-linker/lb-linker"));
    assert_eq!(instance(&["--leader-election=lease"]).as_deref(), Some("external-targets/lb-linker"));
    assert_eq!(instance(&["--instance=a/b"]).as_deref(), Some("a/b"));
    assert_eq!(instance(&["--sync=off"]), None);
    assert_eq!(instance(&["--manifests=d"]), None);
}

#[test]
fn upstream_none_excludes_other_upstreams() {
    assert!(flags(&["--upstream=none"]).upstreams().unwrap().is_empty());
    assert!(matches!(flags(&["--upstream=none,192.0.2.1"]).upstreams(), Err(ConfigError::NoneAndOthers)));
}

#[test]
fn manifests_and_a_cluster_exclude_each_other() {
    assert!(wrong(&["--manifests=d", "--kubeconfig=k"]).contains("cannot be used with"));
    assert!(wrong(&["--output=d"]).contains("required"));
}

#[test]
fn output_into_the_manifests_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let [real, alias, other] = ["real", "alias", "other"].map(|name| parent.path().join(name));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &alias).unwrap();
    let validated = |manifests: &Path, output: &Path| {
        let [manifests, output] = [manifests, output].map(|path| path.to_str().unwrap());
        flags(&["--manifests", manifests, "--output", output]).validate().map_err(|error| error.to_string())
    };
    for (manifests, output) in [(&real, &real), (&real, &alias), (&alias, &real), (&other, &other)] {
        let error = validated(manifests, output).unwrap_err();
        assert!(
            error
                .starts_with(&format!("--output {}: this is the directory of --manifests", output.display()))
        );
    }
    assert_eq!(validated(&real, &other), Ok(()));
    assert_eq!(validated(&real, &real.join("out")), Ok(()));
}

#[test]
fn missing_upstream_is_noticed() {
    let notice = |arguments: &[&str]| flags(arguments).upstream_notice().is_some();
    assert!(notice(&["--upstream", "none"]));
    assert!(!notice(&["--upstream", "192.0.2.1"]));
    assert!(!notice(&["--corefile", "f"]));
}
