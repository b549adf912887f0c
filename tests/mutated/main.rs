//! Malformed input: properties of the answers to mutated packets, TCP streams and connections of HTTPS, and of the
//! results for mutated bodies of gRPC, replies of upstreams, Corefiles, rules of *rewrite* and *template*, zone files, zone transfers,
//! signed messages, files with keys, manifests, answers of the API server, and snapshots.
//!
//! A failure prints the seed; `LB_LINKER_MUTATIONS_SEED` repeats the run. In the long form, one kind of input runs
//! after the other, so that the resident memory is that of one kind.
//!
//! For a further kind: a file with the properties, seeds, a line in `fuzz_seeds_are_up_to_date`, a test here, and a
//! target in `fuzz/`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod connection;
mod corefile;
mod grpc;
mod https;
mod key_file;
mod links;
mod manifest;
mod mutate;
mod object_seeds;
mod question;
mod reply;
mod rules;
#[path = "../e2e/harness/scale.rs"]
mod scale;
mod seeds;
mod snapshot;
mod stream;
mod transfer;
mod tsig;
mod watch;
mod zone;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use connection::ConnectionServer;
use mutate::packet;
use question::Server;
use seeds::Seed;

/// The kinds of input, and how many of each are tried in the long and in the short form.
const QUESTIONS: Kind = Kind { name: "queries", full: 7_000_000, short: 1_000_000 };
const REPLIES: Kind = Kind { name: "replies of upstreams", full: 2_500_000, short: 200_000 };
const STREAMS: Kind = Kind { name: "TCP connections", full: 500_000, short: 20_000 };
const HTTPS: Kind = Kind { name: "connections for DNS over HTTPS", full: 2_000_000, short: 20_000 };
const GRPC: Kind = Kind { name: "bodies of gRPC", full: 2_000_000, short: 100_000 };
const COREFILES: Kind = Kind { name: "Corefiles", full: 100_000, short: 30_000 };
const RULES: Kind = Kind { name: "rules of rewrite and template", full: 100_000, short: 30_000 };
const MANIFESTS: Kind = Kind { name: "manifests", full: 100_000, short: 5_000 };
const SNAPSHOTS: Kind = Kind { name: "snapshots", full: 500_000, short: 10_000 };
const WATCHES: Kind = Kind { name: "answers of the API server", full: 500_000, short: 10_000 };
const TRANSFERS: Kind = Kind { name: "zone transfers", full: 2_000_000, short: 100_000 };
const SIGNATURES: Kind = Kind { name: "signed messages", full: 2_000_000, short: 50_000 };
const KEY_FILES: Kind = Kind { name: "files with keys", full: 2_000_000, short: 10_000 };
const ZONES: Kind = Kind { name: "zone files", full: 2_000_000, short: 10_000 };
/// The resident memory may grow by 10 % and by this much between a tenth of the inputs and the last one: the allocator
/// has buffers.
const MEMORY_TOLERANCE_MIB: f64 = 8.0;
/// The time after which the processing of a packet counts as hung; long enough for a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The numbers of packets by outcome.
type Tally = BTreeMap<String, u64>;

/// Held in the long form while a kind of input runs, so that no other kind runs at the same time.
static ALONE: Mutex<()> = Mutex::new(());

/// A kind of input.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    full: u64,
    short: u64,
}

impl Kind {
    fn total(self) -> u64 {
        scale::scaled(self.full, self.short)
    }
}

/// Stands in `Run::current` for a worker that has finished.
const DONE: u64 = u64::MAX;

/// A run of all packets on one worker per core.
struct Run {
    seed: u64,
    seeds: Vec<Vec<u8>>,
    total: u64,
    next: AtomicU64,
    /// The current packet number of each worker.
    current: Vec<AtomicU64>,
    /// The resident memory in MiB at a tenth of the packets, and at the last one.
    memory: Mutex<[Option<f64>; 2]>,
}

impl Run {
    fn new(seeds: Vec<Seed>, total: u64) -> Self {
        let seed = match std::env::var("LB_LINKER_MUTATIONS_SEED") {
            Ok(seed) => seed.parse().expect("LB_LINKER_MUTATIONS_SEED is a number"),
            Err(_) => rand::random(),
        };
        println!("LB_LINKER_MUTATIONS_SEED={seed}");
        let workers = thread::available_parallelism().map_or(1, usize::from);
        Self {
            seed,
            seeds: seeds.into_iter().map(|(_, bytes)| bytes).collect(),
            total,
            next: AtomicU64::new(0),
            current: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            memory: Mutex::default(),
        }
    }

