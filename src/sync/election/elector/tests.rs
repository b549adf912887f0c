use serde_json::json;

use crate::boot_clock::by_hand;
use crate::sync::election::elector::*;
use crate::sync::election::term::TERM;

const ME: &str = "me_1";
const T: Timing = Timing::DEFAULT;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a Lease of `holder` in this version.
fn lease(holder: &str, version: u64) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": "lb-linker", "uid": "lease-uid", "resourceVersion": version.to_string()},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z"},
    }))
    .unwrap()
}

/// Returns a Lease that a Pod owns.
fn owned(holder: &str, version: u64, pod: &str, uid: &str) -> Lease {
    let owner = LeaseOwner { name: pod.to_owned(), uid: uid.to_owned() };
    let mut owned = claim(None, "lb-linker", holder, Some(&owner), T.lease, 0, Timestamp::UNIX_EPOCH);
    owned.metadata.uid = Some("lease-uid".to_owned());
    owned.metadata.resource_version = Some(version.to_string());
    owned
}

fn pod(uid: &str, phase: &str) -> Pod {
    let spec = json!({"nodeName": "n", "containers": []});
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": uid},
        "spec": spec,
        "status": {"phase": phase, "podIP": "10.0.0.1"},
    }))
    .unwrap()
}

fn candidate(now: BootInstant) -> Elector {
    Elector::new(ME.to_owned(), None, T, 0, now)
}

fn for_life(now: BootInstant) -> Elector {
    let pod = LeaseOwner { name: "my-pod".to_owned(), uid: "my-uid".to_owned() };
    Elector::new(ME.to_owned(), Some(pod), T, 0, now)
}

/// Returns a candidate that has just created the Lease.
fn leader(now: BootInstant) -> Elector {
    let mut elector = candidate(now);
    elector.on_lease(None, now, now);
    assert_eq!(elector.next(now), ElectionStep::Create);
    elector.on_written(lease(ME, 1), now, now);
    assert_eq!(elector.take_events(), [LeaderEvent::Gained]);
    elector
}

#[tokio::test]
async fn missing_lease_is_created_and_renewed_every_two_seconds() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    assert_eq!(elector.next(start), ElectionStep::Get);
    assert_eq!(elector.leader_status(), LeaderStatus::default());
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Create);
    // The answer takes a second. The lease counts from the request.
    elector.on_written(lease(ME, 1), start, start + seconds(1));
    assert_eq!(elector.take_events(), [LeaderEvent::Gained]);
    let held = LeaseWindow::Until { renewed_by: start + seconds(10), end: start + seconds(15) };
    assert_eq!(elector.leader_status(), LeaderStatus { term: 1, held: Some(held) });
    assert_eq!(elector.next(start + seconds(1)), ElectionStep::Wait(start + seconds(2)));
    assert_eq!(elector.next(start + seconds(2)), ElectionStep::Replace);
    elector.on_written(lease(ME, 2), start + seconds(2), start + seconds(2));
    let held = LeaseWindow::Until { renewed_by: start + seconds(12), end: start + seconds(17) };
    assert_eq!(elector.leader_status(), LeaderStatus { term: 1, held: Some(held) });
    assert_eq!(elector.take_events(), []);
}

