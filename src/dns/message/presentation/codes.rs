//! Tables of types, classes and rcodes, and their parsing and formatting.
//!
//! Parsing accepts only the spelling of the table, which is in capitals except for the types `None` and `Reserved`. A
//! caller that ignores case converts the word to capitals first, and so doesn't accept these two types.

use std::borrow::Cow;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, RecordType};

type CodeTable = [(&'static str, u16)];

const TYPES: &CodeTable = &[
    ("None", 0),
    ("A", 1),
    ("NS", 2),
    ("MD", 3),
    ("MF", 4),
    ("CNAME", 5),
    ("SOA", 6),
    ("MB", 7),
    ("MG", 8),
    ("MR", 9),
    ("NULL", 10),
    ("PTR", 12),
    ("HINFO", 13),
    ("MINFO", 14),
    ("MX", 15),
    ("TXT", 16),
    ("RP", 17),
    ("AFSDB", 18),
    ("X25", 19),
    ("ISDN", 20),
    ("RT", 21),
    ("NSAP-PTR", 23),
    ("SIG", 24),
    ("KEY", 25),
    ("PX", 26),
    ("GPOS", 27),
    ("AAAA", 28),
    ("LOC", 29),
    ("NXT", 30),
    ("EID", 31),
    ("NIMLOC", 32),
    ("SRV", 33),
    ("ATMA", 34),
    ("NAPTR", 35),
    ("KX", 36),
    ("CERT", 37),
    ("DNAME", 39),
    ("OPT", 41),
    ("APL", 42),
    ("DS", 43),
    ("SSHFP", 44),
    ("IPSECKEY", 45),
    ("RRSIG", 46),
    ("NSEC", 47),
    ("DNSKEY", 48),
    ("DHCID", 49),
    ("NSEC3", 50),
    ("NSEC3PARAM", 51),
    ("TLSA", 52),
    ("SMIMEA", 53),
    ("HIP", 55),
    ("NINFO", 56),
    ("RKEY", 57),
    ("TALINK", 58),
    ("CDS", 59),
    ("CDNSKEY", 60),
    ("OPENPGPKEY", 61),
    ("CSYNC", 62),
    ("ZONEMD", 63),
    ("SVCB", 64),
    ("HTTPS", 65),
    ("SPF", 99),
    ("UINFO", 100),
    ("UID", 101),
    ("GID", 102),
    ("UNSPEC", 103),
    ("NID", 104),
    ("L32", 105),
    ("L64", 106),
    ("LP", 107),
    ("EUI48", 108),
    ("EUI64", 109),
    ("NXNAME", 128),
    ("TKEY", 249),
    ("TSIG", 250),
    ("IXFR", 251),
    ("AXFR", 252),
    ("MAILB", 253),
    ("MAILA", 254),
    ("ANY", 255),
    ("URI", 256),
    ("CAA", 257),
    ("AVC", 258),
    ("AMTRELAY", 260),
    ("RESINFO", 261),
    ("TA", 32768),
    ("DLV", 32769),
    ("Reserved", 65535),
];

const CLASSES: &CodeTable = &[("IN", 1), ("CS", 2), ("CH", 3), ("HS", 4), ("NONE", 254), ("ANY", 255)];

const RCODES: &CodeTable = &[
    ("NOERROR", 0),
    ("FORMERR", 1),
    ("SERVFAIL", 2),
    ("NXDOMAIN", 3),
    ("NOTIMP", 4),
    ("REFUSED", 5),
    ("YXDOMAIN", 6),
    ("YXRRSET", 7),
    ("NXRRSET", 8),
    ("NOTAUTH", 9),
    ("NOTZONE", 10),
    ("DSOTYPENI", 11),
    // BADVERS has the same number (RFC 6891 section 9).
    ("BADSIG", 16),
    ("BADKEY", 17),
    ("BADTIME", 18),
    ("BADMODE", 19),
    ("BADNAME", 20),
    ("BADALG", 21),
    ("BADTRUNC", 22),
    ("BADCOOKIE", 23),
];

#[must_use]
pub fn type_name(qtype: RecordType) -> Option<&'static str> {
    name_of(TYPES, qtype.into())
}

/// Returns the name of a type, or its number as in `TYPE65280` (RFC 3597 section 5).
#[must_use]
pub fn type_text(qtype: RecordType) -> Cow<'static, str> {
    type_name(qtype).map_or_else(|| Cow::Owned(format!("TYPE{}", u16::from(qtype))), Cow::Borrowed)
}

#[must_use]
pub fn parse_type(name: &str) -> Option<RecordType> {
    number_of(TYPES, name).map(Into::into)
}

/// Returns the type with a name, or with a number as in `TYPE65280`.
#[must_use]
pub fn parse_type_or_number(text: &str) -> Option<RecordType> {
    parse_type(text).or_else(|| text.strip_prefix("TYPE")?.parse().ok().map(u16::into))
}

