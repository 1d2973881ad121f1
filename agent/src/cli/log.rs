//! The log of the long-running roles, on standard error.

use std::io;
use tracing_subscriber::EnvFilter;

/// Starts the log of a role that a person or a service manager starts. `default` is the filter where `RUST_LOG` has none.
pub(crate) fn start(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(false)
        .with_env_filter(filter);
    // The journal adds the time itself; a terminal does not.
    if std::env::var_os("JOURNAL_STREAM").is_some() { log.without_time().init() } else { log.init() }
}

/// Starts the log of a role that the daemon starts. It goes into the daemon's log, which adds the time.
pub(crate) fn of_a_child() {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .init();
}
