//! The labels of the plugin `geoip` in the log lines of both programs after the same queries.

use super::expected::Expectations;
use super::logs::lines;
use super::question::table;
use super::server::{CorefileDir, Program, Server};
use crate::harness::eventually;

const COREFILE: &str = r#"
    city.test:{$PORT} {
        bind 127.0.0.1
        metadata
        geoip {$SEEDS}/city
        log . "{name} {/geoip/city/name}|{/geoip/country/code}|{/geoip/country/name}|{/geoip/country/is_in_european_union}|{/geoip/continent/code}|{/geoip/continent/name}|{/geoip/latitude}|{/geoip/longitude}|{/geoip/timezone}|{/geoip/postalcode}|{/geoip/subdivisions/code}|{/geoip/asn/number}|{/geoip/asn/org}|{/geoip/none}"
        whoami
    }
    subnet.city.test:{$PORT} {
        bind 127.0.0.1
        metadata
        geoip {$SEEDS}/city {
            edns-subnet
        }
        log . "{name} {/geoip/city/name}|{/geoip/country/is_in_european_union}|{/geoip/latitude}|{/geoip/subdivisions/code}"
        whoami
    }
    asn.test:{$PORT} {
        bind 127.0.0.1
        metadata
        geoip {$SEEDS}/asn {
            edns-subnet
        }
        log . "{name} {/geoip/asn/number}|{/geoip/asn/org}|{/geoip/city/name}"
        whoami
    }
    isp.test:{$PORT} {
        bind 127.0.0.1
        metadata
        geoip {$SEEDS}/isp
        log . "{name} {/geoip/asn/number}|{/geoip/asn/org}|{/geoip/country/code}"
        whoami
    }
    wrong.test:{$PORT} {
        bind 127.0.0.1
        metadata
        geoip {$SEEDS}/wrong
        log . "{name} {/geoip/city/name}|{/geoip/country/name}"
        whoami
    }
    zone.test:{$PORT} {
        bind 127.0.0.1
        metadata in.zone.test
        geoip {$SEEDS}/city
        log . "{name} {/geoip/city/name}"
        whoami
    }
    without.test:{$PORT} {
        bind 127.0.0.1
        geoip {$SEEDS}/city
        log . "{name} {/geoip/city/name}"
        whoami
    }"#;

/// The subnets are 127.0.0.1/32, 81.2.69.0/24, 81.2.69.142/32, 203.0.113.0/24, 2001:db8::/56 and 2001:db9::/56.
const QUESTIONS: &str = "
    a.city.test. A
    b.city.test. A tcp
    c.city.test. A from=127.0.0.2
    d.city.test. A from=127.0.0.3
    e.city.test. A from=127.0.0.4
    f.city.test. A option=8:0001200051024500
    a.subnet.city.test. A
    b.subnet.city.test. A from=127.0.0.4 option=8:000120007f000001
    c.subnet.city.test. A option=8:00011800510245
    d.subnet.city.test. A option=8:000120005102458e tcp
    e.subnet.city.test. A option=8:00011800cb0071
    f.subnet.city.test. A option=8:0002380020010db8000000
    g.subnet.city.test. A option=8:0002380020010db9000000
    h.subnet.city.test. A option=65001:00
    a.asn.test. A
    b.asn.test. A from=127.0.0.3
    c.asn.test. A from=127.0.0.4
    d.asn.test. A option=8:000120005102458e
    e.asn.test. A option=8:0002380020010db8000000
    a.isp.test. A
    b.isp.test. A from=127.0.0.3
    a.wrong.test. A
    b.wrong.test. A from=127.0.0.2
    a.zone.test. A
    a.in.zone.test. A
    a.without.test. A
    end.city.test. A";

#[tokio::test]
async fn labels_of_clients_are_those_of_coredns() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/geoip");
    let site = CorefileDir::new(COREFILE, &[]).with("SEEDS", seeds);
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    let before = [lines(&coredns), lines(&subject)];
    for question in table(QUESTIONS) {
        tokio::join!(question.ask(&coredns), question.ask(&subject));
    }
    for server in [&coredns, &subject] {
        let ended =
            || async { server.log().iter().any(|line| line.contains("end.city.test.")).then_some(()) };
        eventually("the last line", ended).await;
    }
    let [coredns, subject] = [lines(&coredns), lines(&subject)];
    let mut expected = Expectations::of(["geoip"]);
    for (program, own, other, before) in
        [("CoreDNS", &coredns, &subject, &before[0]), ("lb-linker", &subject, &coredns, &before[1])]
    {
        for line in own.iter().filter(|line| !other.contains(line) && !before.contains(line)) {
            expected.record("geoip", line, program, "");
        }
    }
    eprintln!("corefile: {} lines with labels of geoip", coredns.len() - before[0].len());
    expected.check();
}
