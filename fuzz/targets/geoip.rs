//! Fuzzes databases of the plugin *geoip* with arbitrary bytes.

#![no_main]

#[path = "../../tests/mutated/geoip.rs"]
mod geoip;

use geoip::try_database;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = try_database(bytes) {
        panic!("{rule}");
    }
});
