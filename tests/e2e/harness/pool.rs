//! Control planes for tests that need one alone, lent to one test after the other: a start takes seconds of processor
//! time. Before the next use the objects of the previous test are undone in etcd, which the API server follows.

use std::io;
use std::ops::Deref;
use std::sync::{Mutex, Once};
use std::thread;

use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, Options, at_exit, lock};
use super::etcd::{self, Object, Objects};
use super::{apply_deploy, apply_prometheus_crds, apply_stable_names, eventually};

/// The objects that a control plane has at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `deploy/`.
    Deploy,
    /// `deploy/` and `deploy/crd/`. A control plane that is lent may have the CRDs of the Prometheus operator, too, which
    /// matter only to StableNames with `spec.alerts`.
    StableNames,
    /// Those, and the CRDs of the Prometheus operator.
    PrometheusRules,
}

/// A control plane for one test, which returns it at its end. It must be dropped after the programs that use it.
#[derive(Debug)]
pub struct Lent(Option<Pooled>);

impl Deref for Lent {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.0.as_ref().expect("only `drop` takes it").plane
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let returned = self.0.take().filter(|it| !thread::panicking() && it.plane.is_undisturbed());
        let _superfluous = {
            let mut free = lock(&FREE);
            free.extend(returned);
            (free.len() > MAX_FREE).then(|| free.remove(0))
        };
    }
}

/// The free control planes, in the order in which they were returned.
static FREE: Mutex<Vec<Pooled>> = Mutex::new(Vec::new());

/// Each takes about 400 MB.
const MAX_FREE: usize = 6;

/// The API server writes these objects when it is ready already.
const WRITTEN_AT_START: [&str; 5] = [
    "/registry/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
    "/registry/namespaces/kube-node-lease",
    "/registry/namespaces/kube-public",
    "/registry/namespaces/kube-system",
    "/registry/services/specs/default/kubernetes",
];

/// The API server writes these objects at any time.
const OF_THE_API_SERVER: [&str; 3] = [
    "/registry/apiregistration.k8s.io/",
    "/registry/leases/kube-system/apiserver-",
    "/registry/peerserverleases/",
];

/// The API server applies changes of these objects up to some seconds later.
const FOLLOWED_LATE: [&str; 5] = [
    "/registry/apiextensions.k8s.io/",
    "/registry/mutating",
    "/registry/priority",
    "/registry/resourcequotas/",
    "/registry/validating",
];

fn is_ours(key: &str) -> bool {
    !OF_THE_API_SERVER.iter().any(|prefix| key.starts_with(prefix))
}

fn is_followed_late(key: &str) -> bool {
    FOLLOWED_LATE.iter().any(|prefix| key.starts_with(prefix))
}

#[derive(Debug)]
struct Pooled {
    base: Base,
    plane: ControlPlane,
    initial: Objects,
    /// The keys of the objects of `deploy/`.
    deployed: Vec<String>,
}

impl ControlPlane {
    /// Lends a control plane with `deploy/` to a test. Blocking.
    ///
    /// # Panics
    /// If none can be started.
    pub fn lend() -> Lent {
        Self::lend_with(Base::Deploy)
    }

    /// Lends a control plane with these objects to a test. Blocking.
    ///
    /// # Panics
    /// If none can be started.
    pub fn lend_with(base: Base) -> Lent {
        loop {
            let found = {
                let mut free = lock(&FREE);
                let place = |base| free.iter().rposition(|pooled| pooled.base == base);
                let richer = || if base == Base::StableNames { place(Base::PrometheusRules) } else { None };
                place(base).or_else(richer).map(|place| free.remove(place))
            };
            let is_new = found.is_none();
            let mut pooled = found.unwrap_or_else(|| Pooled::start(base, Options::default()));
            if is_new || pooled.undo().expect("etcd answers") {
                pooled.plane.forget_audit_events();
                return Lent(Some(pooled));
            }
        }
    }

    /// Lends a control plane without the objects of `deploy/`, except the admission policy, which the API server follows
    /// late. Blocking.
    ///
    /// # Panics
    /// If none can be started.
    pub fn lend_bare() -> Lent {
        let lent = Self::lend();
        lent.0.as_ref().expect("only `drop` takes it").remove_deploy().expect("etcd answers");
        lent
    }

    /// Starts a control plane with these objects for one test alone. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start_with(base: Base, options: Options) -> Lent {
        let pooled = Pooled::start(base, options);
        pooled.plane.disturb();
        Lent(Some(pooled))
    }
}

