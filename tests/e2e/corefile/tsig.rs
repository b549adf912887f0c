//! The plugin *tsig*: signed queries, and their answers.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[Group {
    name: "tsig",
    corefile: "
        example.org:{$PORT} {
            bind 127.0.0.1
            tsig {
                secret xfr.test. eGZyLnRlc3Qu
                secret Wrong.test AAAA
                secrets keys.conf
                require TXT SOA
            }
            cache
            forward . {$UPSTREAM}
        }
        test:{$PORT} {
            bind 127.0.0.1
            tsig a.test {
                secret second.test c2Vjb25kLnRlc3Qu
                require all
            }
            whoami
        }
        opcodes.test:{$PORT} {
            bind 127.0.0.1
            tsig {
                secret third.test dGhpcmQudGVzdC4=
                require_opcode QUERY
            }
            whoami
        }",
    files: &[(
        "keys.conf",
        "key \"File.test\" {\n    algorithm hmac-sha512;\n    secret \"ZmlsZS50ZXN0Lg==\";\n};\nkey x.test. {\n\
         secret eC50ZXN0Lg==;\n};\n",
    )],
    questions: "
        a.example.org. A
        a.example.org. A key=xfr.test. each
        a.example.org. A each
        a.example.org. A key=xfr.test. algorithm=hmac-sha1
        a.example.org. A key=xfr.test. algorithm=hmac-sha224 tcp
        a.example.org. A key=xfr.test. algorithm=hmac-sha384
        a.example.org. A key=xfr.test. algorithm=hmac-sha512 tcp
        a.example.org. A key=xfr.test. behind=200
        a.example.org. A key=xfr.test. behind=1000
        a.example.org. A key=xfr.test. behind=1000 edns tcp
        a.example.org. A key=wrong.test. each
        a.example.org. A key=unknown.test. each
        a.example.org. A key=file.test.
        a.example.org. A key=file.test. algorithm=hmac-sha512
        a.example.org. A key=x.test.
        nowhere.example.org. A key=xfr.test.
        big.example.org. A key=xfr.test.
        big.example.org. A key=xfr.test. edns
        big.example.org. A key=xfr.test. tcp
        example.org. TXT each
        example.org. TXT key=xfr.test.
        example.org. SOA edns
        example.org. SOA edns key=xfr.test.
        example.org. MX
        b.a.test. A
        b.a.test. A key=second.test.
        b.a.test. AAAA tcp
        b.test. A
        b.test. A key=unknown.test.
        a.opcodes.test. A
        a.opcodes.test. A key=third.test.",
}];

#[tokio::test]
async fn tsig_answers_as_in_coredns() {
    compare(GROUPS).await;
}
