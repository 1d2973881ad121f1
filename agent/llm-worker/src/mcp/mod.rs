//! The MCP client: the servers of an agent's `[mcp.*]` sections, spoken to from this side of the socket.
//!
//! A server is connected to when its tools are first needed, and the connection is kept. When it drops, it is made anew
//! once for each thing that was to be done. What a server says is bounded in size and time.

pub(crate) mod line;
pub mod pins;
mod result;
mod session;
mod sse;

use super::{
    message::Block,
    redact::Redactor,
    remote::{Later, RemoteResult, RemoteTool, RemoteTools},
    rpc::Tool,
};
use line::{Host, ToolsLine};
use pins::{Pins, Told};
use ringfence_credentials::Secret;
use ringfence_policy::agents::registry::Mcp;
use serde_json::value::RawValue;
use session::{Failure, Session};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex as Blocking, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::Mutex, task::JoinSet};

/// Longest name of a tool; providers take no longer one.
const MAX_NAME: usize = 64;

/// Longest address of a server that the auditor is told, bytes.
const LONGEST_ADDRESS: usize = 1000;

/// How long turns go without a server's tools before they are asked for again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// All servers of an agent.
pub(crate) struct Servers {
    servers: Vec<Arc<Server>>,
    pins: Pins,
    line: ToolsLine,
    redactor: Redactor,
    /// The pins' file as it was when tools were last listed, and the number of the line's news.
    listed: Blocking<(Option<pins::Stamp>, u64)>,
}

impl Servers {
    /// For these sections, each with its token. `pins` is the file that remembers what is pinned while the auditor cannot be
    /// asked, by way of `host`.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub(crate) fn new(
        sections: Vec<(Mcp, Option<Secret>)>,
        (pins, host): (PathBuf, Host),
    ) -> Result<Self, reqwest::Error> {
        let redactor = Redactor::new(sections.iter().filter_map(|(_, token)| token.as_ref()));
        let client = session::http_client()?;
        let servers = sections
            .into_iter()
            // `tools = []` switches a server off.
            .filter(|(section, _)| section.tools.as_ref().is_none_or(|tools| !tools.is_empty()))
            .map(|(section, token)| {
                Arc::new(Server {
                    section,
                    token,
                    client: client.clone(),
                    state: Mutex::default(),
                    away: Blocking::default(),
                })
            })
            .collect();
        let pins = Pins::new(pins);
        let line = ToolsLine::new(host, pins.clone());
        Ok(Self { servers, pins, line, redactor, listed: Blocking::default() })
    }

    async fn list_all(&self) -> Result<Vec<RemoteTool>, String> {
        let (stamp, news) = (self.pins.stamp(), self.line.news());
        let mut running = JoinSet::new();
        for (at, server) in self.servers.iter().cloned().enumerate() {
            running.spawn(async move { (at, server.list_if_there().await) });
        }
        let mut lists: Vec<Result<Option<Vec<Tool>>, String>> = vec![Ok(None); self.servers.len()];
        while let Some(done) = running.join_next().await {
            let (at, list) = done.map_err(|error| error.to_string())?;
            lists[at] = list;
        }
        let mut all = Vec::new();
        for (server, list) in self.servers.iter().zip(lists) {
            let name = &server.section.name;
            let Some(list) = list.map_err(|why| format!("[mcp.{name}]: {why}"))? else { continue };
            let tools: Vec<Tool> = list.into_iter().map(|tool| self.cleaned(tool)).collect();
            let told = self.tell(&server.section, &tools).await?;
            let (pins, of) = (self.pins.clone(), name.clone());
            let judge = move || pins.judge(&of, tools, told.as_ref());
            let judged = blocking(judge).await?;
            for (tool, why) in &judged.unjudged {
                tracing::warn!("[mcp.{name}]: the tool {tool:?} is left out: {why}");
            }
            for tool in &judged.changed {
                tracing::warn!(
                    "[mcp.{name}]: the tool {tool:?} is not what it was when it was first used; it is left out until it is \
                     approved: `ringfence agent pin`, or `ringfence mcp pin`"
                );
            }
            all.extend(
                judged.kept.into_iter().map(|tool| RemoteTool { server: name.clone(), tool: Arc::new(tool) }),
            );
        }
        // Pinning for the first time changes the file, too: that is no news.
        let stamp = if self.pins.wrote_since(&stamp) { self.pins.stamp() } else { stamp };
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = (stamp, news);
        Ok(all)
    }

    /// Tells the auditor what a server lists. What is pinned of that, as far as it says.
    async fn tell(&self, section: &Mcp, tools: &[Tool]) -> Result<Option<Told>, String> {
        let (pins, of, tools) = (self.pins.clone(), section.name.clone(), tools.to_vec());
        let seen = blocking(move || pins.seen(&of, &tools)).await?;
        let mut address = section.url.clone();
        // There may be a password or a token in these.
        let _ = (address.set_username(""), address.set_password(None));
        address.set_query(None);
        let address = ringfence_redact::redact(&self.redactor.text(address.as_str())).into_owned();
        let address = &address[..address.floor_char_boundary(LONGEST_ADDRESS)];
        Ok(self.line.tell(&section.name, address, seen).await)
    }

    fn cleaned(&self, mut tool: Tool) -> Tool {
        tool.description = self.redactor.text(&tool.description).into_owned();
        tool.parameters = self.redactor.json(tool.parameters);
        tool.whole = tool.whole.map(|whole| self.redactor.json(whole));
        tool
    }
}