impl Pooled {
    fn start(base: Base, options: Options) -> Self {
        static AT_EXIT: Once = Once::new();
        extern "C" fn end() {
            lock(&FREE).clear();
        }
        AT_EXIT.call_once(|| at_exit(end));
        let plane = ControlPlane::start(options);
        let socket = plane.etcd_socket();
        let look = || async {
            let objects = etcd::objects(&socket, true).ok()?;
            WRITTEN_AT_START.iter().all(|key| objects.contains_key(*key)).then_some(objects)
        };
        let bare = plane.with_client(async |_| eventually("objects of the API server", look).await);
        let objects = || etcd::objects(&socket, false).expect("etcd answers");
        apply_deploy(&plane);
        let deployed = objects().into_keys().filter(|key| is_ours(key) && !bare.contains_key(key)).collect();
        if base != Base::Deploy {
            apply_stable_names(&plane);
        }
        if base == Base::PrometheusRules {
            apply_prometheus_crds(&plane);
        }
        let initial = objects();
        Self { base, plane, initial, deployed }
    }

    fn remove_deploy(&self) -> io::Result<()> {
        let keys = self.deployed.iter().filter(|key| !is_followed_late(key));
        let deletions: Vec<_> = keys.map(|key| (key.clone(), None)).collect();
        etcd::write(&self.plane.etcd_socket(), &deletions)?;
        self.wait_for_permissions()
    }

    /// Undoes all changes of objects. Returns whether that suffices for the next test.
    fn undo(&mut self) -> io::Result<bool> {
        let socket = self.plane.etcd_socket();
        // Requests of programs that have ended can still cause changes after the first look.
        for _ in 0..5 {
            let changes = self.changes(&etcd::objects(&socket, true)?);
            if changes.is_empty() {
                return Ok(true);
            }
            if changes.iter().any(|(key, _)| is_followed_late(key)) {
                return Ok(false);
            }
            let revisions = etcd::write(&socket, &changes)?;
            for ((key, _), revision) in changes.iter().zip(revisions) {
                if let Some(object) = self.initial.get_mut(key) {
                    object.revision = revision;
                }
            }
            self.wait_for_permissions()?;
        }
        Ok(false)
    }

    /// Returns the changes that lead from `current` to the initial objects.
    fn changes(&self, current: &Objects) -> Vec<(String, Option<ByteString>)> {
        let added =
            current.keys().filter(|key| !self.initial.contains_key(*key)).map(|key| (key.clone(), None));
        let is_changed = |(key, object): &(&String, &Object)| {
            current.get(*key).is_none_or(|it| it.revision != object.revision)
        };
        let changed = self.initial.iter().filter(is_changed);
        let changed = changed.map(|(key, object)| (key.clone(), Some(object.value.clone())));
        added.chain(changed).filter(|(key, _)| is_ours(key)).collect()
    }

    /// Waits until the API server applies all earlier changes of roles and bindings: it follows each of their kinds in
    /// the order of the changes.
    fn wait_for_permissions(&self) -> io::Result<()> {
        const GROUP: &str = "rbac.authorization.k8s.io";
        let mark = format!("mark-{:016x}", rand::random::<u64>());
        let object = |kind: &str, mut content: Value| {
            content["apiVersion"] = json!(format!("{GROUP}/v1"));
            content["kind"] = json!(kind);
            let namespace = (!kind.starts_with("Cluster")).then_some("default");
            content["metadata"] = json!({"name": mark, "namespace": namespace});
            Some(ByteString(content.to_string().into_bytes()))
        };
        let role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
        let binding = |kind: &str, user: &str| {
            json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": mark},
                "subjects": [{"apiGroup": GROUP, "kind": "User", "name": format!("{mark}-{user}")}]})
        };
        let key = |path: &str| format!("/registry/{path}/{mark}");
        let marks = [
            (key("clusterroles"), object("ClusterRole", role.clone())),
            (key("clusterrolebindings"), object("ClusterRoleBinding", binding("ClusterRole", "everywhere"))),
            (key("roles/default"), object("Role", role)),
            (key("rolebindings/default"), object("RoleBinding", binding("Role", "here"))),
        ];
        let socket = self.plane.etcd_socket();
        etcd::write(&socket, &marks)?;
        let reviews = ["everywhere", "here"].map(|user| {
            let pods = json!({"namespace": "default", "resource": "pods", "verb": "get"});
            let spec = json!({"user": format!("{mark}-{user}"), "resourceAttributes": pods});
            serde_json::from_value(json!({"spec": spec})).expect("a SubjectAccessReview")
        });
        self.plane.with_client(async |client| {
            let api = Api::<SubjectAccessReview>::all(client);
            for review in &reviews {
                let look = || async {
                    let answer = api.create(&PostParams::default(), review).await.ok()?;
                    answer.status?.allowed.then_some(())
                };
                eventually("a permission", look).await;
            }
        });
        etcd::write(&socket, &marks.map(|(key, _)| (key, None))).map(drop)
    }
}
