//! `lb-linker compare`: asks two DNS servers for the names of a cluster, and tells where their answers differ.

pub mod answer;
pub mod explanation;
pub mod names;
pub mod objects;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

use crate::dns::message::presentation::{parse_name, rcode_text, type_text};
use crate::dns::net::interfaces::is_own;
use crate::query::{QueryError, Question};
use answer::{Answer, Reply, describe};
use explanation::{
    Context, SILENT, cache_explanation, explanations, is_itself, is_name_server, silences, upstream_failure,
};
use names::Names;

/// The types that each name is asked for. Answers for A explain others.
const TYPES: [RecordType; 8] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::PTR,
    RecordType::TXT,
    RecordType::CNAME,
    RecordType::HTTPS,
    RecordType::SOA,
];
/// Questions that wait for answers at the same time. Each has two sockets.
const AT_ONCE: usize = 64;
/// Questions that are asked again at the same time: most of them pause.
const AGAIN_AT_ONCE: usize = 256;
/// How often a question is asked again whose answers differ.
const ROUNDS: u32 = 3;
/// The pause between two rounds: more than a second, so that a TTL of a cache has counted down.
const PAUSE: Duration = Duration::from_millis(1200);
/// The number of confirmed differences after which no further question is asked again.
const ENOUGH: usize = 1000;
/// The maximum number of differences that are shown.
pub const MAX_SHOWN: usize = 100;
/// The number of questions in a row without an answer after which it is asked whether a server is there.
const MAX_SILENT: usize = 50;

/// Why servers can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("{server} doesn't answer ({reason}): --server needs the address of a DNS server of the cluster")]
    NoAnswer { server: SocketAddr, reason: String },
    #[error(
        "{server} doesn't serve {zone}: it answers the question for its SOA record with {answer}. --cluster-domain names \
             the domain of the cluster, --server the servers"
    )]
    NotServed { server: SocketAddr, zone: String, answer: String },
    #[error("--cluster-domain {0} isn't the domain of a cluster")]
    Zone(String),
}

/// Two servers, and what they are asked.
pub struct Comparison<'a> {
    names: &'a Names,
    servers: [SocketAddr; 2],
    next: Mutex<Instant>,
    gap: Duration,
    sockets: Semaphore,
    /// For each server, the number of questions in a row without an answer.
    silent: [AtomicUsize; 2],
}

/// How far a comparison has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub asked: usize,
    pub questions: usize,
    /// Questions that are asked again, or were.
    pub open: usize,
}

/// What a comparison has found.
#[derive(Debug, Default)]
pub struct Outcome {
    pub questions: usize,
    pub same: usize,
    /// The number of answers for each reason, and a question as an example.
    pub explained: BTreeMap<&'static str, (usize, String)>,
    pub differences: Vec<Difference>,
    /// Further differences of the first answers.
    pub not_asked_again: usize,
}

/// A difference that lasts.
#[derive(Debug)]
pub struct Difference {
    pub name: String,
    pub lines: Vec<String>,
}

