//! Seeded random generation of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::external_target::decision::OnDelete;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::operations::{ADOPTION, Action, HOSTNAMES, Operation, Outcome, SOURCE, TARGET_POLICY};
use super::rules::{Model, default_name, surely_has_target};
use super::world::{Balancer, ServiceType};

/// The namespaces and Services that a test may use.
pub struct Universe {
    pub namespaces: Vec<String>,
    /// Services without name clashes.
    without_clashes: Vec<ServiceKey>,
    /// Groups of Services with the same default name.
    groups: Vec<Vec<ServiceKey>>,
    /// One Service in each namespace that changes last: when lb-linker has seen the marker's change, lb-linker has
    /// seen all earlier changes in the namespace.
    pub markers: Vec<ServiceKey>,
    followers: Vec<ServiceKey>,
}

impl Universe {
    pub fn new(base: &str) -> Self {
        let (z, y_z, w_y_z) = (base.to_owned(), format!("y-{base}"), format!("w-y-{base}"));
        let long = format!("{base}-{}", "n".repeat(40));
        let many = |namespace: &str, prefix: &str, number: usize| -> Vec<ServiceKey> {
            (0..number).map(|i| ServiceKey::new(namespace, &format!("{prefix}{i}"))).collect()
        };
        let mut free = [many(&z, "api-", 8), many(&y_z, "web-", 6), many(&w_y_z, "db-", 4)].concat();
        // The dashed label of this Service equals the name of a namespace that has names below it.
        free.push(ServiceKey::new(&z, "y"));
        // Names that are cut at the length limit and share a prefix.
        free.extend([many(&long, &"l".repeat(62), 4), many(&z, &"c".repeat(58), 2)].concat());
        let mut groups: Vec<Vec<ServiceKey>> = (0..4)
            .map(|g| vec![ServiceKey::new(&z, &format!("g{g}-y")), ServiceKey::new(&y_z, &format!("g{g}"))])
            .collect();
        groups.extend((4..6).map(|g| {
            let key = |namespace, end| ServiceKey::new(namespace, &format!("g{g}{end}"));
            vec![key(&z, "-w-y"), key(&y_z, "-w"), key(&w_y_z, "")]
        }));
        for group in &groups {
            assert!(group.iter().all(|key| default_name(key) == default_name(&group[0])));
        }
        // The dashed labels fit and clash; the names of the external targets are cut and don't clash.
        let head = "k".repeat(61 - "-y-".len() - z.len());
        groups.push(vec![ServiceKey::new(&z, &format!("{head}-y")), ServiceKey::new(&y_z, &head)]);
        let namespaces = vec![z, y_z, w_y_z, long];
        let markers = namespaces.iter().map(|namespace| ServiceKey::new(namespace, "marker")).collect();
        let followers = if SOURCE { many(&namespaces[0], "follower-", 4) } else { Vec::new() };
        Self { namespaces, without_clashes: free, groups, markers, followers }
    }

    /// Returns a universe of Services whose names don't clash.
    pub fn without_clashes(base: &str, services: usize) -> Self {
        let namespaces = vec![base.to_owned(), format!("{base}-more")];
        let keys = |prefix: &str, number: usize| -> Vec<ServiceKey> {
            let key = |i: usize| ServiceKey::new(&namespaces[i % 2], &format!("{prefix}{i}"));
            (0..number).map(key).collect()
        };
        let markers = namespaces.iter().map(|namespace| ServiceKey::new(namespace, "marker")).collect();
        let (without_clashes, followers) = (keys("svc-", services), keys("follower-", 4));
        Self { without_clashes, followers, groups: Vec::new(), markers, namespaces }
    }

    pub fn keys(&self) -> BTreeSet<ServiceKey> {
        self.without_clashes
            .iter()
            .chain(self.groups.iter().flatten())
            .chain(&self.markers)
            .cloned()
            .collect()
    }
}

/// The operations until the next quiet point.
pub struct Batch {
    pub operations: Vec<Operation>,
    pub restart: Option<Restart>,
}