    /// Runs one worker until no packets are left.
    fn work(
        &self,
        worker: usize,
        mut try_packet: impl FnMut(&[u8], usize) -> Result<String, String>,
    ) -> Tally {
        let mut tally = Tally::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.total {
                self.current[worker].store(DONE, Ordering::Relaxed);
                return tally;
            }
            self.current[worker].store(number, Ordering::Relaxed);
            if let Some(at) = [self.total / 10, self.total - 1].iter().position(|at| *at == number) {
                self.memory.lock().unwrap()[at] = resident_mib();
            }
            let (packet, which) = packet(&self.seeds, self.seed, number);
            match try_packet(&packet, which) {
                Ok(outcome) => *tally.entry(outcome).or_default() += 1,
                Err(rule) => panic!("LB_LINKER_MUTATIONS_SEED={}, packet {number}: {rule}", self.seed),
            }
        }
    }

    /// Waits for the results of all workers. Panics if a worker stays at one packet for [`HANG_TIMEOUT`].
    fn gather(&self, results: &mpsc::Receiver<Tally>) -> Tally {
        let mut all = Tally::new();
        let mut seen = self.current_packets();
        let mut since = Instant::now();
        for _ in 0..self.current.len() {
            let tally = loop {
                match results.recv_timeout(Duration::from_secs(1)) {
                    Ok(tally) => break tally,
                    Err(mpsc::RecvTimeoutError::Disconnected) => panic!("a worker has panicked, see above"),
                    Err(mpsc::RecvTimeoutError::Timeout) if since.elapsed() < HANG_TIMEOUT => {}
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        let now = self.current_packets();
                        let stays = |number: &&u64| **number != DONE && seen.contains(number);
                        if let Some(number) = now.iter().find(stays) {
                            let (packet, _) = packet(&self.seeds, self.seed, *number);
                            panic!(
                                "LB_LINKER_MUTATIONS_SEED={}, packet {number} hangs: {packet:02x?}",
                                self.seed
                            );
                        }
                        (seen, since) = (now, Instant::now());
                    }
                }
            };
            for (outcome, count) in tally {
                *all.entry(outcome).or_default() += count;
            }
        }
        all
    }

    fn current_packets(&self) -> Vec<u64> {
        self.current.iter().map(|number| number.load(Ordering::Relaxed)).collect()
    }
}

/// Tries packets of a kind, made from `seeds`, on all cores, and returns the outcomes. `start` creates the function
/// that tries a packet, once per thread. In the long form, the resident memory mustn't grow.
fn try_all<T>(seeds: Vec<Seed>, kind: Kind, start: fn() -> T) -> Tally
where
    T: FnMut(&[u8], usize) -> Result<String, String> + 'static,
{
    let is_full = scale::scaled(true, false);
    let _alone = is_full.then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let begun = Instant::now();
    let run = Arc::new(Run::new(seeds, kind.total()));
    let (sender, results) = mpsc::channel();
    for worker in 0..run.current.len() {
        let (run, sender) = (Arc::clone(&run), sender.clone());
        // The thread isn't joined, because a hanging thread never ends.
        thread::spawn(move || drop(sender.send(run.work(worker, start()))));
    }
    drop(sender);
    let tally = run.gather(&results);
    println!("{tally:?}");
    if is_full && let [Some(early), Some(late)] = *run.memory.lock().unwrap() {
        let (total, seconds) = (run.total, begun.elapsed().as_secs_f64());
        println!(
            "chaos: {}: {total} mutated in {seconds:.1} s, 0 panics; resident memory {early:.1} MiB at a tenth, {late:.1} MiB at the end",
            kind.name
        );
        assert!(late <= 1.1 * early + MEMORY_TOLERANCE_MIB, "{}: resident memory grows", kind.name);
    }
    tally
}

/// Returns the resident memory of this process in MiB; `None` on a system without /proc.
fn resident_mib() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1024.0)
}

/// Asserts that each outcome is frequent enough, so that the first checks don't reject most packets.
fn assert_mixed(tally: &Tally, kind: Kind, kinds: &[&str]) {
    let total = kind.total();
    for kind in kinds {
        let count = tally.get(*kind).copied().unwrap_or_default();
        assert!(count > total / 1000, "{count} of {total} are {kind}: {tally:#?}");
    }
}

