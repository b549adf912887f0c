//! Reloads of a changed Corefile.
//!
//! Tests of behavior that CoreDNS shares run with CoreDNS, too.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use nix::sys::signal::Signal;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::question::Question;
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::dns::{read_message, write_message};
use crate::harness::{EVENT_TIMEOUT, eventually, linker};

/// Returns a Corefile that is read again every 2 s: its first block answers with the version, its second block
/// doesn't change.
fn corefile(version: &str) -> String {
    format!(
        ".:{{$PORT}} {{
            bind 127.0.0.1
            prometheus 127.0.0.1:{{$METRICS}}
            health 127.0.0.1:{{$HEALTH}}
            reload 2s 1s
            errors
            template IN TXT {{
                answer \"{{{{ .Name }}}} 60 IN TXT {version}\"
            }}
        }}
        example.org:{{$PORT}} {{
            bind 127.0.0.1
            cache
            forward . {{$UPSTREAM}}
        }}"
    )
}

/// Returns the first string of the TXT answer, if there is one.
async fn version(server: &Server) -> Option<String> {
    let heard = Question::parse("version. TXT").ask(server).await;
    let answer = Message::from_vec(&heard.answer.expect("an answer")).unwrap();
    match &answer.answers.first()?.data {
        RData::TXT(txt) => Some(String::from_utf8_lossy(&txt.txt_data[0]).into_owned()),
        _ => None,
    }
}

async fn wait_for_version(server: &Server, expected: &str) {
    let look = || async { (version(server).await.as_deref() == Some(expected)).then_some(()) };
    eventually(&format!("the version {expected}"), look).await;
}

fn both() -> Vec<Program> {
    if Program::subject() == Program::CoreDns {
        vec![Program::CoreDns]
    } else {
        vec![Program::CoreDns, Program::Linker]
    }
}

async fn ttl(server: &Server, question: &str) -> u32 {
    let heard = Question::parse(question).ask(server).await;
    let answer = Message::from_vec(&heard.answer.expect("an answer")).unwrap();
    assert_eq!(answer.answers.len(), 1, "{answer}");
    answer.answers[0].ttl
}

#[tokio::test]
async fn edited_corefile_takes_effect_unless_it_is_invalid() {
    let upstreams = Upstreams::start().await;
    for which in both() {
        let site = upstreams.name(CorefileDir::new(&corefile("one"), &[]));
        let server = Server::start(which, &site).await;
        wait_for_version(&server, "one").await;
        assert_eq!(server.metric("coredns_reload_failed_total"), Some(0.0), "{which:?}");
        let since = Instant::now();
        site.write("Corefile", &corefile("two"));
        wait_for_version(&server, "two").await;
        eprintln!("corefile: {which:?} has read an edited Corefile after {:?}", since.elapsed());

        // After a failed reload CoreDNS no longer listens on its HTTP ports, as its manual says.
        if which == Program::CoreDns {
            continue;
        }
        // An unknown plugin, invalid arguments, and a syntax error.
        let broken = [
            corefile("three").replace("errors", "mistakes"),
            corefile("three").replace("health", "health 1 2 3 4 #"),
            "}{".to_owned(),
        ];
        for (failures, broken) in (1..).zip(&broken) {
            site.write("Corefile", broken);
            let failed = || async {
                server.metric("coredns_reload_failed_total").filter(|count| *count >= f64::from(failures))
            };
            eventually(&format!("a reload that fails at {broken}"), failed).await;
            assert_eq!(version(&server).await.as_deref(), Some("two"), "{which:?}: {broken}");
        }
        assert!(server.log().iter().any(|line| line.contains("mistakes")), "{which:?}: {:#?}", server.log());
        assert_eq!(linker::get(server.address("HEALTH"), "/health").0, 200, "{which:?}");

        site.write("Corefile", &corefile("four"));
        wait_for_version(&server, "four").await;
        assert_eq!(linker::get(server.address("HEALTH"), "/health").0, 200, "{which:?}");
    }
}

