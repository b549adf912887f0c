mod differential;

use std::collections::BTreeMap;

use crate::dns::plugins::template::text::*;

fn data() -> Data {
    let group = [("0", "ip-10-0a.example."), ("1", "10"), ("2", "0a"), ("a", "10"), ("b", "0a"), ("e", "")];
    Data {
        zone: "example.".to_owned(),
        name: "ip-10-0a.example.".to_owned(),
        regex: "^ip".to_owned(),
        class: "IN".to_owned(),
        rtype: "A".to_owned(),
        matches: ["ip-10-0a.example.", "10", "0a"].map(str::to_owned).to_vec(),
        group: group
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        message: Message {
            id: 7,
            recursion_desired: true,
            questions: [QuestionValue { name: "IP-10-0a.example.".to_owned(), qtype: 1, qclass: 1 }],
            ..Message::default()
        },
        remote: "192.0.2.1".to_owned(),
        labels: None,
    }
}

fn run(text: &str) -> String {
    match Template::parse(text) {
        Ok(template) => template.run(&data()).unwrap_or_else(|error| format!("failed: {error}")),
        Err(error) => format!("{}: {}", error.at, error.message),
    }
}

fn check(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(run(text), *expected, "{text}");
    }
}

// The expected texts are those of Go 1.26; error messages differ from Go's.

#[test]
fn white_space_is_trimmed_and_comments_are_removed() {
    check(&[
        ("", ""),
        ("a }} b", "a }} b"),
        ("a {{ .Type }} b", "a A b"),
        ("a {{- .Type -}} b", "aAb"),
        ("a\n\t{{- .Type -}}\r\n b", "aAb"),
        ("a {{/* {{ .Nothing }} */}} b", "a  b"),
        ("a {{- /* x */ -}} b", "ab"),
        ("{{.Type}}{{-3}}{{ -3 -}} x", "A-3-3x"),
        ("{{\n.Type\n}}", "A"),
    ]);
}

#[test]
fn fields_of_the_query_are_available() {
    check(&[
        (
            "{{ .Zone }} {{ .Name }} {{ .Class }} {{ .Type }} {{ .Remote }} {{ .Regex }}",
            "example. ip-10-0a.example. IN A 192.0.2.1 ^ip",
        ),
        (
            "{{ .Match }} {{ .Group }}",
            "[ip-10-0a.example. 10 0a] map[0:ip-10-0a.example. 1:10 2:0a a:10 b:0a e:]",
        ),
        (
            "{{ .Group.a }}-{{ .Group.none }}-{{ index .Group \"b\" }}-{{ index .Group \"none\" }}",
            "10-<no value>-0a-",
        ),
        ("{{ index .Match 1 }} {{ index .Match 2 0 }}", "10 48"),
        ("{{ .Question.Name }} {{ .Question.Qtype }} {{ .Question.Qclass }}", "IP-10-0a.example. 1 1"),
        (
            "{{ .Message.Id }} {{ .Message.RecursionDesired }} {{ (index .Message.Question 0).Qtype }}",
            "7 true 1",
        ),
        ("{{ $.Name }} {{ (.Message).Id }}", "ip-10-0a.example. 7"),
        ("{{ index .Match 3 }}", "failed: at <index .Match 3>: error calling index: index out of range: 3"),
        (
            "{{ index .Match -1 }}",
            "failed: at <index .Match -1>: error calling index: index out of range: -1",
        ),
        (
            "{{ index .Group 1 }}",
            "failed: at <index .Group 1>: error calling index: the key of a map is a string, and this is an int",
        ),
    ]);
}

