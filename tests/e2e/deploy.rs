//! The manifests of `deploy/` on the real API server.

mod cluster_dns;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{CoreDns, answers};
use crate::harness::{cluster_with_target, deploy, eventually};
use crate::target_namespace::delete_namespace;

/// The optional folders that can be applied as they are. The folder `monitoring` needs CRDs of another project: see
/// `monitoring.rs`. The folder `remote` has a namespace of its own, which a dry run doesn't create: see
/// `remote_access.rs`. The folder `sidecar/policy` needs a newer Kubernetes than the rest: see `sidecar.rs`.
const OPTIONAL: [&str; 14] = [
    "alerts",
    "cluster-dns",
    "corefile",
    "crd",
    "finalizer",
    "life",
    "network-policy",
    "openshift",
    "priority",
    "sidecar",
    "source",
    "sources",
    "stub",
    "takeover",
];

/// Returns the objects of a file, or of the files of a folder, as kubectl finds them.
pub fn objects(path: &Path) -> Vec<Value> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
        files.sort();
    }
    let read = |file: &std::path::PathBuf| -> Vec<Value> {
        serde_saphyr::from_multiple(&fs::read_to_string(file).unwrap()).unwrap()
    };
    files.iter().flat_map(read).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("there is no {kind}"))
}

/// Returns the Pod that a Deployment or a Job would create.
fn pod_of(object: &Value) -> String {
    let mut pod = object["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["generateName"] = "pod-".into();
    pod.to_string()
}

#[tokio::test]
async fn deleting_deploy_keeps_the_external_targets() {
    let plane = ControlPlane::start(Options::default());
    // By kubectl, because what it prunes later depends on how objects were applied.
    let targets = deploy().join("targets");
    plane.kubectl(&["apply", "-f", targets.to_str().unwrap(), "-f", deploy().to_str().unwrap()]);
    let external_target = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: external-targets}\n\
                           spec: {type: ExternalName, externalName: a.example.com}\n";
    plane.apply(external_target);
    let try_delete = || {
        plane.try_kubectl(&["delete", "namespace", "external-targets", "--dry-run=server", "--wait=false"])
    };
    let annotate = |value: &str| {
        let annotation = format!("linker.hsj.com/allow-delete{value}");
        plane.kubectl(&["annotate", "namespace", "external-targets", "--overwrite", &annotation]);
    };
    // A policy is in force a moment after it was created.
    eventually("the policy", || async { try_delete().is_err().then_some(()) }).await;
    annotate("=true");
    try_delete().unwrap();
    for other in ["=false", "=False", "=", "-"] {
        annotate(other);
        try_delete().unwrap_err();
    }

    let folder = deploy().to_str().unwrap();
    for by in ["-f", "-f", "-k"] {
        plane.kubectl(&["delete", by, folder, "--ignore-not-found", "--wait=false"]);
    }
    let is_deleted = |name: &str| {
        let namespaces = plane.list("/api/v1/namespaces");
        let namespace = namespaces.iter().find(|namespace| namespace["metadata"]["name"] == name).unwrap();
        !namespace["metadata"]["deletionTimestamp"].is_null()
    };
    assert!(is_deleted("lb-linker") && !is_deleted("external-targets"));
    let sentence = "namespace external-targets is kept, because applications use the names of its Services; to delete \
                    it too, run first: kubectl annotate namespace external-targets linker.hsj.com/allow-delete=true";
    let error = try_delete().unwrap_err();
    assert!(error.contains(sentence), "{error}");
    let dns = CoreDns::of_cluster(&plane).await;
    answers(dns.address, "web.external-targets.svc.cluster.local. A", "a.example.com. 192.0.2.10").await;
    let [deployments, roles] = [
        "/apis/apps/v1/namespaces/lb-linker/deployments",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/external-targets/roles",
    ];
    for path in [deployments, roles] {
        assert_eq!(plane.list(path), [] as [Value; 0], "{path}");
    }

    delete_namespace(&plane, "lb-linker", &[]).await;
    plane.kubectl(&["apply", "-f", folder]);
    assert_eq!([deployments, roles].map(|path| plane.list(path).len()), [1, 1]);
    // An upgrade with --prune from a version with the namespace in this folder.
    let prune = ["apply", "--prune", "-l", "app.kubernetes.io/name=lb-linker", "-f", folder];
    let error = plane.try_kubectl(&prune).unwrap_err();
    assert!(error.contains(sentence), "{error}");

    annotate("=true");
    plane.kubectl(&["delete", "-f", deploy().join("targets").to_str().unwrap(), "--wait=false"]);
    assert!(is_deleted("external-targets"));
    let policies = plane.list("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies");
    assert_eq!(policies, [] as [Value; 0]);
}

