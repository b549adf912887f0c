//! Applies the rules for answers.

use std::borrow::Cow;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::NULL;
use hickory_proto::rr::{Name, RData, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinEncodable};

use super::cname::CnameRule;
use super::editor::ResponseEditor;
use super::name_matcher::NameRenaming;
use super::names::parse_rewritten;
use super::rcode::RcodeRule;
use crate::dns::chain::plugin::{PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::message::presentation::{name_text, rcode_text};
use crate::dns::plugins::ttl_limits::TtlRange;

/// A change of an answer.
#[derive(Clone, Debug)]
pub(super) enum ResponseRule {
    /// Changes the names of records.
    Name(NameRenaming),
    /// Changes names in record data.
    Value(NameRenaming),
    Ttl(TtlRange),
    Rcode(RcodeRule),
    Cname(CnameRule),
}

/// Applies rules to the result of a request, the last rule first.
pub(super) async fn rewrite(
    response_rules: &[Cow<'_, ResponseRule>],
    request: &Request,
    outcome: PluginResult,
) -> PluginResult {
    match outcome {
        _ if response_rules.is_empty() => outcome,
        Ok(mut reply) => {
            let before = reply.metadata.response_code;
            let mut editor = ResponseEditor::new(&mut reply);
            editor.rewrite(response_rules, request).await?;
            editor.finish();
            check(request, before, reply.metadata.response_code)?;
            Ok(reply)
        }
        Err(PluginError::Error { mut rcode, why, ede, no_upstream }) => {
            let before = rcode;
            rewrite_rcode(response_rules, &mut rcode);
            check(request, before, rcode)?;
            Err(PluginError::Error { rcode, why, ede, no_upstream })
        }
        Err(PluginError::Drop) => Err(PluginError::Drop),
    }
}

fn rewrite_rcode(response_rules: &[Cow<'_, ResponseRule>], rcode: &mut ResponseCode) {
    for step in response_rules.iter().rev() {
        if let ResponseRule::Rcode(recode) = &**step {
            recode.apply(rcode);
        }
    }
}

/// Returns an error for an RCODE that doesn't fit in the header's four bits if there is no OPT record (RFC 6891 section
/// 6.1.3): truncated, BADSIG would become NOERROR.
fn check(request: &Request, before: ResponseCode, rcode: ResponseCode) -> Result<(), PluginError> {
    if rcode != before && rcode.high() > 0 && request.edns.is_none() {
        let label = rcode_text(rcode);
        return Err(PluginError::servfail(format!("RCODE {label} after rewrite can't be sent without EDNS")));
    }
    Ok(())
}

impl ResponseEditor<'_> {
    /// Applies all rules to the first record, then all rules to the second record, and so on, as CoreDNS does. This
    /// order matters if several rules change the RCODE.
    async fn rewrite(
        &mut self,
        response_rules: &[Cow<'_, ResponseRule>],
        request: &Request,
    ) -> Result<(), PluginError> {
        if self.records.is_empty() {
            rewrite_rcode(response_rules, &mut self.reply.metadata.response_code);
            return Ok(());
        }
        for number in self.authorities.clone() {
            self.rewrite_record(number, response_rules, request).await?;
        }
        for number in self.answers.clone() {
            self.rewrite_record(number, response_rules, request).await?;
        }
        for number in self.additionals.clone() {
            self.rewrite_record(number, response_rules, request).await?;
        }
        Ok(())
    }

    async fn rewrite_record(
        &mut self,
        number: usize,
        response_rules: &[Cow<'_, ResponseRule>],
        request: &Request,
    ) -> Result<(), PluginError> {
        for step in response_rules.iter().rev() {
            let record = &mut self.records[number];
            match &**step {
                ResponseRule::Name(renaming) => rename(&mut record.name, renaming)?,
                ResponseRule::Value(renaming) => rename_value(&mut record.data, renaming)?,
                ResponseRule::Ttl(range) => record.ttl = range.clamp(record.ttl),
                ResponseRule::Rcode(recode) => recode.apply(&mut self.reply.metadata.response_code),
                ResponseRule::Cname(retarget) => retarget.apply(self, number, request).await?,
            }
        }
        Ok(())
    }
}

fn rename(name: &mut Name, renaming: &NameRenaming) -> Result<(), PluginError> {
    let before = name_text(name);
    if let Some(after) = renaming.apply(&before).filter(|after| *after != before) {
        *name = parse_rewritten(&after)?;
    }
    Ok(())
}

/// Changes the name in the types that CoreDNS supports; in SOA records, only the primary server.
fn rename_value(data: &mut RData, renaming: &NameRenaming) -> Result<(), PluginError> {
    let name = match data {
        RData::CNAME(cname) => &mut cname.0,
        RData::MX(mx) => &mut mx.exchange,
        RData::NAPTR(naptr) => &mut naptr.replacement,
        RData::NS(ns) => &mut ns.0,
        RData::PTR(ptr) => &mut ptr.0,
        RData::SOA(soa) => &mut soa.mname,
        RData::SRV(srv) => &mut srv.target,
        RData::Unknown { code: RecordType::DNAME, rdata } => return rename_dname(rdata, renaming),
        _ => return Ok(()),
    };
    rename(name, renaming)
}

/// Changes the target of a DNAME record, a type that hickory-proto lacks. The target is the only field and is never
/// compressed (RFC 6672 section 2.5).
fn rename_dname(data: &mut NULL, renaming: &NameRenaming) -> Result<(), PluginError> {
    let Ok(mut target) = Name::from_bytes(&data.anything) else { return Ok(()) };
    rename(&mut target, renaming)?;
    *data = NULL::with(target.to_bytes().map_err(PluginError::servfail)?);
    Ok(())
}
