use std::fs;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use futures::FutureExt;

use super::*;
use crate::boot_clock::by_hand;
use crate::captured_log::CapturedLog;
use crate::dns::message::tsig::Algorithm;
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

    fn path(&self) -> PathBuf {
        self.place().saved.unwrap().path().to_owned()
    }

    fn confirm(&self, checked: SystemTime) {
        self.place().saved.unwrap().confirm(checked).unwrap();
    }
}

/// Returns a new registry, whose zones are kept in this directory.
fn following(directory: Option<&Path>) -> Following {
    let mut secondaries = Secondaries::with_clock(by_hand::now);
    directory.iter().for_each(|directory| secondaries.keep_beside(&directory.join("links")));
    Following { secondaries, key: None }
}

impl Following {
    /// Returns the same registry for the next configuration.
    fn reloaded(&self) -> Self {
        Self { secondaries: self.secondaries.for_set_up(), ..self.clone() }
    }

    /// Returns the zone of a block at a port of all addresses, and what is wrong with its copy.
    fn zone(&self, primaries: &[SocketAddr], port: u16) -> (Arc<SecondaryZone>, Option<String>) {
        self.zone_in(None, primaries, port)
    }

    /// As [`Self::zone`], for a block with a view.
    fn zone_in(
        &self,
        view: Option<&str>,
        primaries: &[SocketAddr],
        port: u16,
    ) -> (Arc<SecondaryZone>, Option<String>) {
        let source = Source::new(primaries, self.key.as_deref(), &[], &[port], view);
        self.secondaries.zone(origin(), primaries.into(), source)
    }
}

#[tokio::test]
async fn zone_outlives_a_change_of_its_primary_servers() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let directory = tempfile::tempdir().unwrap();
    let before = following(Some(directory.path()));
    let (zone, _) = before.zone(&[primary.address], 53);
    zone.check_now(&before).await;
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    for is_restart in [false, true] {
        let after = if is_restart { following(Some(directory.path())) } else { before.reloaded() };
        assert_eq!(after.zone(&[dead], 5353).0.serial(), None, "a block with other listeners");
        let (changed, problem) = after.zone(&[dead], 53);
        assert_eq!((changed.serial(), problem), (Some(5), None), "{is_restart}");
        changed.check_now(&after).await;
        assert!(changed.failure().await.unwrap().starts_with("the zone before stays: "));
        assert!(changed.expiry.lock().clone().has_come(by_hand::now() + Duration::from_secs(86_400)));
        assert_eq!(after.reloaded().zone(&[dead, primary.address], 53).0.serial(), Some(5));
    }
    // The new server has a serial that is older.
    serial.store(3, Ordering::Relaxed);
    let new = Primary::of_zone(&serial, &transfers).await;
    let (changed, _) = before.reloaded().zone(&[dead, new.address], 53);
    changed.check_now(&before).await;
    assert_eq!((changed.serial(), zone.serial()), (Some(3), Some(5)));
    serial.store(2, Ordering::Relaxed);
    changed.check_now(&before).await;
    assert_eq!(changed.serial(), Some(3), "of the same server an older one isn't taken");
}

#[tokio::test]
async fn zones_of_other_listeners_have_files_of_their_own() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let (one, other) =
        (Primary::of_zone(&serial, &transfers).await, Primary::of_zone(&serial, &transfers).await);
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let following = following(Some(directory.path()));
        let zones = [(one.address, 53), (other.address, 5353)];
        let zones = zones.map(|(primary, port)| following.zone(&[primary], port));
        (following, zones)
    };
    let (following, zones) = start();
    for ((zone, problem), now) in zones.iter().zip([5, 6]) {
        assert_eq!(*problem, None);
        serial.store(now, Ordering::Relaxed);
        zone.check_now(&following).await;
    }
    let serials = start().1.map(|(zone, _)| zone.serial());
    assert_eq!(serials, [Some(5), Some(6)]);
    let swapped = self::following(Some(directory.path()));
    let (zone, problem) = swapped.zone(&[other.address], 5353);
    assert_eq!(
        (zone.serial(), problem),
        (Some(6), None),
        "its own file, and not that of the other listeners"
    );
}

#[tokio::test]
async fn copies_are_found_whatever_the_order_of_the_blocks() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let mut blocks = Vec::new();
    for view in ["one", "two"] {
        blocks.push((view, Primary::of_zone(&serial, &transfers).await));
    }
    let directory = tempfile::tempdir().unwrap();
    let start = |order: &[usize]| {
        let following = following(Some(directory.path()));
        let zone = |number: &usize| {
            let (view, primary) = &blocks[*number];
            following.zone_in(Some(view), &[primary.address], 53).0
        };
        (order.iter().map(zone).collect::<Vec<_>>(), following)
    };
    let (zones, following) = start(&[0, 1]);
    for (zone, now) in zones.iter().zip([5, 6]) {
        serial.store(now, Ordering::Relaxed);
        zone.check_now(&following).await;
    }
    drop(zones);
    for (order, expected) in
        [(&[0, 1][..], &[Some(5), Some(6)][..]), (&[1, 0], &[Some(6), Some(5)]), (&[1], &[Some(6)])]
    {
        let serials: Vec<Option<u32>> = start(order).0.iter().map(|zone| zone.serial()).collect();
        assert_eq!(serials, expected, "{order:?}");
    }
}

