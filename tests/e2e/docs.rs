//! The commands of README.md and docs/ with kubectl, helm and lb-linker, run against the real API server.

mod health_check;
mod remote_clusters;
mod stable_names;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::programs::{helm, programs};
use crate::harness::{apply_deploy, apply_prometheus_crds};

/// What the commands find: objects that a reader has, or that lb-linker and the cluster's DNS have created.
const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: database, namespace: shop}
spec: {type: ExternalName, externalName: old.example.com}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: shop}
spec:
  selector: {matchLabels: {app: app}}
  template: {metadata: {labels: {app: app}}, spec: {containers: [{name: app, image: a}]}}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {selector: {k8s-app: kube-dns}, ports: [{port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data: {Corefile: ''}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: exdns-k8s-gateway, namespace: kube-system}
data:
  Corefile: |-
    .:1053 {
        k8s_gateway example.com {
          apex exdns-k8s-gateway.kube-system
          resources Ingress Service
        }
        forward . 192.0.2.53
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: exdns-k8s-gateway, namespace: kube-system}
spec:
  selector: {matchLabels: {app: exdns}}
  template: {metadata: {labels: {app: exdns}}, spec: {containers: [{name: k8s-gateway, image: a}]}}
";
const AFTER_INSTALL: &str = "
apiVersion: v1
kind: Service
metadata: {name: my-sample-lb-default-ext, namespace: external-targets}
spec: {type: ExternalName, externalName: a.example.com}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: lb-linker, namespace: lb-linker}
";
const LOAD_BALANCER: &str = "
apiVersion: v1
kind: Service
metadata: {name: my-sample-lb, namespace: default}
spec: {type: LoadBalancer, ports: [{port: 443}]}
";

/// Commands that need nodes or controllers are only printed. A namespace is never deleted completely without a controller,
/// so kubectl doesn't wait.
const KUBECTL: &str = r#"
kubectl() {
    case "$*" in
    *rollout*|*" logs "*|*"exec "*|*"wait "*|*port-forward*|*" --rm "*) echo "needs nodes: kubectl $*" ;;
    *"delete "*) command kubectl "$@" --wait=false ;;
    "diff "*) command kubectl "$@" || [ $? = 1 ] ;;
    # Another page may have set the annotation.
    *" annotate "*) command kubectl "$@" --overwrite ;;
    "create namespace "*) command kubectl "$@" || command kubectl get namespace "$3" ;;
    *) command kubectl "$@" ;;
    esac
}
# Without a line that matches, grep fails.
grep() { command grep "$@" || true; }
set -x
"#;

/// A wrapper for the commands of the pages with `lb-linker`: a server gets free ports, and is stopped when it is ready.
const LB_LINKER: &str = r#"#!/bin/sh
case "$1" in
check | scan | takeover) exec "$PROGRAM" "$@" ;;
stub)
    # Without a terminal the question can't be answered.
    case "$2" in --apply | --remove) set -- "$@" --yes ;; esac
    exec "$PROGRAM" "$@" ;;
query) echo "needs a server that still runs: lb-linker $*"; exit 0 ;;
esac
for argument; do
    shift
    case "$argument" in
    127.0.0.1:*) argument=127.0.0.1:0 ;;
    /tmp/external-targets) argument=$HOME/external-targets ;;
    esac
    set -- "$@" "$argument"
done
log=$(mktemp)
"$PROGRAM" "$@" --metrics-listen 127.0.0.1:0 --health-listen 127.0.0.1:0 --ready-listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 >"$log" 2>&1 &
until grep -q 'ready: load balancers' "$log"; do
    kill -0 $! || { cat "$log" >&2; exit 1; }
    sleep 0.1
done
kill $!
wait $!
"#;

/// The page whose commands [`stable_names`] runs, beside a running lb-linker.
const STABLE_NAMES: &str = "docs/stable-names.md";

/// The page whose commands [`remote_clusters`] runs, with a second cluster.
const REMOTE_CLUSTERS: &str = "docs/remote-clusters.md";

