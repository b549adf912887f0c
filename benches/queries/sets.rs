//! The queries and their expected answers.

use std::fmt;
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

/// The number of names of each kind.
pub const NAMES: usize = 1000;
/// The number of names in queries that must not be cached.
const UNIQUE_NAMES: usize = 100_000;
/// The number of endpoints of headless Services, and of each of these Services: an EndpointSlice can have no more.
pub const ENDPOINTS: usize = UNIQUE_NAMES;
pub const ENDPOINTS_OF_SERVICE: usize = 1000;
/// The zone with all names, for servers that read a zone file.
pub const ZONE: &str = "internal";
/// The zone of lb-linker's names, and the zone of CoreDNS's `kubernetes`.
const LINKED: &str = "bench.lb.internal";
const CLUSTER: &str = "bench.svc.cluster.local";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    Cname,
    CnameAnywhere,
    Chase,
    Cached,
    Uncached,
    Absent,
    Mix,
    MixAnywhere,
    Tcp,
    Tls,
    Https,
    Zone,
    LargeZone,
    Cluster,
    Search,
    LargeCluster,
}

impl Set {
    pub const ALL: [Self; 16] = [
        Self::Cname,
        Self::CnameAnywhere,
        Self::Chase,
        Self::Cached,
        Self::Uncached,
        Self::Absent,
        Self::Mix,
        Self::MixAnywhere,
        Self::Tcp,
        Self::Tls,
        Self::Https,
        Self::Zone,
        Self::LargeZone,
        Self::Cluster,
        Self::Search,
        Self::LargeCluster,
    ];

    /// Returns the name of the set in BENCH_ONLY and in the tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cname => "cname",
            Self::CnameAnywhere => "cname-any",
            Self::Chase => "chase",
            Self::Cached => "cached",
            Self::Uncached => "uncached",
            Self::Absent => "nxdomain",
            Self::Mix => "mix",
            Self::MixAnywhere => "mix-any",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Zone => "zone",
            Self::LargeZone => "large-zone",
            Self::Cluster => "cluster",
            Self::Search => "search",
            Self::LargeCluster => "large-cluster",
        }
    }

    /// Whether the servers listen on all addresses, `[::]`.
    pub const fn anywhere(self) -> bool {
        matches!(self, Self::CnameAnywhere | Self::MixAnywhere)
    }

    /// Whether all queries are sent over persistent connections, and only at saturation.
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls | Self::Https)
    }

    /// Returns the scheme of the block that is measured, if it isn't the one for DNS.
    pub const fn encrypted_scheme(self) -> Option<&'static str> {
        match self {
            Self::Tls => Some("tls"),
            Self::Https => Some("https"),
            _ => None,
        }
    }

    /// Whether lb-linker answers from a zone file.
    pub const fn is_zone(self) -> bool {
        matches!(self, Self::Tls | Self::Https | Self::Zone | Self::LargeZone)
    }

    /// Whether lb-linker answers for Services and endpoints of a cluster.
    pub const fn is_cluster(self) -> bool {
        matches!(self, Self::Cluster | Self::Search | Self::LargeCluster)
    }

    /// Returns the number of names that only the zone file has.
    pub const fn zone_names(self) -> usize {
        match self {
            Self::Tls | Self::Https | Self::Zone => NAMES,
            Self::LargeZone => UNIQUE_NAMES,
            _ => 0,
        }
    }

    /// Returns the queries per second below saturation.
    pub const fn rate(self) -> u32 {
        match self {
            Self::Uncached => 5_000,
            _ => 20_000,
        }
    }

    pub fn questions(self, names: Names) -> Vec<Question> {
        let each = |question: &dyn Fn(usize) -> Question| (0..NAMES).map(question).collect();
        match self {
            Self::Cname | Self::CnameAnywhere | Self::Tcp => {
                each(&|i| Question::new(&names.service(i), RecordType::CNAME))
            }
            Self::Chase => each(&|i| Question::new(&names.service(i), RecordType::A)),
            Self::Cached => each(&|i| Question::new(&host(i), RecordType::A)),
            Self::Uncached => (0..UNIQUE_NAMES)
                .map(|i| Question::new(&format!("u-{i}.wild.{ZONE}"), RecordType::A))
                .collect(),
            Self::Tls | Self::Https | Self::Zone => each(&|i| Question::new(&numbered(i), RecordType::A)),
            Self::LargeZone => {
                (0..UNIQUE_NAMES).map(|i| Question::new(&numbered(i), RecordType::A)).collect()
            }
            Self::Absent => each(&|i| Question::new(&names.absent(i), RecordType::A)),
            Self::Cluster => each(&|i| Question::new(&format!("{}.{CLUSTER}", web(i)), RecordType::A)),
            Self::Search => each(&Question::of_search),
            Self::LargeCluster => {
                (0..ENDPOINTS).map(|i| Question::new(&endpoint(i), RecordType::A)).collect()
            }
            Self::Mix | Self::MixAnywhere => each(&|i| Question::of_mix(i, names)),
        }
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cname => "CNAME, on 127.0.0.1",
            Self::CnameAnywhere => "CNAME, on [::]",
            Self::Chase => "A with the addresses behind the CNAME, which are cached",
            Self::Cached => "forwarded, cached",
            Self::Uncached => "forwarded, not cached",
            Self::Absent => "NXDOMAIN",
            Self::Mix => "mix with EDNS, on 127.0.0.1",
            Self::MixAnywhere => "mix with EDNS, on [::]",
            Self::Tcp => "CNAME by TCP, persistent connections, pipelined",
            Self::Tls => "A of 1,000 names of a zone file by TLS, persistent connections, pipelined",
            Self::Https => "A of 1,000 names of a zone file by HTTPS, GET, persistent connections, HTTP/2",
            Self::Zone => "A of 1,000 names of a zone file",
            Self::LargeZone => "A of 100,000 names of a zone file, in turn",
            Self::Cluster => "A of 1,000 Services of a cluster",
            Self::Search => "names of a cluster by way of its search domains, A and AAAA",
            Self::LargeCluster => "A of 100,000 endpoints of a cluster, in turn",
        })
    }
}