#[tokio::test]
async fn foreign_lease_unchanged_for_its_duration_is_taken() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    assert_eq!(elector.take_events(), [LeaderEvent::NewLeader("other_2".to_owned())]);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    let look = |elector: &mut Elector, at: u64, version| {
        let now = start + seconds(at);
        assert_eq!(elector.next(now), ElectionStep::Get, "{at}");
        elector.on_lease(Some(lease("other_2", version)), now, now);
        elector.next(now)
    };
    assert_eq!(look(&mut elector, 2, 1), ElectionStep::Wait(start + seconds(4)));
    // At 4 s the version has changed: the duration counts from then, whatever timestamps the Lease contains.
    assert_eq!(look(&mut elector, 4, 2), ElectionStep::Wait(start + seconds(6)));
    assert_eq!(look(&mut elector, 18, 2), ElectionStep::Wait(start + seconds(19)), "until the Lease ends");
    assert_eq!(look(&mut elector, 19, 2), ElectionStep::Replace);
    let mine = elector.claim("lb-linker", Timestamp::UNIX_EPOCH);
    assert_eq!(mine.metadata.resource_version.as_deref(), Some("2"), "a newer version is never overwritten");
    elector.on_written(lease(ME, 3), start + seconds(19), start + seconds(19));
    assert_eq!(elector.take_events(), [LeaderEvent::Gained], "the leader is reported once");
}

#[tokio::test]
async fn candidate_reads_the_lease_again_after_a_long_stop() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    let late = start + seconds(3600);
    assert_eq!(elector.next(late), ElectionStep::Get);
    elector.on_lease(Some(lease("other_2", 99)), late, late);
    assert_eq!(elector.next(late), ElectionStep::Wait(late + seconds(2)));
}

#[tokio::test]
async fn lease_with_empty_holder_is_taken_at_once() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("", 1)), start, start);
    assert_eq!(elector.next(start), ElectionStep::Replace);
    assert_eq!(elector.take_events(), []);
}

#[tokio::test]
async fn unrenewed_lease_is_lost_and_regained_in_a_new_term() {
    let start = by_hand::now();
    let mut elector = leader(start);
    for at in [2, 4, 6, 8] {
        let now = start + seconds(at);
        assert_eq!(elector.next(now), ElectionStep::Replace);
        elector.failed(seconds(15), Duration::ZERO, now);
    }
    assert_eq!(elector.next(start + seconds(8)), ElectionStep::Wait(start + seconds(10)));
    let late = start + seconds(10);
    assert_eq!(elector.next(late), ElectionStep::Get);
    assert_eq!(
        elector.take_events(),
        [LeaderEvent::Lost("the Lease couldn't be renewed for 10 s".to_owned())]
    );
    assert_eq!(elector.leader_status(), LeaderStatus { term: 1, held: None });
    // Other replicas wait for 15 s, but this process knows at once that it leads no more.
    assert_eq!((elector.is_led(late), elector.current_holder(late)), (false, None));
    // No other replica has taken the Lease.
    elector.on_lease(Some(lease(ME, 1)), late, late);
    assert_eq!(elector.next(late), ElectionStep::Replace);
    assert_eq!(elector.leader_status().held, None, "not before it is renewed");
    elector.on_written(lease(ME, 2), late, late);
    assert_eq!(elector.take_events(), [LeaderEvent::Gained]);
    assert_eq!(elector.leader_status().term, 2);
}

#[tokio::test]
async fn late_answer_to_a_renewal_does_not_extend_the_lease() {
    let start = by_hand::now();
    let mut elector = leader(start);
    let (sent, now) = (start + seconds(2), start + seconds(60));
    assert_eq!(elector.next(sent), ElectionStep::Replace);
    elector.on_written(lease(ME, 2), sent, now);
    assert!(matches!(&elector.take_events()[..], [LeaderEvent::Lost(_)]));
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(Some(lease("other_2", 9)), now, now);
    assert_eq!(elector.take_events(), [LeaderEvent::NewLeader("other_2".to_owned())]);
    assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)));
}

#[tokio::test]
async fn taken_lease_is_lost_at_once() {
    let start = by_hand::now();
    let mut elector = leader(start);
    let now = start + seconds(2);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    elector.conflict(now);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(Some(lease("thief", 7)), now, now);
    let lost = LeaderEvent::Lost("thief has taken the Lease".to_owned());
    assert_eq!(elector.take_events(), [lost, LeaderEvent::NewLeader("thief".to_owned())]);
    assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)));
}

