//! Names in the wire form of a message (RFC 1035 sections 3.1 and 4.1.4).

use std::ops::Range;

use super::header::HEADER;
use crate::model::names::{self, MAX_LABEL};

/// The maximum length of a name in octets (RFC 1035 section 2.3.4).
pub(crate) const MAX_NAME: usize = 255;
/// The maximum number of compression pointers in a name: it has at most 127 labels, so more pointers aren't needed.
const MAX_POINTERS: usize = 127;
/// The two bits that mark a compression pointer.
const POINTER: u8 = 0xc0;

/// The position and the length of a name in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireName {
    /// The end of the name's own octets, exclusive: after the root label or after the first pointer.
    pub(crate) end: usize,
    /// The length of the name without compression, in octets.
    pub(super) length: usize,
    pub(super) is_compressed: bool,
}

/// A name that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedName {
    /// Whether a compression pointer was read: then the name depends on its place in the message.
    pub(super) has_pointer: bool,
}

/// Reads the name at an offset, and passes its labels to `label`. A pointer must lead backwards, not into the header,
/// and the labels there must end before the part of the name with the pointer. `is_stable` returns whether octets never
/// change; a name that continues in other octets, such as a TTL, is malformed.
///
/// # Errors
/// If the name is malformed.
pub(crate) fn read(
    message: &[u8],
    start: usize,
    is_stable: impl Fn(Range<usize>) -> bool,
    mut label: impl FnMut(&[u8]),
) -> Result<WireName, MalformedName> {
    // `part` is the start of the current run of labels, `limit` the start of the run before it.
    let (mut at, mut part, mut limit) = (start, start, usize::MAX);
    let (mut total, mut pointers, mut end) = (1, 0, None);
    loop {
        let malformed = MalformedName { has_pointer: pointers > 0 };
        if at >= limit {
            return Err(malformed);
        }
        match *message.get(at).ok_or(malformed)? {
            0 => {
                at += 1;
                let is_part_stable = end.is_none() || is_stable(part..at);
                let name = WireName { end: end.unwrap_or(at), length: total, is_compressed: pointers > 0 };
                return if is_part_stable { Ok(name) } else { Err(malformed) };
            }
            length if usize::from(length) <= MAX_LABEL => {
                let length = usize::from(length);
                label(message.get(at + 1..at + 1 + length).ok_or(malformed)?);
                at += 1 + length;
                total += 1 + length;
            }
            high if high & POINTER == POINTER => {
                let malformed = MalformedName { has_pointer: true };
                let low = *message.get(at + 1).ok_or(malformed)?;
                let to = usize::from(u16::from_be_bytes([high & !POINTER, low]));
                let is_part_stable = end.is_none() || is_stable(part..at + 2);
                end = end.or(Some(at + 2));
                pointers += 1;
                if !is_part_stable || to < HEADER || to >= part || pointers > MAX_POINTERS {
                    return Err(malformed);
                }
                (limit, part, at) = (part, to, to);
            }
            _ => return Err(malformed),
        }
        if total > MAX_NAME {
            return Err(malformed);
        }
    }
}

/// Returns the end of the octets of the name at an offset, exclusive, whether or not its pointer can be followed. A name
/// that is cut ends at or after the end of the message. Returns `None` if the name has a label of an unknown kind.
pub(super) fn end(message: &[u8], mut at: usize) -> Option<usize> {
    while let Some(&length) = message.get(at) {
        match length {
            0 => return Some(at + 1),
            length if usize::from(length) <= MAX_LABEL => at += 1 + usize::from(length),
            high if high & POINTER == POINTER => return Some(at + 2),
            _ => return None,
        }
    }
    Some(at)
}

/// The names in the rdata of a type.
struct NameFields {
    /// The number of octets before the first name.
    before: usize,
    /// The number of character strings between these octets and the first name.
    strings: usize,
    /// The number of names, which follow one another.
    names: usize,
    /// Whether the names may be compressed: only in the types of RFC 1035 (RFC 3597 section 4).
    may_compress: bool,
}

