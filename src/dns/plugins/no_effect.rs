//! Plugins and options of CoreDNS that are read, and have no effect here.

use super::setup::Setup;
use crate::dns::corefile::{CorefileError, Directive};

/// These plugins have no manuals of their own.
#[cfg(test)]
pub(super) const NAMES: [&str; 3] = ["multisocket", "pprof", "shed"];

pub(super) fn multisocket(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    if let [number] = line.at_most(1)? {
        number.parse_in_range(1..=1024_u16, "a number of sockets from 1 to 1024")?;
    }
    warn(setup, "each core always has a UDP socket of its own");
    Ok(())
}

pub(super) fn pprof(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    if let [address] = line.at_most(1)? {
        let host = address.text.rsplit_once(':').map(|(host, _)| host);
        let is_bracketed = |host: &str| host.starts_with('[') && host.ends_with(']');
        if !host.is_some_and(|host| !host.contains(':') || is_bracketed(host)) {
            return Err(address.unexpected("an address and port such as localhost:6053"));
        }
    }
    line.options().iter().try_for_each(pprof_option)?;
    warn(setup, "its profiles are those of Go's runtime; perf profiles lb-linker from outside");
    Ok(())
}

fn pprof_option(option: &Directive) -> Result<(), CorefileError> {
    option.no_block()?;
    if option.name() != "block" {
        return Err(option.unknown("pprof", &["block"]));
    }
    if let [rate] = option.at_most(1)? {
        rate.parse::<i64>("a whole number")?;
    }
    Ok(())
}

pub(super) fn shed(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    setup.only_line()?.no_arguments_or_block()?;
    warn(setup, "the queries that wait are always limited, and more are dropped");
    Ok(())
}

fn warn(setup: &mut Setup<'_>, instead: &str) {
    let line = &setup.lines[0];
    let warning = line.error(format!("{} has no effect here: {instead}", line.name()));
    setup.builder.warnings.push(warning);
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    fn warnings(lines: &str) -> Vec<String> {
        TestServer::builder(lines).warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn plugins_and_options_without_effect_are_warned_of() {
        for (lines, warning) in [
            ("multisocket", "2:1: multisocket has no effect here: each core always has a UDP socket"),
            ("multisocket 1024", "2:1: multisocket"),
            ("pprof", "2:1: pprof has no effect here: its profiles are those of Go's runtime; perf profiles"),
            ("pprof :6060 {\nblock\n}", "2:1: pprof"),
            ("pprof [::1]:6060 {\nblock -5\n}", "2:1: pprof"),
            ("shed", "2:1: shed has no effect here: the queries that wait are always limited"),
            (
                "errors {\nstacktrace\n}",
                "3:1: stacktrace has no effect here: a panic is logged with its place",
            ),
            ("prometheus {\nruntime_metrics\n}", "3:1: runtime_metrics has no effect here: its metrics are"),
            (
                "log . \"{name} {/log/class}\"",
                "2:7: {/log/class} has no effect here: the block has no metadata",
            ),
        ] {
            let [found] = &warnings(lines)[..] else { panic!("{lines}") };
            assert!(found.starts_with(&format!("Corefile:{warning}")), "{found}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("multisocket 0", "2:13: \"0\" isn't a number of sockets from 1 to 1024"),
            ("multisocket 1025", "2:13: \"1025\" isn't a number of sockets from 1 to 1024"),
            ("multisocket 1 2", "2:15: multisocket takes 1 argument at most, and here is \"2\""),
            ("multisocket {\n}", "2:1: multisocket takes no braces"),
            ("pprof 6053", "2:7: \"6053\" isn't an address and port such as localhost:6053"),
            ("pprof ::1:6053", "2:7: \"::1:6053\" isn't an address and port such as localhost:6053"),
            ("pprof {\nheap\n}", "3:1: pprof has no option \"heap\"; its option is block"),
            ("pprof {\nblock x\n}", "3:7: \"x\" isn't a whole number"),
            ("pprof\npprof", "3:1: pprof can be there only once in a block, and it is on line 2 already"),
            ("shed 5", "2:6: shed takes no arguments, and here is \"5\""),
            ("shed {\n}", "2:1: shed takes no braces"),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
        }
    }
}
