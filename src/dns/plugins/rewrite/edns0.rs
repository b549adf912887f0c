//! The `edns0` rule: EDNS options for the following plugins and upstreams.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Edns, Query};
use hickory_proto::rr::rdata::opt::EdnsCode;

use crate::dns::chain::request::{Purpose, Request};
use crate::dns::corefile::{CorefileError, Token};
use crate::dns::message::header::EMPTY_SUBNET;
use crate::dns::message::presentation::name_text;

/// RFC 5001 section 2.3.
const NSID: u16 = 3;
/// RFC 7871 section 6.
const SUBNET: u16 = 8;
/// The maximum length of an option in a rule, in bytes.
const MAX_DATA: usize = 256;
/// The maximum length of all options of a query, in bytes: with the longest name, the query stays below 1232 bytes.
const MAX_OPTIONS: usize = 512;
/// The length of an option's code and length, in bytes.
const OPTION_HEADER: usize = 4;

#[derive(Debug)]
pub(super) struct Edns0Rule {
    action: Action,
    code: u16,
    data: OptionData,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Set,
    Append,
    Replace,
    Unset,
}

#[derive(Debug)]
enum OptionData {
    Fixed(Vec<u8>),
    Variable(Variable),
    /// The number of the client's bits, for IPv4 and for IPv6.
    Subnet(u8, u8),
}

#[derive(Debug)]
enum Variable {
    QueryName,
    QueryType,
    ClientIp,
    ClientPort,
    ServerIp,
    ServerPort,
    Protocol,
    Label(String),
}

/// The EDNS options that rules have added to a query.
#[derive(Debug, Default)]
pub(super) struct AddedOptions {
    added: Vec<(u16, Vec<u8>)>,
    /// The codes of options that rules have removed, set or replaced, so that none of them is the client's any more.
    removed: Vec<u16>,
    /// Whether an option, or which rules match, depends on the client, beside its query.
    are_for_client: bool,
}

impl Edns0Rule {
    /// Parses the words after `edns0`.
    pub(super) fn parse(kind: &Token, words: &[&Token]) -> Result<Self, CorefileError> {
        let [option, action, rest @ ..] = words else {
            return Err(kind.needs("local, nsid or subnet, and set, append, replace or unset"));
        };
        let action = match &*action.text.to_lowercase() {
            "set" => Action::Set,
            "append" => Action::Append,
            "replace" => Action::Replace,
            "unset" => Action::Unset,
            _ => return Err(action.unexpected("set, append, replace or unset")),
        };
        let rest = match rest {
            // It says that the client doesn't see the option, which it never does.
            [rest @ .., last] if last.text == "revert" && action != Action::Unset => rest,
            rest => rest,
        };
        let none = || OptionData::Fixed(Vec::new());
        let (code, data, rest) = match (&*option.text.to_lowercase(), action, rest) {
            ("local", Action::Unset, [code, rest @ ..]) => (parse_code(code)?, none(), rest),
            ("local", Action::Unset, []) => return Err(option.needs("the code of the option")),
            ("local", _, [code, data, rest @ ..]) => (parse_code(code)?, OptionData::parse(data)?, rest),
            ("local", ..) => return Err(option.needs("a code and the data of the option")),
            ("nsid", _, rest) => (NSID, none(), rest),
            ("subnet", Action::Unset, rest) => (SUBNET, none(), rest),
            ("subnet", _, [ipv4, ipv6, rest @ ..]) => {
                (SUBNET, OptionData::Subnet(bits(ipv4, 32)?, bits(ipv6, 128)?), rest)
            }
            ("subnet", ..) => {
                return Err(option.needs("the numbers of bits for IPv4 and for IPv6, such as 24 56"));
            }
            _ => return Err(option.unexpected("local, nsid or subnet")),
        };
        match rest {
            [] => Ok(Self { action, code, data }),
            [more, ..] => Err(more.error(format!("{:?} is one word too many for edns0", more.text))),
        }
    }

