//! Without a cluster: Services are read from files, and external targets are written to files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::eventually;
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::programs::programs;

fn service(name: &str, host: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: LoadBalancer}}\n\
         status: {{loadBalancer: {{ingress: [{{hostname: {host}}}]}}}}\n"
    )
}

fn start(directory: &Path, output: Option<&Path>) -> Linker {
    let mut args =
        vec!["--manifests", directory.to_str().unwrap(), "--upstream", "none", "--delete-delay", "0s"];
    if let Some(output) = output {
        args.extend(["--output", output.to_str().unwrap()]);
    }
    Linker::start(args)
}

#[tokio::test]
async fn yaml_json_and_multiple_documents_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let several = format!("{}---\n---\n{}", service("one", "one.example"), service("two", "two.example"));
    fs::write(path("several.yaml"), several).unwrap();
    let item = |name: &str| {
        serde_json::json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"},
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"hostname": format!("{name}.example")}]}}})
    };
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "passed-over"}, "spec": 5},
        item("three")]});
    fs::write(path("list.json"), list.to_string()).unwrap();
    fs::write(path("single.json"), item("four").to_string()).unwrap();
    fs::write(path("deployment.yml"), "apiVersion: apps/v1\nkind: Deployment\nspec: {ports: strange}\n")
        .unwrap();
    fs::write(path("README.md"), "not: [a manifest").unwrap();
    let other_type = service("five", "five.example").replace("LoadBalancer}", "ClusterIP}");
    fs::write(path("other.yaml"), other_type).unwrap();

    let linker = start(directory.path(), None);
    linker.ready().await;
    for (name, host) in [
        ("one-default", "one.example."),
        ("two.default", "two.example."),
        ("three-ns", "three.example."),
        ("four-ns", "four.example."),
        ("five-default", "Non-Existent Domain"),
    ] {
        assert_eq!(short(linker.dns, &format!("{name}.lb.internal. CNAME")).await, host, "{name}");
    }
    assert_eq!(linker.logged("WARN"), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn invalid_file_is_reported_and_keeps_its_last_content() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.yaml");
    fs::write(&file, service("web", "a.example")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    fs::write(&file, format!("{}  broken: [\n", service("web", "b.example"))).unwrap();
    let line = linker.line(&format!("{}:6:", file.display())).await;
    assert!(line.contains("its last good content stays in force"), "{line}");
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.");
    fs::write(
        &file,
        service("web", "b.example").replace("LoadBalancer}", "5}").replace("ingress: [", "ingress: 7 #"),
    )
    .unwrap();
    linker.line(&format!("{}:5:", file.display())).await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.");
    fs::write(&file, service("web", "c.example")).unwrap();
    answers(linker.dns, "web-default.lb.internal. CNAME", "c.example.").await;
}

#[tokio::test]
async fn service_in_two_files_counts_once_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a.yaml"), directory.path().join("b.yaml"));
    fs::write(&second, service("web", "second.example")).unwrap();
    fs::write(&first, service("web", "first.example")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "first.example.");
    linker
        .line(&format!(
            "{}: Service default/web is passed over, {} has it already",
            second.display(),
            first.display()
        ))
        .await;
    fs::remove_file(&first).unwrap();
    answers(linker.dns, "web-default.lb.internal. CNAME", "second.example.").await;
}

/// Kubelets mount a ConfigMap like this: each file is a symlink through the symlink `..data`, which is replaced
/// atomically.
#[tokio::test]
async fn files_behind_a_replaced_symlink_are_reloaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (version, host) in [("..one", "one.example"), ("..two", "two.example")] {
        fs::create_dir(path(version)).unwrap();
        fs::write(path(version).join("web.yaml"), service("web", host)).unwrap();
    }
    std::os::unix::fs::symlink("..one", path("..data")).unwrap();
    std::os::unix::fs::symlink("..data/web.yaml", path("web.yaml")).unwrap();
    let linker = start(directory.path(), None);
    answers(linker.dns, "web-default.lb.internal. CNAME", "one.example.").await;
    std::os::unix::fs::symlink("..two", path("..new")).unwrap();
    fs::rename(path("..new"), path("..data")).unwrap();
    answers(linker.dns, "web-default.lb.internal. CNAME", "two.example.").await;
}

