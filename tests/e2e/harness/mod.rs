//! The test harness: a real control plane, real resolvers, and shortcuts to use them.

pub mod admission;
pub mod audit;
pub mod browser;
pub mod certificates;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod control_plane;
pub mod data_dir;
pub mod dns;
pub mod etcd;
pub mod faulty_link;
pub mod forging;
pub mod garbage_collector;
pub mod linker;
pub mod network;
pub mod pool;
pub mod port;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod scale;
pub mod steady_load;

use std::future::Future;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use cluster::Cluster;
use control_plane::ControlPlane;
use programs::prometheus_crds;

/// Timeout for expected events: far longer than they take, so that only a defect reaches it.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(180);

/// The pauses while a test polls: short at first, then longer, because many tests poll the same API server.
pub struct PollPauses(Duration);

impl PollPauses {
    pub fn new() -> Self {
        Self(Duration::from_millis(5))
    }

    pub async fn next(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Duration::from_millis(80));
    }
}

/// Polls `look` until it returns a value. Panics with `what` after [`EVENT_TIMEOUT`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    let mut pauses = PollPauses::new();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        pauses.next().await;
    }
}

/// The ServiceAccount of lb-linker, as a word of [`permission`] and as an argument of kubectl.
pub const LINKER: &str = "--as=system:serviceaccount:lb-linker:lb-linker";

/// Waits until the API server allows these words after `kubectl auth can-i`, or doesn't allow them: it applies changes
/// of permissions a moment later.
pub async fn permission(plane: &ControlPlane, is_expected: bool, words: &[&str]) {
    let review = access_review(words);
    let api = Api::<SubjectAccessReview>::all(plane.admin_client().await);
    let look = || async {
        let answer = api.create(&PostParams::default(), &review).await.unwrap();
        (answer.status.unwrap().allowed == is_expected).then_some(())
    };
    eventually(&format!("{words:?}: {is_expected}"), look).await;
}

/// Returns the question of `kubectl auth can-i` with these words: verb, resource, `-A` or `-n` and a namespace, and
/// `--as` with a ServiceAccount.
fn access_review(words: &[&str]) -> SubjectAccessReview {
    let [verb, resource, place @ .., account] = words else { panic!("{words:?}") };
    let namespace = match place {
        [] => "default",
        ["-A"] => "",
        ["-n", namespace] => namespace,
        _ => panic!("{words:?}"),
    };
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let user = account.strip_prefix("--as=").expect("a ServiceAccount");
    let (accounts, _) = user.rsplit_once(':').expect("a ServiceAccount");
    let accounts = accounts.replace(":serviceaccount:", ":serviceaccounts:");
    let attributes = json!({"namespace": namespace, "verb": verb, "resource": resource, "group": group});
    let spec = json!({"user": user, "groups": ["system:authenticated", "system:serviceaccounts", accounts],
        "resourceAttributes": attributes});
    serde_json::from_value(json!({"spec": spec})).expect("a SubjectAccessReview")
}

/// Runs a test with bounds of time up to five times, until one of the attempts keeps them: a busy machine slows down
/// some attempts, a defect all of them.
pub async fn once_of_five<F: Future<Output = Result<(), String>>>(attempt: impl Fn() -> F) {
    let mut errors = Vec::new();
    while errors.len() < 5 {
        match attempt().await {
            Ok(()) => return,
            Err(error) => errors.push(error),
        }
    }
    panic!("{errors:#?}");
}

/// Replaces a file atomically: lb-linker could read a file that is being written.
pub fn replace_file(path: &Path, content: impl AsRef<[u8]>) {
    let next = path.with_file_name(".next");
    std::fs::write(&next, content).unwrap();
    std::fs::rename(next, path).unwrap();
}

pub fn deploy() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy"))
}

/// Returns the shared control plane with `deploy/` applied, and the name of a new target namespace, in which lb-linker
/// has the permissions of `deploy/`.
pub async fn cluster_with_target() -> (&'static ControlPlane, Cluster, String) {
    static DEPLOYED: OnceLock<()> = OnceLock::new();
    let plane = ControlPlane::shared();
    DEPLOYED.get_or_init(|| apply_deploy(plane));
    let cluster = plane.cluster().await;
    let target = cluster.create_namespace("targets").await;
    grant(plane, &target);
    (plane, cluster, target)
}

/// Applies `deploy/targets/` and `deploy/`.
pub fn apply_deploy(plane: &ControlPlane) {
    plane.apply_files(&deploy().join("targets"));
    plane.apply_files(deploy());
}

/// Applies `deploy/crd/`, and waits until the API server serves StableNames.
pub fn apply_stable_names(plane: &ControlPlane) {
    plane.apply_files(&deploy().join("crd"));
    plane.wait_for_crds(&["stablenames.linker.hsj.com"]);
}

/// Creates the CRDs of the Prometheus operator, and waits until the API server serves them.
pub fn apply_prometheus_crds(plane: &ControlPlane) {
    plane.apply_files(prometheus_crds());
    plane.wait_for_crds(&["servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"]);
}

/// Grants lb-linker the optional permissions of a folder of `deploy/` in a single namespace, by a RoleBinding, as the
/// comments there describe.
pub fn grant_optional(plane: &ControlPlane, folder: &str, namespace: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let rights = std::fs::read_to_string(deploy().join(folder).join("rbac.yaml")).unwrap();
    let role = rights.split("---").next().unwrap();
    {
        // If two tests created the same object at once, one of them would fail.
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        plane.apply(role);
    }
    let name = format!("lb-linker-{folder}");
    let role = format!("--clusterrole={name}");
    let account = "--serviceaccount=lb-linker:lb-linker";
    plane.kubectl(&["-n", namespace, "create", "rolebinding", &name, &role, account]);
}

/// Grants lb-linker the permissions of `deploy/` in another target namespace, which must exist.
pub fn grant(plane: &ControlPlane, target_namespace: &str) {
    let rights = std::fs::read_to_string(deploy().join("10-rbac.yaml")).unwrap();
    let of_the_target = rights.split("---\n").filter(|document| document.contains("external-targets"));
    let of_the_target: Vec<&str> = of_the_target.collect();
    plane.apply(&of_the_target.join("---\n").replace("external-targets", target_namespace));
}

/// Returns whether the loopback interface has an IPv6 address.
pub fn has_ipv6() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}
