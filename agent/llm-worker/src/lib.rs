//! The LLM worker: one agent's socket, its conversation, its provider and its MCP clients. The credentials stay on this
//! side of the socket. Also `ringfence agent start`, which supervises one user's workers.
//!
//! | file | what |
//! |---|---|
//! | `role`, `confine` | the worker as a process of its own; what it may still do once it runs |
//! | `core_client`, `service` | its link to the core or to a user's service; what that service changes while it runs |
//! | `worker/`, `connection` | the socket's tasks, and the one task that drives `agent` |
//! | `agent` | what happens to one agent, in which order: register, send, turn. Pure |
//! | `access` | who may speak on the socket, and which tool calls a process may be tagged for |
//! | `message`, `rpc`, `frame` | roles and blocks; JSON-RPC; frames over an async stream, one writer per connection |
//! | `conversation`, `history` | the log on disk; the same as the provider's own JSON, ready to send |
//! | `limits` | how many turns and tokens and how much money an agent may use |
//! | `turn`, `remote` | one turn: log, call the provider, run remote tools, repeat; the seam for MCP |
//! | `calls`, `named_paths` | ids of tool calls; the files that they name |
//! | `mcp/` | the MCP client: sessions, the old transport, results, pinned descriptions |
//! | `http/` | the provider's own HTTP API for unmodified SDKs |
//! | `provider/`, `upstream` | a file for each provider and its event streams; requests to providers |
//! | `credentials` | an agent's credentials, and the headers that carry them |
//! | `redact` | removes the agent's own credentials from what goes to it |
//! | `tie/` | the socket of a run on which its container says which process runs which call |
//! | `report`, `status` | what the auditor learns, for `ringfence events trace`; what the worker is doing |
//! | `user/`, `control`, `unit` | `ringfence agent start`; its control socket; its systemd unit |
//! | `commands` | runs commands that print credentials, for a process that may start none |
//! | `renewal` | renews a login at its provider's token endpoint, for `ringfence run` |
//!
//! Agents' configuration is in `ringfence-policy` (`agents`), the credential type in `ringfence-credentials`, binding
//! sockets in `ringfence-base` (`sockets`), the worker's process as its supervisor sees it in `ringfence-supervise`.

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
mod core_client;
mod credentials;
pub mod frame;
mod history;
pub mod http;
pub mod limits;
pub mod mcp;
pub mod message;
mod named_paths;
pub mod provider;
#[cfg(test)]
pub mod recorded;
pub mod redact;
mod remote;
pub mod renewal;
mod report;
pub mod role;
pub mod rpc;
#[cfg(test)]
mod samples;
mod service;
mod status;
mod tie;
mod turn;
pub mod unit;
mod upstream;
pub mod user;
pub mod worker;
