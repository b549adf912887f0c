use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io};

use tokio_util::sync::CancellationToken;

use super::file::{FileCounters, HostsFile, poll};
use super::map::HostsMap;
use crate::dns::message::presentation::parse_name;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::tests::support::TestServer;

const LINES: &str = "
127.0.0.1 localhost localhost.domain # both
::1 localhost localhost.domain
10.0.0.1 Example.ORG
::FFFF:10.0.0.2 example.com
fe80::1%eth0 link.example.org
1.2.3.4 aa.example.com
1.2.3.4
5.6.7.8 *.apps.example.com
2001:db8::8 x.apps.example.com
300.1.2.3 no.example.com
reload 5s
";

/// Returns a block with `LINES` as its file, and with these options.
fn context(options: &str) -> (TestServer, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hosts");
    fs::write(&path, LINES).unwrap();
    (TestServer::block(&format!("hosts {} {options}\nwhoami", path.display())), directory)
}

#[tokio::test]
async fn file_entries_answer_address_and_ptr_queries() {
    let (context, _directory) = context("");
    for (question, expected) in [
        ("example.org. A", "NOERROR aa | example.org. 3600 IN A 10.0.0.1 | |"),
        ("eXample.org. A", "NOERROR aa | eXample.org. 3600 IN A 10.0.0.1 | |"),
        ("example.com. A", "NOERROR aa | example.com. 3600 IN A 10.0.0.2 | |"),
        ("localhost. AAAA", "NOERROR aa | localhost. 3600 IN AAAA ::1 | |"),
        ("link.example.org. AAAA", "NOERROR aa | link.example.org. 3600 IN AAAA fe80::1 | |"),
        ("1.0.0.10.in-addr.arpa. PTR", "NOERROR aa | 1.0.0.10.in-addr.arpa. 3600 IN PTR example.org. | |"),
        (
            "1.0.0.127.IN-ADDR.arpa. PTR",
            "NOERROR aa | 1.0.0.127.IN-ADDR.arpa. 3600 IN PTR localhost., 1.0.0.127.IN-ADDR.arpa. 3600 IN PTR localhost.domain. | |",
        ),
        // Names with addresses, but without this type.
        ("example.org. AAAA", "NOERROR aa | | |"),
        ("example.org. MX", "NOERROR aa | | |"),
        // Names without addresses.
        ("no.example.com. A", "SERVFAIL | | |"),
        ("no.example.com. MX", "SERVFAIL | | |"),
        (". A", "SERVFAIL | | |"),
    ] {
        assert_eq!(context.ask(question).await, expected.trim_end(), "{question}");
    }
}

#[tokio::test]
async fn wildcard_matches_one_label() {
    let (context, _directory) = context("");
    for (question, expected) in [
        ("a.apps.example.com. A", "NOERROR aa | a.apps.example.com. 3600 IN A 5.6.7.8 | |"),
        // As in CoreDNS, the wildcard applies to each family separately.
        ("x.apps.example.com. A", "NOERROR aa | x.apps.example.com. 3600 IN A 5.6.7.8 | |"),
        ("x.apps.example.com. AAAA", "NOERROR aa | x.apps.example.com. 3600 IN AAAA 2001:db8::8 | |"),
        ("a.apps.example.com. AAAA", "NOERROR aa | | |"),
        ("apps.example.com. A", "SERVFAIL | | |"),
        ("a.b.apps.example.com. A", "SERVFAIL | | |"),
    ] {
        assert_eq!(context.ask(question).await, expected, "{question}");
    }
    let pointer = context.reply("8.7.6.5.in-addr.arpa. PTR").await.unwrap();
    assert_eq!(pointer.plugin, "whoami");
}

