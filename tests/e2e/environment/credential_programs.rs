//! Programs that print credentials (`exec` in a kubeconfig), without saying when these end.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{TokenFixture, credentials, replace, revoke};
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, short};
use crate::harness::eventually;
use crate::harness::linker::{Linker, run_to_end};

/// A program that prints an ExecCredential.
struct Program {
    directory: TempDir,
}

impl Program {
    fn new(status: &Value) -> Self {
        let program = Self { directory: tempfile::tempdir().unwrap() };
        program.prints(status);
        let at = program.directory.path().display().to_string();
        let script = format!("#!/bin/sh\necho run >> {at}/runs\ncat {at}/printed\n");
        std::fs::write(program.file("program"), script).unwrap();
        std::fs::set_permissions(program.file("program"), Permissions::from_mode(0o755)).unwrap();
        program
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn prints(&self, status: &Value) {
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status,
        });
        replace(&self.file("printed"), &credential.to_string());
    }

    /// Lets the program fail, as its `cat` does.
    fn fails(&self) {
        std::fs::remove_file(self.file("printed")).unwrap();
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.file("runs")).unwrap_or_default().lines().count()
    }

    async fn has_run(&self, times: usize) {
        eventually(&format!("run {times}"), || async { (self.runs() >= times).then_some(()) }).await;
    }

    /// Returns a kubeconfig for this control plane.
    fn kubeconfig(&self, plane: &ControlPlane) -> String {
        let authority = self.file("ca.crt");
        std::fs::write(&authority, plane.certificate_authority()).unwrap();
        let server = format!("https://{}", plane.address());
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": authority}}],
            "users": [{"name": "test", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": self.file("program"),
                "interactiveMode": "Never",
            }}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }
}

/// Returns a token that is valid as long as a new Secret of this name exists.
async fn token(plane: &ControlPlane, secret: &str) -> Value {
    let files = credentials(plane, secret).await;
    json!({"token": files.iter().find(|(name, _)| *name == "token").unwrap().1})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_token_of_a_program_is_renewed_by_one_run() {
    let stage = TokenFixture::start(async |plane| plane.address()).await;
    let program = Program::new(&token(&stage.plane, "two").await);
    replace(&stage.kubeconfig, &program.kubeconfig(&stage.plane));
    stage.linker.line("the credentials for the API server have changed").await;
    stage.change_is_applied().await;
    assert_eq!(program.runs(), 1);

    program.prints(&token(&stage.plane, "three").await);
    revoke(&stage.plane, "two").await;
    program.has_run(2).await;
    stage.change_is_applied().await;
    assert_eq!(program.runs(), 2, "{:#?}", stage.linker.log());

    // All watches begin anew, and each is refused, while the program fails.
    program.fails();
    revoke(&stage.plane, "three").await;
    stage.plane.stop_apiserver();
    stage.plane.start_apiserver();
    let line = stage.linker.line("can't be renewed, the previous ones stay in use").await;
    assert!(line.ends_with("/program\", failed: exit status: 1"), "{line}");
    program.has_run(4).await;
    assert_eq!(stage.linker.logged("can't be renewed"), 1, "{:#?}", stage.linker.log());
    program.prints(&token(&stage.plane, "four").await);
    stage.change_is_applied().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_is_served_while_the_first_run_fails_or_hangs() {
    let stage = TokenFixture::start(async |plane| plane.address()).await;
    let program = Program::new(&token(&stage.plane, "two").await);
    let (config, snapshot) = (program.file("config"), program.file("snapshot"));
    std::fs::write(&config, program.kubeconfig(&stage.plane)).unwrap();
    let args = ["--kubeconfig", config.to_str().unwrap(), "--upstream", "none", "--sync", "off"];
    let with_snapshot = [&args[..], &["--snapshot", snapshot.to_str().unwrap()]].concat();
    program.fails();
    let error = String::from_utf8(run_to_end(with_snapshot.clone()).stderr).unwrap();
    assert!(error.contains("/program\", failed: exit status: 1"), "there is no snapshot yet: {error}");
    program.prints(&token(&stage.plane, "four").await);
    let linker = Linker::start(&with_snapshot);
    linker.ready().await;
    let question = "web.default.lb.internal. CNAME";
    let known = short(linker.dns, question).await;
    let has = async |host: &str| {
        let content = || std::fs::read_to_string(&snapshot).unwrap_or_default();
        eventually("the snapshot", || async { content().contains(host).then_some(()) }).await;
    };
    has(known.trim_end_matches('.')).await;
    drop(linker);

    program.fails();
    let output = run_to_end(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("/program\", failed: exit status: 1"), "{error}");
    let linker = Linker::start(&with_snapshot);
    linker.line("there are no credentials for the API server yet: the program for the credentials").await;
    linker.ready().await;
    answers(linker.dns, question, &known).await;
    program.prints(&token(&stage.plane, "three").await);
    let host = stage.change().await;
    answers(linker.dns, question, &format!("{host}.")).await;
    has(&host).await;
    drop(linker);

    let pid = program.file("pid");
    replace(
        &program.file("program"),
        &format!("#!/bin/sh\nsleep 1000 &\necho $! >{0}.new\nmv {0}.new {0}\nwait\n", pid.display()),
    );
    std::fs::set_permissions(program.file("program"), Permissions::from_mode(0o755)).unwrap();
    let mut linker = Linker::start(&with_snapshot);
    linker.ready().await;
    answers(linker.dns, question, &format!("{host}.")).await;
    let pid = eventually("the program", || async { std::fs::read_to_string(&pid).ok() }).await;
    assert!(linker.stop().success());
    // It may stay as a zombie.
    let stat = format!("/proc/{}/stat", pid.trim());
    let state = || std::fs::read_to_string(&stat).ok()?.rsplit_once(") ")?.1.chars().next();
    let has_ended = || async { state().is_none_or(|state| state == 'Z').then_some(()) };
    eventually("the end of the program, and of its own one", has_ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_certificate_of_a_program_is_renewed() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    let authority = Issuer::new(params, key);
    let certificate = |last_year: i32| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "ann");
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = date_time_ymd(last_year, 12, 31);
        let certificate = params.signed_by(&key, &authority).unwrap().pem();
        json!({"clientCertificateData": certificate, "clientKeyData": key.serialize_pem()})
    };
    let client_ca = format!("--client-ca-file={}", file("ca.crt").display());
    let plane = ControlPlane::start(Options { apiserver_args: vec![client_ca], ..Options::default() });
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;

    let program = Program::new(&certificate(2020));
    let kubeconfig = file("kubeconfig");
    std::fs::write(&kubeconfig, program.kubeconfig(&plane)).unwrap();
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", "none"];
    let linker = Linker::start_bare(&[], args);
    linker.line("doesn't accept lb-linker's credentials (401").await;
    program.prints(&certificate(2999));
    answers(linker.dns, "web.default.lb.internal. CNAME", "a.example.com.").await;
    linker.line("the credentials for the API server have changed").await;
}
