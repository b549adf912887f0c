//! Fuzzes the control frames of a sink of the plugin *dnstap* with arbitrary bytes.

#![no_main]

#[path = "../../tests/mutated/dnstap.rs"]
mod dnstap;

use dnstap::try_frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = try_frame(bytes) {
        panic!("{rule}");
    }
});
