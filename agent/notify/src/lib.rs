//! Telling people of calls that wait for them: by a signed webhook, by desktop notifications. Neither can decide anything.
//!
//! | file | what |
//! |---|---|
//! | `notice` | what is said of a call: JSON for a webhook, text for a desktop. Pure |
//! | `signature` | the signature of a webhook, as Standard Webhooks has it. Pure |
//! | `webhook` | one receiver: its address, its secret, attempts and pauses |
//! | `desktop` | `notify-send` |
//! | `queue` | what waits for one receiver, bounded; nobody else waits for that |
//! | `watch` | from the list of calls that wait to the queues, and the end of it all |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod desktop;
mod notice;
mod queue;
mod signature;
mod watch;
mod webhook;

pub use desktop::{Desktop, Missing};
pub use signature::{NoKey, SigningKey};
pub use watch::{Ended, Receivers, Watch, mask_signals};
pub use webhook::{BadAddress, Webhook};

use std::io::{self, Write};

/// Says something on standard error, which may be closed.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "ringfence approvals notify: {}", ringfence_base::escape::line(line));
}
