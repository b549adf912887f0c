//! Asks a primary server for the serial of a zone, and for the zone (RFC 1034 section 4.3.5, RFC 5936), by TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::rr::{DNSClass, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;

use super::saved::NewCopy;
use super::schedule::Failure;
use crate::dns::message::tsig::{self, Key, ReplyChecker, TsigError};
use crate::dns::zone::Zone;
use crate::dns::zone::memory::ZoneMemory;
use crate::dns::zone::received::{TransferError, TransferReader, serial_in};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a message may take to arrive, and the query to leave.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);
/// The number of messages that have arrived and aren't read yet.
const MAX_UNREAD: usize = 4;

/// Why a primary server gives no zone.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("the connection has failed: {0}")]
    Connection(io::Error),
    #[error("no message within {} s", MESSAGE_TIMEOUT.as_secs())]
    Silent,
    #[error("the transfer has taken more than {} s", TRANSFER_TIMEOUT.as_secs())]
    Slow,
    #[error("its serial {theirs} is older than {own}")]
    Older { theirs: u32, own: u32 },
    #[error("{0}")]
    Answer(#[from] TransferError),
    #[error("{0}")]
    Signature(#[from] TsigError),
    /// The transfer had begun.
    #[error("{0}")]
    Begun(Box<Self>),
    #[error("the zone can't be read: {0}")]
    Panic(#[from] JoinError),
}

impl ClientError {
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Answer(TransferError::Rcode(_) | TransferError::Mismatch)
            | Self::Connect(_)
            | Self::Connection(_)
            | Self::Silent
            | Self::Signature(_)
            | Self::Older { .. } => Failure::NoAnswer,
            Self::Answer(_) | Self::Begun(_) | Self::Slow | Self::Panic(_) => Failure::RefusedZone,
        }
    }
}

/// A connection for one question.
struct Connection {
    stream: TcpStream,
    id: u16,
}

impl Connection {
    /// Sends a question for a zone, whose origin is in wire form, signed with the key, if there is one. Also returns what
    /// checks the answer.
    async fn open(
        primary: SocketAddr,
        origin: &[u8],
        qtype: RecordType,
        key: Option<Arc<Key>>,
    ) -> Result<(Self, Signatures), ClientError> {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(primary)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it takes more than 5 s");
        let mut stream = connected.unwrap_or_else(|_| Err(late())).map_err(ClientError::Connect)?;
        let id = rand::random();
        let mut query = query(id, origin, qtype);
        let signatures = Signatures(key.map(|key| ReplyChecker::sign(key, &mut query, tsig::now())));
        let length = u16::try_from(query.len()).unwrap_or_default().to_be_bytes();
        let framed = [&length[..], &query].concat();
        let sent = timeout(MESSAGE_TIMEOUT, stream.write_all(&framed)).await;
        sent.map_err(|_| ClientError::Silent)?.map_err(ClientError::Connection)?;
        Ok((Self { stream, id }, signatures))
    }

    /// Returns the next message, of at most 64 KiB.
    async fn message(&mut self) -> Result<Vec<u8>, ClientError> {
        let reading = async {
            let length = self.stream.read_u16().await?;
            let mut message = vec![0; length.into()];
            self.stream.read_exact(&mut message).await?;
            Ok(message)
        };
        let read = timeout(MESSAGE_TIMEOUT, reading).await.map_err(|_| ClientError::Silent)?;
        read.map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => TransferError::Incomplete.into(),
            _ => ClientError::Connection(error),
        })
    }
}

/// Checks the signatures of an answer, if the question is signed.
struct Signatures(Option<ReplyChecker>);

impl Signatures {
    /// Checks the next message, and removes its signature.
    fn check(&mut self, message: &mut Vec<u8>) -> Result<(), TsigError> {
        self.0.as_mut().map_or(Ok(()), |checker| checker.check(message, tsig::now()))
    }

    /// Checks that the last message was signed.
    fn end(&self) -> Result<(), TsigError> {
        if self.0.as_ref().is_none_or(ReplyChecker::may_end) { Ok(()) } else { Err(TsigError::Unsigned) }
    }
}

fn query(id: u16, origin: &[u8], qtype: RecordType) -> Vec<u8> {
    let numbers = [qtype.into(), DNSClass::IN.into()].map(u16::to_be_bytes);
    [&id.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], origin, numbers.as_flattened()].concat()
}

/// Returns the serial that a primary server has. `origin` is in wire form, in lower case.
pub(super) async fn serial(
    primary: SocketAddr,
    origin: &[u8],
    key: Option<Arc<Key>>,
) -> Result<u32, ClientError> {
    let (mut connection, mut signatures) = Connection::open(primary, origin, RecordType::SOA, key).await?;
    let mut message = connection.message().await?;
    signatures.check(&mut message)?;
    Ok(serial_in(&message, origin, connection.id)?)
}

/// Transfers a zone, and writes its messages to a copy. The zone is made on a thread that may block.
pub(super) async fn transfer(
    primary: SocketAddr,
    origin: &[u8],
    key: Option<Arc<Key>>,
    copy: Option<NewCopy>,
    memory: ZoneMemory,
) -> Result<(Zone, Option<NewCopy>), ClientError> {
    let has_begun = Arc::new(AtomicBool::new(false));
    let transfer = async {
        let (connection, signatures) = Connection::open(primary, origin, RecordType::AXFR, key).await?;
        let (sender, messages) = mpsc::channel(MAX_UNREAD);
        let reader = TransferReader::new(origin, Some(connection.id), memory);
        let begun = Arc::clone(&has_begun);
        let mut building = spawn_blocking(move || build(reader, signatures, messages, copy, &begun));
        let broken = tokio::select! {
            built = &mut building => return built?,
            broken = receive(connection, sender) => broken,
        };
        match (building.await?, broken) {
            // The reader has no error of its own.
            (Err(ClientError::Answer(TransferError::Incomplete)), Some(broken)) => Err(broken),
            (built, _) => built,
        }
    };
    let ended = timeout(TRANSFER_TIMEOUT, transfer).await.unwrap_or(Err(ClientError::Slow));
    ended.map_err(
        |error| {
            if has_begun.load(Ordering::Relaxed) { ClientError::Begun(Box::new(error)) } else { error }
        },
    )
}

/// Passes messages on, until the reader has ended, or the connection is broken.
async fn receive(mut connection: Connection, sender: mpsc::Sender<Vec<u8>>) -> Option<ClientError> {
    loop {
        match connection.message().await {
            Ok(message) => sender.send(message).await.ok()?,
            Err(error) => return Some(error),
        }
    }
}

fn build(
    mut reader: TransferReader,
    mut signatures: Signatures,
    mut messages: mpsc::Receiver<Vec<u8>>,
    mut copy: Option<NewCopy>,
    has_begun: &AtomicBool,
) -> Result<(Zone, Option<NewCopy>), ClientError> {
    while let Some(mut message) = messages.blocking_recv() {
        signatures.check(&mut message)?;
        let is_last = reader.read(&message)?;
        has_begun.store(true, Ordering::Relaxed);
        copy.iter_mut().for_each(|copy| copy.add(&message));
        if is_last {
            signatures.end()?;
            break;
        }
    }
    Ok((reader.finish()?, copy))
}

#[cfg(test)]
mod tests;
