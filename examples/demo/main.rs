//! Demonstrates lb-linker without a cluster: `make demo`.
//!
//! The demo starts the real lb-linker on a Service from `examples/manifests`, and in the role of the cloud a DNS server
//! and three TCP servers. Then it starts lb-linker on a small API server, which StableNames need. What it prints is measured in this run. The exit code is 0 only if everything is as expected.

mod api_server;
mod client;
mod cloud;
mod cutover;
mod linker;
mod screen;
mod story;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: demo [--svg FILE]

Shows how two clients fare when a load balancer is recreated, and how the name waits for a hostname that doesn't
resolve yet. On a terminal it stays up at the end, until Ctrl-C.

  --svg FILE  end by itself, and write what was shown as a picture";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let recording = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--svg", path] => Some(PathBuf::from(path)),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let is_over = AtomicBool::new(false);
    // When one branch ends, the other branch is dropped, which stops lb-linker and removes the temporary files.
    tokio::select! {
        told = story::tell(recording.as_deref(), &is_over) => match told {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("\ndemo: {problem}");
                ExitCode::FAILURE
            }
        },
        stopped = stopped() => match stopped {
            Ok(code) => {
                eprintln!("\ndemo: stopped, and lb-linker with it; the temporary files are removed");
                ExitCode::from(if is_over.load(Ordering::Relaxed) { 0 } else { code })
            }
            Err(problem) => {
                eprintln!("\ndemo: {problem}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP. Returns the exit code for the signal, as shells do.
async fn stopped() -> io::Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
        _ = hangup.recv() => 129,
    })
}
