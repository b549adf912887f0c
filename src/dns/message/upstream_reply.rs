//! Checks whether a reply of an upstream belongs to a query, and reads it.

use hickory_proto::op::ResponseCode;

use super::header::{HEADER, question};
use super::wire::{WireError, WireMessage};

/// The result of matching a message from an upstream with a query.
#[derive(Debug)]
pub enum UpstreamReply {
    /// An answer, or an error response of the upstream.
    Answer(Box<WireMessage>),
    /// A reply with TC set; `Err` if its records can't be used.
    Truncated(Result<Box<WireMessage>, WireError>),
    /// A reply to the query that isn't accepted.
    Malformed(WireError),
    /// A message that isn't the reply to the query.
    Mismatch,
}

/// Parses the reply to the query `sent`: id and question must match (RFC 5452 section 9.1). The kernel has already
/// matched address and port.
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
    match message.map(Box::new) {
        Ok(message) if reply[2] & 0x02 != 0 => UpstreamReply::Truncated(Ok(message)),
        Ok(message) => UpstreamReply::Answer(message),
        // The cut may be inside a record, or inside its owner.
        Err(error @ (WireError::Cut | WireError::Owner | WireError::Incomplete)) if reply[2] & 0x02 != 0 => {
            UpstreamReply::Truncated(Err(error))
        }
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

    #[test]
    fn reply_is_answer_truncated_cut_malformed_or_mismatch() {
        let sent = query("a.example.");
        let mut answer = sent.clone();
        answer[2] |= 0x80;
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut reply = answer.clone();
            change(&mut reply);
            match parse_reply(&sent, &reply) {
                UpstreamReply::Answer(_) => "answer",
                UpstreamReply::Truncated(Ok(_)) => "truncated",
                UpstreamReply::Truncated(Err(_)) => "cut",
                UpstreamReply::Malformed(_) => "malformed",
                UpstreamReply::Mismatch => "mismatch",
            }
        };
        assert_eq!(with(&|_| {}), "answer");
        assert_eq!(with(&|reply| reply[13] = b'A'), "answer", "another case");
        assert_eq!(with(&|reply| reply[2] |= 2), "truncated");
        let cut = |reply: &mut Vec<u8>| {
            reply[2] |= 2;
            reply[7] = 1;
            reply.extend([0xc0, 12, 0]);
        };
        assert_eq!(with(&cut), "cut", "TC in the middle of a record");
        let incomplete = |reply: &mut Vec<u8>| {
            reply[2] |= 2;
            reply[7] = 1;
            // An address whose owner is a pointer forwards.
            reply.extend([0xc0, 0xff, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
        };
        assert_eq!(with(&incomplete), "cut", "TC, and no answer that can be read");
        assert_eq!(with(&|reply| reply[7] = 1), "malformed");
        assert_eq!(with(&|reply| reply[0] ^= 1), "mismatch", "id");
        assert_eq!(with(&|reply| reply[2] &= 0x7f), "mismatch", "a query");
        assert_eq!(with(&|reply| reply[2] |= 0x10), "mismatch", "opcode");
        assert_eq!(with(&|reply| reply[13] = b'b'), "mismatch", "name");
        assert_eq!(with(&|reply| *reply.iter_mut().nth_back(2).unwrap() = 28), "mismatch", "type");
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
