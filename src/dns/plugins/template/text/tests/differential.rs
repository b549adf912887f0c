//! Compares the results of templates with those of Go's `text/template`, which the program in `tests/go` executes as
//! CoreDNS does: fixed templates for each feature, and generated templates.
//!
//! The seeds are fixed; `LB_LINKER_TEMPLATE_SEED=7 cargo test --lib template::text::tests::differential` runs only the
//! template of another seed.

mod cases;
mod generator;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::dns::plugins::template::text::tests::data;
use crate::dns::plugins::template::text::*;
use generator::Generated;

const SEEDS: std::ops::Range<u64> = 0..5000;

/// The answer of the Go program for a template.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Expected {
    error: String,
    tree: String,
    runs: Option<Vec<Run>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Run {
    error: String,
    text: String,
}

/// The difference from Go for a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Difference {
    /// The template gives the same results here and in Go: texts, or errors.
    None,
    /// As `None`, and the first query fails here and in Go.
    BothFail,
    /// The template is rejected here and by Go.
    BothReject,
    /// The template is rejected with this error here, and Go fails for each query.
    RejectedAtParse(String),
    /// The template is rejected with this error here, and Go executes it for at least one query.
    Rejected(String),
    /// `printf` fails here with this error, and Go writes a text, usually with `%!` and the reason.
    BadVerb(String),
    /// The template fails here with this error for a query, and Go executes it.
    Fails(String),
    Other(String),
}

/// Returns the data of several queries.
fn queries() -> Vec<Data> {
    let groups = |groups: &[(&str, &str)]| {
        groups.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let second = Data {
        zone: ".".to_owned(),
        name: "\\009\\\"x%d.a_b.".to_owned(),
        regex: ".*".to_owned(),
        class: "CH".to_owned(),
        rtype: String::new(),
        matches: vec!["\\009\\\"x%d.a_b.".to_owned()],
        group: groups(&[("0", "\\009\\\"x%d.a_b.")]),
        message: Message {
            id: u16::MAX,
            opcode: 4,
            authoritative: true,
            truncated: true,
            recursion_available: true,
            authentic_data: true,
            checking_disabled: true,
            questions: [QuestionValue { name: "\\009\\\"X%d.a_b.".to_owned(), qtype: 65_280, qclass: 3 }],
            ..Message::default()
        },
        remote: "2001:db8::1".to_owned(),
        labels: None,
    };
    let third = Data {
        rtype: "AAAA".to_owned(),
        matches: ["", "0", "-1", "0x1f", "z"].map(str::to_owned).to_vec(),
        group: groups(&[
            ("0", ""),
            ("1", "0"),
            ("2", "-1"),
            ("3", "0x1f"),
            ("4", "z"),
            ("a", "z"),
            ("AAAA", "k"),
        ]),
        ..data()
    };
    vec![data(), second, third]
}

/// Returns the data of a query for the Go program.
fn json(data: &Data) -> Json {
    let message = &data.message;
    json!({
        "Zone": data.zone, "Name": data.name, "Regex": data.regex, "Class": data.class, "Type": data.rtype,
        "Remote": data.remote, "Match": data.matches, "Group": data.group,
        "Message": {
            "Id": message.id, "Opcode": message.opcode, "Authoritative": message.authoritative,
            "Truncated": message.truncated, "RecursionDesired": message.recursion_desired,
            "RecursionAvailable": message.recursion_available, "AuthenticatedData": message.authentic_data,
            "CheckingDisabled": message.checking_disabled,
            "Question": [{
                "Name": message.questions[0].name, "Qtype": message.questions[0].qtype,
                "Qclass": message.questions[0].qclass,
            }],
        },
    })
}

/// Returns the path of the Go program, which is built if it is missing in the cache folder.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go/build");
        let output = Command::new(script).arg("--env").stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{script} failed, see its message above");
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().find_map(|line| line.strip_prefix("TEMPLATES=")).unwrap().to_owned()
    })
}

/// Executes templates with Go.
fn expected(templates: &[String]) -> Vec<Expected> {
    let program = program();
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The program reads its whole input before it writes.
    let input = json!({ "Templates": templates, "Queries": queries().iter().map(json).collect::<Vec<_>>() });
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} failed, see its message above");
    let expected: Vec<Expected> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(expected.len(), templates.len());
    expected
}

