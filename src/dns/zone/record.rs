//! Parses records in the syntax of zone files (RFC 1035 section 5.1), as miekg/dns does.
//!
//! hickory's own parser isn't used for whole records, because it opens the files of `$INCLUDE`, and interprets `\DDD`
//! differently.

use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, Restrict};

use super::fields::write_fields;
use super::word::{Entries, Entry, Place, TextError, Word, hex};
use crate::dns::message::presentation::{parse_class_or_number, parse_type_or_number, type_text};
use crate::dns::message::wire_name::has_whole_names;

/// The TTL of a record without one, if nothing else sets it, in seconds.
pub(super) const DEFAULT_TTL: u32 = 3600;
/// The root in wire form.
const ROOT: &[u8] = &[0];

/// What stands between the owner and the data of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) ttl: Option<u32>,
    pub(super) class: Option<DNSClass>,
    pub(super) rtype: RecordType,
}

/// Parses the first record of a text. In parentheses it may span several lines; the text after it is ignored, as in
/// CoreDNS. Relative names continue with the root.
///
/// # Errors
/// Returns the reason why the text isn't a record.
pub(in crate::dns) fn parse(text: &str) -> Result<Record, String> {
    let mut entry = Entry::default();
    Entries::new(text.as_bytes()).next(&mut entry).map_err(|error| error.message)?;
    record_of(&entry).map_err(|error| error.message)
}

/// Each record is converted to wire form and decoded from it, which proves that it can be encoded.
fn record_of(entry: &Entry<'_>) -> Result<Record, TextError> {
    let Some((owner, rest)) = entry.words.split_first() else {
        return Err(TextError::new(Place::default(), "there is no record"));
    };
    let error = |message: String| TextError::new(owner.place, message);
    if entry.is_indented {
        return Err(error("a record begins with its owner, and here is a space".to_owned()));
    }
    if owner.text.starts_with(b"$") {
        return Err(error(format!("{} isn't supported in templates", owner.str())));
    }
    let mut wire = Vec::new();
    owner.write_name(ROOT, &mut wire).map_err(error)?;
    let (Head { ttl, class, rtype }, words) = head(owner.place, rest)?;
    let data = data(rtype, owner.place, words, ROOT)?;
    let length = u16::try_from(data.len()).map_err(|_| error("its data is too long".to_owned()))?;
    wire.extend(u16::from(rtype).to_be_bytes());
    wire.extend(u16::from(class.unwrap_or(DNSClass::IN)).to_be_bytes());
    wire.extend(ttl.unwrap_or(DEFAULT_TTL).to_be_bytes());
    wire.extend(length.to_be_bytes());
    wire.extend(data);
    let record = Record::read(&mut BinDecoder::new(&wire));
    let mut record = record.map_err(|problem| error(problem.to_string()))?;
    record.name.set_fqdn(true);
    Ok(record)
}

/// Parses TTL and class, in any order, and the type. Also returns the words after it. `place` is that of the words
/// before.
pub(super) fn head<'a, 'w>(
    place: Place,
    mut words: &'w [Word<'a>],
) -> Result<(Head, &'w [Word<'a>]), TextError> {
    let (mut ttl, mut class) = (None, None);
    loop {
        let Some((word, after)) = words.split_first() else {
            return Err(TextError::new(place, "the type of the record is missing"));
        };
        words = after;
        let upper = word.str().to_ascii_uppercase();
        if upper == "ANY" {
            return Err(TextError::new(word.place, "ANY is neither a class nor a type of records"));
        }
        if let (Some(number), None) = (parse_class_or_number(&upper), class) {
            class = Some(number);
        } else if let Some(rtype) = parse_type_or_number(&upper) {
            return Ok((Head { ttl, class, rtype }, words));
        } else if let (Some(seconds), None) = (word.seconds(), ttl) {
            ttl = Some(seconds);
        } else {
            return Err(TextError::new(word.place, format!("{} is no TTL, class or type", word.shown())));
        }
    }
}

