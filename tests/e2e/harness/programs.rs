//! The programs that tests start: the test control plane, programs that resolve names, a program that compares records,
//! actionlint, Helm, promtool and the last version of lb-linker without StableNames. They are built from
//! `tests/control-plane/`, `tests/control-plane-oldest/`, `tests/external-dns/`, `tests/gateway-api/`, `tests/go/`,
//! `tests/helm/`, `tests/prometheus/`, `tests/stubs/` and `tests/previous/` if they don't exist yet.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const CONTROL_PLANE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control-plane/build");

/// The programs of the test control plane, and CoreDNS.
#[derive(Debug)]
pub struct Programs {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kubectl: PathBuf,
    pub coredns: PathBuf,
}

/// Returns the programs. The first call builds them, which takes some minutes; `make control-plane` does so in advance.
/// With `LB_LINKER_TEST_KUBERNETES=oldest` kube-apiserver is that of `tests/control-plane-oldest/`.
///
/// # Panics
/// If they can't be built; the reason is on standard error.
pub fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let answer = build(CONTROL_PLANE, &[]);
        let is_oldest = env::var_os("LB_LINKER_TEST_KUBERNETES").is_some_and(|version| version == "oldest");
        let oldest = is_oldest
            .then(|| build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control-plane-oldest/build"), &[]));
        Programs {
            etcd: path(&answer, "ETCD"),
            kube_apiserver: path(oldest.as_ref().unwrap_or(&answer), "KUBE_APISERVER"),
            kubectl: path(&answer, "KUBECTL"),
            coredns: path(&answer, "COREDNS"),
        }
    })
}

/// Returns kube-controller-manager; the first call builds it.
///
/// # Panics
/// As for [`programs`].
pub fn kube_controller_manager() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM
        .get_or_init(|| path(&build(CONTROL_PLANE, &["kube-controller-manager"]), "KUBE_CONTROLLER_MANAGER"))
}

/// Programs that resolve a name, each with another stub resolver.
#[derive(Debug)]
pub struct Stubs {
    pub glibc: PathBuf,
    pub musl: PathBuf,
    pub go: PathBuf,
}

/// Returns the programs; the first call builds them.
///
/// # Panics
/// As for [`programs`].
pub fn stubs() -> &'static Stubs {
    static STUBS: OnceLock<Stubs> = OnceLock::new();
    STUBS.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stubs/build"), &[]);
        Stubs { glibc: path(&answer, "GLIBC"), musl: path(&answer, "MUSL"), go: path(&answer, "GO") }
    })
}

/// The programs of `tests/go/`.
#[derive(Debug)]
pub struct GoPrograms {
    pub roundtrip: PathBuf,
    pub actionlint: PathBuf,
}

/// Returns the programs; the first call builds them.
///
/// # Panics
/// As for [`programs`].
pub fn go_programs() -> &'static GoPrograms {
    static PROGRAMS: OnceLock<GoPrograms> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go/build"), &[]);
        GoPrograms { roundtrip: path(&answer, "ROUNDTRIP"), actionlint: path(&answer, "ACTIONLINT") }
    })
}

/// Returns Helm 3 and Helm 4; the first call builds them.
///
/// # Panics
/// As for [`programs`].
pub fn helm() -> &'static [PathBuf; 2] {
    static HELM: OnceLock<[PathBuf; 2]> = OnceLock::new();
    HELM.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/helm/build"), &[]);
        ["HELM3", "HELM4"].map(|name| path(&answer, name))
    })
}

/// Returns promtool; the first call builds it.
///
/// # Panics
/// As for [`programs`].
pub fn promtool() -> &'static Path {
    static PROMTOOL: OnceLock<PathBuf> = OnceLock::new();
    PROMTOOL.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prometheus/build"), &[]);
        path(&answer, "PROMTOOL")
    })
}

/// Returns a folder with the CRDs of the Prometheus operator; the first call fetches them.
///
/// # Panics
/// As for [`programs`].
pub fn prometheus_crds() -> &'static Path {
    static CRDS: OnceLock<PathBuf> = OnceLock::new();
    CRDS.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prometheus/crds/build"), &[]);
        path(&answer, "CRDS")
    })
}

/// Returns folders with the CRDs of Gateway API 1.6 and 1.3; the first call fetches them.
///
/// # Panics
/// As for [`programs`].
pub fn gateway_api_crds() -> &'static [PathBuf; 2] {
    static CRDS: OnceLock<[PathBuf; 2]> = OnceLock::new();
    CRDS.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway-api/build"), &[]);
        ["GATEWAY_API_1_6", "GATEWAY_API_1_3"].map(|name| path(&answer, name))
    })
}

/// Returns a folder with the CRD of ExternalDNS's DNSEndpoints; the first call fetches it.
///
/// # Panics
/// As for [`programs`].
pub fn dns_endpoint_crd() -> &'static Path {
    static CRDS: OnceLock<PathBuf> = OnceLock::new();
    CRDS.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external-dns/build"), &[]);
        path(&answer, "CRDS")
    })
}

/// Returns the last version of lb-linker without StableNames; the first call builds it.
///
/// # Panics
/// As for [`programs`].
pub fn previous() -> &'static Path {
    static PREVIOUS: OnceLock<PathBuf> = OnceLock::new();
    PREVIOUS.get_or_init(|| {
        let answer = build(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/previous/build"), &[]);
        path(&answer, "PREVIOUS")
    })
}

/// Runs a script that builds missing programs, and returns its `NAME=path` lines.
fn build(script: &str, arguments: &[&str]) -> String {
    let output = Command::new(script)
        .arg("--env")
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{script}: {error}"));
    assert!(output.status.success(), "{script} failed, see its message above");
    String::from_utf8(output.stdout).expect("paths are UTF-8")
}

fn path(answer: &str, name: &str) -> PathBuf {
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    PathBuf::from(line.unwrap_or_else(|| panic!("the output of the build script lacks {name}: {answer}")))
}
