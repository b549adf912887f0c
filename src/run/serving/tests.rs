use std::path::Path;

use futures::FutureExt;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::yield_now;

use super::*;
use crate::dns::configuration::configure;
use crate::dns::corefile::Sources;
use crate::store::{Departed, Store};

fn serving() -> (Serving, Site) {
    let site = Site::silent(Arc::new(Store::new(Departed::Kept))).unwrap();
    (Serving::new(site.clone(), Box::new(|_| {})).unwrap(), site)
}

impl Serving {
    fn put(&mut self, site: &Site, text: &str) {
        let configuration = configure(Path::new("Corefile"), text, &Sources::SYSTEM, site).unwrap();
        self.apply(configuration).unwrap();
    }
}

#[tokio::test]
async fn a_listener_that_comes_back_isnt_taken_for_the_one_that_has_ended() {
    let (mut serving, site) = serving();
    let port = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let one = format!(".:{port} {{\nbind 127.0.0.1\nwhoami\n}}\n");
    let other = "example.:0 {\nbind 127.0.0.1\nwhoami\n}\n";
    serving.put(&site, &format!("{one}{other}"));
    serving.put(&site, other);
    // Nobody looks at what has ended: a Corefile is just being read.
    while UdpSocket::bind(("127.0.0.1", port)).await.is_err()
        || std::net::TcpListener::bind(("127.0.0.1", port)).is_err()
    {
        yield_now().await;
    }
    for _ in 0..100 {
        yield_now().await;
    }
    serving.put(&site, &format!("{one}{other}"));
    assert_eq!(serving.dead().now_or_never(), None);
    serving.end().await;
}

#[tokio::test]
async fn what_has_run_for_blocks_that_are_gone_takes_no_room() {
    let (mut serving, site) = serving();
    for i in 0..20 {
        serving.put(
            &site,
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
async fn a_port_is_free_at_once_though_an_answer_is_under_way() {
    let (mut serving, site) = serving();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let one = format!("z.:0 {{\nbind 127.0.0.1\nforward . {}\n}}\n", silent.local_addr().unwrap());
    let other = "example.:0 {\nbind 127.0.0.2\nwhoami\n}\n";
    serving.put(&site, &format!("{one}{other}"));
    let address = serving.listeners[0].bound.address;
    let mut client = TcpStream::connect(address).await.unwrap();
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii("a.z.").unwrap(), RecordType::A));
    let question = question.to_vec().unwrap();
    client.write_u16(question.len().try_into().unwrap()).await.unwrap();
    client.write_all(&question).await.unwrap();
    silent.recv(&mut [0; 512]).await.unwrap();
    serving.put(&site, other);
    while std::net::TcpListener::bind(address).is_err() {
        yield_now().await;
    }
    assert_eq!(client.read_u8().now_or_never().map(|read| read.ok()), None, "it still waits for its answer");
    drop(silent);
    serving.end().await;
}

/// Asks by UDP whether that address answers, for as long as it takes.
async fn answers(port: u16) -> bool {
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(("127.0.0.1", port)).await.unwrap();
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii("a.").unwrap(), RecordType::A));
    client.send(&question.to_vec().unwrap()).await.unwrap();
    client.recv(&mut [0; 512]).await.is_ok()
}

#[tokio::test]
async fn a_port_changes_its_address_and_back_while_an_answer_is_under_way() {
    let (mut serving, site) = serving();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap();
    let port = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let block = |bind: &str| {
        let (slow, quick) = (
            format!("slow.:{port} {{\n{bind}\nforward . {upstream}\n}}\n"),
            format!(".:{port} {{\n{bind}\nwhoami\n}}\n"),
        );
        format!("{slow}{quick}")
    };
    let (all, one) = (block(""), block("bind 127.0.0.1"));
    serving.put(&site, &all);
    for text in [&one, &all, &one] {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii("a.slow.").unwrap(), RecordType::A));
        client.send_to(&question.to_vec().unwrap(), ("127.0.0.1", port)).await.unwrap();
        silent.recv(&mut [0; 512]).await.unwrap();
        serving.put(&site, text);
        // Which of the two gets it doesn't matter.
        assert!(answers(port).await);
        assert!(!serving.lingering.is_empty(), "the one before still has an answer to give");
        // No other program comes in.
        assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_err());
    }
    serving.end().await;
}

async fn health(port: u16) -> io::Result<()> {
    let mut client = TcpStream::connect(("127.0.0.1", port)).await?;
    client.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    if answer.ends_with("OK") { Ok(()) } else { Err(io::Error::other(answer)) }
}

#[tokio::test]
async fn http_moves_to_another_address_of_its_port() {
    let (mut serving, site) = serving();
    let port = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for address in [format!(":{port}"), format!("127.0.0.1:{port}"), format!(":{port}")] {
        serving.put(&site, &format!(".:0 {{\nbind 127.0.0.1\nhealth {address}\nwhoami\n}}\n"));
        // Who came to the one that ends has to come again.
        while health(port).await.is_err() {
            yield_now().await;
        }
    }
    serving.end().await;
}