#[test]
fn literals_and_functions_are_evaluated() {
    check(&[
        ("{{ \"a\\\"\\n\\t\\\\\" }}{{ `b\\n` }}", "a\"\n\t\\b\\n"),
        ("{{ 12 }} {{ -1 }} {{ +1 }} {{ 0x0A }} {{ true }}", "12 -1 1 10 true"),
        ("{{ parseInt .Group.b 16 8 }} {{ parseInt \"0x1f\" 0 64 }} {{ parseInt \"010\" 0 0 }}", "10 31 8"),
        ("{{ parseInt \"1_0\" 0 64 }} {{ parseInt \"0x_1_f\" 0 64 }} {{ parseInt \"0_7\" 0 8 }}", "10 31 7"),
        (
            "{{ parseInt \"1_0\" 10 64 }}",
            "failed: at <parseInt \"1_0\" 10 64>: error calling parseInt: parsing \"1_0\": invalid syntax",
        ),
        (
            "{{ parseInt \"gg\" 16 8 }}",
            "failed: at <parseInt \"gg\" 16 8>: error calling parseInt: parsing \"gg\": invalid syntax",
        ),
        (
            "{{ parseInt \"100\" 16 8 }}",
            "failed: at <parseInt \"100\" 16 8>: error calling parseInt: parsing \"100\": value out of range",
        ),
        (
            "{{ parseInt \"+1\" 10 8 }}",
            "failed: at <parseInt \"+1\" 10 8>: error calling parseInt: parsing \"+1\": invalid syntax",
        ),
        (
            "{{ parseInt \"1\" 37 8 }}",
            "failed: at <parseInt \"1\" 37 8>: error calling parseInt: parsing \"1\": invalid base 37",
        ),
        ("{{ len .Name }} {{ len .Match }} {{ len .Group }}", "17 3 6"),
        (
            "{{ eq .Type \"A\" }} {{ eq .Type \"B\" \"A\" }} {{ ne 1 2 }} {{ lt 1 2 }} {{ le 2 2 }} {{ gt \"b\" \"a\" }} {{ ge 1 2 }}",
            "true true true true true true false",
        ),
        ("{{ eq .Question.Qtype 1 }} {{ lt -1 .Question.Qtype }}", "true true"),
        ("{{ eq .Group.none \"\" }} {{ eq (index .Group \"none\") \"\" }}", "false true"),
        (
            "{{ eq 1 \"1\" }}",
            "failed: at <eq 1 \"1\">: error calling eq: an int and a string can't be compared",
        ),
        (
            "{{ and .Name .Type }} {{ or .Group.e .Type }} {{ not .Group.e }} {{ and .Group.e (index .Match 9) }}",
            "A A true ",
        ),
    ]);
    check(&[(
        "{{ .Group.a | printf \"%s-%s\" .Group.b }} {{ 8 | parseInt .Group.b 16 | printf \"%03d\" }}",
        "0a-10 010",
    )]);
}

#[test]
fn printf_formats_values() {
    check(&[
        ("{{ printf \"%s %v %d %%\" .Type 5 6 }}", "A 5 6 %"),
        ("{{ printf \"%02d|%4d|%-4d|%+d|%05d\" 7 7 7 7 -7 }}", "07|   7|7   |+7|-0007"),
        ("{{ printf \"%x %X %04x %x\" 171 171 171 \"aB\" }}", "ab AB 00ab 6142"),
        ("{{ printf \"%q %5s|%-5s|%.2s\" \"a\\\"b\" \"x\" \"x\" \"xyz\" }}", "\"a\\\"b\"     x|x    |xy"),
        ("{{ printf \"%v %v\" true .Match }}", "true [ip-10-0a.example. 10 0a]"),
        ("{{ printf \"%5v|%-6v|%05s|%06v\" true false \"a\" true }}", " true|false |0000a|00true"),
        (
            "{{ printf \"%3v|%q|%-2s\" .Match .Match .Group }}",
            "[ip-10-0a.example.  10  0a]|[\"ip-10-0a.example.\" \"10\" \"0a\"]\
             |map[0 :ip-10-0a.example. 1 :10 2 :0a a :10 b :0a e :  ]",
        ),
        ("{{ printf \"%v|%7v\" .Group.none .Group.none }}", "<nil>|  <nil>"),
        ("{{ printf \"%q\" \"\u{7}\u{8}\u{b}\u{c}\u{1b}\u{7f}\" }}", "\"\\a\\b\\v\\f\\x1b\\x7f\""),
        ("{{ printf \"%q\" \"é\u{301}\u{a0}\u{e000}\u{10ffff}\" }}", "\"é\u{301}\\u00a0\\ue000\\U0010ffff\""),
        (
            "{{ printf \"%d\" .Group.a }}",
            "failed: at <printf \"%d\" .Group.a>: error calling printf: %d isn't for a string",
        ),
        ("{{ printf \"%s\" 1 }}", "failed: at <printf \"%s\" 1>: error calling printf: %s isn't for an int"),
        (
            "{{ printf .Group.a 1 }}",
            "failed: at <printf .Group.a 1>: error calling printf: the format is for 0 values, and here are 1",
        ),
    ]);
}

