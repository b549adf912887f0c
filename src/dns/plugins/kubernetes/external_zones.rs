//! The zones of `k8s_external`, which `kubernetes` in the same block transfers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::reply::ZoneReply;
use crate::model::names;
use crate::store::cluster::View;
use crate::store::cluster::answer::Rules;
use crate::store::cluster::external::ExternalRules;

/// The zones of `k8s_external` in the block.
#[derive(Debug)]
pub(in crate::dns::plugins) struct ExternalZones {
    pub(in crate::dns::plugins) rules: ExternalRules,
    /// The labels of the name server and the mailbox of a zone, in wire form.
    server: Vec<u8>,
    mailbox: Vec<u8>,
    /// The zones that are transferred, in wire form.
    pub(in crate::dns::plugins) transferred: Vec<Box<[u8]>>,
}

impl ExternalZones {
    pub(in crate::dns::plugins) fn new(rules: ExternalRules, transferred: Vec<Box<[u8]>>) -> Self {
        let labels = |first: &str| {
            let mut wire = Vec::new();
            names::push_labels(
                [first].into_iter().chain(rules.apex.split('.')).map(str::as_bytes),
                &mut wire,
            );
            wire
        };
        let (server, mailbox) = (labels("ns1"), labels("hostmaster"));
        Self { rules, server, mailbox, transferred }
    }

    /// Returns how replies in a zone are made, but for the bounds of TTLs.
    pub(in crate::dns::plugins) fn reply<'a>(
        &'a self,
        rules: &Rules,
        origin: &'a [u8],
        serial: &'a Arc<AtomicU64>,
    ) -> ZoneReply<'a> {
        ZoneReply {
            plugin: "k8s_external",
            origin,
            server: &self.server,
            mailbox: &self.mailbox,
            soa_ttl: self.rules.ttl,
            absence: self.rules.ttl,
            alias_ttl: rules.ttl,
            limits: None,
            serial,
        }
    }

    /// Returns what the zones show of the objects.
    pub(in crate::dns::plugins) fn view(&self) -> View {
        if self.rules.headless { View::ExternalHeadless } else { View::External }
    }
}
