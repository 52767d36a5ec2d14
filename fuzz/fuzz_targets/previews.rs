#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seawall_server::fuzzing::previews(data));
