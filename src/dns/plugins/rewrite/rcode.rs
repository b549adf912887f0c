//! The `rcode` rule: replaces the response code.

use hickory_proto::op::ResponseCode;

use crate::dns::corefile::{CorefileError, Token};
use crate::dns::message::presentation::parse_rcode;

/// The highest number that `rcode` accepts.
const MAX_RCODE: u16 = 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RcodeRule {
    pub(super) old: u16,
    pub(super) new: u16,
}

impl RcodeRule {
    pub(super) fn apply(self, rcode: &mut ResponseCode) {
        if u16::from(*rcode) == self.old {
            *rcode = self.new.into();
        }
    }
}

/// Parses an rcode: its number, or its name in any case.
pub(super) fn parse(word: &Token) -> Result<u16, CorefileError> {
    let digits = !word.text.is_empty() && word.text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.text.parse().ok().filter(|number| *number <= MAX_RCODE) } else { None };
    let named = || parse_rcode(&word.text.to_ascii_uppercase()).map(u16::from);
    number.or_else(named).ok_or_else(|| {
        word.unexpected("an RCODE: a number from 0 to 23, or a name such as NOERROR or SERVFAIL")
    })
}
