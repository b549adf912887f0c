use super::*;
use crate::model::link_override::{Announcement, LinkOverride};
use crate::sync::source::service_links::{
    apply_persisted_target, end_override, insert_gone, insert_left_out, insert_terminating, missing_from,
    service_link, set_has_finalizer, set_override,
};

fn hosts(name: &str) -> Option<Target> {
    Some(Target::Hostname(host(name)))
}

fn override_to(name: &str) -> LinkOverride {
    let announced = hosts(name).map_or(Announcement::NotYet, Announcement::Target);
    LinkOverride { uid: "sn".into(), created: Some(50), announced, ..LinkOverride::default() }
}

/// Returns an override with the custom hostname of [`young`].
fn asking_override(name: &str) -> LinkOverride {
    let annotations = Annotations { hostnames: texts(&["shop.lb.internal"]), ..Annotations::default() };
    LinkOverride { annotations, ..override_to(name) }
}

fn texts(all: &[&str]) -> Arc<[Arc<str>]> {
    all.iter().map(|text| Arc::from(*text)).collect()
}

/// Returns a Service whose external target has a hashed name once z/x-y exists.
fn young() -> ObservedService {
    let young = asking(seen("y-z", "x", "2", &["b.example."]), &["shop.lb.internal"]);
    ObservedService { created: Some(20), ..young }
}

#[test]
fn override_and_its_end_keep_all_names() {
    let store = store_with_zone();
    store.apply(ObservedService { created: Some(10), ..seen("z", "x-y", "1", &["a.example."]) });
    store.apply(young());
    let key = ServiceKey::new("y-z", "x");
    let before = store.get(&key).unwrap();
    assert!(before.lacks_its_external_target());
    let names = || ["shop", "x.y-z", "x-y-z"].map(|name| leads(&store, name));
    let expected = ["x", "x", "x-y"].map(str::to_owned);
    assert_eq!(names(), expected);

    let (_, set) = store.find_to_keep(b"\x06absent", b"", true);
    let set = set.unwrap();
    let change = set_override(&store, &key, asking_override("c.example."), None).unwrap();
    assert_eq!(change.to_string(), "link y-z/x: b.example → c.example");
    let overridden = store.get(&key).unwrap();
    assert_eq!(
        (overridden.external_target(), &overridden.hostnames),
        (before.external_target(), &before.hostnames)
    );
    assert_eq!((overridden.created, &overridden.uid, names()), (20, &"2".into(), expected.clone()));
    assert!(before.is_outdated() && !overridden.is_outdated());
    assert!(set_override(&store, &key, asking_override("c.example."), None).is_none());

    let mut feed = store.subscribe();
    let change = end_override(&store, &key, None, Instant::now()).unwrap();
    assert_eq!(change.to_string(), "link y-z/x: c.example → b.example");
    assert_eq!(feed.try_recv().unwrap()[0].to_string(), change.to_string());
    assert!(feed.try_recv().is_err(), "the Service gets the link back in one change");
    assert_eq!((store.get(&key).unwrap(), names()), (before, expected));
    assert!(set.is_current(), "no name has appeared or vanished");
    assert!(end_override(&store, &key, None, Instant::now()).is_none());
}

#[test]
fn service_of_an_overridden_link_never_changes_the_target() {
    for on_gone in [OnGone::Kept, OnGone::Dropped] {
        let (store, web) = (Store::new(on_gone), key("web"));
        store.set_known(Input::Services);
        set_override(&store, &web, override_to("c.example."), None);
        let check = |uid: &str, is_gone: Option<bool>| {
            let link = store.get(&web).unwrap();
            assert_eq!(target(&store, &["web-default"]).as_deref(), Some("c.example"));
            assert_eq!((link.state, &link.uid), (LinkState::Live, &uid.into()));
            assert_eq!(service_link(&store, &web).map(|service| service.is_gone()), is_gone);
            let living: HashSet<_> =
                is_gone.filter(|is_gone| !is_gone).map(|_| web.clone()).into_iter().collect();
            assert_eq!(missing_from(&store, [].into_iter(), None), (living.len(), living));
        };
        check("", None);
        let change = store.apply(seen("default", "web", "1", &["a.example."])).unwrap();
        assert_eq!(change.target_change(), None, "the uid has changed");
        check("1", Some(false));
        assert!(store.apply(seen("default", "web", "1", &["a.example."])).is_none());
        let change = store.apply(with_port(81, seen("default", "web", "1", &["a.example."]))).unwrap();
        assert_eq!(change.target_change(), None, "only the Service has changed");
        store.apply(seen("default", "web", "1", &[]));
        assert_eq!(service_link(&store, &web).unwrap().state, LinkState::Stale);
        store.apply(seen("default", "web", "2", &[]));
        assert!(matches!(service_link(&store, &web).unwrap().state, LinkState::Recreated(_)));
        check("2", Some(false));
        assert!(store.gone(&web, "1", None, Instant::now()).is_none());
        let is_kept = on_gone == OnGone::Kept;
        assert!(store.gone(&web, "2", None, Instant::now()).is_some());
        let (uid, gone) = if is_kept { ("2", Some(true)) } else { ("", None) };
        check(uid, gone);
        store.apply(seen("default", "web", "3", &["d.example."]));
        check("3", Some(false));
        assert!(store.forget(&web).is_none());
        assert_eq!(store.replace(None, vec![], vec![], &HashSet::new()).len(), 1);
        check(if gone.is_some() { "3" } else { "" }, gone);
        assert_eq!(store.forget(&web).is_some(), gone.is_some());
        check("", None);
        assert!(insert_gone(&store, &web, vec![]).is_none());
        check("", None);
    }
}

