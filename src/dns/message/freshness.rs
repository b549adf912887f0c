//! How long an HTTP cache may keep an answer, and what remains of its TTLs then (RFC 8484 section 5.1).

use super::header::{HEADER, after_name};

const SOA: [u8; 2] = 6_u16.to_be_bytes();
const OPT: [u8; 2] = 41_u16.to_be_bytes();

/// Returns for how many seconds an answer in wire form is fresh (RFC 8484 section 5.1): its smallest TTL, or that of a
/// negative answer (RFC 2308 section 5). Returns `None` for errors, and for answers without a record that says so.
#[must_use]
pub(crate) fn freshness(message: &[u8]) -> Option<u32> {
    const NXDOMAIN: u8 = 3;
    if !matches!(message.get(3)? & 0x0f, 0 | NXDOMAIN) {
        return None;
    }
    let mut at = first_record(message)?;
    let (answers, authorities) = (count(message, 6)?, count(message, 8)?);
    let mut smallest = None;
    for number in 0..answers + authorities {
        let record = record(message, at)?;
        at = record.end;
        let ttl = match record.kind {
            _ if number < answers => record.ttl,
            SOA => record.negative_ttl(message)?,
            _ => continue,
        };
        smallest = Some(smallest.map_or(ttl, |known: u32| known.min(ttl)));
    }
    smallest
}

/// Reduces the TTLs of an answer that HTTP caches have kept for `age` seconds (RFC 8484 section 5.1). A message that
/// isn't whole is changed up to its first error.
pub fn reduce_ttls(message: &mut [u8], age: u32) {
    if age > 0 {
        reduce(message, age);
    }
}

fn reduce(message: &mut [u8], age: u32) -> Option<()> {
    let mut at = first_record(message)?;
    let [answers, authorities, additionals] = [count(message, 6)?, count(message, 8)?, count(message, 10)?];
    for number in 0..answers + authorities + additionals {
        let record = record(message, at)?;
        at = record.end;
        let ttl = match record.kind {
            OPT => continue,
            SOA if (answers..answers + authorities).contains(&number) => record.negative_ttl(message)?,
            _ => record.ttl,
        };
        message[record.ttl_at..][..4].copy_from_slice(&ttl.saturating_sub(age).to_be_bytes());
    }
    Some(())
}

struct RecordFields {
    kind: [u8; 2],
    ttl_at: usize,
    /// In seconds; 0 for one with the most significant bit (RFC 2181 section 8).
    ttl: u32,
    end: usize,
}

impl RecordFields {
    /// Returns the TTL of the negative answer that this SOA record belongs to (RFC 2308 section 5).
    fn negative_ttl(&self, message: &[u8]) -> Option<u32> {
        // RFC 1035 section 3.3.13: MINIMUM is the last number of an SOA record.
        Some(self.ttl.min(u32::from_be_bytes(*message.get(..self.end)?.last_chunk()?)))
    }
}

/// Returns the number in the header at this offset.
fn count(message: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?).into())
}

/// Returns the offset of the first record.
fn first_record(message: &[u8]) -> Option<usize> {
    (0..count(message, 4)?).try_fold(HEADER, |at, _| Some(after_name(message, at)? + 4))
}

fn record(message: &[u8], at: usize) -> Option<RecordFields> {
    let start = after_name(message, at)?;
    let [type_high, type_low, _, _, ttl @ .., high, low] = *message.get(start..)?.first_chunk::<10>()?;
    let ttl = u32::from_be_bytes(ttl);
    Some(RecordFields {
        kind: [type_high, type_low],
        ttl_at: start + 4,
        ttl: if ttl > u32::MAX / 2 { 0 } else { ttl },
        end: start + 10 + usize::from(u16::from_be_bytes([high, low])),
    })
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Edns, Message, Query, ResponseCode};
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

    #[test]
    fn age_reduces_all_ttls_but_those_of_opt_records() {
        let soa = |minimum| RData::SOA(SOA::new(Name::root(), Name::root(), 1, 2, 3, 4, minimum));
        for (age, answers, authorities, expected) in [
            (0, &[60, 1 << 31][..], vec![(soa(5), 30)], vec![60, 1 << 31, 30]),
            (20, &[60, 5, 1 << 31], vec![(RData::NS(NS(Name::root())), 30)], vec![40, 0, 0, 10]),
            (20, &[], vec![(soa(30), 60)], vec![10]),
            (u32::MAX, &[60, (1 << 31) - 1], vec![(soa(30), 60)], vec![0, 0, 0]),
        ] {
            let mut message =
                Message::from_vec(&message(ResponseCode::NoError, answers, &authorities)).unwrap();
            message.set_edns(Edns::new());
            let mut octets = message.to_vec().unwrap();
            reduce_ttls(&mut octets, age);
            let reduced = Message::from_vec(&octets).unwrap();
            let records = reduced.answers.iter().chain(&reduced.authorities);
            assert_eq!(records.map(|record| record.ttl).collect::<Vec<_>>(), expected);
            assert_eq!(reduced.edns, message.edns);
            for end in 0..octets.len() {
                let mut cut = octets[..end].to_vec();
                reduce_ttls(&mut cut, 1);
                assert_eq!(cut.len(), end);
            }
        }
    }
}
