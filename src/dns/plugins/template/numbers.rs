//! The names of types, classes and response codes, as miekg/dns has them: more than hickory knows.

/// Types.
const TYPES: &[(&str, u16)] = &[
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

/// Classes.
const CLASSES: &[(&str, u16)] = &[("IN", 1), ("CS", 2), ("CH", 3), ("HS", 4), ("NONE", 254), ("ANY", 255)];

/// Response codes.
const RCODES: &[(&str, u16)] = &[
    ("NOERROR", 0),
    ("FORMERR", 1),
    ("SERVFAIL", 2),
    ("NXDOMAIN", 3),
    ("NOTIMP", 4),
    ("NOTIMPL", 4),
    ("REFUSED", 5),
    ("YXDOMAIN", 6),
    ("YXRRSET", 7),
    ("NXRRSET", 8),
    ("NOTAUTH", 9),
    ("NOTZONE", 10),
    ("DSOTYPENI", 11),
    ("BADSIG", 16),
    ("BADKEY", 17),
    ("BADTIME", 18),
    ("BADMODE", 19),
    ("BADNAME", 20),
    ("BADALG", 21),
    ("BADTRUNC", 22),
    ("BADCOOKIE", 23),
];

/// The type and the class that stand for all.
pub(super) const ANY: u16 = 255;

/// Returns the number of a type by its name, or as in `TYPE65280` (RFC 3597 section 5).
pub(super) fn type_number(name: &str) -> Option<u16> {
    find(TYPES, name).or_else(|| name.strip_prefix("TYPE")?.parse().ok())
}

/// Returns the name of a type.
pub(super) fn type_name(number: u16) -> Option<&'static str> {
    name_of(TYPES, number)
}

/// Returns the number of a class by its name, or as in `CLASS32` (RFC 3597 section 5).
pub(super) fn class_number(name: &str) -> Option<u16> {
    find(CLASSES, name).or_else(|| name.strip_prefix("CLASS")?.parse().ok())
}

/// Returns the name of a class.
pub(super) fn class_name(number: u16) -> Option<&'static str> {
    name_of(CLASSES, number)
}

fn find(table: &[(&str, u16)], name: &str) -> Option<u16> {
    table.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

fn name_of(table: &[(&'static str, u16)], number: u16) -> Option<&'static str> {
    table.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

/// Returns the type of that name in a Corefile, where a number isn't allowed.
pub(super) fn named_type(name: &str) -> Option<u16> {
    find(TYPES, name)
}

/// Returns the class of that name in a Corefile, where a number isn't allowed.
pub(super) fn named_class(name: &str) -> Option<u16> {
    find(CLASSES, name)
}

/// Returns the response code of that name.
pub(super) fn named_rcode(name: &str) -> Option<u16> {
    find(RCODES, name)
}
