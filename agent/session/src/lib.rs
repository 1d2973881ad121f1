//! What is on record of an MCP session: its lines, judged, classified, scored and redacted; rules; the journal, and the rows that
//! are made of it. No sockets, no processes.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod classify;
pub mod draft;
pub mod export;
pub mod heads;
pub mod journal;
pub mod ledger;
pub mod line;
pub mod lines;
pub mod notice;
pub mod plain;
pub mod reload;
pub mod risk;
pub mod rows;
pub mod rules;
pub mod ruleset;
pub mod sql;
pub mod stderr;
pub mod strict;
