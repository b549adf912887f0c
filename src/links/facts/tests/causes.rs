//! A table of everything that can be wrong with a link: each pair is told, with the state of the more serious one.

use super::*;
use crate::links::names::NameFilter;
use crate::model::owner::{Source, Zone};

const ASKED: &str = "www.lb.internal";
/// Also the name of the remote cluster.
const NAMESPACE: &str = "west";

/// What the store is told about the Service `west/web`.
#[derive(Default)]
struct Scene {
    /// One of the causes of which a link has one at most; `None` if it has a target.
    life: Option<Cause>,
    is_led: bool,
    is_provisional: bool,
    has_loopback_address: bool,
    is_in_circle: bool,
    asks_for_a_lost_name: bool,
    has_remote_cluster: bool,
    has_no_zone: bool,
    then: Vec<fn(&mut LinkFacts)>,
}

/// Returns the cause after this one: a new cause has to be in the table.
fn next(cause: Cause) -> Option<Cause> {
    Some(match cause {
        Cause::Gone => Cause::LeftOut,
        Cause::LeftOut => Cause::Refused,
        Cause::Refused => Cause::Pending,
        Cause::Pending => Cause::NoZone,
        Cause::NoZone => Cause::Circle,
        Cause::Circle => Cause::Unresolved,
        Cause::Unresolved => Cause::LostName,
        Cause::LostName => Cause::HiddenName,
        Cause::HiddenName => Cause::ForeignExternalTarget,
        Cause::ForeignExternalTarget => Cause::Kept,
        Cause::Kept => Cause::OtherRecords,
        Cause::OtherRecords => Cause::ExternalTarget,
        Cause::ExternalTarget => Cause::NoAddress,
        Cause::NoAddress => Cause::Unchecked,
        Cause::Unchecked => Cause::Provisional,
        Cause::Provisional => Cause::UnreadStableName,
        Cause::UnreadStableName => Cause::UnreadService,
        Cause::UnreadService => Cause::StableName,
        Cause::StableName => Cause::UnwrittenStatus,
        Cause::UnwrittenStatus => Cause::Object,
        Cause::Object => Cause::HeldRemoval,
        Cause::HeldRemoval => Cause::Removal,
        Cause::Removal => return None,
    })
}

fn web() -> ServiceKey {
    ServiceKey::new(NAMESPACE, "web")
}

fn set(texts: &ObjectTexts, text: &str) {
    texts.set(&web(), Some(text));
}

fn set_external_target(facts: &LinkFacts, state: ExternalTargetState) {
    facts.external_targets.set(&web(), Some(state), Some(&target("wanted.example.")), false);
}

/// Lets look-ups of the target fail.
fn fail(facts: &mut LinkFacts, qtype: RecordType) {
    let gauge = FailedTargetsGauge::new(IntGauge::new("failing", "Failing.").unwrap());
    let failing = gauge.new_set();
    let question = UpstreamQuery::recursive(Name::from_ascii("a.example.").unwrap(), qtype);
    failing.mark_failed(None, &question.key(), &question, "the upstream answers SERVFAIL");
    // Its failures would end with it.
    std::mem::forget(failing);
    facts.failed_targets = Some(gauge);
}

/// Adds a cause to a scene, and returns a part of its reason.
fn add(cause: Cause, scene: &mut Scene) -> &'static str {
    let is_life =
        matches!(cause, Cause::Gone | Cause::LeftOut | Cause::Refused | Cause::Pending | Cause::Kept);
    scene.life = if is_life { Some(cause) } else { scene.life };
    match cause {
        Cause::Gone => "the Service is gone",
        Cause::LeftOut => "a flag leaves the Service out",
        Cause::Refused => "isn't allowed",
        Cause::Pending if scene.is_led => "is withdrawn",
        Cause::Pending => "names no target yet",
        Cause::Kept => "the Service's status is blank",
        Cause::Circle => {
            scene.is_in_circle = true;
            "its target leads in a circle"
        }
        Cause::LostName => {
            scene.asks_for_a_lost_name = true;
            "www.lb.internal belongs to link west/rival"
        }
        Cause::HiddenName => {
            scene.has_remote_cluster = true;
            "web.west.lb.internal isn't a name of it"
        }
        Cause::NoZone => {
            scene.has_no_zone = true;
            "no zone serves a name of it"
        }
        Cause::NoAddress => {
            scene.has_loopback_address = true;
            "its external target has no address"
        }
        Cause::Provisional => {
            scene.is_provisional = true;
            "no target of its StableName has been read"
        }
        _ => {
            let (text, then) = fact(cause);
            scene.then.push(then);
            text
        }
    }
}

