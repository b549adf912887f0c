//! The command line.

use std::process::Output;

use nix::sys::signal::Signal;

use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::{Linker, cluster_errors, run_to_end, run_to_end_with};
use crate::harness::port::HeldPort;
use crate::harness::{cluster_with_target, eventually, permission};

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn bad_input_gives_one_sentence_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let broken = file("broken", "apiVersion: v1\nclusters: [\n");
    let empty = file("empty", "{}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let none: &[&str] = &["--upstream", "none"];
    let broken_manifests = tempfile::tempdir().unwrap();
    std::fs::write(broken_manifests.path().join("web.yaml"), "apiVersion: v1\nkind: Service\nmetadata: [\n")
        .unwrap();
    let manifests = ["--manifests", directory.path().to_str().unwrap(), "--upstream", "none"];
    let other_ports = ["--listen", "127.0.0.1:0", "--metrics-listen", "none"];
    for (args, sentence) in [
        ([none, &["--zone", "a..b"]].concat(), "'a..b' for '--zone <ZONE>': not a zone's name".to_owned()),
        (
            [none, &["--zone", "svc.cluster.local"]].concat(),
            "lb-linker: --zone svc.cluster.local lies in cluster.local, the domain of the cluster's own"
                .to_owned(),
        ),
        ([none, &["--delete-delay", "soon"]].concat(), "'soon' for '--delete-delay <DURATION>'".to_owned()),
        (
            [none, &["--kubeconfig", "/nonexistent"]].concat(),
            "lb-linker: kubeconfig /nonexistent: No such file".to_owned(),
        ),
        ([none, &["--kubeconfig", &broken]].concat(), format!("lb-linker: kubeconfig {broken}:2:")),
        (
            [none, &["--kubeconfig", &empty]].concat(),
            format!("lb-linker: kubeconfig {empty}: it has no current-context"),
        ),
        (
            [none, &["--manifests", "/nonexistent"]].concat(),
            "lb-linker: --manifests /nonexistent: No such file".to_owned(),
        ),
        (
            [&manifests[..], &["--output", "/proc/self/fdinfo"]].concat(),
            "lb-linker: --output /proc/self/fdinfo: ".to_owned(),
        ),
        (
            [&manifests[..], &["--listen", &taken]].concat(),
            format!("lb-linker: --listen: can't listen on {taken} by TCP: Address already in use"),
        ),
        (
            [&manifests[..], &other_ports, &["--ready-listen", "none", "--health-listen", &taken]].concat(),
            format!("lb-linker: --health-listen: can't listen on {taken} by TCP: Address already in use"),
        ),
        (
            [&manifests[..], &other_ports, &["--health-listen", "none", "--ready-listen", &taken]].concat(),
            format!("lb-linker: --ready-listen: can't listen on {taken} by TCP: Address already in use"),
        ),
        (
            [&manifests[..], &["--admin-listen", &taken]].concat(),
            format!("lb-linker: --admin-listen: can't listen on {taken} by TCP: Address already in use"),
        ),
        (
            [&manifests[..], &["--output", &empty]].concat(),
            format!("lb-linker: --output {empty}: it isn't a directory"),
        ),
        (
            vec!["--upstream", "127.0.0.1:5301", "--listen", "127.0.0.1:5301"],
            "is lb-linker's own --listen 127.0.0.1:5301".to_owned(),
        ),
        (
            vec!["--manifests", broken_manifests.path().to_str().unwrap(), "--upstream", "none"],
            format!("lb-linker: {}:3:", broken_manifests.path().join("web.yaml").display()),
        ),
        (vec!["--upstream", "/nonexistent"], "lb-linker: --upstream /nonexistent: No such file".to_owned()),
    ] {
        let output = run_to_end(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(&sentence), "{args:?}: {}", stderr(&output));
        let lines =
            stderr(&output).lines().filter(|line| !line.is_empty() && !line.contains("--help")).count();
        assert_eq!(lines, 1, "one sentence and nothing else: {}", stderr(&output));
    }
}

#[test]
fn wrong_format_is_told_with_the_flag_as_typed() {
    for command in ["links", "names", "scan"] {
        let output = run_to_end([command, "-o", "wid"]);
        let expected = "error: invalid value 'wid' for '-o <FORMAT>'";
        assert!(output.status.code() == Some(2) && stderr(&output).starts_with(expected), "{output:?}");
    }
}

