//! The place where a call's process gets its tag.
//!
//! A tag ties a process tree to a tool call in the kernel, and can be given only to a process that has one thread, has not
//! exec'd and is a direct child of the runtime. So each call's process waits, just forked, until its [`Tagger`] returns.

use std::os::fd::BorrowedFd;

/// Asks for a call's process to be tagged.
pub(super) trait Tagger {
    /// `process` is a pidfd of the waiting process; `call` is the id that the provider gave the tool call. Whatever comes
    /// of it, the tool runs: who has no tag is attributed less surely, not stopped.
    fn tag(&mut self, process: BorrowedFd<'_>, call: &str);
}

/// No tags: for a daemon that knows none.
#[derive(Debug)]
pub(super) struct Untagged;

impl Tagger for Untagged {
    fn tag(&mut self, _: BorrowedFd<'_>, _: &str) {}
}