    /// Returns the label of *metadata* that the rule uses.
    pub(super) fn label(&self) -> Option<&str> {
        match &self.data {
            OptionData::Variable(Variable::Label(label)) => Some(label),
            _ => None,
        }
    }

    /// Changes the options of a query. Returns whether the rule matches.
    pub(super) fn apply(&self, request: &Request, query: &Query, options: &mut AddedOptions) -> bool {
        let Self { action, code, data } = self;
        if *action == Action::Unset {
            options.added.retain(|(known, _)| known != code);
            options.removed.push(*code);
            return true;
        }
        // Clients share the other look-ups, such as those of links' targets.
        let is_shared = !matches!(request.purpose, Purpose::Client) || request.is_internal();
        if is_shared && data.depends_on_client() {
            return true;
        }
        let may_be_clients = !is_shared && !options.removed.contains(code);
        let is_clients = may_be_clients && request.edns.as_ref().is_some_and(|edns| has_option(edns, *code));
        let known = options.added.iter().position(|(known, _)| known == code);
        let reads_client = match action {
            Action::Append => known.is_none() && !matches!(data, OptionData::Fixed(_)),
            Action::Replace => true,
            _ => known.is_some(),
        };
        options.are_for_client |= data.depends_on_client() || may_be_clients && reads_client;
        let Some(value) = data.value(request, query) else { return false };
        let is_there = is_clients || known.is_some();
        match action {
            Action::Replace if !is_there => return false,
            Action::Append if is_there && !matches!(data, OptionData::Fixed(_)) => return false,
            _ => {}
        }
        let replaced = known.filter(|_| *action != Action::Append && !is_clients);
        let before = replaced.map_or(0, |place| OPTION_HEADER + options.added[place].1.len());
        if options.length() - before + OPTION_HEADER + value.len() > MAX_OPTIONS {
            return false;
        }
        match (replaced, known) {
            (Some(place), _) => options.added[place].1 = value,
            // It takes the place of the client's option, which is the first one with the code.
            (None, Some(place)) if *action != Action::Append => options.added.insert(place, (*code, value)),
            _ => options.added.push((*code, value)),
        }
        if *action != Action::Append {
            options.removed.push(*code);
        }
        true
    }
}

impl OptionData {
    fn parse(word: &Token) -> Result<Self, CorefileError> {
        let text = &*word.text;
        if let Some(variable) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            return Ok(Self::Variable(Variable::parse(variable, word)?));
        }
        let data = match text.strip_prefix("0x") {
            Some(digits) => hex(digits).ok_or_else(|| word.unexpected("data, such as abcd or 0x61626364"))?,
            None => text.as_bytes().to_vec(),
        };
        if data.len() > MAX_DATA {
            return Err(word
                .error(format!("the option has {} bytes, and at most {MAX_DATA} are allowed", data.len())));
        }
        Ok(Self::Fixed(data))
    }

    fn depends_on_client(&self) -> bool {
        match self {
            Self::Fixed(_) | Self::Variable(Variable::QueryName | Variable::QueryType) => false,
            Self::Variable(_) | Self::Subnet(..) => true,
        }
    }

    /// Returns the data of the option; `None` if the variable has no value.
    fn value(&self, request: &Request, query: &Query) -> Option<Vec<u8>> {
        Some(match self {
            Self::Fixed(data) => data.clone(),
            Self::Subnet(ipv4, ipv6) => subnet(request.client.ip(), *ipv4, *ipv6),
            Self::Variable(variable) => match variable {
                Variable::QueryName => name_text(query.name()).into_bytes(),
                Variable::QueryType => u16::from(query.query_type()).to_be_bytes().to_vec(),
                Variable::ClientIp => octets(request.client.ip()),
                Variable::ClientPort => request.client.port().to_be_bytes().to_vec(),
                Variable::ServerIp => octets(request.local.ip()),
                Variable::ServerPort => request.local.port().to_be_bytes().to_vec(),
                Variable::Protocol => request.proto_text().into(),
                Variable::Label(label) => {
                    request.label(label).filter(|value| !value.is_empty())?.into_bytes()
                }
            },
        })
    }
}

