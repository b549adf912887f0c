mod causes;

use std::collections::BTreeSet;

use hickory_proto::rr::{Name, RecordType};
use jiff::Timestamp;
use prometheus::IntGauge;

use super::*;
use crate::dns::message::query::UpstreamQuery;
use crate::metrics::staleness::LastActivity;
use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, ObservedService};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::owner::{K8sGateway, Source, Zone};
use crate::readiness::LeaderAbsence;
use crate::store::OnGone;
use crate::sync::external_target::states::WRITE_LAG;
use crate::sync::k8s::errors::{SETTLED_AFTER, in_place, watch_scopes};
use crate::sync::source::service_links::{insert_left_out, set_override};
use crate::sync::source_annotation::followers::FollowerState;

fn hostname(name: &str) -> Hostname {
    Hostname::from(&Name::from_ascii(name).unwrap())
}

fn target(name: &str) -> Target {
    Target::Hostname(hostname(name))
}

fn key() -> ServiceKey {
    ServiceKey::new("shop", "web")
}

/// The facts about links of the namespace shop, with these names and hostnames.
fn facts(links: &[(&str, &str)]) -> LinkFacts {
    let zone = Name::from_ascii("lb.internal.").unwrap();
    let store = Store::new(OnGone::Kept).with_zones([&zone]);
    for (name, host) in links {
        store.apply(observed(ServiceKey::new("shop", name), name, host));
    }
    LinkFacts::of(Arc::new(store))
}

