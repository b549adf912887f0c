//! Ways to speak to a control plane: clients, kubeconfigs, kubectl.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

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
        let token = self.kubectl(&["create", "token", name, "--namespace", namespace, "--duration=24h"]);
        let path = self.file(&format!("{namespace}.{name}.kubeconfig"));
        self.write_kubeconfig(&path, namespace, token.trim()).expect("write a kubeconfig");
        path
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

    /// Runs kubectl with all rights and returns what it prints.
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
