//! The versions of the servers and of the load generator.

use std::path::Path;
use std::process::Command;

use crate::page::said;
use crate::servers::{Programs, Server};

pub fn of(programs: &Programs, dnsperf: &Path) -> Vec<String> {
    let mut versions = Vec::new();
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
    versions
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
