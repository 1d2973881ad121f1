//! What every role needs and none owns.
//!
//! | file | what |
//! |---|---|
//! | `error` | an error and its causes in one line |
//! | `escape`, `hex` | hostile names as text that is safe to print; bytes as hexadecimal digits |
//! | `clock` | from time since boot to the time of day |
//! | `counted` | a number and what it counts |
//! | `difference` | what differs between two texts |
//! | `remote_headers` | headers that go to a remote MCP server: how many, and which nobody may set |
//! | `quota/` | how much each user may have of what users share |
//! | `paths`, `home` | where things are on this host; the user's home directory |
//! | `sockets`, `loopback` | an agent's socket in a directory of its own; a listening port on loopback, and which hosts are that |
//! | `socket_owners` | whose the other end of a connection over loopback is |
//! | `client` | the client's end of the core's sockets |
//! | `watch` | notices that profiles changed |
//! | `lock` | one daemon at a time |
//! | `platform` | whether Ringfence runs on this system |
//! | `signals` | what somebody may send to all processes of a run |
//! | `precedence` | which threads go first when processors are short |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod client;
pub mod clock;
pub mod closing;
pub mod counted;
pub mod difference;
pub mod error;
pub mod escape;
pub mod hex;
pub mod home;
pub mod lock;
pub mod loopback;
pub mod paths;
pub mod platform;
pub mod precedence;
pub mod quota;
pub mod remote_headers;
pub mod signals;
pub mod socket_owners;
pub mod sockets;
pub mod watch;
