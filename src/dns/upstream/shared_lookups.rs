//! Shares look-ups at the upstreams between clients with equal queries.

use std::net::IpAddr;
use std::sync::Arc;

use super::error::ForwardError;
use super::group::UpstreamGroup;
use super::lookup_origin::LookupOrigin;
use crate::dns::chain::query_limiter::QueryLimiter;
use crate::dns::message::query::QueryKey;
use crate::dns::message::wire::WireMessage;
use crate::dns::upstream::singleflight;

type ForwardResult = Result<Arc<WireMessage>, ForwardError>;

/// The key of a look-up: look-ups with equal keys are shared. If the key has a client address, the look-up serves only
/// that client.
type ForwardRoute = (QueryKey, LookupOrigin, Option<IpAddr>);

/// All look-ups under way.
#[derive(Debug, Default)]
pub struct SharedLookups(singleflight::Group<ForwardRoute, (IpAddr, Arc<QueryLimiter>, ForwardResult)>);

impl SharedLookups {
    /// Starts a look-up at the upstreams, or joins an equal one. A look-up for which no client waits any more
    /// continues, so that a client that retries can join it. Until its end a look-up uses the quota of the client that
    /// started it. The queries that a joined look-up has sent count in `limiter`.
    ///
    /// # Errors
    /// If there is no answer, or this client may not start another look-up.
    pub async fn look_up(
        &self,
        forward: &Arc<UpstreamGroup>,
        question: QueryKey,
        origin: LookupOrigin,
        client: IpAddr,
        limiter: &Arc<QueryLimiter>,
    ) -> ForwardResult {
        let mut route = (question, origin, None);
        let (begun_for, result) = self.join_or_start(forward, &route, client, limiter).await?;
        // If another client started the look-up and had no socket left, this client may still have sockets.
        if matches!(result, Err(ForwardError::NoSocket)) && begun_for != client {
            route.2 = Some(client);
            return Box::pin(self.join_or_start(forward, &route, client, limiter)).await?.1;
        }
        result
    }

    /// Returns the result of a look-up, and the client that started it.
    async fn join_or_start(
        &self,
        forward: &Arc<UpstreamGroup>,
        route: &ForwardRoute,
        client: IpAddr,
        limiter: &Arc<QueryLimiter>,
    ) -> Result<(IpAddr, ForwardResult), ForwardError> {
        let look_up = || {
            let (question, origin, _) = route;
            let share = forward.admit(*origin, question.is_address_or_https(), client)?;
            let (forward, limiter) = (Arc::clone(forward), Arc::clone(limiter));
            let (question, origin) = (question.clone(), *origin);
            // Boxed at once, because it is large and would be moved several times.
            Ok(Box::pin(async move {
                let result = forward.ask(&question, origin, client, &limiter).await;
                drop(share);
                (client, limiter, result)
            }))
        };
        let ended = self.0.join_or_start(route, look_up, |_| {})?.wait().await;
        let defect = || ForwardError::no_answer("the look-up has failed because of a bug in lb-linker");
        let (begun_for, joined, result) = ended.ok_or_else(defect)?;
        if !Arc::ptr_eq(limiter, &joined) {
            limiter.add(&joined);
        }
        Ok((begun_for, result))
    }

