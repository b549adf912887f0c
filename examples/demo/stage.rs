//! The environment of the demo: a temporary directory, the cloud's DNS server, lb-linker and the screen.

use std::error::Error;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tempfile::TempDir;

use crate::cloud::Cloud;
use crate::linker::Linker;
use crate::manifests::{self, LoadBalancer};
use crate::query;
use crate::screen::{Row, Screen};

/// The timeout for an expected state.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// The text for an answer without records for an existing name.
pub const NODATA: &str = "NODATA (the name is there, without records of this type)";
/// The text for an answer for a missing name.
pub const NXDOMAIN: &str = "NXDOMAIN (no such name)";

/// The environment of the demo.
#[derive(Debug)]
pub struct Environment {
    // The fields are dropped in this order: lb-linker ends before its directory is removed.
    linker: Linker,
    directory: TempDir,
    pub cloud: Cloud,
    pub dns: SocketAddr,
    pub screen: Screen,
}

#[derive(Clone, Debug)]
pub struct Question {
    /// The name, without the trailing dot.
    pub name: String,
    pub qtype: RecordType,
}

/// The visible state of lb-linker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The external targets and what they point at.
    pub targets: Vec<Row>,
    /// Queries and their answers.
    pub answers: Vec<Row>,
}

impl Environment {
    /// Copies the manifests, and starts the cloud's DNS server and lb-linker.
    ///
    /// # Errors
    /// If one of them can't be started.
    pub async fn set(screen: Screen, delete_delay: &str) -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::Builder::new().prefix("lb-linker-demo-").tempdir()?;
        manifests::copy_examples(&directory.path().join("manifests"))?;
        let cloud = Cloud::start().await?;
        screen.say(&format!(
            "No cluster, no root: the demo lives on 127.0.0.1 and in {}.\n\
             A small DNS server plays the cloud's, on {}. lb-linker is the real program:\n",
            directory.path().display(),
            cloud.address
        ))?;
        let upstream = cloud.address.to_string();
        let arguments = [
            ["--manifests", "manifests"],
            ["--output", "external-targets"],
            ["--delete-delay", delete_delay],
            ["--listen", "127.0.0.1:0"],
            ["--upstream", upstream.as_str()],
            ["--metrics-listen", "127.0.0.1:0"],
            ["--health-listen", "127.0.0.1:0"],
            ["--ready-listen", "127.0.0.1:0"],
        ];
        let (mut command, end) = ("lb-linker".to_owned(), arguments.len() - 1);
        for (i, [flag, value]) in arguments.iter().enumerate() {
            let next = if i % 3 == 2 && i < end { " \\\n     " } else { "" };
            write!(command, " {flag} {value}{next}")?;
        }
        screen.command(&command)?;
        let mut linker = Linker::start(directory.path(), arguments.as_flattened())?;
        let (dns, log) = linker.dns_address().await?;
        log.iter().try_for_each(|line| screen.log(line))?;
        Ok(Self { linker, directory, cloud, dns, screen })
    }

    pub fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    pub fn targets(&self) -> PathBuf {
        self.directory.path().join("external-targets")
    }

    /// Returns the load balancers in the manifests.
    ///
    /// # Errors
    /// If a manifest can't be read.
    pub fn load_balancers(&self) -> Result<Vec<LoadBalancer>, Box<dyn Error>> {
        manifests::load_balancers(&self.manifests())
    }

    /// Polls until the state is as expected. Returns the state, and the time since `since`.
    ///
    /// # Errors
    /// If the state isn't as expected after 10 s, with the first difference.
    pub async fn wait_for(
        &mut self,
        expected: &State,
        since: Instant,
    ) -> Result<(State, Duration), Box<dyn Error>> {
        loop {
            let seen = self.look(expected).await?;
            let took = since.elapsed();
            self.show_log()?;
            if seen == *expected {
                return Ok((seen, took));
            }
            if let Some(status) = self.linker.ended()? {
                return Err(format!("lb-linker has ended ({status})").into());
            }
            if took > EVENT_TIMEOUT {
                return Err(difference(expected, &seen).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Reads the external targets, and sends the queries of the expected state.
    async fn look(&self, expected: &State) -> Result<State, Box<dyn Error>> {
        let mut targets: Vec<Row> = manifests::external_targets(&self.targets())?;
        targets.sort();
        let mut answers = Vec::new();
        for (question, _) in &expected.answers {
            answers.push((question.clone(), self.ask(&question.parse()?).await?));
        }
        Ok(State { targets, answers })
    }

    /// Sends a query to lb-linker, and returns the answer with one line per record.
    ///
    /// # Errors
    /// If the name is invalid.
    pub async fn ask(&self, question: &Question) -> Result<Vec<String>, Box<dyn Error>> {
        let mut name = Name::from_ascii(&question.name)?;
        name.set_fqdn(true);
        Ok(match query::ask(self.dns, &name, question.qtype).await {
            Ok(answer) => lines(&answer),
            Err(problem) => vec![problem.to_string()],
        })
    }

    /// Prints the new lines of lb-linker's log.
    ///
    /// # Errors
    /// If a line can't be printed.
    pub fn show_log(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(line) = self.linker.line_at_hand() {
            self.screen.log(&line)?;
        }
        Ok(())
    }

    /// Prints lb-linker's log until lb-linker ends.
    ///
    /// # Errors
    /// If a line can't be printed.
    pub async fn follow_log(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(line) = self.linker.next_line().await {
            self.screen.log(&line)?;
        }
        Ok(())
    }

    /// Stops lb-linker, and returns the screen.
    ///
    /// # Errors
    /// If lb-linker's exit status isn't success.
    pub async fn clear(mut self) -> Result<Screen, Box<dyn Error>> {
        let status = self.linker.stop()?;
        // Print the log to its end: the pipe is closed.
        self.follow_log().await?;
        if status.success() {
            Ok(self.screen)
        } else {
            Err(format!("expected lb-linker to end in good order after SIGTERM, but it ended with {status}")
                .into())
        }
    }
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.qtype)
    }
}

impl std::str::FromStr for Question {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, qtype) = text.split_once(' ').ok_or("a question is a name and a type")?;
        Ok(Self { name: name.to_owned(), qtype: qtype.parse()? })
    }
}

