//! The model: lb-linker's state as a pure function of the operations on the cluster, without watches, queues and
//! writes.

use std::collections::{BTreeMap, BTreeSet};

use lb_linker::model::names;
use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::external_target::decision::OnDelete;

use super::operations::{Action, Operation, Outcome};
use super::world::{Balancer, Follower, Ingress, ServiceType, Target, TargetObjects, TargetService};

/// The zone of the tests.
pub const ZONE: &str = "lb.internal";
/// The target of tombstones.
pub const TOMBSTONE: &str = "deleted.lb.internal";

/// lb-linker's state for a load balancer.
#[derive(Clone, Debug)]
pub struct Link {
    pub uid: String,
    /// When the first Service of this key that lb-linker has seen was created, in seconds since 1970; `None`
    /// if lb-linker has seen no Service of this key.
    pub created: Option<i64>,
    pub target: Option<Target>,
    pub gone: bool,
    /// Whether the link has no target and its external target was written for an earlier Service.
    pub recreated: bool,
    pub port: u16,
}

impl Link {
    /// Whether the Service for which the external target was written is gone.
    pub fn is_orphaned(&self) -> bool {
        self.gone || self.recreated
    }
}

/// The observed state of the target namespace. Any difference from the model is a defect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// lb-linker's objects, by name and by the link in their labels.
    pub ours: BTreeMap<(String, ServiceKey), TargetObjects>,
    /// All other objects, by kind and name, with UID and resourceVersion.
    pub foreign: BTreeMap<String, String>,
    /// All objects, with UID and resourceVersion.
    pub versions: BTreeMap<String, String>,
    /// The targets of the followers.
    pub followers: BTreeMap<ServiceKey, String>,
    /// The UID of the Service for which each link's external target was written.
    pub written_for: BTreeMap<ServiceKey, String>,
}

impl Observed {
    pub fn of<'a>(&'a self, key: &'a ServiceKey) -> impl Iterator<Item = (&'a String, &'a TargetObjects)> {
        self.ours.iter().filter(move |((_, owner), _)| owner == key).map(|((name, _), shape)| (name, shape))
    }
}

/// A Service with a link's default name that lb-linker doesn't own.
#[derive(Clone, Debug)]
pub struct ForeignService {
    pub version: String,
    /// Whether the Service is an unmanaged ExternalName Service, which lb-linker adopts.
    pub adoptable: bool,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub(super) on_delete: OnDelete,
    pub(super) running: bool,
    pub balancers: BTreeMap<ServiceKey, Balancer>,
    pub(super) links: BTreeMap<ServiceKey, Link>,
    /// lb-linker's external targets at the last quiet point.
    pub(super) objects: BTreeMap<(String, ServiceKey), TargetObjects>,
    /// The possible external targets of each link since the last quiet point.
    pub(super) possible: BTreeMap<ServiceKey, Vec<TargetObjects>>,
    /// Links that have lost their Service since the last quiet point; lb-linker learns of the deletion a moment
    /// later.
    pub(super) recently_deleted: BTreeSet<ServiceKey>,
    /// The possible targets of each link's followers since the last quiet point.
    pub(super) possible_follower_targets: BTreeMap<ServiceKey, Vec<String>>,
    pub foreign: BTreeMap<String, ForeignService>,
    pub followers: BTreeMap<ServiceKey, Follower>,
}

impl Model {
    pub fn new(on_delete: OnDelete) -> Self {
        Self {
            on_delete,
            running: false,
            balancers: BTreeMap::new(),
            links: BTreeMap::new(),
            objects: BTreeMap::new(),
            possible: BTreeMap::new(),
            recently_deleted: BTreeSet::new(),
            possible_follower_targets: BTreeMap::new(),
            foreign: BTreeMap::new(),
            followers: BTreeMap::new(),
        }
    }

