//! The kubectl commands of README.md and docs/, run against the real API server.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::programs::programs;
use crate::harness::{apply_deploy, deploy};

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
spec: {ports: [{port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data: {Corefile: ''}
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

/// Commands that need nodes, controllers or another project's CRDs are only printed. A namespace is never deleted
/// completely without a controller, so kubectl doesn't wait. The deletion of deploy/ must end with an error.
const KUBECTL: &str = r#"
kubectl() {
    case "$*" in
    *rollout*|*" logs "*|*"exec "*|*"wait "*|*port-forward*) echo "needs nodes: kubectl $*" ;;
    "delete -f deploy/")
        # A policy is in force a moment after it was created.
        while command kubectl delete namespace external-targets --dry-run=server; do sleep 0.2; done
        if command kubectl "$@" --wait=false; then echo "external-targets was deleted"; return 1; fi ;;
    "delete namespace external-targets") until command kubectl "$@" --wait=false; do sleep 0.2; done ;;
    *"delete "*) command kubectl "$@" --wait=false ;;
    "diff "*) command kubectl "$@" || [ $? = 1 ] ;;
    "apply -f -") echo "needs MetalLB: kubectl $*" ;;
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

/// Returns the indented blocks of a page that begin with a kubectl command, a variable, or a file, as one script.
fn commands(page: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut script = String::new();
    let mut at = 0;
    while at < lines.len() {
        let depth = indent(lines[at]);
        let is_block = depth >= 4 && !lines[at].is_empty() && at > 0 && lines[at - 1].is_empty();
        if !is_block {
            at += 1;
            continue;
        }
        let end = (at..lines.len()).find(|line| lines[*line].is_empty() || indent(lines[*line]) < depth);
        let block: Vec<&str> =
            lines[at..end.unwrap_or(lines.len())].iter().map(|line| &line[depth..]).collect();
        at = end.unwrap_or(lines.len());
        let first = block[0].split([' ', '=']).next().unwrap();
        let is_variable = block[0].contains('=') && first.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        if first == "kubectl" || first == "cat" || is_variable {
            script += &(block.join("\n") + "\n");
        }
    }
    script
}

/// Runs the commands of a page in a directory with the folders of the checkout.
fn run(plane: &ControlPlane, page: &str) {
    let script = commands(page);
    assert!(script.contains("kubectl"), "{page} has no commands");
    let directory = tempfile::tempdir().unwrap();
    symlink(deploy(), directory.path().join("deploy")).unwrap();
    let kubectl = plane.kubectl_command();
    let mut shell = Command::new("sh");
    for (name, value) in kubectl.get_envs() {
        shell.env(name, value.unwrap());
    }
    // Programs beside kubectl that need a node or a kubeconfig of the reader.
    let unused = directory.path().join("unused");
    fs::create_dir(&unused).unwrap();
    for program in ["dig", "lb-linker"] {
        fs::write(unused.join(program), "#!/bin/sh\n").unwrap();
        fs::set_permissions(unused.join(program), Permissions::from_mode(0o755)).unwrap();
    }
    let folder = programs().kubectl.parent().unwrap();
    let path = format!("{}:{}:{}", unused.display(), folder.display(), std::env::var("PATH").unwrap());
    // `kubectl edit` changes nothing.
    shell.env("PATH", path).env("EDITOR", "true").current_dir(directory.path());
    let output = shell.args(["-ec", &(KUBECTL.to_owned() + &script)]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn commands_of_the_pages_for_an_installation_work() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.apply(OBJECTS);
    plane.apply(AFTER_INSTALL);
    plane.apply(LOAD_BALANCER);
    for page in [
        "README.md",
        "docs/concepts.md",
        "docs/limits.md",
        "docs/migration.md",
        "docs/moving.md",
        "docs/sidecar.md",
        "docs/troubleshooting.md",
    ] {
        run(&plane, page);
    }
}

#[test]
fn commands_from_install_to_uninstall_work() {
    let plane = ControlPlane::start(Options::default());
    plane.apply(OBJECTS);
    // The policy that keeps the namespace must be in force before the page's last commands.
    apply_deploy(&plane);
    plane.apply(AFTER_INSTALL);
    run(&plane, "docs/operations.md");
}

#[test]
fn commands_for_local_clusters_work() {
    let plane = ControlPlane::start(Options::default());
    plane.apply(OBJECTS);
    apply_deploy(&plane);
    plane.apply(AFTER_INSTALL);
    run(&plane, "docs/local-clusters.md");
}

#[test]
fn every_page_with_kubectl_commands_is_run() {
    let this = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/docs.rs")).unwrap();
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap() {
        let page = format!("docs/{}", entry.unwrap().file_name().into_string().unwrap());
        if page.ends_with(".md") && commands(&page).contains("kubectl") {
            assert!(this.contains(&format!("\"{page}\"")), "no test runs the commands of {page}");
        }
    }
}
