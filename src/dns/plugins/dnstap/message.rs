//! The messages of dnstap, as frames of Frame Streams.
//!
//! `dnstap.proto` of <https://github.com/dnstap/dnstap.pb> has the fields; the numbers here are its field numbers.

use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

/// A data frame, with its length.
pub(super) type Frame = std::sync::Arc<[u8]>;

/// `Message.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ClientQuery = 5,
    ClientResponse = 6,
    ForwarderQuery = 7,
    ForwarderResponse = 8,
}

/// `Message`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub kind: Kind,
    pub is_udp: bool,
    /// The address that the query came from.
    pub query: Option<SocketAddr>,
    /// The address that the query went to.
    pub response: Option<SocketAddr>,
    pub query_time: SystemTime,
    pub response_time: Option<SystemTime>,
    /// The DNS message: the response if there is a `response_time`, else the query.
    pub dns: Option<&'a [u8]>,
}

/// Returns the frame with a `Dnstap` of type MESSAGE.
pub(super) fn frame(identity: &[u8], version: &[u8], extra: Option<&[u8]>, message: &Message<'_>) -> Frame {
    let mut fields = Fields(vec![0; 4]);
    fields.bytes(1, identity);
    fields.bytes(2, version);
    if let Some(extra) = extra {
        fields.bytes(3, extra);
    }
    fields.bytes(14, &message.encoded());
    fields.number(15, 1);
    let mut frame = fields.0;
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame.into()
}

impl Message<'_> {
    fn encoded(&self) -> Vec<u8> {
        let mut fields = Fields(Vec::with_capacity(64 + self.dns.map_or(0, <[u8]>::len)));
        fields.number(1, self.kind as u64);
        if let Some(address) = self.response.or(self.query) {
            fields.number(2, if address.is_ipv4() { 1 } else { 2 });
        }
        fields.number(3, if self.is_udp { 1 } else { 2 });
        for (field, address) in [(4, self.query), (5, self.response)] {
            match address.map(|address| address.ip()) {
                Some(IpAddr::V4(ip)) => fields.bytes(field, &ip.octets()),
                Some(IpAddr::V6(ip)) => fields.bytes(field, &ip.octets()),
                None => {}
            }
        }
        for (field, address) in [(6, self.query), (7, self.response)] {
            if let Some(address) = address {
                fields.number(field, address.port().into());
            }
        }
        fields.time(8, self.query_time);
        if let (None, Some(query)) = (self.response_time, self.dns) {
            fields.bytes(10, query);
        }
        if let Some(time) = self.response_time {
            fields.time(12, time);
            if let Some(response) = self.dns {
                fields.bytes(14, response);
            }
        }
        fields.0
    }
}

/// The fields of a message of Protocol Buffers.
struct Fields(Vec<u8>);

impl Fields {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }

    /// Adds the number of a field, and how its value is encoded.
    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    /// Adds the seconds as the field `field`, and the nanoseconds as the next one.
    fn time(&mut self, field: u64, time: SystemTime) {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.number(field, since.as_secs());
        self.key(field + 1, 5);
        self.0.extend(since.subsec_nanos().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn frames_have_the_fields_of_dnstap() {
        let at = |seconds, nanos| UNIX_EPOCH + Duration::new(seconds, nanos);
        let message = Message {
            kind: Kind::ClientResponse,
            is_udp: true,
            query: Some(([192, 0, 2, 1], 5353).into()),
            response: None,
            query_time: at(300, 1),
            response_time: Some(at(300, 256)),
            dns: Some(b"answer"),
        };
        let expected = [
            &[0, 0, 0, 53][..],
            b"\x0a\x02me\x12\x01v\x1a\x01x",
            b"\x72\x27\x08\x06\x10\x01\x18\x01\x22\x04\xc0\x00\x02\x01\x30\xe9\x29",
            b"\x40\xac\x02\x4d\x01\x00\x00\x00\x60\xac\x02\x6d\x00\x01\x00\x00\x72\x06answer",
            b"\x78\x01",
        ]
        .concat();
        assert_eq!(*frame(b"me", b"v", Some(b"x"), &message), *expected);
    }

    #[test]
    fn forwarded_queries_have_both_addresses() {
        let message = Message {
            kind: Kind::ForwarderQuery,
            is_udp: false,
            query: None,
            response: Some("[2001:db8::1]:53".parse().unwrap()),
            query_time: UNIX_EPOCH,
            response_time: None,
            dns: Some(b"q"),
        };
        let start = b"\x08\x07\x10\x02\x18\x02\x2a\x10\x20\x01\x0d\xb8";
        let end = b"\x38\x35\x40\x00\x4d\x00\x00\x00\x00\x52\x01q";
        let bytes = message.encoded();
        assert!(bytes.starts_with(start) && bytes.ends_with(end), "{bytes:02x?}");
    }
}
