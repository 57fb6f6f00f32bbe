#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| penstock_properties::safetensors::check(input));
