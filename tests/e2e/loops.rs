//! Upstreams that lead back to lb-linker: found, and forgiven when that is mended.

use hickory_proto::op::ResponseCode;
use nix::sys::signal::Signal;

use crate::answers::with_upstream;
use crate::harness::dns::{CoreDns, answers, ask_udp, ede, query};

/// All names have one address.
const GOOD: &str = "template IN ANY . {\nanswer \"{{ .Name }} 0 IN A 192.0.2.1\"\n}";
const LOOPING: &str = "lb_linker_dns_looping";

#[tokio::test]
async fn a_loop_is_found_at_sigusr1_and_ends_when_it_is_mended() {
    let mut upstream = CoreDns::start(GOOD, "").await;
    let mut fixture = with_upstream(&[("web", "{hostname: a.example.com}")], upstream.address).await;
    let dns = fixture.linker.dns;
    answers(dns, "www.example. A", "192.0.2.1").await;
    assert_eq!(fixture.linker.metric(LOOPING), Some(0.0));

    upstream.restart(&format!("forward . {dns}")).await;
    fixture.linker.signal(Signal::SIGUSR1);
    fixture.linker.line("detected for zone \".\"").await;
    fixture.linker.counts(LOOPING, 1.0).await;
    let refused = ask_udp(dns, &query("other.example. A")).await;
    assert_eq!((refused.metadata.response_code, ede(&refused)), (ResponseCode::ServFail, Some(0)));

    // Nothing but time is needed.
    upstream.restart(GOOD).await;
    fixture.linker.line("the loop for zone \".\" has ended after ").await;
    fixture.linker.counts(LOOPING, 0.0).await;
    answers(dns, "www2.example. A", "192.0.2.1").await;
    answers(dns, "web-default.lb.internal. A", "a.example.com. 192.0.2.1").await;

    // SIGUSR1 begins afresh: the loop that is there still is found once more, and without one forward answers.
    upstream.restart(&format!("forward . {dns}")).await;
    fixture.linker.signal(Signal::SIGUSR1);
    fixture.linker.counts("lb_linker_dns_loops_total", 2.0).await;
    fixture.linker.signal(Signal::SIGUSR1);
    fixture.linker.line("looking for a loop afresh; forward answers again").await;
    fixture.linker.counts("lb_linker_dns_loops_total", 3.0).await;
    upstream.restart(GOOD).await;
    fixture.linker.signal(Signal::SIGUSR1);
    answers(dns, "www3.example. A", "192.0.2.1").await;
    fixture.linker.counts(LOOPING, 0.0).await;
    assert!(fixture.linker.stop().success());
}
