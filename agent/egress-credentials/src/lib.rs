//! Puts one container's credentials into its requests. `ringfence egress-credentials`, the one process that ends TLS.
//!
//! | file | what |
//! |---|---|
//! | `role`, `confine` | the process: what it is given, what it may still do once it runs |
//! | `link` | messages with descriptors beside them: the core's orders, the egress worker's connections |
//! | `hosts` | the hosts, each with its rules, its credential and its certificate |
//! | `authority` | the container's own certificate authority |
//! | `taken` | one connection, from its handshake to its end |
//! | `exchange` | a request and its answer, and what ends them before their time |
//! | `server` | its other side: TLS to the server that the egress worker dialled |
//! | `request`, `answer` | heads as they are written anew; pure |
//! | `disguise` | what has some servers take a request for another one; pure |
//! | `mask`, `spelling`, `body` | credentials in what servers send back |
//! | `upgrade`, `websocket` | WebSockets |
//! | `stream` | sockets of which something was read already, and whose bytes are counted |
//! | `refusal` | why something is refused, and how its client learns of it |
//!
//! The egress worker has judged the ClientHello, found the server and dialled it; it has no credential. This process has no way to
//! make a socket or open a file: all that it speaks to was handed to it, and a server has to show the host's certificate before it
//! is told anything.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod answer;
mod authority;
mod body;
mod confine;
mod disguise;
mod exchange;
mod hosts;
mod link;
mod mask;
mod refusal;
mod request;
pub mod role;
mod server;
mod spelling;
mod stream;
mod taken;
mod upgrade;
mod websocket;
