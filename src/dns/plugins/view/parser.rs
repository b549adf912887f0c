//! Compiles an expression to a condition, and checks its types. Operators bind as in expr-lang.

use std::net::IpAddr;

use ipnet::IpNet;
use regex::Regex;

use super::ExpressionError;
use super::condition::{Address, Condition, Net, Number, Relation, Text};
use super::lexer::{Word, unsupported, words};
use crate::dns::corefile::arguments::{regex_error_text, suggestion};
use crate::dns::plugins::nets::unmapped;

/// The maximum depth of parentheses, arguments and negations, and the maximum number of comparisons of booleans: a
/// condition is evaluated recursively.
const MAX_DEPTH: usize = 64;
const FUNCTIONS: [&str; 15] = [
    "bufsize",
    "class",
    "client_ip",
    "do",
    "id",
    "incidr",
    "metadata",
    "name",
    "opcode",
    "port",
    "proto",
    "server_ip",
    "server_port",
    "size",
    "type",
];

#[derive(Debug)]
enum Value {
    Condition(Condition),
    Text(Text),
    Number(Number),
    List(Vec<Value>),
}

/// A binary operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Or,
    And,
    Relation(Relation),
    In,
    Matches,
    Contains,
    StartsWith,
    EndsWith,
}

struct Parser {
    words: Vec<(usize, Word)>,
    next: usize,
    depth: usize,
    /// The number of comparisons of booleans.
    compared: usize,
    uses_labels: bool,
}

/// Returns the condition of an expression, and whether it depends on labels.
///
/// # Errors
/// If the text isn't an expression of this subset of the language, or isn't a boolean.
pub(super) fn parse(text: &str) -> Result<(Condition, bool), ExpressionError> {
    let mut parser = Parser { words: words(text)?, next: 0, depth: 0, compared: 0, uses_labels: false };
    let value = parser.expression()?;
    if *parser.peek() != Word::End {
        return Err(parser.unexpected("an operator or the end"));
    }
    match value {
        Value::Condition(condition) => Ok((condition, parser.uses_labels)),
        other => Err(error(0, format!("an expression has to be a boolean, and this is {}", other.kind()))),
    }
}

fn error(at: usize, message: impl Into<String>) -> ExpressionError {
    ExpressionError { at, message: message.into() }
}

impl Parser {
    fn peek(&self) -> &Word {
        self.words.get(self.next).map_or(&Word::End, |(_, word)| word)
    }

    /// Returns the place of the next word.
    fn at(&self) -> usize {
        let last = self.words.len().saturating_sub(1);
        self.words.get(self.next.min(last)).map_or(0, |(at, _)| *at)
    }

    fn is_next(&self, sign: &str) -> bool {
        matches!(self.peek(), Word::Sign(next) if *next == sign)
    }