/// Returns where the rdata of a type has names; `None` if it has none that a sender might compress.
fn name_fields(rtype: u16) -> Option<NameFields> {
    let fields = |before, names, may_compress| NameFields { before, strings: 0, names, may_compress };
    Some(match rtype {
        2..=5 | 7..=9 | 12 => fields(0, 1, true), // NS, MD, MF, CNAME, MB, MG, MR, PTR
        6 | 14 => fields(0, 2, true),             // SOA, MINFO
        15 => fields(2, 1, true),                 // MX
        17 | 58 => fields(0, 2, false),           // RP, TALINK
        18 | 21 | 36 | 64 | 65 | 107 => fields(2, 1, false), // AFSDB, RT, KX, SVCB, HTTPS, LP
        24 | 46 => fields(18, 1, false),          // SIG, RRSIG
        26 => fields(2, 2, false),                // PX
        30 | 39 | 47 => fields(0, 1, false),      // NXT, DNAME, NSEC
        33 => fields(6, 1, false),                // SRV
        35 => NameFields { before: 4, strings: 3, names: 1, may_compress: false }, // NAPTR
        _ => return None,
    })
}

/// Returns whether the names in rdata are well-formed and not compressed, and nothing follows them that the type doesn't
/// have.
pub(crate) fn has_whole_names(rtype: u16, rdata: &[u8]) -> bool {
    let mut after = 0;
    let part = |part: RdataPart<'_>| {
        after = match part {
            RdataPart::Octets(octets) => octets.len(),
            _ => 0,
        };
    };
    // Only a name that is continued elsewhere has to be stable.
    let is_read = read_rdata(rdata, rtype, 0..rdata.len(), |_| false, part).is_ok();
    let fits = match rtype {
        6 => after == 20,                    // SOA
        24 | 30 | 46 | 47 | 64 | 65 => true, // SIG, NXT, RRSIG, NSEC, SVCB, HTTPS
        _ => after == 0 || name_fields(rtype).is_none(),
    };
    is_read && fits
}

/// Returns the first name in rdata without compression, in wire form; `None` if it has none.
pub(crate) fn first_name(rtype: u16, rdata: &[u8]) -> Option<Vec<u8>> {
    let (mut name, mut end) = (Vec::new(), None);
    let part = |part: RdataPart<'_>| match part {
        RdataPart::Label(label) if end.is_none() => names::push_label(label, &mut name),
        RdataPart::EndOfName { .. } if end.is_none() => {
            name.push(0);
            end = Some(());
        }
        _ => {}
    };
    let _ = read_rdata(rdata, rtype, 0..rdata.len(), |_| true, part);
    end.map(|()| name)
}

/// The form of a record's rdata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RdataForm {
    /// The length without compression, in octets.
    pub(super) length: usize,
    /// Whether a name that mustn't be compressed is compressed.
    pub(super) has_forbidden_pointer: bool,
}

/// A part of a record's rdata.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RdataPart<'a> {
    /// Octets outside names.
    Octets(&'a [u8]),
    /// A label of a name; [`Self::EndOfName`] follows the last one.
    Label(&'a [u8]),
    EndOfName {
        may_compress: bool,
    },
}

impl RdataPart<'_> {
    /// Writes the part without compression.
    pub(crate) fn write(self, to: &mut Vec<u8>) {
        match self {
            Self::Octets(octets) => to.extend(octets),
            Self::Label(label) => names::push_label(label, to),
            Self::EndOfName { .. } => to.push(0),
        }
    }
}

