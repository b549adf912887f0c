//! The input files of the servers.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::sets::{
    ENDPOINTS, ENDPOINTS_OF_SERVICE, NAMES, Question, ZONE, address, headless, host, numbered, service,
    target, web,
};

/// Returns manifests of LoadBalancer Services for lb-linker.
pub fn manifests() -> String {
    let each = (0..NAMES).map(|i| {
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {}, namespace: bench}}
spec: {{type: LoadBalancer, ports: [{{port: 443}}]}}
status: {{loadBalancer: {{ingress: [{{hostname: {}}}]}}}}
",
            service(i),
            target(i)
        )
    });
    each.collect()
}

/// Returns manifests of a cluster's objects, for `kubernetes`: ExternalName Services, Services with a cluster IP, and
/// headless Services with endpoints.
pub fn cluster() -> String {
    let object = |api: &str, kind: &str, name: &str, rest: &str| {
        format!("---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: bench{rest}}}\n")
    };
    let aliases = (0..NAMES).map(|i| {
        let service = object("v1", "Service", &service(i), "");
        format!("{service}spec: {{type: ExternalName, externalName: {}}}\n", target(i))
    });
    let webs = (0..NAMES).map(|i| {
        format!("{}spec: {{ports: [{{name: http, port: 80}}]}}\n", object("v1", "Service", &web(i), ""))
    });
    let groups = (0..ENDPOINTS / ENDPOINTS_OF_SERVICE).map(|group| {
        let name = headless(group);
        let service = object("v1", "Service", &name, "");
        let label = format!(", labels: {{kubernetes.io/service-name: {name}}}");
        let slice = object("discovery.k8s.io/v1", "EndpointSlice", &name, &label);
        let first = group * ENDPOINTS_OF_SERVICE;
        let endpoints: String = (first..first + ENDPOINTS_OF_SERVICE)
            .map(|i| format!("- {{addresses: [{}], conditions: {{ready: true}}}}\n", address(i)))
            .collect();
        format!(
            "{service}spec: {{clusterIP: None, ports: [{{name: http, port: 80}}]}}
{slice}addressType: IPv4
ports: [{{name: http, port: 80}}]
endpoints:
{endpoints}"
        )
    });
    aliases.chain(webs).chain(groups).collect()
}

/// Returns the zone with all names, and with this number of names that only the zone has, for authoritative servers and for the forwarders' upstream.
pub fn zone(numbers: usize) -> String {
    let mut zone = format!(
        "$ORIGIN {ZONE}.
@ 3600 IN SOA ns admin 1 3600 600 86400 5
@ 3600 IN NS ns
ns 3600 IN A 127.0.0.1
*.wild 60 IN A 10.1.2.3
"
    );
    for i in 0..NAMES {
        let (name, target, host, address) = (service(i), target(i), host(i), address(i));
        let records = writeln!(
            zone,
            "{name}.bench.lb 5 IN CNAME {target}.\n{target}. 60 IN A {address}\n{host}. 60 IN A {address}"
        );
        records.expect("writing to a string can't fail");
    }
    for i in 0..numbers {
        writeln!(zone, "{}. 60 IN A {}", numbered(i), address(i)).expect("writing to a string can't fail");
    }
    zone
}

/// Writes the queries for dnsperf's option `-B`: messages with the length prefix of DNS over TCP.
pub fn write_questions(path: &Path, questions: &[Question]) -> io::Result<()> {
    let framed = questions.iter().flat_map(|question| {
        let length = u16::try_from(question.bytes.len()).expect("questions are short");
        [&length.to_be_bytes(), &*question.bytes].concat()
    });
    fs::write(path, framed.collect::<Vec<u8>>())
}

/// Writes the queries and answers for the floor, without ids.
pub fn write_answers(path: &Path, questions: &[Question], answers: &[Vec<u8>]) -> io::Result<()> {
    let hexadecimal =
        |message: &[u8]| message[2..].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines = questions
        .iter()
        .zip(answers)
        .map(|(question, answer)| format!("{} {}\n", hexadecimal(&question.bytes), hexadecimal(answer)));
    fs::write(path, lines.collect::<String>())
}

/// The directory and the port of a name server.
pub struct ServerFiles<'a> {
    pub directory: &'a Path,
    pub port: u16,
}

/// Returns Knot's configuration: one thread each for UDP and TCP, no journal.
pub fn knot(files: &ServerFiles) -> String {
    let ServerFiles { directory, port } = files;
    let directory = directory.display();
    format!(
        "server:
    listen: 127.0.0.1@{port}
    rundir: {directory}
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
database:
    storage: {directory}
log:
  - target: stderr
    any: warning
template:
  - id: default
    storage: {directory}
    zonefile-sync: -1
    journal-content: none
zone:
  - domain: {ZONE}
    file: zone
"
    )
}

/// The number of answers that the caches of dnsdist and dnsmasq hold.
pub const CACHED: usize = 10_000;

/// Returns dnsdist's configuration: one thread, with or without its packet cache.
pub fn dnsdist(files: &ServerFiles, upstream: SocketAddr, cached: bool) -> String {
    let port = files.port;
    let cache =
        if cached { format!("getPool(\"\"):setCache(newPacketCache({CACHED}))\n") } else { String::new() };
    format!(
        "setLocal(\"127.0.0.1:{port}\", {{reusePort=true}})
setSecurityPollSuffix(\"\")
newServer(\"{upstream}\"):setUp()
{cache}"
    )
}

/// Returns Unbound's configuration: one thread, no validation, and all names from the upstream. Without a cache, every
/// TTL is 0.
pub fn unbound(files: &ServerFiles, upstream: SocketAddr, cached: bool) -> String {
    let ServerFiles { directory, port } = files;
    let (directory, ip, upstream_port) = (directory.display(), upstream.ip(), upstream.port());
    let cache = if cached { "" } else { "    cache-max-ttl: 0\n    cache-max-negative-ttl: 0\n" };
    format!(
        "server:
    directory: \"{directory}\"
    interface: 127.0.0.1@{port}
    port: {port}
    so-reuseport: yes
    num-threads: 1
    username: \"\"
    chroot: \"\"
    pidfile: \"{directory}/unbound.pid\"
    use-syslog: no
    do-not-query-localhost: no
    module-config: \"iterator\"
    outgoing-range: 900
    num-queries-per-thread: 800
{cache}remote-control:
    control-enable: no
forward-zone:
    name: \".\"
    forward-addr: {ip}@{upstream_port}
"
    )
}

/// Returns NSD's configuration: one server process, and no rate limit, because all queries come from one client.
pub fn nsd(files: &ServerFiles) -> String {
    let ServerFiles { directory, port } = files;
    let directory = directory.display();
    format!(
        "server:
    ip-address: 127.0.0.1@{port}
    server-count: 1
    username: \"\"
    chroot: \"\"
    database: \"\"
    zonesdir: \"{directory}\"
    xfrdir: \"{directory}\"
    xfrdfile: \"{directory}/xfrd.state\"
    zonelistfile: \"{directory}/zone.list\"
    pidfile: \"{directory}/nsd.pid\"
    rrl-ratelimit: 0
remote-control:
    control-enable: no
zone:
    name: {ZONE}
    zonefile: zone
"
    )
}
