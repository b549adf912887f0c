//! Extended DNS errors (RFC 8914).

use std::iter;

use hickory_proto::rr::rdata::opt::EdnsOption;

/// An Extended DNS Error of lb-linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ede {
    /// The INFO-CODE.
    pub code: u16,
    /// The EXTRA-TEXT.
    pub text: &'static str,
}

impl Ede {
    /// The links aren't known yet: the first list of load balancers hasn't arrived.
    pub const NOT_READY: Self = Self { code: 14, text: "waiting for the first list of load balancers" };
    /// The load balancers are known, but the objects of another source of names aren't.
    pub const SOURCE_NOT_READY: Self =
        Self { code: 14, text: "waiting for the first lists of other sources of names: /ready says which" };
    /// The cluster's objects aren't known yet.
    pub const CLUSTER_NOT_READY: Self =
        Self { code: 14, text: "waiting for the first lists of the cluster's objects" };
    /// The keys of *etcd* aren't known yet.
    pub const ETCD_NOT_READY: Self = Self { code: 14, text: "waiting for the first list of etcd's keys" };
    /// The target's name can't be resolved because no upstream answers.
    pub const NO_UPSTREAM: Self = Self { code: 22, text: "no upstream has answered" };
    /// An upstream's answer by UDP is truncated, and it gives no whole one by TCP (RFC 8914 section 4.24).
    pub const TRUNCATED: Self =
        Self { code: 23, text: "the upstream's answer is truncated, and there is no whole one by TCP" };
    /// The look-up of the target failed: an upstream or a plugin returned an error.
    pub const TARGET_FAILED: Self = Self { code: 0, text: "the target can't be resolved" };
    /// The limit of concurrent queries to the upstream is reached.
    pub const BUSY: Self = Self { code: 0, text: "too many queries are under way" };
    /// All sockets for upstreams are in use.
    pub const NO_SOCKET: Self = Self { code: 0, text: "no socket to an upstream is free" };
    /// The answer is stale (RFC 8914 section 4.4).
    pub const STALE: Self =
        Self { code: 3, text: "the target can't be resolved now: this is what was known last" };
    /// The answer is from the snapshot of an earlier process (RFC 8914 section 4.4).
    pub const SNAPSHOT: Self =
        Self { code: 3, text: "from a snapshot: the load balancers can't be read yet" };
    /// The target policy denies the target's addresses (RFC 8914 section 4.18).
    pub const FILTERED: Self = Self { code: 17, text: "the target policy denies addresses of the target" };
    /// A plugin denies a name that a CNAME or a record of the target leads to (RFC 8914 section 4.16).
    pub const BLOCKED: Self = Self { code: 15, text: "the target leads to a name that is denied" };
    /// The client may not ask for names outside the zones (RFC 8914 section 4.19).
    pub const PROHIBITED: Self =
        Self { code: 18, text: "names outside the zones aren't resolved for this client" };
    /// *tsig* demands a signature (RFC 8914 section 4.19).
    pub const UNSIGNED: Self = Self { code: 18, text: "the request has to be signed with a key (TSIG)" };
    /// A zone of *secondary* hasn't been transferred yet (RFC 8914 section 4.15).
    pub const NOT_TRANSFERRED: Self = Self { code: 14, text: "the zone hasn't been transferred yet" };
    /// A zone of *secondary* has expired (RFC 8914 section 4.25).
    pub const EXPIRED: Self = Self { code: 24, text: "the zone has expired" };
    /// A chain of targets is a loop, or needs too many look-ups.
    pub const LOOP: Self = Self { code: 0, text: "the targets lead in a circle" };

    /// Returns the EDNS option.
    #[must_use]
    pub fn option(self) -> EdnsOption {
        extended_error(self.code, self.text)
    }
}

/// The number of the option (RFC 8914 section 2).
const EDE: u16 = 15;
/// The size of the INFO-CODE, in bytes.
const INFO_CODE_SIZE: usize = 2;
/// The maximum number of extended errors of an upstream that are passed on.
const MAX_PASSED_ON: usize = 3;
/// The maximum total size of the texts of these errors, in bytes.
const MAX_TEXT_BYTES: usize = 256;

