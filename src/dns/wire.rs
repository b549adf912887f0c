//! The rules of the wire that hold whatever was asked: which messages are answered at all, EDNS,
//! and how large an answer may be.

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Query};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};
use hickory_server::net::xfer::Protocol;
use hickory_server::server::ResponseInfo;
use hickory_server::zone_handler::{MessageRequest, MessageResponse};

/// RFC 1035 section 4.1.1.
const HEADER: usize = 12;
/// RFC 1035 section 4.2.1: what every client takes by UDP.
const MIN_UDP: u16 = 512;
/// What we send by UDP at most, and say that we take: it passes every path without fragments
/// (DNS flag day 2020).
pub const MAX_UDP: u16 = 1232;

/// An Extended DNS Error (RFC 8914).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ede {
    /// The INFO-CODE.
    pub code: u16,
    /// The EXTRA-TEXT.
    pub text: &'static str,
}

impl Ede {
    /// The links aren't known yet.
    pub const NOT_READY: Self = Self { code: 14, text: "waiting for the first list of load balancers" };
    /// The target's name can't be resolved because no upstream answers.
    pub const NO_UPSTREAM: Self = Self { code: 22, text: "no upstream has answered" };
    /// A CNAME leads back to itself.
    pub const LOOP: Self = Self { code: 0, text: "the targets lead in a circle" };

    /// Returns the EDNS option.
    #[must_use]
    pub fn option(self) -> EdnsOption {
        const EDE: u16 = 15;
        EdnsOption::Unknown(EDE, [&self.code.to_be_bytes(), self.text.as_bytes()].concat())
    }
}

/// What to do with a datagram or a TCP message before anything else looks at it.
#[derive(Debug, PartialEq, Eq)]
pub enum Screened {
    /// Decode and answer it.
    Question,
    /// Send this back.
    Reply(Vec<u8>),
    /// Say nothing.
    Silence,
}

/// Looks at the header alone. Answers are never answered: two servers would talk forever.
#[must_use]
pub fn screen(message: &[u8]) -> Screened {
    const FORMERR: u8 = 1;
    const NOTIMP: u8 = 4;
    if message.len() < HEADER || message[2] & 0x80 != 0 {
        return Screened::Silence;
    }
    if (message[2] >> 3) & 0x0f != 0 {
        return Screened::Reply(refusal(message, NOTIMP));
    }
    let count = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    let (questions, answers, authorities, additionals) = (count(4), count(6), count(8), count(10));
    // More than one question has no meaning (RFC 9619); the rest is what CoreDNS lets through.
    if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
        return Screened::Reply(refusal(message, FORMERR));
    }
    Screened::Question
}

/// Returns the answer to a message that can't be decoded: FORMERR, with the question if that can
/// be read.
#[must_use]
pub fn format_error(message: &[u8]) -> Vec<u8> {
    refusal(message, 1)
}

fn refusal(message: &[u8], rcode: u8) -> Vec<u8> {
    let question = question(message);
    let mut reply = Vec::with_capacity(HEADER + question.map_or(0, <[u8]>::len));
    reply.extend_from_slice(&message[..2]);
    // QR set, opcode and RD repeated.
    reply.push(0x80 | (message[2] & 0x79));
    reply.push(rcode);
    reply.extend_from_slice(&[0, u8::from(question.is_some()), 0, 0, 0, 0, 0, 0]);
    reply.extend_from_slice(question.unwrap_or_default());
    reply
}

/// Returns the bytes of the question, if there is one and it is whole.
fn question(message: &[u8]) -> Option<&[u8]> {
    if message.get(4..6) != Some(&[0, 1]) {
        return None;
    }
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        match length {
            0 => break,
            1..=63 => at += length,
            // A pointer: there is nothing before the question to point at.
            _ => return None,
        }
        // RFC 1035 section 2.3.4.
        if at - HEADER > 254 {
            return None;
        }
    }
    message.get(HEADER..at + 4)
}

/// The sections of a response, before they are made to fit.
#[derive(Debug, Default)]
pub struct Sections {
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additionals: Vec<Record>,
}

/// Returns how many bytes the answer to `request` may have.
#[must_use]
pub fn limit(request: &MessageRequest, protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Udp => request.max_payload().clamp(MIN_UDP, MAX_UDP),
        _ => u16::MAX,
    }
}

