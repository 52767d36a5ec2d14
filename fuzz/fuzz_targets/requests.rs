#![no_main]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../crates/server/tests/it/world.rs"]
mod common;
#[path = "../../crates/server/tests/it/fuzz/requests.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::requests(data));