/// Returns the option of an Extended DNS Error (RFC 8914 section 2).
pub(crate) fn extended_error(code: u16, text: &str) -> EdnsOption {
    EdnsOption::Unknown(EDE, [&code.to_be_bytes(), text.as_bytes()].concat())
}

/// Returns the extended errors in the options of an upstream's OPT record, which a forwarder passes on (RFC 8914 section
/// 3): at most [`MAX_PASSED_ON`], with at most [`MAX_TEXT_BYTES`] of text.
pub(super) fn extended_errors(mut options: &[u8]) -> Vec<EdnsOption> {
    let mut room = MAX_TEXT_BYTES;
    let all = iter::from_fn(|| {
        let (number, rest) = options.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (data, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        options = rest;
        Some((u16::from_be_bytes(*number), data))
    });
    let errors = all.filter(|(option, data)| *option == EDE && data.len() >= INFO_CODE_SIZE);
    let passed_on = errors.take(MAX_PASSED_ON).map(|(_, data)| {
        let text = cut_text(&data[INFO_CODE_SIZE..], room);
        room -= text.len();
        EdnsOption::Unknown(EDE, [&data[..INFO_CODE_SIZE], text].concat())
    });
    passed_on.collect()
}

/// Adds the extended errors of an upstream's answer to the options of a reply, which has at most [`MAX_PASSED_ON`].
pub(crate) fn pass_on(of_answer: &[EdnsOption], options: &mut Vec<EdnsOption>) {
    let errors = of_answer.iter().filter(|option| matches!(option, EdnsOption::Unknown(EDE, _)));
    let room = MAX_PASSED_ON.saturating_sub(options.len());
    options.extend(errors.take(room).cloned());
}

/// Returns the extended error without its text; other options stay unchanged.
pub(super) fn without_text(option: &EdnsOption) -> EdnsOption {
    match option {
        EdnsOption::Unknown(EDE, data) if data.len() > INFO_CODE_SIZE => {
            EdnsOption::Unknown(EDE, data[..INFO_CODE_SIZE].to_vec())
        }
        other => other.clone(),
    }
}

/// Returns the longest beginning of a text with at most `room` bytes that doesn't end within a UTF-8 character.
fn cut_text(text: &[u8], room: usize) -> &[u8] {
    let is_inside = |at: usize| text.get(at).is_some_and(|octet| octet & 0xc0 == 0x80);
    let end = (0..=room.min(text.len())).rev().find(|end| !is_inside(*end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(number: u16, data: &[u8]) -> Vec<u8> {
        [&number.to_be_bytes()[..], &u16::try_from(data.len()).unwrap().to_be_bytes(), data].concat()
    }

    fn errors(options: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let data = |option: EdnsOption| match option {
            EdnsOption::Unknown(EDE, data) => data,
            other => panic!("{other:?}"),
        };
        extended_errors(&options.concat()).into_iter().map(data).collect()
    }

    #[test]
    fn only_extended_errors_are_passed_on() {
        const COOKIE: u16 = 10;
        let options = [
            option(COOKIE, &[1; 8]),
            option(EDE, b"\x00\x03old"),
            option(EDE, b"\x00"),
            option(EDE, b"\x00\x16"),
        ];
        assert_eq!(errors(&options), [b"\x00\x03old".to_vec(), b"\x00\x16".to_vec()]);
        assert_eq!(errors(&[option(EDE, b"\x00\x03old")[..6].to_vec()]), [] as [Vec<u8>; 0], "it is cut");
        assert_eq!(errors(&[vec![0, 15, 0]]), [] as [Vec<u8>; 0]);
    }

    #[test]
    fn extended_errors_are_limited_in_number_and_text() {
        let long = [&[0, 0][..], &[b'x'; 200]].concat();
        let lengths: Vec<usize> = errors(&vec![option(EDE, &long); 5]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [202, 58, 2]);
    }

    #[test]
    fn text_is_cut_between_characters() {
        for room in 0..8 {
            let cut = cut_text("aé€x".as_bytes(), room);
            assert!(cut.len() <= room && std::str::from_utf8(cut).is_ok(), "{room}");
        }
        assert_eq!(cut_text("aé€".as_bytes(), 6), "aé€".as_bytes());
        assert_eq!(cut_text(&[0x80; 4], 2), [] as [u8; 0]);
    }
}