#[tokio::test]
async fn missing_names_may_fall_through() {
    let plugin = async |options: &str, question: &str| {
        let (context, _directory) = context(options);
        context.reply(question).await.unwrap().plugin
    };
    let all = "{\nfallthrough\n}";
    let some = "{\nfallthrough net\n}";
    let unsupported = "{\nfallthrough_unsupported\nfallthrough org\n}";
    for (options, question, expected) in [
        ("", "no.example.org. A", ""),
        ("", "example.org. TXT", "hosts"),
        ("", "9.0.0.10.in-addr.arpa. PTR", "whoami"),
        ("", "example.org. PTR", "whoami"),
        (all, "no.example.org. A", "whoami"),
        (all, "no.example.org. TXT", "whoami"),
        (all, "example.org. AAAA", "hosts"),
        (all, "example.org. TXT", "hosts"),
        (some, "no.example.org. A", ""),
        (some, "no.example.net. A", "whoami"),
        (unsupported, "example.org. TXT", "whoami"),
        (unsupported, "example.org. AAAA", "hosts"),
        (unsupported, "example.com. TXT", "hosts"),
        // Only names in the zones.
        ("example.org", "example.com. A", "whoami"),
        ("example.org", "no.example.org. A", ""),
        ("example.org", "example.org. A", "hosts"),
        ("example.org", "2.0.0.10.in-addr.arpa. PTR", "whoami"),
        ("example.org", "1.0.0.10.in-addr.arpa. PTR", "hosts"),
        ("{\nno_reverse\n}", "1.0.0.10.in-addr.arpa. PTR", "whoami"),
    ] {
        assert_eq!(plugin(options, question).await, expected, "{options:?} {question}");
    }
}

#[tokio::test]
async fn corefile_entries_come_after_the_file() {
    let (context, _directory) = context("{\n10.0.0.9 example.org new.example.org\nttl 60\nno_reverse\n}");
    assert_eq!(
        context.ask("example.org. A").await,
        "NOERROR aa | example.org. 60 IN A 10.0.0.1, example.org. 60 IN A 10.0.0.9 | |"
    );
    assert_eq!(context.ask("new.example.org. A").await, "NOERROR aa | new.example.org. 60 IN A 10.0.0.9 | |");
}

