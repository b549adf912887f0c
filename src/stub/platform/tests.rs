use serde_json::{Value, json};

use super::*;
use crate::stub::test_support::{platforms, recorded};

#[test]
fn recorded_clusters_are_recognized() {
    use Resolver::*;
    use Unsupported::*;
    let expected = [
        ("aks", vec![DnsComponent::Resolver(Aks)]),
        ("eks", vec![DnsComponent::Resolver(Eks)]),
        ("eks-auto-mode", vec![DnsComponent::Unsupported(EksAutoMode)]),
        ("gke-autopilot", vec![DnsComponent::Unsupported(GkeAutopilot)]),
        ("gke-cloud-dns", vec![DnsComponent::Unsupported(GkeCloudDns)]),
        ("gke-kube-dns", vec![DnsComponent::Resolver(GkeKubeDns), DnsComponent::Unsupported(GkeCloudDns)]),
        ("k3s", vec![DnsComponent::Resolver(K3s)]),
        ("kops", vec![DnsComponent::Resolver(CoreDns)]),
        ("kubeadm", vec![DnsComponent::Resolver(CoreDns)]),
        (
            "kubespray",
            vec![
                DnsComponent::Resolver(Kubespray),
                DnsComponent::Resolver(CoreDns),
                DnsComponent::Resolver(NodeLocal),
            ],
        ),
        ("kubespray-switches", vec![DnsComponent::Resolver(CoreDns)]),
        ("minikube", vec![DnsComponent::Resolver(CoreDns)]),
        ("nodelocal", vec![DnsComponent::Resolver(CoreDns), DnsComponent::Resolver(NodeLocal)]),
        ("openshift", vec![DnsComponent::Resolver(OpenShift)]),
        ("rke2", vec![]),
    ];
    let found: Vec<(String, Vec<DnsComponent>)> =
        platforms().into_iter().map(|name| (name.clone(), recorded(&name).parts())).collect();
    let found: Vec<(&str, Vec<DnsComponent>)> =
        found.iter().map(|(name, parts)| (name.as_str(), parts.clone())).collect();
    assert_eq!(found, expected);
}

#[test]
fn cluster_with_a_helm_chart_of_coredns_isnt_kubespray() {
    let mut dns = recorded("kubeadm");
    dns.services.extend(recorded("kubespray").services);
    assert_eq!(dns.parts(), [DnsComponent::Resolver(Resolver::CoreDns)]);
}

#[test]
fn mixed_eks_cluster_has_both_parts() {
    let mut dns = recorded("eks");
    dns.nodes.extend(recorded("eks-auto-mode").nodes);
    let expected =
        [DnsComponent::Resolver(Resolver::Eks), DnsComponent::Unsupported(Unsupported::EksAutoMode)];
    assert_eq!(dns.parts(), expected);
}

#[test]
fn services_lead_to_lb_linker_if_they_select_only_by_its_labels() {
    let deployment = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/cluster-dns/30-deployment.yaml");
    let deployment: Value = serde_saphyr::from_str(&std::fs::read_to_string(deployment).unwrap()).unwrap();
    assert_eq!(
        deployment["spec"]["template"]["metadata"]["labels"],
        DNS_LABELS.map(|key| (key, LB_LINKER_DNS)).into_iter().collect::<Value>()
    );
    for (selector, expected) in [
        (json!({"k8s-app": LB_LINKER_DNS}), true),
        (json!({"app.kubernetes.io/name": LB_LINKER_DNS}), true),
        // A patch of RKE2's Service that keeps its other labels: it selects no Pod.
        (json!({"k8s-app": LB_LINKER_DNS, "app.kubernetes.io/instance": "rke2-coredns"}), false),
        (json!({"k8s-app": LB_LINKER_DNS, "app.kubernetes.io/name": "rke2-coredns"}), false),
        (json!({"k8s-app": "kube-dns"}), false),
        (json!({}), false),
        (Value::Null, false),
    ] {
        let mut dns = recorded("rke2");
        let spec = dns.services[0].spec.as_mut().unwrap();
        spec.selector = serde_json::from_value(selector.clone()).unwrap();
        assert_eq!(dns.selects_lb_linker(), expected, "{selector}");
    }
}

#[test]
fn only_name_and_mode_of_nodes_are_kept() {
    let node = json!({"name": "a", "labels": {"eks.amazonaws.com/compute-type": "auto", "b": "c"},
        "annotations": {"d": "e"}});
    let expected = json!({"name": "a", "labels": {"eks.amazonaws.com/compute-type": "auto"}});
    let kept = identifying(&serde_json::from_value(node).unwrap());
    assert_eq!(serde_json::to_value(kept).unwrap(), expected);
}

#[test]
fn managers_that_undo_changes_are_recognized() {
    let manager_of = |metadata: Value| manager(&serde_json::from_value(metadata).unwrap());
    let field_manager = |name: &str| json!({"managedFields": [{"manager": name, "operation": "Apply"}]});
    for (metadata, expected) in [
        (json!({}), None),
        (field_manager("kubectl-edit"), None),
        (field_manager("kubeadm"), None),
        (json!({"labels": {"addonmanager.kubernetes.io/mode": "EnsureExists"}}), None),
        (json!({"labels": {"addonmanager.kubernetes.io/mode": "Reconcile"}}), Some("the addon manager")),
        (json!({"labels": {"eks.amazonaws.com/component": "coredns"}}), Some("the EKS add-on")),
        (field_manager("eks"), Some("the EKS add-on")),
        (json!({"annotations": {"meta.helm.sh/release-name": "coredns"}}), Some("Helm")),
        (field_manager("helm"), Some("Helm")),
        (json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}), Some("Helm")),
        (json!({"annotations": {"argocd.argoproj.io/tracking-id": "x"}}), Some("Argo CD")),
        (json!({"labels": {"argocd.argoproj.io/instance": "x"}}), Some("Argo CD")),
        (field_manager("argocd-controller"), Some("Argo CD")),
        (field_manager("kustomize-controller"), Some("Flux")),
        (json!({"labels": {"helm.toolkit.fluxcd.io/name": "x"}}), Some("Flux")),
        (json!({"annotations": {"configmanagement.gke.io/managed": "enabled"}}), Some("Config Sync")),
        (field_manager("Terraform"), Some("Terraform")),
        (json!({"labels": {"kapp.k14s.io/app": "1"}}), Some("kapp")),
        (json!({"labels": {"app.kubernetes.io/managed-by": "kubectl"}}), None),
        (
            json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "Addon", "name": "coredns", "uid": "1", "controller": true}
            ]}),
            Some("Addon coredns"),
        ),
        (json!({"labels": {"addon.kops.k8s.io/name": "coredns.addons.k8s.io"}}), Some("kOps")),
        (
            json!({"annotations": {"objectset.rio.cattle.io/id": ""}}),
            Some("the deploy controller of k3s or RKE2"),
        ),
    ] {
        assert_eq!(manager_of(metadata.clone()).as_deref(), expected, "{metadata}");
    }
}
