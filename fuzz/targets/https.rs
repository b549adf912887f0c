//! Fuzzes connections for DNS over HTTPS with arbitrary bytes, which are sent in two parts; the first byte determines
//! where they are split.

#![no_main]

#[path = "../../tests/mutated/connection.rs"]
mod connection;
#[path = "../../tests/mutated/https.rs"]
mod https;
#[path = "../../tests/mutated/question.rs"]
mod question;

use std::sync::LazyLock;

use connection::ConnectionServer;
use https::try_https;
use libfuzzer_sys::fuzz_target;

static SERVER: LazyLock<ConnectionServer> = LazyLock::new(|| ConnectionServer::start(true));

fuzz_target!(|bytes: &[u8]| {
    let split = bytes.first().copied().map_or(0, usize::from);
    if let Err(rule) = try_https(&SERVER, bytes, split) {
        panic!("{rule}");
    }
});
