//! The flags of the leader election.

use clap::{Args, ValueEnum};

use super::parsers::{identity, object_name};

/// The name of the Lease of `deploy/`.
pub(super) const LEASE_NAME: &str = "lb-linker";

/// How the replica that writes is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeaderElection {
    /// By a Lease that the leader renews.
    Lease,
    /// By a Lease that belongs to the leader's Pod; needs the permissions of deploy/life/.
    Life,
    /// No election: there is only one replica.
    Off,
}

/// The flags of the leader election.
#[derive(Clone, Debug, Args)]
pub struct ElectionFlags {
    /// How the replica that writes is elected [default: lease in a Pod without --kubeconfig and --context, else off]
    #[arg(
        long,
        value_name = "HOW",
        env = "LB_LINKER_LEADER_ELECTION",
        value_enum,
        help_heading = "Leader election"
    )]
    pub leader_election: Option<LeaderElection>,

    /// Name of the Lease; outside a Pod --instance NAMESPACE/NAME names the Lease, unless this flag has another value
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_LEASE_NAME",
        default_value = LEASE_NAME,
        value_parser = object_name,
        help_heading = "Leader election"
    )]
    pub lease_name: String,

    /// Name of this replica in the Lease [default: $POD_NAME, else the host's name]
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_IDENTITY",
        value_parser = identity,
        help_heading = "Leader election"
    )]
    pub identity: Option<String>,
}