/// Returns a part of the reason of a cause that isn't in the store, and what brings it about.
fn fact(cause: Cause) -> (&'static str, fn(&mut LinkFacts)) {
    match cause {
        Cause::Unresolved => ("failed: A:", |facts| fail(facts, RecordType::A)),
        Cause::OtherRecords => ("failed: HTTPS:", |facts| fail(facts, RecordType::HTTPS)),
        Cause::ForeignExternalTarget => ("its external target is left alone: it isn't ours", |facts| {
            let why = "it isn't ours".to_owned();
            set_external_target(facts, ExternalTargetState::Conflict { why, at: None });
        }),
        Cause::ExternalTarget => ("its external target doesn't exist", |facts| {
            set_external_target(facts, ExternalTargetState::Missing);
        }),
        Cause::Unchecked => ("no replica leads", |facts| set_leaderless(facts, "no replica leads")),
        Cause::UnreadStableName => ("can't list StableNames", |facts| {
            facts.findings.readiness.stable_names.store(Some(forbidden_lists("StableNames", &[])));
        }),
        Cause::UnreadService => ("can't list Services", |facts| {
            facts.findings.readiness.load_balancers.store(Some(forbidden_lists("Services", &[])));
        }),
        Cause::StableName => ("FailedOver: leads to busan", |facts| {
            set(&facts.findings.stable_names, "FailedOver: leads to busan");
        }),
        Cause::UnwrittenStatus => ("the status can't be written", |facts| {
            set(&facts.findings.readiness.unwritten, "the status can't be written");
        }),
        Cause::Object => ("annotation linker.hsj.com/ttl is ignored", |facts| {
            set(&facts.findings.services, "annotation linker.hsj.com/ttl is ignored");
        }),
        Cause::HeldRemoval => ("there are too many removals", |facts| {
            set(&facts.findings.held_removals, "there are too many removals");
        }),
        Cause::Removal => ("its external target stays (Retained)", |facts| {
            set(&facts.findings.removals, "its external target stays (Retained)");
        }),
        _ => panic!("{cause:?} is a matter of the store"),
    }
}

/// Returns whether a link can't have both causes at once.
fn excludes(a: Cause, b: Cause) -> bool {
    use Cause::*;
    let is = |pair: &[Cause]| pair.contains(&a) && pair.contains(&b);
    let are = |one: &[Cause], other: &[Cause]| {
        one.contains(&a) && other.contains(&b) || one.contains(&b) && other.contains(&a)
    };
    let needs_host = [Circle, Unresolved, OtherRecords];
    let needs_target = [Circle, Unresolved, OtherRecords, NoZone, ExternalTarget, NoAddress, Provisional];
    is(&[Gone, LeftOut, Refused, Pending, Kept])
        || is(&needs_host)
        || is(&[ExternalTarget, ForeignExternalTarget])
        || are(&[Gone, Refused, Pending], &needs_target)
        || are(&[Gone], &[LostName, HiddenName])
        || are(&[NoAddress], &needs_host)
        || are(&[NoZone], &[Circle, LostName, HiddenName])
        // A StableName that leads a link takes the place of the Service.
        || are(&LED, &[Gone, LeftOut, Kept])
}

const LED: [Cause; 5] = [
    Cause::Unchecked,
    Cause::Provisional,
    Cause::UnreadStableName,
    Cause::StableName,
    Cause::UnwrittenStatus,
];

fn facts_of(scene: Scene) -> LinkFacts {
    let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
    let zones = match (scene.has_no_zone, scene.has_remote_cluster) {
        (true, _) => Vec::new(),
        (false, true) => zone.with_remotes(&[NAMESPACE.into()]),
        (false, false) => vec![zone],
    };
    let store = Store::new(OnGone::Kept).with_zones(zones);
    let asked: Vec<Arc<str>> = if scene.asks_for_a_lost_name { vec![ASKED.into()] } else { Vec::new() };
    let annotations = Annotations { hostnames: asked.clone().into(), ..Annotations::default() };
    let rival = observed(ServiceKey::new(NAMESPACE, "rival"), "rival", "c.example.");
    store.apply(ObservedService { annotations: annotations.clone(), ..rival });
    if scene.is_in_circle {
        store.apply(observed(ServiceKey::new(NAMESPACE, "back"), "back", "web-west.lb.internal."));
    }
    let host = if scene.is_in_circle { "back-west.lb.internal." } else { "a.example." };
    let loopback = Target::Addresses(["127.0.60.1".parse().unwrap()].into());
    let wanted = if scene.has_loopback_address { loopback } else { target(host) };
    let with = |wanted: Option<&Target>| {
        let mut service = observed(web(), "web", host);
        service.ingress = match wanted {
            Some(Target::Addresses(addresses)) => {
                Ingress { addresses: addresses.to_vec(), hostnames: Vec::new() }
            }
            Some(Target::Hostname(_)) => service.ingress,
            None => Ingress::default(),
        };
        ObservedService { annotations: annotations.clone(), ..service }
    };
    match scene.life.filter(|_| !scene.is_led) {
        Some(Cause::LeftOut) => {
            insert_left_out(&store, &web(), "web".into(), Some(wanted.clone()), asked);
        }
        Some(Cause::Refused) => drop(store.apply(ObservedService { refused: true, ..with(None) })),
        Some(Cause::Pending) => drop(store.apply(with(None))),
        Some(Cause::Kept) => [Some(&wanted), None].into_iter().for_each(|it| drop(store.apply(with(it)))),
        _ => drop(store.apply(with(Some(&wanted)))),
    }
    if scene.life == Some(Cause::Gone) {
        store.gone(&web(), "web", None, std::time::Instant::now());
    }
    if scene.is_led {
        let announced = match scene.life {
            None => Announcement::Target(wanted),
            Some(_) => Announcement::Withdrawn,
        };
        let (refused, is_provisional) = (scene.life == Some(Cause::Refused), scene.is_provisional);
        let by = LinkOverride { announced, refused, is_provisional, annotations, ..LinkOverride::default() };
        set_override(&store, &web(), LinkOverride { service_uid: "web".into(), ..by }, None);
    }
    let mut facts = LinkFacts::of(Arc::new(store));
    scene.then.into_iter().for_each(|then| then(&mut facts));
    facts
}