#[test]
fn mutated_packets_get_valid_answers_or_none() {
    let start = || {
        let server = Server::start();
        move |packet: &[u8], which: usize| {
            let rcode = server.try_message(packet, which)?;
            Ok(rcode.map_or("silence".to_owned(), |rcode| format!("rcode {rcode}")))
        }
    };
    let tally = try_all(seeds::questions(), QUESTIONS, start);
    // NOERROR, FORMERR, NXDOMAIN, NOTIMP, REFUSED, BADVERS.
    let kinds = ["silence", "rcode 0", "rcode 1", "rcode 3", "rcode 4", "rcode 5", "rcode 16"];
    assert_mixed(&tally, QUESTIONS, &kinds);
}

#[test]
fn mutated_streams_get_an_answer_for_each_query() {
    let start = || {
        let server = ConnectionServer::start(false);
        move |bytes: &[u8], split: usize| stream::try_stream(&server, bytes, split).map(str::to_owned)
    };
    let tally = try_all(seeds::streams(), STREAMS, start);
    assert_mixed(&tally, STREAMS, &["no answer", "answers", "answers, and a rest"]);
}

#[test]
fn mutated_https_connections_get_well_formed_responses() {
    let start = || {
        let server = ConnectionServer::start(true);
        move |bytes: &[u8], split: usize| https::try_https(&server, bytes, split).map(str::to_owned)
    };
    let tally = try_all(seeds::https(), HTTPS, start);
    let kinds = [
        "no response",
        "an answer by HTTP/1.1",
        "an error by HTTP/1.1",
        "an answer by HTTP/2",
        "no answer by HTTP/2",
    ];
    assert_mixed(&tally, HTTPS, &kinds);
}

#[test]
fn mutated_bodies_of_grpc_have_one_message_or_none() {
    let start =
        || |body: &[u8], which: usize| grpc::try_body(body, which.is_multiple_of(2)).map(str::to_owned);
    let tally = try_all(grpc::seeds(), GRPC, start);
    let kinds = ["a message", "nothing", "compressed", "too large", "incomplete", "several", "malformed"];
    assert_mixed(&tally, GRPC, &kinds);
}

#[test]
fn mutated_replies_yield_only_records_of_the_query() {
    let start = || |packet: &[u8], _: usize| reply::try_reply(packet).map(str::to_owned);
    let tally = try_all(seeds::replies(), REPLIES, start);
    assert_mixed(&tally, REPLIES, &["answer", "truncated", "malformed", "mismatch"]);
}

#[test]
fn mutated_corefile_is_valid_or_fails_with_a_position() {
    let start = || |bytes: &[u8], _: usize| corefile::try_corefile(bytes).map(str::to_owned);
    let seeds = seeds::corefiles().into_iter().map(|bytes| ("", bytes)).collect();
    let tally = try_all(seeds, COREFILES, start);
    assert_mixed(&tally, COREFILES, &["no language", "wrong", "right"]);
}

#[test]
fn mutated_rules_give_valid_answers() {
    let rules = rules::Rules::start();
    for (name, seed) in seeds::rules() {
        assert_eq!(rules.try_rules(&seed), Ok("records"), "{name}");
    }
    let start = || {
        let rules = rules::Rules::start();
        move |bytes: &[u8], _: usize| rules.try_rules(bytes).map(str::to_owned)
    };
    let tally = try_all(seeds::rules(), RULES, start);
    assert_mixed(&tally, RULES, &["wrong", "records", "empty"]);
}

#[test]
fn mutated_manifest_is_valid_or_fails_with_a_position() {
    let start = || {
        let links = links::Links::start();
        move |bytes: &[u8], _: usize| manifest::try_manifest(&links, bytes).map(str::to_owned)
    };
    let tally = try_all(object_seeds::manifests(), MANIFESTS, start);
    assert_mixed(&tally, MANIFESTS, &["wrong", "nothing", "services", "stable names"]);
}

#[test]
fn mutated_watches_and_lists_are_decoded_or_refused() {
    let start = || {
        let links = links::Links::start();
        move |bytes: &[u8], chunk: usize| watch::try_watch(&links, bytes, chunk).map(str::to_owned)
    };
    let tally = try_all(object_seeds::watches(), WATCHES, start);
    let kinds = ["nothing", "object", "undecodable", "bookmark", "error", "unidentified", "page"];
    assert_mixed(&tally, WATCHES, &kinds);
}