/// Converts record data to wire form. Names without a dot at their end continue with `origin`, in wire form. `place` is
/// that of the record.
pub(super) fn data(
    rtype: RecordType,
    place: Place,
    words: &[Word<'_>],
    origin: &[u8],
) -> Result<Vec<u8>, TextError> {
    let Some(first) = words.first() else {
        // RFC 3123 section 4: a list of no addresses.
        let is_apl = u16::from(rtype) == 42;
        return if is_apl { Ok(Vec::new()) } else { Err(TextError::new(place, "its data is missing")) };
    };
    let error = |message: String| TextError::new(first.place, message);
    if first.text == b"\\#" && !first.is_quoted {
        let data = unknown(&words[1..]).map_err(error)?;
        return is_valid(rtype, &data)
            .then_some(data)
            .ok_or_else(|| error(format!("these octets are no data of type {}", type_text(rtype))));
    }
    write_fields(rtype, words, origin)
}

/// Parses data of any type (RFC 3597 section 5): its length and its octets.
fn unknown(words: &[Word<'_>]) -> Result<Vec<u8>, String> {
    let [length, digits @ ..] = words else { return Err("a length has to follow \\#".to_owned()) };
    let data = hex(digits)?;
    if length.number() == Some(data.len()) {
        Ok(data)
    } else {
        Err(format!("after \\# {} there are {} octets", length.str(), data.len()))
    }
}

/// Returns whether octets are data of a type, as far as the type is known.
pub(super) fn is_valid(rtype: RecordType, data: &[u8]) -> bool {
    let Ok(length) = u16::try_from(data.len()) else { return false };
    RData::read(&mut BinDecoder::new(data), rtype, Restrict::new(length)).is_ok()
        && has_whole_names(u16::from(rtype), data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match parse(text) {
            Ok(record) => record.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn ttl_and_class_are_optional_and_in_any_order() {
        for (text, expected) in [
            ("a.example. 60 IN A 192.0.2.1", "a.example. 60 IN A 192.0.2.1"),
            ("a.example. IN 60 A 192.0.2.1", "a.example. 60 IN A 192.0.2.1"),
            ("a.example. A 192.0.2.1", "a.example. 3600 IN A 192.0.2.1"),
            ("a.example. 1h30m a 192.0.2.1", "a.example. 5400 IN A 192.0.2.1"),
            ("a.example ch TXT x", "a.example. 3600 CH TXT x"),
            ("a.example. CLASS1 TYPE1 192.0.2.1", "a.example. 3600 IN A 192.0.2.1"),
            ("@ 0 NS ns", ". 0 IN NS ns."),
            ("\n\na. 5 A 192.0.2.1 ; the first\nb. 5 A 192.0.2.2", "a. 5 IN A 192.0.2.1"),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn data_of_common_types_is_parsed() {
        for (text, expected) in [
            ("AAAA 2001:db8::1", "AAAA 2001:db8::1"),
            ("CNAME Target.Example", "CNAME Target.Example."),
            ("DNAME b.example.", "TYPE39 \\# 11 0162076578616d706c6500"),
            ("PTR *.b.", "PTR *.b."),
            ("MX 10 mail", "MX 10 mail."),
            ("SRV 1 2 53 ns.example.", "SRV 1 2 53 ns.example."),
            ("SOA ns host (1 ; serial\n 1h 2m\n3 4)", "SOA ns. host. 1 3600 120 3 4"),
            ("TXT \"a b\" c\"d\"", "TXT a bcd"),
            ("TXT \\065\\\"", "TXT A\""),
            ("HINFO \"a b\" c", "HINFO a b c"),
            ("CAA 0 issue \"ca.example; x=y\"", "CAA 0 issue \"ca.example; x=y\""),
            ("NAPTR 1 2 \"s\" \"a+b\" \"\" x.example.", "NAPTR 1 2 \"s\" \"a+b\" \"\" x.example."),
            ("SSHFP 1 1 ab cd", "SSHFP 1 1 abcd"),
            ("TLSA 3 1 1 abcd", "TLSA 3 1 1 abcd"),
            ("HTTPS 1 . alpn=h2,h3 ipv4hint=192.0.2.1", "HTTPS 1 . alpn=h2,h3, ipv4hint=192.0.2.1,"),
            ("TYPE1000 \\# 3 ab cdef", "TYPE1000 \\# 3 abcdef"),
            ("A \\# 4 c0000201", "A 192.0.2.1"),
        ] {
            let found = read(&format!("a. 5 {text}"));
            let data = found.strip_prefix("a. 5 IN ").unwrap_or(&found);
            // hickory prints unknown types in its own format.
            let is_unknown = expected.starts_with("TYPE");
            assert!(data == expected || is_unknown && !data.starts_with("error"), "{text}: {data}");
        }
    }

    #[test]
    fn invalid_record_is_rejected_with_the_reason() {
        for (text, expected) in [
            ("", "there is no record"),
            (" A 192.0.2.1", "a record begins with its owner, and here is a space"),
            ("a.", "the type of the record is missing"),
            ("a. b.", "\"b.\" is no TTL, class or type"),
            ("a. ANY A 192.0.2.1", "ANY is neither a class nor a type of records"),
            ("a. 5 6 A 192.0.2.1", "\"6\" is no TTL, class or type"),
            ("a..b A 192.0.2.1", "\"a..b\" is no name"),
            ("a. A", "its data is missing"),
            ("a. A 10.<no value>.1.2", "\"10.<no\" is no IPv4 address"),
            ("a. A 192.0.2.1 192.0.2.2", "\"192.0.2.2\" is too much"),
            ("a. A 192.0.2.01", "\"192.0.2.01\" is no IPv4 address"),
            ("a. AAAA 192.0.2.1", "\"192.0.2.1\" is no IPv6 address"),
            ("a. MX mail", "\"mail\" is no number from 0 to 65535"),
            ("a. MX 10", "a name is missing"),
            ("a. SOA ns host (1 2 3 4", "a parenthesis isn't closed"),
            ("a. SOA ns host 1h 2 3 4 5", "\"1h\" is no number from 0 to 4294967295"),
            ("a. A 192.0.2.1)", "there is a ) without a ("),
            ("a. TXT \"x", "a quote isn't closed"),
            ("$INCLUDE /etc/hosts", "$INCLUDE isn't supported in templates"),
            ("a. NSEC3 1 0 1 ab", "data of type NSEC3 has to be in the form of RFC 3597: \\# LENGTH OCTETS"),
            ("a. TYPE1000 \\# 1 abcd", "after \\# 1 there are 2 octets"),
            ("a. TYPE1000 \\# 1 abc", "its octets have to be given in two hexadecimal digits each"),
        ] {
            assert_eq!(read(text), format!("error: {expected}"), "{text:?}");
        }
    }
}
