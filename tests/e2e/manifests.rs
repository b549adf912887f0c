//! Without a cluster: Services are read from files, and external targets are written to files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::programs::programs;
use crate::harness::{eventually, replace_file};
use crate::links::{links_of, text};
use crate::stable_names::bad_input;

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
    assert_eq!(linker.warnings(), [""; 0]);
}

#[tokio::test]
async fn ignored_annotations_are_logged_once() {
    let directory = tempfile::tempdir().unwrap();
    let annotations = "annotations: {linker.hsj.com/ttl: 5m, linker.hsj.com/hostnam: a.example}";
    let text = service("web", "a.example").replace("name: web", &format!("name: web, {annotations}"));
    fs::write(directory.path().join("web.yaml"), text).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    linker.line("linker.hsj.com/hostnam").await;
    assert_eq!(linker.warnings().len(), 1, "{:#?}", linker.log());
}

#[tokio::test]
async fn invalid_file_is_reported_and_keeps_its_last_content() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.yaml");
    fs::write(&file, service("web", "a.example")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    replace_file(&file, format!("{}  broken: [\n", service("web", "b.example")));
    let line = linker.line(&format!("{}:6:", file.display())).await;
    assert!(line.contains("its last good content stays in force"), "{line}");
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.");
    let broken =
        service("web", "b.example").replace("LoadBalancer}", "5}").replace("ingress: [", "ingress: 7 #");
    replace_file(&file, broken);
    linker.line(&format!("{}:5:", file.display())).await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.");
    replace_file(&file, service("web", "c.example"));
    answers(linker.dns, "web-default.lb.internal. CNAME", "c.example.").await;
}

#[tokio::test]
async fn misspelled_field_holds_only_its_own_service() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.yaml");
    let both = |host: &str, more: &str| {
        let api = service("api", host).replace("LoadBalancer}", &format!("LoadBalancer{more}}}"));
        format!("{}---\n{api}", service("web", host))
    };
    fs::write(&file, both("a.example", "")).unwrap();
    let mut linker = start(directory.path(), None);
    linker.ready().await;
    replace_file(&file, both("b.example", ", prots: [{port: 80}]"));
    answers(linker.dns, "web-default.lb.internal. CNAME", "b.example.").await;
    assert_eq!(short(linker.dns, "api-default.lb.internal. CNAME").await, "a.example.");
    let why = format!("{}:10:28: unknown field \"spec.prots\"", file.display());
    let line = linker.line(&why).await;
    assert!(line.ends_with("; its last good content stays in force"), "{line}");
    assert!(linker.stop().success());
    for command in [&["run", "--listen", "127.0.0.1:0"][..], &["check"]] {
        let output = run_to_end(command.iter().chain(&["--manifests", directory.path().to_str().unwrap()]));
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8(output.stderr).unwrap().contains(&why));
    }
}

/// Parts of a Service that kubectl refuses, and after them parts that it accepts: the text that is replaced, and the
/// new text.
const STRICT: [(&str, &str, bool); 11] = [
    ("type: LoadBalancer}", "type: LoadBalancer, prots: []}", false),
    ("type: LoadBalancer}", "type: LoadBalancer, Ports: []}", false),
    ("type: LoadBalancer}", "type: LoadBalancer, ports: [{port: 1, nodeport: 1}]}", false),
    ("metadata: {", "metadata: {lables: {}, ", false),
    ("status: {", "status: {loadbalancer: {}, ", false),
    ("{hostname", "{ports: [{prot: 1}], hostname", false),
    ("kind: Service", "kind: Service\ndata: {}", false),
    ("metadata: {", "metadata: {labels: {any: x}, generation: 1, selfLink: x, ", true),
    (
        "type: LoadBalancer}",
        "type: LoadBalancer, sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}}",
        true,
    ),
    ("type: LoadBalancer}", "type: LoadBalancer, clusterIPs: [], trafficDistribution: PreferClose}", true),
    ("status: {", "status: {conditions: [], ", true),
];

