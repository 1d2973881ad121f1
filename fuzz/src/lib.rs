//! The rooms of `ringfence` that hostile bytes reach first, compiled again by their sources, and what is tried on them.

#![allow(dead_code, reason = "the rooms are compiled whole; a target uses a part of each")]

pub mod auditor;
mod guest;
pub mod llm;
mod mcp;
#[path = "../../agent/src/misplaced.rs"]
mod misplaced;
#[path = "../../agent/src/quota/mod.rs"]
#[allow(unused_imports, reason = "as above: frames go by permits alone")]
mod quota;
mod roles;
pub mod targets;
