//! Finds what the longest zone that contains a name has.

use std::collections::HashMap;

use hashbrown::DefaultHashBuilder;
use hickory_proto::rr::{Name, RecordType};

use crate::model::names;

#[derive(Debug)]
pub(super) struct ZoneTable<T> {
    /// What each zone has in its order, keyed by zone, in wire form without the root octet, in lower case.
    zones: HashMap<Box<[u8]>, Vec<T>, DefaultHashBuilder>,
    /// The length of the longest key.
    longest: usize,
}

impl<T> ZoneTable<T> {
    /// Returns a table of pairs of a zone, in the form of the keys, and something that it has.
    pub fn new(all: impl Iterator<Item = (Box<[u8]>, T)>) -> Self {
        let mut zones: HashMap<Box<[u8]>, Vec<T>, _> = HashMap::default();
        for (zone, value) in all {
            zones.entry(zone).or_default().push(value);
        }
        let longest = zones.keys().map(|zone| zone.len()).max().unwrap_or_default();
        Self { zones, longest }
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.zones.values().flatten()
    }

    /// Returns the first suitable value of the longest zone that contains a name and has one, but for the DS record of a
    /// zone that of a zone above it.
    pub fn find(&self, name: &Name, qtype: RecordType, is_suitable: impl Fn(&T) -> bool) -> Option<&T> {
        let length = if name.is_root() { 0 } else { name.len() };
        let (mut left, mut wire) = (length, Vec::with_capacity(self.longest));
        // The end of the name, no longer than the longest zone.
        let end = name.iter().skip_while(|label| {
            let is_too_long = left > self.longest;
            left -= if is_too_long { 1 + label.len() } else { 0 };
            is_too_long
        });
        names::push_labels(end, &mut wire);
        let mut rest = &*wire;
        let mut own = None;
        loop {
            let of_zone = self.zones.get(rest);
            if let Some(value) = of_zone.and_then(|all| all.iter().find(|value| is_suitable(value))) {
                // RFC 4035 section 3.1.4.1: the parent zone answers for the DS record of a zone.
                if qtype != RecordType::DS || rest.len() < length {
                    return Some(value);
                }
                own = Some(value);
            }
            match rest.split_first() {
                Some((length, labels)) => rest = labels.get(usize::from(*length)..)?,
                None => return own,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::message::query::wire_name;

    #[test]
    fn longest_zone_with_a_suitable_value_is_found() {
        let name = |text| Name::from_ascii(text).unwrap();
        let all = [(".", 0), ("example.", 1), ("example.", 2), ("a.example.", 3)];
        let table = ZoneTable::new(all.map(|(zone, value)| (wire_name(&name(zone)), value)).into_iter());
        for (of, qtype, least, found) in [
            ("x.A.example.", RecordType::A, 0, Some(3)),
            ("a.example.", RecordType::A, 0, Some(3)),
            ("a.example.", RecordType::DS, 0, Some(1)),
            ("b.example.", RecordType::A, 0, Some(1)),
            ("b.example.", RecordType::A, 2, Some(2)),
            ("b.example.", RecordType::A, 3, None),
            ("test.", RecordType::A, 0, Some(0)),
            (".", RecordType::DS, 0, Some(0)),
        ] {
            assert_eq!(table.find(&name(of), qtype, |value| *value >= least), found.as_ref(), "{of} {qtype}");
        }
        assert_eq!(table.values().count(), 4);
    }
}
