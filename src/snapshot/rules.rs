//! When a snapshot is used, refused, and written: pure decisions.

use std::time::Duration;

use jiff::Timestamp;

use super::format::{Head, RecordedFlags};
use crate::model::excerpt::sentence;
use crate::model::names;
use crate::model::owner::{Source, Zone};
use crate::store::fallback::Age;
use crate::sync::k8s::client::ClusterIdentity;

/// Time from the start after which DNS answers from the snapshot if the first list isn't complete.
pub(super) const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// How far in the future the time of a snapshot may be: clocks of machines differ, and are corrected.
const MAX_FUTURE: Duration = Duration::from_secs(300);
/// Minimum pause between two writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum pause between two writes while links change: a restart may answer what is out of date by this pause and two
/// writes.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause between two writes while the watches live.
const MAX_RENEWAL: Duration = Duration::from_secs(600);

/// Why a snapshot isn't used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it is {} old, and at most {} are allowed (--snapshot-max-age)", Age(*.age), Age(*.max_age))]
    TooOld { age: Duration, max_age: Duration },
    #[error("it is from the future, by {}: a clock was wrong when it was written, or is wrong now", Age(*.0))]
    FromTheFuture(Duration),
    #[error("it is of another cluster: {}", sentence(.0))]
    OtherCluster(String),
    #[error(
        "it was written with another --selection, --service-selector, --load-balancer-classes, --hostname-annotations or \
         --annotation-prefixes"
    )]
    OtherSettings,
}

/// Returns the age of a snapshot.
///
/// # Errors
/// If it is too old, or from the future by more than five minutes.
pub(super) fn age(taken: Timestamp, now: Timestamp, max_age: Duration) -> Result<Duration, Unusable> {
    let age = now.duration_since(taken);
    if age.is_negative() {
        let by = age.unsigned_abs();
        return if by > MAX_FUTURE { Err(Unusable::FromTheFuture(by)) } else { Ok(Duration::ZERO) };
    }
    let age = age.unsigned_abs();
    if age > max_age { Err(Unusable::TooOld { age, max_age }) } else { Ok(age) }
}

/// Checks whether a snapshot is of this cluster, and was written with flags that select no more than the present ones,
/// and with the same `--hostname-annotations` and `--annotation-prefixes`. `restore` checks the namespace, the target and
/// the classes of each link.
///
/// # Errors
/// If it isn't.
pub(super) fn check(head: &Head, cluster: &ClusterIdentity, now: &RecordedFlags) -> Result<(), Unusable> {
    if !head.cluster.is_same(cluster) {
        return Err(Unusable::OtherCluster(head.cluster.server.clone()));
    }
    let then = &head.recorded_flags;
    let is_within = (then.annotated_only || !now.annotated_only)
        && (now.selector.is_empty() || now.selector == then.selector)
        && (now.classes.is_empty() || !then.classes.is_empty() && then.classes.is_subset(&now.classes))
        && now.hostname_annotations == then.hostname_annotations
        && now.annotation_prefixes == then.annotation_prefixes;
    if is_within { Ok(()) } else { Err(Unusable::OtherSettings) }
}

/// Returns whether a name's zone has names of all classes of a source that the zone of the name had `then`.
pub(super) fn has_all_classes(source: &Source, name: &str, then: &[Zone], now: &[Zone]) -> bool {
    let Some(name) = names::wire_of(name) else { return true };
    let then = Zone::closest(then, &name).map(|zone| zone.classes_of(source));
    match (then, Zone::closest(now, &name).map(|zone| zone.classes_of(source))) {
        (_, None | Some([])) => true,
        (None | Some([]), _) => false,
        (Some(then), Some(now)) => then.iter().all(|class| now.contains(class)),
    }
}

/// Returns the pause after a write that took this time: ten times as long, within [`WRITE_INTERVAL`] and [`MAX_PAUSE`].
pub(super) fn pause_after(write: Duration) -> Duration {
    write.saturating_mul(10).clamp(WRITE_INTERVAL, MAX_PAUSE)
}

