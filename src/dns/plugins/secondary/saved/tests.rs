use std::fs;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::dns::plugins::secondary::tests::{answer, origin, soa};
use hickory_proto::rr::RecordType;

/// Returns the source of a block at a port.
fn source(port: u16) -> Source {
    Source::new(&["192.0.2.1:53".parse().unwrap()], None, &[], &[port], None)
}

fn saved(directory: &Path) -> SavedZone {
    SavedZone::new(&directory.join("links.zones"), &origin(), source(53))
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

async fn write(saved: &SavedZone, serial: u32, checked: SystemTime) {
    let mut copy = saved.begin().await.unwrap();
    for records in [&[&*soa(serial)][..], &["a.example.org. 60 IN A 192.0.2.1", &soa(serial)]] {
        copy.add(&answer(7, RecordType::AXFR, records));
    }
    copy.finish(checked).unwrap();
}

/// Returns the serial and the age of the copy in seconds, or what is wrong.
fn read(saved: &SavedZone, now: u64) -> String {
    match saved.read(&origin(), at(now), ZoneMemory::default()) {
        Ok(Some(Copy { zone, age, .. })) => format!("serial {}, {} s", zone.serial(), age.as_secs()),
        Ok(None) => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn copy_is_read_with_its_age() {
    let directory = tempfile::tempdir().unwrap();
    let saved = saved(directory.path());
    assert_eq!(read(&saved, 0), "none");
    write(&saved, 5, at(1000)).await;
    assert_eq!(read(&saved, 1060), "serial 5, 60 s");
    assert_eq!(read(&saved, 900), "serial 5, 0 s", "the clock was set back");
    saved.confirm(at(1500)).unwrap();
    assert_eq!(read(&saved, 1560), "serial 5, 60 s");
    write(&saved, 6, at(2000)).await;
    assert_eq!(read(&saved, 2000), "serial 6, 0 s");
    let folder = saved.path().parent().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(folder), mode(saved.path())), (0o700, 0o600));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
}

#[tokio::test]
async fn only_a_copy_of_the_zone_is_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let saved = saved(directory.path());
    write(&saved, 5, at(1000)).await;
    let moved = directory.path().join("moved");
    fs::rename(saved.path(), &moved).unwrap();
    std::os::unix::fs::symlink(&moved, saved.path()).unwrap();
    assert!(saved.confirm(at(2000)).is_err(), "a symbolic link");
    fs::remove_file(saved.path()).unwrap();
    fs::write(saved.path(), [7; 200]).unwrap();
    assert!(saved.confirm(at(2000)).is_err());
    assert_eq!(fs::read(saved.path()).unwrap(), [7; 200]);
}

#[tokio::test]
async fn copy_that_is_given_up_leaves_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let saved = saved(directory.path());
    write(&saved, 5, at(1000)).await;
    let mut copy = saved.begin().await.unwrap();
    copy.add(b"oops");
    drop(copy);
    assert_eq!(read(&saved, 1000), "serial 5, 0 s");
    assert_eq!(fs::read_dir(saved.path().parent().unwrap()).unwrap().count(), 1);
}

#[tokio::test]
async fn damaged_copy_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let saved = saved(directory.path());
    write(&saved, 5, at(1000)).await;
    let whole = fs::read(saved.path()).unwrap();
    for length in 0..whole.len() {
        fs::write(saved.path(), &whole[..length]).unwrap();
        assert!(saved.read(&origin(), at(1000), ZoneMemory::default()).is_err(), "{length}");
    }
    for index in (0..whole.len()).filter(|index| !(CHECKED_AT..CHECKED_AT + 8).contains(&(*index as u64))) {
        let mut changed = whole.clone();
        changed[index] ^= 1;
        fs::write(saved.path(), &changed).unwrap();
        assert!(saved.read(&origin(), at(1000), ZoneMemory::default()).is_err(), "{index}");
    }
    fs::write(saved.path(), [0xff; 4096]).unwrap();
    assert_eq!(read(&saved, 0), "it isn't a copy of a zone that this version can read");
    fs::remove_file(saved.path()).unwrap();
    fs::create_dir(saved.path()).unwrap();
    assert_eq!(read(&saved, 0), "it isn't a file");
}

#[test]
fn name_of_the_file_leads_into_no_other_directory() {
    let name = |labels: &[&[u8]], source: Option<Source>| {
        file_name(&Name::from_labels(labels.iter().copied()).unwrap(), source)
    };
    let cut = |labels: &[&[u8]]| {
        let name = name(labels, None);
        name.rsplit_once('-').map(|(origin, _)| origin.to_owned()).unwrap()
    };
    assert_eq!(cut(&[b"Example", b"org"]), "example.org");
    assert_eq!(cut(&[b"..", b"a/b", b"%", b"\0\xff"]), "%2e%2e.a%2fb.%25.%00%ff");
    assert_eq!(cut(&[]), "");
    let long = [&[0xff; 62][..]; 4];
    assert!(name(&long, None).len() < 200);
    let other = [&[0xff; 62][..], &[0xff; 62], &[0xff; 62], &[0xff; 61]];
    assert_ne!(name(&long, None), name(&other, None));
    assert_ne!(name(&[b"a"], Some(source(53))), name(&[b"a"], Some(source(5353))));
}
