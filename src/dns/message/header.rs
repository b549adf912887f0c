//! Rules that apply to every message: which messages get no reply, and which get an error reply without being decoded.

/// The size of a header in bytes (RFC 1035 section 4.1.1).
pub(crate) const HEADER: usize = 12;
/// A compression pointer to the question's name, which follows the header (RFC 1035 section 4.1.4).
pub(crate) const QUESTION_NAME: [u8; 2] = [0xc0, HEADER as u8];
/// The size in bytes that every client accepts by UDP (RFC 1035 section 4.2.1).
pub(crate) const MIN_UDP: u16 = 512;
/// The maximum size of a UDP reply in bytes, unless the plugin *bufsize* sets another one, and the size that lb-linker
/// advertises: nearly every path carries messages of this size unfragmented (DNS flag day 2020).
pub const MAX_UDP: u16 = 1232;

/// The type of an OPT record (RFC 6891 section 6.1.1).
const OPT: [u8; 2] = 41_u16.to_be_bytes();
/// The size of an OPT record without options, in bytes (RFC 6891 section 6.1.2).
pub(crate) const OPT_LENGTH: usize = 11;

/// The code of a client subnet option that [`disable_empty_subnets`] has disabled: it is reserved, so it has no other
/// use (RFC 6891 section 9).
pub(crate) const EMPTY_SUBNET: u16 = 65535;

/// The result of the check of a message before it is decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum HeaderCheck {
    Question,
    Reply(Vec<u8>),
    Drop,
}

/// Checks a message by its header alone. Responses never get a reply, because two servers would reply to each other
/// forever.
#[must_use]
pub fn check_header(message: &[u8]) -> HeaderCheck {
    const FORMERR: u8 = 1;
    const NOTIMP: u8 = 4;
    const QUERY: u8 = 0;
    /// RFC 1996 section 4.1.
    const NOTIFY: u8 = 4;
    if message.len() < HEADER || message[2] & 0x80 != 0 {
        return HeaderCheck::Drop;
    }
    let count = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    let (questions, answers, authorities, additionals) = (count(4), count(6), count(8), count(10));
    if !matches!((message[2] >> 3) & 0x0f, QUERY | NOTIFY) {
        return HeaderCheck::Reply(error_reply(message, NOTIMP));
    }
    // More than one question has no meaning (RFC 9619); the other limits are CoreDNS's.
    if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
        return HeaderCheck::Reply(error_reply(message, FORMERR));
    }
    HeaderCheck::Question
}

/// Returns whether a message is a query with one question that is readable.
#[must_use]
pub(crate) fn is_query(message: &[u8]) -> bool {
    message.len() >= HEADER && message[2] & 0x80 == 0 && question(message).is_some()
}

/// Returns the reply to a message that can't be decoded: FORMERR, with the question if that is readable.
#[must_use]
pub fn format_error(message: &[u8]) -> Vec<u8> {
    error_reply(message, 1)
}

/// Returns the reply to a message that can't be processed: SERVFAIL; `None` if the message has no complete header.
#[must_use]
pub fn server_failure(message: &[u8]) -> Option<Vec<u8>> {
    (message.len() >= HEADER).then(|| error_reply(message, 2))
}

/// Returns an error reply. RFC 6891 section 7: a query with OPT gets OPT, even if the query's OPT is malformed; a reply
/// without OPT would mean that the server doesn't support EDNS.
fn error_reply(message: &[u8], rcode: u8) -> Vec<u8> {
    let (question, asked_edns) = (question(message), dnssec_ok_of(message));
    let mut reply = Vec::with_capacity(HEADER + question.map_or(0, <[u8]>::len) + 11);
    reply.extend_from_slice(&message[..2]);
    // QR is set; opcode, RD and CD (RFC 4035 section 3.2.2) are copied.
    reply.push(0x80 | (message[2] & 0x79));
    reply.push((message[3] & 0x10) | rcode);
    let (questions, additionals) = (u8::from(question.is_some()), u8::from(asked_edns.is_some()));
    reply.extend_from_slice(&[0, questions, 0, 0, 0, 0, 0, additionals]);
    reply.extend_from_slice(question.unwrap_or_default());
    if let Some(dnssec_ok) = asked_edns {
        reply.extend_from_slice(&opt(dnssec_ok));
    }
    reply
}

/// Returns an OPT record (RFC 6891 section 6.1.2): the root, type, size, rcode and version 0, flags, no options.
pub(crate) const fn opt(dnssec_ok: bool) -> [u8; OPT_LENGTH] {
    let ([type_high, type_low], [size_high, size_low]) = (OPT, MAX_UDP.to_be_bytes());
    let flags = (dnssec_ok as u8) << 7;
    [0, type_high, type_low, size_high, size_low, 0, 0, flags, 0, 0, 0]
}

