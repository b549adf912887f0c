//! # Name
//!
//! *chaos* - answers queries about the server itself: its version, its authors, its host. Such queries are of the class
//! CH and the type TXT; all others go to the next plugin. `version.bind` and `version.server` give the version,
//! `authors.bind` one record for each author in random order, `hostname.bind` and `id.server` the host's name, in
//! Kubernetes that of the Pod. The TTL is 0: `version.bind. 0 CH TXT "my server"` is the answer with
//! `chaos "my server" info@example.org`. The block's zones have to contain these names, as `.` does. If no block of a
//! listener has `chaos` or `forward`, queries of the class CH get REFUSED.
//!
//! # Syntax
//!
//! Syntax: `chaos [VERSION] [AUTHORS...]`. The default version is `lb-linker-` and the number of the release. Authors
//! are words, or several words in quotes, by default those of lb-linker; duplicates are removed. The version and each
//! author are cut to 255 bytes, the limit of a string in a TXT record.

use std::collections::BTreeSet;

use async_trait::async_trait;
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use rand::seq::SliceRandom;

use super::nsid::hostname;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "chaos";
const VERSION: &str = concat!("lb-linker-", env!("CARGO_PKG_VERSION"));
const AUTHORS: &str = "the authors of lb-linker";
/// The limit of a character-string (RFC 1035 section 3.3).
const MAX_BYTES: usize = 255;

#[derive(Debug)]
struct Chaos {
    version: String,
    authors: Vec<String>,
    host: String,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    let mut words = line.arguments().iter().map(|word| word.text.clone());
    let version = words.next().unwrap_or_else(|| VERSION.to_owned());
    let mut authors: BTreeSet<String> = words.collect();
    if authors.is_empty() {
        authors.insert(AUTHORS.to_owned());
    }
    setup.add_reusable(Chaos { version, authors: authors.into_iter().collect(), host: hostname() });
    Ok(())
}

#[async_trait]
impl Plugin for Chaos {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let query = &request.query;
        if query.query_class() != DNSClass::CH || query.query_type() != RecordType::TXT {
            return next.serve(request).await;
        }
        let texts = match &*query.name().to_ascii().to_ascii_lowercase() {
            "authors.bind." => {
                let mut authors = self.authors.clone();
                authors.shuffle(&mut rand::rng());
                authors
            }
            "version.bind." | "version.server." => vec![self.version.clone()],
            "hostname.bind." | "id.server." => vec![self.host.clone()],
            _ => return next.serve(request).await,
        };
        let mut reply = request.reply(NAME);
        reply.records.answers = texts.iter().map(|text| record(request, text)).collect();
        Ok(reply)
    }
}

fn record(request: &Request, text: &str) -> Record {
    let bytes = text.as_bytes();
    let text = TXT::from_bytes(vec![&bytes[..bytes.len().min(MAX_BYTES)]]);
    let mut record = Record::from_rdata(request.query.name().clone(), 0, RData::TXT(text));
    record.dns_class = DNSClass::CH;
    record
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;
    use super::*;

    #[tokio::test]
    async fn version_and_host_are_answered() {
        let context = TestServer::block("chaos \"v 1\" b a b\nwhoami");
        for (question, expected) in [
            ("Version.bind. CH TXT", "NOERROR | Version.bind. 0 CH TXT v 1 | |".to_owned()),
            ("version.SERVER. CH TXT", "NOERROR | version.SERVER. 0 CH TXT v 1 | |".to_owned()),
            ("hostname.bind. CH TXT", format!("NOERROR | hostname.bind. 0 CH TXT {} | |", hostname())),
            ("id.server. CH TXT", format!("NOERROR | id.server. 0 CH TXT {} | |", hostname())),
        ] {
            assert_eq!(context.ask(question).await, expected);
        }
        for question in
            ["version.bind. TXT", "version.bind. CH ANY", "a.version.bind. CH TXT", "bind. CH TXT"]
        {
            assert!(context.ask(question).await.starts_with("NOERROR aa"), "{question}");
        }
    }

    #[tokio::test]
    async fn authors_are_deduplicated_and_shuffled() {
        let context = TestServer::block("chaos v b a b");
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            seen.insert(context.ask("authors.bind. CH TXT").await);
        }
        let (a, b) = ("authors.bind. 0 CH TXT a", "authors.bind. 0 CH TXT b");
        let expected = [format!("NOERROR | {a}, {b} | |"), format!("NOERROR | {b}, {a} | |")];
        assert_eq!(seen, BTreeSet::from(expected));
    }

    #[tokio::test]
    async fn texts_default_to_lb_linker_and_are_cut_at_255_bytes() {
        let context = TestServer::block("chaos");
        assert_eq!(
            context.ask("version.bind. CH TXT").await,
            format!("NOERROR | version.bind. 0 CH TXT lb-linker-{} | |", env!("CARGO_PKG_VERSION"))
        );
        let authors = "NOERROR | authors.bind. 0 CH TXT the authors of lb-linker | |";
        assert_eq!(context.ask("authors.bind. CH TXT").await, authors);
        let long = "x".repeat(300);
        let context = TestServer::block(&format!("chaos {long} {long}"));
        for name in ["version.bind.", "authors.bind."] {
            let expected = format!("NOERROR | {name} 0 CH TXT {} | |", &long[..255]);
            assert_eq!(context.ask(&format!("{name} CH TXT")).await, expected);
        }
    }

    #[test]
    fn braces_are_rejected() {
        assert_eq!(TestServer::error("chaos v {\n}"), "Corefile:2:1: chaos takes no braces");
    }
}
