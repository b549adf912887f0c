//! Locations (RFC 1876).

use crate::dns::zone::word::Word;

/// The coordinates of the equator, of the prime meridian, and of sea level.
const ORIGIN: i64 = 1 << 31;
const SEA_LEVEL: i64 = 10_000_000;
/// The size, and the horizontal and vertical precision, without words for them: 1 m, 10 km and 10 m.
const DEFAULTS: [u8; 3] = [0x12, 0x16, 0x13];

/// Parses `D [M [S]] N|S D [M [S]] E|W ALTITUDE [SIZE [HORIZONTAL [VERTICAL]]]`.
pub(super) fn parse(words: &[Word<'_>]) -> Result<Vec<u8>, String> {
    let mut words = words.iter();
    let latitude = coordinate(&mut words, 90, ["N", "S"])?;
    let longitude = coordinate(&mut words, 180, ["E", "W"])?;
    let altitude = words.next().ok_or("the altitude is missing")?;
    let altitude = centimeters(altitude.str())
        .and_then(|height| u32::try_from(SEA_LEVEL.checked_add(height)?).ok())
        .ok_or_else(|| format!("{} is no altitude in meters", altitude.shown()))?;
    let mut sizes = DEFAULTS;
    for (size, word) in sizes.iter_mut().zip(words.by_ref()) {
        *size = precision(word.str()).ok_or_else(|| format!("{} is no size in meters", word.shown()))?;
    }
    if let Some(word) = words.next() {
        return Err(format!("{} is too much", word.shown()));
    }
    let [size, horizontal, vertical] = sizes;
    let numbers = [latitude, longitude, altitude].map(u32::to_be_bytes);
    Ok([&[0, size, horizontal, vertical], numbers.as_flattened()].concat())
}

/// Parses degrees, minutes, seconds and a direction, to thousandths of a second.
fn coordinate<'a>(
    words: &mut impl Iterator<Item = &'a Word<'a>>,
    max: i64,
    [positive, negative]: [&str; 2],
) -> Result<u32, String> {
    let mut total = 0;
    for unit in [3_600_000, 60_000, 1000, 0] {
        let word = words.next().ok_or_else(|| format!("{positive} or {negative} is missing"))?;
        let direction = word.str();
        let sign = if direction.eq_ignore_ascii_case(positive) {
            1
        } else if direction.eq_ignore_ascii_case(negative) {
            -1
        } else {
            let part = if unit == 1000 {
                thousandths(direction)
            } else {
                word.number::<u32>().and_then(|number| i64::from(number).checked_mul(unit))
            };
            total += part.filter(|_| unit > 0).ok_or_else(|| {
                format!("{} is neither a part of a coordinate nor {positive} or {negative}", word.shown())
            })?;
            continue;
        };
        return u32::try_from(ORIGIN + sign * total)
            .ok()
            .filter(|_| unit < 3_600_000 && total <= max * 3_600_000)
            .ok_or_else(|| format!("a coordinate has at most {max} degrees"));
    }
    Err(format!("{positive} or {negative} is missing"))
}

fn thousandths(text: &str) -> Option<i64> {
    decimal(text, 3).filter(|number| *number < 60_000)
}

/// Parses meters with or without a unit, to centimeters.
fn centimeters(text: &str) -> Option<i64> {
    let text = text.strip_suffix(['m', 'M']).unwrap_or(text);
    match text.strip_prefix('-') {
        Some(depth) => decimal(depth, 2).map(|number| -number),
        None => decimal(text, 2),
    }
}

/// Parses a size to a digit and a power of ten, in centimeters (RFC 1876 section 2).
fn precision(text: &str) -> Option<u8> {
    let mut size = centimeters(text).filter(|size| (0..=9_000_000_000).contains(size))?;
    let mut exponent = 0;
    while size >= 10 {
        (size, exponent) = (size / 10, exponent + 1);
    }
    Some(u8::try_from(size).ok()? << 4 | exponent)
}

/// Parses a decimal number with at most `places` digits after the point, to an integer of the last place.
fn decimal(text: &str, places: usize) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{part:0<places$}");
    let is_well_formed = part.len() <= places && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_well_formed.then(|| digits.parse().ok())?
}