#[test]
fn unknown_fields_are_refused_as_by_kubectl() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (from, to, _)) in STRICT.iter().enumerate() {
        let path = directory.path().join(format!("{number:03}.yaml"));
        fs::write(path, service(&format!("strict{number}"), "a.example").replace(from, to)).unwrap();
    }
    let check = run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
    let mut kubectl = ControlPlane::shared().kubectl_command();
    let args = ["create", "--dry-run=server", "--validate=strict", "-o", "name", "-f"];
    let theirs = kubectl.args(args).arg(directory.path()).output().unwrap();
    let [ours, theirs] = [check, theirs].map(|it| String::from_utf8(it.stderr).unwrap());
    for (number, (_, to, accepted)) in STRICT.iter().enumerate() {
        let has = |text: &str, faults: &[&str]| {
            let of_file = |line: &&str| line.contains(&format!("/{number:03}.yaml"));
            text.lines().filter(of_file).any(|line| faults.iter().any(|fault| line.contains(fault)))
        };
        assert_eq!(!has(&ours, &[""]), *accepted, "{to}: {ours}");
        let faults = ["unknown field", "already set", "strict decoding", "error converting YAML"];
        assert_eq!(!has(&theirs, &faults), *accepted, "{to}: {theirs}");
    }
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
    eventually("the orphan's removal", || async { (!path("gone-default-ext.yaml").exists()).then_some(()) })
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
    eventually("the removal", || async { (!path("ours-default-ext.yaml").exists()).then_some(()) }).await;
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
    let exist = || async {
        ["a", "b"].iter().all(|name| output.join(format!("{name}-default-ext.yaml")).exists()).then_some(())
    };
    eventually("the external targets", exist).await;

    fs::rename(&output, root.path().join("former-output")).unwrap();
    eventually("the external targets again", exist).await;

    // Another directory replaces the first one. The new `b.yaml` is invalid, so Service `b` keeps its last target.
    let next = root.path().join("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("a.yaml"), service("a", "c.example")).unwrap();
    fs::write(next.join("b.yaml"), "broken: [").unwrap();
    fs::rename(&directory, root.path().join("former")).unwrap();
    fs::rename(&next, &directory).unwrap();
    answers(linker.dns, "a-default.lb.internal. CNAME", "c.example.").await;
    assert_eq!(short(linker.dns, "b-default.lb.internal. CNAME").await, "b.example.");

    // While there is no directory, users see why.
    fs::remove_dir_all(&directory).unwrap();
    let admin = linker.admin().await;
    let unread = format!("the manifests can't be read, the links stay as they are: {}", directory.display());
    let is_told = || async {
        let notices = [text(&links_of(admin, &[]).stderr), linker.get_ready().1];
        notices.iter().all(|notice| notice.contains(&unread)).then_some(())
    };
    eventually("the notice and the note of /ready", is_told).await;
    // The new directory may have the inode number of the old one.
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("a.yaml"), service("a", "d.example")).unwrap();
    answers(linker.dns, "a-default.lb.internal. CNAME", "d.example.").await;
    assert_eq!(linker.get_ready(), (200, "OK".to_owned()));
    let of_manifests = |text: &str| linker.logged(&format!("{}: {text}", directory.display()));
    assert_eq!(of_manifests("can't be watched for changes: it doesn't exist; the links stay as they are"), 1);
    assert_eq!(of_manifests("the directory was replaced, and is read again"), 2);
    assert_eq!(linker.logged("the reading of manifests stopped"), 0, "{:#?}", linker.log());
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

/// YAML scalars for a field of type string. The test runs kubectl to learn which of them kubectl reads as strings.
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
/// Of the errors of kubectl only those with one of the texts `faults` count.
fn accepted(
    cases: &[(&str, &str)],
    kubectl: impl Fn(&Path) -> Command,
    faults: &[&str],
) -> Vec<(bool, bool)> {
    let directory = tempfile::tempdir().unwrap();
    for (number, (field, scalar)) in cases.iter().enumerate() {
        let path = directory.path().join(format!("{number:03}.yaml"));
        fs::write(path, service_with(field, scalar, &format!("s{number}"))).unwrap();
    }
    let check = run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
    let [ours, theirs] =
        [check, kubectl(directory.path()).output().unwrap()].map(|it| String::from_utf8(it.stderr).unwrap());
    let is_refused = |text: &str, number: usize, faults: &[&str]| {
        let is_fault = |line: &str| faults.iter().any(|fault| line.contains(fault));
        text.lines().any(|line| line.contains(&format!("/{number:03}.yaml")) && is_fault(line))
    };
    let numbers = 0..cases.len();
    numbers.map(|number| (!is_refused(&ours, number, &[""]), !is_refused(&theirs, number, faults))).collect()
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
    let taken = accepted(&cases, annotate, &[""]);
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
    let taken = accepted(&cases, create, &["cannot unmarshal", "Unsupported value"]);
    assert_eq!(differences(&cases, &taken), [""; 0]);
    // Only the type of a Service can't be any string.
    assert_eq!(taken.iter().filter(|(ours, _)| *ours).count(), METADATA.len() + OTHER_FIELDS.len() - 1);
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
        found.contains(
            "a.yaml:4:43: spec.ports[0].port: \"80\" is a string, and has to be a number: write 80"
        ),
        "{found}"
    );
}

