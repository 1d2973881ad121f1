//! The calls that a client's model wants and nobody answered yet, with what their commands are, and which have a process.

use super::text::Places;
use crate::calls::CallKey;
use ringfence_wire::{tie::Sure, trace::MAX_ID};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Most bytes of a command: the kernel takes no longer argument.
const MAX_COMMAND: usize = 128 << 10;
/// Most bytes of the commands of all calls; those beyond are not known.
const MAX_COMMANDS: usize = 4 << 20;
/// Calls that are over and still known, so that what a hook says late is said of them.
const MOST_OVER: usize = 256;

/// The calls of one run.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    calls: Mutex<Vec<Call>>,
    /// Those that were answered, the newest last: only calls that the model wanted, so that no container drives them out. Locked while the others are, or alone.
    over: Mutex<VecDeque<Over>>,
}

/// One of them.
#[derive(Debug)]
struct Call {
    key: CallKey,
    /// The provider's id; empty: it has none that can be named.
    id: String,
    command: Command,
    /// A process was tied to it, or is about to be.
    is_claimed: bool,
    /// A second process said that it is this call's.
    is_contested: bool,
    /// A hook said that it is over.
    is_done: bool,
}

/// A call that was answered.
#[derive(Debug)]
struct Over {
    key: CallKey,
    id: String,
    is_done: bool,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The call is its.
    Taken(CallKey, Sure),
    /// It has the right words, and the call has a process already: one of them is not what it says.
    Contested(CallKey),
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
        let Some(at) = calls.iter().position(|call| call.key == self.key) else { return };
        let Call { key, id, is_done, .. } = calls.remove(at);
        if !id.is_empty() {
            self.all.over(Over { key, id, is_done });
        }
    }
}

impl Outstanding {
    fn lock(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_over(&self) -> MutexGuard<'_, VecDeque<Over>> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn over(&self, one: Over) {
        let mut over = self.lock_over();
        if over.len() >= MOST_OVER {
            over.pop_front();
        }
        over.push_back(one);
    }

