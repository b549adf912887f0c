use std::fs;
use std::path::Path;

use hickory_proto::rr::rdata::opt::{ClientSubnet, EdnsOption};

use super::*;
use crate::captured_log::CapturedLog;
use crate::dns::plugins::tests::support::TestServer;

/// Returns the path of a database that `tests/mutated/mmdb.rs` writes.
fn seed(name: &str) -> String {
    format!("{}/fuzz/seeds/geoip/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn format(labels: &[&str]) -> String {
    labels.iter().map(|label| format!("{{/geoip/{label}}}")).collect::<Vec<_>>().join("|")
}

const CITY: [&str; 11] = [
    "city/name",
    "country/code",
    "country/name",
    "country/is_in_european_union",
    "continent/code",
    "continent/name",
    "latitude",
    "longitude",
    "timezone",
    "postalcode",
    "subdivisions/code",
];

#[tokio::test]
async fn labels_are_about_the_clients_place() {
    let format = format(&CITY);
    let lines = format!("metadata\nlog . \"{format} {{/geoip/asn/number}}\"\ngeoip {}\nwhoami", seed("city"));
    let whole = |city: &str, latitude: &str| {
        format!("{city}|GB|United Kingdom|true|EU|Europe|{latitude}|-0.1315|Europe/London|CB4|ENG,,CAM -")
    };
    let unknown = "|||false|||||||";
    for (client, expected) in [
        ("127.0.0.1", whole("Cambridge", "52.2242")),
        ("81.2.69.142", whole("Cambridge of a very long name, which has more than 28 bytes", "0.0000001")),
        (
            "::ffff:81.2.69.142",
            whole("Cambridge of a very long name, which has more than 28 bytes", "0.0000001"),
        ),
        ("2001:db8::1", whole("Six", "10")),
        ("127.0.0.3", format!("{unknown} -")),
        ("127.0.0.4", format!("{unknown} -")),
        ("203.0.113.1", format!("{unknown} -")),
    ] {
        let server = TestServer::block(&lines).from(client);
        server.ask("example.org. A").await;
        assert_eq!(server.lines(), [format!("[INFO] {expected}")], "{client}");
    }
}

#[tokio::test]
async fn labels_are_about_the_clients_network() {
    for database in ["asn", "isp"] {
        let format = "{/geoip/asn/number}|{/geoip/asn/org}|{/geoip/city/name}";
        let lines = format!("metadata\nlog . \"{format}\"\ngeoip {}\nwhoami", seed(database));
        for (client, expected) in [
            ("127.0.0.1", "12345|Test ASN Organization|-"),
            ("127.0.0.3", "0|Not routed|-"),
            ("127.0.0.4", "0||-"),
            ("203.0.113.1", "0||-"),
            ("2001:db8::1", "4294967295|The last one|-"),
        ] {
            let server = TestServer::block(&lines).from(client);
            server.ask("example.org. A").await;
            assert_eq!(server.lines(), [format!("[INFO] {expected}")], "{client}");
        }
    }
}

#[tokio::test]
async fn clients_subnet_counts_only_with_the_option() {
    for (option, expected) in [("", "Cambridge"), ("{\nedns-subnet\n}", "Six")] {
        let lines = format!("metadata\nlog . {{/geoip/city/name}}\ngeoip {} {option}\nwhoami", seed("city"));
        let mut server = TestServer::block(&lines).from("127.0.0.1").edns(1232);
        let subnet = ClientSubnet::new("2001:db8:1::".parse().unwrap(), 56, 0);
        server.request.edns.as_mut().unwrap().options_mut().insert(EdnsOption::Subnet(subnet));
        server.ask("example.org. A").await;
        assert_eq!(server.lines(), [format!("[INFO] {expected}")], "{option}");
    }
}

#[tokio::test]
async fn label_of_a_wrong_type_is_not_known() {
    let lines = format!(
        "metadata\nlog . \"{{/geoip/city/name}}|{{/geoip/country/name}}\"\ngeoip {}\nwhoami",
        seed("wrong")
    );
    let server = TestServer::block(&lines).from("127.0.0.2");
    server.ask("example.org. A").await;
    assert_eq!(server.lines(), ["[INFO] -|"]);
}

#[tokio::test]
async fn changed_file_is_read_again_and_a_damaged_one_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db.mmdb");
    let replace = |bytes: &[u8]| {
        let new = directory.path().join("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, &path).unwrap();
    };
    let bytes = |name| fs::read(seed(name)).unwrap();
    replace(&bytes("city"));
    let databases = Databases::default();
    let (database, id) = databases.open(&path).unwrap();
    assert!(Arc::ptr_eq(&database, &databases.open(&path).unwrap().0), "blocks share it");
    let database = Arc::new(ArcSwap::new(database));
    let mut file = DatabaseFile { path: path.clone(), id, databases, database: Arc::clone(&database) };
    let client = [127, 0, 0, 1].into();
    let city = || database.load().label("city/name", client);
    let number = || database.load().label("asn/number", client);
    file.refresh().await;
    assert_eq!((city().as_deref(), number()), (Some("Cambridge"), None));
    let cut = bytes("asn");
    replace(&cut[..cut.len() / 2]);
    file.refresh().await;
    assert_eq!(city().as_deref(), Some("Cambridge"));
    fs::remove_file(&path).unwrap();
    file.refresh().await;
    assert_eq!(city().as_deref(), Some("Cambridge"));
    // A directory can't be read.
    fs::create_dir(&path).unwrap();
    let last = file.id;
    let (log, guard) = CapturedLog::start(tracing::Level::WARN);
    file.refresh().await;
    file.refresh().await;
    assert_eq!((file.id, log.text().matches("can't be read").count()), (last, 1));
    drop(guard);
    fs::remove_dir(&path).unwrap();
    replace(&bytes("asn"));
    file.refresh().await;
    assert_eq!((city(), number().as_deref()), (None, Some("12345")));
}

#[tokio::test]
async fn change_of_a_file_is_logged_once_for_all_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db.mmdb");
    fs::write(&path, fs::read(seed("city")).unwrap()).unwrap();
    let databases = Databases::default();
    let block = || {
        let (database, id) = databases.open(&path).unwrap();
        let database = Arc::new(ArcSwap::new(database));
        DatabaseFile { path: path.clone(), id, databases: databases.clone(), database }
    };
    let mut blocks = [block(), block()];
    let (log, _guard) = CapturedLog::start(tracing::Level::INFO);
    for (bytes, expected) in [
        (b"oops".to_vec(), [1, 0]),
        (b"other".to_vec(), [2, 0]),
        (fs::read(seed("asn")).unwrap(), [2, 1]),
        (b"oops".to_vec(), [3, 1]),
    ] {
        fs::write(&path, bytes).unwrap();
        for block in &mut blocks {
            block.refresh().await;
        }
        let text = log.text();
        let counts = ["stays in use", "read again"].map(|what| text.matches(what).count());
        assert_eq!(counts, expected, "{text}");
    }
}