#[test]
fn conditions_ranges_and_variables_are_evaluated() {
    check(&[
        ("{{ if .Group.e }}a{{ else if eq .Type \"A\" }}b{{ else }}c{{ end }}", "b"),
        ("{{ if .Group.e }}a{{ else if .Group.none }}b{{ else }}c{{ end }}", "c"),
        ("{{ if $x := .Type }}{{ $x }}{{ end }}", "A"),
        ("{{ range .Match }}<{{ . }}>{{ end }}", "<ip-10-0a.example.><10><0a>"),
        ("{{ range $v := .Match }}<{{ $v }}>{{ end }}", "<ip-10-0a.example.><10><0a>"),
        ("{{ range $i, $v := .Match }}{{ $i }}={{ $v }},{{ end }}", "0=ip-10-0a.example.,1=10,2=0a,"),
        (
            "{{ range $k, $v := .Group }}{{ $k }}={{ $v }}{{ $.Type }} {{ end }}",
            "0=ip-10-0a.example.A 1=10A 2=0aA a=10A b=0aA e=A ",
        ),
        (
            "{{ range .Message.Question }}{{ .Name }} {{ .Qtype }}{{ else }}none{{ end }}",
            "IP-10-0a.example. 1",
        ),
        (
            "{{ range .Group.none }}x{{ else }}none{{ .Type }}{{ end }}",
            "1: range goes over .Match, .Group and .Message.Question, and this is a string",
        ),
        ("{{ $x := 1 }}{{ $x }}{{ $x = \"a\" }}{{ $x }}", "1a"),
        ("{{ $x := 1 }}{{ range .Match }}{{ $x = . }}{{ end }}{{ $x }}", "0a"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
        ("{{ $a := .Question }}{{ $a.Qtype }}", "1"),
        (
            "{{ range $i, $hex := .Match }}{{ if $i }}{{ if gt $i 1 }}.{{ end }}{{ parseInt $hex 16 8 }}{{ end }}{{ end }}",
            "16.10",
        ),
    ]);
}

#[test]
fn invalid_templates_are_rejected_by_the_parser() {
    let known = "if, else, range, end, and, eq, ge, gt, index, le, len, lt, ne, not, or, parseInt, printf";
    for name in [
        "with", "define", "template", "block", "break", "continue", "html", "js", "slice", "print", "call",
        "nil",
    ] {
        let expected = format!("4: Go's {name} isn't supported in templates here; supported are {known}");
        assert_eq!(run(&format!("{{{{ {name} .Name }}}}")), expected);
    }
    assert_eq!(
        run("{{ notAFunction }}"),
        format!("4: there is no \"notAFunction\" in templates; there are {known}")
    );
    check(&[
        ("ä {{", "3: this {{ isn't closed by }}: is the record in quotes?"),
        ("{{ .Name", "1: this {{ isn't closed by }}: is the record in quotes?"),
        ("{{ }}", "4: an expression is missing"),
        ("{{ .Name | }}", "12: an expression is missing"),
        ("{{/* x }}", "1: this comment isn't closed by */"),
        ("{{/*/}}", "1: this comment isn't closed by */"),
        ("{{/* x */ y }}", "1: }} has to follow the */ of a comment"),
        ("{{/* x */ }}", "1: }} has to follow the */ of a comment"),
        ("{{ if\"x\" }}{{ end }}", "6: a space has to follow if"),
        ("{{ $x:=1 }}{{ $x=2 }}", "17: '=' can't stand here: spaces separate operands"),
        ("{{ if .Name }}a", "1: this if isn't closed by {{ end }}"),
        ("a{{ end }}", "2: there is no if or range that this end could close"),
        ("{{ else }}", "1: there is no if or range that this else could belong to"),
        ("{{ if true }}{{ else }}{{ else }}{{ end }}", "24: there is an else before this one"),
        ("{{ range .Match }}{{ else if true }}{{ end }}", "19: a range can't have an else if"),
        ("{{ end x }}", "8: only }} can follow end, and only }} or if can follow else"),
        ("{{ .Meta }}", "4: .Meta takes 1 argument, and here are 0"),
        ("{{ .Question.Nome }}", "4: the question has no field .Nome here; it has .Name, .Qtype, .Qclass"),
        ("{{ .Name.Length }}", "4: a string has no fields, and here is .Length"),
        (
            "{{ .Group.1 }}",
            "4: the name of a field can't begin with a digit: instead of .1, write index .Group \"1\"",
        ),
        (
            "{{ .Message.Answer }}",
            "4: the message has no field .Answer here; it has .Id, .Response, .Opcode, .Authoritative, .Truncated, \
             .RecursionDesired, .RecursionAvailable, .AuthenticatedData, .CheckingDisabled, .Rcode, .Question",
        ),
        ("{{ range .Match }}{{ .Name }}{{ end }}", "22: a string has no fields, and here is .Name"),
        ("{{ .Question }}", "1: the question can't be written: take a field of it"),
        ("{{ . }}", "1: the data of templates can't be written: take a field of it"),
        ("{{ $x }}", "4: there is no variable $x"),
        ("{{ $x = 1 }}", "4: there is no variable $x"),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", "39: there is no variable $x"),
        ("{{ $x, $y := .Match }}", "8: only range can have two variables"),
        ("{{ parseInt }}", "4: parseInt takes 3 arguments, and here are 0"),
        ("{{ len .Name .Name }}", "4: len takes 1 argument, and here are 2"),
        ("{{ eq .Name }}", "4: eq takes at least 2 arguments, and here are 1"),
        ("{{ .Name \"x\" }}", "4: .Name is no function: it can't be given an argument"),
        ("{{ .Name | .Type }}", "12: .Type is no function: it can't be given an argument"),
        (
            "{{ len index }}",
            "4: index is a function: as an argument it stands in parentheses, with its own arguments",
        ),
        ("{{ (.Name }}", "5: a ) is missing"),
        ("{{ .Name) }}", "9: no expression begins with ')'"),
        ("{{ \"a\"\"b\" }}", "7: '\"' can't stand here: spaces separate operands"),
        ("{{ \"a }}", "4: this string isn't closed"),
        (
            "{{ \"\\x41\" }}",
            "4: the escape \\x isn't supported in strings here; supported are \\\\, \\\", \\n, \\r and \\t",
        ),
        ("{{ 'a' }}", "4: characters in single quotes aren't supported here: write a string or a number"),
        (
            "{{ 1.5 }}",
            "4: \"1.5\" isn't a number here: numbers are integers, in decimal digits or, after 0x, hexadecimal digits",
        ),
        (
            "{{ 010 }}",
            "4: \"010\" isn't a number here: numbers are integers, in decimal digits or, after 0x, hexadecimal digits",
        ),
        ("{{ printf \"%d\" }}", "4: the format of this printf is for 1 values, and here are 0"),
        (
            "{{ printf \"%5t\" true }}",
            "4: 't' in %5t isn't supported by printf here; supported are %s, %d, %v, %q, %x, %X and %%, with -, 0, + \
             (of %d), a width, and a precision (of %s)",
        ),
        ("{{ printf \"%.2d\" 1 }}", "4: a precision in %.2d isn't supported by printf here"),
        (
            "{{ printf \"%2000d\" 1 }}",
            "4: a width or precision of more than 1000 in %2000d isn't supported by printf here",
        ),
        ("{{ printf \"%\" 1 }}", "4: a verb has to follow the % of a format"),
        (
            "{{ range $i, $v := .Name }}{{ end }}",
            "1: range goes over .Match, .Group and .Message.Question, and this is a string",
        ),
    ]);
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(60), ")".repeat(60));
    assert!(run(&deep).ends_with("more than 50 nested parentheses, ifs and ranges"));
}

