use std::fs;

use hickory_proto::op::OpCode;
use tracing::Level;

use super::*;
use crate::captured_log::CapturedLog;
use crate::dns::chain::server::Server;
use crate::dns::plugins::tests::support::{TestServer, show};

const SOA: &str = "example.org. 60 IN SOA ns.example.org. host.example.org. 7 1 2 3 4";

/// A zone with serial 7 and 4 records, and a client by TCP.
fn server(transfer: &str) -> (tempfile::TempDir, TestServer) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    fs::write(&file, "$TTL 60\n@ SOA ns host 7 1 2 3 4\n@ NS ns\nns A 192.0.2.1\nsub A 192.0.2.2\n").unwrap();
    let lines = format!("file {} example.org\n{transfer}\nwhoami", file.display());
    let mut server = TestServer::block(&lines);
    server.request.protocol = Protocol::Tcp;
    (directory, server)
}

/// Returns the reply as text, and the number of records of a transfer.
async fn ask(server: &TestServer, question: &str, serial: Option<u32>) -> (String, Option<usize>) {
    // hickory-proto doesn't parse IXFR.
    let mut request = server.request(&question.replace("IXFR", "AXFR"));
    if question.ends_with("IXFR") {
        request.query.set_query_type(RecordType::IXFR);
    }
    request.soa_serial = serial;
    let reply = Server::serve(&mut request).await.unwrap();
    let records = reply.stream.as_ref().and_then(RecordStream::take).map(|records| records.flatten().count());
    (show(&reply), records)
}

#[tokio::test]
async fn transfers_are_answered_by_serial_and_transport() {
    let (_directory, mut server) = server("transfer example.org {\nto 10.0.0.1:5300\n}");
    let soa = format!("NOERROR aa | {SOA} | |");
    let whole = (soa.clone(), Some(5));
    let alone = (soa, None);
    let refused = ("REFUSED | | |".to_owned(), None);
    let malformed = ("FORMERR | | |".to_owned(), None);
    for (question, serial, by_tcp, by_udp) in [
        ("example.org. AXFR", None, &whole, &refused),
        ("EXAMPLE.org. IXFR", Some(6), &whole, &alone),
        ("example.org. IXFR", Some(7), &alone, &alone),
        ("example.org. IXFR", Some(8), &alone, &alone),
        ("example.org. IXFR", Some(7 + (1 << 31)), &alone, &alone),
        ("example.org. IXFR", Some(8 + (1 << 31)), &whole, &alone),
        ("example.org. IXFR", None, &malformed, &malformed),
        ("sub.example.org. AXFR", None, &refused, &refused),
        ("example.net. AXFR", None, &refused, &refused),
        ("example.org. CH AXFR", None, &refused, &refused),
    ] {
        for (protocol, expected) in
            [(Protocol::Tcp, by_tcp), (Protocol::Tls, by_tcp), (Protocol::Udp, by_udp)]
        {
            server.request.protocol = protocol;
            let (text, records) = ask(&server, question, serial).await;
            let text = text.replace("EXAMPLE.org", "example.org");
            assert_eq!((&text, &records), (&expected.0, &expected.1), "{question} {serial:?} {protocol}");
        }
    }
}

#[tokio::test]
async fn only_listed_clients_get_the_zone_of_the_longest_line() {
    let lines = "transfer . {\nto *\n}\ntransfer example.org {\nto 10.0.0.2 2001:db8::1\n}";
    let (_directory, server) = server(lines);
    for (client, expected) in
        [("10.0.0.1", None), ("10.0.0.2", Some(5)), ("2001:db8::1", Some(5)), ("2001:db8::2", None)]
    {
        let server = server.clone().from(client);
        assert_eq!(ask(&server, "example.org. AXFR", None).await.1, expected, "{client}");
    }
}

