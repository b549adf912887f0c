//! The versions of the servers and of the load generators.

use std::process::Command;

use crate::page::said;
use crate::rounds::Tools;
use crate::servers::{Programs, Server};

pub fn of(programs: &Programs, tools: &Tools) -> Vec<String> {
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
        let name = server.name().split(' ').next().unwrap_or_default();
        versions.extend(version(name, &said(Command::new(program).arg(argument))));
    }
    versions.extend(version("dnsperf", &said(Command::new(&tools.dnsperf).arg("-h"))));
    if let Some(h2load) = &tools.h2load {
        versions.extend(version("h2load", &said(Command::new(h2load).arg("--version"))));
    }
    versions
}

/// Returns a program's name and the first word with a digit and a dot that it said.
fn version(name: &str, said: &str) -> Option<String> {
    let mut words = said.split_whitespace();
    let word = words.find(|word| word.contains('.') && word.bytes().any(|byte| byte.is_ascii_digit()))?;
    Some(format!("{name} {}", word.trim_start_matches("CoreDNS-").trim_start_matches("nghttp2/")))
}
