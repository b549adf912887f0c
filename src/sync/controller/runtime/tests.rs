use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

type Answer = (u16, Result<(), WriteError>);

/// A controller that writes each key until its write succeeds.
struct Controller {
    runtime: Runtime<u8, &'static str, (), Answer>,
    term: u64,
    sent: Arc<AtomicUsize>,
}

impl Controller {
    fn new(leadership: Leadership) -> Self {
        Self::with(Limits::at_once(8), leadership)
    }

    fn with(limits: Limits, leadership: Leadership) -> Self {
        let term = leadership.term();
        let runtime = Runtime::new(limits, Duration::ZERO, leadership);
        Self { runtime, term, sent: Arc::default() }
    }

    fn add(&mut self, keys: usize) {
        (0..keys).for_each(|name| {
            let namespace = format!("n{}", name % 4);
            self.runtime.queue.add(&ServiceKey::new(&namespace, &name.to_string()));
        });
    }

    /// Writes until `end`. Returns the number of successful writes.
    async fn run_until(
        &mut self,
        end: Instant,
        answer: impl Fn() -> Answer + Clone + Send + 'static,
    ) -> usize {
        let mut written = 0;
        while Instant::now() < end {
            while let Some(key) = self.runtime.queue.next() {
                if self.runtime.queue.may_start(&key, &0, "", false)
                    && self.runtime.may_send(&key, &["class"])
                {
                    let (sent, answer) = (Arc::clone(&self.sent), answer.clone());
                    let request = async move {
                        sent.fetch_add(1, Ordering::Relaxed);
                        answer()
                    };
                    self.runtime.start(&key, (), false, (self.term, Proof::Clock), request);
                }
            }
            let ended = tokio::select! {
                ended = self.runtime.event() => ended.unwrap(),
                () = tokio::time::sleep_until(end) => None,
            };
            let Some((key, (), code, result)) = ended.map(Ended::into_result) else { continue };
            let meanwhile = self.runtime.done(&key, code, result.is_err());
            match result {
                Ok(()) => {
                    written += 1;
                    self.runtime.succeeded(&key, Some(&0));
                }
                Err(error) => drop(self.runtime.failed(&key, error, "", meanwhile.is_superseded)),
            }
        }
        written
    }
}

fn after(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn one_key_probes_while_the_api_server_is_away() {
    let mut controller = Controller::new(Leadership::unconditional());
    controller.add(100);
    assert_eq!(controller.run_until(after(60), || (0, Err(WriteError::Unanswered))).await, 0);
    // Some writes had begun at once; then the pauses between two probes double up to 5 s.
    let sent = controller.sent.load(Ordering::Relaxed);
    assert!((10..30).contains(&sent), "{sent} requests without an answer");
    assert_eq!(controller.run_until(after(6), || (200, Ok(()))).await, 100, "all follow the first answer");
}

#[tokio::test(start_paused = true)]
async fn probes_obey_the_limit_of_starts() {
    let limits = Limits { at_once: 4, starts: Some((4, Duration::from_secs(1))) };
    let mut controller = Controller::with(limits, Leadership::unconditional());
    controller.add(100);
    assert_eq!(controller.run_until(after(60), || (0, Err(WriteError::Unanswered))).await, 0);
    let sent = controller.sent.load(Ordering::Relaxed);
    assert!((10..30).contains(&sent), "{sent} requests without an answer");
    assert!(controller.run_until(after(60), || (200, Ok(()))).await >= 100, "all are written");
}

#[tokio::test(start_paused = true)]
async fn key_of_a_refused_class_takes_no_probe_of_the_outage() {
    let mut controller = Controller::new(Leadership::unconditional());
    let [refused, other] = ["refused", "other"].map(|name| ServiceKey::new("shop", name));
    controller.runtime.breakers.record_failure("class", &refused, Some(Duration::from_secs(300)));
    controller.runtime.unanswered(&other);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!controller.runtime.may_send(&refused, &["class"]));
    assert!(controller.runtime.may_send(&other, &["another class"]), "it probes");
    assert!(!controller.runtime.may_send(&refused, &[]), "one key at a time");
    controller.runtime.done(&other, 200, false);
    assert!(controller.runtime.may_send(&refused, &[]));
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_request_is_an_error_of_its_key() {
    let mut controller = Controller::new(Leadership::unconditional());
    controller.add(3);
    assert_eq!(controller.run_until(after(1), || panic!("a defect on purpose")).await, 0);
    assert_eq!(controller.run_until(after(10), || (200, Ok(()))).await, 3);
}

#[tokio::test(start_paused = true)]
async fn request_of_a_former_term_is_not_sent() {
    let (leadership, lead) = Leadership::by_hand();
    lead(Some(4));
    let mut controller = Controller::new(leadership);
    controller.term = 4;
    controller.add(5);
    lead(Some(5));
    assert_eq!(controller.run_until(after(30), || (200, Ok(()))).await, 0);
    assert_eq!(controller.sent.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn hanging_write_delays_the_end_by_five_seconds() {
    let mut controller = Controller::new(Leadership::unconditional());
    let (key, term) = (ServiceKey::new("shop", "web"), controller.term);
    controller.runtime.start(&key, (), false, (term, Proof::Clock), std::future::pending());
    let start = Instant::now();
    assert!(controller.runtime.drained().await.unwrap().is_none());
    assert_eq!(start.elapsed(), SHUTDOWN_TIMEOUT);
    assert!(controller.runtime.is_writing());
}
