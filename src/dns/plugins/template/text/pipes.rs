//! Parses expressions, and infers the types of their values.

use super::functions::check_call;
use super::literal::{number, string};
use super::node::{Command, Function, Pipe, Word};
use super::parse::{Close, Parsed, Parser, SPACE, identifier};
use super::value::ValueKind;

/// The actions and functions of Go that aren't supported.
const UNSUPPORTED: [&str; 13] = [
    "block", "break", "continue", "define", "template", "with", "call", "html", "js", "print", "println",
    "slice", "urlquery",
];

impl Parser<'_> {
    /// Parses a pipe with its end; `most` is the maximum number of variables that it may set.
    pub(super) fn pipe(&mut self, close: Close, most: usize) -> Parsed<Pipe> {
        let (variables, assigns) =
            if close == Close::Braces { self.declaration(most)? } else { Default::default() };
        let mut commands: Vec<Command> = Vec::new();
        loop {
            let (command, last) = self.command(close, !commands.is_empty())?;
            commands.push(command);
            if last {
                break;
            }
        }
        let pipe = Pipe { variables, assigns, commands };
        // `range` sets the types of its variables itself.
        let kind = if most == 1 { self.kind(&pipe) } else { None };
        for name in &pipe.variables {
            if assigns {
                self.set_kind(name, kind, true);
            } else {
                self.variables.push((name.clone(), kind));
            }
        }
        Ok(pipe)
    }

    /// Parses `$x :=`, `$x =`, `$i, $v :=` or `$i, $v =`, if it is next. Returns the variables, and whether the sign is
    /// `=`.
    fn declaration(&mut self, most: usize) -> Parsed<(Vec<String>, bool)> {
        self.skip_space();
        let start = self.at;
        let mut names = Vec::new();
        while self.rest().starts_with('$') {
            let name = format!("${}", identifier(&self.rest()[1..]));
            self.begin = self.at;
            self.at += name.len();
            if self.rest().starts_with('=') {
                break;
            }
            self.skip_space();
            names.push(name);
            if let Some(length) =
                [":=", "="].iter().find(|sign| self.rest().starts_with(**sign)).map(|sign| sign.len())
            {
                self.at += length;
                if names.len() > most {
                    return Err("only range can have two variables".to_owned());
                }
                if let Some(name) = names.iter().find(|name| length == 1 && self.variable(name).is_none()) {
                    return Err(format!("there is no variable {name}"));
                }
                return Ok((names, length == 1));
            }
            if !self.rest().starts_with(',') || names.len() == 2 {
                break;
            }
            self.at += 1;
            self.skip_space();
        }
        self.at = start;
        Ok(Default::default())
    }

    /// Parses a command up to `|` or the end of the pipe, and returns whether it is the last command.
    fn command(&mut self, close: Close, is_piped: bool) -> Parsed<(Command, bool)> {
        let mut words: Vec<Word> = Vec::new();
        let mut begin = self.at;
        let is_last = loop {
            let spaced = self.skip_space();
            // The error of an empty command is reported at its end.
            if words.is_empty() {
                begin = self.at;
            }
            self.begin = begin;
            match close {
                Close::Parenthesis if self.rest().starts_with(')') => {
                    self.at += 1;
                    break true;
                }
                Close::Parenthesis if self.rest().is_empty() || self.rest().starts_with("}}") => {
                    return Err("a ) is missing".to_owned());
                }
                Close::Braces if self.close_after(spaced)? => break true,
                _ => {}
            }
            if self.rest().starts_with('|') {
                self.at += 1;
                break false;
            }
            self.begin = self.at;
            words.push(self.word()?);
            let next = self.rest();
            if !next.is_empty()
                && !next.starts_with(SPACE)
                && !next.starts_with(['|', ')'])
                && !next.starts_with("}}")
            {
                self.begin = self.at;
                return Err(format!("{:?} can't stand here: spaces separate operands", first(next)));
            }
        };
        self.begin = begin;
        let command = Command { words };
        check_call(&command, is_piped)?;
        Ok((command, is_last))
    }

    fn word(&mut self) -> Parsed<Word> {
        let rest = self.rest();
        let after = rest.chars().nth(1);
        match first(rest) {
            '(' => {
                self.at += 1;
                self.nest()?;
                let pipe = self.pipe(Close::Parenthesis, 1)?;
                self.depth -= 1;
                let kind = self.kind(&pipe);
                Ok(Word::Pipe(pipe, self.fields(kind)?))
            }
            '"' | '`' => {
                let (text, length) = string(rest)?;
                self.at += length;
                Ok(Word::Str(text, rest[..length].to_owned()))
            }
            '.' if self.dot == Some(ValueKind::Data) && identifier(&rest[1..]) == "Meta" => {
                Ok(self.meta(Function::Meta))
            }
            '$' if rest.starts_with("$.") && identifier(&rest[2..]) == "Meta" => {
                Ok(self.meta(Function::MetaOfRoot))
            }
            '$' => {
                let name = format!("${}", identifier(&rest[1..]));
                let kind = self.variable(&name).ok_or_else(|| format!("there is no variable {name}"))?;
                self.at += name.len();
                Ok(Word::Variable(name, self.fields(kind)?))
            }
            '.' if after.is_some_and(|c| c.is_alphabetic() || c == '_') => {
                Ok(Word::Field(self.fields(self.dot)?))
            }
            '.' if !after.is_some_and(|c| c.is_ascii_digit()) => {
                self.at += 1;
                Ok(Word::Dot)
            }
            '+' | '-' | '.' | '0'..='9' => {
                let (number, length) = number(rest)?;
                self.at += length;
                Ok(Word::Int(number, rest[..length].to_owned()))
            }
            '\'' => {
                Err("characters in single quotes aren't supported here: write a string or a number"
                    .to_owned())
            }
            c if c.is_alphabetic() || c == '_' => self.named(identifier(rest)),
            c => Err(format!("no expression begins with {c:?}")),
        }
    }

    fn meta(&mut self, function: Function) -> Word {
        self.at += function.name().len();
        (self.uses_labels, self.depends_on_client) = (true, true);
        Word::Function(function)
    }

    fn named(&mut self, name: &str) -> Parsed<Word> {
        let word = match Function::ALL.into_iter().find(|function| function.name() == name) {
            Some(function) => Word::Function(function),
            None if name == "true" || name == "false" => Word::Bool(name == "true"),
            None => {
                let known: Vec<&str> = Function::ALL.into_iter().map(Function::name).collect();
                let known = format!("if, else, range, end, {}", known.join(", "));
                return Err(if UNSUPPORTED.contains(&name) || name == "nil" {
                    format!("Go's {name} isn't supported in templates here; supported are {known}")
                } else {
                    format!("there is no {name:?} in templates; there are {known}")
                });
            }
        };
        self.at += name.len();
        Ok(word)
    }

    /// Parses `.a.b` after a value of type `kind`.
    fn fields(&mut self, mut kind: Option<ValueKind>) -> Parsed<Vec<String>> {
        let mut fields = Vec::new();
        while self.rest().starts_with('.') {
            let name = identifier(&self.rest()[1..]);
            if name.is_empty() {
                return Err("the name of a field has to follow this dot".to_owned());
            }
            // Go reads `.0` as a number.
            if name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(format!(
                    "the name of a field can't begin with a digit: instead of .{name}, write index .Group \"{name}\""
                ));
            }
            // Of the header, `cache` tells questions apart by RD and CD alone.
            self.depends_on_client |= match name {
                "Remote" => matches!(kind, Some(ValueKind::Data) | None),
                "Id" | "Authoritative" | "Truncated" | "RecursionAvailable" | "AuthenticatedData" => {
                    matches!(kind, Some(ValueKind::Message) | None)
                }
                _ => false,
            };
            kind = kind.map(|kind| kind.field(name)).transpose()?;
            self.at += 1 + name.len();
            fields.push(name.to_owned());
        }
        Ok(fields)
    }

    fn variable(&self, name: &str) -> Option<Option<ValueKind>> {
        self.variables.iter().rev().find(|(known, _)| known == name).map(|(_, kind)| *kind)
    }

    /// Sets the type of a variable. After an assignment (`is_assignment`) of another type the type is unknown, because
    /// the branch with the assignment may not be taken.
    pub(super) fn set_kind(&mut self, name: &str, kind: Option<ValueKind>, is_assignment: bool) {
        if let Some((_, known)) = self.variables.iter_mut().rev().find(|(known, _)| known == name) {
            *known = kind.filter(|_| !is_assignment || *known == kind);
        }
    }

    /// Returns the type of a pipe's value, if it is known before the template runs.
    pub(super) fn kind(&self, pipe: &Pipe) -> Option<ValueKind> {
        let words = &pipe.commands.last()?.words;
        let (mut kind, fields): (_, &[String]) = match words.first()? {
            Word::Function(function) => {
                return match function {
                    Function::And | Function::Or | Function::Index => None,
                    Function::Len => Some(ValueKind::Int),
                    Function::ParseInt => Some(ValueKind::Uint),
                    Function::Printf | Function::Meta | Function::MetaOfRoot => Some(ValueKind::Str),
                    _ => Some(ValueKind::Bool),
                };
            }
            Word::Str(..) => return Some(ValueKind::Str),
            Word::Int(..) => return Some(ValueKind::Int),
            Word::Bool(_) => return Some(ValueKind::Bool),
            Word::Dot => return self.dot,
            Word::Field(fields) => (self.dot?, fields),
            Word::Variable(name, fields) => (self.variable(name)??, fields),
            Word::Pipe(inner, fields) => (self.kind(inner)?, fields),
        };
        for field in fields {
            kind = kind.field(field).ok()?;
        }
        Some(kind)
    }
}

fn first(text: &str) -> char {
    text.chars().next().unwrap_or(' ')
}
