//! Checks whether a reply of an upstream belongs to a query, and reads it.

use std::sync::Arc;

use hickory_proto::op::ResponseCode;

use super::header::{HEADER, question};
use super::wire::{WireError, WireMessage};

/// The result of matching a message from an upstream with a query.
#[derive(Debug)]
pub enum UpstreamReply {
    /// An answer, or an error response of the upstream.
    Answer(Arc<WireMessage>),
    /// A reply that isn't whole, with the whole records that can be used, and with TC.
    Truncated(Arc<WireMessage>),
    /// A reply to the query that isn't accepted.
    Malformed(WireError),
    /// A message that isn't the reply to the query.
    Mismatch,
}

/// Parses a datagram as the reply to the query `sent`, as [`parse_reply`] does. A datagram that the kernel has cut, or that
/// ends before the records that its header counts, is truncated: the upstream, or a box on the way, ignores the size that
/// the query has advertised.
#[must_use]
pub fn parse_datagram(sent: &[u8], datagram: &[u8], is_cut: bool) -> UpstreamReply {
    match parse_reply(sent, datagram) {
        UpstreamReply::Answer(mut message) if is_cut => {
            Arc::make_mut(&mut message).metadata.truncation = true;
            UpstreamReply::Truncated(message)
        }
        UpstreamReply::Malformed(WireError::Cut) => truncated(datagram),
        reply => reply,
    }
}

/// Parses the reply to the query `sent`: id and question must match (RFC 5452 section 9.1). For a datagram the kernel has
/// already matched address and port.
#[must_use]
pub fn parse_reply(sent: &[u8], reply: &[u8]) -> UpstreamReply {
    let is_answer = reply.len() >= HEADER
        && reply[..2] == sent[..2]
        // QR set, opcode 0.
        && reply[2] & 0xf8 == 0x80;
    if !is_answer {
        return UpstreamReply::Mismatch;
    }
    let message = match (question(sent), question(reply)) {
        (Some(sent), Some(repeated)) if is_same_question(sent, repeated) => WireMessage::new(reply),
        (_, None) => match error_without_question(sent, reply) {
            Some(error) => Ok(error),
            None => return UpstreamReply::Mismatch,
        },
        _ => return UpstreamReply::Mismatch,
    };
    let has_tc = reply[2] & 0x02 != 0;
    match message.map(Arc::new) {
        Ok(message) if has_tc => UpstreamReply::Truncated(message),
        Ok(message) => UpstreamReply::Answer(message),
        // The cut may be inside a record.
        Err(WireError::Cut | WireError::Incomplete) if has_tc => truncated(reply),
        Err(error) => UpstreamReply::Malformed(error),
    }
}

/// Returns the whole records of a reply that isn't whole.
fn truncated(reply: &[u8]) -> UpstreamReply {
    match WireMessage::truncated(reply) {
        Ok(message) => UpstreamReply::Truncated(Arc::new(message)),
        Err(error) => UpstreamReply::Malformed(error),
    }
}

/// Returns whether two questions are equal. RFC 4343: names are case-insensitive; type and class are numbers.
fn is_same_question(sent: &[u8], repeated: &[u8]) -> bool {
    let name = sent.len() - 4;
    sent.len() == repeated.len()
        && sent[..name].eq_ignore_ascii_case(&repeated[..name])
        && sent[name..] == repeated[name..]
}

