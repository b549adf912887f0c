use std::process::Command;
use std::time::Instant;

use tempfile::TempDir;

use crate::dns::server::reload::*;
use crate::model::owner::Source;
use crate::store::{OnGone, Store};

const WHOAMI: &str = ".:0 {\nbind 127.0.0.1\nwhoami\n}\n";

fn start(text: &str) -> (Reloader, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("Corefile");
    std::fs::write(&path, text.replace("DIR", &directory.path().to_string_lossy())).unwrap();
    let origin = CorefileSource::File(path);
    let text = origin.read().unwrap();
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let check_zones: CheckZones = Arc::new(|_| Ok(()));
    (
        Reloader::start(origin, text, check_zones, CorefileZones::default(), context, Box::new(|_| {}))
            .unwrap(),
        directory,
    )
}

fn corefile(directory: &TempDir) -> PathBuf {
    directory.path().join("Corefile")
}

#[tokio::test]
async fn fifo_as_corefile_does_not_delay_the_stop() {
    let (mut reloader, directory) = start(WHOAMI);
    let path = corefile(&directory);
    std::fs::remove_file(&path).unwrap();
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let stop = CancellationToken::new();
    let end = stop.clone();
    tokio::join!(reloader.reload(true, &stop), async move { end.cancel() });
    assert_eq!(reloader.metrics.failed.get(), 0);
    // Unblocks threads that are still reading.
    std::fs::write(&path, WHOAMI).unwrap();
    reloader.run(&stop).await.unwrap();
}

#[tokio::test]
async fn change_of_a_plugins_file_causes_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let resolv_conf = directory.path().join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 192.0.2.1\n").unwrap();
    let (mut reloader, _corefile) =
        start(&format!(".:0 {{\nbind 127.0.0.1\nforward . {}\n}}\n", resolv_conf.display()));
    let stop = CancellationToken::new();
    let load = async |reloader: &Reloader| reloader.load(false).await.unwrap().configuration.is_some();
    assert!(!load(&reloader).await);
    std::fs::write(&resolv_conf, "nameserver 192.0.2.2\n").unwrap();
    assert!(load(&reloader).await);
    reloader.reload(false, &stop).await;
    assert!(!load(&reloader).await, "the changed file is in force");
    std::fs::remove_file(&resolv_conf).unwrap();
    for _ in 0..2 {
        reloader.reload(false, &stop).await;
        assert_eq!(reloader.metrics.failed.get(), 1, "the repeated error is counted once");
    }
    stop.cancel();
    reloader.run(&stop).await.unwrap();
}

#[tokio::test]
async fn hosts_file_causes_a_reload_when_it_appears_or_changes() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    let (mut reloader, _corefile) =
        start(&format!(".:0 {{\nbind 127.0.0.1\nhosts {} {{\nreload 0s\n}}\n}}\n", hosts.display()));
    let stop = CancellationToken::new();
    let load = async |reloader: &Reloader| reloader.load(false).await.unwrap().configuration.is_some();
    assert!(!load(&reloader).await);
    std::fs::write(&hosts, "192.0.2.1 a\n").unwrap();
    assert!(load(&reloader).await);
    reloader.reload(false, &stop).await;
    assert!(!load(&reloader).await, "the file is in force");
    std::fs::remove_file(&hosts).unwrap();
    assert!(!load(&reloader).await, "the last content stays in use");
    std::fs::write(&hosts, "192.0.2.2 a\n").unwrap();
    assert!(load(&reloader).await);
    stop.cancel();
    reloader.run(&stop).await.unwrap();
}

#[tokio::test]
async fn cluster_of_a_failing_corefile_is_listed_once_and_waited_for() {
    let (mut reloader, directory) = start(WHOAMI);
    let kubernetes = "cluster.local:0 {\nbind 192.0.2.1\nkubernetes {\nstartup_timeout 50ms\n}\n}\n";
    std::fs::write(corefile(&directory), kubernetes).unwrap();
    let (stop, served) = (CancellationToken::new(), reloader.context.clusters.served());
    let mut first = None;
    for attempt in 0..3 {
        let began = Instant::now();
        reloader.reload(false, &stop).await;
        assert!(began.elapsed() >= Duration::from_millis(50), "attempt {attempt} waits for the lists");
        assert!(reloader.last.is_err(), "the address can't be bound");
        let all = served.borrow().clone();
        assert_eq!(all.len(), 1, "attempt {attempt}");
        assert!(Arc::ptr_eq(first.get_or_insert_with(|| Arc::clone(&all[0])), &all[0]));
    }
    std::fs::write(corefile(&directory), WHOAMI).unwrap();
    reloader.reload(false, &stop).await;
    assert!(reloader.last.is_ok() && served.borrow().is_empty());
    stop.cancel();
    reloader.run(&stop).await.unwrap();
}

#[tokio::test]
async fn zones_of_a_failing_corefile_are_tried_once() {
    let (mut reloader, directory) = start(WHOAMI);
    let (stop, store, mut zones) =
        (CancellationToken::new(), Arc::clone(&reloader.context.store), reloader.zones());
    let links = "lb.internal:0 {\nbind 192.0.2.1\nlb_linker {\nsources service ingress\n}\n}\n";
    std::fs::write(corefile(&directory), links).unwrap();
    for (attempt, requested) in [(0, false), (1, true)] {
        let listed = async {
            zones.changed().await.unwrap();
            let wanted: Vec<Zone> = zones.borrow_and_update().links.iter().map(Zone::from).collect();
            assert_eq!(wanted.len(), 1, "attempt {attempt}");
            store.set_listed(&Source::INGRESSES, &wanted);
        };
        tokio::join!(reloader.reload(requested, &stop), listed);
        assert!(reloader.last.is_err(), "the address can't be bound");
        assert!(zones.borrow_and_update().links.is_empty(), "the zones in force are those before");
        store.forget_source(&Source::INGRESSES);
        let began = Instant::now();
        reloader.reload(false, &stop).await;
        assert!(reloader.last.is_err() && !zones.has_changed().unwrap(), "attempt {attempt}");
        assert!(began.elapsed() < FIRST_NAMES_TIMEOUT);
    }
    stop.cancel();
    reloader.run(&stop).await.unwrap();
}
