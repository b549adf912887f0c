//! Connects to the API server.

mod credential_program;
mod reloading;

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use self::credential_program::ProgramError;
use self::reloading::reloading_client;
use crate::model::excerpt::{located, sentence, value};
use crate::model::names;
use crate::sync::k8s::errors::credential_failure;
use tower::timeout::TimeoutLayer;
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// Timeout for the start of a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout between two parts of a response body. Longer than the API server lets a watch last, so that only a dead
/// connection reaches it.
const READ_TIMEOUT: Duration = Duration::from_secs(58);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("kubeconfig {0}")]
    Kubeconfig(String),
    /// The process neither runs in a Pod nor finds a kubeconfig.
    #[error(
        "no cluster to work with: this isn't a Pod and there is no kubeconfig {0}; \
         name one with --kubeconfig; `run`, `check` and `links` also work without a cluster, by --manifests"
    )]
    NoCluster(String),
    #[error("the Pod's service account can't be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("the configuration for the API server can't be used: {}", credential_failure(&**.0).unwrap_or_else(|| .0.to_string()))]
    Settings(Box<kube::Error>),
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// kube panics at such a token.
    #[error(
        "the configuration for the API server can't be used: its token has a character that no HTTP header can have, \
         such as a line break"
    )]
    Token,
}

impl ClientError {
    /// Returns the error for the kubeconfig at `place`, with the position of the mistake.
    fn kubeconfig(place: &str, error: KubeconfigError) -> Self {
        Self::Kubeconfig(match error {
            KubeconfigError::ReadConfig(error, path) => format!("{}: {error}", path.display()),
            KubeconfigError::Parse(error) => located(place, &error),
            KubeconfigError::CurrentContextNotSet => {
                format!("{place}: it has no current-context; choose a context with --context")
            }
            KubeconfigError::LoadContext(context) => format!("{place}: it has no context {context:?}"),
            KubeconfigError::LoadClusterOfContext(cluster) => {
                format!("{place}: the context's cluster {cluster:?} isn't in it")
            }
            error => format!("{place}: {error}"),
        })
    }
}

/// A client and its API server.
#[derive(Clone)]
pub struct ClientConnection {
    pub client: Client,
    pub server: ApiServer,
    /// The identity of the cluster. The address in it may change.
    pub identity: watch::Receiver<ClusterIdentity>,
}

/// Maximum number of certificates of a [`ClusterIdentity`].
const MAX_AUTHORITIES: usize = 16;

/// Identifies a cluster without a request to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIdentity {
    /// The URL of the API server, without credentials.
    pub server: String,
    /// The SHA-256 hashes of the certificates of the cluster's authorities, in hexadecimal digits; none if the system's
    /// authorities are trusted.
    pub authorities: Vec<String>,
}

impl ClusterIdentity {
    fn of(config: &Config, server: &ApiServer) -> Self {
        let certificates = config.root_cert.iter().flatten().take(MAX_AUTHORITIES);
        let hash = |certificate: &Vec<u8>| names::hash_of(certificate);
        Self { server: server.url.clone(), authorities: certificates.map(hash).collect() }
    }

    /// Returns whether both are the same cluster: the same address, and a common authority, or no authority in either.
    /// While authorities are replaced, the old and the new one are both trusted.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_common = |authority| other.authorities.contains(authority);
        let none = self.authorities.is_empty() && other.authorities.is_empty();
        self.server == other.server && (none || self.authorities.iter().any(is_common))
    }

    /// Returns whether a running process may follow the configuration from this cluster to `other`: both have the same
    /// address, or a common authority and URLs with the same path, which distinguishes clusters behind one host.
    fn may_become(&self, other: &Self) -> bool {
        let path = |url: &str| {
            let (_, rest) = url.split_once("://").unwrap_or_default();
            rest.split_once('/').map(|(_, path)| path.to_owned())
        };
        let is_common = |authority| other.authorities.contains(authority);
        self.server == other.server
            || path(&self.server) == path(&other.server) && self.authorities.iter().any(is_common)
    }
}

/// The API server as the log names it: `https://192.0.2.1:6443 (context "production" of /home/ann/.kube/config)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    url: String,
    /// The context and the path of the kubeconfig; `None` in a Pod.
    context: Option<(String, String)>,
}

impl ApiServer {
    fn of(config: &Config, context: Option<(String, String)>) -> Self {
        let uri = &config.cluster_url;
        // The URL may contain a user and a password before the host, which mustn't be logged.
        let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        let path = uri.path().trim_end_matches('/');
        let (scheme, host) = (uri.scheme_str().unwrap_or("https"), uri.host().unwrap_or_default());
        Self { url: format!("{scheme}://{host}{port}{path}"), context }
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = sentence(&self.url);
        match &self.context {
            Some((context, place)) => write!(f, "{url} (context {} of {})", value(context), sentence(place)),
            None => write!(f, "{url} (the Pod's service account)"),
        }
    }
}

