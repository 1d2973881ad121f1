//! The rooms of an agent's HTTP endpoint.

#[path = "../../agent/src/llm/http/begins.rs"]
mod begins;
#[path = "../../agent/src/llm/http/gate.rs"]
mod gate;
#[path = "../../agent/src/llm/http/input.rs"]
mod input;
#[path = "../../agent/src/llm/http/relay.rs"]
mod relay;
#[path = "../../agent/src/llm/http/request.rs"]
mod request;
#[path = "../../agent/src/llm/http/strict.rs"]
mod strict;
#[path = "http_targets.rs"]
pub mod targets;
