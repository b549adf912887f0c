//! # Name
//!
//! *health* - serves `/health`, which reports that this process works. `/health` answers 200 and "OK" as long as the
//! process answers at all, whatever the API server does: it is for the liveness probe of a Pod. Once a second the
//! process asks itself and measures the duration: slow answers are a sign of overload. One line in one block is enough,
//! because it is about the whole process.
//!
//! # Syntax
//!
//! Syntax: `health [ADDRESS]`: an IP address or `localhost`, and a port; the default `:8080` means all addresses.
//! Option:
//!
//! - `lameduck DURATION`: how long the process goes on answering after it was asked to stop, so that clients find
//!   another server. The default is 0.

use std::time::Duration;

use super::setup::{HttpKind, Setup};
use crate::dns::corefile::CorefileError;

const DEFAULT_ADDRESS: &str = ":8080";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let mut lameduck = Duration::ZERO;
    for option in setup.only_line()?.options() {
        option.no_block()?;
        match option.name() {
            "lameduck" => lameduck = option.single_argument("a duration such as 5s")?.duration()?,
            _ => return Err(option.unknown("health", &["lameduck"])),
        }
    }
    setup.serve_http(HttpKind::Health { lameduck }, DEFAULT_ADDRESS, None)
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            (
                "health here",
                "Corefile:2:8: \"here\" isn't an address and port such as :9153, localhost:9153 or 127.0.0.1:9153",
            ),
            ("health {\nlameduck\n}", "Corefile:3:1: lameduck needs a duration such as 5s"),
            ("health {\nlameduck 5\n}", "Corefile:3:10: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("health {\nlame 5s\n}", "Corefile:3:1: health has no option \"lame\"; its option is lameduck"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
