//! # Name
//!
//! *metadata* - gives queries labels, which *log* and *dnstap* write (`{/kubernetes/service}`) and *template* reads
//! (`.Meta "kubernetes/service"`).
//!
//! # Description
//!
//! | label | value |
//! |---|---|
//! | `forward/upstream` | the address and port of the upstream that *forward* has asked last; unknown if it asked none |
//! | `kubernetes/kind`, `kubernetes/namespace`, `kubernetes/service`, `kubernetes/endpoint`, `kubernetes/port-name`, `kubernetes/protocol` | the parts of a name in a zone of *kubernetes*, `svc` or `pod` first; empty if the name has no such part |
//! | `kubernetes/zone` | the topology zone of such a name; with `zonal` |
//! | `kubernetes/parse-error` | `invalid query name` instead of these parts |
//! | `view/name` | the name of the block's *view*; unknown without one |
//! | `kubernetes/client-namespace`, `kubernetes/client-pod-name` | the Pod with the client's address; with `pods verified` |
//!
//! [*geoip*](#geoip) has labels of its own. Labels are about the name before *rewrite*. Without this plugin in the block no label is known; a warning names
//! labels that are never known. An answer with `.Meta` is kept by no cache, whereas CoreDNS's *cache* gives it to all
//! clients. In CoreDNS further plugins have labels, and Pods have `kubernetes/client-label/KEY`.
//!
//! # Syntax
//!
//! Syntax: `metadata [ZONES...]`; names in **ZONES** have all labels, all others only `forward/upstream`.

use super::setup::Setup;
use super::{geoip, kubernetes, view};
use crate::dns::corefile::{CorefileError, Directive};

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    setup.builder.labeled = setup.zones_or_own(line.arguments())?;
    Ok(())
}

/// Returns what a block lacks for a label that only certain plugins give.
pub(super) fn missing_for(label: &str, block: &[Directive]) -> Option<&'static str> {
    kubernetes::missing_for(label, block)
        .or_else(|| geoip::missing_for(label, block))
        .or_else(|| view::missing_for(label, block))
}

#[cfg(test)]
mod tests;