#[tokio::test]
async fn delete_delay_applies_to_deselection_but_not_to_opt_out() {
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
        replace_file(&file(name), with(name, "labels: {tier: db}"));
        linker
            .line(&format!("link default/{name}: its Service isn't selected any more; it is kept for 600s"))
            .await;
    }
    let out = r#"labels: {tier: web}, annotations: {linker.hsj.com/managed: "false"}"#;
    replace_file(&file("out"), with("out", out));
    // An opted-out Service loses its external target without the delay.
    eventually("the removal", || async { (!target("out").exists()).then_some(()) }).await;
    answers(linker.dns, "out-default.lb.internal. CNAME", "Non-Existent Domain").await;
    replace_file(&file("back"), with("back", "labels: {tier: web}").replace("a.example", "b.example"));
    answers(linker.dns, "back-default.lb.internal. CNAME", "b.example.").await;
    assert_eq!(short(linker.dns, "kept-default.lb.internal. CNAME").await, "a.example.");
    assert!(target("kept").exists());

    // Without a delay, the link of a deselected Service ends at once.
    let mut linker = linker;
    assert!(linker.stop().success());
    replace_file(&file("kept"), with("kept", "labels: {tier: web}"));
    let linker = Linker::start(args.iter().chain(&selector).chain(&["--delete-delay", "0s"]));
    linker.ready().await;
    replace_file(&file("kept"), with("kept", "labels: {tier: db}"));
    eventually("the removal", || async { (!target("kept").exists()).then_some(()) }).await;
    answers(linker.dns, "kept-default.lb.internal. CNAME", "Non-Existent Domain").await;
}

/// A StableName with two sources: `seoul`, the Service with the name of the StableName, and `fixed`, a
/// hostname.
fn stable_name(name: &str, more: &str) -> String {
    format!(
        "apiVersion: linker.hsj.com/v1alpha1\nkind: StableName\nmetadata: {{name: {name}}}\nspec:\n  sources:\n  \
         - {{name: seoul, service: {{name: {name}}}}}\n  - {{name: fixed, hostname: lb.example.com}}\n{more}"
    )
}

