//! Forwarding loops: upstreams that forward back to lb-linker are detected, and forwarding resumes when the loop is
//! gone.

use hickory_proto::op::ResponseCode;
use nix::sys::signal::Signal;

use crate::answers::with_upstream;
use crate::harness::dns::{CoreDns, answers, ask_udp, ede, query};
use crate::harness::eventually;

/// The plugins of an upstream that answers every name with one address.
const GOOD_PLUGINS: &str = "template IN ANY . {\nanswer \"{{ .Name }} 0 IN A 192.0.2.1\"\n}";
const LOOPING_METRIC: &str = "lb_linker_dns_looping";
const LOOPS_METRIC: &str = "lb_linker_dns_loops_total";

#[tokio::test]
async fn loop_is_detected_at_sigusr1_and_ends_when_fixed() {
    let mut upstream = CoreDns::start(GOOD_PLUGINS, "").await;
    let mut fixture = with_upstream(&[("web", "{hostname: a.example.com}")], upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "www.example. A", "192.0.2.1").await;
    assert_eq!(fixture.linker.metric(LOOPING_METRIC), Some(0.0));

    upstream.restart(&format!("forward . {dns}")).await;
    fixture.linker.signal(Signal::SIGUSR1);
    fixture.linker.line("detected for zone \".\"").await;
    fixture.linker.counts(LOOPING_METRIC, 1.0).await;
    eventually("SERVFAIL because of the loop", || async {
        let refused = ask_udp(dns, &query("other.example. A")).await;
        (refused.metadata.response_code == ResponseCode::ServFail && ede(&refused) == Some(0)).then_some(())
    })
    .await;

    // lb-linker notices the end of the loop; it needs neither a signal nor a restart.
    upstream.restart(GOOD_PLUGINS).await;
    fixture.linker.line("the loop for zone \".\" has ended after ").await;
    fixture.linker.counts(LOOPING_METRIC, 0.0).await;
    answers(dns, "www2.example. A", "192.0.2.1").await;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.1").await;

    // SIGUSR1 repeats the detection: a loop that still exists is found again, and without a loop `forward` answers.
    upstream.restart(&format!("forward . {dns}")).await;
    for _ in 0..2 {
        let before = fixture.linker.metric(LOOPS_METRIC);
        fixture.linker.signal(Signal::SIGUSR1);
        let is_found = || async { (fixture.linker.metric(LOOPS_METRIC) > before).then_some(()) };
        eventually("the loop is found again", is_found).await;
        fixture.linker.counts(LOOPING_METRIC, 1.0).await;
    }
    fixture.linker.line("looking for a loop afresh; forward answers again").await;
    upstream.restart(GOOD_PLUGINS).await;
    fixture.linker.signal(Signal::SIGUSR1);
    answers(dns, "www3.example. A", "192.0.2.1").await;
    fixture.linker.counts(LOOPING_METRIC, 0.0).await;
    assert!(fixture.linker.stop().success());
}
