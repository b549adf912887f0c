//! StableNames with sources in a remote cluster, while load balancers and API servers of both clusters fail.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::A;
use kube::api::{Patch, PatchParams};
use lb_linker::api::status::SourceState;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::failover::{Shop, Upstream, assert_answer_stays, shortest_check};
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{FaultyUpstream, address, answers, data};
use crate::harness::eventually;
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::port::HeldPort;
use crate::harness::scale::scaled;
use crate::harness::steady_load::{Asked, ask_steadily};

const QUESTION: &str = "web.shop.lb.internal. A";
const SEOUL: &str = "seoul.example.com. 127.0.0.2";
const WEST: &str = "west.example.com. 127.0.0.3";
const READER: &str = "system:serviceaccount:lb-linker:reader";
/// What the remote cluster grants.
const READS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lb-linker-reader}
rules: [{apiGroups: [''], resources: [services], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lb-linker-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lb-linker-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: lb-linker}]
";

/// The home cluster with a load balancer in Seoul, and the remote cluster `west` with another one. Both have the namespace
/// shop, the Service web, and one port at an address of their own.
struct Clusters {
    home: Shop,
    west: Lent,
    west_cluster: Cluster,
    port: HeldPort,
    /// The value of `--remote`.
    remote: String,
}

impl Clusters {
    async fn open() -> Self {
        let home = Shop::open(&[]).await;
        let resolver = FaultyUpstream::start(|asked, _| {
            let mut answer = address(asked, 1, 5);
            let is_west = asked.queries[0].name().to_string().starts_with("west");
            match &mut answer.answers[0].data {
                RData::A(found) => *found = A(Ipv4Addr::new(127, 0, 0, if is_west { 3 } else { 2 })),
                _ => answer.answers.clear(),
            }
            vec![answer]
        });
        let home = Shop { upstream: Upstream { resolver: resolver.await, ..home.upstream }, ..home };
        let west = ControlPlane::lend();
        west.create_namespace("shop");
        west.create_service_account("lb-linker", "reader");
        west.apply(READS);
        let kubeconfig = west.kubeconfig_for_service_account("lb-linker", "reader");
        let remote = format!("west={}", kubeconfig.display());
        let (west_cluster, port) = (west.cluster().await, HeldPort::take().unwrap());
        for (cluster, name) in [(&home.cluster, "seoul"), (&west_cluster, "west")] {
            let ports = json!([{"port": port.number()}]);
            let spec =
                json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false});
            cluster.create_service("shop", json!({"metadata": {"name": "web"}, "spec": spec})).await;
            let host = format!("{name}.example.com");
            cluster.set_ingress("shop", "web", &[Ingress::Hostname(&host)]).await;
        }
        Self { home, west, west_cluster, port, remote }
    }

    /// Lets a load balancer accept connections until the result is dropped.
    fn listen(&self, last: u8) -> TcpListener {
        TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), self.port.number())).unwrap()
    }

    async fn linker(&self) -> Linker {
        self.home.linker(&["--allowed-nets", "127.0.0.0/8", "--remote", &self.remote]).await
    }

    async fn allow(&self, entry: &str) {
        let annotations = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": entry}}});
        self.west_cluster.patch_service("shop", "web", annotations).await;
    }

    /// Creates the StableName shop/web with these sources.
    async fn create(&self, sources: Value) {
        let mut check = shortest_check();
        check["tcpPort"] = json!(self.port.number());
        self.home.create("web", json!({"sources": sources, "check": check})).await;
    }

    async fn message(&self, kind: &str) -> String {
        let conditions = self.home.status("web").await.conditions;
        conditions.into_iter().find(|condition| condition.type_ == kind).unwrap().message
    }

    async fn becomes(&self, source: &str, state: SourceState) {
        let is_it = || async {
            let sources = self.home.status("web").await.sources;
            sources.iter().any(|it| it.name == source && it.state == Some(state.clone())).then_some(())
        };
        eventually(&format!("source {source} is {state:?}"), is_it).await;
    }
}

fn in_seoul() -> Value {
    json!({"name": "seoul", "service": {"name": "web"}})
}

fn in_west() -> Value {
    json!({"name": "west", "service": {"cluster": "west", "name": "web"}})
}