/// First words of the blocks that are run: programs, the setting of a variable, and a function.
const RUN: [&str; 8] = [
    "VARIABLE=",
    "cat",
    "kubectl",
    "helm",
    "lb-linker",
    "links()",
    "target/debug/lb-linker",
    "target/static/lb-linker",
];
/// First words of the blocks that aren't run. `make`, `cargo` and `git` are for a checkout; `cosign`, `curl`, `dig`,
/// `docker` and `kind` need a release, nodes or a server that still runs; the other blocks are parts of files, or output.
const NOT_RUN: [&str; 19] = [
    "Name:",
    "Service:",
    "make",
    "cargo",
    "git",
    "args:",
    "cosign",
    "curl",
    "dig",
    "docker",
    "dnsConfig:",
    "dnsPolicy:",
    "example.com",
    "k8s.example.com:53",
    "kind",
    "lb.internal",
    "networkaddress.cache.ttl=5",
    "resolver",
    "resources:",
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the pages for users and developers, as paths from the repository's root.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().into_string().unwrap()));
    let others = [
        "README.md",
        "README.ko.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "charts/lb-linker/README.md",
    ];
    docs.filter(|page| page.ends_with(".md")).chain(others.map(str::to_owned)).collect()
}

/// Returns the indented blocks of a page, with their first words; `VARIABLE=` if the first word sets a variable.
fn blocks(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let mut in_fence = false;
    let lines: Vec<&str> = text
        .lines()
        .map(|line| {
            let is_fence = line.trim_start().starts_with("```");
            in_fence ^= is_fence;
            if in_fence || is_fence { "-" } else { line }
        })
        .collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let depth = indent(lines[at]);
        let is_block = depth >= 4 && !lines[at].is_empty() && at > 0 && lines[at - 1].is_empty();
        // A table in a list is indented, too.
        if !is_block || lines[at].trim_start().starts_with('|') {
            at += 1;
            continue;
        }
        let end = (at..lines.len()).find(|line| lines[*line].is_empty() || indent(lines[*line]) < depth);
        let end = end.unwrap_or(lines.len());
        let block: Vec<&str> = lines[at..end].iter().map(|line| &line[depth..]).collect();
        at = end;
        let word = block[0].split_whitespace().next().unwrap();
        let name = word.split('=').next().unwrap();
        let is_variable = word.contains('=') && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let first = if is_variable { "VARIABLE=" } else { word };
        blocks.push((first.to_owned(), block.join("\n") + "\n"));
    }
    blocks
}

/// Returns the labels by which a Service of the cluster DNS selects Pods.
fn selector(plane: &ControlPlane, service: &str) -> String {
    let get = ["get", "service", service, "-n", "kube-system", "-o", "jsonpath={.spec.selector}"];
    plane.kubectl(&get)
}

/// Returns the commands of a page as one script.
fn commands(page: &str) -> String {
    let run = |(first, block): (String, String)| RUN.contains(&first.as_str()).then_some(block);
    blocks(page).into_iter().filter_map(run).collect()
}

