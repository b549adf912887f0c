use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use hickory_proto::op::{Edns, ResponseCode};
use hickory_proto::rr::{Name, RecordType};

use super::served::{Update, ZoneRegistry};
use crate::captured_log::CapturedLog;
use crate::dns::chain::server::Server;
use crate::dns::corefile::FileSources;
use crate::dns::plugins::tests::support::TestServer;
use crate::dns::server::config::configure;

const HEAD: &str = "$TTL 300\n@ SOA ns hostmaster (7 7200 3600 86400 60)\n@ NS ns\nns A 192.0.2.53\n";

fn zone(lines: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("db"), format!("{HEAD}{lines}")).unwrap();
    let path = directory.path().join("db").display().to_string();
    (directory, path)
}

fn server(lines: &str) -> (tempfile::TempDir, TestServer) {
    let (directory, path) = zone(lines);
    let server = TestServer::block(&format!("file {path} example.org\nwhoami"));
    (directory, server)
}

const URI: &str = "signed.example.org. 300 IN Unknown AAEAAWh0dHBzOi8vYQ==";
const NS: &str = "example.org. 300 IN NS ns.example.org.";
const SOA: &str = "example.org. 60 IN SOA ns.example.org. hostmaster.example.org. 7 7200 3600 86400 60";

#[tokio::test]
async fn names_of_a_zone_are_answered() {
    let lines = "
a 60 A 192.0.2.1
  60 A 192.0.2.2
@ SOA ns hostmaster 7 7200 3600 86400 60
b CNAME a
B CNAME A
c CNAME b
loop CNAME loop
deep.empty A 192.0.2.3
*.wild A 192.0.2.4
x.y.wild A 192.0.2.5
child NS ns.child
child NS ns.example.net.
ns.child A 192.0.2.6
old DNAME new.example.org.
x.new A 192.0.2.7
mail MX 10 a
signed NSEC a URI RRSIG NSEC
signed URI 1 1 \"https://a\"
";
    let (_directory, server) = server(lines);
    let soa = |rcode: &str| format!("{rcode} aa | | {SOA} |");
    for (question, expected) in [
        (
            "a.example.org. A",
            format!(
                "NOERROR aa | a.example.org. 60 IN A 192.0.2.1, a.example.org. 60 IN A 192.0.2.2 | {NS} |"
            ),
        ),
        ("a.example.org. AAAA", soa("NOERROR")),
        ("none.example.org. A", soa("NXDOMAIN")),
        ("signed.example.org. ANY", format!("NOERROR aa | {URI} | {NS} |")),
        ("empty.example.org. A", soa("NOERROR")),
        ("z.empty.example.org. A", soa("NXDOMAIN")),
        ("q.wild.example.org. A", format!("NOERROR aa | q.wild.example.org. 300 IN A 192.0.2.4 | {NS} |")),
        ("q.wild.example.org. MX", soa("NOERROR")),
        ("y.wild.example.org. A", soa("NOERROR")),
        ("q.y.wild.example.org. A", soa("NXDOMAIN")),
        ("a.example.net. A", "other".to_owned()),
    ] {
        let found = if expected == "other" {
            server.reply(question).await.unwrap().plugin.replace("whoami", "other")
        } else {
            server.ask(question).await
        };
        assert_eq!(found, expected, "{question}");
    }
    let counts = async |question: &str| {
        let reply = server.reply(question).await.unwrap();
        (reply.metadata.authoritative, reply.records.counts())
    };
    assert_eq!(counts("c.example.org. A").await, (true, [4, 1, 0]), "two aliases, two addresses");
    assert_eq!(counts("loop.example.org. A").await, (true, [1, 1, 0]));
    assert_eq!(counts("x.child.example.org. A").await, (false, [0, 2, 1]), "a referral with glue");
    assert_eq!(counts("child.example.org. DS").await, (true, [0, 1, 0]), "the parent's side");
    assert_eq!(counts("x.old.example.org. A").await, (true, [3, 1, 0]), "DNAME, alias, address");
    assert_eq!(counts("mail.example.org. MX").await, (true, [1, 1, 2]), "addresses of the exchanger");
    assert_eq!(counts("example.org. NS").await, (true, [1, 0, 1]));
}

#[tokio::test]
async fn unknown_names_fall_through_only_if_asked() {
    let (_directory, path) = zone("a A 192.0.2.1\n");
    let block = format!("file {path} example.org {{\nfallthrough\n}}\nwhoami");
    let server = TestServer::block(&block);
    assert_eq!(server.reply("none.example.org. A").await.unwrap().plugin, "whoami");
    assert_eq!(server.reply("a.example.org. MX").await.unwrap().plugin, "file", "the name exists");
}

