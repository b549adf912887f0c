use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use regex::Regex;

use super::*;
use crate::api::crd::stable_names;

/// The seeds of the random statuses; a failed test prints its seed.
const SEEDS: std::ops::Range<u64> = 0..100;

/// The last second that a [`Timestamp`] can have.
const LAST_SECOND: i64 = 253_402_207_200;

const FOREIGN_CONDITIONS: [&str; 3] = ["Audited", "example.com/Seen", "Stalled"];

struct Generator {
    random: StdRng,
    /// By how much lists and texts may exceed their limits.
    excess: usize,
}

impl Generator {
    fn new(seed: u64, excess: usize) -> Self {
        Self { random: StdRng::seed_from_u64(seed), excess }
    }

    fn number(&mut self, most: usize) -> usize {
        let most = most + self.excess;
        // More often the limits than a number between them.
        match self.random.random_range(0..4) {
            0 => 0,
            1 => most,
            _ => self.random.random_range(0..=most.min(12)),
        }
    }

    fn text(&mut self, most: usize) -> String {
        let number = self.number(most);
        (0..number).map(|_| *['a', '"', 'é', '→', '🦀'].choose(&mut self.random).unwrap()).collect()
    }

    fn time(&mut self) -> Timestamp {
        if self.excess > 0 && self.random.random_bool(0.2) {
            return *[Timestamp::MIN, Timestamp::MAX].choose(&mut self.random).unwrap();
        }
        Timestamp::from_second(self.random.random_range(0..=LAST_SECOND)).unwrap()
    }

    fn address(&mut self) -> IpAddr {
        if self.random.random_bool(0.5) {
            return IpAddr::from(self.random.random::<[u8; 4]>());
        }
        IpAddr::from(self.random.random::<[u8; 16]>()).to_canonical()
    }

    fn target(&mut self) -> Target {
        let label = "x".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "y".repeat(61));
        let hosts =
            ["a.example", "xn--bcher-kva.example", "*.example", "_a.b_c.example", r"a\.b.example", &longest];
        match self.random.random_range(0..10) {
            0 => {
                let number = MAX_TARGET_ADDRESSES + self.excess;
                Target::Addresses((0..number).map(|i| IpAddr::from((i as u32).to_be_bytes())).collect())
            }
            1..5 => {
                let number = self.random.random_range(1..10);
                let addresses: HashSet<IpAddr> = (0..number).map(|_| self.address()).collect();
                Target::Addresses(addresses.into_iter().collect())
            }
            _ => Target::Hostname(hostname(hosts.choose(&mut self.random).unwrap())),
        }
    }

    fn announced(&mut self) -> AnnouncedTarget {
        AnnouncedTarget {
            source: self.text(MAX_LABEL),
            target: self.target(),
            uid: (*self.text(MAX_STATE_TEXT)).into(),
            since: self.time(),
            verified: self.random.random(),
        }
    }

    fn source(&mut self, number: usize) -> SourceStatus {
        let states =
            [SourceState::Pending, SourceState::Healthy, SourceState::Unhealthy, SourceState::Refused];
        SourceStatus {
            name: format!("{number:03}{}", self.text(MAX_LABEL - 3)),
            state: *states.choose(&mut self.random).unwrap(),
            offers: Some(self.text(MAX_MESSAGE)).filter(|offers| !offers.is_empty()),
            since: self.time(),
            message: self.text(MAX_MESSAGE),
        }
    }

    fn former(&mut self) -> FormerTarget {
        FormerTarget {
            source: self.text(MAX_LABEL),
            display: self.text(MAX_MESSAGE),
            since: self.time(),
            until: self.time(),
            reason: self.text(MAX_STATE_TEXT),
        }
    }

    fn condition(&mut self, kind: ConditionType) -> Condition {
        let statuses = [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown];
        Condition {
            kind,
            status: *statuses.choose(&mut self.random).unwrap(),
            reason: self.text(MAX_MESSAGE),
            message: self.text(MAX_MESSAGE),
            since: self.time(),
        }
    }

    fn decided(&mut self) -> FailoverStatus {
        let kinds = CONDITIONS.iter().filter_map(|(_, kind)| *kind);
        let kinds: Vec<_> = kinds.filter(|_| self.random.random_bool(0.8)).collect();
        FailoverStatus {
            observed_generation: self.random.random_range(0..i64::MAX),
            target: self.random.random_bool(0.7).then(|| self.announced()),
            sources: (0..self.number(MAX_SOURCES)).map(|number| self.source(number)).collect(),
            history: (0..self.number(MAX_HISTORY)).map(|_| self.former()).collect(),
            conditions: kinds.into_iter().map(|kind| self.condition(kind)).collect(),
        }
    }

    fn stored(&mut self) -> StableNameStatus {
        let decided = self.decided();
        let (service, names) = (self.text(MAX_SERVICE), self.number(MAX_DNS_NAMES));
        let dns_names: Vec<String> = (0..names).map(|_| self.text(MAX_DNS_NAME)).collect();
        let published = PublishedNames { service: &service, dns_names: &dns_names };
        to_stored(&decided, &published)
    }

    /// Conditions of other clients and of later versions.
    fn foreign(&mut self) -> Vec<StoredCondition> {
        let kinds = FOREIGN_CONDITIONS.into_iter().filter(|_| self.random.random_bool(0.5));
        let kinds: Vec<_> = kinds.collect();
        kinds
            .into_iter()
            .map(|kind| condition_to_stored(kind, &self.condition(ConditionType::Ready), 1))
            .collect()
    }
}

