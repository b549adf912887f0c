//! What a remote cluster grants to lb-linker, how its kubeconfig changes, and what `check` and `scan` tell of it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::deploy::objects;
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::{Linker, cluster_errors, run_to_end};
use crate::harness::{cluster_with_target, deploy, permission};

const ACCOUNT: &str = "lb-linker-remote";
const AS_ACCOUNT: &str = "--as=system:serviceaccount:lb-linker-remote:lb-linker-remote";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the kubeconfig of an administrator, with another user.
fn kubeconfig_of(plane: &ControlPlane, user: Value) -> String {
    let admin = fs::read_to_string(plane.admin_kubeconfig()).unwrap();
    let mut config: Value = serde_saphyr::from_str(&admin).unwrap();
    for named in config["users"].as_array_mut().unwrap() {
        named["user"] = user.clone();
    }
    config.to_string()
}

/// Grants what `deploy/remote/` grants, and waits until it is in force.
async fn grant(plane: &ControlPlane) {
    plane.apply_files(&deploy().join("remote"));
    permission(plane, true, &["watch", "dnsendpoints.externaldns.k8s.io", "-A", AS_ACCOUNT]).await;
}

/// Returns a token that is valid as long as the Secret of this name exists.
fn token(plane: &ControlPlane, secret: &str) -> String {
    plane.kubectl(&["-n", ACCOUNT, "create", "secret", "generic", secret]);
    plane.token_for_service_account(ACCOUNT, ACCOUNT, Some(secret))
}

