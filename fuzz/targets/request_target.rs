//! The target `request_target`: see `ringfence_fuzz::names_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::names_targets::request_target(data));
