use super::*;

fn range(path: &str, zones: &[&str]) -> KeyRange {
    let zones: Vec<Name> = zones.iter().map(|zone| parse_name(zone).unwrap()).collect();
    KeyRange::new(path, &zones).unwrap()
}

fn pair(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.into(), value: value.into(), mod_revision: 1, lease: 0 }
}

fn below(index: &Index, path: &str) -> String {
    let keys = index.at_or_below(path).map(|entry| String::from_utf8_lossy(&entry.key).into_owned());
    keys.collect::<Vec<_>>().join(" ")
}

#[test]
fn range_is_the_common_path_of_the_zones() {
    for (path, zones, expected) in [
        ("/skydns", &["."][..], ["/skydns", "/skydns/", "/skydns0"]),
        ("skydns/", &["example.org.", "example.net."], ["/skydns", "/skydns/", "/skydns0"]),
        (
            "/skydns",
            &["a.Example.org.", "b.example.org."],
            ["/skydns", "/skydns/org/example", "/skydns/org/example0"],
        ),
        ("/a//b", &["org."], ["/a/b", "/a/b/org", "/a/b/org0"]),
        ("/", &["."], ["/", "/", "0"]),
    ] {
        let range = range(path, zones);
        let (start, end) = range.bounds();
        let found = [range.base(), std::str::from_utf8(start).unwrap(), std::str::from_utf8(end).unwrap()];
        assert_eq!(found, expected, "{path} {zones:?}");
    }
    assert!(KeyRange::new("/a/../b", &[Name::root()]).is_none());
}

#[test]
fn names_have_paths_and_keys_have_names() {
    let range = range("/skydns", &["."]);
    for (name, path, before_wildcard) in [
        ("X.example.ORG.", "/skydns/org/example/x", None),
        ("*.a.any.org.", "/skydns/org/any/a/*", Some(11)),
        (r"a\.b.org.", r"/skydns/org/a\.b", None),
        ("0/25.org.", "/skydns/org/0/25", None),
        (".", "/skydns", None),
    ] {
        let found = range.path(&parse_name(name).unwrap());
        assert_eq!(found, Some(NamePath { text: path.to_owned(), before_wildcard }), "{name}");
    }
    for name in ["/.org.", "a//b.org.", "a/.org."] {
        assert_eq!(range.path(&parse_name(name).unwrap()), None, "{name}");
    }
    for (key, name) in [
        ("/skydns/org/example/X", Some("X.example.org.")),
        ("/skydns/org/x/", Some("x.org.")),
        ("/skydns/org//x", None),
        ("/skydns/org/a.b", Some("a.b.org.")),
        ("/skydns/", None),
        ("/other/org", None),
    ] {
        assert_eq!(range.name(key.as_bytes()), name.map(|name| parse_name(name).unwrap()), "{key}");
    }
}

#[test]
fn keys_are_found_by_their_paths() {
    let (mut index, range) = (Index::default(), range("/s", &["."]));
    for key in ["/s/org/a", "/s/org/a/x", "/s/org/a/y", "/s/org/ab", "/s/org/a-b"] {
        assert_eq!(index.put(&pair(key, "{}"), &range), Ok(None));
    }
    assert_eq!(below(&index, "/s/org/a"), "/s/org/a/x /s/org/a/y");
    assert_eq!(below(&index, "/s/org/ab"), "/s/org/ab");
    assert_eq!(below(&index, "/s/org/b"), "");
    assert!(index.at("/s/org/a").is_some() && index.at("/s/org").is_none());
    index.delete(b"/s/org/a/x");
    index.delete(b"/s/org/a/y");
    assert_eq!(below(&index, "/s/org/a"), "/s/org/a");
    assert_eq!(index.put(&pair("/t/org", "{}"), &range), Err(KeyError::Misplaced));
}