#[test]
fn kubeconfig_is_read_as_kubectl_does() {
    let directory = tempfile::tempdir().unwrap();
    let good = directory.path().join("good");
    let closed = HeldPort::take().unwrap();
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: '{}'}}}}]\ncontexts: [{{name: lab, context: {{cluster: c}}}}]\n\
         current-context: lab\n",
        closed.local()
    );
    std::fs::write(&good, text).unwrap();
    let list = format!("{}:{}", directory.path().join("missing").display(), good.display());
    let variables = [("KUBECONFIG", &*list)];
    let output = run_to_end_with(&variables, ["check", "--upstream", "none"]);
    let server = format!("API server http://{} (context \"lab\" of {})", closed.local(), good.display());
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(stdout(&output).lines().any(|line| line == server), "{}", stdout(&output));
    let output = run_to_end_with(&variables, ["check", "--cluster", "--upstream", "none"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let errors = cluster_errors(&output);
    let expected = format!("{server}: can't review the permission to list services in all namespaces: ");
    assert!(errors.contains(&expected) && errors.contains("Connection refused"), "{errors}");
    assert!(errors.contains("look whether it runs, and whether the kubeconfig"), "{errors}");
    assert_eq!(stderr(&output), "");
    let output = run_to_end_with(&variables, ["check", "--upstream", "none", "--context", "prod"]);
    let expected = format!("lb-linker: kubeconfig {list}: it has no context \"prod\"; it has \"lab\"\n");
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), expected));
}

#[test]
fn check_prints_the_flags_in_force_and_opens_no_port() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let manifests = directory.path().to_str().unwrap();
    let args = [
        "check",
        "--manifests",
        manifests,
        "--upstream",
        "192.0.2.1",
        "--listen",
        &taken,
        "--delete-delay",
        "90s",
    ];
    let output = run_to_end(args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let port = taken.rsplit_once(':').unwrap().1;
    for line in [
        "--delete-delay     1m30s",
        &format!("lb.internal:{port} {{"),
        &format!(".:{port} {{"),
        "    bind 127.0.0.1",
        "    forward . 192.0.2.1:53 {",
        "    lb_linker",
    ] {
        assert!(stdout(&output).lines().any(|found| found == line), "{line} in {}", stdout(&output));
    }
}

#[test]
fn corefile_in_deploy_is_valid() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/corefile/configmap.yaml"));
    let map: k8s_openapi::api::core::v1::ConfigMap = serde_saphyr::from_str(&text.unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    // Some machines have no resolv.conf.
    let resolv_conf = directory.path().join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 192.0.2.53\n").unwrap();
    let text = &map.data.unwrap()["Corefile"];
    std::fs::write(&corefile, text.replace("/etc/resolv.conf", resolv_conf.to_str().unwrap())).unwrap();
    let output = run_to_end(["check", "--corefile", corefile.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("    lb_linker\n"), "{}", stdout(&output));
}

#[test]
fn variable_of_a_corefile_isnt_reported_as_mistyped() {
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    std::fs::write(&corefile, "{$LB_LINKER_ZONE1} {\n    whoami\n}\n").unwrap();
    let check = |variables: &[(&str, &str)]| {
        run_to_end_with(variables, ["check", "--corefile", corefile.to_str().unwrap()])
    };
    let output = check(&[("LB_LINKER_ZONE1", "a.example")]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(stdout(&output).contains("\na.example {\n"), "{}", stdout(&output));
    let output = check(&[("LB_LINKER_ZONE1", "a.example"), ("LB_LINKER_ZONES", "b.example")]);
    let expected =
        "lb-linker: the environment variable LB_LINKER_ZONES has no effect; did you mean LB_LINKER_ZONE?\n";
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(2), expected));
}

