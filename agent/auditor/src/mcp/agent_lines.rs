//! The lines of agents' workers that are up, and telling them what is pinned.

use super::link::Link;
use crate::shared::lock;
use nix::sys::eventfd::EventFd;
use ringfence_store::OfAgent;
use ringfence_wire::agent_tools::ToolsPinned;
use std::sync::{Arc, Mutex};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AgentLines(Mutex<Vec<AgentLine>>);

/// A line that is up.
#[derive(Debug, Clone)]
pub(super) struct AgentLine {
    /// Whose agent it is.
    pub(super) uid: u32,
    /// The agent.
    pub(super) agent: String,
    /// It is the daemon's.
    pub(super) of_daemon: bool,
    /// For writing.
    pub(super) link: Link,
    /// Has the line's thread send on what was left unread.
    pub(super) nudge: Arc<EventFd>,
}

impl AgentLines {
    /// From now on this one is told.
    pub(super) fn add(&self, line: AgentLine) {
        lock(&self.0).push(line);
    }

    /// The one with this link is told no more.
    pub(super) fn remove(&self, link: &Link) {
        lock(&self.0).retain(|line| !Arc::ptr_eq(&line.link, link));
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.0).len()
    }

    /// Tells the workers of an agent what is pinned of one of its servers. Waits for none of them.
    pub(super) fn tell(&self, of: &OfAgent, pinned: &ToolsPinned) {
        let lines = lock(&self.0).clone();
        let is_its = |line: &&AgentLine| {
            line.uid == of.uid && line.of_daemon == of.of_daemon && line.agent == of.agent
        };
        for line in lines.iter().filter(is_its) {
            // One that is broken is made again, and is told then.
            let _ = line.link.send(pinned);
            if line.link.is_behind() {
                let _ = line.nudge.write(1);
            }
        }
    }
}
