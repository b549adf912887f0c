//! Flags before the subcommand, as users of kubectl type them: `lb-linker --kubeconfig FILE links`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// Moves the flags before the subcommand behind it, because each subcommand defines its own. Returns the arguments as
/// they are if there is no subcommand, or a flag before it that no subcommand has. `arguments` begins with the program.
pub(super) fn behind_subcommand(command: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let at = position_of_subcommand(command, &arguments).filter(|at| *at > 1);
    let Some(at) = at else { return arguments };
    let (program, leading, subcommand, rest) =
        (&arguments[..1], &arguments[1..at], &arguments[at..=at], &arguments[at + 1..]);
    [program, subcommand, leading, rest].concat()
}

fn position_of_subcommand(command: &Command, arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        let argument = arguments.get(at)?.to_str()?;
        if !argument.starts_with('-') {
            // An unknown one, too: the error is about the subcommand then, not about the flags.
            return Some(at);
        }
        at += if needs_next(command, argument)? { 2 } else { 1 };
    }
}

/// Returns whether the value of a flag is the next argument; `None` if no subcommand has the flag.
fn needs_next(command: &Command, argument: &str) -> Option<bool> {
    let (flag, has_value) = match argument.strip_prefix("--") {
        Some(long) => {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            (flag_of(command, |arg| arg.get_long() == Some(name))?, value.is_some())
        }
        None => {
            let mut letters = argument.chars().skip(1);
            let letter = letters.next()?;
            (flag_of(command, |arg| arg.get_short() == Some(letter))?, letters.next().is_some())
        }
    };
    Some(!has_value && matches!(flag.get_action(), ArgAction::Set | ArgAction::Append))
}

fn flag_of(command: &Command, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
    command.get_subcommands().flat_map(Command::get_arguments).find(|arg| is_it(arg))
}

/// Returns the arguments of this process, with the flags behind the subcommand.
pub(super) fn arguments(command: &Command) -> Vec<OsString> {
    behind_subcommand(command, std::env::args_os().collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn moved(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let moved = behind_subcommand(&Cli::command(), arguments);
        let moved: Vec<&str> = moved.iter().filter_map(|argument| argument.to_str()).collect();
        moved.join(" ")
    }

    #[test]
    fn flags_before_the_subcommand_are_moved_behind_it() {
        for (given, expected) in [
            ("lb-linker --kubeconfig f links web", "lb-linker links --kubeconfig f web"),
            ("lb-linker --kubeconfig=f links", "lb-linker links --kubeconfig=f"),
            ("lb-linker --zone a --prune check --zone b", "lb-linker check --zone a --prune --zone b"),
            ("lb-linker -n shop -A links -o wide", "lb-linker links -n shop -A -o wide"),
            ("lb-linker -nshop links", "lb-linker links -nshop"),
            ("lb-linker --cluster check", "lb-linker check --cluster"),
            ("lb-linker --zone a unknown", "lb-linker unknown --zone a"),
        ] {
            assert_eq!(moved(given), expected, "{given}");
        }
    }

    #[test]
    fn other_arguments_stay_where_they_are() {
        for line in [
            "lb-linker",
            "lb-linker --kubeconfig links",
            "lb-linker --zone check --prune",
            "lb-linker --help links",
            "lb-linker --unknown links",
            "lb-linker links --kubeconfig f",
            "lb-linker -- links",
        ] {
            assert_eq!(moved(line), line);
        }
    }

    #[test]
    fn flags_take_a_value_in_each_subcommand_or_in_none() {
        let command = Cli::command();
        let flags = || command.get_subcommands().flat_map(Command::get_arguments);
        for flag in flags().filter(|flag| flag.get_long().is_some()) {
            let needs = |flag: &Arg| matches!(flag.get_action(), ArgAction::Set | ArgAction::Append);
            for other in flags().filter(|other| other.get_long() == flag.get_long()) {
                assert_eq!(needs(other), needs(flag), "{flag} {other}");
            }
        }
    }
}
