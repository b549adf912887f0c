//! # Name
//!
//! *debug* - aborts on panic and enables debug logs.
//!
//! # Description
//!
//! If answering a query panics, which only a bug in lb-linker can cause, the client normally gets SERVFAIL, the panic
//! is logged, and lb-linker continues. If a block with this plugin shares the listener, the panic ends the process, so
//! that it reaches a supervisor, a debugger or a core dump. With this plugin in any block, lb-linker also logs its own
//! events of the level DEBUG, as with `RUST_LOG=debug`. The plugin is for tests, not for production.
//!
//! Summaries of *errors* `consolidate` with the level `debug` are logged only in blocks with this plugin.
//!
//! Differences from CoreDNS: in CoreDNS, one block with *debug* turns it on for the whole process. Here, a panic ends
//! the process only on the listeners of a block with *debug*, *errors* logs debug summaries only in such a block, and
//! only lb-linker's own log changes for all blocks. In CoreDNS, some plugins dump messages in hexadecimal; here, no
//! plugin does: a packet capture shows the messages.
//!
//! # Syntax
//!
//! ```text
//! debug
//! ```
//!
//! # Examples
//!
//! ```text
//! . {
//!     debug
//!     forward . 192.0.2.53
//! }
//! ```

use super::setup::Setup;
use crate::dns::corefile::CorefileError;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    for line in setup.lines {
        line.no_arguments_or_block()?;
    }
    setup.builder.debug = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn debug_applies_to_its_own_block() {
        let context = TestServer::corefile("a {\ndebug\nwhoami\n}\nb {\nwhoami\n}\n");
        let debugged = context.server.blocks().filter(|(_, block)| block.debug);
        assert_eq!(debugged.map(|(zone, _)| zone.to_ascii()).collect::<Vec<_>>(), ["a."]);
    }

    #[test]
    fn arguments_and_braces_are_rejected() {
        assert_eq!(
            TestServer::error("debug off"),
            "Corefile:2:7: debug takes no arguments, and here is \"off\""
        );
        assert_eq!(TestServer::error("debug {\n}"), "Corefile:2:1: debug takes no braces");
    }
}
