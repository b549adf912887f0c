//! CPU time per query: lb-linker compared with other DNS servers and with the floor, the cost of the kernel's UDP
//! path.
//!
//! `make bench`; docs/performance.md describes the method.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;
mod cpu;
mod dnsperf;
mod fixtures;
mod floor;
mod h2load;
#[expect(dead_code, reason = "the e2e tests use the rest of the harness")]
#[path = "../../tests/e2e/harness/mod.rs"]
mod harness;
mod latency;
mod load;
#[path = "../page.rs"]
mod page;
mod plan;
mod report;
mod rounds;
mod servers;
mod sets;
mod spread;
mod verdicts;
mod versions;

use std::process::ExitCode;

fn main() -> ExitCode {
    // cargo passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => plan::run(),
        ["floor", address, answers] => match address.parse() {
            Ok(address) => {
                floor::serve(address, answers.as_ref()).map_err(|error| format!("{answers}: {error}"))
            }
            Err(error) => Err(format!("{address}: {error}")),
        },
        _ => Err("usage: queries [floor ADDRESS:PORT ANSWERS]".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}
