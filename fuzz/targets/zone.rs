//! Fuzzes zone files with arbitrary content.

#![no_main]

#[path = "../../tests/mutated/zone.rs"]
mod zone;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zone::Zones;

static ZONES: LazyLock<Zones> = LazyLock::new(Zones::start);

fuzz_target!(|text: &[u8]| {
    if let Err(rule) = ZONES.try_zone(text) {
        panic!("{rule}");
    }
});
