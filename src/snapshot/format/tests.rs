use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::clusters;

fn head(random: &mut StdRng) -> Head {
    let text = |random: &mut StdRng| text(random);
    Head {
        taken: Timestamp::from_second(random.random_range(0..4_000_000_000)).unwrap(),
        program: text(random),
        cluster: ClusterIdentity { server: text(random), authorities: vec![text(random)] },
        recorded_flags: RecordedFlags {
            annotated_only: random.random(),
            selector: text(random),
            classes: (0..random.random_range(0..3)).map(|_| text(random)).collect(),
            hostname_annotations: (0..random.random_range(0..3)).map(|_| text(random)).collect(),
            annotation_prefixes: (0..random.random_range(0..2)).map(|_| text(random)).collect(),
            zones: (0..random.random_range(0..2)).map(|_| zone(random)).collect(),
        },
        serial: random.random(),
        last_change: random.random_bool(0.5).then(|| random.random()),
    }
}

fn zone(random: &mut StdRng) -> RecordedZone {
    RecordedZone { origin: text(random), ingress_classes: texts(random), gateway_classes: texts(random) }
}

/// Returns a text, in which some characters are escaped in JSON.
fn text(random: &mut StdRng) -> String {
    let length = random.random_range(0..20);
    (0..length)
        .map(|_| *['a', '1', '-', '.', '"', '\\', '\n', '\0', 'é', '☃'].choose(random).unwrap())
        .collect()
}

fn label(random: &mut StdRng) -> String {
    let letters = (0..random.random_range(1..20)).map(|_| random.random_range('a'..='z'));
    letters.collect()
}

fn texts(random: &mut StdRng) -> Vec<String> {
    (0..random.random_range(0..4)).map(|_| text(random)).collect()
}

fn records(random: &mut StdRng) -> SavedRecords {
    SavedRecords {
        kind: *[RecordKind::Txt, RecordKind::Srv, RecordKind::Mx].choose(random).unwrap(),
        ttl: random.random::<bool>().then(|| random.random_range(0..=MAX_TTL)),
        data: texts(random),
    }
}

fn link(random: &mut StdRng) -> SavedLink {
    let target = match random.random_range(0..4) {
        0 => None,
        1 => Some(SavedTarget::Hostname(text(random))),
        _ => {
            let ip = |random: &mut StdRng| match random.random() {
                true => IpAddr::from(random.random::<[u8; 4]>()),
                false => IpAddr::from(random.random::<[u8; 16]>()),
            };
            Some(SavedTarget::Addresses((0..random.random_range(1..5)).map(|_| ip(random)).collect()))
        }
    };
    let port = |random: &mut StdRng| Port {
        name: random.random::<bool>().then(|| label(random).into()),
        protocol: "UDP".into(),
        port: random.random(),
        app_protocol: random.random::<bool>().then(|| label(random).into()),
    };
    let is_service = random.random::<bool>();
    let cluster = random.random::<bool>().then(|| label(random)).filter(|_| !is_service);
    let namespace =
        |random: &mut StdRng| clusters::in_cluster(cluster.as_deref(), &label(random)).into_owned();
    SavedLink {
        kind: (!is_service).then(|| text(random)),
        behind: random.random::<bool>().then(|| (namespace(random), label(random))),
        namespace: namespace(random),
        cluster: cluster.clone(),
        service: format!("{}.{}", label(random), label(random)),
        uid: text(random),
        created: random.random(),
        target,
        ttl: random.random::<bool>().then(|| random.random_range(0..=MAX_TTL)),
        hostnames: texts(random),
        allow_from: texts(random),
        ports: (0..random.random_range(0..3)).map(|_| port(random)).collect(),
        external_target: label(random),
        lacks_hostnames: random.random(),
        overridden_by: random.random::<bool>().then(|| SavedOverride {
            uid: text(random),
            source: text(random),
            service_uid: text(random),
        }),
        records: (0..random.random_range(0..=MAX_RECORD_SETS)).map(|_| records(random)).collect(),
    }
}

fn snapshot(seed: u64) -> (Snapshot, Vec<u8>) {
    let random = &mut StdRng::seed_from_u64(seed);
    let head = head(random);
    let links: Vec<SavedLink> = (0..random.random_range(0..20)).map(|_| link(random)).collect();
    let encoded = encode(&head, || links.iter().cloned()).unwrap();
    assert_eq!((encoded.links, encoded.cut), (links.len(), 0));
    (Snapshot { head, links }, encoded.bytes)
}

