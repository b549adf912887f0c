use std::pin::pin;
use std::sync::Arc;

use futures::poll;
use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::*;
use crate::held_port::HeldPort;
use crate::links::facts::LinkFacts;
use crate::links::history::History;
use crate::metrics::Metrics;
use crate::store::{OnGone, Store};
use crate::sync::election::KnownLeader;

fn status() -> Status {
    Status {
        facts: LinkFacts::of(Arc::new(Store::new(OnGone::Kept))),
        history: Arc::new(History::new(Timestamp::UNIX_EPOCH)),
        zones: watch::Sender::default().subscribe(),
        clusters: Default::default(),
        identity: "replica-1".to_owned(),
        leader: KnownLeader::default(),
        election: Metrics::new().unwrap().group().unwrap(),
    }
}

#[tokio::test]
async fn page_is_served_once_its_port_is_free() {
    let held = HeldPort::take().unwrap();
    let stop = CancellationToken::new();
    let occupied = TcpListener::bind(held.local()).await.unwrap();
    let mut serving = pin!(serve(held.local(), status(), stop.clone()));
    assert!(poll!(&mut serving).is_pending(), "serve tries again");
    drop(occupied);
    let connected = async {
        while TcpStream::connect(held.local()).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    };
    tokio::join!(serving, connected);
}

#[tokio::test]
async fn stop_ends_the_wait_for_a_busy_port() {
    let held = HeldPort::take().unwrap();
    let _occupied = TcpListener::bind(held.local()).await.unwrap();
    let stop = CancellationToken::new();
    let mut serving = pin!(serve(held.local(), status(), stop.clone()));
    assert!(poll!(&mut serving).is_pending());
    stop.cancel();
    serving.await;
}
