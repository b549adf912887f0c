//! Headers of the PROXY protocol, versions 1 and 2 (<https://www.haproxy.org/download/1.8/doc/proxy-protocol.txt>), in
//! front of what a proxy passes on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The first bytes of version 1 (section 2.1), and of version 2 (section 2.2).
const TEXT_SIGNATURE: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The version with the command: the proxy itself asks, for example as a health check, or a client of it.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
/// The maximum length of a header of version 1 (section 2.1).
const MAX_TEXT: usize = 107;
/// The length of a header of version 2 without addresses and TLVs: signature, command, family, length of the rest.
const FIXED: usize = SIGNATURE.len() + 4;
/// The maximum length of addresses and TLVs. UNIX addresses take 216 bytes, the TLVs of load balancers less than that.
const MAX_LENGTH: usize = 2048;

/// What a connection or a datagram begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    Absent,
    /// More bytes are needed to decide.
    Incomplete,
    Present {
        /// The length of the header in bytes.
        length: usize,
        /// The client; `None` if the header is about the sender itself, or names no IP address.
        client: Option<SocketAddr>,
    },
    /// Why the header is invalid.
    Invalid(&'static str),
}

/// Reads the header in front of a connection's bytes.
#[must_use]
pub fn parse(bytes: &[u8]) -> ProxyHeader {
    if begins(bytes, SIGNATURE) {
        binary(bytes)
    } else if begins(bytes, TEXT_SIGNATURE) {
        text(bytes)
    } else {
        ProxyHeader::Absent
    }
}

/// Reads the header in front of a datagram, where only version 2 has a meaning.
#[must_use]
pub fn parse_datagram(bytes: &[u8]) -> ProxyHeader {
    if bytes.starts_with(TEXT_SIGNATURE) {
        ProxyHeader::Invalid("it has version 1, which is for TCP alone")
    } else if !bytes.is_empty() && begins(bytes, SIGNATURE) {
        binary(bytes)
    } else {
        ProxyHeader::Absent
    }
}

/// Returns whether the bytes begin with a signature, or with a part of it if they are fewer.
fn begins(bytes: &[u8], signature: &[u8]) -> bool {
    bytes.iter().zip(signature).all(|(byte, wanted)| byte == wanted)
}

/// Reads a header of version 1: `PROXY TCP4 SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT`, and CR LF.
fn text(bytes: &[u8]) -> ProxyHeader {
    let first = &bytes[..bytes.len().min(MAX_TEXT)];
    let Some(end) = first.windows(2).position(|end| end == b"\r\n") else {
        return if first.len() < MAX_TEXT {
            ProxyHeader::Incomplete
        } else {
            ProxyHeader::Invalid("it has no end within 107 bytes")
        };
    };
    let line = str::from_utf8(&first[..end]).unwrap_or_default();
    let client = match line.split(' ').collect::<Vec<_>>()[..] {
        ["PROXY", "UNKNOWN", ..] => Some(None),
        ["PROXY", "TCP4", source, destination, port, to_port] => {
            client_of::<Ipv4Addr>([source, destination], [port, to_port]).map(Some)
        }
        ["PROXY", "TCP6", source, destination, port, to_port] => {
            client_of::<Ipv6Addr>([source, destination], [port, to_port]).map(Some)
        }
        _ => None,
    };
    match client {
        Some(client) => ProxyHeader::Present { length: end + 2, client },
        None => ProxyHeader::Invalid("its line can't be read"),
    }
}

fn client_of<A: FromStr + Into<IpAddr>>(addresses: [&str; 2], ports: [&str; 2]) -> Option<SocketAddr> {
    let [source, _] = [addresses[0].parse::<A>().ok()?, addresses[1].parse::<A>().ok()?];
    let [port, _] = [port_of(ports[0])?, port_of(ports[1])?];
    Some(SocketAddr::new(source.into(), port))
}

