//! The ranges and texts of `$GENERATE`, as in BIND 9.

use crate::dns::zone::word::Word;

/// The maximum number of texts.
const MAX_TEXTS: u64 = 65_536;

/// `START-STOP[/STEP]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
}

/// What a `$` stands for: `${OFFSET,WIDTH,BASE}`.
#[derive(Clone, Copy, Debug)]
struct Modifier {
    offset: i64,
    width: usize,
    base: char,
}

/// Returns the words after the range as a text, with their quotes.
pub(super) fn template(words: &[Word<'_>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (number, word) in words.iter().enumerate() {
        if number > 0 && !word.is_joined {
            text.push(b' ');
        }
        let quote: &[u8] = if word.is_quoted { b"\"" } else { b"" };
        text.extend([quote, word.text, quote].concat());
    }
    text
}

impl Range {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no range such as 1-254 or 0-100/2");
        let (range, step) = text.split_once('/').unwrap_or((text, "1"));
        let (start, stop) = range.split_once('-').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map(i64::from).map_err(|_| wrong());
        let range = Self { start: number(start)?, stop: number(stop)?, step: number(step)? };
        if range.step == 0 || range.stop < range.start {
            return Err(wrong());
        }
        if (range.stop - range.start) / range.step >= MAX_TEXTS.cast_signed() {
            return Err(format!("the range {text} makes more than {MAX_TEXTS} records"));
        }
        Ok(range)
    }

    pub(super) fn numbers(self) -> impl Iterator<Item = i64> {
        (0..).map(move |count| self.start + count * self.step).take_while(move |number| *number <= self.stop)
    }

    /// Returns the template with a number in place of each `$`. `\$` and `$$` stand for a dollar sign.
    pub(super) fn expand(self, template: &[u8], number: i64) -> Result<Vec<u8>, String> {
        let mut text = Vec::with_capacity(template.len() + 8);
        let mut rest = template;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            match (byte, rest) {
                (b'\\', [b'$', after @ ..]) | (b'$', [b'$', after @ ..]) => {
                    text.push(b'$');
                    rest = after;
                }
                (b'\\', [escaped, after @ ..]) => {
                    text.extend([b'\\', *escaped]);
                    rest = after;
                }
                (b'$', [b'{', after @ ..]) => {
                    let end = after.iter().position(|byte| *byte == b'}').ok_or("a { isn't closed")?;
                    let modifier = Modifier::parse(&String::from_utf8_lossy(&after[..end]))?;
                    text.extend(modifier.format(number)?.bytes());
                    rest = &after[end + 1..];
                }
                (b'$', _) => text.extend(number.to_string().bytes()),
                _ => text.push(*byte),
            }
        }
        Ok(text)
    }
}

impl Modifier {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} isn't OFFSET,WIDTH,BASE, with a base of d, o, x or X");
        let mut parts = text.split(',');
        let offset = parts.next().and_then(|offset| offset.parse::<i32>().ok()).ok_or_else(wrong)?;
        let width: u8 = parts.next().unwrap_or("0").parse().map_err(|_| wrong())?;
        let base = parts.next().unwrap_or("d");
        let base = base.chars().next().filter(|_| matches!(base, "d" | "o" | "x" | "X"));
        match (base, parts.next()) {
            (Some(base), None) => Ok(Self { offset: offset.into(), width: width.into(), base }),
            _ => Err(wrong()),
        }
    }

    fn format(self, number: i64) -> Result<String, String> {
        let (number, width) = (number + self.offset, self.width);
        if !(0..=i64::from(i32::MAX)).contains(&number) {
            return Err(format!("the offset makes it {number}, which isn't from 0 to {}", i32::MAX));
        }
        Ok(match self.base {
            'o' => format!("{number:0width$o}"),
            'x' => format!("{number:0width$x}"),
            'X' => format!("{number:0width$X}"),
            _ => format!("{number:0width$}"),
        })
    }
}
