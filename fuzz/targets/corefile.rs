//! Fuzzes the Corefile parser with arbitrary text.

#![no_main]

#[path = "../../tests/mutated/corefile.rs"]
mod corefile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = corefile::try_corefile(bytes) {
        panic!("{rule}");
    }
});
