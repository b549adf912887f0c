//! Converts the words of record data to wire form, by the fields of each type.

mod location;
mod parameters;

use hickory_proto::rr::RecordType;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::word::{TextError, Word, base64, hex};
use crate::dns::message::presentation::{parse_type_or_number, type_name, type_text};

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
    /// A time as YYYYMMDDHHmmSS, or in seconds since 1970 (RFC 4034 section 3.2).
    Time,
    Ipv4,
    Ipv6,
    /// 64 bits in four groups of hexadecimal digits (RFC 6742 section 2.1.2).
    Groups,
    /// This number of octets in hexadecimal digits with hyphens (RFC 7043 section 3.2).
    Hyphenated(usize),
    /// A type of records.
    Type,
    /// The number or the mnemonic of an algorithm (RFC 4034 appendix A.1).
    Algorithm,
    /// The number or the mnemonic of a type of certificates (RFC 4398 section 2.1).
    CertificateType,
    /// One or two character-strings, as miekg/dns reads them: the first word, and all others.
    HostInformation,
    /// All remaining words as parameters of a service (RFC 9460 section 2.1).
    Parameters,
    /// A character-string.
    Str,
    /// A character-string that may be missing.
    OptionalStr,
    /// All remaining words as character-strings; a word of more than 255 bytes is split.
    Strings,
    /// A string without a length byte.
    Rest,
    /// All remaining words as hexadecimal digits.
    Hex,
    /// All remaining words as base64.
    Base64,
    /// All remaining words as a bit map of types (RFC 4034 section 4.1.2).
    Types,
    /// All remaining words as prefixes of addresses (RFC 3123 section 4).
    Prefixes,
    /// The type of a gateway and the gateway, before and after the number of an algorithm (RFC 4025 section 3.1).
    IpsecGateway,
    /// The bit for optional discovery, the type of a relay, and the relay (RFC 8777 section 4.3).
    Relay,
    /// A tag, a key and names (RFC 8005 section 5).
    HostIdentity,
    /// A location (RFC 1876 section 3).
    Location,
}

/// Returns the fields of a type, in the order in which miekg/dns parses them; `None` if the type isn't supported.
fn fields(rtype: RecordType) -> Option<&'static [Field]> {
    use Field::{
        Algorithm, Base64, CertificateType, Groups, Hex, HostIdentity, HostInformation, Hyphenated,
        IpsecGateway, Ipv4, Ipv6, Location, Name, OptionalStr, Parameters, Prefixes, Relay, Rest, Seconds,
        Str, Strings, Time, Type, Types, U8, U16, U32,
    };
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
        "HINFO" => &[HostInformation],
        "CERT" => &[CertificateType, U16, Algorithm, Base64],
        "HTTPS" | "SVCB" => &[U16, Name, Parameters],
        "ISDN" => &[Str, OptionalStr],
        "UINFO" | "X25" => &[Str],
        "GPOS" => &[Str, Str, Str],
        "NAPTR" => &[U16, U16, Str, Str, Str, Name],
        "CAA" => &[U8, Str, Rest],
        "URI" => &[U16, U16, Rest],
        "SSHFP" => &[U8, U8, Hex],
        "SMIMEA" | "TLSA" => &[U8, U8, U8, Hex],
        "CDS" | "DLV" | "DS" | "TA" => &[U16, Algorithm, U8, Hex],
        "ZONEMD" => &[U32, U8, U8, Hex],
        "EID" | "NIMLOC" => &[Hex],
        "L32" => &[U16, Ipv4],
        "L64" | "NID" => &[U16, Groups],
        "EUI48" => &[Hyphenated(6)],
        "EUI64" => &[Hyphenated(8)],
        "GID" | "UID" => &[U32],
        "CDNSKEY" | "DNSKEY" | "KEY" | "RKEY" => &[U16, U8, Algorithm, Base64],
        "DHCID" | "OPENPGPKEY" => &[Base64],
        "RRSIG" | "SIG" => &[Type, Algorithm, U8, U32, Time, Time, U16, Name, Base64],
        "NSEC" | "NXT" => &[Name, Types],
        "CSYNC" => &[U32, U16, Types],
        "APL" => &[Prefixes],
        "IPSECKEY" => &[U8, IpsecGateway, Base64],
        "AMTRELAY" => &[U8, Relay],
        "HIP" => &[U8, HostIdentity],
        "LOC" => &[Location],
        _ => return None,
    })
}