/// The files of a Pod's service account that the client uses. The address of the API server is in the environment,
/// which doesn't change.
const SERVICE_ACCOUNT_FILES: [&str; 2] = [
    "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
    "/var/run/secrets/kubernetes.io/serviceaccount/token",
];

/// Where the address and the credentials of the API server are read.
#[derive(Clone, Debug)]
enum ConfigSource {
    Kubeconfig {
        path: PathBuf,
        context: Option<String>,
    },
    InCluster,
    /// The kubeconfig of kubectl: `$KUBECONFIG` or `~/.kube/config`.
    Default {
        context: Option<String>,
    },
}

/// A configuration as it was read, and the files that it consists of.
struct LoadedConfig {
    config: Config,
    server: ApiServer,
    files: Vec<PathBuf>,
}

impl ConfigSource {
    fn new(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        match kubeconfig {
            Some(path) => Self::Kubeconfig { path, context },
            None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && context.is_none() => {
                Self::InCluster
            }
            None => Self::Default { context },
        }
    }

    async fn load(&self) -> Result<LoadedConfig, ClientError> {
        match self {
            Self::Kubeconfig { path, context } => {
                let place = path.display().to_string();
                let failed = |error| ClientError::kubeconfig(&place, error);
                let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
                let files = vec![path.clone()];
                of_kubeconfig(kubeconfig, context.clone(), files, place.clone()).await.map_err(failed)
            }
            Self::InCluster => {
                let config = Config::incluster()?;
                let server = ApiServer::of(&config, None);
                Ok(LoadedConfig { config, server, files: SERVICE_ACCOUNT_FILES.map(PathBuf::from).to_vec() })
            }
            Self::Default { context } => {
                let variable = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty());
                let place =
                    variable.as_ref().map_or("~/.kube/config".into(), |paths| paths.to_string_lossy());
                let failed = |error| match error {
                    KubeconfigError::ReadConfig(error, path) if error.kind() == ErrorKind::NotFound => {
                        ClientError::NoCluster(path.display().to_string())
                    }
                    KubeconfigError::FindPath => ClientError::NoCluster(place.to_string()),
                    error => ClientError::kubeconfig(&place, error),
                };
                let files = match &variable {
                    Some(paths) => std::env::split_paths(paths).collect(),
                    None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
                };
                let kubeconfig = Kubeconfig::read().map_err(failed)?;
                of_kubeconfig(kubeconfig, context.clone(), files, place.to_string()).await.map_err(failed)
            }
        }
    }

    /// Fixes the context: a later `kubectl config use-context` must not move a running process to another cluster.
    fn fix_context(&mut self, server: &ApiServer) {
        if let Self::Kubeconfig { context, .. } | Self::Default { context } = self
            && context.is_none()
        {
            *context = server.context.as_ref().map(|(context, _)| context.clone());
        }
    }
}

/// Returns a client for the cluster: that of the given kubeconfig, else, if no context is given, that of the Pod of
/// this process, else that of kubectl's default kubeconfig. Doesn't connect yet. The client reads the configuration and
/// its files again when they change.
///
/// # Errors
/// If there is no configuration, or none that can be used.
pub async fn connect(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<ClientConnection, ClientError> {
    reloading_client(ConfigSource::new(kubeconfig, context), true).await
}

/// As [`connect`], but if the kubeconfig's program for credentials fails, or takes some seconds, each request fails
/// until a run gives credentials.
///
/// # Errors
/// As for [`connect`], except for failures of the program.
pub async fn connect_before_credentials(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<ClientConnection, ClientError> {
    reloading_client(ConfigSource::new(kubeconfig, context), false).await
}

/// Returns a client for this configuration. The client never reads the configuration again.
fn client_of(mut config: Config) -> Result<Client, ClientError> {
    // The reconciler retries by itself: it computes the desired state again first.
    config.default_retry = false;
    // With kube's `read_timeout` each read that has waited sets a timer to now, which wakes a thread for nothing.
    config.read_timeout = None;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("lb-linker/", env!("CARGO_PKG_VERSION")))));
    let token = config.auth_info.token.as_ref().map(SecretString::expose_secret);
    if token.is_some_and(|token| HeaderValue::try_from(token).is_err()) {
        return Err(ClientError::Token);
    }
    let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::Settings(Box::new(error)))?;
    let builder = builder.with_layer(&ResponseBodyTimeoutLayer::new(READ_TIMEOUT));
    Ok(builder.with_layer(&TimeoutLayer::new(REQUEST_TIMEOUT)).build())
}

