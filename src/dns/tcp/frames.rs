//! Messages in a stream of bytes, each behind its length (RFC 1035 section 4.2.2). Neither direction
//! keeps memory while there is nothing in it.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use super::places::{Answer, Held};

/// The longest question that is taken.
const MAX_QUESTION: usize = 4096;
/// Bytes that are read at once.
const READ: usize = 2048;
/// With so many bytes on their way to a client, it gets no more before it has read them.
const FULL: usize = 4096;

/// What has come from a client and isn't taken yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    taken: usize,
    /// When what is there began to come.
    since: Option<Instant>,
}

impl Input {
    /// Reads what there is, at least one byte; returns 0 at the end of the stream. Nothing is lost
    /// when this is dropped.
    pub async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        let read = std::future::poll_fn(|context| {
            // On the stack, and only while there is something to read: idle connections need none.
            let mut bytes = [MaybeUninit::uninit(); READ];
            let mut buffer = ReadBuf::uninit(&mut bytes);
            Pin::new(&mut *reader).poll_read(context, &mut buffer).map_ok(|()| {
                self.bytes.extend_from_slice(buffer.filled());
                buffer.filled().len()
            })
        })
        .await?;
        self.since.get_or_insert_with(Instant::now);
        Ok(read)
    }

    /// Takes a message, if there is a whole one.
    pub fn take(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some((rest, length)) = self.length() else { return Ok(None) };
        if length > MAX_QUESTION {
            return Err(io::Error::other(format!("a question of {length} bytes")));
        }
        let Some(message) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.taken += 2 + length;
        self.since = (self.taken < self.bytes.len()).then(Instant::now);
        if self.since.is_none() {
            *self = Self::default();
        }
        Ok(Some(message))
    }

    /// Whether there is a message to take, or what can't become one.
    pub fn is_whole(&self) -> bool {
        self.length().is_some_and(|(rest, length)| rest.len() >= length || length > MAX_QUESTION)
    }

    /// Since when a message has been coming that isn't whole yet.
    pub fn half_since(&self) -> Option<Instant> {
        self.since.filter(|_| !self.is_whole())
    }

    fn length(&self) -> Option<(&[u8], usize)> {
        let (length, rest) = self.bytes.get(self.taken..)?.split_first_chunk()?;
        Some((rest, u16::from_be_bytes(*length).into()))
    }
}

/// What is on its way to a client.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    written: usize,
    held: Vec<Held>,
    since: Option<Instant>,
    /// What has been added since then.
    next: Vec<u8>,
    next_held: Vec<Held>,
}

impl Output {
    /// Adds an answer. There is none that doesn't fit.
    pub fn push(&mut self, answer: Answer) {
        let Ok(length) = u16::try_from(answer.bytes.len()) else { return };
        self.next.extend_from_slice(&length.to_be_bytes());
        self.next.extend_from_slice(&answer.bytes);
        self.next_held.extend(answer.held);
    }

    /// Writes all of it. Nothing is lost or written twice when this is dropped and called again.
    pub async fn write(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        while !self.is_empty() {
            if self.since.is_none() {
                self.bytes = std::mem::take(&mut self.next);
                self.held = std::mem::take(&mut self.next_held);
                self.since = Some(Instant::now());
            }
            while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
                match writer.write(rest).await? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    written => self.written += written,
                }
            }
            // TLS has buffers of its own.
            writer.flush().await?;
            (self.bytes, self.written, self.since) = (Vec::new(), 0, None);
            self.held.clear();
        }
        Ok(())
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.since.is_none() && self.next.is_empty()
    }

    /// Whether nothing should be added just now.
    pub fn is_full(&self) -> bool {
        self.bytes.len() + self.next.len() >= FULL
    }

    /// Since when the client should have been reading.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }
}
