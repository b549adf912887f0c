//! The health check for Argo CD in examples/gitops/, run with Debian's Lua on statuses that the function [`decide`]
//! returns.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use hickory_proto::rr::Name;
use jiff::Timestamp;
use lb_linker::model::hostname::Hostname;
use lb_linker::model::link::Target;
use lb_linker::model::uid::Uid;
use lb_linker::sync::stable_name::controller::status_format::{PublishedNames, to_stored};
use lb_linker::sync::stable_name::decision::checks::{CheckOutcome, CheckRecords, CheckResult};
use lb_linker::sync::stable_name::decision::decide::decide;
use lb_linker::sync::stable_name::decision::facts::Inputs;
use lb_linker::sync::stable_name::decision::spec::{
    CheckSettings, Failback, FailoverSpec, Offer, Refusal, RefusalReason,
};
use lb_linker::sync::stable_name::decision::status::FailoverStatus;
use lb_linker::sync::stable_name::decision::upstream_answers::UpstreamAnswers;
use serde_json::{Value, json};

use super::{STABLE_NAMES, repository};

/// Runs a script as Argo CD does, with Lua 5.1: `obj` is the object, and the script can use only `table` and functions
/// of the basic library.
const RUNNER: &str = r#"
local basic = {
  obj = obj, table = table, ipairs = ipairs, pairs = pairs, next = next, type = type,
  tostring = tostring, tonumber = tonumber, select = select,
}
local health = setfenv(assert(loadstring(script, "health")), basic)()
print(health.status)
print(health.message)
"#;

