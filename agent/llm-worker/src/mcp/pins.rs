//! What an agent's MCP tools looked like when they were first used, and since a person last approved them, as far as this agent's
//! worker was told.
//!
//! A server can change what a tool says it does after it was trusted. A description or schema that is not the pinned one
//! is kept from the model until somebody approves it. What is pinned the auditor has, for all tools of a user (`line`). The
//! file, one for each agent, has what the auditor said last, for when it cannot be asked, and what it was not told yet: what was
//! seen first meanwhile, and all that an earlier version pinned.

use crate::rpc::Tool;
use jiff::Timestamp;
use ringfence_files::{Access, Dir};
use ringfence_pins::{
    Flag, Unjudged,
    definition::{Definition as Whole, hash_of_before, name_digest},
    flags,
};
use ringfence_wire::agent_tools::{LONGEST_SEEN, SeenDefinition, SeenTool};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Most bytes of the file.
const MAX_FILE: u64 = 64 << 20;

/// Why a tool cannot be compared with what it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error("{}, which remembers what the MCP tools looked like, cannot be read or written", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// Its content.
    #[error("{} does not hold pins: restore it, or remove it to trust all tools as they are now", .0.display())]
    Broken(PathBuf, #[source] serde_json::Error),
    /// Far too long.
    #[error("{} has more than {MAX_FILE} bytes: it does not hold pins", .0.display())]
    TooLong(PathBuf),
}

/// How a tool describes itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// SHA-256 of the definition, in hex, as the interceptor has it; of one without `definition`, which an earlier version
    /// wrote, over description and schema.
    pub sha256: String,
    /// When this was first seen.
    pub since: Timestamp,
    /// Its words.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// All that it says of itself, JSON in one spelling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// What is odd about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Flag>,
}

impl Definition {
    /// All that it says of itself, as far as it is known, of the tool of this name.
    fn text(&self, name: &str) -> Option<String> {
        // Of what the auditor trusts and this file never saw, there is a hash alone.
        let is_known = !self.description.is_empty() || !self.parameters.is_null();
        let of_parts = || Whole::of_parts(name, &self.description, &self.parameters).ok();
        self.definition.clone().or_else(|| of_parts().filter(|_| is_known).map(|whole| whole.text))
    }

    /// Whether this is what a version pinned that knew description and schema only.
    fn is_of_before(&self, now: &Self) -> bool {
        self.definition.is_none() && self.sha256 == hash_of_before(&now.description, &now.parameters)
    }
}

/// A tool that was used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// What is trusted.
    #[serde(flatten)]
    pub trusted: Definition,
    /// What the server says now, where that is something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Definition>,
    /// A person refused that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rejected: bool,
}

/// What the auditor has pinned of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The hash of what is trusted.
    pub sha256: String,
    /// A person refused what it says now.
    pub rejected: bool,
}

/// A hash that is trusted, and nothing is refused.
impl From<String> for Word {
    fn from(sha256: String) -> Self {
        Self { sha256, rejected: false }
    }
}

/// What is pinned of a server by the auditor's word, by digests of tools' names.
pub type Told = HashMap<String, Word>;

impl Pin {
    /// Of a tool that is described so now, of which the auditor says that what has this hash is trusted.
    fn told(old: Option<&Self>, Word { sha256, rejected }: &Word, now: Definition) -> Self {
        let known = |sha256: &str| {
            let all = old.into_iter().flat_map(|old| std::iter::once(&old.trusted).chain(&old.changed));
            all.into_iter().find(|known| known.sha256 == sha256).cloned()
        };
        if now.sha256 == *sha256 {
            return Self { trusted: known(sha256).unwrap_or(now), changed: None, rejected: false };
        }
        let changed = known(&now.sha256).unwrap_or(now);
        // What it says is on record there.
        let trusted = known(sha256).unwrap_or_else(|| Definition {
            sha256: sha256.to_owned(),
            since: changed.since,
            description: String::new(),
            parameters: Value::Null,
            definition: None,
            flags: Vec::new(),
        });
        Self { trusted, changed: Some(changed), rejected: *rejected }
    }

