//! Fuzzes PROXY headers with arbitrary bytes.

#![no_main]

#[path = "../../tests/mutated/proxy.rs"]
mod proxy;

use libfuzzer_sys::fuzz_target;
use proxy::try_header;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = try_header(bytes) {
        panic!("{rule}");
    }
});
