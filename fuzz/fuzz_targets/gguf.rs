#![no_main]

libfuzzer_sys::fuzz_target!(init: penstock_properties::keep_caught_panics(), |input: &[u8]| {
    penstock_properties::gguf::check(input);
});
