//! Fuzzes TCP connections with arbitrary bytes, which are sent in two parts; the first byte determines where they are
//! split.

#![no_main]

#[path = "../../tests/mutated/connection.rs"]
mod connection;
#[path = "../../tests/mutated/question.rs"]
mod question;
#[path = "../../tests/mutated/stream.rs"]
mod stream;

use std::sync::LazyLock;

use connection::ConnectionServer;
use libfuzzer_sys::fuzz_target;
use stream::try_stream;

static SERVER: LazyLock<ConnectionServer> = LazyLock::new(|| ConnectionServer::start(false));

fuzz_target!(|bytes: &[u8]| {
    let split = bytes.first().copied().map_or(0, usize::from);
    if let Err(rule) = try_stream(&SERVER, bytes, split) {
        panic!("{rule}");
    }
});