#[test]
fn finalizer_is_that_of_the_service_of_the_same_name() {
    let (store, web) = (Store::new(OnGone::Kept), key("web"));
    set_override(&store, &web, LinkOverride { service_uid: "dr".into(), ..override_to("c.example.") }, None);
    let finalizer = || {
        let link = store.get(&web).unwrap();
        (link.has_finalizer, link.uid.to_string())
    };
    assert!(insert_terminating(&store, &web, "1", true).is_some());
    assert_eq!(finalizer(), (true, "1".to_owned()));
    assert!(set_has_finalizer(&store, &web, "dr", false).is_none());
    assert!(set_has_finalizer(&store, &web, "1", false).is_some());
    assert_eq!(finalizer(), (false, "1".to_owned()));
    store.apply(ObservedService { has_finalizer: true, ..seen("default", "web", "2", &[]) });
    assert_eq!(finalizer(), (true, "2".to_owned()));
}

#[test]
fn withdrawn_target_counts_as_gone_since_its_withdrawal() {
    let (store, web) = (Store::new(OnGone::Kept), key("web"));
    store.apply(seen("default", "web", "1", &["a.example."]));
    set_override(&store, &web, override_to("c.example."), None);
    let withdrawn =
        LinkOverride { announced: Announcement::Withdrawn, refused: true, ..override_to("c.example.") };
    let before = Instant::now();
    let change = set_override(&store, &web, withdrawn.clone(), None).unwrap();
    assert_eq!(change.to_string(), "link default/web: c.example → withdrawn");
    let since = outlived_since(&store).unwrap();
    assert!(since >= before);
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("pending"));
    assert!(store.get(&web).unwrap().refused);
    // Neither the Service nor another version of the StableName starts the delay again.
    store.apply(seen("default", "web", "2", &["b.example."]));
    set_override(&store, &web, LinkOverride { created: Some(7), ..withdrawn }, None);
    assert!(store.forget(&web).is_none(), "the link stays");
    assert_eq!(outlived_since(&store), Some(since));
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("pending"));
    set_override(&store, &web, override_to("d.example."), None);
    assert_eq!(outlived_since(&store), None);
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("d.example"));

    // The external target of a Service that is gone already is not kept longer.
    end_override(&store, &web, None, Instant::now());
    store.gone(&web, "2", None, Instant::now());
    let gone = outlived_since(&store);
    set_override(
        &store,
        &web,
        LinkOverride { announced: Announcement::Withdrawn, ..override_to("c.example.") },
        None,
    );
    assert_eq!(outlived_since(&store), gone);
}

