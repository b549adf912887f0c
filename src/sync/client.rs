//! The client of the API server.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::timeout::TimeoutLayer;

/// How long a request waits for its answer to begin.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may pause. Longer than the API server lets a watch last, so that only a
/// dead connection gets there.
const READ_TIMEOUT: Duration = Duration::from_secs(58);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig can't be used.
    #[error("kubeconfig {place}: {source}")]
    Kubeconfig {
        /// The file, or where it was looked for.
        place: String,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// Neither a Pod nor a kubeconfig.
    #[error(
        "no cluster to work with: this isn't a Pod and there is no kubeconfig ({0}); \
         name one with --kubeconfig, or use --manifests to work without a cluster"
    )]
    NoCluster(Box<KubeconfigError>),
    /// The Pod's service account can't be used.
    #[error("the Pod's service account can't be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The TLS settings can't be used.
    #[error("kubeconfig: {0}")]
    Settings(Box<kube::Error>),
}

/// Returns a client of the cluster: of the kubeconfig that is named, else of the Pod that this
/// runs in, else of the kubeconfig that kubectl would take. It doesn't connect yet.
///
/// # Errors
/// If there is no configuration, or none that can be used.
pub async fn connect(kubeconfig: Option<PathBuf>, context: Option<String>) -> Result<Client, ClientError> {
    let options = KubeConfigOptions { context: context.clone(), ..Default::default() };
    let mut config = if let Some(path) = kubeconfig {
        let failed =
            |source| ClientError::Kubeconfig { place: path.display().to_string(), source: Box::new(source) };
        let kubeconfig = Kubeconfig::read_from(&path).map_err(failed)?;
        Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && context.is_none() {
        Config::incluster()?
    } else {
        Config::from_kubeconfig(&options).await.map_err(|source| match source {
            KubeconfigError::FindPath | KubeconfigError::ReadConfig(..) => {
                ClientError::NoCluster(Box::new(source))
            }
            source => ClientError::Kubeconfig {
                place: std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".into()),
                source: Box::new(source),
            },
        })?
    };
    // Retries are the reconciler's: they look at the desired state again.
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("lb-linker/", env!("CARGO_PKG_VERSION")))));
    let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::Settings(Box::new(error)))?;
    Ok(builder.with_layer(&TimeoutLayer::new(REQUEST_TIMEOUT)).build())
}