#[tokio::test]
async fn only_files_with_our_labels_are_written_or_removed() {
    let (directory, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| output.path().join(name);
    fs::write(path("theirs-default-ext.yaml"), "somebody: else's\n").unwrap();
    fs::write(path("notes.yaml"), "not: [even yaml").unwrap();
    // An external target of an earlier run whose Service is gone.
    let orphan = "apiVersion: v1\nkind: Service\nmetadata:\n  name: gone-default-ext\n  labels:\n    \
        app.kubernetes.io/managed-by: lb-linker-operator\n    original-service-name: gone\n    \
        original-service-namespace: default\nspec:\n  type: ExternalName\n  externalName: gone.example\n";
    fs::write(path("gone-default-ext.yaml"), orphan).unwrap();
    fs::write(
        directory.path().join("s.yaml"),
        format!("{}---\n{}", service("theirs", "a.example"), service("ours", "b.example")),
    )
    .unwrap();

    let linker = start(directory.path(), Some(output.path()));
    linker.line("theirs-default-ext.yaml of link default/theirs is left alone").await;
    eventually("our file", || async { path("ours-default-ext.yaml").exists().then_some(()) }).await;
    eventually("the orphan's end", || async { (!path("gone-default-ext.yaml").exists()).then_some(()) })
        .await;
    assert_eq!(fs::read_to_string(path("theirs-default-ext.yaml")).unwrap(), "somebody: else's\n");
    assert_eq!(fs::read_to_string(path("notes.yaml")).unwrap(), "not: [even yaml");

    // A deleted file is recreated, and its content is a valid manifest.
    fs::remove_file(path("ours-default-ext.yaml")).unwrap();
    eventually("our file", || async { path("ours-default-ext.yaml").exists().then_some(()) }).await;
    let text = fs::read_to_string(path("ours-default-ext.yaml")).unwrap();
    for line in [
        "apiVersion: v1",
        "kind: Service",
        "  name: ours-default-ext",
        "  type: ExternalName",
        "  externalName: b.example",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} in {text}");
    }

    fs::remove_file(directory.path().join("s.yaml")).unwrap();
    eventually("its end", || async { (!path("ours-default-ext.yaml").exists()).then_some(()) }).await;
    answers(linker.dns, "ours-default.lb.internal. CNAME", "Non-Existent Domain").await;
    let mut left: Vec<_> =
        fs::read_dir(output.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["notes.yaml", "theirs-default-ext.yaml"]);
}

#[tokio::test]
async fn replaced_directories_are_watched_again() {
    let root = tempfile::tempdir().unwrap();
    let (directory, output) = (root.path().join("manifests"), root.path().join("output"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("a.yaml"), service("a", "a.example")).unwrap();
    fs::write(directory.join("b.yaml"), service("b", "b.example")).unwrap();
    let linker = start(&directory, Some(&output));
    let object = output.join("a-default-ext.yaml");
    eventually("the external target", || async { object.exists().then_some(()) }).await;

    fs::remove_dir_all(&output).unwrap();
    eventually("the external target again", || async { object.exists().then_some(()) }).await;

    // Another directory replaces the first one. The new `b.yaml` is invalid, so Service `b` keeps its last target.
    let next = root.path().join("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("a.yaml"), service("a", "c.example")).unwrap();
    fs::write(next.join("b.yaml"), "broken: [").unwrap();
    fs::rename(&directory, root.path().join("former")).unwrap();
    fs::rename(&next, &directory).unwrap();
    answers(linker.dns, "a-default.lb.internal. CNAME", "c.example.").await;
    assert_eq!(short(linker.dns, "b-default.lb.internal. CNAME").await, "b.example.");

    // The new directory may have the inode number of the old one.
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("a.yaml"), service("a", "d.example")).unwrap();
    answers(linker.dns, "a-default.lb.internal. CNAME", "d.example.").await;
}

#[tokio::test]
async fn pipe_among_the_manifests_doesnt_block() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(directory.path().join("web.yaml"), service("web", "a.example")).unwrap();
    let mut linker = start(directory.path(), None);
    linker.ready().await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.");
    assert!(linker.stop().success());
}