fn port_of(text: &str) -> Option<u16> {
    // The standard library accepts a sign.
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reads a header of version 2. TLVs are skipped, and the checksum in one of them isn't checked.
fn binary(bytes: &[u8]) -> ProxyHeader {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED>() else { return ProxyHeader::Incomplete };
    let [.., command, family, high, low] = *fixed;
    if !matches!(command, LOCAL | PROXY) {
        return ProxyHeader::Invalid("it has neither LOCAL nor PROXY of version 2");
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_LENGTH {
        return ProxyHeader::Invalid("it has more than 2048 bytes after its fixed part");
    }
    let Some(rest) = rest.get(..length) else { return ProxyHeader::Incomplete };
    let client = match (command, family) {
        (LOCAL, _) => None,
        // AF_UNSPEC, and AF_UNIX with its two paths.
        (_, 0x00..=0x02) => None,
        (_, 0x30..=0x32) if length >= 216 => None,
        (_, 0x10..=0x12) if let Some((addresses, _)) = rest.split_first_chunk::<12>() => {
            let [a, b, c, d, _, _, _, _, high, low, ..] = *addresses;
            Some(SocketAddr::new(IpAddr::from([a, b, c, d]), u16::from_be_bytes([high, low])))
        }
        (_, 0x20..=0x22) if let Some((addresses, _)) = rest.split_first_chunk::<36>() => {
            let (source, ports) = (addresses.first_chunk::<16>(), addresses.last_chunk::<4>());
            source.zip(ports).map(|(source, [high, low, ..])| {
                SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes([*high, *low]))
            })
        }
        _ => return ProxyHeader::Invalid("its addresses can't be read"),
    };
    ProxyHeader::Present { length: FIXED + length, client }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary_header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest].concat()
    }

    fn present(bytes: &[u8], client: Option<&str>) {
        let expected = ProxyHeader::Present {
            length: bytes.len(),
            client: client.map(|client| client.parse().unwrap()),
        };
        assert_eq!(parse(bytes), expected, "{bytes:?}");
        assert_eq!(parse(&[bytes, b"rest"].concat()), expected, "{bytes:?}");
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), ProxyHeader::Incomplete, "{end} of {bytes:?}");
        }
    }

    #[test]
    fn clients_of_both_versions_are_read() {
        present(b"PROXY TCP4 192.0.2.1 192.0.2.53 4711 53\r\n", Some("192.0.2.1:4711"));
        present(b"PROXY TCP6 2001:db8::1 2001:db8::53 65535 53\r\n", Some("[2001:db8::1]:65535"));
        present(b"PROXY UNKNOWN\r\n", None);
        present(b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None);
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 53, 0x12, 0x67, 0, 53];
        let ipv6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 28], &[0x12, 0x67, 0, 53]].concat();
        for transport in 0..=2 {
            present(&binary_header(0x21, 0x10 | transport, &ipv4), Some("192.0.2.1:4711"));
            present(&binary_header(0x21, 0x20 | transport, &ipv6), Some("[2001:db8::]:4711"));
        }
        let with_tlv = [&ipv4[..], &[4, 0, 1, 0]].concat();
        present(&binary_header(0x21, 0x12, &with_tlv), Some("192.0.2.1:4711"));
        present(&binary_header(0x21, 0, &[]), None);
        present(&binary_header(0x21, 0x31, &[b'x'; 216]), None);
        present(&binary_header(0x20, 0, &[]), None);
        present(&binary_header(0x20, 0x11, &ipv4), None);
        present(&binary_header(0x21, 0, &[0; MAX_LENGTH]), None);
    }

    #[test]
    fn invalid_headers_are_rejected() {
        for line in [
            "PROXY ",
            "PROXY TCP4",
            "PROXY TCP5 192.0.2.1 192.0.2.2 1 2",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3",
            "PROXY TCP4 192.0.2.1  192.0.2.2 1 2",
            "PROXY TCP4 2001:db8::1 2001:db8::2 1 2",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2",
            "PROXY TCP4 192.0.2.1 192.0.2.2 65536 2",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2",
            "PROXY TCP4 192.0.2.1 192.0.2.2  2",
        ] {
            let header = format!("{line}\r\n");
            assert!(matches!(parse(header.as_bytes()), ProxyHeader::Invalid(_)), "{line}");
        }
        assert!(matches!(parse(&[b"PROXY ", &[b'x'; 101][..]].concat()), ProxyHeader::Invalid(_)));
        assert!(matches!(parse(b"PROXY \xff\r\n"), ProxyHeader::Invalid(_)));
        for (command, family, length) in [
            (0x22, 0x11, 12),
            (0x11, 0x11, 12),
            (0x21, 0x11, 11),
            (0x21, 0x21, 35),
            (0x21, 0x13, 12),
            (0x21, 0x31, 215),
        ] {
            let header = binary_header(command, family, &vec![0; length]);
            assert!(matches!(parse(&header), ProxyHeader::Invalid(_)), "{command:x} {family:x} {length}");
        }
        let long = binary_header(0x21, 0x11, &[0; MAX_LENGTH + 1]);
        assert!(matches!(parse(&long[..FIXED]), ProxyHeader::Invalid(_)), "before the rest is read");
    }

    #[test]
    fn other_bytes_are_no_header() {
        for bytes in
            [&b"\x00\x1d"[..], b"\x16\x03\x01", b"PRI * HTTP/2.0", b"PROXZ", b"\r\n\r\n\0\r\nQUIT\r", b"G"]
        {
            assert_eq!(parse(bytes), ProxyHeader::Absent, "{bytes:?}");
        }
        let text = b"PROXY TCP4 192.0.2.1 192.0.2.53 4711 53\r\n";
        assert!(matches!(parse_datagram(text), ProxyHeader::Invalid(_)), "version 1 is for TCP alone");
        assert_eq!(parse_datagram(b""), ProxyHeader::Absent);
        assert_eq!(parse(b""), ProxyHeader::Incomplete);
    }
}
