//! Parses the lines of `tsig`. No error shows a text that may be a secret.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use data_encoding::BASE64;
use hickory_proto::op::OpCode;
use hickory_proto::rr::{Name, RecordType};

use super::{NAME, Required, Tsig, key_file};
use crate::dns::corefile::arguments::{option_list, suggestion};
use crate::dns::corefile::{CorefileError, Directive, Position, Token};
use crate::dns::message::presentation::{lower_name_text, parse_name, parse_type};
use crate::dns::message::tsig::{Algorithm, Key, TsigKeys};
use crate::dns::plugins::refusal_log::RefusalLog;
use crate::dns::plugins::setup::Setup;

const OPTIONS: [&str; 4] = ["secret", "secrets", "require", "require_opcode"];
const OPCODES: [(&str, OpCode); 5] = [
    ("QUERY", OpCode::Query),
    ("IQUERY", OpCode::Unknown(1)),
    ("STATUS", OpCode::Status),
    ("NOTIFY", OpCode::Notify),
    ("UPDATE", OpCode::Update),
];
const ALL: &str = "all";
const NONE: &str = "none";
/// The maximum number of keys of a block. More of them would be a mistake.
const MAX_KEYS: usize = 1000;
pub(super) const NO_NAME: &str = "this isn't the name of a key, such as lb-key or example.org.key";
pub(super) const NO_BASE64: &str = "the secret isn't Base64 with padding, as tsig-keygen prints it";

pub(super) fn plugin(setup: &mut Setup<'_>) -> Result<Tsig, CorefileError> {
    let line = setup.only_line()?.clone();
    let mut keys = TsigKeys::new(setup.zones_or_own(line.arguments())?);
    let (mut types, mut opcodes) = (None, None);
    for option in line.options() {
        match option.name() {
            "secret" => secret(option, &mut keys)?,
            "secrets" => secrets(setup, option, &mut keys)?,
            "require" => require(option, &mut types, "a record type such as AXFR", qtype)?,
            "require_opcode" => require(option, &mut opcodes, &opcode_names(), opcode)?,
            name => {
                let hint = suggestion(name, &OPTIONS).unwrap_or_else(|| option_list(&OPTIONS));
                return Err(option.error(format!("{NAME} has no such option; {hint}")));
            }
        }
    }
    if keys.is_empty() {
        let text = format!(
            "{NAME} has no key: a signed request is refused; add `secret NAME KEY` or `secrets FILE`"
        );
        setup.builder.warnings.push(line.error(text));
    }
    Ok(Tsig {
        keys: Arc::new(keys),
        types: types.unwrap_or(Required::Only(Vec::new())),
        opcodes: opcodes.unwrap_or(Required::Only(Vec::new())),
        refused: RefusalLog::default(),
        refused_unsigned: RefusalLog::default(),
        has_warned: AtomicBool::new(false),
    })
}

fn secret(option: &Directive, keys: &mut TsigKeys) -> Result<(), CorefileError> {
    let [name, secret] = option.arguments() else {
        return Err(option.error("secret needs the name of a key, and its secret in Base64: secret NAME KEY"));
    };
    option.no_block()?;
    let parsed = key_name(&name.text).ok_or_else(|| name.error(NO_NAME))?;
    let secret = decoded(&secret.text).ok_or_else(|| secret.error(NO_BASE64))?;
    add(keys, &name.position, &parsed, Algorithm::Sha256, &secret)
}

fn secrets(setup: &mut Setup<'_>, option: &Directive, keys: &mut TsigKeys) -> Result<(), CorefileError> {
    option.no_block()?;
    let word = option.single_argument("a file with keys")?;
    let path = setup.path(&word.text);
    let bytes = setup.read_named(word, &path)?;
    let file: Arc<Path> = path.into();
    let position = Position { file: Arc::clone(&file), line: 0, column: 0 };
    let text = std::str::from_utf8(&bytes).map_err(|_| position.error("the file isn't text in UTF-8"))?;
    for key in key_file::parse(&file, text, MAX_KEYS)? {
        if key.algorithm == Algorithm::Sha1 {
            let warning = key.position.error("hmac-sha1 is weak: use hmac-sha256");
            setup.builder.warnings.push(warning);
        }
        add(keys, &key.position, &key.name, key.algorithm, &key.secret)?;
    }
    Ok(())
}

fn add(
    keys: &mut TsigKeys,
    position: &Position,
    name: &Name,
    algorithm: Algorithm,
    secret: &[u8],
) -> Result<(), CorefileError> {
    if keys.len() >= MAX_KEYS {
        return Err(position.error(format!("a block has {MAX_KEYS} keys at most")));
    }
    let key = Key::new(name, algorithm, secret);
    let key = key.ok_or_else(|| position.error("the secret has a length that isn't accepted"))?;
    if keys.insert(key) {
        return Ok(());
    }
    Err(position.error(format!("the block has a key {} already", lower_name_text(name))))
}

/// Returns a key's name; `None` if the text isn't one.
pub(super) fn key_name(text: &str) -> Option<Name> {
    parse_name(text).filter(|name| !name.is_root())
}

/// Returns the secret that a text in Base64 means; `None` if it means none.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.as_bytes()).ok().filter(|secret| !secret.is_empty())
}

/// Parses the arguments of `require` or `require_opcode` into `found`; `what` describes one of them.
fn require<T>(
    option: &Directive,
    found: &mut Option<Required<T>>,
    what: &str,
    parse: impl Fn(&Token) -> Option<T>,
) -> Result<(), CorefileError> {
    option.no_block()?;
    if found.is_some() {
        return Err(option.error(format!("{} can be there only once in {NAME}", option.name())));
    }
    let what = format!("{what}, or {ALL} or {NONE} alone");
    *found = Some(match option.required_arguments(&what)? {
        [word] if word.text == ALL => Required::All,
        [word] if word.text == NONE => Required::Only(Vec::new()),
        words => {
            let parsed = words.iter().map(|word| parse(word).ok_or_else(|| word.unexpected(&what)));
            Required::Only(parsed.collect::<Result<_, _>>()?)
        }
    });
    Ok(())
}

fn qtype(word: &Token) -> Option<RecordType> {
    parse_type(&word.text)
}

fn opcode(word: &Token) -> Option<OpCode> {
    OPCODES.iter().find(|(name, _)| *name == word.text).map(|(_, opcode)| *opcode)
}

fn opcode_names() -> String {
    format!("one of {}", OPCODES.map(|(name, _)| name).join(", "))
}
