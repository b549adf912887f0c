//! Load balancers with addresses instead of a hostname.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::dns::short;
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually};
use crate::recreation::wait_for_external_target;

async fn slice(cluster: &Cluster, namespace: &str, name: &str) -> Option<Vec<String>> {
    let api: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), namespace);
    let slice = api.get_opt(name).await.unwrap()?;
    Some(slice.endpoints.into_iter().flatten().flat_map(|endpoint| endpoint.addresses).collect())
}

async fn wait_for_slice(cluster: &Cluster, namespace: &str, name: &str, expected: Option<&[&str]>) {
    let expected = expected.map(|ips| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>());
    let look = || async { (slice(cluster, namespace, name).await == expected).then_some(()) };
    eventually(&format!("{name} with {expected:?}"), look).await;
}

async fn wait_for_headless(cluster: &Cluster, namespace: &str, name: &str) -> String {
    let look = || async {
        let service = cluster.get_service(namespace, name).await?;
        let spec = service.spec?;
        (spec.cluster_ip.as_deref() == Some("None")).then_some(())?;
        assert_eq!(spec.external_name, None);
        assert_eq!(spec.ports.unwrap()[0].port, 80);
        service.metadata.uid
    };
    eventually(&format!("{name} to be headless"), look).await
}

#[tokio::test]
async fn hostname_and_addresses_alternate_in_the_same_object() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let object = format!("web-{namespace}-ext");
    let (ipv4, ipv6) = (format!("{object}-ipv4"), format!("{object}-ipv6"));
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    cluster.create_load_balancer(&namespace, "web").await;
    let both = [
        Ingress::Ip("192.0.2.1"),
        Ingress::Ip("2001:db8::1"),
        Ingress::Ip("192.0.2.2"),
        Ingress::Ip("169.254.1.1"),
    ];
    cluster.set_ingress(&namespace, "web", &both).await;
    let uid = wait_for_headless(&cluster, &target, &object).await;
    wait_for_slice(&cluster, &target, &ipv4, Some(&["192.0.2.1", "192.0.2.2"])).await;
    wait_for_slice(&cluster, &target, &ipv6, Some(&["2001:db8::1"])).await;

    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let named = wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    assert_eq!(named.metadata.uid.as_deref(), Some(&*uid), "the object stays the same");
    wait_for_slice(&cluster, &target, &ipv4, None).await;
    wait_for_slice(&cluster, &target, &ipv6, None).await;

    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.9")]).await;
    assert_eq!(wait_for_headless(&cluster, &target, &object).await, uid);
    wait_for_slice(&cluster, &target, &ipv4, Some(&["192.0.2.9"])).await;
    wait_for_slice(&cluster, &target, &ipv6, None).await;
    assert_eq!(short(linker.dns, &format!("web-{namespace}.lb.internal. A")).await, "192.0.2.9");

    // A slice that is deleted by hand is restored.
    let api: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), &target);
    api.delete(&ipv4, &Default::default()).await.unwrap();
    wait_for_slice(&cluster, &target, &ipv4, Some(&["192.0.2.9"])).await;

    cluster.delete_service(&namespace, "web").await;
    wait_for_slice(&cluster, &target, &ipv4, None).await;
    assert!(cluster.get_service(&target, &object).await.is_none());
}