/// YAML scalars for a field of type string. The test runs kubectl to learn which of them it reads as strings.
const SCALARS: &str = "n N y Y yes Yes YES yEs no No NO nO on On ON oN off Off OFF oFF true True TRUE tRUE false False FALSE \
    1 -1 +1 0 -0 00 017 08 0o17 0O17 0x1f 0X1F 0b11 0B11 -0b11 1_000 1_ _1 1__0 0_7 0x_1f 0b_1 0o_7 -1_0 \
    1e3 1E3 1e+3 1e3_0 1_000.5 1.5 1. 0. .5 .5_0 . +.5 1e 1e3.5 1e400 12345678901234567890 123456789012345678901234567890 \
    .inf .Inf .INF .iNF +.inf -.inf .nan .NaN .NAN +.nan inf nan NaN Infinity \
    2001-01-01 2001-1-1 2001-01-01T00:00:00Z 12:30:45 190:20:30 0x 0xg 0o8 0b12 0x1.8p1 0x1p-2 \
    1.2.3.4 1.2.3 1:2 1,000 + _ << = \"n\" 'n' \"1e3\"";

/// Fields of a Service's metadata: `FIELD` stands for the scalar, `NAME` for the Service's name.
const METADATA: [&str; 4] = [
    "metadata.name: {name: FIELD}",
    "metadata.namespace: {name: NAME, namespace: FIELD}",
    "metadata.annotations: {name: NAME, annotations: {k: FIELD}}",
    "metadata.labels: {name: NAME, labels: {k: FIELD}}",
];

/// Fields of a Service outside of its metadata, in the format of [`METADATA`].
const OTHER_FIELDS: [&str; 4] = [
    "spec.type: {name: NAME}; type: FIELD",
    "spec.ports: {name: NAME}; ports: [{port: 1, name: FIELD}]",
    "status.loadBalancer.ingress.hostname: {name: NAME}; hostname: FIELD",
    "status.loadBalancer.ingress.ip: {name: NAME}; ip: FIELD",
];

fn service_with(field: &str, scalar: &str, name: &str) -> String {
    let (_, rest) = field.split_once(": ").unwrap();
    let (metadata, other) = rest.split_once("; ").unwrap_or((rest, "x: y"));
    let is = |what: &str| other.starts_with(what);
    let spec = if is("type") || is("ports") { other } else { "type: LoadBalancer" };
    let ingress = if is("hostname") || is("ip") { other } else { "hostname: a.example" };
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {metadata}\nspec:\n  {spec}\n\
         status:\n  loadBalancer:\n    ingress:\n    - {ingress}\n"
    )
    .replace("NAME", name)
    .replace("FIELD", scalar)
}

/// Writes a Service for each case, and returns for each case whether `lb-linker check` and kubectl accept it.
fn accepted(cases: &[(&str, &str)], kubectl: impl Fn(&Path) -> Command, fault: &str) -> Vec<(bool, bool)> {
    let directory = tempfile::tempdir().unwrap();
    for (number, (field, scalar)) in cases.iter().enumerate() {
        let path = directory.path().join(format!("{number:03}.yaml"));
        fs::write(path, service_with(field, scalar, &format!("s{number}"))).unwrap();
    }
    let check = run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
    let [ours, theirs] =
        [check, kubectl(directory.path()).output().unwrap()].map(|it| String::from_utf8(it.stderr).unwrap());
    let faults = |text: &str, number: usize, fault: &str| {
        text.lines().any(|line| line.contains(&format!("/{number:03}.yaml")) && line.contains(fault))
    };
    (0..cases.len()).map(|number| (!faults(&ours, number, ""), !faults(&theirs, number, fault))).collect()
}

fn differences(cases: &[(&str, &str)], taken: &[(bool, bool)]) -> Vec<String> {
    let differ = cases.iter().zip(taken).filter(|(_, (ours, theirs))| ours != theirs);
    differ
        .map(|((field, scalar), (ours, theirs))| format!("{field} {scalar}: {ours}, kubectl {theirs}"))
        .collect()
}

#[test]
fn scalars_are_strings_where_kubectl_reads_strings() {
    let mut cases: Vec<_> = SCALARS.split_whitespace().map(|scalar| (METADATA[2], scalar)).collect();
    for field in METADATA {
        cases.extend(["n", "1e3", "\"n\""].map(|scalar| (field, scalar)));
    }
    // `kubectl annotate --local` works without an API server, and decodes metadata into its Go types.
    let annotate = |directory: &Path| {
        let mut kubectl = Command::new(&programs().kubectl);
        kubectl.args(["annotate", "--local", "-o", "name", "x=y", "-f"]).arg(directory);
        kubectl
    };
    let taken = accepted(&cases, annotate, "");
    assert_eq!(differences(&cases, &taken), [""; 0]);
    let strings = taken.iter().filter(|(ours, _)| *ours).count();
    assert!((20..taken.len() - 20).contains(&strings), "{strings} of {}", taken.len());
}