#[test]
fn override_without_living_service_ends_like_a_deleted_service() {
    for (is_withdrawn, has_service) in [(false, false), (false, true), (true, false), (true, true)] {
        let (store, web) = (Store::new(OnGone::Kept), key("web"));
        if has_service {
            store.apply(ObservedService { has_finalizer: true, ..seen("default", "web", "1", &[]) });
            store.gone(&web, "1", None, Instant::now());
        }
        let link_override = asking_override("c.example.");
        set_override(&store, &web, link_override.clone(), None);
        if is_withdrawn {
            set_override(
                &store,
                &web,
                LinkOverride { announced: Announcement::Withdrawn, ..link_override },
                None,
            );
        }
        let (withdrawn, before) = (outlived_since(&store), Instant::now());
        assert_eq!(withdrawn.is_some(), is_withdrawn);
        end_override(&store, &web, None, Instant::now()).unwrap();
        let link = store.get(&web).unwrap();
        assert!(link.is_gone() && link.active_override().is_none() && !link.was_never_observed());
        let since = link.service_gone_since().unwrap();
        assert!(withdrawn.map_or(since >= before, |withdrawn| since == withdrawn));
        assert_eq!(
            (link.has_finalizer, &*link.uid.to_string()),
            (has_service, &"1"[usize::from(!has_service)..])
        );
        assert_eq!(leads(&store, "shop"), "web", "it keeps its names until its external target is gone");
        store.forget(&web).unwrap();
        assert_eq!(leads(&store, "shop"), "");
    }
    let (store, web) = (Store::new(OnGone::Dropped), key("web"));
    set_override(&store, &web, override_to("c.example."), None);
    assert_eq!(
        end_override(&store, &web, None, Instant::now()).unwrap().to_string(),
        "link default/web: forgotten"
    );
    assert_eq!(target(&store, &["web-default"]), None);
}

#[test]
fn pending_service_gets_the_link_back_without_the_target() {
    let (store, web) = (Store::new(OnGone::Kept), key("web"));
    store.apply(seen("default", "web", "1", &[]));
    set_override(&store, &web, override_to("c.example."), None);
    let before = Instant::now();
    end_override(&store, &web, None, Instant::now());
    assert!(outlived_since(&store).unwrap() >= before, "the external target isn't that of the Service");
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("pending"));
    store.apply(seen("default", "web", "1", &["a.example."]));
    assert_eq!(outlived_since(&store), None);
}

#[test]
fn settings_of_an_overridden_link_are_those_of_the_override() {
    let (store, web) = (store_with_zone(), key("web"));
    let annotations = |name| Annotations {
        ttl: Some(9),
        hostnames: texts(&[name]),
        allow_from: texts(&["team"]),
        ..Annotations::default()
    };
    let service =
        ObservedService { annotations: annotations("own.lb.internal"), ..seen("default", "web", "1", &[]) };
    store.apply(service);
    assert_eq!(leads(&store, "own"), "web");
    set_override(
        &store,
        &web,
        LinkOverride { annotations: annotations("sn.lb.internal"), ..override_to("c.example.") },
        None,
    );
    assert_eq!(["own", "sn"].map(|name| leads(&store, name)), ["", "web"].map(str::to_owned));
    store.gone(&web, "1", None, Instant::now());
    assert_eq!(store.get(&web).unwrap().annotations, annotations("sn.lb.internal"));
    assert_eq!(leads(&store, "sn"), "web");
}

#[test]
fn service_keeps_the_link_until_the_first_announcement() {
    let (store, web) = (Store::new(OnGone::Kept), key("web"));
    let never = LinkOverride { announced: Announcement::NotYet, ..override_to("c.example.") };
    set_override(&store, &web, never.clone(), None);
    let link = store.get(&web).unwrap();
    assert_eq!((&link.target, link.state, link.active_override()), (&None, LinkState::Live, None));
    assert!(link.service_gone_since().is_none(), "nothing was withdrawn");
    store.apply(seen("default", "web", "1", &["a.example."]));
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("a.example"));
    set_override(&store, &web, override_to("c.example."), None);
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("c.example"));
}

#[test]
fn rank_is_that_of_the_older_of_service_and_stable_name() {
    let web = key("web");
    let service = |created| ObservedService { created, ..seen("default", "web", "1", &[]) };
    let link_override = |created| LinkOverride { created, ..override_to("c.example.") };
    for (service_created, override_created, expected) in
        [(Some(20), Some(50), 20), (Some(70), Some(50), 50), (Some(20), None, 20), (None, Some(50), i64::MIN)]
    {
        for is_service_first in [true, false] {
            let store = Store::new(OnGone::Kept);
            if is_service_first {
                store.apply(service(service_created));
            }
            set_override(&store, &web, link_override(override_created), None);
            store.apply(service(service_created));
            assert_eq!(
                store.get(&web).unwrap().created,
                expected,
                "{service_created:?} {override_created:?}"
            );
            end_override(&store, &web, None, Instant::now());
            assert_eq!(store.get(&web).unwrap().created, service_created.unwrap_or(i64::MIN));
        }
    }
    // The Service was gone before the start of this process.
    let store = Store::new(OnGone::Kept);
    insert_gone(&store, &web, vec![]);
    set_override(&store, &web, link_override(Some(50)), None);
    assert_eq!(store.get(&web).unwrap().created, 50);
    set_override(&store, &web, link_override(None), None);
    assert!(!store.get(&web).unwrap().was_never_observed());
}