#[tokio::test]
async fn addresses_that_no_endpoint_slice_may_hold_are_left_out() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let allowed = "127.0.0.0/8,169.254.0.0/16,224.0.0.0/24,::1/128,fe80::/10,ff02::/16";
    let args = ["--upstream", "none", "--allowed-nets", allowed];
    let linker = Linker::in_cluster(plane, &target, &args);
    let denied = ["127.0.0.1", "169.254.1.1", "224.0.0.1", "::1", "fe80::1", "ff02::1"];
    for (service, more) in [("web", Some("192.0.2.1")), ("local", None)] {
        cluster.create_load_balancer(&namespace, service).await;
        let ips: Vec<Ingress<'_>> = denied.into_iter().chain(more).map(Ingress::Ip).collect();
        cluster.set_ingress(&namespace, service, &ips).await;
        let object = format!("{service}-{namespace}-ext");
        wait_for_headless(&cluster, &target, &object).await;
        wait_for_slice(&cluster, &target, &format!("{object}-ipv4"), more.as_ref().map(std::slice::from_ref))
            .await;
        wait_for_slice(&cluster, &target, &format!("{object}-ipv6"), None).await;
        // Answers of DNS also contain the addresses that an EndpointSlice may not hold.
        let answer = short(linker.dns, &format!("{service}-{namespace}.lb.internal. AAAA")).await;
        assert_eq!(answer, "::1 fe80::1 ff02::1");
    }
    let failed = |kind: &str| linker.logged(&format!("{kind} {target}/local-{namespace}-ext"));
    assert_eq!(failed("EndpointSlice"), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn restart_with_address_targets_causes_no_write() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let object = format!("web-{namespace}-ext");
    let mut linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.2"), Ingress::Ip("192.0.2.1")]).await;
    wait_for_headless(&cluster, &target, &object).await;
    let (slice, ips) = (format!("{object}-ipv4"), ["192.0.2.2", "192.0.2.1"]);
    wait_for_slice(&cluster, &target, &slice, Some(&ips)).await;
    linker.kill();
    let before = cluster.get_service(&target, &object).await.unwrap().metadata.resource_version;

    cluster.set_ingress(&namespace, "web", &[]).await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    linker.ready().await;
    let answer = short(linker.dns, &format!("web-{namespace}.lb.internal. A")).await;
    assert_eq!(answer, "192.0.2.1 192.0.2.2");
    // If lb-linker compared the addresses in another order than the slice's, it would write the slice of `web` before
    // the objects of `other`.
    cluster.create_load_balancer(&namespace, "other").await;
    cluster.set_ingress(&namespace, "other", &[Ingress::Ip("192.0.2.3")]).await;
    wait_for_headless(&cluster, &target, &format!("other-{namespace}-ext")).await;
    wait_for_slice(&cluster, &target, &slice, Some(&ips)).await;
    let after = cluster.get_service(&target, &object).await.unwrap().metadata.resource_version;
    assert_eq!(before, after);
}

#[tokio::test]
async fn cluster_ip_service_with_our_labels_becomes_headless() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let object = format!("web-{namespace}-ext");
    let by_hand = json!({
        "metadata": {"name": object, "labels": {
            "app.kubernetes.io/managed-by": "lb-linker-operator",
            "original-service-name": "web", "original-service-namespace": namespace}},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "web"}},
    });
    let made = cluster.create_service(&target, by_hand).await;
    assert!(made.spec.unwrap().cluster_ip.unwrap().starts_with("10."));
    let _linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.1")]).await;
    assert_eq!(Some(wait_for_headless(&cluster, &target, &object).await), made.metadata.uid);
}

#[tokio::test]
async fn ip_targets_external_name_writes_the_ipv4_address() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let args = ["--upstream", "none", "--ip-targets", "external-name"];
    let _linker = Linker::in_cluster(plane, &target, &args);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("2001:db8::1"), Ingress::Ip("192.0.2.1")]).await;
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "192.0.2.1").await;
}

