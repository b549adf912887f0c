//! The records of a zone for a transfer.

use std::sync::Arc;

use hickory_proto::rr::RecordType;

use super::data::{APEX, NodeId, Rrset, Zone, data_at};
use crate::dns::message::zone_record::ZoneRecord;

const SOA: u16 = 6;

/// The records of a zone but for the SOA record, in the order of their nodes.
struct Records {
    zone: Arc<Zone>,
    /// The node and the rrset of the next record.
    node: usize,
    rrset: usize,
    /// The next record, in the order of the rrsets.
    record: usize,
}

impl Zone {
    /// Returns the SOA record.
    pub(in crate::dns) fn soa(&self) -> Option<ZoneRecord> {
        let soa = self.rrset(APEX, RecordType::SOA.into())?;
        let data = self.data_of(soa).next()?.into();
        Some(ZoneRecord { owner: self.name(APEX).into(), rtype: SOA, ttl: self.rrsets[soa].ttl, data })
    }

    /// Returns all records but the SOA record. They are read as they are taken.
    pub(in crate::dns) fn records_without_soa(self: Arc<Self>) -> impl Iterator<Item = ZoneRecord> + Send {
        Records { zone: self, node: 0, rrset: 0, record: 0 }
    }
}

impl Iterator for Records {
    type Item = ZoneRecord;

    fn next(&mut self) -> Option<ZoneRecord> {
        let zone = &*self.zone;
        loop {
            let at = *zone.records.get(self.record)?;
            let first_of = |rrset: usize| zone.rrsets.get(rrset).map(|rrset| rrset.first_record as usize);
            while first_of(self.rrset + 1).is_some_and(|first| first <= self.record) {
                self.rrset += 1;
            }
            // Nodes without records begin where the next node begins.
            while zone.nodes.get(self.node + 1).is_some_and(|next| next.first_rrset as usize <= self.rrset) {
                self.node += 1;
            }
            self.record += 1;
            let Rrset { rtype, ttl, .. } = zone.rrsets[self.rrset];
            if rtype == SOA {
                continue;
            }
            let owner = zone.name(NodeId(u32::try_from(self.node).ok()?)).into();
            return Some(ZoneRecord { owner, rtype, ttl, data: data_at(&zone.octets, at).into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_complete_with_their_owners() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("db");
        let text = "$TTL 300\n@ SOA ns host 7 1 2 3 4\n@ NS ns\nns A 192.0.2.1\nx.y.empty 60 A 192.0.2.2\n\
            x.y.empty 30 A 192.0.2.3\nchild NS ns.child\nns.child A 192.0.2.4\nempty TXT t\nlast A 192.0.2.5\n\
            last RRSIG A 8 3 3600 20300101000000 20200101000000 1 z. AwEAAbOF\n";
        std::fs::write(&file, text).unwrap();
        let zone = Arc::new(Zone::read(&file, b"\x01z\0").0.unwrap());
        assert_eq!(zone.soa().unwrap().serial(), Some(7));
        let name = |wire: &[u8]| {
            super::super::data::labels(wire).map(String::from_utf8_lossy).collect::<Vec<_>>().join(".")
        };
        let records = Arc::clone(&zone).records_without_soa();
        let mut found: Vec<String> = records
            .map(|record| {
                format!("{} {} {} {}", name(&record.owner), record.rtype, record.ttl, record.data.len())
            })
            .collect();
        found.sort();
        assert_eq!(
            found,
            [
                "child.z 2 300 12",
                "empty.z 16 300 2",
                "last.z 1 300 4",
                "last.z 46 300 27",
                "ns.child.z 1 300 4",
                "ns.z 1 300 4",
                "x.y.empty.z 1 30 4",
                "x.y.empty.z 1 30 4",
                "z 2 300 6",
            ]
        );
        assert_eq!(found.len() + 1, zone.number_of_records());
    }
}
