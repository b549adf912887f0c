//! The commands of the page for remote clusters, with a second control plane as the context `west`.

use std::fs;

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::{OBJECTS, REMOTE_CLUSTERS, run};
use crate::harness::apply_deploy;
use crate::harness::control_plane::{ControlPlane, Options};

#[test]
fn commands_of_the_page_give_a_kubeconfig_to_lb_linker() {
    let (plane, west) = (ControlPlane::start(Options::default()), ControlPlane::lend());
    plane.apply(OBJECTS);
    apply_deploy(&plane);
    let read = |plane: &ControlPlane| -> Value {
        serde_saphyr::from_str(&fs::read_to_string(plane.admin_kubeconfig()).unwrap()).unwrap()
    };
    let (mut config, other) = (read(&plane), read(&west));
    for list in ["clusters", "users"] {
        let mut added = other[list][0].clone();
        added["name"] = "west".into();
        config[list].as_array_mut().unwrap().push(added);
    }
    let context = json!({"name": "west", "context": {"cluster": "west", "user": "west"}});
    config["contexts"].as_array_mut().unwrap().push(context);
    fs::write(plane.admin_kubeconfig(), config.to_string()).unwrap();
    run(&plane, REMOTE_CLUSTERS);

    let get = ["-n", "lb-linker", "get", "secret", "lb-linker-remotes", "-o", "jsonpath={.data.west}"];
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("west");
    fs::write(&kubeconfig, BASE64.decode(plane.kubectl(&get).as_bytes()).unwrap()).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let list = |kind: &str| west.try_kubectl(&["--kubeconfig", kubeconfig, "get", kind, "-A"]);
    assert!(list("services").unwrap().contains("kubernetes"));
    assert!(list("secrets").unwrap_err().contains("system:serviceaccount:lb-linker-remote:lb-linker-remote"));
    let deployments = plane.list("/apis/apps/v1/namespaces/lb-linker/deployments");
    let pod = &deployments[0]["spec"]["template"]["spec"];
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    assert_eq!(volumes.len(), 2, "{volumes:?}");
    assert!(volumes.contains(&&json!("remotes")) && volumes.contains(&&json!("snapshot")), "{volumes:?}");
}
