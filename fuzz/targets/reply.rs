//! Fuzzes the handling of replies with arbitrary bytes from an upstream.

#![no_main]

#[path = "../../tests/mutated/reply.rs"]
mod reply;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = reply::try_reply(bytes) {
        panic!("{rule}");
    }
});
