//! Without a cluster: Services from files, external targets into files.

use std::fs;
use std::path::Path;

use crate::harness::dns::{answers, short};
use crate::harness::eventually;
use crate::harness::linker::Linker;

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
async fn yaml_json_several_documents_and_lists_are_read() {
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
async fn a_broken_file_is_reported_with_its_place_and_keeps_its_last_good_content() {
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
async fn of_a_service_in_two_files_the_first_by_name_counts_and_the_other_is_reported() {
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

/// As a ConfigMap is mounted: the files are links through a link that is swapped.
#[tokio::test]
async fn files_that_change_by_a_swapped_link_are_noticed() {
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

    // What somebody deletes is made anew, and what is there is what a cluster would take.
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
async fn directories_that_are_replaced_are_followed_again() {
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

    // Another directory takes the place of the first; one of its files is broken and keeps what it had.
    let next = root.path().join("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("a.yaml"), service("a", "c.example")).unwrap();
    fs::write(next.join("b.yaml"), "broken: [").unwrap();
    fs::rename(&directory, root.path().join("former")).unwrap();
    fs::rename(&next, &directory).unwrap();
    answers(linker.dns, "a-default.lb.internal. CNAME", "c.example.").await;
    assert_eq!(short(linker.dns, "b-default.lb.internal. CNAME").await, "b.example.");

    // One that may well have the same inode.
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("a.yaml"), service("a", "d.example")).unwrap();
    answers(linker.dns, "a-default.lb.internal. CNAME", "d.example.").await;
}

#[tokio::test]
async fn a_pipe_among_the_manifests_holds_up_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(directory.path().join("web.yaml"), service("web", "a.example")).unwrap();
    let mut linker = start(directory.path(), None);
    linker.ready().await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.");
    assert!(linker.stop().success());
}
