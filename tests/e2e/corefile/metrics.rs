//! The metrics of both programs after the same queries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::expected::Expectations;
use super::question::table;
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::{EVENT_TIMEOUT, PollPauses};

const COREFILE: &str = "
    .:{$PORT} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        health 127.0.0.1:{$HEALTH}
        ready 127.0.0.1:{$READY}
        reload 2s 1s
        errors
        cancel
        bufsize 1232
        nsid here
        local
        any
        loadbalance
        acl {
            block type HINFO
            filter type NAPTR
            drop type SSHFP
        }
        rewrite name red.test a.example.org
        cache 30
        minimal
        forward . {$UPSTREAM} {
            max_concurrent 1000
        }
    }
    hosts.test:{$PORT} 10.0.0.0/24:{$PORT} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        hosts {
            10.0.0.1 one.hosts.test
            2001:db8::1 one.hosts.test
            fallthrough sub.hosts.test
        }
        whoami
    }
    template.test:{$PORT} chaos.test:{$PORT} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        chaos version
        cache {
            success 2048
            denial 2048
        }
        template IN A template.test {
            match \"^(?P<what>[^.]*)\"
            answer \"{{ .Name }} 60 IN A 192.0.2.{{ .Group.what }}\"
        }
        template IN AAAA template.test {
            answer \"{{ .Name }} 60 IN CNAME a.example.org\"
        }
        template IN TXT template.test {
            answer \"{{ .Name }} 60 IN TXT {{ index .Match 9 }}\"
        }
    }
    dead.test:{$PORT} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        errors
        forward . {$DEAD} {
            max_fails 0
        }
    }
    view.test:{$PORT} {
        bind 127.0.0.1
        view inside {
            expr type() in ['A', 'MX']
        }
        prometheus 127.0.0.1:{$METRICS}
        acl {
            block type MX
        }
        cache
        template IN A view.test {
            answer \"{{ .Name }} 60 IN A 192.0.2.1\"
        }
    }
    view.test:{$PORT} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        whoami
    }
    unmeasured.test:{$PORT} {
        bind 127.0.0.1
        whoami
    }";

const QUESTIONS: &str = "
    a.example.org. A
    a.example.org. A
    a.example.org. A tcp
    a.example.org. A edns=4096 do
    a.example.org. A version=1
    a.example.org. AAAA
    a.example.org. AAAA
    nowhere.example.org. A
    nowhere.example.org. A
    big.example.org. A
    big.example.org. A tcp
    huge.example.org. A edns=4096
    text.example.org. TXT
    example.org. MX
    example.org. SRV
    example.org. CAA
    example.org. ANY
    example.org. TYPE65300
    x.servfail.test. A
    x.refused.test. A
    x.notimp.test. A
    red.test. A
    hinfo.example.org. HINFO
    naptr.example.org. NAPTR tcp
    sshfp.example.org. SSHFP silent
    localhost. A
    a.localhost. A
    localhost.test. A
    one.hosts.test. A
    one.hosts.test. AAAA edns
    two.hosts.test. A
    x.sub.hosts.test. A
    1.0.0.10.in-addr.arpa. PTR
    1.template.test. A
    1.template.test. A
    500.template.test. A
    1.template.test. TXT
    1.template.test. MX
    1.template.test. AAAA
    1.template.test. AAAA
    version.chaos.test. TXT CH
    version.bind. TXT CH
    x.dead.test. A
    x.dead.test. A tcp
    a.view.test. A
    a.view.test. A
    a.view.test. MX
    a.view.test. TXT
    x.unmeasured.test. A
    a.example.org. A opcode=2
    a.example.org. A nord";

/// The prefix of the sums of `coredns_dns_responses_total` over all plugins.
const OF_ALL: &str = "coredns_dns_responses_total of all: ";