#[tokio::test]
async fn alias_outside_the_zone_is_looked_up_in_its_block() {
    let (directory, path) = zone("out CNAME a.other.\nnone CNAME none.other.\nlost CNAME a.nowhere.\n");
    let other = directory.path().join("other");
    fs::write(&other, "@ 60 SOA ns host 1 2 3 4 5\na 60 A 192.0.2.9\n").unwrap();
    let corefile = format!("example.org {{\nfile {path}\n}}\nother {{\nfile {}\n}}\n", other.display());
    let server = TestServer::corefile(&corefile);
    let target = "a.other. 60 IN A 192.0.2.9";
    for (question, expected) in [
        ("out.example.org. A", format!("NOERROR aa | out.example.org. 300 IN CNAME a.other., {target} | {NS} |")),
        ("none.example.org. A", "NXDOMAIN aa | none.example.org. 300 IN CNAME none.other. | other. 5 IN SOA ns.other. host.other. 1 2 3 4 5 |".to_owned()),
        ("a.example.net. A", "REFUSED | | |".to_owned()),
        ("lost.example.org. A", format!("NOERROR aa | lost.example.org. 300 IN CNAME a.nowhere. | {NS} |")),
    ] {
        assert_eq!(server.ask(question).await, expected, "{question}");
    }
}

/// Makes a file look as if it hadn't been written to for a minute.
fn settle(file: &Path) {
    let before = SystemTime::now() - Duration::from_secs(60);
    fs::File::options().write(true).open(file).unwrap().set_modified(before).unwrap();
}

#[tokio::test]
async fn proof_of_a_wildcard_alias_stays_with_a_denial() {
    let lines = "*.w CNAME none\nw NSEC x TXT NSEC\n@ NSEC w SOA NS NSEC\nx NSEC @ NSEC\n";
    let (_directory, server) = server(lines);
    let mut request = server.request("a.w.example.org. A");
    let mut edns = Edns::new();
    edns.set_dnssec_ok(true);
    request.edns = Some(edns);
    let reply = Server::serve(&mut request).await.unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    let owners: Vec<String> = reply
        .records
        .authorities
        .iter()
        .filter(|record| record.record_type() == RecordType::NSEC)
        .map(|record| record.name.to_string())
        .collect();
    assert_eq!(owners, ["w.example.org.", "example.org."], "no closer name, and no target");
}

