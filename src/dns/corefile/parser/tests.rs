use std::io;

use crate::dns::corefile::parser::*;

/// Parses a Corefile with these files in its directory, and the environment variable `A`.
fn parse_with(text: &str, files: &[(&str, &str)]) -> Result<String, String> {
    let read = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new("dir").join(name) == path);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    let glob = |path: &Path| {
        let pattern = path.to_string_lossy().into_owned();
        let (before, after) = pattern.split_once('*').unwrap();
        let paths = files.iter().map(|(name, _)| Path::new("dir").join(name));
        paths
            .filter(|path| {
                path.to_string_lossy().starts_with(before) && path.to_string_lossy().ends_with(after)
            })
            .collect()
    };
    let variable = |name: &str| (name == "A").then(|| "one".to_owned());
    let sources = FileSources { variable: &variable, read: &read, glob: &glob };
    let blocks = parse(Path::new("dir/Corefile"), text, &sources).map_err(|error| error.to_string())?;
    let show = |block: &BlockSource| {
        let addresses: Vec<&str> = block.addresses.iter().map(|token| &*token.text).collect();
        format!("{} {}", addresses.join(","), show_lines(&block.lines))
    };
    Ok(blocks.iter().map(show).collect::<Vec<_>>().join(" "))
}

fn show_lines(lines: &[Directive]) -> String {
    let line = |line: &Directive| {
        let tokens: Vec<&str> = line.tokens.iter().map(|token| &*token.text).collect();
        let block = line.block.as_ref().map(|lines| format!(" {}", show_lines(lines))).unwrap_or_default();
        tokens.join(" ") + &block
    };
    format!("[{}]", lines.iter().map(line).collect::<Vec<_>>().join("; "))
}

