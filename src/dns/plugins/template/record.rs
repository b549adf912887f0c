//! Parses records in the syntax of zone files (RFC 1035 section 5.1), as miekg/dns' `NewRR` does. Each record is
//! converted to wire format and parsed from it, which proves that it can be encoded.
//!
//! hickory's own parser isn't used for whole records, because it opens the files of `$INCLUDE`, and interprets `\DDD`
//! differently.

use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable};

use super::fields::write_fields;
use super::token::{RecordToken, hex, name, seconds, tokens};
use crate::dns::message::presentation::{parse_class_or_number, parse_type_or_number};

const TTL: u32 = 3600;

/// Parses the first record of a text. In parentheses it may span several lines; the text after it is ignored, as in
/// CoreDNS.
///
/// # Errors
/// Returns the reason why the text isn't a record.
pub(super) fn parse(text: &str) -> Result<Record, String> {
    if text.trim_start_matches(['\r', '\n']).starts_with([' ', '\t']) {
        return Err("a record begins with its owner, and here is a space".to_owned());
    }
    let tokens = tokens(text)?;
    let Some((owner, mut rest)) = tokens.split_first() else {
        return Err("there is no record".to_owned());
    };
    if owner.text.starts_with('$') {
        return Err(format!("{} isn't supported in templates", owner.text));
    }
    let owner = name(owner)?;
    let (mut ttl, mut class) = (None, None);
    let rtype = loop {
        let Some((token, after)) = rest.split_first() else {
            return Err("the type of the record is missing".to_owned());
        };
        rest = after;
        let upper = token.text.to_ascii_uppercase();
        if upper == "ANY" {
            return Err("ANY is neither a class nor a type of records".to_owned());
        }
        if let (Some(number), None) = (parse_class_or_number(&upper), class) {
            class = Some(number);
        } else if let Some(number) = parse_type_or_number(&upper) {
            break number;
        } else if let (Some(seconds), None) = (seconds(&token.text), ttl) {
            ttl = Some(seconds);
        } else {
            return Err(format!("{:?} is no TTL, class or type", token.text));
        }
    };
    let data = data(rtype, rest)?;
    let length = u16::try_from(data.len()).map_err(|_| "its data is too long".to_owned())?;
    let mut wire = owner.to_bytes().map_err(|error| error.to_string())?;
    wire.extend(u16::from(rtype).to_be_bytes());
    wire.extend(u16::from(class.unwrap_or(DNSClass::IN)).to_be_bytes());
    wire.extend(ttl.unwrap_or(TTL).to_be_bytes());
    wire.extend(length.to_be_bytes());
    wire.extend(data);
    let mut record = Record::read(&mut BinDecoder::new(&wire)).map_err(|error| error.to_string())?;
    record.name.set_fqdn(true);
    Ok(record)
}

/// Converts record data to wire format.
fn data(rtype: RecordType, tokens: &[RecordToken]) -> Result<Vec<u8>, String> {
    if tokens.is_empty() {
        return Err("its data is missing".to_owned());
    }
    if tokens[0].text == "\\#" && !tokens[0].quoted {
        return unknown(&tokens[1..]);
    }
    match rtype {
        // hickory parses the syntax of these types.
        RecordType::CERT
        | RecordType::CSYNC
        | RecordType::HTTPS
        | RecordType::OPENPGPKEY
        | RecordType::SVCB => {
            let words: Vec<String> = tokens.iter().map(RecordToken::source_text).collect();
            let data = RData::try_from_str(rtype, &words.join(" ")).map_err(|error| error.to_string())?;
            data.to_bytes().map_err(|error| error.to_string())
        }
        _ => write_fields(rtype, tokens),
    }
}

/// Parses data of any type (RFC 3597 section 5): its length and its octets.
fn unknown(tokens: &[RecordToken]) -> Result<Vec<u8>, String> {
    let [length, digits @ ..] = tokens else { return Err("a length has to follow \\#".to_owned()) };
    let data = hex(digits)?;
    if length.text.parse() == Ok(data.len()) {
        Ok(data)
    } else {
        Err(format!("after \\# {} there are {} octets", length.text, data.len()))
    }
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
            ("a. LOC 52 N 4 E 0m", "data of type LOC has to be in the form of RFC 3597: \\# LENGTH OCTETS"),
            ("a. TYPE1000 \\# 1 abcd", "after \\# 1 there are 2 octets"),
            ("a. TYPE1000 \\# 1 abc", "its octets have to be given in two hexadecimal digits each"),
        ] {
            assert_eq!(read(text), format!("error: {expected}"), "{text:?}");
        }
    }
}