#[test]
fn check_names_missing_files_of_a_corefile() {
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    // What lb-linker can start without is a warning.
    for (code, line, sentence) in [
        (0, "hosts names", "2:7: the hosts file names doesn't exist yet"),
        (0, "root /nonexistent", "2:6: the directory \"/nonexistent\" doesn't exist yet"),
        (
            0,
            "loadbalance weighted weights",
            "2:22: weights can't be read: No such file or directory (os error 2);",
        ),
        (2, "forward . /nonexistent/resolv.conf", "2:11: "),
        (0, "prometheus {\ntls /dev/null\n}", "3:5: /dev/null: there is no tls_server_config"),
    ] {
        std::fs::write(&corefile, format!(". {{\n{line}\nwhoami\n}}\n")).unwrap();
        let output = run_to_end(["check", "--corefile", corefile.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
        let kind = if code == 0 { "warning: " } else { "" };
        let expected = format!("lb-linker: {kind}{}:{sentence}", corefile.display());
        assert!(stderr(&output).starts_with(&expected), "{line}: {}", stderr(&output));
    }
}

#[test]
fn corefile_error_is_reported_with_its_position() {
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    let (path, manifests) = (corefile.to_str().unwrap(), directory.path().to_str().unwrap());
    for (text, sentence) in [
        (None, " the Corefile can't be read: No such file or directory (os error 2)"),
        (Some(". {\n    forward\n}\n"), "2:5: forward needs"),
        (Some(". {\n    forwrad . 192.0.2.1\n}\n"), "2:5: there is no plugin \"forwrad\"; is it forward?"),
        (Some(". {\n    whoami\n"), "1:3: this { isn't closed"),
        (
            Some("lb.internal:5301 {\n    lb_linker lb.internl\n}\n"),
            "2:15: lb.internl lies outside of the zones of this block (lb.internal), so no query",
        ),
        (
            Some(".:5301 {\n    lb_linker local\n}\n"),
            "2:5: the zone local holds cluster.local, the domain of",
        ),
        (Some("tls://. {\n    tls cert.pem key.pem\n    whoami\n}\n"), "2:9: "),
        (
            Some(". {\n    prometheus {\n        tls w.yml\n    }\n    whoami\n}\n"),
            "3:13: w.yml: can't be read: ",
        ),
    ] {
        if let Some(text) = text {
            std::fs::write(&corefile, text).unwrap();
        }
        for command in ["run", "check"] {
            let output = run_to_end([command, "--manifests", manifests, "--corefile", path]);
            assert_eq!(output.status.code(), Some(2), "{text:?}: {}", stderr(&output));
            let said = stderr(&output);
            assert!(said.starts_with(&format!("lb-linker: {path}:{sentence}")), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}

#[test]
fn check_reports_all_errors_of_a_corefile() {
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    let (path, manifests) = (corefile.to_str().unwrap(), directory.path().to_str().unwrap());
    let text = "lb.internal {\n    lb_linker {\n        ttl 5s\n    }\n    route53 a.b.:Z1\n}\n\
                (twice) {\n    errors x\n}\na.example {\n    import twice\n}\n. {\n    import twice\n    whoami x\n}\n";
    std::fs::write(&corefile, text).unwrap();
    let sentences = [
        "3:13: \"5s\" isn't a number",
        "5:5: CoreDNS's plugin route53 isn't supported; forward",
        "8:12: \"x\" isn't stdout",
        "15:12: whoami takes no arguments",
    ];
    for (command, number) in [("check", sentences.len()), ("run", 1)] {
        let output = run_to_end([command, "--manifests", manifests, "--corefile", path]);
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert_eq!(said.lines().count(), number, "{said}");
        for (line, sentence) in said.lines().zip(sentences) {
            assert!(line.starts_with(&format!("lb-linker: {path}:{sentence}")), "{said}");
        }
    }
}

#[test]
fn wrong_value_of_a_variable_names_the_variable() {
    let variables = [("LB_LINKER_METRICS_LISTEN", "off")];
    let said = stderr(&run_to_end_with(&variables, ["check", "--upstream", "none"]));
    let flag =
        "error: invalid value 'off' for '--metrics-listen <ADDRESS:PORT|none>': not an address and port";
    let expected = format!("lb-linker: the environment variable LB_LINKER_METRICS_LISTEN is wrong:\n{flag}");
    assert!(said.starts_with(&expected), "{said}");
    // The flag has precedence.
    let said = stderr(&run_to_end_with(&variables, ["check", "--metrics-listen=off"]));
    assert!(said.starts_with(flag), "{said}");
}

#[test]
fn flags_and_variables_beside_a_corefile_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    std::fs::write(&corefile, ". {\n whoami\n}\n").unwrap();
    let path = corefile.to_str().unwrap();
    let given = ["--corefile", path];
    let zone = "--zone (in the Corefile: lb_linker ZONE)";
    let listen = "the variable LB_LINKER_LISTEN (in the Corefile: the port of each block, as in .:53, and bind ADDRESS)";
    let rest = ": write it there, and leave the";
    for (variables, args, expected) in [
        (&[][..], &["--zone", "lb.internal"][..], format!("{zone}{rest} flag out")),
        (&[("LB_LINKER_LISTEN", ":54")], &[], format!("{listen}{rest} variable out")),
        (
            &[("LB_LINKER_LISTEN", ":54")],
            &["--zone", "lb.internal"],
            format!("{zone} and {listen}{rest} flag out"),
        ),
    ] {
        for command in [&["check"][..], &["run"], &[], &["links"]] {
            let output = run_to_end_with(variables, [command, &given, args].concat());
            assert_eq!(output.status.code(), Some(2), "{command:?}: {}", stderr(&output));
            assert_eq!(stderr(&output), format!("lb-linker: --corefile can't be used with {expected}\n"));
        }
    }
    // The Corefile, too, may be named by a variable.
    let output = run_to_end_with(&[("LB_LINKER_COREFILE", path)], ["check", "--ready-listen", "none"]);
    let said =
        "lb-linker: --corefile can't be used with --ready-listen (in the Corefile: ready ADDRESS:PORT)";
    assert!(stderr(&output).starts_with(said), "{}", stderr(&output));
    assert!(run_to_end([&["check"], &given[..]].concat()).status.success());
}

#[tokio::test]
async fn without_other_ports_only_dns_listens() {
    let directory = tempfile::tempdir().unwrap();
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
                   spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{hostname: a.example.com}]}}}";
    std::fs::write(directory.path().join("web.yaml"), service).unwrap();
    let mut linker = Linker::start_without_http(directory.path());
    answers(linker.dns, "web.shop.lb.internal. CNAME", "a.example.com.").await;
    let listening = listening_ports(linker.id());
    assert_eq!(listening, [linker.dns.port()], "{:#?}", linker.log());
    assert_eq!(linker.logged("status page"), 0, "{:#?}", linker.log());
    assert!(linker.stop().success());
}