#[test]
fn blocks_lines_and_braces_are_parsed() {
    for (text, expected) in [
        ("", ""),
        (".", ". []"),
        (". {\n}", ". []"),
        (
            ".:53 {\n  errors\n  cache 30 {\n    success 10 20\n    prefetch 1\n  }\n  forward . 1.2.3.4\n}\n",
            ".:53 [errors; cache 30 [success 10 20; prefetch 1]; forward . 1.2.3.4]",
        ),
        ("a.example, b.example:54 c.example {\n whoami\n}", "a.example,b.example:54,c.example [whoami]"),
        ("a.example,\nb.example {\n whoami\n}", "a.example,b.example [whoami]"),
        ("a.example {\n whoami\n}\nb.example {\n log\n}", "a.example [whoami] b.example [log]"),
        // A single block needs no braces.
        (".\nwhoami\nlog", ". [whoami; log]"),
        ("tls://. {\n errors {\n }\n}", "tls://. [errors []]"),
        (
            ". {\n template IN A a {\n  answer \"{{ .Name }} 60 IN A 1.2.3.4\"\n }\n}",
            ". [template IN A a [answer {{ .Name }} 60 IN A 1.2.3.4]]",
        ),
        ("{$A}:{$P:53} {\n log {$A} x{$B}y\n}", "one:53 [log one xy]"),
    ] {
        assert_eq!(parse_with(text, &[]).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn imports_are_replaced_by_snippets_and_files() {
    let files = [
        ("one.conf", "errors\nlog"),
        ("sub/two.conf", "cache 30 {\n success 1\n}\nimport three.conf"),
        ("sub/three.conf", "whoami"),
        ("zone.conf", "b.example {\n log\n}"),
        ("z1.zone", "one.example {\n log\n}"),
        ("z2.zone", "two.example {\n log\n}"),
    ];
    for (text, expected) in [
        (
            "(s) {\n errors\n cache 30 {\n  success 1\n }\n}\n. {\n import s\n log\n}",
            ". [errors; cache 30 [success 1]; log]",
        ),
        (
            "(s) {\n forward . {args.0} {args.1}\n log {args.x} {args.\n}\n. {\n import s 1.2.3.4 {args.0}\n}",
            ". [forward . 1.2.3.4 {args.0}; log {args.x} {args.]",
        ),
        ("(s) {\n errors\n}\n(t) {\n import s\n log\n}\n. {\n import t\n}", ". [errors; log]"),
        (". {\n import one.conf\n whoami\n}", ". [errors; log; whoami]"),
        // The path is relative to the importing file.
        (". {\n import sub/two.conf\n}", ". [cache 30 [success 1]; whoami]"),
        ("import zone.conf\n. {\n log\n}", "b.example [log] . [log]"),
        ("import *.zone", "one.example [log] two.example [log]"),
        ("import none*.zone\n. {\n log\n}", ". [log]"),
        (". {\n cache {\n  import opts\n }\n}", ". [cache [prefetch 1; success 5]]"),
    ] {
        let files: Vec<_> = files.iter().copied().chain([("opts", "prefetch 1\nsuccess 5")]).collect();
        assert_eq!(parse_with(text, &files).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn errors_have_a_message_and_a_position() {
    for (text, expected) in [
        (". {\n errors", "dir/Corefile:1:3: this { isn't closed"),
        (". {\n cache {\n }\n", "dir/Corefile:1:3: this { isn't closed"),
        ("}\n", "dir/Corefile:1:1: this } closes nothing"),
        (". {\n}\n}", "dir/Corefile:3:1: this } closes nothing"),
        ("{\n errors\n}", "dir/Corefile:1:1: a block begins with the zones that it is for, such as .:53"),
        (
            ". {\n errors\n {\n }\n}",
            "dir/Corefile:3:2: this { has to stand at the end of the line that it belongs to",
        ),
        (
            ". {\n cache {\n } log\n}",
            "dir/Corefile:3:4: \"log\" has to stand on a line of its own, after the closing brace",
        ),
        (
            ". {\n cache {\n } }",
            "dir/Corefile:3:4: \"}\" has to stand on a line of its own, after the closing brace",
        ),
        (
            "a.example{\n log\n}",
            "dir/Corefile:3:1: this } closes nothing; a { before it needs white space around it: see line 1",
        ),
        (
            ". {\n cache 30{\n }\n}",
            "dir/Corefile:4:1: this } closes nothing; a { before it needs white space around it: see line 2",
        ),
        (". {\n errors }\n", "dir/Corefile:2:9: } has to stand at the beginning of a line"),
        ("a, {\n}", "dir/Corefile:1:1: another address has to follow the comma"),
        ("a , b {\n}", "dir/Corefile:1:3: a comma has to follow the address without white space"),
        ("a,, b {\n}", "dir/Corefile:1:1: one comma is enough after an address"),
        ("a,", "dir/Corefile:1:1: another address has to follow the comma"),
        (
            ". {\n} import none\n",
            "dir/Corefile:2:3: an import has to begin its line; a zone of that name is written import.",
        ),
        (
            "a, import {\n}",
            "dir/Corefile:1:4: an import has to begin its line; a zone of that name is written import.",
        ),
        (
            ". {\n import\n}",
            "dir/Corefile:2:2: import needs the name of a snippet, a file, or a pattern of files",
        ),
        (
            ". {\n import none\n}",
            "dir/Corefile:2:9: neither a snippet nor a file that can be read: dir/none: entity not found",
        ),
        (
            ". {\n import a*b*\n}",
            "dir/Corefile:2:9: a pattern of files may have one * and one ?, and no other wildcard",
        ),
        (
            ". {\n import none x\n}",
            "dir/Corefile:2:14: only a snippet takes arguments, and there is none of that name",
        ),
        (
            "(s) {\n log x{args.1}\n}\n. {\n import s a\n}",
            "dir/Corefile:5:9: the snippet s needs an argument for {args.1}",
        ),
        ("(s)\n errors", "dir/Corefile:1:1: a snippet needs braces around its lines"),
        ("(s) {\n errors", "dir/Corefile:1:5: this { isn't closed"),
        ("(s) {\n}\n(s) {\n}", "dir/Corefile:3:1: the snippet s is already defined"),
        (
            "(s) {\n import s\n}\n. {\n import s\n}",
            "dir/Corefile:2:9: more than 1000 imports: does s import itself?",
        ),
        (". {\n import bad\n}", "dir/Corefile:1:3: this { isn't closed"),
    ] {
        assert_eq!(parse_with(text, &[("bad", "errors {")]), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn arguments_that_double_with_each_import_are_limited() {
    for body in ["{args.0}{args.0}".to_owned(), "{args.0}".repeat(1000)] {
        let text = format!("(s) {{\n import s {body}\n}}\n. {{\n import s xx\n}}");
        let expected = "dir/Corefile:2:9: the imported snippets take more than 16 MiB";
        assert_eq!(parse_with(&text, &[]).unwrap_err(), expected);
    }
}

#[test]
fn token_after_an_import_begins_a_line() {
    let text = "(a) {\n import b\n log\n}\n(b) {\n errors\n}\n. {\n import a\n}\n";
    assert_eq!(parse_with(text, &[]).as_deref(), Ok(". [errors; log]"));
}

#[test]
fn nesting_of_braces_is_limited() {
    let deep = |depth: usize| format!(". {{\n{}{}}}", "a {\n".repeat(depth), "}\n".repeat(depth));
    assert!(parse_with(&deep(MAX_DEPTH), &[]).is_ok());
    let refused = parse_with(&deep(100_000), &[]).unwrap_err();
    assert_eq!(refused, "dir/Corefile:34:3: braces are nested more than 32 deep");
}
