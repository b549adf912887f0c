//! Parses the lines of `template`.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::opt::EdnsOption;
use regex::Regex;

use super::NAME;
use super::answer::{AnswerTemplate, Templates};
use super::text;
use crate::dns::corefile::arguments::{MAX_REGEX, regex_error_text, zones_or_all};
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::presentation::{parse_class, parse_rcode, parse_type};
use crate::dns::plugins::setup::Setup;

const OPTIONS: [&str; 8] =
    ["match", "answer", "authority", "additional", "rcode", "ederror", "fallthrough", "upstream"];

pub(crate) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let answers: Vec<AnswerTemplate> =
        setup.lines.iter().map(|line| answer(setup, line)).collect::<Result<_, _>>()?;
    let labeled =
        answers.iter().zip(setup.lines).find(|(answer, _)| answer.has(|template| template.uses_labels));
    if let (Some((_, line)), []) = (labeled, setup.builder.labeled.all()) {
        let warning = line.error(".Meta has no effect here: the block has no metadata");
        setup.builder.warnings.push(warning);
    }
    let metrics = setup.metrics()?;
    setup.add_reusable(Templates::new(answers, metrics));
    Ok(())
}

fn answer(setup: &Setup<'_>, line: &Directive) -> Result<AnswerTemplate, CorefileError> {
    let [class, rtype, zones @ ..] = line.arguments() else {
        return Err(line.missing_argument("a class and a type, such as IN A, or ANY ANY"));
    };
    let mut answer = AnswerTemplate {
        zones: setup.zones_or_own(zones)?,
        class: parse_class(&class.text).ok_or_else(|| class.unexpected("a class such as IN or ANY"))?,
        rtype: parse_type(&rtype.text).ok_or_else(|| rtype.unexpected("a type such as A or ANY"))?,
        regexes: Vec::new(),
        answers: Vec::new(),
        authorities: Vec::new(),
        additionals: Vec::new(),
        rcode: ResponseCode::NoError,
        ede: None,
        fallthrough_zones: None,
    };
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "match" => answer.regexes.extend(all(option, "regular expressions", regex)?),
            "answer" => answer.answers.extend(all(option, "records", template)?),
            "authority" => answer.authorities.extend(all(option, "records", template)?),
            "additional" => answer.additionals.extend(all(option, "records", template)?),
            "rcode" => {
                let word = option.single_argument("a response code such as NXDOMAIN")?;
                answer.rcode = parse_rcode(&word.text)
                    .ok_or_else(|| word.unexpected("a response code such as NXDOMAIN"))?;
            }
            "ederror" => answer.ede = Some(extended_error(option)?),
            "fallthrough" => answer.fallthrough_zones = Some(zones_or_all(option.arguments())?),
            "upstream" => {}
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    if answer.regexes.is_empty() {
        answer.regexes.push(Regex::new(".*").map_err(|error| line.error(error.to_string()))?);
    }
    Ok(answer)
}

/// Converts every argument; there has to be at least one.
fn all<T>(
    option: &Directive,
    what: &str,
    each: impl Fn(&Token) -> Result<T, CorefileError>,
) -> Result<Vec<T>, CorefileError> {
    option.required_arguments(&format!("one or more {what}"))?.iter().map(each).collect()
}

fn regex(word: &Token) -> Result<Regex, CorefileError> {
    if word.text.len() > MAX_REGEX {
        return Err(word.error(format!(
            "a regular expression has {MAX_REGEX} bytes at most, and this one {}",
            word.text.len()
        )));
    }
    Regex::new(&word.text).map_err(|error| {
        word.error(format!("{:?} isn't a regular expression: {}", word.text, regex_error_text(&error)))
    })
}

fn template(word: &Token) -> Result<text::Template, CorefileError> {
    text::Template::parse(&word.text)
        .map_err(|error| word.error(format!("in the template, at character {}: {}", error.at, error.message)))
}

fn extended_error(option: &Directive) -> Result<EdnsOption, CorefileError> {
    let (code, reason) = match option.at_most(2)? {
        [code] => (code, ""),
        [code, reason] => (code, &*reason.text),
        _ => {
            return Err(
                option.missing_argument("the number of an extended error, such as 15, and may have a reason")
            );
        }
    };
    let number = code.parse("the number of an extended error, from 0 to 65535")?;
    Ok(crate::dns::message::ede::extended_error(number, reason))
}