#[tokio::test(start_paused = true)]
async fn file_read_during_a_copy_is_read_again() {
    let (directory, path) = zone("a A 192.0.2.1\n");
    let (server, stop, mut running) = TestServer::running(&format!("file {path} example.org"));
    let answer = |last: u8| format!("NOERROR aa | a.example.org. 300 IN A 192.0.2.{last} | {NS} |");
    assert_eq!(server.ask("a.example.org. A").await, answer(1));
    // The rest of the copy has the same serial.
    fs::write(directory.path().join("db"), format!("{HEAD}a A 192.0.2.12\n")).unwrap();
    settle(Path::new(&path));
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(server.ask("a.example.org. A").await, answer(12));
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

#[test]
fn zone_stays_if_its_file_is_broken_when_a_block_is_built_anew() {
    let (directory, path) = zone("a A 192.0.2.1\n");
    let lines = format!("file {path} example.org");
    let (server, _) = TestServer::with_tasks(&lines);
    fs::write(directory.path().join("db"), "oops\n").unwrap();
    let again = configure(
        Path::new("Corefile"),
        &format!(". {{\n{lines}\n}}\n"),
        &FileSources::SYSTEM,
        &server.shared,
    );
    let warnings = again.unwrap().blocks.remove(0).builder.warnings;
    let expected =
        format!("Corefile:2:6: the zone before stays: {path}:1:1: the type of the record is missing");
    assert_eq!(warnings.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[tokio::test]
async fn alias_may_lead_to_a_longer_zone_or_to_the_next_plugin() {
    let (directory, path) = zone("www CNAME a.sub\nnone CNAME b.sub\n");
    let sub = directory.path().join("sub");
    fs::write(&sub, "@ 60 SOA ns host 1 2 3 4 5\na 60 A 192.0.2.9\n").unwrap();
    let lines = format!("file {path} example.org\nfile {} sub.example.org", sub.display());
    let server = TestServer::block(&lines);
    for (question, expected) in [
        ("www.example.org. A", format!("NOERROR aa | www.example.org. 300 IN CNAME a.sub.example.org., a.sub.example.org. 60 IN A 192.0.2.9 | {NS} |")),
        ("none.example.org. A", "NXDOMAIN aa | none.example.org. 300 IN CNAME b.sub.example.org. | sub.example.org. 5 IN SOA ns.sub.example.org. host.sub.example.org. 1 2 3 4 5 |".to_owned()),
    ] {
        assert_eq!(server.ask(question).await, expected, "{question}");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_file_is_served_if_its_serial_differs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let lines = format!("file {} example.org", path.display());
    let (server, stop, mut running) = TestServer::running(&lines);
    let text = |serial: u32, last: u8| format!("@ 60 SOA ns host {serial} 2 3 4 5\na 60 A 192.0.2.{last}\n");
    let address = async || server.ask("a.example.org. A").await;
    let replace = |content: String| {
        // As for a ConfigMap: another file is renamed.
        fs::write(directory.path().join("new"), content).unwrap();
        settle(&directory.path().join("new"));
        fs::rename(directory.path().join("new"), &path).unwrap();
    };
    let pause = || tokio::time::sleep(Duration::from_secs(61));
    assert_eq!(address().await, "SERVFAIL | | |", "the file doesn't exist yet");
    replace(text(1, 1));
    pause().await;
    assert_eq!(address().await, "NOERROR aa | a.example.org. 60 IN A 192.0.2.1 | |");
    let kept = server.reply("a.example.org. A").await.unwrap().validity.unwrap();
    assert!(!kept.is_outdated());
    for (content, why) in
        [(text(1, 2), "the same serial"), ("oops".to_owned(), "an error"), (text(1, 3), "the same serial")]
    {
        replace(content);
        pause().await;
        assert_eq!(address().await, "NOERROR aa | a.example.org. 60 IN A 192.0.2.1 | |", "{why}");
    }
    assert!(!kept.is_outdated());
    replace(text(2, 4));
    pause().await;
    assert_eq!(address().await, "NOERROR aa | a.example.org. 60 IN A 192.0.2.4 | |");
    assert!(kept.is_outdated(), "answers in the response cache aren't used any more");
    replace(text(3, 5) + "$INCLUDE more\n");
    pause().await;
    assert_eq!(address().await, "NOERROR aa | a.example.org. 60 IN A 192.0.2.4 | |", "a file is missing");
    fs::write(directory.path().join("more"), "").unwrap();
    settle(&directory.path().join("more"));
    pause().await;
    assert_eq!(address().await, "NOERROR aa | a.example.org. 60 IN A 192.0.2.5 | |");
    fs::remove_file(&path).unwrap();
    pause().await;
    assert_eq!(address().await, "NOERROR aa | a.example.org. 60 IN A 192.0.2.5 | |", "the zone before stays");
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

#[test]
fn errors_name_file_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("self", "$INCLUDE self\n");
    write("inner", "a A 192.0.2.1 x\n");
    let long = "x".repeat(64);
    let path = directory.path().join("db");
    let db = path.display().to_string();
    let inner = directory.path().join("inner").display().to_string();
    let nested = directory.path().join("self").display().to_string();
    let folder = directory.path().display().to_string();
    for (lines, expected) in [
        ("a A 192.0.2.256\n", format!("{db}:5:5: \"192.0.2.256\" is no IPv4 address")),
        ("a A\n", format!("{db}:5:1: its data is missing")),
        ("a\tA ( 192.0.2.1\n\nb A 192.0.2.2\n", format!("{db}:5:5: a parenthesis isn't closed")),
        ("a TXT \"x\nb A 192.0.2.2\n", format!("{db}:5:7: a quote isn't closed")),
        ("a.example.net. A 192.0.2.1\n", format!("{db}:5:1: its owner is outside the zone")),
        (
            "a CNAME b\na A 192.0.2.1\n",
            format!("{db}:6:1: a name with a CNAME record has no other records (RFC 1034 section 3.6.2)"),
        ),
        ("@ SOA a b 1 2 3 4 5\n", format!("{db}:5:1: the name has another SOA record already")),
        ("a CH TXT x\n", format!("{db}:5:1: the class is CH, and a zone has only class IN")),
        (
            "a 2147483648 A 192.0.2.1\n",
            format!("{db}:5:1: a TTL of 2147483648 seconds; at most 2147483647 are allowed"),
        ),
        ("$INCLUDE inner\n", format!("{inner}:1:15: \"x\" is too much")),
        ("$INCLUDE self\n", format!("{nested}:1:1: $INCLUDE can be nested at most 7 deep")),
        ("$INCLUDE /dev/zero\n", format!("{db}:5:1: /dev/zero: it is no regular file")),
        (
            "$INCLUDE none\n",
            format!("{db}:5:1: {folder}/none: can't be read: No such file or directory (os error 2)"),
        ),
        (
            "$GENERATE 0-4294967295 a$ A 192.0.2.1\n",
            format!("{db}:5:1: the range 0-4294967295 makes more than 65536 records"),
        ),
        (
            "$GENERATE 1-300 a$ A 192.0.2.$\n",
            format!("{db}:5:1: for 256: \"192.0.2.256\" is no IPv4 address"),
        ),
        ("old DNAME \\# 4 01610055\n", format!("{db}:5:11: these octets are no data of type DNAME")),
        ("a TYPE999 \\# 2\u{1} ab\n", format!("{db}:5:11: after \\# 2? there are 1 octets")),
        ("a TYPE41 \\# 0\n", format!("{db}:5:1: no zone has records of this type")),
        ("a HTTPS 1 . alpn=h2 alpn=h3\n", format!("{db}:5:13: the parameter alpn is there twice")),
        (
            "a HTTPS 1 . port=x\n",
            format!("{db}:5:13: \"port=x\" isn't a valid parameter, such as alpn=h2, port=443 or key667=x"),
        ),
        ("$TTL\n", format!("{db}:5:1: $TTL needs one word")),
        (&*format!("{long} A 192.0.2.1\n"), format!("{db}:5:1: \"{long}\" is no name")),
    ] {
        write("db", &format!("{HEAD}{lines}"));
        let error = TestServer::error(&format!("file {db} example.org"));
        assert_eq!(error, format!("Corefile:2:6: {expected}"), "{lines}");
    }
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let error = TestServer::error(&format!("file {db} example.org"));
    assert_eq!(error, format!("Corefile:2:6: {db}: the files of a zone have at most 268435456 bytes in all"));
    write("db", &format!("{HEAD}a TXT {}\n", "x ".repeat(600_000)));
    let error = TestServer::error(&format!("file {db} example.org"));
    assert_eq!(error, format!("Corefile:2:6: {db}:5:1: an entry has 1048576 bytes at most"));
    write("db", "a 60 A 192.0.2.1\n");
    let error = TestServer::error(&format!("file {db} example.org"));
    assert_eq!(error, format!("Corefile:2:6: {db}: the zone has no SOA record at its origin"));
    write("db", "  60 A 192.0.2.1\n");
    let error = TestServer::error(&format!("file {db} example.org"));
    assert_eq!(
        error,
        format!("Corefile:2:6: {db}:1:3: no owner precedes this line, which begins with a space")
    );
    let error = TestServer::error(&format!("file {folder} example.org"));
    assert_eq!(error, format!("Corefile:2:6: {folder}: it is a directory"));
    let error = TestServer::error("file /nonexistent example.org {\nreload 0s\n}");
    assert!(
        error.starts_with("Corefile:2:6: the zone file /nonexistent can't be read: No such file"),
        "{error}"
    );
    assert!(Path::new(&db).exists());
}

#[test]
fn same_serial_is_served_if_any_block_has_reload_by_mtime() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    let zone = ZoneRegistry::default().zone(file.clone(), Name::from_ascii("example.org.").unwrap());
    let write = |text: &str| {
        fs::write(&file, format!("@ 60 SOA ns host 1 2 3 4 5\n{text}\n")).unwrap();
        settle(&file);
    };
    write("a 60 A 192.0.2.1");
    assert!(matches!(zone.update(false), Update::Served { before: None, .. }));
    write("a 60 A 192.0.2.2\nb 60 A 192.0.2.3");
    assert!(matches!(zone.update(false), Update::SameSerial(1)));
    assert!(matches!(zone.update(false), Update::Unchanged));
    assert!(matches!(zone.update(true), Update::Served { records: 3, .. }));
    assert!(matches!(zone.update(true), Update::Unchanged));
}

#[test]
fn serial_that_falls_is_logged_as_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    let zone = ZoneRegistry::default().zone(file.clone(), Name::from_ascii("example.org.").unwrap());
    for (serial, is_warning) in [(100, false), (200, false), (1000, false), (77, true)] {
        fs::write(&file, format!("@ 60 SOA ns host {serial} 2 3 4 5\n;{}\n", "x".repeat(serial))).unwrap();
        let (log, _guard) = CapturedLog::start(tracing::Level::INFO);
        zone.refresh(true);
        assert!(log.text().contains(&format!("→ {serial}, ")), "{}", log.text());
        assert_eq!(log.text().contains("WARN"), is_warning, "{}", log.text());
    }
}
