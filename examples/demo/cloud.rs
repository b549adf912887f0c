//! The cloud's DNS server in the demo, which knows only the hostnames of load balancers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hickory_proto::ProtoError;
use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

/// The TTL of the cloud's records, in seconds.
const TTL: u32 = 60;
/// Documentation addresses (RFC 5737, RFC 3849): each load balancer gets the next address of each family.
const ADDRESSES: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(198, 51, 100, 0), Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 0));

type Hosts = HashMap<Name, [IpAddr; 2]>;

/// The cloud's DNS server, which runs until the process ends.
#[derive(Debug)]
pub struct Cloud {
    pub address: SocketAddr,
    hosts: Arc<Mutex<Hosts>>,
    created: u8,
}

impl Cloud {
    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let cloud = Self { address: socket.local_addr()?, hosts: Arc::default(), created: 0 };
        tokio::spawn(serve(socket, Arc::clone(&cloud.hosts)));
        Ok(cloud)
    }

    /// Gives the load balancer `host` an IPv4 and an IPv6 address, and returns them.
    pub fn create(&mut self, host: Name) -> [IpAddr; 2] {
        self.created += 1;
        let (v4, v6) = ADDRESSES;
        let addresses = [
            Ipv4Addr::from_bits(v4.to_bits() + u32::from(self.created)).into(),
            Ipv6Addr::from_bits(v6.to_bits() + u128::from(self.created)).into(),
        ];
        lock(&self.hosts).insert(host, addresses);
        addresses
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
        Some(addresses) => {
            answer.add_answers(addresses.iter().filter_map(|ip| {
                match (ip, query.query_type()) {
                    (IpAddr::V4(ip), RecordType::A) => Some(RData::A(A(*ip))),
                    (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(AAAA(*ip))),
                    _ => None,
                }
                .map(|data| Record::from_rdata(query.name().clone(), TTL, data))
            }));
        }
    }
    Ok(Some(answer.to_vec()?))
}
