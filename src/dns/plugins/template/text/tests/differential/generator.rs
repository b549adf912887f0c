//! Generates templates: most are valid, some have expressions of wrong types, and some are mutated.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Str,
    Int,
    Uint,
    Bool,
    List,
    Map,
    Questions,
    Question,
}

const KINDS: [Kind; 8] =
    [Kind::Str, Kind::Int, Kind::Uint, Kind::Bool, Kind::List, Kind::Map, Kind::Questions, Kind::Question];
/// Kinds with values that can be written.
const PLAIN: [Kind; 6] = [Kind::Str, Kind::Int, Kind::Uint, Kind::Bool, Kind::List, Kind::Map];

const TEXTS: [&str; 12] =
    [" ", "a", " IN A ", "192.0.2.1", "\n", "\t x \r\n", "}}", "{", "\"", "é \u{a0}", "- ", " -"];
const STRINGS: [&str; 12] = [
    "\"\"",
    "\"a\"",
    "\"10\"",
    "\"0x1f\"",
    "\"-7\"",
    "\"\\\"q\\\\\"",
    "\"\\n\\t\"",
    "`raw\\n`",
    "`\"`",
    "\"é\"",
    "\"{{ }}\"",
    "\"%d\"",
];
const FIELDS: [&str; 10] = [
    "$.Name",
    "$.Zone",
    "$.Type",
    "$.Class",
    "$.Remote",
    "$.Regex",
    "$.Question.Name",
    "$.Group.a",
    "$.Group.none",
    "$.Group.e",
];
const INTEGERS: [&str; 12] =
    ["0", "1", "2", "-1", "+3", "10", "0x1F", "0XA", "255", "65536", "-9223372036854775808", "4294967296"];
const UNSIGNED: [&str; 4] =
    ["$.Question.Qtype", "$.Message.Id", "(index $.Message.Question 0).Qclass", "$.Question.Qclass"];
const BOOLS: [&str; 5] =
    ["true", "false", "$.Message.RecursionDesired", "$.Message.Response", "$.Message.Truncated"];
/// The texts that a mutation inserts.
const TOKENS: [&str; 40] = [
    "{{",
    "}}",
    "{{- ",
    " -}}",
    "|",
    "(",
    ")",
    "$x",
    "$",
    ".",
    "..",
    "\"",
    "`",
    "'",
    "\\",
    " end ",
    "else",
    " if ",
    " range ",
    ":=",
    "=",
    ",",
    "1",
    "0x",
    "_",
    "nil",
    " ",
    "\n",
    "/*",
    "*/",
    "printf ",
    "index ",
    "é",
    "%",
    "true",
    ".Name",
    ".Nome",
    "{{ end }}",
    "{{ else }}",
    "-",
];

#[derive(Debug)]
pub(super) struct Generated {
    pub(super) text: String,
    /// Whether the template may have features of Go that aren't supported here.
    pub(super) is_wide: bool,
    /// Whether characters were removed, repeated or inserted.
    pub(super) is_mutated: bool,
}

struct Generator {
    random: StdRng,
    is_wide: bool,
    /// The variables in scope, with their types.
    variables: Vec<(String, Kind)>,
    /// The number of ranges around the current node.
    ranges: usize,
    /// The number of templates that were defined.
    definitions: usize,
}

/// Returns the template of a seed.
pub(super) fn template(seed: u64) -> Generated {
    let random = StdRng::seed_from_u64(seed);
    let mut generator =
        Generator { random, is_wide: false, variables: Vec::new(), ranges: 0, definitions: 0 };
    generator.is_wide = generator.odds(5);
    let text = generator.list(3);
    let is_mutated = generator.odds(4);
    let text = if is_mutated { generator.mutated(&text) } else { text };
    Generated { text, is_wide: generator.is_wide, is_mutated }
}

impl Generator {
    /// Returns true with a probability of 1 in `number`.
    fn odds(&mut self, number: u32) -> bool {
        self.random.random_range(0..number) == 0
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        *list.choose(&mut self.random).unwrap()
    }

