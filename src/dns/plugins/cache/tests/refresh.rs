//! Tests of answers that are about to expire, or have expired.

use crate::dns::plugins::cache::tests::*;

#[tokio::test(start_paused = true)]
async fn popular_answer_has_one_prefetch_at_a_time() {
    let bench = CacheFixture::new("cache {\nprefetch 2 1m 50%\n}", address(60));
    bench.ask().await;
    bench.ask().await;
    seconds(30).await;
    assert_eq!(bench.asked(), 1);
    bench.take(Duration::from_secs(1));
    for _ in 0..3 {
        assert_eq!(bench.ask().await, A_60.replace("60", "30"));
    }
    settled().await;
    assert_eq!(*bench.source.asked.lock(), ["a.example. A ad tcp"]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.ask().await, A_60);
    assert_eq!(
        bench.context.metrics("prefetch"),
        [r#"coredns_cache_prefetch_total{server="dns://:53",view="",zones="."} 1"#]
    );
    // The look-up of a target starts a prefetch, too.
    seconds(59).await;
    bench.asked();
    bench.take(Duration::ZERO);
    assert_eq!(bench.target(5, true).await, A_60.replace("60", "1"));
    settled().await;
    assert_eq!(bench.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn immediate_serves_an_expired_answer_and_refreshes_it() {
    for (line, ttl) in [("serve_stale", "0"), ("serve_stale 1h immediate 30s", "30")] {
        let bench = CacheFixture::new(&format!("cache {{\n{line}\n}}"), address(60));
        bench.ask().await;
        seconds(60).await;
        for answer in
            [Err(PluginError::no_upstream("why")), Ok(failure()), Ok(reply(ResponseCode::Refused, &[], &[]))]
        {
            *bench.source.outcome.lock() = answer;
            bench.asked();
            assert_eq!(bench.ask().await, A_60.replace("60", ttl), "{line}");
            settled().await;
            assert_eq!(bench.asked(), 1);
        }
        bench.say(address(300));
        bench.ask().await;
        settled().await;
        assert_eq!(bench.ask().await, A_60.replace("60", "300"));
        assert_eq!(bench.context.metrics("served_stale")[0].split(' ').next_back(), Some("4"));
        // The name is gone, and without an SOA the NXDOMAIN isn't cacheable.
        seconds(300).await;
        bench.say(reply(ResponseCode::NXDomain, &[], &[]));
        bench.ask().await;
        settled().await;
        assert_eq!(bench.ask().await, "NXDOMAIN ra | | |");
    }
    let bench = CacheFixture::new("cache {\nserve_stale 10s\n}", address(60));
    bench.ask().await;
    seconds(70).await;
    bench.fail(ResponseCode::Refused);
    assert_eq!(bench.ask().await, "REFUSED | | |", "too old");
}

#[tokio::test(start_paused = true)]
async fn verify_serves_an_expired_answer_without_a_better_one() {
    for (timeout, first) in [("", "ra"), (" 100ms", "aa,ra")] {
        let bench = CacheFixture::new(&format!("cache {{\nserve_stale 1h verify{timeout}\n}}"), address(60));
        let old = A_60.replace("60", "0");
        bench.ask().await;
        seconds(60).await;
        for answer in [Err(PluginError::no_upstream("why")), Ok(failure())] {
            *bench.source.outcome.lock() = answer;
            assert_eq!(bench.ask().await, old);
        }
        let cut = {
            let mut cut = reply(ResponseCode::NoError, &[], &[]);
            cut.metadata.truncation = true;
            cut
        };
        bench.say(cut);
        assert_eq!(bench.ask().await, old);
        assert_eq!(bench.asked(), 4);
        bench.say(address(9));
        assert_eq!(bench.ask().await, A_60.replace("60", "9").replace("aa,ra", first));
        seconds(9).await;
        bench.say(absence());
        assert!(bench.ask().await.starts_with(&format!("NXDOMAIN {first} ")));
        assert!(bench.ask().await.starts_with("NXDOMAIN aa"));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_verification_refreshes_the_entry_for_the_next_client() {
    let bench = CacheFixture::new("cache {\nserve_stale 1h verify 100ms 30s\n}", address(60));
    bench.ask().await;
    seconds(60).await;
    bench.take(Duration::from_secs(1));
    assert_eq!(bench.ask().await, A_60.replace("60", "30"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.ask().await, A_60);
}

#[tokio::test(start_paused = true)]
async fn refresh_after_a_failure_waits_for_the_recheck_time() {
    for mode in ["immediate 0s 10s", "verify 0 0s 10s", "verify 100ms 0s 10s"] {
        let bench = CacheFixture::new(&format!("cache {{\nserve_stale 1h {mode}\n}}"), address(60));
        bench.ask().await;
        seconds(60).await;
        bench.no_upstream();
        bench.asked();
        for _ in 0..3 {
            assert_eq!(bench.ask().await, A_60.replace("60", "0"));
            settled().await;
        }
        assert_eq!(bench.asked(), 1, "{mode}");
        seconds(10).await;
        bench.say(address(60));
        bench.ask().await;
        settled().await;
        assert_eq!(bench.asked(), 1, "{mode}");
        assert_eq!(bench.ask().await, A_60);
    }
}

#[tokio::test(start_paused = true)]
async fn prefer_positive_serves_expired_data_instead_of_a_denial() {
    for mode in ["immediate", "verify", "verify 100ms"] {
        let lines = format!("cache {{\nserve_stale 1h {mode}\nserve_stale_policy prefer_positive\n}}");
        let bench = CacheFixture::new(&lines, address(60));
        bench.ask().await;
        seconds(60).await;
        for other in [absence(), failure(), reply(ResponseCode::NoError, &[], &[])] {
            bench.say(other);
            bench.asked();
            assert_eq!(bench.ask().await, A_60.replace("60", "0"), "{mode}");
            settled().await;
            assert_eq!(bench.asked(), 1);
        }
        bench.say(address(300));
        bench.ask().await;
        settled().await;
        assert_eq!(bench.ask().await, A_60.replace("60", "300"), "{mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn prefer_positive_gives_a_fresh_denial_for_an_expired_one() {
    for (mode, flags) in [("verify", "ra"), ("verify 100ms", "aa,ra")] {
        let lines = format!("cache {{\nserve_stale 1h {mode}\nserve_stale_policy prefer_positive\n}}");
        let bench = CacheFixture::new(&lines, absence());
        bench.ask().await;
        seconds(60).await;
        let fresh = bench.ask().await;
        assert!(fresh.starts_with(&format!("NXDOMAIN {flags} | | example. 60 IN SOA")), "{mode} {fresh}");
        seconds(60).await;
        bench.say(reply(ResponseCode::NoError, &[], &[]));
        assert_eq!(bench.ask().await, format!("NOERROR {flags} | | |"), "{mode}");
        assert_eq!(bench.ask().await, "NOERROR aa,ra | | |", "{mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn prefer_positive_gives_expired_data_for_an_uncacheable_denial() {
    let lines = "cache {\nserve_stale 1h verify\nserve_stale_policy prefer_positive\n}";
    let bench = CacheFixture::new(lines, address(60));
    bench.ask().await;
    seconds(60).await;
    bench.say(Reply { is_cacheable: false, ..absence() });
    assert_eq!(bench.ask().await, A_60.replace("60", "0"));
}

#[tokio::test(start_paused = true)]
async fn better_uncacheable_answer_ends_the_use_of_an_expired_one() {
    let expired = A_60.replace("60", "0");
    let alias = reply(ResponseCode::NoError, &["a.example. 9 CNAME b.example."], &[]);
    for (policy, answer, is_better) in [
        ("", address(9), true),
        ("", absence(), true),
        ("", reply(ResponseCode::NXDomain, &[], &[]), true),
        ("", failure(), false),
        // The look-up of the target may have failed.
        ("", alias, false),
        ("serve_stale_policy prefer_positive", address(9), true),
        ("serve_stale_policy prefer_positive", absence(), false),
    ] {
        let bench = CacheFixture::new(&format!("cache {{\nserve_stale\n{policy}\n}}"), address(60));
        bench.ask().await;
        seconds(60).await;
        bench.say(Reply { is_cacheable: false, ..answer });
        assert_eq!(bench.ask().await, expired);
        settled().await;
        let next = bench.ask().await;
        assert_eq!(next != expired, is_better, "{policy:?} {next}");
    }
}
