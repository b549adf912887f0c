//! Fuzzes the keys and answers of etcd with arbitrary bytes.

#![no_main]

#[path = "../../tests/mutated/etcd.rs"]
mod etcd;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = etcd::try_keys(bytes) {
        panic!("{rule}");
    }
});