    fn mutated(&mut self, text: &str) -> String {
        let mut chars: Vec<char> = text.chars().collect();
        for _ in 0..self.random.random_range(1..4) {
            let at = self.random.random_range(0..=chars.len());
            let end = (at + self.random.random_range(0..4)).min(chars.len());
            match self.random.random_range(0..4) {
                0 => drop(chars.drain(at..end)),
                1 => {
                    let copy = chars[at..end].to_vec();
                    chars.splice(at..at, copy);
                }
                _ => {
                    let token = self.pick(&TOKENS);
                    chars.splice(at..at, token.chars());
                }
            }
        }
        chars.into_iter().collect()
    }

    fn list(&mut self, depth: usize) -> String {
        (0..self.random.random_range(1..4)).map(|_| self.node(depth)).collect()
    }

    /// Returns an action with its braces.
    fn braces(&mut self, inner: &str) -> String {
        let open = self.pick(&["{{", "{{ ", "{{ ", "{{- ", "{{\n"]);
        let close = self.pick(&["}}", " }}", " }}", " -}}", "\t}}"]);
        format!("{open}{inner}{close}")
    }

    fn node(&mut self, depth: usize) -> String {
        let kind = self.pick(&PLAIN);
        match self.random.random_range(0..if self.is_wide { 17 } else { 12 }) {
            0..=2 => self.pick(&TEXTS).to_owned(),
            3..=5 => {
                let inner = self.pipe(kind, depth);
                self.braces(&inner)
            }
            6 => self.pick(&["{{/* a */}}", "{{- /* }} */ -}}", "{{/**/ -}}", "{{- /* a\n */}}"]).to_owned(),
            7 => {
                let (name, kind) = (self.pick(&["$x", "$y", "$long_1"]).to_owned(), self.pick(&KINDS));
                let inner = format!("{name} := {}", self.pipe(kind, depth));
                self.variables.push((name, kind));
                self.braces(&inner)
            }
            8 if !self.variables.is_empty() => {
                let (name, kind) = self.variables[self.random.random_range(0..self.variables.len())].clone();
                let inner = format!("{name} = {}", self.pipe(kind, depth));
                self.braces(&inner)
            }
            9 | 10 if depth > 0 => self.condition(depth - 1),
            11 if depth > 0 => self.range(depth - 1),
            12 | 13 if depth > 0 => self.with(depth - 1),
            14 if self.ranges > 0 => self.pick(&["{{ break }}", "{{continue}}", "{{- break -}}"]).to_owned(),
            15 | 16 if depth > 0 => self.definition(),
            _ => {
                let inner = self.operand(kind, depth);
                self.braces(&inner)
            }
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        let outer = self.variables.len();
        let kind = self.pick(&KINDS);
        let mut head = self.pipe(kind, depth);
        if self.odds(5) {
            head = format!("$c := {head}");
            self.variables.push(("$c".to_owned(), kind));
        }
        let mut text = self.braces(&format!("if {head}")) + &self.body(depth);
        if self.odds(3) {
            let kind = self.pick(&KINDS);
            let inner = format!("else if {}", self.pipe(kind, depth));
            text = text + &self.braces(&inner) + &self.body(depth);
        }
        if self.odds(2) {
            text = text + &self.braces("else") + &self.body(depth);
        }
        self.variables.truncate(outer);
        text + &self.braces("end")
    }

    fn range(&mut self, depth: usize) -> String {
        let outer = self.variables.len();
        let kind = self.pick(&[Kind::List, Kind::Map, Kind::Questions, Kind::Str]);
        // `Kind::Str` stands for other ranges: over numbers, which aren't supported here, or over `$.Match`.
        let (over, index, element) = match kind {
            Kind::List => (self.pipe(kind, depth), Kind::Int, Kind::Str),
            Kind::Map => (self.pipe(kind, depth), Kind::Str, Kind::Str),
            Kind::Questions => (self.pipe(kind, depth), Kind::Int, Kind::Question),
            _ if self.is_wide => {
                (self.pick(&["3", "(len $.Match)", "$.Question.Qclass"]).to_owned(), Kind::Int, Kind::Int)
            }
            _ => ("$.Match".to_owned(), Kind::Int, Kind::Str),
        };
        let head = match self.random.random_range(0..4) {
            0 => {
                self.variables.push(("$v".to_owned(), element));
                format!("range $v := {over}")
            }
            1 => {
                self.variables.extend([("$i".to_owned(), index), ("$v".to_owned(), element)]);
                format!("range $i, $v := {over}")
            }
            2 if self.variables.iter().any(|(_, known)| *known == element) => {
                let name = &self.variables.iter().find(|(_, known)| *known == element).unwrap().0;
                format!("range {name} = {over}")
            }
            _ => format!("range {over}"),
        };
        let mut text = self.braces(&head);
        self.ranges += 1;
        if self.odds(2) && PLAIN.contains(&element) {
            text += &self.braces(".");
        }
        text += &self.body(depth);
        self.ranges -= 1;
        if self.odds(4) {
            text = text + &self.braces("else") + &self.body(depth);
        }
        self.variables.truncate(outer);
        text + &self.braces("end")
    }

    fn with(&mut self, depth: usize) -> String {
        let outer = self.variables.len();
        let kind = self.pick(&PLAIN);
        let inner = format!("with {}", self.pipe(kind, depth));
        let mut text = self.braces(&inner) + &self.braces(".") + &self.body(depth);
        if self.odds(3) {
            let inner = format!("else with {}", self.pipe(kind, depth));
            text = text + &self.braces(&inner) + &self.body(depth);
        }
        if self.odds(3) {
            text = text + &self.braces("else") + &self.body(depth);
        }
        self.variables.truncate(outer);
        text + &self.braces("end")
    }

    fn definition(&mut self) -> String {
        self.definitions += 1;
        let name = format!("\"t{}\"", self.definitions);
        match self.random.random_range(0..3) {
            0 => format!("{{{{ define {name} }}}}[{{{{ . }}}}]{{{{ end }}}}{{{{ template {name} $.Name }}}}"),
            1 => format!("{{{{ template {name} }}}}{{{{ define {name} }}}}<{{{{ len . }}}}>{{{{ end }}}}"),
            _ => format!("{{{{ block {name} $.Type }}}}({{{{ . }}}}){{{{ end }}}}"),
        }
    }

    fn body(&mut self, depth: usize) -> String {
        let outer = self.variables.len();
        let text = self.list(depth);
        self.variables.truncate(outer);
        text
    }

    fn pipe(&mut self, kind: Kind, depth: usize) -> String {
        let words = self.call(kind, depth);
        match (words, self.random.random_range(0..4)) {
            (Some(words), 0) => words.join(" "),
            (Some(mut words), 1) if words.len() > 1 => {
                let last = words.pop().unwrap_or_default();
                let last = match last.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
                    Some(inner) if self.odds(2) && !inner.contains(['(', ')']) => inner.to_owned(),
                    _ => last,
                };
                format!("{last}{}{}", self.pick(&[" | ", "|", " |"]), words.join(" "))
            }
            _ => self.operand(kind, depth),
        }
    }

