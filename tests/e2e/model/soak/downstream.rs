//! Servers that get lb-linker's names from a replica: one asks it by HTTPS, the other one transfers the zone.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use hickory_proto::rr::RecordType;
use tempfile::TempDir;

use crate::harness::dns::{ask_udp, query};
use crate::harness::linker::Linker;
use crate::harness::port::HeldPort;
use crate::harness::{EVENT_TIMEOUT, PollPauses};
use crate::model::disturbed::DownstreamLines;
use crate::model::disturbed::history::Seen;
use crate::model::disturbed::load::QueriedObject;
use crate::model::rules::ZONE;
use crate::tls::Certificates;

/// The ports and certificates that the Corefiles of the replicas name.
pub struct Prepared {
    certificates: Certificates,
    secondary: HeldPort,
}

impl Prepared {
    pub fn new() -> Self {
        Self { certificates: Certificates::make(), secondary: HeldPort::take().unwrap() }
    }

    pub fn lines(&self) -> DownstreamLines {
        let transfer = format!("transfer {ZONE} {{\nto * {}\n}}", self.secondary.local());
        let [cert, key] = ["tls.crt", "tls.key"].map(|name| self.certificates.file(name));
        DownstreamLines { transfer, tls: format!("tls {} {}", cert.display(), key.display()) }
    }

    /// Starts both servers for a replica with these addresses for DNS and for HTTPS.
    pub async fn start(&self, replica: SocketAddr, https: SocketAddr, upstream: SocketAddr) -> Downstream {
        let ca = self.certificates.file("ca.crt");
        let by_https = format!("forward . https://{https} {{\ntls {}\n}}", ca.display());
        let transferred = format!("secondary {ZONE} {{\ntransfer from {replica}\n}}\nforward . {upstream}");
        Downstream {
            forwarder: Server::start(0, &by_https).await,
            secondary: Server::start(self.secondary.number(), &transferred).await,
        }
    }
}

pub struct Downstream {
    pub forwarder: Server,
    secondary: Server,
}

impl Downstream {
    /// Waits until the secondary server answers all names as the replica does.
    pub async fn converge(&self, replica: SocketAddr, objects: &[QueriedObject]) {
        let begun = Instant::now();
        let mut pauses = PollPauses::new();
        while let Some(difference) = self.difference(replica, objects).await {
            assert!(begun.elapsed() < EVENT_TIMEOUT, "{difference}");
            pauses.next().await;
        }
    }

    /// Describes the first name for which the secondary server has another answer than the replica.
    async fn difference(&self, replica: SocketAddr, objects: &[QueriedObject]) -> Option<String> {
        for name in objects.iter().flat_map(|object| &object.names) {
            let question = query(&format!("{name} A"));
            let [own, transferred] =
                [replica, self.secondary.linker.dns].map(|server| ask_udp(server, &question));
            // A link without a target has a name and no record, so it isn't in the transferred zone.
            let seen = |answer| match Seen::of(&answer, RecordType::A).0 {
                Seen::NoData => Seen::NoName,
                seen => seen,
            };
            let (own, transferred) = (seen(own.await), seen(transferred.await));
            if own != transferred {
                return Some(format!("{name} is {own:?}, and {transferred:?} of the secondary server"));
            }
        }
        None
    }

    pub fn stop(mut self) {
        for server in [&mut self.forwarder, &mut self.secondary] {
            let mut log = server.linker.log();
            log.retain(|line| line.contains("panicked"));
            assert!(log.is_empty(), "{log:#?}");
            assert!(server.linker.stop().success());
        }
    }
}

pub struct Server {
    pub linker: Linker,
    _directory: TempDir,
}

impl Server {
    async fn start(port: u16, lines: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let http = "prometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0";
        let corefile = directory.path().join("Corefile");
        std::fs::write(&corefile, format!(".:{port} {{\nbind 127.0.0.1\n{http}\n{lines}\n}}\n")).unwrap();
        let linker = Linker::start_bare(&[], [Path::new("--corefile"), &corefile]);
        linker.ready().await;
        Self { linker, _directory: directory }
    }
}
