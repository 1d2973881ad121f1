//! The target `remote`: see `ringfence_fuzz::remote_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::remote_targets::remote(data));