fn observed(key: ServiceKey, uid: &str, host: &str) -> ObservedService {
    ObservedService {
        key,
        uid: uid.into(),
        created: None,
        resource_version: None,
        ingress: Ingress { hostnames: vec![hostname(host)], addresses: Vec::new() },
        ports: Arc::default(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn set_external_target(facts: &LinkFacts, state: ExternalTargetState) {
    facts.external_targets.set(&key(), Some(state), Some(&target("a.example.")), false);
}

fn set_leaderless(facts: &LinkFacts, note: &str) {
    let absence = LeaderAbsence { note: note.to_owned(), since: Timestamp::UNIX_EPOCH };
    facts.findings.readiness.election.store(Some(Arc::new(absence)));
}

/// Returns the state and the reason of the first link.
fn shown(facts: &LinkFacts) -> (ViewState, String) {
    let link = facts.views(&LinkFilter::default()).remove(0);
    (link.state, link.reason.map(Cow::into_owned).unwrap_or_default())
}

#[test]
fn link_without_problems_is_ready() {
    let facts = facts(&[("web", "a.example.")]);
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
    set_external_target(&facts, ExternalTargetState::At(target("a.example.")));
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
}

#[test]
fn missing_or_outdated_external_target_is_degraded() {
    let mut facts = facts(&[("web", "a.example.")]);
    set_external_target(&facts, ExternalTargetState::Missing);
    assert_eq!(shown(&facts), (ViewState::Degraded, "its external target doesn't exist".to_owned()));
    facts.needs_external_targets = false;
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()), "with --sync off");
    let external_target = |facts: &LinkFacts| facts.views(&LinkFilter::default()).remove(0).external_target;
    assert_eq!(external_target(&facts), None, "it doesn't exist");
    set_external_target(&facts, ExternalTargetState::At(target("old.example.")));
    let old = "its external target still points at old.example";
    assert_eq!(shown(&facts), (ViewState::Degraded, old.to_owned()));
    assert_eq!(external_target(&facts).as_deref(), Some("external-targets/web-shop-ext"));
}

#[test]
fn link_without_a_name_in_any_zone_is_unnamed() {
    let why = "no zone serves a name of it, so DNS doesn't answer with its target";
    let of_sources = "; no zone has load balancers among its sources or resources";
    let left_out = "; the zones of k8s_gateway leave it out by its label";
    let of_label = format!("{left_out} k8s-gateway.dns/ignore or by its hostnames");
    let of_labels =
        format!("{left_out}s (k8s-gateway.dns/ignore, serviceLabelSelectors) or by its hostnames");
    let zone = |service_selectors: &[&str]| Zone {
        k8s_gateway: Some(K8sGateway {
            service_selectors: service_selectors.iter().map(|&selector| selector.into()).collect(),
            ..K8sGateway::default()
        }),
        ..Zone::from(&Name::from_ascii("lb.internal.").unwrap())
    };
    for (zones, more) in [
        (vec![], of_sources),
        (vec![Zone { sources: vec![Source::INGRESSES], ..zone(&[]) }], of_sources),
        (vec![zone(&[])], &*of_label),
        (vec![zone(&["app=web"])], &*of_labels),
    ] {
        let store = Store::new(OnGone::Kept).with_zones(zones);
        let service = observed(key(), "1", "a.example.");
        store.apply(service.clone());
        let facts = LinkFacts::of(Arc::new(store));
        assert_eq!(shown(&facts), (ViewState::Unnamed, format!("{why}{more}")));
        facts.store.apply(ObservedService { ingress: Ingress::default(), ..service });
        let kept = format!("{why}{more}; the Service's status is blank");
        assert_eq!(shown(&facts), (ViewState::Unnamed, kept), "DNS doesn't answer with the last target");
    }
}

#[test]
fn link_that_lost_its_only_name_is_in_conflict() {
    let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
    let zone = Zone { k8s_gateway: Some(K8sGateway::default()), ..zone };
    let facts = LinkFacts::of(Arc::new(Store::new(OnGone::Kept).with_zones(vec![zone])));
    let hostnames: Arc<[Arc<str>]> = [Arc::from("shared.lb.internal")].into();
    let annotations = Annotations { hostnames, ..Annotations::default() };
    let rival = observed(ServiceKey::new("zoo", "rival"), "rival", "b.example.");
    let annotations_of_rival = annotations.clone();
    facts.store.apply(ObservedService { annotations: annotations_of_rival, created: Some(1), ..rival });
    facts.store.apply(ObservedService {
        annotations,
        created: Some(2),
        ..observed(key(), "1", "a.example.")
    });
    let lost = "shared.lb.internal belongs to link zoo/rival".to_owned();
    assert_eq!(shown(&facts), (ViewState::Conflict, lost));
}

#[test]
fn external_target_that_can_have_no_address_is_degraded() {
    let mut facts = facts(&[]);
    let at = |address: &str| {
        let addresses = vec![address.parse().unwrap()];
        let ingress = Ingress { hostnames: Vec::new(), addresses };
        ObservedService { ingress, ..observed(key(), "1", "a.example.") }
    };
    facts.store.apply(at("127.0.60.1"));
    let why = "its external target has no address, because the API server refuses 127.0.60.1 in EndpointSlices: only \
               DNS answers with it";
    assert_eq!(shown(&facts), (ViewState::Degraded, why.to_owned()));
    facts.has_slices = false;
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()), "without --ip-targets headless");
    facts.has_slices = true;
    facts.store.apply(at("192.0.2.1"));
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
}

