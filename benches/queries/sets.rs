//! The questions, and what has to come back.

use std::fmt;
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

/// Names of each kind.
pub const NAMES: usize = 1000;
/// Names that nobody has asked for yet, for what isn't cached.
const UNIQUE_NAMES: usize = 100_000;
/// The zone that holds all of them, for the servers that read a zone file.
pub const ZONE: &str = "internal";
/// Where lb-linker has its names, and where CoreDNS's `kubernetes` has its own.
const LINKED: &str = "bench.lb.internal";
const CLUSTER: &str = "bench.svc.cluster.local";

/// What is asked.
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
}

impl Set {
    pub const ALL: [Self; 9] = [
        Self::Cname,
        Self::CnameAnywhere,
        Self::Chase,
        Self::Cached,
        Self::Uncached,
        Self::Absent,
        Self::Mix,
        Self::MixAnywhere,
        Self::Tcp,
    ];

    /// What it is called where one is chosen, and in the tables.
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
        }
    }

    /// Whether the servers listen on all addresses, `[::]`.
    pub const fn anywhere(self) -> bool {
        matches!(self, Self::CnameAnywhere | Self::MixAnywhere)
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
            Self::Absent => each(&|i| Question::new(&names.absent(i), RecordType::A)),
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
        })
    }
}

/// Which names a server has for the same targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of lb-linker.
    Linked,
    /// Those that CoreDNS's `kubernetes` gives ExternalName Services.
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

/// The Service's name.
pub fn service(i: usize) -> String {
    format!("svc-{i}")
}

/// The hostname that a cloud has given its load balancer.
pub fn target(i: usize) -> String {
    format!("bench-svc-{i}-4-fb5d0.kr.lb.cloud.{ZONE}")
}

/// A name that has nothing to do with load balancers.
pub fn host(i: usize) -> String {
    format!("host-{i}.site.{ZONE}")
}

pub fn address(i: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 20, 0, 1)) + u32::try_from(i).expect("there are few"))
}

/// A question as it is sent, and what its answer has to be.
#[derive(Clone, Debug)]
pub struct Question {
    /// The message, with the id 0.
    pub bytes: Vec<u8>,
    kind: RecordType,
    absent: bool,
    /// Whether the name is an alias, which the answer then has to hold.
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
        let absent = name.starts_with("no-");
        Self { bytes, kind, absent, alias: ours && !absent }
    }

    /// What clients ask for: mostly both kinds of addresses, now and then something else; every other of them with
    /// EDNS.
    fn of_mix(i: usize, names: Names) -> Self {
        let edns = i % 2 == 1;
        // Twenty names have each part; the halves with and without EDNS are alike.
        match i / 2 % 20 {
            0..10 => Self::with(&names.service(i), RecordType::A, edns),
            10..17 => Self::with(&names.service(i), RecordType::AAAA, edns),
            17 => Self::with(&names.service(i), RecordType::HTTPS, edns),
            18 => Self::with(&names.service(i), RecordType::CNAME, edns),
            _ => Self::with(&names.absent(i), RecordType::A, edns),
        }
    }

    /// Whether there is no such name.
    pub const fn is_absent(&self) -> bool {
        self.absent
    }

    /// Whether this is the answer.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn check(&self, answer: &[u8]) -> Result<(), String> {
        let answer = Message::from_vec(answer).map_err(|error| format!("not a message: {error}"))?;
        let code = answer.metadata.response_code;
        let wanted = if self.absent { ResponseCode::NXDomain } else { ResponseCode::NoError };
        let has = |kind| answer.answers.iter().any(|record| record.record_type() == kind);
        let addresses = answer.answers.iter().filter(|record| matches!(record.data, RData::A(_))).count();
        let right = code == wanted
            && !answer.metadata.truncation
            // CoreDNS's `kubernetes` gives an alias only where it knows the type.
            && (has(RecordType::CNAME) == self.alias || self.kind == RecordType::HTTPS)
            && addresses == usize::from(self.kind == RecordType::A && !self.absent);
        if right { Ok(()) } else { Err(answer.to_string().trim().replace('\n', " ")) }
    }
}
