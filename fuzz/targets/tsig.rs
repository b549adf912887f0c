//! Fuzzes the checks of signatures with arbitrary messages.

#![no_main]

#[path = "../../tests/mutated/tsig.rs"]
mod tsig;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tsig::Signatures;

static SIGNATURES: LazyLock<Signatures> = LazyLock::new(Signatures::start);

fuzz_target!(|message: &[u8]| {
    if let Err(rule) = SIGNATURES.try_message(message) {
        panic!("{rule}");
    }
});
