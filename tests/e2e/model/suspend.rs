//! The model test with two replicas. The leader and its clocks are stopped repeatedly; the resumed leader believes
//! that its Lease is still valid while the next leader writes.

use nix::sys::signal::Signal;

use super::generator::{Generator, Universe};
use super::{OnDelete, Run, args, from_env, prepare, target_namespace};
use crate::harness::audit::AuditEvent;
use crate::harness::clock::{ClockStop, ShiftedClock};
use crate::harness::control_plane::ControlPlane;
use crate::harness::eventually;
use crate::harness::linker::Linker;

/// How often the leader is stopped. Each round takes at least the Lease duration.
const ROUNDS: usize = 2;

/// One of the two replicas.
struct Replica {
    clock: ShiftedClock,
    /// The ServiceAccount of the replica as a user name in the audit log.
    user: String,
}

impl Replica {
    /// Returns the attempted writes of the replica, except writes of the Lease.
    fn writes(&self, plane: &ControlPlane) -> Vec<AuditEvent> {
        let mut events = plane.audit_events_with(&self.user);
        events.retain(|event| event.user == self.user && event.is_write() && event.resource != "leases");
        events
    }
}

#[tokio::test]
async fn leader_with_stopped_clocks_writes_nothing_stale() {
    const NAME: &str = "suspend";
    let seed = from_env("LB_LINKER_MODEL_SEED").unwrap_or(4);
    let universe = Universe::new(NAME);
    let plane = prepare(NAME, &universe);
    let target = target_namespace(NAME);
    let role = ["create", "role", "leases", "--verb=get,create,update", "--resource=leases"];
    plane.kubectl(&[&["-n", &target], &role[..]].concat());
    let start = |account: &str| {
        plane.create_service_account(&target, account);
        let subject = format!("--serviceaccount={target}:{account}");
        for role in ["lb-linker", "leases"] {
            let (name, role) = (format!("{account}-{role}"), format!("--role={role}"));
            plane.kubectl(&["-n", &target, "create", "rolebinding", &name, &role, &subject]);
        }
        for role in ["lb-linker", "lb-linker-source"] {
            let (name, role) = (format!("{target}-{account}-{role}"), format!("--clusterrole={role}"));
            plane.kubectl(&["create", "clusterrolebinding", &name, &role, &subject]);
        }
        let kubeconfig = plane.kubeconfig_for_service_account(&target, account);
        let mut args = args(NAME, OnDelete::Delete, &universe, &kubeconfig);
        args.extend(["--leader-election", "lease", "--identity", account].map(ToOwned::to_owned));
        let clock = ShiftedClock::new();
        let variables = clock.variables();
        let linker = Linker::start_with(&variables.each_ref().map(|(name, value)| (*name, &**value)), &args);
        (linker, Replica { clock, user: format!("system:serviceaccount:{target}:{account}") })
    };
    let (first, leader) = start("first");
    first.line("leading now as first_").await;
    let (mut other, standby) = start("second");
    other.line(" leads").await;
    other.ready().await;
    let (mut leader, mut standby) = (leader, standby);
    let mut run = Run::with(NAME, OnDelete::Delete, seed, &universe, plane.clone(), Vec::new(), first).await;
    let mut chooser = Generator::new(seed, OnDelete::Delete);
    run.next(&mut chooser, &universe).await;
    for round in 0..ROUNDS {
        let how = if round % 2 == 0 { ClockStop::Pause } else { ClockStop::Suspend };
        run.next(&mut chooser, &universe).await;
        leader.clock.stop(&mut run.linker);
        let terms = other.logged("leading now");
        std::mem::swap(&mut run.linker, &mut other);
        run.journal.push(format!("--- the leader is stopped: {how:?}"));
        // Services change while there is no leader, then while the next replica leads.
        let operations = chooser.batch(&universe, false).operations;
        run.execute(&operations, None).await;
        let next = &run.linker;
        eventually("the next leader", || async { (next.logged("leading now") > terms).then_some(()) }).await;
        run.end(&mut chooser, &universe).await;
        run.next(&mut chooser, &universe).await;

        let before = leader.writes(&plane).len();
        let heard = other.logged(" leads");
        run.journal.push("--- the former leader is resumed".to_owned());
        leader.clock.resume(&mut other, how);
        run.next(&mut chooser, &universe).await;
        eventually("the former leader to hear of the next", || async {
            (other.logged(" leads") > heard).then_some(())
        })
        .await;
        run.next(&mut chooser, &universe).await;
        let tried = leader.writes(&plane).split_off(before);
        let (events, stale): (Vec<_>, Vec<_>) =
            tried.into_iter().filter(|event| event.code < 300).partition(|event| event.resource == "events");
        assert!(stale.is_empty(), "seed {seed}, round {round}, {how:?}: {stale:#?}");
        // Events are sent one at a time: one Event may have been handed to the connection when the process was
        // stopped.
        assert!(events.len() <= 1, "seed {seed}, round {round}, {how:?}: {events:#?}");
        run.count("suspend");
        std::mem::swap(&mut leader, &mut standby);
    }
    eprintln!("model {NAME}: seed {seed}, {} operations: {:?}", run.operations, run.tally);
    for (what, least) in [("suspend", ROUNDS), ("Create", 20), ("Delete", 5)] {
        assert!(run.tally.get(what).is_some_and(|number| *number >= least), "{what}: {:#?}", run.tally);
    }
    other.signal(Signal::SIGTERM);
    assert!(other.ended().await.success());
    run.finish(false);
}

impl Run<'_> {
    /// Executes the next batch, then waits for a quiet point.
    async fn next(&mut self, chooser: &mut Generator, universe: &Universe) {
        let operations = chooser.batch(universe, false).operations;
        self.execute(&operations, None).await;
        self.end(chooser, universe).await;
    }

    /// Changes the markers, and waits for a quiet point.
    async fn end(&mut self, chooser: &mut Generator, universe: &Universe) {
        let marks = chooser.mark(universe);
        self.execute(&marks, None).await;
        self.wait_for_quiet_point().await;
    }
}
