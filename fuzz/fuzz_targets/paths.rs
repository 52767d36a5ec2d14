#![no_main]

#[path = "../bodies/paths.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::paths(data));
