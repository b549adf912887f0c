//! The image that `make image` has built, and the files of a release.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};
use serde_json::{Value, json};

use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::answers;
use crate::harness::linker::get;
use crate::harness::network::{self, FAR};
use crate::harness::process::Process;
use crate::harness::programs::{go_programs, programs};
use crate::harness::{EVENT_TIMEOUT, apply_deploy, deploy, eventually};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where the kubelet mounts the token of a ServiceAccount.
const ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";
/// Where the test mounts a kubeconfig.
const KUBECONFIG: &str = "etc/kubeconfig";

/// Runs $@ in the root directory $0, which is read-only, as the user 65532, as a container runtime does.
const CONTAIN: &str = r#"
    mount --bind "$0" "$0"
    mount --bind "$0/../account" "$0/var/run/secrets/kubernetes.io/serviceaccount"
    mount --bind "$0/../resolv.conf" "$0/etc/resolv.conf"
    mount --bind "$0/../kubeconfig" "$0/etc/kubeconfig"
    mount --rbind /proc "$0/proc"
    mount --rbind /dev "$0/dev"
    mount -o remount,bind,ro "$0"
    exec setpriv --no-new-privs chroot --userspec=65532:65532 --groups= "$0" "$@"
"#;

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// An unpacked docker-archive.
struct Image {
    directory: tempfile::TempDir,
    /// The configuration: user, entrypoint, labels.
    config: Value,
    /// The names of the image in the archive.
    tags: Value,
    digest: String,
}

/// Prints the log of the program if the test fails.
impl Drop for Image {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Image {
    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn unpack(archive: &Path) -> Self {
        assert!(archive.exists(), "there is no {}: run `make image`", archive.display());
        let directory = tempfile::tempdir().unwrap();
        run(Command::new("tar").arg("-C").arg(directory.path()).arg("-xf").arg(archive));
        let manifest = json_file(&directory.path().join("manifest.json"))[0].clone();
        let digest = manifest["Config"].as_str().unwrap().to_owned();
        let config = json_file(&directory.path().join(&digest))["config"].clone();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        for layer in manifest["Layers"].as_array().unwrap() {
            let layer = directory.path().join(layer.as_str().unwrap());
            run(Command::new("tar").arg("-C").arg(&root).arg("-xf").arg(layer));
        }
        Self { directory, config, tags: manifest["RepoTags"].clone(), digest }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Returns a command that runs the image's entrypoint with these arguments, as a container runtime does. Only for
    /// use in an isolated network, see [`network::is_own_with_users`].
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", CONTAIN]).arg(self.root());
        command.arg(self.config["Entrypoint"][0].as_str().unwrap()).args(arguments);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Creates the files that the kubelet mounts into the container, and their mount points.
    fn prepare(&self, plane: &ControlPlane) {
        let place = |name: &str| self.directory.path().join(name);
        for directory in
            [place("account"), self.root().join(ACCOUNT), self.root().join("proc"), self.root().join("dev")]
        {
            fs::create_dir_all(directory).unwrap();
        }
        for file in ["etc/resolv.conf", KUBECONFIG] {
            fs::write(self.root().join(file), "").unwrap();
        }
        fs::write(place("resolv.conf"), format!("nameserver {}\n", FAR.0)).unwrap();
        let mut kubeconfig = json_file(&plane.kubeconfig_for_service_account("lb-linker", "lb-linker"));
        let certificate =
            fs::read(kubeconfig["clusters"][0]["cluster"]["certificate-authority"].as_str().unwrap())
                .unwrap();
        fs::write(place("account/ca.crt"), certificate).unwrap();
        fs::write(place("account/token"), kubeconfig["users"][0]["user"]["token"].as_str().unwrap()).unwrap();
        fs::write(place("account/namespace"), "lb-linker").unwrap();
        let cluster = &mut kubeconfig["clusters"][0]["cluster"];
        cluster["certificate-authority"] = json!(format!("/{ACCOUNT}/ca.crt"));
        cluster["server"] = json!(format!("https://kubernetes.default.svc:{}", port_of(plane)));
        fs::write(place("kubeconfig"), kubeconfig.to_string()).unwrap();
    }
}

fn archive() -> PathBuf {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Path::new(ROOT).join(format!("target/image/lb-linker-{VERSION}-{architecture}.tar"))
}

fn port_of(plane: &ControlPlane) -> String {
    let server = json_file(&plane.admin_kubeconfig())["clusters"][0]["cluster"]["server"].clone();
    server.as_str().unwrap().rsplit(':').next().unwrap().to_owned()
}

/// A name server on the other host: the API server's name has the address 127.0.0.1, every other name 192.0.2.10.
fn serve_names(socket: UdpSocket) {
    thread::spawn(move || {
        let mut buffer = [0; 1232];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let Ok(query) = Message::from_vec(&buffer[..length]) else { continue };
            let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
            answer.metadata.message_type = MessageType::Response;
            answer.metadata.recursion_desired = true;
            answer.metadata.recursion_available = true;
            for question in &query.queries {
                answer.add_query(question.clone());
                if question.query_type() == RecordType::A {
                    let is_api = question.name().to_string().starts_with("kubernetes.default.svc");
                    let address = if is_api { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(192, 0, 2, 10) };
                    answer.add_answer(Record::from_rdata(question.name().clone(), 60, RData::A(A(address))));
                }
            }
            let _ = socket.send_to(&answer.to_vec().unwrap(), client);
        }
    });
}

/// Returns the arguments of the Deployment, the environment of a Pod on this host, and the Pod's security context.
fn deployed(plane: &ControlPlane) -> (Vec<String>, Vec<(String, String)>, Value) {
    let text = fs::read_to_string(deploy().join("20-deployment.yaml")).unwrap();
    let deployment: Value = serde_saphyr::from_str(&text).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| argument.as_str().unwrap().to_owned()).collect();
    let variables = container["env"].as_array().unwrap().iter().map(|variable| {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap() {
            "metadata.name" => "lb-linker-0",
            "metadata.namespace" => "lb-linker",
            "status.podIPs" => "127.0.0.1",
            other => panic!("the test doesn't know {other}"),
        };
        (variable["name"].as_str().unwrap().to_owned(), value.to_owned())
    });
    let service = [("HOST", "127.0.0.1".to_owned()), ("PORT", port_of(plane))];
    let service = service.map(|(name, value)| (format!("KUBERNETES_SERVICE_{name}"), value));
    (arguments, variables.chain(service).collect(), pod["securityContext"].clone())
}

