//! The names of record types.

use std::str::FromStr;

use hickory_proto::rr::RecordType;

/// The types that CoreDNS knows by name and hickory-proto doesn't parse.
const OTHERS: [(&str, u16); 51] = [
    ("AFSDB", 18),
    ("AMTRELAY", 260),
    ("APL", 42),
    ("ATMA", 34),
    ("AVC", 258),
    ("DHCID", 49),
    ("DLV", 32769),
    ("EID", 31),
    ("EUI48", 108),
    ("EUI64", 109),
    ("GID", 102),
    ("GPOS", 27),
    ("HIP", 55),
    ("IPSECKEY", 45),
    ("ISDN", 20),
    ("IXFR", 251),
    ("KX", 36),
    ("L32", 105),
    ("L64", 106),
    ("LOC", 29),
    ("LP", 107),
    ("MAILA", 254),
    ("MAILB", 253),
    ("MB", 7),
    ("MD", 3),
    ("MF", 4),
    ("MG", 8),
    ("MINFO", 14),
    ("MR", 9),
    ("NID", 104),
    ("NIMLOC", 32),
    ("NINFO", 56),
    ("NSAP-PTR", 23),
    ("NXNAME", 128),
    ("NXT", 30),
    ("OPT", 41),
    ("PX", 26),
    ("RESINFO", 261),
    ("RKEY", 57),
    ("RP", 17),
    ("RT", 21),
    ("SPF", 99),
    ("TA", 32768),
    ("TALINK", 58),
    ("TKEY", 249),
    ("UID", 101),
    ("UINFO", 100),
    ("UNSPEC", 103),
    ("URI", 256),
    ("X25", 19),
    ("ZONEMD", 63),
];

/// Returns the type of a name, in capitals, that CoreDNS knows.
pub(super) fn record_type(name: &str) -> Option<RecordType> {
    // Of hickory-proto alone.
    if matches!(name, "ANAME" | "*") {
        return None;
    }
    let other =
        || OTHERS.iter().find(|(known, _)| *known == name).map(|(_, number)| RecordType::from(*number));
    RecordType::from_str(name).ok().or_else(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_by_the_names_that_coredns_knows() {
        for (name, number) in
            [("A", Some(1)), ("ANY", Some(255)), ("IXFR", Some(251)), ("HTTPS", Some(65)), ("LOC", Some(29))]
        {
            assert_eq!(record_type(name).map(u16::from), number, "{name}");
        }
        for name in ["a", "ANAME", "*", "TYPE65", "", "None"] {
            assert_eq!(record_type(name), None, "{name}");
        }
    }
}