#[must_use]
pub fn class_name(class: DNSClass) -> Option<&'static str> {
    name_of(CLASSES, class.into())
}

/// Returns the name of a class, or its number as in `CLASS32` (RFC 3597 section 5). ANY gets its number, because `ANY`
/// is also the name of a type.
#[must_use]
pub fn class_text(class: DNSClass) -> Cow<'static, str> {
    let name = class_name(class).filter(|_| class != DNSClass::ANY);
    name.map_or_else(|| Cow::Owned(format!("CLASS{}", u16::from(class))), Cow::Borrowed)
}

#[must_use]
pub fn parse_class(name: &str) -> Option<DNSClass> {
    number_of(CLASSES, name).map(Into::into)
}

/// Returns the class with a name, or with a number as in `CLASS32`.
#[must_use]
pub fn parse_class_or_number(text: &str) -> Option<DNSClass> {
    parse_class(text).or_else(|| text.strip_prefix("CLASS")?.parse().ok().map(u16::into))
}

/// Returns the name of an rcode. 16 is BADSIG, not BADVERS.
#[must_use]
pub fn rcode_name(rcode: ResponseCode) -> Option<&'static str> {
    name_of(RCODES, rcode.into())
}

/// Returns the name of an rcode, or its number as in `RCODE12`, as in CoreDNS's metrics.
#[must_use]
pub fn rcode_text(rcode: ResponseCode) -> Cow<'static, str> {
    rcode_name(rcode).map_or_else(|| Cow::Owned(format!("RCODE{}", u16::from(rcode))), Cow::Borrowed)
}

#[must_use]
pub fn parse_rcode(name: &str) -> Option<ResponseCode> {
    // An older name of NOTIMP in miekg/dns.
    let name = if name == "NOTIMPL" { "NOTIMP" } else { name };
    number_of(RCODES, name).map(Into::into)
}

fn name_of(table: &CodeTable, number: u16) -> Option<&'static str> {
    table.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

fn number_of(table: &CodeTable, name: &str) -> Option<u16> {
    table.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_classes_and_rcodes_have_the_names_of_coredns() {
        let types = [1, 28, 255, 65, 29, 250, 0, 11, 65305, 4711].map(RecordType::from);
        let texts = types.map(|qtype| type_text(qtype).into_owned());
        assert_eq!(
            texts,
            ["A", "AAAA", "ANY", "HTTPS", "LOC", "TSIG", "None", "TYPE11", "TYPE65305", "TYPE4711"]
        );
        let classes = [1, 2, 3, 4, 254, 255, 7].map(|class| class_text(DNSClass::from(class)).into_owned());
        assert_eq!(classes, ["IN", "CS", "CH", "HS", "NONE", "CLASS255", "CLASS7"]);
        let rcode = |low, high| rcode_name(ResponseCode::from(high, low));
        assert_eq!([rcode(0, 0), rcode(11, 0), rcode(12, 0)], [Some("NOERROR"), Some("DSOTYPENI"), None]);
        assert_eq!([rcode(0, 1), rcode(7, 1), rcode(8, 1)], [Some("BADSIG"), Some("BADCOOKIE"), None]);
    }

    #[test]
    fn types_are_parsed_by_the_names_of_coredns() {
        for (name, number) in
            [("A", Some(1)), ("ANY", Some(255)), ("IXFR", Some(251)), ("HTTPS", Some(65)), ("LOC", Some(29))]
        {
            assert_eq!(parse_type(name).map(u16::from), number, "{name}");
        }
        for name in ["a", "ANAME", "*", "TYPE65", ""] {
            assert_eq!(parse_type(name), None, "{name}");
        }
        assert_eq!(parse_type_or_number("TYPE65"), Some(RecordType::HTTPS));
        assert_eq!(parse_type_or_number("TYPE65536"), None);
    }

    #[test]
    fn classes_are_parsed_by_name_and_number() {
        assert_eq!(parse_class("CS").map(u16::from), Some(2));
        assert_eq!(parse_class("ANY"), Some(DNSClass::ANY));
        assert_eq!(parse_class("CLASS3"), None);
        assert_eq!(parse_class_or_number("CLASS3"), Some(DNSClass::CH));
    }

    #[test]
    fn rcodes_are_formatted_and_parsed_by_the_names_of_coredns() {
        for (name, rcode) in [
            ("NXDOMAIN", ResponseCode::NXDomain),
            ("NOTIMP", ResponseCode::NotImp),
            ("YXDOMAIN", ResponseCode::YXDomain),
        ] {
            assert_eq!(rcode_text(rcode), name);
            assert_eq!(parse_rcode(name), Some(rcode));
        }
        assert_eq!(parse_rcode("NOTIMPL"), Some(ResponseCode::NotImp));
        assert_eq!(rcode_text(ResponseCode::Unknown(4000)), "RCODE4000");
        assert_eq!(parse_rcode("4000"), None);
    }
}
