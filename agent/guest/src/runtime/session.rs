//! The agent's loop: a message, a turn, tools, a turn, until the model is done; then the next message.
//!
//! The daemon owns the conversation, so nothing here has to survive: whatever goes wrong, the loop is back at "register
//! and wait". What was under way then is over: a turn is not sent twice, because the daemon may have it on record.

use super::{
    args::Settings,
    call::Outcome,
    link::{self, Error, Link},
    message::{Answer, Content, Incoming, Message, RpcError, Text, ToolCall, Turn},
    round::{Round, Wakeup, Watch},
    say,
    tag::DaemonTagger,
};
use ringfence_base::error::chain;
use ringfence_file_tools::output::Excerpt;
use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Most messages that wait for the one before. The daemon queues them; one that does not is not allowed to fill memory.
const MOST_WAITING: usize = 64;

/// Most bytes of such messages.
const MOST_WAITING_BYTES: usize = 32 << 20;

/// Turns that say "no more tools" before the connection is given up.
const MOST_CLOSING: u32 = 3;

/// First and longest wait before connecting again.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A connection that stood this long was a good one.
const STANDING: Duration = Duration::from_secs(10);

/// Least characters of a result that is cut again to fit a message.
const LEAST_CHARS: usize = 500;

/// What ends a connection's use.
enum SessionEnd {
    /// The runtime is to end.
    Stop,
    /// Connect again.
    Reconnect(Error),
    /// The runtime's own system calls fail.
    Broken(io::Error),
}

impl From<Error> for SessionEnd {
    fn from(error: Error) -> Self {
        Self::Reconnect(error)
    }
}

impl From<io::Error> for SessionEnd {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Runs until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// When the runtime cannot even wait: out of descriptors or memory.
pub(super) fn run(settings: &Settings) -> io::Result<()> {
    let mut watch = Watch::new()?;
    let mut wait = WAITS.0;
    let mut last = String::new();
    let mut refusal = String::new();
    loop {
        let start = Instant::now();
        let mut was_used = false;
        let error = match connected(settings, &mut watch, &mut was_used, &mut refusal) {
            SessionEnd::Stop => return Ok(()),
            SessionEnd::Broken(error) => return Err(error),
            SessionEnd::Reconnect(error) => error,
        };
        if was_used || start.elapsed() >= STANDING {
            wait = WAITS.0;
            last.clear();
            refusal.clear();
        }
        let reason = chain(&error);
        if reason != last {
            say(format_args!("{reason}; trying again"));
            last = reason;
        }
        if watch.for_time(jittered(wait))? == Wakeup::Stop {
            return Ok(());
        }
        wait = (wait * 2).min(WAITS.1);
    }
}

/// Up to a quarter more, so that the runtimes of a host do not come back in step.
fn jittered(wait: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    wait + wait * (nanos % 1024) / 4096
}

/// One connection, from registering to its end.
fn connected(
    settings: &Settings,
    watch: &mut Watch,
    was_used: &mut bool,
    refusal: &mut String,
) -> SessionEnd {
    let link = match Link::open(&settings.socket) {
        Ok(link) => link,
        Err(error) => return SessionEnd::Reconnect(error),
    };
    let mut session = Session {
        settings,
        watch,
        link,
        refusal,
        waiting: VecDeque::new(),
        introduced: false,
        untagged: false,
    };
    loop {
        let content = match session.next_message() {
            Ok(content) => content,
            Err(over) => return over,
        };
        *was_used = true;
        if let Err(over) = session.message(&content) {
            return over;
        }
    }
}

struct Session<'a> {
    settings: &'a Settings,
    watch: &'a mut Watch,
    link: Link,
    /// The last error that answers no request: a daemon that refuses to register sends it at each attempt.
    refusal: &'a mut String,
    waiting: VecDeque<Content>,
    /// The daemon has system prompt and tools from this connection.
    introduced: bool,
    /// The daemon did not answer a tag: no other is requested.
    untagged: bool,
}

