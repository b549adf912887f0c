//! A client that reads its configuration again when a file of it changes: the kubelet replaces tokens and certificates
//! while a Pod runs, and the address of the API server may change, too. The program of a kubeconfig that prints
//! credentials runs again when they are refused or get old.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tower::service_fn;
use tracing::{info, warn};

use super::credential_program::{Obtained, Renewal, Run, obtain, uses_program};
use super::{
    ApiServer, ClientConnection, ClientError, ClusterIdentity, ConfigSource, LoadedConfig, client_of,
};
use crate::model::names;

/// The shortest time between two readings of the files; a request causes a reading.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two readings after a request without an answer.
const READ_INTERVAL_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long a request waits for the files: a program that returns credentials, or a file system, may hang.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest pause that a plain-text answer can ask for: a proxy in front of the API server may send it, too.
const MAX_RETRY_AFTER_SECONDS: u32 = 30;

/// The error of each request as long as a program hasn't given credentials.
#[derive(Debug, thiserror::Error)]
#[error("there are no credentials for it yet")]
struct NoCredentials;

/// A hash of a file; `None` if it can't be read.
type FileHash = Option<String>;

struct ReloadingClient {
    source: ConfigSource,
    /// ` of cluster west` for the log; nothing for the home cluster.
    place: String,
    current: ArcSwap<Client>,
    /// Whether a request had no answer since the files were read.
    has_failed: AtomicBool,
    state: Mutex<ReadState>,
    identity: watch::Sender<ClusterIdentity>,
}

/// The files as they were read last.
struct ReadState {
    /// The end of the last reading, or the start of the present one.
    at: Instant,
    server: ApiServer,
    hashes: Vec<(PathBuf, FileHash)>,
    /// The reading that hasn't ended yet.
    reading: Option<JoinHandle<Result<Option<NewConfig>, ClientError>>>,
    /// Whether the files as they were read last aren't used, because they are of another cluster.
    is_refused: bool,
    /// When the program for the credentials runs again.
    renewal: Renewal,
    /// The last error, which is logged once.
    error: Option<String>,
}

/// A configuration whose files have changed, or whose credentials were renewed.
struct NewConfig {
    client: Client,
    server: ApiServer,
    identity: ClusterIdentity,
    hashes: Vec<(PathBuf, FileHash)>,
    obtained: Option<Obtained>,
}

impl NewConfig {
    /// Reads a configuration, and runs its program for credentials; with `None` it doesn't run, and each request of
    /// the client fails. Blocking.
    fn read(source: &ConfigSource, run: Option<Run>) -> Result<(Self, String), ClientError> {
        let (LoadedConfig { mut config, server, .. }, hashes) = Handle::current().block_on(read(source))?;
        let (identity, namespace) = (ClusterIdentity::of(&config, &server), config.default_namespace.clone());
        let (client, obtained) = match run {
            None if uses_program(&config.auth_info) => {
                (client_without_credentials(&namespace), Some(Obtained::nothing()))
            }
            run => {
                let obtained = run.map(|run| obtain(&mut config.auth_info, run)).transpose()?.flatten();
                (client_of(config)?, obtained)
            }
        };
        Ok((Self { client, server, identity, hashes, obtained }, namespace))
    }
}

fn client_without_credentials(namespace: &str) -> Client {
    let fail = |_: Request<Body>| async { Err::<Response<Body>, _>(NoCredentials) };
    Client::new(service_fn(fail), namespace)
}

/// Returns a client for the configuration of a source, which follows changes of the source. With `needs_program`
/// a program for credentials has to give some, otherwise it may do so later.
///
/// # Errors
/// If there is no configuration, or none that can be used.
pub(super) async fn reloading_client(
    source: ConfigSource,
    place: String,
    needs_program: bool,
) -> Result<ClientConnection, ClientError> {
    let (reloading, server, namespace) = ReloadingClient::open(source, place, needs_program).await?;
    let (identity, reloading) = (reloading.identity.subscribe(), Arc::new(reloading));
    let service = service_fn(move |request| {
        let reloading = Arc::clone(&reloading);
        async move { reloading.send(request).await }
    });
    Ok(ClientConnection { client: Client::new(service, namespace), server, identity })
}

