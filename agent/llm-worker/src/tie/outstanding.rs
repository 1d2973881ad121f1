//! The calls that a client's model wants and nobody answered yet, with what their commands are, and which have a process. And those
//! that were answered lately: whoever has the run's token can answer a call that its shell has not begun yet.

use super::text::Places;
use crate::calls::CallKey;
use ringfence_wire::{tie::Sure, trace::MAX_ID};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio_util::sync::CancellationToken;

/// Most bytes of a command: the kernel takes no longer argument.
const MAX_COMMAND: usize = 128 << 10;
/// Most bytes of the commands of all calls that wait; those beyond are not known. As much again of those that are over.
const MAX_COMMANDS: usize = 4 << 20;
/// Calls that are over and still known, so that what a hook or a shell says late is said of them.
const MOST_OVER: usize = 256;

/// The calls of one run.
#[derive(Debug, Default)]
pub(crate) struct Outstanding(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    waiting: Vec<Call>,
    /// Those that were answered, the newest last: only calls that the model wanted, so that no container drives them out.
    over: VecDeque<Call>,
}

/// One of them.
#[derive(Debug)]
struct Call {
    key: CallKey,
    /// The provider's id; empty: it has none that can be named.
    id: String,
    /// Of one that is over, only where it has a process.
    command: Command,
    process: Holder,
    /// A second process said that it is this call's.
    is_contested: bool,
    /// A hook said that it is over.
    is_done: bool,
}

/// Which process a call has.
#[derive(Debug, Clone, Default)]
enum Holder {
    /// None that is known.
    #[default]
    None,
    /// The core is asked about one. Cancelled once that is settled.
    Asked(CancellationToken),
    /// One was tagged for it, or may have been.
    Tied,
}

/// What a call has a shell do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    /// This.
    Known(String),
    /// There was no room for it, several things may be meant, or it is said in a way that is not known.
    Unknown,
    /// It is no shell's.
    None,
}

/// What a process that claims a call gets.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    /// The call is its, until that is [settled](Outstanding::settle).
    Taken(CallKey, Sure),
    /// It has the right words, and so has another process that the core is asked about: once this is cancelled, it may try again.
    Asked(CancellationToken),
    /// It has the right words, and the call has a process already: one of them is not what it says. Of several, nobody knows which
    /// is meant.
    Contested(Vec<CallKey>),
}

/// Of which call a hook says that it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finished {
    /// This one, and for the first time.
    Known(CallKey),
    /// One of which that was said before.
    Again,
    /// One of several of one name.
    OneOfSeveral,
    /// None that is known.
    Unknown,
}

/// Keeps a call among the outstanding ones for as long as it lives.
#[derive(Debug)]
pub(crate) struct Waiting {
    all: Arc<Outstanding>,
    key: CallKey,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut calls = self.all.lock();
        let Some(at) = calls.waiting.iter().position(|call| call.key == self.key) else { return };
        let call = calls.waiting.remove(at);
        calls.end(call);
    }
}

impl Outstanding {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model wants this called: by the provider's id and with this input, from which credentials are taken out.
    pub(crate) fn add(self: &Arc<Self>, key: &CallKey, id: &str, input: &RawValue) -> Waiting {
        let mut calls = self.lock();
        let held: usize = calls.waiting.iter().map(|call| call.command.bytes()).sum();
        let command = match Command::of(input) {
            Command::Known(text) if text.len() > MAX_COMMAND || held + text.len() > MAX_COMMANDS => {
                Command::Unknown
            }
            command => command,
        };
        let id = if id.len() <= MAX_ID { id.to_owned() } else { String::new() };
        calls.waiting.push(Call {
            key: key.clone(),
            id,
            command,
            process: Holder::None,
            is_contested: false,
            is_done: false,
        });
        Waiting { all: Arc::clone(self), key: key.clone() }
    }

