//! What rules do to answers.

use std::borrow::Cow;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::NULL;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinEncodable};

use super::cname::Retarget;
use super::name_matcher::Renaming;
use super::names::renamed;
use super::rcode::Recode;
use super::ttl::Range;
use crate::dns::chain::plugin::{Failure, Outcome};
use crate::dns::chain::request::Request;
use crate::dns::message::presentation::{name_text, rcode_text};
use crate::dns::message::reply::Reply;

/// What is done to an answer.
#[derive(Clone, Debug)]
pub(super) enum Undo {
    /// To the names of records.
    Name(Renaming),
    /// To the names in their data.
    Value(Renaming),
    Ttl(Range),
    Rcode(Recode),
    Cname(Retarget),
}

/// Does to what has become of a request what rules want, the last of them first.
pub(super) async fn rewrite(undo: &[Cow<'_, Undo>], request: &Request, outcome: Outcome) -> Outcome {
    match outcome {
        _ if undo.is_empty() => outcome,
        Ok(mut reply) => {
            let before = reply.metadata.response_code;
            let mut open = Open::new(&mut reply);
            open.rewrite(undo, request).await?;
            open.close();
            check(request, before, reply.metadata.response_code)?;
            Ok(reply)
        }
        Err(Failure::Error { mut rcode, why, ede, no_upstream }) => {
            let before = rcode;
            recode(undo, &mut rcode);
            check(request, before, rcode)?;
            Err(Failure::Error { rcode, why, ede, no_upstream })
        }
        Err(Failure::Silence) => Err(Failure::Silence),
    }
}

fn recode(undo: &[Cow<'_, Undo>], rcode: &mut ResponseCode) {
    for step in undo.iter().rev() {
        if let Undo::Rcode(recode) = &**step {
            recode.apply(rcode);
        }
    }
}

/// RFC 6891 section 6.1.3: without OPT there is room for four bits; cut off, BADSIG would be NOERROR.
fn check(request: &Request, before: ResponseCode, rcode: ResponseCode) -> Result<(), Failure> {
    if rcode != before && rcode.high() > 0 && request.edns.is_none() {
        let label = rcode_text(rcode);
        return Err(Failure::servfail(format!("RCODE {label} after rewrite can't be told without EDNS")));
    }
    Ok(())
}

/// An answer whose records may leave it, and others come in, while rules go over those that were in it at first.
pub(super) struct Open<'a> {
    pub(super) reply: &'a mut Reply,
    /// All records, also those that are in no section any more.
    pub(super) records: Vec<Record>,
    /// Which of them are in the sections.
    pub(super) answers: Vec<usize>,
    authorities: Vec<usize>,
    additionals: Vec<usize>,
}

impl<'a> Open<'a> {
    fn new(reply: &'a mut Reply) -> Self {
        let mut records = Vec::new();
        let [answers, authorities, additionals] = reply.sections_mut().map(|section| {
            let first = records.len();
            records.append(section);
            (first..records.len()).collect()
        });
        Self { reply, records, answers, authorities, additionals }
    }

    /// Puts the records back into the sections.
    fn close(self) {
        let Self { reply, records, answers, authorities, additionals } = self;
        let mut records: Vec<Option<Record>> = records.into_iter().map(Some).collect();
        let all = reply.sections_mut().into_iter().zip([answers, authorities, additionals]);
        for (section, numbers) in all {
            section.extend(numbers.into_iter().filter_map(|number| records.get_mut(number)?.take()));
        }
    }

    /// CoreDNS's order, which counts where several rules change the RCODE: each record sees all of them.
    async fn rewrite(&mut self, undo: &[Cow<'_, Undo>], request: &Request) -> Result<(), Failure> {
        if self.records.is_empty() {
            recode(undo, &mut self.reply.metadata.response_code);
            return Ok(());
        }
        for number in self.authorities.clone() {
            self.rewrite_record(number, undo, request).await?;
        }
        for number in self.answers.clone() {
            self.rewrite_record(number, undo, request).await?;
        }
        for number in self.additionals.clone() {
            self.rewrite_record(number, undo, request).await?;
        }
        Ok(())
    }

    async fn rewrite_record(
        &mut self,
        number: usize,
        undo: &[Cow<'_, Undo>],
        request: &Request,
    ) -> Result<(), Failure> {
        for step in undo.iter().rev() {
            let record = &mut self.records[number];
            match &**step {
                Undo::Name(renaming) => rename(&mut record.name, renaming)?,
                Undo::Value(renaming) => rename_value(&mut record.data, renaming)?,
                Undo::Ttl(range) => record.ttl = range.closest(record.ttl),
                Undo::Rcode(recode) => recode.apply(&mut self.reply.metadata.response_code),
                Undo::Cname(retarget) => retarget.apply(self, number, request).await?,
            }
        }
        Ok(())
    }
}

fn rename(name: &mut Name, renaming: &Renaming) -> Result<(), Failure> {
    let before = name_text(name);
    if let Some(after) = renaming.apply(&before).filter(|after| *after != before) {
        *name = renamed(&after)?;
    }
    Ok(())
}

/// Renames in the types that CoreDNS does it in, and of SOA only the first name.
fn rename_value(data: &mut RData, renaming: &Renaming) -> Result<(), Failure> {
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

/// hickory-proto doesn't know DNAME; its target is never compressed (RFC 6672 section 2.5), and stands alone.
fn rename_dname(data: &mut NULL, renaming: &Renaming) -> Result<(), Failure> {
    let Ok(mut target) = Name::from_bytes(&data.anything) else { return Ok(()) };
    rename(&mut target, renaming)?;
    *data = NULL::with(target.to_bytes().map_err(Failure::servfail)?);
    Ok(())
}