impl Session<'_> {
    fn next_message(&mut self) -> Result<Content, SessionEnd> {
        if let Some(content) = self.waiting.pop_front() {
            return Ok(content);
        }
        loop {
            match self.receive()? {
                Incoming::HumanMessage(content) => return Ok(content),
                Incoming::Answered(_, Err(failure)) if failure.message == *self.refusal => {}
                Incoming::Answered(_, Err(failure)) => {
                    say_failure(&failure);
                    *self.refusal = failure.message;
                }
                Incoming::Answered(_, Ok(_)) | Incoming::Ignored => {}
            }
        }
    }

    fn receive(&mut self) -> Result<Incoming, SessionEnd> {
        match self.watch.for_link(self.link.fd())? {
            Wakeup::Stop => Err(SessionEnd::Stop),
            _ => Ok(self.link.receive()?),
        }
    }

    /// Keeps a message for later, if there is room.
    fn wait_with(&mut self, content: Content) {
        let bytes: usize = self.waiting.iter().chain([&content]).map(|content| content.get().len()).sum();
        if self.waiting.len() < MOST_WAITING && bytes <= MOST_WAITING_BYTES {
            self.waiting.push_back(content);
        } else {
            let waiting = self.waiting.len();
            say(format_args!(
                "a message was dropped: {waiting} wait already, and the daemon sends more instead of queueing"
            ));
        }
    }

    /// One message until the model is done with it.
    fn message(&mut self, content: &Content) -> Result<(), SessionEnd> {
        let mut rounds = 0;
        let mut closing = 0;
        let mut answered = self.turn(&[Message::User { content }], None)?;
        loop {
            // A provider's error, or done: the next message.
            let Some((calls, tags)) = self.calls(answered)? else { return Ok(()) };
            let (outcomes, stop) = if rounds < self.settings.max_rounds {
                rounds += 1;
                (self.round(&calls, tags)?, None)
            } else {
                if closing == MOST_CLOSING {
                    return Err(Error::Endless.into());
                }
                closing += 1;
                (self.refuse(&calls), Some("max_iterations"))
            };
            answered = self.results(&calls, outcomes, stop)?;
        }
    }

    /// The tool calls that an answer asks for, if it does, and whether tags are offered for them.
    fn calls(
        &mut self,
        answered: Result<Answer, RpcError>,
    ) -> Result<Option<(Vec<ToolCall>, bool)>, SessionEnd> {
        match answered {
            Err(failure) => {
                say_failure(&failure);
                Ok(None)
            }
            Ok(Answer { stop_reason, tool_calls: Some(calls), tags })
                if stop_reason == "tool_use" && !calls.is_empty() =>
            {
                Ok(Some((calls, tags)))
            }
            Ok(_) => Ok(None),
        }
    }

    fn round(&mut self, calls: &[ToolCall], tags: bool) -> Result<Vec<Outcome>, SessionEnd> {
        // Watched for its end while requests go over it.
        let link = self.link.fd().try_clone_to_owned()?;
        let mut offered = tags && !self.untagged;
        let was_offered = offered;
        let mut asking =
            DaemonTagger { link: &mut self.link, offered: &mut offered, meanwhile: Vec::new(), refusals: 0 };
        let round = self.watch.run(calls, self.settings, link.as_fd(), &mut asking);
        let DaemonTagger { meanwhile, refusals, .. } = asking;
        self.untagged |= was_offered && !offered;
        if refusals > 0 {
            say(format_args!("the daemon refused {refusals} tags; its log says why"));
        }
        meanwhile.into_iter().for_each(|content| self.wait_with(content));
        match round? {
            Round::Done(outcomes) => Ok(outcomes),
            Round::Stop => Err(SessionEnd::Stop),
            Round::LinkGone => Err(Error::Frame(ringfence_wire::frame::FrameError::Closed).into()),
        }
    }

    fn refuse(&self, calls: &[ToolCall]) -> Vec<Outcome> {
        let most = self.settings.max_rounds;
        say(format_args!("the limit of {most} rounds of tool calls for one message is reached"));
        let why = format!(
            "not run: the limit of {most} rounds of tool calls for one message is reached. Answer now, without tools."
        );
        calls.iter().map(|_| Outcome::refused(why.clone())).collect()
    }

    /// Sends results, cut further if they do not fit a message together.
    fn results(
        &mut self,
        calls: &[ToolCall],
        mut outcomes: Vec<Outcome>,
        stop: Option<&'static str>,
    ) -> Result<Result<Answer, RpcError>, SessionEnd> {
        let mut most = self.settings.max_chars;
        loop {
            let messages: Vec<Message<'_>> = calls
                .iter()
                .zip(&outcomes)
                .map(|(call, outcome)| Message::Tool {
                    tool_call_id: &call.id,
                    content: [Text { text: &outcome.text }],
                    is_error: outcome.is_error,
                })
                .collect();
            match self.turn(&messages, stop) {
                Err(SessionEnd::Reconnect(Error::TooLong)) if most > LEAST_CHARS => most /= 2,
                other => return other,
            }
            for outcome in &mut outcomes {
                let mut shorter = Excerpt::new(most);
                shorter.push(outcome.text.as_bytes());
                outcome.text = shorter.finish("");
            }
        }
    }

    /// Sends a turn and waits for its answer.
    fn turn(
        &mut self,
        messages: &[Message<'_>],
        stop: Option<&'static str>,
    ) -> Result<Result<Answer, RpcError>, SessionEnd> {
        let (system, tools) = match self.introduced {
            true => (None, None),
            false => (Some(self.settings.system.as_str()), Some(&self.settings.tools)),
        };
        let id = self.link.turn(&Turn { system, tools, messages, stop })?;
        loop {
            match self.receive()? {
                // An error without an id is about a frame that could not be understood: ours.
                Incoming::Answered(answered, result)
                    if answered == Some(id) || (answered.is_none() && result.is_err()) =>
                {
                    let answer = link::answer(result)?;
                    // A turn that failed may not have been taken in.
                    self.introduced |= answer.is_ok();
                    return Ok(answer);
                }
                Incoming::HumanMessage(content) => self.wait_with(content),
                Incoming::Answered(..) | Incoming::Ignored => {}
            }
        }
    }
}

/// The daemon's or the provider's error; the agent decides what to do about it, and this one waits for its next message.
fn say_failure(failure: &RpcError) {
    let message: String = failure
        .message
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(500)
        .collect();
    say(format_args!("the daemon says: {message} ({})", failure.code));
}
