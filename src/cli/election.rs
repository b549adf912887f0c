//! What the flags of the leader election mean, inside and outside a Pod.

use super::election_flags::{LEASE_NAME, LeaderElection};
use super::error::ConfigError;
use super::flags::Flags;
use super::parsers::object_name;
use crate::model::names::is_label;
use crate::sync::election::ElectionConfig;
use crate::sync::election::observer::ForeignLease;
use crate::sync::external_target::decision::SyncMode;

/// The file from which a Pod reads its namespace.
const ACCOUNT_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The namespace in which `deploy/` runs lb-linker.
const DEPLOY_NAMESPACE: &str = "lb-linker";

/// The environment of the process: cluster, Pod and host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// Whether the process runs in a Pod.
    pub(crate) in_cluster: bool,
    pod_name: Option<String>,
    pod_namespace: Option<String>,
    account_namespace: Option<String>,
    host: Option<String>,
}

impl Environment {
    /// Reads the environment.
    pub(crate) fn detect() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            in_cluster: variable("KUBERNETES_SERVICE_HOST").is_some(),
            pod_name: variable("POD_NAME"),
            pod_namespace: variable("POD_NAMESPACE"),
            account_namespace: std::fs::read_to_string(ACCOUNT_NAMESPACE)
                .ok()
                .map(|namespace| namespace.trim().to_owned())
                .filter(|namespace| !namespace.is_empty()),
            host: nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()),
        }
    }
}

impl Flags {
    /// Returns the configuration of the leader election; `None` if there is no election, or this process writes
    /// nothing.
    ///
    /// # Errors
    /// If leader-for-life is set without the variables `POD_NAME` and `POD_NAMESPACE`.
    pub fn election_config(&self) -> Result<Option<ElectionConfig>, ConfigError> {
        self.election_config_in(Environment::detect())
    }

    pub(crate) fn election_config_in(
        &self,
        environment: Environment,
    ) -> Result<Option<ElectionConfig>, ConfigError> {
        let default_mode =
            if self.is_own_cluster(&environment) { LeaderElection::Lease } else { LeaderElection::Off };
        let how = self.election.leader_election.unwrap_or(default_mode);
        let writes = self.sync_mode_in(&environment) == SyncMode::On;
        if self.manifests.is_some() || !writes || how == LeaderElection::Off {
            return Ok(None);
        }
        let pod = environment.pod_name.clone();
        let pods_namespace = environment.pod_namespace.clone();
        let identity = self.identity_in(&environment);
        let (namespace, lease, pod) = if how == LeaderElection::Life {
            let (Some(pod), Some(namespace)) = (pod, pods_namespace) else {
                return Err(ConfigError::LifeOutsideAPod);
            };
            (namespace, self.election.lease_name.clone(), Some(pod))
        } else {
            let (namespace, lease) = self.lease_in(&environment);
            (namespace, lease, None)
        };
        let is_named = self.own_namespace_in(&environment).is_some()
            || self.instance.as_deref().and_then(lease_of_instance).is_some();
        let is_of_deploy = (&*namespace, &*lease) == (DEPLOY_NAMESPACE, LEASE_NAME);
        let is_default_outside =
            pod.is_none() && !is_named && self.election.lease_name == LEASE_NAME && !is_of_deploy;
        Ok(Some(ElectionConfig { namespace, lease, identity, pod, is_default_outside }))
    }

    /// Returns the sync mode. Outside a Pod the current kubeconfig may name any cluster, so writes need a flag.
    #[must_use]
    pub fn sync_mode(&self) -> SyncMode {
        self.sync_mode_in(&Environment::detect())
    }

    fn sync_mode_in(&self, environment: &Environment) -> SyncMode {
        let writes_by_default =
            environment.in_cluster || self.election.leader_election.is_some() || self.manifests.is_some();
        self.sync.unwrap_or(if writes_by_default { SyncMode::On } else { SyncMode::Plan })
    }

