//! # Name
//!
//! *reload* - reloads an edited Corefile automatically. The Corefile, its imports, and the files that plugins have read
//! with it, such as certificates and resolv.conf, are read again periodically; contents are compared, so the symbolic
//! links of a mounted ConfigMap work, too. Changed blocks are rebuilt and replace the old ones between two queries, so
//! that no query is lost. The links and their watch, unchanged blocks with their caches, and listeners continue. If the
//! new Corefile is invalid, or needs a port that isn't available, nothing changes; the failure is logged and counted.
//! SIGUSR1 reloads at once, with or without this plugin. One line in any block applies to all blocks.
//!
//! When the zones of `lb_linker` or their `apex` change, Services are listed again, because names are assigned to
//! Services by zone; known names are answered meanwhile, and the leader keeps its Lease.
//!
//! # Syntax
//!
//! Syntax: `reload [INTERVAL [JITTER]]`: the time between two checks, 30s by default, 2s at least; and the range of its
//! random shift, half of it in either direction, so that not all replicas reload at once: 15s by default, never more
//! than half of **INTERVAL**; 0, or 1s at least.

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
        return Err(arguments[0].unexpected("2s or longer"));
    }
    if !jitter.is_zero() && jitter < MIN_JITTER {
        return Err(arguments[1].unexpected("0, or 1s or longer"));
    }
    setup.builder.reload = Some(Reload { interval, jitter: jitter.min(interval / 2) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("reload 1s", "Corefile:2:8: \"1s\" isn't 2s or longer"),
            ("reload 2s 500ms", "Corefile:2:11: \"500ms\" isn't 0, or 1s or longer"),
            ("reload often", "Corefile:2:8: \"often\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("reload 2s 1s 1s", "Corefile:2:14: reload takes 2 arguments at most, and here is \"1s\""),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
        TestServer::block("reload 2s 0\nwhoami");
    }
}