#[test]
fn changed_file_with_the_old_time_is_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db.mmdb");
    let file = fs::File::create(&path).unwrap();
    let (old, time) = (FileId::of(&path).unwrap(), file.metadata().unwrap().modified().unwrap());
    let is_changed = |_| {
        file.set_modified(time).unwrap();
        FileId::of(&path).unwrap() != old
    };
    assert!((0..1_000_000).any(is_changed));
}

#[test]
fn labels_without_the_plugin_are_warned_of() {
    let with = format!("\ngeoip {}", seed("city"));
    for (lines, expected) in [
        (
            "metadata\nlog . {/geoip/city/name}",
            Some("3:7: {/geoip/city/name} has no effect here: the block has no geoip"),
        ),
        (&*format!("metadata\nlog . {{/geoip/city/name}}{with}"), None),
        (
            &*format!("log . {{/geoip/city/name}}{with}"),
            Some("2:7: {/geoip/city/name} has no effect here: the block has no metadata"),
        ),
    ] {
        let found = TestServer::builder(lines).warnings.first().map(ToString::to_string);
        assert_eq!(found, expected.map(|text| format!("Corefile:{text}")), "{lines}");
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let [city, unknown, none] = [seed("city"), seed("unknown"), seed("none")];
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (lines, expected) in [
        ("geoip".to_owned(), "2:1: geoip needs the file of a database: geoip DBFILE".to_owned()),
        (
            format!("geoip {city} x"),
            format!("2:{}: geoip takes 1 argument at most, and here is \"x\"", 8 + city.len()),
        ),
        (
            format!("geoip {city} {{\nedns\n}}"),
            "3:1: geoip has no option \"edns\"; its option is edns-subnet".to_owned(),
        ),
        (
            format!("geoip {city} {{\nedns-subnet x\n}}"),
            "3:13: edns-subnet takes no arguments, and here is \"x\"".to_owned(),
        ),
        (
            format!("geoip {city}\ngeoip {city}"),
            "3:1: geoip can be there only once in a block, and it is on line 2 already".to_owned(),
        ),
        (
            format!("geoip {unknown}"),
            format!(
                "2:7: {unknown}: it is a database of the type \"GeoLite2-Unknown\", which has no labels; those of \
                 cities, countries, ISPs and ASNs have some"
            ),
        ),
        (
            format!("geoip {none}"),
            format!("2:7: {none}: it can't be read: No such file or directory (os error 2)"),
        ),
        (format!("geoip {text}"), format!("2:7: {text}: it isn't a whole database in MaxMind's format: ")),
    ] {
        let found = TestServer::error(&lines);
        let is_start = expected.ends_with(": ") && found.starts_with(&format!("Corefile:{expected}"));
        assert!(is_start || found == format!("Corefile:{expected}"), "{lines}: {found}");
    }
    assert!(Path::new(&city).is_file());
}

#[test]
fn labels_are_those_that_warnings_know() {
    let own: Vec<String> = database::LABELS.iter().map(|(label, ..)| format!("{PREFIX}{label}")).collect();
    let known = crate::dns::chain::labels::known().filter(|label| label.starts_with(PREFIX));
    assert_eq!(known.collect::<Vec<_>>(), own);
}