    /// The model wants this called: by the provider's id and with this input, from which credentials are taken out.
    pub(crate) fn add(self: &Arc<Self>, key: &CallKey, id: &str, input: &RawValue) -> Waiting {
        let mut calls = self.lock();
        let held: usize = calls.iter().map(|call| call.command.bytes()).sum();
        let command = match Command::of(input) {
            Command::Known(text) if text.len() > MAX_COMMAND || held + text.len() > MAX_COMMANDS => {
                Command::Unknown
            }
            command => command,
        };
        let id = if id.len() <= MAX_ID { id.to_owned() } else { String::new() };
        calls.push(Call {
            key: key.clone(),
            id,
            command,
            is_claimed: false,
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
        let has_words = |call: &Call| match &call.command {
            Command::Known(command) => places.agree(named, command),
            Command::Unknown | Command::None => false,
        };
        let Some(id) = named else {
            if calls.iter().any(|call| !call.is_claimed && call.command == Command::Unknown) {
                return Err("a call waits whose command is not known".to_owned());
            }
            let mut fitting = calls.iter_mut().filter(|call| !call.is_claimed && has_words(call));
            let one = fitting.next().ok_or("no call that waits has this command")?;
            if fitting.next().is_some() {
                return Err("more than one call that waits has this command".to_owned());
            }
            one.is_claimed = true;
            return Ok(Claim::Taken(one.key.clone(), Sure::Matched));
        };
        let mut of_name = calls.iter_mut().filter(|call| !call.id.is_empty() && call.id == id);
        let one = of_name.next().ok_or("no call of this name waits")?;
        if of_name.next().is_some() {
            return Err("more than one call of this name waits".to_owned());
        }
        if !has_words(one) {
            return Err("the shell does not run what the call says".to_owned());
        }
        if std::mem::replace(&mut one.is_claimed, true) {
            return Ok(Claim::Contested(one.key.clone()));
        }
        Ok(Claim::Taken(one.key.clone(), Sure::Exact))
    }

    /// Two processes say that they are this call's. Whether that is to be told: while the call waits, only once, however often it is
    /// said. One that was answered meanwhile is claimed by nobody any more.
    pub(crate) fn contest(&self, key: &CallKey) -> bool {
        let mut calls = self.lock();
        let call = calls.iter_mut().find(|call| call.key == *key);
        call.is_none_or(|call| !std::mem::replace(&mut call.is_contested, true))
    }

    /// A hook says that the call of this name is over: one that waits or was answered lately, of which no hook said so yet. Providers
    /// may give several calls one id: then it is not guessed which is meant.
    pub(crate) fn done(&self, id: &str) -> Finished {
        let (mut calls, mut over) = (self.lock(), self.lock_over());
        let waiting = calls.iter_mut().map(|call| (&call.id, &call.key, &mut call.is_done));
        let answered = over.iter_mut().map(|call| (&call.id, &call.key, &mut call.is_done));
        let mut finished = Finished::Unknown;
        let mut said = None;
        for (_, key, is_done) in waiting.chain(answered).filter(|(of, ..)| !id.is_empty() && *of == id) {
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

    /// Nothing was tied to it: the next may be.
    pub(crate) fn give_back(&self, key: &CallKey) {
        if let Some(call) = self.lock().iter_mut().find(|call| call.key == *key) {
            call.is_claimed = false;
        }
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn raw(input: &Value) -> Box<RawValue> {
        RawValue::from_string(input.to_string()).unwrap()
    }

    fn running(call: Option<&str>, command: &str) -> Vec<String> {
        let id = call.map(|id| format!(" {id}")).unwrap_or_default();
        ["bash", "-c", &format!("/usr/bin/ringfence-runtime tie{id}\n{command}")].map(str::to_owned).to_vec()
    }

    /// What a process of this command line gets.
    fn claim(all: &Arc<Outstanding>, named: Option<&str>, arguments: &[String]) -> Result<Claim, String> {
        all.claim(named, &Places::of(arguments))
    }

    #[test]
    fn a_named_call_is_taken_once_while_it_waits_by_a_process_that_runs_it() {
        let all = Arc::<Outstanding>::default();
        let [a, b] = [(); 2].map(|()| CallKey::mint());
        let waits = all.add(&a, "a", &raw(&json!({ "command": "make test" })));
        let _other = all.add(&b, "b", &raw(&json!({ "command": "make test" })));
        let shell = running(Some("a"), "make test");
        assert!(claim(&all, Some("a"), &running(Some("a"), "make tests")).is_err());
        assert!(claim(&all, Some("a"), &running(Some("b"), "make test")).is_err(), "it says another");
        assert!(claim(&all, Some("c"), &running(Some("c"), "make test")).is_err());
        assert!(claim(&all, Some(""), &running(None, "make test")).is_err());
        assert_eq!(claim(&all, Some("a"), &shell), Ok(Claim::Taken(a.clone(), Sure::Exact)));
        assert_eq!(claim(&all, Some("a"), &shell), Ok(Claim::Contested(a.clone())));
        assert!(claim(&all, Some("a"), &running(Some("a"), "true")).is_err(), "no claim at all");
        assert!(all.contest(&a) && !all.contest(&a), "told once");
        all.give_back(&a);
        assert_eq!(claim(&all, Some("a"), &shell), Ok(Claim::Taken(a.clone(), Sure::Exact)));
        drop(waits);
        assert!(all.contest(&a), "answered before it was told");
        assert!(claim(&all, Some("a"), &shell).is_err(), "answered");
        let of_other = claim(&all, Some("b"), &running(Some("b"), "make test"));
        assert_eq!(of_other, Ok(Claim::Taken(b, Sure::Exact)), "its words are the same");
    }

    #[test]
    fn without_a_name_only_one_may_fit() {
        let all = Arc::<Outstanding>::default();
        let [a, b, c] = [(); 3].map(|()| CallKey::mint());
        let _a = all.add(&a, "", &raw(&json!({ "command": "ls" })));
        let b_waits = all.add(&b, "", &raw(&json!({ "cmd": " ls\n" })));
        let _c = all.add(&c, "", &raw(&json!({ "command": ["bash", "-lc", "ls -l"] })));
        let shell = running(None, "ls");
        assert!(claim(&all, None, &shell).unwrap_err().contains("more than one"));
        assert_eq!(claim(&all, None, &running(None, "ls -l")), Ok(Claim::Taken(c, Sure::Matched)));
        drop(b_waits);
        assert_eq!(claim(&all, None, &shell), Ok(Claim::Taken(a, Sure::Matched)));
        assert!(claim(&all, None, &shell).is_err(), "it has a process");
    }

    #[test]
    fn what_is_not_known_makes_nothing_sure() {
        let all = Arc::<Outstanding>::default();
        let [a, b] = [(); 2].map(|()| CallKey::mint());
        let _a = all.add(&a, "a", &raw(&json!({ "command": "ls" })));
        let long = all.add(&b, "b", &raw(&json!({ "command": "x".repeat(MAX_COMMAND + 1) })));
        assert!(claim(&all, None, &running(None, "ls")).unwrap_err().contains("not known"));
        assert!(claim(&all, Some("b"), &running(Some("b"), "ls")).is_err());
        drop(long);
        assert_eq!(claim(&all, None, &running(None, "ls")), Ok(Claim::Taken(a, Sure::Matched)));
        let all = Arc::<Outstanding>::default();
        let add = |n: usize| {
            all.add(
                &CallKey::mint(),
                "",
                &raw(&json!({ "command": format!("{n}{}", "x".repeat(MAX_COMMAND - 9)) })),
            )
        };
        let _held: Vec<_> = (0..64).map(add).collect();
        assert!(all.lock().iter().map(|call| call.command.bytes()).sum::<usize>() <= MAX_COMMANDS);
        assert!(all.lock().iter().any(|call| call.command == Command::Unknown), "the bound is reached");
    }

    #[test]
    fn a_call_of_one_id_with_another_is_nobody_s() {
        let all = Arc::<Outstanding>::default();
        let add = || all.add(&CallKey::mint(), "same", &raw(&json!({ "command": "ls" })));
        let (_one, _two) = (add(), add());
        assert!(
            claim(&all, Some("same"), &running(Some("same"), "ls")).unwrap_err().contains("more than one")
        );
    }

    #[test]
    fn a_command_is_found_where_agents_tools_have_it() {
        let known = |text: &str| Command::Known(text.to_owned());
        for (input, command) in [
            (json!({ "command": "ls", "description": "x" }), known("ls")),
            (json!({ "cmd": "ls", "workdir": "/" }), known("ls")),
            (json!({ "command": ["bash", "-lc", "ls"] }), known("ls")),
            (json!({ "action": { "type": "exec", "command": ["bash", "-lc", "ls"] } }), known("ls")),
            (json!({ "command": ["ls"] }), Command::None),
            (json!({ "command": null }), Command::None),
            (json!({ "command": 7 }), Command::Unknown),
            (json!({ "action": "ls" }), Command::Unknown),
            (json!({ "file_path": "/a" }), Command::None),
            (json!({ "command": "ls", "cmd": "rm" }), Command::Unknown),
            (json!([]), Command::Unknown),
            (json!(["ls"]), Command::Unknown),
            (json!("ls"), Command::Unknown),
        ] {
            assert_eq!(Command::of(&raw(&input)), command, "{input}");
        }
    }

    #[test]
    fn what_a_hook_says_is_of_one_call_and_once() {
        let all = Arc::<Outstanding>::default();
        let [a, b] = [(); 2].map(|()| CallKey::mint());
        let waits = all.add(&a, "a", &raw(&json!({})));
        let late = all.add(&b, "b", &raw(&json!({})));
        assert_eq!(all.done("a"), Finished::Known(a));
        assert_eq!(all.done("a"), Finished::Again);
        drop((waits, late));
        assert_eq!(all.done("a"), Finished::Again, "answered meanwhile");
        assert_eq!(all.done("b"), Finished::Known(b), "it says so late");
        assert_eq!(
            [all.done("b"), all.done("c"), all.done("c"), all.done("")],
            [Finished::Again, Finished::Unknown, Finished::Unknown, Finished::Unknown]
        );
    }

    #[test]
    fn a_hook_s_word_of_several_calls_of_one_id_is_of_none() {
        let all = Arc::<Outstanding>::default();
        let add = |key: &CallKey| all.add(key, "c", &raw(&json!({})));
        let [c, d, e] = [(); 3].map(|()| CallKey::mint());
        let waits = add(&c);
        assert_eq!(all.done("c"), Finished::Known(c), "the control");
        // Of the first it was said.
        let _one_more = add(&d);
        assert_eq!(all.done("c"), Finished::Known(d));
        drop(waits);
        assert_eq!(all.done("c"), Finished::Again);
        // Of the one that was answered it was not said yet, or late.
        drop(add(&e));
        let _another = add(&CallKey::mint());
        assert_eq!(all.done("c"), Finished::OneOfSeveral);
        assert_eq!(all.done("c"), Finished::OneOfSeveral, "nothing was noted");
    }

    #[test]
    fn what_hooks_say_drives_out_none_of_the_calls_that_were_answered() {
        let all = Arc::<Outstanding>::default();
        let key = CallKey::mint();
        drop(all.add(&key, "a", &raw(&json!({}))));
        drop(all.add(&CallKey::mint(), "", &raw(&json!({}))));
        for n in 0..2 * MOST_OVER {
            assert_eq!(all.done(&n.to_string()), Finished::Unknown);
        }
        assert_eq!(all.lock_over().len(), 1);
        assert_eq!(all.done("a"), Finished::Known(key));
        for n in 0..2 * MOST_OVER {
            drop(all.add(&CallKey::mint(), &n.to_string(), &raw(&json!({}))));
        }
        assert_eq!(all.lock_over().len(), MOST_OVER);
    }

    proptest! {
        /// Whatever waits and whoever asks: no call has two processes, and a taken one had the words.
        #[test]
        fn no_call_is_taken_twice(
            commands in prop::collection::vec("[ab]{1,2}", 1..6),
            asked in prop::collection::vec((prop::option::of(0..7usize), "[ab]{1,2}"), 0..12),
        ) {
            let all = Arc::<Outstanding>::default();
            let calls: Vec<_> = commands.iter().enumerate().map(|(n, command)| {
                let key = CallKey::mint();
                let waits = all.add(&key, &n.to_string(), &raw(&json!({ "command": command })));
                (key, command, waits)
            }).collect();
            let mut taken: Vec<CallKey> = Vec::new();
            for (named, command) in asked {
                let named = named.map(|n| n.to_string());
                if let Ok(Claim::Taken(key, _)) = claim(&all, named.as_deref(), &running(named.as_deref(), &command)) {
                    prop_assert!(!taken.contains(&key));
                    let (_, its, _) = calls.iter().find(|(of, ..)| *of == key).unwrap();
                    prop_assert_eq!(*its, &command);
                    taken.push(key);
                }
            }
        }
    }
}