#[test]
fn decoding_returns_the_encoded_snapshot() {
    for seed in 0..200 {
        let (snapshot, bytes) = snapshot(seed);
        assert_eq!(decode(&bytes).as_ref(), Ok(&snapshot), "seed {seed}");
    }
}

#[test]
fn damaged_snapshot_is_refused() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let random = &mut StdRng::seed_from_u64(seed);
    let (mut original, mut bytes) = snapshot(random.random());
    for round in 0..2_000 {
        if round % 100 == 0 {
            (original, bytes) = snapshot(random.random());
        }
        let at = random.random_range(0..bytes.len());
        let mut damaged = bytes.clone();
        match random.random_range(0..5) {
            0 => damaged.truncate(at),
            1 => damaged[at] ^= 1 << random.random_range(0..8),
            2 => damaged[at] = random.random(),
            3 => drop(damaged.splice(at..at, [random.random()])),
            _ => drop(damaged.remove(at)),
        }
        match decode(&damaged) {
            Ok(decoded) => assert!(damaged == bytes && decoded == original, "seed {seed}, round {round}"),
            Err(error) => assert_ne!(damaged, bytes, "seed {seed}, round {round}: {error}"),
        }
    }
}

/// Returns a snapshot with this body: the header, and then the body.
fn sealed(body: &str) -> Vec<u8> {
    [header(VERSION, body.as_bytes()).as_bytes(), body.as_bytes()].concat()
}

#[test]
fn decoding_mutated_lines_with_valid_checksum_never_panics() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let random = &mut StdRng::seed_from_u64(seed);
    let mut refused = 0;
    for _ in 0..2_000 {
        let mut body = snapshot(random.random()).1.split_off(HEADER_BYTES);
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..body.len());
            body[at] = *b"{}[]\",:0-9aeE\\\n\0\xff".choose(random).unwrap();
        }
        refused += usize::from(decode(&[header(VERSION, &body).as_bytes(), &body].concat()).is_err());
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn other_versions_and_other_files_are_told_apart() {
    let (_, bytes) = snapshot(1);
    let text = String::from_utf8(bytes.clone()).unwrap();
    let newer = text.replacen("snapshot 2 ", "snapshot 20 ", 1);
    for (bytes, expected) in [
        (&b""[..], FormatError::NoSnapshot),
        (b"lb-linker snapsho", FormatError::NoSnapshot),
        (b"apiVersion: v1\n", FormatError::NoSnapshot),
        (newer.as_bytes(), FormatError::OtherVersion),
        (b"lb-linker snapshot 2 ", FormatError::Checksum),
        (&bytes[..bytes.len() - 1], FormatError::Checksum),
        (&[bytes.as_slice(), b"\n"].concat(), FormatError::Checksum),
        (&vec![b'x'; MAX_BYTES + 1], FormatError::TooLarge),
    ] {
        assert_eq!(decode(bytes), Err(expected));
    }
    assert!(matches!(decode(&sealed("")), Err(FormatError::Line { line: 2, .. })));
    assert!(matches!(decode(&sealed("\n\n\n")), Err(FormatError::Line { line: 2, .. })));
}

