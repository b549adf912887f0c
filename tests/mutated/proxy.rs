//! Properties of what is read of arbitrary PROXY headers, shared by the property test and the fuzz target.

use lb_linker::dns::message::proxy_header::{ProxyHeader, parse, parse_datagram};

/// The maximum length of a header, in bytes.
const MAX_HEADER: usize = 16 + 2048;
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Returns headers of both versions, with a query behind them.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let query = b"\0\x1d\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    let text = |line: &str| [line.as_bytes(), b"\r\n", query].concat();
    let binary = |command: u8, family: u8, rest: &[u8]| {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest, query].concat()
    };
    let ipv4 = [192, 0, 2, 1, 192, 0, 2, 53, 0x12, 0x67, 0, 53];
    let ipv6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 28], &[0x12, 0x67, 0, 53]].concat();
    vec![
        ("tcp4", text("PROXY TCP4 192.0.2.1 192.0.2.53 4711 53")),
        ("tcp6", text("PROXY TCP6 2001:db8::1 2001:db8::53 4711 53")),
        ("unknown", text("PROXY UNKNOWN")),
        ("ipv4", binary(0x21, 0x11, &ipv4)),
        ("ipv6", binary(0x21, 0x21, &ipv6)),
        ("datagram", binary(0x21, 0x12, &ipv4)),
        ("unix", binary(0x21, 0x31, &[b'x'; 216])),
        ("local", binary(0x20, 0, &[])),
        ("tlv", binary(0x21, 0x11, &[&ipv4[..], &[4, 0, 1, 0, 3, 0, 4, 1, 2, 3, 4]].concat())),
        ("none", query.to_vec()),
    ]
}

/// Reads a header. Returns the kind of outcome, or the violated property.
pub fn try_header(bytes: &[u8]) -> Result<&'static str, String> {
    let header = parse(bytes);
    check(bytes, header).map_err(|rule| format!("{rule}: {header:?} {bytes:02x?}"))
}

fn check(bytes: &[u8], header: ProxyHeader) -> Result<&'static str, &'static str> {
    let of_datagram = parse_datagram(bytes);
    let is_refused = matches!(of_datagram, ProxyHeader::Absent | ProxyHeader::Invalid(_));
    if of_datagram != header && !(is_refused && b"PROXY ".starts_with(&bytes[..bytes.len().min(6)])) {
        return Err("a datagram has the same header, unless it is of version 1");
    }
    match header {
        ProxyHeader::Present { length, client } => {
            if length > bytes.len().min(MAX_HEADER) {
                return Err("a header lies within the bytes and its limit");
            }
            if parse(&bytes[..length]) != header {
                return Err("bytes behind the header don't count");
            }
            if [1, length / 2, length - 1].iter().any(|end| parse(&bytes[..*end]) != ProxyHeader::Incomplete)
            {
                return Err("a part of a header is incomplete");
            }
            Ok(if client.is_some() { "client" } else { "no client" })
        }
        ProxyHeader::Incomplete if bytes.len() >= MAX_HEADER => Err("no header is longer than its limit"),
        ProxyHeader::Incomplete => Ok("incomplete"),
        ProxyHeader::Invalid(_) => Ok("invalid"),
        ProxyHeader::Absent => Ok("absent"),
    }
}