impl RemoteTools for Servers {
    fn list(&self) -> Later<'_, Result<Vec<RemoteTool>, String>> {
        Box::pin(self.list_all())
    }

    fn call<'a>(&'a self, server: &'a str, tool: &'a str, input: &'a RawValue) -> Later<'a, RemoteResult> {
        Box::pin(async move {
            let Some(server) = self.servers.iter().find(|s| s.section.name == server) else {
                return failed(&format!("there is no MCP server {server:?} any more"));
            };
            match server.call(tool, input).await {
                Ok(result) => result,
                Err(why) => failed(&format!("[mcp.{}]: {why}", server.section.name)),
            }
        })
    }

    fn is_stale(&self) -> bool {
        let listed = *self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        self.servers.iter().any(|server| server.is_stale())
            || listed != (self.pins.stamp(), self.line.news())
            || self.line.is_due()
    }
}

/// Work on the pins' file, beside the runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, pins::Error> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| error.to_string())?.map_err(|error| ringfence_base::error::chain(&error))
}

fn failed(why: &str) -> RemoteResult {
    RemoteResult { content: vec![Block::text(why)], is_error: true }
}

struct Server {
    section: Mcp,
    token: Option<Secret>,
    client: reqwest::Client,
    state: Mutex<State>,
    /// Its tools could not be had, and are not required.
    away: Blocking<Option<Away>>,
}

/// A server whose tools cannot be had.
struct Away {
    why: String,
    /// When to try again, and how long that was after the last try.
    again: (Instant, Duration),
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    tools: Option<Vec<Tool>>,
    /// It was the old transport that worked.
    is_old: bool,
}