/// Returns the text of an answer with one line per record, the CNAME first.
fn lines(answer: &Message) -> Vec<String> {
    match answer.metadata.response_code {
        ResponseCode::NoError if answer.answers.is_empty() => {
            return vec![NODATA.to_owned()];
        }
        ResponseCode::NoError => {}
        ResponseCode::NXDomain => return vec![NXDOMAIN.to_owned()],
        other => return vec![query::rcode_text(other)],
    }
    let mut lines: Vec<String> = answer
        .answers
        .iter()
        .map(|record| self::record(record.record_type(), record.data.to_string().trim_end_matches('.')))
        .collect();
    lines.sort_by_key(|line| !line.starts_with("CNAME"));
    lines
}

pub fn record(rtype: RecordType, data: &str) -> String {
    format!("{:5} {data}", rtype.to_string())
}

/// Returns a text with the first difference.
fn difference(expected: &State, seen: &State) -> String {
    let tables = [
        ("external target", &expected.targets, &seen.targets),
        ("answer to", &expected.answers, &seen.answers),
    ];
    for (what, expected, seen) in tables {
        let value = |rows: &[Row], key: &str| {
            let row = rows.iter().find(|(other, _)| other == key);
            row.map_or_else(|| "nothing".to_owned(), |(_, lines)| lines.join(", "))
        };
        if let Some((key, _)) =
            expected.iter().chain(seen).find(|row| expected.contains(row) != seen.contains(row))
        {
            let (wanted, there) = (value(expected, key), value(seen, key));
            return format!("expected {what} {key}: {wanted}; but after {EVENT_TIMEOUT:?} it is: {there}");
        }
    }
    format!("expected everything to be as it is now within {EVENT_TIMEOUT:?}, but it took longer")
}
