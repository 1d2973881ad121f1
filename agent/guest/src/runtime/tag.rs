//! The place where a call's process gets its tag.
//!
//! A tag ties a process tree to a tool call in the kernel, and can be given only to a process that has one thread, has not
//! exec'd and is a direct child of the runtime. So each call's process waits, just forked, until its [`Tagger`] returns.

use super::{
    link::Link,
    message::{Content, Incoming},
    say,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// How long the daemon may take for one tag: more than the 30 s for which an agent's worker waits for the core, so that a
/// daemon that others keep busy has answered by then. Who gives up sooner lets them take every later call's tag, too.
const PATIENCE: Duration = Duration::from_secs(40);

/// Asks for a call's process to be tagged.
pub(super) trait Tagger {
    /// `process` is a pidfd of the waiting process; `call` is the id that the provider gave the tool call. Whatever comes
    /// of it, the tool runs: who has no tag is attributed less surely, not stopped.
    fn tag(&mut self, process: BorrowedFd<'_>, call: &str);
}

/// Asks the daemon, over the runtime's own connection.
#[derive(Debug)]
pub(super) struct DaemonTagger<'a> {
    pub(super) link: &'a mut Link,
    /// The daemon offers tags, and has answered so far.
    pub(super) offered: &'a mut bool,
    /// Messages that came while an answer was waited for.
    pub(super) meanwhile: Vec<Content>,
    pub(super) refusals: u64,
}

impl Tagger for DaemonTagger<'_> {
    fn tag(&mut self, process: BorrowedFd<'_>, call: &str) {
        if !*self.offered {
            return;
        }
        // A connection that broke is noticed where the round is waited for.
        let Ok(id) = self.link.tag(process, call) else {
            *self.offered = false;
            return;
        };
        match self.answered(id) {
            Some(true) => {}
            Some(false) => self.refusals += 1,
            None => {
                *self.offered = false;
                say(format_args!(
                    "the daemon does not answer a tag; calls go on without until the next connection"
                ));
            }
        }
    }
}

impl DaemonTagger<'_> {
    /// Whether the request was granted; `None`: no answer came.
    fn answered(&mut self, id: u64) -> Option<bool> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let link = self.link.fd();
            match poll(&mut [PollFd::new(&link, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return None,
            }
            match self.link.receive().ok()? {
                Incoming::Answered(Some(answered), result) if answered == id => return Some(result.is_ok()),
                // About a frame that could not be understood: ours.
                Incoming::Answered(None, Err(_)) => return Some(false),
                Incoming::HumanMessage(content) => self.meanwhile.push(content),
                Incoming::Answered(..) | Incoming::Ignored => {}
            }
        }
    }
}
