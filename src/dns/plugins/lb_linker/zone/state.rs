//! The records of a zone for zone transfers: what queries are answered with, for each name in the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use hickory_proto::rr::{Name, RecordType};

use super::{Hop, Zone, ZoneKind};
use crate::dns::chain::zone_state::{SharedCopy, TransferredZone, ZoneRecord, ZoneState};
use crate::dns::message::zone_record::of_name;
use crate::model::owner::Source;
use crate::model::target_policy::TargetPolicy;
use crate::store::change_time::ChangeSerial;
use crate::store::{Input, Store};

/// The types of records that names of a forward zone may have. A CNAME record goes before all others.
const TYPES: [RecordType; 6] =
    [RecordType::CNAME, RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::TXT, RecordType::MX];

/// A zone of `lb_linker` that is transferred.
#[derive(Clone, Debug)]
pub(in crate::dns::plugins::lb_linker) struct TransferredLinkZone {
    pub(in crate::dns::plugins::lb_linker) zone: Zone,
    /// All zones of the plugin, the most specific first.
    pub(in crate::dns::plugins::lb_linker) all: Arc<[Zone]>,
    pub(in crate::dns::plugins::lb_linker) store: Arc<Store>,
    pub(in crate::dns::plugins::lb_linker) policy: Arc<TargetPolicy>,
    pub(in crate::dns::plugins::lb_linker) copy: Arc<SharedCopy<Store>>,
}

impl TransferredZone for TransferredLinkZone {
    fn serial(&self) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "DNS has the low 32 bits")]
        let serial = |serial: &ChangeSerial| serial.advance() as u32;
        self.zone.serial.as_ref().filter(|_| self.zone.is_whole(&self.store)).map(serial)
    }

    fn soa(&self) -> Option<ZoneRecord> {
        self.serial()?;
        self.records(self.zone.origin(), &[RecordType::SOA]).into_iter().next()
    }

    fn state(&self) -> Option<ZoneState> {
        let serial = self.zone.serial.as_ref()?.advance();
        let zone = Zone { serial: Some(ChangeSerial::fixed(serial)), ..self.zone.clone() };
        // After the serial: it must not be newer than the records.
        let store = self.copy.of(serial, || self.store.copy());
        let at = Self { zone, store, ..self.clone() };
        let soa = at.soa()?;
        let names = at.zone.names(&at.store).into_iter();
        Some(ZoneState { soa, records: Box::new(names.flat_map(move |name| of_name(at.records_at(&name)))) })
    }
}

impl TransferredLinkZone {
    fn records_at(&self, name: &Name) -> Vec<ZoneRecord> {
        let is_apex = name == self.zone.origin();
        match (self.zone.is_reverse(), is_apex) {
            (false, false) => self.records(name, &TYPES),
            (false, true) => self.records(name, &[RecordType::NS]),
            (true, false) => self.records(name, &[RecordType::PTR]),
            (true, true) => self.records(name, &[RecordType::NS, RecordType::PTR]),
        }
    }

    /// Returns what queries of these types are answered with, but for the records of other names.
    fn records(&self, name: &Name, types: &[RecordType]) -> Vec<ZoneRecord> {
        let Some(relative) = self.zone.relative(name) else { return Vec::new() };
        let mut records = Vec::new();
        for qtype in types {
            let answer = self.zone.answer(&self.store, name, &relative, *qtype);
            if answer.link.is_some() && !self.allows(&answer.hops) {
                continue;
            }
            let own = answer.answers.iter().filter(|record| record.name == *name);
            records.extend(own.filter_map(|record| ZoneRecord::try_from(record).ok()));
            if *qtype == RecordType::CNAME && !records.is_empty() {
                break;
            }
        }
        records
    }

    /// Returns whether the names that lead to the host of SRV records are allowed, for every client.
    pub(super) fn allows(&self, hops: &[Hop]) -> bool {
        hops.iter().all(|Hop { name, target_of }| {
            let Some(link) = target_of else { return true };
            let namespace = link.key.namespace();
            let place = self.all.iter().find_map(|zone| Some((zone, zone.relative(name)?)));
            let is_open = || match place {
                Some((zone, relative)) => {
                    zone.answer(&self.store, name, &relative, RecordType::ANY).is_open_to(namespace)
                }
                None => self.store.link_of_host(name).is_none_or(|link| link.is_open_to(namespace)),
            };
            self.policy.check_name(name).is_ok() && is_open()
        })
    }
}

impl Zone {
    /// Returns whether all names of the zone are known, or a snapshot is served. A secondary server answers NXDOMAIN for
    /// what a transfer lacks.
    fn is_whole(&self, store: &Store) -> bool {
        if store.fallback().is_some() {
            return true;
        }
        let lacks_names = || {
            let mut zones = std::iter::once(&self.configured).chain(&*self.domains);
            self.configured.has(&Source::SERVICES) && store.has_unknown_namespaces()
                || zones.any(|zone| store.unlisted_source(zone).is_some())
        };
        store.is_known(Input::Services) && (self.is_reverse() || !lacks_names())
    }

    /// Returns the names that may have records, the origin among them, each once.
    fn names(&self, store: &Store) -> Vec<Name> {
        let fallback = store.fallback();
        let stores = || std::iter::once(store).chain(fallback.iter().map(|fallback| &*fallback.store));
        match &self.names {
            ZoneKind::LinkNames(forward) => {
                let names: BTreeSet<Vec<u8>> = stores().flat_map(|store| forward.names(store)).collect();
                names.iter().filter_map(|relative| forward.absolute(relative)).collect()
            }
            ZoneKind::Reverse(reverse) => {
                let names: BTreeSet<Name> = stores().flat_map(|store| reverse.names(store)).collect();
                names.into_iter().collect()
            }
        }
    }
}
