//! `template` with all its options.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[
    Group {
        name: "template",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                template IN A example {
                    match (^|[.])ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$
                    answer "{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}"
                    fallthrough
                }
                template IN A example {
                    match "^ip0a(?P<b>[a-f0-9]{2})(?P<c>[a-f0-9]{2})(?P<d>[a-f0-9]{2})[.]example[.]$"
                    answer "{{ .Name }} 60 IN A 10.{{ parseInt .Group.b 16 8 }}.{{ parseInt .Group.c 16 8 }}.{{ parseInt .Group.d 16 8 }}"
                    fallthrough
                }
                template IN MX example {
                    match "^ip-10-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$"
                    answer "{{ .Name }} 60 IN MX 10 {{ .Name }}"
                    additional "{{ .Name }} 60 IN A 10.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}"
                    authority "example. 60 IN NS ns0.example."
                    authority "example. 60 IN NS ns1.example."
                    additional "ns0.example. 60 IN A 203.0.113.8"
                }
                template IN PTR in-addr.arpa {
                    match "^(?P<d>[0-9]*)[.](?P<c>[0-9]*)[.](?P<b>[0-9]*)[.](?P<a>[0-9]*)[.]in-addr[.]arpa[.]$"
                    answer "{{ .Name }} 60 IN PTR ip-{{ .Group.a }}-{{ .Group.b }}-{{ .Group.c }}-{{ .Group.d }}.example."
                }
                template IN ANY alias.test {
                    match "^alias\.test\.$"
                    answer "alias.test 60 IN CNAME a.example.org"
                }
                template ANY ANY invalid {
                    rcode NXDOMAIN
                    authority "invalid. 60 {{ .Class }} SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)"
                    ederror 21 "Blocked according to RFC2606"
                }
                template IN TXT show.test {
                    answer "{{ .Name }} 5 IN TXT \"{{ .Name }}\" \"{{ .Zone }}\" \"{{ .Class }}\" \"{{ .Type }}\" \"{{ .Remote }}\" \"{{ .Question.Name }}\" \"{{ len .Match }}\""
                }
                template IN TXT if.test {
                    match "^(?P<left>[a-z]*)-?(?P<right>[a-z]*)\.if\.test\.$"
                    answer "{{ .Name }} 5 IN TXT \"{{ if .Group.right }}both {{ .Group.left }} {{ .Group.right }}{{ else }}one {{ index .Match 1 }}{{ end }}\""
                }
                template IN TXT printf.test {
                    match "^(?P<number>[0-9]+)\.printf\.test\.$"
                    answer "{{ .Name }} 5 IN TXT \"{{ printf \"%05d %x\" (parseInt .Group.number 10 32) (parseInt .Group.number 10 32) }}\" \"{{ printf \"%q\" .Zone }}\""
                }
                template IN TXT range.test {
                    match "^(.)(.)(.)\.range\.test\.$"
                    answer "{{ .Name }} 5 IN TXT \"{{ range $i, $m := .Match }}[{{ $i }}={{ $m }}]{{ end }}\""
                }
                template IN A zero.test {
                    answer "{{ .Name }} IN A 192.0.2.1"
                }
                template IN AAAA several.test {
                    match "^a\."
                    match "^b(?P<n>[0-9])\."
                    answer "{{ .Name }} 60 IN AAAA 2001:db8::{{ .Group.n }}1"
                }
                template IN A wrong.test {
                    match "^(?P<what>[^.]*)\."
                    answer "{{ .Name }} 60 IN A {{ .Group.what }}"
                }
                template IN A lacking.test {
                    answer "{{ .Name }} 60 IN A {{ index .Match 7 }}"
                }
                template IN A refused.test {
                    rcode REFUSED
                }
                template IN ANY empty.test
                template IN A case.test {
                    match "^[a-z]+\.case\.test\.$"
                    answer "{{ .Name }} 60 IN A 192.0.2.2"
                }
                template CH TXT chaos.test {
                    answer "{{ .Name }} 0 CH TXT chaos"
                }
                forward example.org {$UPSTREAM}
            }"#,
        files: &[],
        questions: r#"
            ip-10-1-2-3.example. A each
            x.ip-10-1-2-3.example. A
            ip-10-1-2-300.example. A
            ip-10-1-2.example. A
            ip0a7b0c01.example. A
            IP0A7B0C01.example. A
            ip-10-1-2-3.example. MX each
            ip-11-1-2-3.example. MX
            ip-10-1-2-3.example. AAAA
            ip-10-1-2-3.example. TXT
            3.2.1.10.in-addr.arpa. PTR
            2.1.10.in-addr.arpa. PTR
            3.2.1.10.in-addr.arpa. A
            alias.test. A
            alias.test. AAAA
            alias.test. CNAME
            alias.test. TXT tcp
            alias.test. ANY
            x.alias.test. A
            foo.invalid. A each
            foo.invalid. TXT CH
            invalid. SOA
            a.show.test. TXT
            A.Show.TEST. TXT case
            a.show.test. TXT edns do
            a.show.test. A
            left.if.test. TXT
            left-right.if.test. TXT
            -right.if.test. TXT
            1.if.test. TXT
            255.printf.test. TXT
            4294967295.printf.test. TXT
            99999999999.printf.test. TXT
            abc.range.test. TXT
            abcd.range.test. TXT
            zero.test. A
            x.zero.test. A tcp
            a.several.test. AAAA
            b7.several.test. AAAA
            c.several.test. AAAA
            192.wrong.test. A
            x.lacking.test. A
            x.refused.test. A
            x.empty.test. A
            x.empty.test. TXT edns do
            abc.case.test. A
            ABC.case.test. A case
            chaos.test. TXT CH
            chaos.test. TXT
            a.example.org. A
            elsewhere.test. A"#,
    },
    Group {
        name: "template: zones and fallthrough",
        corefile: r#"
            example.org:{$PORT} test:{$PORT} {
                bind 127.0.0.1
                template IN A {
                    match "^a\."
                    answer "{{ .Name }} 60 IN A 192.0.2.77"
                    fallthrough example.org
                }
                template IN TXT sub.example.org sub.test {
                    answer "{{ .Name }} 60 IN TXT \"{{ .Zone }}\""
                    fallthrough
                }
                template IN AAAA {
                    rcode NXDOMAIN
                    authority "{{ .Zone }} 30 IN SOA ns.{{ .Zone }} root.{{ .Zone }} 1 2 3 4 5"
                }
                forward . {$UPSTREAM}
            }"#,
        files: &[],
        questions: "
            a.example.org. A
            b.example.org. A
            a.test. A
            b.test. A
            x.sub.example.org. TXT
            x.sub.test. TXT
            x.test. TXT
            text.example.org. TXT
            b.example.org. AAAA
            b.test. AAAA tcp
            example.org. MX
            a.elsewhere. A",
    },
    Group {
        name: "template: behind cache",
        corefile: r#"
            .:{$PORT} {
                bind 127.0.0.1
                cache
                template IN A fails.test {
                    rcode SERVFAIL
                }
                template IN A broken.test {
                    answer "this is no record"
                }
                template IN A code.test {
                    rcode BADCOOKIE
                }
                template IN A {
                    match "^a\."
                }
            }"#,
        files: &[],
        questions: "
            x.fails.test. A edns
            x.fails.test. A edns
            x.broken.test. A edns
            x.broken.test. A edns tcp
            x.code.test. A edns
            b.test. A edns
            b.test. A edns",
    },
];

#[tokio::test]
async fn template_answers_as_coredns_does() {
    compare(GROUPS).await;
}
