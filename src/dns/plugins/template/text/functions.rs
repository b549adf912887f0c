//! The functions of templates.

use super::format::Format;
use super::node::{Command, Function, Word};
use super::value::Value;

/// Checks a command at parse time; `is_piped` means that the value of the previous command is the last argument.
///
/// # Errors
/// Fails if the command can never run.
pub(super) fn check_call(command: &Command, is_piped: bool) -> Result<(), String> {
    let Some((head, arguments)) = command.words.split_first() else {
        return Err("an expression is missing".to_owned());
    };
    if let Some(Word::Function(function)) = arguments.iter().find(|word| matches!(word, Word::Function(_))) {
        let name = function.name();
        return Err(format!(
            "{name} is a function: as an argument it stands in parentheses, with its own arguments"
        ));
    }
    let Word::Function(function) = head else {
        return if arguments.is_empty() && !is_piped {
            Ok(())
        } else {
            Err(format!("{head} is no function: it can't be given an argument"))
        };
    };
    let (name, given) = (function.name(), arguments.len() + usize::from(is_piped));
    let (least, most) = function.arity();
    if given < least || given > most {
        let number = if least == most { least.to_string() } else { format!("at least {least}") };
        let s = if least == 1 { "" } else { "s" };
        return Err(format!("{name} takes {number} argument{s}, and here are {given}"));
    }
    if let (Function::Printf, Some(Word::Str(text, _))) = (function, arguments.first()) {
        let wanted = Format::parse(text)?.arguments();
        if wanted != given - 1 {
            return Err(format!(
                "the format of this printf is for {wanted} values, and here are {}",
                given - 1
            ));
        }
    }
    Ok(())
}

/// Calls a function, except for `and` and `or`, which evaluate their arguments lazily.
///
/// # Errors
/// Fails if an argument has a type or a value that the function can't handle.
pub(super) fn call<'a>(function: Function, arguments: &[Value<'a>]) -> Result<Value<'a>, String> {
    // `check_call` has checked the number of arguments.
    let [first, rest @ ..] = arguments else { return Err("no arguments".to_owned()) };
    match (function, rest) {
        (Function::Eq, rest) => {
            for other in rest {
                if equal(first, other)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        (Function::Ne, [other]) => Ok(Value::Bool(!equal(first, other)?)),
        (Function::Lt, [other]) => Ok(Value::Bool(less(first, other)?)),
        (Function::Ge, [other]) => Ok(Value::Bool(!less(first, other)?)),
        (Function::Le, [other]) => Ok(Value::Bool(less(first, other)? || equal(first, other)?)),
        (Function::Gt, [other]) => Ok(Value::Bool(!less(first, other)? && !equal(first, other)?)),
        (Function::Index, _) if first.kind().is_none() => Err("there is no value to look into".to_owned()),
        (Function::Index, indexes) => indexes.iter().try_fold(first.clone(), |item, at| index(&item, at)),
        (Function::Len, []) => length(first),
        (Function::Not, []) => Ok(Value::Bool(!first.is_true())),
        (Function::ParseInt, [base, bits]) => parse_int(first, base, bits),
        (Function::Printf, values) => match first {
            Value::Str(format) => Ok(Value::Str(Format::parse(format)?.write(values)?.into())),
            other => Err(format!("a format is a string, and this is {}", other.kind_name())),
        },
        _ => Err(format!("wrong number of arguments for {}", function.name())),
    }
}

fn equal(one: &Value<'_>, other: &Value<'_>) -> Result<bool, String> {
    match (one, other) {
        (Value::None, Value::None) => Ok(true),
        (Value::None, _) | (_, Value::None) => Ok(false),
        (Value::Str(one), Value::Str(other)) => Ok(one == other),
        (Value::Bool(one), Value::Bool(other)) => Ok(one == other),
        _ => match (integer(one), integer(other)) {
            (Some(one), Some(other)) => Ok(one == other),
            _ => Err(incomparable(one, other)),
        },
    }
}

fn less(one: &Value<'_>, other: &Value<'_>) -> Result<bool, String> {
    match (one, other) {
        (Value::Str(one), Value::Str(other)) => Ok(one < other),
        _ => match (integer(one), integer(other)) {
            (Some(one), Some(other)) => Ok(one < other),
            _ => Err(incomparable(one, other)),
        },
    }
}

fn incomparable(one: &Value<'_>, other: &Value<'_>) -> String {
    format!("{} and {} can't be compared", one.kind_name(), other.kind_name())
}

/// Converts a signed or unsigned integer to `i128`, so that integers of both types can be compared; `None` for values
/// of other types.
fn integer(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Int(number) => Some((*number).into()),
        Value::Uint(number) => Some((*number).into()),
        _ => None,
    }
}

