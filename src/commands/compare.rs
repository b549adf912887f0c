//! `lb-linker compare`.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cli::flags::Flags;
use crate::compare::names::Names;
use crate::compare::objects::Objects;
use crate::compare::{Comparison, Progress};
use crate::model::excerpt::printable;
use crate::model::hostname::to_presentation;
use crate::query::parse_server;
use crate::sync::k8s::client::connect;

use super::output::{BAD_INPUT, FAILED, exit_with_error, log_warnings, print_problem};

/// The interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Moves to the beginning of the line, and empties it.
const EMPTY_LINE: &str = "\r\x1b[K";

/// Parses a value of `--server`.
pub(super) fn server(text: &str) -> Result<SocketAddr, String> {
    parse_server(text)
        .ok_or_else(|| "not an address such as 10.96.0.10, 127.0.0.1:5301 or [::1]:5301".to_owned())
}

/// Returns the two servers, or what is wrong with the flags.
fn checked(flags: &Flags, servers: &[SocketAddr]) -> Result<[SocketAddr; 2], String> {
    if flags.manifests.is_some() {
        return Err("compare is about a cluster: leave out --manifests".to_owned());
    }
    match *servers {
        [a, b] if a == b => Err(format!("--server: both servers are {a}; give two different ones")),
        [a, b] => Ok([a, b]),
        _ => Err("--server is needed twice: --server ADDRESS --server ADDRESS".to_owned()),
    }
}

/// Prints the differences between two servers. Exit code 1 if there are some, 2 if they can't be compared.
pub async fn compare(flags: &Flags, servers: &[SocketAddr], rate: u32) -> ExitCode {
    let servers = match checked(flags, servers) {
        Ok(servers) => servers,
        Err(problem) => return exit_with_error(&problem, BAD_INPUT),
    };
    let zone = to_presentation(&flags.hostname_policy.cluster_domain).to_ascii_lowercase();
    log_warnings();
    let connection = match connect(flags.kubeconfig.clone(), flags.context.clone()).await {
        Ok(connection) => connection,
        Err(error) => return exit_with_error(&error.to_string(), BAD_INPUT),
    };
    let mut terminal = ProgressLine::new();
    terminal.show("reading the objects of the cluster");
    let objects = match Objects::read(&connection.client).await {
        Ok(objects) => objects,
        Err(error) => {
            terminal.end();
            return exit_with_error(&error.explain(""), BAD_INPUT);
        }
    };
    terminal.end();
    objects.notices.iter().for_each(|notice| print_problem(notice));
    let names = Names::of(&objects, &zone);
    let progress = |Progress { asked, questions, open }: Progress| {
        terminal.show(&format!("{asked} of {questions} questions asked, {open} to be asked again"));
    };
    let outcome = Comparison::new(&names, servers, rate).run(progress).await;
    terminal.end();
    let mut outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return exit_with_error(&error.to_string(), BAD_INPUT),
    };
    let mut changed = 0;
    // Without all kinds it isn't known what has changed.
    if !outcome.differences.is_empty()
        && let Ok(later) = Objects::read(&connection.client).await
        && later.unread == objects.unread
    {
        changed = outcome.forget_changed(&names, &Names::of(&later, &zone));
    }
    for line in outcome.report(changed) {
        // Ignore EPIPE: stdout may be closed (`| head`).
        let _ = writeln!(std::io::stdout(), "{}", printable(&line, &[]));
    }
    if outcome.number() == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// A line on stderr that is overwritten; none if stderr isn't a terminal.
struct ProgressLine {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl ProgressLine {
    fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, text: &str) {
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL) {
            self.shown = Some(Instant::now());
            // Ignore EPIPE: stderr may be closed.
            let _ = write!(std::io::stderr(), "{EMPTY_LINE}{text}");
        }
    }

    fn end(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "{EMPTY_LINE}");
        }
    }
}