#[tokio::test]
async fn zone_that_gets_a_view_takes_its_copy_along() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    for is_first in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let set_up = |following: &Following, is_first: bool| {
            let inside = || following.zone_in(Some("inside"), &[primary.address], 53).0;
            let before = is_first.then(inside);
            let everyone = following.zone(&[dead], 53).0;
            let inside = before.unwrap_or_else(inside);
            assert_eq!(everyone.serial(), None, "{is_first}");
            (inside, everyone)
        };
        let before = following(Some(directory.path()));
        let (zone, _) = before.zone(&[primary.address], 53);
        zone.check_now(&before).await;
        let after = before.reloaded();
        let (inside, everyone) = set_up(&after, is_first);
        let source = Source::new(&[primary.address], None, &[], &[53], Some("inside"));
        inside.settle(&mut *inside.state.lock().await, &after.secondaries, source).await;
        assert!(Arc::ptr_eq(&inside, &zone) && inside.path() != everyone.path());
        // REFRESH is an hour.
        by_hand::suspend(Duration::from_secs(3600));
        inside.check_now(&after).await;
        for is_first in [true, false] {
            let (inside, _) = set_up(&following(Some(directory.path())), is_first);
            assert_eq!(inside.serial(), Some(5), "{is_first}");
        }
    }
}

#[tokio::test]
async fn copy_is_found_for_a_block_after_a_new_one() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let (primary, new) =
        (Primary::of_zone(&serial, &transfers).await, Primary::of_zone(&serial, &transfers).await);
    let set_up = |following: &Following| {
        let everyone = following.zone(&[new.address], 53).0;
        (everyone, following.zone_in(Some("inside"), &[primary.address], 53).0)
    };
    for is_restart in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let start = || following(Some(directory.path()));
        let before = start();
        serial.store(5, Ordering::Relaxed);
        before.zone(&[primary.address], 53).0.check_now(&before).await;
        let after = if is_restart { start() } else { before.reloaded() };
        let (everyone, inside) = set_up(&after);
        assert_eq!((everyone.serial(), inside.serial()), (None, Some(5)), "{is_restart}");
        let source = Source::new(&[primary.address], None, &[], &[53], Some("inside"));
        inside.settle(&mut *inside.state.lock().await, &after.secondaries, source).await;
        // This takes the usual place of the copy.
        serial.store(6, Ordering::Relaxed);
        everyone.check_now(&after).await;
        assert_ne!(everyone.path(), inside.path());
        let (everyone, inside) = set_up(&start());
        assert_eq!((everyone.serial(), inside.serial()), (Some(6), Some(5)), "{is_restart}");
    }
}

#[tokio::test]
async fn runtime_is_free_while_a_copy_is_looked_for() {
    let following = following(None);
    let primary = "127.0.0.1:1".parse().unwrap();
    let (zone, _) = following.zone(&[primary], 53);
    let source = Source::new(&[primary], None, &[], &[53], Some("inside"));
    let mut state = zone.state.lock().await;
    let mut settling = pin!(zone.settle(&mut state, &following.secondaries, source));
    {
        let _held = following.secondaries.zones.lock();
        assert!((&mut settling).now_or_never().is_none());
    }
    settling.await;
    assert!(zone.place().source.has_same_listeners(&source));
}

#[tokio::test]
async fn newest_copy_of_the_same_servers_is_found() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let directory = tempfile::tempdir().unwrap();
    let start = || following(Some(directory.path()));
    // Beside the usual place, which another block has, there is a copy of before a change of the Corefile.
    let before = start();
    let (other, _) = before.zone(&["127.0.0.1:1".parse().unwrap()], 53);
    let (zone, _) = before.zone_in(Some("inside"), &[primary.address], 53);
    zone.check_now(&before).await;
    let (old, usual) = (zone.path(), other.path());
    assert_ne!(old, usual);
    zone.confirm(SystemTime::now() - Duration::from_secs(86_401));
    drop((zone, other));
    serial.store(6, Ordering::Relaxed);
    let after = start();
    let (everyone, _) = after.zone(&[primary.address], 53);
    everyone.check_now(&after).await;
    assert_eq!(everyone.path(), usual);
    drop(everyone);
    let (zone, problem) = start().zone_in(Some("inside"), &[primary.address], 53);
    assert_eq!((zone.serial(), problem, old.exists()), (Some(6), None, false));
}

