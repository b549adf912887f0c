//! Access to a control plane: clients, kubeconfigs, kubectl.

use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use axum::http::Request;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::cluster::Cluster;
use super::control_plane::ControlPlane;
use super::eventually;
use super::programs::programs;

impl ControlPlane {
    /// Returns the path of a kubeconfig with all permissions.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.file("admin.kubeconfig")
    }

    /// Returns a client with all permissions, for use in the current Tokio runtime.
    pub async fn admin_client(&self) -> Client {
        client(&self.admin_kubeconfig()).await
    }

    /// Returns a [`Cluster`] with all permissions, for use in the current Tokio runtime.
    pub async fn cluster(&self) -> Cluster {
        Cluster::new(self.admin_client().await)
    }

    /// Returns the path of a kubeconfig with the permissions of a ServiceAccount, which must exist. The token is valid
    /// for a day.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> PathBuf {
        let token = self.token_for_service_account(namespace, name, None);
        let path = self.file(&format!("{namespace}.{name}.kubeconfig"));
        self.write_kubeconfig(&path, namespace, &token).expect("write a kubeconfig");
        path
    }

    /// Returns a token of a ServiceAccount. The token is valid for a day; with `secret`, only as long as the Secret of
    /// this name exists.
    pub fn token_for_service_account(&self, namespace: &str, name: &str, secret: Option<&str>) -> String {
        let bound_object_ref = secret.map(|secret| BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: Some(secret.to_owned()),
            uid: None,
        });
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(24 * 60 * 60),
                bound_object_ref,
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        self.with_client(async |client| {
            let accounts = Api::<ServiceAccount>::namespaced(client, namespace);
            let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
            let answer = answer.unwrap_or_else(|error| panic!("token for {namespace}/{name}: {error}"));
            answer.status.and_then(|status| status.token).expect("a token")
        })
    }

    /// Runs `work` with a client with all permissions, and waits until `work` ends. `work` has its own thread and
    /// runtime, because the caller may run in a runtime. A request takes a tenth of the processor time of kubectl.
    pub(super) fn with_client<T: Send>(&self, work: impl AsyncFnOnce(Client) -> T + Send) -> T {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async { work(self.admin_client().await).await })
        };
        thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.with_client(async |client| {
            let request = Request::get("/readyz").body(Vec::new()).expect("a request");
            timeout(Duration::from_secs(2), client.request_text(request)).await.is_ok_and(|it| it.is_ok())
        })
    }

    /// Returns the objects of a list, such as `/api/v1/namespaces/default/events`.
    ///
    /// # Panics
    /// If they can't be listed, with the API server's reason.
    pub fn list(&self, path: &str) -> Vec<Value> {
        let mut list: Value = self.with_client(async |client| {
            let request = Request::get(path).body(Vec::new()).expect("a path");
            client.request(request).await.unwrap_or_else(|error| panic!("list {path}: {error}"))
        });
        match list["items"].take() {
            Value::Array(items) => items,
            _ => panic!("{path} is no list"),
        }
    }

    /// Returns the reasons of the Events in a namespace.
    pub fn event_reasons(&self, namespace: &str) -> Vec<String> {
        let events = self.list(&format!("/api/v1/namespaces/{namespace}/events"));
        events.iter().map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Applies the objects of YAML documents by server-side apply, with all permissions.
    ///
    /// # Panics
    /// If an object is refused, with the API server's reason.
    pub fn apply(&self, manifests: &str) {
        let objects: Vec<DynamicObject> = serde_saphyr::from_multiple(manifests).expect("objects in YAML");
        self.apply_objects(&objects);
    }

    /// Applies a file, or the YAML files of a folder in the order of their names, as [`Self::apply`] does.
    ///
    /// # Panics
    /// If a file can't be read, or an object is refused, with the API server's reason.
    pub fn apply_files(&self, path: &Path) {
        let mut files = match fs::read_dir(path) {
            Ok(entries) => entries.map(|entry| entry.expect("a file").path()).collect(),
            Err(_) => vec![path.to_owned()],
        };
        files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
        files.sort();
        for file in files {
            self.apply(&fs::read_to_string(file).expect("a file"));
        }
    }

    /// Creates a namespace of this name.
    ///
    /// # Panics
    /// If it is refused, with the API server's reason.
    pub fn create_namespace(&self, name: &str) {
        self.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}"));
    }

    /// Creates a ServiceAccount in a namespace.
    ///
    /// # Panics
    /// If it is refused, with the API server's reason.
    pub fn create_service_account(&self, namespace: &str, name: &str) {
        self.apply(&format!(
            "{{apiVersion: v1, kind: ServiceAccount, metadata: {{namespace: {namespace}, name: {name}}}}}"
        ));
    }

    /// Applies these objects by server-side apply, with all permissions.
    ///
    /// # Panics
    /// If an object is refused, with the API server's reason.
    pub fn apply_objects(&self, objects: &[DynamicObject]) {
        let params = PatchParams::apply("tests").force();
        self.with_client(async |client| {
            for object in objects {
                let name = object.name_any();
                let types = object.types.as_ref().unwrap_or_else(|| panic!("{name} has no kind"));
                let kind = GroupVersionKind::try_from(types).expect("an apiVersion and a kind");
                let resource = ApiResource::from_gvk(&kind);
                let api: Api<DynamicObject> = match &object.metadata.namespace {
                    Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                    None => Api::all_with(client.clone(), &resource),
                };
                let applied = api.patch(&name, &params, &Patch::Apply(object)).await;
                applied.unwrap_or_else(|error| panic!("apply {} {name}: {error}", kind.kind));
            }
        });
    }

    /// Returns a kubectl command with all permissions, for uses that the methods below don't cover. `KUBECONFIG` can be
    /// changed.
    pub fn kubectl_command(&self) -> Command {
        let mut kubectl = Command::new(&programs().kubectl);
        // A separate home directory, because kubectl reads settings there, and caches the server's API by address and
        // port.
        kubectl.env("HOME", self.file("home")).env("KUBECONFIG", self.admin_kubeconfig());
        kubectl
    }

    /// Runs kubectl with all permissions and returns its output. Use a client for repeated requests, as kubectl takes
    /// much processor time.
    ///
    /// # Panics
    /// If kubectl fails, with its error message.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|error| panic!("kubectl {}: {error}", args.join(" ")))
    }

    /// Waits until the API server serves these CRDs. `kubectl wait --for=condition` fails while the conditions of a CRD
    /// are null, which they are at first.
    pub fn wait_for_crds(&self, names: &[&str]) {
        self.with_client(async |client| {
            let crds: Api<CustomResourceDefinition> = Api::all(client);
            for name in names {
                let look = || async {
                    let conditions = crds.get(name).await.ok()?.status?.conditions.unwrap_or_default();
                    let is_it = |condition: &CustomResourceDefinitionCondition| {
                        condition.type_ == "Established" && condition.status == "True"
                    };
                    conditions.iter().any(is_it).then_some(())
                };
                eventually(&format!("CRD {name} is established"), look).await;
            }
        });
    }

    /// Runs kubectl with all permissions.
    ///
    /// # Errors
    /// The standard error of kubectl if it fails.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.try_kubectl_stdin(args, "")
    }

    /// Runs kubectl with all permissions and this standard input (`-f -`), and returns its output.
    ///
    /// # Panics
    /// If kubectl fails, with its error message.
    pub fn kubectl_stdin(&self, args: &[&str], input: &str) -> String {
        self.try_kubectl_stdin(args, input)
            .unwrap_or_else(|error| panic!("kubectl {}: {error}", args.join(" ")))
    }

    /// Runs kubectl with all permissions and this standard input.
    ///
    /// # Errors
    /// The standard error of kubectl if it fails.
    pub fn try_kubectl_stdin(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut kubectl = self.kubectl_command();
        kubectl.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = kubectl.spawn().expect("kubectl can be started");
        let mut stdin = child.stdin.take().expect("its standard input is a pipe");
        let Output { status, stdout, stderr } = thread::scope(|scope| {
            // The write fails if kubectl exits early; its status tells more then.
            scope.spawn(move || drop(stdin.write_all(input.as_bytes())));
            child.wait_with_output().expect("kubectl can be waited for")
        });
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        if status.success() { Ok(stdout.into_owned()) } else { Err(stderr.into_owned()) }
    }

    pub(super) fn write_kubeconfig(&self, path: &Path, namespace: &str, token: &str) -> io::Result<()> {
        let context = json!({ "cluster": "test", "user": "test", "namespace": namespace });
        // JSON is YAML.
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port.number()),
                "certificate-authority": self.file("certs/apiserver.crt"),
            }}],
            "users": [{ "name": "test", "user": { "token": token } }],
            "contexts": [{ "name": "test", "context": context }],
            "current-context": "test",
        });
        // Replace the file atomically: another test may be reading it.
        let partial = path.with_extension(format!("{:016x}", rand::random::<u64>()));
        fs::write(&partial, kubeconfig.to_string())?;
        fs::rename(partial, path)
    }
}

/// Returns a client with the permissions of a kubeconfig, for use in the current Tokio runtime.
///
/// # Panics
/// If the kubeconfig can't be used.
pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.expect("a kubeconfig that can be used");
    // The environment may set a proxy, which isn't meant for loopback.
    config.proxy_url = None;
    Client::try_from(config).expect("a client")
}
