//! An answer while rules change it.

use hickory_proto::rr::Record;

use crate::dns::message::reply::Reply;

/// An answer during its rewrite. Rules may remove and add records; each rule is applied only to the original records.
pub(super) struct ResponseEditor<'a> {
    pub(super) reply: &'a mut Reply,
    /// All records, including records that were removed from their section.
    pub(super) records: Vec<Record>,
    /// The indexes of the records in each section.
    pub(super) answers: Vec<usize>,
    pub(super) authorities: Vec<usize>,
    pub(super) additionals: Vec<usize>,
    /// Whether a look-up of a CNAME's target failed: the remaining CNAMEs stay unchanged.
    pub(super) has_failed_look_up: bool,
}

impl<'a> ResponseEditor<'a> {
    pub(super) fn new(reply: &'a mut Reply) -> Self {
        let mut records = Vec::new();
        let [answers, authorities, additionals] = reply.records.all_mut().map(|section| {
            let first = records.len();
            records.append(section);
            (first..records.len()).collect()
        });
        Self { reply, records, answers, authorities, additionals, has_failed_look_up: false }
    }

    /// Moves the records back into the sections.
    pub(super) fn finish(self) {
        let Self { reply, records, answers, authorities, additionals, .. } = self;
        let mut records: Vec<Option<Record>> = records.into_iter().map(Some).collect();
        let all = reply.records.all_mut().into_iter().zip([answers, authorities, additionals]);
        for (section, numbers) in all {
            section.extend(numbers.into_iter().filter_map(|number| records.get_mut(number)?.take()));
        }
    }
}
