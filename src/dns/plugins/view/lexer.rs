//! Splits an expression into words.

use super::ExpressionError;

/// The operators and brackets; of several with the same beginning, the longest first.
const SIGNS: [&str; 17] =
    ["==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "(", ")", "[", "]", ",", "?.", "??", "?"];
const OPERATORS: &str = "== != < > <= >= && || ! in matches contains startsWith endsWith and ?:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A function, a constant, or an operator that is a word.
    Name(String),
    Text(String),
    Number(i64),
    Sign(&'static str),
    End,
}

/// Returns the words with their places, the end of the text as the last one.
pub(super) fn words(text: &str) -> Result<Vec<(usize, Word)>, ExpressionError> {
    let mut lexer = Lexer { characters: text.chars().collect(), at: 0 };
    let mut words = Vec::new();
    loop {
        let word = lexer.word()?;
        let is_end = word.1 == Word::End;
        words.push(word);
        if is_end {
            return Ok(words);
        }
    }
}

/// Returns the error about a part of the language that isn't in this subset of it.
pub(super) fn unsupported(at: usize, what: &str) -> ExpressionError {
    ExpressionError {
        at,
        message: format!("{what} isn't supported in an expression; the operators are {OPERATORS}"),
    }
}

struct Lexer {
    characters: Vec<char>,
    at: usize,
}

impl Lexer {
    fn word(&mut self) -> Result<(usize, Word), ExpressionError> {
        self.take_while(char::is_whitespace);
        let at = self.at;
        let Some(first) = self.peek() else { return Ok((at, Word::End)) };
        let word = match first {
            '\'' | '"' => self.quoted(first)?,
            '`' => self.raw()?,
            '0'..='9' => self.number()?,
            _ if is_of_name(first) => Word::Name(self.take_while(is_of_name)),
            _ => self.sign()?,
        };
        Ok((at, word))
    }

    fn sign(&mut self) -> Result<Word, ExpressionError> {
        let rest: String = self.characters[self.at..].iter().take(2).collect();
        let error = |what: &str| Err(unsupported(self.at, what));
        match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            Some("?." | "??") => error(&format!("{rest:?}")),
            Some(sign) => {
                self.at += sign.len();
                Ok(Word::Sign(sign))
            }
            None if rest == "//" || rest == "/*" => error("a comment"),
            None if rest.starts_with(':') && rest != "::" => {
                self.at += 1;
                Ok(Word::Sign(":"))
            }
            None => error(&format!("{:?}", &rest[..rest.chars().next().map_or(0, char::len_utf8)])),
        }
    }

    fn number(&mut self) -> Result<Word, ExpressionError> {
        let at = self.at;
        let text = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        if self.peek() == Some('.') {
            return Err(unsupported(at, "a number with a point (an address stands in single quotes)"));
        }
        let digits = text.replace('_', "").to_ascii_lowercase();
        let (digits, radix) = match digits.get(..2) {
            Some("0x") => (&digits[2..], 16),
            Some("0o") => (&digits[2..], 8),
            Some("0b") => (&digits[2..], 2),
            _ => (&*digits, 10),
        };
        // The parser of integers would also accept a sign.
        let number = i64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with(['+', '-']));
        number.map(Word::Number).ok_or_else(|| ExpressionError {
            at,
            message: format!("{text:?} isn't a whole number up to {}", i64::MAX),
        })
    }

    fn quoted(&mut self, quote: char) -> Result<Word, ExpressionError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some(c) if c == quote => return Ok(Word::Text(text)),
                Some('\\') => text.push(self.escaped(quote)?),
                Some(c) if c != '\n' => text.push(c),
                _ => return Err(Self::unclosed(start, quote)),
            }
        }
    }

    /// Reads what follows a backslash.
    fn escaped(&mut self, quote: char) -> Result<char, ExpressionError> {
        let at = self.at - 1;
        let wrong = || ExpressionError {
            at,
            message:
                "this isn't an escape such as \\\\, \\n, \\x41 or \\u00e9; a backslash is written as \\\\"
                    .to_owned(),
        };
        let (number, digits) = match self.next() {
            Some('a') => return Ok('\u{7}'),
            Some('b') => return Ok('\u{8}'),
            Some('f') => return Ok('\u{c}'),
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('v') => return Ok('\u{b}'),
            Some('\\') => return Ok('\\'),
            Some(c) if c == quote => return Ok(c),
            Some(c @ '0'..='3') => (c.to_digit(8).unwrap_or_default(), Some((2, 8))),
            Some('x') => (0, Some((2, 16))),
            Some('u') if self.peek() == Some('{') => (0, None),
            Some('u') => (0, Some((4, 16))),
            Some('U') => (0, Some((8, 16))),
            _ => return Err(wrong()),
        };
        let number = match digits {
            Some((digits, radix)) => self.digits(number, digits, radix),
            None => self.in_braces(),
        };
        // Go has a character for surrogates, too.
        let character = |number| match number {
            0xd800..=0xdfff => Some(char::REPLACEMENT_CHARACTER),
            _ => char::from_u32(number),
        };
        number.and_then(character).ok_or_else(wrong)
    }

    /// Reads this many digits behind the digits that make `first`.
    fn digits(&mut self, first: u32, number: u32, radix: u32) -> Option<u32> {
        (0..number)
            .try_fold(first, |value, _| value.checked_mul(radix)?.checked_add(self.next()?.to_digit(radix)?))
    }

    /// Reads up to six hexadecimal digits in braces.
    fn in_braces(&mut self) -> Option<u32> {
        self.at += 1;
        let digits = self.take_while(|c| c.is_ascii_hexdigit());
        let is_closed = self.next() == Some('}');
        if is_closed && digits.len() <= 6 { u32::from_str_radix(&digits, 16).ok() } else { None }
    }

    /// Reads a text without escapes, in which two quotes stand for one.
    fn raw(&mut self) -> Result<Word, ExpressionError> {
        const QUOTE: char = '`';
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some(QUOTE) if self.peek() == Some(QUOTE) => {
                    self.at += 1;
                    text.push(QUOTE);
                }
                Some(QUOTE) => return Ok(Word::Text(text)),
                Some(c) => text.push(c),
                None => return Err(Self::unclosed(start, QUOTE)),
            }
        }
    }

    fn unclosed(at: usize, quote: char) -> ExpressionError {
        ExpressionError { at, message: format!("this string has no {quote} at its end") }
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += 1;
        Some(next)
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let part: String = self.characters[self.at..].iter().copied().take_while(|c| is_part(*c)).collect();
        self.at += part.chars().count();
        part
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}