    /// Takes a call for a process: the one of that name, or else the only one whose command the process has.
    ///
    /// # Errors
    /// There is none, or more than one might be meant.
    pub(crate) fn claim(&self, named: Option<&str>, places: &Places<'_>) -> Result<Claim, String> {
        let mut calls = self.lock();
        match named {
            Some(id) => calls.claim_named(id, places),
            None => calls.claim_unnamed(places),
        }
    }

    /// What came of a claim that was [taken](Claim::Taken): a process was tagged, or may have been; or none, and the next may be.
    pub(crate) fn settle(&self, key: &CallKey, tied: bool) {
        let mut calls = self.lock();
        let Some(call) = calls.known(key) else { return };
        let process = if tied { Holder::Tied } else { Holder::None };
        if let Holder::Asked(asked) = std::mem::replace(&mut call.process, process) {
            asked.cancel();
        }
    }

    /// Two processes say that they are this call's. Whether that is to be told: only once, however often it is said, for as long as
    /// the call is known here.
    pub(crate) fn contest(&self, key: &CallKey) -> bool {
        let mut calls = self.lock();
        calls.known(key).is_none_or(|call| !std::mem::replace(&mut call.is_contested, true))
    }

    /// A hook says that the call of this name is over: one that waits or was answered lately, of which no hook said so yet. Providers
    /// may give several calls one id: then it is not guessed which is meant.
    pub(crate) fn done(&self, id: &str) -> Finished {
        let mut calls = self.lock();
        let mut finished = Finished::Unknown;
        let mut said = None;
        for Call { key, is_done, .. } in calls.all().filter(|call| call.has_name(id)) {
            finished = match (finished, *is_done) {
                (Finished::Unknown, true) => Finished::Again,
                (Finished::Unknown | Finished::Again, false) => {
                    said = Some(is_done);
                    Finished::Known(key.clone())
                }
                (Finished::Known(_), false) => return Finished::OneOfSeveral,
                (finished, _) => finished,
            };
        }
        if let Some(is_done) = said {
            *is_done = true;
        }
        finished
    }
}

impl Calls {
    /// Those that wait, and those that are over, the newest last.
    fn all(&mut self) -> impl Iterator<Item = &mut Call> {
        self.waiting.iter_mut().chain(&mut self.over)
    }

    fn known(&mut self, key: &CallKey) -> Option<&mut Call> {
        self.all().find(|call| call.key == *key)
    }

    /// A call was answered.
    fn end(&mut self, mut call: Call) {
        if !call.is_claimed() {
            if call.id.is_empty() {
                return;
            }
            call.command = Command::None;
        }
        if self.over.len() >= MOST_OVER {
            self.over.pop_front();
        }
        self.over.push_back(call);
        let mut held: usize = self.over.iter().map(|call| call.command.bytes()).sum();
        for old in &mut self.over {
            if held <= MAX_COMMANDS {
                break;
            }
            held -= old.command.bytes();
            old.command = Command::Unknown;
        }
    }

    fn claim_named(&mut self, id: &str, places: &Places<'_>) -> Result<Claim, String> {
        let has_words = |call: &Call| call.is_run_at(places, Some(id));
        let mut of_name = self.waiting.iter_mut().filter(|call| call.has_name(id));
        let why = match (of_name.next(), of_name.next()) {
            (None, _) => "no call of this name waits",
            (Some(_), Some(_)) => "more than one call of this name waits",
            (Some(one), None) if !has_words(one) => "the shell does not run what the call says",
            (Some(one), None) if !one.is_claimed() => return Ok(one.take(Sure::Exact)),
            (Some(one), None) => return Ok(contest([&*one])),
        };
        // Whichever is meant, those of this name and these words that have a process have one that is not what it says.
        let of_name = self.all().filter(|call| call.has_name(id) && call.is_claimed());
        let held: Vec<&Call> = of_name.map(|call| &*call).filter(|call| has_words(call)).collect();
        if held.is_empty() { Err(why.to_owned()) } else { Ok(contest(held)) }
    }

