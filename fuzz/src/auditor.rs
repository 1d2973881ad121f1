//! The rooms of the auditor that read what containers, and interceptors of any user, write.

#[path = "../../agent/src/auditor/decode.rs"]
pub(crate) mod decode;
#[path = "../../agent/src/auditor/escape.rs"]
pub(crate) mod escape;
#[path = "../../agent/src/auditor/store/filter.rs"]
mod filter;
#[path = "auditor_mcp.rs"]
pub(crate) mod mcp;
#[path = "auditor_targets.rs"]
pub mod targets;

#[path = "auditor_web.rs"]
pub mod web;

pub(crate) use escape::line as printable;

/// The store is not here: what of it others name.
pub(crate) mod store {
    pub(crate) use super::filter::CallFilter;
}

/// The words of an error; its causes are not what is tried.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    error.to_string()
}