/// Converts the data of a record to wire form. Names without a dot at their end continue with `origin`, in wire form.
///
/// # Errors
/// Fails if the words don't fit the type.
pub(super) fn write_fields(
    rtype: RecordType,
    mut words: &[Word<'_>],
    origin: &[u8],
) -> Result<Vec<u8>, TextError> {
    let mut last = words.first().map(|word| word.place).unwrap_or_default();
    let Some(fields) = fields(rtype) else {
        let name = type_text(rtype);
        let message = format!("data of type {name} has to be in the form of RFC 3597: \\# LENGTH OCTETS");
        return Err(TextError::new(last, message));
    };
    let mut data = Vec::new();
    for field in fields {
        let taken = field.words(words);
        let Some((these, rest)) = words.split_at_checked(taken) else {
            return Err(TextError::new(last, format!("{} is missing", field.description())));
        };
        words = rest;
        last = these.last().map_or(last, |word| word.place);
        let first = these.first().map_or(last, |word| word.place);
        field.write(these, origin, &mut data).map_err(|message| TextError::new(first, message))?;
    }
    match words.first() {
        Some(word) => Err(TextError::new(word.place, format!("{} is too much", word.shown()))),
        None => Ok(data),
    }
}

impl Field {
    /// Returns the number of words that the field has.
    fn words(self, words: &[Word<'_>]) -> usize {
        match self {
            Self::Strings
            | Self::Hex
            | Self::Base64
            | Self::HostIdentity
            | Self::HostInformation
            | Self::Location => words.len().max(1),
            Self::Types | Self::Prefixes | Self::Parameters => words.len(),
            Self::OptionalStr => words.len().min(1),
            Self::IpsecGateway | Self::Relay => 3,
            _ => 1,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Name => "a name",
            Self::U8 => "a number from 0 to 255",
            Self::U16 => "a number from 0 to 65535",
            Self::U32 => "a number from 0 to 4294967295",
            Self::Seconds => "a number of seconds",
            Self::Time => "a time such as 20300131000000",
            Self::Ipv4 | Self::Ipv6 => "an address",
            Self::Groups => "a value such as 0014:4fff:ff20:ee64",
            Self::Hyphenated(_) => "an identifier such as 00-00-5e-00-53-2a",
            Self::Type | Self::Types => "a type of records",
            Self::Algorithm => "an algorithm",
            Self::CertificateType => "a type of certificates",
            Self::Parameters => "a parameter such as alpn=h2",
            Self::Str | Self::OptionalStr | Self::Strings | Self::Rest | Self::HostInformation => "a string",
            Self::Hex => "a string of hexadecimal digits",
            Self::Base64 => "a string of base64",
            Self::Prefixes => "a prefix such as 1:192.0.2.0/24",
            Self::IpsecGateway => "a gateway",
            Self::Relay => "a relay",
            Self::HostIdentity => "a host identity",
            Self::Location => "a location",
        }
    }

    /// Appends the field to `data` in wire form. `words` has as many words as [`Self::words`] says.
    fn write(self, words: &[Word<'_>], origin: &[u8], data: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Strings => {
                for word in words {
                    write_strings(&word.octets()?, data);
                }
            }
            Self::Hex => data.extend(hex(words)?),
            Self::Base64 => data.extend(base64(words)?),
            Self::Types => write_types(words, data)?,
            Self::Prefixes => {
                for word in words {
                    write_prefix(word, data).ok_or_else(|| self.mismatch(word))?;
                }
            }
            Self::IpsecGateway => {
                let [kind, algorithm] = [&words[0], &words[1]].map(Word::number::<u8>);
                data.push(kind.ok_or_else(|| Self::U8.mismatch(&words[0]))?);
                data.push(algorithm.ok_or_else(|| Self::U8.mismatch(&words[1]))?);
                write_gateway(kind.unwrap_or_default(), &words[2], origin, data)?;
            }
            Self::Relay => {
                let optional: u8 =
                    words[0].number().filter(|bit| *bit <= 1).ok_or("the discovery bit is 0 or 1")?;
                let kind: u8 =
                    words[1].number().filter(|kind| *kind <= 3).ok_or("the type of a relay is 0 to 3")?;
                data.push(optional << 7 | kind);
                write_gateway(kind, &words[2], origin, data)?;
            }
            Self::HostIdentity => write_host_identity(words, origin, data)?,
            Self::HostInformation => write_host_information(words, data)?,
            Self::Location => data.extend(location::parse(words)?),
            Self::Parameters => data.extend(parameters::parse(words)?),
            Self::OptionalStr if words.is_empty() => {}
            _ => self.write_word(&words[0], origin, data)?,
        }
        Ok(())
    }

    /// Appends a field of one word.
    fn write_word(self, word: &Word<'_>, origin: &[u8], data: &mut Vec<u8>) -> Result<(), String> {
        let mismatch = || self.mismatch(word);
        match self {
            Self::Name => word.write_name(origin, data)?,
            Self::U8 => data.push(word.number().ok_or_else(mismatch)?),
            Self::U16 => data.extend(word.number::<u16>().ok_or_else(mismatch)?.to_be_bytes()),
            Self::U32 => data.extend(word.number::<u32>().ok_or_else(mismatch)?.to_be_bytes()),
            Self::Seconds => data.extend(word.seconds().ok_or_else(mismatch)?.to_be_bytes()),
            Self::Time => data.extend(time(word).ok_or_else(mismatch)?.to_be_bytes()),
            Self::Ipv4 => data.extend(word.ipv4()?),
            Self::Ipv6 => data.extend(word.ipv6()?),
            Self::Groups => data.extend(octets(word, b':', 2, 4).ok_or_else(mismatch)?),
            Self::Hyphenated(number) => data.extend(octets(word, b'-', 1, number).ok_or_else(mismatch)?),
            Self::Type => {
                let rtype = parse_type_or_number(&word.str().to_ascii_uppercase());
                data.extend(u16::from(rtype.ok_or_else(mismatch)?).to_be_bytes());
            }
            Self::Algorithm => data.push(number_of(ALGORITHMS, word).ok_or_else(mismatch)?),
            Self::CertificateType => {
                data.extend(number_of::<u16>(CERTIFICATE_TYPES, word).ok_or_else(mismatch)?.to_be_bytes());
            }
            Self::Rest => data.extend(word.octets()?),
            _ => write_string(&word.octets()?, data)?,
        }
        Ok(())
    }

    fn mismatch(self, word: &Word<'_>) -> String {
        let description = self.description();
        let what = description.strip_prefix("an").or_else(|| description.strip_prefix('a'));
        format!("{} is no{}", word.shown(), what.unwrap_or(description))
    }
}

fn write_string(octets: &[u8], data: &mut Vec<u8>) -> Result<(), String> {
    data.push(u8::try_from(octets.len()).map_err(|_| "a string has more than 255 octets".to_owned())?);
    data.extend(octets);
    Ok(())
}

/// Writes the hardware and the system. A single word with a space in quotes is both.
fn write_host_information(words: &[Word<'_>], data: &mut Vec<u8>) -> Result<(), String> {
    let mut strings = words.iter().map(Word::octets).collect::<Result<Vec<_>, _>>()?;
    if let [both] = &strings[..] {
        strings = both.split(|octet| *octet == b' ').map(<[u8]>::to_vec).collect();
    }
    let (hardware, system) = strings.split_at(1);
    write_string(&hardware.concat(), data)?;
    write_string(&system.join(&b' '), data)
}

fn write_strings(octets: &[u8], data: &mut Vec<u8>) {
    if octets.is_empty() {
        data.push(0);
    }
    for part in octets.chunks(MAX_STRING) {
        data.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
        data.extend(part);
    }
}

/// Parses `groups` groups of `size` octets in hexadecimal digits.
fn octets(word: &Word<'_>, separator: u8, size: usize, groups: usize) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = word.text.split(|byte| *byte == separator).collect();
    let is_well_formed = parts.len() == groups && parts.iter().all(|part| part.len() == 2 * size);
    is_well_formed.then(|| data_encoding::HEXLOWER_PERMISSIVE.decode(&parts.concat()).ok())?
}

/// Parses a time, modulo 2^32 seconds (RFC 4034 section 3.1.5).
fn time(word: &Word<'_>) -> Option<u32> {
    const DIGITS: usize = "YYYYMMDDHHmmSS".len();
    if word.text.len() != DIGITS {
        return word.number();
    }
    let time = DateTime::strptime("%Y%m%d%H%M%S", word.text).ok()?.to_zoned(TimeZone::UTC).ok()?;
    u32::try_from(time.timestamp().as_second().rem_euclid(1 << 32)).ok()
}

/// The mnemonics of algorithms (RFC 4034 appendix A.1) and of types of certificates (RFC 4398 section 2.1).
const ALGORITHMS: &[(&str, u16)] = &[
    ("RSAMD5", 1),
    ("DH", 2),
    ("DSA", 3),
    ("RSASHA1", 5),
    ("DSA-NSEC3-SHA1", 6),
    ("RSASHA1-NSEC3-SHA1", 7),
    ("RSASHA256", 8),
    ("RSASHA512", 10),
    ("ECC-GOST", 12),
    ("ECDSAP256SHA256", 13),
    ("ECDSAP384SHA384", 14),
    ("ED25519", 15),
    ("ED448", 16),
    ("INDIRECT", 252),
    ("PRIVATEDNS", 253),
    ("PRIVATEOID", 254),
];
const CERTIFICATE_TYPES: &[(&str, u16)] = &[
    ("PKIX", 1),
    ("SPKI", 2),
    ("PGP", 3),
    ("IPKIX", 4),
    ("ISPKI", 5),
    ("IPGP", 6),
    ("ACPKIX", 7),
    ("IACPKIX", 8),
    ("URI", 253),
    ("OID", 254),
];

/// Returns the number that a word is, or is the mnemonic of.
fn number_of<T: std::str::FromStr + TryFrom<u16>>(mnemonics: &[(&str, u16)], word: &Word<'_>) -> Option<T> {
    let known = mnemonics.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.str()));
    known.map_or_else(|| word.number(), |(_, number)| T::try_from(*number).ok())
}