#[tokio::test]
async fn stable_name_takes_a_link_over_and_gives_it_back() {
    let (directory, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    fs::write(path("service.yaml"), service("web", "a.example")).unwrap();
    let linker = start(directory.path(), Some(output.path()));
    linker.ready().await;
    let object = output.path().join("web-default-ext.yaml");
    let points_at = async |host: &str| {
        let is_written = || fs::read_to_string(&object).is_ok_and(|text| text.contains(host));
        eventually(host, || async { is_written().then_some(()) }).await
    };
    points_at("externalName: a.example").await;
    let question = "web-default.lb.internal. CNAME";

    replace_file(&path("sn.yaml"), stable_name("web", "  ttlSeconds: 9\n"));
    linker.line("StableName default/web: source seoul is in use").await;
    assert_eq!(short(linker.dns, question).await, "a.example.");
    replace_file(&path("sn.yaml"), stable_name("web", "  pin: fixed\n"));
    linker.line("link default/web: a.example → lb.example.com").await;
    answers(linker.dns, question, "lb.example.com.").await;
    points_at("externalName: lb.example.com").await;
    // The source follows the Service.
    replace_file(&path("sn.yaml"), stable_name("web", ""));
    answers(linker.dns, question, "a.example.").await;
    replace_file(&path("service.yaml"), service("web", "b.example"));
    answers(linker.dns, question, "b.example.").await;
    // Without the Service, the next source is in use.
    fs::remove_file(path("service.yaml")).unwrap();
    answers(linker.dns, question, "lb.example.com.").await;
    linker.line("StableName default/web: source seoul: there is no LoadBalancer Service web").await;

    replace_file(&path("service.yaml"), service("web", "c.example"));
    answers(linker.dns, question, "c.example.").await;
    replace_file(&path("sn.yaml"), stable_name("web", "  pin: fixed\n"));
    answers(linker.dns, question, "lb.example.com.").await;
    fs::remove_file(path("sn.yaml")).unwrap();
    linker.line("link default/web: lb.example.com → c.example").await;
    answers(linker.dns, question, "c.example.").await;
    points_at("externalName: c.example").await;
}

#[tokio::test]
async fn stable_name_without_service_is_removed_with_its_manifest() {
    let (directory, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = directory.path().join("sn.yaml");
    fs::write(&path, stable_name("web", "")).unwrap();
    let object = output.path().join("web-default-ext.yaml");
    for _ in 0..2 {
        // The external target of an earlier run stays.
        let mut linker = start(directory.path(), Some(output.path()));
        linker.ready().await;
        linker.line("ready: StableNames: 1").await;
        answers(linker.dns, "web-default.lb.internal. CNAME", "lb.example.com.").await;
        eventually("the external target", || async { object.exists().then_some(()) }).await;
        assert!(linker.stop().success());
        assert!(object.exists());
    }
    let linker = start(directory.path(), Some(output.path()));
    linker.ready().await;
    fs::remove_file(&path).unwrap();
    answers(linker.dns, "web-default.lb.internal. CNAME", "Non-Existent Domain").await;
    eventually("the removal", || async { (!object.exists()).then_some(()) }).await;
}

#[tokio::test]
async fn stable_name_that_replaces_a_service_leaves_no_gap() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.yaml");
    fs::write(&path, service("web", "a.example")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    replace_file(&path, stable_name("web", ""));
    answers(linker.dns, "web-default.lb.internal. CNAME", "lb.example.com.").await;
    linker.line("link default/web: a.example → lb.example.com").await;
    assert_eq!(linker.logged("link default/web: "), 1, "{:#?}", linker.log());
    replace_file(&path, service("web", "b.example"));
    linker.line("link default/web: lb.example.com → b.example").await;
    linker.line("StableName default/web: its manifest is gone").await;
    assert_eq!(linker.logged("link default/web: "), 2, "{:#?}", linker.log());
}

#[tokio::test]
async fn status_in_a_manifest_determines_the_target() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sn.yaml");
    let manifest =
        |status: &str| format!("{}---\n{}{status}", service("web", "a.example"), stable_name("web", ""));
    fs::write(&path, manifest("status: {target: {source: busan, hostname: dr.example}}\n")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "dr.example.");
    replace_file(&path, manifest("status: {history: [{source: busan, display: dr.example}]}\n"));
    linker.line("link default/web: dr.example → withdrawn").await;
    replace_file(&path, manifest(""));
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.").await;
}

#[tokio::test]
async fn sources_of_other_namespaces_need_a_grant() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let granted = |metadata: &str| {
        service("web", "dr.example")
            .replace("{name: web}", &format!("{{name: web, namespace: dr, {metadata}}}"))
    };
    fs::write(path("service.yaml"), granted("annotations: {}")).unwrap();
    let sn = stable_name("web", "").replace("service: {name: web}", "service: {name: web, namespace: dr}");
    fs::write(path("sn.yaml"), sn.replace("  - {name: fixed, hostname: lb.example.com}\n", "")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    linker.line("source seoul: no LoadBalancer Service dr/web lets namespace default follow it").await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "No Error");
    // A Service without a link of its own can be a source, too.
    let metadata = "annotations: {linker.hsj.com/allow-from: default, linker.hsj.com/managed: 'false'}";
    replace_file(&path("service.yaml"), granted(metadata));
    answers(linker.dns, "web-default.lb.internal. CNAME", "dr.example.").await;
    replace_file(&path("service.yaml"), granted("annotations: {}"));
    linker.line("link default/web: dr.example → withdrawn").await;
}

