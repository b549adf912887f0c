//! Demonstrates lb-linker without a cluster: `make demo`.
//!
//! The demo copies `examples/manifests` to a temporary directory, starts a small DNS server in the role of the
//! cloud's DNS and the real lb-linker, and then changes the manifests as a cluster would. Everything that the demo
//! prints is read from lb-linker: from its DNS answers, its external targets and its log. The exit code is 0 only if
//! everything is as expected.

mod cloud;
mod linker;
mod manifests;
mod query;
mod screen;
mod stage;
mod story;

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: demo [--stay]

  --stay  go on after the end, until Ctrl-C: to ask questions and to edit the manifests";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let stay = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--stay"] => true,
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    // When one branch ends, the other branch is dropped, which stops lb-linker and removes the temporary files.
    tokio::select! {
        told = story::tell(stay) => match told {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("\ndemo: {problem}");
                ExitCode::FAILURE
            }
        },
        stopped = stopped() => match stopped {
            Ok(code) => {
                eprintln!("\ndemo: stopped, and lb-linker with it; the temporary files are removed");
                ExitCode::from(code)
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
