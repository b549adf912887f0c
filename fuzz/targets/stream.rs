//! Fuzzes TCP connections with arbitrary bytes, which are sent in two parts; the first byte determines where they are
//! split.

#![no_main]

#[path = "../../tests/mutated/question.rs"]
mod question;
#[path = "../../tests/mutated/stream.rs"]
mod stream;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stream::StreamServer;

static SERVER: LazyLock<StreamServer> = LazyLock::new(StreamServer::start);

fuzz_target!(|bytes: &[u8]| {
    let split = bytes.first().copied().map_or(0, usize::from);
    if let Err(rule) = SERVER.try_stream(bytes, split) {
        panic!("{rule}");
    }
});
