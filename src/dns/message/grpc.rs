//! DNS messages in gRPC, as in CoreDNS's `pb/dns.proto`: the unary call `Query` of a `DnsPacket` in protocol buffers,
//! which has the DNS message in a field of bytes.

/// The path of the call.
pub const PATH: &str = "/coredns.dns.DnsService/Query";
/// The media type of requests and responses; `+proto` may follow.
pub const MEDIA_TYPE: &str = "application/grpc";
/// The header fields, or trailers, with the status of a call, and with a sentence about it.
pub const STATUS: &str = "grpc-status";
pub const STATUS_MESSAGE: &str = "grpc-message";
/// The maximum size of a body in bytes: the largest DNS message (RFC 1035 section 4.2.2) with the tag and the length of
/// its field, as in CoreDNS, after the prefix of a gRPC message.
pub const MAX_BODY_BYTES: usize = PREFIX_BYTES + 1 + 3 + MAX_MESSAGE_BYTES;

const MAX_MESSAGE_BYTES: usize = u16::MAX as usize;
/// The size of the flag for compression and of the length in front of a gRPC message.
const PREFIX_BYTES: usize = 5;
/// The number of the field `msg`.
const MSG: u64 = 1;
/// The largest number of a field.
const MAX_FIELD: u64 = (1 << 29) - 1;

/// Why a body isn't one `DnsPacket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrpcError {
    #[error("The gRPC message is compressed, which isn't supported.")]
    Compressed,
    #[error("A DNS message has 65,535 bytes at most.")]
    TooLarge,
    #[error("The gRPC message isn't complete.")]
    Incomplete,
    #[error("There is more than one gRPC message.")]
    Several,
    #[error("The gRPC message isn't a DnsPacket.")]
    Malformed,
}

