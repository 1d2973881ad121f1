//! Kernel records, decoded, described, explained and attributed to tool calls; reports of agents' workers. Pure: no
//! I/O.
//!
//! | file | what |
//! |---|---|
//! | `decode` | raw records to decoded ones; refuses what it does not know |
//! | `manifests` | which rule a record's slot or index stands for |
//! | `present` | a stored event as JSON: names for numbers |
//! | `explain` | why an event got its verdict, and the line that would change it |
//! | `attribute` | which tool call an event belongs to, and how certain that is |
//! | `matched` | which tool call an event fits by its path, where that says nothing for sure |
//! | `ties` | the same in a run's container, beside calls whose shells were tagged |
//! | `egress` | what containers' egress workers tell of connections by name, checked |
//! | `report` | what agents' workers report, checked |
//! | `samples` | samples for tests |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod attribute;
pub mod decode;
pub mod egress;
pub mod explain;
pub mod manifests;
pub mod matched;

pub mod present;
pub mod report;
#[cfg(any(test, feature = "test-support"))]
pub mod samples;
pub mod ties;