/// Asks for the name until `over`; the answers must be those of one of the two load balancers.
fn load(linker: &Linker, over: &Arc<AtomicBool>) -> JoinHandle<Asked> {
    let is_right = |_: usize, answer: &_| [SEOUL, WEST].contains(&&*data(answer));
    let questions = vec![QUESTION.to_owned()];
    tokio::spawn(ask_steadily(linker.dns, scaled(1000, 200), questions, is_right, Arc::clone(over)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_between_clusters_loses_no_answer() {
    let clusters = Clusters::open().await;
    let (seoul, _west) = (clusters.listen(2), clusters.listen(3));
    clusters.allow("home/shop").await;
    let linker = clusters.linker().await;
    clusters.create(json!([in_seoul(), in_west()])).await;
    clusters.home.condition("web", "Ready", "True").await;
    clusters.becomes("west", SourceState::Healthy).await;
    answers(linker.dns, QUESTION, SEOUL).await;
    let over = Arc::new(AtomicBool::new(false));
    let asked = load(&linker, &over);

    drop(seoul);
    answers(linker.dns, QUESTION, WEST).await;
    let seconds = scaled(30, 4);
    clusters.home.plane.stop_apiserver();
    assert_answer_stays(&[&linker], QUESTION, WEST, seconds).await;
    clusters.west.stop_apiserver();
    assert_answer_stays(&[&linker], QUESTION, WEST, seconds).await;
    clusters.home.plane.start_apiserver();
    assert_answer_stays(&[&linker], QUESTION, WEST, seconds).await;
    clusters.west.start_apiserver();
    let _seoul = clusters.listen(2);
    clusters.becomes("seoul", SourceState::Healthy).await;

    // The names leave a load balancer that is deleted for good.
    clusters.west_cluster.delete_service("shop", "web").await;
    answers(linker.dns, QUESTION, SEOUL).await;
    over.store(true, Ordering::Relaxed);
    let Asked { sent, wrong, lost } = asked.await.unwrap();
    println!("chaos: failover between clusters: {sent} queries, {wrong} wrong answers, {lost} lost");
    // In the short form other tests make the machine busy, and the kernel may drop datagrams.
    assert!(wrong == 0 && lost <= scaled(0, 20), "{wrong} wrong, {lost} lost of {sent}");
    let requests = clusters.west.audit_events_with(READER);
    let writes: Vec<_> = requests.iter().filter(|event| event.user == READER && event.is_write()).collect();
    assert!(!requests.is_empty() && writes.is_empty(), "{writes:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_without_the_remote_cluster_keeps_its_target() {
    let clusters = Clusters::open().await;
    let (_seoul, west) = (clusters.listen(2), clusters.listen(3));
    clusters.allow("shop").await;
    let mut linker = clusters.linker().await;
    clusters.create(json!([in_west()])).await;
    assert_eq!(clusters.home.condition("web", "Accepted", "False").await, "RefNotPermitted");
    let refused =
        "source west: no LoadBalancer Service west/shop/web lists home/shop in linker.hsj.com/allow-from";
    assert_eq!(clusters.message("Accepted").await, refused);
    clusters.allow("shop,home/shop").await;
    clusters.home.condition("web", "Ready", "True").await;
    answers(linker.dns, QUESTION, WEST).await;
    let patch = json!({"spec": {"sources": [in_west(), in_seoul()]}});
    clusters.home.targets().patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    clusters.becomes("seoul", SourceState::Healthy).await;
    linker.stop();

    clusters.west.stop_apiserver();
    let linker = clusters.linker().await;
    answers(linker.dns, QUESTION, WEST).await;
    assert_eq!(clusters.home.condition("web", "Accepted", "False").await, "NotListed");
    assert_eq!(
        clusters.message("Accepted").await,
        "source west: the Services of cluster west aren't listed yet"
    );
    let ready = clusters.home.status("web").await;
    assert_eq!(ready.target.unwrap().source, "west");
    answers(linker.dns, QUESTION, WEST).await;
    // Its target is checked as before.
    drop(west);
    answers(linker.dns, QUESTION, SEOUL).await;
    clusters.west.start_apiserver();
    clusters.home.condition("web", "Accepted", "True").await;
    let _west = clusters.listen(3);
    clusters.becomes("west", SourceState::Healthy).await;
    assert_answer_stays(&[&linker], QUESTION, SEOUL, 2).await;
}