fn index<'a>(item: &Value<'a>, at: &Value<'a>) -> Result<Value<'a>, String> {
    if let Value::Map(map) = item {
        return match at {
            Value::Str(key) => Ok(Value::Str(map.get(&**key).map_or("", String::as_str).into())),
            other => Err(format!("the key of a map is a string, and this is {}", other.kind_name())),
        };
    }
    let number = integer(at).ok_or_else(|| format!("{} is no index", at.kind_name()));
    let place = |number: i128| usize::try_from(number).ok();
    let missing = |number: i128| format!("index out of range: {number}");
    match item {
        Value::Strings(list) => {
            let number = number?;
            let found = place(number).and_then(|at| list.get(at));
            found.map(|text| Value::Str(text.into())).ok_or_else(|| missing(number))
        }
        Value::Questions(list) => {
            let number = number?;
            place(number).and_then(|at| list.get(at)).map(Value::Question).ok_or_else(|| missing(number))
        }
        // A byte, as in Go.
        Value::Str(text) => {
            let number = number?;
            let found = place(number).and_then(|at| text.as_bytes().get(at));
            found.map(|byte| Value::Uint((*byte).into())).ok_or_else(|| missing(number))
        }
        other => Err(format!("{} has no index", other.kind_name())),
    }
}

fn length<'a>(item: &Value<'_>) -> Result<Value<'a>, String> {
    let length = match item {
        Value::Str(text) => text.len(),
        Value::Strings(list) => list.len(),
        Value::Questions(list) => list.len(),
        Value::Map(map) => map.len(),
        other => return Err(format!("{} has no length", other.kind_name())),
    };
    i64::try_from(length).map(Value::Int).map_err(|error| error.to_string())
}

/// Implements Go's `strconv.ParseUint`.
fn parse_int<'a>(text: &Value<'_>, base: &Value<'_>, bits: &Value<'_>) -> Result<Value<'a>, String> {
    let (Value::Str(text), Value::Int(base), Value::Int(bits)) = (text, base, bits) else {
        let given: Vec<&str> = [text, base, bits].iter().map(|value| value.kind_name()).collect();
        return Err(format!(
            "parseInt takes a string, a base and a number of bits, and here are {}",
            given.join(", ")
        ));
    };
    // With base 0, underscores may separate digits, as in Go's number literals.
    let is_separated = *base == 0 && !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let (digits, base) = match (base, text.get(..2).map(str::to_ascii_lowercase).as_deref()) {
        (0, Some("0x")) => (&text[2..], 16),
        (0, Some("0o")) => (&text[2..], 8),
        (0, Some("0b")) => (&text[2..], 2),
        (0, _) if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        (0, _) => (&**text, 10),
        (2..=36, _) => (&**text, u32::try_from(*base).unwrap_or_default()),
        _ => return Err(format!("parsing {text:?}: invalid base {base}")),
    };
    let bits = match bits {
        0 => 64,
        1..=64 => *bits,
        _ => return Err(format!("parsing {text:?}: invalid bit size {bits}")),
    };
    let digits = if is_separated { digits.replace('_', "") } else { digits.to_owned() };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Err(format!("parsing {text:?}: invalid syntax"));
    }
    u64::from_str_radix(&digits, base)
        .ok()
        .filter(|number| u128::from(*number) < 1 << bits)
        .map(Value::Uint)
        .ok_or_else(|| format!("parsing {text:?}: value out of range"))
}
