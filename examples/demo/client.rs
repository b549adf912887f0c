//! A client that connects to a load balancer every 200 ms.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};

use lb_linker::query::Question;

const INTERVAL: Duration = Duration::from_millis(200);

/// Requests so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub succeeded: usize,
    pub failed: usize,
    /// When the last request succeeded with an address that the one before hadn't.
    pub switched: Option<Instant>,
}

/// How a client finds the load balancer's address.
#[derive(Clone, Debug)]
pub struct Resolver {
    pub server: SocketAddr,
    pub name: Name,
    /// How long an address is kept; zero for a client without a cache.
    pub cache: Duration,
}

/// A running client.
#[derive(Debug)]
pub struct Client(Arc<Mutex<Counts>>);

impl Client {
    /// Starts a client that runs until the process ends.
    pub fn start(resolver: Resolver, port: u16) -> Self {
        let counts = Arc::<Mutex<Counts>>::default();
        tokio::spawn(run(resolver, port, Arc::clone(&counts)));
        Self(counts)
    }

    pub fn counts(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(resolver: Resolver, port: u16, counts: Arc<Mutex<Counts>>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = None;
    let mut last = None;
    loop {
        ticks.tick().await;
        let outcome = request(&resolver, port, &mut known).await;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(address) => {
                counts.succeeded += 1;
                if last.replace(address) != Some(address) {
                    counts.switched = Some(Instant::now());
                }
            }
            Err(_) => counts.failed += 1,
        }
    }
}

async fn request(
    resolver: &Resolver,
    port: u16,
    known: &mut Option<(Ipv4Addr, Instant)>,
) -> io::Result<Ipv4Addr> {
    let address = match *known {
        Some((address, since)) if since.elapsed() < resolver.cache => address,
        _ => {
            let address = ipv4(resolver.server, &resolver.name).await?;
            *known = Some((address, Instant::now()));
            address
        }
    };
    TcpStream::connect((address, port)).await?;
    Ok(address)
}

/// Returns the IPv4 address of `name`.
///
/// # Errors
/// If there is no answer, or no address in it.
pub async fn ipv4(server: SocketAddr, name: &Name) -> io::Result<Ipv4Addr> {
    let question = Question { server, name: name.clone(), qtype: RecordType::A };
    let answer = question.ask().await.map_err(io::Error::other)?;
    let address = answer.sections().answers.iter().find_map(|record| match record.data {
        RData::A(A(address)) => Some(address),
        _ => None,
    });
    address.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address")))
}
