//! The plugins autopath, with a file, and metadata.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[
    Group {
        name: "autopath",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                errors
                rewrite name suffix .short .first.test answer auto
                autopath first.test other.test search.conf
                acl block.second.test {
                    block
                }
                hosts hosts.txt first.test second.test
                template IN A wrong.second.test {
                    answer \"{{ .Name }} 60 IN A {{ .Name }}\"
                }
                template IN A quiet.second.test {
                    rcode SERVFAIL
                }
                template IN A first.test {
                    match ^first[.]test[.]$
                    answer \"{{ .Name }} 60 IN A 192.0.2.5\"
                    fallthrough
                }
                template IN A alias.first.test {
                    answer \"{{ .Name }} 60 IN CNAME a.example.org\"
                }
                template IN A alias.second.test {
                    answer \"{{ .Name }} 60 IN CNAME a.example.org\"
                }
                forward . {$UPSTREAM}
            }",
        files: &[
            ("search.conf", "nameserver 192.0.2.1\nsearch First.test second.test example.org\noptions ndots:5\n"),
            (
                "hosts.txt",
                "192.0.2.1 web.first.test\n192.0.2.2 web.second.test only.second.test\n2001:db8::3 v6.Second.Test\n\
                 192.0.2.4 block.second.test\n",
            ),
        ],
        questions: "
            web.first.test. A each
            only.first.test. A each
            Only.First.test. A
            only.first.test. AAAA
            only.first.test. TXT
            v6.first.test. A
            v6.first.test. AAAA
            a.first.test. A each
            chain.first.test. A
            a.example.org.first.test. A each
            chain.example.org.first.test. A
            big.first.test. A
            big.first.test. A tcp
            x.denied.test.first.test. A each
            nowhere.first.test. A
            nowhere.first.test. TYPE65300
            x.refused.test.first.test. A
            block.first.test. A
            wrong.first.test. A
            quiet.first.test. A
            alias.first.test. A
            x.alias.first.test. A
            other.alias.first.test. AAAA
            first.test. A
            only.short. A
            a.short. A
            only.second.test. A
            only.other.test. A",
    },
    Group {
        name: "metadata",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                metadata
                template IN TXT {
                    answer \"{{ .Name }} 60 IN TXT \\\"{{ .Meta `forward/upstream` }}{{ $.Meta `none` }}|\\\"\"
                }
            }
            unlabeled.test:{$PORT} {
                bind 127.0.0.1
                template IN TXT {
                    answer \"{{ .Name }} 60 IN TXT \\\"{{ .Meta `forward/upstream` }}|\\\"\"
                }
            }",
        files: &[],
        questions: "
            a.test. TXT each
            a.unlabeled.test. TXT",
    },
];

#[tokio::test]
async fn names_are_completed_as_by_coredns() {
    compare(GROUPS).await;
}
