//! # Name
//!
//! *ready* - serves `/ready`, which reports whether this instance can answer. `/ready` answers 200 and "OK" when all
//! plugins are ready, else 503 with the names of the other ones, and why. Only `lb_linker` has to become ready, when
//! the load balancers are first known, and `kubernetes`, when its objects are. They then stay ready, also without the API
//! server. While `lb_linker` answers from a
//! [snapshot](operations.md#start-without-the-api-server), the API server is away, objects can't be read, no replica
//! leads, or external targets or statuses of StableNames can't be written, `/ready` is 200 with a note instead of "OK".
//!
//! One line applies to all blocks. CoreDNS checks only the plugins of the blocks that have *ready*; but a Pod is ready
//! or not as a whole.
//!
//! # Syntax
//!
//! Syntax: `ready [ADDRESS]`: an IP address or `localhost`, and a port; the default `:8181` means all addresses. The
//! option `monitor until-ready|continuously` is accepted, and has no effect: each request to `/ready` checks the
//! plugins.

use super::setup::{HttpKind, Setup};
use crate::dns::corefile::CorefileError;

const DEFAULT: &str = ":8181";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    for option in setup.only_line()?.options() {
        option.no_block()?;
        match option.name() {
            "monitor" => {
                let what = "until-ready or continuously";
                let word = option.single_argument(what)?;
                if !["until-ready", "continuously"].contains(&&*word.text) {
                    return Err(word.unexpected(what));
                }
            }
            _ => return Err(option.unknown("ready", &["monitor"])),
        }
    }
    setup.serve_http(HttpKind::Ready, DEFAULT, None)
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            (
                "ready 8181",
                "Corefile:2:7: \"8181\" isn't an address and port such as :9153, localhost:9153 or 127.0.0.1:9153",
            ),
            ("ready {\nmonitor once\n}", "Corefile:3:9: \"once\" isn't until-ready or continuously"),
            ("ready {\nwhen x\n}", "Corefile:3:1: ready has no option \"when\"; its option is monitor"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
