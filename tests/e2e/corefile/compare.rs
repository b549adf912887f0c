//! Comparison of the answers of CoreDNS and of the program under test.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::answer::{Answer, Difference};
use super::expected::Expectations;
use super::question::table;
use super::server::{CorefileDir, Program, Server, check};
use super::upstreams::Upstreams;

/// A Corefile and its queries.
pub struct Group {
    /// The name of the group in `EXPECTED`.
    pub name: &'static str,
    pub corefile: &'static str,
    /// Files beside the Corefile, with their contents.
    pub files: &'static [(&'static str, &'static str)],
    /// One query per line, in the format of [`super::question`].
    pub questions: &'static str,
}

/// If a query takes longer than this, the two servers may count TTLs down from different seconds, or give up a look-up.
const SLOW_QUERY: Duration = Duration::from_millis(500);

/// Differences by group, query and field.
type Found = BTreeMap<(String, String, &'static str), Difference>;

/// Sends the queries of all groups to CoreDNS and to the program under test, and compares the answers.
///
/// # Panics
/// If there is an unexpected difference, or an expected difference is missing.
pub async fn compare(groups: &[Group]) {
    let upstreams = Upstreams::start().await;
    let (mut found, mut asked) = (Found::new(), 0);
    for group in groups {
        asked += table(group.questions).len();
        let since = Instant::now();
        found.extend(differences_of(&upstreams, group).await);
        eprintln!("corefile: {}: {:.1} s", group.name, since.elapsed().as_secs_f64());
    }
    eprintln!("corefile: {asked} questions in {} groups", groups.len());
    let mut expected = Expectations::of(groups.iter().map(|group| group.name));
    for ((group, question, field), Difference { coredns, subject, .. }) in &found {
        let sides = format!("       CoreDNS: {coredns}\n    under test: {subject}");
        expected.record(group, question, field, &sides);
    }
    expected.check();
}

/// Returns the differences in a group. If a query was slow, the machine may have been busy: TTLs count down, and the
/// look-up of its name may have ended without an answer. If only such differences are unexpected, the group is repeated,
/// up to four times.
async fn differences_of(upstreams: &Upstreams, group: &Group) -> Found {
    let mut attempts = 0;
    loop {
        let (found, slow) = ask_both(upstreams, group).await;
        let unexpected: Vec<_> = found
            .keys()
            .filter(|(group, question, field)| !Expectations::has(group, question, field))
            .collect();
        let is_excused = |(_, question, field): &&(String, String, &'static str)| {
            if *field == "ttl" { !slow.is_empty() } else { slow.contains(name_of(question)) }
        };
        attempts += 1;
        if attempts == 5 || unexpected.is_empty() || !unexpected.iter().all(is_excused) {
            return found;
        }
    }
}

fn name_of(question: &str) -> &str {
    question.split(' ').next().unwrap_or_default()
}

/// Returns the differences, and the names with a slow query.
async fn ask_both(upstreams: &Upstreams, group: &Group) -> (Found, BTreeSet<String>) {
    let site = upstreams
        .name(CorefileDir::new(group.corefile, group.files))
        .with("ZONE", "env.test")
        .with("TIME", 44);
    let checked = check(&site);
    assert!(checked.status.success(), "{}: {checked:?}", group.name);
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    let (mut found, mut slow) = (Found::new(), BTreeSet::new());
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for question in table(group.questions) {
        sleep(question.wait).await;
        let (coredns_reply, subject_reply) = tokio::join!(question.ask(&coredns), question.ask(&subject));
        if !question.silent && coredns_reply.took.max(subject_reply.took) >= SLOW_QUERY {
            slow.insert(name_of(&question.text).to_owned());
        }
        let time = times.entry(question.text.clone()).or_default();
        *time += 1;
        let again = if *time > 1 { format!("{} #{time}", question.text) } else { question.text.clone() };
        let [coredns_answer, subject_answer] =
            [&coredns_reply, &subject_reply].map(|reply| Answer::of(&question, reply));
        assert!(
            !coredns_answer.is_silence() || question.silent,
            "{}: {}: CoreDNS doesn't answer",
            group.name,
            question.text
        );
        assert!(
            coredns_answer.is_silence() || !question.silent,
            "{}: {}: CoreDNS answers",
            group.name,
            question.text
        );
        for difference in coredns_answer.differences(&subject_answer) {
            found.insert((group.name.to_owned(), again.clone(), difference.field), difference);
        }
    }
    (found, slow)
}
