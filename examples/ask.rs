//! A small `dig`: sends one query to a DNS server and prints the answer.
//!
//! `cargo run --example ask -- @127.0.0.1:5301 my-sample-lb-default.lb.internal A`

#[path = "demo/query.rs"]
mod query;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{Name, Record, RecordType};

const USAGE: &str = "usage: ask @ADDRESS[:PORT] NAME [TYPE]
for example: ask @127.0.0.1:5301 my-sample-lb-default.lb.internal A";

/// The port of DNS (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;
/// The EDNS option with an Extended DNS Error (RFC 8914 section 2).
const EDE: u16 = 15;

struct Question {
    server: SocketAddr,
    name: Name,
    qtype: RecordType,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let question = match parse(&arguments) {
        Ok(question) => question,
        Err(problem) => {
            eprintln!("ask: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let asked = Instant::now();
    let shown = match query::ask(question.server, &question.name, question.qtype).await {
        Ok(answer) => show(&question, &answer, asked.elapsed()),
        Err(problem) => Err(io::Error::other(format!("{}: {problem}", question.server))),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("ask: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Question, String> {
    let (server, name, qtype) = match arguments {
        [server, name] => (server, name, "A"),
        [server, name, qtype] => (server, name, qtype.as_str()),
        _ => return Err("two or three arguments are needed".to_owned()),
    };
    let server = server.strip_prefix('@').and_then(address).ok_or_else(|| {
        format!("{server:?} isn't a server such as @127.0.0.1, @127.0.0.1:5301 or @[::1]:5301")
    })?;
    let mut name = Name::from_ascii(name).map_err(|problem| format!("{name:?} isn't a name: {problem}"))?;
    name.set_fqdn(true);
    let qtype =
        qtype.to_uppercase().parse().map_err(|_| format!("{qtype:?} isn't a type such as A or CNAME"))?;
    Ok(Question { server, name, qtype })
}

fn address(text: &str) -> Option<SocketAddr> {
    let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DNS_PORT));
    text.parse().ok().or_else(alone)
}

fn show(question: &Question, answer: &Message, took: Duration) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let meta = &answer.metadata;
    let flags: Vec<&str> = [
        (meta.authoritative, "aa"),
        (meta.truncation, "tc"),
        (meta.recursion_desired, "rd"),
        (meta.recursion_available, "ra"),
        (meta.authentic_data, "ad"),
    ]
    .into_iter()
    .filter_map(|(set, flag)| set.then_some(flag))
    .collect();
    let rcode = rcode_text(meta.response_code);
    writeln!(out, ";; {rcode}, flags {}; from {} in {took:.1?}", flags.join(" "), question.server)?;
    if let Some(edns) = &answer.edns
        && let Some(EdnsOption::Unknown(_, data)) = edns.option(EdnsCode::Unknown(EDE))
        && let Some((code, text)) = data.split_first_chunk()
    {
        writeln!(out, ";; error {}: {}", u16::from_be_bytes(*code), String::from_utf8_lossy(text))?;
    }
    writeln!(out, ";; question\n;{} IN {}", question.name, question.qtype)?;
    for (title, records) in
        [("answer", &answer.answers), ("authority", &answer.authorities), ("additional", &answer.additionals)]
    {
        section(&mut out, title, records)?;
    }
    Ok(())
}

fn section(out: &mut impl Write, title: &str, records: &[Record]) -> io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    writeln!(out, ";; {title}")?;
    records.iter().try_for_each(|record| writeln!(out, "{record}"))
}

/// Returns a response code as the RFCs write it: `NOERROR`, `NXDOMAIN`.
fn rcode_text(code: ResponseCode) -> String {
    format!("{code:?}").to_uppercase()
}
