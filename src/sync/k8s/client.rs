//! Connects to the API server.

mod credential_program;
mod kubeconfig;
pub(crate) mod limits;
mod reloading;
mod settings;

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::header::USER_AGENT;
use axum::http::{HeaderValue, Request};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use self::credential_program::ProgramError;
pub use self::credential_program::kill_credential_programs;
use self::kubeconfig::{of_default_kubeconfig, of_endpoint, of_kubeconfig_file};
use self::reloading::reloading_client;
use crate::model::excerpt::{sentence, value};
use crate::model::names;
use crate::store::cluster::registry::ClientTls;
use tower::Service;
use tower::layer::layer_fn;
use tower::timeout::TimeoutLayer;
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// Timeout for the start of a response.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout between two parts of a response body. Longer than the API server lets a watch last, so that only a dead
/// connection reaches it.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(58);

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
    /// As [`Self::NoCluster`], for what only the plugin *kubernetes* reads.
    #[error(
        "no cluster to work with: this isn't a Pod and there is no kubeconfig {0}; name one with --kubeconfig, or in the \
         Corefile with the option kubeconfig of kubernetes, or with its option endpoint"
    )]
    NoClusterDns(String),
    #[error("the Pod's service account can't be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("the configuration for the API server can't be used: {}", settings::explain(.0))]
    Settings(Box<kube::Error>),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("the configuration for the API server can't be used: tokenFile {0}")]
    TokenFile(String),
    /// kube panics at such a token.
    #[error(
        "the configuration for the API server can't be used: its token has a character that no HTTP header can have, \
         such as a line break"
    )]
    Token,
    /// kube panics at each request.
    #[error(
        "the configuration for the API server can't be used: {0} in its client: report this as a bug of lb-linker"
    )]
    Panic(String),
}

impl ClientError {
    /// Returns the error about a cluster that the plugin *kubernetes* reads: manifests can't take its place.
    #[must_use]
    pub fn of_cluster_dns(self) -> Self {
        match self {
            Self::NoCluster(place) => Self::NoClusterDns(place),
            error => error,
        }
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
    /// The user of the context, if requests are made without credentials, as `system:anonymous`.
    anonymous_user: Option<String>,
}

impl ApiServer {
    fn of(config: &Config, context: Option<(String, String)>) -> Self {
        let uri = &config.cluster_url;
        // The URL may contain a user and a password before the host, which mustn't be logged.
        let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        let path = uri.path().trim_end_matches('/');
        let (scheme, host) = (uri.scheme_str().unwrap_or("https"), uri.host().unwrap_or_default());
        Self { url: format!("{scheme}://{host}{port}{path}"), context, anonymous_user: None }
    }

    /// Returns whether requests are made without credentials although the API server may ask for some.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.anonymous_user.is_some()
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = sentence(&self.url);
        match &self.context {
            Some((context, place)) => {
                write!(f, "{url} (context {} of {}", value(context), sentence(place))?;
                match &self.anonymous_user {
                    Some(user) if user.is_empty() => f.write_str(", which names no user)"),
                    Some(user) => write!(f, ", whose user {} has no credentials)", value(user)),
                    None => f.write_str(")"),
                }
            }
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
    /// The URL of the API server, and the files of a connection by TLS.
    Endpoint {
        url: String,
        tls: Option<ClientTls>,
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
        // As for kubectl, an empty context is the current one.
        let context = context.filter(|context| !context.is_empty());
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
            Self::Kubeconfig { path, context } => of_kubeconfig_file(path, context.clone()).await,
            Self::Endpoint { url, tls } => of_endpoint(url, tls.as_ref()).await,
            Self::InCluster => {
                let config = Config::incluster()?;
                let server = ApiServer::of(&config, None);
                Ok(LoadedConfig { config, server, files: SERVICE_ACCOUNT_FILES.map(PathBuf::from).to_vec() })
            }
            Self::Default { context } => of_default_kubeconfig(context.clone()).await,
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

/// Returns a client for the API server at this URL. Doesn't connect yet. The client reads the files again when they
/// change.
///
/// # Errors
/// If the URL or a file can't be used.
pub async fn connect_to(url: &str, tls: Option<&ClientTls>) -> Result<ClientConnection, ClientError> {
    reloading_client(ConfigSource::Endpoint { url: url.to_owned(), tls: tls.cloned() }, false).await
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
    settings::read_token(&mut config.auth_info)?;
    let token = config.auth_info.token.as_ref().map(SecretString::expose_secret);
    if token.is_some_and(|token| HeaderValue::try_from(token).is_err()) {
        return Err(ClientError::Token);
    }
    let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::Settings(Box::new(error)))?;
    // kube panics in a task of its own, after which each request would fail.
    let panic = Cell::new(None);
    let builder = builder.with_layer(&layer_fn(|mut service| {
        panic.set(panic_of_a_request(&mut service));
        service
    }));
    if let Some(panic) = panic.take() {
        return Err(ClientError::Panic(panic));
    }
    let builder = builder.with_layer(&ResponseBodyTimeoutLayer::new(READ_TIMEOUT));
    Ok(builder.with_layer(&TimeoutLayer::new(REQUEST_TIMEOUT)).build())
}

/// Makes a request that is never sent. Returns the message of a panic, if there is one.
fn panic_of_a_request<S: Service<Request<Body>>>(service: &mut S) -> Option<String> {
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let panic = catch_unwind(AssertUnwindSafe(|| drop(service.call(request)))).err()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    Some(sentence(message).to_string())
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
    fn missing_cluster_of_the_plugin_kubernetes_has_its_own_remedy() {
        let missing = || ClientError::NoCluster("~/.kube/config".to_owned());
        let (of_links, of_plugin) = (missing().to_string(), missing().of_cluster_dns().to_string());
        assert!(of_links.ends_with("also work without a cluster, by --manifests"), "{of_links}");
        assert!(of_plugin.contains("~/.kube/config") && !of_plugin.contains("--manifests"), "{of_plugin}");
    }

    #[tokio::test]
    async fn panic_of_kube_is_an_error_of_the_configuration() {
        // kube can't make the URL of a request from a server without a scheme.
        let config = Config::new("192.0.2.1:6443".parse().unwrap());
        let error = client_of(config).err().unwrap();
        assert!(matches!(error, ClientError::Panic(_)), "{error}");
        assert!(client_of(Config::new("http://192.0.2.1:6443".parse().unwrap())).is_ok());
    }
}
