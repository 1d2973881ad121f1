//! The target `oauth`: see `ringfence_fuzz::oauth_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::oauth_targets::oauth(data));
