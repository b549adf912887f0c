//! Fuzzes the decoder of snapshots with arbitrary bytes from the disk.

#![no_main]

#[path = "../../tests/mutated/links.rs"]
mod links;
#[path = "../../tests/mutated/snapshot.rs"]
mod snapshot;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = snapshot::try_snapshot(bytes) {
        panic!("{rule}");
    }
});