    /// Applies an executed operation to the model.
    pub fn apply(&mut self, operation: &Operation, outcome: &Outcome) {
        let Operation { key, action } = operation;
        match action {
            Action::Create | Action::Recreate => {
                self.balancers.remove(key);
                self.observe(key);
                self.balancers.insert(
                    key.clone(),
                    Balancer {
                        uid: outcome.uid.clone(),
                        created: outcome.created,
                        port: 80,
                        ..Balancer::default()
                    },
                );
                self.observe(key);
            }
            Action::Delete | Action::Release => {
                self.balancers.remove(key);
                self.observe(key);
            }
            Action::DeleteObject => self.manual_removal(key, outcome),
            Action::DeleteService => self.manual_change(key, outcome, |shape| shape.service = None),
            Action::SetWrongHost(host) => self.manual_change(key, outcome, |shape| {
                shape.service = Some(TargetService::ExternalName(host.clone()));
            }),
            Action::SetWrongSpec(_) => self.manual_change(key, outcome, |shape| {
                shape.service = Some(TargetService::Other(String::new(), None));
            }),
            Action::DeleteSlice => self.manual_change(key, outcome, |shape| shape.ipv4 = None),
            Action::EditSlice(ip) => self.manual_change(key, outcome, |shape| {
                if let Some((ips, _)) = &mut shape.ipv4 {
                    *ips = vec![*ip];
                }
            }),
            // Without its labels, the EndpointSlice has no owner until lb-linker restores the labels.
            Action::RemoveSliceLabels => self.manual_change(key, outcome, |shape| shape.ipv4 = None),
            Action::CreateForeign | Action::CreateAdoptable => {
                self.manual_removal(key, outcome);
                if outcome.done {
                    let adoptable = matches!(action, Action::CreateAdoptable);
                    let version = outcome.version.clone();
                    self.foreign.insert(default_name(key), ForeignService { version, adoptable });
                }
            }
            Action::DeleteForeign => {
                self.foreign.remove(&default_name(key));
                if let Some(link) = self.links.get(key).filter(|_| self.running)
                    && let Some(target) = &link.target
                {
                    let shape = TargetObjects::of(target, link.port);
                    self.note(key, shape);
                }
            }
            Action::Follow { source, target } => {
                let follower = Follower { source: source.clone(), allowed_targets: vec![target.clone()] };
                self.followers.insert(key.clone(), follower);
            }
            Action::Unfollow => drop(self.followers.remove(key)),
            _ => {
                let Some(balancer) = self.balancers.get_mut(key) else { return };
                match action {
                    Action::SetHosts(hosts) => {
                        balancer.ingress = Ingress { hosts: hosts.clone(), ips: vec![] }
                    }
                    Action::SetAddresses(ips) => {
                        balancer.ingress = Ingress { hosts: vec![], ips: ips.clone() }
                    }
                    Action::Blank | Action::SetUnservable(_) => balancer.ingress = Ingress::default(),
                    Action::SetPort(port) => balancer.port = *port,
                    Action::ChangeType(kind) => {
                        balancer.kind = *kind;
                        balancer.ingress = Ingress::default();
                    }
                    Action::OptOut => balancer.opted_out = true,
                    Action::OptIn => balancer.opted_out = false,
                    Action::Hide => balancer.hidden = true,
                    Action::Show => balancer.hidden = false,
                    Action::Hold => balancer.terminating = true,
                    Action::AllowFrom(all) => balancer.followable = *all,
                    Action::Claim(name) => balancer.claims.clone_from(name),
                    _ => unreachable!("handled above"),
                }
                self.observe(key);
            }
        }
    }

    /// Marks lb-linker as stopped or killed.
    pub fn stop(&mut self) {
        self.running = false;
    }