#[tokio::test]
async fn replaced_symlink_of_a_config_map_causes_a_reload() {
    let upstreams = Upstreams::start().await;
    for which in both() {
        let site = upstreams.name(CorefileDir::new("", &[("..1/Corefile", &corefile("one"))]));
        // The kubelet's AtomicWriter: Corefile -> ..data/Corefile, ..data -> ..1, and `..data` is replaced.
        let mounted = site.path();
        fs::remove_file(mounted.join("Corefile")).unwrap();
        symlink("..1", mounted.join("..data")).unwrap();
        symlink("..data/Corefile", mounted.join("Corefile")).unwrap();
        let server = Server::start(which, &site).await;
        wait_for_version(&server, "one").await;
        for (generation, words) in (2..).zip(["two", "three"]) {
            site.write(&format!("..{generation}/Corefile"), &corefile(words));
            symlink(format!("..{generation}"), mounted.join("..data_tmp")).unwrap();
            fs::rename(mounted.join("..data_tmp"), mounted.join("..data")).unwrap();
            fs::remove_dir_all(mounted.join(format!("..{}", generation - 1))).unwrap();
            wait_for_version(&server, words).await;
        }
        assert_eq!(server.metric("coredns_reload_failed_total"), Some(0.0), "{which:?}");
    }
}

#[tokio::test]
async fn sigusr1_reloads_at_once_without_the_plugin_reload() {
    let upstreams = Upstreams::start().await;
    for which in both() {
        let without = |version| corefile(version).replace("reload 2s 1s", "");
        let site = upstreams.name(CorefileDir::new(&without("one"), &[]));
        let mut server = Server::start(which, &site).await;
        wait_for_version(&server, "one").await;
        for words in ["two", "three"] {
            site.write("Corefile", &without(words));
            server.signal(Signal::SIGUSR1);
            wait_for_version(&server, words).await;
        }
        site.write("Corefile", &without("four").replace("errors", "mistakes"));
        server.signal(Signal::SIGUSR1);
        let told = || async { server.log().iter().any(|line| line.contains("mistakes")).then_some(()) };
        eventually("the error in the log", told).await;
        assert_eq!(version(&server).await.as_deref(), Some("three"), "{which:?}");
        assert!(server.is_running());
    }
}

