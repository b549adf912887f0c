//! Reloads under load.
//!
//! The rate depends on the machine, up to [`RATE`]: it is printed (`-- --nocapture`), not asserted.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use nix::sys::signal::Signal;

use super::question::Question;
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::{EVENT_TIMEOUT, eventually};

/// Queries per second of all clients.
const RATE: u32 = 20_000;
const RELOADS: u32 = 100;
const CLIENTS: u32 = 4;
/// The maximum number of outstanding queries per client. All clients together stay far below the capacity of the
/// socket's receive buffer.
const WINDOW: usize = 16;

fn corefile(version: u32) -> String {
    format!(
        ".:{{$PORT}} {{
            bind 127.0.0.1
            prometheus 127.0.0.1:{{$METRICS}}
            errors
            template IN A changing.test {{
                answer \"{{{{ .Name }}}} 60 IN A 192.0.2.{version}\"
            }}
            cache
            forward . {{$UPSTREAM}}
        }}
        staying.test:{{$PORT}} {{
            bind 127.0.0.1
            prometheus 127.0.0.1:{{$METRICS}}
            hosts none.txt {{
                192.0.2.1 staying.test
            }}
        }}"
    )
}

/// Sends queries in turn until `over` is set, then waits for all answers; no query is repeated. Returns the number of
/// queries.
fn ask(server: SocketAddr, questions: &[Vec<u8>], answered: &AtomicUsize, over: &AtomicBool) -> usize {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut pending = vec![false; 1 << 16];
    let (mut asked, mut under_way) = (0_usize, 0);
    let mut buffer = [0; 1232];
    let since = Instant::now();
    let mut heard = since;
    loop {
        let due = (since.elapsed().as_secs_f64() * f64::from(RATE / CLIENTS)) as usize;
        // A delayed client catches up, but never has more than WINDOW outstanding queries.
        if !over.load(Ordering::Relaxed) && under_way < WINDOW && asked < due {
            let mut question = questions[asked % questions.len()].clone();
            let id = asked as u16;
            question[..2].copy_from_slice(&id.to_be_bytes());
            assert!(
                !pending[usize::from(id)],
                "a question that was asked 65,536 questions ago has no answer"
            );
            pending[usize::from(id)] = true;
            socket.send(&question).unwrap();
            asked += 1;
            under_way += 1;
            if under_way < WINDOW && asked < due {
                continue;
            }
        }
        if under_way == 0 {
            if over.load(Ordering::Relaxed) {
                return asked;
            }
            thread::sleep(Duration::from_micros(200));
            continue;
        }
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                assert!(
                    pending[usize::from(id)],
                    "an answer without a query, or a second answer: {:02x?}",
                    &buffer[..length]
                );
                pending[usize::from(id)] = false;
                // The answer has rcode NOERROR and at least one answer record.
                assert!(buffer[3] & 15 == 0 && buffer[7] > 0, "{:02x?}", &buffer[..length]);
                under_way -= 1;
                heard = Instant::now();
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                assert!(heard.elapsed() < EVENT_TIMEOUT, "{under_way} of {asked} questions are lost");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the last octet of the address of `version.changing.test`.
async fn version(server: &Server) -> u32 {
    let heard = Question::parse("version.changing.test. A").ask(server).await;
    let answer = Message::from_vec(&heard.answer.expect("an answer")).unwrap();
    match &answer.answers[0].data {
        RData::A(a) => a.octets()[3].into(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn hundred_reloads_under_load_lose_no_query() {
    let which = Program::subject();
    let upstreams = Upstreams::start().await;
    let site = upstreams.name(CorefileDir::new(&corefile(0), &[]));
    let mut server = Server::start(which, &site).await;
    let names = ["x.changing.test. A", "staying.test. A", "a.example.org. A", "b.example.org. AAAA edns"];
    let questions: Vec<Vec<u8>> = names.iter().map(|text| Question::parse(text).message).collect();
    let (answered, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (address, questions) = (server.dns(), questions.clone());
            let (answered, over) = (Arc::clone(&answered), Arc::clone(&over));
            thread::spawn(move || ask(address, &questions, &answered, &over))
        })
        .collect();
    let since = Instant::now();
    for reload in 1..=RELOADS {
        let before = answered.load(Ordering::Relaxed);
        site.write("Corefile", &corefile(reload));
        server.signal(Signal::SIGUSR1);
        // A reload is done when an answer has the new version; the load must have continued meanwhile.
        eventually(&format!("reload {reload}"), || async {
            assert!(!clients.iter().any(thread::JoinHandle::is_finished), "a client has ended");
            (version(&server).await == reload && answered.load(Ordering::Relaxed) > before + 100)
                .then_some(())
        })
        .await;
    }
    let took = since.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let ended = tokio::task::spawn_blocking(|| {
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    let asked = ended.await.unwrap();
    assert_eq!(answered.load(Ordering::Relaxed), asked);
    assert_eq!(server.metric("coredns_reload_failed_total").unwrap_or_default(), 0.0);
    eprintln!(
        "corefile: {RELOADS} reloads in {took:.1} s under {:.0} questions/s: {asked} asked, as many answered",
        asked as f64 / took
    );
}
