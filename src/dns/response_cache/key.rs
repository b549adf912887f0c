//! The key of a query: queries of one client with equal keys, to one server by one transport, get the same answer
//! except for the id and the case of the name.

use crate::dns::message::header::{HEADER, MAX_UDP, MIN_UDP};

/// The maximum length of a name in bytes (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;
/// The size of the fields before the name, in bytes: flags, type and class, EDNS, size limit, length of the message,
/// and address family of the client.
const FIXED_BYTES: usize = 2 + 4 + 1 + 2 + 2 + 1;
/// The size of type, class, TTL and data length of an OPT record, in bytes (RFC 6891 section 6.1.2).
const OPT_FIXED_BYTES: usize = 10;
/// EDNS options that don't affect the answer: COOKIE (RFC 7873), edns-tcp-keepalive (RFC 7828), PADDING (RFC 7830).
const IGNORED_OPTIONS: [u16; 3] = [10, 11, 12];

/// A buffer for the key of a query, reused for all queries.
#[derive(Debug)]
pub struct WireKey {
    bytes: [u8; FIXED_BYTES + MAX_NAME],
    length: usize,
}

impl Default for WireKey {
    fn default() -> Self {
        Self { bytes: [0; FIXED_BYTES + MAX_NAME], length: 0 }
    }
}

impl WireKey {
    /// Computes the key of a message; returns `false` if only the full handler can answer the message.
    pub fn read(&mut self, message: &[u8], by_ipv6: bool) -> bool {
        self.length = 0;
        self.try_read(message, by_ipv6).is_some()
    }

    /// Returns the key; empty if there is none.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the length of the name in wire form, in bytes.
    #[must_use]
    pub fn name_length(&self) -> usize {
        self.length.saturating_sub(FIXED_BYTES)
    }

    /// Returns whether the name in the message of this key is all lower case.
    #[must_use]
    pub fn is_lower_case(&self, message: &[u8]) -> bool {
        message.get(HEADER..HEADER + self.name_length()) == Some(&self.bytes[FIXED_BYTES..self.length])
    }

    fn try_read(&mut self, message: &[u8], by_ipv6: bool) -> Option<()> {
        let header: &[u8; HEADER] = message.first_chunk()?;
        // The message must be a query with one question and at most an OPT record. The flags are part of the key.
        if header[2] & 0xf8 != 0 || header[4..10] != [0, 1, 0, 0, 0, 0] || header[10] != 0 || header[11] > 1 {
            return None;
        }
        let has_edns = header[11] == 1;
        let rest = &message[HEADER..];
        let name = read_name(rest, &mut self.bytes[FIXED_BYTES..])?;
        let question = rest.get(name..name + 4)?;
        let additional = &rest[name + 4..];
        let (edns, limit) = if has_edns { read_opt(additional)? } else { (0, MIN_UDP) };
        if !has_edns && !additional.is_empty() {
            return None;
        }
        let length = u16::try_from(message.len()).ok()?;
        let fixed = &mut self.bytes[..FIXED_BYTES];
        fixed[..2].copy_from_slice(&header[2..4]);
        fixed[2..6].copy_from_slice(question);
        fixed[6] = edns;
        fixed[7..9].copy_from_slice(&limit.to_be_bytes());
        fixed[9..11].copy_from_slice(&length.to_be_bytes());
        fixed[11] = u8::from(by_ipv6);
        self.length = FIXED_BYTES + name;
        Some(())
    }
}

/// Copies a name in lower case, and returns its length in bytes; `None` if the name is invalid.
fn read_name(bytes: &[u8], name: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let length = usize::from(*bytes.get(at)?);
        // A compression pointer (length > 63) is invalid here: no other name precedes the name of the question.
        if length > 63 || at + 1 + length > MAX_NAME {
            return None;
        }
        let label = bytes.get(at..=at + length)?;
        let copy = name.get_mut(at..=at + length)?;
        copy.copy_from_slice(label);
        copy[1..].make_ascii_lowercase();
        at += 1 + length;
        if length == 0 {
            return Some(at);
        }
    }
}

