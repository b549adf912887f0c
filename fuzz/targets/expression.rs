//! Fuzzes the plugin *view* with arbitrary expressions and queries.

#![no_main]

#[path = "../../tests/mutated/corefile.rs"]
mod corefile;
#[path = "../../tests/mutated/expression.rs"]
mod expression;

use std::sync::LazyLock;

use expression::Expressions;
use libfuzzer_sys::fuzz_target;

static EXPRESSIONS: LazyLock<Expressions> = LazyLock::new(Expressions::start);

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = EXPRESSIONS.try_expression(bytes) {
        panic!("{rule}");
    }
});