#[test]
fn template_is_displayed_in_the_normalized_form_of_go() {
    for (text, expected) in [
        ("a {{- /* x */ -}} b {{ .Name }}", "ab {{.Name}}"),
        (
            "{{ if  eq .Type \"A\" }}a{{ else if .Name }}b{{ end }}",
            "{{if eq .Type \"A\"}}a{{else}}{{if .Name}}b{{end}}{{end}}",
        ),
        (
            "{{ range $i, $v := .Match }}{{ $v|len }}{{ end }}",
            "{{range $i, $v := .Match}}{{$v | len}}{{end}}",
        ),
        ("{{ $x := (index .Group `a`) }}{{ $x = 0x1 }}", "{{$x := (index .Group `a`)}}{{$x = 0x1}}"),
    ] {
        assert_eq!(Template::parse(text).unwrap().to_string(), expected, "{text}");
    }
}

#[test]
fn result_length_is_limited() {
    let text = "{{ range $.Group }}".repeat(8) + "{{ printf \"%1000d\" 1 }}" + &"{{ end }}".repeat(8);
    assert_eq!(run(&text), "failed: the result is longer than any record");
    let double = "{{ $x = printf \"%s%s\" $x $x }}";
    let text = format!(
        "{{{{ $x := .Name }}}}{}",
        ["{{ range .Group }}", "{{ range $.Group }}", double, "{{ end }}{{ end }}"].concat()
    );
    assert!(run(&text).ends_with("error calling printf: the text is longer than any record"));
}
