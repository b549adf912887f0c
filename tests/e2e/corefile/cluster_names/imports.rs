//! The names of ServiceImports: the option `multicluster` in lb-linker and in CoreDNS.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DynamicObject, GroupVersionKind, ListParams};
use rand::RngExt;
use rand::seq::IndexedRandom;
use serde_json::Value;

use super::generator::write;
use super::questions::mutated;
use super::*;

const SET: &str = "clusterset.local";
/// Clusters of endpoints; the empty one stands for none.
const CLUSTERS: [&str; 4] = ["east", "west", "West_2", ""];
/// A cluster that no name can have.
const DOTTED: &str = "a.b";
/// The Corefile of both; `OPTIONS` stands for further options of the plugin.
const COREFILE: &str = "
    .:{$PORT} {
        bind 127.0.0.1
        errors
        kubernetes cluster.local clusterset.local {
            kubeconfig {$CLUSTER_CONFIG}
            multicluster clusterset.local
            OPTIONS
        }
        forward . {$UPSTREAM}
    }";

async fn define_imports(client: &Client) {
    let names = json!({ "plural": "serviceimports", "singular": "serviceimport", "kind": "ServiceImport" });
    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let version = json!({ "name": "v1alpha1", "served": true, "storage": true, "schema": schema });
    let crd = json!({
        "metadata": {
            "name": "serviceimports.multicluster.x-k8s.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": { "group": "multicluster.x-k8s.io", "names": names, "scope": "Namespaced", "versions": [version] },
    });
    let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
    Api::all(client.clone()).create(&Default::default(), &crd).await.unwrap();
    let gvk = GroupVersionKind::gvk("multicluster.x-k8s.io", "v1alpha1", "ServiceImport");
    let imports = Api::<DynamicObject>::all_with(client.clone(), &kube::api::ApiResource::from_gvk(&gvk));
    for _ in 0..200 {
        if imports.list(&ListParams::default()).await.is_ok() {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("ServiceImports are never served");
}

/// Writes ServiceImports of every kind with their slices, and returns their keys.
async fn write_imports(
    client: &Client,
    world: &mut World,
    number: usize,
    random: &mut StdRng,
) -> Vec<String> {
    let namespaces: Vec<&str> = World::namespaces().collect();
    let mut keys = Vec::new();
    for at in 0..number {
        let namespace = *namespaces.choose(random).unwrap();
        let (name, kind) = (format!("i{at}"), random.random_range(0..5));
        let key = format!("{name}.{namespace}");
        let mut spec = json!({ "ports": world.ports(random, 0), "type": "ClusterSetIP" });
        match kind {
            0 | 1 => {
                spec["ips"] =
                    json!(&[format!("10.4.0.{at}"), format!("fd00:4::{at}")][..random.random_range(0..3)])
            }
            _ => spec["type"] = json!("Headless"),
        }
        if kind != 4 {
            let import = json!({ "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport",
                "metadata": { "name": name }, "spec": spec });
            write(client, namespace, import).await;
        }
        for slice in 0..random.random_range(0..4) {
            let mut slice = world.slice(&name, &key, slice, random);
            let labels: &mut Value = &mut slice["metadata"]["labels"];
            labels.as_object_mut().unwrap().remove("kubernetes.io/service-name");
            labels["multicluster.kubernetes.io/service-name"] = json!(name);
            let cluster = if random.random_bool(0.05) { DOTTED } else { CLUSTERS.choose(random).unwrap() };
            if cluster == DOTTED {
                // Left out as those with names.
                world.with_names.insert(key.clone());
            }
            if cluster.is_empty() {
                // CoreDNS has no answer with an SRV record then, whose target has an empty label.
                slice["ports"] = json!([]);
            } else {
                labels["multicluster.kubernetes.io/source-cluster"] = json!(cluster);
            }
            write(client, namespace, slice).await;
        }
        keys.push(key);
    }
    keys
}

fn import_names(world: &World, keys: &[String], random: &mut StdRng) -> Vec<String> {
    let labels: Vec<&String> = world.below.iter().collect();
    let mut names = Vec::new();
    for key in keys {
        names.push(format!("{key}.svc.{SET}"));
        names.push(format!("{key}.svc.{ZONE}"));
        let cluster = CLUSTERS.choose(random).unwrap();
        names.push(format!("{cluster}.{key}.svc.{SET}").trim_start_matches('.').to_owned());
        for _ in 0..4 {
            let label = labels.choose(random).unwrap();
            names.push(format!("{label}.{key}.svc.{SET}"));
            names.push(format!("{label}.{cluster}.{key}.svc.{SET}").replace("..", "."));
        }
    }
    names.extend(world.services.iter().map(|key| format!("{key}.svc.{SET}")));
    names.extend(
        World::namespaces().flat_map(|name| ["svc", "pod"].map(|branch| format!("{name}.{branch}.{SET}"))),
    );
    let special =
        ["", "svc.", "pod.", "dns.", "ns.dns.", "dns-version.", "x.", "a.b.c.d.svc.", "1-2-3-4.web.pod."];
    names.extend(special.map(|label| format!("{label}{SET}")));
    let absent: Vec<String> = names.iter().map(|name| mutated(name, random)).collect();
    names.into_iter().chain(absent).collect()
}

/// Returns why an answer may differ from CoreDNS's; `None` if it may not.
fn import_explanation(
    world: &World,
    question: &Question,
    rcodes_of_a: &BTreeMap<String, ResponseCode>,
    coredns: &Answer,
    subject: &Answer,
) -> Option<&'static str> {
    let name = question.text.split(' ').next()?.to_lowercase();
    let Some(below) = name.strip_suffix(SET) else {
        return explanation(world, question, rcodes_of_a, coredns, subject);
    };
    let is_apart = subject.is_nodata() && coredns.rcode == ResponseCode::NXDomain;
    if is_apart && CLUSTERS.iter().any(|cluster| below.starts_with(&format!("{}.", cluster.to_lowercase()))) {
        return Some("a name with names below it exists");
    }
    let mut question = question.clone();
    question.text = question.text.replace(SET, ZONE);
    let rcodes = rcodes_of_a.iter().map(|(name, rcode)| (name.replace(SET, ZONE), *rcode)).collect();
    explanation(world, &question, &rcodes, coredns, subject)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_imports_are_answered_as_by_coredns() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 4);
    let services = usize::try_from(number("LB_LINKER_CLUSTER_SERVICES", 60)).unwrap();
    let plane = ControlPlane::start(dual_stack());
    let client = plane.admin_client().await;
    let mut world = World::default();
    World::write_namespaces(&client).await;
    define_imports(&client).await;
    world.add(&client, services / 4, &mut random).await;
    let keys = write_imports(&client, &mut world, services, &mut random).await;
    let upstreams = Upstreams::start().await;
    for options in
        ["pods insecure", "ignore empty_service\nfallthrough", "noendpoints\nttl 9\nlabels tier in (front)"]
    {
        eprintln!("imports: {options:?}");
        world.passes_on = options.contains("fallthrough");
        let servers = Servers::with(&plane, &upstreams, &COREFILE.replace("OPTIONS", options)).await;
        wait_until_listed(&servers).await;
        let all = import_names(&world, &keys, &mut random);
        compare_names(&world, &servers, &mut random, all, import_explanation).await;
    }
}