/// Returns the TCP ports on which a process listens.
fn listening_ports(process: u32) -> Vec<u16> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let sockets: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let mut ports = Vec::new();
    for family in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{process}/net/{family}")).unwrap();
        for line in table.lines().skip(1) {
            // proc_net_tcp: the local address, the state (0A is LISTEN) and the inode.
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[3] == "0A" && sockets.contains(&format!("socket:[{}]", fields[9])) {
                let port = fields[1].rsplit_once(':').unwrap().1;
                ports.push(u16::from_str_radix(port, 16).unwrap());
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[test]
fn check_finds_two_flags_with_the_same_address() {
    let arguments =
        ["check", "--upstream", "none", "--listen", "127.0.0.1:5360", "--metrics-listen", "127.0.0.1:5360"];
    let output = run_to_end(arguments);
    let sentence = "lb-linker: --metrics-listen: can't listen on 127.0.0.1:5360 by TCP: Address already in use (os \
                    error 98); another program or another listener of lb-linker uses it: give another address or port\n";
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(2), sentence));
}

#[test]
fn check_finds_what_run_refuses_without_a_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.yaml");
    std::fs::write(&file, "apiVersion: v1\nkind: Service\nmetadata: [\n").unwrap();
    let output =
        run_to_end(["check", "--upstream", "none", "--manifests", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(&format!("{}:3:", file.display())), "{}", stderr(&output));
    std::fs::remove_file(&file).unwrap();
    let with_output = |path: &str, variables: &[(&str, &str)]| {
        let manifests = directory.path().to_str().unwrap();
        let args = ["check", "--upstream", "none", "--manifests", manifests, "--output", path];
        run_to_end_with(variables, args)
    };
    let output = with_output("/dev/null/out", &[]);
    assert!(stderr(&output).starts_with("lb-linker: --output /dev/null: "), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
    let free = directory.path().join("out");
    for (filter, expected) in [
        ("lb_linker=loud", "lb-linker: RUST_LOG: "),
        ("lb_linkr=debug", "lb-linker: RUST_LOG \"lb_linkr=debug\" has no level for lb-linker"),
    ] {
        let output = with_output(free.to_str().unwrap(), &[("RUST_LOG", filter)]);
        assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(2));
    }
    for variables in [&[("RUST_LOG", "hyper=debug")][..], &[]] {
        let output = with_output(free.to_str().unwrap(), variables);
        assert!(output.status.success() && !free.exists(), "{}", stderr(&output));
    }
    std::fs::write(&file, "apiVersion: v1\nkind: Servce\nmetadata: {name: web}\n").unwrap();
    let output = run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let sentence =
        format!("lb-linker: {}:2:7: kind \"Servce\" is unknown; did you mean Service?\n", file.display());
    assert_eq!(stderr(&output), sentence);
    let annotated = "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {linker.hsj.com/ttl: 5m, \
                     linker.hsj.com/hostnam: a.lb.internal}}\nspec: {type: LoadBalancer}\n";
    std::fs::write(&file, annotated).unwrap();
    let output = run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    for ignored in ["annotation linker.hsj.com/ttl \"5m\"", "the annotation \"linker.hsj.com/hostnam\""] {
        assert!(printed.contains(&format!("\nService default/web: {ignored} is ignored: ")), "{printed}");
    }
    assert!(output.status.success(), "{}", stderr(&output));
}

