//! A DNS query over UDP, and its answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The timeout of a query, longer than lb-linker's timeout for upstreams, which is 1.8 s.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3);
/// The UDP payload size in bytes (DNS flag day 2020).
const MAX_UDP: u16 = 1232;

/// Queries `server` for the records of `name` of type `qtype`.
///
/// # Errors
/// If there is no answer within 3 s.
pub async fn ask(server: SocketAddr, name: &Name, qtype: RecordType) -> io::Result<Message> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name.clone(), qtype));
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP);
    question.set_edns(edns);

    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&question.to_vec().map_err(io::Error::other)?).await?;
    timeout(EVENT_TIMEOUT, answer_to(&question, &socket)).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {EVENT_TIMEOUT:?}")))
    })
}

/// Receives messages until one matches the query (RFC 5452 section 9.1).
async fn answer_to(question: &Message, socket: &UdpSocket) -> io::Result<Message> {
    let mut buffer = vec![0; usize::from(MAX_UDP)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let Ok(answer) = Message::from_vec(&buffer[..length]) else { continue };
        let belongs = answer.metadata.message_type == MessageType::Response
            && answer.metadata.id == question.metadata.id
            && answer.queries == question.queries;
        if belongs {
            return Ok(answer);
        }
    }
}
