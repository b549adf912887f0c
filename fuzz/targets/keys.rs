//! Fuzzes files with keys for the plugin *tsig* with arbitrary content.

#![no_main]

#[path = "../../tests/mutated/key_file.rs"]
mod key_file;

use std::sync::LazyLock;

use key_file::KeyFiles;
use libfuzzer_sys::fuzz_target;

static FILES: LazyLock<KeyFiles> = LazyLock::new(KeyFiles::start);

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = FILES.try_file(bytes) {
        panic!("{rule}");
    }
});
