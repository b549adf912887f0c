//! The corpus of Corefiles in `tests/corefiles`, in the shapes that public repositories have.
//!
//! The first line of a file is `# KIND: loads` or `# KIND: refused: MESSAGE`, with the beginning of the error. The kind
//! is `stand-alone`, or `other` for the Corefiles of clusters and for external plugins. A line `# asks: NAME TYPE ->
//! DATA` is a question that is answered without an upstream. `/etc/coredns` stands for `tests/corefiles/files`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hickory_proto::op::Message;
use lb_linker::dns::corefile::FileSources;
use lb_linker::dns::net::Protocol;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::{Configuration, configure};
use lb_linker::store::{OnGone, Store};
use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::dns::{data, query};

const FILES: usize = 102;
const STAND_ALONE: usize = 60;
const LOADED: usize = 84;
const STAND_ALONE_LOADED: usize = 55;

const KINDS: [&str; 2] = ["stand-alone", "other"];

struct Corefile {
    name: String,
    text: String,
    kind: &'static str,
    /// The beginning of the error; `None` if the Corefile loads.
    refusal: Option<String>,
    /// Questions and the data of their answers.
    asks: Vec<(String, String)>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corefiles")
}

fn corpus() -> Vec<Corefile> {
    let entries = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension() == Some("corefile".as_ref())).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Corefile {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let text = std::fs::read_to_string(path).unwrap();
    let expected = text.lines().next().unwrap().strip_prefix("# ").unwrap();
    let (kind, expected) = expected.split_once(": ").unwrap();
    let kind = KINDS.into_iter().find(|known| *known == kind).unwrap();
    let refusal = expected.strip_prefix("refused: ").map(str::to_owned);
    assert!(refusal.is_some() || expected == "loads", "{name}");
    let asks = text.lines().filter_map(|line| line.strip_prefix("# asks: ")?.split_once(" -> "));
    let asks = asks.map(|(question, answer)| (question.to_owned(), answer.to_owned())).collect();
    Corefile { name, kind, refusal, asks, text }
}

fn variable(name: &str) -> Option<String> {
    let value = match name {
        "TAILNET_IP" => "192.0.2.77",
        "UPSTREAMS" => "198.51.100.1",
        "HEALTH_PORT" => "8080",
        "METRICS_PORT" => "9153",
        "CACHE_TTL" => "30",
        "CACHE_SUCCESS" => "5000",
        "CACHE_DENIAL" => "2500",
        "CACHE_PREFETCH" => "10",
        "LOG_CLASS" => "error",
        "NSID" => "ns1",
        _ => return None,
    };
    Some(value.to_owned())
}

fn context() -> ServerContext {
    ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap()
}

/// Creates a directory with the certificate and key that the corpus names.
fn certificates() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(["dns.example.org".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(directory.path().join("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(directory.path().join("tls.key"), key.serialize_pem()).unwrap();
    directory
}

/// Builds the configuration of a Corefile, or returns the message of its first error.
fn load(
    corefile: &Corefile,
    certificates: &TempDir,
    context: &ServerContext,
) -> Result<Configuration, String> {
    let files = directory().join("files");
    let text = corefile
        .text
        .replace("/etc/coredns/certs", certificates.path().to_str().unwrap())
        .replace("/etc/coredns", files.to_str().unwrap())
        .replace("/etc/resolv.conf", files.join("resolv.conf").to_str().unwrap());
    let sources = FileSources { variable: &variable, ..FileSources::SYSTEM };
    configure(Path::new("Corefile"), &text, &sources, context).map_err(|error| error.message)
}

/// Asks the first listener.
async fn ask(configuration: &Configuration, context: &ServerContext, question: &str) -> String {
    let listener = &configuration.listeners[0];
    let metrics = context.metrics.group().unwrap();
    let handler = configuration.handler(listener, listener.at, context, &metrics);
    let client = SocketAddr::new([127, 0, 0, 1].into(), 5353);
    let message = query(question).to_vec().unwrap();
    let answer = handler.answer(message, client, None, Protocol::Udp, true).await.unwrap();
    data(&Message::from_vec(&answer.bytes).unwrap())
}

#[tokio::test]
async fn corefiles_in_the_wild_load_or_say_why_not() {
    let certificates = certificates();
    let (mut loaded, mut failures) = (Vec::new(), Vec::new());
    let corpus = corpus();
    for corefile in &corpus {
        let (name, context) = (&corefile.name, context());
        match (load(corefile, &certificates, &context), &corefile.refusal) {
            (Ok(configuration), None) => {
                loaded.push(corefile.kind);
                for (question, expected) in &corefile.asks {
                    let found = ask(&configuration, &context, question).await;
                    if found != *expected {
                        failures.push(format!("{name}: {question} -> {found}"));
                    }
                }
            }
            (Err(message), Some(expected)) if message.starts_with(expected) => {}
            (found, _) => failures.push(format!("{name}: {:?}", found.err())),
        }
    }
    let stand_alone = |kinds: &[&str]| kinds.iter().filter(|kind| **kind == KINDS[0]).count();
    let all: Vec<&str> = corpus.iter().map(|corefile| corefile.kind).collect();
    // Not by a macro, whose output the test harness keeps.
    let _ = writeln!(
        std::io::stderr(),
        "corpus: {} of {} Corefiles load ({} of {} stand-alone)",
        loaded.len(),
        all.len(),
        stand_alone(&loaded),
        stand_alone(&all)
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!((all.len(), stand_alone(&all)), (FILES, STAND_ALONE));
    assert_eq!((loaded.len(), stand_alone(&loaded)), (LOADED, STAND_ALONE_LOADED));
}

/// Returns the Corefiles of the clusters in `tests/platforms`, with the name of the file and of the ConfigMap.
fn of_platforms() -> Vec<Corefile> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/platforms");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut corefiles = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let platform = path.file_stem().unwrap().display();
        corefiles.extend(objects.iter().filter_map(|object| {
            let text = object["data"]["Corefile"].as_str()?.to_owned();
            let name = format!("{platform}: {}", object["metadata"]["name"].as_str()?);
            Some(Corefile { name, text, kind: KINDS[1], refusal: None, asks: Vec::new() })
        }));
    }
    corefiles
}

#[test]
fn corefiles_that_clusters_come_with_load_unedited() {
    let (certificates, corefiles) = (certificates(), of_platforms());
    assert_eq!(corefiles.len(), 13);
    let error = |corefile: &Corefile| {
        Some(format!("{}: {}", corefile.name, load(corefile, &certificates, &context()).err()?))
    };
    let errors: Vec<String> = corefiles.iter().filter_map(error).collect();
    assert_eq!(errors, [""; 0]);
}
