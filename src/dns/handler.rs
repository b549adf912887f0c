//! From a message to the message that answers it.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use hickory_proto::op::{Edns, Query, ResponseCode};
use hickory_proto::rr::Name;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
use tracing::{debug, error};

use super::encode::{encode, limit};
use super::loadbalance::shuffle;
use super::report::{Report, type_label};
use super::resolver::Resolver;
use super::unmapped;
use super::wire::{Ede, MAX_UDP, Screened, format_error, rcode_label, screen, server_failure};
use super::zone::Zone;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::targets::TargetPolicy;

/// Answers requests, from whichever transport they come.
#[derive(Debug)]
pub struct Handler {
    /// The zones that lb-linker is authoritative for, the closest first.
    pub zones: Arc<[Zone]>,
    /// The links.
    pub store: Arc<Store>,
    /// Which addresses behind a link's target are given.
    pub targets: Arc<TargetPolicy>,
    /// Who resolves everything else; nobody with `--upstream none`.
    pub resolver: Option<Arc<Resolver>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The address that the server is listening on, as CoreDNS writes it in its metrics.
    pub server: String,
}

impl Handler {
    /// Answers a message from a client; `None` where silence is right.
    pub async fn answer(&self, message: Vec<u8>, client: SocketAddr, protocol: Protocol) -> Option<Vec<u8>> {
        // One message that hits a defect of ours, or of the decoder, must not end the listener.
        let answering = AssertUnwindSafe(self.screen_and_answer(&message, client, protocol)).catch_unwind();
        answering.await.unwrap_or_else(|_| {
            error!("answering a message of {client} panicked: {message:02x?}");
            self.metrics.family::<Report>().iter().for_each(|report| report.panics.inc());
            server_failure(&message)
        })
    }

    async fn screen_and_answer(
        &self,
        message: &[u8],
        client: SocketAddr,
        protocol: Protocol,
    ) -> Option<Vec<u8>> {
        match screen(message) {
            Screened::Silence => None,
            Screened::Reply(bytes) => Some(bytes),
            Screened::Question => self.answer_question(message, client, protocol).await,
        }
    }

    async fn answer_question(
        &self,
        message: &[u8],
        client: SocketAddr,
        protocol: Protocol,
    ) -> Option<Vec<u8>> {
        let started = Instant::now();
        let request = match Request::from_bytes(message.to_vec(), unmapped(client), protocol) {
            Ok(request) => request,
            Err(error) => {
                debug!("a message from {client} can't be decoded: {error}");
                return Some(format_error(message));
            }
        };
        let [query] = request.queries.queries() else { return Some(format_error(message)) };
        let query = query.original();
        let found = self.zone_of(query.name());
        let zone = found.as_ref().map(|(zone, _)| *zone);
        let mut response = self.respond(&request, query, found).await;
        for section in [&mut response.answers, &mut response.authorities, &mut response.additionals] {
            shuffle(section);
        }
        self.count(&request, query, zone, response.metadata.response_code, started);
        let edns = request.edns.as_ref().map(|asked| response_edns(asked, response.ede));
        let encoded = encode(&response, query, edns.as_ref(), limit(&request, protocol));
        encoded.map_or_else(
            |error| {
                error!("the answer to {} {} can't be encoded: {error}", query.name(), query.query_type());
                server_failure(message)
            },
            Some,
        )
    }

    /// Returns the closest zone that a name is in, and the name relative to it.
    pub(super) fn zone_of(&self, name: &Name) -> Option<(&Zone, Vec<u8>)> {
        self.zones.iter().find_map(|zone| Some((zone, zone.relative(name)?)))
    }

    fn count(
        &self,
        request: &Request,
        query: &Query,
        zone: Option<&Zone>,
        rcode: ResponseCode,
        started: Instant,
    ) {
        // An unmatched name is in CoreDNS's root block, or dropped where there is none.
        let (zone, plugin) = match (zone, &self.resolver) {
            (Some(zone), _) => (zone.origin().to_ascii(), "lb_linker"),
            (None, Some(_)) => (".".to_owned(), "forward"),
            (None, None) => ("dropped".to_owned(), ""),
        };
        let Ok(report) = self.metrics.family::<Report>() else { return };
        let (server, protocol) = (&*self.server, request.protocol().to_string());
        let family = if request.src().is_ipv4() { "1" } else { "2" };
        let labels = [server, &zone, "", &protocol, family, type_label(query.query_type())];
        report.requests.with_label_values(&labels).inc();
        report.responses.with_label_values(&[server, &zone, "", &rcode_label(rcode), plugin]).inc();
        report.duration.with_label_values(&[server, &zone, ""]).observe(started.elapsed().as_secs_f64());
    }
}

fn response_edns(asked: &Edns, ede: Option<Ede>) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP);
    edns.set_dnssec_ok(asked.flags().dnssec_ok);
    if let Some(ede) = ede {
        edns.options_mut().insert(ede.option());
    }
    edns
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Message;
    use hickory_proto::rr::RecordType;

    use super::super::forward::{Forward, ForwardOptions};
    use super::*;
    use crate::store::{Departed, Ingress, Observed, ServiceKey, Wishes};

    fn handler() -> Handler {
        let store = Store::new(Departed::Kept);
        let name = |text| Name::from_ascii(text).unwrap();
        let link = Observed {
            key: ServiceKey::new("default", "web"),
            uid: "u".into(),
            created: None,
            resource_version: Some(1),
            ingress: Ingress { hostnames: vec![name("a.example.")], addresses: vec![] },
            ports: vec![],
            wishes: Wishes::default(),
            refused: false,
            guarded: false,
        };
        store.replace(None, vec![link], vec![], &Default::default());
        store.set_synced();
        let forward = Arc::new(Forward::new(vec![], ForwardOptions::default()));
        Handler {
            zones: [Zone::new(&name("lb.internal."), vec![]).unwrap()].into(),
            store: Arc::new(store),
            targets: Arc::default(),
            // Nobody: a question that gets that far fails.
            resolver: Some(Arc::new(Resolver::new(forward, None, &Metrics::new().unwrap()))),
            metrics: Arc::new(Metrics::new().unwrap()),
            server: "dns://:53".to_owned(),
        }
    }

    async fn ask(client: &str, question: &str) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = true;
        message.add_query(Query::query(Name::from_ascii(question).unwrap(), RecordType::A));
        let client = SocketAddr::new(client.parse().unwrap(), 5353);
        let answer = handler().answer(message.to_vec().unwrap(), client, Protocol::Udp).await.unwrap();
        Message::from_vec(&answer).unwrap()
    }

    #[tokio::test]
    async fn who_may_not_recurse_gets_the_zone_without_a_chase_and_nothing_else() {
        for client in ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"] {
            let answer = ask(client, "web-default.lb.internal.").await;
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
            assert!(answer.metadata.authoritative && !answer.metadata.recursion_available);
            assert_eq!(answer.answers.len(), 1, "the alias alone");
            let answer = ask(client, "www.example.").await;
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
        }
        let answer = ask("10.0.0.1", "www.example.").await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "it was asked for");
    }

    #[tokio::test]
    async fn rd_and_cd_are_repeated_and_ad_is_not() {
        let answer = ask("10.0.0.1", "web.default.lb.internal.").await;
        assert!(answer.metadata.recursion_desired);
        assert!(answer.metadata.checking_disabled);
        assert!(!answer.metadata.authentic_data);
    }
}