#[derive(Default)]
struct Scrape {
    /// Types and help texts.
    families: BTreeMap<String, (String, String)>,
    /// Values by name and labels.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn of(server: &Server) -> Self {
        let page = server.without_ports(&server.metrics());
        let mut scrape = Self::default();
        for line in page.lines() {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                help.clone_into(&mut scrape.families.entry(name.to_owned()).or_default().1);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            {
                kind.clone_into(&mut scrape.families.entry(name.to_owned()).or_default().0);
            } else if let Some((sample, value)) = line.rsplit_once(' ') {
                let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
                scrape.samples.insert(sample.to_owned(), value);
                // The label `plugin` differs, so the sum over all plugins is compared, too.
                if let Some(rest) = sample.strip_prefix("coredns_dns_responses_total{plugin=") {
                    let labels = rest.split_once(',').unwrap().1;
                    *scrape.samples.entry(format!("{OF_ALL}{labels}")).or_default() += value;
                }
            }
        }
        scrape
    }

    /// Returns the number of counted answers.
    fn answers(&self) -> f64 {
        let of_all = |(name, value): (&String, &f64)| name.starts_with(OF_ALL).then_some(*value);
        self.samples.iter().filter_map(of_all).sum()
    }
}

/// Returns the differences of two scrapes by metric and kind of difference, with both values.
fn differences(coredns: &Scrape, subject: &Scrape) -> BTreeMap<(String, &'static str), String> {
    let mut found = BTreeMap::new();
    let names: BTreeSet<_> = coredns.families.keys().chain(subject.families.keys()).collect();
    for name in names {
        match (coredns.families.get(name), subject.families.get(name)) {
            // A failed health check is a matter of time.
            (Some(_), None) | (None, Some(_)) if name.ends_with("healthcheck_failures_total") => {}
            (Some(_), None) => drop(found.insert((name.clone(), "lacking"), String::new())),
            (None, Some(_)) => drop(found.insert((name.clone(), "more"), String::new())),
            (Some(one), Some(other)) if one != other => {
                found.insert((name.clone(), "described"), format!("{one:?} {other:?}"));
            }
            _ => {}
        }
    }
    let samples: BTreeSet<_> = coredns.samples.keys().chain(subject.samples.keys()).collect();
    for sample in samples {
        let family = |scrape: &Scrape| {
            let name = sample.split(['{', ' ']).next().unwrap();
            let ends = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
            [name].into_iter().chain(ends).any(|name| scrape.families.contains_key(name))
        };
        // A metric family that one program lacks is reported above.
        if !family(coredns) || !family(subject) {
            continue;
        }
        match (coredns.samples.get(sample), subject.samples.get(sample)) {
            (Some(_), None) => drop(found.insert((sample.clone(), "lacking"), String::new())),
            (None, Some(_)) => drop(found.insert((sample.clone(), "more"), String::new())),
            (Some(one), Some(other)) if one != other && is_alike(sample) => {
                found.insert((sample.clone(), "value"), format!("{one} {other}"));
            }
            _ => {}
        }
    }
    found
}

/// Whether a value depends only on the queries.
fn is_alike(sample: &str) -> bool {
    let name = sample.split('{').next().unwrap();
    let varies = ["_seconds_bucket", "_seconds_sum", "_seconds", "go_", "process_"];
    // Timers start health checks and the requests of the plugin `health` to itself. Whether a connection is reused
    // depends on its age.
    let by_clock = ["health", "conn_cache"];
    !varies.iter().any(|part| name.ends_with(part) || name.starts_with(part))
        && !by_clock.iter().any(|part| name.contains(part))
}

#[tokio::test]
async fn metrics_have_the_names_labels_and_values_of_coredns() {
    let upstreams = Upstreams::start().await;
    let site = upstreams.name(CorefileDir::new(COREFILE, &[]));
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    for question in table(QUESTIONS) {
        tokio::join!(question.ask(&coredns), question.ask(&subject));
    }
    // CoreDNS counts an answer after sending it. If the numbers never agree, the comparison shows which metrics differ.
    let deadline = Instant::now() + EVENT_TIMEOUT / 4;
    let mut pauses = PollPauses::new();
    let [coredns, subject] = loop {
        let scrapes = [&coredns, &subject].map(Scrape::of);
        if scrapes[0].answers() == scrapes[1].answers() || Instant::now() > deadline {
            break scrapes;
        }
        pauses.next().await;
    };
    let mut expected = Expectations::of(["metrics"]);
    for ((what, how), sides) in differences(&coredns, &subject) {
        expected.record("metrics", &what, how, &sides);
    }
    eprintln!("corefile: {} samples of {} metrics", coredns.samples.len(), coredns.families.len());
    expected.check();
}
