//! Environment variables that look like a mistyped variable of a flag, or have a wrong value.

use std::collections::BTreeSet;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command};
use tracing::level_filters::LevelFilter;

use crate::cli::flags::Flags;

const PREFIX: &str = "LB_LINKER_";
/// The maximum number of typing errors in a mistyped name. Names with more may be for another purpose: Kubernetes sets
/// variables with this prefix for a Service lb-linker.
const MAX_TYPOS: usize = 2;

/// Returns a warning for each environment variable of this process whose name is similar to that of a flag, except the
/// variables that the Corefile uses.
#[must_use]
pub fn mistyped_variables(of_corefile: &BTreeSet<String>) -> Vec<String> {
    warnings(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()), of_corefile)
}

fn warnings(variables: impl Iterator<Item = String>, of_corefile: &BTreeSet<String>) -> Vec<String> {
    let command = Flags::augment_args(Command::new("lb-linker"));
    let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let mut warnings: Vec<String> = variables
        .filter(|name| {
            name.starts_with(PREFIX) && !known.contains(&name.as_str()) && !of_corefile.contains(name)
        })
        .filter_map(|name| {
            let distance = |known: &&&str| strsim::osa_distance(known, &name);
            let closest = known.iter().min_by_key(distance).filter(|known| distance(known) <= MAX_TYPOS)?;
            Some(format!("the environment variable {name} has no effect; did you mean {closest}?"))
        })
        .collect();
    warnings.sort();
    warnings
}

/// What is wrong with a log filter.
#[derive(Debug, PartialEq, Eq)]
pub struct LogFilterProblem {
    pub text: String,
    /// Whether it looks like a typing error: a filter may also be about a library only.
    pub is_typing_error: bool,
}

/// Returns the directives of a log filter, with the warnings of lb-linker if none of them is about lb-linker, as after a
/// typing error, and a sentence about that.
#[must_use]
pub fn log_filter(directives: String) -> (String, Option<LogFilterProblem>) {
    const OWN: &str = "lb_linker";
    let is_own = |directive: &str| {
        // A span in brackets may be of any target.
        let target = directive.split('=').next().unwrap_or_default();
        directive.contains('[')
            || directive.parse::<LevelFilter>().is_ok()
            || OWN.starts_with(target)
            || target.starts_with(OWN)
    };
    let mut words = directives.split(',').filter(|word| !word.is_empty()).peekable();
    if words.peek().is_none() || words.any(is_own) {
        return (directives, None);
    }
    let is_mistyped = |word: &str| {
        let target = word.split_once('=').map(|(target, _)| target);
        target.is_none_or(|target| strsim::osa_distance(target, OWN) <= MAX_TYPOS)
    };
    let is_typing_error = directives.split(',').filter(|word| !word.is_empty()).any(is_mistyped);
    let text = format!(
        "RUST_LOG {directives:?} has no level for lb-linker, so it logs only warnings and errors; valid are off, error, warn, \
         info, debug and trace, as in RUST_LOG=lb_linker=debug"
    );
    (format!("{OWN}=warn,{directives}"), Some(LogFilterProblem { text, is_typing_error }))
}

/// Returns the environment variable that has the value which clap refuses: clap names only its flag. `None` if the value
/// is on the command line, or the error is another one.
#[must_use]
pub fn refused_variable(error: &clap::Error) -> Option<String> {
    error.get(ContextKind::InvalidValue)?;
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = shown.split(' ').next()?;
    let is_given =
        |arg: String| arg == flag || arg.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
    if std::env::args_os().filter_map(|arg| arg.into_string().ok()).any(is_given) {
        return None;
    }
    let command = Flags::augment_args(Command::new("lb-linker"));
    let arg = command.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
    let variable = arg.get_env()?;
    std::env::var_os(variable)?;
    Some(variable.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filter_without_a_level_keeps_warnings() {
        for (mistyped, is_typing_error) in [
            ("debg", true),
            ("lb_linkr=debug", true),
            ("inof,hyper=off", true),
            ("lb-linker=debug", true),
            ("hyper=debug,", false),
            ("hyper=debug,kube_client::client=trace", false),
        ] {
            let (filter, problem) = log_filter(mistyped.to_owned());
            assert_eq!(filter, format!("lb_linker=warn,{mistyped}"));
            let problem = problem.unwrap();
            let expected =
                format!("RUST_LOG {mistyped:?} has no level for lb-linker, so it logs only warnings");
            assert!(problem.text.starts_with(&expected), "{}", problem.text);
            assert_eq!(problem.is_typing_error, is_typing_error, "{mistyped}");
        }
        for valid in [
            "",
            "off",
            "WARN",
            "0",
            "debug,hyper=off",
            "hyper=off,error",
            "lb_linker=debug",
            "lb_linker",
            "lb_linker::dns=debug",
            "[span{field=1}]=debug",
        ] {
            assert_eq!(log_filter(valid.to_owned()), (valid.to_owned(), None));
        }
    }

    #[test]
    fn only_similar_names_of_variables_are_reported() {
        let names = [
            "LB_LINKER_DENYED_NETS",
            "LB_LINKER_DENIED_NETS",
            "LB_LINKER_ZONES",
            // Kubernetes sets these for a Service lb-linker in the Pod's namespace.
            "LB_LINKER_SERVICE_HOST",
            "LB_LINKER_PORT_53_UDP_PROTO",
            "LB_LINKER_SERVICE",
            "PATH",
        ];
        let names = || names.into_iter().map(str::to_owned);
        let denied_nets = "the environment variable LB_LINKER_DENYED_NETS has no effect; did you mean LB_LINKER_DENIED_NETS?";
        let zones = "the environment variable LB_LINKER_ZONES has no effect; did you mean LB_LINKER_ZONE?";
        assert_eq!(warnings(names(), &BTreeSet::new()), [denied_nets, zones]);
        let of_corefile = BTreeSet::from(["LB_LINKER_ZONES".to_owned(), "OTHER".to_owned()]);
        assert_eq!(warnings(names(), &of_corefile), [denied_nets]);
    }
}
