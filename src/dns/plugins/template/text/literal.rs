//! Parses strings and numbers in Go's syntax.

/// Parses a string literal at the start of `text`. Returns the string, and the length of the literal in bytes, with its
/// quotes.
///
/// # Errors
/// Fails if the string isn't closed, or has an unknown escape.
pub(super) fn string(text: &str) -> Result<(String, usize), String> {
    const OPEN: &str = "this string isn't closed";
    if let Some(raw) = text.strip_prefix('`') {
        let end = raw.find('`').ok_or(OPEN)?;
        return Ok((raw[..end].to_owned(), end + 2));
    }
    let mut string = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((string, at + 1)),
            '\n' => return Err(OPEN.to_owned()),
            '\\' => string.push(match chars.next() {
                Some((_, c @ ('\\' | '"'))) => c,
                Some((_, 'n')) => '\n',
                Some((_, 'r')) => '\r',
                Some((_, 't')) => '\t',
                Some((_, other)) => {
                    return Err(format!(
                        "the escape \\{other} isn't supported in strings here; supported are \\\\, \\\", \\n, \\r and \\t"
                    ));
                }
                None => return Err(OPEN.to_owned()),
            }),
            c => string.push(c),
        }
    }
    Err(OPEN.to_owned())
}

/// Parses a number with an optional sign at the start of `text`. Returns the number, and the length of the literal in
/// bytes.
///
/// # Errors
/// Fails if the literal isn't a decimal or hexadecimal integer of 64 bits.
pub(super) fn number(text: &str) -> Result<(i64, usize), String> {
    let sign = usize::from(text.starts_with(['+', '-']));
    let rest = &text[sign..];
    let length =
        sign + rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
    let written = &text[..length];
    let wrong = || {
        format!(
            "{written:?} isn't a number here: numbers are integers, in decimal digits or, after 0x, hexadecimal digits"
        )
    };
    let digits = &written[sign..];
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        // Go would parse an octal number.
        None if digits.len() > 1 && digits.starts_with('0') => return Err(wrong()),
        None => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return Err(wrong());
    }
    let signed = format!("{}{digits}", if written.starts_with('-') { "-" } else { "" });
    let number = i64::from_str_radix(&signed, radix).map_err(|_| wrong())?;
    Ok((number, length))
}