/// Returns `reply`, if it is an error response without a question. Its records are left out, because nothing shows
/// which name they belong to. NOERROR and NXDOMAIN are statements about a name, so they need the question (RFC 5452
/// section 9.1).
fn error_without_question(sent: &[u8], reply: &[u8]) -> Option<WireMessage> {
    if reply[4..6] != [0, 0] {
        return None;
    }
    let error = WireMessage::without_question(reply, sent).ok()?;
    let is_error = matches!(
        error.metadata.response_code,
        ResponseCode::FormErr | ResponseCode::ServFail | ResponseCode::NotImp | ResponseCode::Refused
    );
    is_error.then_some(error)
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Edns, Message, OpCode};
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, Record};

    use super::*;
    use crate::dns::message::ede::Ede;
    use crate::dns::message::header::tests::query;
    use crate::dns::message::validity::Section;

    #[test]
    fn reply_is_answer_truncated_malformed_or_mismatch() {
        let sent = query("a.example.");
        let mut answer = sent.clone();
        answer[2] |= 0x80;
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut reply = answer.clone();
            change(&mut reply);
            kind(&parse_reply(&sent, &reply))
        };
        assert_eq!(with(&|_| {}), "answer");
        assert_eq!(with(&|reply| reply[13] = b'A'), "answer", "another case");
        assert_eq!(with(&|reply| reply[2] |= 2), "truncated");
        let cut = |reply: &mut Vec<u8>| {
            reply[2] |= 2;
            reply[7] = 1;
            reply.extend([0xc0, 12, 0]);
        };
        assert_eq!(with(&cut), "truncated", "TC in the middle of a record");
        let incomplete = |reply: &mut Vec<u8>| {
            reply[2] |= 2;
            reply[7] = 1;
            // An address whose owner is a pointer forwards.
            reply.extend([0xc0, 0xff, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
        };
        assert_eq!(with(&incomplete), "truncated", "TC, and no answer that can be read");
        assert_eq!(with(&|reply| reply[7] = 1), "malformed");
        assert_eq!(with(&|reply| reply[0] ^= 1), "mismatch", "id");
        assert_eq!(with(&|reply| reply[2] &= 0x7f), "mismatch", "a query");
        assert_eq!(with(&|reply| reply[2] |= 0x10), "mismatch", "opcode");
        assert_eq!(with(&|reply| reply[13] = b'b'), "mismatch", "name");
        assert_eq!(with(&|reply| *reply.iter_mut().nth_back(2).unwrap() = 28), "mismatch", "type");
    }

    fn kind(reply: &UpstreamReply) -> &'static str {
        match reply {
            UpstreamReply::Answer(_) => "answer",
            UpstreamReply::Truncated(_) => "truncated",
            UpstreamReply::Malformed(_) => "malformed",
            UpstreamReply::Mismatch => "mismatch",
        }
    }

    #[test]
    fn datagram_that_ends_within_a_record_is_truncated() {
        const A: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
        let sent = query("a.example.");
        let mut whole = sent.clone();
        (whole[2], whole[7], whole[9]) = (whole[2] | 0x80, 2, 1);
        whole.extend(A.repeat(3));
        assert_eq!(kind(&parse_datagram(&sent, &whole, false)), "answer");
        for end in 0..whole.len() {
            let datagram = &whole[..end];
            let Some(records) = end.checked_sub(sent.len()).map(|octets| octets / A.len()) else {
                assert_eq!(kind(&parse_datagram(&sent, datagram, true)), "mismatch", "{end}: no question");
                continue;
            };
            assert_eq!(kind(&parse_reply(&sent, datagram)), "malformed", "{end}: by TCP the length is known");
            for is_cut in [false, true] {
                let UpstreamReply::Truncated(message) = parse_datagram(&sent, datagram, is_cut) else {
                    panic!("{end}")
                };
                assert!(message.metadata.truncation);
                let counts = [message.count(Section::Answer), message.count(Section::Authority)];
                assert_eq!(counts, [records.min(2), records.saturating_sub(2)], "{end}");
            }
        }
        // The rest that the kernel has cut needn't be records.
        let UpstreamReply::Truncated(message) = parse_datagram(&sent, &whole, true) else { panic!() };
        assert!(message.metadata.truncation && message.count(Section::Answer) == 2);
        let mut unknown_label = whole.clone();
        unknown_label[sent.len()] = 0x40;
        assert_eq!(kind(&parse_datagram(&sent, &unknown_label, false)), "malformed", "it isn't cut");
        // Without its owner, the first record can't be used, and the rest might mislead.
        let mut incomplete = whole[..whole.len() - 1].to_vec();
        incomplete[sent.len()..][..2].copy_from_slice(&[0xc0, 0xff]);
        incomplete[sent.len() + A.len() + 3] = 5;
        let UpstreamReply::Truncated(message) = parse_datagram(&sent, &incomplete, false) else { panic!() };
        assert_eq!(message.count(Section::Answer), 0);
    }

    #[test]
    fn only_errors_may_lack_a_question() {
        let sent = query("a.example.");
        // FORMERR, SERVFAIL, NOTIMP, REFUSED.
        const ERRORS: [u8; 4] = [1, 2, 4, 5];
        let mut bare = sent[..HEADER].to_vec();
        bare[2] |= 0x80;
        bare[5] = 0;
        for rcode in 0..16 {
            bare[3] = rcode;
            let is_answer = matches!(parse_reply(&sent, &bare), UpstreamReply::Answer(_));
            assert_eq!(is_answer, ERRORS.contains(&rcode), "rcode {rcode}");
        }
        // BADVERS is 16: the upper bits are in the OPT record (RFC 6891 section 6.1.3).
        let mut badvers = bare.clone();
        (badvers[3], badvers[11]) = (0, 1);
        badvers.extend([0, 0, 41, 4, 208, 1, 0, 0, 0, 0, 0]);
        assert!(matches!(parse_reply(&sent, &badvers), UpstreamReply::Mismatch));
        (badvers[3], badvers[11]) = (2, 1);
        assert!(matches!(parse_reply(&sent, &badvers), UpstreamReply::Mismatch), "rcode 18 isn't SERVFAIL");
        // The OPT record can't be read, so the full rcode is unknown.
        let mut cut = bare.clone();
        (cut[3], cut[7]) = (2, 1);
        assert!(matches!(parse_reply(&sent, &cut), UpstreamReply::Mismatch));
        // Two questions, of which one equals the question of the query.
        let mut two = sent.clone();
        (two[2], two[3], two[5]) = (two[2] | 0x80, 3, 2);
        two.extend_from_slice(&sent[HEADER..]);
        assert!(matches!(parse_reply(&sent, &two), UpstreamReply::Mismatch));
    }

    #[test]
    fn errors_without_a_question_lose_their_records() {
        let sent = query("a.example.");
        let record = |name: &str| {
            Record::from_rdata(Name::from_ascii(name).unwrap(), 60, RData::A(A::new(192, 0, 2, 66)))
        };
        let mut error = Message::error_msg(0x1234, OpCode::Query, ResponseCode::ServFail);
        error.add_answer(record("a.example."));
        error.add_authority(record("ns.example."));
        error.add_additional(record("ns.example."));
        let mut edns = Edns::new();
        edns.options_mut().insert(Ede::STALE.option());
        error.set_edns(edns);
        let UpstreamReply::Answer(error) = parse_reply(&sent, &error.to_vec().unwrap()) else { panic!() };
        assert_eq!(error.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(error.decode(None).counts(), [0; 3]);
        assert_eq!(*error.extended_errors, [Ede::STALE.option()]);
    }
}
