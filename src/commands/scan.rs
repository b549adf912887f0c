//! `lb-linker scan`.

use std::io::Write;
use std::process::ExitCode;

use crate::app::link_reader::LinkReader;
use crate::cli::flags::Flags;
use crate::links::output::json;
use crate::model::excerpt::printable;
use crate::scan::annotate::{annotate, changed_objects};
use crate::scan::report::report;
use crate::scan::{ScanScope, scan};
use crate::sync::k8s::client::connect;

use super::links::print_notice;
use super::output::{BAD_INPUT, FAILED, exit_with_error, fail, log_warnings, permit, print_problem};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ScanOutput {
    Text,
    Json,
}

/// Prints what a scan finds. If `apply` isn't `None`, then annotates the Services that need it: after a question on
/// stderr if `apply` is `Some(false)`, without a question if it is `Some(true)`.
pub async fn scan_cluster(
    flags: Flags,
    namespace: Option<String>,
    output: ScanOutput,
    apply: Option<bool>,
) -> ExitCode {
    if flags.manifests.is_some() {
        return exit_with_error("scan is about a cluster: leave out --manifests", BAD_INPUT);
    }
    log_warnings();
    let resolvers = match flags.resolvers() {
        Ok(resolvers) => resolvers,
        Err(error) => return fail(&error.into()),
    };
    let connection = match connect(flags.kubeconfig.clone(), flags.context.clone()).await {
        Ok(connection) => connection,
        Err(error) => return fail(&error.into()),
    };
    let target_namespace = flags.target_namespace.clone();
    let annotation_prefixes = flags.hostname_policy.annotation_prefixes.clone();
    let reader = match LinkReader::open_with_remotes(flags).await {
        Ok(reader) => reader,
        Err(error) => return fail(&error),
    };
    print_notice(reader.facts.notice_of_reading());
    let scope = ScanScope {
        client: &connection.client,
        store: &reader.store,
        target_namespace: &target_namespace,
        namespace: namespace.as_deref(),
        annotation_prefixes: &annotation_prefixes,
        resolvers: &resolvers,
    };
    let found = match scan(&scope).await {
        Ok(found) => found,
        Err(error) => return exit_with_error(&error.explain(""), FAILED),
    };
    // Ignore EPIPE: stdout may be closed (`| head`).
    let print = |line: &str| drop(writeln!(std::io::stdout(), "{}", printable(line, &[])));
    match output {
        ScanOutput::Text => report(&found).iter().for_each(|line| print(line)),
        ScanOutput::Json => match json(&found) {
            Ok(text) => text.lines().for_each(print),
            Err(error) => return exit_with_error(&error.to_string(), FAILED),
        },
    }
    for notice in &found.notices {
        print_problem(notice);
    }
    let Some(without_question) = apply.filter(|_| !found.exact.is_empty()) else { return ExitCode::SUCCESS };
    if let Err(refusal) = permit(!without_question, &changed_objects(&found.exact), &connection.server) {
        return exit_with_error(refusal, FAILED);
    }
    let problems = annotate(&connection.client, &found.exact, print).await;
    for problem in &problems {
        print_problem(problem);
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}
