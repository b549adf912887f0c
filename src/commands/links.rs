//! `lb-linker links`.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use crate::app::link_source::LinkSource;
use crate::cli::flags::Flags;
use crate::links::output::render;
use crate::links::table::{TableOptions, table};
use crate::links::view::changes;
use crate::links::{LinkFilter, OutputFormat, followers};
use crate::model::excerpt::printable;
use jiff::Timestamp;

use super::output::{FAILED, exit_with_error, fail, log_warnings};

/// Prints the links that a filter selects; with `watch` also later changes, until Ctrl-C.
pub async fn links(flags: Flags, filter: &LinkFilter, format: Option<OutputFormat>, watch: bool) -> ExitCode {
    log_warnings();
    let mut source = match LinkSource::open(flags, filter.clone(), false).await {
        Ok(source) => source,
        Err(error) => return fail(&error),
    };
    introduce(&source);
    let mut is_old = source.later_notice().is_some();
    let options = options(filter, format);
    let is_detail = filter.service.is_some() && !watch;
    let mut shown = source.links();
    let mut is_header_missing = shown.is_empty();
    let now = Timestamp::now().as_second();
    let text = match render(&shown, format, is_detail, now, options) {
        Ok(text) => text,
        Err(error) => return exit_with_error(&error.to_string(), FAILED),
    };
    if shown.is_empty() {
        let what = match (&filter.service, &filter.namespace) {
            (Some(name), Some(namespace)) => format!("no load balancer or StableName {namespace}/{name}"),
            (Some(name), None) => format!("no load balancer or StableName {name}"),
            (None, Some(namespace)) => format!("no load balancer in namespace {namespace}"),
            (None, None) => "no load balancer".to_owned(),
        };
        print_not_found(&what, source.unread());
    }
    // EPIPE ends the command without an error: stdout may be closed (`| head`).
    let print = |text: &str| write!(std::io::stdout(), "{text}").is_ok();
    let mut is_open = print(&text);
    if shown.is_empty() && is_detail {
        return ExitCode::from(FAILED);
    }
    while watch && is_open {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => break,
            changed = source.changed() => if let Err(error) = changed {
                return fail(&error);
            },
        }
        let notice = source.later_notice();
        let was_old = std::mem::replace(&mut is_old, notice.is_some());
        if !was_old {
            print_notice(notice);
        }
        let current = source.links();
        let changed = changes(&shown, &current);
        shown = current;
        if changed.is_empty() {
            continue;
        }
        let options = TableOptions { without_header: !is_header_missing, ..options };
        is_header_missing = false;
        is_open = table(&changed, Timestamp::now().as_second(), options)
            .iter()
            .all(|line| print(&format!("{line}\n")));
    }
    ExitCode::SUCCESS
}

/// Prints the Services that follow by `linker.hsj.com/source` and that a filter selects.
pub async fn list_followers(flags: Flags, filter: &LinkFilter, format: Option<OutputFormat>) -> ExitCode {
    log_warnings();
    let source = match LinkSource::open(flags, filter.clone(), true).await {
        Ok(source) => source,
        Err(error) => return fail(&error),
    };
    introduce(&source);
    print_notice(source.followers_notice());
    let followers = source.followers();
    if followers.is_empty() {
        let _ = writeln!(std::io::stderr(), "no Service follows a load balancer by linker.hsj.com/source");
    }
    match followers::render(&followers, format, options(filter, format)) {
        Ok(text) => {
            // EPIPE ends the command without an error: stdout may be closed (`| head`).
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => exit_with_error(&error.to_string(), FAILED),
    }
}

/// Prints where the links come from, and the notice about them.
fn introduce(source: &LinkSource) {
    if let Some((name, address)) = source.instance() {
        print_instance(name, address);
    }
    print_notice(source.notice());
}

pub(super) fn print_instance(name: &str, address: SocketAddr) {
    let _ = writeln!(std::io::stderr(), "from {}, the lb-linker at {address}", printable(name, &[]));
}

/// Prints that something isn't found, or, with the reason, that it isn't known yet.
pub(super) fn print_not_found(what: &str, unread: Option<String>) {
    let end = unread.map_or_else(|| "found".to_owned(), |unread| format!("is known: {unread}"));
    let _ = writeln!(std::io::stderr(), "{}", printable(&format!("{what} {end}"), &[]));
}

pub(super) fn print_notice(notice: Option<String>) {
    if let Some(notice) = notice {
        let _ = writeln!(std::io::stderr(), "{}", printable(&notice, &[]));
    }
}

fn options(filter: &LinkFilter, format: Option<OutputFormat>) -> TableOptions {
    TableOptions {
        with_namespace: filter.namespace.is_none(),
        wide: format == Some(OutputFormat::Wide),
        color: std::io::stdout().is_terminal(),
        without_header: false,
    }
}