#[tokio::test]
async fn check_cluster_reports_every_missing_permission() {
    let (plane, cluster, target) = cluster_with_target().await;
    let check = |namespace: &str, account: &str| {
        let kubeconfig = plane.kubeconfig_for_service_account(namespace, account);
        let kubeconfig = kubeconfig.to_str().unwrap();
        run_to_end([
            "check",
            "--cluster",
            "--upstream",
            "none",
            "--sync",
            "on",
            "--kubeconfig",
            kubeconfig,
            "--target-namespace",
            &target,
        ])
    };
    // The API server applies the new permissions a moment later.
    let complete = || async {
        let output = check("lb-linker", "lb-linker");
        (output.status.code() == Some(0)).then_some(output)
    };
    let output = eventually("all permissions", complete).await;
    let granted = "yes  list services in all namespaces";
    assert!(stdout(&output).lines().any(|line| line.starts_with(granted)), "{}", stdout(&output));
    assert!(!stdout(&output).lines().any(|line| line.starts_with("NO  ")), "{}", stdout(&output));
    let absent = "StableNames aren't used, because their CRD isn't installed: deploy/crd/";
    assert!(stdout(&output).lines().any(|line| line == absent), "{}", stdout(&output));

    let namespace = cluster.create_namespace("rightless").await;
    plane.create_service_account(&namespace, "nobody");
    let subject = format!("--serviceaccount={namespace}:nobody");
    plane.kubectl(&["create", "clusterrolebinding", &namespace, "--clusterrole=lb-linker", &subject]);
    let account = format!("--as=system:serviceaccount:{namespace}:nobody");
    permission(plane, true, &["list", "services", "-A", &account]).await;
    let output = check(&namespace, "nobody");
    assert_eq!(output.status.code(), Some(1));
    for (verb, resource) in ["services", "endpointslices"]
        .into_iter()
        .flat_map(|kind| ["create", "patch", "delete"].map(|verb| (verb, kind)))
    {
        let sentence = format!("the permission to {verb} {resource} in namespace {target} is missing");
        assert!(cluster_errors(&output).contains(&sentence), "{}", stdout(&output));
    }
    // The permission to read Services in all namespaces doesn't include EndpointSlices.
    assert_eq!(cluster_errors(&output).lines().count(), 8, "{}", stdout(&output));
    assert_eq!(stderr(&output), "", "the report is one stream");
}

