//! The plugin *view*: the blocks that answer, and the expressions that decide.

use std::fmt::Write as _;

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[Group {
    name: "view: split DNS",
    corefile: "
            example.test:{$PORT} {
                bind 127.0.0.1
                view home {
                    expr incidr(client_ip(), '127.0.0.2/31')
                    expr name() != 'public.example.test.'
                }
                file home.zone
            }
            example.test:{$PORT} {
                bind 127.0.0.1
                view guests {
                    expr client_ip() in ['127.0.0.4', '127.0.0.5'] && type() in ['A', 'AAAA']
                }
                template IN ANY example.test {
                    answer \"{{ .Name }} 60 IN CNAME alias.example.test\"
                }
            }
            test:{$PORT} {
                bind 127.0.0.1
                view wider {
                    expr client_ip() == '127.0.0.9' || client_ip() == '127.0.0.5'
                }
                template IN ANY test {
                    answer \"{{ .Name }} 60 IN TXT wider\"
                }
            }
            example.test:{$PORT} {
                bind 127.0.0.1
                view tcp {
                    expr proto() == 'tcp'
                }
                template IN ANY example.test {
                    answer \"{{ .Name }} 60 IN TXT tcp\"
                }
            }
            sub.example.test:{$PORT} {
                bind 127.0.0.1
                view never {
                    expr false
                }
                whoami
            }
            all.test:{$PORT} {
                bind 127.0.0.1
                view all
                template IN ANY all.test {
                    answer \"{{ .Name }} 60 IN TXT all\"
                }
            }
            last.test:{$PORT} {
                bind 127.0.0.1
                view first {
                    expr do()
                }
                template IN ANY last.test {
                    answer \"{{ .Name }} 60 IN TXT first\"
                }
            }
            last.test:{$PORT} {
                bind 127.0.0.1
                cache
                template IN ANY last.test {
                    answer \"{{ .Name }} 60 IN TXT last\"
                }
            }
            hidden.test:{$PORT} {
                bind 127.0.0.1
                template IN ANY hidden.test {
                    answer \"{{ .Name }} 60 IN TXT shown\"
                }
            }
            hidden.test:{$PORT} {
                bind 127.0.0.1
                view hidden
                whoami
            }
            .:{$PORT} {
                bind 127.0.0.1
                view root {
                    expr client_ip() == '127.0.0.1'
                }
                template IN ANY . {
                    answer \"{{ .Name }} 60 IN TXT root\"
                }
            }",
    files: &[(
        "home.zone",
        "$ORIGIN example.test.\n@ 60 IN SOA ns hostmaster 1 3600 600 86400 60\n@ 60 IN NS ns\nns 60 IN A 192.0.2.1\n\
             www 60 IN A 192.0.2.2\nout 60 IN CNAME x.last.test.\n",
    )],
    questions: "
            www.example.test. A from=127.0.0.2 each
            www.example.test. A from=127.0.0.2
            www.example.test. A from=127.0.0.3 tcp
            www.example.test. A
            www.example.test. A from=127.0.0.2
            www.example.test. A tcp
            public.example.test. A from=127.0.0.2
            public.example.test. A from=127.0.0.2 tcp
            PUBLIC.example.test. A from=127.0.0.2
            out.example.test. TXT from=127.0.0.2
            out.example.test. TXT from=127.0.0.2 edns do
            out.example.test. TXT from=127.0.0.2
            www.example.test. TXT from=127.0.0.4
            www.example.test. TXT from=127.0.0.5
            www.example.test. TXT from=127.0.0.4 tcp
            alias.example.test. MX from=127.0.0.9
            x.sub.example.test. A from=127.0.0.2
            x.sub.example.test. A from=127.0.0.9
            x.sub.example.test. A from=127.0.0.8
            x.sub.example.test. A from=127.0.0.8 tcp
            x.test. A from=127.0.0.9
            x.test. A from=127.0.0.8
            x.test. A
            all.test. A from=127.0.0.8 each
            last.test. A each
            last.test. A
            last.test. A edns do
            last.test. A
            last.test. A edns
            last.test. A edns do
            last.test. A from=127.0.0.2 edns do
            hidden.test. A
            elsewhere.net. A
            elsewhere.net. A from=127.0.0.2
            elsewhere.net. A from=127.0.0.2
            . NS",
}];

