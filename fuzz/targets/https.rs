//! Fuzzes connections for DNS over HTTPS with arbitrary bytes, which are sent in two parts; the first byte determines
//! where they are split.

#![no_main]

#[path = "../../tests/mutated/https.rs"]
mod https;
#[path = "../../tests/mutated/question.rs"]
mod question;

use std::sync::LazyLock;

use https::HttpsServer;
use libfuzzer_sys::fuzz_target;

static SERVER: LazyLock<HttpsServer> = LazyLock::new(HttpsServer::start);

fuzz_target!(|bytes: &[u8]| {
    let split = bytes.first().copied().map_or(0, usize::from);
    if let Err(rule) = SERVER.try_connection(bytes, split) {
        panic!("{rule}");
    }
});
