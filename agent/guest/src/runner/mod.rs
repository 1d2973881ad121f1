//! The tool runner: tools of a long-lived container, each known to one daemon, with output that is bounded.
//!
//! | what | file |
//! |---|---|
//! | a shim: asks, then becomes the tool, or runs it and cuts its output | `shim` |
//! | may it run? | `ask`, and if nobody answers `notice` |
//! | the real tool behind a shim | `find` |
//! | whose output goes to the reader of the whole run | `pipeline_end` |
//! | a tool as a child: signals, its end | `child` |
//! | its output on the way: read, cut, kept, written | `relay`, `truncate`, `spill` |
//! | the daemon: limits, log, v1's runs | [`daemon`] |
//! | links in a folder, and that folder in PATH | [`install`] |
//! | all of it around one command, without a container | [`exec`] |
//!
//! A tool keeps its parent, terminal, directory, environment and signals, and its bytes never pass through the daemon. Only
//! v1's tools, as the old protocol wants it, are the daemon's own children.

mod ask;
mod child;
pub mod daemon;
pub mod exec;
mod find;
pub mod install;
mod notice;
mod pipeline_end;
mod relay;
pub mod shim;
mod spill;
mod truncate;

use std::io::Write;

/// One line on standard error.
fn say(line: std::fmt::Arguments<'_>) {
    // In one write: tools of one pipeline write at the same time.
    let line = format!("ringfence-toolrunner: {line}\n");
    // A log that nobody reads any more is no reason to stop.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