    /// Initializes the model for a started lb-linker, which knows only the state in the API server.
    pub fn start(&mut self, observed: &Observed) {
        self.running = true;
        self.forget_adopted(observed);
        self.links.clear();
        self.possible.clear();
        self.recently_deleted.clear();
        self.objects = observed.ours.clone();
        let left: BTreeMap<ServiceKey, Option<Target>> =
            self.objects.iter().map(|((_, key), shape)| (key.clone(), shape.last_target())).collect();
        for (key, balancer) in self.balancers.iter().filter(|(_, balancer)| balancer.is_selected()) {
            let last = left.get(key).cloned().flatten();
            let last = last.filter(|target| *target != Target::Host(TOMBSTONE.to_owned()));
            // The target that was written for an earlier Service isn't restored.
            let own = observed.written_for.get(key).is_none_or(|uid| *uid == balancer.uid);
            let last = last.filter(|_| own);
            let target = Target::choose(&balancer.ingress, last.as_ref()).or(last);
            self.links.insert(
                key.clone(),
                Link {
                    uid: balancer.uid.clone(),
                    created: Some(balancer.created),
                    gone: false,
                    recreated: target.is_none() && !own && left.contains_key(key),
                    target,
                    port: balancer.port,
                },
            );
        }
        for key in left.into_keys() {
            let gone = Link {
                uid: String::new(),
                created: None,
                target: None,
                gone: true,
                recreated: false,
                port: 0,
            };
            self.links.entry(key).or_insert(gone);
        }
        for (key, recreated) in
            self.links.iter().map(|(key, link)| (key.clone(), link.recreated)).collect::<Vec<_>>()
        {
            self.record_current(&key);
            if recreated {
                self.record_deletion(&key);
            }
        }
        self.note_required_targets();
    }

    /// Forgets the adoptable Services that have been adopted. The link must have had a target since the last quiet
    /// point; how fast lb-linker was decides whether the Service was adopted before the link ended.
    pub(super) fn forget_adopted(&mut self, observed: &Observed) {
        let had_target = |key: &ServiceKey| {
            let shapes = self.possible.get(key).into_iter().flatten();
            shapes
                .filter_map(TargetObjects::last_target)
                .any(|target| target != Target::Host(TOMBSTONE.to_owned()))
        };
        let is_ours = |name: &String| {
            let mut ours = observed.ours.iter().filter(|((ours, _), _)| ours == name);
            ours.any(|((_, key), shape)| shape.service.is_some() && had_target(key))
        };
        self.foreign.retain(|name, stranger| !stranger.adoptable || !is_ours(name));
    }

    /// Records the possible external target of a deleted Service.
    fn record_deletion(&mut self, key: &ServiceKey) {
        match self.on_delete {
            OnDelete::Delete => self.note(key, TargetObjects::default()),
            OnDelete::Tombstone => self.note(key, TargetObjects::named(TOMBSTONE)),
            OnDelete::Retain => {}
        }
    }

    /// Updates the link of a changed Service.
    fn observe(&mut self, key: &ServiceKey) {
        if !self.running {
            return;
        }
        self.note_follower_target(key);
        let known = self.links.get(key);
        let Some(balancer) = self.balancers.get(key).filter(|balancer| balancer.is_selected()) else {
            if known.is_some_and(|link| !link.gone) {
                let link = self.links.get_mut(key).expect("it is known");
                let last = link.target.take().map(|target| TargetObjects::of(&target, link.port));
                (link.gone, link.recreated) = (true, false);
                self.recently_deleted.insert(key.clone());
                // Watches aren't ordered relative to each other: a Service in the way may seem to go before the link.
                if let Some(last) = last.filter(|_| self.foreign.contains_key(&default_name(key))) {
                    self.note(key, last);
                }
                self.note_follower_target(key);
                self.record_deletion(key);
            }
            return;
        };
        let same = known.filter(|link| link.uid == balancer.uid && !link.gone);
        let in_use = same.and_then(|link| link.target.clone());
        let target = Target::choose(&balancer.ingress, in_use.as_ref()).or(in_use);
        let link = Link {
            uid: balancer.uid.clone(),
            created: known.and_then(|link| link.created).or(Some(balancer.created)),
            gone: false,
            recreated: target.is_none() && known.is_some() && same.is_none_or(|link| link.recreated),
            target,
            port: balancer.port,
        };
        let shape = link.target.as_ref().map(|target| TargetObjects::of(target, link.port));
        self.links.insert(key.clone(), link);
        self.note_follower_target(key);
        self.record_current(key);
        if let Some(shape) = shape {
            self.note(key, shape);
        }
        self.note_required_targets();
    }

