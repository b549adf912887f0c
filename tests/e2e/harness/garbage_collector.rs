//! The garbage collector of Kubernetes: a kube-controller-manager with that controller alone.

use std::process::Command;

use super::control_plane::ControlPlane;
use super::process::Process;
use super::programs::kube_controller_manager;

impl ControlPlane {
    /// Starts a garbage collector for this control plane, which ends when the process is dropped. It discovers a CRD
    /// that is installed later only after up to 30 s.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start_garbage_collector(&self) -> Process {
        self.disturb();
        let mut command = Command::new(kube_controller_manager());
        command.arg("--kubeconfig").arg(self.admin_kubeconfig());
        command.args([
            "--controllers=garbage-collector-controller",
            "--leader-elect=false",
            // No port at all.
            "--secure-port=0",
        ]);
        self.spawn(command, "kube-controller-manager.log").unwrap_or_else(|error| panic!("{error}"))
    }
}
