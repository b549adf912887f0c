//! Random zone files: short names from few labels, so that wildcards, empty non-terminals, delegations and aliases meet.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use hickory_proto::rr::{Name, RecordType};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

const LABELS: [&str; 8] = ["a", "b", "c", "d", "*", "x1", "_s", "long-label-of-a-name"];
/// A name with no server behind it: its look-up is refused.
const OUTSIDE: &str = "a.nowhere.";

/// A generated zone.
#[derive(Debug)]
pub struct GeneratedZone {
    /// Without the final dot.
    pub origin: String,
    pub file: String,
    pub text: String,
    /// The absolute names of all records.
    pub names: Vec<String>,
}

impl GeneratedZone {
    pub fn new(number: u64, random: &mut StdRng) -> Self {
        let origin = format!("z{number}.test");
        let mut records: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let size = random.random_range(3..40);
        let owners: Vec<String> = (0..size).map(|_| owner(&origin, random)).collect();
        records.insert(
            format!("{origin}."),
            vec![
                format!("SOA ns.{origin}. host.{origin}. {} 7200 3600 86400 300", number + 1),
                format!("NS ns.{origin}."),
                "NS ns.elsewhere.".to_owned(),
            ],
        );
        records.insert(format!("ns.{origin}."), vec!["A 192.0.2.53".to_owned()]);
        for owner in &owners {
            if is_occluded(owner, &records) || *owner == format!("{origin}.") {
                continue;
            }
            let has_below = records.keys().any(|name| name.ends_with(&format!(".{owner}")));
            let own = records.entry(owner.clone()).or_default();
            add(own, owner, has_below, &origin, &owners, random);
        }
        records.retain(|_, own| !own.is_empty());
        let is_signed = random.random_bool(0.5);
        let text = text(&origin, &records, is_signed);
        Self { file: origin.clone(), origin, text, names: records.into_keys().collect() }
    }

    /// Returns the zones of the files in a directory, which are named as their origins; `root` is the root zone.
    pub fn of_files(directory: &Path) -> Vec<Self> {
        let mut files: Vec<_> =
            fs::read_dir(directory).expect("a directory").map(|file| file.unwrap()).collect();
        files.sort_by_key(fs::DirEntry::file_name);
        let zone = |file: &fs::DirEntry| {
            let name = file.file_name().into_string().expect("the name is UTF-8");
            let text = fs::read_to_string(file.path()).unwrap();
            let origin = if name == "root" { String::new() } else { name.clone() };
            Self { names: owners(&text, &origin), origin, file: name, text }
        };
        files.iter().filter(|file| file.file_name() != "README.md").map(zone).collect()
    }

    pub fn origin_name(&self) -> Name {
        Name::from_labels(self.origin.split('.').filter(|label| !label.is_empty()).map(str::as_bytes))
            .unwrap()
    }

    /// Returns whether the zone has names below a name.
    pub fn has_names_below(&self, name: &Name) -> bool {
        let suffix = format!(".{}", name.to_lowercase());
        self.names.iter().any(|own| own.ends_with(&suffix))
    }
}

/// Returns the absolute names of the records in a zone file, without those of `$GENERATE`.
fn owners(text: &str, origin: &str) -> Vec<String> {
    let mut origin = format!("{origin}.");
    let mut names = vec![origin.clone()];
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', ';', ')'])) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["$ORIGIN", name, ..] => name.clone_into(&mut origin),
            [name, ..] if name.ends_with('.') => names.push(name.to_owned()),
            [name, ..] if !name.starts_with(['$', '@']) => names.push(format!("{name}.{origin}")),
            _ => {}
        }
    }
    names.dedup();
    names
}

fn owner(origin: &str, random: &mut StdRng) -> String {
    let mut labels: Vec<&str> =
        (0..random.random_range(1..4)).map(|_| *LABELS.choose(random).expect("there are labels")).collect();
    // A wildcard's label elsewhere than at the front is an ordinary one (RFC 4592 section 2.1.1).
    labels.push(origin);
    format!("{}.", labels.join("."))
}