#[tokio::test]
async fn refused_transfers_are_logged_with_their_reason() {
    let lines = "transfer example.org {\nto 10.0.0.2\n}";
    let no_line = "no line of transfer has this zone";
    for (client, question, protocol, reason) in [
        ("10.0.0.2", "example.net. AXFR", Protocol::Tcp, no_line),
        ("10.0.0.1", "example.org. AXFR", Protocol::Tcp, "`to` doesn't list the client"),
        (
            "10.0.0.2",
            "www.example.org. AXFR",
            Protocol::Tcp,
            "it isn't the origin of a zone that can be transferred",
        ),
        ("10.0.0.2", "example.org. AXFR", Protocol::Udp, "AXFR is answered only by TCP, TLS and QUIC"),
    ] {
        let (log, _guard) = CapturedLog::start(Level::WARN);
        let (_directory, server) = server(lines);
        let mut server = server.from(client);
        server.request.protocol = protocol;
        assert_eq!(ask(&server, question, None).await.0, "REFUSED | | |");
        let zone = question.trim_end_matches(" AXFR");
        assert!(
            log.text().contains(&format!("transfer: {zone} refused to {client}: {reason}")),
            "{}",
            log.text()
        );
    }
}

#[tokio::test]
async fn other_requests_pass_transfer_unchanged() {
    let (_directory, mut server) = server("transfer {\nto *\n}");
    assert!(ask(&server, "sub.example.org. A", None).await.0.starts_with("NOERROR aa | sub.example.org."));
    server.request.metadata.op_code = OpCode::Notify;
    assert_eq!(ask(&server, "example.org. SOA", None).await.0, "NOTIMP | | |");
}

#[tokio::test]
async fn blocks_without_transfer_refuse_transfers() {
    let (_directory, server) = server("");
    assert_eq!(ask(&server, "example.org. AXFR", None).await.0, "REFUSED | | |");
}

#[tokio::test]
async fn zone_of_a_view_is_not_transferred_to_its_other_clients() {
    let directory = tempfile::tempdir().unwrap();
    let file = |serial: u32| {
        let file = directory.path().join(serial.to_string());
        fs::write(&file, format!("$TTL 60\n@ SOA ns host {serial} 1 2 3 4\n@ NS ns\n")).unwrap();
        format!("file {} example.org\ntransfer {{\nto *\n}}", file.display())
    };
    let view = |expression: &str| format!("view v {{\nexpr {expression}\n}}");
    let text = format!(
        "example.org {{\n{}\n{}\n}}\norg {{\n{}\n{}\n}}\nexample.org {{\nview w\n{}\n}}\n",
        view("client_ip() == '10.0.0.1'"),
        file(1),
        view("true"),
        file(2),
        file(3)
    );
    let without = text.replace("view w", "view w {\nexpr false\n}");
    for (text, client, serial) in
        [(&text, "10.0.0.1", 1), (&text, "10.0.0.2", 3), (&without, "10.0.0.1", 1), (&without, "10.0.0.2", 2)]
    {
        let mut server = TestServer::corefile(text).from(client);
        server.request.protocol = Protocol::Tcp;
        let found = ask(&server, "example.org. AXFR", None).await.0;
        assert!(found.contains(&format!(" host.example.org. {serial} ")), "{client}: {found}");
    }
}

#[tokio::test]
async fn labels_of_a_block_route_no_transfer_to_another_one() {
    let (zone, directory) = ("web.shop.svc.cluster.local", tempfile::tempdir().unwrap());
    let file = |serial: u32| {
        let file = directory.path().join(serial.to_string());
        fs::write(&file, format!("$TTL 60\n@ SOA ns host {serial} 1 2 3 4\n@ NS ns\n")).unwrap();
        format!("file {} {zone}\ntransfer {{\nto *\n}}", file.display())
    };
    let view = "view shop {\nexpr metadata('kubernetes/namespace') == 'shop'\n}";
    let (first, second) = (file(1), file(2));
    let blocks = format!(
        "{zone} {{\n{view}\n{first}\n}}\n{zone} {{\nmetadata\nkubernetes cluster.local\n{second}\n}}\n"
    );
    let mut server = TestServer::corefile(&blocks);
    server.request.protocol = Protocol::Tcp;
    let found = ask(&server, &format!("{zone}. AXFR"), None).await.0;
    assert!(found.contains(" 2 1 2 3 4"), "{found}");
}