#[tokio::test]
async fn labelled_lease_stays_ours_and_causes_no_hot_loop() {
    let start = by_hand::now();
    let mut elector = leader(start);
    let now = start + seconds(2);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    elector.conflict(now);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(Some(lease(ME, 7)), now, now);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    elector.conflict(now);
    assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)), "second conflict in a row");
    assert_eq!(elector.next(now + seconds(2)), ElectionStep::Get);
    elector.on_lease(Some(lease(ME, 8)), now, now + seconds(2));
    assert_eq!(elector.next(now + seconds(2)), ElectionStep::Replace);
    elector.on_written(lease(ME, 9), now + seconds(2), now + seconds(2));
    assert_eq!(elector.leader_status().term, 1);
    assert_eq!(elector.take_events(), []);
}

#[tokio::test]
async fn deleted_lease_is_created_again_in_another_term() {
    let start = by_hand::now();
    let mut elector = leader(start);
    let now = start + seconds(2);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    elector.gone(now);
    assert_eq!(elector.take_events(), [LeaderEvent::Lost("the Lease was deleted".to_owned())]);
    assert_eq!(elector.next(now), ElectionStep::Create);
    elector.on_written(lease(ME, 9), now, now);
    assert_eq!(elector.leader_status().term, 2);
}

#[tokio::test]
async fn vanished_foreign_lease_is_created_after_its_expiry() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    assert_eq!(elector.take_events(), [LeaderEvent::NewLeader("other_2".to_owned())]);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    // The holder may have renewed the Lease right before its deletion.
    for at in [2, 4, 6, 8, 10, 12, 14] {
        let now = start + seconds(at);
        assert_eq!(elector.next(now), ElectionStep::Get, "{at}");
        elector.on_lease(None, now, now);
        assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)), "{at}");
    }
    assert_eq!(elector.take_events(), [LeaderEvent::LeaseDeleted("other_2".to_owned())], "logged once");
    let now = start + seconds(16);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(None, now, now);
    assert_eq!(
        elector.next(now),
        ElectionStep::Wait(start + seconds(17)),
        "the wait ends when the Lease would have ended"
    );
    let now = start + seconds(17);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(None, now, now);
    assert_eq!(elector.next(now), ElectionStep::Create);
    let made = elector.claim("lb-linker", Timestamp::UNIX_EPOCH);
    assert_eq!(made.metadata.resource_version, None);
    elector.on_written(lease(ME, 9), now, now);
    assert_eq!(elector.take_events(), [LeaderEvent::Gained]);
}

#[tokio::test]
async fn holder_may_create_its_deleted_lease_again() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    elector.on_lease(None, start + seconds(2), start + seconds(2));
    let now = start + seconds(4);
    elector.on_lease(Some(lease("other_2", 5)), now, now);
    assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)));
    assert_eq!(elector.next(start + seconds(17)), ElectionStep::Get);
    elector.on_lease(Some(lease("other_2", 6)), now, start + seconds(17));
    assert_eq!(elector.next(start + seconds(17)), ElectionStep::Wait(start + seconds(19)));
    // The holder may also create the Lease before our own request arrives.
    elector.on_lease(None, start + seconds(19), start + seconds(19));
    elector.on_lease(None, start + seconds(34), start + seconds(34));
    assert_eq!(elector.next(start + seconds(34)), ElectionStep::Create);
    elector.conflict(start + seconds(34));
    assert_eq!(elector.next(start + seconds(34)), ElectionStep::Get);
}

#[tokio::test]
async fn vanished_lease_without_a_holder_is_created_at_once() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("", 1)), start, start);
    assert_eq!(elector.next(start), ElectionStep::Replace);
    elector.gone(start);
    assert_eq!(elector.next(start), ElectionStep::Create);
    // The Lease expires and vanishes during the takeover: another replica may have been faster.
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    let now = start + seconds(15);
    elector.on_lease(Some(lease("other_2", 1)), now, now);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    elector.gone(now);
    assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)));
}

