//! # Name
//!
//! *reload* - takes an edited Corefile in force by itself.
//!
//! # Description
//!
//! The Corefile, what it imports, and the files that plugins have read with it, such as certificates and resolv.conf,
//! are read again every so often. When something else is in one of them than before, the blocks that have changed are
//! built anew and put in the place of the old ones, between two questions: none is lost. What hasn't changed goes on as
//! it is: the links and their watch, blocks with their caches, listeners. A Corefile that is broken, or wants a port
//! that can't be had, changes nothing; that is logged and counted.
//!
//! It works through the symbolic links of a mounted ConfigMap, too: what counts is what is read.
//!
//! The signal SIGUSR1 has the Corefile read at once, with or without this plugin. One line in any block is for all.
//!
//! When the zones of `lb_linker` or their `apex` change, Services are listed again, since names are granted to them by
//! zones; the leader gives the lease back for that. What is known is answered meanwhile.
//!
//! # Syntax
//!
//! ```text
//! reload [INTERVAL [JITTER]]
//! ```
//!
//! - **INTERVAL** is the pause between two looks, a duration such as 30s, which is the default; 2s at least.
//! - **JITTER** moves it by so much at most in all, half of it to either side, so that not all replicas change at
//!   once: 15s by default, and never more than half of **INTERVAL**; 0 or 1s at least.
//!
//! # Metrics
//!
//! - `coredns_reload_failed_total`: reloads that have failed.
//! - `coredns_reload_version_info{hash, value}`: 1 for the hash of the Corefile that was read last.
//!
//! # Examples
//!
//! ```text
//! . {
//!     reload 10s 2s
//!     forward . 192.0.2.53
//! }
//! ```

use std::time::Duration;

use super::setup::{Reload, Setup};
use crate::dns::corefile::{CorefileError, Token};

const INTERVAL: Duration = Duration::from_secs(30);
const JITTER: Duration = Duration::from_secs(15);
const MIN_INTERVAL: Duration = Duration::from_secs(2);
const MIN_JITTER: Duration = Duration::from_secs(1);

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    let arguments = line.at_most(2)?;
    let duration = |at: usize, default| arguments.get(at).map_or(Ok(default), Token::duration);
    let (interval, jitter) = (duration(0, INTERVAL)?, duration(1, JITTER)?);
    if interval < MIN_INTERVAL {
        return Err(arguments[0].isnt("2s or longer"));
    }
    if !jitter.is_zero() && jitter < MIN_JITTER {
        return Err(arguments[1].isnt("0, or 1s or longer"));
    }
    setup.builder.reload = Some(Reload { interval, jitter: jitter.min(interval / 2) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestSite;

    #[test]
    fn pauses_that_are_too_short_are_refused() {
        for (lines, expected) in [
            ("reload 1s", "Corefile:2:8: \"1s\" isn't 2s or longer"),
            ("reload 2s 500ms", "Corefile:2:11: \"500ms\" isn't 0, or 1s or longer"),
            ("reload often", "Corefile:2:8: \"often\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("reload 2s 1s 1s", "Corefile:2:14: reload takes 2 arguments at most, and here is \"1s\""),
        ] {
            assert_eq!(TestSite::error(lines), expected);
        }
        TestSite::block("reload 2s 0\nwhoami");
    }
}