#[tokio::test]
async fn zone_without_a_file_gets_servfail() {
    let lines = "file /nonexistent/db example.org\ntransfer {\nto *\n}";
    let mut server = TestServer::block(lines);
    server.request.protocol = Protocol::Tcp;
    assert_eq!(ask(&server, "example.org. AXFR", None).await.0, "SERVFAIL | | |");
}

#[tokio::test(start_paused = true)]
async fn clients_that_only_the_asterisk_admits_have_two_places() {
    let (_directory, server) = server("transfer {\nto * 10.0.0.1 2001:db8::a 2001:db8::b\n}");
    let mut transfers = Vec::new();
    for (client, is_served) in [
        ("2001:db8:1::1", true),
        ("2001:db8:1::2", false),
        ("10.0.0.2", true),
        ("10.0.0.3", false),
        ("2001:db8:2::1", false),
        ("2001:db8::a", true),
        ("2001:db8::b", true),
        ("10.0.0.1", false),
    ] {
        let reply = server.clone().from(client).reply("example.org. AXFR").await.unwrap();
        assert_eq!(reply.metadata.response_code == ResponseCode::NoError, is_served, "{client}");
        transfers.push(reply);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_has_one_transfer_and_the_process_four() {
    let (_directory, server) = server("transfer {\nto 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5\n}");
    let transfer = async |client: &str| {
        let server = server.clone().from(client);
        let reply = server.reply("example.org. AXFR").await.unwrap();
        (reply.metadata.response_code == ResponseCode::NoError).then_some(reply)
    };
    let mut transfers = Vec::new();
    for (client, is_served) in [(1, true), (1, false), (2, true), (3, true), (4, true), (5, false)] {
        let reply = transfer(&format!("10.0.0.{client}")).await;
        assert_eq!(reply.is_some(), is_served, "{client}");
        transfers.extend(reply);
    }
    let (waiting, ()) = tokio::join!(transfer("10.0.0.5"), async { drop(transfers.pop()) });
    assert!(waiting.is_some());
}

/// A zone whose state is made when the test says so.
struct SlowZone {
    begun: Arc<tokio::sync::Notify>,
    go_on: parking_lot::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl TransferredZone for SlowZone {
    fn serial(&self) -> Option<u32> {
        None
    }

    fn state(&self) -> Option<ZoneState> {
        self.begun.notify_one();
        self.go_on.lock().recv().ok();
        None
    }
}

#[tokio::test]
async fn place_is_held_until_the_state_is_made_without_the_client() {
    let (slots, begun) = (Arc::<TransferSlots>::default(), Arc::<tokio::sync::Notify>::default());
    let client = IpAddr::from([10, 0, 0, 1]);
    let slot = slots.take(client, true).await.unwrap();
    let (end, go_on) = std::sync::mpsc::channel();
    let zone = Arc::new(SlowZone { begun: Arc::clone(&begun), go_on: go_on.into() });
    let making = tokio::spawn(state_of(zone, slot));
    begun.notified().await;
    making.abort();
    assert!(making.await.unwrap_err().is_cancelled());
    assert_eq!(slots.held(), 1);
    drop(end);
    slots.take(client, true).await.unwrap();
}

#[tokio::test]
async fn transfer_is_one_state_of_the_zone() {
    let (directory, server) = server("transfer {\nto *\n}");
    let reply = server.reply("example.org. AXFR").await.unwrap();
    let mut records = reply.stream.unwrap().take().unwrap();
    let first = records.next().flatten();
    let file = directory.path().join("db");
    fs::write(&file, "$TTL 60\n@ SOA ns host 8 1 2 3 4\n@ NS ns\n").unwrap();
    let registry = &server.shared.zones;
    let origin = Name::from_ascii("example.org.").unwrap();
    registry.zone(file, origin).refresh(true);
    assert_eq!(ask(&server.clone().from("10.0.0.2"), "example.org. AXFR", None).await.1, Some(3));
    assert_eq!(records.by_ref().count(), 4);
    assert_eq!(first.unwrap().serial(), Some(7));
}

#[test]
fn lines_for_zones_that_no_plugin_transfers_are_warned_of() {
    let zone =
        |zone: &str| format!("no plugin of this block transfers the zone {zone}: its transfers are refused");
    for (lines, expected) in [
        ("file /nonexistent/db example.org\ntransfer example.org {\nto *\n}", None),
        ("file /nonexistent/db example.org\ntransfer {\nto *\n}", None),
        (
            "file /nonexistent/db example.org\ntransfer example.org b.example.org {\nto *\n}",
            Some("b.example.org"),
        ),
        ("lb_linker lb.internal\ntransfer lb.internal {\nto *\n}", None),
        ("auto example.org {\ndirectory /nonexistent\n}\ntransfer example.org {\nto *\n}", None),
        ("whoami\ntransfer {\nto *\n}", Some(".")),
    ] {
        let warnings = TestServer::builder(lines).warnings;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let found = warnings.iter().find(|warning| warning.contains("transfers the zone"));
        let ends = expected.is_none_or(|missing| found.is_some_and(|it| it.ends_with(&zone(missing))));
        assert!(found.is_some() == expected.is_some() && ends, "{lines}: {warnings:?}");
    }
}

#[test]
fn invalid_lines_of_transfer_are_rejected_with_their_position() {
    for (lines, expected) in [
        (
            "transfer",
            format!("Corefile:2:1: transfer needs `to` with {ADDRESSES}, on a line of its own in braces"),
        ),
        (
            "transfer {\nsource 192.0.2.1\n}",
            format!("Corefile:2:1: transfer needs `to` with {ADDRESSES}, on a line of its own in braces"),
        ),
        ("transfer {\nto\n}", format!("Corefile:3:1: to needs {ADDRESSES}")),
        ("transfer {\nto example.com\n}", format!("Corefile:3:4: \"example.com\" isn't {ADDRESSES}")),
        ("transfer {\nto 192.0.2.1:0\n}", format!("Corefile:3:4: \"192.0.2.1:0\" isn't {ADDRESSES}")),
        ("transfer {\nto [::1]\n}", format!("Corefile:3:4: \"[::1]\" isn't {ADDRESSES}")),
        ("transfer {\nto 10.0.0.0/8\n}", format!("Corefile:3:4: \"10.0.0.0/8\" isn't {ADDRESSES}")),
        ("transfer {\nto fe80::1%none\n}", "Corefile:3:4: there is no network interface \"none\"".to_owned()),
        (
            "transfer {\nto *\nsource 192.0.2.1:53\n}",
            "Corefile:4:8: \"192.0.2.1:53\" isn't a local address without a port, such as 192.0.2.1"
                .to_owned(),
        ),
        (
            "transfer {\nto *\nsource ::1\nsource ::2\n}",
            "Corefile:5:1: source can be there only once in a line of transfer".to_owned(),
        ),
        (
            "transfer {\nfrom *\n}",
            "Corefile:3:1: transfer has no option \"from\"; its options are to, source".to_owned(),
        ),
        (
            "transfer a b {\nto *\n}\ntransfer B {\nto *\n}",
            "Corefile:5:1: the zone b. is on line 2 already: name it once".to_owned(),
        ),
    ] {
        assert_eq!(TestServer::error(lines), expected);
    }
    let valid = "transfer a {\nto 1.2.3.4 5.6.7.8:1053 [1::2]:34 1::2 fe80::1%1 [fe80::1%1]:53 *\n\
        source 2001:db8::53\n}\ntransfer b {\nto *\n}";
    TestServer::block(valid);
}