#[tokio::test]
async fn start_logs_only_copies_that_are_served() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    let directory = tempfile::tempdir().unwrap();
    let before = following(Some(directory.path()));
    before.zone(&[primary.address], 53).0.check_now(&before).await;
    let (log, _guard) = CapturedLog::start(tracing::Level::INFO);
    let after = following(Some(directory.path()));
    let blocks = [(None, dead), (Some("inside"), primary.address)];
    for (zone, view) in blocks.map(|(view, primary)| (after.zone_in(view, &[primary], 53).0, view)) {
        let source = Source::new(&zone.primaries, None, &[], &[53], view);
        assert!(zone.follow(after.clone(), source, CancellationToken::new()).now_or_never().is_none());
    }
    let text = log.text();
    assert_eq!(text.matches("zone example.org.: serial 5, ").count(), 1, "{text}");
}

#[tokio::test]
async fn zones_of_other_views_are_not_taken() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let inside = Primary::of_zone(&serial, &transfers).await;
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    let directory = tempfile::tempdir().unwrap();
    for start in ["first", "second"] {
        let following = following(Some(directory.path()));
        let (zone, _) = following.zone_in(Some("inside"), &[inside.address], 53);
        zone.check_now(&following).await;
        for view in [None, Some("outside")] {
            let (other, problem) = following.zone_in(view, &[dead], 53);
            other.check_now(&following).await;
            assert_eq!((zone.serial(), other.serial(), problem), (Some(5), None, None), "{start} {view:?}");
        }
    }
    // Without the first block, its file is there still.
    let following = following(Some(directory.path()));
    let (other, problem) = following.zone(&[dead], 53);
    assert_eq!((other.serial(), problem), (None, None));
}

/// Blocks whose keys differ must not share a zone: one of them would take an unsigned answer for both.
#[tokio::test]
async fn key_tells_zones_apart() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let following = following(None);
    let name = Name::from_ascii("key.").unwrap();
    let key = Arc::new(Key::new(&name, Algorithm::Sha256, b"secret").unwrap());
    let signed = Following { key: Some(key), ..following.clone() };
    let (zone, _) = following.zone(&[primary.address], 53);
    zone.check_now(&following).await;
    let (other, _) = signed.zone(&[primary.address], 5353);
    other.check_now(&signed).await;
    assert_eq!((zone.serial(), other.serial()), (Some(5), None));
}

#[tokio::test]
async fn zone_expires_by_a_clock_that_counts_suspends() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let following = following(None);
    let (zone, _) = following.zone(&[primary.address], 53);
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
        let (zone, problem) = following.zone(&[primary.address], 53);
        (following, zone, problem)
    };
    let (following, zone, problem) = start();
    assert_eq!((zone.serial(), problem), (None, None));
    for now in [5, 6, 6] {
        serial.store(now, Ordering::Relaxed);
        zone.check_now(&following).await;
    }
    let path = zone.path();
    let (_, zone, problem) = start();
    assert_eq!((zone.serial(), problem), (Some(6), None));
    // The zone expires after a day; the copy says when it was confirmed.
    let long_ago = SystemTime::now() - Duration::from_secs(86_300);
    zone.confirm(long_ago);
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
    zone.confirm(SystemTime::now() - Duration::from_secs(86_401));
    drop(zone);
    let (_, zone, problem) = start();
    assert_eq!(zone.serial(), None);
    let text = format!("{}: the zone example.org. has expired", path.display());
    assert!(problem.as_ref().is_some_and(|problem| problem.starts_with(&text)), "{problem:?}");
}

#[tokio::test]
async fn copy_that_is_missing_is_written_again() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::<AtomicU32>::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let directory = tempfile::tempdir().unwrap();
    let following = following(Some(directory.path()));
    let (zone, _) = following.zone(&[primary.address], 53);
    zone.check_now(&following).await;
    let path = zone.path();
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    // The first check finds that the file is missing; REFRESH is an hour.
    for (hours, expected) in [(0, 1), (0, 1), (1, 2), (1, 2)] {
        by_hand::suspend(Duration::from_secs(hours * 3600));
        zone.check_now(&following).await;
        assert_eq!(transfers.load(Ordering::Relaxed), expected);
    }
    assert!(path.exists());
    assert_eq!(zone.state.lock().await.unsaved, None);
}

#[test]
fn servers_have_transfers_of_their_own() {
    let secondaries = Secondaries::with_clock(by_hand::now);
    let server = |text: &str| secondaries.transfers_of(text.parse().unwrap());
    let one = server("192.0.2.1:53");
    let permits = (one.try_acquire().unwrap(), one.try_acquire().unwrap());
    assert!(server("192.0.2.1:5353").try_acquire().is_err());
    assert!(server("[::ffff:192.0.2.1]:53").try_acquire().is_err());
    assert!(server("192.0.2.2:53").try_acquire().is_ok());
    drop(permits);
    assert!(server("192.0.2.1:53").try_acquire().is_ok());
}

#[tokio::test]
async fn copy_that_cant_be_written_stops_no_transfer() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("links.zones"), "no directory").unwrap();
    let following = following(Some(directory.path()));
    let (zone, problem) = following.zone(&[primary.address], 53);
    assert!(problem.is_some());
    zone.check_now(&following).await;
    assert_eq!(zone.serial(), Some(5));
}
