//! How long an HTTP cache may keep an answer.

use super::header::{HEADER, after_name};

/// Returns for how many seconds an answer in wire form is fresh (RFC 8484 section 5.1): its smallest TTL, or that of a
/// negative answer (RFC 2308 section 5). Returns `None` for errors, and for answers without a record that says so.
#[must_use]
pub(crate) fn freshness(message: &[u8]) -> Option<u32> {
    const NXDOMAIN: u8 = 3;
    const SOA: [u8; 2] = 6_u16.to_be_bytes();
    if !matches!(message.get(3)? & 0x0f, 0 | NXDOMAIN) {
        return None;
    }
    let count = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let mut at = HEADER;
    for _ in 0..count(4)? {
        at = after_name(message, at)? + 4;
    }
    let (answers, authorities) = (usize::from(count(6)?), usize::from(count(8)?));
    let mut smallest = None;
    for number in 0..answers + authorities {
        let start = after_name(message, at)?;
        let [type_high, type_low, _, _, ttl @ .., high, low] = *message.get(start..)?.first_chunk::<10>()?;
        at = start + 10 + usize::from(u16::from_be_bytes([high, low]));
        let minimum = match [type_high, type_low] {
            _ if number < answers => u32::MAX,
            // RFC 1035 section 3.3.13: MINIMUM is the last number of an SOA record.
            SOA => u32::from_be_bytes(*message.get(..at)?.last_chunk()?),
            _ => continue,
        };
        let ttl = seconds(u32::from_be_bytes(ttl)).min(minimum);
        smallest = Some(smallest.map_or(ttl, |known: u32| known.min(ttl)));
    }
    smallest
}

/// Returns a TTL; one with the most significant bit counts as 0 (RFC 2181 section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > u32::MAX / 2 { 0 } else { ttl }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Message, Query, ResponseCode};
    use hickory_proto::rr::rdata::{A, NS, SOA};
    use hickory_proto::rr::{Name, RData, Record, RecordType};

    use super::*;

    fn message(rcode: ResponseCode, answers: &[u32], authorities: &[(RData, u32)]) -> Vec<u8> {
        let name: Name = "a.example.".parse().unwrap();
        let mut message = Message::query();
        message.metadata.response_code = rcode;
        message.add_query(Query::query(name.clone(), RecordType::A));
        for ttl in answers {
            message.add_answer(Record::from_rdata(name.clone(), *ttl, RData::A(A::new(192, 0, 2, 1))));
        }
        for (data, ttl) in authorities {
            message.add_authority(Record::from_rdata(name.clone(), *ttl, data.clone()));
        }
        message.to_vec().unwrap()
    }

    #[test]
    fn smallest_ttl_and_negative_ttl_count_and_errors_are_not_kept() {
        const NOERROR: ResponseCode = ResponseCode::NoError;
        let soa = |minimum| RData::SOA(SOA::new(Name::root(), Name::root(), 1, 2, 3, 4, minimum));
        let ns = || RData::NS(NS(Name::root()));
        for (rcode, answers, authorities, expected) in [
            (NOERROR, &[60, 5, 30][..], vec![], Some(5)),
            (NOERROR, &[60, 0], vec![], Some(0)),
            (NOERROR, &[60, 1 << 31], vec![], Some(0)),
            (NOERROR, &[60], vec![(ns(), 5)], Some(60)),
            (NOERROR, &[], vec![(soa(30), 60)], Some(30)),
            (NOERROR, &[], vec![(soa(60), 30)], Some(30)),
            (ResponseCode::NXDomain, &[20], vec![(soa(30), 60)], Some(20)),
            (ResponseCode::NXDomain, &[60], vec![(soa(30), 60)], Some(30)),
            (ResponseCode::NXDomain, &[], vec![], None),
            (NOERROR, &[], vec![(ns(), 5)], None),
            (NOERROR, &[], vec![], None),
            (ResponseCode::ServFail, &[60], vec![], None),
            (ResponseCode::Refused, &[], vec![(soa(30), 60)], None),
        ] {
            let message = message(rcode, answers, &authorities);
            assert_eq!(freshness(&message), expected, "{rcode} {answers:?} {authorities:?}");
        }
    }

    #[test]
    fn cut_message_has_no_freshness_and_does_not_panic() {
        let whole = message(ResponseCode::NoError, &[60, 30], &[]);
        for length in 0..whole.len() - 4 {
            assert_eq!(freshness(&whole[..length]), None, "{length}");
        }
    }
}