#[tokio::test]
async fn every_pair_of_reasons_is_told_with_the_worse_state() {
    let causes: Vec<Cause> = std::iter::successors(Some(Cause::Gone), |cause| next(*cause)).collect();
    assert!(causes.is_sorted() && causes.is_sorted_by_key(|cause| std::cmp::Reverse(cause.state())));
    let pairs = causes.iter().flat_map(|a| causes.iter().map(move |b| (*a, *b)));
    let mut told = 0;
    for (a, b) in pairs.filter(|(a, b)| !excludes(*a, *b) || a == b) {
        let mut scene = Scene { is_led: LED.contains(&a) || LED.contains(&b), ..Scene::default() };
        let texts = [a, b].map(|cause| add(cause, &mut scene));
        let facts = facts_of(scene);
        let filter = LinkFilter { service: Some("web".to_owned()), ..LinkFilter::default() };
        let link = facts.views(&filter).remove(0);
        let reason = link.reason.as_deref().unwrap_or_default();
        assert!(texts.iter().all(|text| reason.contains(text)), "{a:?} {b:?}: {reason}");
        assert_eq!(link.state, a.min(b).state(), "{a:?} {b:?}: {reason}");
        let json = serde_json::to_value(&link).unwrap();
        assert_eq!((&json["reason"], &json["state"]), (&reason.into(), &link.state.to_string().into()));
        for name in &link.dns_names {
            let page = facts.names(&NameFilter { name: Some(name.clone()), ..NameFilter::default() });
            let shown = (page.items[0].state, page.items[0].reason.as_deref());
            assert_eq!(shown, (link.state, Some(reason)), "{a:?} {b:?}: {name}");
        }
        told += 1;
    }
    assert!(told > causes.len() * causes.len() * 2 / 3, "{told} of {}²", causes.len());
}

#[tokio::test]
async fn reasons_of_names_of_other_sources_are_all_told() {
    let zone =
        Zone { sources: vec![Source::INGRESSES], ..(&Name::from_ascii("lb.internal.").unwrap()).into() };
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones([zone]));
    let owner =
        crate::model::owner::Owner { source: Source::INGRESSES, key: ServiceKey::new("a", "x.lb.internal") };
    let claims = crate::model::owner::Claims {
        created: 1,
        names: ["x.lb.internal".into()].into(),
        ..Default::default()
    };
    let link = Link {
        target: Some(target("a.example.")),
        state: crate::model::link::LinkState::Stale,
        refused: true,
        ..Link::new(ServiceKey::new("a", "x.ingress"), "u")
    };
    store.observe(&owner, &claims, &Arc::new(link), None);
    let mut facts = LinkFacts::of(store);
    fail(&mut facts, RecordType::A);
    let kind = crate::sync::events::RegardingKind::Ingress;
    let object = ServiceKey::new("a", "one");
    facts.findings.asking.texts(None, kind).set(&object, Some("the host \"z\" isn't served"));
    facts.findings.asking.set(Source::INGRESSES, move |_| vec![(kind, object.clone())]);
    let view = facts.names(&NameFilter::default()).items.remove(0);
    let expected = "failed: A: the upstream answers SERVFAIL; the target that it names isn't allowed; the host \"z\" \
                    isn't served";
    assert_eq!(view.state, ViewState::Unresolved);
    assert!(view.reason.as_deref().is_some_and(|reason| reason.ends_with(expected)), "{:?}", view.reason);
}
