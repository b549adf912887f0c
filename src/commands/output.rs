//! Exit codes, and what commands print beside their output.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::app::error::RunError;
use crate::model::excerpt::{examples, printable};
use crate::sync::k8s::client::ApiServer;

/// The exit code for a failure at runtime, or for a cluster that lacks something.
pub(super) const FAILED: u8 = 1;
/// The exit code for invalid flags and files.
pub(super) const BAD_INPUT: u8 = 2;

/// The log filter of `links`, `scan` and `stub`: warnings, but none about single Services, because the output shows
/// their states.
const READING_LOG: &str = "warn,lb_linker::object_log=error,lb_linker::sync::events=error,\
    lb_linker::sync::external_target=error,hickory_proto=error,kube_client=off,kube_runtime=off,notify=off,\
    rustls_platform_verifier=off";

/// Asks on stderr whether to change these objects of an API server.
///
/// # Errors
/// If the answer on stdin doesn't begin with y or Y.
pub(super) fn confirm(objects: &[String], server: &ApiServer) -> Result<(), &'static str> {
    let question = format!("Change {} at API server {server}?", examples(objects));
    // Ignore EPIPE: stderr may be closed.
    let _ = write!(std::io::stderr(), "{} [y/N] ", printable(&question, &[]));
    let mut answer = String::new();
    // An answer that can't be read is none.
    let _ = std::io::stdin().read_line(&mut answer);
    // Only a terminal shows the end of the answer.
    if answer.is_empty() || !std::io::stdin().is_terminal() {
        let _ = writeln!(std::io::stderr());
    }
    consent(&answer)
}

fn consent(answer: &str) -> Result<(), &'static str> {
    match answer.trim_start().to_ascii_lowercase() {
        _ if answer.is_empty() => Err("nothing was changed; --yes leaves out the question"),
        answer if answer.starts_with('y') => Ok(()),
        _ => Err("nothing was changed"),
    }
}

/// Asks with `ask` whether these objects of an API server may be changed, else prints on stderr which API server it is.
///
/// # Errors
/// As [`confirm`].
pub(super) fn permit(ask: bool, objects: &[String], server: &ApiServer) -> Result<(), &'static str> {
    if ask {
        return confirm(objects, server);
    }
    // Ignore EPIPE: stderr may be closed.
    let _ = writeln!(std::io::stderr(), "{}", printable(&format!("API server {server}"), &[]));
    Ok(())
}

/// Starts the log of `links`, `scan` or `stub` on stderr: warnings and errors about reading the cluster.
pub(super) fn log_warnings() {
    let warnings = tracing_subscriber::fmt().with_env_filter(READING_LOG).with_writer(std::io::stderr);
    warnings.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
}

pub(super) fn fail(error: &RunError) -> ExitCode {
    exit_with_error(&error.to_string(), if error.is_input() { BAD_INPUT } else { FAILED })
}

pub(super) fn exit_with_error(problem: &str, code: u8) -> ExitCode {
    print_problem(problem);
    ExitCode::from(code)
}

pub(super) fn print_problem(problem: &str) {
    // Ignore EPIPE: stderr may be closed (`2>&1 | head`).
    let _ = writeln!(std::io::stderr(), "lb-linker: {}", printable(problem, &['\n', '\t']));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_answer_is_told_of_the_flag_yes() {
        let flag = "nothing was changed; --yes leaves out the question";
        let no = Err("nothing was changed");
        for (answer, expected) in
            [("y\n", Ok(())), (" Yes", Ok(())), ("n\n", no), ("\n", no), ("ok, y", no), ("", Err(flag))]
        {
            assert_eq!(consent(answer), expected, "{answer:?}");
        }
    }
}