#[tokio::test]
async fn foreign_endpoint_slice_is_reported_until_its_name_is_free() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let object = format!("web-{namespace}-ext");
    let api: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), &target);
    let theirs: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": format!("{object}-ipv4")}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.66"]}]}))
    .unwrap();
    api.create(&Default::default(), &theirs).await.unwrap();
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.1")]).await;
    linker
        .line(&format!("external target {target}/{object}-ipv4 of link {namespace}/web is left alone"))
        .await;
    linker.counts("lb_linker_conflicts", 1.0).await;
    wait_for_slice(&cluster, &target, &format!("{object}-ipv4"), Some(&["192.0.2.66"])).await;

    api.delete(&format!("{object}-ipv4"), &Default::default()).await.unwrap();
    wait_for_slice(&cluster, &target, &format!("{object}-ipv4"), Some(&["192.0.2.1"])).await;
    wait_for_headless(&cluster, &target, &object).await;

    // Another client removes a label of lb-linker's EndpointSlice, and changes the address: the address is restored.
    let stolen = json!({"metadata": {"labels": {"original-service-name": null}}, "endpoints": [{"addresses": ["192.0.2.66"]}]});
    api.patch(&format!("{object}-ipv4"), &Default::default(), &kube::api::Patch::Merge(stolen))
        .await
        .unwrap();
    wait_for_slice(&cluster, &target, &format!("{object}-ipv4"), Some(&["192.0.2.1"])).await;
    let slice = api.get(&format!("{object}-ipv4")).await.unwrap();
    assert!(slice.metadata.labels.unwrap_or_default().contains_key("original-service-name"));
}

#[tokio::test]
async fn endpoint_slice_port_without_number_is_repaired() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("addresses").await;
    let slice = format!("web-{namespace}-ext-ipv4");
    let _linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.1")]).await;
    wait_for_slice(&cluster, &target, &slice, Some(&["192.0.2.1"])).await;
    let api: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), &target);
    // A port without a number, and a port with an invalid number: the API server accepts both.
    for port in [json!({"name": "any"}), json!({"name": "none", "port": 70000})] {
        let patch = kube::api::Patch::Merge(json!({"ports": [port]}));
        let patched = api.patch(&slice, &Default::default(), &patch).await.unwrap();
        eventually("the port of the EndpointSlice", || async {
            let ports = api.get(&slice).await.unwrap();
            let is_repaired = ports.metadata.resource_version != patched.metadata.resource_version
                && ports.ports.unwrap_or_default().iter().any(|port| port.port == Some(80));
            is_repaired.then_some(())
        })
        .await;
    }
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.9")]).await;
    wait_for_slice(&cluster, &target, &slice, Some(&["192.0.2.9"])).await;
}

/// Returns the lines about a link and its external target.
fn lines_about(linker: &Linker, namespace: &str, name: &str) -> Vec<String> {
    let mut lines = linker.log();
    let texts = [format!("{namespace}/{name}"), format!("{name}-{namespace}-ext")];
    lines.retain(|line| texts.iter().any(|text| line.contains(text)));
    lines
}

/// Waits until all earlier changes of load balancers are processed: this one comes last in the same watch.
async fn pass_marker(cluster: &Cluster, target: &str, namespace: &str, name: &str) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname("marker.example.com")]).await;
    wait_for_external_target(cluster, target, &format!("{name}-{namespace}-ext"), "marker.example.com").await;
}

/// Waits until this many writes are counted: the count follows the write.
async fn wait_for_writes(linker: &Linker, expected: f64) {
    eventually("the writes", || async { (linker.writes() >= expected).then_some(()) }).await;
    assert!((linker.writes() - expected).abs() < 0.5, "{:#?}", linker.log());
}