#[tokio::test]
async fn lease_that_vanished_after_its_loss_is_awaited_as_foreign() {
    let start = by_hand::now();
    let mut elector = leader(start);
    let late = start + seconds(60);
    assert_eq!(elector.next(late), ElectionStep::Get);
    elector.on_lease(None, late, late);
    assert_eq!(elector.next(late), ElectionStep::Wait(late + seconds(2)));
    let later = late + seconds(15);
    elector.on_lease(None, later, later);
    assert_eq!(elector.next(later), ElectionStep::Create);
}

#[tokio::test]
async fn vanished_lease_for_life_is_created_after_its_pods_end() {
    for (found, is_over) in [
        (Some(pod("their-uid", "Running")), false),
        (Some(pod("their-uid", "Failed")), true),
        (Some(pod("another-uid", "Running")), true),
        (None, true),
    ] {
        let start = by_hand::now();
        let mut elector = for_life(start);
        elector.on_lease(Some(owned("other_2", 4, "their-pod", "their-uid")), start, start);
        elector.on_pod(Some(&pod("their-uid", "Running")), start);
        assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
        // The age of the Lease doesn't matter.
        for now in [start + seconds(3600), start + seconds(7200)] {
            assert_eq!(elector.next(now), ElectionStep::Get);
            elector.on_lease(None, now, now);
            assert_eq!(
                elector.next(now),
                ElectionStep::GetPod("their-pod".to_owned()),
                "the Pod is read each time"
            );
            elector.on_pod(found.as_ref(), now);
            if is_over {
                assert_eq!(elector.next(now), ElectionStep::Create, "{found:?}");
                break;
            }
            assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)), "{found:?}");
        }
    }
    // The previous process in this Pod has ended.
    let start = by_hand::now();
    let mut elector = for_life(start);
    elector.on_lease(Some(owned("me_0", 4, "my-pod", "my-uid")), start, start);
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Create);
}

#[tokio::test]
async fn candidate_waits_for_a_vanished_lease_that_a_pod_owned() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(Some(owned("other_2", 4, "their-pod", "their-uid")), start, start);
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    let late = start + seconds(15);
    elector.on_lease(None, late, late);
    assert_eq!(elector.next(late), ElectionStep::Create);
}

#[tokio::test]
async fn replica_that_loses_the_lease_creation_waits() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Create);
    elector.conflict(start);
    assert_eq!(elector.next(start), ElectionStep::Get);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
}

#[tokio::test]
async fn failed_request_is_followed_by_the_given_pause() {
    let start = by_hand::now();
    let mut elector = candidate(start);
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Create);
    elector.failed(seconds(9), seconds(1), start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(9)));
    assert_eq!(
        elector.next(start + seconds(9)),
        ElectionStep::Get,
        "another replica may have created the Lease"
    );
    // The API server may request a longer pause, also from a leader.
    let mut elector = leader(start);
    elector.failed(seconds(9), seconds(4), start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(4)));
    // But a leader must renew its Lease in time.
    let mut elector = leader(start);
    elector.failed(seconds(9), seconds(60), start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(5)));
}