    /// Takes the next word if it is this sign.
    fn take(&mut self, sign: &str) -> bool {
        let is_it = self.is_next(sign);
        self.next += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, sign: &str) -> Result<(), ExpressionError> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected(&format!("{sign:?}"))) }
    }

    fn unexpected(&self, what: &str) -> ExpressionError {
        let found = match self.peek() {
            Word::Name(name) => format!("{name:?}"),
            Word::Text(_) => "a string".to_owned(),
            Word::Number(number) => number.to_string(),
            Word::Sign(sign) => format!("{sign:?}"),
            Word::End => "the end".to_owned(),
        };
        error(self.at(), format!("here has to be {what}, not {found}"))
    }

    /// Parses a part of the expression, unless it is too deep.
    fn deeper<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, ExpressionError>,
    ) -> Result<T, ExpressionError> {
        if self.depth == MAX_DEPTH {
            return Err(error(self.at(), format!("an expression has {MAX_DEPTH} levels at most")));
        }
        self.depth += 1;
        let parsed = part(self)?;
        self.depth -= 1;
        Ok(parsed)
    }

    /// Parses an expression with all operators.
    fn expression(&mut self) -> Result<Value, ExpressionError> {
        self.deeper(|parser| {
            let value = parser.operations(0)?;
            let at = parser.at();
            if !parser.take("?") {
                return Ok(value);
            }
            let condition = value.condition(at, "?")?;
            // `a ?: b` is `a ? a : b`.
            if parser.take(":") {
                let otherwise = parser.expression()?.condition(at, "?:")?;
                return Ok(Value::Condition(joined(Operator::Or, condition, otherwise)));
            }
            let then = parser.expression()?;
            parser.expect(":")?;
            let otherwise = parser.expression()?;
            either(at, condition, then, otherwise)
        })
    }

    /// Parses values with binary operators that bind at least so strongly.
    fn operations(&mut self, least: u8) -> Result<Value, ExpressionError> {
        let mut left = self.operand()?;
        loop {
            let is_negated = matches!(self.peek(), Word::Name(name) if name == "not");
            let found = self.words.get(self.next + usize::from(is_negated));
            let Some((operator, word)) = found.and_then(|(_, word)| Some((operator(word)?, word.clone())))
            else {
                if is_negated {
                    return Err(self.unexpected("an operator or the end"));
                }
                return Ok(left);
            };
            if is_negated && !operator.has_negation() {
                return Err(self.unexpected("an operator or the end"));
            }
            if operator.strength() < least {
                return Ok(left);
            }
            self.next += usize::from(is_negated);
            let at = self.at();
            self.next += 1;
            let at_right = self.at();
            let right = self.operations(operator.strength() + 1)?;
            let condition = self.combine(operator, &word, left, right, [at, at_right])?;
            left = Value::Condition(match is_negated {
                true => Condition::Not(Box::new(condition)),
                false => condition,
            });
        }
    }

    fn combine(
        &mut self,
        operator: Operator,
        word: &Word,
        left: Value,
        right: Value,
        [at, at_right]: [usize; 2],
    ) -> Result<Condition, ExpressionError> {
        let sign = word.shown();
        let mismatch = |left: &Value, right: &Value, needs: &str| {
            let (left, right) = (left.kind(), right.kind());
            Err(error(at, format!("{sign} stands between {needs}, not between {left} and {right}")))
        };
        let is_equality = matches!(operator, Operator::Relation(Relation::Equal | Relation::NotEqual));
        match (operator, left, right) {
            (Operator::And | Operator::Or, Value::Condition(left), Value::Condition(right)) => {
                Ok(joined(operator, left, right))
            }
            (Operator::And | Operator::Or, left, right) => mismatch(&left, &right, "booleans"),
            (Operator::Relation(relation), Value::Number(left), Value::Number(right)) => {
                Ok(Condition::Compare(relation, left, right))
            }
            (Operator::Relation(relation), Value::Text(left), Value::Text(right)) => {
                Ok(Condition::CompareTexts(relation, left, right))
            }
            (Operator::Relation(relation), Value::Condition(left), Value::Condition(right))
                if is_equality =>
            {
                self.count_comparison(at)?;
                let same = Condition::Same(Box::new([left, right]));
                Ok(if relation == Relation::Equal { same } else { Condition::Not(Box::new(same)) })
            }
            (Operator::Relation(_), left, right) if is_equality => {
                mismatch(&left, &right, "values of one type")
            }
            (Operator::Relation(_), left, right) => mismatch(&left, &right, "two numbers or two strings"),
            (Operator::In, left, Value::List(list)) => {
                if matches!(left, Value::Condition(_)) {
                    self.count_comparison(at)?;
                }
                contained(at, left, list)
            }
            (Operator::In, _, right) => Err(error(
                at_right,
                format!("behind `in` has to be a list such as ['A', 'AAAA'], not {}", right.kind()),
            )),
            (Operator::Matches, Value::Text(left), Value::Text(Text::Constant(pattern))) => {
                let regex = Regex::new(&pattern).map_err(|why| {
                    let why = regex_error_text(&why);
                    error(at_right, format!("{pattern:?} isn't a regular expression: {why}"))
                })?;
                Ok(Condition::Matches(left, regex))
            }
            (Operator::Matches, Value::Text(_), _) => {
                Err(error(at_right, "behind `matches` has to be a regular expression in quotes"))
            }
            (Operator::Contains, Value::Text(left), Value::Text(right)) => {
                Ok(Condition::Contains(left, right))
            }
            (Operator::StartsWith, Value::Text(left), Value::Text(right)) => {
                Ok(Condition::StartsWith(left, right))
            }
            (Operator::EndsWith, Value::Text(left), Value::Text(right)) => {
                Ok(Condition::EndsWith(left, right))
            }
            (_, left, right) => mismatch(&left, &right, "strings"),
        }
    }

    /// Counts an operator that compares a boolean: many of them in a row are deep.
    fn count_comparison(&mut self, at: usize) -> Result<(), ExpressionError> {
        self.compared += 1;
        if self.compared > MAX_DEPTH {
            return Err(error(at, format!("an expression compares booleans {MAX_DEPTH} times at most")));
        }
        Ok(())
    }

    /// Parses a value without binary operators.
    fn operand(&mut self) -> Result<Value, ExpressionError> {
        let at = self.at();
        let word = self.peek().clone();
        self.next += 1;
        match word {
            Word::Sign("!") => self.negated(at, "!"),
            Word::Sign("(") => {
                let value = self.expression()?;
                self.expect(")")?;
                Ok(value)
            }
            Word::Sign("[") => Ok(Value::List(self.list("]")?.into_iter().map(|(_, value)| value).collect())),
            Word::Text(text) => Ok(Value::Text(Text::Constant(text.into()))),
            Word::Number(number) => Ok(Value::Number(Number::Constant(number))),
            Word::Name(name) => match &*name {
                "not" => self.negated(at, "not"),
                "true" => Ok(Value::Condition(Condition::Constant(true))),
                "false" => Ok(Value::Condition(Condition::Constant(false))),
                "nil" | "let" | "if" => Err(unsupported(at, &format!("{name:?}"))),
                _ if operator(&Word::Name(name.clone())).is_some() => {
                    self.next -= 1;
                    Err(self.unexpected("a value"))
                }
                _ => self.call(at, &name),
            },
            Word::Sign(_) | Word::End => {
                self.next -= 1;
                Err(self.unexpected("a value"))
            }
        }
    }

    /// Parses what a negation is about: no binary operator binds so strongly.
    fn negated(&mut self, at: usize, sign: &str) -> Result<Value, ExpressionError> {
        let inner = self.deeper(Self::operand)?.condition(at, sign)?;
        Ok(Value::Condition(Condition::Not(Box::new(inner))))
    }

    /// Parses values up to a bracket, each with its place.
    fn list(&mut self, end: &str) -> Result<Vec<(usize, Value)>, ExpressionError> {
        let mut values = Vec::new();
        while !self.take(end) {
            if !values.is_empty() {
                if !self.take(",") {
                    return Err(self.unexpected(&format!("\",\" or {end:?}")));
                }
                // As in CoreDNS, a comma may stand behind the last value.
                if self.take(end) {
                    break;
                }
            }
            let at = self.at();
            values.push((at, self.expression()?));
        }
        Ok(values)
    }

    fn call(&mut self, at: usize, name: &str) -> Result<Value, ExpressionError> {
        if !FUNCTIONS.contains(&name) {
            let hint = suggestion(name, &FUNCTIONS).unwrap_or_else(|| match self.peek() {
                Word::Sign("(") => format!("there are {}", FUNCTIONS.join(", ")),
                // The Corefile has removed double quotes.
                _ => format!("a string stands in single quotes: '{name}'"),
            });
            return Err(error(at, format!("there is no function {name}(); {hint}")));
        }
        if !self.take("(") {
            return Err(error(at, format!("{name} is a function: write {name}()")));
        }
        let arguments = self.list(")")?;
        match field(name).filter(|_| arguments.is_empty()) {
            Some(value) => Ok(value),
            None if name == "incidr" => in_net(at, arguments),
            None if name == "metadata" => {
                self.uses_labels = true;
                metadata(at, arguments)
            }
            None => Err(error(at, format!("{name}() takes no arguments"))),
        }
    }
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Condition(_) => "a boolean",
            Self::Text(_) => "a string",
            Self::Number(_) => "a number",
            Self::List(_) => "a list",
        }
    }

    fn condition(self, at: usize, sign: &str) -> Result<Condition, ExpressionError> {
        match self {
            Self::Condition(condition) => Ok(condition),
            other => Err(error(at, format!("{sign} is for booleans, not for {}", other.kind()))),
        }
    }
}

