//! The chart's values for remote clusters.

use serde_json::{Value, json};

use super::chart::{CHART, sorted, without_cluster, without_helm};
use crate::deploy::objects;
use crate::harness::deploy;

/// Returns the object of a kind with this name.
fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn chart_with_remote_access_equals_deploy_remote() {
    let mut expected = ["remote", "remote/token"].map(|folder| objects(&deploy().join(folder))).concat();
    // Helm's --create-namespace creates it.
    expected.retain(|object| object["kind"] != "Namespace");
    let expected = sorted(expected);
    for helm in without_cluster() {
        let release = ["template", "lb-linker-remote", CHART, "--namespace", "lb-linker-remote"];
        // The release has nothing else, whatever the other values are.
        let values = "--set=remoteAccess.enabled=true,remoteAccess.token=true,monitoring.enabled=true,corefile=a,\
                      clusterDns.enabled=true,stub.enabled=true,networkPolicy.enabled=true,priorityQuota.enabled=true";
        let rendered = helm.run(&[&release[..], &[values]].concat());
        let rendered: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        let mut rendered: Vec<Value> = rendered.into_iter().filter(|object| !object.is_null()).collect();
        rendered.iter_mut().for_each(without_helm);
        assert_eq!(sorted(rendered), expected);
    }
}

#[test]
fn chart_with_remotes_equals_deploy_remote_home() {
    let expected = objects(&deploy().join("remote/home/rbac.yaml"));
    let patch = objects(&deploy().join("remote/home/patch.yaml")).remove(0);
    let patch = &patch["spec"]["template"]["spec"];
    for helm in without_cluster() {
        let mut rendered = helm.template(&["--set=remotes[0].name=west,remotes[1].name=east,clusterName=hq"]);
        rendered.iter_mut().for_each(without_helm);
        for object in &expected {
            let kind = object["kind"].as_str().unwrap();
            assert_eq!(find(&rendered, kind, "lb-linker-remotes"), object);
        }
        let mut without = helm.template(&[]);
        without.iter_mut().for_each(without_helm);
        assert_eq!(rendered.len(), without.len() + expected.len());
        let mut pod = find(&rendered, "Deployment", "lb-linker")["spec"]["template"]["spec"].clone();
        let container = &mut pod["containers"][0];
        let args = container["args"].as_array().unwrap();
        let [_, _, _, own @ ..] = &args[..] else { panic!("{args:?}") };
        let paths = ["west", "east"].map(|name| format!("--remote={name}=/etc/lb-linker-remotes/{name}"));
        assert_eq!(*own, [json!("--cluster-name=hq"), json!(paths[0]), json!(paths[1])]);
        let mounts = container["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts.last(), Some(&patch["containers"][0]["volumeMounts"][0]));
        // The chart names the keys, because each Secret may be another one.
        let secret = |name: &str| json!({"secret": {"name": "lb-linker-remotes", "items": [{"key": name, "path": name}]}});
        let mut volume = patch["volumes"][0].clone();
        volume["projected"]["sources"] = json!([secret("west"), secret("east")]);
        assert_eq!(pod["volumes"].as_array().unwrap().last(), Some(&volume));

        let named =
            "--set=remotes[0].name=west,remotes[0].secret=a,remotes[0].key=value,remotes[0].context=b:c";
        let rendered = helm.template(&[named, "--set=corefile=a,snapshot.enabled=false"]);
        let pod = &find(&rendered, "Deployment", "lb-linker")["spec"]["template"]["spec"];
        let last = pod["containers"][0]["args"].as_array().unwrap().last();
        assert_eq!(last, Some(&json!("--remote=west=/etc/lb-linker-remotes/west:b:c")));
        let source = json!({"secret": {"name": "a", "items": [{"key": "value", "path": "west"}]}});
        assert_eq!(pod["volumes"][1]["projected"]["sources"], json!([source]));
    }
}

#[test]
fn chart_refuses_wrong_remotes() {
    for helm in without_cluster() {
        for (values, expected) in [
            ("remotes[0].name=dns", "remotes"),
            ("remotes[0].name=deleted", "remotes"),
            ("remotes[0].name=West", "remotes"),
            ("remotes[0].name=a.b", "remotes"),
            ("remotes[0].kubeconfig=a", "remotes"),
            ("remotes[0].name=a,remotes[0].context=b\\,c", "context"),
            ("remotes[16].name=a", "remotes"),
            ("remotes[0].name=home", "remotes: home is given twice, or is the clusterName of the release"),
            ("remotes[0].name=a,remotes[1].name=a", "remotes: a is given twice"),
            ("clusterName=null", "clusterName"),
            ("remoteAccess=null", "remoteAccess"),
            (
                "remoteAccess.enabled=true,remotes[0].name=a",
                "remotes must be empty if remoteAccess.enabled is true",
            ),
        ] {
            let error = helm.try_run(&["template", "x", CHART, "--set", values]).unwrap_err();
            assert!(error.contains(expected), "{values}: {error}");
        }
    }
}