    /// The same, where nobody says.
    fn seen(old: Option<&Self>, now: Definition) -> Self {
        let Some(old) = old else { return Self { trusted: now, changed: None, rejected: false } };
        if old.trusted.sha256 == now.sha256 {
            return Self { changed: None, rejected: false, ..old.clone() };
        }
        // What was trusted is: the rest of what it says was not looked at before.
        if old.trusted.is_of_before(&now) {
            let trusted = Definition { since: old.trusted.since, ..now };
            return Self { trusted, changed: None, rejected: false };
        }
        match &old.changed {
            Some(changed) if changed.sha256 == now.sha256 => old.clone(),
            _ => Self { changed: Some(now), rejected: false, ..old.clone() },
        }
    }
}

/// By server and tool.
pub type Known = BTreeMap<String, BTreeMap<String, Pin>>;

/// When the file was last written, as far as the file system tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64, i64, i64);

/// Tools, judged.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// As they were, or new.
    pub(super) kept: Vec<Tool>,
    /// The names of those that changed.
    pub(super) changed: Vec<String>,
    /// Those that cannot be pinned, and why.
    pub(super) unjudged: Vec<(String, Unjudged)>,
}

/// The file.
#[derive(Debug, Clone)]
pub struct Pins {
    path: PathBuf,
    /// The file as this process last wrote it.
    wrote: Arc<Mutex<Option<Stamp>>>,
}

impl Pins {
    /// At this path. It need not be there.
    pub fn new(path: PathBuf) -> Self {
        Self { path, wrote: Arc::default() }
    }

    /// The file's stamp; none: there is no file.
    pub fn stamp(&self) -> Option<Stamp> {
        let meta = fs::metadata(&self.path).ok()?;
        Some(Stamp(meta.ino(), meta.mtime(), meta.mtime_nsec()))
    }

