use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::captured_log::CapturedLog;
use crate::dns::plugins::tests::support::TestServer;

fn write(directory: &Path, file: &str, serial: u32, last: u8) {
    let text = format!("@ 60 SOA ns host {serial} 2 3 4 5\na 60 A 192.0.2.{last}\n");
    fs::write(directory.join("new"), text).unwrap();
    fs::rename(directory.join("new"), directory.join(file)).unwrap();
}

fn block(directory: &Path, more: &str) -> String {
    format!("auto example {{\ndirectory {} {more}\n}}\nwhoami", directory.display())
}

#[tokio::test(start_paused = true)]
async fn files_that_come_change_and_go_are_followed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::create_dir(path.join("below")).unwrap();
    write(path, "below/db.b.example", 1, 2);
    let (server, stop, mut running) = TestServer::running(&block(path, ""));
    let (log, _guard) = CapturedLog::start(tracing::Level::INFO);
    let address = async |question: &str| server.ask(question).await;
    let answer = |name: &str, last: u8| format!("NOERROR aa | {name}. 60 IN A 192.0.2.{last} | |");
    let pause = || tokio::time::sleep(Duration::from_secs(61));
    assert_eq!(address("a.b.example. A").await, answer("a.b.example", 2));
    assert_eq!(server.reply("a.c.example. A").await.unwrap().plugin, "whoami");
    let kept = server.reply("a.b.example. A").await.unwrap().validity.unwrap();

    write(path, "db.c.example", 1, 3);
    write(path, "below/db.b.example", 2, 4);
    write(path, "db.c.other", 1, 5);
    write(path, "readme", 1, 5);
    pause().await;
    assert_eq!(address("a.c.example. A").await, answer("a.c.example", 3));
    assert_eq!(address("a.b.example. A").await, answer("a.b.example", 4));
    assert_eq!(server.reply("a.c.other. A").await.unwrap().plugin, "whoami", "outside the zones");
    assert!(kept.is_outdated());
    let kept = server.reply("a.c.example. A").await.unwrap().validity.unwrap();

    fs::write(path.join("db.c.example"), "oops").unwrap();
    fs::write(path.join("db.d.example"), "oops").unwrap();
    fs::remove_file(path.join("below/db.b.example")).unwrap();
    pause().await;
    assert_eq!(address("a.c.example. A").await, answer("a.c.example", 3), "the zone before stays");
    assert_eq!(server.reply("a.d.example. A").await.unwrap().plugin, "whoami");
    assert_eq!(server.reply("a.b.example. A").await.unwrap().plugin, "whoami");
    assert!(kept.is_outdated(), "a longer zone may have come");
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    for line in ["zone c.example.: now served from", "zone b.example.: its file is gone", "db.d.example:1:1:"]
    {
        assert_eq!(log.text().matches(line).count(), 1, "{line}\n{}", log.text());
    }
}

#[tokio::test]
async fn zone_that_is_left_out_stays_in_another_block() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let zone = |lines: &str| format!("@ 60 SOA ns host 1 2 3 4 5\n{lines}");
    let many: String = (0..16).map(|line| format!("$GENERATE 1-62499 a{line}-$ 60 A 192.0.2.1\n")).collect();
    fs::write(path.join("db.a.example"), zone(&many)).unwrap();
    fs::write(path.join("db.b.example"), zone("$GENERATE 1-20 a$ 60 A 192.0.2.2\n")).unwrap();
    let corefile = format!(
        "b.example {{\nfile {}\n}}\nexample {{\n{}\n}}\n",
        path.join("db.b.example").display(),
        block(path, "")
    );
    let (server, configuration) = TestServer::configured(&corefile);
    let warnings = &configuration.blocks[1].builder.warnings;
    assert!(warnings[0].message.contains("db.b.example: left out"), "{warnings:?}");
    assert_eq!(server.ask("a1.b.example. A").await, "NOERROR aa | a1.b.example. 60 IN A 192.0.2.2 | |");
}

#[test]
fn pattern_and_template_choose_the_zone_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "zone-a.txt", 1, 1);
    write(directory.path(), "zone-b.txt.old", 1, 1);
    fs::create_dir(directory.path().join("..version")).unwrap();
    write(directory.path(), "..version/zone-c.txt", 1, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let server = TestServer::block(&block(directory.path(), "^zone-(.*)[.]txt$ {1}.example"));
    for (name, plugin) in [("a", "auto"), ("b", "whoami"), ("c", "whoami")] {
        let reply = runtime.block_on(server.reply(&format!("a.{name}.example. A"))).unwrap();
        assert_eq!(reply.plugin, plugin, "{name}");
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, expected) in [
        ("auto", "Corefile:2:1: auto needs the option directory, such as: directory /etc/zones"),
        (
            "auto {\ndirectory\n}",
            "Corefile:3:1: directory needs a directory, or a directory, a REGEXP and a TEMPLATE",
        ),
        (
            "auto {\ndirectory / ([a {1}\n}",
            "Corefile:3:13: \"([a\" isn't an expression: unclosed character class",
        ),
        ("auto {\ndirectory / a {1}\n}", "Corefile:3:13: the expression needs a group, such as db[.](.*)"),
        (
            "auto {\ndirectory /dev/null\n}",
            "Corefile:3:11: can't read /dev/null: Not a directory (os error 20)",
        ),
        ("auto {\nreload 5\n}", "Corefile:3:8: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
        (
            "auto {\ntransfer\n}",
            "Corefile:3:1: auto has no option \"transfer\"; its options are directory, reload, upstream",
        ),
    ] {
        assert_eq!(TestServer::error(lines), expected, "{lines}");
    }
}
