//! Knot and NSD, which say what is right where CoreDNS and lb-linker differ.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Client;
use super::zone::GeneratedZone;
use crate::harness::EVENT_TIMEOUT;
use crate::harness::process::Process;

pub struct Judge {
    pub name: &'static str,
    pub client: Client,
    _process: Process,
    _held: TcpListener,
}

impl Judge {
    /// Starts the judges that the environment names.
    pub fn start_all(directory: &Path, zones: &[GeneratedZone]) -> Vec<Self> {
        let named = [("Knot", "LB_LINKER_KNOT"), ("NSD", "LB_LINKER_NSD")];
        let present =
            named.into_iter().filter_map(|(name, variable)| Some((name, std::env::var(variable).ok()?)));
        present.map(|(name, program)| Self::start(name, &program, directory, zones)).collect()
    }

    fn start(name: &'static str, program: &str, directory: &Path, zones: &[GeneratedZone]) -> Self {
        // The judges can't share a port, so the test holds the one of the same number at another address.
        let held = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 8), 0)).expect("a free port");
        let port = held.local_addr().expect("the socket is bound").port();
        let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), port));
        let own = directory.join(name);
        fs::create_dir_all(&own).unwrap();
        let (files, own) = (directory.display(), own.display());
        let mut config = if name == "Knot" {
            format!(
                "server:\n  listen: 127.0.0.9@{port}\n  rundir: {own}\n  automatic-acl: off\ndatabase:\n  storage: {own}\n\
                 template:\n  - id: default\n    storage: {files}\n    journal-content: none\n    zonefile-sync: -1\n    \
                 semantic-checks: off\nzone:\n"
            )
        } else {
            format!(
                "server:\n  ip-address: 127.0.0.9@{port}\n  zonesdir: {files}\n  pidfile: \"\"\n  username: \"\"\n  \
                 zonelistfile: {own}/list\n  xfrdfile: \"\"\n  xfrdir: {own}\n  server-count: 1\n  minimal-responses: no\nremote-control:\n  control-enable: no\n"
            )
        };
        for zone in zones {
            let GeneratedZone { origin, file, .. } = zone;
            let _ = if name == "Knot" {
                writeln!(config, "  - domain: {origin}.\n    file: {file}")
            } else {
                writeln!(config, "zone:\n  name: {origin}.\n  zonefile: {file}")
            };
        }
        let path = directory.join(name).join("conf");
        fs::write(&path, config).unwrap();
        let mut command = Command::new(program);
        if name == "NSD" {
            command.arg("-d");
        }
        command.arg("-c").arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::spawn(command).expect("the judge can be started");
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            assert!(process.ended().is_none() && Instant::now() < deadline, "{name} doesn't listen");
            sleep(Duration::from_millis(20));
        }
        // The zones are loaded after the port is open.
        sleep(Duration::from_secs(2));
        Self { name, client: Client::new(address), _process: process, _held: held }
    }
}