/// Returns whether a name is at or below a delegation, below a DNAME, or has an alias.
fn is_occluded(owner: &str, records: &BTreeMap<String, Vec<String>>) -> bool {
    records.iter().any(|(name, own)| {
        let is_below = owner.ends_with(&format!(".{name}"));
        let has = |rtype: &str| own.iter().any(|record| record.starts_with(rtype));
        is_below && (has("DNAME ") || (has("NS ") && !has("SOA ")))
            || owner == name && (has("CNAME ") || has("NS "))
    })
}

/// Adds the records of an owner.
fn add(
    own: &mut Vec<String>,
    owner: &str,
    has_below: bool,
    origin: &str,
    owners: &[String],
    random: &mut StdRng,
) {
    let target = match random.random_range(0..6) {
        0 => OUTSIDE.to_owned(),
        1 => format!("none.{origin}."),
        _ => owners.choose(random).expect("there are owners").clone(),
    };
    let is_wildcard = owner.starts_with('*');
    match random.random_range(0..12) {
        0 if own.is_empty() => own.push(format!("CNAME {target}")),
        1 if own.is_empty() && !has_below && !is_wildcard => own.push(format!("DNAME {target}")),
        2 if own.is_empty() && !has_below && !is_wildcard => {
            own.push("NS ns.elsewhere.".to_owned());
            if random.random_bool(0.5) {
                own.push(
                    "DS 1 8 2 49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC0000".to_owned(),
                );
            }
        }
        3 => own.push(format!("MX 10 {target}")),
        4 => own.push(format!("SRV 1 2 80 {target}")),
        5 => own.push(format!("HTTPS 1 {target} alpn=h2")),
        6 => own.push(format!("TXT \"{}\"", "t".repeat(random.random_range(0..250)))),
        7 => own.push(format!("PTR {target}")),
        8 => own.extend((0..random.random_range(1..30)).map(|last| format!("A 192.0.2.{last}"))),
        _ => {
            own.push(format!("A 192.0.2.{}", random.random_range(1..200)));
            if random.random_bool(0.5) {
                own.push(format!("AAAA 2001:db8::{}", random.random_range(1..200)));
            }
        }
    }
    own.sort();
    own.dedup();
}

fn text(origin: &str, records: &BTreeMap<String, Vec<String>>, is_signed: bool) -> String {
    let mut text = format!("$TTL 300\n$ORIGIN {origin}.\n");
    for (owner, own) in records {
        for record in own {
            let _ = writeln!(text, "{owner} {record}");
        }
    }
    if !is_signed {
        return text;
    }
    let mut owners: Vec<&String> = records.keys().collect();
    owners
        .sort_by_key(|owner| owner.trim_end_matches('.').rsplit('.').map(str::to_owned).collect::<Vec<_>>());
    for (at, owner) in owners.iter().enumerate() {
        let mut types: Vec<&str> =
            records[*owner].iter().filter_map(|record| record.split(' ').next()).collect();
        types.extend(["RRSIG", "NSEC"]);
        // CoreDNS sends no answer with types in another order.
        types.sort_by_key(|rtype| rtype.parse::<RecordType>().map(u16::from).expect("a type"));
        types.dedup();
        let is_cut = types.contains(&"NS") && !types.contains(&"SOA");
        let next = owners[(at + 1) % owners.len()];
        let _ = writeln!(text, "{owner} NSEC {next} {}", types.join(" "));
        for rtype in types.into_iter().filter(|rtype| *rtype != "RRSIG" && !(is_cut && *rtype == "NS")) {
            let labels = owner.trim_end_matches('.').split('.').filter(|label| *label != "*").count();
            let _ = writeln!(
                text,
                "{owner} RRSIG {rtype} 13 {labels} 300 20400101000000 20200101000000 1 {origin}. AAAA"
            );
        }
    }
    text
}
