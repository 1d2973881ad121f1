//! One turn: log what the runtime brought, ask the provider, run remote tools, ask again, until there is an answer for
//! the runtime. One task for each agent runs them, one after another.

use super::{
    agent::Outcome,
    calls::{Begun, CallKey},
    conversation::{self, Conversation},
    frame::Peer,
    history::Pieces,
    http::request::provider_run,
    limits,
    message::{Message, Role, ToolCall},
    provider::{Answer, Piece, RequestTemplate, Usage, cut_off},
    redact::Redactor,
    remote::{RemoteResult, RemoteTool, RemoteTools},
    report::{self, Intent, Reporter},
    rpc::{self, INTERNAL, INVALID_PARAMS, Id, Output, RpcError, Tool, TurnParams, TurnResult},
    upstream::Provider,
};
use audience::Audience;
use jiff::Timestamp;
use reqwest::StatusCode;
use ringfence_base::error::chain;
use ringfence_policy::agents::registry::{AgentConfig, Llm};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use toolbox::{Toolbox, check_tools, fitted, merge};

mod audience;
mod toolbox;

/// Remote tools of one answer that run at a time.
const AT_ONCE: usize = 8;
/// What a turn that was cut off by the cap answers its calls with.
const CAPPED: &str = "not run: this message has reached its limit of rounds";
/// The stop reason of such a turn.
pub(crate) const MAX_ITERATIONS: &str = "max_iterations";

/// A turn to run.
pub(crate) struct Job {
    /// Comes back with the outcome.
    pub epoch: u64,
    /// The request.
    pub id: Id,
    /// What it brings.
    pub params: Box<TurnParams>,
    /// Who asked.
    pub runtime: Peer,
    /// Who hears the text as well.
    pub(crate) subscriber: Option<Peer>,
    /// The message that it is for.
    pub intent: Option<Intent>,
    /// It may not end in tool calls for the runtime.
    pub last: bool,
    /// The runtime is gone.
    pub cancel: CancellationToken,
    /// Becomes the epoch just before the runtime is answered: it may ask for the next turn before the report is read.
    pub answered: Arc<AtomicU64>,
}

/// How a turn came out.
#[derive(Debug)]
pub(crate) struct Report {
    /// The turn.
    pub epoch: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it cost.
    pub usage: Usage,
    /// Bytes of the conversation as the provider is sent it.
    pub bytes: usize,
}

/// What the task is told.
pub(crate) enum Order {
    /// Run a turn.
    Turn(Job),
    /// The configuration changed: from the next turn on.
    Replace(Box<Parts>),
}

/// What a configuration makes.
pub(crate) struct Parts {
    pub config: Arc<AgentConfig>,
    pub provider: Arc<Provider>,
    pub remote: Option<Arc<dyn RemoteTools>>,
    pub redactor: Arc<Redactor>,
    /// The conversation's log.
    pub log: PathBuf,
}

impl Parts {
    /// The conversation as this configuration's provider is sent it. Blocks.
    ///
    /// # Errors
    /// [`conversation::Error`].
    pub(crate) fn open(&self) -> Result<Conversation, conversation::Error> {
        let opened = Conversation::open(&self.log, self.provider.kind(), self.config.log_reader);
        let (conversation, replay) = opened?;
        let (name, log) = (&self.config.name, self.log.display());
        if replay.torn > 0 {
            let bytes = replay.torn;
            tracing::warn!(
                "agent {name}: {log}: the last line was cut off by a crash; its {bytes} bytes are removed"
            );
        }
        if replay.skipped > 0 {
            tracing::warn!("agent {name}: {log}: {} lines are no messages and are left out", replay.skipped);
        }
        tracing::info!("agent {name}: {} messages of its conversation read", replay.messages);
        Ok(conversation)
    }
}

/// The task's state.
pub(crate) struct Turns {
    parts: Parts,
    conversation: Conversation,
    system: Option<String>,
    local: Vec<Arc<Tool>>,
    toolbox: Option<Toolbox>,
    reporter: Reporter,
    /// The calls of the last answer that have no result: what the record knows them by.
    open: HashMap<String, CallKey>,
}

