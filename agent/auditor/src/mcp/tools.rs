//! What is pinned of servers' tools, on its way to people and to sessions.

use super::{link, sessions::Sessions};
use crate::shared::lock;
use ringfence_base::{clock, quota::Lane};
use ringfence_pins::difference;
use ringfence_store::{self as store, Decided, SessionReader, Viewer};
use ringfence_wire::{agent_tools::ToolsPinned, mcp::SessionOrder};
use serde_json::Value;

/// Why a decision about a tool is not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDecided {
    /// As the store says.
    #[error("{}", why(.0))]
    Refused(Decided),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// It was made.
    #[error("the decision is saved; running sessions pick it up when they reconnect")]
    Stored(#[source] store::Error),
}

fn why(refused: &Decided) -> &'static str {
    match refused {
        Decided::Done => "nothing is wrong with it",
        Decided::Unknown => {
            "there is no such server or tool in the inventory; `ringfence mcp inventory` lists them"
        }
        Decided::NotKept => {
            "this definition was too large to store, so it cannot be reviewed or approved; reject it, or look at the server and forget it (`ringfence mcp inventory SERVER --forget`)"
        }
        Decided::Roots => {
            "only root decides about the tools of the daemon's agents: an agent's runtime may run as this user; use sudo"
        }
        Decided::NothingWaits => "the tool has nothing to review: it is as it was pinned",
        Decided::Another => {
            "the tool does not say now what was shown with this hash: nothing is decided; look again at what `ringfence mcp pin` shows"
        }
    }
}

/// What is decided about.
#[derive(Debug, Clone)]
pub(crate) enum ToolDecision {
    /// Trust what has this hash, or do not.
    Tool {
        /// The server's id.
        server: i64,
        /// The tool.
        tool: String,
        /// The hash that was shown.
        sha256: String,
        /// Trust it.
        approve: bool,
    },
    /// Forget a server.
    Forget {
        /// The server's id.
        server: i64,
    },
}

/// What waits for a person, with what changed; see [`SessionReader::pending_tools`].
pub(crate) fn pending(
    reader: &SessionReader,
    viewer: Viewer,
    named: Option<&str>,
) -> Result<Vec<Value>, store::Error> {
    let mut rows = reader.pending_tools(viewer, named)?;
    for row in &mut rows {
        let both = (row["definition"].as_str(), row["pinned"].as_str());
        if let (Some(now), Some(pinned)) = both {
            let (lines, parts) = (difference::lines(pinned, now), difference::parts(pinned, now));
            row["difference"] = lines.into();
            row["parts"] = parts.into();
        }
        let shown = row["definition"].as_str().map(difference::as_text);
        row["shown"] = shown.into();
    }
    Ok(rows)
}

impl Sessions {
    /// Makes a decision on behalf of `viewer`, whose lane this is, and puts it in force.
    pub(crate) fn decide_tool(
        &self,
        viewer: Viewer,
        decision: &ToolDecision,
        by: &str,
        lane: Lane,
    ) -> Result<(), NotDecided> {
        let mut writer = self.writer.lock_in(lane);
        let now = clock::now_micros();
        let (decided, server) = match decision {
            ToolDecision::Tool { server, tool, sha256, approve } => {
                (writer.decide_tool(viewer, (*server, tool, sha256), (by, *approve), now)?, Some(*server))
            }
            // Sessions that run go on with what they know.
            ToolDecision::Forget { server } => (writer.forget_server(viewer, *server, by, now)?, None),
        };
        drop(writer);
        match (decided, server) {
            (Decided::Done, None) => Ok(()),
            (Decided::Done, Some(server)) => self.send_tools(server).map_err(NotDecided::Stored),
            (refused, _) => Err(NotDecided::Refused(refused)),
        }
    }

    /// Tells every session of a server that is linked what is pinned of it.
    pub(super) fn send_tools(&self, server: i64) -> Result<(), store::Error> {
        // One thread at a time, so that the last to read is the last to send.
        let _alone = lock(&self.sending_tools);
        let (agent, sessions, tools) = self.readers.ask(|reader| {
            let agent = reader.agent_of_server(server)?;
            Ok((agent, reader.sessions_of_server(server)?, reader.pinned_tools(server)?))
        })?;
        if let Some(agent) = agent {
            self.agent_lines.tell(&agent, &ToolsPinned { number: 0, server: agent.server.clone(), tools });
            return Ok(());
        }
        let Ok(frame) = link::frame(&SessionOrder::Tools { tools }) else { return Ok(()) };
        let linked = lock(&self.linked);
        let links: Vec<_> = sessions
            .iter()
            .filter_map(|session| linked.get(session))
            .map(|linked| linked.link.clone())
            .collect();
        drop(linked);
        for link in links {
            // A link that is broken is made again, and is told then.
            let _ = link.keep(&frame).and_then(|()| link.flush());
        }
        Ok(())
    }

    /// The same for the server of one session, if its interceptor says which that is.
    pub(super) fn send_tools_of(&self, session: &str) -> Result<bool, store::Error> {
        let Some(server) = self.readers.ask(|reader| reader.server_of(session))? else { return Ok(false) };
        self.send_tools(server).map(|()| true)
    }
}
