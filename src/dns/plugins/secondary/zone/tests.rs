use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::boot_clock::by_hand;
use crate::dns::plugins::secondary::tests::{Primary, origin};

impl SecondaryZone {
    /// Asks the primary servers now.
    pub(in crate::dns::plugins::secondary) async fn check_now(&self, following: &Following) {
        self.check(&mut *self.state.lock().await, following).await;
    }

    /// Returns the text about the last check, if it failed.
    pub(in crate::dns::plugins::secondary) async fn failure(&self) -> Option<String> {
        self.state.lock().await.failure.clone()
    }

    fn serial(&self) -> Option<u32> {
        self.served.zone().map(|zone| zone.serial())
    }
}

/// Returns a new registry, whose zones are kept in this directory.
fn following(directory: Option<&Path>) -> Following {
    let mut secondaries = Secondaries::with_clock(by_hand::now);
    directory.iter().for_each(|directory| secondaries.keep_beside(&directory.join("links")));
    Following { secondaries, key: None }
}

#[tokio::test]
async fn zone_expires_by_a_clock_that_counts_suspends() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let following = following(None);
    let (zone, _) = following.secondaries.zone(origin(), [primary.address].into());
    zone.check_now(&following).await;
    primary.end().await;
    // EXPIRE is a day.
    by_hand::suspend(Duration::from_secs(86_000));
    zone.next(&mut *zone.state.lock().await, &following).await;
    assert_eq!(zone.serial(), Some(5));
    by_hand::suspend(Duration::from_secs(400));
    zone.notify([127, 0, 0, 1].into());
    let flag = zone.served.zone().unwrap().outdated().clone();
    zone.next(&mut *zone.state.lock().await, &following).await;
    assert_eq!(zone.serial(), None);
    assert!(flag.is_set());
}

#[tokio::test]
async fn start_without_the_server_answers_from_the_copy() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let following = following(Some(directory.path()));
        let (zone, problem) = following.secondaries.zone(origin(), [primary.address].into());
        (following, zone, problem)
    };
    let (following, zone, problem) = start();
    assert_eq!((zone.serial(), problem), (None, None));
    for now in [5, 6, 6] {
        serial.store(now, Ordering::Relaxed);
        zone.check_now(&following).await;
    }
    let path = zone.saved.as_ref().unwrap().path().to_owned();
    let (_, zone, problem) = start();
    assert_eq!((zone.serial(), problem), (Some(6), None));
    // The zone expires after a day; the copy says when it was confirmed.
    let long_ago = SystemTime::now() - Duration::from_secs(86_300);
    zone.saved.as_ref().unwrap().confirm(long_ago).unwrap();
    let (following, zone, problem) = start();
    assert_eq!((zone.serial(), problem), (Some(6), None));
    by_hand::suspend(Duration::from_secs(200));
    assert!(zone.expiry.lock().has_come(by_hand::now()));
    drop((following, zone));
    zone_is_too_old(&path, &start);
    fs::write(&path, "oops").unwrap();
    let (_, zone, problem) = start();
    let text = format!(
        "{}: it isn't a copy of a zone that this version can read; the zone example.org. has to be transferred first",
        path.display()
    );
    assert_eq!((zone.serial(), problem), (None, Some(text)));
}

fn zone_is_too_old(path: &Path, start: &dyn Fn() -> (Following, Arc<SecondaryZone>, Option<String>)) {
    let (_, zone, _) = start();
    zone.saved.as_ref().unwrap().confirm(SystemTime::now() - Duration::from_secs(86_401)).unwrap();
    drop(zone);
    let (_, zone, problem) = start();
    assert_eq!(zone.serial(), None);
    let text = format!("{}: the zone example.org. has expired", path.display());
    assert!(problem.as_ref().is_some_and(|problem| problem.starts_with(&text)), "{problem:?}");
}

#[tokio::test]
async fn copy_that_cant_be_written_stops_no_transfer() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("links.zones"), "no directory").unwrap();
    let following = following(Some(directory.path()));
    let (zone, problem) = following.secondaries.zone(origin(), [primary.address].into());
    assert!(problem.is_some());
    zone.check_now(&following).await;
    assert_eq!(zone.serial(), Some(5));
}