/// What a call of the model came to so far.
#[derive(Default)]
struct Progress {
    /// Bytes that the provider was sent.
    sent: usize,
    /// The provider gave no answer: it costs nothing.
    refused: bool,
    reported_usage: Option<Usage>,
    /// Bytes of the model's words.
    text_bytes: usize,
    /// The calls that began, in their order.
    began: Vec<Begun>,
}

enum Stop {
    Failed(RpcError),
    /// Nobody is there to be answered.
    Cancelled,
}

impl From<RpcError> for Stop {
    fn from(error: RpcError) -> Self {
        Self::Failed(error)
    }
}

impl Turns {
    /// What the agent uses is counted here, however often its configuration changes.
    pub(crate) fn meter(&self) -> limits::Shared {
        self.conversation.meter.clone()
    }

    pub(crate) fn new(parts: Parts, conversation: Conversation) -> Self {
        let reporter = Reporter::default();
        let open = HashMap::new();
        Self { parts, conversation, system: None, local: Vec::new(), toolbox: None, reporter, open }
    }

    /// Tells the auditor what happens.
    pub(crate) fn with_reporter(self, reporter: Reporter) -> Self {
        Self { reporter, ..self }
    }

    /// Runs turns until nobody can order one.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>, reports: mpsc::Sender<Report>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Turn(job) => {
                    let report = self.job(job).await;
                    if reports.send(report).await.is_err() {
                        return;
                    }
                }
                Order::Replace(parts) => self.replace(*parts).await,
            }
        }
    }

    /// Between two turns, so that nobody else writes to the log while it is read.
    async fn replace(&mut self, parts: Parts) {
        let same_form = parts.provider.kind() == self.parts.provider.kind();
        if same_form && parts.config.log_reader == self.parts.config.log_reader {
            self.parts = parts;
            self.toolbox = None;
            return;
        }
        let name = parts.config.name.clone();
        match tokio::task::spawn_blocking(move || (parts.open(), parts)).await {
            Ok((Ok(mut conversation), parts)) => {
                // HTTP calls are counted on it, too.
                conversation.meter = self.conversation.meter.clone();
                (self.parts, self.conversation, self.toolbox) = (parts, conversation, None);
            }
            Ok((Err(error), _)) => {
                tracing::error!("agent {name}: the old configuration holds: {}", chain(&error))
            }
            Err(error) => tracing::error!("agent {name}: the old configuration holds: {error}"),
        }
    }

    async fn job(&mut self, job: Job) -> Report {
        let Job { epoch, id, params, runtime, subscriber, intent, last, cancel, answered } = job;
        let mut usage = Usage::default();
        let to = Audience {
            runtime: &runtime,
            subscriber: subscriber.as_ref(),
            intent: intent.as_ref(),
            cancel: &cancel,
        };
        let result = self.turn(*params, &to, last, &mut usage).await;
        // Nothing is answered that a crash could take back.
        let committed = self.conversation.commit().await.map_err(|error| {
            tracing::error!("agent {}: {}", self.parts.config.name, chain(&error));
            Stop::Failed(RpcError::new(INTERNAL, "the conversation cannot be logged; see the host's log"))
        });
        answered.store(epoch, Ordering::Release);
        let outcome = match result.and_then(|result| committed.map(|()| result)) {
            Ok(result) => {
                runtime.push_patiently(rpc::result(&id, &result)).await;
                match result.stop_reason.as_str() {
                    _ if !result.tool_calls.is_empty() => Outcome::ToolUse,
                    MAX_ITERATIONS => Outcome::Capped,
                    _ => Outcome::Done,
                }
            }
            Err(Stop::Cancelled) => Outcome::Failed("the turn was cancelled".to_owned()),
            Err(Stop::Failed(mut error)) => {
                error.message = self.parts.redactor.text(&error.message).into_owned();
                error.data = error.data.map(|data| self.parts.redactor.value(data));
                tracing::info!("agent {}: a turn failed: {error}", self.parts.config.name);
                runtime.push_patiently(rpc::error(Some(&id), &error)).await;
                Outcome::Failed(error.message)
            }
        };
        Report { epoch, outcome, usage, bytes: self.conversation.bytes() }
    }

    async fn turn(
        &mut self,
        params: TurnParams,
        to: &Audience<'_>,
        last: bool,
        usage: &mut Usage,
    ) -> Result<TurnResult, Stop> {
        self.conversation.check(&params.messages)?;
        // The runtime is in the container, and reaches no further by its provider than by itself.
        for block in params.messages.iter().flat_map(|message| &message.content) {
            let refused = |why| RpcError::new(INVALID_PARAMS, why);
            provider_run::check_content(self.llm(), block.raw()).map_err(refused)?;
        }
        // These calls are over: nothing can be tagged for any any more.
        self.reporter.issue([]);
        params.messages.iter().for_each(|message| self.ended(message));
        self.prepare(params.system, params.tools, to).await?;
        self.conversation.begin(params.messages);
        self.flush().await?;
        self.conversation.meter.lock().turn(&self.parts.config.limits, Timestamp::now())?;
        if let Some(stop_reason) = params.stop {
            let content = Some(Vec::new());
            return Ok(TurnResult { stop_reason, content, tool_calls: Vec::new(), tags: false });
        }
        for _ in 0..self.llm().max_mcp_rounds {
            let answer = self.ask(to, usage).await?;
            let Answer { stop_reason, content, tool_calls, .. } = answer;
            // The provider works on something of its own, and wants to be asked again.
            if stop_reason == "pause_turn" {
                continue;
            }
            let public = content.into_iter().filter(|block| block.is_public()).collect::<Vec<_>>();
            if tool_calls.is_empty() {
                // A runtime would wait for calls that are not there.
                // What only we say is none of a provider's words.
                let is_ours = ["tool_use", MAX_ITERATIONS].contains(&stop_reason.as_str());
                let stop_reason = if is_ours { "end_turn".to_owned() } else { stop_reason };
                return Ok(TurnResult { stop_reason, content: Some(public), tool_calls, tags: false });
            }
            self.run_remote(&tool_calls, to).await?;
            let local: Vec<ToolCall> =
                tool_calls.into_iter().filter(|call| !self.is_remote(&call.name)).collect();
            if local.is_empty() {
                self.flush().await?;
                continue;
            }
            if last {
                self.conversation.answer_missing(CAPPED);
                return Ok(capped(public));
            }
            let content = (!public.is_empty()).then_some(public);
            // Before the runtime hears of them.
            let issued =
                local.iter().filter_map(|call| Some((call.id.as_str(), self.open.get(&call.id)?.clone())));
            self.reporter.issue(issued);
            let tags = self.reporter.can_tag();
            return Ok(TurnResult { stop_reason, content, tool_calls: local, tags });
        }
        Ok(capped(Vec::new()))
    }

    /// Takes what the turn brings of system and tools, and finds what there is of remote ones.
    async fn prepare(
        &mut self,
        system: Option<String>,
        tools: Option<Vec<Tool>>,
        to: &Audience<'_>,
    ) -> Result<(), Stop> {
        if let Some(tools) = &tools {
            check_tools(tools)?;
        }
        let is_stale = self.parts.remote.as_ref().is_some_and(|remote| remote.is_stale());
        if self.toolbox.is_some() && system.is_none() && tools.is_none() && !is_stale {
            return Ok(());
        }
        let local: Vec<Arc<Tool>> = match tools {
            Some(tools) => tools.into_iter().map(Arc::new).collect(),
            None => self.local.clone(),
        };
        let offered = match &self.parts.remote {
            None => Vec::new(),
            Some(remote) => to.unless_cancelled(remote.list()).await?.map_err(|why| {
                RpcError::new(INTERNAL, format!("the MCP servers' tools cannot be had: {why}"))
            })?,
        };
        let offered = offered.into_iter().filter(|tool| self.allows(tool));
        let offered: Vec<RemoteTool> = offered.filter_map(|tool| fitted(self.llm().provider, tool)).collect();
        let remote = merge(&local, &offered)?;
        let system = system.or_else(|| self.system.take());
        let all: Vec<Arc<Tool>> = local.iter().cloned().chain(offered.into_iter().map(|t| t.tool)).collect();
        let template = self.parts.provider.request_template(system.as_deref(), &all);
        (self.system, self.local, self.toolbox) = (system, local, Some(Toolbox { remote, template }));
        Ok(())
    }

    fn allows(&self, tool: &RemoteTool) -> bool {
        self.parts.config.mcp.iter().any(|mcp| mcp.name == tool.server && mcp.allows(&tool.tool.name))
    }

    fn llm(&self) -> &Llm {
        &self.parts.config.llm
    }

    fn is_remote(&self, tool: &str) -> bool {
        self.toolbox.as_ref().is_some_and(|toolbox| toolbox.remote.contains_key(tool))
    }

    async fn flush(&mut self) -> Result<(), Stop> {
        Ok(self.conversation.flush().await.map_err(|error| {
            tracing::error!("agent {}: {}", self.parts.config.name, chain(&error));
            RpcError::new(INTERNAL, "the conversation cannot be logged; see the host's log")
        })?)
    }

    /// One call of the model: what it says streams out, the whole is logged.
    async fn ask(&mut self, to: &Audience<'_>, usage: &mut Usage) -> Result<Answer, Stop> {
        let RequestTemplate { before, after } =
            self.toolbox.as_ref().map(|t| t.template.clone()).unwrap_or_default();
        let config = &self.parts.config;
        self.conversation.meter.lock().check(&config.limits, &config.llm.price, Timestamp::now())?;
        let body = self.conversation.body(before, after, self.parts.provider.marks_cache());
        let mut progress = Progress { sent: body.len(), ..Progress::default() };
        let mut answer = match self.stream(body, to, &mut progress).await {
            Ok(answer) => answer,
            Err(stop) => {
                if !progress.refused {
                    let cost = cut_off(progress.reported_usage, progress.sent, progress.text_bytes);
                    *usage += cost;
                    self.conversation.record_usage(&cost);
                }
                return Err(stop);
            }
        };
        let reported = answer.usage.unwrap_or_default();
        *usage += reported;
        let redactor = &self.parts.redactor;
        answer.stop_reason = redactor.text(&answer.stop_reason).into_owned();
        answer.tool_calls.iter_mut().for_each(|call| redactor.call(call));
        let named = answer.name(&progress.began.iter().map(|begun| begun.id.as_str()).collect::<Vec<_>>());
        named.inspect_err(|_| self.conversation.record_usage(&reported))?;
        answer.content = answer.content.into_iter().map(|block| redactor.block(block)).collect();
        self.open.clear();
        // Who cuts a turn off is the runtime, which has seen the calls begin: they are on record all the same.
        let (never, mut waits) = (CancellationToken::new(), true);
        for (call, begun) in answer.tool_calls.iter().zip(&progress.began) {
            let server = self.toolbox.as_ref().and_then(|toolbox| toolbox.remote.get(&call.name));
            let patience = waits.then_some(&never);
            waits = self.reporter.call(to.intent, begun, call, server.map(String::as_str), patience).await;
            self.open.insert(begun.id.clone(), begun.key.clone());
        }
        let message = Message {
            role: Role::Assistant,
            content: answer.content.clone(),
            tool_calls: answer.tool_calls.clone(),
            tool_call_id: None,
            tool_name: None,
            is_error: false,
        };
        self.conversation.push(message, answer.usage.as_ref());
        Ok(answer)
    }

    /// Passes on what the model says until it is done.
    async fn stream(&self, body: Pieces, to: &Audience<'_>, progress: &mut Progress) -> Result<Answer, Stop> {
        let asked = to.unless_cancelled(self.parts.provider.ask(body)).await?;
        let mut stream = asked.inspect_err(|error| {
            progress.refused = true;
            if error.code == i64::from(StatusCode::UNAUTHORIZED.as_u16()) {
                self.reporter.key_refused();
            }
        })?;
        let mut text = self.parts.redactor.stream();
        let mut input = self.parts.redactor.json_stream();
        let mut shown = true;
        while let Some(piece) = {
            let next = to.unless_cancelled(stream.next()).await;
            (progress.reported_usage, progress.text_bytes) = (stream.reported_usage(), stream.text_bytes());
            next??
        } {
            match piece {
                Piece::Text(piece) => to.text(&text.push(&piece)).await?,
                Piece::ToolStart { id, name } => {
                    let begun = {
                        let mut used = self.conversation.used.lock().unwrap_or_else(PoisonError::into_inner);
                        used.begin(&id, report::now(), &self.parts.redactor)
                    };
                    let (id, name) = (begun.id.clone(), self.parts.redactor.text(&name));
                    progress.began.push(begun);
                    let held = std::mem::replace(&mut input, self.parts.redactor.json_stream()).finish();
                    to.input(&held).await?;
                    // The runtime knows nothing of remote tools.
                    shown = !self.is_remote(&name);
                    if shown {
                        to.runtime(&Output::ToolUseStart { id: &id, name: &name }).await?;
                    }
                }
                // The protocol has pieces of the last call only; all of each is in the answer.
                Piece::ToolInput { call, text } if shown && call + 1 == progress.began.len() => {
                    to.input(&input.push(&text)).await?;
                }
                Piece::ToolInput { .. } => {}
            }
        }
        to.text(&text.finish()).await?;
        to.input(&input.finish()).await?;
        Ok(stream.finish()?)
    }

    /// Runs the calls that are ours, at once, and logs their results in the order of the calls.
    async fn run_remote(&mut self, calls: &[ToolCall], to: &Audience<'_>) -> Result<(), Stop> {
        let (Some(remote), Some(toolbox)) = (&self.parts.remote, &self.toolbox) else { return Ok(()) };
        let mine: Vec<(ToolCall, String)> = calls
            .iter()
            .filter_map(|call| Some((call.clone(), toolbox.remote.get(&call.name)?.clone())))
            .collect();
        let mut results: Vec<Option<RemoteResult>> = vec![None; mine.len()];
        let mut running = JoinSet::new();
        let mut next = mine.iter().cloned().enumerate();
        loop {
            while running.len() < AT_ONCE
                && let Some((at, (call, server))) = next.next()
            {
                let remote = Arc::clone(remote);
                running.spawn(async move { (at, remote.call(&server, &call.name, &call.input).await) });
            }
            match to.unless_cancelled(running.join_next()).await? {
                None => break,
                Some(Ok((at, result))) => results[at] = Some(result),
                Some(Err(error)) => {
                    return Err(
                        RpcError::new(INTERNAL, format!("a remote tool could not be run: {error}")).into()
                    );
                }
            }
        }
        for ((call, _), result) in mine.into_iter().zip(results) {
            let Some(result) = result else { continue };
            let content = result.content.into_iter().map(|block| self.parts.redactor.block(block)).collect();
            let message = Message {
                role: Role::Tool,
                content,
                tool_calls: Vec::new(),
                tool_call_id: Some(call.id),
                tool_name: None,
                is_error: result.is_error,
            };
            self.ended(&message);
            self.conversation.push(message, None);
        }
        Ok(())
    }

    /// Tells of a tool's result, once.
    fn ended(&mut self, message: &Message) {
        let Some(key) = message.tool_call_id.as_ref().and_then(|id| self.open.remove(id)) else { return };
        self.reporter.ended(&key, message.is_error, &message.content, &self.parts.redactor);
    }
}

fn capped(content: Vec<super::message::Block>) -> TurnResult {
    let stop_reason = MAX_ITERATIONS.to_owned();
    TurnResult { stop_reason, content: Some(content), tool_calls: Vec::new(), tags: false }
}

#[cfg(test)]
mod tests;
