//! What requests and responses of DNS over HTTPS have in common (RFC 8484).

/// The path of requests, as in CoreDNS.
pub const PATH: &str = "/dns-query";
/// The media type of a DNS message (RFC 8484 section 6).
pub const MEDIA_TYPE: &str = "application/dns-message";
/// The maximum size of a DNS message in bytes, as by TCP (RFC 1035 section 4.2.2).
pub const MAX_MESSAGE_BYTES: usize = u16::MAX as usize;
