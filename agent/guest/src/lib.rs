//! What lives in the container: the runtime that drives the agent's loop.
//!
//! This is hostile ground: whatever a model makes its tools do, they do as the same user as this code. So nothing here
//! holds a key, decides a policy or knows who the provider is; the daemon at the other end of the socket and the kernel do.
//!
//! | what | file |
//! |---|---|
//! | the agent's loop, its tools, its connection | [`runtime`] |
//! | a unix socket on the container's own loopback | [`bridge`] |
//! | fork, and leaving without exit handlers: the only `unsafe` | `sys` |

pub mod bridge;
pub mod runtime;
mod sys;
