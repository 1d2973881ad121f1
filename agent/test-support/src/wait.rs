//! Waiting for what others do: no test depends on how long that takes them.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything may take before a test gives up: longer than the programs themselves wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Tries until there is something.
///
/// # Panics
/// There is nothing within [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < until, "not in {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Tries until it holds.
///
/// # Panics
/// It does not within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}
