//! How many cases the property tests of the compiler and of the kernel's tables try.

use proptest::test_runner::Config;

/// `cases` random inputs, or as many as the variable `PROPTEST_CASES` says: a million take an hour, and are no part of
/// the tests.
pub fn config(cases: u32) -> Config {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    Config { cases: requested.unwrap_or(cases), ..Config::default() }
}