/// Writes the files of a volume as the kubelet does: all of them change at once, by a symbolic link.
fn write_volume(volume: &Path, generation: &str, files: &[(&str, &str)]) {
    fs::create_dir(volume.join(generation)).unwrap();
    for (name, content) in files {
        fs::write(volume.join(generation).join(name), content).unwrap();
        if fs::symlink_metadata(volume.join(name)).is_err() {
            symlink(Path::new("..data").join(name), volume.join(name)).unwrap();
        }
    }
    symlink(generation, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
}

/// Runs `check` with these arguments, as the home cluster's lb-linker.
fn check(plane: &ControlPlane, arguments: &[&str]) -> Output {
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let common = ["check", "--upstream", "none", "--kubeconfig", kubeconfig.to_str().unwrap()];
    run_to_end([&common[..], arguments].concat())
}

#[tokio::test]
async fn deploy_remote_suffices_and_its_token_may_change() {
    let (plane, home, target) = cluster_with_target().await;
    plane.apply_files(&deploy().join("remote/home/rbac.yaml"));
    plane.apply_files(&deploy().join("sources"));
    let west = ControlPlane::lend();
    grant(&west).await;
    let (own, cluster) = (home.create_namespace("own").await, west.cluster().await);
    let shop = cluster.create_namespace("shop").await;
    cluster.create_load_balancer(&shop, "web").await;
    cluster.set_ingress(&shop, "web", &[Ingress::Ip("192.0.2.1")]).await;
    let volume = tempfile::tempdir().unwrap();
    let kubeconfig = kubeconfig_of(&west, json!({"tokenFile": "west.token"}));
    let files = |token: &str| [("west", kubeconfig.clone()), ("west.token", token.to_owned())];
    let write = |generation: &str, token: &str| {
        let files = files(token);
        let files: Vec<_> = files.iter().map(|(name, content)| (*name, content.as_str())).collect();
        write_volume(volume.path(), generation, &files);
    };
    write("..first", &token(&west, "first"));

    let remote = format!("west={}", volume.path().join("west").display());
    let sources = "service,ingress,gateway,dnsendpoint";
    let flags = ["--target-namespace", &target, "--watch-namespaces", &own, "--sources", sources];
    let flags = [&flags[..], &["--remote", &remote]].concat();
    let output = check(plane, &[&["--cluster", "--sync", "on"], &flags[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stderr), text(&output.stdout));
    let lines = text(&output.stdout);
    for line in [
        "yes  get namespaces/kube-system\n".to_owned(),
        format!("cluster west: API server https://{} (context ", west.address()),
        "yes  get namespaces/kube-system of cluster west\n".to_owned(),
        "yes  watch services in all namespaces of cluster west\n".to_owned(),
        "yes  list tlsroutes in all namespaces of cluster west\n".to_owned(),
        "yes  list dnsendpoints in all namespaces of cluster west\n".to_owned(),
    ] {
        assert!(lines.contains(&line), "{line}: {lines}");
    }

    let args = [&["--upstream", "none"], &flags[2..]].concat();
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    let name = format!("web.{shop}.west.lb.internal. A");
    answers(linker.dns, &name, "192.0.2.1").await;
    write("..second", &token(&west, "second"));
    west.kubectl(&["-n", ACCOUNT, "delete", "secret", "first"]);
    // The API server forgets which tokens it has accepted, and closes the watches.
    west.stop_apiserver();
    west.start_apiserver();
    cluster.set_ingress(&shop, "web", &[Ingress::Ip("192.0.2.2")]).await;
    answers(linker.dns, &name, "192.0.2.2").await;
    linker.line("the credentials for the API server of cluster west have changed").await;
    let forbidden: Vec<_> = linker.warnings().into_iter().filter(|line| line.contains("forbid")).collect();
    assert_eq!(forbidden, [] as [String; 0]);
}

#[test]
fn deploy_remote_grants_only_reading_of_what_sources_need() {
    let role = |folder: &str| {
        let objects = objects(&deploy().join(folder));
        objects.into_iter().find(|object| object["kind"] == "ClusterRole").unwrap()["rules"].take()
    };
    let mut rules = role("remote").as_array().unwrap().clone();
    let kube_system = json!({
        "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"],
    });
    assert_eq!(rules.pop(), Some(kube_system.clone()));
    let services = json!({"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]});
    assert_eq!(rules.remove(0), services);
    assert_eq!(Value::Array(rules), role("sources"));
    assert_eq!(role("remote/home/rbac.yaml"), json!([kube_system]));
}

#[tokio::test]
async fn check_names_the_cluster_of_what_is_wrong() {
    let (plane, _, target) = cluster_with_target().await;
    plane.apply_files(&deploy().join("remote/home/rbac.yaml"));
    let (west, east) = (ControlPlane::lend(), ControlPlane::lend());
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: String| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // This ServiceAccount may read neither Ingresses nor the namespace kube-system.
    let token = west.token_for_service_account("lb-linker", "lb-linker", None);
    let west_path = file("west", kubeconfig_of(&west, json!({"token": token})));
    let east_path = east.admin_kubeconfig().display().to_string();
    east.stop_apiserver();
    let home_path = plane.admin_kubeconfig().display().to_string();
    let remotes = format!("west={west_path},east={east_path},self={home_path}");
    let flags = ["--target-namespace", &target, "--sources", "service,ingress", "--remote", &remotes];
    let output = check(plane, &[&["--cluster", "--sync", "off"], &flags[..]].concat());
    let (lines, problems) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{problems}{lines}");
    let itself = format!("--remote self: https://{} (context ", plane.address());
    assert!(problems.contains(&itself) && problems.contains("is this cluster itself"), "{problems}");
    for line in [
        "yes  list services in all namespaces of cluster west\n",
        "NO   get namespaces/kube-system of cluster west\n",
        "NO   watch ingresses in all namespaces of cluster west\n",
        "error: the permission to list ingresses in all namespaces of cluster west is missing; it is in \
         deploy/remote/, for that cluster\n",
    ] {
        assert!(lines.contains(line), "{line}: {lines}");
    }
    let errors = cluster_errors(&output);
    let away = errors.lines().find(|line| line.contains("east")).unwrap();
    let expected = format!("--remote east: https://{} (context ", east.address());
    assert!(away.starts_with(&expected) && away.ends_with("(os error 111)"), "{away}");
}

#[tokio::test]
async fn check_validates_kubeconfigs_of_remote_clusters() {
    let (plane, ..) = cluster_with_target().await;
    let path = plane.admin_kubeconfig().display().to_string();
    for (remote, expected) in [
        (format!("west={path}:nowhere"), "it has no context \"nowhere\"; it has \""),
        ("west=/nonexistent/west".to_owned(), "/nonexistent/west: No such file"),
    ] {
        let output = check(plane, &["--remote", &remote]);
        let problems = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{problems}");
        assert!(problems.starts_with("lb-linker: --remote west: kubeconfig "), "{problems}");
        assert!(problems.contains(expected), "{problems}");
        assert_eq!(text(&output.stdout), "");
    }
    let output = check(plane, &["--remote", &format!("west={path}")]);
    let problems = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{problems}");
    assert!(problems.contains("is the API server of this cluster itself"), "{problems}");
    assert!(text(&output.stdout).contains("\ncluster west: API server https://"), "{}", text(&output.stdout));
}

#[tokio::test]
async fn scan_finds_load_balancers_of_remote_clusters() {
    let (home, west, east) = (ControlPlane::lend(), ControlPlane::lend(), ControlPlane::lend());
    let (own, cluster) = (home.cluster().await, west.cluster().await);
    let shop = cluster.create_namespace("shop").await;
    cluster.create_load_balancer(&shop, "db").await;
    cluster.set_ingress(&shop, "db", &[Ingress::Hostname("db.west.example")]).await;
    let app = own.create_namespace("app").await;
    let spec = json!({"type": "ExternalName", "externalName": "db.west.example"});
    own.create_service(&app, json!({"metadata": {"name": "database"}, "spec": spec})).await;
    east.stop_apiserver();
    let path = |plane: &ControlPlane| plane.admin_kubeconfig().display().to_string();
    let remotes = format!("west={},east={}", path(&west), path(&east));
    let args = ["scan", "--upstream", "none", "--kubeconfig", &path(&home), "--remote", &remotes];
    let output = run_to_end([&args[..], &["-o", "json"]].concat());
    let problems = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{problems}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = format!("db.{shop}.west.lb.internal");
    let expected = json!([{
        "namespace": app, "service": "database", "externalName": "db.west.example",
        "cluster": "west", "loadBalancer": format!("{shop}/db"), "name": name,
    }]);
    assert_eq!(found["remote"], expected, "{found} {problems}");
    assert!(problems.contains("of cluster east: Connection refused"), "{problems}");
    assert!(!problems.contains("retrying"), "{problems}");
    let away = "\nthe load balancers of cluster east haven't been read yet: the API server doesn't answer\n";
    assert!(problems.contains(away), "{problems}");
    for (asked, what) in [
        (["links", "east/shop/web"], "load balancer or StableName east/shop/web"),
        (["names", "web.shop.east.lb.internal"], "name web.shop.east.lb.internal"),
    ] {
        let output = run_to_end([&asked[..], &args[3..]].concat());
        let problems = text(&output.stderr);
        let unknown = format!("no {what} is known: cluster east isn't read\n");
        assert!(output.status.code() == Some(1) && problems.contains(&unknown), "{problems}");
        assert!(problems.contains(away), "{problems}");
    }
    let output = run_to_end([&args[..5], &["--remote", &format!("west={}", path(&west))]].concat());
    let report = text(&output.stdout);
    assert!(report.contains("These Services name a load balancer of a remote cluster"), "{report}");
    assert!(report.contains(&name), "{report}");
}
