//! A fake upstream, for tests of code that queries upstreams.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Edns, Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// A fake upstream on loopback, by UDP and TCP.
pub(crate) struct FakeUpstream {
    pub(crate) address: SocketAddr,
    /// The received queries; `true` for TCP.
    pub(crate) asked: Arc<Mutex<Vec<(Message, bool)>>>,
    _tasks: JoinSet<()>,
}

pub(crate) type ReplyFn = dyn Fn(&Message, bool) -> Option<Message> + Send + Sync;

impl FakeUpstream {
    pub(crate) async fn start(
        answer: impl Fn(&Message, bool) -> Option<Message> + Send + Sync + 'static,
    ) -> Self {
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, udp);
            }
        };
        let address = tcp.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<(Message, bool)>>> = Arc::default();
        let log = Arc::clone(&asked);
        let answer: Arc<ReplyFn> = Arc::new(move |question, by_tcp| {
            log.lock().unwrap().push((question.clone(), by_tcp));
            answer(question, by_tcp)
        });
        let mut tasks = JoinSet::new();
        let by_udp = Arc::clone(&answer);
        tasks.spawn(async move {
            let mut bytes = [0; 4096];
            loop {
                let (length, client) = udp.recv_from(&mut bytes).await.unwrap();
                if let Some(answer) = by_udp(&Message::from_vec(&bytes[..length]).unwrap(), false) {
                    udp.send_to(&answer.to_vec().unwrap(), client).await.unwrap();
                }
            }
        });
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = tcp.accept().await.unwrap();
                connections.spawn(converse(stream, Arc::clone(&answer)));
            }
        });
        Self { address, asked, _tasks: tasks }
    }

    /// Starts an upstream that answers every query with the A record 192.0.2.`last`.
    pub(crate) async fn good(last: u8) -> Self {
        Self::start(move |asked, _| Some(address(asked, last))).await
    }

    /// Starts an upstream that answers every query with this rcode.
    pub(crate) async fn erring(rcode: ResponseCode) -> Self {
        Self::start(move |asked, _| Some(error(asked, rcode))).await
    }

    pub(crate) async fn silent() -> Self {
        Self::start(|_, _| None).await
    }

    /// Returns the transports of the queries, `true` for TCP, without health checks. Successive queries with the same
    /// transport count once, because they may be retransmissions.
    pub(crate) fn transports(&self) -> Vec<bool> {
        let asked = self.asked.lock().unwrap();
        let questions = asked.iter().filter(|(asked, _)| asked.queries[0].query_type() != RecordType::NS);
        let mut by_tcp: Vec<bool> = questions.map(|(_, by_tcp)| *by_tcp).collect();
        by_tcp.dedup();
        by_tcp
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

pub(crate) async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Arc<ReplyFn>) {
    while let Ok(length) = stream.read_u16().await {
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await.unwrap();
        if let Some(answer) = answer(&Message::from_vec(&bytes).unwrap(), true) {
            let bytes = answer.to_vec().unwrap();
            let framed = [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes[..]].concat();
            // The client may have closed the connection after an earlier answer.
            let _ = stream.write_all(&framed).await;
        }
    }
}

pub(crate) fn error(asked: &Message, rcode: ResponseCode) -> Message {
    let mut answer = asked.clone();
    answer.metadata.message_type = MessageType::Response;
    answer.metadata.authentic_data = false;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = rcode;
    answer.edns = asked.edns.as_ref().map(|_| Edns::new());
    answer
}

pub(crate) fn address(asked: &Message, last: u8) -> Message {
    let mut answer = error(asked, ResponseCode::NoError);
    let query = &asked.queries[0];
    let mut record = Record::from_rdata(query.name().clone(), 60, RData::A(A::new(192, 0, 2, last)));
    record.dns_class = query.query_class();
    answer.add_answer(record);
    answer
}
