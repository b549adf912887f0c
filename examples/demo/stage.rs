//! What the story is played on: a temporary directory, the cloud's DNS server, lb-linker and the screen; and the
//! look at all of it.

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

/// How long what is expected may take to come about.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look meanwhile.
const POLL: Duration = Duration::from_millis(5);

/// An answer without records, to a name that there is.
pub const NODATA: &str = "NODATA (the name is there, without records of this type)";
/// The answer to a name that there isn't.
pub const NXDOMAIN: &str = "NXDOMAIN (no such name)";

/// The stage.
#[derive(Debug)]
pub struct Stage {
    // In this order they are cleared away: nobody writes into a directory that is being removed.
    linker: Linker,
    directory: TempDir,
    /// The cloud's DNS server.
    pub cloud: Cloud,
    /// Where lb-linker answers DNS.
    pub dns: SocketAddr,
    /// What the audience sees.
    pub screen: Screen,
}

/// A question, as `dig` takes it.
#[derive(Clone, Debug)]
pub struct Question {
    /// The name, without the trailing dot.
    pub name: String,
    /// The type.
    pub qtype: RecordType,
}

/// What can be seen of lb-linker from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// The external targets and what they point at.
    pub targets: Vec<Row>,
    /// Questions and their answers.
    pub answers: Vec<Row>,
}

impl Stage {
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

    /// Where the manifests are.
    pub fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    /// Where the external targets are.
    pub fn targets(&self) -> PathBuf {
        self.directory.path().join("external-targets")
    }

    /// Returns the load balancers that the manifests show.
    ///
    /// # Errors
    /// If a manifest can't be read.
    pub fn load_balancers(&self) -> Result<Vec<LoadBalancer>, Box<dyn Error>> {
        manifests::load_balancers(&self.manifests())
    }

    /// Waits until everything is as expected, looking again and again. Returns what was seen then, and how long
    /// that was after `since`.
    ///
    /// # Errors
    /// If it isn't so after 10 s; then with what differs.
    pub async fn wait_for(
        &mut self,
        expected: &Picture,
        since: Instant,
    ) -> Result<(Picture, Duration), Box<dyn Error>> {
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
            if took > PATIENCE {
                return Err(difference(expected, &seen).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Reads the external targets, and asks the questions of the expected picture.
    async fn look(&self, expected: &Picture) -> Result<Picture, Box<dyn Error>> {
        let mut targets: Vec<Row> = manifests::external_targets(&self.targets())?;
        targets.sort();
        let mut answers = Vec::new();
        for (question, _) in &expected.answers {
            answers.push((question.clone(), self.ask(&question.parse()?).await?));
        }
        Ok(Picture { targets, answers })
    }

    /// Asks lb-linker a question, and returns its answer, a line for each record.
    ///
    /// # Errors
    /// If the question can't be asked.
    pub async fn ask(&self, question: &Question) -> Result<Vec<String>, Box<dyn Error>> {
        let mut name = Name::from_ascii(&question.name)?;
        name.set_fqdn(true);
        Ok(match query::ask(self.dns, &name, question.qtype).await {
            Ok(answer) => lines(&answer),
            Err(problem) => vec![problem.to_string()],
        })
    }

    /// Shows what lb-linker has logged since the last time.
    ///
    /// # Errors
    /// If it can't be printed.
    pub fn show_log(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(line) = self.linker.line_at_hand() {
            self.screen.log(&line)?;
        }
        Ok(())
    }

    /// Shows lb-linker's log for as long as it runs.
    ///
    /// # Errors
    /// If it can't be printed.
    pub async fn follow_log(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(line) = self.linker.next_line().await {
            self.screen.log(&line)?;
        }
        Ok(())
    }

    /// Ends lb-linker, and returns the screen.
    ///
    /// # Errors
    /// If it doesn't end in good order.
    pub async fn clear(mut self) -> Result<Screen, Box<dyn Error>> {
        let status = self.linker.stop()?;
        // To its last line: the pipe has an end now.
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

/// Returns what an answer says, a line for each record, the CNAME first.
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

/// Returns the line for a record.
pub fn record(rtype: RecordType, data: &str) -> String {
    format!("{:5} {data}", rtype.to_string())
}

/// Says what differs first.
fn difference(expected: &Picture, seen: &Picture) -> String {
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
            return format!("expected {what} {key}: {wanted}; but after {PATIENCE:?} it is: {there}");
        }
    }
    format!("expected everything to be as it is now within {PATIENCE:?}, but it took longer")
}
