use std::io::ErrorKind;
use std::path::Path;

use futures::FutureExt;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::dns::corefile::FileSources;
use crate::dns::server::config::configure;
use crate::dns::server::instance::*;
use crate::held_port::HeldPort;
use crate::store::{OnGone, Store};

fn serving() -> (Instance, ServerContext) {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    (Instance::new(context.clone(), Box::new(|_| {})).unwrap(), context)
}

impl Instance {
    fn put(&mut self, context: &ServerContext, text: &str) {
        let configuration = configure(Path::new("Corefile"), text, &FileSources::SYSTEM, context).unwrap();
        self.apply(configuration).unwrap();
    }
}

#[tokio::test]
async fn readded_listener_isnt_mistaken_for_the_removed_listener() {
    let (mut serving, context) = serving();
    let port = HeldPort::take().unwrap();
    let one = format!(".:{} {{\nbind 127.0.0.1\nwhoami\n}}\n", port.number());
    let other = "example.:0 {\nbind 127.0.0.1\nwhoami\n}\n";
    serving.put(&context, &format!("{one}{other}"));
    serving.put(&context, other);
    // The task of the removed listener isn't joined yet, as happens while a Corefile is being read.
    wait_until_closed(&port).await;
    for _ in 0..100 {
        yield_now().await;
    }
    serving.put(&context, &format!("{one}{other}"));
    assert_eq!(serving.wait_for_stopped_listener().now_or_never(), None);
    serving.end().await;
}

#[tokio::test]
async fn all_addresses_that_are_taken_are_named_at_once() {
    let (mut serving, context) = serving();
    let held = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [one, two, three] = held.each_ref().map(|held| held.local_addr().unwrap());
    let text = format!(
        ".:{} {{\nbind 127.0.0.1\nwhoami\nprometheus {two}\nready {two}\nhealth {three}\n}}\n",
        one.port()
    );
    let configuration = configure(Path::new("Corefile"), &text, &FileSources::SYSTEM, &context).unwrap();
    let error = serving.apply(configuration).err().unwrap();
    let told = error.to_string();
    assert!(error.is_input());
    assert_eq!(
        (told.matches("can't listen on").count(), told.matches("; and Corefile:").count()),
        (3, 2),
        "{told}"
    );
    for address in [one, two, three] {
        assert!(told.contains(&format!("can't listen on {address} by TCP")), "{told}");
    }
    serving.end().await;
}

#[tokio::test]
async fn ended_tasks_of_removed_blocks_are_freed() {
    let (mut serving, context) = serving();
    for i in 0..20 {
        serving.put(
            &context,
            &format!("z{i}.:0 {{\nbind 127.0.0.1\nhosts /nonexistent {{\n192.0.2.1 a.z{i}\n}}\n}}\n"),
        );
        for _ in 0..100 {
            yield_now().await;
        }
    }
    assert!(serving.tasks.len() <= 2, "{}", serving.tasks.len());
    serving.end().await;
}

#[tokio::test]
async fn replaced_block_is_freed_while_another_blocks_task_runs() {
    let (mut serving, context) = serving();
    let corefile = |plugin: &str| {
        format!("a.:0 {{\nbind 127.0.0.1\n{plugin}\n}}\n.:0 {{\nbind 127.0.0.1\nloop\nwhoami\n}}\n")
    };
    serving.put(&context, &corefile("whoami"));
    let zone = Name::from_ascii("a.").unwrap();
    let replaced = serving.blocks.iter().find(|running| running.block.zones.contains(&zone)).unwrap();
    let replaced = Arc::downgrade(&replaced.block);
    serving.put(&context, &corefile("any"));
    let freed = async {
        while replaced.strong_count() > 0 {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(30), freed).await.expect("the block is freed");
    serving.end().await;
}

#[tokio::test]
async fn port_of_removed_listener_is_freed_despite_pending_answer() {
    let (mut serving, context) = serving();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let one = format!("z.:0 {{\nbind 127.0.0.1\nforward . {}\n}}\n", silent.local_addr().unwrap());
    let other = "example.:0 {\nbind 127.0.0.2\nwhoami\n}\n";
    serving.put(&context, &format!("{one}{other}"));
    let address = serving.listeners[0].bound.address;
    let mut client = TcpStream::connect(address).await.unwrap();
    let question = question("a.z.");
    client.write_u16(question.len().try_into().unwrap()).await.unwrap();
    client.write_all(&question).await.unwrap();
    silent.recv(&mut [0; 512]).await.unwrap();
    serving.put(&context, other);
    while std::net::TcpListener::bind(address).is_err() {
        yield_now().await;
    }
    assert_eq!(client.read_u8().now_or_never().map(|read| read.ok()), None, "the client is waiting");
    drop(silent);
    serving.end().await;
}

fn question(name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

/// Waits until no socket receives at the port by TCP or UDP.
async fn wait_until_closed(port: &HeldPort) {
    // The socket that reserves the port doesn't listen, so this fails only while another socket listens.
    while std::net::TcpListener::bind(port.local()).is_err() {
        yield_now().await;
    }
    // A datagram that the socket hadn't read before it closed gets no answer; the next one is refused.
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(port.local()).await.unwrap();
    let is_closed = || async {
        let _ = client.send(&question("a.")).await;
        let received = timeout(Duration::from_millis(10), client.recv(&mut [0; 512])).await;
        received
            .is_ok_and(|received| received.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
    };
    while !is_closed().await {}
}

/// Waits for an answer by UDP, and returns whether one came.
async fn answers(port: &HeldPort) -> bool {
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(port.local()).await.unwrap();
    client.send(&question("a.")).await.unwrap();
    client.recv(&mut [0; 512]).await.is_ok()
}

#[tokio::test]
async fn queries_are_answered_while_a_listener_changes_address() {
    let (mut serving, context) = serving();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap();
    let held = HeldPort::take().unwrap();
    let port = held.number();
    let block = |bind: &str| {
        let (slow, quick) = (
            format!("slow.:{port} {{\n{bind}\nforward . {upstream}\n}}\n"),
            format!(".:{port} {{\n{bind}\nwhoami\n}}\n"),
        );
        format!("{slow}{quick}")
    };
    let (all, one) = (block(""), block("bind 127.0.0.1"));
    serving.put(&context, &all);
    for text in [&one, &all, &one] {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(&question("a.slow."), held.local()).await.unwrap();
        silent.recv(&mut [0; 512]).await.unwrap();
        serving.put(&context, text);
        // Either of the two listeners may get the query.
        assert!(answers(&held).await);
        assert!(!serving.draining.is_empty(), "the previous listener still has a pending answer");
        // No other process can bind the port.
        assert!(std::net::TcpListener::bind(held.local()).is_err());
    }
    serving.end().await;
}

async fn health(address: SocketAddr) -> io::Result<()> {
    let mut client = TcpStream::connect(address).await?;
    client.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    if answer.ends_with("OK") { Ok(()) } else { Err(io::Error::other(answer)) }
}

#[tokio::test]
async fn health_endpoint_moves_to_another_address_of_its_port() {
    let (mut serving, context) = serving();
    let held = HeldPort::take().unwrap();
    let port = held.number();
    for address in [format!(":{port}"), format!("127.0.0.1:{port}"), format!(":{port}")] {
        serving.put(&context, &format!(".:0 {{\nbind 127.0.0.1\nhealth {address}\nwhoami\n}}\n"));
        // The removed listener closes its connections; the client then connects to the new one.
        while health(held.local()).await.is_err() {
            yield_now().await;
        }
    }
    serving.end().await;
}
