//! Stub resolvers as clients: they send one query per type and can't resolve a CNAME target themselves.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::dns::CoreDns;
use crate::harness::linker::Linker;
use crate::harness::network;
use crate::harness::programs::{programs, stubs};

/// The zone of the cloud's resolver, which answers AAAA queries for `half` with SERVFAIL ([`PLUGINS`]).
const CLOUD: &str = "$ORIGIN example.com.
@     3600 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 3600
@     3600 IN NS ns.example.com.
four    60 IN A 192.0.2.10
both    60 IN A 192.0.2.20
both    60 IN AAAA 2001:db8::20
six     60 IN AAAA 2001:db8::30
half    60 IN A 192.0.2.40
chain   60 IN CNAME both.example.com.
";
const PLUGINS: &str = "file db example.com
template IN AAAA half.example.com {
  rcode SERVFAIL
}";

const LINKS: [(&str, &str); 8] = [
    ("four", "{hostname: four.example.com}"),
    ("both", "{hostname: both.example.com}"),
    ("six", "{hostname: six.example.com}"),
    ("half", "{hostname: half.example.com}"),
    ("chain", "{hostname: chain.example.com}"),
    ("missing", "{hostname: missing.example.com}"),
    ("ips", "{ip: 192.0.2.1}, {ip: '2001:db8::1'}"),
    ("pending", ""),
];

/// Service, address family, expected result, and expected numbers of A and AAAA queries.
type Row = (&'static str, &'static str, &'static str, [u32; 2]);

/// The lookups that have the same result in every stub resolver.
const EXPECTED_LOOKUPS: [Row; 12] = [
    ("both", "any", "192.0.2.20 2001:db8::20", [1, 1]),
    ("both", "ipv4", "192.0.2.20", [1, 0]),
    ("chain", "any", "192.0.2.20 2001:db8::20", [1, 1]),
    // The answer to one of the two queries is NODATA (RFC 2308 section 2.2).
    ("four", "any", "192.0.2.10", [1, 1]),
    ("six", "any", "2001:db8::30", [1, 1]),
    ("six", "ipv4", "no address", [1, 0]),
    ("ips", "any", "192.0.2.1 2001:db8::1", [1, 1]),
    ("ips", "ipv4", "192.0.2.1", [1, 0]),
    ("half", "ipv4", "192.0.2.40", [1, 0]),
    ("missing", "any", "no address", [1, 1]),
    // NODATA without CNAME: if neither AA nor RA were set, glibc would report "try again".
    ("pending", "any", "no address", [1, 1]),
    ("absent", "any", "no address", [1, 1]),
];

/// An lb-linker on port 53 of a separate network namespace.
struct Fixture {
    linker: Linker,
    _upstream: CoreDns,
    _directory: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let upstream = CoreDns::start(PLUGINS, CLOUD).await;
        let directory = tempfile::tempdir().unwrap();
        let manifest = |(name, ingress): &(&str, &str)| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: LoadBalancer}}\n\
                 status: {{loadBalancer: {{ingress: [{ingress}]}}}}\n"
            )
        };
        let manifests: String = LINKS.iter().map(manifest).collect();
        fs::write(directory.path().join("services.yaml"), manifests).unwrap();
        let linker = Linker::start([
            "--manifests",
            directory.path().to_str().unwrap(),
            "--upstream",
            &upstream.address.to_string(),
            "--listen",
            "127.0.0.1:53",
        ]);
        linker.ready().await;
        Self { linker, _upstream: upstream, _directory: directory }
    }

    /// Returns the numbers of A and AAAA queries that lb-linker has received on port 53.
    fn questions(&self) -> [f64; 2] {
        ["A", "AAAA"].map(|qtype| {
            let labels = format!(
                "family=\"1\",proto=\"udp\",server=\"dns://127.0.0.1:53\",type=\"{qtype}\",view=\"\",zone=\"lb.internal.\""
            );
            self.linker.metric(&format!("coredns_dns_requests_total{{{labels}}}")).unwrap_or_default()
        })
    }

    /// Looks up a Service's name with a stub resolver. Returns the result and the numbers of A and AAAA queries.
    fn look_up(&self, stub: &Path, service: &str, family: &str) -> (String, [f64; 2]) {
        let before = self.questions();
        // The trailing dot keeps the resolver from appending a search domain.
        let name = format!("{service}-default.lb.internal.");
        let output = Command::new(stub).args([family, &name]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let after = self.questions();
        let mut words: Vec<&str> = std::str::from_utf8(&output.stdout).unwrap().trim().split(' ').collect();
        if words[0].parse::<std::net::IpAddr>().is_ok() {
            words.sort_unstable();
        }
        (words.join(" "), [after[0] - before[0], after[1] - before[1]])
    }

    /// Like [`Self::look_up`], but repeats a look-up that takes longer than a second, up to five times: if the upstream
    /// or lb-linker pauses, the answer is an error, or the stub resolver repeats its query.
    fn look_up_in_time(&self, stub: &Path, service: &str, family: &str) -> (String, [f64; 2]) {
        for _ in 0..5 {
            let since = Instant::now();
            let found = self.look_up(stub, service, family);
            if since.elapsed() < Duration::from_secs(1) {
                return found;
            }
        }
        self.look_up(stub, service, family)
    }

    fn check(&self, stub: &Path) {
        for (service, family, expected, questions) in EXPECTED_LOOKUPS {
            let found = self.look_up_in_time(stub, service, family);
            assert_eq!(found, (expected.to_owned(), questions.map(f64::from)), "{service}, {family}");
        }
    }
}

/// Builds the programs before the test enters its network namespace, where nothing can be downloaded.
fn build() {
    programs();
    stubs();
}

#[tokio::test]
async fn glibc_gets_addresses_with_one_query_per_type() {
    build();
    if !network::is_own("stubs::glibc_gets_addresses_with_one_query_per_type") {
        return;
    }
    let fixture = Fixture::start().await;
    fixture.check(&stubs().glibc);
    // The AAAA query fails, and glibc uses the A answer.
    let (found, questions) = fixture.look_up_in_time(&stubs().glibc, "half", "any");
    assert_eq!((found.as_str(), questions[0]), ("192.0.2.40", 1.0));
}

#[tokio::test]
async fn go_gets_addresses_with_one_query_per_type() {
    build();
    if !network::is_own("stubs::go_gets_addresses_with_one_query_per_type") {
        return;
    }
    let fixture = Fixture::start().await;
    fixture.check(&stubs().go);
    let (found, questions) = fixture.look_up_in_time(&stubs().go, "half", "any");
    assert_eq!((found.as_str(), questions[0]), ("192.0.2.40", 1.0));
}

#[tokio::test]
async fn musl_gets_addresses_with_one_query_per_type() {
    build();
    if !network::is_own("stubs::musl_gets_addresses_with_one_query_per_type") {
        return;
    }
    let fixture = Fixture::start().await;
    fixture.check(&stubs().musl);
    // musl needs an answer to both queries, and repeats the failed query until its timeout.
    let (found, questions) = fixture.look_up(&stubs().musl, "half", "any");
    assert_eq!((found.as_str(), questions[0]), ("try again", 1.0));
}
