//! Sets of hosts, by what they are for: `set:NAME` in `net` stands for the hosts of one.
//!
//! A set is a file `sets/NAME.toml` in the directory of the host's profiles, one that ships and is in the binary, or a file
//! beside the profile that names it: the first of these. It has hosts only, each with the reason that it is there for.

use super::{
    Rule, built_in,
    dirs::is_name,
    keys::{Keys, parse},
    parse::{Parser, Value, net_entry, place},
    problem::{At, LoadErrors, Problem, Wrong},
    source::{Provenance, read},
};
use ringfence_grant::NetEntry;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// How an entry begins that stands for a set.
const PREFIX: &str = "set:";
/// The directory of sets, beside profiles.
pub const DIR: &str = "sets";

/// What an entry of a profile's `net` is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NetItem {
    /// One entry.
    Entry(NetEntry),
    /// The set of this name.
    Set(String),
}

/// The name of the set that an entry stands for.
pub(crate) fn named(text: &str) -> Option<&str> {
    text.strip_prefix(PREFIX)
}

impl Parser {
    /// An entry of `net`, as it stands in a profile.
    pub(crate) fn check_net_item(&mut self, rule: &Rule) -> Option<NetItem> {
        match named(&rule.text) {
            None => self.check_net(rule).map(NetItem::Entry),
            Some(name) if is_name(name) => Some(NetItem::Set(name.to_owned())),
            Some(name) => {
                let what = Wrong::NoSet { name: name.to_owned(), known: built_in::sets().collect() };
                self.problems.push(Problem::new(place(rule), what));
                None
            }
        }
    }

    /// The hosts of a set's file, in its order; `key` is that of the list that the set is named in.
    fn hosts(&mut self, path: &str, value: &Value<'_>, key: &'static str) -> Option<Vec<Rule>> {
        let mut rules = Vec::new();
        for (host, reason) in self.table(path, value)? {
            let start = host.span().start;
            let path = format!("{path}.{}", host.get_ref());
            self.filled(&path, reason);
            let text = host.get_ref().to_string();
            let rule = self.rule_at(start, key, &text);
            match self.check_net(&rule) {
                Some(NetEntry::Host { .. }) => rules.push((start, rule)),
                Some(_) => self.wrong(start, &path, Wrong::NotAHost),
                None => {}
            }
        }
        rules.sort_by_key(|(start, _)| *start);
        Some(rules.into_iter().map(|(_, rule)| rule).collect())
    }
}

/// The sets that one profile names, each read once.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    /// Where the host's profiles are.
    installed: PathBuf,
    read: BTreeMap<(PathBuf, &'static str), Vec<Rule>>,
    /// Files that were read.
    pub files: Vec<Provenance>,
    pub problems: Vec<Problem>,
}

impl Sets {
    pub(crate) fn new(installed: PathBuf) -> Self {
        Self { installed, ..Self::default() }
    }

    /// Rules with the hosts of each set in its place, except those that other rules have.
    pub(crate) fn expand(&mut self, rules: Vec<Rule>) -> Vec<Rule> {
        if rules.iter().all(|rule| named(&rule.text).is_none()) {
            return rules;
        }
        let mut there: BTreeSet<NetEntry> = rules.iter().filter_map(net_entry).collect();
        let mut expanded = Vec::new();
        for rule in rules {
            match named(&rule.text) {
                None => expanded.push(rule),
                Some(name) => {
                    let hosts = self.hosts(&rule, name);
                    expanded.extend(
                        hosts.into_iter().filter(|host| net_entry(host).is_some_and(|e| there.insert(e))),
                    );
                }
            }
        }
        expanded
    }

    /// The hosts of the set that a rule names.
    fn hosts(&mut self, rule: &Rule, name: &str) -> Vec<Rule> {
        let Some(file) = self.find(&rule.file, name) else {
            let what = Wrong::NoSet { name: name.to_owned(), known: built_in::sets().collect() };
            self.problems.push(Problem::new(place(rule), what));
            return Vec::new();
        };
        if let Some(hosts) = self.read.get(&(file.clone(), rule.key)) {
            return hosts.clone();
        }
        let hosts = self.read_file(&file, rule);
        self.read.insert((file, rule.key), hosts.clone());
        hosts
    }

    /// The host's file wins, and a set in the binary over one beside the profile: an agent that works in the profile's directory
    /// could put one there that was not there before, which nothing protects.
    fn find(&self, profile: &Path, name: &str) -> Option<PathBuf> {
        let file = format!("{DIR}/{name}.toml");
        let is_there = |path: &PathBuf| path.is_absolute() && path.symlink_metadata().is_ok();
        let installed = Some(self.installed.join(&file)).filter(is_there);
        let beside = || (!built_in::has(profile)).then(|| profile.with_file_name(&file)).filter(is_there);
        installed.or_else(|| built_in::set(name)).or_else(beside)
    }

    fn read_file(&mut self, file: &Path, from: &Rule) -> Vec<Rule> {
        let text = match built_in::text(file) {
            Some(text) => text.to_owned(),
            None => match read(file) {
                Ok((text, provenance)) => {
                    if self.files.iter().all(|known| known.file != provenance.file) {
                        self.files.push(provenance);
                    }
                    text
                }
                Err(LoadErrors(why)) => {
                    self.problems.push(Problem::new(place(from), Wrong::UnreadableSet(from.text.clone())));
                    self.problems.extend(why);
                    return Vec::new();
                }
            },
        };
        let key = from.key;
        let parsed = parse(file, &text, |keys: &mut Keys<'_>| {
            // What the set is for: for whoever reads the file.
            _ = keys.get("description", Parser::text);
            keys.get("hosts", |parser, path, value| parser.hosts(path, value, key))
        });
        let is_empty = parsed.table.as_ref().is_none_or(Vec::is_empty);
        if parsed.problems.is_empty() && is_empty {
            self.problems.push(Problem::new(At::file(file), Wrong::Lacks("hosts")));
        }
        self.problems.extend(parsed.problems);
        parsed.table.unwrap_or_default()
    }
}
