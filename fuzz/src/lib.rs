//! The rooms of `ringfence` that hostile bytes reach first, compiled again by their sources, and what is tried on them.

#![allow(dead_code, reason = "the rooms are compiled whole; a target uses a part of each")]

pub mod llm;
mod mcp;
pub mod targets;