fn hostname(text: &str) -> Hostname {
    Hostname::from(&host_name(text).unwrap())
}

fn schema() -> Value {
    let crd = serde_json::to_value(stable_names()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
}

/// Checks a value against a schema.
fn check(path: &str, value: &Value, schema: &Value) {
    let is_within = |number: usize, limit: &str| match schema[limit].as_f64() {
        Some(most) => assert!(number as f64 <= most, "{path}: {number} exceeds {limit}"),
        None => assert_eq!(schema[limit], Value::Null, "{path}: {limit}"),
    };
    let kind = match value {
        Value::Object(fields) => {
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(required.as_str().unwrap()), "{path} lacks {required}");
            }
            for (name, field) in fields {
                check(&format!("{path}.{name}"), field, &schema["properties"][name]);
            }
            "object"
        }
        Value::Array(items) => {
            is_within(items.len(), "maxItems");
            for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
                let keys = items.iter().map(|item| item[key.as_str().unwrap()].to_string());
                assert_eq!(keys.collect::<BTreeSet<_>>().len(), items.len(), "{path}: duplicates");
            }
            items.iter().for_each(|item| check(&format!("{path}[]"), item, &schema["items"]));
            "array"
        }
        Value::String(text) => {
            is_within(text.chars().count(), "maxLength");
            if let Some(pattern) = schema["pattern"].as_str() {
                assert!(Regex::new(pattern).unwrap().is_match(text), "{path}: {text}");
            }
            "string"
        }
        Value::Number(_) => "integer",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
    };
    assert_eq!(schema["type"], kind, "{path}: {value}");
}

/// Applies a merge patch (RFC 7396).
fn apply(document: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = json!({});
    }
    let document = document.as_object_mut().unwrap();
    for (name, field) in fields {
        if field.is_null() {
            document.remove(name);
        } else {
            apply(document.entry(name).or_insert(Value::Null), field);
        }
    }
}

#[test]
fn written_status_is_read_as_it_was() {
    for seed in SEEDS {
        let status = Generator::new(seed, 0).decided();
        let written = to_stored(&status, &PublishedNames { service: "", dns_names: &[] });
        let stored = serde_json::from_value(serde_json::to_value(&written).unwrap()).unwrap();
        assert!(written == stored, "seed {seed}");
        assert!(from_stored(&stored) == status, "seed {seed}");
    }
}

#[test]
fn written_status_is_within_the_limits_of_the_schema() {
    let schema = schema();
    for seed in SEEDS {
        println!("seed {seed}");
        let status = Generator::new(seed, 5).stored();
        check("status", &json!(status), &schema);
        // What was cut stays as it is.
        let first = from_stored(&status);
        assert!(from_stored(&to_stored(&first, &PublishedNames { service: "", dns_names: &[] })) == first);
    }
}

