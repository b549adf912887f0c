//! Fuzzes the decoding of bodies of gRPC with arbitrary bytes.

#![no_main]

#[path = "../../tests/mutated/grpc.rs"]
mod grpc;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    if let Err(rule) = grpc::try_body(body, false) {
        panic!("{rule}");
    }
});