    fn claim_unnamed(&mut self, places: &Places<'_>) -> Result<Claim, String> {
        let has_words = |call: &Call| call.is_run_at(places, None);
        if self.waiting.iter().any(|call| !call.is_claimed() && call.command == Command::Unknown) {
            return Err("a call waits whose command is not known".to_owned());
        }
        let mut free = self.waiting.iter_mut().filter(|call| !call.is_claimed() && has_words(call));
        match (free.next(), free.next()) {
            (Some(one), None) => return Ok(one.take(Sure::Matched)),
            (Some(_), Some(_)) => return Err("more than one call that waits has this command".to_owned()),
            (None, _) => {}
        }
        let waiting: Vec<&Call> = self.waiting.iter().filter(|call| has_words(call)).collect();
        if !waiting.is_empty() {
            return Ok(contest(waiting));
        }
        // One command is run again and again: it is not guessed which of several it was.
        let mut over = self.over.iter().filter(|call| call.is_claimed() && has_words(call));
        match (over.next(), over.next()) {
            (Some(one), None) => Ok(contest([one])),
            _ => Err("no call that waits has this command".to_owned()),
        }
    }
}

/// What becomes of a process that says it is of calls that have one: all of them, since nobody knows which is meant.
fn contest<'a>(held: impl IntoIterator<Item = &'a Call>) -> Claim {
    let mut keys = Vec::new();
    for call in held {
        if let Holder::Asked(asked) = &call.process {
            return Claim::Asked(asked.clone());
        }
        keys.push(call.key.clone());
    }
    Claim::Contested(keys)
}

impl Call {
    fn has_name(&self, id: &str) -> bool {
        !id.is_empty() && self.id == id
    }

    fn is_claimed(&self) -> bool {
        !matches!(self.process, Holder::None)
    }

    /// Whether a process with these places runs its command, and says that it is the call of that name.
    fn is_run_at(&self, places: &Places<'_>, named: Option<&str>) -> bool {
        match &self.command {
            Command::Known(command) => places.agree(named, command),
            Command::Unknown | Command::None => false,
        }
    }

    fn take(&mut self, sure: Sure) -> Claim {
        self.process = Holder::Asked(CancellationToken::new());
        Claim::Taken(self.key.clone(), sure)
    }
}

impl Command {
    fn bytes(&self) -> usize {
        if let Self::Known(text) = self { text.len() } else { 0 }
    }

    /// What a call's input has a shell do, as agents' tools for that have it: a text, or the arguments of a shell.
    fn of(input: &RawValue) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Input {
            command: Option<Words>,
            cmd: Option<Words>,
            action: Option<Action>,
        }
        #[derive(Deserialize)]
        struct Action {
            command: Option<Words>,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Words {
            Text(String),
            Arguments(Vec<String>),
            Other(serde::de::IgnoredAny),
        }
        // What has not that shape may be run in a way that is not known here. A struct may be read from a list, too.
        if !input.get().trim_start().starts_with('{') {
            return Self::Unknown;
        }
        let Ok(Input { command, cmd, action }) = serde_json::from_str::<Input>(input.get()) else {
            return Self::Unknown;
        };
        let mut all = [command, cmd, action.and_then(|action| action.command)].into_iter().flatten();
        match (all.next(), all.next()) {
            (None, _) => Self::None,
            (Some(Words::Text(text)), None) => Self::Known(text.trim().to_owned()),
            (Some(Words::Arguments(mut words)), None) if words.len() >= 3 => match words.pop() {
                Some(text) => Self::Known(text.trim().to_owned()),
                None => Self::None,
            },
            (Some(Words::Arguments(_)), None) => Self::None,
            (Some(Words::Other(_)), None) => Self::Unknown,
            (Some(_), Some(_)) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
