//! The cloud in the demo: its DNS server, and load balancers as TCP servers on loopback addresses.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hickory_proto::ProtoError;
use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::AbortHandle;

/// The TTL of the cloud's records, in seconds.
const TTL: u32 = 60;
/// The first load balancer's address; those of the next ones follow it. Linux answers on all of 127.0.0.0/8.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 51, 1);
const ATTEMPTS: usize = 100;

type Hosts = HashMap<Name, Ipv4Addr>;

/// The cloud's DNS server, which runs until the process ends.
#[derive(Debug)]
pub struct Cloud {
    pub dns: SocketAddr,
    hosts: Arc<Mutex<Hosts>>,
}

/// A TCP server that accepts connections until it is dropped.
#[derive(Debug)]
pub struct LoadBalancer {
    pub address: SocketAddr,
    task: AbortHandle,
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LoadBalancer {
    fn accept_on(listener: TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
        Ok(Self { address, task: accepting.abort_handle() })
    }
}

/// Starts three load balancers with different addresses and the same free port.
///
/// # Errors
/// If no port is free on all addresses.
pub async fn load_balancers() -> io::Result<[LoadBalancer; 3]> {
    let [second, third] = [1, 2].map(|place| Ipv4Addr::from_bits(FIRST.to_bits() + place));
    let mut attempt = 1;
    loop {
        let first = TcpListener::bind((FIRST, 0)).await?;
        let port = first.local_addr()?.port();
        match tokio::try_join!(TcpListener::bind((second, port)), TcpListener::bind((third, port))) {
            Ok((second, third)) => {
                let accept = LoadBalancer::accept_on;
                return Ok([accept(first)?, accept(second)?, accept(third)?]);
            }
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(_) => attempt += 1,
        }
    }
}

impl Cloud {
    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let cloud = Self { dns: socket.local_addr()?, hosts: Arc::default() };
        tokio::spawn(serve(socket, Arc::clone(&cloud.hosts)));
        Ok(cloud)
    }

    pub fn create(&self, host: Name, address: Ipv4Addr) {
        lock(&self.hosts).insert(host, address);
    }

    pub fn delete(&self, host: &Name) {
        lock(&self.hosts).remove(host);
    }
}

fn lock(hosts: &Mutex<Hosts>) -> MutexGuard<'_, Hosts> {
    hosts.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(socket: UdpSocket, hosts: Arc<Mutex<Hosts>>) {
    let mut buffer = [0; 1232];
    // An error concerns one client only, such as a client that has closed its socket.
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        if let Ok(Some(answer)) = answer(&buffer[..length], &hosts) {
            let _ = socket.send_to(&answer, client).await;
        }
    }
}

/// Returns the answer to a query, or `None` for a message that isn't a query.
fn answer(bytes: &[u8], hosts: &Mutex<Hosts>) -> Result<Option<Vec<u8>>, ProtoError> {
    let asked = Message::from_vec(bytes)?;
    let [query] = asked.queries.as_slice() else { return Ok(None) };
    if asked.metadata.message_type != MessageType::Query {
        return Ok(None);
    }
    let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
    answer.metadata.recursion_desired = asked.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    match lock(hosts).get(query.name()) {
        None => answer.metadata.response_code = ResponseCode::NXDomain,
        Some(address) if query.query_type() == RecordType::A => {
            let data = RData::A(A(*address));
            answer.add_answer(Record::from_rdata(query.name().clone(), TTL, data));
        }
        Some(_) => {}
    }
    Ok(Some(answer.to_vec()?))
}
