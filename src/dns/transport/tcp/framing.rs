//! Messages in a stream of bytes, each behind its length (RFC 1035 section 4.2.2). Neither direction
//! keeps memory while there is nothing in it.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::dns::transport::client_quota::QuotaGuard;

/// The longest question that is taken.
const MAX_QUERY_BYTES: usize = 4096;
/// Bytes that are read at once.
const READ_BYTES: usize = 2048;
/// With so many bytes on their way to a client, it gets no more before it has read them.
const BATCH_BYTES: usize = 4096;

/// What has come from a client and isn't taken yet.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    taken: usize,
    /// When what is there began to come.
    since: Option<Instant>,
}

impl ReadBuffer {
    /// Reads what there is, at least one byte; returns 0 at the end of the stream. Nothing is lost
    /// when this is dropped.
    pub async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        let read = std::future::poll_fn(|context| {
            // On the stack, and only while there is something to read: idle connections need none.
            let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
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

    /// Returns the first message, if there is a whole one.
    ///
    /// # Errors
    /// If it is longer than any that is taken.
    pub fn first(&self) -> io::Result<Option<&[u8]>> {
        let Some((rest, length)) = self.length() else { return Ok(None) };
        if length > MAX_QUERY_BYTES {
            return Err(io::Error::other(format!("a question of {length} bytes")));
        }
        Ok(rest.get(..length))
    }

    /// Goes on to the next message, if there is one.
    pub fn advance(&mut self, now: Instant) {
        let Some((_, length)) = self.length() else { return };
        self.taken += 2 + length;
        if self.taken >= self.bytes.len() {
            *self = Self::default();
        } else {
            self.since = Some(now);
        }
    }

    /// Whether there is a message to take, or what can't become one.
    pub fn is_whole(&self) -> bool {
        self.length().is_some_and(|(rest, length)| rest.len() >= length || length > MAX_QUERY_BYTES)
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
pub(super) struct WriteHalf {
    /// What is written first, if writing has begun.
    batch: WriteBatch,
    written: usize,
    since: Option<Instant>,
    next: VecDeque<WriteBatch>,
    /// Bytes of all of them.
    size: usize,
}

/// Answers that are written together: it ends with the answer that makes it [`BATCH_BYTES`]. So the time that
/// a client is given for it is for one big answer, or for as many small ones.
#[derive(Debug, Default)]
struct WriteBatch {
    bytes: Vec<u8>,
    held: Vec<QuotaGuard>,
}

impl WriteHalf {
    /// Adds an answer, which may have a share of what may be unread. There is none that doesn't fit.
    pub fn push(&mut self, answer: &[u8], held: Option<QuotaGuard>) {
        let Ok(length) = u16::try_from(answer.len()) else { return };
        if self.next.back().is_none_or(|last| last.bytes.len() >= BATCH_BYTES) {
            self.next.push_back(WriteBatch::default());
        }
        if let Some(last) = self.next.back_mut() {
            last.bytes.extend_from_slice(&length.to_be_bytes());
            last.bytes.extend_from_slice(answer);
            last.held.extend(held);
        }
        self.size += 2 + answer.len();
    }

    /// Writes what comes first, which [`WriteHalf::since`] is about. Nothing is lost or written twice when
    /// this is dropped and called again.
    pub async fn write(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if self.since.is_none() {
            let Some(batch) = self.next.pop_front() else { return Ok(()) };
            (self.batch, self.since) = (batch, Some(Instant::now()));
        }
        while let Some(rest) = self.batch.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match writer.write(rest).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => self.written += written,
            }
        }
        // TLS has buffers of its own.
        writer.flush().await?;
        self.size -= self.batch.bytes.len();
        (self.batch, self.written, self.since) = Default::default();
        if self.next.is_empty() {
            *self = Self::default();
        }
        Ok(())
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.since.is_none() && self.next.is_empty()
    }

    /// Whether nothing should be added just now.
    pub fn is_full(&self) -> bool {
        self.size >= BATCH_BYTES
    }

    /// Since when the client should have been reading what comes first.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_kept_once_all_is_written() {
        let mut output = WriteHalf::default();
        output.push(&[0; 9000], None);
        output.push(&[0; 20], None);
        assert!(output.is_full());
        assert_eq!(output.next.len(), 2);
        while !output.is_empty() {
            output.write(&mut tokio::io::sink()).await.unwrap();
        }
        assert!(!output.is_full());
        assert_eq!(output.next.capacity(), 0);
    }
}