    /// Records the manual deletion of a link's external target and EndpointSlices.
    fn manual_removal(&mut self, key: &ServiceKey, outcome: &Outcome) {
        self.manual_change(key, outcome, |shape| *shape = TargetObjects::default());
    }

    fn manual_change(&mut self, key: &ServiceKey, outcome: &Outcome, change: impl Fn(&mut TargetObjects)) {
        if !outcome.touched {
            return;
        }
        self.record_current(key);
        let link = self.links.get(key);
        let live = link.is_some_and(|link| link.target.is_some());
        let has_tombstone = link.is_some_and(Link::is_orphaned) && self.on_delete == OnDelete::Tombstone;
        let shapes = self.possible.get_mut(key).expect("it has just been noted");
        let mut changed = shapes.clone();
        changed.iter_mut().for_each(&change);
        // If lb-linker doesn't write the object and the object's state was known, the new state is known, too.
        let is_settled = !live && !self.recently_deleted.contains(key);
        if self.running && is_settled && shapes.len() == 1 {
            *shapes = changed;
        } else {
            shapes.extend(changed);
        }
        if has_tombstone && shapes.iter().any(|shape| !shape.is_absent()) {
            self.note(key, TargetObjects::named(TOMBSTONE));
        }
        // A link without objects doesn't own its name.
        self.objects.retain(|(_, owner), shape| {
            if owner == key {
                change(shape);
            }
            !shape.is_absent()
        });
    }

    /// Records the current external target before it changes.
    pub(super) fn record_current(&mut self, key: &ServiceKey) {
        if !self.possible.contains_key(key) {
            let now =
                self.objects.iter().find(|((_, owner), _)| owner == key).map(|(_, shape)| shape.clone());
            self.possible.insert(key.clone(), vec![now.unwrap_or_default()]);
        }
    }

    fn note(&mut self, key: &ServiceKey, shape: TargetObjects) {
        self.record_current(key);
        let shapes = self.possible.get_mut(key).expect("it has just been noted");
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }

    /// Records the target for a link's followers, whether or not they may follow the link.
    fn note_follower_target(&mut self, key: &ServiceKey) {
        let Some(link) = self.links.get(key) else { return };
        let target = match &link.target {
            None => (link.gone && self.on_delete == OnDelete::Tombstone).then(|| TOMBSTONE.to_owned()),
            Some(target) => target.follower_target(),
        };
        self.possible_follower_targets.entry(key.clone()).or_default().extend(target);
    }

    /// Records the current target for each follower.
    fn note_required_targets(&mut self) {
        let required: Vec<_> =
            self.followers.keys().filter_map(|key| Some((key.clone(), self.required_target(key)?))).collect();
        for (key, target) in required {
            self.followers.get_mut(&key).expect("it is one of them").allowed_targets.push(target);
        }
    }

    /// Returns the required target of a follower, if its source determines one.
    pub(super) fn required_target(&self, key: &ServiceKey) -> Option<String> {
        let source = &self.followers.get(key)?.source;
        let followable = source.namespace() == key.namespace()
            || self.balancers.get(source).is_some_and(|balancer| balancer.followable);
        let target = self.links.get(source)?.target.as_ref().filter(|_| followable);
        target.and_then(Target::follower_target)
    }
}

/// Returns the default name of a link's external target.
pub fn default_name(key: &ServiceKey) -> String {
    names::external_target(key.namespace(), key.name())
}

/// Returns the name that a link's external target gets if another link owns the default name, and then keeps.
pub fn hashed_name(key: &ServiceKey) -> String {
    names::external_target_hashed(key.namespace(), key.name(), names::HASH_DIGITS[0])
}

/// Returns the dashed label that a link may have directly below the zone.
pub fn label(key: &ServiceKey) -> String {
    names::dashed_label(key.namespace(), key.name())
}

/// Whether a Service certainly has a target, whichever changes lb-linker has seen.
pub fn surely_has_target(balancer: &Balancer) -> bool {
    let Balancer { kind, ingress, .. } = balancer;
    *kind == ServiceType::LoadBalancer && balancer.is_selected() && *ingress != Ingress::default()
}