fn difference(text: &str, expected: &Expected) -> Difference {
    let runs = expected.runs.as_deref().unwrap_or_default();
    let template = match Template::parse(text) {
        Err(_) if !expected.error.is_empty() => return Difference::BothReject,
        Err(error) if runs.iter().all(|run| !run.error.is_empty()) => {
            return Difference::RejectedAtParse(error.message);
        }
        Err(error) => return Difference::Rejected(error.message),
        Ok(_) if !expected.error.is_empty() => {
            return Difference::Other(format!("accepted, and Go rejects it: {}", expected.error));
        }
        Ok(template) => template,
    };
    if template.to_string() != expected.tree {
        return Difference::Other(format!("normalized {template}, and by Go {}", expected.tree));
    }
    let mut found = if runs[0].error.is_empty() { Difference::None } else { Difference::BothFail };
    for (query, run) in queries().iter().zip(runs) {
        match template.run(query) {
            Err(_) if !run.error.is_empty() => {}
            Err(error) if error.contains("error calling printf: ") => found = Difference::BadVerb(error),
            Err(error) => return Difference::Fails(error),
            Ok(text) if !run.error.is_empty() => {
                return Difference::Other(format!("writes {text:?}, and Go fails: {}", run.error));
            }
            Ok(text) if text != run.text => {
                return Difference::Other(format!("writes {text:?}, and Go {:?}", run.text));
            }
            Ok(_) => {}
        }
    }
    found
}

/// Returns the difference of each template.
fn differences(templates: Vec<String>) -> Vec<(String, Difference)> {
    let expected = expected(&templates);
    let found = templates
        .iter()
        .zip(&expected)
        .map(|(text, expected)| difference(text, expected))
        .collect::<Vec<_>>();
    templates.into_iter().zip(found).collect()
}

/// Checks that the difference of each template is expected.
fn check(templates: &[&str], is_expected: impl Fn(&Difference) -> bool) {
    let templates = templates.iter().map(|text| (*text).to_owned()).collect();
    let wrong: Vec<_> = differences(templates).into_iter().filter(|(_, found)| !is_expected(found)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn supported_templates_run_as_in_go() {
    check(cases::SUPPORTED, |found| *found == Difference::None);
}

#[test]
fn invalid_templates_are_rejected_as_by_go() {
    check(cases::INVALID, |found| *found == Difference::BothReject);
}

#[test]
fn templates_fail_as_in_go() {
    check(cases::FAILING, |found| *found == Difference::BothFail);
}

#[test]
fn parser_reports_errors_that_go_reports_for_each_query() {
    check(cases::REJECTED_AT_PARSE, |found| matches!(found, Difference::RejectedAtParse(_)));
}

#[test]
fn value_that_does_not_fit_its_verb_is_an_error() {
    check(cases::BAD_VERBS, |found| matches!(found, Difference::BadVerb(_)));
}

#[test]
fn error_for_an_unsupported_template_names_the_part() {
    let templates = cases::REJECTED.iter().map(|(text, _)| (*text).to_owned()).collect();
    for ((text, found), (_, part)) in differences(templates).into_iter().zip(cases::REJECTED) {
        let Difference::Rejected(error) = &found else { panic!("{text}: {found:?}") };
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn unsupported_values_fail_with_the_reason() {
    let templates = cases::UNSUPPORTED_VALUES.iter().map(|(text, _)| (*text).to_owned()).collect();
    for ((text, found), (_, part)) in differences(templates).into_iter().zip(cases::UNSUPPORTED_VALUES) {
        let (Difference::Fails(error) | Difference::BadVerb(error)) = &found else {
            panic!("{text}: {found:?}")
        };
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// Returns whether a difference of a generated template is one of the documented differences.
fn is_documented(generated: &Generated, found: &Difference) -> bool {
    // Errors about types, in expressions that Go supports, or doesn't execute for each query.
    let of_types = ["can't be written", "the format of this printf is for", "range goes over"];
    let of_features = ["supported", "isn't a number here"];
    let of_mutations = [
        "has no field",
        " takes ",
        "can't be given an argument",
        "as an argument it stands in parentheses",
        "an expression is missing",
        "a verb has to follow",
        "spaces separate operands",
        "there is no variable",
    ];
    let has = |error: &str, parts: &[&str]| parts.iter().any(|part| error.contains(part));
    match found {
        Difference::None | Difference::BothFail | Difference::BothReject | Difference::RejectedAtParse(_) => {
            true
        }
        Difference::BadVerb(error) => has(error, &["isn't for", "the format is for"]),
        // The type of the value is known only when the template runs.
        Difference::Fails(error) => has(error, &["can't be written", "range can't go over an"]),
        Difference::Rejected(error) => {
            has(error, &of_types)
                || (generated.is_wide || generated.is_mutated) && has(error, &of_features)
                || generated.is_mutated && has(error, &of_mutations)
        }
        Difference::Other(_) => false,
    }
}

#[test]
fn generated_templates_run_as_in_go() {
    let seed = std::env::var("LB_LINKER_TEMPLATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or(SEEDS, |seed| seed..seed + 1);
    let generated: Vec<Generated> = seeds.clone().map(generator::template).collect();
    let found = differences(generated.iter().map(|generated| generated.text.clone()).collect());
    let mut same = 0;
    for ((seed, generated), (text, found)) in seeds.zip(&generated).zip(&found) {
        assert!(is_documented(generated, found), "LB_LINKER_TEMPLATE_SEED={seed} {text:?}: {found:?}");
        same += usize::from(*found == Difference::None);
    }
    assert!(
        seed.is_some() || same * 3 > found.len(),
        "only {same} of {} templates are the same",
        found.len()
    );
}