/// Cuts the sections to what fits beside the question and OPT into `limit` bytes. Returns whether
/// TC has to be set, because records are missing from the answer or the authority section.
/// Additional records may go without a word (RFC 2181 section 9).
pub fn fit(sections: &mut Sections, question: &Query, edns: Option<&Edns>, limit: u16) -> bool {
    let mut buffer = vec![0; HEADER];
    let mut encoder = BinEncoder::with_offset(&mut buffer, HEADER as u32);
    encoder.set_max_size(limit.saturating_sub(edns.map_or(0, opt_size)));
    let mut truncated = question.emit(&mut encoder).is_err();
    let Sections { answers, authorities, additionals } = sections;
    for (section, needed) in [(answers, true), (authorities, true), (additionals, false)] {
        let all = section.len();
        let fitting = section.iter().position(|record| truncated || record.emit(&mut encoder).is_err());
        section.truncate(fitting.unwrap_or(all));
        truncated |= needed && section.len() < all;
    }
    truncated
}

/// RFC 6891 section 6.1.2: the root, type, class, TTL, length, and the options with a head each.
fn opt_size(edns: &Edns) -> u16 {
    let options: u16 = edns.options().as_ref().iter().map(|(_, option)| option.len() + 4).sum();
    11 + options
}

/// Encodes a response that [`fit`] has cut.
///
/// # Errors
/// If a record can't be encoded.
pub fn encode<'a>(
    response: MessageResponse<
        '_,
        'a,
        impl Iterator<Item = &'a Record> + Send + 'a,
        impl Iterator<Item = &'a Record> + Send + 'a,
        impl Iterator<Item = &'a Record> + Send + 'a,
        impl Iterator<Item = &'a Record> + Send + 'a,
    >,
) -> Result<(ResponseInfo, Vec<u8>), ProtoError> {
    let mut bytes = Vec::with_capacity(usize::from(MIN_UDP));
    let mut encoder = BinEncoder::new(&mut bytes);
    let info = response.destructive_emit(&mut encoder)?;
    Ok((info, bytes))
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Message;
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, RecordType};

    use super::*;

    fn query(name: &str) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 0x1234;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    #[test]
    fn a_question_is_let_through_and_an_answer_never_answered() {
        let mut message = query("a.example.");
        assert_eq!(screen(&message), Screened::Question);
        message[2] |= 0x80;
        assert_eq!(screen(&message), Screened::Silence);
        assert_eq!(screen(&message[..11]), Screened::Silence);
    }

    #[test]
    fn what_isnt_a_single_question_is_refused_with_the_question_repeated() {
        let asked = query("a.example.");
        let mut notify = asked.clone();
        notify[2] |= 4 << 3;
        let Screened::Reply(reply) = screen(&notify) else { panic!() };
        // QR, the opcode and RD; NOTIMP; one question and nothing else.
        assert_eq!(reply[..12], [0x12, 0x34, 0xa1, 4, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reply[12..], asked[12..]);

        let mut two = asked.clone();
        two[5] = 2;
        let Screened::Reply(reply) = screen(&two) else { panic!() };
        assert_eq!(reply, [0x12, 0x34, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_cut_question_isnt_repeated() {
        let asked = query("a.example.");
        assert_eq!(format_error(&asked[..asked.len() - 1])[5], 0);
        let mut pointing = asked;
        pointing[12] = 0xc0;
        assert_eq!(format_error(&pointing).len(), 12);
    }

    #[test]
    fn what_doesnt_fit_is_cut_at_records_and_opt_has_its_room() {
        let name = Name::from_ascii("many.example.").unwrap();
        let question = Query::query(name.clone(), RecordType::A);
        let address = |i: u8| Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, 2, i)));
        let edns = Edns::new();
        let sections = || Sections { answers: (0..100).map(address).collect(), ..Default::default() };
        // 12 of header, 18 of question, 16 a record, 11 of OPT.
        for (limit, edns, kept) in [(512, None, 30), (512, Some(&edns), 29), (1232, Some(&edns), 74)] {
            let mut sections = sections();
            assert!(fit(&mut sections, &question, edns, limit));
            assert_eq!(sections.answers.len(), kept);
        }
        assert!(!fit(&mut sections(), &question, None, u16::MAX));

        let mut glue = Sections { additionals: (0..100).map(address).collect(), ..Default::default() };
        assert!(!fit(&mut glue, &question, None, 512), "TC isn't for additional records");
        assert_eq!(glue.additionals.len(), 30);
    }
}