#[test]
fn links_with_invalid_fields_are_refused_and_never_written() {
    let (Snapshot { head, .. }, _) = snapshot(1);
    let head = serde_json::to_string(&head).unwrap();
    let valid = SavedLink {
        namespace: "a".to_owned(),
        service: "b".to_owned(),
        external_target: "c".to_owned(),
        ..SavedLink::default()
    };
    let decoded = |link: &SavedLink| {
        let text = serde_json::to_string(link).unwrap();
        decode(&sealed(&format!("{head}\n{text}\n"))).map_err(|error| error.to_string())
    };
    decoded(&valid).unwrap();
    let behind = |namespace: &str, name: String| Some((namespace.to_owned(), name));
    // The longest key: a route with settings of its own at a ListenerSet, with names that have a single label.
    let (name, namespace) = ("x".repeat(MAX_ENTRY_BYTES), "y".repeat(MAX_LABEL));
    let longest = format!("{name}._listenerset._httproute.{namespace}.{name}._shared.gateway");
    decoded(&SavedLink { behind: behind(&namespace, longest), ..valid.clone() }).unwrap();
    let long = "x".repeat(MAX_ENTRY_BYTES + 1);
    let ips = |count: usize| Some(SavedTarget::Addresses(vec![IpAddr::from([0; 4]); count]));
    let port = Port { name: None, protocol: "".into(), port: 1, app_protocol: None };
    let records = |ttl, length, number| SavedRecords {
        kind: RecordKind::Txt,
        ttl,
        data: vec!["x".repeat(length); number],
    };
    for (wrong, expected) in [
        (
            SavedLink { namespace: "a/b".to_owned(), ..valid.clone() },
            "line 3: the namespace isn't a DNS label",
        ),
        (SavedLink { service: "a/b".to_owned(), ..valid.clone() }, "the Service's name isn't a DNS name"),
        (SavedLink { external_target: String::new(), ..valid.clone() }, "the external target's name"),
        (SavedLink { behind: behind("a", "x".repeat(254)), ..valid.clone() }, "isn't an object"),
        (SavedLink { behind: behind("a", "x.".repeat(512) + "x"), ..valid.clone() }, "isn't an object"),
        (SavedLink { behind: behind("a/b", "x".to_owned()), ..valid.clone() }, "isn't an object"),
        (SavedLink { uid: "x".repeat(1025), ..valid.clone() }, "a text is too long"),
        (SavedLink { hostnames: vec![long.clone()], ..valid.clone() }, "a list of names is too long"),
        (SavedLink { allow_from: vec![String::new(); 101], ..valid.clone() }, "a list of names is too long"),
        (SavedLink { ports: vec![port; 1001], ..valid.clone() }, "too many ports"),
        (SavedLink { ttl: Some(3601), ..valid.clone() }, "the TTL is too long"),
        (SavedLink { records: vec![records(None, 0, 1); 4], ..valid.clone() }, "too many records"),
        (SavedLink { records: vec![records(None, 0, 101)], ..valid.clone() }, "too many records"),
        (SavedLink { records: vec![records(None, MAX_TEXT + 1, 1)], ..valid.clone() }, "or too long ones"),
        (SavedLink { records: vec![records(Some(3601), 0, 1)], ..valid.clone() }, "or too long ones"),
        (SavedLink { target: Some(SavedTarget::Hostname(long)), ..valid.clone() }, "the target is too long"),
        (SavedLink { target: ips(0), ..valid.clone() }, "the number of addresses is wrong"),
        (SavedLink { target: ips(1001), ..valid.clone() }, "the number of addresses is wrong"),
    ] {
        let error = decoded(&wrong).unwrap_err();
        assert!(error.contains(expected), "{error}");
        // `encode` writes no link that `decode` refuses.
        let is_named = wrong.clone().names_only().check().is_ok();
        let head: Head = serde_json::from_str(&head).unwrap();
        let encoded = encode(&head, || [wrong.clone()].into_iter()).unwrap();
        assert_eq!((encoded.links, encoded.cut), (usize::from(is_named), 1));
        assert_eq!(decode(&encoded.bytes).unwrap().links.len(), encoded.links);
    }
}

#[test]
fn large_links_are_cut_when_a_snapshot_is_too_large() {
    let (Snapshot { head, .. }, _) = snapshot(1);
    let link = |size: usize| SavedLink {
        namespace: "a".to_owned(),
        service: format!("s{size}"),
        external_target: "c".to_owned(),
        hostnames: vec!["x".repeat(250); size],
        ttl: Some(5),
        ..SavedLink::default()
    };
    let (large, small) = (link(100), link(1));
    // 400 kB of large links, and 70 kB of small ones.
    let links = || {
        let large = (0..16).map(|_| large.clone());
        large.chain((0..200).map(|_| small.clone()))
    };
    let encoded = encode_within(100_000, &head, links).unwrap();
    assert_eq!((encoded.links, encoded.cut), (216, 16));
    let decoded = decode(&encoded.bytes).unwrap();
    assert_eq!((&decoded.links[0], decoded.links.last().unwrap()), (&large.clone().names_only(), &small));
    let links = || (0..2_000).map(|_| small.clone());
    assert_eq!(encode_within(100_000, &head, links).unwrap_err(), FormatError::TooLarge);
}
