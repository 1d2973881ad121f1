//! How an MCP tool describes itself, as the interceptor and the LLM worker pin it: one definition, one hash, one difference.
//! Pure: no I/O, no clock.
//!
//! | file | what |
//! |---|---|
//! | `definition` | what of a tool counts, in one spelling; its hash |
//! | `difference` | what changed between two definitions, for people |
//! | `flags/` | what a description should not have: what cannot be seen, instructions to the model, other servers' tools |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod definition;
pub mod difference;
pub mod flags;

pub use definition::{Definition, Unjudged};
pub use flags::Flag;

/// Longest name of a tool that is pinned, bytes. The protocol has 128 characters.
pub const LONGEST_NAME: usize = 256;
/// Longest definition that is pinned, bytes of its one spelling.
pub const LONGEST_DEFINITION: usize = 256 << 10;
/// Most tools of a server that are pinned.
pub const MOST_TOOLS: usize = 2048;
/// Most bytes of all definitions of a server.
pub const MOST_BYTES: usize = 16 << 20;