#[tokio::test]
async fn pods_meet_the_restricted_pod_security_standard() {
    let (plane, _, _) = cluster_with_target().await;
    let create = ["-n", "lb-linker", "create", "--dry-run=server", "-f", "-"];
    for path in ["20-deployment.yaml", "openshift", "takeover", "cluster-dns"] {
        let objects = objects(&deploy().join(path));
        let mut workload = of_kind(&objects, if path == "takeover" { "Job" } else { "Deployment" }).clone();
        workload["spec"]["template"]["spec"]["serviceAccountName"] = "lb-linker".into();
        plane.kubectl_stdin(&create, &pod_of(&workload));
    }
    // The API server enforces the standard: it refuses a Pod that runs as root.
    let mut root = of_kind(&objects(&deploy().join("20-deployment.yaml")), "Deployment").clone();
    root["spec"]["template"]["spec"]["securityContext"]["runAsUser"] = 0.into();
    let pod = tempfile::NamedTempFile::new().unwrap();
    fs::write(pod.path(), pod_of(&root)).unwrap();
    let path = pod.path().to_str().unwrap();
    let error =
        plane.try_kubectl(&["-n", "lb-linker", "create", "--dry-run=server", "-f", path]).unwrap_err();
    assert!(error.contains("violates PodSecurity \"restricted:latest\""), "{error}");
}

#[tokio::test]
async fn optional_folders_are_accepted_by_the_api_server() {
    let (plane, _, _) = cluster_with_target().await;
    for folder in OPTIONAL {
        let path = deploy().join(folder);
        // Other tests create these objects: one may appear between the requests of kubectl.
        let applied = || async {
            match plane.try_kubectl(&["apply", "--dry-run=server", "-f", path.to_str().unwrap()]) {
                Err(error) if error.contains("AlreadyExists") => None,
                result => Some(result.unwrap()),
            }
        };
        eventually("the dry run", applied).await;
    }
}

#[test]
fn every_folder_of_deploy_is_tested() {
    let mut folders: Vec<String> = Vec::new();
    for entry in fs::read_dir(deploy()).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            folders.push(entry.file_name().into_string().unwrap());
        }
    }
    folders.sort();
    let mut tested = OPTIONAL.to_vec();
    tested.extend(["monitoring", "remote", "targets"]);
    tested.sort_unstable();
    assert_eq!(folders, tested);
}

#[test]
fn kustomizations_have_the_objects_of_their_folders() {
    let sorted = |mut objects: Vec<Value>| {
        objects.sort_by_key(|object| {
            format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
        });
        objects
    };
    for folder in [deploy(), &deploy().join("targets"), &deploy().join("cluster-dns")] {
        let rendered = ControlPlane::shared().kubectl(&["kustomize", folder.to_str().unwrap()]);
        let rendered: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        assert_eq!(sorted(rendered), sorted(objects(folder)));
    }
}

#[test]
fn component_for_remote_clusters_patches_the_deployment() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(deploy(), directory.path().join("deploy")).unwrap();
    let remotes = "west=/etc/lb-linker-remotes/west,east=/etc/lb-linker-remotes/east";
    let kustomization = json!({
        "resources": ["deploy"], "components": ["deploy/remote/home"],
        "configMapGenerator": [{
            "name": "lb-linker-remotes", "namespace": "lb-linker", "literals": [format!("remotes={remotes}")],
        }],
    });
    fs::write(directory.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let rendered = ControlPlane::shared().kubectl(&["kustomize", directory.path().to_str().unwrap()]);
    let rendered: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
    let configmap = of_kind(&rendered, "ConfigMap");
    assert_eq!(configmap["data"]["remotes"], remotes);
    let of_role = |object: &&Value| object["metadata"]["name"] == "lb-linker-remotes";
    let mut added: Vec<Value> = rendered.iter().filter(of_role).cloned().collect();
    added.sort_by_key(|object| object["kind"].to_string());
    assert_eq!(added, objects(&deploy().join("remote/home/rbac.yaml")));
    let patch = objects(&deploy().join("remote/home/patch.yaml"));
    let patch = &patch[0]["spec"]["template"]["spec"];
    let pod = &of_kind(&rendered, "Deployment")["spec"]["template"]["spec"];
    let has = |list: &Value, item: &Value| list.as_array().unwrap().contains(item);
    let (container, added) = (&pod["containers"][0], &patch["containers"][0]);
    let mut variable = added["env"][0].clone();
    // The reference names the generated ConfigMap.
    variable["valueFrom"]["configMapKeyRef"]["name"] = configmap["metadata"]["name"].clone();
    assert!(has(&container["env"], &variable), "{container}");
    assert!(has(&container["volumeMounts"], &added["volumeMounts"][0]), "{container}");
    assert!(has(&pod["volumes"], &patch["volumes"][0]), "{pod}");
    let before = objects(&deploy().join("20-deployment.yaml"));
    let before = &before[0]["spec"]["template"]["spec"];
    assert_eq!(container["args"], before["containers"][0]["args"]);
    let number = |pod: &Value| pod["volumes"].as_array().unwrap().len();
    assert_eq!(number(pod), number(before) + 1);
}

#[test]
fn openshift_deployment_lacks_only_the_user_ids() {
    let mut expected = objects(&deploy().join("20-deployment.yaml"));
    let context = &mut expected[0]["spec"]["template"]["spec"]["securityContext"];
    for field in ["runAsUser", "runAsGroup"] {
        assert_eq!(context.as_object_mut().unwrap().remove(field), Some(65532.into()));
    }
    assert_eq!(objects(&deploy().join("openshift")), expected);
}