#[tokio::test(start_paused = true)]
async fn link_stays_ready_while_its_change_is_written() {
    let facts = facts(&[("web", "a.example.")]);
    facts.external_targets.set_known();
    set_external_target(&facts, ExternalTargetState::Missing);
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
    let version = facts.version();
    tokio::time::advance(WRITE_LAG).await;
    assert_eq!(shown(&facts), (ViewState::Degraded, "its external target doesn't exist".to_owned()));
    assert_ne!(facts.version(), version, "watched lists are read again");
    set_leaderless(&facts, "no replica leads");
    let why = "its external target doesn't exist: no replica leads";
    assert_eq!(shown(&facts), (ViewState::Degraded, why.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn refused_writes_are_seen_at_once_and_have_a_reason() {
    let facts = facts(&[("web", "a.example.")]);
    let refuse = |why: Option<&str>| {
        facts.findings.readiness.writes.store(why.map(|why| Arc::new(why.to_owned())));
    };
    let degraded = |why: &str| (ViewState::Degraded, format!("its external target {why}"));
    refuse(Some("there is no namespace"));
    assert_eq!(shown(&facts), degraded("isn't known: there is no namespace"), "they can't be listed");
    set_external_target(&facts, ExternalTargetState::At(target("a.example.")));
    facts.external_targets.set_known();
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
    set_external_target(&facts, ExternalTargetState::Missing);
    assert_eq!(shown(&facts), degraded("doesn't exist: there is no namespace"));
    refuse(None);
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()), "it is being written");
    set_leaderless(&facts, "no replica leads: nothing is written");
    refuse(Some("there is no namespace"));
    assert_eq!(shown(&facts), degraded("doesn't exist: there is no namespace"), "it is more precise");
    refuse(None);
    facts.external_targets.set_failure(&key(), "a webhook denies it".to_owned());
    assert_eq!(shown(&facts), degraded("doesn't exist: a webhook denies it"));
}

#[test]
fn plan_is_a_notice_and_the_reason_of_missing_targets() {
    let facts = LinkFacts { only_plans: true, ..facts(&[("web", "a.example.")]) };
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
    set_external_target(&facts, ExternalTargetState::Missing);
    let why = "its external target doesn't exist: --sync plan writes nothing";
    assert_eq!(shown(&facts), (ViewState::Degraded, why.to_owned()));
    let notice = "--sync plan writes nothing: the log says what --sync on would write; plan is the default";
    assert!(facts.notice().unwrap().starts_with(notice), "{:?}", facts.notice());
}

#[test]
fn external_target_of_another_instance_is_a_conflict() {
    let facts = facts(&[("web", "a.example.")]);
    let why = "it belongs to instance other/lb-linker".to_owned();
    let state = ExternalTargetState::Conflict { why, at: Some(target("old.example.")) };
    set_external_target(&facts, state);
    let expected = "its external target is left alone: it belongs to instance other/lb-linker; it points at \
                    old.example";
    assert_eq!(shown(&facts), (ViewState::Conflict, expected.to_owned()));
}

#[test]
fn left_out_service_names_the_flag_once_it_is_known() {
    let facts = facts(&[]);
    insert_left_out(&facts.store, &key(), "1".into(), Some(target("a.example.")), Vec::new());
    assert!(shown(&facts).1.contains("or whether it exists isn't known yet"));
    let note = "--selection leaves it out; it counts as deleted after --delete-delay";
    facts.findings.left_out.set(&key(), Some(note));
    assert_eq!(shown(&facts), (ViewState::LeftOut, note.to_owned()));
}

#[test]
fn denied_or_ignored_parts_of_a_service_are_named() {
    let facts = facts(&[("web", "a.example.")]);
    let ignored = "annotation linker.hsj.com/ttl \"5m\" is ignored: not a number of seconds from 0 to 3600";
    facts.findings.services.set(&key(), Some(ignored));
    assert_eq!(shown(&facts), (ViewState::Degraded, ignored.to_owned()));
    set_external_target(&facts, ExternalTargetState::Missing);
    let both = format!("its external target doesn't exist; {ignored}");
    assert_eq!(shown(&facts), (ViewState::Degraded, both));
    let long = format!("{} the end", "x".repeat(2_000));
    facts.findings.services.set(&key(), Some(&long));
    assert!(shown(&facts).1.ends_with(" the end"));
    facts.findings.services.set(&key(), Some(&"x".repeat(100_000)));
    assert!(shown(&facts).1.len() < 4_100, "a hostile text is cut");
}

#[test]
fn overridden_link_has_the_condition_of_its_stable_name() {
    let facts = facts(&[("web", "a.example.")]);
    let link_override =
        LinkOverride { announced: Announcement::Target(target("b.example.")), ..LinkOverride::default() };
    set_override(&facts.store, &key(), link_override, None);
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()));
    facts.findings.stable_names.set(&key(), Some("FailedOver: leads to busan instead of seoul"));
    let expected = "FailedOver: leads to busan instead of seoul";
    assert_eq!(shown(&facts), (ViewState::Degraded, expected.to_owned()));
    facts.findings.services.set(&key(), Some("about the Service"));
    assert_eq!(shown(&facts), (ViewState::Degraded, format!("{expected}; about the Service")));
}