#[tokio::test]
async fn lease_is_written_and_released_like_client_go() {
    let start = by_hand::now();
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let show = |lease: &Lease| serde_json::to_value(lease.spec.as_ref().unwrap()).unwrap();
    let mut elector = candidate(start);
    elector.on_lease(None, start, start);
    let made = elector.claim("lb-linker", at("2026-02-01T00:00:00Z"));
    let expected = json!({"holderIdentity": ME, "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-02-01T00:00:00.000000Z", "renewTime": "2026-02-01T00:00:00.000000Z"});
    assert_eq!(show(&made), expected);
    assert_eq!(elector.release(Timestamp::UNIX_EPOCH), None, "the Lease isn't held yet");
    elector.on_written(made, start, start);
    let renewed = elector.claim("lb-linker", at("2026-02-01T00:00:02Z"));
    let expected = json!({"holderIdentity": ME, "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-02-01T00:00:00.000000Z", "renewTime": "2026-02-01T00:00:02.000000Z"});
    assert_eq!(show(&renewed), expected);
    let left = elector.release(at("2026-02-01T00:00:03Z")).unwrap();
    let expected = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0,
        "acquireTime": "2026-02-01T00:00:03.000000Z", "renewTime": "2026-02-01T00:00:03.000000Z"});
    assert_eq!(show(&left), expected);

    elector.on_lease(Some(lease("other_2", 5)), start, start);
    let taken = elector.claim("lb-linker", at("2026-02-01T00:00:09Z"));
    let expected = json!({"holderIdentity": ME, "leaseDurationSeconds": 15, "leaseTransitions": 4,
        "acquireTime": "2026-02-01T00:00:09.000000Z", "renewTime": "2026-02-01T00:00:09.000000Z"});
    assert_eq!(show(&taken), expected);
    assert_eq!(elector.release(Timestamp::UNIX_EPOCH), None);
    // A released leader-for-life Lease mustn't end with the previous holder's Pod.
    elector.on_lease(Some(owned("", 6, "p", "u")), start, start);
    assert_eq!(elector.claim("lb-linker", Timestamp::UNIX_EPOCH).metadata.owner_references, None);
}

#[tokio::test]
async fn lease_for_life_is_owned_by_the_pod_and_only_read() {
    let start = by_hand::now();
    let mut elector = for_life(start);
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Create);
    let made = elector.claim("lb-linker", Timestamp::UNIX_EPOCH);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "my-pod", "uid": "my-uid"}]);
    assert_eq!(serde_json::to_value(&made.metadata.owner_references).unwrap(), owners);
    assert_eq!(made.spec.as_ref().unwrap().lease_duration_seconds, None);
    elector.on_written(owned(ME, 1, "my-pod", "my-uid"), start, start);
    assert_eq!(elector.take_events(), [LeaderEvent::Gained]);
    let now = start + seconds(2);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(Some(owned(ME, 1, "my-pod", "my-uid")), now, now);
    let held = LeaseWindow::Until { renewed_by: now + seconds(10), end: now + seconds(15) };
    assert_eq!(elector.leader_status(), LeaderStatus { term: 1, held: Some(held) });
    // After a loss of connectivity the Lease still belongs to the Pod, in another term.
    let late = start + seconds(60);
    assert_eq!(elector.next(late), ElectionStep::Get);
    assert_eq!(elector.take_events(), [LeaderEvent::Lost("the Lease couldn't be read for 10 s".to_owned())]);
    elector.on_lease(Some(owned(ME, 1, "my-pod", "my-uid")), late, late);
    assert_eq!(elector.next(late), ElectionStep::Replace, "the new term is written before anything else");
    elector.on_written(owned(ME, 2, "my-pod", "my-uid"), late, late);
    assert_eq!(elector.leader_status().term, 2);
}

#[tokio::test]
async fn lease_for_life_is_deleted_only_after_its_pods_end() {
    for (found, is_over) in [
        (Some(pod("their-uid", "Running")), false),
        (Some(pod("their-uid", "Pending")), false),
        (Some(pod("their-uid", "Unknown")), false),
        (Some(pod("their-uid", "Succeeded")), true),
        (Some(pod("their-uid", "Failed")), true),
        (Some(pod("another-uid", "Running")), true),
        (None, true),
    ] {
        let start = by_hand::now();
        let mut elector = for_life(start);
        elector.on_lease(Some(owned("other_2", 4, "their-pod", "their-uid")), start, start);
        // The age of the Lease doesn't matter.
        let now = start + seconds(3600);
        assert_eq!(elector.next(now), ElectionStep::GetPod("their-pod".to_owned()));
        elector.on_pod(found.as_ref(), now);
        if !is_over {
            assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)), "{found:?}");
            assert_eq!(elector.next(now + seconds(2)), ElectionStep::Get);
            continue;
        }
        let only = (Some("lease-uid".to_owned()), Some("4".to_owned()));
        assert_eq!(
            elector.next(now),
            ElectionStep::Delete { uid: only.0, resource_version: only.1 },
            "{found:?}"
        );
        elector.deleted(now);
        assert_eq!(elector.next(now), ElectionStep::Create);
    }
}

