//! Questions to the upstreams that are under way.

use std::sync::Arc;

use hickory_proto::op::Message;

use super::{Forward, ForwardError, Purpose};
use crate::dns::flights;
use crate::dns::question::Key;

/// What has become of a look-up.
type Landing = Result<Arc<Message>, ForwardError>;

/// What makes two look-ups one: the upstreams are asked the same, in the same way.
type Route = (Key, Purpose);

/// All look-ups under way.
#[derive(Debug, Default)]
pub struct Flights(flights::Flights<Route, Landing>);

impl Flights {
    /// Asks the upstreams, or waits for an answer to the same question. The look-up goes on when nobody waits
    /// for it any more: who asks again finds it.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn look_up(&self, forward: &Arc<Forward>, question: Key, purpose: Purpose) -> Landing {
        let route = (question, purpose);
        let look_up = || {
            let permit = forward.admit(purpose, route.0.is_common())?;
            let (forward, question) = (Arc::clone(forward), route.0.clone());
            Ok(async move {
                let landing = forward.ask(&question, purpose).await.map(Arc::new);
                drop(permit);
                landing
            })
        };
        let flight = self.0.join_or_start(&route, look_up, |_| {})?;
        let defect = || Err(ForwardError::none("the look-up has failed by a defect of lb-linker"));
        flight.landed().await.unwrap_or_else(defect)
    }

    /// Has nobody else wait for the look-ups of a name, given in wire form and lower case, or for any.
    pub fn forget(&self, name: Option<&[u8]>) {
        self.0.forget(|(key, _)| name.is_none_or(|name| *key.name() == *name));
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use hickory_proto::rr::{Name, RecordType};
    use tokio::net::UdpSocket;
    use tokio::task::yield_now;

    use super::*;
    use crate::dns::forward::{Endpoint, ForwardOptions, Transport};
    use crate::dns::question::Question;

    #[tokio::test]
    async fn equal_questions_share_a_look_up_unless_the_name_was_forgotten() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint { address: silent.local_addr().unwrap(), transport: Transport::Udp };
        let forward = Arc::new(Forward::new(vec![endpoint], ForwardOptions::default()));
        let flights = Arc::new(Flights::default());
        let look_up = async |name: &str, purpose| {
            let question = Question::plain(Name::from_ascii(name).unwrap(), RecordType::A).key();
            let (flights, forward) = (Arc::clone(&flights), Arc::clone(&forward));
            tokio::spawn(async move { flights.look_up(&forward, question, purpose).await });
            yield_now().await;
        };
        let under_way = || {
            let mut all: Vec<_> =
                flights.0.keys().iter().map(|(key, purpose)| (key.name()[1..].to_vec(), *purpose)).collect();
            all.sort_by_key(|(name, purpose)| (*purpose == Purpose::ForwardByTcp, name.clone()));
            all
        };
        let one = (b"one".to_vec(), Purpose::Forward);
        let two = (b"two".to_vec(), Purpose::Forward);
        let by_tcp = (b"one".to_vec(), Purpose::ForwardByTcp);
        for name in ["one.", "ONE.", "two."] {
            look_up(name, Purpose::Forward).await;
        }
        assert_eq!(under_way(), [one.clone(), two.clone()]);
        look_up("one.", Purpose::ForwardByTcp).await;
        assert_eq!(under_way(), [one.clone(), two.clone(), by_tcp], "by TCP it's another question");
        flights.forget(Some(b"\x03one"));
        assert_eq!(under_way(), slice::from_ref(&two));
        look_up("one.", Purpose::Forward).await;
        assert_eq!(under_way(), [one, two]);
        flights.forget(None);
        assert_eq!(under_way(), []);
    }
}
