//! The target `listing`: see `ringfence_fuzz::targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::targets::listing(data));
