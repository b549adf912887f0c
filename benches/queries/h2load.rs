//! The load of DNS over HTTPS at saturation: h2load with GET requests. dnsperf 2.10 loses answers if several queries
//! of DNS over HTTPS are outstanding.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;

use crate::dnsperf::Outcome;
use crate::harness::process::Process;
use crate::sets::Question;

/// Writes the URIs of the questions (RFC 8484 section 4.1) to a file.
pub fn write_requests(path: &Path, server: SocketAddr, questions: &[Question]) -> io::Result<()> {
    let uri = |question: &Question| {
        format!("https://{server}/dns-query?dns={}\n", BASE64URL_NOPAD.encode(&question.bytes))
    };
    fs::write(path, questions.iter().map(uri).collect::<String>())
}

/// Sends the requests of the file `data` repeatedly for `time`: 8 connections, 100 requests outstanding.
///
/// # Errors
/// If h2load fails, with its output.
pub fn run(program: &Path, data: &Path, time: Duration) -> Result<Outcome, String> {
    let mut command = Command::new(program);
    // h2load takes whole seconds.
    let seconds = time.as_secs_f64().ceil().to_string();
    command.args(["-c", "8", "-m", "13", "-t", "1", "-D", &seconds, "-i"]).arg(data);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(command).map_err(|error| format!("{}: {error}", program.display()))?;
    let mut output = process.stdout().ok_or("h2load has no output")?;
    let text = io::read_to_string(&mut output).map_err(|error| error.to_string())?;
    parse(&text).ok_or_else(|| {
        let errors = process.stderr().and_then(|stream| io::read_to_string(stream).ok());
        format!("h2load: {text}{}", errors.unwrap_or_default())
    })
}

/// Reads lines such as `finished in 2.00s, 9000.00 req/s, 1.1MB/s`, `requests: 18000 total, …, 18000 done, 18000
/// succeeded, 0 failed, 0 errored, 0 timeout`, and `time for request: 120us 9.1ms 800us 210us 81%` (minimum, maximum,
/// mean).
fn parse(text: &str) -> Option<Outcome> {
    let line = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name));
    let counts = line("requests:")?;
    let count = |word: &str| {
        let count = counts.split(',').find_map(|part| part.trim().strip_suffix(word))?;
        count.trim().parse::<f64>().ok()
    };
    let finished = line("finished in")?;
    let rate = finished.split(',').find_map(|part| part.trim().strip_suffix(" req/s"))?;
    let mean = line("time for request:")?.split_whitespace().nth(2)?;
    let answered = count("succeeded")?;
    Some(Outcome {
        answered,
        lost: count("failed")?,
        per_second: rate.parse().ok()?,
        mean: microseconds(mean)?,
        // A status other than 2xx isn't counted as succeeded.
        good: 1.0,
    })
}

/// Reads a time such as `120us`, `9.1ms` or `1.2s`.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units.into_iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}
