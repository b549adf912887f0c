//! The errors of signatures.

/// Why a signature isn't accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TsigError {
    #[error("the TSIG record is malformed, or isn't the last record")]
    Malformed,
    #[error("BADSIG: the signature is wrong, as with another secret")]
    BadSig,
    #[error("BADKEY: the key or the algorithm isn't known")]
    BadKey,
    #[error("BADTIME: it was signed at another time, or a clock is wrong")]
    BadTime,
    #[error("BADTRUNC: the signature is cut")]
    BadTrunc,
    #[error("a message isn't signed")]
    Unsigned,
    #[error("the server refuses the signature of the request: {}", error_name(*.0))]
    ByServer(u16),
}

// === impl TsigError ===

impl TsigError {
    /// Returns the error of a TSIG record in a reply to the request (RFC 8945 section 3).
    pub(super) fn code(self) -> u16 {
        match self {
            Self::BadSig => 16,
            Self::BadKey => 17,
            Self::BadTime => 18,
            Self::BadTrunc => 22,
            Self::Malformed | Self::Unsigned | Self::ByServer(_) => 0,
        }
    }
}

/// Returns the name of an error in a TSIG record.
fn error_name(code: u16) -> String {
    match code {
        16 => "BADSIG".to_owned(),
        17 => "BADKEY".to_owned(),
        18 => "BADTIME".to_owned(),
        22 => "BADTRUNC".to_owned(),
        code => format!("error {code}"),
    }
}