#[test]
fn fields_rejected_by_the_api_server_are_rejected() {
    let mut cases = Vec::new();
    for field in METADATA.into_iter().chain(OTHER_FIELDS) {
        cases.extend(["n", "1e3", "\"n\""].map(|scalar| (field, scalar)));
    }
    let create = |directory: &Path| {
        let mut kubectl = ControlPlane::shared().kubectl_command();
        kubectl.args(["create", "--dry-run=server", "-o", "name", "-f"]).arg(directory);
        kubectl
    };
    let taken = accepted(&cases, create, "cannot unmarshal");
    assert_eq!(differences(&cases, &taken), [""; 0]);
    assert_eq!(taken.iter().filter(|(ours, _)| *ours).count(), METADATA.len() + OTHER_FIELDS.len());
}

#[test]
fn misread_scalar_is_rejected_with_its_position() {
    let directory = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        fs::write(directory.path().join("a.yaml"), text).unwrap();
        let check = run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
        assert_eq!(check.status.code(), Some(2));
        String::from_utf8(check.stderr).unwrap()
    };
    let found = check(&format!("{}---\n{}", service("web", "a.example"), service("n", "b.example")));
    let why =
        "metadata.name: n is a boolean to kubectl, which reads YAML 1.1, and has to be a string: write \"n\"";
    assert!(found.contains(&format!("a.yaml:9:18: {why}")), "{found}");
    let item = service("n", "a.example").replace('\n', "\n  ");
    let found = check(&format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n"));
    assert!(found.contains(&format!("a.yaml:6:20: {why}")), "{found}");
    let quoted =
        service("web", "a.example").replace("LoadBalancer}", "LoadBalancer, ports: [{port: \"80\"}]}");
    let found = check(&quoted);
    assert!(
        found.contains("a.yaml:4:43: spec.ports.port: \"80\" is a string, and has to be a number: write 80"),
        "{found}"
    );
}

#[tokio::test]
async fn deselected_service_is_kept_and_opted_out_service_ends() {
    let (directory, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |name: &str| directory.path().join(format!("{name}.yaml"));
    let with = |name: &str, metadata: &str| {
        let metadata = format!("metadata: {{name: {name}, {metadata}}}");
        service(name, "a.example").replace(&format!("metadata: {{name: {name}}}"), &metadata)
    };
    for name in ["kept", "back", "out"] {
        fs::write(file(name), with(name, "labels: {tier: web}")).unwrap();
    }
    let args =
        ["--manifests", directory.path().to_str().unwrap(), "--output", output.path().to_str().unwrap()];
    let selector = ["--upstream", "none", "--service-selector", "tier=web"];
    let linker = Linker::start(args.iter().chain(&selector));
    let target = |name: &str| output.path().join(format!("{name}-default-ext.yaml"));
    eventually("the external targets", || async {
        ["kept", "back", "out"].iter().all(|name| target(name).exists()).then_some(())
    })
    .await;
    for name in ["kept", "back"] {
        fs::write(file(name), with(name, "labels: {tier: db}")).unwrap();
        linker
            .line(&format!("link default/{name}: its Service isn't selected any more; it is kept for 600s"))
            .await;
    }
    let out = r#"labels: {tier: web}, annotations: {linker.hsj.com/managed: "false"}"#;
    fs::write(file("out"), with("out", out)).unwrap();
    // An opted-out Service loses its external target without the delay.
    eventually("the removal", || async { (!target("out").exists()).then_some(()) }).await;
    answers(linker.dns, "out-default.lb.internal. CNAME", "Non-Existent Domain").await;
    fs::write(file("back"), with("back", "labels: {tier: web}").replace("a.example", "b.example")).unwrap();
    answers(linker.dns, "back-default.lb.internal. CNAME", "b.example.").await;
    assert_eq!(short(linker.dns, "kept-default.lb.internal. CNAME").await, "a.example.");
    assert!(target("kept").exists());

    // Without a delay, the link of a deselected Service ends at once.
    let mut linker = linker;
    assert!(linker.stop().success());
    fs::write(file("kept"), with("kept", "labels: {tier: web}")).unwrap();
    let linker = Linker::start(args.iter().chain(&selector).chain(&["--delete-delay", "0s"]));
    linker.ready().await;
    fs::write(file("kept"), with("kept", "labels: {tier: db}")).unwrap();
    eventually("the removal", || async { (!target("kept").exists()).then_some(()) }).await;
    answers(linker.dns, "kept-default.lb.internal. CNAME", "Non-Existent Domain").await;
}
