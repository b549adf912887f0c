//! Tokens and private keys stay out of everything that lb-linker prints and serves.

use std::path::Path;

use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::linker::Linker;
use crate::recreation::wait_for_external_target;
use crate::tls::Certificates;

#[tokio::test]
async fn no_log_and_no_page_contains_a_token_or_a_key() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("secrets").await;
    let certificates = Certificates::make();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| certificates.file(name));
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    // Two blocks: TLS applies to all blocks of a port.
    let text = format!(
        "tls://lb.internal:0 {{\nbind 127.0.0.1\ntls {} {}\nlb_linker\nlog\nerrors\ndebug\n}}\n\
         lb.internal:0 {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\nlb_linker\n}}\n",
        certificate.display(),
        key.display()
    );
    std::fs::write(&corefile, text).unwrap();
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let secrets = secrets(&kubeconfig, &key);
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--corefile", corefile.to_str().unwrap()];
    let args = [&args[..], &["--target-namespace", &target, "--watch-namespaces", &namespace]].concat();
    let linker = Linker::start_with(&[("RUST_LOG", "trace")], args);
    linker.ready().await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "a.example.com").await;
    let log = linker.log();
    assert!(log.iter().any(|line| line.contains("TRACE")), "{log:#?}");
    for page in log.into_iter().chain([linker.metrics(), linker.get_ready().1, linker.get_health().1]) {
        assert!(!secrets.iter().any(|secret| page.contains(secret)), "a token or a key in: {page}");
    }
}

/// Returns the tokens of a kubeconfig, and the lines of a private key.
fn secrets(kubeconfig: &Path, key: &Path) -> Vec<String> {
    let config = std::fs::read_to_string(kubeconfig).unwrap();
    let tokens = config.split(|letter: char| !letter.is_ascii_alphanumeric() && !"._-".contains(letter));
    // The signature of a JSON Web Token alone could be completed to the token.
    let tokens = tokens.filter(|word| word.starts_with("eyJ")).filter_map(|token| token.rsplit('.').next());
    let key = std::fs::read_to_string(key).unwrap();
    let lines = key.lines().filter(|line| !line.starts_with("-----"));
    let all: Vec<String> = tokens.chain(lines).map(ToOwned::to_owned).collect();
    assert!(all.len() > 2 && all.iter().all(|secret| secret.len() >= 8), "{all:?}");
    all
}