impl ReloadingClient {
    /// Returns a client for the configuration of a source, its API server and its namespace.
    async fn open(
        mut source: ConfigSource,
        place: String,
        needs_program: bool,
    ) -> Result<(Self, ApiServer, String), ClientError> {
        let first = source.clone();
        let run = needs_program.then_some(Run::First);
        let opened = spawn_blocking(move || NewConfig::read(&first, run)).await;
        let failed = |error| ClientError::Kubeconfig(format!("can't be read: {error}"));
        let (NewConfig { client, server, identity, hashes, obtained }, namespace) =
            opened.map_err(failed)??;
        source.fix_context(&server);
        let reading = (!needs_program && obtained.is_some()).then(|| {
            let source = source.clone();
            spawn_blocking(move || NewConfig::read(&source, Some(Run::First)).map(|(new, _)| Some(new)))
        });
        let is_running = reading.is_some();
        let state = ReadState {
            at: Instant::now(),
            server: server.clone(),
            hashes,
            reading,
            is_refused: false,
            renewal: Renewal::new(obtained, Instant::now()),
            error: None,
        };
        let current = ArcSwap::from_pointee(client);
        let (has_failed, state) = (AtomicBool::new(false), Mutex::new(state));
        let identity = watch::Sender::new(identity);
        let opened = Self { source, place, current, has_failed, state, identity };
        if is_running {
            opened.refresh(opened.state.lock().await, READ_INTERVAL, false).await;
        }
        Ok((opened, server, namespace))
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let failed = self.has_failed.load(Ordering::Relaxed);
        // A single request reads the files; concurrent requests use the present client.
        if let Ok(state) = self.state.try_lock() {
            let interval = if failed { READ_INTERVAL_AFTER_FAILURE } else { READ_INTERVAL };
            self.refresh(state, interval, false).await;
        }
        let again = copy(&request);
        let client = self.current.load_full();
        match client.send(request).await {
            Ok(response) if response.status() == StatusCode::UNAUTHORIZED => {
                let state = self.state.lock().await;
                // A concurrent request may have renewed them.
                if Arc::ptr_eq(&client, &self.current.load()) {
                    self.refresh(state, READ_INTERVAL_AFTER_FAILURE, true).await;
                }
                let newer = self.current.load_full();
                match again {
                    // The request had no effect, so it can be repeated.
                    Some(again) if !Arc::ptr_eq(&client, &newer) => newer.send(again).await,
                    _ => Ok(response),
                }
            }
            Ok(response) => Ok(with_retry_after(response)),
            Err(error) => {
                self.has_failed.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Reads the files again if they were read longer ago than `interval`, or if the credentials of the kubeconfig's
    /// program have to be renewed. If they have changed, later requests use the new settings.
    async fn refresh(&self, mut state: MutexGuard<'_, ReadState>, interval: Duration, are_refused: bool) {
        let (now, is_waiting) = (Instant::now(), state.reading.is_some());
        let renews = state.renewal.is_due(are_refused, now);
        let is_fresh = state.renewal.pauses(now) || !renews && now.duration_since(state.at) < interval;
        if is_fresh && !is_waiting {
            return;
        }
        self.has_failed.store(false, Ordering::Relaxed);
        if !is_waiting {
            state.at = now;
        }
        let (source, known, started) = (self.source.clone(), state.hashes.clone(), state.at);
        // Reading may block. If the last reading hangs, there is no second one.
        let reading = state.reading.get_or_insert_with(|| {
            spawn_blocking(move || {
                if !renews && known.iter().all(|(file, hash)| hash_of(file) == *hash) {
                    return Ok(None);
                }
                NewConfig::read(&source, Some(Run::Later)).map(|(new, _)| Some(new))
            })
        });
        // The first requests wait for the files. If reading them hangs, later requests don't wait.
        let wait = READ_TIMEOUT.saturating_sub(now.duration_since(started));
        let ended = timeout(wait, reading).await;
        if ended.is_ok() {
            (state.reading, state.at) = (None, Instant::now());
        }
        let is_of_program = matches!(&ended, Ok(Ok(Err(ClientError::Program(_)))));
        if is_of_program || state.renewal.has_program() && !matches!(&ended, Ok(Ok(Ok(_))) | Err(_)) {
            let now = state.at;
            state.renewal.failed(now);
        }
        let error = match ended {
            Ok(Ok(Ok(new))) => match self.apply(&mut state, new) {
                Ok(()) => return,
                Err(error) => error,
            },
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(panic)) => panic.to_string(),
            // A program may take longer, and has a limit of its own.
            Err(_) if state.renewal.has_program() => return,
            Err(_) => format!("it can't be read within {READ_TIMEOUT:?}"),
        };
        if state.error.as_ref() == Some(&error) {
            return;
        }
        let place = &self.place;
        if is_of_program && !state.renewal.has_credentials() {
            warn!("there are no credentials for the API server{place} yet: {error}");
        } else if is_of_program {
            warn!(
                "the credentials for the API server{place} can't be renewed, the previous ones stay in use: {error}"
            );
        } else {
            warn!(
                "the changed configuration for the API server{place} isn't used, the previous one stays in force: {error}"
            );
        }
        state.error = Some(error);
    }

    /// Uses what was read; `None` if no file has changed.
    fn apply(&self, state: &mut ReadState, new: Option<NewConfig>) -> Result<(), String> {
        let place = &self.place;
        let Some(NewConfig { client, server, identity, hashes, obtained }) = new else {
            if !state.is_refused && state.error.take().is_some() {
                info!("the configuration for the API server{place} is as it was before");
            }
            return Ok(());
        };
        let have_changed = hashes != state.hashes;
        let are_other = state.renewal.renewed(obtained, state.at);
        state.hashes = hashes;
        if !self.identity.borrow().may_become(&identity) {
            state.is_refused = true;
            return Err(format!("it is of another cluster, {server}: restart lb-linker to use that one"));
        }
        let had_error = state.error.take().is_some();
        if !have_changed && !are_other {
            if had_error {
                info!(
                    "the configuration and the credentials for the API server{place} are as they were before"
                );
            }
            return Ok(());
        }
        self.current.store(Arc::new(client));
        self.identity.send_replace(identity);
        if server == state.server {
            info!("the credentials for the API server{place} have changed, and are used from now on");
        } else {
            info!("API server {server}{place}, because the configuration has changed");
        }
        (state.server, state.is_refused) = (server, false);
        Ok(())
    }
}

/// Reads a configuration. Returns it with hashes of its files that are no newer than the configuration.
async fn read(source: &ConfigSource) -> Result<(LoadedConfig, Vec<(PathBuf, FileHash)>), ClientError> {
    // Only the configuration tells which files it consists of.
    let files = source.load().await?.files;
    let hashed = |file: PathBuf| {
        let hash = hash_of(&file);
        (file, hash)
    };
    let hashes = files.into_iter().map(hashed).collect();
    Ok((source.load().await?, hashes))
}

fn hash_of(file: &Path) -> FileHash {
    std::fs::read(file).ok().map(names::hash_of)
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let body = request.body().try_clone()?;
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Moves the header Retry-After into a Status object, where [`crate::sync::k8s::errors::retry_after`] finds it: under
/// overload (API Priority and Fairness) the API server answers 429 with plain text.
fn with_retry_after(response: Response<Body>) -> Response<Body> {
    let status = response.status();
    let headers = response.headers();
    let is_json =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
    let seconds = seconds.map(|seconds| seconds.min(MAX_RETRY_AFTER_SECONDS));
    let Some(seconds) =
        seconds.filter(|_| !is_json && (status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()))
    else {
        return response;
    };
    let message = status.canonical_reason().unwrap_or_default();
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
        "reason": message, "message": message, "details": {"retryAfterSeconds": seconds},
    });
    let (parts, _) = response.into_parts();
    Response::from_parts(parts, Body::from(body.to_string().into_bytes()))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::sync::k8s::errors::{retry_after, root_cause};

    async fn retry_after_of(status: u16, headers: &[(&str, &str)], body: &str) -> Option<Duration> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let response = with_retry_after(response.body(Body::from(body.as_bytes().to_vec())).unwrap());
        let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), 1000).await.unwrap();
        let status = serde_json::from_slice::<Status>(&body).ok()?;
        retry_after(&kube::Error::Api(Box::new(status)))
    }

    #[tokio::test]
    async fn retry_after_of_plain_text_answers_is_found() {
        let header = ("Retry-After", "7");
        assert_eq!(retry_after_of(429, &[header], "Too many requests").await, Some(Duration::from_secs(7)));
        assert_eq!(retry_after_of(503, &[header], "").await, Some(Duration::from_secs(7)));
        let hour = ("Retry-After", "3600");
        assert_eq!(retry_after_of(503, &[hour], "maintenance").await, Some(Duration::from_secs(30)));
        assert_eq!(retry_after_of(429, &[], "Too many requests").await, None);
        let status = r#"{"status": "Failure", "code": 429, "details": {"retryAfterSeconds": 2}}"#;
        let json = ("Content-Type", "application/json");
        assert_eq!(retry_after_of(429, &[header, json], status).await, Some(Duration::from_secs(2)));
    }

    /// Returns a kubeconfig with this server, and the authority in this file.
    fn kubeconfig(server: &str, authority: &Path) -> String {
        format!(
            "clusters: [{{name: c, cluster: {{server: '{server}', certificate-authority: '{}'}}}}]
users: [{{name: u, user: {{token: {}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
",
            authority.display(),
            server.len()
        )
    }

    /// Writes the certificate of a new authority.
    fn write_authority(path: &Path) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        std::fs::write(path, params.self_signed(&key).unwrap().pem()).unwrap();
    }

    #[tokio::test]
    async fn another_address_is_followed_but_not_another_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let (own, other) = (directory.path().join("own.crt"), directory.path().join("other.crt"));
        write_authority(&own);
        write_authority(&other);
        std::fs::write(&path, kubeconfig("https://192.0.2.1", &own)).unwrap();
        let source = ConfigSource::Kubeconfig { path: path.clone(), context: None };
        let (reloading, ..) = ReloadingClient::open(source, String::new(), true).await.unwrap();
        for (server, authority, expected) in [
            ("https://192.0.2.22", &other, "https://192.0.2.1"),
            ("https://192.0.2.22/another", &own, "https://192.0.2.1"),
            ("https://192.0.2.22", &own, "https://192.0.2.22"),
            // The authority may be replaced while the address stays.
            ("https://192.0.2.22", &other, "https://192.0.2.22"),
        ] {
            let before = reloading.current.load_full();
            std::fs::write(&path, kubeconfig(server, authority)).unwrap();
            reloading.refresh(reloading.state.lock().await, Duration::ZERO, false).await;
            assert_eq!(reloading.identity.borrow().server, expected, "{server}");
            let is_kept = Arc::ptr_eq(&before, &reloading.current.load_full());
            assert_eq!(is_kept, server != expected, "{server}");
            let error = reloading.state.lock().await.error.clone().unwrap_or_default();
            assert_eq!(error.contains("restart lb-linker"), is_kept, "{error}");
            reloading.refresh(reloading.state.lock().await, Duration::ZERO, false).await;
            let unchanged = reloading.state.lock().await.error.clone().unwrap_or_default();
            assert_eq!(unchanged, error, "the error stays while the file does");
        }
    }

    /// Replaces the files of a volume as the kubelet does, by a symbolic link to a directory.
    fn write_volume(volume: &Path, generation: &str, token: &str, text: &str) {
        use std::os::unix::fs::symlink;
        let directory = volume.join(generation);
        std::fs::create_dir(&directory).unwrap();
        for (name, content) in [("west", text), ("token", token)] {
            std::fs::write(directory.join(name), content).unwrap();
            // The links stay as they are.
            let _ = symlink(Path::new("..data").join(name), volume.join(name));
        }
        symlink(generation, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    }

    #[tokio::test]
    async fn token_file_in_a_volume_of_a_secret_is_followed() {
        let volume = tempfile::tempdir().unwrap();
        let authority = volume.path().join("authority");
        write_authority(&authority);
        let text = kubeconfig("https://192.0.2.1", &authority);
        let (start, end) = text.split_once("{token: 17}").unwrap();
        let text = format!("{start}{{tokenFile: token}}{end}");
        write_volume(volume.path(), "..1", "one", &text);
        let source = ConfigSource::Kubeconfig { path: volume.path().join("west"), context: None };
        let (reloading, ..) = ReloadingClient::open(source, String::new(), true).await.unwrap();
        let other = text.replace("https://192.0.2.1", "https://192.0.2.2");
        for (generation, token, text, is_changed) in
            [("..2", "two", &text, true), ("..3", "two", &text, false), ("..4", "two", &other, true)]
        {
            let before = reloading.current.load_full();
            write_volume(volume.path(), generation, token, text);
            reloading.refresh(reloading.state.lock().await, Duration::ZERO, false).await;
            let is_kept = Arc::ptr_eq(&before, &reloading.current.load_full());
            assert_eq!((is_kept, &reloading.state.lock().await.error), (!is_changed, &None), "{generation}");
        }
        assert_eq!(reloading.identity.borrow().server, "https://192.0.2.2");
    }

    #[tokio::test]
    async fn program_that_fails_first_gives_credentials_later() {
        let directory = tempfile::tempdir().unwrap();
        let (path, token) = (directory.path().join("config"), directory.path().join("token"));
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:9'}}}}]
users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: ['{}']}}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
",
            token.display()
        );
        std::fs::write(&path, text).unwrap();
        let source = ConfigSource::Kubeconfig { path, context: None };
        let failed = ReloadingClient::open(source.clone(), String::new(), true).await.err().unwrap();
        assert!(matches!(failed, ClientError::Program(_)), "{failed}");
        let (reloading, server, _) = ReloadingClient::open(source, String::new(), false).await.unwrap();
        assert_eq!(server.url, "https://127.0.0.1:9");
        assert!(reloading.state.lock().await.error.as_ref().unwrap().contains("failed: exit status: 1"));
        let request = || Request::get("/version").body(Body::empty()).unwrap();
        let failure = reloading.send(request()).await.unwrap_err();
        assert_eq!(root_cause(&failure), NoCredentials.to_string());
        std::fs::write(&token, "status: {token: t}").unwrap();
        let has_credentials = async || reloading.state.lock().await.renewal.has_credentials();
        while !has_credentials().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
            reloading.refresh(reloading.state.lock().await, READ_INTERVAL, false).await;
        }
        let failure = reloading.send(request()).await.unwrap_err();
        assert_ne!(root_cause(&failure), NoCredentials.to_string(), "the request is sent");
    }

    #[test]
    fn copied_request_keeps_method_uri_and_headers() {
        let request = Request::put("/api").header("a", "b").body(Body::from(b"body".to_vec())).unwrap();
        let copy = copy(&request).unwrap();
        assert_eq!((copy.method().as_str(), copy.uri().path()), ("PUT", "/api"));
        assert_eq!(copy.headers()["a"], "b");
    }
}
