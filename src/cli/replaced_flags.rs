//! The flags that a Corefile replaces.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};

use crate::cli::flags::Flags;

/// The ids of the flags that fill in the built-in Corefile, and what stands for each in a Corefile.
const REPLACED: [(&str, &str); 8] = [
    ("zones", "lb_linker ZONE"),
    ("sources", "lb_linker { sources SOURCE }"),
    ("listen", "the port of each block, as in .:53, and bind ADDRESS"),
    ("upstream", "forward . ADDRESS"),
    ("client_nets", "clients NETWORK"),
    ("metrics_listen", "prometheus ADDRESS:PORT"),
    ("health_listen", "health ADDRESS:PORT"),
    ("ready_listen", "ready ADDRESS:PORT"),
];

/// Returns a sentence that names the flags and variables that have no effect beside `--corefile`, if there are any.
#[must_use]
pub fn replaced_flags(matches: &ArgMatches) -> Option<String> {
    // A command without the flags of `run` doesn't know `corefile`.
    if !matches.try_contains_id("corefile").unwrap_or(false) {
        return None;
    }
    let command = Flags::augment_args(Command::new("lb-linker"));
    let given = |(id, instead): &(&str, &str)| {
        let arg = command.get_arguments().find(|arg| arg.get_id() == id)?;
        let name = match matches.value_source(id)? {
            ValueSource::CommandLine => format!("--{}", arg.get_long()?),
            ValueSource::EnvVariable => format!("the variable {}", arg.get_env()?.display()),
            _ => return None,
        };
        Some(format!("{name} (in the Corefile: {instead})"))
    };
    let given: Vec<String> = REPLACED.iter().filter_map(given).collect();
    let (last, first) = given.split_last()?;
    let all = if first.is_empty() { last.clone() } else { format!("{} and {last}", first.join(", ")) };
    let given = if first.is_empty() && !last.starts_with("--") { "variable" } else { "flag" };
    Some(format!("--corefile can't be used with {all}: write it there, and leave the {given} out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(arguments: &[&str]) -> Option<String> {
        let command = Flags::augment_args(Command::new("lb-linker"));
        replaced_flags(&command.try_get_matches_from([&["lb-linker"], arguments].concat()).unwrap())
    }

    #[test]
    fn flag_beside_a_corefile_is_named_with_what_replaces_it() {
        assert_eq!(replaced(&["--zone", "a.example", "--upstream", "none"]), None);
        assert_eq!(replaced(&["--corefile", "f", "--admin-listen", "none"]), None);
        for (arguments, expected) in [
            (["--zone", "a.example"], "--zone (in the Corefile: lb_linker ZONE)"),
            (["--sources", "ingress"], "--sources (in the Corefile: lb_linker { sources SOURCE })"),
            (
                ["--listen", ":54"],
                "--listen (in the Corefile: the port of each block, as in .:53, and bind ADDRESS)",
            ),
            (["--upstream", "none"], "--upstream (in the Corefile: forward . ADDRESS)"),
            (["--client-nets", "any"], "--client-nets (in the Corefile: clients NETWORK)"),
            (["--metrics-listen", "none"], "--metrics-listen (in the Corefile: prometheus ADDRESS:PORT)"),
            (["--health-listen", ":80"], "--health-listen (in the Corefile: health ADDRESS:PORT)"),
            (["--ready-listen", ":80"], "--ready-listen (in the Corefile: ready ADDRESS:PORT)"),
        ] {
            let said = replaced(&[&["--corefile", "f"], &arguments[..]].concat()).unwrap();
            assert_eq!(
                said,
                format!("--corefile can't be used with {expected}: write it there, and leave the flag out")
            );
        }
        let all = replaced(&["--zone=a", "--corefile=f", "--listen=:54", "--ready-listen=:80"]).unwrap();
        let listed = "--zone (in the Corefile: lb_linker ZONE), --listen (in the Corefile: the port of each block, \
                      as in .:53, and bind ADDRESS) and --ready-listen (in the Corefile: ready ADDRESS:PORT): write ";
        assert!(all.contains(listed), "{all}");
    }
}
