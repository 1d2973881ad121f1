//! The rooms of `ringfence` that hostile bytes reach first, compiled again by their sources, and what is tried on them.

#![allow(dead_code, reason = "the rooms are compiled whole; a target uses a part of each")]

mod auditor {
    pub(crate) use crate::escape::line as printable;
}
#[path = "../../agent/src/auditor/escape.rs"]
mod escape;
pub mod llm;
mod mcp;
#[path = "../../agent/src/misplaced.rs"]
mod misplaced;
pub mod targets;
