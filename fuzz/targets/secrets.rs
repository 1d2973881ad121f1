//! The target `secrets`: see `ringfence_fuzz::llm_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::llm_targets::secrets(data));
