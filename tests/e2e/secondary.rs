//! The plugin *secondary*, with CoreDNS as the primary server.

use std::net::SocketAddr;
use std::path::Path;

use hickory_proto::op::{Message, OpCode};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::{CoreDns, answers, ask_udp, ede, query, show};
use crate::harness::linker::Linker;
use crate::harness::port::HeldPort;

/// Returns the zone file with a serial, which is also the last number of an address. Only NOTIFY can lead to a check
/// within an hour.
fn zone(serial: u32) -> String {
    format!(
        "$ORIGIN example.org.\n@ 300 SOA ns host {serial} 3600 3600 86400 60\n@ 300 NS ns\n@ 300 MX 10 mail\n\
         ns 300 A 192.0.2.53\nmail 300 AAAA 2001:db8::25\nwww 60 A 192.0.2.{serial}\nalias 60 CNAME www\n\
         *.wild 60 TXT \"a b\" c\nchild 60 NS ns.child\nns.child 60 A 192.0.2.54\nold 60 DNAME new\n\
         x.new 60 SRV 1 2 80 www\nodd 60 TYPE65280 \\# 2 abcd\nmany 60 A 192.0.2.1\nmany 60 A 192.0.2.2\n"
    )
}

/// Starts lb-linker as a secondary server, with further lines in its block.
fn start(directory: &Path, port: u16, primary: SocketAddr, lines: &str, args: &[&Path]) -> Linker {
    let corefile = format!(
        ".:{port} {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n\
         secondary example.org {{\ntransfer from {primary}\n}}\n{lines}\n}}\n"
    );
    let path = directory.join("Corefile");
    std::fs::write(&path, corefile).unwrap();
    Linker::start_bare(&[], [&[Path::new("--corefile"), &path], args].concat())
}

/// lb-linker as a secondary server, and CoreDNS as its primary server.
struct Pair {
    primary: CoreDns,
    directory: TempDir,
    port: HeldPort,
}

impl Pair {
    async fn start() -> Self {
        let port = HeldPort::take().unwrap();
        let primary = CoreDns::start(&Self::plugins(&port), &zone(1)).await;
        Self { primary, directory: tempfile::tempdir().unwrap(), port }
    }

    fn plugins(port: &HeldPort) -> String {
        let secondary = port.local();
        format!("file db example.org {{\nreload 1s\n}}\ntransfer example.org {{\nto * {secondary}\n}}")
    }

    async fn restart_primary(&mut self) {
        self.primary.restart(&Self::plugins(&self.port)).await;
    }

    /// Starts lb-linker, without a cluster.
    fn linker(&self) -> Linker {
        let snapshot = self.directory.path().join("links");
        let args = [Path::new("--snapshot"), &snapshot];
        start(self.directory.path(), self.port.number(), self.primary.address, "", &args)
    }
}

#[tokio::test]
async fn secondary_zone_is_answered_as_by_its_primary_server() {
    let pair = Pair::start().await;
    let linker = pair.linker();
    answers(linker.dns, "www.example.org. A", "192.0.2.1").await;
    for question in [
        "example.org. SOA",
        "example.org. NS",
        "example.org. MX",
        "alias.example.org. A",
        "a.wild.example.org. TXT",
        "a.child.example.org. A",
        "x.old.example.org. SRV",
        "many.example.org. A",
        "new.example.org. A",
    ] {
        // CoreDNS gives the SOA record of a denial another TTL.
        let message = query(question);
        let shown = |answer: &Message| show(answer).replace(" 300 IN SOA", " 60 IN SOA");
        let [own, expected] = [linker.dns, pair.primary.address].map(|server| ask_udp(server, &message));
        assert_eq!(shown(&own.await), shown(&expected.await), "{question}");
    }
}