/// Returns the fenced blocks of the page in a language, without the fences.
pub(super) fn fenced(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(repository().join(STABLE_NAMES)).unwrap();
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Returns a file of examples/gitops/.
pub(super) fn gitops(name: &str) -> Value {
    let path = repository().join("examples/gitops").join(name);
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the health and the message that the script for Argo CD gives for a StableName.
pub(super) fn health(object: &Value) -> (String, String) {
    let file = gitops("argo-cd-health.yaml");
    let key = "resource.customizations.health.linker.hsj.com_StableName";
    let script = file["data"][key].as_str().expect("the file has the health check");
    let program = format!("obj = {}\nscript = {}\n{RUNNER}", lua(object), lua(&json!(script)));
    let output = Command::new("lua5.1").args(["-e", &program]).output();
    let output = output.unwrap_or_else(|error| panic!("lua5.1 ({error}): install Debian's lua5.1"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    let (status, message) = output.trim_end_matches('\n').split_once('\n').unwrap();
    (status.to_owned(), message.to_owned())
}

/// Returns a value as a Lua expression.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::String(text) => {
            let escape = |mut all: String, byte: u8| {
                write!(all, "\\{byte:03}").unwrap();
                all
            };
            format!("\"{}\"", text.bytes().fold(String::new(), escape))
        }
        Value::Array(items) => format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(name, value)| format!("[{}] = {}", lua(&json!(name)), lua(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A StableName with the sources seoul and busan, its checks, and its status.
struct StableNameFixture {
    spec: FailoverSpec,
    offers: Vec<Offer>,
    checks: CheckRecords,
    status: FailoverStatus,
    is_written: bool,
    is_failover_held: bool,
    now: Timestamp,
}

impl StableNameFixture {
    /// Returns a new StableName, of which only the source seoul offers a target.
    fn new() -> Self {
        let check = CheckSettings {
            period: Duration::from_secs(30),
            timeout: Duration::from_secs(2),
            failure_threshold: 3,
            success_threshold: 2,
            tcp_port: None,
        };
        let mut new = Self {
            spec: FailoverSpec {
                generation: 1,
                sources: vec!["seoul".to_owned(), "busan".to_owned()],
                check,
                max_wait: Duration::from_secs(300),
                failback: Failback::Automatic { after: Duration::from_secs(300) },
                pin: None,
            },
            offers: vec![Offer::default(), Offer::default()],
            checks: CheckRecords::default(),
            status: FailoverStatus::default(),
            is_written: true,
            is_failover_held: false,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
        };
        new.offer(0, "a.example");
        new
    }

    /// Returns a StableName whose two sources offer targets that have passed two checks; seoul is announced.
    fn settled() -> Self {
        let mut settled = Self::new();
        settled.offer(1, "b.example");
        for _ in 0..2 {
            settled.after(30);
            settled.check("a.example", None);
            settled.check("b.example", None);
        }
        settled
    }

    fn offer(&mut self, place: usize, host: &str) {
        let uid = Uid::from(self.spec.sources[place].as_str());
        self.offers[place] = Offer { uid, target: Some(target(host)), ..Offer::default() };
        self.decide();
    }

    fn decide(&mut self) {
        let decision = decide(&Inputs {
            spec: &self.spec,
            offers: &self.offers,
            checks: &self.checks,
            upstreams: &UpstreamAnswers::default(),
            former: &self.status,
            last: &self.status,
            present_target: None,
            is_written: self.is_written,
            write_failure: None,
            is_living: &|uid| self.offers.iter().any(|offer| offer.uid == *uid),
            denied: &|_| false,
            refusal: None,
            is_first_target_held: false,
            is_failover_held: self.is_failover_held,
            now: self.now,
        });
        self.checks.retain(&decision.checks, self.now);
        self.status = decision.status;
    }

    fn after(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.decide();
    }

    /// Records a check of a hostname: failed with this message, or passed.
    fn check(&mut self, host: &str, failure: Option<&str>) {
        let outcome =
            failure.map_or(CheckOutcome::Passed, |message| CheckOutcome::Failed(message.to_owned()));
        let result = CheckResult { at: self.now, outcomes: vec![outcome] };
        self.checks.record(&target(host), None, result, &UpstreamAnswers::default());
        self.decide();
    }

    /// Records three failed checks of a hostname.
    fn fail(&mut self, host: &str) {
        (0..3).for_each(|_| self.check(host, Some("NXDOMAIN")));
    }

    /// Returns the object as the API server stores it.
    fn object(&self) -> Value {
        let published = PublishedNames { service: "external-targets/web-shop-ext", dns_names: &[] };
        let mut spec = json!({"sources": [{"name": "seoul"}, {"name": "busan"}]});
        if let Some(pin) = &self.spec.pin {
            spec["pin"] = json!(pin);
        }
        let metadata = json!({"name": "web", "namespace": "shop", "generation": self.spec.generation});
        json!({"metadata": metadata, "spec": spec, "status": to_stored(&self.status, &published)})
    }

    fn health(&self) -> (String, String) {
        health(&self.object())
    }
}

fn target(host: &str) -> Target {
    Target::Hostname(Hostname::from(&Name::from_ascii(format!("{host}.")).unwrap()))
}

#[track_caller]
fn assert_health(health: (String, String), status: &str, message: &str) {
    assert_eq!((health.0.as_str(), health.1.as_str()), (status, message));
}

#[test]
fn health_check_waits_for_the_status_of_this_generation() {
    let mut decided = StableNameFixture::settled();
    let unseen = "lb-linker hasn't seen this version yet";
    let mut object = decided.object();
    object["status"] = Value::Null;
    assert_health(health(&object), "Progressing", unseen);
    decided.spec.generation = 2;
    assert_health(decided.health(), "Progressing", unseen);
    decided.decide();
    assert_health(decided.health(), "Healthy", "leads to seoul");
    // After the object was restored from a backup, the status can be that of a higher generation.
    let mut object = decided.object();
    object["metadata"]["generation"] = json!(1);
    assert_health(health(&object), "Progressing", unseen);
}

#[test]
fn health_check_waits_for_the_first_target() {
    let mut decided = StableNameFixture::new();
    decided.offers[0].target = None;
    decided.decide();
    assert_health(decided.health(), "Progressing", "waits for a target that passes its check");
    decided.offer(0, "a.example");
    let waits = "waits until 2027-01-15T08:05:01Z for a target that passes its check";
    assert_health(decided.health(), "Progressing", waits);
    decided.is_written = false;
    decided.check("a.example", None);
    let missing = "the external target doesn't exist yet or doesn't point at the target";
    assert_health(decided.health(), "Progressing", missing);
    decided.is_written = true;
    decided.decide();
    assert_health(decided.health(), "Healthy", "leads to seoul; busan: offers no target");
}

#[test]
fn unverified_target_is_degraded_after_failed_checks() {
    let mut decided = StableNameFixture::new();
    decided.check("a.example", Some("NXDOMAIN"));
    decided.after(301);
    assert_health(
        decided.health(),
        "Progressing",
        "leads to seoul; seoul: NXDOMAIN; busan: offers no target",
    );
    decided.fail("a.example");
    assert_health(decided.health(), "Degraded", "leads to seoul; seoul: NXDOMAIN; busan: offers no target");
}

#[test]
fn failed_over_target_is_healthy_with_a_message() {
    let mut decided = StableNameFixture::settled();
    decided.fail("a.example");
    assert_health(decided.health(), "Healthy", "leads to busan instead of seoul: NXDOMAIN");
    decided.fail("b.example");
    assert_health(decided.health(), "Degraded", "leads to busan; seoul: NXDOMAIN; busan: NXDOMAIN");
}

#[test]
fn failing_standby_is_healthy_with_a_message() {
    let mut decided = StableNameFixture::settled();
    decided.fail("b.example");
    assert_health(decided.health(), "Healthy", "busan: NXDOMAIN");
}

#[test]
fn cutover_that_waits_is_healthy_with_a_message() {
    let mut decided = StableNameFixture::settled();
    decided.offer(0, "c.example");
    decided.check("c.example", Some("NXDOMAIN"));
    let waits = "waits until 2027-01-15T08:06:01Z for c.example: NXDOMAIN";
    assert_health(decided.health(), "Healthy", waits);
    decided.check("c.example", None);
    assert_health(decided.health(), "Healthy", "leads to seoul");
}

#[test]
fn stable_name_with_a_refused_source_is_degraded() {
    let mut decided = StableNameFixture::settled();
    let message = "no LoadBalancer Service shop-dr/web lets namespace shop follow it";
    let refusal = Refusal { reason: RefusalReason::RefNotPermitted, message: message.to_owned() };
    decided.offers[1] = Offer { refusal: Some(refusal), ..Offer::default() };
    decided.decide();
    assert_health(decided.health(), "Degraded", &format!("source busan: {message}"));
}

#[test]
fn pinned_stable_name_is_healthy_with_a_message() {
    let mut decided = StableNameFixture::settled();
    decided.spec.pin = Some("busan".to_owned());
    decided.spec.generation = 2;
    decided.decide();
    assert_health(decided.health(), "Healthy", "pinned to busan: leads to busan");
    decided.fail("b.example");
    let message = "leads to busan; busan: NXDOMAIN; pinned to busan, although seoul is healthy";
    assert_health(decided.health(), "Degraded", &format!("pinned to busan: {message}"));
    let mut decided = StableNameFixture::new();
    decided.check("a.example", None);
    decided.spec.pin = Some("busan".to_owned());
    decided.decide();
    assert_health(decided.health(), "Healthy", "pinned to busan: source busan is pinned and has no target");
}

#[test]
fn withdrawn_target_is_degraded() {
    let mut decided = StableNameFixture::new();
    decided.check("a.example", None);
    assert_health(decided.health(), "Healthy", "leads to seoul; busan: offers no target");
    // The Service was recreated, and has no target yet.
    decided.offers[0] = Offer { uid: Uid::from("another"), ..Offer::default() };
    decided.decide();
    let message = "no target is announced; seoul: offers no target; busan: offers no target";
    assert_health(decided.health(), "Degraded", message);
}

#[test]
fn held_failover_is_degraded() {
    let mut decided = StableNameFixture::settled();
    decided.is_failover_held = true;
    decided.fail("a.example");
    assert_health(decided.health(), "Degraded", "leads to seoul; seoul: NXDOMAIN");
}

#[test]
fn unknown_or_missing_conditions_are_progressing() {
    let mut object = StableNameFixture::settled().object();
    for condition in object["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("Unknown");
        }
    }
    assert_health(health(&object), "Progressing", "leads to seoul");
    object["status"]["conditions"] = json!([]);
    assert_health(health(&object), "Progressing", "lb-linker hasn't decided yet");
    object["status"]["conditions"] = Value::Null;
    assert_health(health(&object), "Progressing", "lb-linker hasn't decided yet");
}
