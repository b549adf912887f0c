//! Records that lead to another name: CNAME and DNAME.

use hickory_proto::rr::{Record, RecordType};

use super::rrsig::type_covered;

/// Returns whether a record is an alias, or the signature of one.
pub(crate) fn is_alias(record: &Record) -> bool {
    is_alias_type(type_covered(record).unwrap_or_else(|| record.record_type()))
}

/// Returns whether records of a type are aliases.
pub(super) fn is_alias_type(rtype: RecordType) -> bool {
    matches!(rtype, RecordType::CNAME | RecordType::DNAME)
}
