//! Fuzzes the decoder of watches and lists with arbitrary bytes from the API server.

#![no_main]

#[path = "../../tests/mutated/links.rs"]
mod links;
#[path = "../../tests/mutated/watch.rs"]
mod watch;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use links::Links;

static LINKS: LazyLock<Links> = LazyLock::new(Links::start);

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = watch::try_watch(&LINKS, bytes, bytes.len()) {
        panic!("{rule}");
    }
});
