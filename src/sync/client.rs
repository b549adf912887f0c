//! The client of the API server.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::trouble::located;
use tower::timeout::TimeoutLayer;
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// How long a request waits for its answer to begin.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may pause. Longer than the API server lets a watch last, so that only a
/// dead connection gets there.
const READ_TIMEOUT: Duration = Duration::from_secs(58);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig can't be used.
    #[error("kubeconfig {0}")]
    Kubeconfig(String),
    /// Neither a Pod nor a kubeconfig.
    #[error(
        "no cluster to work with: this isn't a Pod and there is no kubeconfig {0}; \
         name one with --kubeconfig, or use --manifests to work without a cluster"
    )]
    NoCluster(String),
    /// The Pod's service account can't be used.
    #[error("the Pod's service account can't be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The TLS or proxy settings can't be used.
    #[error("the kubeconfig can't be used: {0}")]
    Settings(Box<kube::Error>),
}

impl ClientError {
    /// Says what is wrong with the kubeconfig at `place`, and where in it.
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

/// Returns a client of the cluster: of the kubeconfig that is named, else of the Pod that this
/// runs in, else of the kubeconfig that kubectl would take. It doesn't connect yet.
///
/// # Errors
/// If there is no configuration, or none that can be used.
pub async fn connect(kubeconfig: Option<PathBuf>, context: Option<String>) -> Result<Client, ClientError> {
    let options = KubeConfigOptions { context: context.clone(), ..Default::default() };
    let mut config = if let Some(path) = kubeconfig {
        let failed = |error| ClientError::kubeconfig(&path.display().to_string(), error);
        let kubeconfig = Kubeconfig::read_from(&path).map_err(failed)?;
        Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && context.is_none() {
        Config::incluster()?
    } else {
        let place = std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".into());
        Config::from_kubeconfig(&options).await.map_err(|error| match error {
            KubeconfigError::ReadConfig(error, path) if error.kind() == ErrorKind::NotFound => {
                ClientError::NoCluster(path.display().to_string())
            }
            KubeconfigError::FindPath => ClientError::NoCluster(place),
            error => ClientError::kubeconfig(&place, error),
        })?
    };
    // Retries are the reconciler's: they look at the desired state again.
    config.default_retry = false;
    // Of kube's `read_timeout` each read that has waited sets a timer to now, which wakes a thread for nothing.
    config.read_timeout = None;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("lb-linker/", env!("CARGO_PKG_VERSION")))));
    let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::Settings(Box::new(error)))?;
    let builder = builder.with_layer(&ResponseBodyTimeoutLayer::new(READ_TIMEOUT));
    Ok(builder.with_layer(&TimeoutLayer::new(REQUEST_TIMEOUT)).build())
}
