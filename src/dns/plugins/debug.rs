//! # Name
//!
//! *debug* - aborts on panic and enables debug logs; for tests, not for production. If answering a query panics, which
//! only a bug in lb-linker can cause, the client normally gets SERVFAIL, the panic is logged, and lb-linker continues.
//! On the listeners of a block with this plugin a panic ends the process, so that it reaches a supervisor, a debugger
//! or a core dump; *errors* logs summaries of the level `debug` only in such a block. lb-linker's own log has the level
//! DEBUG for all blocks, as with `RUST_LOG=debug`.
//!
//! Differences from CoreDNS: there one block with *debug* turns all of it on for the whole process, and some plugins
//! dump messages in hexadecimal. Here none does: a packet capture shows them. It has no arguments.

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
