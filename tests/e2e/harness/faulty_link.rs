//! A TCP relay with faults between lb-linker and the API server. It doesn't decrypt TLS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::control_plane::ControlPlane;

/// What happens to bytes and to new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    #[default]
    Up,
    /// Data arrives later, by at least this time.
    Delayed(Duration),
    /// New connections are accepted, and no data is forwarded. A connection that is opened or gets data in this state
    /// stays dead.
    HalfOpen,
}

/// What happens once to the open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFault {
    /// Both ends are closed.
    Cut,
    /// Both ends are reset.
    Reset,
    /// Both ends stay open, and nothing is ever forwarded again.
    Silence,
}

/// A relay to an API server. It stops on drop.
pub struct FaultyLink {
    _tasks: JoinSet<()>,
    kubeconfig: PathBuf,
    state: watch::Sender<LinkState>,
    fault: watch::Sender<Option<ConnectionFault>>,
    accepted: Arc<AtomicUsize>,
}

impl FaultyLink {
    /// Starts a relay, with a kubeconfig of this ServiceAccount.
    pub async fn start(plane: &ControlPlane, namespace: &str, account: &str) -> Self {
        let api_server = plane.port.local();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let direct = plane.kubeconfig_for_service_account(namespace, account);
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&direct).unwrap()).unwrap();
        config["clusters"][0]["cluster"]["server"] = json!(format!("https://{address}"));
        let kubeconfig = plane.file(&format!("relay-{}.kubeconfig", address.port()));
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let (state, fault) = (watch::Sender::new(LinkState::Up), watch::Sender::new(None));
        let (states, faults) = (state.subscribe(), fault.subscribe());
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let mut faults = faults.clone();
                faults.mark_unchanged();
                connections.spawn(relay(client, api_server, states.clone(), faults));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { _tasks: tasks, kubeconfig, state, fault, accepted }
    }

    pub fn kubeconfig(&self) -> &str {
        self.kubeconfig.to_str().unwrap()
    }

    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }

    pub fn inject(&self, fault: ConnectionFault) {
        self.fault.send_replace(Some(fault));
    }

    /// Returns the number of connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// Relays a connection until it is closed or a fault ends it.
async fn relay(
    mut client: TcpStream,
    api_server: SocketAddr,
    states: watch::Receiver<LinkState>,
    mut faults: watch::Receiver<Option<ConnectionFault>>,
) {
    if *states.borrow() == LinkState::HalfOpen {
        // The connection stays dead when the relay is up again.
        tokio::select! {
            () = swallow(client) => {}
            _ = faults.changed() => {}
        }
        return;
    }
    let Ok(mut server) = TcpStream::connect(api_server).await else { return };
    let injected = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = forward(from_client, to_server, states.clone()) => None,
            () = forward(from_server, to_client, states.clone()) => None,
            _ = faults.changed() => *faults.borrow_and_update(),
        }
    };
    match injected {
        Some(ConnectionFault::Silence) => drop(faults.changed().await),
        Some(ConnectionFault::Reset) => {
            for end in [&client, &server] {
                let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
            }
        }
        Some(ConnectionFault::Cut) | None => {}
    }
}

async fn swallow(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

async fn forward(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, states: watch::Receiver<LinkState>) {
    let mut buffer = vec![0; 65536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let state = *states.borrow();
        match state {
            LinkState::Up => {}
            LinkState::Delayed(delay) => tokio::time::sleep(delay).await,
            LinkState::HalfOpen => std::future::pending().await,
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