#[tokio::test]
async fn image_runs_with_the_settings_of_deploy() {
    programs();
    if !network::is_own_with_users("release::image::image_runs_with_the_settings_of_deploy") {
        return;
    }
    serve_names(network::on_far_host(|| UdpSocket::bind((FAR.0, 53)).unwrap()));
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    let image = Image::unpack(&archive());
    let (arguments, variables, user) = deployed(&plane);
    assert_eq!((&user["runAsUser"], &user["runAsGroup"]), (&json!(65532), &json!(65532)));
    assert_eq!(user["sysctls"], json!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "53"}]));
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "53").unwrap();
    image.prepare(&plane);

    let mut command = image.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let log = fs::File::create(image.directory.path().join("log")).unwrap();
    command.envs(variables).stdout(Stdio::null()).stderr(log);
    let mut linker = Process::spawn(command).unwrap();
    let dns = (Ipv4Addr::LOCALHOST, 53).into();
    eventually("readiness", || async {
        let address = (Ipv4Addr::LOCALHOST, 8181).into();
        let is_open = tokio::net::TcpStream::connect(address).await.is_ok();
        (is_open && get(address, "/ready").0 == 200).then_some(())
    })
    .await;
    // The load balancer is recreated, and gets another hostname.
    for host in ["old.example.com", "new.example.com"] {
        cluster.create_load_balancer("default", "my-sample-lb").await;
        cluster.set_ingress("default", "my-sample-lb", &[Ingress::Hostname(host)]).await;
        let answer = format!("{host}. 192.0.2.10");
        answers(dns, "my-sample-lb-default.lb.internal. A", &answer).await;
        eventually("the external target", || async {
            let external = cluster.get_service("external-targets", "my-sample-lb-default-ext").await?;
            (external.spec?.external_name? == host).then_some(())
        })
        .await;
        cluster.delete_service("default", "my-sample-lb").await;
        answers(dns, "my-sample-lb-default.lb.internal. CNAME", "No Error").await;
    }
    assert!(linker.stop(EVENT_TIMEOUT).success());

    // The name of the API server is resolved without shared libraries.
    let output = image
        .command(&[
            "check",
            "--cluster",
            "--sync=on",
            "--instance=lb-linker/lb-linker",
            &format!("--kubeconfig=/{KUBECONFIG}"),
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (printed, problems) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{problems}");
    assert!(printed.contains("API server https://kubernetes.default.svc:"), "{printed}");
}

#[test]
fn image_has_five_files_and_a_reproducible_build() {
    let image = Image::unpack(&archive());
    assert_eq!(image.tags, json!([format!("docker.io/library/lb-linker:{VERSION}")]));
    assert_eq!(image.config["User"], "65532:65532");
    assert_eq!(image.config["Entrypoint"], json!(["/lb-linker"]));
    assert_eq!(image.config["Labels"]["org.opencontainers.image.version"], VERSION);
    let mut files = BTreeSet::new();
    let mut folders = vec![image.root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(image.root()).unwrap().display().to_string());
            }
        }
    }
    let expected =
        ["etc/group", "etc/nsswitch.conf", "etc/passwd", "etc/ssl/certs/ca-certificates.crt", "lb-linker"];
    assert_eq!(files, expected.map(str::to_owned).into());
    // A copy of the checkout's files, so that the archive of the other test stays.
    let copy = tempfile::tempdir().unwrap();
    let from = Path::new(ROOT);
    run(Command::new("cp")
        .arg("-a")
        .args(["Dockerfile", ".dockerignore", "Cargo.toml", "image"].map(|it| from.join(it)))
        .arg(copy.path()));
    fs::create_dir_all(copy.path().join("target/image")).unwrap();
    run(Command::new("cp")
        .arg("-a")
        .arg(from.join("target/image/rootfs"))
        .arg(copy.path().join("target/image")));
    let revision = image.config["Labels"]["org.opencontainers.image.revision"].as_str().unwrap();
    run(Command::new(copy.path().join("image/build")).env("REVISION", revision));
    let again = Image::unpack(&copy.path().join("target/image").join(archive().file_name().unwrap()));
    assert_eq!(again.digest, image.digest);
}