impl Word {
    /// Returns an operator for a message.
    fn shown(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::Text(_) | Self::Number(_) | Self::End => String::new(),
        }
    }
}

impl Operator {
    /// Returns how strongly the operator binds.
    fn strength(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            _ => 3,
        }
    }

    /// Returns whether `not` may stand before the operator.
    fn has_negation(self) -> bool {
        !matches!(self, Self::Or | Self::And | Self::Relation(_))
    }
}

fn operator(word: &Word) -> Option<Operator> {
    Some(match word {
        Word::Sign("||") => Operator::Or,
        Word::Sign("&&") => Operator::And,
        Word::Sign("==") => Operator::Relation(Relation::Equal),
        Word::Sign("!=") => Operator::Relation(Relation::NotEqual),
        Word::Sign("<") => Operator::Relation(Relation::Less),
        Word::Sign(">") => Operator::Relation(Relation::Greater),
        Word::Sign("<=") => Operator::Relation(Relation::LessOrEqual),
        Word::Sign(">=") => Operator::Relation(Relation::GreaterOrEqual),
        Word::Name(name) => match &**name {
            "or" => Operator::Or,
            "and" => Operator::And,
            "in" => Operator::In,
            "matches" => Operator::Matches,
            "contains" => Operator::Contains,
            "startsWith" => Operator::StartsWith,
            "endsWith" => Operator::EndsWith,
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns conditions with `&&` or `||` between them. Many of them in a row aren't deep.
fn joined(operator: Operator, left: Condition, right: Condition) -> Condition {
    match (operator, left) {
        (Operator::And, Condition::All(mut parts)) => {
            parts.push(right);
            Condition::All(parts)
        }
        (Operator::And, left) => Condition::All(vec![left, right]),
        (_, Condition::Any(mut parts)) => {
            parts.push(right);
            Condition::Any(parts)
        }
        (_, left) => Condition::Any(vec![left, right]),
    }
}

fn either(at: usize, condition: Condition, then: Value, otherwise: Value) -> Result<Value, ExpressionError> {
    Ok(match (then, otherwise) {
        (Value::Condition(then), Value::Condition(otherwise)) => {
            Value::Condition(Condition::If(Box::new([condition, then, otherwise])))
        }
        (Value::Text(then), Value::Text(otherwise)) => {
            Value::Text(Text::If(Box::new((condition, then, otherwise))))
        }
        (Value::Number(then), Value::Number(otherwise)) => {
            Value::Number(Number::If(Box::new((condition, then, otherwise))))
        }
        (then, otherwise) => {
            let (then, otherwise) = (then.kind(), otherwise.kind());
            let why = format!("`?:` needs two booleans, strings or numbers, not {then} and {otherwise}");
            return Err(error(at, why));
        }
    })
}

/// Returns the condition that a list has a value.
fn contained(at: usize, value: Value, list: Vec<Value>) -> Result<Condition, ExpressionError> {
    let kind = value.kind();
    Ok(match value {
        Value::Condition(value) => {
            let list = of_kind(at, kind, list, |part| match part {
                Value::Condition(part) => Ok(part),
                other => Err(other),
            })?;
            Condition::OneOf(Box::new(value), list)
        }
        Value::Text(value) => {
            let list = of_kind(at, kind, list, |part| match part {
                Value::Text(part) => Ok(part),
                other => Err(other),
            })?;
            Condition::TextIn(value, list)
        }
        Value::Number(value) => {
            let list = of_kind(at, kind, list, |part| match part {
                Value::Number(part) => Ok(part),
                other => Err(other),
            })?;
            Condition::NumberIn(value, list)
        }
        Value::List(_) => return Err(error(at, "before `in` has to be a boolean, a string or a number")),
    })
}

/// Returns the values of a list if `of` accepts all of them.
fn of_kind<T>(
    at: usize,
    kind: &str,
    list: Vec<Value>,
    of: impl Fn(Value) -> Result<T, Value>,
) -> Result<Vec<T>, ExpressionError> {
    let wrong = |other: Value| {
        let other = other.kind();
        error(
            at,
            format!("`in` needs a list of the type before it: that is {kind}, and in the list is {other}"),
        )
    };
    list.into_iter().map(|part| of(part).map_err(&wrong)).collect()
}

fn in_net(at: usize, arguments: Vec<(usize, Value)>) -> Result<Value, ExpressionError> {
    let Ok([(at_address, address), (at_net, net)]) = <[_; 2]>::try_from(arguments) else {
        let needs = "incidr() needs an address and a network: incidr(client_ip(), '10.0.0.0/8')";
        return Err(error(at, needs));
    };
    let address = match address {
        Value::Text(Text::ClientIp) => Address::Client,
        Value::Text(Text::ServerIp) => Address::Server,
        Value::Text(Text::Constant(text)) => {
            let address = text.parse::<IpAddr>();
            let address = address.map_err(|_| error(at_address, format!("{text:?} isn't an IP address")))?;
            Address::Constant(address)
        }
        Value::Text(text) => Address::Text(text),
        other => {
            let why = format!("incidr() needs an address as a string, not {}", other.kind());
            return Err(error(at_address, why));
        }
    };
    let net = match net {
        Value::Text(Text::Constant(text)) => {
            let net = text.parse::<IpNet>();
            let why = || format!("{text:?} isn't a network such as 10.0.0.0/8");
            Net::Constant(unmapped(net.map_err(|_| error(at_net, why()))?))
        }
        Value::Text(text) => Net::Text(text),
        other => {
            let why = format!("incidr() needs a network as a string, not {}", other.kind());
            return Err(error(at_net, why));
        }
    };
    Ok(Value::Condition(Condition::InNet(address, net)))
}

fn metadata(at: usize, arguments: Vec<(usize, Value)>) -> Result<Value, ExpressionError> {
    match <[_; 1]>::try_from(arguments) {
        Ok([(_, Value::Text(label))]) => Ok(Value::Text(Text::Metadata(Box::new(label)))),
        _ => Err(error(at, "metadata() needs a label as a string: metadata('kubernetes/client-namespace')")),
    }
}

/// Returns the value of a function without arguments.
fn field(name: &str) -> Option<Value> {
    Some(match name {
        "bufsize" => Value::Number(Number::Bufsize),
        "class" => Value::Text(Text::Class),
        "client_ip" => Value::Text(Text::ClientIp),
        "do" => Value::Condition(Condition::Do),
        "id" => Value::Number(Number::Id),
        "name" => Value::Text(Text::Name),
        "opcode" => Value::Number(Number::Opcode),
        "port" => Value::Text(Text::Port),
        "proto" => Value::Text(Text::Proto),
        "server_ip" => Value::Text(Text::ServerIp),
        "server_port" => Value::Text(Text::ServerPort),
        "size" => Value::Number(Number::Size),
        "type" => Value::Text(Text::Type),
        _ => return None,
    })
}
