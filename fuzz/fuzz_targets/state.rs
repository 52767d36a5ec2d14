#![no_main]

#[path = "../bodies/state.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::state(data));