#[test]
fn left_out_service_gets_the_link_back() {
    let (store, web) = (Store::new(OnGone::Kept), key("web"));
    insert_left_out(&store, &web, "1".into(), hosts("a.example."), vec![]);
    let before = store.get(&web).unwrap();
    set_override(&store, &web, override_to("c.example."), None);
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("c.example"));
    end_override(&store, &web, None, Instant::now());
    assert_eq!(store.get(&web).unwrap(), before);
}

#[test]
fn persisted_target_restores_only_the_service_with_its_uid() {
    for (written_for, expected) in [("1", Some("a.example")), ("dr", None), ("", None)] {
        let (store, web) = (Store::new(OnGone::Kept), key("web"));
        set_override(&store, &web, override_to("a.example."), None);
        store.apply(seen("default", "web", "1", &[]));
        store.set_known(Input::Services);
        apply_persisted_target(&store, &web, last("a.example.", noted(written_for)));
        let service = service_link(&store, &web).unwrap();
        assert_eq!(service.target.as_ref().map(ToString::to_string).as_deref(), expected, "{written_for}");
    }
}

#[test]
fn override_advances_the_serial() {
    let store = Store::new(OnGone::Kept);
    store.continue_at(0);
    set_override(&store, &key("web"), override_to("c.example."), Some(7));
    assert_eq!(store.serial(), 7);
    end_override(&store, &key("web"), Some(9), Instant::now());
    assert_eq!(store.serial(), 9);
}

#[test]
fn readers_find_a_target_while_overrides_start_and_end() {
    let (store, web) = (Store::new(OnGone::Kept), key("web"));
    store.apply(seen("default", "web", "1", &["a.example."]));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for _ in 0..1_000 {
                set_override(&store, &web, override_to("b.example."), None);
                end_override(&store, &web, None, Instant::now());
            }
        });
        while !writing.is_finished() {
            let target = target(&store, &["web-default"]);
            assert!(["a.example", "b.example"].contains(&target.as_deref().unwrap()), "{target:?}");
        }
    });
}

/// Returns a link without the parts that differ between a store with overrides and one without: times, and whether a
/// Service without a target has a predecessor.
fn comparable(link: &Link) -> Link {
    let epoch = *EPOCH;
    let state = match link.state {
        LinkState::Recreated(_) => LinkState::Live,
        LinkState::Gone(_) => LinkState::Gone(epoch),
        state => state,
    };
    Link { state, ..link.clone() }
}

static EPOCH: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

/// Returns the link as [`comparable`] does, also without its custom hostnames and the name of its external target.
fn side(link: &Link) -> Link {
    Link { hostnames: Box::default(), external_target_override: None, ..comparable(link) }
}

fn random_override(random: &mut StdRng, step: usize, hostnames: Vec<Arc<str>>) -> LinkOverride {
    let mut maybe = || random.random_bool(0.5);
    LinkOverride {
        uid: "sn".into(),
        created: maybe().then_some(1),
        announced: match maybe() {
            true => Announcement::Target(Target::Hostname(host(&format!("sn{step}.example.")))),
            false => Announcement::Withdrawn,
        },
        service_uid: "dr".into(),
        annotations: Annotations {
            ttl: maybe().then_some(77),
            hostnames: hostnames.into(),
            allow_from: texts(&["team"]),
            ..Annotations::default()
        },
        ..LinkOverride::default()
    }
}

/// Checks an overridden link against its override and the link that the Service has in a store without overrides.
fn check_overridden(link: &Link, link_override: &LinkOverride, plain: Option<&Arc<Link>>, context: &str) {
    let announced = link.target.clone().map_or(Announcement::Withdrawn, Announcement::Target);
    assert_eq!(
        (announced, link.active_override()),
        (link_override.announced.clone(), Some(link_override)),
        "{context}"
    );
    assert_eq!(link.service_gone_since().is_some(), link.target.is_none(), "{context}");
    assert!(!link.is_gone() && !link.was_never_observed(), "{context}");
    let uid = plain.map_or_else(String::new, |plain| plain.uid.to_string());
    assert_eq!(link.uid.to_string(), uid, "{context}");
    assert_eq!(link.has_finalizer, plain.is_some_and(|plain| plain.has_finalizer), "{context}");
    assert_eq!(link.annotations, link_override.annotations, "{context}");
}

