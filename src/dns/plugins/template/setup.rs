//! From lines to templates.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::opt::EdnsOption;
use regex::Regex;

use super::NAME;
use super::answer::{Answer, Templates};
use super::numbers::{named_class, named_rcode, named_type};
use super::text;
use crate::dns::corefile::{CorefileError, Line, Word};
use crate::dns::origins::Origins;
use crate::dns::plugins::setup::Setup;

/// As in CoreDNS: a pattern that is longer could cost all the memory.
const MAX_REGEX: usize = 10_000;
/// The number of the option (RFC 8914 section 2).
const EDE: u16 = 15;
const OPTIONS: [&str; 8] =
    ["match", "answer", "authority", "additional", "rcode", "ederror", "fallthrough", "upstream"];

pub(in super::super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let answers = setup.lines.iter().map(|line| answer(setup, line)).collect::<Result<_, _>>()?;
    let metrics = setup.metrics()?;
    setup.add(Templates::new(answers, metrics));
    Ok(())
}

fn answer(setup: &Setup<'_>, line: &Line) -> Result<Answer, CorefileError> {
    let [class, rtype, zones @ ..] = line.arguments() else {
        return Err(line.error("template needs a class and a type, such as IN A, or ANY ANY"));
    };
    let mut answer = Answer {
        zones: setup.zones_or_own(zones)?,
        class: named_class(&class.text).ok_or_else(|| class.isnt("a class such as IN or ANY"))?,
        rtype: named_type(&rtype.text).ok_or_else(|| rtype.isnt("a type such as A or ANY"))?,
        regexes: Vec::new(),
        answers: Vec::new(),
        authorities: Vec::new(),
        additionals: Vec::new(),
        rcode: ResponseCode::NoError,
        ede: None,
        through: None,
    };
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "match" => answer.regexes.extend(all(option, "regular expressions", regex)?),
            "answer" => answer.answers.extend(all(option, "records", template)?),
            "authority" => answer.authorities.extend(all(option, "records", template)?),
            "additional" => answer.additionals.extend(all(option, "records", template)?),
            "rcode" => {
                let word = option.one("a response code such as NXDOMAIN")?;
                let number =
                    named_rcode(&word.text).ok_or_else(|| word.isnt("a response code such as NXDOMAIN"))?;
                answer.rcode =
                    ResponseCode::from(u8::try_from(number >> 4).unwrap_or_default(), number as u8 & 0xf);
            }
            "ederror" => answer.ede = Some(extended_error(option)?),
            "fallthrough" => answer.through = Some(through(option)?),
            "upstream" => {}
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    if answer.regexes.is_empty() {
        answer.regexes.push(Regex::new(".*").map_err(|error| line.error(error.to_string()))?);
    }
    Ok(answer)
}

/// Turns every argument into something; there has to be one.
fn all<T>(
    option: &Line,
    what: &str,
    each: impl Fn(&Word) -> Result<T, CorefileError>,
) -> Result<Vec<T>, CorefileError> {
    if option.arguments().is_empty() {
        return Err(option.error(format!("{} needs one or more {what}", option.name())));
    }
    option.arguments().iter().map(each).collect()
}

fn regex(word: &Word) -> Result<Regex, CorefileError> {
    if word.text.len() > MAX_REGEX {
        return Err(word.error(format!(
            "a regular expression has {MAX_REGEX} bytes at most, and this one {}",
            word.text.len()
        )));
    }
    Regex::new(&word.text).map_err(|error| {
        // The last line says what is wrong; those before it draw a picture.
        let error = error.to_string();
        let why = error.lines().last().unwrap_or_default();
        word.error(format!(
            "{:?} isn't a regular expression: {}",
            word.text,
            why.trim_start_matches("error: ")
        ))
    })
}

fn template(word: &Word) -> Result<text::Template, CorefileError> {
    text::Template::parse(&word.text)
        .map_err(|error| word.error(format!("in the template, at character {}: {}", error.at, error.message)))
}

fn extended_error(option: &Line) -> Result<EdnsOption, CorefileError> {
    let (code, reason) = match option.at_most(2)? {
        [code] => (code, ""),
        [code, reason] => (code, &*reason.text),
        _ => {
            return Err(option
                .error("ederror needs the number of an extended error, such as 15, and may have a reason"));
        }
    };
    let number: u16 = code.parse("the number of an extended error, from 0 to 65535")?;
    Ok(EdnsOption::Unknown(EDE, [&number.to_be_bytes(), reason.as_bytes()].concat()))
}

fn through(option: &Line) -> Result<Origins, CorefileError> {
    let mut zones = Vec::new();
    for word in option.arguments() {
        zones.extend(word.zones()?);
    }
    if zones.is_empty() {
        zones.push(hickory_proto::rr::Name::root());
    }
    Ok(Origins::new(zones))
}