/// A restart of lb-linker during a batch.
pub struct Restart {
    pub kill: bool,
    /// The number of operations of the batch before lb-linker ends.
    pub after: usize,
    /// The operations while lb-linker isn't running.
    pub meanwhile: Vec<Operation>,
}

/// Generates operations. The generator depends only on its earlier choices, never on the outcomes, so that a seed
/// determines all operations.
pub struct Generator {
    random: StdRng,
    on_delete: OnDelete,
    /// The Services after all generated operations.
    planned: Model,
    /// Links with a default name that may belong to a Service of another owner.
    foreign: BTreeSet<ServiceKey>,
    /// The number of manual changes of a link's objects since the link last changed. lb-linker delays repairs when
    /// there are many.
    manual_changes: BTreeMap<ServiceKey, usize>,
    /// Services that must not change again before the next quiet point.
    frozen: BTreeSet<ServiceKey>,
    /// The maximum number of manual changes of a link's objects.
    max_manual_changes: usize,
    /// The number of different hostnames of targets.
    hosts: usize,
    number: usize,
}

impl Generator {
    pub fn new(seed: u64, on_delete: OnDelete) -> Self {
        Self {
            max_manual_changes: 3,
            hosts: usize::MAX,
            random: StdRng::seed_from_u64(seed),
            on_delete,
            planned: Model::new(on_delete),
            foreign: BTreeSet::new(),
            manual_changes: BTreeMap::new(),
            frozen: BTreeSet::new(),
            number: 0,
        }
    }

    /// Returns a generator that changes no objects by hand, and uses each of `hosts` hostnames again and again.
    pub fn of_services(seed: u64, hosts: usize) -> Self {
        Self { max_manual_changes: 0, hosts, ..Self::new(seed, OnDelete::Delete) }
    }

    /// Returns changes of the markers, which end a batch in every namespace.
    pub fn mark(&mut self, universe: &Universe) -> Vec<Operation> {
        let mut operations = Vec::new();
        for key in &universe.markers {
            if !self.planned.balancers.contains_key(key) {
                self.plan(&mut operations, key, Action::Create);
            }
            let host = self.host();
            self.plan(&mut operations, key, Action::SetHosts(vec![host]));
        }
        operations
    }

    /// Returns the next batch. With `restarts`, the batch may include a restart of lb-linker.
    pub fn batch(&mut self, universe: &Universe, restarts: bool) -> Batch {
        self.frozen.clear();
        let size = self.random.random_range(15..=40);
        let mut operations = Vec::new();
        // The order of changes within a group must be known, so only one Service of a group changes between two quiet
        // points.
        let mut groups: Vec<&Vec<ServiceKey>> = universe.groups.iter().collect();
        groups.shuffle(&mut self.random);
        while operations.len() < size {
            if self.random.random_bool(0.2)
                && let Some(group) = groups.pop()
            {
                let key = group.choose(&mut self.random).expect("no group is empty").clone();
                self.choose(&mut operations, &key, Some(true));
            } else {
                self.choose_free(&mut operations, universe);
            }
        }
        let restart = (restarts && self.random.random_bool(0.4)).then(|| {
            let after = match self.random.random_bool(0.5) {
                true => self.random.random_range(0..operations.len()),
                false => operations.len(),
            };
            let kill = self.random.random_bool(0.6);
            let mut meanwhile = Vec::new();
            for _ in 0..self.random.random_range(0..=10) {
                if self.random.random_bool(0.3) {
                    let group = universe.groups.choose(&mut self.random).expect("there are some");
                    let key = group.choose(&mut self.random).expect("no group is empty").clone();
                    self.choose(&mut meanwhile, &key, Some(false));
                } else {
                    self.choose_free(&mut meanwhile, universe);
                }
            }
            Restart { kill, after, meanwhile }
        });
        Batch { operations, restart }
    }

    /// Returns an operation that sets one hostname for a link with an ambiguous target. Later choices don't depend on
    /// this operation.
    pub fn disambiguate(&self, key: &ServiceKey) -> Option<Operation> {
        let balancer = self.planned.balancers.get(key)?;
        let hosts = vec![format!("decided-{}.example.com", self.number)];
        (balancer.kind == ServiceType::LoadBalancer)
            .then(|| Operation { key: key.clone(), action: Action::SetHosts(hosts) })
    }