#[test]
fn wrong_values_are_left_out_and_other_keys_stay() {
    let (mut index, range) = (Index::default(), range("/s", &["."]));
    assert_eq!(index.put(&pair("/s/org/a", r#"{"host":"192.0.2.1"}"#), &range), Ok(None));
    let problem = index.put(&pair("/s/org/b", "x\ny"), &range).unwrap().unwrap();
    assert!(problem.starts_with("the key \"/s/org/b\" is left out: its value isn't a message"), "{problem}");
    let problem = index.put(&pair("/s/org//b", "{}"), &range).unwrap().unwrap();
    assert_eq!(problem, "the key \"/s/org//b\" is left out: it isn't the path of a domain name");
    assert_eq!((index.len(), index.left_out()), (3, 2));
    assert!(index.at("/s/org/a").unwrap().service.is_some());
    assert!(index.at("/s/org/b").unwrap().service.is_none());
}

#[test]
fn list_keeps_answers_if_nothing_has_changed() {
    let (mut index, range) = (Index::default(), range("/s", &["."]));
    let list = |index: &mut Index, keys: &[&str]| {
        let mut listing = Listing::default();
        for key in keys {
            listing.add(&pair(key, "{}"), false, &range, index).unwrap();
        }
        let flag = index.outdated().clone();
        index.replace(listing);
        flag.is_set()
    };
    assert!(list(&mut index, &[]), "the first list");
    assert!(list(&mut index, &["/s/a", "/s/b"]));
    assert!(!list(&mut index, &["/s/a", "/s/b"]));
    assert!(list(&mut index, &["/s/a"]));
    let mut listing = Listing::default();
    for (key, expected) in
        [("/s/b", Ok(None)), ("/s/b", Err(KeyError::Misplaced)), ("/s/a", Err(KeyError::Misplaced))]
    {
        assert_eq!(listing.add(&pair(key, "{}"), false, &range, &index), expected);
    }
}

#[test]
fn memory_of_keys_is_limited() {
    let (mut index, range) = (Index::default(), range("/s", &["."]));
    let value = format!("{{\"text\":\"{}\"}}", "x".repeat(60_000));
    let put = |index: &mut Index, number: usize| index.put(&pair(&format!("/s/{number}"), &value), &range);
    let most = (0..).find(|number| put(&mut index, *number) == Err(KeyError::Full)).unwrap();
    assert!((1_000..1_200).contains(&most), "{most}");
    assert_eq!(put(&mut index, 0), Ok(None), "a change isn't more");
    index.delete(b"/s/1");
    assert_eq!(put(&mut index, most), Ok(None));
    for number in 0..=most {
        index.delete(format!("/s/{number}").as_bytes());
    }
    assert_eq!((index.len(), index.memory), (0, 0));
    let mut listing = Listing::default();
    let mut add =
        |number: usize| listing.add(&pair(&format!("/s/{number:06}"), &value), false, &range, &index);
    assert_eq!((0..).find_map(|number| add(number).err()), Some(KeyError::Full));
}

#[test]
fn leases_are_read_when_unknown_or_half_over() {
    let (mut index, range, now) = (Index::default(), range("/s", &["."]), Instant::now());
    for key in ["/s/a", "/s/b"] {
        index.put(&KeyValue { lease: 7, ..pair(key, "{}") }, &range).unwrap();
    }
    let seconds = Duration::from_secs;
    assert_eq!((index.leases_to_read(now, 9), index.lease_left(7, now)), (vec![7], Duration::ZERO));
    index.note_lease(7, seconds(60), seconds(60), now);
    index.note_lease(8, seconds(60), seconds(60), now);
    assert_eq!((index.leases_to_read(now, 9), index.lease_left(7, now + seconds(20))), (vec![], seconds(40)));
    assert_eq!(index.leases_to_read(now + seconds(31), 9), [7]);
    for lease in [6, 9] {
        index.put(&KeyValue { lease, ..pair(&format!("/s/{lease}"), "{}") }, &range).unwrap();
    }
    index.note_lease(6, seconds(9), seconds(9), now + seconds(1));
    assert_eq!(index.leases_to_read(now + seconds(31), 2), [9, 7], "not known, and read first");
    ["/s/6", "/s/9"].iter().for_each(|key| index.delete(key.as_bytes()));
    index.note_lease(7, seconds(29), seconds(60), now + seconds(31));
    assert_eq!(index.leases_to_read(now + seconds(32), 9), [0; 0], "it was read just now");
    index.delete(b"/s/a");
    assert_eq!(index.leases.len(), 1);
    index.delete(b"/s/b");
    assert_eq!(index.leases.len(), 0);
}