#[test]
fn sbom_lists_the_crates_of_the_program() {
    let sbom = json_file(&archive().with_extension("cdx.json"));
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    let components = sbom["components"].as_array().unwrap();
    let names: BTreeSet<&str> =
        components.iter().filter_map(|component| component["name"].as_str()).collect();
    assert!(["kube", "hickory-proto", "tokio", "ring"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(!names.contains("tempfile"), "tempfile is a dependency of the tests only");
    assert!(components.iter().all(|component| !component["licenses"].is_null()));
}

#[test]
fn install_yaml_is_deploy_with_another_image() {
    let image = "registry.example:5000/team/lb-linker:1.2.3@sha256:0";
    let output = Command::new(Path::new(ROOT).join("image/install-yaml")).arg(image).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let deployed: String = {
        let mut files: Vec<PathBuf> =
            fs::read_dir(deploy()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
        files.sort();
        files.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>().join("---\n")
    };
    let expected = deployed.replace(&format!("image: lb-linker:{VERSION}"), &format!("image: {image}"));
    assert_ne!(expected, deployed);
    assert_eq!(printed, expected);
}

#[test]
fn workflows_pass_actionlint() {
    let mut actionlint = Command::new(&go_programs().actionlint);
    // The findings would depend on whether shellcheck and pyflakes are installed.
    actionlint.args(["-shellcheck=", "-pyflakes=", "-no-color"]).current_dir(ROOT);
    for entry in fs::read_dir(Path::new(ROOT).join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        // A tag can be moved to other code, a commit can't.
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some((_, action)) = line.split_once("uses: ") else { continue };
            let commit = action.split(['@', ' ']).nth(1).unwrap_or_default();
            let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(is_commit, "{}: {action} isn't pinned to a commit", path.display());
        }
        actionlint.arg(path);
    }
    let output = actionlint.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