#[test]
fn patch_makes_any_status_equal_to_the_new_one() {
    let schema = schema();
    for seed in SEEDS {
        println!("seed {seed}");
        let mut generator = Generator::new(seed, 0);
        let (mut before, mut after) = (generator.stored(), generator.stored());
        after.observed_generation = after.observed_generation.filter(|generation| generation % 2 == 0);
        let foreign = generator.foreign();
        before.conditions.extend(foreign.clone());
        let mut object = json!({"spec": {"pin": "seoul"}, "status": before});
        object["status"]["later"] = json!(1);
        apply(&mut object, &merge_patch(Some(&before), &after, "u", "7"));
        assert_eq!(object["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!((&object["spec"]["pin"], &object["status"]["later"]), (&json!("seoul"), &json!(1)));
        object["status"].as_object_mut().unwrap().remove("later");
        check("status", &object["status"], &schema);
        let mut patched: StableNameStatus = serde_json::from_value(object["status"].take()).unwrap();
        let is_foreign =
            |condition: &mut StoredCondition| FOREIGN_CONDITIONS.contains(&condition.type_.as_str());
        let kept: Vec<_> = patched.conditions.extract_if(.., is_foreign).collect();
        assert!(patched == after && kept == foreign);
        let mut new = json!({});
        apply(&mut new, &merge_patch(None, &after, "u", "7"));
        assert!(new["status"] == json!(after));
    }
}

#[test]
fn patch_names_each_field_of_the_schema() {
    let schema = schema();
    let fields = |schema: &Value| -> BTreeSet<String> {
        schema["properties"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(fields(&schema), STATUS_FIELDS.map(str::to_owned).into());
    assert_eq!(fields(&schema["properties"]["target"]), TARGET_FIELDS.map(str::to_owned).into());
    let target = stored::CurrentTarget { addresses: vec!["192.0.2.1".to_owned()], ..Default::default() };
    let after = StableNameStatus { target: Some(target), ..Default::default() };
    let patch = merge_patch(None, &after, "u", "7");
    assert_eq!(patch["status"]["target"]["hostname"], Value::Null);
    assert_eq!(patch["status"].as_object().unwrap().len(), STATUS_FIELDS.len());
    assert_eq!(patch["status"]["target"].as_object().unwrap().len(), TARGET_FIELDS.len());
}

#[test]
fn conditions_of_a_patch_are_ordered_and_limited() {
    let condition = |type_: &str| StoredCondition { type_: type_.to_owned(), ..stored_ready() };
    let list = |types: &[&str]| StableNameStatus {
        conditions: types.iter().map(|type_| condition(type_)).collect(),
        ..Default::default()
    };
    let patched = |before: &[&str], after: &[&str]| {
        let patch = merge_patch(Some(&list(before)), &list(after), "u", "7");
        let conditions: Vec<StoredCondition> =
            serde_json::from_value(patch["status"]["conditions"].clone()).unwrap();
        conditions.into_iter().map(|condition| condition.type_).collect::<Vec<_>>()
    };
    assert_eq!(
        patched(&["Later", "AlertsReady", "Resolved"], &["Ready", "Accepted"]),
        ["Accepted", "Ready", "Later"]
    );
    assert_eq!(patched(&[], &["Ready", "AlertsReady"]), ["AlertsReady", "Ready"]);
    let many: Vec<String> = (0..MAX_CONDITIONS).map(|number| format!("Later{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(patched(&many, &["Ready"]).len(), MAX_CONDITIONS);
}

fn stored_ready() -> StoredCondition {
    condition_to_stored("Ready", &Generator::new(0, 0).condition(ConditionType::Ready), 1)
}

#[test]
fn target_is_read_in_canonical_form_or_not_at_all() {
    let long = format!("{}.example", "x".repeat(64));
    for (stored, expected) in [
        (json!({"hostname": "A.Example."}), "a.example"),
        (json!({"hostname": "a.example", "addresses": ["192.0.2.1"]}), "a.example"),
        (json!({"hostname": "", "addresses": ["192.0.2.1"]}), "192.0.2.1"),
        (
            json!({"addresses": ["x", "2001:DB8::1", "::ffff:192.0.2.1", "192.0.2.1", "2001:db8::1"]}),
            "192.0.2.1,2001:db8::1",
        ),
        (json!({"hostname": long}), ""),
        (json!({"hostname": "."}), ""),
        (json!({"hostname": "a..example", "addresses": ["192.0.2.1"]}), ""),
        (json!({"addresses": ["x"]}), ""),
        (json!({}), ""),
    ] {
        let status = json!({"target": stored, "history": [{"source": "seoul"}]});
        let status = from_stored(&serde_json::from_value(status).unwrap());
        let target = status.target.map(|target| target.target.to_string());
        assert_eq!(target.unwrap_or_default(), expected, "{stored}");
        assert_eq!(status.history.len(), 1);
    }
}

#[test]
fn unknown_parts_of_a_status_are_left_out() {
    let ready = |status: &str, reason: &str| {
        json!({"type": "Ready", "status": status, "reason": reason, "message": "",
               "lastTransitionTime": "2026-11-22T10:20:00.9Z"})
    };
    let stored = json!({
        "observedGeneration": 3,
        "sources": [
            {"name": "seoul", "state": "Sleeping", "offers": ""},
            {"name": "busan", "state": "Healthy", "offers": "a.example", "since": "2026-11-22T10:20:00Z"},
            {"name": "seoul", "state": "Healthy"},
        ],
        "conditions": [
            {"type": "Later", "status": "True", "reason": "", "message": "",
             "lastTransitionTime": "2026-11-22T10:20:00Z"},
            ready("Perhaps", "First"),
            ready("True", "Second"),
        ],
    });
    let status = from_stored(&serde_json::from_value(stored).unwrap());
    assert_eq!((status.observed_generation, status.target), (3, None));
    let since: Timestamp = "2026-11-22T10:20:00Z".parse().unwrap();
    let source = |name: &str, state, offers: Option<&str>, since| {
        let (name, offers) = (name.to_owned(), offers.map(str::to_owned));
        SourceStatus { name, state, offers, since, message: String::new() }
    };
    let seoul = source("seoul", SourceState::Pending, None, Timestamp::UNIX_EPOCH);
    let busan = source("busan", SourceState::Healthy, Some("a.example"), since);
    assert_eq!(status.sources, [seoul, busan]);
    let (kind, reason, message) = (ConditionType::Ready, "First".to_owned(), String::new());
    let ready = Condition { kind, status: ConditionStatus::Unknown, reason, message, since };
    assert_eq!(status.conditions, [ready]);
    assert_eq!(from_stored(&StableNameStatus::default()), FailoverStatus::default());
}

#[test]
fn each_condition_that_says_something_else_is_a_problem() {
    let told = |conditions: &[(&str, &str, &str, &str)]| {
        let conditions = conditions.iter().map(|(name, status, reason, message)| {
            condition(name, status, reason, message, Timestamp::UNIX_EPOCH, 1)
        });
        problem(&StableNameStatus { conditions: conditions.collect(), ..StableNameStatus::default() })
    };
    let failed_over = ("Degraded", "True", "FailedOver", "leads to busan instead of seoul: NXDOMAIN");
    let unhealthy = ("Ready", "False", "TargetUnhealthy", "leads to busan; seoul: NXDOMAIN");
    let no_external_target = ("Ready", "False", "NoExternalTarget", "it doesn't exist yet");
    let not_accepted = ("Accepted", "False", "RefNotPermitted", "seoul: NXDOMAIN");
    let standby =
        ("Degraded", "True", "StandbyUnhealthy", "busan: no Service; fixed: denied; west: no Service");
    let refused =
        ("Accepted", "False", "RefNotPermitted", "source busan: no Service; source west: no Service");
    let late = ("Resolved", "Unknown", CHECK_LATE, "no check has passed");
    let held = ("Degraded", "True", MASS_FAILURE, "the failover is held: busan");
    for (conditions, expected) in [
        (vec![("Ready", "True", "TargetVerified", "")], None),
        (
            vec![no_external_target, failed_over, late],
            Some(
                "NoExternalTarget: it doesn't exist yet; FailedOver: leads to busan instead of seoul: NXDOMAIN; \
                 CheckLate: no check has passed",
            ),
        ),
        (vec![failed_over, not_accepted], Some("FailedOver: leads to busan instead of seoul: NXDOMAIN")),
        (
            vec![standby, refused],
            Some("StandbyUnhealthy: busan: no Service; fixed: denied; west: no Service"),
        ),
        (
            vec![("Degraded", "True", "FailedOver", "x-busan: no Service; west: no Service"), refused],
            Some(
                "FailedOver: x-busan: no Service; west: no Service; \
                 RefNotPermitted: source busan: no Service; source west: no Service",
            ),
        ),
        (
            vec![failed_over, refused],
            Some(
                "FailedOver: leads to busan instead of seoul: NXDOMAIN; \
                 RefNotPermitted: source busan: no Service; source west: no Service",
            ),
        ),
        (
            vec![unhealthy, ("Degraded", "True", "TargetUnhealthy", "busan")],
            Some("TargetUnhealthy: leads to busan; seoul: NXDOMAIN"),
        ),
        (vec![unhealthy, held], Some("MassFailure: the failover is held: busan")),
    ] {
        assert_eq!(told(&conditions).as_deref(), expected, "{conditions:?}");
    }
}