impl Server {
    /// Its tools; none where they cannot be had, and a turn goes on without.
    ///
    /// # Errors
    /// They cannot be had, and are required.
    async fn list_if_there(&self) -> Result<Option<Vec<Tool>>, String> {
        if self.away().as_ref().is_some_and(|away| Instant::now() < away.again.0) {
            return Ok(None);
        }
        let (name, begun) = (&self.section.name, Instant::now());
        match self.list().await {
            Ok(tools) => {
                if self.away().take().is_some() {
                    tracing::info!("[mcp.{name}]: its tools are there again");
                }
                Ok(Some(tools))
            }
            Err(why) if self.section.required => Err(why),
            Err(why) => {
                let mut away = self.away();
                // Whoever reads the log is told once.
                if away.as_ref().is_none_or(|before| before.why != why) {
                    tracing::warn!(
                        "[mcp.{name}]: {why}; turns go on without its tools until they can be had"
                    );
                }
                let pause = away.as_ref().map_or(FIRST_PAUSE, |before| before.again.1 * 2);
                // One that hangs is asked rarely from the first time on.
                let pause = pause.min(LONGEST_PAUSE).max(10 * begun.elapsed());
                *away = Some(Away { why, again: (Instant::now() + pause, pause) });
                Ok(None)
            }
        }
    }

    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tools that the profile allows, in the server's order; asked for once, and again when the server says that they
    /// have changed.
    async fn list(&self) -> Result<Vec<Tool>, String> {
        let (mut session, is_new) = self.session().await?;
        {
            let state = self.state.lock().await;
            if let (Some(tools), false) = (&state.tools, session.is_stale()) {
                return Ok(tools.clone());
            }
        }
        let mut listed = session.list().await;
        if let (Err(Failure::Dropped(_)), false) = (&listed, is_new) {
            session = self.reconnect(&session).await?;
            listed = session.list().await;
        }
        let tools = self.usable(listed.map_err(|failure| failure.to_string())?)?;
        self.state.lock().await.tools = Some(tools.clone());
        Ok(tools)
    }

    fn usable(&self, all: Vec<Tool>) -> Result<Vec<Tool>, String> {
        let mut seen = BTreeSet::new();
        let mut usable = Vec::new();
        for tool in all.into_iter().filter(|tool| self.section.allows(&tool.name)) {
            // A provider refuses the whole request for one name that it does not like.
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if tool.name.is_empty() || tool.name.len() > MAX_NAME || !tool.name.chars().all(fits) {
                tracing::warn!(
                    "[mcp.{}]: the tool {:?} is left out: no provider takes its name",
                    self.section.name,
                    tool.name
                );
                continue;
            }
            if !seen.insert(tool.name.clone()) {
                return Err(format!("it lists two tools of the name {:?}", tool.name));
            }
            usable.push(tool);
        }
        Ok(usable)
    }

    async fn call(&self, tool: &str, input: &RawValue) -> Result<RemoteResult, String> {
        let arguments = match serde_json::from_str(input.get()) {
            Ok(serde_json::Value::Object(arguments)) => arguments,
            _ => return Err("the arguments are no JSON object".to_owned()),
        };
        let (session, is_new) = self.session().await?;
        match session.call(tool, arguments.clone()).await {
            Ok(result) => Ok(result),
            // The connection may have died long ago: only using it tells.
            Err(Failure::Dropped(why)) if !is_new => {
                tracing::info!("[mcp.{}]: {why}; it is connected to again", self.section.name);
                let session = self.reconnect(&session).await?;
                session.call(tool, arguments).await.map_err(|failure| failure.to_string())
            }
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// The session, and whether it was made just now.
    async fn session(&self) -> Result<(Arc<Session>, bool), String> {
        let mut state = self.state.lock().await;
        match &state.session {
            Some(session) if !session.is_closed() => Ok((Arc::clone(session), false)),
            _ => Ok((self.connect(&mut state).await?, true)),
        }
    }

    /// Another session in the place of `broken`, unless somebody else made one.
    async fn reconnect(&self, broken: &Arc<Session>) -> Result<Arc<Session>, String> {
        let mut state = self.state.lock().await;
        match &state.session {
            Some(session) if !Arc::ptr_eq(session, broken) && !session.is_closed() => Ok(Arc::clone(session)),
            _ => self.connect(&mut state).await,
        }
    }

    async fn connect(&self, state: &mut State) -> Result<Arc<Session>, String> {
        (state.session, state.tools) = (None, None);
        let session =
            Session::connect(&self.client, &self.section, self.token.as_ref(), state.is_old).await?;
        state.is_old = session.is_old();
        Ok(Arc::clone(state.session.insert(Arc::new(session))))
    }

    fn is_stale(&self) -> bool {
        if self.away().as_ref().is_some_and(|away| Instant::now() >= away.again.0) {
            return true;
        }
        // Held: somebody connects or lists; what comes of it shows at the next turn.
        self.state.try_lock().is_ok_and(|state| state.session.as_ref().is_some_and(|s| s.is_stale()))
    }
}
