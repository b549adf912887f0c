//! # Name
//!
//! *debug* - lets a crash be one, and logs more.
//!
//! # Description
//!
//! A question whose answering panics, which only a defect of lb-linker can cause, normally gets SERVFAIL, the panic
//! is logged, and everything else goes on. In a block with this plugin the panic ends the process, so that a
//! supervisor, a debugger or a core dump sees it. lb-linker then also logs its own events of the level DEBUG, as
//! with `RUST_LOG=debug`. It is for tests, not for production.
//!
//! What `consolidate` of *errors* is to log with the level `debug` is logged only in blocks with this plugin.
//!
//! Differences from CoreDNS: there, one block with *debug* has it for the whole process; here the others go on
//! without, but for lb-linker's own log, of which there is only one. There, some plugins dump messages as
//! hexadecimal numbers; here none does: a capture shows them as they are.
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
        line.alone()?;
    }
    setup.builder.debug = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestSite;

    #[test]
    fn it_is_for_its_block_alone() {
        let context = TestSite::corefile("a {\ndebug\nwhoami\n}\nb {\nwhoami\n}\n");
        let debugged = context.server.blocks().filter(|(_, block)| block.debug);
        assert_eq!(debugged.map(|(zone, _)| zone.to_ascii()).collect::<Vec<_>>(), ["a."]);
    }

    #[test]
    fn it_takes_nothing() {
        assert_eq!(
            TestSite::error("debug off"),
            "Corefile:2:7: debug takes no arguments, and here is \"off\""
        );
        assert_eq!(TestSite::error("debug {\n}"), "Corefile:2:1: debug takes no braces");
    }
}