#[tokio::test(start_paused = true)]
async fn stable_name_that_is_not_checked_is_degraded() {
    let facts = facts(&[("api", "a.example."), ("web", "a.example.")]);
    let announced = Announcement::Target(target("b.example."));
    set_override(&facts.store, &key(), LinkOverride { announced, ..LinkOverride::default() }, None);
    let states = || -> Vec<_> {
        facts.views(&LinkFilter::default()).into_iter().map(|it| (it.state, it.reason)).collect()
    };
    let degraded =
        |why: &str| vec![(ViewState::Ready, None), (ViewState::Degraded, Some(Cow::from(why.to_owned())))];
    set_leaderless(&facts, "no replica leads");
    let why = "not checked: since 1970-01-01T00:00:00Z no replica leads, as far as this one knows";
    assert_eq!(states(), degraded(why), "a Service needs no checks");
    facts.findings.readiness.election.store(None);
    let activity = watched(&facts);
    facts.availability.report("Connection refused");
    assert_eq!(states(), vec![(ViewState::Ready, None); 2], "an API server may restart");
    activity.age_by(Duration::from_secs(NOTICE_STEP));
    assert_eq!(facts.notice(), None, "one request without an answer");
    tokio::time::advance(Duration::from_secs(NOTICE_STEP)).await;
    assert_eq!(states(), degraded("a move may not be seen: the API server can't be reached"));
    facts.availability.report_available();
    tokio::time::advance(SETTLED_AFTER).await;
    assert_eq!(states(), vec![(ViewState::Ready, None); 2]);
}

#[test]
fn follower_without_a_target_names_the_fault_of_its_stable_name() {
    let facts = facts(&[]);
    let state = FollowerState::Kept("it has no target".to_owned());
    let (source, name) = (Some(key()), String::new());
    let follower = Follower { source, name, is_written: true, state, ignored: None };
    facts.followers.set_unread(Some(Vec::new()));
    facts.followers.set(&ServiceKey::new("app", "db"), Some(follower));
    facts.findings.stable_names.set(&key(), Some("NotAllowed: a policy denies it"));
    let shown = facts.followers(&LinkFilter::default()).unwrap().remove(0);
    let why = "it has no target; its StableName: NotAllowed: a policy denies it";
    assert_eq!(shown.reason.as_deref(), Some(why));
}

/// Returns the refused lists of `what` in these namespaces; none: in all.
fn forbidden_lists(what: &str, namespaces: &[&str]) -> Arc<ForbiddenLists> {
    let namespaces: BTreeSet<String> = namespaces.iter().map(|namespace| (*namespace).to_owned()).collect();
    let lists: Vec<_> = watch_scopes(&namespaces)
        .map(|namespace| (namespace, format!("can't list {}", in_place(what, namespace))))
        .collect();
    let lists = lists.iter().map(|(namespace, reason)| (*namespace, &**reason, "names stay"));
    Arc::new(ForbiddenLists::of(lists).unwrap())
}

#[test]
fn link_of_an_unreadable_stable_name_is_degraded() {
    let facts = facts(&[("web", "a.example.")]);
    let forbid = |namespaces: &[&str]| {
        facts.findings.readiness.stable_names.store(Some(forbidden_lists("StableNames", namespaces)));
    };
    forbid(&[]);
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()), "no StableName leads it");
    let link_override =
        LinkOverride { announced: Announcement::Target(target("b.example.")), ..LinkOverride::default() };
    set_override(&facts.store, &key(), link_override, None);
    let degraded = |place| (ViewState::Degraded, format!("can't list StableNames in {place}; names stay"));
    assert_eq!(shown(&facts), degraded("all namespaces"));
    forbid(&["blog", "shop"]);
    assert_eq!(shown(&facts), degraded("namespace shop"));
    forbid(&["blog"]);
    assert_eq!(shown(&facts), (ViewState::Ready, String::new()), "it can be read");
    assert_eq!(facts.notice().as_deref(), Some("can't list StableNames in namespace blog; names stay"));
    assert_eq!(facts.notice_of_reading(), None, "the log has it");
}