#[tokio::test]
async fn reverse_names_have_to_be_complete() {
    let context = TestServer::block("hosts /nonexistent {\n10.0.0.1 four\n2001:db8::1 six\n}\nwhoami");
    let six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.";
    let mapped = "1.0.0.0.0.0.a.0.f.f.f.f.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa.";
    for (name, expected) in [
        ("1.0.0.10.in-addr.arpa.", "hosts"),
        ("01.0.0.10.in-addr.arpa.", "whoami"),
        ("0.0.10.in-addr.arpa.", "whoami"),
        ("1.1.0.0.10.in-addr.arpa.", "whoami"),
        (six, "hosts"),
        (&six[2..], "whoami"),
        (mapped, "hosts"),
    ] {
        assert_eq!(context.reply(&format!("{name} PTR")).await.unwrap().plugin, expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_file_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hosts");
    let context = TestServer::block("whoami");
    let counters: Arc<FileCounters> = context.shared.metrics.group().unwrap();
    let zones = ZoneSet::new([parse_name(".").unwrap()]);
    let inline = HostsMap::parse("192.0.2.1 inline", &zones, true);
    let file = Arc::new(HostsFile::new(path.clone(), zones, true, inline));
    let stop = CancellationToken::new();
    let task = {
        let (file, stop) = (Arc::clone(&file), stop.clone());
        tokio::spawn(async move { file.watch(Duration::from_secs(5), &counters, &stop).await })
    };
    let first = || file.addresses(&parse_name("a").unwrap()).first().map(ToString::to_string);
    let pause = || tokio::time::sleep(Duration::from_secs(6));

    pause().await;
    assert_eq!(first(), None);
    assert!(context.metrics("hosts_entries").is_empty(), "nothing has been read");

    fs::write(&path, "192.0.2.2 a b\n").unwrap();
    pause().await;
    assert_eq!(first().as_deref(), Some("192.0.2.2"));
    assert_eq!(
        context.metrics("hosts_entries"),
        [format!("coredns_hosts_entries{{hostsfile=\"{}\"}} 6", path.display())]
    );
    let time = context.metrics("hosts_reload_timestamp_seconds").remove(0);
    assert!(time.split(' ').nth(1).unwrap().parse::<f64>().unwrap() > 1e9, "{time}");

    // The file has another size.
    fs::write(&path, "192.0.2.30 a\n").unwrap();
    pause().await;
    assert_eq!(first().as_deref(), Some("192.0.2.30"));

    // The last content stays in use.
    fs::remove_file(&path).unwrap();
    pause().await;
    assert_eq!(first().as_deref(), Some("192.0.2.30"));

    stop.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn kept_answers_end_when_the_file_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hosts");
    fs::write(&path, "192.0.2.1 a.example.org\n").unwrap();
    let zone = directory.path().join("zone");
    fs::write(&zone, "@ 60 SOA ns mail 1 60 60 60 60\nb 60 A 192.0.2.2\n").unwrap();
    let (server, _stop, _tasks) = TestServer::running(&format!(
        "hosts {} {{\nfallthrough\n}}\nfile {} example.org",
        path.display(),
        zone.display()
    ));
    let kept = async |name| server.reply(&format!("{name}.example.org. A")).await.unwrap().validity.unwrap();
    let (own, passed) = (kept("a").await, kept("b").await);
    assert!(!own.is_outdated() && !passed.is_outdated());
    fs::write(&path, "192.0.2.30 b.example.org\n").unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(own.is_outdated() && passed.is_outdated());
    assert!(!kept("b").await.is_outdated());
    assert!(server.ask("b.example.org. A").await.contains("192.0.2.30"));
}

#[tokio::test(start_paused = true)]
async fn file_is_read_again_after_a_panic() {
    let (reads, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let refresh = {
        let reads = Arc::clone(&reads);
        move || -> io::Result<bool> {
            assert_ne!(reads.fetch_add(1, Ordering::Relaxed), 0, "the first read panics");
            Ok(true)
        }
    };
    poll(Path::new("hosts"), Duration::from_secs(5), refresh, || stop.cancel(), &stop).await;
    assert_eq!(reads.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn file_without_reload_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hosts");
    fs::write(&path, "192.0.2.2 a\n").unwrap();
    let context = TestServer::block("whoami");
    let counters: Arc<FileCounters> = context.shared.metrics.group().unwrap();
    let file = HostsFile::new(path, ZoneSet::new([parse_name(".").unwrap()]), false, HostsMap::default());
    Arc::new(file).watch(Duration::ZERO, &counters, &CancellationToken::new()).await;
    assert!(context.metrics("hosts_entries")[0].ends_with(" 1"));
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, expected) in [
        (
            "hosts\nhosts",
            "Corefile:3:1: hosts can be there only once in a block, and it is on line 2 already",
        ),
        ("hosts /nonexistent a..b", "Corefile:2:20: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
        ("hosts /etc/passwd/x", "Corefile:2:7: can't access /etc/passwd/x: Not a directory (os error 20)"),
        ("hosts {\nfalthrough\n}", "Corefile:3:1: hosts has no option \"falthrough\"; is it fallthrough?"),
        (
            "hosts {\nreverse_no\n}",
            "Corefile:3:1: hosts has no option \"reverse_no\"; its options are ttl, no_reverse, reload, fallthrough, \
             fallthrough_unsupported, and lines such as: 192.0.2.1 www.example.org",
        ),
        ("hosts {\n10.0.0.1\n}", "Corefile:3:1: the names of 10.0.0.1 have to follow it"),
        ("hosts {\nfallthrough\n10.0.0.1 a\n}", "Corefile:4:1: addresses have to stand before fallthrough"),
        ("hosts {\nttl\n}", "Corefile:3:1: ttl needs a number of seconds from 1 to 65535"),
        ("hosts {\nttl 0\n}", "Corefile:3:5: \"0\" isn't a number of seconds from 1 to 65535"),
        ("hosts {\nttl 65536\n}", "Corefile:3:5: \"65536\" isn't a number of seconds from 1 to 65535"),
        ("hosts {\nreload\n}", "Corefile:3:1: reload needs a duration such as 5s, or 0s for never"),
        ("hosts {\nreload -1s\n}", "Corefile:3:8: \"-1s\" isn't a duration such as 30s, 1m30s or 500ms"),
        ("hosts {\nno_reverse x\n}", "Corefile:3:12: no_reverse takes no arguments, and here is \"x\""),
        (
            "hosts {\nfallthrough a..b\n}",
            "Corefile:3:13: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8",
        ),
        ("hosts {\nfallthrough_unsupported\n}", "Corefile:3:1: fallthrough_unsupported needs fallthrough"),
        (
            "hosts {\nfallthrough\nfallthrough_unsupported x\n}",
            "Corefile:4:25: fallthrough_unsupported takes no arguments, and here is \"x\"",
        ),
        ("hosts {\nttl 5 {\n}\n}", "Corefile:3:1: ttl takes no braces"),
    ] {
        assert_eq!(TestServer::error(lines), expected, "{lines}");
    }
}