#[tokio::test]
async fn secondary_follows_notify_and_outlives_its_primary_server() {
    let mut pair = Pair::start().await;
    let mut linker = pair.linker();
    let dns = linker.dns;
    let www = "www.example.org. A";
    answers(dns, www, "192.0.2.1").await;
    linker
        .line(&format!("zone example.org.: serial none → 1, 15 records from {}", pair.primary.address))
        .await;
    // CoreDNS sends NOTIFY when the file changes.
    pair.primary.write_db(&zone(2));
    answers(dns, www, "192.0.2.2").await;
    linker.line("zone example.org.: serial 1 → 2, 15 records from ").await;

    pair.primary.kill();
    assert!(linker.stop().success());
    let linker = pair.linker();
    answers(dns, www, "192.0.2.2").await;
    linker.line("links.zones/example.org-").await;
    linker.line(&format!("the zone before stays: {}: no connection: ", pair.primary.address)).await;
    // CoreDNS sends NOTIFY when it starts.
    pair.primary.write_db(&zone(3));
    pair.restart_primary().await;
    answers(dns, www, "192.0.2.3").await;
}

#[tokio::test]
async fn signed_transfer_needs_the_same_secret() {
    let tsig = |secret: &str| format!("tsig {{\nsecret key.example.org. {secret}\n}}");
    let plugins = "file db example.org\ntransfer example.org {\nto *\n}";
    let secret = "NoTCJU+DMqFWywaPyxSijrDEA/eC3nK0xi3AMEZuPVk=";
    let required = tsig(secret).replace('}', "require all\n}");
    let primary = CoreDns::start(&format!("{plugins}\n{required}"), &zone(1)).await;
    for (secret, is_right) in [(secret, true), ("d3Jvbmc=", false)] {
        let directory = tempfile::tempdir().unwrap();
        let linker = start(directory.path(), 0, primary.address, &tsig(secret), &[]);
        if is_right {
            answers(linker.dns, "www.example.org. A", "192.0.2.1").await;
        } else {
            linker.line(&format!("zone example.org.: {}: ", primary.address)).await;
            linker.line("BADSIG").await;
        }
    }
}

#[tokio::test]
async fn zone_of_a_secondary_is_transferred_to_another_one() {
    let pair = Pair::start().await;
    let directory = pair.directory.path();
    let first = start(directory, 0, pair.primary.address, "transfer example.org {\nto *\n}", &[]);
    answers(first.dns, "www.example.org. A", "192.0.2.1").await;
    let second = start(directory, 0, first.dns, "", &[]);
    answers(second.dns, "x.new.example.org. SRV", "1 2 80 www.example.org.").await;
    second.line(&format!("zone example.org.: serial none → 1, 15 records from {}", first.dns)).await;
}

#[tokio::test]
async fn secondary_without_a_zone_says_that_it_isnt_there_yet() {
    let mut pair = Pair::start().await;
    pair.primary.kill();
    let linker = pair.linker();
    linker.ready().await;
    let answer = ask_udp(linker.dns, &query("www.example.org. A")).await;
    assert_eq!((show(&answer), ede(&answer)), ("Server Failure rd |  |  | ".to_owned(), Some(14)));
    let (_, page) = linker.get_ready();
    assert!(page.contains("zones of secondary that can't be served: example.org."), "{page}");
    // It is tried again every 10 s at least, also without NOTIFY.
    pair.restart_primary().await;
    answers(linker.dns, "www.example.org. A", "192.0.2.1").await;
}

#[tokio::test]
async fn notify_of_other_senders_is_refused() {
    let pair = Pair::start().await;
    let linker = pair.linker();
    answers(linker.dns, "www.example.org. A", "192.0.2.1").await;
    let mut notify = query("example.org. SOA");
    notify.metadata.op_code = OpCode::Notify;
    notify.metadata.authoritative = true;
    notify.metadata.recursion_desired = false;
    for (source, expected) in
        [("127.0.0.1:0", "No Error aa |  |  | "), ("127.0.0.2:0", "Query Refused  |  |  | ")]
    {
        let socket = UdpSocket::bind(source).await.unwrap();
        socket.send_to(&notify.to_vec().unwrap(), linker.dns).await.unwrap();
        let mut bytes = [0; 512];
        let length = timeout(EVENT_TIMEOUT, socket.recv(&mut bytes)).await.unwrap().unwrap();
        let reply = Message::from_vec(&bytes[..length]).unwrap();
        assert_eq!((show(&reply).as_str(), reply.metadata.op_code), (expected, OpCode::Notify), "{source}");
        assert_eq!(reply.queries, notify.queries);
    }
    linker
        .line("NOTIFY refused since the last such line: 1; the newest, for example.org., of 127.0.0.2")
        .await;
}
