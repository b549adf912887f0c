//! Fuzzes the handler with arbitrary bytes from a client.

#![no_main]

#[path = "../../tests/mutated/question.rs"]
mod question;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use question::Server;

static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

fuzz_target!(|message: &[u8]| {
    // One client over UDP, another client over TCP.
    for which in [0, 3] {
        if let Err(rule) = SERVER.try_message(message, which) {
            panic!("{rule}");
        }
    }
});
