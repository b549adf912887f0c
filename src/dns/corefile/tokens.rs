//! Splits text into tokens by CoreDNS's rules.

use std::path::Path;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The text, without the quotes around it.
    pub text: String,
    pub position: Position,
    /// Whether there are quotes around it; its position is that of the first quote.
    pub is_quoted: bool,
    /// The last line of the token; a quoted token may span several lines.
    pub(super) last_line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The path of the file as given.
    pub file: Arc<Path>,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Token {
    /// Returns whether this token begins a new line after the token `before`.
    pub(super) fn begins_new_line_after(&self, before: &Self) -> bool {
        self.position.file != before.position.file || self.position.line != before.last_line
    }
}

/// Splits a file into tokens. White space separates tokens that aren't quoted; in quotes, only a quote can be escaped.
/// A `#`, even inside an unquoted token, begins a comment that extends to the end of the line.
#[must_use]
pub fn tokenize(file: &Arc<Path>, text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut token: Option<Token> = None;
    let (mut quoted, mut escaped, mut comment) = (false, false, false);
    let (mut line, mut column) = (1, 0);
    for c in text.strip_prefix('\u{feff}').unwrap_or(text).chars() {
        column += 1;
        let place = || Position { file: Arc::clone(file), line, column };
        let start = |is_quoted| Token { text: String::new(), position: place(), is_quoted, last_line: line };
        if quoted {
            let quote = token.get_or_insert_with(|| start(true));
            match c {
                '\\' if !escaped => escaped = true,
                '"' if !escaped => {
                    quoted = false;
                    quote.last_line = line;
                    tokens.extend(token.take());
                }
                c => {
                    if escaped && c != '"' {
                        quote.text.push('\\');
                    }
                    quote.text.push(c);
                    escaped = false;
                }
            }
        } else if c.is_whitespace() {
            comment &= c != '\n';
            // As in CoreDNS, a carriage return is ignored, and doesn't end a token.
            if c != '\r' {
                tokens.extend(token.take());
            }
        } else if comment || c == '#' {
            comment = true;
        } else if c == '"' && token.is_none() {
            quoted = true;
            token = Some(start(true));
        } else {
            token.get_or_insert_with(|| start(false)).text.push(c);
        }
        if c == '\n' {
            (line, column) = (line + 1, 0);
        }
    }
    // As in CoreDNS, a quote that isn't closed becomes a token that ends with the file.
    tokens.extend(token.filter(|token| !token.text.is_empty()));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(String, usize, usize)> {
        let file: Arc<Path> = Path::new("Corefile").into();
        tokenize(&file, text)
            .into_iter()
            .map(|token| (token.text, token.position.line, token.position.column))
            .collect()
    }

    #[test]
    fn white_space_separates_tokens_with_positions() {
        let expected = [("a", 1, 1), ("bc", 1, 3), ("d", 2, 2), ("é{", 2, 4), ("}", 3, 1)];
        let found = split("a bc\r\n\td é{\n}\n");
        let found: Vec<_> = found.iter().map(|(text, line, column)| (&**text, *line, *column)).collect();
        assert_eq!(found, expected);
        assert_eq!(split("\u{feff}a"), [("a".to_owned(), 1, 1)]);
        assert!(split("").is_empty() && split(" \n# all of it\n").is_empty());
    }

    #[test]
    fn quotes_group_words_and_comments_are_ignored() {
        for (text, expected) in [
            ("\"a b\" c", &["a b", "c"][..]),
            ("a\"b c\"", &["a\"b", "c\""]),
            (r#""a \"b\" \n""#, &[r#"a "b" \n"#]),
            ("\"\" a", &["", "a"]),
            ("\"a\nb\" c", &["a\nb", "c"]),
            ("a # b \" c\nd", &["a", "d"]),
            ("a#b c\nd", &["a", "d"]),
            ("\"a # b\"", &["a # b"]),
            ("\"never closed", &["never closed"]),
        ] {
            let found = split(text);
            let found: Vec<&str> = found.iter().map(|(text, ..)| &**text).collect();
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn multi_line_token_ends_on_its_last_line() {
        let file: Arc<Path> = Path::new("Corefile").into();
        let tokens = tokenize(&file, "\"a\nb\" c\nd");
        assert!(!tokens[1].begins_new_line_after(&tokens[0]));
        assert!(tokens[2].begins_new_line_after(&tokens[1]));
    }
}
