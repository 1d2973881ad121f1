//! What every role needs and none owns: error chains, clocks, quotas, paths, names that are safe to print, sockets in private
//! directories, the client's end of the core's sockets.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod client;
pub mod clock;
pub mod error;
pub mod escape;
pub mod home;
pub mod lock;
pub mod loopback;
pub mod paths;
pub mod platform;
pub mod precedence;
pub mod quota;
pub mod sockets;
pub mod watch;
