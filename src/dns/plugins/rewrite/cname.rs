//! The `cname` rule: replaces the target of a CNAME and the records after it.

use std::sync::Arc;

use hickory_proto::op::Query;
use hickory_proto::rr::RData;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::error;

use super::editor::ResponseEditor;
use super::name_matcher::NameMatcher;
use super::names::parse_rewritten;
use crate::dns::chain::plugin::PluginError;
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::message::presentation::name_text;
use crate::model::line_limit::LineLimit;

#[derive(Clone, Debug)]
pub(super) struct CnameRule {
    pub(super) from: NameMatcher,
    pub(super) to: String,
    /// Copies of the rule share it.
    pub(super) failures: Arc<Mutex<LineLimit>>,
}

impl CnameRule {
    /// Changes the target if the record is a CNAME that the rule matches. The CNAME records before this record stay;
    /// the records of the new target replace all other records of the answer section.
    pub(super) async fn apply(
        &self,
        open: &mut ResponseEditor<'_>,
        number: usize,
        request: &Request,
    ) -> Result<(), PluginError> {
        let RData::CNAME(target) = &open.records[number].data else { return Ok(()) };
        if open.has_failed_look_up {
            return Ok(());
        }
        let old = name_text(&target.0);
        let Some(new) = self.from.replace(&old, &self.to) else { return Ok(()) };
        let new = parse_rewritten(&new)?;
        let query = Query::query(new.clone(), request.query.query_type());
        let Some(mut found) = Server::look_up_alias(request, query).await else {
            let omitted = self.failures.lock().take(Instant::now().into_std());
            if let Some(omitted) = omitted {
                error!(
                    "plugin/rewrite: targets of rewritten CNAMEs that can't be looked up, or whose query has caused too \
                     many look-ups, since the last such line: {}; the newest: {new}",
                    omitted + 1
                );
            }
            // Another client may get an answer, or a query that has caused fewer look-ups.
            open.reply.is_cacheable = false;
            open.has_failed_look_up = true;
            return Ok(());
        };
        open.reply.is_cacheable &= found.may_be_part_of_cached();
        let mut retained = Vec::new();
        for &at in &open.answers {
            let RData::CNAME(target) = &mut open.records[at].data else { continue };
            retained.push(at);
            if name_text(&target.0) == old {
                target.0 = new;
                break;
            }
        }
        retained.extend(open.records.len()..open.records.len() + found.records.answers.len());
        open.records.append(&mut found.records.answers);
        open.answers = retained;
        // The truncation of the target's answer counts, and the cache must know about it.
        open.reply.metadata.truncation = found.metadata.truncation;
        Ok(())
    }
}
