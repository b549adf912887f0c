//! Where the programs of the test control plane are, built from `tests/control-plane/` when they aren't there
//! yet.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The programs that tests start.
#[derive(Debug)]
pub struct Programs {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kubectl: PathBuf,
    pub coredns: PathBuf,
}

/// Finds them. The first call of all builds them, which takes some minutes; `make control-plane` does so
/// ahead of time.
///
/// # Panics
/// When they can't be built; the reason then stands on standard error.
pub fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control-plane/build");
        let output = Command::new(script)
            .arg("--env")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .unwrap_or_else(|error| panic!("{script}: {error}"));
        assert!(output.status.success(), "{script} failed, see its message above");
        let answer = String::from_utf8(output.stdout).expect("paths are UTF-8");
        let path = |name: &str| {
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            PathBuf::from(line.unwrap_or_else(|| panic!("{script} --env doesn't tell {name}")))
        };
        Programs {
            etcd: path("ETCD"),
            kube_apiserver: path("KUBE_APISERVER"),
            kubectl: path("KUBECTL"),
            coredns: path("COREDNS"),
        }
    })
}