/// Returns the form of the rdata at `range`, and passes its parts to `part`.
///
/// # Errors
/// If a name in it is malformed.
pub(crate) fn read_rdata(
    message: &[u8],
    rtype: u16,
    range: Range<usize>,
    is_stable: impl Fn(Range<usize>) -> bool,
    mut part: impl FnMut(RdataPart<'_>),
) -> Result<RdataForm, MalformedName> {
    const CUT: MalformedName = MalformedName { has_pointer: false };
    let mut form = RdataForm { length: range.len(), has_forbidden_pointer: false };
    // Names don't continue after the data.
    let message = message.get(..range.end).ok_or(CUT)?;
    let Some(fields) = name_fields(rtype) else {
        part(RdataPart::Octets(&message[range.start..]));
        return Ok(form);
    };
    let (mut at, mut has_pointer) = (range.start + fields.before, false);
    for _ in 0..fields.strings {
        at += 1 + usize::from(*message.get(at).ok_or(CUT)?);
    }
    part(RdataPart::Octets(message.get(range.start..at).ok_or(CUT)?));
    for _ in 0..fields.names {
        let name = read(message, at, &is_stable, |label| part(RdataPart::Label(label)));
        let name = name.map_err(|error| MalformedName { has_pointer: error.has_pointer || has_pointer })?;
        has_pointer |= name.is_compressed;
        part(RdataPart::EndOfName { may_compress: fields.may_compress });
        form.length = form.length + name.length - (name.end - at);
        form.has_forbidden_pointer |= name.is_compressed && !fields.may_compress;
        at = name.end;
    }
    part(RdataPart::Octets(message.get(at..).ok_or(MalformedName { has_pointer })?));
    Ok(form)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::RecordType;

    use super::*;

    /// Returns the text, the end and the length of the name at `at`, in a message with these octets after its header.
    fn read_at(octets: &[u8], at: usize) -> Option<(String, usize, usize)> {
        let message = [&[0; HEADER][..], octets].concat();
        let mut text = String::new();
        let name = read(
            &message,
            at,
            |range| !range.contains(&50),
            |label| {
                text += &String::from_utf8_lossy(label);
                text += ".";
            },
        )
        .ok()?;
        Some((text, name.end, name.length))
    }

    #[test]
    fn pointers_lead_backwards_to_whole_labels() {
        let (a, ab) = (b"\x01a\x00", b"\x01b\xc0\x0c");
        assert_eq!(read_at(a, 12), Some(("a.".to_owned(), 15, 3)));
        assert_eq!(read_at(&[&a[..], ab].concat(), 15), Some(("b.a.".to_owned(), 19, 5)));
        for (octets, at, why) in [
            (&b"\xc0\x0c"[..], 12, "it points to itself"),
            (b"\x01a\xc0\x0c", 12, "it points to its own label"),
            (b"\xc0\x0e\x01a\x00", 12, "it points forwards"),
            (b"\xc0\x05", 12, "it points into the header"),
            (b"\x02a\xc0\x0c\x00", 14, "the labels that it points to run into the pointer"),
            (b"\x40", 12, "a reserved kind of label"),
            (b"\x01", 12, "the label is cut"),
            (b"\x01a", 12, "the root label is missing"),
            (b"\xc0", 12, "the pointer is cut"),
        ] {
            assert_eq!(read_at(octets, at), None, "{why}");
        }
    }

    #[test]
    fn malformed_name_with_a_pointer_depends_on_its_place() {
        let has_pointer = |octets: &[u8]| {
            let message = [&[0; HEADER][..], octets].concat();
            read(&message, 12, |_| true, |_| {}).unwrap_err().has_pointer
        };
        assert!(has_pointer(b"\xc0\x0c") && has_pointer(b"\x01a\xc0\x0c"));
        assert!(!has_pointer(b"\x40") && !has_pointer(b"\x05a"));
        const SOA: u16 = 6;
        let message = [&[0; HEADER][..], b"\x01a\x00\xc0\x0c\x40"].concat();
        let malformed = read_rdata(&message, SOA, 15..18, |_| true, |_| {}).unwrap_err();
        assert!(malformed.has_pointer, "the first name has a pointer");
    }

    #[test]
    fn name_is_limited_to_255_octets() {
        let labels = [&[63; 64][..]; 3].concat();
        let name = |last: u8| [&labels[..], &[last], &vec![b'x'; last.into()], &[0]].concat();
        assert_eq!(read_at(&name(61), 12).unwrap().2, 255);
        assert_eq!(read_at(&name(62), 12), None);
    }

    #[test]
    fn name_isnt_read_from_octets_that_change() {
        let mut octets = vec![0; 60];
        octets[30..33].copy_from_slice(b"\x01a\x00");
        octets[38..41].copy_from_slice(b"\x01a\x00");
        octets[50..54].copy_from_slice(b"\xc0\x2a\xc0\x32");
        assert!(read_at(&octets, 62).is_some());
        assert_eq!(read_at(&octets, 64), None);
    }

    /// RFC 3597 section 4: only the types of RFC 1035 may have compressed names.
    #[test]
    fn names_in_rdata_of_each_type_are_expanded() {
        use RecordType::*;
        let unknown = |number: u16| RecordType::from(number);
        for (rtype, before, names, may_compress) in [
            (NS, 0, 1, true),
            (unknown(3), 0, 1, true), // MD
            (unknown(4), 0, 1, true), // MF
            (CNAME, 0, 1, true),
            (SOA, 0, 2, true),
            (unknown(7), 0, 1, true), // MB
            (unknown(8), 0, 1, true), // MG
            (unknown(9), 0, 1, true), // MR
            (PTR, 0, 1, true),
            (unknown(14), 0, 2, true), // MINFO
            (MX, 2, 1, true),
            (unknown(17), 0, 2, false), // RP, RFC 1183 section 2.2
            (unknown(18), 2, 1, false), // AFSDB, RFC 1183 section 1
            (unknown(21), 2, 1, false), // RT, RFC 1183 section 3.3
            (SIG, 18, 1, false),
            (unknown(26), 2, 2, false), // PX, RFC 2163 section 4
            (unknown(30), 0, 1, false), // NXT, RFC 2535 section 5.2
            (SRV, 6, 1, false),
            (unknown(36), 2, 1, false), // KX, RFC 2230 section 3.1
            (unknown(39), 0, 1, false), // DNAME
            (RRSIG, 18, 1, false),
            (NSEC, 0, 1, false),
            (unknown(58), 0, 2, false), // TALINK
            (SVCB, 2, 1, false),
            (HTTPS, 2, 1, false),
            (unknown(107), 2, 1, false), // LP, RFC 6742 section 2.4
        ] {
            let (fixed, rest) = (vec![7; before], *b"rest");
            let rdata = |name: &[u8]| [&fixed[..], &name.repeat(names), &rest].concat();
            let message = [&[0; HEADER][..], b"\x01a\x00", &rdata(b"\xc0\x0c")].concat();
            let mut expanded = Vec::new();
            let write = |part: RdataPart<'_>| part.write(&mut expanded);
            let form = read_rdata(&message, rtype.into(), 15..message.len(), |_| true, write).unwrap();
            assert_eq!(expanded, rdata(b"\x01a\x00"), "{rtype}");
            assert_eq!(form.has_forbidden_pointer, !may_compress, "{rtype}");
        }
    }

    #[test]
    fn expanded_rdata_has_all_names_in_full() {
        // The name a. at 12, and rdata from 15 on.
        let forms = |rtype: u16, rdata: &[u8]| {
            let message = [&[0; HEADER][..], b"\x01a\x00", rdata].concat();
            let mut expanded = Vec::new();
            let write = |part: RdataPart<'_>| part.write(&mut expanded);
            let form = read_rdata(&message, rtype, 15..message.len(), |_| true, write).ok()?;
            assert_eq!(form.length, expanded.len());
            Some((expanded, form.has_forbidden_pointer))
        };
        const A: u16 = 1;
        const CNAME: u16 = 5;
        const SOA: u16 = 6;
        const SRV: u16 = 33;
        const NAPTR: u16 = 35;
        for (rtype, rdata, expanded, is_forbidden) in [
            (A, &b"\xc0\x0c"[..], &b"\xc0\x0c"[..], false),
            (CNAME, b"\xc0\x0c", b"\x01a\x00", false),
            (SOA, b"\xc0\x0c\x01b\xc0\x0cXXXX", b"\x01a\x00\x01b\x01a\x00XXXX", false),
            (SRV, b"\x00\x01\x00\x02\x00\x03\xc0\x0c", b"\x00\x01\x00\x02\x00\x03\x01a\x00", true),
            (SRV, b"\x00\x01\x00\x02\x00\x03\x01b\x00", b"\x00\x01\x00\x02\x00\x03\x01b\x00", false),
            (
                NAPTR,
                b"\x00\x01\x00\x02\x01U\x00\x00\xc0\x0c",
                b"\x00\x01\x00\x02\x01U\x00\x00\x01a\x00",
                true,
            ),
        ] {
            assert_eq!(forms(rtype, rdata), Some((expanded.to_vec(), is_forbidden)), "{rtype} {rdata:?}");
        }
        for (rtype, rdata) in
            [(CNAME, &b""[..]), (SRV, b"\x00"), (SOA, b"\x00"), (NAPTR, b"\x00\x01\x00\x02\x09")]
        {
            assert_eq!(forms(rtype, rdata), None, "{rtype} {rdata:?}");
        }
    }
}