    fn choose_free(&mut self, operations: &mut Vec<Operation>, universe: &Universe) {
        if SOURCE && self.random.random_bool(0.05) {
            let key = universe.followers.choose(&mut self.random).expect("there are some").clone();
            let action = if self.planned.followers.contains_key(&key) {
                Action::Unfollow
            } else {
                let source =
                    universe.without_clashes.choose(&mut self.random).expect("there are some").clone();
                Action::Follow { source, target: self.host() }
            };
            // A follower is created or deleted at most once between two quiet points.
            if self.frozen.insert(key.clone()) {
                self.plan(operations, &key, action);
            }
            return;
        }
        let key = universe.without_clashes.choose(&mut self.random).expect("there are some").clone();
        if !self.frozen.contains(&key) {
            self.choose(operations, &key, None);
        }
    }

    /// Chooses an operation for a Service. `group` is `None` for a Service without name clashes; otherwise `group`
    /// tells whether lb-linker is running.
    fn choose(&mut self, operations: &mut Vec<Operation>, key: &ServiceKey, group: Option<bool>) {
        if self.frozen.contains(key) {
            return;
        }
        let balancer = self.planned.balancers.get(key).cloned();
        let choices = match &balancer {
            None => self.for_absent(key, group.is_some()),
            Some(balancer) => self.for_present(key, balancer, group),
        };
        let manual_changes = self.manual_changes.get(key).copied().unwrap_or(0);
        let choices = choices
            .into_iter()
            .filter(|(_, action)| manual_changes < self.max_manual_changes || !action.is_manual_change());
        let choices: Vec<_> = choices.collect();
        let action = choices.choose_weighted(&mut self.random, |(weight, _)| *weight);
        let action = action.expect("there is always something").1.clone();
        let begins = matches!(action, Action::Create | Action::Recreate)
            || matches!(action, Action::ChangeType(ServiceType::LoadBalancer));
        self.plan(operations, key, action);
        if begins && self.random.random_bool(0.75) {
            let action = if self.random.random_bool(0.7) {
                Action::SetHosts(vec![self.host()])
            } else {
                Action::SetAddresses(self.addresses())
            };
            self.plan(operations, key, action);
        }
    }

    fn for_absent(&mut self, key: &ServiceKey, group: bool) -> Vec<(u32, Action)> {
        let mut choices =
            vec![(60, Action::Create), (6, Action::DeleteObject), (4, Action::SetWrongHost(self.host()))];
        if !group {
            choices.push((10, Action::CreateForeign));
            choices.push((if ADOPTION { 10 } else { 0 }, Action::CreateAdoptable));
            if self.foreign.contains(key) {
                choices.push((30, Action::DeleteForeign));
            }
        }
        choices
    }

