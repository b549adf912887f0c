//! `lb-linker names`.

use std::io::Write;
use std::process::ExitCode;

use super::links::{print_instance, print_not_found, print_notice};
use super::output::{FAILED, exit_with_error, fail, log_warnings};
use crate::app::link_source::{NamesRead, read_names};
use crate::cli::flags::Flags;
use crate::links::OutputFormat;
use crate::links::names::NameFilter;
use crate::links::names_table::render;

/// Prints the names that a filter selects.
pub async fn list_names(flags: Flags, filter: &NameFilter, format: Option<OutputFormat>) -> ExitCode {
    log_warnings();
    let NamesRead { instance, notice, names, unread } = match read_names(flags, filter).await {
        Ok(read) => read,
        Err(error) => return fail(&error),
    };
    if let Some((name, address)) = &instance {
        print_instance(name, *address);
    }
    print_notice(notice);
    if names.is_empty() {
        let what =
            filter.name.as_ref().map_or_else(|| "no name".to_owned(), |name| format!("no name {name}"));
        print_not_found(&what, unread);
    }
    match render(&names, format, filter.name.is_some()) {
        Ok(text) => {
            // EPIPE ends the command without an error: stdout may be closed (`| head`).
            let _ = write!(std::io::stdout(), "{text}");
        }
        Err(error) => return exit_with_error(&error.to_string(), FAILED),
    }
    if names.is_empty() && filter.name.is_some() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
}
