//! Clocks of one process that stop, as in a suspend or in a paused virtual machine, and a wall clock that jumps.
//!
//! A library that is loaded into lb-linker before libc (`tests/stopped-clock/`) shifts the clocks that lb-linker reads.
//! Time namespaces can't do this: their offsets are fixed once the first process has entered.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::linker::Linker;

/// The clocks of an lb-linker process.
pub struct ShiftedClock {
    directory: TempDir,
    /// How far CLOCK_MONOTONIC and CLOCK_BOOTTIME are behind.
    behind: [Duration; 2],
    stopped: Option<Instant>,
}

/// Which clocks stop while the process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStop {
    /// CLOCK_MONOTONIC stops, as in a suspend.
    Suspend,
    /// CLOCK_BOOTTIME stops as well, as in a paused virtual machine.
    Pause,
}

impl ShiftedClock {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = Self { directory, behind: [Duration::ZERO; 2], stopped: None };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stopped-clock/clock.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut build = Command::new(compiler);
        build.args(["-shared", "-fPIC", "-O1", "-o"]).arg(clock.library()).arg(source);
        assert!(build.status().expect("a C compiler").success(), "{source} can't be built");
        std::fs::File::create(clock.file()).and_then(|mut file| file.write_all(&[0; 24])).expect("a file");
        clock
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("clock.so")
    }

    /// Returns the environment variables for the process with these clocks.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.library().display().to_string()),
            ("STOPPED_CLOCK", self.file().display().to_string()),
        ]
    }

    /// Sets the wall clock (CLOCK_REALTIME) this many seconds ahead of the true time, or behind if negative.
    pub fn set_wall_clock(&self, ahead: i64) {
        let file = OpenOptions::new().write(true).open(self.file()).expect("the file of the clock");
        let behind = -ahead * 1_000_000_000;
        file.write_all_at(&behind.to_ne_bytes(), 16).expect("the file of the clock can be written");
    }

    pub fn stop(&mut self, linker: &mut Linker) {
        linker.signal(Signal::SIGSTOP);
        self.stopped = Some(Instant::now());
    }

    /// Continues the process. The clocks that `how` names don't advance by the time for which the process was stopped.
    pub fn resume(&mut self, linker: &mut Linker, how: ClockStop) {
        let elapsed = self.stopped.take().expect("it was stopped").elapsed();
        self.behind[0] += elapsed;
        if how == ClockStop::Pause {
            self.behind[1] += elapsed;
        }
        let file = OpenOptions::new().write(true).open(self.file()).expect("the file of the clock");
        for (behind, at) in self.behind.iter().zip([0, 8]) {
            let nanos = i64::try_from(behind.as_nanos()).expect("some seconds");
            file.write_all_at(&nanos.to_ne_bytes(), at).expect("the file of the clock can be written");
        }
        linker.signal(Signal::SIGCONT);
    }
}