/// Runs the commands of a page in a directory with links to the folders of the checkout that they use.
fn run(plane: &ControlPlane, page: &str) {
    let script = commands(page);
    assert!(!script.is_empty(), "{page} has no commands");
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    for (folder, links) in [("", ["deploy", "charts"]), ("examples", ["manifests", ""])] {
        fs::create_dir_all(file(folder)).unwrap();
        for link in links.into_iter().filter(|link| !link.is_empty()) {
            let path = PathBuf::from(folder).join(link);
            symlink(repository().join(&path), directory.path().join(path)).unwrap();
        }
    }
    // `dig` would need nodes.
    for (program, text) in [
        ("bin/dig", "#!/bin/sh\n"),
        ("bin/lb-linker", LB_LINKER),
        ("target/debug/lb-linker", LB_LINKER),
        ("target/static/lb-linker", LB_LINKER),
    ] {
        fs::create_dir_all(file(program).parent().unwrap()).unwrap();
        fs::write(file(program), text).unwrap();
        fs::set_permissions(file(program), Permissions::from_mode(0o755)).unwrap();
    }
    // Helm is built for the tests of releases.
    if script.lines().any(|line| line.starts_with("helm ")) {
        symlink(&helm()[1], file("bin/helm")).unwrap();
    }
    fs::create_dir(file(".kube")).unwrap();
    symlink(plane.admin_kubeconfig(), file(".kube/config")).unwrap();
    let mut shell = Command::new("sh");
    for (name, value) in plane.kubectl_command().get_envs() {
        shell.env(name, value.unwrap());
    }
    let folder = programs().kubectl.parent().unwrap();
    let path = format!("{}:{}:{}", file("bin").display(), folder.display(), std::env::var("PATH").unwrap());
    shell.env("PATH", path).env("HOME", directory.path()).env("PROGRAM", env!("CARGO_BIN_EXE_lb-linker"));
    // `kubectl edit` changes nothing.
    shell.env("EDITOR", "true").current_dir(directory.path());
    let output = shell.args(["-ec", &(KUBECTL.to_owned() + &script)]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn commands_of_pages_for_an_installed_lb_linker_succeed() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.apply(OBJECTS);
    plane.apply(AFTER_INSTALL);
    plane.apply(LOAD_BALANCER);
    for page in [
        "README.md",
        "README.ko.md",
        "docs/concepts.md",
        "docs/limits.md",
        "docs/migration.md",
        "docs/moving.md",
        "docs/runbooks.md",
        "docs/sidecar.md",
        "docs/sources.md",
        "docs/status.md",
        "docs/stub.md",
        "docs/troubleshooting.md",
    ] {
        run(&plane, page);
    }
    let of_gateway = "jsonpath={range .spec.template.spec.containers[*]}{.name} {.image} {.args[0]};{end}";
    let get = ["get", "deployment", "exdns-k8s-gateway", "-n", "kube-system", "-o", of_gateway];
    // docs/moving.md replaces the program of its only container; the way back needs a controller.
    assert_eq!(plane.kubectl(&get), "k8s-gateway lb-linker:0.1.0 run;");
}

#[test]
fn commands_of_the_page_for_local_clusters_succeed() {
    let plane = ControlPlane::start(Options::default());
    plane.apply(OBJECTS);
    apply_deploy(&plane);
    plane.apply(AFTER_INSTALL);
    run(&plane, "docs/local-clusters.md");
}

#[test]
fn commands_of_the_page_for_the_cluster_dns_switch_and_back() {
    const PAGE: &str = "docs/cluster-dns.md";
    const RKE2: &str = "
apiVersion: v1
kind: Service
metadata: {name: rke2-coredns-rke2-coredns, namespace: kube-system}
spec:
  selector:
    app.kubernetes.io/instance: rke2-coredns
    app.kubernetes.io/name: rke2-coredns
    k8s-app: kube-dns
  ports: [{port: 53, protocol: UDP}]
";
    let plane = ControlPlane::start(Options::default());
    plane.apply(OBJECTS);
    plane.apply(RKE2);
    apply_deploy(&plane);
    let services = ["kube-dns", "rke2-coredns-rke2-coredns"];
    let before = services.map(|service| selector(&plane, service));
    run(&plane, PAGE);
    let script = commands(PAGE);
    for (service, before) in services.into_iter().zip(before) {
        assert_eq!(selector(&plane, service), before);
        let patches = script.lines().filter(|line| line.contains(&format!("patch service {service} ")));
        let selectors = patches.map(|line| {
            let patch = line.split('\'').nth(1).unwrap();
            plane.kubectl(&["-n", "kube-system", "patch", "service", service, "-p", patch]);
            selector(&plane, service)
        });
        let switched = r#"{"k8s-app":"lb-linker-cluster-dns"}"#;
        assert_eq!(Vec::from_iter(selectors), [switched, &before]);
    }
    let left = plane.kubectl(&["-n", "kube-system", "get", "deployments,services,configmaps", "-o", "name"]);
    assert!(!left.contains("lb-linker"), "{left}");
    let corefile = ["-n", "kube-system", "get", "configmap", "coredns", "-o", "jsonpath={.data}"];
    assert_eq!(plane.kubectl(&corefile), r#"{"Corefile":""}"#);
}

#[test]
fn every_indented_block_of_the_pages_is_run_or_listed() {
    let this = fs::read_to_string(repository().join("tests/e2e/docs.rs")).unwrap();
    for page in pages() {
        for (first, block) in blocks(&page) {
            let [run, known] = [&RUN[..], &NOT_RUN].map(|words| words.contains(&first.as_str()));
            assert!(run || known, "{page}: neither run nor listed in NOT_RUN:\n{block}");
            assert!(!run || this.contains(&format!("\"{page}\"")), "no test runs {page}:\n{block}");
        }
    }
}

/// The pages with commands of Helm.
mod release {
    use super::*;

    #[test]
    fn commands_from_install_to_uninstall_succeed() {
        let plane = ControlPlane::start(Options::default());
        apply_prometheus_crds(&plane);
        plane.apply(OBJECTS);
        apply_deploy(&plane);
        plane.apply(AFTER_INSTALL);
        run(&plane, "docs/operations.md");
    }

    #[test]
    fn commands_of_the_readme_of_the_chart_succeed() {
        let plane = ControlPlane::start(Options::default());
        apply_prometheus_crds(&plane);
        run(&plane, "charts/lb-linker/README.md");
    }
}
