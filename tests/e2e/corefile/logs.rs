//! The log lines of the plugins `log` and `errors` of both programs after the same queries.

use regex::Regex;
use serde_json::Value;

use super::expected::Expectations;
use super::question::{Question, table};
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::eventually;

const COREFILE: &str = r#"
    common.test:{$PORT} example.org:{$PORT} test:{$PORT} bind:{$PORT} odd:{$PORT} {
        bind 127.0.0.1
        log
        errors
        chaos version
        template IN A common.test {
            answer "{{ .Name }} 60 IN A 192.0.2.1"
            rcode NOERROR
        }
        # The look-up of the CNAME's target is a query of its own, which is logged, too.
        template IN A alias.test {
            match ^alias
            answer "{{ .Name }} 60 IN CNAME behind.alias.test"
        }
        template IN A alias.test {
            answer "{{ .Name }} 60 IN A 192.0.2.2"
        }
        template IN A wrong.test {
            answer "{{ .Name }} 60 IN A {{ .Name }}"
        }
        acl drop.test {
            drop
        }
        acl block.test {
            block
        }
        hosts none.txt hosts.test {
            192.0.2.1 hosts.test
        }
        forward odd {$ODD}
        forward . {$UPSTREAM}
    }
    format.test:{$PORT} {
        bind 127.0.0.1
        log . "{type} {class} {name} {proto} {remote} {local} {size} {rcode} {rsize} {>rflags} {>bufsize} {>do} {>id} {>opcode} {/a/label} {unknown} {>unknown} {type"
        template IN A format.test {
            answer "{{ .Name }} 60 IN A 192.0.2.1"
        }
        whoami
    }
    combined.test:{$PORT} {
        bind 127.0.0.1
        log combined.test a.elsewhere.test "{common} and {combined}" {
            class success
        }
        log other.combined.test {combined} {
            class denial
            class error
        }
        whoami
    }
    classes.test:{$PORT} {
        bind 127.0.0.1
        log success.classes.test {
            class success
        }
        log denial.classes.test {
            class denial
        }
        log error.classes.test {
            class error
        }
        log two.classes.test {
            class success error
        }
        log . {
            class denial
        }
        template IN A {
            answer "{{ .Name }} 60 IN A 192.0.2.1"
        }
        template IN AAAA {
            authority "classes.test 60 IN SOA ns.classes.test root.classes.test 1 2 3 4 5"
        }
        template IN MX {
            rcode NXDOMAIN
        }
        template IN TXT {
            rcode SERVFAIL
        }
        template IN SRV {
            rcode REFUSED
        }
    }
    consolidated.test:{$PORT} {
        bind 127.0.0.1
        errors {
            consolidate 5s "." warning
        }
        template IN A {
            answer "{{ .Name }} 60 IN A {{ .Name }}"
        }
    }
    first.test:{$PORT} {
        bind 127.0.0.1
        errors {
            consolidate 5s "^nothing$"
            consolidate 5s .* info show_first
        }
        template IN A {
            answer "{{ .Name }} 60 IN A {{ .Name }}"
        }
    }
    dead.test:{$PORT} {
        bind 127.0.0.1
        errors
        log
        forward . {$DEAD}
    }
    silent.test:{$PORT} {
        bind 127.0.0.1
        errors
        whoami
    }
    view.test:{$PORT} {
        bind 127.0.0.1
        metadata
        view inside {
            expr type() == 'A'
        }
        log . "{/view/name} {type}"
        whoami
    }
    view.test:{$PORT} {
        bind 127.0.0.1
        metadata
        log . "{/view/name} {type}"
        whoami
    }
    end.test:{$PORT} {
        bind 127.0.0.1
        log . "the end {type}"
        whoami
    }"#;

const QUESTIONS: &str = "
    a.common.test. A
    b.common.test. A tcp
    c.common.test. A edns=4096 do
    d.common.test. A edns=512 cd
    E.Common.Test. A
    f.common.test. A nord
    g.common.test. A ad
    h.common.test. AAAA
    i.common.test. A option=65001:00
    j.common.test. A version=1
    k.common.test. A opcode=2
    common.test. ANY
    common.test. TYPE65301
    a.example.org. A
    b.example.org. AAAA tcp
    chain.example.org. A
    nowhere.example.org. A
    big.example.org. A
    big.example.org. A tcp edns
    x.servfail.test. A
    x.refused.test. A
    x.block.test. A
    x.drop.test. A silent
    x.wrong.test. A
    alias.test. A edns=4096 do
    alias.alias.test. A tcp
    x.hosts.test. A
    x.hosts.test. TXT tcp
    version.bind. TXT CH
    x.bind. TXT CH
    ad.odd. A
    other.odd. A
    rcode-10.odd. A
    a.format.test. A
    b.format.test. A tcp edns do
    c.format.test. TXT edns=4096 cd
    d.format.test. A CH
    a.combined.test. A
    b.combined.test. A edns tcp
    a.other.combined.test. A
    a.success.classes.test. A
    b.success.classes.test. AAAA
    c.success.classes.test. TXT
    a.denial.classes.test. A
    b.denial.classes.test. AAAA
    c.denial.classes.test. MX
    d.denial.classes.test. TXT
    a.error.classes.test. A
    b.error.classes.test. TXT
    c.error.classes.test. SRV
    d.error.classes.test. MX
    a.two.classes.test. A
    b.two.classes.test. AAAA
    c.two.classes.test. SRV
    a.classes.test. A
    b.classes.test. AAAA
    c.classes.test. NAPTR
    a.view.test. A
    b.view.test. MX
    a.consolidated.test. A
    b.consolidated.test. A
    c.consolidated.test. TXT
    a.first.test. A
    b.first.test. A tcp
    a.dead.test. A
    b.dead.test. TXT tcp
    a.silent.test. A
    a.nowhere. A
    a.end.test. A wait=5300";

