#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seawall_core::fuzzing::specs(data));