#[tokio::test]
async fn imports_and_hosts_files_are_reloaded() {
    let upstreams = Upstreams::start().await;
    for which in both() {
        let corefile = "
            .:{$PORT} {
                bind 127.0.0.1
                reload 2s 1s
                import parts/*.txt
            }
            hosts.test:{$PORT} {
                bind 127.0.0.1
                hosts hosts.txt {
                    reload 100ms
                }
            }";
        let part = |version: &str| {
            format!("template IN TXT {{\n answer \"{{{{ .Name }}}} 60 IN TXT {version}\"\n}}\n")
        };
        let files = [("parts/a.txt", &*part("one")), ("hosts.txt", "192.0.2.1 one.hosts.test\n")];
        let site = upstreams.name(CorefileDir::new(corefile, &files));
        let server = Server::start(which, &site).await;
        wait_for_version(&server, "one").await;
        site.write("parts/a.txt", &part("two"));
        wait_for_version(&server, "two").await;

        assert_eq!(ttl(&server, "one.hosts.test. A").await, 3600);
        site.write("hosts.txt", "192.0.2.1 two.hosts.test\n192.0.2.2 three.hosts.test\n");
        let question = Question::parse("two.hosts.test. A");
        eventually("the new name", || async {
            let heard = question.ask(&server).await;
            let answer = Message::from_vec(&heard.answer.unwrap()).unwrap();
            (answer.answers.len() == 1).then_some(())
        })
        .await;
    }
}

/// CoreDNS rebuilds every block; lb-linker keeps unchanged blocks.
#[tokio::test]
async fn reload_keeps_only_the_caches_of_unchanged_blocks() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let upstreams = Upstreams::start().await;
    let two_blocks = |version: &str| {
        corefile(version).replace("reload 2s 1s", "")
            + &format!(
                "
        test:{{$PORT}} {{
            bind 127.0.0.1
            cache
            template IN A sub.test {{
                answer \"{{{{ .Name }}}} 60 IN TXT {version}\"
            }}
            forward . {{$UPSTREAM}}
        }}"
            )
    };
    let site = upstreams.name(CorefileDir::new(&two_blocks("one"), &[]));
    let mut server = Server::start(Program::Linker, &site).await;
    wait_for_version(&server, "one").await;
    assert_eq!(ttl(&server, "a.example.org. A").await, 60);
    assert_eq!(ttl(&server, "x.long.test. A").await, 3600);
    // Let cached answers age.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    site.write("Corefile", &two_blocks("two"));
    server.signal(Signal::SIGUSR1);
    wait_for_version(&server, "two").await;
    let kept = ttl(&server, "a.example.org. A").await;
    assert!(kept < 60, "the cache of an untouched block is empty: {kept}");
    assert_eq!(ttl(&server, "x.long.test. A").await, 3600, "the cache of a block that changed is kept");
}

/// CoreDNS closes connections at a reload.
#[tokio::test]
async fn tcp_connection_survives_reloads() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let upstreams = Upstreams::start().await;
    let site = upstreams.name(CorefileDir::new(&corefile("0"), &[]));
    let mut server = Server::start(Program::Linker, &site).await;
    let mut stream = TcpStream::connect(server.dns()).await.unwrap();
    for reload in 1..=5 {
        let expected = reload.to_string();
        site.write("Corefile", &corefile(&expected));
        server.signal(Signal::SIGUSR1);
        wait_for_version(&server, &expected).await;
        write_message(&mut stream, &Question::parse("version. TXT").message).await;
        let answer = timeout(EVENT_TIMEOUT, read_message(&mut stream))
            .await
            .unwrap()
            .expect("the connection is still open");
        let answer = Message::from_vec(&answer).unwrap();
        assert_eq!(answer.answers[0].data.to_string(), expected, "{answer}");
    }
}

#[tokio::test]
async fn reload_adds_and_removes_blocks_and_ports() {
    let upstreams = Upstreams::start().await;
    for which in both() {
        let first = "
            .:{$PORT} {
                bind 127.0.0.1
                prometheus 127.0.0.1:{$METRICS}
                template IN TXT {
                    answer \"{{ .Name }} 60 IN TXT one\"
                }
            }";
        let second = "
            .:{$PORT} {
                bind 127.0.0.1
                health 127.0.0.1:{$HEALTH}
                ready 127.0.0.1:{$READY}
                template IN TXT {
                    answer \"{{ .Name }} 60 IN TXT two\"
                }
            }
            .:{$PORT2} {
                bind 127.0.0.1
                whoami
            }";
        let site = upstreams.name(CorefileDir::new(first, &[]));
        let mut server = Server::start(which, &site).await;
        wait_for_version(&server, "one").await;
        let more = |server: &Server| {
            ["PORT2", "HEALTH", "READY"]
                .map(|name| std::net::TcpStream::connect(server.address(name)).is_ok())
        };
        let metrics = |server: &Server| std::net::TcpStream::connect(server.address("METRICS")).is_ok();
        assert_eq!((more(&server), metrics(&server)), ([false; 3], true), "{which:?}");
        for _ in 0..2 {
            site.write("Corefile", second);
            server.signal(Signal::SIGUSR1);
            wait_for_version(&server, "two").await;
            let opened = || async { (more(&server) == [true; 3] && !metrics(&server)).then_some(()) };
            eventually(&format!("{which:?}: other ports"), opened).await;
            let heard = Question::parse("a. A port2").ask(&server).await;
            assert!(heard.answer.is_some() && heard.took < EVENT_TIMEOUT);
            assert_eq!(linker::get(server.address("READY"), "/ready").0, 200);

            site.write("Corefile", first);
            server.signal(Signal::SIGUSR1);
            wait_for_version(&server, "one").await;
            let closed = || async { (more(&server) == [false; 3] && metrics(&server)).then_some(()) };
            eventually(&format!("{which:?}: the first ports"), closed).await;
        }
    }
}
