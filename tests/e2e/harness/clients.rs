//! Ways to speak to a control plane: clients, kubeconfigs, kubectl.

use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use axum::http::Request;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::cluster::Cluster;
use super::control_plane::ControlPlane;
use super::programs::programs;

impl ControlPlane {
    /// The kubeconfig of a user who may do everything.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.file("admin.kubeconfig")
    }

    /// A client with all rights, for the runtime that it is asked for in.
    pub async fn admin_client(&self) -> Client {
        client(&self.admin_kubeconfig()).await
    }

    /// The cluster with all rights, for the runtime that it is asked for in.
    pub async fn cluster(&self) -> Cluster {
        Cluster::new(self.admin_client().await)
    }

    /// A kubeconfig with the rights of a ServiceAccount, which must exist. Its token is valid for a day.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> PathBuf {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(24 * 60 * 60),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let token = self.with_client(async |client| {
            let accounts = Api::<ServiceAccount>::namespaced(client, namespace);
            let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
            let answer = answer.unwrap_or_else(|error| panic!("token for {namespace}/{name}: {error}"));
            answer.status.and_then(|status| status.token).expect("a token")
        });
        let path = self.file(&format!("{namespace}.{name}.kubeconfig"));
        self.write_kubeconfig(&path, namespace, &token).expect("write a kubeconfig");
        path
    }

    /// Does `work` with a client with all rights, and waits for it: in a runtime of its own, so that it may be called
    /// inside another one. Costs a tenth of the processor time of a kubectl.
    fn with_client<T: Send>(&self, work: impl AsyncFnOnce(Client) -> T + Send) -> T {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async { work(self.admin_client().await).await })
        };
        thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Whether the API server says that it is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.with_client(async |client| {
            let request = Request::get("/readyz").body(Vec::new()).expect("a request");
            timeout(Duration::from_secs(2), client.request_text(request)).await.is_ok_and(|it| it.is_ok())
        })
    }

    /// The objects of a list, such as `/api/v1/namespaces/default/events`.
    ///
    /// # Panics
    /// When they can't be listed, with the server's reason.
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

    /// The reasons of the Events of a namespace.
    pub fn event_reasons(&self, namespace: &str) -> Vec<String> {
        let events = self.list(&format!("/api/v1/namespaces/{namespace}/events"));
        events.iter().map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Applies the objects of YAML documents on the server's side, with all rights.
    ///
    /// # Panics
    /// When one is refused, with the server's reason.
    pub fn apply(&self, manifests: &str) {
        let objects: Vec<DynamicObject> = serde_saphyr::from_multiple(manifests).expect("objects in YAML");
        self.apply_objects(&objects);
    }

    /// Applies these objects on the server's side, with all rights.
    ///
    /// # Panics
    /// When one is refused, with the server's reason.
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

    /// A kubectl with all rights, for uses that the methods below don't serve. `KUBECONFIG` can be set to
    /// another.
    pub fn kubectl_command(&self) -> Command {
        let mut kubectl = Command::new(&programs().kubectl);
        // A home of its own: kubectl caches what a server offers under the server's port, and reads settings
        // there.
        kubectl.env("HOME", self.file("home")).env("KUBECONFIG", self.admin_kubeconfig());
        kubectl
    }

    /// Runs kubectl with all rights and returns what it prints. It takes processor time: not for what is repeated.
    ///
    /// # Panics
    /// When it fails, with what it says.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|error| panic!("kubectl {}: {error}", args.join(" ")))
    }

    /// Runs kubectl with all rights.
    ///
    /// # Errors
    /// What it prints on standard error when it fails.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.run_kubectl(args, "")
    }

    /// Runs kubectl with all rights and with this standard input (`-f -`), and returns what it prints.
    ///
    /// # Panics
    /// When it fails, with what it says.
    pub fn kubectl_stdin(&self, args: &[&str], input: &str) -> String {
        self.run_kubectl(args, input).unwrap_or_else(|error| panic!("kubectl {}: {error}", args.join(" ")))
    }

    fn run_kubectl(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut kubectl = self.kubectl_command();
        kubectl.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = kubectl.spawn().expect("kubectl can be started");
        let mut stdin = child.stdin.take().expect("its standard input is a pipe");
        let Output { status, stdout, stderr } = thread::scope(|scope| {
            // Fails when kubectl ends without reading it all, and then its status tells more.
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
        // Another test may be reading it: whole, or not at all.
        let partial = path.with_extension(format!("{:016x}", rand::random::<u64>()));
        fs::write(&partial, kubeconfig.to_string())?;
        fs::rename(partial, path)
    }
}

/// A client with the rights of a kubeconfig, for the runtime that it is asked for in.
///
/// # Panics
/// When the kubeconfig can't be used.
pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.expect("a kubeconfig that can be used");
    // It may come from the environment, where loopback isn't meant.
    config.proxy_url = None;
    Client::try_from(config).expect("a client")
}