/// Disables each client subnet option of family 0 and prefix length 0: the option gets a code that isn't interpreted.
/// hickory-proto refuses a message with such an option. `dig +subnet=0` sends it, to ask that no subnet is passed on
/// (RFC 7871 section 7.1.2); lb-linker passes on no option of a client.
pub(crate) fn disable_empty_subnets(message: &mut [u8]) {
    const CLIENT_SUBNET: [u8; 2] = 8_u16.to_be_bytes();
    let Some(opt) = opt_of(message) else { return };
    let length = usize::from(u16::from_be_bytes([message[opt + 8], message[opt + 9]]));
    let Some(mut options) = message.get_mut(opt + 10..opt + 10 + length) else { return };
    while let Some((option, rest)) = options.split_first_chunk_mut::<4>() {
        let length = usize::from(u16::from_be_bytes([option[2], option[3]]));
        let Some((data, rest)) = rest.split_at_mut_checked(length) else { return };
        if option[..2] == CLIENT_SUBNET && data.len() >= 4 && data[..3] == [0; 3] {
            option[..2].copy_from_slice(&EMPTY_SUBNET.to_be_bytes());
        }
        options = rest;
    }
}

/// Returns whether the message has this EDNS option.
pub(crate) fn has_option(message: &[u8], code: u16) -> bool {
    let Some(opt) = opt_of(message) else { return false };
    let mut options = message.get(opt + 10..).unwrap_or_default();
    let length = usize::from(u16::from_be_bytes([message[opt + 8], message[opt + 9]]));
    options = options.get(..length).unwrap_or(options);
    while let Some((option, rest)) = options.split_first_chunk::<4>() {
        if option[..2] == code.to_be_bytes() {
            return true;
        }
        options = rest.get(usize::from(u16::from_be_bytes([option[2], option[3]]))..).unwrap_or_default();
    }
    false
}

/// Returns the DO bit if the message has an OPT record.
fn dnssec_ok_of(message: &[u8]) -> Option<bool> {
    opt_of(message).map(|opt| message[opt + 6] & 0x80 != 0)
}

/// Returns where the type, class, TTL and length of the OPT record begin, if the message has one. They are complete.
/// Record data isn't parsed, because it may be malformed.
fn opt_of(message: &[u8]) -> Option<usize> {
    let count = |at: usize| {
        message.get(at..at + 2).map(|count| usize::from(u16::from_be_bytes([count[0], count[1]])))
    };
    let mut at = HEADER;
    for _ in 0..count(4)? {
        at = after_name(message, at)? + 4;
    }
    let others = count(6)? + count(8)?;
    for number in 0..others + count(10)? {
        let name = at;
        at = after_name(message, at)?;
        // Type, class, TTL, length.
        let fixed = message.get(at..at + 10)?;
        if number >= others && message[name] == 0 && fixed[..2] == OPT {
            return Some(at);
        }
        at += 10 + usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
    }
    None
}

/// Returns the end of the name that begins at `at`.
pub(super) fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            // A pointer ends a name (RFC 1035 section 4.1.4).
            0xc0..=0xff => return Some(at + 2),
            _ => return None,
        }
    }
}

/// Returns the bytes of the question, if the message has exactly one question and it is complete.
pub(crate) fn question(message: &[u8]) -> Option<&[u8]> {
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
            // A compression pointer is invalid here: no name precedes the question.
            _ => return None,
        }
        // RFC 1035 section 2.3.4.
        if at - HEADER > 254 {
            return None;
        }
    }
    message.get(HEADER..at + 4)
}

#[cfg(test)]
pub(super) mod tests {
    use hickory_proto::op::{Edns, Message, Query};
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    /// Returns a query for the A records of a name.
    pub(in crate::dns::message) fn query(name: &str) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 0x1234;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    #[test]
    fn queries_pass_and_responses_get_no_reply() {
        let mut message = query("a.example.");
        assert_eq!(check_header(&message), HeaderCheck::Question);
        assert!(is_query(&message) && !is_query(&message[..message.len() - 1]));
        message[2] |= 0x80;
        assert_eq!(check_header(&message), HeaderCheck::Drop);
        assert_eq!(check_header(&message[..11]), HeaderCheck::Drop);
        assert!(!is_query(&message) && !is_query(&message[..11]));
    }

