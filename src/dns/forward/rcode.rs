//! The names of response codes, as CoreDNS has them.

use hickory_proto::op::ResponseCode;

/// The names of miekg/dns.
const NAMES: [(&str, u16); 20] = [
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

/// Returns the name of a code, or its number.
pub(super) fn label(rcode: ResponseCode) -> String {
    let number = u16::from(rcode);
    let named = NAMES.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Returns the code of that name, in upper or lower case.
#[must_use]
pub fn parse(name: &str) -> Option<ResponseCode> {
    // An older name of miekg/dns.
    let name = if name.eq_ignore_ascii_case("NOTIMPL") { "NOTIMP" } else { name };
    let named = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, number)| (*number).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_coredns() {
        for (name, rcode) in [
            ("NXDOMAIN", ResponseCode::NXDomain),
            ("NOTIMP", ResponseCode::NotImp),
            ("YXDOMAIN", ResponseCode::YXDomain),
        ] {
            assert_eq!(label(rcode), name);
            assert_eq!(parse(&name.to_lowercase()), Some(rcode));
        }
        assert_eq!(parse("notimpl"), Some(ResponseCode::NotImp));
        assert_eq!(label(ResponseCode::Unknown(4000)), "4000");
        assert_eq!(parse("4000"), None);
    }
}
