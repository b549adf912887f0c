//! Connects to the API server.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::model::excerpt::{located, sentence, value};
use crate::model::names;
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
    #[error("the kubeconfig can't be used: {0}")]
    Settings(Box<kube::Error>),
    /// kube panics at such a token.
    #[error(
        "the kubeconfig can't be used: its token has a character that no HTTP header can have, such as a line break"
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
    pub identity: ClusterIdentity,
}

/// Maximum number of certificates of a [`ClusterIdentity`].
const MAX_AUTHORITIES: usize = 16;

/// What distinguishes a cluster from others without asking it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIdentity {
    /// The URL of the API server, without credentials.
    pub server: String,
    /// The SHA-256 hashes of the certificates of its authorities, in hexadecimal digits; none if the system's are
    /// trusted.
    pub authorities: Vec<String>,
}

impl ClusterIdentity {
    fn of(config: &Config, server: &ApiServer) -> Self {
        let certificates = config.root_cert.iter().flatten().take(MAX_AUTHORITIES);
        let hash = |certificate: &Vec<u8>| names::hash_of(certificate);
        Self { server: server.url.clone(), authorities: certificates.map(hash).collect() }
    }

    /// Returns whether both are the same cluster: the same address, and a common authority. While authorities are
    /// replaced, the old and the new one are both trusted.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_common = |authority| other.authorities.contains(authority);
        let none = self.authorities.is_empty() && other.authorities.is_empty();
        self.server == other.server && (none || self.authorities.iter().any(is_common))
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

/// Returns a client for the cluster: that of the given kubeconfig, else, if no context is given, that of the Pod of
/// this process, else that of kubectl's default kubeconfig. Doesn't connect yet.
///
/// # Errors
/// If there is no configuration, or none that can be used.
pub async fn connect(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<ClientConnection, ClientError> {
    let (mut config, used) = if let Some(path) = kubeconfig {
        let place = path.display().to_string();
        let failed = |error| ClientError::kubeconfig(&place, error);
        let kubeconfig = Kubeconfig::read_from(&path).map_err(failed)?;
        let (config, context) = of_kubeconfig(kubeconfig, context).await.map_err(failed)?;
        (config, Some((context, place)))
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && context.is_none() {
        (Config::incluster()?, None)
    } else {
        let place = std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".into());
        let failed = |error| match error {
            KubeconfigError::ReadConfig(error, path) if error.kind() == ErrorKind::NotFound => {
                ClientError::NoCluster(path.display().to_string())
            }
            KubeconfigError::FindPath => ClientError::NoCluster(place.clone()),
            error => ClientError::kubeconfig(&place, error),
        };
        let kubeconfig = Kubeconfig::read().map_err(failed)?;
        let (config, context) = of_kubeconfig(kubeconfig, context).await.map_err(failed)?;
        (config, Some((context, place.clone())))
    };
    let server = ApiServer::of(&config, used);
    let identity = ClusterIdentity::of(&config, &server);
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
    let client = builder.with_layer(&TimeoutLayer::new(REQUEST_TIMEOUT)).build();
    Ok(ClientConnection { client, server, identity })
}

/// Returns the configuration and the name of a context, by default of the current context.
async fn of_kubeconfig(
    kubeconfig: Kubeconfig,
    context: Option<String>,
) -> Result<(Config, String), KubeconfigError> {
    let used = context.clone().or_else(|| kubeconfig.current_context.clone()).unwrap_or_default();
    let options = KubeConfigOptions { context, ..Default::default() };
    Ok((Config::from_custom_kubeconfig(kubeconfig, &options).await?, used))
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
    }
}
