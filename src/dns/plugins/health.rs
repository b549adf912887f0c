//! # Name
//!
//! *health* - serves `/health`, which says that this process works.
//!
//! # Description
//!
//! `/health` answers 200 and "OK" as long as the process answers at all; it never depends on the API server. It is for
//! the liveness probe of a Pod. Once a second it is asked by the process itself, and how long that takes is measured:
//! an answer that takes long is a sign of too much load.
//!
//! One line is enough: lb-linker is one process.
//!
//! # Syntax
//!
//! ```text
//! health [ADDRESS] {
//!     lameduck DURATION
//! }
//! ```
//!
//! - **ADDRESS** is an IP address or `localhost`, and a port; `:8080` by default, which is all addresses.
//! - `lameduck`: when the process is told to stop it goes on answering for so long, so that clients can find another
//!   server before it stops. 0 by default.
//!
//! # Metrics
//!
//! - `coredns_health_request_duration_seconds`: how long `/health` has taken.
//! - `coredns_health_request_failures_total`: how often it has failed.
//!
//! # Examples
//!
//! ```text
//! . {
//!     health localhost:8091 {
//!         lameduck 5s
//!     }
//!     whoami
//! }
//! ```

use std::time::Duration;

use super::setup::{HttpKind, Setup};
use crate::dns::corefile::CorefileError;

const DEFAULT: &str = ":8080";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let mut lameduck = Duration::ZERO;
    for option in setup.only_line()?.options() {
        option.no_block()?;
        match option.name() {
            "lameduck" => lameduck = option.one("a duration such as 5s")?.duration()?,
            _ => return Err(option.unknown("health", &["lameduck"])),
        }
    }
    setup.serve_http(HttpKind::Health { lameduck }, DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestSite;

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (lines, expected) in [
            (
                "health here",
                "Corefile:2:8: \"here\" isn't an address and port such as :9153, localhost:9153 or 127.0.0.1:9153",
            ),
            ("health {\nlameduck\n}", "Corefile:3:1: lameduck needs a duration such as 5s"),
            ("health {\nlameduck 5\n}", "Corefile:3:10: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("health {\nlame 5s\n}", "Corefile:3:1: health has no option \"lame\"; it has lameduck"),
        ] {
            assert_eq!(TestSite::error(lines), expected);
        }
    }
}