/// Parses the OPT record that ends a message. Returns its presence (1) combined with the DO bit, and the size that the
/// client accepts.
fn read_opt(bytes: &[u8]) -> Option<(u8, u16)> {
    let (name, rest) = bytes.split_first()?;
    let (opt, mut options) = rest.split_first_chunk::<OPT_FIXED_BYTES>()?;
    let is_opt = *name == 0 && opt[..2] == [0, 41];
    // The extended rcode, the version, and undefined flags must be 0.
    if !is_opt || opt[4..6] != [0, 0] || opt[6] & 0x7f != 0 || opt[7] != 0 {
        return None;
    }
    if usize::from(u16::from_be_bytes([opt[8], opt[9]])) != options.len() {
        return None;
    }
    while !options.is_empty() {
        let (head, rest) = options.split_first_chunk::<4>()?;
        if !IGNORED_OPTIONS.contains(&u16::from_be_bytes([head[0], head[1]])) {
            return None;
        }
        options = rest.get(usize::from(u16::from_be_bytes([head[2], head[3]]))..)?;
    }
    let payload = u16::from_be_bytes([opt[2], opt[3]]);
    Some((1 | opt[6], payload.clamp(MIN_UDP, MAX_UDP)))
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Edns, Message, Query};
    use hickory_proto::rr::rdata::opt::EdnsOption;
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    fn message(name: &str, change: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 0x1234;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        change(&mut message);
        message.to_vec().unwrap()
    }

    fn edns(change: impl FnOnce(&mut Edns)) -> Vec<u8> {
        message("a.example.", |message| {
            let mut edns = Edns::new();
            edns.set_max_payload(1232);
            change(&mut edns);
            message.set_edns(edns);
        })
    }

    fn key(message: &[u8]) -> Option<Vec<u8>> {
        let mut key = WireKey::default();
        key.read(message, false).then(|| key.as_bytes().to_vec())
    }

    #[test]
    fn key_ignores_only_the_id_and_the_case_of_the_name() {
        let plain = key(&message("a.example.", |_| {})).unwrap();
        assert_eq!(key(&message("A.eXample.", |message| message.metadata.id = 1)).unwrap(), plain);
        let mut seen = vec![plain];
        let mut family = WireKey::default();
        assert!(family.read(&message("a.example.", |_| {}), true));
        seen.push(family.as_bytes().to_vec());
        for other in [
            message("b.example.", |_| {}),
            message("a.example.", |message| message.metadata.recursion_desired = true),
            message("a.example.", |message| message.metadata.checking_disabled = true),
            message("a.example.", |message| {
                message.queries[0].set_query_type(RecordType::AAAA);
            }),
            edns(|_| {}),
            edns(|edns| _ = edns.set_dnssec_ok(true)),
            edns(|edns| _ = edns.set_max_payload(600)),
        ] {
            let key = key(&other).unwrap();
            assert!(!seen.contains(&key), "{other:02x?}");
            seen.push(key);
        }
    }

    #[test]
    fn payload_sizes_are_clamped_in_the_key() {
        // An OPT record has the same length for every payload size, so the keys can differ only in the size limit.
        let limit = |payload| key(&edns(|edns| _ = edns.set_max_payload(payload))).unwrap();
        assert_eq!(limit(0), limit(512));
        assert_eq!(limit(1232), limit(4096));
    }

    #[test]
    fn cookie_is_not_in_the_key_and_nsid_gives_no_key() {
        let with = |option| key(&edns(|edns| edns.options_mut().insert(option)));
        let cookie = |byte| EdnsOption::Unknown(10, vec![byte; 8]);
        assert!(with(cookie(1)).is_some());
        assert_eq!(with(cookie(1)), with(cookie(2)));
        assert_eq!(with(EdnsOption::Unknown(3, vec![])), None, "NSID");
        assert_eq!(with(EdnsOption::Unknown(65001, vec![])), None);
    }

    #[test]
    fn unusual_message_has_no_key() {
        let usual = message("a.example.", |_| {});
        for change in [
            (|message: &mut Vec<u8>| message[2] |= 0x80) as fn(&mut Vec<u8>),
            |message| message[2] |= 4 << 3,
            |message| message[5] = 2,
            |message| message[7] = 1,
            |message| message[9] = 1,
            |message| message[11] = 1,
            |message| message.push(0),
            |message| _ = message.pop(),
            |message| message[12] = 0xc0,
            |message| message[12] = 64,
            |message| message.truncate(11),
        ] {
            let mut message = usual.clone();
            change(&mut message);
            assert_eq!(key(&message), None, "{message:02x?}");
        }
        assert_eq!(key(&edns(|edns| _ = edns.set_version(1))), None);
        let long = format!("{0}.{0}.{0}.{1}.", "a".repeat(63), "a".repeat(61));
        assert_eq!(WireKey::default().as_bytes().len(), 0);
        assert!(key(&message(&long, |_| {})).is_some(), "255 bytes");
    }
}
