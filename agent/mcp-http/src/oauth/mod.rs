//! Logging in at a remote server's authorization server: MCP's specification of authorization, in its versions of 2025-06-18,
//! 2025-11-25 and 2026-07-28. A process of its own does it, confined as the one that speaks to the server is, for
//! `ringfence mcp login`, which parses nothing that a server says.
//!
//! | file | what |
//! |---|---|
//! | `challenge` | what a server wants, by its `WWW-Authenticate`. Pure |
//! | `metadata` | where servers describe themselves, and what is taken of that. Pure |
//! | `answer` | what the browser and the token endpoint bring. Pure |
//! | `fetch` | bounded requests, and nowhere but where a login may lead |
//! | `callback` | the socket that the browser is sent back to |
//! | `flow` | the steps of a login, and revoking one |
//! | `role` | the process |

pub mod answer;
mod callback;
pub mod challenge;
mod fetch;
mod flow;
pub mod metadata;
pub mod role;
