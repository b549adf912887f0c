//! Fuzzes the plugins *rewrite* and *template* with arbitrary rules and queries.

#![no_main]

#[path = "../../tests/mutated/corefile.rs"]
mod corefile;
#[path = "../../tests/mutated/rules.rs"]
mod rules;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rules::Rules;

static RULES: LazyLock<Rules> = LazyLock::new(Rules::start);

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = RULES.try_rules(bytes) {
        panic!("{rule}");
    }
});
