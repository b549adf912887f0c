//! Zone transfers of a generated cluster, by lb-linker and by CoreDNS.

use std::collections::BTreeSet;

use hickory_proto::rr::{RData, Record};

use super::*;
use crate::harness::dns::query;
use crate::transfers::transferred;

const COREFILE: &str = "
    .:{$PORT} {
        bind 127.0.0.1
        errors
        transfer {
            to *
        }
        kubernetes cluster.local {
            kubeconfig {$CLUSTER_CONFIG}
        }
        k8s_external ext.test {
            headless
        }
        forward . {$UPSTREAM}
    }";

/// Returns the records of a transfer in lower case with their TTLs, without the SOA record. CoreDNS computes the weights of
/// SRV records in transfers otherwise than in answers.
async fn records(server: &Server, zone: &str) -> Vec<Record> {
    let mut all = transferred(server.dns(), &query(&format!("{zone}. AXFR"))).await.expect("a transfer");
    all.retain(|record| !matches!(record.data, RData::SOA(_)));
    all
}

fn text(record: &Record) -> String {
    let mut record = record.clone();
    if let RData::SRV(srv) = &mut record.data {
        srv.weight = 0;
    }
    record.to_string().to_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zones_of_a_cluster_are_transferred_with_corednss_records() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 5);
    let (plane, client, world) = generated(40, &mut random).await;
    let upstreams = Upstreams::start().await;
    let servers = Servers::with(&plane, &upstreams, COREFILE).await;
    servers.wait_for_changes(&client, 1).await;
    let mut wrong = Vec::new();
    for zone in ["cluster.local", "ext.test"] {
        let (coredns, subject) =
            tokio::join!(records(&servers.coredns, zone), records(&servers.subject, zone));
        let known: BTreeSet<String> = subject.iter().map(text).collect();
        assert_eq!(known.len(), subject.len(), "{zone}: each record is there once");
        let is_alias =
            |name: &str| known.iter().any(|it| it.starts_with(&format!("{name} ")) && it.contains(" cname "));
        for record in &coredns {
            let (name, shown) = (record.name.to_string().to_lowercase(), text(record));
            // As in answers, slices with names are left out, and nothing stands beside a CNAME record. A port without a name
            // has no name of its own.
            let is_left_out = name.starts_with("_._")
                || world.with_names.iter().any(|key| name.contains(&**key))
                || is_alias(&name)
                || shown.contains(" cname ");
            if !is_left_out && !known.contains(&shown) {
                wrong.push(format!("only CoreDNS transfers {shown}"));
            }
        }
        // CoreDNS answers questions with each of the records.
        for record in &subject {
            let name = record.name.to_string();
            let question = format!("{} {} tcp", name.trim_end_matches('.'), record.record_type());
            let (answer, own) = servers.ask(&Question::parse(&question)).await;
            let mut plain = record.clone();
            plain.ttl = 0;
            let shown = plain.to_string().to_lowercase();
            // The servers here have loopback addresses alone.
            let is_server = shown.contains(" ns ");
            if !is_server && !own.sections[0].contains_key(&shown) {
                wrong.push(format!("lb-linker transfers {shown}, and answers {}", own.show()));
            }
            let is_known = is_server || answer.sections[0].contains_key(&shown);
            if !is_known && !is_explained(&world, &shown, &answer) {
                wrong.push(format!("CoreDNS doesn't answer {shown}: {}", answer.show()));
            }
        }
        eprintln!("transfers of {zone}: {} records, {} of CoreDNS", subject.len(), coredns.len());
    }
    assert!(wrong.is_empty(), "{} differences: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
}

/// Returns whether CoreDNS answers otherwise for a reason of the manuals.
fn is_explained(world: &World, record: &str, coredns: &Answer) -> bool {
    let name = record.split(' ').next().unwrap_or_default();
    world.with_names.iter().any(|key| name.contains(&**key))
        || record.contains(" cname ") && coredns.is_nodata()
}