/// Returns the body for a DNS message.
#[must_use]
pub fn encode(message: &[u8]) -> Vec<u8> {
    let mut body = vec![0; PREFIX_BYTES];
    // The key of the field: its number, and the wire type for bytes.
    body.push((MSG << 3 | 2) as u8);
    let mut length = message.len();
    while length >= 0x80 {
        body.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
    body.extend_from_slice(message);
    let length = u32::try_from(body.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    body[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    body
}

/// Returns the DNS message in a body; it is empty if the packet has none.
///
/// # Errors
/// If the body isn't one uncompressed `DnsPacket`, or the message is too large.
pub fn decode(body: &[u8]) -> Result<&[u8], GrpcError> {
    let ([flag, length @ ..], packet) =
        body.split_first_chunk::<PREFIX_BYTES>().ok_or(GrpcError::Incomplete)?;
    let length = u32::from_be_bytes(*length) as usize;
    match flag {
        0 => {}
        1 => return Err(GrpcError::Compressed),
        _ => return Err(GrpcError::Malformed),
    }
    if length > MAX_BODY_BYTES - PREFIX_BYTES {
        return Err(GrpcError::TooLarge);
    }
    match packet.len() {
        received if received < length => return Err(GrpcError::Incomplete),
        received if received > length => return Err(GrpcError::Several),
        _ => {}
    }
    let message = msg(packet).ok_or(GrpcError::Malformed)?;
    if message.len() > MAX_MESSAGE_BYTES { Err(GrpcError::TooLarge) } else { Ok(message) }
}

/// Returns the field `msg` of a packet, of several the last one. Other fields are skipped, as protocol buffers
/// require; groups, which `proto3` doesn't have, are refused.
fn msg(mut packet: &[u8]) -> Option<&[u8]> {
    let mut message = &packet[..0];
    while !packet.is_empty() {
        let (key, rest) = varint(packet)?;
        if !(1..=MAX_FIELD).contains(&(key >> 3)) {
            return None;
        }
        let (value, rest) = match key & 7 {
            0 => (&rest[..0], varint(rest)?.1),
            1 => rest.split_at_checked(8)?,
            2 => {
                let (length, rest) = varint(rest)?;
                rest.split_at_checked(usize::try_from(length).ok()?)?
            }
            5 => rest.split_at_checked(4)?,
            _ => return None,
        };
        if key == MSG << 3 | 2 {
            message = value;
        }
        packet = rest;
    }
    Some(message)
}

/// Returns the integer of variable length at the beginning, and the rest.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (number, byte) in bytes.iter().take(10).enumerate() {
        // The tenth byte has the last bit.
        if number == 9 && *byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * number);
        if *byte < 0x80 {
            return Some((value, &bytes[number + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_any_size_is_encoded_and_decoded() {
        assert_eq!(encode(b"ab"), *b"\0\0\0\0\x04\x0a\x02ab");
        for size in [0, 1, 127, 128, 16_383, 16_384, MAX_MESSAGE_BYTES] {
            let message = vec![7; size];
            let body = encode(&message);
            assert_eq!(decode(&body), Ok(&*message));
            assert!(body.len() <= MAX_BODY_BYTES);
        }
        assert_eq!(encode(&[7; MAX_MESSAGE_BYTES]).len(), MAX_BODY_BYTES);
        assert_eq!(decode(&encode(&[7; MAX_MESSAGE_BYTES + 1])), Err(GrpcError::TooLarge));
    }

    #[test]
    fn fields_other_than_msg_are_skipped() {
        for (packet, expected) in [
            (&b""[..], Some(&b""[..])),
            (b"\x0a\x00", Some(b"")),
            (b"\x0a\x01a\x0a\x02bc", Some(b"bc")),
            // An integer, 8 bytes, bytes and 4 bytes.
            (b"\x10\x96\x01\x0a\x01a\x19abcdefgh\x22\x02xy\x2d1234", Some(b"a")),
            // The largest number of a field.
            (b"\xf8\xff\xff\xff\x0f\x01\x0a\x01a", Some(b"a")),
            // `msg` as an integer, and as 8 bytes.
            (b"\x08\x01\x09abcdefgh\x0a\x01a", Some(b"a")),
            (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Some(b"")),
            (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", None),
            (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
            (b"\x80\x80\x80\x80\x10\x01", None),
            (b"\x02\x01a", None),
            (b"\x0b\x0c", None),
            (b"\x0e", None),
            (b"\x0a", None),
            (b"\x0a\x02a", None),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a", None),
            (b"\x10\x80", None),
            (b"\x19abc", None),
            (b"\x2dabc", None),
        ] {
            assert_eq!(msg(packet), expected, "{packet:02x?}");
        }
    }

    #[test]
    fn body_is_refused_if_it_is_not_one_plain_message() {
        for (body, expected) in [
            (&b"\0\0\0\0\x03\x0a\x01a"[..], Ok(&b"a"[..])),
            (b"\0\0\0\0\0", Ok(b"")),
            (b"", Err(GrpcError::Incomplete)),
            (b"\0\0\0\0", Err(GrpcError::Incomplete)),
            (b"\0\0\0\0\x03\x0a\x01", Err(GrpcError::Incomplete)),
            (b"\0\0\0\0\x03\x0a\x01a\0", Err(GrpcError::Several)),
            (b"\0\0\0\0\x03\x0a\x01a\0\0\0\0\0", Err(GrpcError::Several)),
            (b"\x01\0\0\0\x03\x0a\x01a", Err(GrpcError::Compressed)),
            (b"\x02\0\0\0\x03\x0a\x01a", Err(GrpcError::Malformed)),
            (b"\0\0\x01\0\x04\x0a", Err(GrpcError::TooLarge)),
            (b"\0\xff\xff\xff\xff", Err(GrpcError::TooLarge)),
            (b"\0\0\0\0\x01\x0a", Err(GrpcError::Malformed)),
        ] {
            assert_eq!(decode(body), expected, "{body:02x?}");
        }
    }
}