    #[test]
    fn status_gets_notimp_and_two_questions_get_formerr() {
        let sent = query("a.example.");
        let mut status = sent.clone();
        status[2] |= 2 << 3;
        let HeaderCheck::Reply(reply) = check_header(&status) else { panic!() };
        // QR, the opcode and RD; NOTIMP; one question and no records.
        assert_eq!(reply[..12], [0x12, 0x34, 0x91, 4, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reply[12..], sent[12..]);

        let mut with_edns = Message::from_vec(&sent).unwrap();
        let mut edns = Edns::new();
        edns.set_dnssec_ok(true);
        with_edns.set_edns(edns);
        let mut status = with_edns.to_vec().unwrap();
        status[2] |= 2 << 3;
        let HeaderCheck::Reply(reply) = check_header(&status) else { panic!() };
        let reply = Message::from_vec(&reply).unwrap();
        assert_eq!(reply.max_payload(), MAX_UDP, "a query with OPT gets OPT");
        assert!(reply.edns.unwrap().flags().dnssec_ok, "RFC 3225 section 3");

        let mut two = sent.clone();
        two[5] = 2;
        let HeaderCheck::Reply(reply) = check_header(&two) else { panic!() };
        assert_eq!(reply, [0x12, 0x34, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn truncated_question_isnt_echoed() {
        let sent = query("a.example.");
        assert_eq!(format_error(&sent[..sent.len() - 1])[5], 0);
        let mut pointing = sent;
        pointing[12] = 0xc0;
        assert_eq!(format_error(&pointing).len(), 12);
    }

    #[test]
    fn empty_client_subnet_does_not_prevent_decoding() {
        let with_options = |options: &[u8]| {
            let mut message = Message::from_vec(&query("a.example.")).unwrap();
            message.set_edns(Edns::new());
            let mut message = message.to_vec().unwrap();
            *message.last_mut().unwrap() = u8::try_from(options.len()).unwrap();
            message.extend(options);
            message
        };
        let is_decoded = |options: &[u8]| {
            let mut message = with_options(options);
            disable_empty_subnets(&mut message);
            Message::from_vec(&message).is_ok()
        };
        let (empty, other) = ([0, 8, 0, 4, 0, 0, 0, 0], [0, 10, 0, 2, 1, 2]);
        assert!(Message::from_vec(&with_options(&empty)).is_err());
        assert!(is_decoded(&empty));
        assert!(is_decoded(&[&other[..], &empty, &other, &empty].concat()));
        // Families 0 and 3 with a prefix length, and an incomplete option, stay malformed.
        for malformed in [&[0, 8, 0, 4, 0, 0, 8, 0][..], &[0, 8, 0, 4, 0, 3, 0, 0], &[0, 8, 0, 3, 0, 0, 0]] {
            assert!(!is_decoded(malformed), "{malformed:?}");
        }
        // Other subnets, an option longer than the record, and messages without options stay as they are.
        let (subnet, longer) = ([0, 8, 0, 7, 0, 1, 24, 0, 10, 0, 0], [0, 8, 0, 5, 0, 0, 0, 0]);
        for message in [with_options(&subnet), with_options(&longer), with_options(&[]), query("a.example.")]
        {
            let mut disabled = message.clone();
            disable_empty_subnets(&mut disabled);
            assert_eq!(disabled, message);
        }
    }

    #[test]
    fn reply_to_malformed_opt_contains_opt() {
        let mut sent = Message::from_vec(&query("a.example.")).unwrap();
        sent.metadata.checking_disabled = true;
        sent.set_edns(Edns::new());
        let sent = sent.to_vec().unwrap();
        let has_opt = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut message = sent.clone();
            change(&mut message);
            assert!(Message::from_vec(&message).is_err());
            let reply = Message::from_vec(&format_error(&message)).unwrap();
            assert!(reply.metadata.checking_disabled);
            reply.edns.is_some()
        };
        // RFC 6891 section 7: an option that is longer than the record.
        assert!(has_opt(&|message| {
            *message.last_mut().unwrap() = 4;
            message.extend([0, 10, 0, 8]);
        }));
        // Section 6.1.1: two OPT records.
        assert!(has_opt(&|message| {
            message[11] = 2;
            let opt = message[message.len() - 11..].to_vec();
            message.extend(opt);
        }));
        // A truncated record after the OPT record.
        assert!(has_opt(&|message| message[11] = 2));
        // A truncated OPT record.
        assert!(!has_opt(&|message| message.truncate(message.len() - 5)));
        // A record of type OPT in another section isn't OPT.
        assert!(!has_opt(&|message| message.swap(7, 11)));
    }
}
