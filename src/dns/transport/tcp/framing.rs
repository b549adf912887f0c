//! Messages in a byte stream, each preceded by its length (RFC 1035 section 4.2.2). Empty buffers hold no memory.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::dns::transport::client_quota::QuotaGuard;
use crate::dns::transport::connections::limits::MAX_QUERY_BYTES;

const READ_BYTES: usize = 2048;
/// The number of unwritten bytes from which no further answers are added to a client's output.
const BATCH_BYTES: usize = 4096;

/// Bytes that were read from a client but not processed yet.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    consumed: usize,
    /// When the first unprocessed byte was read, or the preceding message was processed.
    since: Option<Instant>,
}

impl ReadBuffer {
    /// Waits for data, and returns the number of bytes that were read; 0 means the end of the stream. Dropping the
    /// future loses no data.
    pub async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        let read = std::future::poll_fn(|context| {
            // On the stack, and only during a read, so that idle connections have no buffer.
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

    /// Returns the first message, if it is complete.
    ///
    /// # Errors
    /// If the message is longer than the maximum.
    pub fn first(&self) -> io::Result<Option<&[u8]>> {
        let Some((rest, length)) = self.length() else { return Ok(None) };
        if length > usize::from(MAX_QUERY_BYTES) {
            return Err(io::Error::other(format!("a query of {length} bytes is too long")));
        }
        Ok(rest.get(..length))
    }

    pub fn advance(&mut self, now: Instant) {
        let Some((_, length)) = self.length() else { return };
        self.consumed += 2 + length;
        if self.consumed >= self.bytes.len() {
            *self = Self::default();
        } else {
            self.since = Some(now);
        }
    }

    /// Returns whether there is a complete message, or one that exceeds the maximum.
    pub fn has_message(&self) -> bool {
        let is_over = |length| length > usize::from(MAX_QUERY_BYTES);
        self.length().is_some_and(|(rest, length)| rest.len() >= length || is_over(length))
    }

    /// Returns since when an incomplete message has been arriving; `None` if there is none.
    pub fn partial_since(&self) -> Option<Instant> {
        self.since.filter(|_| !self.has_message())
    }

    fn length(&self) -> Option<(&[u8], usize)> {
        let (length, rest) = self.bytes.get(self.consumed..)?.split_first_chunk()?;
        Some((rest, u16::from_be_bytes(*length).into()))
    }
}

/// Answers on their way to a client.
#[derive(Debug, Default)]
pub(super) struct WriteHalf {
    /// The batch that is being written, if `since` is set.
    batch: WriteBatch,
    written: usize,
    since: Option<Instant>,
    next: VecDeque<WriteBatch>,
    /// The size of all batches, in bytes.
    size: usize,
}

/// Answers that are written together: a batch ends with the answer that makes it reach [`BATCH_BYTES`]. The write
/// timeout thus applies to one large answer, or to a number of small ones.
#[derive(Debug, Default)]
struct WriteBatch {
    bytes: Vec<u8>,
    held: Vec<QuotaGuard>,
}

impl WriteHalf {
    /// Adds an answer, with the quota of its unread bytes. Every encoded answer fits the length prefix.
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

    /// Writes the first batch, to which [`WriteHalf::since`] refers. Dropping the future and calling again neither
    /// loses nor repeats data.
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
        // TLS buffers data itself.
        writer.flush().await?;
        self.size -= self.batch.bytes.len();
        (self.batch, self.written, self.since) = Default::default();
        if self.next.is_empty() {
            *self = Self::default();
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.since.is_none() && self.next.is_empty()
    }

    /// Returns whether no further answers should be added for now.
    pub fn is_full(&self) -> bool {
        self.size >= BATCH_BYTES
    }

    /// Returns since when the client has been expected to read the first batch.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn buffers_are_freed_once_all_is_written() {
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