    /// Returns the notice that nothing is written, if the reason is only that no flag enables writes.
    #[must_use]
    pub fn sync_notice(&self) -> Option<&'static str> {
        (self.sync.is_none() && self.sync_mode() == SyncMode::Plan).then_some(
            "nothing is written to the cluster, the writes are only logged: outside a Pod the default of --sync is \
             plan; --sync on makes them",
        )
    }

    /// Returns whether this process runs in the cluster.
    fn is_own_cluster(&self, environment: &Environment) -> bool {
        environment.in_cluster && self.kubeconfig.is_none() && self.context.is_none()
    }

    /// Returns the namespace of this Pod; `None` if lb-linker doesn't run in the cluster that it uses.
    #[must_use]
    pub fn own_namespace(&self) -> Option<String> {
        self.own_namespace_in(&Environment::detect())
    }

    fn own_namespace_in(&self, environment: &Environment) -> Option<String> {
        let own = environment.pod_namespace.as_ref().or(environment.account_namespace.as_ref());
        own.filter(|_| self.is_own_cluster(environment)).cloned()
    }

    /// Returns the namespace and the name of a Lease that the leader renews. If lb-linker doesn't run in the cluster that
    /// it uses, that is the Lease of the installation that `--instance` names, or one in the target namespace.
    fn lease_in(&self, environment: &Environment) -> (String, String) {
        let name = self.election.lease_name.clone();
        if let Some(namespace) = self.own_namespace_in(environment) {
            return (namespace, name);
        }
        match self.instance.as_deref().and_then(lease_of_instance) {
            Some((namespace, lease)) if name == LEASE_NAME => (namespace.to_owned(), lease.to_owned()),
            Some((namespace, _)) => (namespace.to_owned(), name),
            None => (self.target_namespace.clone(), name),
        }
    }

    /// Returns the name of the installation that owns the external targets.
    #[must_use]
    pub fn instance(&self) -> String {
        self.instance_in(&Environment::detect())
    }

    fn instance_in(&self, environment: &Environment) -> String {
        let default = || format!("{}/{}", self.instance_namespace_in(environment), self.election.lease_name);
        self.instance.clone().unwrap_or_else(default)
    }

    /// Returns the namespace in the default name of the installation: that of the Lease. Without an election outside a
    /// Pod, it is that of `deploy/`, which goes on with the objects.
    fn instance_namespace_in(&self, environment: &Environment) -> String {
        let has_lease = self.election.leader_election.is_some_and(|how| how != LeaderElection::Off);
        if has_lease || self.is_own_cluster(environment) {
            self.lease_in(environment).0
        } else {
            DEPLOY_NAMESPACE.to_owned()
        }
    }

    /// Returns the namespace and the name of the Lease of the installation in the cluster whose objects this process would
    /// write without an election; `None` if it writes nothing, takes part in an election, or runs in that cluster.
    #[must_use]
    pub fn foreign_lease(&self) -> Option<ForeignLease> {
        self.foreign_lease_in(&Environment::detect())
    }

    fn foreign_lease_in(&self, environment: &Environment) -> Option<ForeignLease> {
        let writes = self.manifests.is_none() && self.sync_mode_in(environment) == SyncMode::On;
        let is_elected = !matches!(self.election_config_in(environment.clone()), Ok(None));
        if !writes || is_elected || self.is_own_cluster(environment) {
            return None;
        }
        let instance = self.instance_in(environment);
        let (namespace, name) = lease_of_instance(&instance)?;
        Some(ForeignLease { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Returns the name of this replica in the Lease and in Events.
    #[must_use]
    pub fn identity(&self) -> String {
        self.identity_in(&Environment::detect())
    }

    fn identity_in(&self, environment: &Environment) -> String {
        let named = [&self.election.identity, &environment.pod_name, &environment.host];
        named.into_iter().flatten().next().map_or_else(|| "lb-linker".to_owned(), Clone::clone)
    }
}

/// Returns the namespace and the name of the Lease of an installation, which its default name consists of.
fn lease_of_instance(instance: &str) -> Option<(&str, &str)> {
    instance.split_once('/').filter(|(namespace, name)| is_label(namespace) && object_name(name).is_ok())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        flags: Flags,
    }

    fn in_pod() -> Environment {
        Environment {
            in_cluster: true,
            pod_name: Some("lb-linker-7d9f".to_owned()),
            pod_namespace: Some("lb-linker".to_owned()),
            account_namespace: Some("of-the-account".to_owned()),
            host: Some("host".to_owned()),
        }
    }

    fn outside() -> Environment {
        Environment { host: Some("host".to_owned()), ..Default::default() }
    }

    /// Returns the namespace, Lease, identity and Pod.
    fn election_config(environment: Environment, arguments: &[&str]) -> Result<Option<[String; 4]>, String> {
        let flags = TestCli::try_parse_from([&["lb-linker"], arguments].concat()).unwrap().flags;
        let election_config = flags.election_config_in(environment).map_err(|error| error.to_string())?;
        Ok(election_config.map(|ElectionConfig { namespace, lease, identity, pod, .. }| {
            [namespace, lease, identity, pod.unwrap_or_default()]
        }))
    }

    #[test]
    fn sync_defaults_to_plan_outside_a_pod() {
        let mode = |environment: Environment, arguments: &[&str]| {
            let flags = TestCli::try_parse_from([&["lb-linker"], arguments].concat()).unwrap().flags;
            flags.sync_mode_in(&environment)
        };
        for arguments in [&[][..], &["--kubeconfig=k"], &["--context=c"], &["--finalizer"]] {
            assert_eq!(mode(outside(), arguments), SyncMode::Plan, "{arguments:?}");
            assert_eq!(mode(in_pod(), arguments), SyncMode::On, "{arguments:?}");
        }
        for arguments in [
            &["--sync=on"][..],
            &["--leader-election=lease"],
            &["--leader-election=off", "--kubeconfig=k"],
            &["--manifests=d"],
        ] {
            assert_eq!(mode(outside(), arguments), SyncMode::On, "{arguments:?}");
        }
        for (arguments, expected) in [
            (&["--sync=plan", "--leader-election=lease"][..], SyncMode::Plan),
            (&["--sync=off"], SyncMode::Off),
            (&["--sync=plan", "--manifests=d"], SyncMode::Plan),
        ] {
            assert_eq!(mode(in_pod(), arguments), expected, "{arguments:?}");
            assert_eq!(mode(outside(), arguments), expected, "{arguments:?}");
        }
    }

    #[test]
    fn election_config_depends_on_environment_and_flags() {
        let takes_part = |environment, arguments: &[&str], expected: [&str; 4]| {
            let found = election_config(environment, arguments).unwrap();
            assert_eq!(found, Some(expected.map(str::to_owned)), "{arguments:?}");
        };
        takes_part(in_pod(), &[], ["lb-linker", "lb-linker", "lb-linker-7d9f", ""]);
        let unnamed = Environment { pod_name: None, pod_namespace: None, ..in_pod() };
        takes_part(unnamed.clone(), &[], ["of-the-account", "lb-linker", "host", ""]);
        takes_part(
            outside(),
            &["--leader-election=lease", "--identity=me", "--lease-name=mine"],
            ["external-targets", "mine", "me", ""],
        );
        takes_part(
            outside(),
            &["--leader-election=lease", "--instance=lb-linker/lb-linker"],
            ["lb-linker", "lb-linker", "host", ""],
        );
        takes_part(
            outside(),
            &["--leader-election=lease", "--instance=infra/blue"],
            ["infra", "blue", "host", ""],
        );
        takes_part(
            in_pod(),
            &["--leader-election=lease", "--instance=infra/blue"],
            ["lb-linker", "lb-linker", "lb-linker-7d9f", ""],
        );
        // The Pod isn't in the cluster of the kubeconfig.
        takes_part(
            in_pod(),
            &["--leader-election=lease", "--kubeconfig=k"],
            ["external-targets", "lb-linker", "lb-linker-7d9f", ""],
        );
        takes_part(
            in_pod(),
            &["--leader-election=life"],
            ["lb-linker", "lb-linker", "lb-linker-7d9f", "lb-linker-7d9f"],
        );
        for arguments in [
            &["--leader-election=off"][..],
            &["--kubeconfig=k"],
            &["--context=c"],
            &["--sync=plan", "--leader-election=lease"],
            &["--sync=off"],
            &["--manifests=d", "--leader-election=lease"],
        ] {
            assert_eq!(election_config(in_pod(), arguments), Ok(None), "{arguments:?}");
        }
        let instance = |environment, arguments: &[&str]| {
            TestCli::try_parse_from([&["lb-linker"], arguments].concat())
                .unwrap()
                .flags
                .instance_in(&environment)
        };
        let is_default_outside = |environment, argument: &str| {
            let arguments = ["lb-linker", "--leader-election=lease", argument];
            let flags = TestCli::try_parse_from(arguments).unwrap().flags;
            flags.election_config_in(environment).unwrap().unwrap().is_default_outside
        };
        assert!(is_default_outside(outside(), "--instance=my.own"));
        assert!(!is_default_outside(outside(), "--instance=infra/blue"));
        assert!(!is_default_outside(in_pod(), "--instance=my.own"));
        assert_eq!(instance(in_pod(), &["--target-namespace=t"]), "lb-linker/lb-linker");
        assert_eq!(instance(in_pod(), &["--lease-name=b"]), "lb-linker/b");
        assert_eq!(instance(in_pod(), &["--kubeconfig=k", "--target-namespace=t"]), "lb-linker/lb-linker");
        assert_eq!(instance(outside(), &[]), "lb-linker/lb-linker");
        assert_eq!(instance(outside(), &["--lease-name=b", "--sync=on"]), "lb-linker/b");
        assert_eq!(instance(outside(), &["--leader-election=off"]), "lb-linker/lb-linker");
        assert_eq!(instance(outside(), &["--leader-election=lease"]), "external-targets/lb-linker");
        assert_eq!(instance(in_pod(), &["--instance=my.own"]), "my.own");
        assert_eq!(election_config(outside(), &[]), Ok(None));
        for environment in [outside(), unnamed] {
            let refused = election_config(environment, &["--leader-election=life"]).unwrap_err();
            assert!(refused.contains("POD_NAME and POD_NAMESPACE"), "{refused}");
        }
    }

    #[test]
    fn lease_of_the_installation_is_looked_at_without_election() {
        let foreign = |environment: Environment, arguments: &[&str]| {
            let flags = TestCli::try_parse_from([&["lb-linker"], arguments].concat()).unwrap().flags;
            flags
                .foreign_lease_in(&environment)
                .map(|ForeignLease { namespace, name }| format!("{namespace} {name}"))
        };
        for (arguments, expected) in [
            (&["--sync=on"][..], Some("lb-linker lb-linker")),
            (&["--sync=on", "--lease-name=b"], Some("lb-linker b")),
            (&["--leader-election=off"], Some("lb-linker lb-linker")),
            (&["--sync=on", "--instance=infra/blue"], Some("infra blue")),
            (&["--sync=on", "--instance=laptop"], None),
            (&["--leader-election=lease"], None),
            (&["--sync=plan"], None),
            (&[], None),
            (&["--sync=on", "--manifests=d"], None),
        ] {
            assert_eq!(foreign(outside(), arguments).as_deref(), expected, "{arguments:?}");
        }
        assert_eq!(foreign(in_pod(), &["--leader-election=off"]), None);
        assert_eq!(foreign(in_pod(), &["--kubeconfig=k"]).as_deref(), Some("lb-linker lb-linker"));
    }
}