/// Returns the time after which a snapshot without changes is written again, so that it doesn't age while the API
/// server confirms that nothing has changed.
pub(super) fn renewal(max_age: Duration) -> Duration {
    (max_age / 4).clamp(WRITE_INTERVAL, MAX_RENEWAL)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn snapshot_is_used_up_to_its_maximum_age() {
        let max_age = Duration::from_secs(3600);
        for (taken, expected) in [(0, Ok(0)), (-3600, Ok(3600)), (300, Ok(0))] {
            assert_eq!(age(at(taken), NOW, max_age), expected.map(Duration::from_secs), "{taken}");
        }
        let too_old = age(at(-3601), NOW, max_age).unwrap_err();
        let text = "it is 1 h 0 min old, and at most 1 h 0 min are allowed (--snapshot-max-age)";
        assert_eq!(too_old.to_string(), text);
        let future = age(at(301), NOW, max_age).unwrap_err();
        assert_eq!(future, Unusable::FromTheFuture(Duration::from_secs(301)));
        age(Timestamp::MIN, Timestamp::MAX, Duration::MAX).unwrap();
        age(Timestamp::MAX, Timestamp::MIN, Duration::MAX).unwrap_err();
    }

    #[test]
    fn snapshot_of_a_wider_selection_is_refused() {
        let settings = |annotated_only, selector: &str| RecordedFlags {
            annotated_only,
            selector: selector.to_owned(),
            ..RecordedFlags::default()
        };
        let usable = |then: &RecordedFlags, now: &RecordedFlags| {
            let cluster = ClusterIdentity::default();
            let head = Head {
                taken: NOW,
                program: String::new(),
                cluster: cluster.clone(),
                recorded_flags: then.clone(),
                serial: 0,
                last_change: None,
            };
            check(&head, &cluster, now).is_ok()
        };
        let (all, some) = (settings(false, ""), settings(true, "a=b"));
        for same in [&all, &some] {
            assert!(usable(same, same));
        }
        assert!(usable(&some, &all));
        assert!(!usable(&all, &some));
        assert!(!usable(&all, &settings(false, "a=b")) && !usable(&all, &settings(true, "")));
        let classes = |classes: &[&str]| RecordedFlags {
            classes: classes.iter().map(|class| (*class).to_owned()).collect(),
            ..RecordedFlags::default()
        };
        assert!(usable(&classes(&["a"]), &classes(&["a", "b"])) && usable(&classes(&["a"]), &all));
        assert!(!usable(&classes(&["a", "b"]), &classes(&["a"])) && !usable(&all, &classes(&["a"])));
        let annotations = RecordedFlags { hostname_annotations: vec!["a".to_owned()], ..all.clone() };
        assert!(!usable(&annotations, &all) && !usable(&all, &annotations));
        let prefixes = RecordedFlags { annotation_prefixes: vec!["a/".to_owned()], ..all.clone() };
        assert!(!usable(&prefixes, &all) && !usable(&all, &prefixes));
    }

    #[test]
    fn names_of_zones_with_more_classes_are_left_out() {
        let zones = |zones: &[(&str, &[&str])]| -> Vec<Zone> {
            let zone = |(origin, classes): &(&str, &[&str])| Zone {
                ingress_classes: classes.iter().map(|class| (*class).into()).collect(),
                ..(&Name::from_ascii(origin).unwrap()).into()
            };
            zones.iter().map(zone).collect()
        };
        let one = |classes| zones(&[("lb.internal.", classes)]);
        for (then, now, expected) in [
            (one(&[]), one(&[]), true),
            (one(&["a"]), one(&[]), true),
            (one(&["a"]), one(&["b", "a"]), true),
            (one(&["a", "b"]), one(&["a"]), false),
            (one(&[]), one(&["a"]), false),
            (Vec::new(), one(&["a"]), false),
            (one(&[]), Vec::new(), true),
            (zones(&[("lb.internal.", &["a"]), ("x.lb.internal.", &[])]), one(&["a"]), false),
            (zones(&[("lb.internal.", &[]), ("x.lb.internal.", &["a"])]), one(&["a"]), true),
        ] {
            let has = |source| has_all_classes(source, "*.x.lb.internal", &then, &now);
            assert_eq!(has(&Source::INGRESSES), expected, "{then:?} {now:?}");
            assert!(has(&Source::GATEWAYS) && has(&Source::DNS_ENDPOINTS), "{then:?} {now:?}");
        }
    }

    #[test]
    fn writes_are_rare_when_they_take_long() {
        for (milliseconds, expected) in [(0, 1000), (100, 1000), (101, 1010), (500, 5000), (60_000, 5000)] {
            let pause = pause_after(Duration::from_millis(milliseconds));
            assert_eq!(pause, Duration::from_millis(expected));
        }
        assert_eq!(renewal(Duration::from_secs(86_400)), MAX_RENEWAL);
        assert_eq!(renewal(Duration::from_secs(60)), Duration::from_secs(15));
        assert_eq!(renewal(Duration::ZERO), WRITE_INTERVAL);
    }
}
