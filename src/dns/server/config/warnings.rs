//! Warnings about listeners, which several blocks may share.

use super::{Configuration, Scheme};

impl Configuration {
    /// Warns of listeners for DNS over TLS that have no certificate, and answer by TCP without TLS, as in CoreDNS.
    pub(super) fn warn_of_missing_tls(&mut self) {
        let Self { blocks, listeners } = self;
        for listener in listeners.iter().filter(|listener| listener.at.scheme == Scheme::Tls) {
            let numbers = listener.zones.iter().map(|(_, number)| *number);
            if let Some(first) = numbers.clone().next()
                && numbers.clone().all(|number| blocks[number].builder.tls.is_none())
            {
                let warning = listener.position.error(format!(
                    "{} answers by TCP without TLS, because the block has no plugin tls; right only behind a proxy that \
                     has the certificate",
                    listener.at
                ));
                blocks[first].builder.warnings.push(warning);
            }
        }
    }

    /// Warns of listeners whose blocks have different *proxyproto* lines.
    pub(super) fn warn_of_different_proxies(&mut self) {
        let Self { blocks, listeners } = self;
        for listener in listeners.iter() {
            let mut with_proxies = listener.zones.iter().map(|(_, number)| *number);
            let proxies = |number: usize| blocks[number].builder.proxies.as_ref();
            let Some(first) = with_proxies.find(|number| proxies(*number).is_some()) else { continue };
            let differs = |other: &usize| proxies(*other).is_some_and(|it| Some(it) != proxies(first));
            if let Some(other) = with_proxies.find(differs) {
                let warning = listener.position.error(format!(
                    "the blocks of {} have different lines proxyproto, and only the first one has an effect",
                    listener.at
                ));
                blocks[other].builder.warnings.push(warning);
            }
        }
    }
}