#[tokio::test]
async fn lease_for_life_passes_to_the_next_process_of_the_pod() {
    let start = by_hand::now();
    let mut elector = for_life(start);
    elector.on_lease(Some(owned("me_0", 4, "my-pod", "my-uid")), start, start);
    assert_eq!(elector.next(start), ElectionStep::Replace);
}

#[tokio::test]
async fn renewed_and_pod_owned_leases_exclude_each_other() {
    let start = by_hand::now();
    let late = start + seconds(3600);
    // A Lease that ends with its Pod has no duration.
    let mut elector = candidate(start);
    elector.on_lease(Some(owned("other_2", 4, "their-pod", "their-uid")), start, start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    assert_eq!(elector.next(late), ElectionStep::Get);
    elector.on_lease(Some(owned("other_2", 4, "their-pod", "their-uid")), late, late);
    assert_eq!(elector.next(late), ElectionStep::Wait(late + seconds(2)));
    // A Lease that is renewed has no Pod.
    let mut elector = for_life(start);
    elector.on_lease(Some(lease("other_2", 4)), start, start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    let later = start + seconds(15);
    assert_eq!(elector.next(later), ElectionStep::Get);
    elector.on_lease(Some(lease("other_2", 4)), later, later);
    assert!(matches!(elector.next(later), ElectionStep::Delete { .. }));
}

#[tokio::test]
async fn resignation_is_reported_once() {
    let start = by_hand::now();
    let mut elector = leader(start);
    elector.resign();
    elector.resign();
    assert_eq!(elector.take_events(), [LeaderEvent::Resigned]);
    assert_eq!(elector.leader_status().held, None);
}

/// Returns a Lease of this process in a term.
fn in_term(term: &str, version: u64) -> Lease {
    let mut lease = lease(ME, version);
    lease.metadata.annotations = Some([(TERM.to_owned(), term.to_owned())].into());
    lease
}

fn term_in(lease: &Lease) -> &str {
    &lease.metadata.annotations.as_ref().unwrap()[TERM]
}

/// Returns a leader in the term 1,000,000, the Unix time at which it began.
fn leader_in_term(now: BootInstant) -> Elector {
    let mut elector = candidate(now);
    elector.on_lease(None, now, now);
    assert_eq!(elector.next(now), ElectionStep::Create);
    let made = elector.claim("lb-linker", Timestamp::from_second(1_000_000).unwrap());
    assert_eq!(term_in(&made), "1000000");
    elector.on_written(in_term("1000000", 1), now, now);
    assert_eq!(elector.leader_status().term, 1_000_000);
    elector.take_events();
    elector
}

#[tokio::test]
async fn new_term_exceeds_all_seen_terms_and_renewals_keep_it() {
    let start = by_hand::now();
    let mut elector = leader_in_term(start);
    let now = start + seconds(2);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    let renewed = elector.claim("lb-linker", Timestamp::from_second(1_000_002).unwrap());
    assert_eq!(term_in(&renewed), "1000000");
    elector.on_written(in_term("1000000", 2), now, now);
    assert_eq!(elector.leader_status().term, 1_000_000);

    let now = Timestamp::now().as_second();
    for (in_lease, on_targets, above) in [
        ("1000100", 0, 1_000_101),
        ("1000100", 1_000_200, 1_000_201),
        ("nonsense", 1_000_200, 1_000_201),
        // More than a day ahead.
        (&(now + 90_000).to_string(), 0, 0),
        (&(now + 80_000).to_string(), 0, now + 80_001),
    ] {
        let mut elector = candidate(start);
        elector.observe_term(on_targets, start);
        let mut free = in_term(in_lease, 5);
        free.spec.as_mut().unwrap().holder_identity = None;
        elector.on_lease(Some(free), start, start);
        assert_eq!(elector.next(start), ElectionStep::Replace);
        let claimed = elector.claim("lb-linker", Timestamp::from_second(now).unwrap());
        assert_eq!(term_in(&claimed), above.max(now).to_string(), "{in_lease} {on_targets}");
    }
}

#[tokio::test]
async fn higher_term_on_a_target_triggers_a_lease_read() {
    let start = by_hand::now();
    // The Lease still belongs to this process: the term is raised.
    let mut elector = leader_in_term(start);
    let now = start + seconds(1);
    elector.observe_term(1_000_000, now);
    assert_eq!(elector.next(now), ElectionStep::Wait(start + seconds(2)), "our own term is no news");
    elector.observe_term(1_000_700, now);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(Some(in_term("1000000", 1)), now, now);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    let raised = elector.claim("lb-linker", Timestamp::from_second(1_000_001).unwrap());
    assert_eq!(term_in(&raised), "1000701");
    elector.on_written(in_term("1000701", 2), now, now);
    assert_eq!(elector.take_events(), [LeaderEvent::Raised(1_000_701)]);
    assert_eq!(elector.leader_status().term, 1_000_701);
    assert_eq!(elector.next(now), ElectionStep::Wait(now + seconds(2)));
    // Repeated higher terms cause no more requests.
    elector.observe_term(1_000_800, now + seconds(1));
    assert_eq!(elector.next(now + seconds(1)), ElectionStep::Wait(now + seconds(2)));
    assert_eq!(elector.next(now + seconds(2)), ElectionStep::Get);

    // The Lease has another term, or another holder: this process doesn't lead any more.
    for there in [in_term("1000650", 7), in_term("x", 7), lease(ME, 7), lease("other_2", 7)] {
        let mut elector = leader_in_term(start);
        elector.observe_term(1_000_700, now);
        assert_eq!(elector.next(now), ElectionStep::Get);
        elector.on_lease(Some(there.clone()), now, now);
        assert_eq!(elector.leader_status().held, None, "{there:?}");
        assert!(matches!(elector.take_events()[0], LeaderEvent::Lost(_)));
    }

    // With leader-for-life, too, the term is raised.
    let mut elector = for_life(start);
    elector.on_lease(None, start, start);
    assert_eq!(elector.next(start), ElectionStep::Create);
    let mut made = elector.claim("lb-linker", Timestamp::from_second(1_000_000).unwrap());
    elector.on_written(made.clone(), start, start);
    elector.observe_term(1_000_700, now);
    assert_eq!(elector.next(now), ElectionStep::Get);
    elector.on_lease(Some(made.clone()), now, now);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    made = elector.claim("lb-linker", Timestamp::from_second(1_000_000).unwrap());
    assert_eq!(term_in(&made), "1000701");
}

#[tokio::test]
async fn waiting_writer_gets_a_later_renewal() {
    let start = by_hand::now();
    let mut elector = leader(start);
    let now = start + seconds(1);
    assert_eq!(elector.next(now), ElectionStep::Wait(start + seconds(2)));
    elector.request_renewal(now);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    // A renewal that was in flight when the writer asked doesn't count.
    elector.on_written(lease(ME, 2), start, now);
    assert_eq!(elector.confirmed(), None);
    elector.request_renewal(now);
    assert_eq!(elector.next(now), ElectionStep::Replace);
    elector.on_written(lease(ME, 3), now, now);
    assert_eq!(elector.confirmed(), Some(now));
    // The next renewal comes after the interval, for all writers that ask until then.
    elector.request_renewal(now);
    elector.request_renewal(now + MIN_RENEWAL_PAUSE / 2);
    assert_eq!(elector.next(now + MIN_RENEWAL_PAUSE / 2), ElectionStep::Wait(now + MIN_RENEWAL_PAUSE));
    assert_eq!(elector.next(now + MIN_RENEWAL_PAUSE), ElectionStep::Replace);
    elector.on_written(lease(ME, 4), now + MIN_RENEWAL_PAUSE, now + MIN_RENEWAL_PAUSE);
    assert_eq!(elector.confirmed(), Some(now + MIN_RENEWAL_PAUSE));
    // If requests fail, the renewal waits for the backoff.
    let later = now + MIN_RENEWAL_PAUSE + seconds(2);
    assert_eq!(elector.next(later), ElectionStep::Replace);
    elector.failed(seconds(15), Duration::ZERO, later);
    elector.request_renewal(later);
    assert_eq!(elector.next(later), ElectionStep::Wait(later + seconds(2)));
    // A process that doesn't lead has nothing to renew.
    let mut elector = candidate(start);
    elector.on_lease(Some(lease("other_2", 1)), start, start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
    elector.request_renewal(start);
    assert_eq!(elector.next(start), ElectionStep::Wait(start + seconds(2)));
}

#[tokio::test]
async fn lease_that_isnt_seen_renewed_has_no_leader() {
    let start = by_hand::now();
    let at = |at| start + seconds(at);
    let mut elector = candidate(start);
    assert_eq!([14, 15].map(|time| elector.is_led(at(time))), [true, false], "it has never been read");
    elector.on_lease(Some(lease("other_2", 1)), at(20), at(20));
    elector.failed(seconds(20), Duration::ZERO, at(22));
    assert_eq!(elector.next(at(22)), ElectionStep::Wait(at(35)), "the end of the lease");
    assert_eq!((elector.is_led(at(34)), elector.current_holder(at(34))), (true, Some("other_2")));
    assert_eq!((elector.is_led(at(35)), elector.current_holder(at(35))), (false, None));
    assert_eq!(elector.next(at(35)), ElectionStep::Wait(at(42)));
    elector.on_lease(Some(lease("other_2", 1)), at(42), at(42));
    assert!(!elector.is_led(at(42)), "it hasn't changed");
    elector.on_written(lease(ME, 2), at(42), at(42));
    assert_eq!((elector.is_led(at(56)), elector.current_holder(at(56))), (true, Some(ME)));
    elector.on_lease(Some(lease("", 3)), at(50), at(50));
    assert_eq!([56, 57].map(|time| elector.is_led(at(time))), [true, false], "another replica may follow");
}

#[tokio::test]
async fn lease_for_life_has_no_leader_once_its_pod_has_ended() {
    let start = by_hand::now();
    let mut elector = for_life(start);
    for (phase, is_led) in [("Running", true), ("Failed", false)] {
        elector.on_lease(Some(owned("other_2", 1, "p", "other-uid")), start, start);
        elector.on_pod(Some(&pod("other-uid", phase)), start);
        assert_eq!(elector.is_led(start + seconds(14)), is_led, "{phase}");
        assert!(!elector.is_led(start + seconds(15)), "the Lease can't be read any more");
    }
}

#[tokio::test]
async fn lease_for_life_has_no_leader_while_its_pod_is_unknown() {
    let start = by_hand::now();
    let mut elector = for_life(start);
    for second in (0..60).step_by(10) {
        let now = start + seconds(second);
        elector.on_lease(Some(owned("other_2", 1, "p", "other-uid")), now, now);
        assert_eq!(elector.is_led(now), second < 15, "the Pod can't be read: {second}");
    }
    let now = start + seconds(60);
    elector.on_pod(Some(&pod("other-uid", "Running")), now);
    assert!(elector.is_led(now) && !elector.is_led(now + seconds(15)));
}
