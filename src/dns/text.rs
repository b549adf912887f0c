//! Names, types, classes and response codes as CoreDNS writes them in its log, which is as miekg/dns does.

use std::borrow::Cow;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, RecordType};

/// The types that hickory has no name for, or another one.
const TYPES: &[(u16, &str)] = &[
    (0, "None"),
    (3, "MD"),
    (4, "MF"),
    (7, "MB"),
    (8, "MG"),
    (9, "MR"),
    (14, "MINFO"),
    (17, "RP"),
    (18, "AFSDB"),
    (19, "X25"),
    (20, "ISDN"),
    (21, "RT"),
    (23, "NSAP-PTR"),
    (26, "PX"),
    (27, "GPOS"),
    (29, "LOC"),
    (30, "NXT"),
    (31, "EID"),
    (32, "NIMLOC"),
    (34, "ATMA"),
    (36, "KX"),
    (42, "APL"),
    (45, "IPSECKEY"),
    (49, "DHCID"),
    (55, "HIP"),
    (56, "NINFO"),
    (57, "RKEY"),
    (58, "TALINK"),
    (63, "ZONEMD"),
    (99, "SPF"),
    (100, "UINFO"),
    (101, "UID"),
    (102, "GID"),
    (103, "UNSPEC"),
    (104, "NID"),
    (105, "L32"),
    (106, "L64"),
    (107, "LP"),
    (108, "EUI48"),
    (109, "EUI64"),
    (128, "NXNAME"),
    (249, "TKEY"),
    (253, "MAILB"),
    (254, "MAILA"),
    (256, "URI"),
    (258, "AVC"),
    (260, "AMTRELAY"),
    (261, "RESINFO"),
    (32768, "TA"),
    (32769, "DLV"),
    (65535, "Reserved"),
];

/// Returns a name, absolute and in lower case.
#[must_use]
pub fn name_text(name: &Name) -> String {
    let mut text = String::with_capacity(name.len() + 1);
    for label in name.iter() {
        for byte in label.to_ascii_lowercase() {
            match byte {
                b'.' | b' ' | b'\'' | b'@' | b';' | b'(' | b')' | b'"' | b'\\' => {
                    text.push('\\');
                    text.push(byte.into());
                }
                b'!'..=b'~' => text.push(byte.into()),
                _ => text.push_str(&format!("\\{byte:03}")),
            }
        }
        text.push('.');
    }
    if text.is_empty() {
        text.push('.');
    }
    text
}

/// Returns a type's name, or its number as RFC 3597 section 5 has it.
#[must_use]
pub fn type_text(qtype: RecordType) -> Cow<'static, str> {
    let number = u16::from(qtype);
    if let Some((_, name)) = TYPES.iter().find(|(known, _)| *known == number) {
        return Cow::Borrowed(name);
    }
    match qtype {
        // hickory has a name for one that nobody else has.
        RecordType::Unknown(_) | RecordType::ANAME => Cow::Owned(format!("TYPE{number}")),
        known => Cow::Borrowed(known.into()),
    }
}

/// Returns a class's name, or its number. ANY would be a type, too, so it is a number.
#[must_use]
pub fn class_text(class: DNSClass) -> Cow<'static, str> {
    match u16::from(class) {
        1 => Cow::Borrowed("IN"),
        2 => Cow::Borrowed("CS"),
        3 => Cow::Borrowed("CH"),
        4 => Cow::Borrowed("HS"),
        254 => Cow::Borrowed("NONE"),
        number => Cow::Owned(format!("CLASS{number}")),
    }
}

/// Returns a response code's name, if it has one. 16 is BADVERS as well.
#[must_use]
pub fn rcode_text(rcode: ResponseCode) -> Option<&'static str> {
    const LOW: [&str; 12] = [
        "NOERROR",
        "FORMERR",
        "SERVFAIL",
        "NXDOMAIN",
        "NOTIMP",
        "REFUSED",
        "YXDOMAIN",
        "YXRRSET",
        "NXRRSET",
        "NOTAUTH",
        "NOTZONE",
        "DSOTYPENI",
    ];
    const HIGH: [&str; 8] =
        ["BADSIG", "BADKEY", "BADTIME", "BADMODE", "BADNAME", "BADALG", "BADTRUNC", "BADCOOKIE"];
    let number = usize::from(u16::from(rcode));
    LOW.get(number).or_else(|| HIGH.get(number.checked_sub(16)?)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_lower_case_and_nothing_in_them_can_be_taken_for_something_else() {
        let name = |labels: &[&[u8]]| name_text(&Name::from_labels(labels.iter().copied()).unwrap());
        assert_eq!(name(&[b"WWW", b"Example"]), "www.example.");
        assert_eq!(name(&[]), ".");
        assert_eq!(name(&[b"a.b", b"\n[ERROR] ;\xff~"]), "a\\.b.\\010[error]\\ \\;\\255~.");
        assert_eq!(name_text(&Name::from_ascii("relative").unwrap()), "relative.");
    }

    #[test]
    fn types_classes_and_codes_have_the_names_of_coredns() {
        let types = [1, 28, 255, 65, 29, 250, 0, 11, 65305, 4711].map(RecordType::from);
        let texts = types.map(|qtype| type_text(qtype).into_owned());
        assert_eq!(
            texts,
            ["A", "AAAA", "ANY", "HTTPS", "LOC", "TSIG", "None", "TYPE11", "TYPE65305", "TYPE4711"]
        );
        let classes = [1, 2, 3, 4, 254, 255, 7].map(|class| class_text(DNSClass::from(class)).into_owned());
        assert_eq!(classes, ["IN", "CS", "CH", "HS", "NONE", "CLASS255", "CLASS7"]);
        let rcode = |low, high| rcode_text(ResponseCode::from(high, low));
        assert_eq!([rcode(0, 0), rcode(11, 0), rcode(12, 0)], [Some("NOERROR"), Some("DSOTYPENI"), None]);
        assert_eq!([rcode(0, 1), rcode(7, 1), rcode(8, 1)], [Some("BADSIG"), Some("BADCOOKIE"), None]);
    }
}