#[test]
fn random_overrides_leave_no_trace_after_their_end() {
    for (seed, on_gone) in (0..40).zip([OnGone::Kept, OnGone::Dropped].into_iter().cycle()) {
        let mut random = StdRng::seed_from_u64(seed);
        let zone = Name::from_ascii("lb.internal.").unwrap();
        let [store, plain] = [(); 2].map(|()| Store::new(on_gone).with_zones([&zone]));
        let both = [&store, &plain];
        let mut living: HashMap<ServiceKey, ObservedService> = HashMap::new();
        let mut overrides: HashMap<ServiceKey, LinkOverride> = HashMap::new();
        let end = |key: &ServiceKey| {
            end_override(&store, key, None, Instant::now()).unwrap();
            // Without a living Service the external target is removed, and the link is forgotten.
            if store.get(key).is_none_or(|link| link.is_gone()) {
                both.iter().for_each(|store| drop(store.forget(key)));
            }
        };
        for step in 0..150 {
            let (key, hostnames) = clashing(&mut random);
            let context = format!("seed {seed}, step {step}, {key}");
            match random.random_range(0..12) {
                0..4 => {
                    let known = living.get(&key).filter(|_| random.random_bool(0.8));
                    let uid =
                        known.map_or_else(|| step.to_string().as_str().into(), |known| known.uid.clone());
                    let target = format!("t{step}.example.");
                    let targets = &[&*target][usize::from(random.random_bool(0.3))..];
                    let ttl = random.random_bool(0.5).then_some(5);
                    let service = ObservedService {
                        uid,
                        ports: with_port(random.random_range(1..3), seen("", "", "", &[])).ports,
                        created: Some(random.random_range(0..3)),
                        annotations: Annotations { ttl, hostnames: hostnames.into(), ..Default::default() },
                        has_finalizer: random.random_bool(0.3),
                        ..seen(key.namespace(), key.name(), "", targets)
                    };
                    living.insert(key, service.clone());
                    both.iter().for_each(|store| drop(store.apply(service.clone())));
                }
                4..6 => {
                    if let Some(known) = living.remove(&key) {
                        both.iter().for_each(|store| {
                            drop(store.gone(&key, &known.uid.to_string(), None, Instant::now()))
                        });
                    }
                }
                6 => both.iter().for_each(|store| drop(store.forget(&key))),
                7 => {
                    // A list that lacks some Services.
                    living.retain(|_, _| random.random_bool(0.7));
                    let list: Vec<ObservedService> = living.values().cloned().collect();
                    both.iter()
                        .for_each(|store| drop(store.replace(None, list.clone(), vec![], &HashSet::new())));
                }
                8 => {
                    if !living.contains_key(&key) {
                        let uid = format!("t{step}");
                        both.iter().for_each(|store| drop(insert_terminating(store, &key, &uid, true)));
                    }
                }
                9..11 => {
                    let link_override = random_override(&mut random, step, hostnames);
                    set_override(&store, &key, link_override.clone(), None);
                    overrides.insert(key, link_override);
                }
                _ => {
                    if overrides.remove(&key).is_some() {
                        end(&key);
                    }
                }
            }
            check_names(&store, &context);
            let keys: HashSet<ServiceKey> =
                both.iter().flat_map(|store| store.links()).map(|link| link.key.clone()).collect();
            for key in keys {
                let (link, plain) = (store.get(&key), plain.get(&key));
                let service = service_link(&store, &key);
                assert_eq!(
                    service.as_deref().map(side),
                    plain.as_deref().map(side),
                    "{context}: Service {key}"
                );
                match overrides.get(&key) {
                    Some(link_override) => {
                        check_overridden(&link.unwrap(), link_override, plain.as_ref(), &context)
                    }
                    None => assert!(link.unwrap().active_override().is_none(), "{context}"),
                }
            }
        }
        overrides.keys().for_each(end);
        let links = |store: &Store| {
            let links = store.links().into_iter();
            links.map(|link| (link.key.clone(), comparable(&link))).collect::<HashMap<_, _>>()
        };
        assert_eq!(links(&store), links(&plain), "seed {seed}");
        check_names(&store, &format!("seed {seed}"));
        for dashed in PARTS.iter().flat_map(|a| PARTS.map(|b| format!("{a}-{b}"))) {
            assert_eq!(owner(&store, &[&dashed]), owner(&plain, &[&dashed]), "seed {seed}: {dashed}");
        }
    }
}