impl Variable {
    fn parse(name: &str, word: &Token) -> Result<Self, CorefileError> {
        Ok(match name {
            "qname" => Self::QueryName,
            "qtype" => Self::QueryType,
            "client_ip" => Self::ClientIp,
            "client_port" => Self::ClientPort,
            "server_ip" => Self::ServerIp,
            "server_port" => Self::ServerPort,
            "protocol" => Self::Protocol,
            label if is_label(label) => Self::Label(label.to_owned()),
            _ => {
                return Err(word.unexpected(
                    "{qname}, {qtype}, {client_ip}, {client_port}, {server_ip}, {server_port}, {protocol}, or a label such \
                     as {kubernetes/client-namespace}",
                ));
            }
        })
    }
}

impl AddedOptions {
    /// Returns the length of all options in wire form, in bytes.
    fn length(&self) -> usize {
        self.added.iter().map(|(_, data)| OPTION_HEADER + data.len()).sum()
    }

    /// Returns whether another client might get other options, or be affected by other rules, for the same query.
    pub(super) fn are_for_client(&self) -> bool {
        self.are_for_client
    }

    /// Returns the options in wire form (RFC 6891 section 6.1.2); `None` if there are none.
    pub(super) fn to_wire(&self) -> Option<Arc<[u8]>> {
        let mut wire = Vec::new();
        for (code, data) in &self.added {
            wire.extend(code.to_be_bytes());
            // An option has less than `MAX_OPTIONS` bytes.
            wire.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
            wire.extend(data);
        }
        (!wire.is_empty()).then(|| wire.into())
    }
}

/// Returns whether a client's EDNS has an option; a subnet may be one that isn't decoded.
fn has_option(edns: &Edns, code: u16) -> bool {
    edns.option(EdnsCode::from(code)).is_some()
        || code == SUBNET && edns.option(EdnsCode::from(EMPTY_SUBNET)).is_some()
}

fn is_label(text: &str) -> bool {
    text.split_once('/').is_some_and(|(plugin, name)| !plugin.is_empty() && !name.is_empty())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns a client subnet option (RFC 7871 section 6): family, prefix, scope 0, and the octets of the prefix.
fn subnet(client: IpAddr, ipv4: u8, ipv6: u8) -> Vec<u8> {
    let (family, prefix) = if client.is_ipv4() { (1, ipv4) } else { (2, ipv6) };
    let mut network = octets(client);
    network.truncate(usize::from(prefix.div_ceil(8)));
    if let (Some(last), bits @ 1..) = (network.last_mut(), prefix % 8) {
        *last &= 0xff << (8 - bits);
    }
    [&[0, family, prefix, 0], &network[..]].concat()
}

fn parse_code(word: &Token) -> Result<u16, CorefileError> {
    number(&word.text).ok_or_else(|| word.unexpected("the code of an EDNS option, such as 65001 or 0xffee"))
}

fn bits(word: &Token, most: u8) -> Result<u8, CorefileError> {
    let bits = number(&word.text).and_then(|bits| u8::try_from(bits).ok()).filter(|bits| *bits <= most);
    bits.ok_or_else(|| word.unexpected(&format!("a number of bits from 0 to {most}")))
}

/// Parses a number of 16 bits in Go's syntax, as CoreDNS does with `strconv.ParseUint` and base 0.
fn number(text: &str) -> Option<u16> {
    let text = text.to_ascii_lowercase();
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x', ..] => (&text[2..], 16),
        [b'0', b'b', ..] => (&text[2..], 2),
        [b'0', b'o', ..] => (&text[2..], 8),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (&*text, 10),
    };
    // The standard library accepts a sign.
    digits
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric())
        .then(|| u16::from_str_radix(digits, radix).ok())?
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}