/// Why answers may differ: if the first server is CoreDNS, and if the second one is.
type Reasons = [Option<&'static str>; 2];

enum Verdict {
    Same,
    Explained(&'static str),
    /// With the lines that show it.
    Differs(Vec<String>),
}

impl<'a> Comparison<'a> {
    /// `rate` is the number of questions per second that each server gets.
    #[must_use]
    pub fn new(names: &'a Names, servers: [SocketAddr; 2], rate: u32) -> Self {
        Self {
            names,
            servers,
            next: Mutex::new(Instant::now()),
            gap: Duration::from_secs(1) / rate.max(1),
            sockets: Semaphore::new(AT_ONCE),
            silent: Default::default(),
        }
    }

    /// Asks for all names, and again where the answers differ.
    ///
    /// # Errors
    /// If a server doesn't answer, or doesn't serve the zone.
    pub async fn run(&self, mut progress: impl FnMut(Progress)) -> Result<Outcome, CompareError> {
        for at in 0..2 {
            self.check(at).await?;
        }
        let all = self.names.all();
        let questions = all.len() * TYPES.len();
        let mut outcome = Outcome { questions, ..Outcome::default() };
        let mut apart: Vec<(usize, usize, Reasons)> = Vec::new();
        let mut first = stream::iter(0..all.len())
            .map(|at| {
                let name = &all[at];
                async move { (at, self.ask_name(name).await) }
            })
            .buffer_unordered(AT_ONCE);
        let (mut asked, mut open) = (0, 0);
        while let Some((at, reasons)) = first.next().await {
            for (qtype, reasons) in reasons.into_iter().enumerate() {
                match reasons {
                    None => outcome.same += 1,
                    Some(reasons) => {
                        open += usize::from(reasons == [None; 2]);
                        apart.push((at, qtype, reasons));
                    }
                }
            }
            asked += TYPES.len();
            progress(Progress { asked, questions, open });
            for server in 0..2 {
                if self.silent[server].load(Ordering::Relaxed) >= MAX_SILENT {
                    self.check(server).await?;
                    self.silent[server].store(0, Ordering::Relaxed);
                }
            }
        }
        drop(first);
        apart.sort_unstable();
        let coredns = role_of_coredns(&apart);
        let mut open: Vec<(usize, usize)> = Vec::new();
        for (at, qtype, reasons) in apart {
            match reasons[coredns] {
                Some(why) => _ = outcome.count(&Verdict::Explained(why), &all[at], TYPES[qtype]),
                None => open.push((at, qtype)),
            }
        }
        let open = self.in_turns(&all, open);
        self.ask_again(&all, &open, coredns, &mut outcome).await;
        Ok(outcome)
    }

    async fn ask_again(
        &self,
        all: &[String],
        open: &[(usize, usize)],
        coredns: usize,
        outcome: &mut Outcome,
    ) {
        let mut again =
            stream::iter(open)
                .map(|&(at, qtype)| async move {
                    (at, qtype, self.confirm(&all[at], TYPES[qtype], coredns).await)
                })
                .buffered(AGAIN_AT_ONCE);
        let mut done = 0;
        while let Some((at, qtype, verdict)) = again.next().await {
            done += 1;
            outcome.count(&verdict, &all[at], TYPES[qtype]);
            if let Verdict::Differs(lines) = verdict {
                outcome.differences.push(Difference { name: all[at].clone(), lines });
            }
            if outcome.differences.len() >= ENOUGH {
                break;
            }
        }
        outcome.not_asked_again = open.len() - done;
    }

    /// Asks a server for the SOA record of the zone, twice at most.
    async fn check(&self, at: usize) -> Result<(), CompareError> {
        let (server, zone) = (self.servers[at], self.names.zone.clone());
        let name = parse_name(&zone).ok_or_else(|| CompareError::Zone(zone.clone()))?;
        let question = Question { server, name, qtype: RecordType::SOA };
        let mut answer = question.clone().ask().await;
        if answer.is_err() {
            answer = question.ask().await;
        }
        let no_answer = |reason| CompareError::NoAnswer { server, reason };
        let answer = Answer::of(&answer.map_err(|error| no_answer(error.reason()))?).map_err(no_answer)?;
        if answer.sections[0].iter().any(|entry| entry.rtype == RecordType::SOA) {
            return Ok(());
        }
        let answer =
            if answer.is_nodata() { "no record".to_owned() } else { rcode_text(answer.rcode).to_string() };
        Err(CompareError::NotServed { server, zone, answer })
    }

    /// Orders questions so that those of each kind come by turns, and in each turn those about reverse names last.
    fn in_turns(&self, all: &[String], mut open: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
        let mut turns: HashMap<(usize, bool, &str), usize> = HashMap::new();
        open.sort_by_cached_key(|&(at, qtype)| {
            let name = &all[at];
            let branch = ["in-addr.arpa", "ip6.arpa", "svc", "pod"].into_iter().find(|branch| {
                name.strip_suffix(&*self.names.zone)
                    .map_or(&**name, |below| below.trim_end_matches('.'))
                    .ends_with(branch)
            });
            let is_alias = self.names.aliases.contains_key(name);
            let turn = turns.entry((qtype, is_alias, branch.unwrap_or_default())).or_default();
            *turn += 1;
            (*turn, is_reverse(name), at, qtype)
        });
        open
    }

    /// Asks for all types of a name. Returns for each why the answers may differ, if they do.
    async fn ask_name(&self, text: &str) -> Vec<Option<Reasons>> {
        let (mut all, mut context) = (Vec::new(), Context::default());
        let Some(name) = parse_name(text) else { return all };
        for qtype in TYPES {
            let replies = self.ask(&name, qtype).await;
            if qtype == RecordType::A {
                context.rcodes_of_a = rcodes(&replies);
            }
            all.push(self.judge(text, qtype, &replies, context));
        }
        all
    }

    /// Asks again, until the answers are the same or explained, for [`ROUNDS`] rounds.
    async fn confirm(&self, text: &str, qtype: RecordType, coredns: usize) -> Verdict {
        let Some(name) = parse_name(text) else { return Verdict::Same };
        let mut earlier = None;
        for round in 1.. {
            let replies = self.ask(&name, qtype).await;
            let context = match both(&replies) {
                Some([a, b]) if a != b => self.context(&name, &replies).await,
                _ => Context::default(),
            };
            let Some(reasons) = self.judge(text, qtype, &replies, context) else { return Verdict::Same };
            if let Some(why) = reasons[coredns] {
                return Verdict::Explained(why);
            }
            let shapes = both(&replies).map(|answers| answers.map(Answer::shape));
            if let (Some(earlier), Some(shapes)) = (&earlier, &shapes)
                && let Some(why) = cache_explanation(earlier, shapes)
            {
                return Verdict::Explained(why);
            }
            if round == ROUNDS && replies.iter().all(Result::is_err) {
                return Verdict::Explained(SILENT);
            }
            if round == ROUNDS {
                let servers = self.servers.map(|server| server.to_string());
                return Verdict::Differs(describe(&question_text(text, qtype), &servers, &replies));
            }
            earlier = shapes;
            drop(replies);
            sleep(PAUSE).await;
        }
        Verdict::Same
    }

    /// Asks for what explains a difference.
    async fn context(&self, name: &Name, replies: &[Reply; 2]) -> Context {
        let rcodes_of_a = rcodes(&self.ask(name, RecordType::A).await);
        let records = replies.iter().flatten().flat_map(|answer| &answer.sections[0]);
        let target =
            records.filter(|entry| entry.rtype == RecordType::PTR).find_map(|ptr| parse_name(&ptr.data));
        let is_target_denied = match target {
            Some(target) => {
                rcodes(&self.ask(&target, RecordType::A).await) == [Some(ResponseCode::NXDomain); 2]
            }
            None => false,
        };
        Context { rcodes_of_a, is_target_denied, ..Context::default() }
    }

    /// Returns why answers may differ; `None` if they are the same.
    fn judge(
        &self,
        text: &str,
        qtype: RecordType,
        replies: &[Reply; 2],
        context: Context,
    ) -> Option<Reasons> {
        let reasons = match both(replies) {
            Some([a, b]) if a == b => return None,
            Some(answers) => {
                // Not asked of the system for each of many names.
                let is_asked = is_name_server(self.names, text);
                let is_itself = [0, 1]
                    .map(|at| is_asked && is_itself(text, qtype, answers[at], self.servers[at].ip(), is_own));
                explanations(self.names, text, qtype, answers, Context { is_itself, ..context })
            }
            None => silences(self.names, text, qtype, replies),
        };
        let failure = upstream_failure(self.names, text, replies);
        Some(reasons.map(|why| why.or(failure)))
    }

    /// Asks both servers when it is the question's turn. If one answer was truncated by UDP, takes both by TCP: CoreDNS
    /// leaves additional records out of an answer by UDP without TC.
    async fn ask(&self, name: &Name, qtype: RecordType) -> [Reply; 2] {
        let turn = {
            let mut next = self.next.lock();
            let turn = (*next).max(Instant::now());
            *next = turn + self.gap;
            turn
        };
        sleep_until(turn).await;
        // The semaphore is never closed.
        let _place = self.sockets.acquire().await;
        let [a, b] = self.servers.map(|server| Question { server, name: name.clone(), qtype });
        let (mut of_a, mut of_b) = tokio::join!(a.clone().ask(), b.clone().ask());
        let is_by_tcp =
            |answer: &Result<_, QueryError>| answer.as_ref().is_ok_and(crate::query::Answer::is_by_tcp);
        match (is_by_tcp(&of_a), is_by_tcp(&of_b)) {
            (false, true) if of_a.is_ok() => of_a = a.ask_by_tcp().await,
            (true, false) if of_b.is_ok() => of_b = b.ask_by_tcp().await,
            _ => {}
        }
        let replies = [of_a, of_b].map(|answer| match answer {
            Ok(answer) => Answer::of(&answer),
            Err(error) => Err(error.reason()),
        });
        for (silent, reply) in self.silent.iter().zip(&replies) {
            match reply {
                Ok(_) => silent.store(0, Ordering::Relaxed),
                Err(_) => drop(silent.fetch_add(1, Ordering::Relaxed)),
            }
        }
        replies
    }
}

impl Outcome {
    /// Counts a verdict; returns false if the answers differ.
    fn count(&mut self, verdict: &Verdict, name: &str, qtype: RecordType) -> bool {
        match verdict {
            Verdict::Same => self.same += 1,
            Verdict::Explained(why) => {
                let example = || (0, question_text(name, qtype));
                self.explained.entry(why).or_insert_with(example).0 += 1;
            }
            Verdict::Differs(_) => return false,
        }
        true
    }

    /// Leaves out the differences about objects that are other ones in `later`; returns their number.
    pub fn forget_changed(&mut self, names: &Names, later: &Names) -> usize {
        let before = self.differences.len();
        self.differences.retain(|difference| !names.has_changed(&difference.name, later));
        before - self.differences.len()
    }

    /// Returns the number of differences.
    #[must_use]
    pub fn number(&self) -> usize {
        self.differences.len() + self.not_asked_again
    }

    /// Returns the lines of the output. `changed` is the number of differences about objects that have changed.
    #[must_use]
    pub fn report(&self, changed: usize) -> Vec<String> {
        let shown = self.differences.iter().filter(|difference| !difference.lines.is_empty()).take(MAX_SHOWN);
        let mut shown: Vec<&Difference> = shown.collect();
        shown.sort_by_key(|difference| (is_reverse(&difference.name), &difference.name));
        let mut lines: Vec<String> = shown
            .iter()
            .flat_map(|difference| difference.lines.iter().cloned().chain([String::new()]))
            .collect();
        let more = self.number() - shown.len();
        if more > 0 {
            lines.extend([format!("and {more} more {}", plural(more, "difference")), String::new()]);
        }
        if !self.explained.is_empty() {
            lines.push("Explained differences:".to_owned());
            let of = |(why, (number, example)): (&&str, &(usize, String))| {
                format!("  {number}: {why}, as for {example}")
            };
            lines.extend(self.explained.iter().map(of));
            lines.push(String::new());
        }
        let explained: usize = self.explained.values().map(|(number, _)| number).sum();
        let mut summary = format!(
            "{} {}: {} same, {explained} explained {}, {} {}",
            self.questions,
            plural(self.questions, "question"),
            self.same,
            plural(explained, "difference"),
            self.number(),
            plural(self.number(), "difference")
        );
        if self.not_asked_again > 0 {
            summary.push_str(&format!(
                " ({} of them {} not asked again)",
                self.not_asked_again,
                if self.not_asked_again == 1 { "was" } else { "were" }
            ));
        }
        if changed > 0 {
            summary.push_str(&format!(", {changed} about objects that changed meanwhile"));
        }
        lines.push(summary);
        lines
    }
}

/// Returns which server is CoreDNS: more explanations hold with it in that role.
fn role_of_coredns(apart: &[(usize, usize, Reasons)]) -> usize {
    let explained = |coredns: usize| apart.iter().filter(|(.., why)| why[coredns].is_some()).count();
    usize::from(explained(1) > explained(0))
}

fn is_reverse(name: &str) -> bool {
    name.ends_with(".arpa")
}

/// Returns a noun in the form for a number.
fn plural(number: usize, noun: &str) -> String {
    format!("{noun}{}", if number == 1 { "" } else { "s" })
}

fn both(replies: &[Reply; 2]) -> Option<[&Answer; 2]> {
    match replies {
        [Ok(a), Ok(b)] => Some([a, b]),
        _ => None,
    }
}

fn rcodes(replies: &[Reply; 2]) -> [Option<ResponseCode>; 2] {
    [0, 1].map(|at: usize| replies[at].as_ref().ok().map(|answer| answer.rcode))
}

fn question_text(name: &str, qtype: RecordType) -> String {
    format!("{name}. {}", type_text(qtype))
}

#[cfg(test)]
mod tests;
