//! Tokens and private keys stay out of everything that lb-linker prints and serves.

use std::path::Path;

use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::linker::{Linker, run_to_end_with};
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
    // The first block reads the private key; the second block has the plugins that the harness needs.
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

#[test]
fn errors_about_credentials_dont_repeat_them() {
    const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.c2VjcmV0.c2lnbmF0dXJl";
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| certificates.file(name));
    let secret = std::fs::read_to_string(&key).unwrap();
    let line = secret.lines().nth(1).unwrap().to_owned();
    let check = |given: &str, args: &[&str], expected: &str| {
        let output = run_to_end_with(&[("RUST_LOG", "trace")], args);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(!output.status.success() && text.contains(expected), "{given}: {text}");
        for secret in ["c2VjcmV0", "c2lnbmF0dXJl", &line] {
            assert!(!text.contains(secret), "{given}: {text}");
        }
        assert!(!text.contains("panicked"), "{given}: {text}");
    };
    for (given, user, expected) in [
        ("a token in the wrong place", TOKEN.to_owned(), "4:"),
        ("a token that is a map", format!("{{token: {{{TOKEN}: 1}}}}"), "4:"),
        ("a token with a line break", format!("{{token: \"{TOKEN}\\n\"}}"), "its token has a character"),
        (
            "a token as key",
            format!("{{client-certificate-data: {TOKEN}, client-key-data: {TOKEN}}}"),
            "can't be used",
        ),
    ] {
        let kubeconfig = directory.path().join("kubeconfig");
        let text = format!(
            "kind: Config\n\
             clusters: [{{name: test, cluster: {{server: \"https://127.0.0.1:1\"}}}}]\n\
             current-context: test\n\
             users: [{{name: test, user: {user}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let kubeconfig = kubeconfig.to_str().unwrap();
        check(given, &["check", "--cluster", "--kubeconfig", kubeconfig], expected);
        check(given, &["--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0"], expected);
    }
    let damaged = directory.path().join("damaged.key");
    std::fs::write(&damaged, secret.replace('=', "").replacen(&line[10..20], "!", 1)).unwrap();
    for (given, certificate, key) in
        [("a key as certificate", &key, &certificate), ("a damaged key", &certificate, &damaged)]
    {
        let corefile = directory.path().join("Corefile");
        let text = format!("tls://.:0 {{\n tls {} {}\n whoami\n}}\n", certificate.display(), key.display());
        std::fs::write(&corefile, text).unwrap();
        check(given, &["check", "--corefile", corefile.to_str().unwrap()], "Corefile:2");
    }
}

/// Returns the signatures of the tokens in a kubeconfig, and the lines of a private key.
fn secrets(kubeconfig: &Path, key: &Path) -> Vec<String> {
    let config = std::fs::read_to_string(kubeconfig).unwrap();
    let tokens = config.split(|letter: char| !letter.is_ascii_alphanumeric() && !"._-".contains(letter));
    // Only the signature of a JSON Web Token is secret: the other parts can be guessed.
    let tokens = tokens.filter(|word| word.starts_with("eyJ")).filter_map(|token| token.rsplit('.').next());
    let key = std::fs::read_to_string(key).unwrap();
    let lines = key.lines().filter(|line| !line.starts_with("-----"));
    let all: Vec<String> = tokens.chain(lines).map(ToOwned::to_owned).collect();
    assert!(all.len() > 2 && all.iter().all(|secret| secret.len() >= 8), "{all:?}");
    all
}
