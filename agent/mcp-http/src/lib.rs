//! MCP's streamable HTTP on one side, its stdio transport on the other: what lets the interceptor, which knows stdio, stand
//! before a remote server.
//!
//! `ringfence mcp --url` starts this as the "server" of its session: a process that holds the credentials, speaks HTTP to the
//! remote server and lines to the interceptor. Bytes of a message are never parsed and written anew; only line breaks between
//! its parts become spaces, since a line has none.
//!
//! | file | what |
//! |---|---|
//! | `config` | which server, with which credentials: what the interceptor hands over as the first line |
//! | `sse` | server-sent events from bytes as they come. Pure |
//! | `message` | what has to be known of a message to carry it. Pure |
//! | `headers` | the headers that repeat parts of a message, in the protocol of 2026-07-28. Pure |
//! | `room` | how many bytes of answers are held at a time |
//! | `endpoint/` | the other way round: an endpoint on loopback, for clients that speak HTTP |
//! | `oauth/` | logging in at a remote server's authorization server |
//! | `remote/` | the process: `role` starts it, `confine` confines it, `http` sends, `login` has the token of a login, `session` carries messages, `stream` reads and resumes event streams, `secrets` takes credentials out of what comes back, `failure` says what went wrong |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod config;
pub mod endpoint;
pub mod headers;
pub mod message;
pub mod oauth;
pub mod remote;
mod room;
pub mod sse;