#[test]
fn mutated_snapshots_are_restored_or_refused() {
    let start = || |bytes: &[u8], _: usize| snapshot::try_snapshot(bytes).map(str::to_owned);
    let tally = try_all(object_seeds::snapshots(), SNAPSHOTS, start);
    assert_mixed(&tally, SNAPSHOTS, &["no snapshot", "wrong line", "no links", "links"]);
}

#[test]
fn mutated_zone_files_are_answered_or_refused() {
    let zones = zone::Zones::start();
    for (name, seed) in seeds::zones() {
        assert_eq!(zones.try_zone(&seed), Ok("right"), "{name}");
    }
    let start = || {
        let zones = zone::Zones::start();
        move |text: &[u8], _: usize| zones.try_zone(text).map(str::to_owned)
    };
    let tally = try_all(seeds::zones(), ZONES, start);
    assert_mixed(&tally, ZONES, &["wrong", "right"]);
}

#[test]
fn mutated_transfers_give_a_whole_zone_or_none() {
    for (name, seed) in seeds::transfers() {
        assert_eq!(transfer::try_transfer(&seed), Ok("zone"), "{name}");
    }
    let start = || |bytes: &[u8], _: usize| transfer::try_transfer(bytes).map(str::to_owned);
    let tally = try_all(seeds::transfers(), TRANSFERS, start);
    assert_mixed(&tally, TRANSFERS, &["refused", "incomplete", "zone"]);
}

#[test]
fn mutated_signatures_are_accepted_only_unchanged() {
    let start = || {
        let signatures = tsig::Signatures::start();
        move |bytes: &[u8], _: usize| signatures.try_message(bytes).map(str::to_owned)
    };
    let tally = try_all(tsig::seeds(), SIGNATURES, start);
    assert_mixed(
        &tally,
        SIGNATURES,
        &["accepted", "accepted as a reply", "malformed", "BADSIG", "BADKEY", "BADTIME"],
    );
}

#[test]
fn mutated_key_files_are_read_or_refused_with_a_place() {
    let files = key_file::KeyFiles::start();
    for (name, seed) in seeds::key_files() {
        assert_eq!(files.try_file(&seed), Ok("right"), "{name}");
    }
    let start = || {
        let files = key_file::KeyFiles::start();
        move |bytes: &[u8], _: usize| files.try_file(bytes).map(str::to_owned)
    };
    let tally = try_all(seeds::key_files(), KEY_FILES, start);
    assert_mixed(&tally, KEY_FILES, &["wrong", "right"]);
}

/// The fuzz targets start with the same seeds; `LB_LINKER_WRITE_SEEDS=1` writes their files.
#[test]
fn fuzz_seeds_are_up_to_date() {
    let fuzz = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds"));
    let owned = |seeds: Vec<Seed>| -> Vec<(String, Vec<u8>)> {
        seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
    };
    let all = [
        ("grpc", owned(grpc::seeds())),
        ("https", owned(seeds::https())),
        ("keys", owned(seeds::key_files())),
        ("manifest", owned(object_seeds::manifests())),
        ("question", owned(seeds::questions())),
        ("reply", owned(seeds::replies())),
        ("rules", owned(seeds::rules())),
        ("snapshot", owned(object_seeds::snapshots())),
        ("stream", owned(seeds::streams())),
        ("transfer", owned(seeds::transfers())),
        ("tsig", owned(tsig::seeds())),
        ("watch", owned(object_seeds::watches())),
        ("zone", owned(seeds::zones())),
    ];
    for (target, seeds) in all {
        let folder = fuzz.join(target);
        if std::env::var_os("LB_LINKER_WRITE_SEEDS").is_some() {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, bytes) in &seeds {
                fs::write(folder.join(name), bytes).unwrap();
            }
        }
        let file =
            |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
        let files = fs::read_dir(&folder).unwrap().map(|entry| file(entry.unwrap()));
        let same = files.collect::<BTreeMap<_, _>>() == seeds.into_iter().collect();
        assert!(
            same,
            "{}: outdated; write the seeds again with LB_LINKER_WRITE_SEEDS=1 cargo test --test mutated",
            folder.display()
        );
    }
}
