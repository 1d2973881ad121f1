//! The record of an MCP session: its lines, judged, classified, scored and redacted; rules; the journal, and the rows
//! made from it. No sockets, no processes.
//!
//! | file | what |
//! |---|---|
//! | `lines`, `line` | lines from a pipe; one line of MCP's stdio transport: what it is |
//! | `strict`, `plain` | JSON that every parser reads alike; the fast path for a plain object |
//! | `classify`, `risk` | the kind of a tool call, by its name; its risk, with reasons |
//! | `arguments`, `mentions`, `sensitive` | what its arguments do; words and paths about credentials |
//! | `shell/`, `code`, `sql`, `deeds` | commands, code and SQL in them; what they come to |
//! | `hints` | what a server says of its own tools |
//! | `rough` | lines of the server's that are not JSON to every parser: what some client may read in them |
//! | `listing` | answers to `tools/list`: the tools in a line, and the line without some of them |
//! | `corpus` | for tests: calls that are labelled, and how often the classifier agrees |
//! | `conditions`, `rules` | which calls a rule is about; the YAML rules |
//! | `exceptions` | reasons that are not counted in certain calls |
//! | `ruleset`, `reload` | the rules in force; the rule file, watched |
//! | `trial` | what a change of a rule would have meant for calls on record |
//! | `fingerprint` | what tells that two calls ask for the same |
//! | `journal`, `draft`, `heads` | the hash-chained journal; its lines before they are chained; its heads in journald |
//! | `ledger` | the ledger of a user's sessions |
//! | `rows/` | the store's rows, made from a journal |
//! | `stderr`, `notice` | what is kept of a server's standard error; the interceptor's own standard error |
//! | `export` | rows as NDJSON, OCSF, CEF and SQL |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod arguments;
pub mod classify;
mod code;
pub mod conditions;
#[cfg(any(test, feature = "test-support"))]
pub mod corpus;
mod deeds;
pub mod draft;
pub mod exceptions;
pub mod export;
pub mod fingerprint;
pub mod heads;
pub mod hints;
pub mod journal;
pub mod ledger;
pub mod line;
pub mod lines;
pub mod listing;
mod mentions;
pub mod notice;
pub mod plain;
pub mod reload;
pub mod repair;
pub mod risk;
pub mod rough;
pub mod rows;
pub mod rules;
pub mod ruleset;
pub mod sensitive;
mod shell;
pub mod sql;
pub mod stderr;
pub mod strict;
pub mod trial;
mod word_list;
