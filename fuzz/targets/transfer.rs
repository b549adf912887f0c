//! Fuzzes zone transfers with arbitrary bytes from a primary server.

#![no_main]

#[path = "../../tests/mutated/transfer.rs"]
mod transfer;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = transfer::try_transfer(bytes) {
        panic!("{rule}");
    }
});
