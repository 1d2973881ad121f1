//! The rule file, watched: a change that tightens takes effect at once; one that loosens anything waits until a person
//! confirms it, unless only root can have made it.
//!
//! An agent that may write the user's files could otherwise switch off the rule that is in its way.

use super::{
    conditions::Scope,
    rules::{self, Rule, RuleSpec},
};
use ringfence_files::Others;
use ringfence_wire::{mcp::RuleFile, tool_call::Action};
use std::{
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Longest rule file that is read, bytes.
pub const LONGEST: u64 = 1 << 20;

/// What identifies one state of a file.
type Stamp = (i64, i64, u64, u64);

/// A rule file: what of it is in force, and what was last read from it.
#[derive(Debug)]
pub struct RuleFileWatch {
    file: PathBuf,
    stamp: Option<Stamp>,
    /// The text in force.
    text: String,
    /// The last text that could be read, and whether nobody but root can have written it.
    seen: (String, bool),
}

/// What became of a changed file.
#[derive(Debug)]
pub enum Change {
    /// These rules are in force from now on.
    Taken(Vec<Rule>),
    /// It loosens something: the old rules stay until somebody confirms. The text names it.
    Held(String),
    /// It is again what is in force.
    Back,
    /// It cannot be read; the old rules stay.
    Refused(String),
}

impl RuleFileWatch {
    /// Watches `file`; `text` is in force, which is the file's or, where there is none, another's.
    ///
    /// # Errors
    /// Where `text` holds no rules.
    pub fn new(file: PathBuf, text: String) -> Result<Self, rules::Error> {
        let stamp = stamp(&file);
        rules::parse(&text)?;
        let trusted = stamp.is_some() && only_roots(&file);
        // Written since it was read: that is seen at the first look.
        let stamp = stamp.filter(|_| read(&file).is_ok_and(|now| now == text));
        Ok(Self { file, stamp, seen: (text.clone(), trusted), text })
    }

    /// The file as it was last read, for the auditor.
    pub fn offer(&self) -> RuleFile {
        let (text, trusted) = self.seen.clone();
        RuleFile { path: self.file.display().to_string(), text, trusted }
    }

    /// Looks at the file; what is new since the last look.
    pub fn poll(&mut self) -> Option<Change> {
        let now = stamp(&self.file);
        if now == self.stamp {
            return None;
        }
        self.stamp = now;
        let named = self.file.display().to_string();
        let refused =
            |why: String| Some(Change::Refused(format!("{named}: {why}; the rules that were in force stay")));
        // Asked before it is read: what is written after that is another state of the file.
        let trusted = only_roots(&self.file);
        let text = match read(&self.file) {
            Ok(text) => text,
            Err(why) => return refused(why),
        };
        let rules = match rules::parse(&text) {
            Ok(rules) => rules,
            Err(error) => return refused(error.to_string()),
        };
        self.seen = (text.clone(), trusted);
        if text == self.text {
            return Some(Change::Back);
        }
        if !trusted && let Some(rule) = loosens(&self.text, &text) {
            return Some(Change::Held(self.held(&rule)));
        }
        self.text = text;
        Some(Change::Taken(rules))
    }

    /// Whether this is the file.
    pub fn is_of(&self, path: &str) -> bool {
        path == self.file.display().to_string()
    }

    /// Puts the auditor's text in force. Gives its rules, if they differ from those before.
    ///
    /// # Errors
    /// What is wrong with that text; what was in force stays.
    pub fn put_in_force(&mut self, text: &str) -> Result<Option<Vec<Rule>>, rules::Error> {
        if text == self.text {
            return Ok(None);
        }
        let rules = rules::parse(text)?;
        text.clone_into(&mut self.text);
        Ok(Some(rules))
    }

    /// The message about a change that waits.
    pub fn held(&self, rule: &str) -> String {
        format!(
            "{} loosens the rule {rule:?}: the old rules stay in force until a person confirms it, by `ringfence mcp rules confirm` or in the dashboard",
            self.file.display()
        )
    }
}

/// Reads a rule file.
///
/// # Errors
/// The system's error, or that it is too long.
pub fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    // An agent may have put a FIFO there. Whoever waited for its other end would take no other rules, and no decisions, any more.
    let opened = ringfence_files::read(file).map_err(|e| e.to_string())?;
    opened.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > LONGEST {
        return Err(format!("longer than {LONGEST} bytes; a rule file holds rules only"));
    }
    Ok(text)
}

fn stamp(file: &Path) -> Option<Stamp> {
    fs::metadata(file).ok().map(|m| (m.mtime(), m.mtime_nsec(), m.len(), m.ino()))
}

/// Whether nobody but root can have written the file, or put another one in its place. Whoever may make a symlink there, to a
/// file of root's for now, chooses what is read.
fn only_roots(file: &Path) -> bool {
    ringfence_files::is_roots(file, Others::Nothing).unwrap_or(false)
}

/// Longest path of a rule file that is taken, bytes: the system's own bound.
pub const LONGEST_PATH: usize = 4096;

/// Why an offered rule file is too long to be read, if it is: checked before anything else.
pub fn too_long(file: &RuleFile) -> Option<String> {
    if file.path.len() > LONGEST_PATH {
        return Some(format!("its path is longer than {LONGEST_PATH} bytes"));
    }
    (file.text.len() as u64 > LONGEST).then(|| format!("it is longer than {LONGEST} bytes"))
}

/// The first rule that `new` makes looser than `old`, or a word for a text that cannot be compared. `None`: every call
/// is judged at least as strictly as before. Whoever calls it may hold locks that others wait for, and both texts may be
/// anybody's: the time it takes is that of reading them.
pub fn loosens(old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    if [old, new].iter().any(|text| text.len() as u64 > LONGEST) {
        return Some("(a text that is too long to be compared)".to_owned());
    }
    match (rules::read(old), rules::read(new)) {
        (Ok(old), Ok(new)) => loosened(&old, &new).map(str::to_owned),
        _ => Some("(a text that cannot be compared)".to_owned()),
    }
}

/// What changed, line by line, as `diff -u` shows it.
pub fn difference(old: &str, new: &str) -> String {
    if [old, new].iter().any(|text| text.len() as u64 > LONGEST) {
        return format!("(longer than {LONGEST} bytes)\n");
    }
    ringfence_base::difference::unified(old, new, ("in force", "waits"), 2)
}

/// The first rule of `old` that no rule of `new` covers: as wide in every condition, as strict in its action. As the
/// strictest of all matching rules wins, rules that cover all old ones judge no call more mildly; a change that is no
/// loosening and yet not covered rule by rule counts as one.
pub fn loosened<'a>(old: &'a [RuleSpec], new: &[RuleSpec]) -> Option<&'a str> {
    let new: Vec<(Action, Scope<'_>)> = new
        .iter()
        .filter(|rule| rule.enabled)
        .map(|rule| (rule.action, Scope::new(&rule.conditions)))
        .collect();
    let is_covered = |old: &RuleSpec| {
        let scope = Scope::new(&old.conditions);
        new.iter().any(|(action, new)| *action >= old.action && new.covers(&scope))
    };
    old.iter()
        .find(|old| old.enabled && old.action > Action::Pass && !is_covered(old))
        .map(|old| old.name.as_str())
}

#[cfg(test)]
mod tests;