fn write_types(words: &[Word<'_>], data: &mut Vec<u8>) -> Result<(), String> {
    let mut types: Vec<u16> = Vec::with_capacity(words.len());
    for word in words {
        let rtype = parse_type_or_number(&word.str().to_ascii_uppercase());
        types.push(rtype.ok_or_else(|| Field::Type.mismatch(word))?.into());
    }
    types.sort_unstable();
    for window in types.chunk_by(|one, other| one >> 8 == other >> 8) {
        let [high, _] = window[0].to_be_bytes();
        let mut bits = vec![0; usize::from(window[window.len() - 1] & 0xff) / 8 + 1];
        for rtype in window {
            let low = usize::from(rtype & 0xff);
            bits[low / 8] |= 0x80 >> (low % 8);
        }
        data.extend([high, u8::try_from(bits.len()).unwrap_or(32)]);
        data.extend(bits);
    }
    Ok(())
}

/// Appends `[!]FAMILY:ADDRESS/PREFIX`.
fn write_prefix(word: &Word<'_>, data: &mut Vec<u8>) -> Option<()> {
    let text = word.str();
    let (negation, text) = text.strip_prefix('!').map_or((0, text), |rest| (0x80, rest));
    let (family, network) = text.split_once(':')?;
    let network: ipnet::IpNet = network.parse().ok().filter(|net: &ipnet::IpNet| *net == net.trunc())?;
    let octets = match network.addr() {
        std::net::IpAddr::V4(address) if family == "1" => address.octets().to_vec(),
        std::net::IpAddr::V6(address) if family == "2" => address.octets().to_vec(),
        _ => return None,
    };
    let length = octets.iter().rposition(|octet| *octet != 0).map_or(0, |last| last + 1);
    data.extend([0, family.parse().ok()?, network.prefix_len(), negation | u8::try_from(length).ok()?]);
    data.extend(&octets[..length]);
    Some(())
}

fn write_gateway(kind: u8, word: &Word<'_>, origin: &[u8], data: &mut Vec<u8>) -> Result<(), String> {
    match kind {
        0 if word.text == b"." => {}
        0 => return Err("without a gateway there has to be a dot".to_owned()),
        1 => data.extend(word.ipv4()?),
        2 => data.extend(word.ipv6()?),
        3 => word.write_name(origin, data)?,
        _ => return Err(format!("there is no type {kind} of gateways")),
    }
    Ok(())
}

/// Appends what follows the algorithm, before which the length of the tag is put.
fn write_host_identity(words: &[Word<'_>], origin: &[u8], data: &mut Vec<u8>) -> Result<(), String> {
    let [tag, key, servers @ ..] = words else { return Err("a tag and a key have to follow".to_owned()) };
    let (tag, key) = (hex(&[*tag])?, base64(&[*key])?);
    let tag_length = u8::try_from(tag.len()).map_err(|_| "the tag has more than 255 octets".to_owned())?;
    let key_length = u16::try_from(key.len()).map_err(|_| "the key is too long".to_owned())?;
    data.insert(0, tag_length);
    data.extend(key_length.to_be_bytes());
    data.extend(tag);
    data.extend(key);
    servers.iter().try_for_each(|server| server.write_name(origin, data))
}
