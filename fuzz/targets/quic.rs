//! Fuzzes the streams of DNS over QUIC with arbitrary bytes.

#![no_main]

#[path = "../../tests/mutated/quic.rs"]
mod quic;

use libfuzzer_sys::fuzz_target;
use quic::try_quic;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = try_quic(bytes) {
        panic!("{rule}");
    }
});