#[test]
fn check_cluster_reports_a_bad_token_in_one_sentence() {
    let plane = ControlPlane::shared();
    let directory = tempfile::tempdir().unwrap();
    let admin = std::fs::read_to_string(plane.admin_kubeconfig()).unwrap();
    let mut config: serde_json::Value = serde_saphyr::from_str(&admin).unwrap();
    for user in config["users"].as_array_mut().unwrap() {
        user["user"] = serde_json::json!({"token": "outdated"});
    }
    let kubeconfig = directory.path().join("config");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    for sync in ["on", "plan"] {
        let kubeconfig = kubeconfig.to_str().unwrap();
        let output =
            run_to_end(["--kubeconfig", kubeconfig, "check", "--cluster", "--upstream=none", "--sync", sync]);
        assert_eq!(output.status.code(), Some(1));
        let errors = cluster_errors(&output);
        assert!(errors.contains("the API server doesn't accept lb-linker's credentials (401"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(!stdout(&output).contains("Status"), "{}", stdout(&output));
    }
}

#[tokio::test]
async fn check_cluster_dry_runs_an_external_target() {
    let (plane, cluster, target) = cluster_with_target().await;
    let check = |namespace: &str, account: &str, args: &[&str]| {
        let kubeconfig = plane.kubeconfig_for_service_account(namespace, account);
        let common =
            ["check", "--cluster", "--upstream", "none", "--kubeconfig", kubeconfig.to_str().unwrap()];
        let sync: &[&str] = if args.contains(&"--sync") { &[] } else { &["--sync", "on"] };
        run_to_end([&common[..], sync, args].concat())
    };
    // Permissions may exist for a missing namespace, for example by a ClusterRoleBinding.
    let home = cluster.create_namespace("everywhere").await;
    plane.create_service_account(&home, "admin");
    let subject = format!("--serviceaccount={home}:admin");
    plane.kubectl(&["create", "clusterrolebinding", &home, "--clusterrole=cluster-admin", &subject]);
    let account = format!("--as=system:serviceaccount:{home}:admin");
    permission(plane, true, &["create", "services", "-A", &account]).await;
    let nowhere = format!("{target}-nowhere");
    let sentence = format!(
        "the target namespace {nowhere} doesn't exist: kubectl apply -f deploy/targets/, with {nowhere} in \
         place of external-targets in their files"
    );
    for sync in ["on", "plan"] {
        let output = check(&home, "admin", &["--target-namespace", &nowhere, "--sync", sync]);
        assert!(cluster_errors(&output).starts_with(&sentence), "{sync}: {}", stdout(&output));
        assert_eq!(output.status.code(), Some(1));
    }

    let full = cluster.create_namespace("full").await;
    crate::harness::grant(plane, &full);
    plane.kubectl(&["create", "quota", "none", "--hard=services=0", "-n", &full]);
    // Sets the status like the quota controller, which doesn't run here.
    let status = r#"{"status": {"hard": {"services": "0"}, "used": {"services": "0"}}}"#;
    let patch = ["patch", "quota", "none", "--subresource=status", "--type=merge", "-p", status, "-n", &full];
    plane.kubectl(&patch);
    let sentence = format!("the target namespace {full} takes no external targets: ");
    let refused = || async {
        let output = check("lb-linker", "lb-linker", &["--target-namespace", &full]);
        (output.status.code() == Some(1) && cluster_errors(&output).starts_with(&sentence)).then_some(output)
    };
    let output = eventually("the quota to be in force", refused).await;
    assert_eq!(cluster_errors(&output).lines().count(), 1, "{}", stdout(&output));
    // With `--sync plan`, only a missing namespace counts.
    let plan = ["--target-namespace", &full, "--sync", "plan"];
    assert_eq!(check("lb-linker", "lb-linker", &plan).status.code(), Some(0));
    for namespace in [&full, &target] {
        let services = cluster.services(namespace).list(&Default::default()).await.unwrap();
        assert!(services.items.is_empty(), "nothing is left behind: {services:#?}");
    }
}

#[tokio::test]
async fn signals_cause_a_clean_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut linker =
            Linker::start(["--upstream", "none", "--manifests", directory.path().to_str().unwrap()]);
        linker.ready().await;
        linker.signal(signal);
        assert!(linker.ended().await.success());
        linker.line("INFO stopped").await;
    }
}

#[tokio::test]
async fn log_format_json_writes_json_lines() {
    let directory = tempfile::tempdir().unwrap();
    // The harness finds the ports by text search, which also works in JSON.
    let args =
        ["--upstream", "none", "--log-format", "json", "--manifests", directory.path().to_str().unwrap()];
    let linker = Linker::start(args);
    linker.ready().await;
    for line in linker.log() {
        // The shape of the lines of the plugins log and errors.
        let event: std::collections::BTreeMap<String, String> = serde_json::from_str(&line).unwrap();
        assert_eq!(event.keys().collect::<Vec<_>>(), ["level", "message", "time"], "{line}");
    }
}

#[tokio::test]
async fn json_lines_about_objects_have_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let objects = "{apiVersion: v1, kind: Service, spec: {type: LoadBalancer}, \
                   metadata: {name: web, namespace: shop, annotations: {linker.hsj.com/ttl: soon}}}
---
{apiVersion: linker.hsj.com/v1alpha1, kind: StableName, metadata: {name: db, namespace: shop}, \
 spec: {sources: [{name: seoul, service: {name: db}}]}}
