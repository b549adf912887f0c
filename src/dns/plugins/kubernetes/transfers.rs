//! Zones of `kubernetes` and `k8s_external` for zone transfers: what questions are answered with, for each name that the
//! objects have.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use super::external_zones::ExternalZones;
use super::reply::ZoneReply;
use super::zone_reply;
use crate::dns::chain::zone_state::{SharedCopy, TransferredZone, ZoneRecord, ZoneState};
use crate::dns::message::zone_record::of_name;
use crate::dns::plugins::ttl_limits::TtlLimits;
use crate::store::change_time::ChangeSerial;
use crate::store::cluster::Cluster;
use crate::store::cluster::answer::{Outcome, Rules, is_reverse};
use crate::store::cluster::names::ZoneNames;
use crate::store::cluster::records::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};

/// The types of records that names of a forward zone may have. A CNAME record goes before all others, but at the name of a
/// port.
const TYPES: [u16; 5] = [CNAME, A, AAAA, SRV, TXT];
const TYPES_OF_PORT: [u16; 3] = [A, AAAA, SRV];

/// A zone that is transferred.
#[derive(Clone)]
pub(super) struct TransferredClusterZone {
    pub(super) cluster: Arc<Cluster>,
    pub(super) rules: Arc<Rules>,
    /// For a zone of `k8s_external`.
    pub(super) external: Option<Arc<ExternalZones>>,
    /// In wire form.
    pub(super) origin: Box<[u8]>,
    pub(super) serial: ChangeSerial,
    pub(super) ttl_limits: Option<TtlLimits>,
    pub(super) copy: Arc<SharedCopy<Cluster>>,
}

impl TransferredZone for TransferredClusterZone {
    fn serial(&self) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "DNS has the low 32 bits")]
        let serial = || self.serial.advance() as u32;
        self.cluster.is_listed().then(serial)
    }

    fn soa(&self) -> Option<ZoneRecord> {
        self.serial()?;
        self.records(&self.origin, &[SOA], |_| false).into_iter().next()
    }

    fn state(&self) -> Option<ZoneState> {
        let serial = self.serial.advance();
        // After the serial: it must not be newer than the records.
        let cluster = self.copy.of(serial, || self.cluster.copy());
        let at = Self { serial: ChangeSerial::fixed(serial), cluster, ..self.clone() };
        let soa = at.soa()?;
        let names = at.names();
        let is_glue = |owner: &[u8]| owner.ends_with(&at.origin) && !names.contains(owner);
        let mut of_zone = at.records(&at.origin, &[NS, PTR], is_glue);
        if !of_zone.iter().any(|record| record.rtype == NS) {
            of_zone.push(at.reply().name_server());
        }
        let origin = at.origin.clone();
        let below = names.into_iter().filter(move |name| **name != *origin);
        let is_reverse = is_reverse(&at.origin);
        let types = move |name: &[u8]| match name.get(1) {
            _ if is_reverse => &[PTR][..],
            Some(b'_') => &TYPES_OF_PORT,
            _ => &TYPES,
        };
        let below = below.flat_map(move |name| of_name(at.records(&name, types(&name), |_| false)));
        Some(ZoneState { soa, records: Box::new(of_zone.into_iter().map(Some).chain(below)) })
    }
}

impl TransferredClusterZone {
    fn names(&self) -> ZoneNames {
        match &self.external {
            Some(external) => self.cluster.external_names(&external.rules, &self.origin),
            None => self.cluster.names(&self.rules, &self.origin),
        }
    }

    /// Returns how replies are made, but for the bounds of TTLs.
    fn reply(&self) -> ZoneReply<'_> {
        match &self.external {
            Some(external) => external.reply(&self.rules, &self.origin, self.serial.shown()),
            None => zone_reply(&self.rules, &self.origin, self.serial.shown()),
        }
    }

    /// Returns what questions of these types are answered with. Of the records of other names, which an answer has
    /// besides, only the records that `is_glue` wants.
    fn records(&self, name: &[u8], types: &[u16], is_glue: impl Fn(&[u8]) -> bool) -> Vec<ZoneRecord> {
        let mut reply = self.reply();
        let limits = |limits: &TtlLimits| limits.at(&Name::read(&mut BinDecoder::new(name)).ok()?);
        reply.limits = self.ttl_limits.as_ref().and_then(limits);
        let mut records = Vec::new();
        for qtype in types {
            let outcome = match &self.external {
                Some(external) => {
                    self.cluster.external_answer(&self.rules, &external.rules, &self.origin, name, *qtype)
                }
                None => self.cluster.answer(&self.rules, &self.origin, name, *qtype),
            };
            match outcome.outcome {
                outcome @ Outcome::Alias(_) if *qtype == CNAME => {
                    return reply.records(name, &outcome, |_| false);
                }
                // An address of the other family goes before the alias.
                Outcome::Alias(_) => {}
                outcome => records.extend(reply.records(name, &outcome, &is_glue)),
            }
        }
        records
    }
}
