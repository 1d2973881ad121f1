//! The rooms of the LLM worker that read what agents, providers and its own log say.

#[path = "../../agent/src/llm/calls.rs"]
pub(crate) mod calls;
#[path = "../../agent/src/llm/config.rs"]
pub(crate) mod config;
#[path = "../../agent/src/llm/conversation.rs"]
pub(crate) mod conversation;
#[path = "../../agent/src/llm/frame.rs"]
pub(crate) mod frame;
#[path = "../../agent/src/llm/history.rs"]
pub(crate) mod history;
#[path = "llm_http.rs"]
pub mod http;
#[path = "../../agent/src/llm/limits.rs"]
pub(crate) mod limits;
#[path = "../../agent/src/llm/message.rs"]
pub(crate) mod message;
#[path = "../../agent/src/llm/provider/mod.rs"]
pub(crate) mod provider;
#[path = "../../agent/src/llm/redact.rs"]
pub(crate) mod redact;
#[path = "../../agent/src/llm/rpc.rs"]
pub(crate) mod rpc;
#[path = "../../agent/src/llm/secret.rs"]
pub(crate) mod secret;
pub(crate) mod registry {
    pub(crate) use super::config::{Llm, ProviderKind};
}
#[path = "llm_targets.rs"]
pub mod targets;