    fn operand(&mut self, kind: Kind, depth: usize) -> String {
        let kind = if self.odds(40) { self.pick(&KINDS) } else { kind };
        if depth > 0
            && self.odds(2)
            && let Some(words) = self.call(kind, depth - 1)
        {
            return format!("({})", words.join(" "));
        }
        let variables: Vec<String> =
            self.variables.iter().filter(|(_, known)| *known == kind).map(|(name, _)| name.clone()).collect();
        if !variables.is_empty() && self.odds(3) {
            return variables[self.random.random_range(0..variables.len())].clone();
        }
        let text = match kind {
            Kind::Str if self.odds(2) => self.pick(&STRINGS),
            Kind::Str => self.pick(&FIELDS),
            Kind::Int if self.is_wide && self.odds(4) => self.pick(&[
                "'a'", "'\\n'", "'é'", "010", "0o17", "0b11", "1_000", "+0b1", "1e3", "0x1p4", "1.5", "nil",
            ]),
            Kind::Int => self.pick(&INTEGERS),
            Kind::Uint => self.pick(&UNSIGNED),
            Kind::Bool => self.pick(&BOOLS),
            Kind::List => "$.Match",
            Kind::Map => "$.Group",
            Kind::Questions => "$.Message.Question",
            Kind::Question => self.pick(&["$.Question", "(index $.Message.Question 0)"]),
        };
        text.to_owned()
    }