#[test]
fn link_of_an_unreadable_service_is_degraded() {
    let facts = facts(&[("mixed", "a.example."), ("web", "a.example.")]);
    facts.store.apply(observed(ServiceKey::new("lbs", "db"), "db", "a.example."));
    facts.unselected.insert(observed(ServiceKey::new("lbs", "unselected"), "unselected", "a.example."));
    for (name, uid) in [("fixed", ""), ("mixed", ""), ("db", "db"), ("other", "unselected"), ("own", "web")] {
        let announced = Announcement::Target(target("b.example."));
        let by = LinkOverride { announced, service_uid: uid.into(), ..LinkOverride::default() };
        set_override(&facts.store, &ServiceKey::new("shop", name), by, None);
    }
    let degraded = |namespaces: &[&str]| {
        facts.findings.readiness.load_balancers.store(Some(forbidden_lists("Services", namespaces)));
        let place = namespaces.last().map(|namespace| format!("namespace {namespace}"));
        let note =
            format!("can't list Services in {}; names stay", place.as_deref().unwrap_or("all namespaces"));
        let mut views = facts.views(&LinkFilter::default());
        views.retain(|link| link.state != ViewState::Ready);
        let expected = (ViewState::Degraded, Some(&*note));
        assert!(views.iter().all(|link| (link.state, link.reason.as_deref()) == expected), "{views:?}");
        views.iter().map(|link| format!("{}/{}", link.namespace, link.service)).collect::<Vec<_>>()
    };
    let all = ["lbs/db", "shop/db", "shop/other", "shop/own", "shop/web"];
    assert_eq!(degraded(&[]), all, "no Service leads shop/fixed and shop/mixed");
    assert_eq!(degraded(&["blog", "shop"]), ["shop/own", "shop/web"]);
    assert_eq!(degraded(&["lbs"]), ["lbs/db", "shop/db", "shop/other"]);
    assert!(degraded(&["blog"]).is_empty(), "they can be read");
}

/// Lets facts tell the age of the watch that is returned.
fn watched(facts: &LinkFacts) -> Arc<LastActivity> {
    let staleness: Arc<Staleness> = crate::sync::test_support::metrics();
    tell_age(&facts.findings.readiness, facts.availability.clone(), Arc::clone(&staleness));
    staleness.watch(OF_TARGETS[0])
}