/// Returns the configuration of a context, by default of the current context. `files` are those of the kubeconfig.
async fn of_kubeconfig(
    kubeconfig: Kubeconfig,
    context: Option<String>,
    mut files: Vec<PathBuf>,
    place: String,
) -> Result<LoadedConfig, KubeconfigError> {
    let used = context.clone().or_else(|| kubeconfig.current_context.clone()).unwrap_or_default();
    files.extend(files_of_context(&kubeconfig, &used));
    let options = KubeConfigOptions { context, ..Default::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let server = ApiServer::of(&config, Some((used, place)));
    Ok(LoadedConfig { config, server, files })
}

/// Returns the files that a context of a kubeconfig names: certificates, key and token.
fn files_of_context(kubeconfig: &Kubeconfig, name: &str) -> Vec<PathBuf> {
    let context = kubeconfig.contexts.iter().find(|context| context.name == name);
    let Some(context) = context.and_then(|context| context.context.as_ref()) else { return Vec::new() };
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let user = kubeconfig.auth_infos.iter().find(|user| context.user.as_ref() == Some(&user.name));
    let cluster = cluster.and_then(|cluster| cluster.cluster.as_ref());
    let user = user.and_then(|user| user.auth_info.as_ref());
    let authority = cluster.and_then(|cluster| cluster.certificate_authority.as_ref());
    let credentials = user.map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    let credentials = credentials.into_iter().flatten().flatten();
    authority.into_iter().chain(credentials).map(|path| Path::new(path).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_server_is_displayed_without_credentials() {
        let config = |url: &str| Config::new(url.parse().unwrap());
        let of = |url: &str, context: Option<(&str, &str)>| {
            let context = context.map(|(context, place)| (context.to_owned(), place.to_owned()));
            ApiServer::of(&config(url), context).to_string()
        };
        assert_eq!(of("https://10.0.0.1:443", None), "https://10.0.0.1:443 (the Pod's service account)");
        assert_eq!(
            of("https://ann:secret@[2001:db8::1]:6443/k8s/clusters/c/", Some(("prod\n", "/k"))),
            "https://[2001:db8::1]:6443/k8s/clusters/c (context \"prod\\n\" of /k)"
        );
    }

    #[test]
    fn cluster_is_known_by_its_address_and_a_common_authority() {
        let identity = |server: &str, authorities: &[&str]| ClusterIdentity {
            server: server.to_owned(),
            authorities: authorities.iter().map(ToString::to_string).collect(),
        };
        let known = identity("https://10.0.0.1", &["a", "b"]);
        assert!(known.is_same(&known) && known.is_same(&identity("https://10.0.0.1", &["b", "c"])));
        for other in [
            identity("https://10.0.0.2", &["a", "b"]),
            identity("https://10.0.0.1", &["c"]),
            identity("https://10.0.0.1", &[]),
        ] {
            assert!(!known.is_same(&other) && !other.is_same(&known));
        }
        let system = identity("https://10.0.0.1", &[]);
        assert!(system.is_same(&system));
        for (other, expected) in [
            (identity("https://10.0.0.1", &["c"]), true),
            (identity("https://10.0.0.2", &["b", "c"]), true),
            (identity("https://10.0.0.2", &["c"]), false),
            (identity("https://10.0.0.2", &[]), false),
            (identity("https://10.0.0.2/k8s/clusters/c", &["a"]), false),
        ] {
            assert_eq!(known.may_become(&other), expected, "{other:?}");
        }
        assert!(!system.may_become(&identity("https://10.0.0.2", &[])));
    }

    #[test]
    fn files_that_a_context_names_are_returned() {
        let kubeconfig = Kubeconfig::from_yaml(
            "clusters:
- {name: a, cluster: {server: https://192.0.2.1, certificate-authority: /a/ca.crt}}
- {name: b, cluster: {server: https://192.0.2.2, certificate-authority: /b/ca.crt}}
users:
- {name: ann, user: {client-certificate: /ann.crt, client-key: /ann.key}}
- {name: ben, user: {tokenFile: /ben.token}}
contexts:
- {name: one, context: {cluster: a, user: ann}}
- {name: two, context: {cluster: b, user: ben}}
",
        )
        .unwrap();
        let files = |context| {
            let files = files_of_context(&kubeconfig, context);
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(files("one"), ["/a/ca.crt", "/ann.crt", "/ann.key"]);
        assert_eq!(files("two"), ["/b/ca.crt", "/ben.token"]);
        assert!(files("three").is_empty());
    }
}