    /// Returns the words of a call that has a value of the kind.
    fn call(&mut self, kind: Kind, depth: usize) -> Option<Vec<String>> {
        let depth = depth.saturating_sub(1);
        let words = |generator: &mut Self, name: &str, kinds: &[Kind]| {
            let mut words = vec![name.to_owned()];
            words.extend(kinds.iter().map(|kind| generator.operand(*kind, depth)));
            Some(words)
        };
        match (kind, self.random.random_range(0..6)) {
            (Kind::Str, 0 | 1) => Some(self.printf(depth)),
            (Kind::Str, 2) => {
                let number = self.pick(&["0", "1", "2", "3", "-1"]);
                Some(vec!["index".to_owned(), "$.Match".to_owned(), number.to_owned()])
            }
            (Kind::Str, 3) => {
                let key = self.pick(&["\"a\"", "\"0\"", "\"none\"", "$.Type", "`e`"]);
                Some(vec!["index".to_owned(), "$.Group".to_owned(), key.to_owned()])
            }
            (Kind::Str, 4) if self.is_wide => {
                let name = self.pick(&["print", "println", "html", "js", "urlquery"]);
                let kinds = [self.pick(&PLAIN), self.pick(&PLAIN)];
                words(self, name, &kinds)
            }
            (Kind::Str, 5) if self.is_wide => words(self, "slice", &[Kind::Str, Kind::Int]),
            (Kind::Int, _) => {
                let of = self.pick(&[Kind::Str, Kind::List, Kind::Map, Kind::Questions]);
                words(self, "len", &[of])
            }
            (Kind::Uint, 0..3) => {
                let text = self.operand(Kind::Str, depth);
                let base = self.pick(&["0", "2", "8", "10", "16", "36", "37", "1"]);
                let bits = self.pick(&["0", "8", "16", "32", "64", "65"]);
                Some(["parseInt", &text, base, bits].map(str::to_owned).to_vec())
            }
            (Kind::Uint, _) => words(self, "index", &[Kind::Str, Kind::Int]),
            (Kind::Bool, 0) => {
                let of = self.pick(&KINDS);
                words(self, "not", &[of])
            }
            (Kind::Bool, 1..4) => {
                let name = self.pick(&["eq", "ne", "lt", "le", "gt", "ge"]);
                let of = self.pick(&[Kind::Str, Kind::Int, Kind::Uint, Kind::Bool]);
                let other = if of == Kind::Int && self.odds(3) { Kind::Uint } else { of };
                let third = (name == "eq" && self.odds(3)).then_some(of);
                words(self, name, &[&[of, other][..], third.as_slice()].concat())
            }
            (Kind::Str | Kind::Bool | Kind::List | Kind::Map, _) => {
                let name = self.pick(&["and", "or"]);
                let number = self.random.random_range(1..4);
                words(self, name, &vec![kind; number])
            }
            _ => None,
        }
    }

    fn printf(&mut self, depth: usize) -> Vec<String> {
        let mut format = String::new();
        let mut arguments = Vec::new();
        for _ in 0..self.random.random_range(0..4) {
            format += self.pick(&["", " ", "a", "%%", "é", "-"]);
            let kind = self.pick(&PLAIN);
            let width = self.pick(&["", "", "", "2", "5", "12"]);
            let flag = self.pick(&["", "", "-"]);
            let verb = match kind {
                Kind::Str => match self.random.random_range(0..4) {
                    0 => format!("%{flag}{width}{}", self.pick(&["s", "v", "q", "x", "X"])),
                    1 => format!("%{flag}{width}{}s", self.pick(&["", ".", ".1", ".3", ".0"])),
                    _ => self.pick(&["%s", "%v", "%q", "%x"]).to_owned(),
                },
                Kind::Int | Kind::Uint => {
                    let flag = self.pick(&["", "", "-", "0", "-0", "0-"]);
                    let verb = self.pick(&["d", "d", "v", "x", "X"]);
                    let plus = if verb == "d" && self.odds(4) { "+" } else { "" };
                    format!("%{plus}{flag}{width}{verb}")
                }
                _ => "%v".to_owned(),
            };
            format += &verb;
            arguments.push(self.operand(kind, depth));
        }
        if self.is_wide && self.odds(2) {
            format +=
                self.pick(&["%c", "%o", "%#x", "% d", "%t", "%08.3f", "%*d", "%[1]v", "%U", "%T", "%e"]);
            let kind = self.pick(&[Kind::Int, Kind::Bool]);
            arguments.push(self.operand(kind, depth));
        }
        if self.odds(20) {
            arguments.push("1".to_owned());
        }
        let mut words = vec!["printf".to_owned(), format!("\"{format}\"")];
        words.append(&mut arguments);
        words
    }
}
