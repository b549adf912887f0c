//! Queries at a steady rate, in which each lost or wrong answer counts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use tokio::task::JoinSet;

use super::dns::{query, send_udp};

/// The numbers of queries, of wrong answers, and of queries without an answer.
pub struct Asked {
    pub sent: usize,
    pub wrong: usize,
    pub lost: usize,
}

/// Asks the questions in turn, `rate` of them a second, until `over`. `is_right` decides about an answer to the question
/// with this number.
pub async fn ask_steadily(
    dns: SocketAddr,
    rate: u32,
    questions: Vec<String>,
    is_right: impl Fn(usize, &Message) -> bool + Send,
    over: Arc<AtomicBool>,
) -> Asked {
    let (since, mut asked, mut under_way) =
        (Instant::now(), Asked { sent: 0, wrong: 0, lost: 0 }, JoinSet::new());
    let count = |asked: &mut Asked, (number, answer): (usize, Option<Vec<u8>>)| match answer {
        None => asked.lost += 1,
        Some(answer) => {
            asked.wrong += usize::from(!is_right(number, &Message::from_vec(&answer).unwrap()));
        }
    };
    while !over.load(Ordering::Relaxed) {
        let due = (since.elapsed().as_secs_f64() * f64::from(rate)) as usize;
        while asked.sent < due {
            let number = asked.sent % questions.len();
            let bytes = query(&questions[number]).to_vec().unwrap();
            under_way.spawn(async move { (number, send_udp(dns, &bytes, Duration::from_secs(2)).await) });
            asked.sent += 1;
        }
        tokio::select! {
            Some(ended) = under_way.join_next(), if !under_way.is_empty() => count(&mut asked, ended.unwrap()),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    while let Some(ended) = under_way.join_next().await {
        count(&mut asked, ended.unwrap());
    }
    asked
}
