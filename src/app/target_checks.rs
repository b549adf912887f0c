//! Checks targets of StableNames for `sync` through the upstreams of `dns`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use hickory_proto::rr::Name;
use jiff::Timestamp;

use crate::dns::chain::target_check::{TargetOutcome, TargetResults, UpstreamResult};
use crate::dns::server::target_checker::TargetChecker;
use crate::model::hostname::Hostname;
use crate::sync::stable_name::controller::checks::{CheckDns, TargetCheckResult};
use crate::sync::stable_name::decision::checks::CheckOutcome;

/// Returns the function that checks a hostname.
pub(super) fn check_dns(checker: TargetChecker) -> CheckDns {
    Arc::new(move |host, namespace, timeout| {
        let checker = checker.clone();
        async move { check(&checker, &host, &namespace, timeout).await }.boxed()
    })
}

/// Returns a function that checks nothing, for commands that read links and decide about no StableName.
pub(super) fn no_checks() -> CheckDns {
    Arc::new(|_, _, _| async { TargetCheckResult::without_answer() }.boxed())
}

async fn check(
    checker: &TargetChecker,
    host: &Hostname,
    namespace: &str,
    timeout: Duration,
) -> TargetCheckResult {
    let name = host.name();
    let TargetResults { upstreams: results, links } = checker.check(&name, namespace, timeout).await;
    let at = Timestamp::now();
    let (mut outcomes, mut addresses, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut unanswered = Vec::new();
    for UpstreamResult { upstream, outcome } in results {
        let is_answer = matches!(outcome, TargetOutcome::Resolved(_) | TargetOutcome::Failed(_));
        if let Some(upstream) = upstream.filter(|_| is_answer) {
            answers.push((upstream, host.clone(), at));
        }
        match (outcome, upstream) {
            (TargetOutcome::Resolved(found), _) => {
                addresses.extend(found);
                outcomes.push(CheckOutcome::Passed);
            }
            (TargetOutcome::Failed(message), _) => outcomes.push(CheckOutcome::Failed(about(host, message))),
            (TargetOutcome::NoAnswer(message), Some(upstream)) => {
                unanswered.push(upstream);
                outcomes.push(CheckOutcome::NoAnswer { upstream, message: about(host, message) });
            }
            (TargetOutcome::NoAnswer(_), None) | (TargetOutcome::Inconclusive(_), _) => {}
        }
    }
    let probes = unanswered.into_iter().map(|upstream| probe(checker, &name, upstream, timeout));
    answers.extend(join_all(probes).await.into_iter().flatten());
    TargetCheckResult { at, outcomes, addresses, answers, links }
}

/// Returns the message of a failed check. A response code alone doesn't tell which name gets it.
fn about(host: &Hostname, message: String) -> String {
    if message.contains(' ') { message } else { format!("{host} gets {message}") }
}

/// Queries the top-level domain of the name at an upstream that gave the check no answer. An answer shows that the
/// upstream works.
async fn probe(
    checker: &TargetChecker,
    name: &Name,
    upstream: SocketAddr,
    timeout: Duration,
) -> Option<(SocketAddr, Hostname, Timestamp)> {
    let other = name.trim_to(1);
    let answers = checker.is_answering(name, upstream, &other, timeout).await;
    answers.then(|| (upstream, Hostname::from(&other), Timestamp::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_code_is_told_with_the_name_that_gets_it() {
        let host = Hostname::from(&Name::from_ascii("a.example.com.").unwrap());
        assert_eq!(about(&host, "SERVFAIL".to_owned()), "a.example.com gets SERVFAIL");
        assert_eq!(about(&host, "no reply within 2s".to_owned()), "no reply within 2s");
    }
}