#[tokio::test(start_paused = true)]
async fn forbidden_watch_is_not_silent() {
    let facts = facts(&[]);
    let activity = watched(&facts);
    activity.age_by(MAX_SILENCE + Duration::from_secs(2));
    assert!(facts.notice().unwrap().contains("no event and no bookmark since"));
    facts.availability.report("Connection refused");
    tokio::time::advance(Duration::from_secs(NOTICE_STEP)).await;
    assert!(facts.notice().unwrap().starts_with("what lb-linker knows is up to 3m"), "{:?}", facts.notice());
    activity.note_connection();
    assert_eq!(facts.notice(), None, "the outage has just begun");
    facts.availability.report_available();
    tokio::time::advance(SETTLED_AFTER).await;
    activity.age_by(MAX_SILENCE);
    facts.findings.readiness.load_balancers.store(Some(forbidden_lists("Services", &[])));
    assert_eq!(facts.notice().as_deref(), Some("can't list Services in all namespaces; names stay"));
    facts.availability.report("Connection refused");
    tokio::time::advance(Duration::from_secs(NOTICE_STEP)).await;
    assert!(facts.notice().unwrap().ends_with("the API server can't be reached"));
    drop(activity);
    let notice = facts.notice().unwrap();
    assert!(
        notice.ends_with("the API server can't be reached"),
        "as in the lameduck of a shutdown: {notice}"
    );
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_not_accepted_are_told() {
    let facts = facts(&[("web", "a.example.")]);
    facts.external_targets.set_known();
    let activity = watched(&facts);
    let answer = |code| kube::core::Status::failure("no", "No").with_code(code);
    let told = |age| format!("what lb-linker knows is up to {age} old: {UNACCEPTED}");
    facts.availability.report_status(&answer(401));
    assert_eq!(facts.notice(), None, "another request may be accepted");
    tokio::time::advance(Duration::from_secs(NOTICE_STEP)).await;
    // The connection of a watch may have been accepted before.
    facts.availability.report_alive();
    facts.availability.report_status(&answer(401));
    assert_eq!(facts.notice(), Some(told("10s")));
    activity.age_by(Duration::from_secs(65));
    assert_eq!(facts.findings.readiness.of_view(), [told("70s")]);
    let at = Some(ExternalTargetState::At(target("b.example.")));
    facts.external_targets.set(&key(), at, Some(&target("a.example.")), false);
    tokio::time::advance(WRITE_LAG).await;
    let why = format!("its external target points at b.example, and DNS may be the older one: {UNACCEPTED}");
    assert_eq!(shown(&facts), (ViewState::Degraded, why));
    // An API server that refuses a permission accepts the credentials.
    facts.availability.report_status(&answer(403));
    assert_eq!(facts.notice(), None);
    assert_eq!(shown(&facts).1, "its external target still points at b.example");
}

#[tokio::test]
async fn link_whose_target_cannot_be_resolved_is_unresolved() {
    let facts = facts(&[("api", "web.shop.lb.internal."), ("web", "a.example.")]);
    let gauge = FailedTargetsGauge::new(IntGauge::new("failing", "Failing.").unwrap());
    let failing = gauge.new_set();
    let facts = LinkFacts { failed_targets: Some(gauge), ..facts };
    let fail = |qtype| {
        let question = UpstreamQuery::recursive(Name::from_ascii("a.example.").unwrap(), qtype);
        failing.mark_failed(None, &question.key(), &question, "the upstream answers SERVFAIL");
    };
    let version = facts.version();
    fail(RecordType::HTTPS);
    assert_ne!(facts.version(), version, "watched lists are read again");
    let why = |types| {
        let of_target = facts.failed_targets.as_ref().unwrap().unresolved();
        let at = of_target.of(&Name::from_ascii("a.example.").unwrap()).unwrap().at;
        format!("the last look-up of its target, at {at:.0}, failed: {types}: the upstream answers SERVFAIL")
    };
    assert_eq!(shown(&facts), (ViewState::Degraded, why("HTTPS")), "addresses can be resolved");
    fail(RecordType::A);
    let shown: Vec<_> = facts.views(&LinkFilter::default()).into_iter().map(|link| link.state).collect();
    assert_eq!(shown, [ViewState::Unresolved; 2], "the first link's target is the other link");
    set_external_target(&facts, ExternalTargetState::Missing);
    let web = facts.views(&LinkFilter::default()).remove(1);
    let both = format!("{}; its external target doesn't exist", why("A, HTTPS"));
    assert_eq!((web.state, web.reason.as_deref()), (ViewState::Unresolved, Some(&*both)));
}

#[test]
fn chain_with_more_look_ups_than_dns_does_is_unresolved() {
    let names: Vec<[String; 2]> =
        (0..9).map(|i| [format!("l{i}"), format!("l{}.shop.lb.internal.", i + 1)]).collect();
    for (links, expected) in [(7, ViewState::Ready), (8, ViewState::Unresolved), (9, ViewState::Unresolved)] {
        let mut chain: Vec<(&str, &str)> =
            names.iter().take(links).map(|[name, host]| (&**name, &**host)).collect();
        chain.last_mut().unwrap().1 = "a.example.";
        let (state, reason) = shown(&facts(&chain));
        assert_eq!(state, expected, "{links}: {reason}");
        assert_eq!(reason.contains("more than 8 look-ups"), expected != ViewState::Ready, "{reason}");
    }
}

#[test]
fn targets_that_lead_in_a_circle_are_unresolved() {
    for (links, path) in [
        (&[("a", "b.shop.lb.internal."), ("b", "a.shop.lb.internal.")][..], "shop/a → shop/b → shop/a"),
        (&[("a", "a-shop.lb.internal.")], "shop/a → shop/a"),
        (
            &[("a", "b.shop.lb.internal."), ("b", "c.shop.lb.internal."), ("c", "b.shop.lb.internal.")],
            "shop/b → shop/c → shop/b",
        ),
    ] {
        let (state, reason) = shown(&facts(links));
        assert_eq!(state, ViewState::Unresolved, "{links:?}");
        assert!(reason.contains("circle") && reason.ends_with(path), "{links:?}: {reason}");
    }
    let chain = facts(&[("a", "b.shop.lb.internal."), ("b", "b.example.")]);
    assert_eq!(shown(&chain), (ViewState::Ready, String::new()));
}

#[tokio::test]
async fn old_view_has_a_notice_with_its_age() {
    let availability = ApiAvailability::default();
    availability.report("Connection refused");
    let outage = availability.outage();
    let after =
        |seconds, is_unreachable| notice(Duration::from_secs(seconds), outage.filter(|_| is_unreachable));
    assert_eq!((after(9, true), after(179, false)), (None, None));
    let outage = "what lb-linker knows is up to 40s old: the API server can't be reached";
    assert_eq!((after(35, true).as_deref(), after(39, true).as_deref()), (Some(outage), Some(outage)));
    let silence =
        "what lb-linker knows may be 5m10s old: its watch has brought no event and no bookmark since";
    assert_eq!(after(312, false).as_deref(), Some(silence));
    assert_eq!(facts(&[]).notice(), None, "manifests have no watch");
}

#[test]
fn notice_of_manifests_hides_no_missing_leader() {
    let facts = facts(&[("web", "a.example.")]);
    let readiness = &facts.findings.readiness;
    readiness.manifests.store(Some(Arc::new("links.yaml can't be used".to_owned())));
    set_leaderless(&facts, "no replica leads");
    assert_eq!(facts.notice().as_deref(), Some("links.yaml can't be used; no replica leads"));
}

#[test]
fn held_removals_are_a_notice_with_their_number() {
    let facts = facts(&[("web", "a.example.")]);
    let version = facts.version();
    facts.findings.held_removals.set(&key(), Some("there are too many"));
    assert_ne!(facts.version(), version);
    assert!(shown(&facts).1.ends_with("there are too many"));
    let held = facts.notice().unwrap();
    assert!(held.contains("held back, because they are many: 1; "), "{held}");
    facts.findings.readiness.writes.store(Some(Arc::new("nothing can be written".to_owned())));
    assert_eq!(facts.notice(), Some(format!("nothing can be written; {held}")));
}

#[test]
fn what_keeps_external_targets_from_being_written_is_a_notice() {
    let (facts, why) = (facts(&[]), "external targets can't be written to namespace t now: …");
    facts.findings.readiness.writes.store(Some(Arc::new(why.to_owned())));
    assert_eq!(facts.notice().as_deref(), Some(why));
}

#[test]
fn unwritten_statuses_are_a_notice_also_for_ready() {
    let facts = facts(&[("web", "a.example.")]);
    facts.findings.readiness.unwritten.set(&key(), Some("the API server forbids it"));
    let expected = "StableNames that don't move, because their status can't be written: 1";
    assert_eq!(facts.notice().as_deref(), Some(expected));
    assert_eq!(facts.findings.readiness.of_statuses().as_deref(), Some(expected));
}

#[test]
fn gone_link_tells_what_has_ended_it_and_when_its_target_goes() {
    let facts = facts(&[("web", "a.example.")]);
    facts.store.gone(&key(), "web", None, std::time::Instant::now());
    let shown = || facts.views(&LinkFilter::default()).remove(0).reason.unwrap().into_owned();
    assert_eq!(shown(), "the Service is gone, isn't a load balancer any more, or isn't selected any more");
    facts.unselected.insert(observed(key(), "web", "a.example."));
    facts.findings.removals.set(&key(), Some("its external target stays (Retained)"));
    let why = "the Service exists, and isn't selected any more; its external target stays (Retained)";
    assert_eq!(shown(), why);
}
