//! Response codes by their names.

use hickory_proto::op::ResponseCode;

use crate::dns::corefile::{CorefileError, Word};

/// The highest number that `rcode` takes.
const LAST: u16 = 23;

/// The names of miekg/dns.
const NAMES: [(&str, u16); 21] = [
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

/// One code in place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recode {
    pub(super) old: u16,
    pub(super) new: u16,
}

impl Recode {
    pub(super) fn apply(self, rcode: &mut ResponseCode) {
        if u16::from(*rcode) == self.old {
            *rcode = self.new.into();
        }
    }
}

/// Reads a code: its number or its name.
pub(super) fn parse(word: &Word) -> Result<u16, CorefileError> {
    let digits = !word.text.is_empty() && word.text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.text.parse().ok().filter(|number| *number <= LAST) } else { None };
    let named = || NAMES.iter().find(|(name, _)| word.text.eq_ignore_ascii_case(name)).map(|(_, code)| *code);
    number
        .or_else(named)
        .ok_or_else(|| word.isnt("an RCODE: a number from 0 to 23, or a name such as NOERROR or SERVFAIL"))
}
