//! `proxyproto`, with headers of both versions.

use super::compare::{Group, compare};

pub const GROUPS: &[Group] = &[Group {
    name: "proxyproto",
    corefile: "
        .:{$PORT} {
            bind 127.0.0.1
            proxyproto {
                allow 127.0.0.0/28
                default reject
            }
            acl {
                block net 192.0.2.9/32
            }
            whoami
        }
        .:{$PORT2} {
            bind 127.0.0.1
            proxyproto {
                allow 127.0.0.0/28
            }
            whoami
        }
        .:{$PORT3} {
            bind 127.0.0.1
            proxyproto {
                allow 127.0.0.0/28
                default skip
            }
            whoami
        }
        tls://.:{$TLS} {
            bind 127.0.0.1
            proxyproto {
                allow 127.0.0.1/32
            }
            whoami
        }",
    files: &[],
    questions: "
        a. A
        a. A tcp
        a. A proxy=v2/192.0.2.7
        a. A proxy=v2/2001:db8::7
        a. A proxy=v2/192.0.2.9
        a. A proxy=v2/192.0.2.7 from=127.0.0.2
        a. A proxy=bad silent
        a. A tcp proxy=v1/192.0.2.7
        a. A tcp proxy=v1/2001:db8::7
        a. A tcp proxy=v2/192.0.2.7
        a. A tcp proxy=v2/2001:db8::7
        a. A tcp proxy=v2/192.0.2.9
        a. A tcp proxy=local
        a. A tcp proxy=unknown
        a. A tcp proxy=bad silent
        a. A from=127.0.0.77
        a. A from=127.0.0.77 tcp
        a. A from=127.0.0.77 proxy=v2/192.0.2.7 silent
        a. A from=127.0.0.77 tcp proxy=v1/192.0.2.7 silent
        a. A from=127.0.0.77 tcp proxy=v2/192.0.2.7 silent
        a. A port2 proxy=v2/192.0.2.7
        a. A port2 from=127.0.0.77
        a. A port2 from=127.0.0.77 proxy=v2/192.0.2.7
        a. A port2 from=127.0.0.77 tcp proxy=v1/192.0.2.7
        a. A port2 from=127.0.0.77 tcp proxy=v2/192.0.2.7
        a. A port3 tcp proxy=v1/192.0.2.7
        a. A port3 from=127.0.0.77
        a. A port3 from=127.0.0.77 tcp proxy=v1/192.0.2.7 silent
        a. A port-tls tcp
        a. A port-tls tcp proxy=v2/192.0.2.7",
}];

#[tokio::test]
async fn proxyproto_answers_as_coredns_does() {
    compare(GROUPS).await;
}
