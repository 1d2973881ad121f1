//! The target `client_hello`: see `ringfence_fuzz::names_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::names_targets::client_hello(data));