#[tokio::test]
async fn older_stable_name_gets_the_shared_name() {
    let directory = tempfile::tempdir().unwrap();
    let object = |namespace: &str, name: &str, created: &str, host: &str| {
        let metadata = format!("{{name: {name}, namespace: {namespace}, creationTimestamp: {created}}}");
        stable_name(name, "")
            .replace(&format!("{{name: {name}}}\nspec"), &format!("{metadata}\nspec"))
            .replace("lb.example.com", host)
    };
    let both = [
        object("y-z", "x", "2026-01-02T00:00:00Z", "b.example"),
        object("z", "x-y", "2026-01-01T00:00:00Z", "a.example"),
    ];
    fs::write(directory.path().join("sn.yaml"), both.join("---\n")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    for (name, host) in [("x-y-z", "a.example."), ("x-y.z", "a.example."), ("x.y-z", "b.example.")] {
        assert_eq!(short(linker.dns, &format!("{name}.lb.internal. CNAME")).await, host, "{name}");
    }
}

#[tokio::test]
async fn broken_stable_name_keeps_its_last_content() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sn.yaml");
    fs::write(&file, stable_name("web", "")).unwrap();
    let linker = start(directory.path(), None);
    linker.ready().await;
    let broken = stable_name("web", "  ttl: 5\n").replace("lb.example.com", "192.0.2.1");
    replace_file(&file, &broken);
    let line = linker.line(&format!("{}:8:3: unknown field \"spec.ttl\"", file.display())).await;
    assert!(line.ends_with("its last good content stays in force"), "{line}");
    let admin = linker.admin().await;
    let notice = || text(&links_of(admin, &[]).stderr);
    let expected = format!("manifests with errors: {}:8:3: unknown field", file.display());
    assert!(notice().contains(&expected), "{}", notice());
    replace_file(&file, broken.replace("  ttl: 5\n", ""));
    linker
        .line(&format!("{}:7:29: spec.sources[1].hostname: use addresses for an IP address", file.display()))
        .await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "lb.example.com.");
    replace_file(&file, stable_name("web", ""));
    let is_mended = || async { (!notice().contains("manifests with errors")).then_some(()) };
    eventually("the end of the notice", is_mended).await;
    replace_file(&file, broken.replace("  ttl: 5\n", ""));
    linker.line("sn.yaml:7:29: spec.sources[1].hostname").await;
    drop(linker);
    // At the start, a broken manifest is an error.
    let output = run_to_end(["--manifests", directory.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("sn.yaml:7:29: spec.sources[1].hostname: "), "{errors}");
}

#[test]
fn invalid_stable_name_is_refused_with_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let cases = bad_input::cases();
    let path = |number: usize| directory.path().join(format!("{number:03}.json"));
    for (number, case) in cases.iter().enumerate() {
        let object = serde_json::json!({"apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"name": case.name}, "spec": case.spec});
        fs::write(path(number), object.to_string()).unwrap();
    }
    let check = || run_to_end(["check", "--manifests", directory.path().to_str().unwrap()]);
    let output = check();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for (number, case) in cases.iter().enumerate() {
        let place = format!("{}:1:", path(number).display());
        let found: Vec<&str> = errors.lines().filter(|line| line.contains(&place)).collect();
        let [error] = &found[..] else { panic!("{}: {found:?}", case.given) };
        assert!(error.ends_with(&case.message), "{}: {error}", case.given);
        fs::remove_file(path(number)).unwrap();
    }
    for (number, (_, name, spec)) in bad_input::accepted().into_iter().enumerate() {
        let object = serde_json::json!({"apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"name": name, "namespace": format!("n{number}")}, "spec": spec});
        fs::write(path(number), object.to_string()).unwrap();
    }
    let output = check();
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{errors}");
    let number = bad_input::accepted().len();
    assert!(text.contains(&format!("StableNames in {}: {number}", directory.path().display())), "{text}");
}

#[test]
fn links_of_manifests_show_the_stable_name() {
    let directory = tempfile::tempdir().unwrap();
    let waiting = stable_name("waiting", "").replace("  - {name: fixed, hostname: lb.example.com}\n", "");
    let named = stable_name("named", "  hostnames: [web.other]\n");
    let all = [service("web", "a.example"), stable_name("web", "  pin: fixed\n"), waiting, named];
    fs::write(directory.path().join("all.yaml"), all.join("---\n")).unwrap();
    let links = |arguments: &[&str]| {
        let output = run_to_end(
            [&["links", "--manifests", directory.path().to_str().unwrap()][..], arguments].concat(),
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let table = links(&["-o", "wide"]);
    let outside = "spec.hostnames: \"web.other\": it lies in none of lb-linker's zones (lb.internal); source seoul: there \
                   is no LoadBalancer Service named";
    let unused =
        "the StableName announces no target yet; source seoul: there is no LoadBalancer Service waiting";
    for (name, overridden_by, reason) in [
        ("named", "StableName default/named, source fixed", outside),
        ("waiting", "StableName default/waiting", unused),
        ("web", "StableName default/web, source fixed", "<none>"),
    ] {
        let row = table.lines().find(|line| line.contains(&format!(" {name} "))).unwrap();
        let cells: Vec<&str> = row.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[cells.len() - 2..], [overridden_by, reason], "{table}");
    }
    assert!(links(&["web"]).starts_with("Led by:           StableName default/web, source fixed\n"));
    assert!(links(&["-o", "name"]).contains("stablename.linker.hsj.com/web\n"));
}
