//! Converts the words of record data to wire format, by the fields of each type.

use hickory_proto::rr::RecordType;
use hickory_proto::serialize::binary::BinEncodable;

use super::token::{RecordToken, hex, ipv4, ipv6, name, seconds};
use crate::dns::message::presentation::{type_name, type_text};

/// The maximum length of a character-string in bytes (RFC 1035 section 3.3).
const MAX_STRING: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    U8,
    U16,
    U32,
    /// A number of seconds, with or without units.
    Seconds,
    Ipv4,
    Ipv6,
    /// A character-string.
    Str,
    /// All remaining words as character-strings; a word of more than 255 bytes is split.
    Strings,
    /// A string without a length byte.
    Rest,
    /// All remaining words as hexadecimal digits.
    Hex,
}

/// Returns the fields of a type, in the order in which miekg/dns parses them; `None` if the type isn't supported.
fn fields(rtype: RecordType) -> Option<&'static [Field]> {
    use Field::{Hex, Ipv4, Ipv6, Name, Rest, Seconds, Str, Strings, U8, U16, U32};
    Some(match type_name(rtype)? {
        "A" => &[Ipv4],
        "AAAA" => &[Ipv6],
        "CNAME" | "DNAME" | "MB" | "MD" | "MF" | "MG" | "MR" | "NS" | "NSAP-PTR" | "PTR" => &[Name],
        "AFSDB" | "KX" | "LP" | "MX" | "RT" => &[U16, Name],
        "PX" => &[U16, Name, Name],
        "MINFO" | "RP" | "TALINK" => &[Name, Name],
        "SRV" => &[U16, U16, U16, Name],
        "SOA" => &[Name, Name, U32, Seconds, Seconds, Seconds, Seconds],
        "AVC" | "NINFO" | "RESINFO" | "SPF" | "TXT" => &[Strings],
        "HINFO" => &[Str, Str],
        "NAPTR" => &[U16, U16, Str, Str, Str, Name],
        "CAA" => &[U8, Str, Rest],
        "URI" => &[U16, U16, Rest],
        "SSHFP" => &[U8, U8, Hex],
        "SMIMEA" | "TLSA" => &[U8, U8, U8, Hex],
        "CDS" | "DLV" | "DS" | "TA" => &[U16, U8, U8, Hex],
        "ZONEMD" => &[U32, U8, U8, Hex],
        "L32" => &[U16, Ipv4],
        _ => return None,
    })
}

/// Converts the data of a record to wire format.
///
/// # Errors
/// Fails if the words don't fit the type.
pub(super) fn write_fields(rtype: RecordType, mut tokens: &[RecordToken]) -> Result<Vec<u8>, String> {
    let Some(fields) = fields(rtype) else {
        let name = type_text(rtype);
        return Err(format!("data of type {name} has to be in the form of RFC 3597: \\# LENGTH OCTETS"));
    };
    let mut data = Vec::new();
    for field in fields {
        let taken = match field {
            Field::Strings | Field::Hex => tokens.len().max(1),
            _ => 1,
        };
        let Some((these, rest)) = tokens.split_at_checked(taken) else {
            return Err(format!("{} is missing", field.description()));
        };
        tokens = rest;
        field.write(these, &mut data)?;
    }
    match tokens.first() {
        Some(token) => Err(format!("{:?} is too much", token.text)),
        None => Ok(data),
    }
}

impl Field {
    fn description(self) -> &'static str {
        match self {
            Self::Name => "a name",
            Self::U8 => "a number from 0 to 255",
            Self::U16 => "a number from 0 to 65535",
            Self::U32 => "a number from 0 to 4294967295",
            Self::Seconds => "a number of seconds",
            Self::Ipv4 | Self::Ipv6 => "an address",
            Self::Str | Self::Strings | Self::Rest => "a string",
            Self::Hex => "a string of hexadecimal digits",
        }
    }

    /// Appends the field to `data` in wire format. `tokens` is one word, except for `Strings` and `Hex`.
    fn write(self, tokens: &[RecordToken], data: &mut Vec<u8>) -> Result<(), String> {
        let token = &tokens[0];
        match self {
            Self::Name => data.extend(name(token)?.to_bytes().map_err(|error| error.to_string())?),
            Self::U8 => data.push(self.number(token)?),
            Self::U16 => data.extend(self.number::<u16>(token)?.to_be_bytes()),
            Self::U32 => data.extend(self.number::<u32>(token)?.to_be_bytes()),
            Self::Seconds => {
                let seconds = seconds(&token.text).ok_or_else(|| self.mismatch_error(token))?;
                data.extend(seconds.to_be_bytes());
            }
            Self::Ipv4 => data.extend(ipv4(token)?),
            Self::Ipv6 => data.extend(ipv6(token)?),
            Self::Rest => data.extend(token.octets()?),
            Self::Hex => data.extend(hex(tokens)?),
            Self::Str => {
                let octets = token.octets()?;
                data.push(
                    u8::try_from(octets.len()).map_err(|_| "a string has more than 255 octets".to_owned())?,
                );
                data.extend(octets);
            }
            Self::Strings => {
                for token in tokens {
                    let octets = token.octets()?;
                    if octets.is_empty() {
                        data.push(0);
                    }
                    for part in octets.chunks(MAX_STRING) {
                        data.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
                        data.extend(part);
                    }
                }
            }
        }
        Ok(())
    }

    fn number<T: std::str::FromStr>(self, token: &RecordToken) -> Result<T, String> {
        // Rust accepts a plus sign, Go doesn't.
        let digits = Some(&token.text).filter(|text| !text.starts_with('+'));
        digits.and_then(|text| text.parse().ok()).ok_or_else(|| self.mismatch_error(token))
    }

    fn mismatch_error(self, token: &RecordToken) -> String {
        format!("{:?} is no{}", token.text, self.description().trim_start_matches('a'))
    }
}