/// Returns the sorted lines of `log` and `errors`, without the parts that vary.
pub fn lines(server: &Server) -> Vec<String> {
    let masks = [
        (r"^(\[[A-Z]+\] (?:[a-zA-Z ]*)127\.0\.0\.1):\d+", "$1:PORT"),
        (r"\b\d+\.\d+s\b", "DURATIONs"),
        (r"127\.0\.0\.1:\d+->", "127.0.0.1:PORT->"),
        // lb-linker writes a time and a log target before CoreDNS's text.
        (r"^.*plugin/errors: ", "plugin/errors: "),
        (r":\d+ - ", ":PORT - "),
    ];
    let masks: Vec<(Regex, &str)> = masks.map(|(mask, with)| (Regex::new(mask).unwrap(), with)).into();
    let relevant = server.log().into_iter().filter(|line| {
        let startup =
            line.contains("plugin/reload") || line.contains("plugin/health") || line.contains("plugin/ready");
        !startup && (line.starts_with("[INFO] ") || line.contains("plugin/errors: "))
    });
    let mut lines: Vec<String> = relevant
        .map(|line| {
            let masked =
                |line: String, (mask, with): &(Regex, &str)| mask.replace_all(&line, *with).into_owned();
            masks.iter().fold(server.without_ports(&line), masked)
        })
        .collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn queries_and_errors_are_logged_as_coredns_does() {
    let upstreams = Upstreams::start().await;
    let site = upstreams.name(CorefileDir::new(COREFILE, &[]));
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    let before = [lines(&coredns), lines(&subject)];
    for question in table(QUESTIONS) {
        tokio::time::sleep(question.wait).await;
        tokio::join!(question.ask(&coredns), question.ask(&subject));
    }
    for server in [&coredns, &subject] {
        let logged = |text: &str| server.log().iter().filter(|line| line.contains(text)).count();
        let ended = || async { (logged("the end A") == 1 && logged(" errors like ") == 2).then_some(()) };
        eventually(&format!("the last lines of {:#?}", server.log()), ended).await;
    }
    let [coredns, subject] = [lines(&coredns), lines(&subject)];
    let mut expected = Expectations::of(["log"]);
    for (program, own, other, before) in
        [("CoreDNS", &coredns, &subject, &before[0]), ("lb-linker", &subject, &coredns, &before[1])]
    {
        for line in own.iter().filter(|line| !other.contains(line) && !before.contains(line)) {
            expected.record("log", line, program, "");
        }
    }
    eprintln!("corefile: {} lines of the log", coredns.len());
    expected.check();
}

#[tokio::test]
async fn json_log_has_the_coredns_line_of_a_query_as_message() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let corefile = ".:{$PORT} {\n bind 127.0.0.1\n log\n whoami\n}";
    let site = CorefileDir::new(corefile, &[]).with("LB_LINKER_LOG_FORMAT", "json").with("RUST_LOG", "warn");
    let server = Server::start(Program::Linker, &site).await;
    Question::parse("a.test. A").ask(&server).await;
    let found = || async { server.log().into_iter().find(|line| line.contains("a.test.")) };
    let object: Value = serde_json::from_str(&eventually("the line of a query", found).await).unwrap();
    let line = Regex::new(
        r#"^\[INFO\] 127\.0\.0\.1:\d+ - \d+ "A IN a\.test\. udp 24 false 512" NOERROR qr,aa,rd \d+ \d+\.\d+s$"#,
    );
    assert!(line.unwrap().is_match(object["message"].as_str().unwrap()), "{object}");
    assert_eq!((&object["name"], &object["rcode"]), (&"a.test.".into(), &"NOERROR".into()), "{object}");
}

#[tokio::test]
async fn mistyped_log_level_leaves_warnings_on() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let site = CorefileDir::new(".:{$PORT} {\n bind 127.0.0.1\n whoami\n}", &[]).with("RUST_LOG", "debg");
    let server = Server::start(Program::Linker, &site).await;
    let problem = "WARN RUST_LOG \"debg\" has no level for lb-linker";
    let found = || async { server.log().iter().any(|line| line.contains(problem)).then_some(()) };
    eventually("the warning", found).await;
}
