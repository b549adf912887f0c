//! The small plugins: acl, any, bufsize, chaos, loadbalance, local, minimal, nsid, whoami.

use std::net::Ipv6Addr;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::compare::{Group, compare};
use super::server::{CorefileDir, Program, Server};
use crate::harness::EVENT_TIMEOUT;
use crate::harness::has_ipv6;

pub const GROUPS: &[Group] = &[
    Group {
        name: "acl",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                acl block.test {
                    allow net 127.0.0.2
                    block
                }
                acl filter.test {
                    filter type A MX net 127.0.0.0/30
                    block type TXT net *
                }
                acl drop.test {
                    allow type AAAA
                    drop net 127.0.0.1 127.0.0.2/32
                }
                acl example.org {
                    block type ANY
                    allow net 127.0.0.1
                    filter type * net 127.0.0.3
                    drop
                }
                template IN ANY test {
                    answer \"{{ .Name }} 60 IN CNAME a.example.org\"
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            x.block.test. CNAME each
            x.block.test. CNAME from=127.0.0.2
            block.test. CNAME
            X.BLOCK.test. CNAME case
            x.filter.test. A each
            x.filter.test. A from=127.0.0.4
            x.filter.test. MX
            x.filter.test. TXT
            x.filter.test. TXT from=127.0.0.9 tcp
            x.filter.test. AAAA
            x.drop.test. A silent
            x.drop.test. A tcp silent
            x.drop.test. A edns do silent
            x.drop.test. AAAA
            x.drop.test. A from=127.0.0.3
            x.drop.test. TXT from=127.0.0.2 silent
            a.example.org. A
            a.example.org. A from=127.0.0.3
            a.example.org. A from=127.0.0.3 tcp
            a.example.org. A from=127.0.0.4 silent
            a.example.org. ANY
            x.free.test. A",
    },
    Group {
        name: "any",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                any
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            example.org. ANY each
            Example.ORG. ANY case
            nowhere.example.org. ANY
            a.example.org. A
            . ANY
            example.org. ANY nord",
    },
    Group {
        name: "chaos",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                chaos lb-1.0 one@example.org two@example.org
                forward . {$UPSTREAM}
            }
            named.bind:{$PORT} {
                bind 127.0.0.1
                chaos only-a-version
            }",
        files: &[],
        questions: "
            version.bind. TXT CH each
            version.server. TXT CH
            authors.bind. TXT CH
            hostname.bind. TXT CH
            id.server. TXT CH
            Version.Bind. TXT CH case
            other.bind. TXT CH
            version.bind. A CH
            version.bind. TXT
            version.bind. TXT HS
            version.bind. TXT ANY
            a.example.org. A
            a.example.org. A CH
            x.named.bind. TXT CH
            named.bind. A",
    },
    Group {
        name: "whoami",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                whoami
            }",
        files: &[],
        questions: "
            example.org. A each
            example.org. AAAA
            example.org. TXT
            Example.ORG. SRV case
            . A
            example.org. A from=127.0.0.9
            example.org. A from=127.0.0.9 tcp
            example.org. A nord
            example.org. ANY
            example.org. AXFR tcp
            example.org. A CH
            example.org. SOA opcode=4
            example.org. SOA opcode=5",
    },
    Group {
        name: "loadbalance",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                loadbalance
                forward . {$UPSTREAM}
            }
            cluster.local:{$PORT} {
                bind 127.0.0.1
                loadbalance round_robin {
                    prefer 10.96.0.0/16
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            b.example.org. A each
            chain.example.org. A
            chain.example.org. AAAA tcp
            example.org. MX
            nowhere.example.org. A
            b.example.org. AAAA
            _http._tcp.example.org. SRV
            kubernetes.default.svc.cluster.local. A",
    },
    Group {
        name: "local",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                local
                forward . {$UPSTREAM}
            }
            example.org:{$PORT} {
                bind 127.0.0.1
                local {
                    localhost_prefix off
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            localhost. A each
            localhost. AAAA
            localhost. SOA
            localhost. NS
            localhost. TXT
            localhost. ANY
            LocalHost. A case
            a.localhost. A
            a.localhost. AAAA
            a.localhost. MX
            a.b.localhost. A
            localhost.test. A
            localhost.test. AAAA
            localhost.test. TXT
            localhost.example.org. A
            a.localhost.test. A
            1.0.0.127.in-addr.arpa. PTR
            1.0.0.127.in-addr.arpa. A
            2.0.0.127.in-addr.arpa. PTR
            127.in-addr.arpa. SOA
            127.in-addr.arpa. NS
            0.in-addr.arpa. SOA
            0.in-addr.arpa. PTR
            1.0.0.0.in-addr.arpa. PTR
            255.in-addr.arpa. A
            255.255.255.255.in-addr.arpa. PTR
            localhost. A CH
            a.example.org. A",
    },
    Group {
        name: "dns64",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                dns64 {
                    allow_ipv4
                }
                forward . {$UPSTREAM}
            }
            example.org:{$PORT} test:{$PORT} {
                bind 127.0.0.1
                dns64 64:ff9b:1::/96
                forward . {$UPSTREAM}
            }
            b.example.org:{$PORT} alias.example.org:{$PORT} {
                bind 127.0.0.1
                dns64 {
                    prefix 2001:db8:64::/48
                    translate_all
                    allow_ipv4
                }
                forward . {$UPSTREAM}
            }
            long.test:{$PORT} mixed.test:{$PORT} servfail.test:{$PORT} {
                bind 127.0.0.1
                dns64 {
                    allow_ipv4
                }
                cache
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            kubernetes.default.svc.cluster.local. AAAA each
            kubernetes.default.svc.cluster.local. AAAA edns do cd
            kubernetes.default.svc.cluster.local. A
            nowhere.cluster.local. AAAA
            cluster.local. AAAA
            a.example.org. AAAA each
            b.example.org. AAAA
            b.example.org. AAAA tcp
            b.example.org. HTTPS
            alias.example.org. AAAA
            x.long.test. AAAA
            x.long.test. AAAA
            x.long.test. A
            x.mixed.test. AAAA
            x.servfail.test. AAAA",
    },
    Group {
        name: "erratic",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                erratic {
                    drop 4
                    delay 2 20ms
                }
            }
            large.test:{$PORT} {
                bind 127.0.0.1
                erratic {
                    drop 0
                    large
                }
            }
            default.test:{$PORT} {
                bind 127.0.0.1
                erratic
            }
            truncate.test:{$PORT} {
                bind 127.0.0.1
                erratic {
                    truncate
                }
            }",
        files: &[],
        questions: "
            example.org. A silent
            example.org. A
            example.org. AAAA tcp
            Example.ORG. A case
            example.org. A silent
            example.org. TXT
            x.large.test. A each
            x.large.test. AAAA
            x.default.test. A tcp silent
            x.default.test. A
            x.default.test. TXT silent
            x.truncate.test. A",
    },
    Group {
        name: "header",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                header {
                    query clear rd
                    response clear ra
                    Response SET aa
                }
                forward . {$UPSTREAM}
            }
            cached.example.org:{$PORT} {
                bind 127.0.0.1
                cache
                rewrite name suffix .cached.example.org .example.org answer auto
                header {
                    query set rd
                    response clear aa ra rd
                }
                forward . {$UPSTREAM}
            }
            test:{$PORT} {
                bind 127.0.0.1
                header {
                    query set aa ra rd
                    response clear aa
                    response set aa ra
                }
                template IN A a.test {
                    answer \"{{ .Name }} 60 IN A 192.0.2.1\"
                }
                template IN TXT a.test {
                    answer \"{{ .Name }} 60 IN TXT {{ .Message.Authoritative }}{{ .Message.RecursionAvailable }}\"
                }
            }",
        files: &[],
        questions: "
            a.example.org. A each
            a.example.org. A nord
            nowhere.example.org. A
            x.servfail.test. A nord
            a.cached.example.org. A
            a.cached.example.org. A
            a.cached.example.org. A nord
            a.test. A
            a.test. A nord
            a.test. TXT
            b.test. A nord",
    },
    Group {
        name: "minimal",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                minimal
                forward example.org {$UPSTREAM}
                forward test {$UPSTREAM}
                forward . {$ODD}
            }
            cached.example.org:{$PORT} {
                bind 127.0.0.1
                cache
                minimal
                rewrite name suffix .cached.example.org .example.org answer auto
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A each
            example.org. MX
            example.org. NS
            a.example.org. AAAA
            nowhere.example.org. A each
            host.sub.example.org. A
            sub.example.org. NS
            big.example.org. A
            x.mixed.test. A
            x.servfail.test. A
            x.refused.test. A
            extra.odd. A
            empty.odd. A
            a.cached.example.org. A
            a.cached.example.org. A
            nowhere.cached.example.org. A
            nowhere.cached.example.org. A",
    },
    Group {
        name: "bufsize",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                bufsize
                forward . {$UPSTREAM}
            }
            huge.example.org:{$PORT} {
                bind 127.0.0.1
                bufsize 800
                forward . {$UPSTREAM}
            }
            big.example.org:{$PORT} {
                bind 127.0.0.1
                bufsize 512
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A each
            giant.example.org. TXT edns=4096
            giant.example.org. TXT edns=600
            giant.example.org. TXT
            giant.example.org. TXT tcp
            giant.example.org. TXT edns=4096 tcp
            big.example.org. A each
            huge.example.org. A each",
    },
    Group {
        name: "nsid",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                nsid \"Use The Force\"
                forward . {$UPSTREAM}
            }
            named.test:{$PORT} {
                bind 127.0.0.1
                nsid
                whoami
            }
            words.test:{$PORT} {
                bind 127.0.0.1
                nsid several words
                cache
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A each
            a.example.org. A nsid tcp
            a.example.org. A nsid do
            nowhere.example.org. A nsid
            x.servfail.test. A nsid
            big.example.org. A edns=512 nsid
            x.named.test. A nsid
            x.named.test. A edns
            x.words.test. A nsid
            x.words.test. A nsid
            x.words.test. A edns
            x.words.test. A",
    },
    Group {
        name: "no effect",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                multisocket 2
                pprof 127.0.0.1:0 {
                    block 1
                }
                shed
                prometheus 127.0.0.1:0 {
                    runtime_metrics
                }
                errors {
                    stacktrace
                }
                whoami
            }",
        files: &[],
        questions: "
            a.example.org. A each",
    },
    Group {
        name: "all of them",
        corefile: "
            .:{$PORT} {
                bind 127.0.0.1
                errors
                cancel
                nsid all
                bufsize 1232
                local
                any
                chaos all
                loadbalance
                rewrite name suffix .short .example.org answer auto
                acl refused.example.org {
                    block
                }
                cache 20
                minimal
                template IN A template.example.org {
                    answer \"{{ .Name }} 60 IN A 192.0.2.1\"
                    authority \"example.org 60 IN NS ns.example.org\"
                }
                hosts {
                    192.0.2.2 hosts.example.org
                    fallthrough
                }
                forward . {$UPSTREAM}
            }",
        files: &[],
        questions: "
            a.example.org. A each
            a.short. A each
            chain.short. AAAA
            chain.short. AAAA
            nowhere.short. AAAA
            x.refused.example.org. A
            template.example.org. A
            template.example.org. A
            hosts.example.org. A
            hosts.example.org. A
            localhost. A
            version.bind. TXT CH
            example.org. ANY
            x.servfail.test. A
            host.sub.example.org. A
            host.sub.example.org. A",
    },
];

#[tokio::test]
async fn small_plugins_answer_as_coredns_does() {
    compare(GROUPS).await;
}

#[tokio::test]
async fn dns64_translates_for_a_client_with_ipv6() {
    if !has_ipv6() {
        return;
    }
    let site = CorefileDir::new(
        ".:{$PORT} {
            bind ::1
            dns64
            template IN A . {
                answer \"{{ .Name }} 60 IN A 192.0.2.1\"
            }
            template IN AAAA . {
                rcode NOERROR
            }
        }",
        &[],
    );
    let server = Server::start(Program::subject(), &site).await;
    let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect((Ipv6Addr::LOCALHOST, server.dns().port())).await.unwrap();
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::AAAA));
    socket.send(&query.to_vec().unwrap()).await.unwrap();
    let mut reply = [0; 512];
    let length = timeout(EVENT_TIMEOUT, socket.recv(&mut reply)).await.expect("an answer").unwrap();
    let reply = Message::from_vec(&reply[..length]).unwrap();
    let data: Vec<String> = reply.answers.iter().map(|record| record.data.to_string()).collect();
    assert_eq!(data, ["64:ff9b::c000:201"]);
}