/// The kind of names that the queries to a server have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The names of links in lb-linker.
    Linked,
    /// The names of ExternalName Services in CoreDNS's `kubernetes`.
    Cluster,
}

impl Names {
    fn suffix(self) -> &'static str {
        match self {
            Self::Linked => LINKED,
            Self::Cluster => CLUSTER,
        }
    }

    fn service(self, i: usize) -> String {
        format!("{}.{}", service(i), self.suffix())
    }

    fn absent(self, i: usize) -> String {
        format!("no-{i}.{}", self.suffix())
    }
}

pub fn service(i: usize) -> String {
    format!("svc-{i}")
}

/// Returns the name of a Service with a cluster IP.
pub fn web(i: usize) -> String {
    format!("web-{i}")
}

/// Returns the name of a headless Service.
pub fn headless(i: usize) -> String {
    format!("headless-{i}")
}

/// Returns the name of an endpoint.
fn endpoint(i: usize) -> String {
    let dashed = address(i).to_string().replace('.', "-");
    format!("{dashed}.{}.{CLUSTER}", headless(i / ENDPOINTS_OF_SERVICE))
}

/// Returns the hostname of a Service's load balancer.
pub fn target(i: usize) -> String {
    format!("bench-svc-{i}-4-fb5d0.kr.lb.cloud.{ZONE}")
}

/// Returns a name that is unrelated to load balancers.
pub fn host(i: usize) -> String {
    format!("host-{i}.site.{ZONE}")
}

/// Returns a name that only the zone file has.
pub fn numbered(i: usize) -> String {
    format!("n-{i}.site.{ZONE}")
}

pub fn address(i: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 20, 0, 1)) + u32::try_from(i).expect("a small number"))
}

/// A query, and the expected answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// The message, with the id 0.
    pub bytes: Vec<u8>,
    kind: RecordType,
    absent: bool,
    /// Whether the name is an alias, so that the answer must have a CNAME.
    alias: bool,
}

impl Question {
    fn new(name: &str, kind: RecordType) -> Self {
        Self::with(name, kind, false)
    }

    fn with(name: &str, kind: RecordType, edns: bool) -> Self {
        let mut message = Message::query();
        message.metadata.id = 0;
        message.metadata.recursion_desired = true;
        let absolute = Name::from_ascii(format!("{name}.")).expect("a name");
        message.add_query(Query::query(absolute, kind));
        if edns {
            let mut edns = Edns::new();
            edns.set_max_payload(1232);
            message.set_edns(edns);
        }
        let bytes = message.to_vec().expect("a message");
        let ours = [LINKED, CLUSTER].iter().any(|zone| name.ends_with(zone));
        let (absent, alias) = (name.starts_with("no-"), ours && name.starts_with("svc-"));
        Self { bytes, kind, absent, alias }
    }

    /// Returns a query of the mix: mostly A and AAAA, sometimes other types; every second query has EDNS.
    fn of_mix(i: usize, names: Names) -> Self {
        let edns = i % 2 == 1;
        // Each group of 40 names has all types: 20 queries with EDNS, and 20 queries of the same types without EDNS.
        match i / 2 % 20 {
            0..10 => Self::with(&names.service(i), RecordType::A, edns),
            10..17 => Self::with(&names.service(i), RecordType::AAAA, edns),
            17 => Self::with(&names.service(i), RecordType::HTTPS, edns),
            18 => Self::with(&names.service(i), RecordType::CNAME, edns),
            _ => Self::with(&names.absent(i), RecordType::A, edns),
        }
    }

    /// Returns a query as stub resolvers with `ndots:5` send it: three quarters are outside names below search domains.
    fn of_search(i: usize) -> Self {
        let kind = if i.is_multiple_of(2) { RecordType::A } else { RecordType::AAAA };
        let pair = i / 2;
        let name = match pair % 4 {
            0 => format!("{}.{CLUSTER}", web(pair)),
            1 => format!("no-{pair}.example.com.{CLUSTER}"),
            2 => format!("no-{pair}.example.com.svc.cluster.local"),
            _ => format!("no-{pair}.example.com.cluster.local"),
        };
        Self::new(&name, kind)
    }

    /// Whether the name doesn't exist.
    pub const fn is_absent(&self) -> bool {
        self.absent
    }

    /// Checks an answer.
    ///
    /// # Errors
    /// If the answer is wrong, with the answer as text.
    pub fn check(&self, answer: &[u8]) -> Result<(), String> {
        let answer = Message::from_vec(answer).map_err(|error| format!("not a message: {error}"))?;
        let code = answer.metadata.response_code;
        let wanted = if self.absent { ResponseCode::NXDomain } else { ResponseCode::NoError };
        let has = |kind| answer.answers.iter().any(|record| record.record_type() == kind);
        let addresses = answer.answers.iter().filter(|record| matches!(record.data, RData::A(_))).count();
        let right = code == wanted
            && !answer.metadata.truncation
            // CoreDNS's `kubernetes` answers with a CNAME only for types that it supports.
            && (has(RecordType::CNAME) == self.alias || self.kind == RecordType::HTTPS)
            && addresses == usize::from(self.kind == RecordType::A && !self.absent);
        if right { Ok(()) } else { Err(answer.to_string().trim().replace('\n', " ")) }
    }
}