    fn for_present(
        &mut self,
        key: &ServiceKey,
        balancer: &Balancer,
        group: Option<bool>,
    ) -> Vec<(u32, Action)> {
        if balancer.terminating {
            return vec![(1, Action::Release)];
        }
        if balancer.kind != ServiceType::LoadBalancer {
            return vec![
                (60, Action::ChangeType(ServiceType::LoadBalancer)),
                (20, Action::Delete),
                (10, Action::SetWrongHost(self.host())),
            ];
        }
        let mut choices = vec![
            (20, Action::SetHosts(vec![self.host()])),
            (10, Action::SetHosts(self.several_hosts(balancer))),
            (16, Action::SetAddresses(self.addresses())),
            (8, Action::Blank),
            (4, Action::SetUnservable(self.unservable())),
            (4, Action::SetPort(self.random.random_range(1..2000))),
            (9, Action::Delete),
            (if balancer.opted_out { 40 } else { 0 }, Action::OptIn),
            (if balancer.opted_out { 0 } else { 5 }, Action::OptOut),
            (if balancer.hidden { 40 } else { 0 }, Action::Show),
            (if balancer.hidden { 0 } else { 3 }, Action::Hide),
            (3, Action::Hold),
            (3, Action::ChangeType(ServiceType::ClusterIp)),
            (3, Action::ChangeType(ServiceType::ExternalName)),
            (6, Action::SetWrongHost(self.host())),
            (4, Action::DeleteObject),
        ];
        let surely = surely_has_target(balancer);
        // In a group, lb-linker must not forget the link between the deletion and the creation.
        if group != Some(true) || self.on_delete != OnDelete::Delete && surely {
            choices.push((9, Action::Recreate));
        }
        if surely {
            choices.extend([
                (4, Action::SetWrongSpec(self.random.random_range(0..4))),
                (3, Action::DeleteService),
            ]);
            // Without its labels, an EndpointSlice that is no longer needed would have no owner and stay.
            if balancer.ingress.ips.iter().any(IpAddr::is_ipv4) {
                let ip = Ipv4Addr::new(198, 51, 100, self.random.random());
                choices.extend([
                    (6, Action::DeleteSlice),
                    (6, Action::EditSlice(ip.into())),
                    (5, Action::RemoveSliceLabels),
                ]);
            }
        }
        if group.is_none() {
            choices.push((2, Action::CreateForeign));
            if self.foreign.contains(key) {
                choices.push((15, Action::DeleteForeign));
            }
            choices.push((if SOURCE { 4 } else { 0 }, Action::AllowFrom(!balancer.followable)));
            self.number += 1;
            let claim = format!("extra-{}.{}", self.number, key.namespace());
            let claim = balancer.claims.is_none().then_some(claim);
            choices.push((if HOSTNAMES { 4 } else { 0 }, Action::Claim(claim)));
        }
        choices
    }

    fn plan(&mut self, operations: &mut Vec<Operation>, key: &ServiceKey, action: Action) {
        match &action {
            Action::CreateForeign | Action::CreateAdoptable => drop(self.foreign.insert(key.clone())),
            Action::DeleteForeign => drop(self.foreign.remove(key)),
            _ => {}
        }
        if action.is_manual_change() {
            *self.manual_changes.entry(key.clone()).or_default() += 1;
        } else if matches!(action, Action::SetHosts(_) | Action::SetAddresses(_) | Action::Recreate) {
            self.manual_changes.remove(key);
        }
        if matches!(action, Action::SetWrongSpec(_) | Action::RemoveSliceLabels) {
            self.frozen.insert(key.clone());
        }
        let operation = Operation { key: key.clone(), action };
        self.planned.apply(&operation, &Outcome::default());
        operations.push(operation);
    }

    /// Returns the next hostname; after `hosts` numbers the hostnames repeat.
    fn host(&mut self) -> String {
        self.number += 1;
        format!("lb-{}.example.com", self.number % self.hosts)
    }

    /// Returns two or three hostnames, which may include current hostnames of the load balancer.
    fn several_hosts(&mut self, balancer: &Balancer) -> Vec<String> {
        let mut hosts = balancer.ingress.hosts.clone();
        hosts.extend([self.host(), self.host()]);
        hosts.shuffle(&mut self.random);
        hosts.truncate(3);
        hosts
    }

    fn unservable(&mut self) -> String {
        if TARGET_POLICY && self.random.random_bool(0.5) {
            "kubernetes.default.svc.cluster.local".to_owned()
        } else {
            format!("{}.example.com", "x".repeat(64))
        }
    }

    /// Returns one to four distinct addresses of one or both families, in random order.
    fn addresses(&mut self) -> Vec<IpAddr> {
        let number = self.random.random_range(1..=4);
        let mut ips = BTreeSet::new();
        while ips.len() < number {
            let last: u8 = self.random.random_range(1..250);
            ips.insert(match self.random.random_bool(0.6) {
                true => IpAddr::from(Ipv4Addr::new(192, 0, 2, last)),
                false => IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
            });
        }
        let mut ips: Vec<IpAddr> = ips.into_iter().collect();
        ips.shuffle(&mut self.random);
        ips
    }
}
