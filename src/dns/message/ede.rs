//! Extended DNS errors (RFC 8914).

use hickory_proto::rr::rdata::opt::EdnsOption;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ede {
    /// The INFO-CODE.
    pub code: u16,
    /// The EXTRA-TEXT.
    pub text: &'static str,
}

impl Ede {
    /// The links aren't known yet: the first list is still to come.
    pub const NOT_READY: Self = Self { code: 14, text: "waiting for the first list of load balancers" };
    /// The target's name can't be resolved because no upstream answers.
    pub const NO_UPSTREAM: Self = Self { code: 22, text: "no upstream has answered" };
    /// The look-up of the target failed: an upstream or a plugin returned an error.
    pub const TARGET_FAILED: Self = Self { code: 0, text: "the target can't be resolved" };
    /// The limit of concurrent queries to the upstream is reached.
    pub const BUSY: Self = Self { code: 0, text: "too many queries are under way" };
    pub const NO_SOCKET: Self = Self { code: 0, text: "no socket to an upstream is free" };
    /// The answer is stale (RFC 8914 section 4.4).
    pub const STALE: Self =
        Self { code: 3, text: "the target can't be resolved now: this is what was known last" };
    /// The target policy denies the target's addresses (RFC 8914 section 4.18).
    pub const FILTERED: Self = Self { code: 17, text: "the target has addresses that aren't followed" };
    /// A plugin denies a name that a CNAME or a record of the target leads to (RFC 8914 section 4.16).
    pub const BLOCKED: Self = Self { code: 15, text: "the target leads to a name that is denied" };
    /// The client may not ask for names outside the zones (RFC 8914 section 4.19).
    pub const PROHIBITED: Self =
        Self { code: 18, text: "names outside the zones aren't resolved for this client" };
    pub const LOOP: Self = Self { code: 0, text: "the targets lead in a circle" };

    #[must_use]
    pub fn option(self) -> EdnsOption {
        extended_error(self.code, self.text)
    }
}

/// Returns the option of an Extended DNS Error (RFC 8914 section 2).
pub(crate) fn extended_error(code: u16, text: &str) -> EdnsOption {
    const EDE: u16 = 15;
    EdnsOption::Unknown(EDE, [&code.to_be_bytes(), text.as_bytes()].concat())
}