";
    std::fs::write(directory.path().join("objects.yaml"), objects).unwrap();
    let args = ["--upstream", "none", "--manifests", directory.path().to_str().unwrap(), "--log-format"];
    let [text, json] = ["text", "json"].map(|format| Linker::start([&args[..], &[format]].concat()));
    for (about, field, name) in
        [("Service shop/web: ", "service", "web"), ("StableName shop/db: ", "stable_name", "db")]
    {
        let line = json.line(about).await;
        let event: std::collections::BTreeMap<String, String> = serde_json::from_str(&line).unwrap();
        assert_eq!((&*event["namespace"], &*event[field]), ("shop", name), "{line}");
        assert_eq!(event.len(), 5, "{line}");
        let line = text.line(about).await;
        assert!(line.ends_with(&format!(" WARN {}", event["message"])), "{line}");
    }
}

#[test]
fn help_shows_defaults_and_environment_variables() {
    let help = stdout(&run_to_end(["--help"]));
    for part in [
        "--delete-delay <DURATION>",
        "[default: 10m]",
        "[env: LB_LINKER_DELETE_DELAY=]",
        "check",
        "--zone <ZONE>",
    ] {
        assert!(help.contains(part), "{part:?} in {help}");
    }
    assert_eq!(run_to_end(["--version"]).status.code(), Some(0));
}

#[test]
fn flags_may_stand_before_the_subcommand() {
    let output = run_to_end(["--zone", "a.example", "--upstream=none", "check", "--selection", "annotated"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(printed.contains("a.example:53 {") && printed.contains("annotated"), "{printed}");
    let help = stdout(&run_to_end(["--help"]));
    assert!(help.contains("Usage: lb-linker [OPTIONS] [COMMAND]"), "{help}");
}

#[test]
fn completion_knows_commands_and_flags() {
    let script = stdout(&run_to_end(["completion", "bash"]));
    for word in ["links", "takeover", "query", "--target-namespace", "--watch"] {
        assert!(script.contains(word), "{word}");
    }
    // bash reads the script, and completes `link`.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("completion");
    std::fs::write(&file, script).unwrap();
    let try_it = "set -eu; . \"$0\"; COMP_WORDS=(lb-linker link); COMP_CWORD=1; _lb__linker lb-linker link lb-linker; echo \
                  \"${COMPREPLY[@]}\"";
    let output = std::process::Command::new("bash").args(["-c", try_it]).arg(&file).output().unwrap();
    assert_eq!(stdout(&output), "links\n", "{}", stderr(&output));
}

#[tokio::test]
async fn query_prints_the_answer_of_a_server() {
    let manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: LoadBalancer}\n\
                    status: {loadBalancer: {ingress: [{hostname: a.example.com}]}}\n";
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("web.yaml"), manifest).unwrap();
    let linker = Linker::start(["--manifests", directory.path().to_str().unwrap(), "--upstream", "none"]);
    linker.ready().await;
    let server = format!("@{}", linker.dns);
    let query = |arguments: &[&str]| run_to_end([&["query"], arguments].concat());

    // The program waits for an answer for 3 s only.
    let answer = async |arguments: &[&str]| {
        let look = || async { Some(query(arguments)).filter(|output| output.status.code() == Some(0)) };
        eventually("an answer", look).await
    };
    let output = answer(&["web-default.lb.internal", &server, "cname"]).await;
    let text = stdout(&output);
    assert!(text.starts_with(";; NOERROR, flags aa rd; from 127.0.0.1:"), "{text}");
    assert!(text.ends_with("web-default.lb.internal. 5 IN CNAME a.example.com.\n"), "{text}");
    let output = answer(&["+short", "web-default.lb.internal", &server, "cname"]).await;
    assert_eq!(stdout(&output), "a.example.com.\n");
    let output = query(&[&server, "web-default.lb.internal", "+trace"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("\"+trace\" isn't known"), "{}", stderr(&output));
    let output = answer(&[&server, "gone.lb.internal"]).await;
    assert!(stdout(&output).starts_with(";; NXDOMAIN"), "{}", stdout(&output));

    let output = query(&[&server]);
    assert_eq!(output.status.code(), Some(2));
    let expected = "lb-linker: a name is missing, such as my-sample-lb-default.lb.internal\n";
    assert_eq!(stderr(&output), expected);
    let closed = HeldPort::take().unwrap();
    let output = query(&[&format!("@{}", closed.local()), "web-default.lb.internal"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with(&format!("lb-linker: {}: Connection refused", closed.local())));
}