#[tokio::test]
async fn fifty_reorderings_cause_no_write_and_no_line() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("reordered").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    let mut ips = ["192.0.2.8", "2001:db8::2", "192.0.2.1", "192.0.2.5", "2001:db8::1", "192.0.2.3"];
    let mut denied = ["169.254.1.1", "127.0.0.1", "224.0.0.1", "fe80::1"];
    let mut hostnames = ["c", "a", "b"].map(|name| format!("{name}.{namespace}.lb.internal"));
    let mut allowed = ["shop", "app", "web"];
    let mut ports = [("http", 80), ("https", 443), ("metrics", 8080)];
    let settings = |hostnames: &[String], allowed: &[&str], ports: &[(&str, u16)]| {
        let ports: Vec<_> = ports.iter().map(|(name, port)| json!({"name": name, "port": port})).collect();
        let annotations = json!({"linker.hsj.com/hostname": hostnames.join(","),
            "linker.hsj.com/allow-from": allowed.join(",")});
        json!({"metadata": {"annotations": annotations}, "spec": {"ports": ports}})
    };
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.patch_service(&namespace, "web", settings(&hostnames, &allowed, &ports)).await;
    let entries = |ips: &[&'static str], denied: &[&'static str]| -> Vec<Ingress<'static>> {
        ips.iter().chain(denied).copied().map(Ingress::Ip).collect()
    };
    cluster.set_ingress(&namespace, "web", &entries(&ips, &denied)).await;
    let object = format!("web-{namespace}-ext");
    wait_for_headless(&cluster, &target, &object).await;
    let ipv4 = format!("{object}-ipv4");
    let expected = ["192.0.2.8", "192.0.2.1", "192.0.2.5", "192.0.2.3"];
    wait_for_slice(&cluster, &target, &ipv4, Some(&expected)).await;
    pass_marker(&cluster, &target, &namespace, "first").await;
    // The write is counted before the line.
    linker.line(&format!("first-{namespace}-ext: created")).await;
    let written = cluster.get_service(&target, &object).await.unwrap().metadata.resource_version;
    let (writes, lines) = (linker.writes(), lines_about(&linker, &namespace, "web"));
    assert!(lines.iter().any(|line| line.contains("isn't served")), "{lines:#?}");

    for round in 0..50 {
        ips.rotate_left(1 + round % 4);
        denied.rotate_left(1);
        cluster.set_ingress(&namespace, "web", &entries(&ips, &denied)).await;
        if round % 5 == 0 {
            hostnames.rotate_left(1);
            allowed.reverse();
            ports.rotate_left(1);
            cluster.patch_service(&namespace, "web", settings(&hostnames, &allowed, &ports)).await;
        }
    }
    pass_marker(&cluster, &target, &namespace, "last").await;
    assert_eq!(lines_about(&linker, &namespace, "web"), lines);
    wait_for_writes(&linker, writes + 1.0).await;
    wait_for_slice(&cluster, &target, &ipv4, Some(&expected)).await;
    let after = cluster.get_service(&target, &object).await.unwrap().metadata.resource_version;
    assert_eq!(after, written);

    // Another process sees the lists in another order from its start.
    drop(linker);
    let linker = Linker::in_cluster(plane, &target, &args);
    pass_marker(&cluster, &target, &namespace, "restarted").await;
    wait_for_slice(&cluster, &target, &ipv4, Some(&expected)).await;
    wait_for_writes(&linker, 1.0).await;
}

#[tokio::test]
async fn external_name_keeps_its_address_while_it_is_listed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("reordered").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace, "--ip-targets", "external-name"];
    let object = format!("web-{namespace}-ext");
    cluster.create_load_balancer(&namespace, "web").await;
    for (round, ips) in [["192.0.2.2", "192.0.2.1"], ["192.0.2.1", "192.0.2.2"], ["192.0.2.3", "192.0.2.2"]]
        .iter()
        .enumerate()
    {
        let linker = Linker::in_cluster(plane, &target, &args);
        cluster.set_ingress(&namespace, "web", &ips.map(Ingress::Ip)).await;
        pass_marker(&cluster, &target, &namespace, &format!("marker-{round}")).await;
        wait_for_external_target(&cluster, &target, &object, "192.0.2.2").await;
        drop(linker);
        cluster.set_ingress(&namespace, "web", &[ips[1], ips[0]].map(Ingress::Ip)).await;
        let linker = Linker::in_cluster(plane, &target, &args);
        pass_marker(&cluster, &target, &namespace, &format!("restarted-{round}")).await;
        wait_for_external_target(&cluster, &target, &object, "192.0.2.2").await;
        wait_for_writes(&linker, 1.0).await;
    }
}
