//! Encodes a reply in as many messages as its records need: a zone transfer (RFC 5936 section 2.2).

use std::fmt;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Metadata, Query};
use hickory_proto::rr::DNSClass;
use thiserror::Error;

use super::opt_record;
use super::typed::{header, write_header_and_question};
use crate::dns::message::compress::{CompressingWriter, fixed};
use crate::dns::message::header::HEADER;
use crate::dns::message::reply::Reply;
use crate::dns::message::tsig::{self, Signer};
use crate::dns::message::zone_record::{ZoneRecord, ZoneRecords};

/// The maximum size of a message with several records, in bytes: compression pointers don't reach farther (RFC 1035 section
/// 4.1.4).
const MAX_MESSAGE: usize = 16 << 10;
/// The maximum size of a message with one record, in bytes, without OPT. The rest has room for a signature (RFC 8945).
const MAX_RECORD: usize = u16::MAX as usize - 1024;

/// The maximum number of names without records that are looked at for a message: each takes as long as one with records.
const MAX_WITHOUT_RECORDS: usize = 256;

/// The messages of a reply, encoded one by one.
pub struct MessageSequence {
    metadata: Metadata,
    /// In wire form. Every message has it, as in CoreDNS.
    question: Vec<u8>,
    /// The OPT record of the first message; empty if the query has none.
    opt: Vec<u8>,
    records: ZoneRecords,
    /// The record that the message before had no room for.
    left: Option<ZoneRecord>,
    /// Signs each message, if the query is signed.
    signer: Option<Box<Signer>>,
}

/// A record that no message has room for.
#[derive(Debug, Error)]
#[error("a record of type {rtype} with {length} bytes of data fits no message")]
pub struct RecordTooLong {
    rtype: u16,
    length: usize,
}

impl MessageSequence {
    /// Returns the messages of a reply whose answer section has these records.
    ///
    /// # Errors
    /// If the OPT record can't be encoded.
    pub fn new(
        reply: &Reply,
        question: &Query,
        edns: Option<&Edns>,
        records: ZoneRecords,
        signer: Option<Box<Signer>>,
    ) -> Result<Self, ProtoError> {
        let opt = edns.map(|edns| opt_record(edns, reply)).transpose()?.unwrap_or_default();
        let question = write_header_and_question(question).split_off(HEADER);
        Ok(Self { metadata: reply.metadata, question, opt, records, left: None, signer })
    }
}

impl Iterator for MessageSequence {
    type Item = Result<Vec<u8>, RecordTooLong>;

    /// Returns the next message, with as many records as it has room for; an empty one, which isn't sent, while it finds
    /// only names without records.
    fn next(&mut self) -> Option<Self::Item> {
        let mut writer = CompressingWriter::new(&self.question);
        writer.bytes.reserve(MAX_MESSAGE);
        let (mut count, mut without_records) = (0, 0);
        while let Some(record) = self.left.take().map(Some).or_else(|| self.records.next()) {
            let Some(record) = record else {
                without_records += 1;
                if without_records == MAX_WITHOUT_RECORDS {
                    break;
                }
                continue;
            };
            let ZoneRecord { owner, rtype, ttl, data } = &record;
            let room = if count == 0 { MAX_RECORD } else { MAX_MESSAGE };
            if writer.record(owner, fixed(*rtype, DNSClass::IN.into(), *ttl), data, room).is_some() {
                count += 1;
            } else if count == 0 {
                return Some(Err(RecordTooLong { rtype: *rtype, length: data.len() }));
            } else {
                self.left = Some(record);
                break;
            }
        }
        if count == 0 {
            return (without_records == MAX_WITHOUT_RECORDS).then(|| Ok(Vec::new()));
        }
        let mut bytes = writer.bytes;
        let opt = std::mem::take(&mut self.opt);
        bytes[..HEADER].copy_from_slice(&header(&self.metadata, [count, 0, u16::from(!opt.is_empty())]));
        bytes.extend(opt);
        if let Some(signer) = &mut self.signer {
            signer.sign(&mut bytes, tsig::now());
        }
        Some(Ok(bytes))
    }
}

impl fmt::Debug for MessageSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSequence").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Message, MessageType, OpCode};
    use hickory_proto::rr::{Name, RecordType};

    use super::*;
    use crate::dns::message::query::whole_wire_name;

    fn sequence(records: Vec<ZoneRecord>, edns: Option<&Edns>) -> MessageSequence {
        sequence_of(records.into_iter().map(Some), edns)
    }

    fn sequence_of(
        records: impl Iterator<Item = Option<ZoneRecord>> + Send + 'static,
        edns: Option<&Edns>,
    ) -> MessageSequence {
        let name = Name::from_ascii("example.org.").unwrap();
        let reply = Reply::new(Metadata::new(7, MessageType::Response, OpCode::Query), "");
        let question = Query::query(name, RecordType::AXFR);
        MessageSequence::new(&reply, &question, edns, Box::new(records), None).unwrap()
    }

    fn text(number: usize, length: usize) -> ZoneRecord {
        let owner = Name::from_ascii(format!("n{number}.example.org.")).unwrap();
        let data: Vec<u8> =
            std::iter::repeat_n([&[255][..], &[b'x'; 255]].concat(), length / 256).flatten().collect();
        ZoneRecord { owner: whole_wire_name(&owner).into(), rtype: 16, ttl: 60, data: data.into() }
    }

    #[test]
    fn messages_have_all_records_once_in_their_order() {
        let records: Vec<ZoneRecord> =
            (0..1000).map(|number| text(number, if number == 500 { 60 << 10 } else { 256 })).collect();
        let messages: Vec<Vec<u8>> =
            sequence(records.clone(), Some(&Edns::new())).map(Result::unwrap).collect();
        let decoded: Vec<Message> = messages.iter().map(|bytes| Message::from_vec(bytes).unwrap()).collect();
        let names = decoded.iter().flat_map(|message| &message.answers);
        let names: Vec<Vec<u8>> = names.map(|record| whole_wire_name(&record.name)).collect();
        assert!(
            names.iter().map(Vec::as_slice).eq(records.iter().map(|record| &*record.owner)),
            "{}",
            names.len()
        );
        let is_long = |bytes: &&Vec<u8>| bytes.len() > MAX_MESSAGE;
        assert_eq!(messages.iter().filter(is_long).count(), 1);
        assert!(messages.len() < 25, "{}", messages.len());
        assert!(decoded.iter().all(|message| message.metadata.id == 7 && message.queries.len() == 1));
        assert!(decoded[0].edns.is_some() && decoded[1..].iter().all(|message| message.edns.is_none()));
    }

    #[test]
    fn many_names_without_records_end_a_message() {
        let names = std::iter::repeat_n(None, 3 * MAX_WITHOUT_RECORDS - 1);
        let all = [Some(text(1, 256))].into_iter().chain(names).chain([Some(text(2, 256))]);
        let messages: Vec<Vec<u8>> = sequence_of(all, None).map(Result::unwrap).collect();
        let lengths: Vec<bool> = messages.iter().map(Vec::is_empty).collect();
        assert_eq!(lengths, [false, true, false]);
    }

    #[test]
    fn record_without_room_is_an_error() {
        let mut messages = sequence(vec![text(1, 256), text(2, 65280)], None);
        assert!(messages.next().unwrap().is_ok());
        assert!(messages.next().unwrap().is_err());
        assert!(sequence(Vec::new(), None).next().is_none());
    }
}
