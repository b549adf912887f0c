//! The measured part of docs/performance.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::servers::{Programs, Server};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
const BEGIN: &str = "<!-- queries: make bench BENCH_WRITE=1 -->\n";
const END: &str = "<!-- end of queries -->\n";

/// Replaces the text between the marks.
pub fn write(text: &str) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    let missing = || format!("{PAGE}: the marks of the measured part are missing");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    let page = format!("{before}{BEGIN}\n{text}\n{END}{after}");
    fs::write(PAGE, page).map_err(|error| format!("{PAGE}: {error}"))
}

/// Returns a paragraph about the machine and the versions.
pub fn machine(programs: &Programs, dnsperf: &Path) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let commit = said(
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    let mut versions = vec![format!("lb-linker at {}", commit.lines().next().unwrap_or("an unknown commit"))];
    for (server, argument) in [
        (Server::Knot, "--version"),
        (Server::Nsd, "-v"),
        (Server::File, "-version"),
        (Server::Dnsdist, "--version"),
        (Server::Unbound, "-V"),
        (Server::Dnsmasq, "--version"),
    ] {
        let Some(program) = programs.of(server) else { continue };
        versions.extend(version(&said(Command::new(program).arg(argument))));
    }
    versions
        .extend(version(&said(Command::new(dnsperf).arg("-h"))).map(|version| format!("dnsperf {version}")));
    format!(
        "Measured on {}, on {} ({cores} cores), Linux {}: {}.\n",
        jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date(),
        model.map_or("an unknown processor", |(_, model)| model),
        kernel.trim(),
        versions.join(", "),
    )
}

/// Returns the first line with a digit, without the word "version".
fn version(said: &str) -> Option<String> {
    let line = said.lines().find(|line| line.bytes().any(|byte| byte.is_ascii_digit()))?;
    Some(
        line.trim_start_matches("Version ")
            .replace(", version", "")
            .replace(" version ", " ")
            .trim()
            .to_owned(),
    )
}

fn said(command: &mut Command) -> String {
    let Ok(output) = command.output() else { return String::new() };
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