/// Expressions, each for a block of its own.
const EXPRESSIONS: &[&str] = &[
    "true",
    "false",
    "!true",
    "not false",
    "!!(true)",
    "true && false || true",
    "true || false && false",
    "(true || false) and false",
    "false or not false",
    "not true == false",
    "1 < 2 && 2 > 1 && 1 <= 1 && 1 >= 1 && 1 != 2",
    "2 < 1 || 1 > 2 || 2 <= 1 || 1 >= 2 || 1 != 1",
    "0x10 == 16 && 0b11 == 3 && 0o17 == 15 && 1_000 == 1000",
    "'a' < 'b' && 'B' < 'a' && 'ab' > 'a'",
    "do() == true",
    "do() != false",
    "type() == 'A'",
    "type() != 'A' && class() == 'IN'",
    "type() in ['A', 'AAAA']",
    "type() not in ['A', 'AAAA',]",
    "type() in []",
    "type() == 'TYPE65300'",
    "bufsize() in [512, 65535]",
    "true in [do(), false]",
    "name() contains 'abc'",
    "name() not contains 'abc'",
    "name() startsWith 'abc'",
    "name() not startsWith 'abc.'",
    "name() endsWith '.test.'",
    "name() not endsWith 'test'",
    "name() matches '^abc\\\\.[a-z]+[0-9]+\\\\.test\\\\.$'",
    "name() matches `^a(b|x)c\\.`",
    "name() not matches 'ABC'",
    "name() matches '\\x61\\u0062\\143'",
    "client_ip() == '127.0.0.1'",
    "client_ip() startsWith '127.' ? type() == 'A' : do()",
    "type() == 'A' ? false : type() == 'MX' ? true : do()",
    "do() ?: type() == 'MX'",
    "(do() ? 'x' : 'y') == 'y' && (do() ? 1 : 2) == 2",
    "incidr(client_ip(), '127.0.0.0/30')",
    "incidr(client_ip(), '127.0.0.9/32')",
    "!incidr(client_ip(), '127.0.0.77/24')",
    "incidr(client_ip(), '::ffff:127.0.0.0/127')",
    "incidr(client_ip(), '2001:db8::/32')",
    "incidr('2001:db8::1', '2001:db8::/32')",
    "incidr(server_ip(), '127.0.0.1/32') && server_port() == '{$PORT}'",
    "incidr(client_ip(), do() ? '::/0' : '127.0.0.0/8')",
    // Errors during the evaluation: the block has no such query. CoreDNS doesn't evaluate what stands beside `|| true`.
    "incidr(name(), '127.0.0.0/8')",
    "!incidr(name(), '127.0.0.0/8')",
    "incidr(client_ip(), name())",
    "!incidr(client_ip(), type())",
    "incidr(name(), '127.0.0.0/8') || type() != ''",
    "true || incidr(name(), '127.0.0.0/8')",
    "do() && incidr(name(), '127.0.0.0/8') || type() != ''",
    "true in [true, incidr(name(), '127.0.0.0/8')]",
    "do() ? incidr(name(), '::/0') : true",
    "proto() == 'tcp'",
    "port() != '' && port() matches '^[0-9]+$'",
    "id() < 32768",
    "id() >= 0 && opcode() == 0",
    "size() > 40",
    "size() == 29 || size() == 40",
    "bufsize() == 512",
    "bufsize() == 4096 || bufsize() == 1232",
    "bufsize() == 65535",
    "metadata('view/name') == ''",
    "metadata('no/label') != ''",
    "(\"it's\" == 'it\\'s') && `a``b` == 'a\\x60b' && '\\n\\t\\\\' != ''",
    "'\\u00e9' == 'é' && '\\u{1f600}' == '😀' && 'É' != 'é'",
];

const ASKED: [&str; 10] = [
    "A",
    "AAAA from=127.0.0.2",
    "MX tcp",
    "A tcp from=127.0.0.9",
    "A edns",
    "A edns=4096 do",
    "TYPE65300 edns do tcp",
    "A edns=100",
    "A CH",
    "A nord cd",
];

/// Returns a group with two blocks for each expression, of which the second one has all other queries.
fn expressions() -> Group {
    let (mut corefile, mut questions) = (String::new(), String::new());
    for (number, expression) in EXPRESSIONS.iter().enumerate() {
        let zone = format!("e{number}.test");
        let view = format!("view v {{\nexpr {expression}\n}}\nmetadata");
        for (lines, text) in [(&*view, "yes"), ("", "no")] {
            let answer =
                format!("template ANY ANY {zone} {{\nanswer \"{{{{ .Name }}}} 60 IN TXT {text}\"\n}}");
            writeln!(corefile, "{zone}:{{$PORT}} {{\nbind 127.0.0.1\n{lines}\n{answer}\n}}").unwrap();
        }
        for asked in ASKED {
            writeln!(questions, "Abc.{zone}. {asked}").unwrap();
        }
    }
    Group { name: "view: expressions", corefile: corefile.leak(), files: &[], questions: questions.leak() }
}

#[tokio::test]
async fn blocks_with_views_answer_as_coredns() {
    compare(GROUPS).await;
}

#[tokio::test]
async fn expressions_decide_as_in_coredns() {
    compare(&[expressions()]).await;
}
