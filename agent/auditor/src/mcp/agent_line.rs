//! The line of an agent's worker: what the agent's MCP servers list comes in, what is pinned of it goes out.
//!
//! Its supervisor connects and says whose it is; the worker has the connection from then on, and may be subverted. All that it can
//! say is about its own agent.

use super::{
    agent_lines::AgentLine,
    link::{Link, LinkWriter},
    sessions::Sessions,
    watchers::Change,
};
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};
use ringfence_base::{clock, error::chain};
use ringfence_pins::{LONGEST_NAME, MOST_TOOLS, definition::is_hash};
use ringfence_store::AgentServer;
use ringfence_wire::{
    agent_tools::{LONGEST_SEEN, MAX_SEEN, SeenDefinition, SeenTool, ToolsPinned, ToolsSeen},
    conn::Conn,
    frame::FrameError,
    mcp::McpReply,
    message::Failure,
};
use std::{
    io,
    net::Shutdown,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How often a line that has left something unread is looked after.
const LOOK: Duration = Duration::from_millis(250);
/// What comes so soon after what came before waits first, so often as long as that took: its agent's user has others that write.
const SOON: Duration = Duration::from_millis(500);
const REST: u32 = 2;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Longest name of an agent or a server, and longest address, bytes.
const LONGEST_WORD: usize = 128;
const LONGEST_ADDRESS: usize = 2000;

/// Whose line it is.
struct Whose {
    uid: u32,
    agent: String,
    of_daemon: bool,
}

/// Serves a line until its worker ends.
///
/// # Errors
/// [`FrameError`]: also that the worker ended.
pub(super) fn serve(
    mut conn: Conn,
    sessions: &Arc<Sessions>,
    (agent, owner): (String, Option<u32>),
    uid: u32,
    still: &dyn Fn() -> bool,
) -> Result<(), FrameError> {
    let refuse = |conn: &mut Conn, why: String| conn.send(&McpReply::Failed(Failure::new(why)));
    if !is_word(&agent) {
        return refuse(&mut conn, format!("{agent:?} is no name of an agent"));
    }
    if owner.is_some() && (uid != 0 || sessions.is_own()) {
        return refuse(&mut conn, "only the daemon says whose an agent is".to_owned());
    }
    // What is pinned first is trusted: by nobody who is confined, and nobody whose own tools it would be.
    if let Err(why) = sessions.may_approve(uid, conn.stream(), still) {
        sessions.waiting.refusals.log(conn.stream(), "the line of an agent's tools is", &why);
        return refuse(&mut conn, why.to_string());
    }
    let spare = conn.stream().try_clone().map_err(FrameError::from_io)?;
    let Some(permit) = sessions.agents.take(uid, move || drop(spare.shutdown(Shutdown::Both))) else {
        let why = format!("too many agents of uid {uid} are linked already");
        sessions.turned.log(conn.stream(), "the line of an agent's tools is", &why);
        return refuse(&mut conn, why);
    };
    if !permit.busy() {
        return Err(FrameError::Closed);
    }
    let still = || still() && permit.is_held();
    let whose = Whose { uid: owner.unwrap_or(uid), of_daemon: owner.is_some(), agent };
    let nudge = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let nudge = Arc::new(nudge.map_err(|errno| FrameError::from_io(errno.into()))?);
    let link: Link = Arc::new(LinkWriter::new(conn.stream().try_clone().map_err(FrameError::from_io)?));
    let Whose { uid, agent, of_daemon } = &whose;
    sessions.agent_lines.add(AgentLine {
        uid: *uid,
        agent: agent.clone(),
        of_daemon: *of_daemon,
        link: Arc::clone(&link),
        nudge: Arc::clone(&nudge),
    });
    let outcome = link
        .open(&McpReply::Linked)
        .and_then(|()| listen(&mut conn.up_to(MAX_SEEN), (&link, &nudge), (sessions, &whose), &still));
    sessions.agent_lines.remove(&link);
    outcome
}

fn listen(
    conn: &mut Conn,
    (link, nudge): (&Link, &EventFd),
    (sessions, whose): (&Arc<Sessions>, &Whose),
    still: &dyn Fn() -> bool,
) -> Result<(), FrameError> {
    // The list of which parts are still to come: its number and server, and when it began.
    let mut list: Option<(u64, String, i64)> = None;
    let mut last: Option<(Instant, Duration)> = None;
    loop {
        let mut wanted = PollFlags::POLLIN;
        wanted.set(PollFlags::POLLOUT, link.is_behind());
        let look = link.is_behind().then(|| TimeSpec::from_duration(LOOK));
        let mut polled =
            [PollFd::new(conn.stream().as_fd(), wanted), PollFd::new(nudge.as_fd(), PollFlags::POLLIN)];
        ppoll(&mut polled, look, None).map_err(|errno| FrameError::from_io(io::Error::from(errno)))?;
        let [ready, nudged] =
            polled.map(|fd| fd.revents().is_none_or(|events| events.intersects(!PollFlags::POLLOUT)));
        if nudged {
            let _ = nudge.read();
        }
        link.flush()?;
        if !ready {
            continue;
        }
        let seen = conn.receive::<ToolsSeen>()?;
        let began = match list.take() {
            None => clock::now_micros(),
            Some((number, server, began)) if (number, &server) == (seen.number, &seen.server) => began,
            // No worker of ours begins another list inside one.
            Some(_) => return Err(FrameError::Closed),
        };
        if !is_sound(&seen) {
            tracing::warn!("agent {}: its worker lists what no worker lists", whose.agent);
            return Err(FrameError::Closed);
        }
        if let Some((at, took)) = last
            && at.elapsed() < SOON
        {
            thread::sleep((took * REST).min(LONGEST_REST));
        }
        let begun = Instant::now();
        let server = store((sessions, whose), &seen, began, still)?;
        last = Some((Instant::now(), begun.elapsed()));
        if seen.more {
            list = Some((seen.number, seen.server, began));
            continue;
        }
        sessions.notify(whose.uid, Change::Tools(whose.uid));
        let known = match server {
            Some(server) => sessions.readers.ask(|reader| reader.pinned_tools(server)),
            None => Ok(Vec::new()),
        };
        let tools = known.map_err(|error| lost(whose, &error))?;
        link.send(&ToolsPinned { number: seen.number, server: seen.server, tools })?;
    }
}

/// Has a list stored, or a part of it. Its server's id; nothing where there is no room for that.
fn store(
    (sessions, whose): (&Arc<Sessions>, &Whose),
    seen: &ToolsSeen,
    began: i64,
    still: &dyn Fn() -> bool,
) -> Result<Option<i64>, FrameError> {
    let Whose { uid, agent, of_daemon } = whose;
    let (uid, of_daemon) = (*uid, *of_daemon);
    let of = AgentServer { uid, agent, of_daemon, name: &seen.server, address: &seen.address };
    let lane = sessions.writer.wait(uid, still).ok_or(FrameError::Closed)?;
    let times = (began, !seen.more, clock::now_micros());
    let stored = sessions.writer.lock_in(lane).agent_tools(&of, &seen.tools, times);
    stored.map_err(|error| lost(whose, &error))
}

/// The worker goes on with what it knows, and comes back.
fn lost(whose: &Whose, error: &ringfence_store::Error) -> FrameError {
    tracing::warn!("agent {}: what its tools are is not stored: {}", whose.agent, chain(error));
    FrameError::Closed
}

/// Whether a text can be an agent's name: those of profiles are.
fn is_word(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    !name.is_empty() && name.len() <= LONGEST_WORD && name.bytes().all(plain)
}

/// Whether each text is no longer than it may be.
fn is_sound(seen: &ToolsSeen) -> bool {
    let definition = |definition: &SeenDefinition| {
        is_hash(&definition.sha256) && definition.text.as_ref().is_none_or(|text| text.len() <= LONGEST_SEEN)
    };
    let tool = |tool: &SeenTool| {
        !tool.name.is_empty()
            && tool.name.len() <= LONGEST_NAME
            && definition(&tool.now)
            && tool.trusted.as_ref().is_none_or(definition)
    };
    let is_named = !seen.server.is_empty() && seen.server.len() <= LONGEST_WORD;
    let few = seen.tools.len() <= MOST_TOOLS;
    seen.number != 0
        && few
        && is_named
        && seen.address.len() <= LONGEST_ADDRESS
        && seen.tools.iter().all(tool)
}
