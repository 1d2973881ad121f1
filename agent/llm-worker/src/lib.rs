//! The LLM worker: one agent's socket, its conversation, its provider and its MCP clients, with the credentials on this
//! side of the socket.
//!
//! | file | what |
//! |---|---|
//! | `home` | where a user's registry, profiles, sockets and logs are |
//! | `registry`, `config` | `registry.toml` and a profile's `[llm.*]`, `[mcp.*]` to one [`config::AgentConfig`] |
//! | `secret`, `redact` | credentials from their sources; taking them out of what goes to the agent |
//! | `message`, `rpc`, `frame` | roles and blocks; JSON-RPC; frames over an async stream, one writer a connection |
//! | `agent` | what happens to one agent: register, send, turn, in which order. Pure |
//! | `connection`, `worker/` | the sockets' tasks, and the one task that drives `agent` |
//! | `conversation`, `history` | the log on disk; the same as the provider's own JSON, ready to be sent |
//! | `limits` | turns, tokens and money that an agent may use |
//! | `turn`, `remote` | one turn: log, call the provider, run remote tools, again; the seam for MCP |
//! | `mcp/` | the MCP client: sessions, the old transport, results, pinned descriptions |
//! | `http/` | the provider's own HTTP API for unmodified SDKs |
//! | `provider/`, `upstream` | one file for each provider, and the event streams they answer with; the requests to them |
//! | `acl` | one user beside the owner: a log's reader, a socket's user in a container |
//! | `role`, `confine`, `host`, `service` | the worker as a process of its own; what it may do; its link to the core or to a user's service; what the latter changes of it |
//! | `access` | who may speak on the socket; tags for tool calls |
//! | `report` | what the auditor is told, for `ringfence trace` |
//! | `serve`, `user/`, `control`, `unit`, `status` | binding sockets; `ringfence start`, which supervises a user's workers; asking it things; its systemd unit |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod access;
mod agent;
mod calls;
pub mod commands;
mod confine;
mod connection;
pub mod control;
pub mod conversation;
pub mod frame;
mod history;
mod host;
pub mod http;
pub mod limits;
pub mod mcp;
pub mod message;
pub mod provider;
#[cfg(test)]
pub mod recorded;
pub mod redact;
mod remote;
mod report;
pub mod role;
pub mod rpc;
mod service;
pub mod status;
mod turn;
pub mod unit;
mod upstream;
pub mod user;
pub mod worker;
