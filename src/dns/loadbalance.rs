//! The order of addresses: each client gets another one first, as with CoreDNS's plugin of that name.

use hickory_proto::rr::{Record, RecordType};
use rand::RngExt;

/// Shuffles the addresses and mail exchangers of a section and leaves all other records where they are:
/// a chain has to be in order.
pub(super) fn shuffle(records: &mut [Record]) {
    let mut random = rand::rng();
    for qtypes in [&[RecordType::A, RecordType::AAAA][..], &[RecordType::MX]] {
        let places: Vec<usize> =
            (0..records.len()).filter(|place| qtypes.contains(&records[*place].record_type())).collect();
        // Fisher and Yates: each place gets one of those that are left.
        for left in (1..places.len()).rev() {
            records.swap(places[left], places[random.random_range(0..=left)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, CNAME};
    use hickory_proto::rr::{Name, RData};

    use super::*;

    #[test]
    fn every_address_comes_first_at_times_and_the_alias_always() {
        let name = Name::from_ascii("a.example.").unwrap();
        let alias = Record::from_rdata(name.clone(), 5, RData::CNAME(CNAME(name.clone())));
        let address = |i| Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, 2, i)));
        let whole = vec![alias.clone(), address(1), address(2), address(3)];
        let mut firsts = Vec::new();
        for _ in 0..200 {
            let mut records = whole.clone();
            shuffle(&mut records);
            assert_eq!(records[0], alias);
            firsts.push(records[1].clone());
            records.sort_by_key(|record| record.to_string());
            let mut expected = whole.clone();
            expected.sort_by_key(|record| record.to_string());
            assert_eq!(records, expected);
        }
        assert!((1..=3).all(|i| firsts.contains(&address(i))));
    }
}