    /// Prevents further clients from joining the look-ups of a name (in wire form, in lower case and without the root
    /// label), or of all names if `name` is `None`.
    pub fn forget(&self, name: Option<&[u8]>) {
        self.0.forget(|(key, ..)| name.is_none_or(|name| *key.name() == *name));
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use hickory_proto::rr::{Name, RecordType};
    use tokio::net::UdpSocket;
    use tokio::task::yield_now;

    use super::*;
    use crate::dns::message::query::UpstreamQuery;
    use crate::dns::upstream::config::ForwardOptions;
    use crate::dns::upstream::endpoint::{Transport, UpstreamEndpoint};

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[tokio::test]
    async fn abandoned_look_up_uses_its_clients_quota_until_its_end() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = UpstreamEndpoint { address: silent.local_addr().unwrap(), transport: Transport::Udp };
        let options = ForwardOptions { max_concurrent: 2, ..ForwardOptions::default() };
        let forward = Arc::new(UpstreamGroup::new(vec![endpoint], options));
        let lookups_in_flight = Arc::new(SharedLookups::default());
        let look_up = async |name: &str, client: IpAddr| {
            let question = UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), RecordType::A).key();
            let (lookups_in_flight, forward) = (Arc::clone(&lookups_in_flight), Arc::clone(&forward));
            let mut waiting = Box::pin(async move {
                lookups_in_flight
                    .look_up(&forward, question, LookupOrigin::Forward, client, &Arc::default())
                    .await
            });
            futures::poll!(waiting.as_mut())
        };
        assert!(look_up("one.", CLIENT).await.is_pending(), "the client stops waiting after this poll");
        let refused = look_up("two.", CLIENT).await;
        let busy = ForwardError::Busy { maximum: 2, own: 1 };
        assert!(matches!(&refused, std::task::Poll::Ready(Err(error)) if *error == busy), "{refused:?}");
        assert!(look_up("one.", CLIENT).await.is_pending(), "the client may join its own look-up");
        assert!(look_up("two.", [10, 0, 0, 2].into()).await.is_pending());
    }

    #[tokio::test]
    async fn lack_of_sockets_affects_only_one_client() {
        let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint =
            UpstreamEndpoint { address: upstream.local_addr().unwrap(), transport: Transport::Udp };
        let forward = Arc::new(UpstreamGroup::new(vec![endpoint], ForwardOptions::default()));
        let lookups_in_flight = Arc::new(SharedLookups::default());
        let question = UpstreamQuery::recursive(Name::from_ascii("one.").unwrap(), RecordType::A).key();
        let route = (question.clone(), LookupOrigin::Forward, None);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let lacking = async {
            let _ = ended.await;
            (CLIENT, Arc::default(), Err(ForwardError::NoSocket))
        };
        let begun =
            lookups_in_flight.0.join_or_start(&route, || Ok::<_, ForwardError>(lacking), |_| {}).unwrap();
        let join = |client: [u8; 4]| {
            let (lookups_in_flight, forward, question) =
                (Arc::clone(&lookups_in_flight), Arc::clone(&forward), question.clone());
            let join = async move {
                lookups_in_flight
                    .look_up(&forward, question, LookupOrigin::Forward, client.into(), &Arc::default())
                    .await
            };
            Box::pin(join)
        };
        let (mut own, mut other) = (join([10, 0, 0, 1]), join([10, 0, 0, 2]));
        assert!(futures::poll!(own.as_mut()).is_pending() && futures::poll!(other.as_mut()).is_pending());
        end.send(()).unwrap();
        begun.wait().await;
        assert_eq!(own.await.unwrap_err(), ForwardError::NoSocket);
        let mut message = [0; 512];
        let (length, from) = tokio::select! {
            asked = upstream.recv_from(&mut message) => asked.unwrap(),
            result = &mut other => panic!("{result:?}"),
        };
        // Sets QR, so that the query becomes an answer without records.
        message[2] |= 0x80;
        upstream.send_to(&message[..length], from).await.unwrap();
        assert!(other.await.is_ok());
    }

    #[tokio::test]
    async fn equal_queries_share_a_look_up_until_forgotten() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = UpstreamEndpoint { address: silent.local_addr().unwrap(), transport: Transport::Udp };
        let forward = Arc::new(UpstreamGroup::new(vec![endpoint], ForwardOptions::default()));
        let lookups_in_flight = Arc::new(SharedLookups::default());
        let look_up = async |name: &str, origin| {
            let question = UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), RecordType::A).key();
            let (lookups_in_flight, forward) = (Arc::clone(&lookups_in_flight), Arc::clone(&forward));
            let limiter = Arc::default();
            tokio::spawn(async move {
                lookups_in_flight.look_up(&forward, question, origin, CLIENT, &limiter).await
            });
            yield_now().await;
        };
        let under_way = || {
            let mut all: Vec<_> = lookups_in_flight
                .0
                .keys()
                .iter()
                .map(|(key, origin, _)| (key.name()[1..].to_vec(), *origin))
                .collect();
            all.sort_by_key(|(name, origin)| (*origin == LookupOrigin::ForwardByTcp, name.clone()));
            all
        };
        let one = (b"one".to_vec(), LookupOrigin::Forward);
        let two = (b"two".to_vec(), LookupOrigin::Forward);
        let by_tcp = (b"one".to_vec(), LookupOrigin::ForwardByTcp);
        for name in ["one.", "ONE.", "two."] {
            look_up(name, LookupOrigin::Forward).await;
        }
        assert_eq!(under_way(), [one.clone(), two.clone()]);
        look_up("one.", LookupOrigin::ForwardByTcp).await;
        assert_eq!(under_way(), [one.clone(), two.clone(), by_tcp], "TCP and UDP share no look-up");
        lookups_in_flight.forget(Some(b"\x03one"));
        assert_eq!(under_way(), slice::from_ref(&two));
        look_up("one.", LookupOrigin::Forward).await;
        assert_eq!(under_way(), [one, two]);
        lookups_in_flight.forget(None);
        assert_eq!(under_way(), []);
    }
}
