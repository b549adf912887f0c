//! The load at saturation: dnsperf with as many queries as the server handles.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::process::Process;
use crate::sets::Set;

/// The results that dnsperf prints at its end.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub answered: f64,
    pub lost: f64,
    pub per_second: f64,
    /// Mean latency in microseconds.
    pub mean: f64,
    /// The share of answers with NOERROR.
    pub good: f64,
}

/// Sends the queries of the file `data` repeatedly for `time`.
///
/// # Errors
/// If dnsperf fails, with its output.
pub fn run(
    program: &Path,
    server: SocketAddr,
    data: &Path,
    set: Set,
    time: Duration,
) -> Result<Outcome, String> {
    let mut command = Command::new(program);
    command.args(["-s", &server.ip().to_string(), "-p", &server.port().to_string()]);
    command.args(["-c", "8", "-T", "1", "-B", "-d"]).arg(data);
    command.args(match set {
        Set::Tcp => ["-m", "tcp", "-q", "100"],
        Set::Tls => ["-m", "dot", "-q", "100"],
        _ => ["-m", "udp", "-q", "200"],
    });
    // At the end dnsperf waits so long for each query that was lost.
    command.args(["-t", "1", "-l", &time.as_secs_f64().to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(command).map_err(|error| format!("{}: {error}", program.display()))?;
    let mut output = process.stdout().ok_or("dnsperf has no output")?;
    let text = std::io::read_to_string(&mut output).map_err(|error| error.to_string())?;
    parse(&text).ok_or_else(|| {
        let errors = process.stderr().and_then(|stream| std::io::read_to_string(stream).ok());
        format!("dnsperf: {text}{}", errors.unwrap_or_default())
    })
}

fn parse(text: &str) -> Option<Outcome> {
    let value = |name: &str| {
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    let answered = value("Queries completed:")?;
    let codes = text.lines().find_map(|line| line.trim().strip_prefix("Response codes:")).unwrap_or_default();
    let mut words = codes.split_whitespace().skip_while(|word| *word != "NOERROR").skip(1);
    let good = words.next().and_then(|word| word.parse::<f64>().ok()).unwrap_or_default();
    Some(Outcome {
        answered,
        lost: value("Queries lost:")?,
        per_second: value("Queries per second:")?,
        mean: value("Average Latency (s):")? * 1e6,
        good: good / answered,
    })
}
