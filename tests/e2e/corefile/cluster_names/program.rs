//! `lb-linker compare`, with the names of a generated cluster.

use std::process::Output;

use super::*;
use crate::harness::linker::run_to_end;
use crate::harness::port::HeldPort;

/// Runs the command on two servers.
async fn compare_by_command(
    plane: &ControlPlane,
    servers: [String; 2],
    more: &[&str],
) -> (Option<i32>, String, String) {
    let [a, b] = servers;
    let kubeconfig = plane.admin_kubeconfig().display().to_string();
    let mut arguments =
        ["compare", "--kubeconfig", &kubeconfig, "--server", &a, "--server", &b].map(str::to_owned).to_vec();
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    let run = tokio::task::spawn_blocking(move || run_to_end(arguments)).await;
    let Output { status, stdout, stderr } = run.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

async fn start(plane: &ControlPlane, upstreams: &Upstreams, program: Program, options: &str) -> Server {
    let site = CorefileDir::new(&COREFILE.replace("OPTIONS", options), &[]);
    let site = upstreams.name(site).with("CLUSTER_CONFIG", plane.admin_kubeconfig().display());
    Server::start(program, &site).await
}

const FAST: [&str; 2] = ["--rate", "5000"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compare_counts_differences_between_two_servers() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 2);
    let plane = ControlPlane::start(dual_stack());
    let client = plane.admin_client().await;
    let mut world = World::default();
    World::write_namespaces(&client).await;
    world.add(&client, 60, &mut random).await;
    let upstreams = Upstreams::start().await;
    let servers = Servers::start(&plane, &upstreams, "pods verified").await;
    servers.wait_for_changes(&client, 1).await;
    let addresses = || [&servers.coredns, &servers.subject].map(|server| server.dns().to_string());

    let (code, found, errors) = compare_by_command(&plane, addresses(), &FAST).await;
    assert_eq!((code, &*errors), (Some(0), ""), "{found}");
    let summary = found.lines().last().unwrap();
    assert!(
        summary.contains(" questions: ") && summary.ends_with(" explained differences, 0 differences"),
        "{found}"
    );
    let questions: usize = summary.split(' ').next().unwrap().parse().unwrap();
    assert!(questions > 60 * 2 * 8, "{summary}");
    assert!(found.contains(": a name that doesn't exist has no SOA record, as for "), "{found}");
    let ((code, found, errors), ()) =
        tokio::join!(compare_by_command(&plane, addresses(), &FAST), world.change(&client, 100, &mut random));
    assert_eq!((code, &*errors), (Some(0), ""), "objects change meanwhile: {found}");

    // Other options of one server.
    for (options, shown) in [
        ("pods verified\nttl 30", [" 5 IN ", " 30 IN "]),
        ("pods verified\nnamespaces shop web data", [": NOERROR, flags aa", ": NXDOMAIN, flags aa"]),
    ] {
        let other = start(&plane, &upstreams, Program::Linker, options).await;
        let servers = Servers { coredns: other, ..Servers::start(&plane, &upstreams, "pods verified").await };
        wait_until_listed(&servers).await;
        let both = [&servers.subject, &servers.coredns].map(|server| server.dns().to_string());
        let (code, found, errors) = compare_by_command(&plane, both, &FAST).await;
        assert_eq!((code, &*errors), (Some(1), ""), "{found}");
        assert!(shown.iter().all(|text| found.contains(text)), "{found}");
        assert!(!found.lines().last().unwrap().contains(" 0 differences"), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compare_refuses_what_it_cant_compare_with_one_sentence() {
    let plane = ControlPlane::lend();
    let upstreams = Upstreams::start().await;
    let server = start(&plane, &upstreams, Program::Linker, "").await;
    let there = server.dns().to_string();
    let unused = HeldPort::take().unwrap();
    let dead = unused.local().to_string();
    for (servers, more, sentence) in [
        ([&there, &there], &[][..], "--server: both servers are 127.0.0.1:".to_owned()),
        ([&there, &dead], &["--server", &there], "--server is needed twice: ".to_owned()),
        ([&there, &dead], &[], format!("{dead} doesn't answer (")),
        (
            [&there, &dead],
            &["--cluster-domain", "other.test"],
            format!("{there} doesn't serve other.test: it answers the question for its SOA record with "),
        ),
        ([&there, &dead], &["--context", "absent"], "kubeconfig ".to_owned()),
    ] {
        let (code, found, errors) = compare_by_command(&plane, servers.map(Clone::clone), more).await;
        assert_eq!((code, &*found), (Some(2), ""), "{errors}");
        assert!(errors.starts_with(&format!("lb-linker: {sentence}")), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    for arguments in [
        &["compare", "--server", "ns.example", "--server", "127.0.0.1"][..],
        &["compare", "--server", "127.0.0.1", "--server", "127.0.0.2", "--rate", "0"],
        &["compare", "--server", "127.0.0.1", "--server", "127.0.0.2", "--rate", "10001"],
        &["compare", "--server", "127.0.0.1", "--server", "127.0.0.2", "--cluster-domain", ""],
        &["compare"],
        &["compare", "--server", "127.0.0.1", "--server", "127.0.0.2", "--kubeconfig", "/nonexistent"],
        &["compare", "--server", "127.0.0.1", "--server", "127.0.0.2", "--manifests", "/tmp"],
    ] {
        let output = run_to_end(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    // This ServiceAccount may list Services alone.
    let limited = plane.kubeconfig_for_service_account("lb-linker", "lb-linker").display().to_string();
    let second = start(&plane, &upstreams, Program::Linker, "").await;
    let other = second.dns().to_string();
    let more = ["--server", &other, "--kubeconfig", &limited];
    let output = run_to_end([&["compare", "--server", &there, "--rate", "5000"][..], &more].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    for kind in ["EndpointSlices", "Namespaces", "Pods"] {
        let sentence = format!("lb-linker: can't list {kind} in all namespaces: the API server forbids it");
        assert!(errors.contains(&sentence), "{errors}");
    }
}
