//! The target `records`: see `ringfence_fuzz::auditor_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::auditor_targets::records(data));