    /// Whether the file is another than at `stamp`, and this process made it so.
    pub(super) fn wrote_since(&self, stamp: &Option<Stamp>) -> bool {
        let now = self.stamp();
        now != *stamp && now == *self.wrote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is pinned. Blocks.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&self) -> Result<Known, Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        let mut text = String::new();
        // A worker that was taken over may have put a FIFO there, for the next one, or whoever asks, to wait for.
        match ringfence_files::read(&self.path) {
            Ok(file) => file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(io)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Known::new()),
            Err(error) => return Err(io(error)),
        };
        if text.len() as u64 > MAX_FILE {
            return Err(Error::TooLong(self.path.clone()));
        }
        serde_json::from_str(&text).map_err(|e| Error::Broken(self.path.clone(), e))
    }

    /// Tools as the auditor is told of them; those that cannot be pinned are left out. With what is trusted where that is something
    /// else: the auditor may have lost what it had, or be another one. Blocks.
    ///
    /// # Errors
    /// [`Error`]: then no tool can be trusted.
    pub(super) fn seen(&self, server: &str, tools: &[Tool]) -> Result<Vec<SeenTool>, Error> {
        let known = self.read()?;
        let pins = known.get(server);
        let seen = tools.iter().filter_map(|tool| {
            let now = definition(tool, server).ok()?;
            let trusted = pins.and_then(|pins| pins.get(&tool.name)).map(|pin| &pin.trusted);
            let trusted =
                trusted.filter(|trusted| trusted.sha256 != now.sha256 && !trusted.is_of_before(&now));
            let recorded = |of: &Definition| SeenDefinition {
                sha256: of.sha256.clone(),
                text: of
                    .text(&tool.name)
                    .map(|text| without_secrets(&text))
                    .filter(|text| text.len() <= LONGEST_SEEN),
            };
            Some(SeenTool { name: tool.name.clone(), now: recorded(&now), trusted: trusted.map(recorded) })
        });
        Ok(seen.collect())
    }

    /// Lets pass tools that are as they are pinned, and notes those that are not. What is pinned is what `told` says; of a tool that
    /// it does not have, and without it, what the file says, and what is new is pinned there. Blocks.
    ///
    /// # Errors
    /// [`Error`]: then no tool can be trusted.
    pub(super) fn judge(&self, server: &str, tools: Vec<Tool>, told: Option<&Told>) -> Result<Judged, Error> {
        let _lock = self.lock()?;
        let mut known = self.read()?;
        let pins = known.entry(server.to_owned()).or_default();
        let (mut judged, mut news) = (Judged::default(), false);
        for tool in tools {
            let now = match definition(&tool, server) {
                Ok(now) => now,
                Err(why) => {
                    judged.unjudged.push((tool.name, why));
                    continue;
                }
            };
            let told = told.and_then(|told| told.get(&name_digest(&tool.name)));
            let old = pins.get(&tool.name);
            let new = match told {
                Some(word) => Pin::told(old, word, now),
                None => Pin::seen(old, now),
            };
            let is_changed = new.changed.is_some();
            if old != Some(&new) {
                pins.insert(tool.name.clone(), new);
                news = true;
            }
            if is_changed {
                judged.changed.push(tool.name);
            } else {
                judged.kept.push(tool);
            }
        }
        if news {
            self.write(&known)?;
        }
        Ok(judged)
    }

    /// Has the file trust what is trusted by now: somebody decided. What was approved waits no more, and what was refused does. Blocks.
    ///
    /// # Errors
    /// [`Error`].
    pub fn settle(&self, server: &str, told: &Told) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut known = self.read()?;
        let mut news = false;
        for (name, pin) in known.get_mut(server).into_iter().flatten() {
            let Some(word) = told.get(&name_digest(name)) else { continue };
            let now = pin.changed.as_ref().unwrap_or(&pin.trusted).clone();
            let new = Pin::told(Some(pin), word, now);
            if *pin != new {
                *pin = new;
                news = true;
            }
        }
        if news { self.write(&known) } else { Ok(()) }
    }

    /// Held while the file is read and written: `ringfence agent pin` is another process.
    fn lock(&self) -> Result<File, Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let dir = Dir::make(dir).map_err(io)?;
        let lock = self.path.with_extension("lock");
        let lock = dir.update(lock.file_name().unwrap_or_default()).map_err(io)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| io(e.into()))?;
        Ok(lock)
    }

    fn write(&self, known: &Known) -> Result<(), Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        let text = serde_json::to_vec_pretty(known).map_err(|e| io(e.into()))?;
        ringfence_files::replace(&self.path, &text, Access::Mode(0o600)).map_err(io)?;
        *self.wrote.lock().unwrap_or_else(PoisonError::into_inner) = self.stamp();
        Ok(())
    }
}

fn definition(tool: &Tool, server: &str) -> Result<Definition, Unjudged> {
    let parameters: Value = serde_json::from_str(tool.parameters.get()).unwrap_or_default();
    let whole = match &tool.whole {
        Some(whole) => {
            let whole = serde_json::from_str(whole.get());
            Whole::of(&whole.map_err(|why| Unjudged::Ambiguous(why.to_string()))?)?
        }
        None => Whole::of_parts(&tool.name, &tool.description, &parameters)?,
    };
    let flags = flags::of(&whole.text, server);
    Ok(Definition {
        sha256: whole.sha256,
        since: Timestamp::now(),
        description: tool.description.clone(),
        parameters,
        definition: Some(whole.text),
        flags,
    })
}

/// A definition's texts without what looks like a secret, each for itself: the record has it so.
fn without_secrets(definition: &str) -> String {
    fn clean(value: Value) -> Value {
        let text = |text: String| ringfence_redact::redact(&text).into_owned();
        match value {
            Value::String(said) => text(said).into(),
            Value::Array(items) => items.into_iter().map(clean).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (text(key), clean(value))).collect(),
            other => other,
        }
    }
    match serde_json::from_str(definition) {
        Ok(value) => clean(value).to_string(),
        Err(_) => ringfence_redact::redact(definition).into_owned(),
    }
}

#[cfg(test)]
mod tests;
