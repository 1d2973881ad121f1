//! One file's keys, each checked where it stands, with every mistake collected.

use super::{
    AuditLevel, AxisRules, Base, Capabilities, LandlockUse, Mode, Partial, Rule, Seccomp,
    commands::{self, Ioctl},
    problem::{At, Problem, Wrong},
    rule::{Listed, RuleError},
    schema::known_keys,
    sections::{LimitsSection, LlmSection, Located, McpSection},
    socket_options::SocketOption,
};
use ringfence_grant::{CountBound, Denied, Entry, ExecEntry, NetEntry, PathEntry, Scope};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

/// The directories that stand for `${WORKDIR}` and `${HOME}` while entries are checked.
const SOME_WORKDIR: &str = "/workdir";
const SOME_HOME: &str = "/home/user";

/// The keys that one file has.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub extends: Option<(String, At)>,
    pub description: Option<String>,
    pub mode: Option<Mode>,
    pub image: Option<Vec<String>>,
    pub label: Option<Vec<String>>,
    pub name: Option<Vec<String>>,
    /// Where `[grant]` is.
    pub grant: Option<At>,
    /// The axes that `[grant]` names, rightly or not.
    pub named: BTreeSet<String>,
    pub fs_read: Option<Listed<AxisRules>>,
    pub fs_write: Option<Listed<AxisRules>>,
    pub exec: Option<Listed<AxisRules>>,
    pub net: Option<Listed<AxisRules>>,
    pub max_calls: Option<CountBound>,
    pub valid_for_generation: Option<Scope<u64>>,
    pub(crate) deny_fs_read: Option<Listed<Vec<Rule>>>,
    pub(crate) deny_fs_write: Option<Listed<Vec<Rule>>>,
    pub(crate) deny_exec: Option<Listed<Vec<Rule>>>,
    pub(crate) deny_net: Option<Listed<Vec<Rule>>>,
    pub seccomp: Option<Seccomp>,
    pub landlock: Option<LandlockUse>,
    pub audit: Option<AuditLevel>,
    pub base: Option<Base>,
    pub accept_partial: Option<Vec<Partial>>,
    pub capabilities: Option<Capabilities>,
    pub setuid_files: Option<bool>,
    pub shared_memory: Option<bool>,
    pub debug_between_calls: Option<bool>,
    pub ioctl: Option<Vec<Rule>>,
    pub socket_options: Option<Vec<Rule>>,
    pub llm: Option<Vec<LlmSection>>,
    pub mcp: Option<Vec<McpSection>>,
    pub limits: Option<LimitsSection>,
    pub log_reader: Option<Located<u64>>,
    pub socket_owner: Option<Located<u64>>,
    pub http: Option<bool>,
    pub http_port: Option<Located<u64>>,
}

/// What reading one file gave.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub layer: Layer,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What only the kernel's compiler refuses.
    pub refused: Vec<Problem>,
}

pub(crate) type Value<'a> = Spanned<DeValue<'a>>;

/// Reads one profile's text.
pub(crate) fn parse(file: &Path, text: &str) -> Parsed {
    read(file, text, Parser::root)
}

/// Reads the text of a registry: `[llm.*]` and `[mcp.*]`, nothing else.
pub(crate) fn parse_registry(file: &Path, text: &str) -> Parsed {
    read(file, text, Parser::registry)
}

fn read(file: &Path, text: &str, keys: impl Fn(&mut Parser, &DeTable<'_>)) -> Parsed {
    let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i).collect();
    let mut parser = Parser { file: file.into(), newlines, out: Parsed::default() };
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let start = error.span().map_or(0, |s| s.start);
        parser.wrong(start, "", Wrong::Syntax(error.message().to_owned()));
    }
    // After a syntax error the rest may be misread.
    if errors.is_empty() {
        keys(&mut parser, root.get_ref());
        // Tables come sorted by their keys; a person reads from the top.
        parser.out.problems.sort_by_key(|problem| problem.at.line);
    }
    parser.out
}

pub(crate) struct Parser {
    file: Arc<Path>,
    newlines: Vec<usize>,
    out: Parsed,
}

impl Parser {
    pub(crate) fn at(&self, offset: usize, key: &str) -> At {
        let line = u32::try_from(self.newlines.partition_point(|n| *n < offset) + 1).unwrap_or(u32::MAX);
        At { file: self.file.to_path_buf(), line, key: key.to_owned() }
    }

    pub(crate) fn wrong(&mut self, offset: usize, key: &str, what: Wrong) {
        let at = self.at(offset, key);
        self.out.problems.push(Problem::new(at, what));
    }

    pub(crate) fn mistyped(&mut self, key: &str, value: &Value<'_>, wanted: &'static str) {
        let found = match value.get_ref() {
            DeValue::Integer(number) if number.as_str().starts_with('-') => "a number below 0",
            other => kind(other),
        };
        self.wrong(value.span().start, key, Wrong::Type { wanted, found });
    }

    pub(crate) fn unknown(&mut self, table: &str, key: &Spanned<DeString<'_>>) {
        self.unknown_in(table, table, key);
    }

    /// The same in a table whose name is the author's own: `table` is what the schema calls it, `named` what the file does.
    pub(crate) fn unknown_in(&mut self, table: &str, named: &str, key: &Spanned<DeString<'_>>) {
        let known = known_keys(table);
        let near = known.iter().map(|k| (strsim::damerau_levenshtein(k, key.get_ref()), k)).min();
        let near = near.filter(|(distance, k)| *distance <= 1 + k.len() / 4).map(|(_, k)| k.clone());
        let path =
            if named.is_empty() { key.get_ref().to_string() } else { format!("{named}.{}", key.get_ref()) };
        self.wrong(key.span().start, &path, Wrong::UnknownKey { near, known });
    }

    fn root(&mut self, root: &DeTable<'_>) {
        for (key, value) in root {
            match key.get_ref().as_ref() {
                "extends" => {
                    let at = self.at(value.span().start, "extends");
                    self.out.layer.extends = self.text("extends", value).map(|name| (name, at));
                }
                "description" => self.out.layer.description = self.text("description", value),
                "mode" => {
                    let known = [("enforce", Mode::Enforce), ("audit", Mode::Audit)];
                    self.out.layer.mode = self.choice("mode", value, &known);
                }
                "match" => self.table("match", value, Self::match_key),
                "grant" => {
                    self.out.layer.grant = Some(self.at(key.span().start, "grant"));
                    self.table("grant", value, Self::grant_key);
                }
                "deny" => self.table("deny", value, Self::deny_key),
                "kernel" => self.table("kernel", value, Self::kernel_key),
                "llm" => self.out.layer.llm = Some(self.llm(value)),
                "mcp" => self.out.layer.mcp = Some(self.mcp(value)),
                "limits" => self.out.layer.limits = self.limits(value),
                "log_reader" => self.out.layer.log_reader = self.located("log_reader", value, Self::count),
                "http" => self.out.layer.http = self.flag("http", value),
                "http_port" => self.out.layer.http_port = self.located("http_port", value, Self::port),
                "socket_owner" => {
                    self.out.layer.socket_owner = self.located("socket_owner", value, Self::count)
                }
                _ => self.unknown("", key),
            }
        }
    }

    fn registry(&mut self, root: &DeTable<'_>) {
        for (key, value) in root {
            match key.get_ref().as_ref() {
                "llm" => self.out.layer.llm = Some(self.llm(value)),
                "mcp" => self.out.layer.mcp = Some(self.mcp(value)),
                _ => {
                    let known = vec!["llm".to_owned(), "mcp".to_owned()];
                    self.wrong(key.span().start, key.get_ref(), Wrong::UnknownKey { near: None, known });
                }
            }
        }
    }

    /// Hands each key of a table to `known`, which says whether it is one.
    fn table(&mut self, name: &str, value: &Value<'_>, known: impl Fn(&mut Self, &str, &Value<'_>) -> bool) {
        let Some(table) = value.get_ref().as_table() else {
            return self.mistyped(name, value, "a table");
        };
        for (key, value) in table {
            if !known(self, key.get_ref(), value) {
                self.unknown(name, key);
            }
        }
    }

    fn match_key(&mut self, key: &str, value: &Value<'_>) -> bool {
        match key {
            "image" => self.out.layer.image = self.texts("match.image", value),
            "label" => self.out.layer.label = self.texts("match.label", value),
            "name" => self.out.layer.name = self.texts("match.name", value),
            _ => return false,
        }
        true
    }

    fn grant_key(&mut self, key: &str, value: &Value<'_>) -> bool {
        self.out.layer.named.insert(key.to_owned());
        match key {
            "fs_read" => self.out.layer.fs_read = self.axis("grant.fs_read", value, Self::check_path),
            "fs_write" => self.out.layer.fs_write = self.axis("grant.fs_write", value, Self::check_path),
            "exec" => self.out.layer.exec = self.axis("grant.exec", value, Self::check_exec),
            "net" => self.out.layer.net = self.axis("grant.net", value, Self::check_net),
            "max_calls" => self.out.layer.max_calls = self.calls("grant.max_calls", value),
            "valid_for_generation" => {
                self.out.layer.valid_for_generation = self.generations("grant.valid_for_generation", value);
            }
            _ => return false,
        }
        true
    }

    fn deny_key(&mut self, key: &str, value: &Value<'_>) -> bool {
        match key {
            "fs_read" => {
                self.out.layer.deny_fs_read = self.denied("deny.fs_read", value, Self::check_denied_path)
            }
            "fs_write" => {
                self.out.layer.deny_fs_write = self.denied("deny.fs_write", value, Self::check_denied_path)
            }
            "exec" => self.out.layer.deny_exec = self.denied("deny.exec", value, Self::check_denied_exec),
            "net" => self.out.layer.deny_net = self.denied("deny.net", value, Self::check_net),
            _ => return false,
        }
        true
    }

    fn kernel_key(&mut self, key: &str, value: &Value<'_>) -> bool {
        match key {
            "seccomp" => self.out.layer.seccomp = self.seccomp(value),
            "landlock" => {
                let known = [
                    ("fallback", LandlockUse::Fallback),
                    ("always", LandlockUse::Always),
                    ("off", LandlockUse::Off),
                ];
                self.out.layer.landlock = self.choice("kernel.landlock", value, &known);
            }
            "audit" => {
                let known = [
                    ("denied", AuditLevel::Denied),
                    ("exec", AuditLevel::Exec),
                    ("exec+net", AuditLevel::ExecNet),
                    ("all", AuditLevel::All),
                ];
                self.out.layer.audit = self.choice("kernel.audit", value, &known);
            }
            "base" => {
                let known = [("userland", Base::Userland), ("none", Base::None)];
                self.out.layer.base = self.choice("kernel.base", value, &known);
            }
            "accept_partial" => {
                self.out.layer.accept_partial = self.partial("kernel.accept_partial", value);
            }
            "capabilities" => {
                self.out.layer.capabilities = self.capabilities("kernel.capabilities", value);
            }
            "setuid_files" => self.out.layer.setuid_files = self.flag("kernel.setuid_files", value),
            "shared_memory" => self.out.layer.shared_memory = self.flag("kernel.shared_memory", value),
            "debug_between_calls" => {
                self.out.layer.debug_between_calls = self.flag("kernel.debug_between_calls", value);
            }
            "ioctl" => self.out.layer.ioctl = Some(self.rules("kernel.ioctl", value, Self::check_ioctl)),
            "socket_options" => {
                let rules = self.rules("kernel.socket_options", value, Self::check_socket_option);
                self.out.layer.socket_options = Some(rules);
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn text(&mut self, key: &str, value: &Value<'_>) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.mistyped(key, value, "a string");
        }
        text
    }

    pub(crate) fn texts(&mut self, key: &str, value: &Value<'_>) -> Option<Vec<String>> {
        let Some(array) = value.get_ref().as_array() else {
            self.mistyped(key, value, "a list of strings");
            return None;
        };
        Some(array.iter().filter_map(|v| self.text(key, v)).collect())
    }

    fn choice<T: Clone>(&mut self, key: &str, value: &Value<'_>, known: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(key, value)?;
        let found = known.iter().find(|(name, _)| *name == text).map(|(_, choice)| choice.clone());
        if found.is_none() {
            let known = known.iter().map(|(name, _)| *name).collect();
            self.wrong(value.span().start, key, Wrong::Value { value: text, known });
        }
        found
    }

    fn seccomp(&mut self, value: &Value<'_>) -> Option<Seccomp> {
        let key = "kernel.seccomp";
        let known = [("default", Seccomp::Default), ("strict", Seccomp::Strict), ("off", Seccomp::Off)];
        match value.get_ref().as_str() {
            Some(path) if path.starts_with('/') => Some(Seccomp::File(PathBuf::from(path))),
            Some(text) if known.iter().all(|(name, _)| *name != text) => {
                let known = vec!["default", "strict", "off", "an absolute path"];
                self.wrong(value.span().start, key, Wrong::Value { value: text.to_owned(), known });
                None
            }
            _ => self.choice(key, value, &known),
        }
    }

    fn partial(&mut self, key: &str, value: &Value<'_>) -> Option<Vec<Partial>> {
        let Some(array) = value.get_ref().as_array() else {
            self.mistyped(key, value, "a list of axes");
            return None;
        };
        let known = Partial::ALL.map(|part| (part.name(), part));
        Some(array.iter().filter_map(|v| self.choice(key, v, &known)).collect())
    }

    /// One word, or a list of them.
    fn capabilities(&mut self, key: &str, value: &Value<'_>) -> Option<Capabilities> {
        let words: Vec<&Value<'_>> = match value.get_ref() {
            DeValue::String(_) => vec![value],
            DeValue::Array(words) => words.iter().collect(),
            _ => {
                self.mistyped(key, value, "a list of capabilities");
                return None;
            }
        };
        let mut set = Capabilities::NONE;
        for word in words {
            let text = self.text(key, word)?;
            match Capabilities::named(&text) {
                Some(named) => set = set.join(named),
                None => {
                    let near = Capabilities::near(&text);
                    self.wrong(word.span().start, key, Wrong::Capability { text, near });
                    return None;
                }
            }
        }
        Some(set)
    }

    /// `"all"` or `{ only = [...] }`; the latter's list is given to `read`.
    fn scope<'v, 'a>(&mut self, key: &str, value: &'v Value<'a>) -> Option<Option<&'v Value<'a>>> {
        let wanted = "\"all\" or { only = [...] }";
        match value.get_ref() {
            DeValue::String(text) if text == "all" => Some(None),
            DeValue::String(text) => {
                let what =
                    Wrong::Value { value: text.to_string(), known: vec!["\"all\"", "{ only = [...] }"] };
                self.wrong(value.span().start, key, what);
                None
            }
            DeValue::Table(table) => {
                let mut only = None;
                for (name, list) in table {
                    if name.get_ref() == "only" {
                        only = Some(list);
                    } else {
                        let adds = key != "grant.valid_for_generation";
                        let known = [Some("only"), adds.then_some("add")].into_iter().flatten();
                        let known = known.map(str::to_owned).collect();
                        let what = Wrong::UnknownKey { near: None, known };
                        self.wrong(name.span().start, &format!("{key}.{}", name.get_ref()), what);
                    }
                }
                if only.is_none() {
                    self.mistyped(key, value, wanted);
                }
                only.map(Some)
            }
            _ => {
                self.mistyped(key, value, wanted);
                None
            }
        }
    }

    fn axis<E: Entry>(
        &mut self,
        key: &'static str,
        value: &Value<'_>,
        check: impl Fn(&mut Self, &Rule) -> Option<E>,
    ) -> Option<Listed<AxisRules>> {
        if let Some(list) = added(value) {
            return Some(Listed::Added(self.rules(key, list, check), self.at(value.span().start, key)));
        }
        Some(Listed::Whole(match self.scope(key, value)? {
            None => AxisRules::All(self.rule(key, value, "all")),
            Some(list) => AxisRules::Only(self.rules(key, list, check)),
        }))
    }

    /// A deny's list, or what is added to that of the file it extends.
    fn denied<E: Ord>(
        &mut self,
        key: &'static str,
        value: &Value<'_>,
        check: impl Fn(&mut Self, &Rule) -> Option<E>,
    ) -> Option<Listed<Vec<Rule>>> {
        Some(match added(value) {
            Some(list) => Listed::Added(self.rules(key, list, check), self.at(value.span().start, key)),
            None => Listed::Whole(self.rules(key, value, check)),
        })
    }

    fn rule(&self, key: &'static str, value: &Value<'_>, text: &str) -> Rule {
        let line = self.at(value.span().start, "").line;
        Rule { text: text.to_owned(), file: Arc::clone(&self.file), line, key, home: None }
    }

    fn rules<E: Ord>(
        &mut self,
        key: &'static str,
        value: &Value<'_>,
        check: impl Fn(&mut Self, &Rule) -> Option<E>,
    ) -> Vec<Rule> {
        let Some(array) = value.get_ref().as_array() else {
            self.mistyped(key, value, "a list of strings");
            return Vec::new();
        };
        let mut seen: BTreeMap<E, u32> = BTreeMap::new();
        let mut rules = Vec::new();
        for value in array {
            let Some(text) = self.text(key, value) else { continue };
            let rule = self.rule(key, value, &text);
            let Some(entry) = check(self, &rule) else { continue };
            if let Some(line) = seen.insert(entry, rule.line) {
                self.wrong(value.span().start, key, Wrong::Duplicate { text, line });
                continue;
            }
            rules.push(rule);
        }
        rules
    }

    fn check_path(&mut self, rule: &Rule) -> Option<PathEntry> {
        let result = in_some_home(rule).path(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Path { text, error })
    }

    fn check_exec(&mut self, rule: &Rule) -> Option<ExecEntry> {
        let result = in_some_home(rule).exec(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Exec { text, error })
    }

    fn check_denied_path(&mut self, rule: &Rule) -> Option<Denied<PathEntry>> {
        let result = in_some_home(rule).denied_path(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Path { text, error })
    }

    fn check_denied_exec(&mut self, rule: &Rule) -> Option<Denied<ExecEntry>> {
        let result = in_some_home(rule).denied_exec(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Exec { text, error })
    }

    fn check_net(&mut self, rule: &Rule) -> Option<NetEntry> {
        let result = in_some_home(rule).net(Some(Path::new(SOME_WORKDIR)));
        let entry = self.checked(rule, result, |text, error| Wrong::Net { text, error })?;
        self.out.refused.extend(host_name(rule));
        Some(entry)
    }

    fn check_ioctl(&mut self, rule: &Rule) -> Option<Ioctl> {
        let parsed = Ioctl::parse(&rule.text);
        if parsed.is_none() {
            let (text, near) = (rule.text.clone(), commands::near(&rule.text));
            self.out.problems.push(Problem::new(place(rule), Wrong::Ioctl { text, near }));
        }
        parsed
    }

    fn check_socket_option(&mut self, rule: &Rule) -> Option<SocketOption> {
        let parsed = SocketOption::parse(&rule.text);
        parsed
            .map_err(|error| {
                let what = Wrong::SocketOption { text: rule.text.clone(), error };
                self.out.problems.push(Problem::new(place(rule), what));
            })
            .ok()
    }

    fn checked<E, X>(
        &mut self,
        rule: &Rule,
        result: Result<E, RuleError<X>>,
        wrong: impl Fn(String, X) -> Wrong,
    ) -> Option<E> {
        let text = rule.text.clone();
        let what = match result {
            Ok(entry) => return Some(entry),
            // There is some home while entries are checked.
            Err(RuleError::Workdir | RuleError::NoHome) => Wrong::Workdir { text },
            Err(RuleError::NoWorkdir) => Wrong::NoWorkdir(text),
            Err(RuleError::Entry(error)) => wrong(text, error),
        };
        self.out.problems.push(Problem::new(place(rule), what));
        None
    }

    pub(crate) fn count(&mut self, key: &str, value: &Value<'_>) -> Option<u64> {
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(&n.as_str().replace('_', ""), n.radix()).ok());
        if number.is_none() {
            self.mistyped(key, value, "a whole number, 0 or more,");
        }
        number
    }

    fn calls(&mut self, key: &str, value: &Value<'_>) -> Option<CountBound> {
        let wanted = "\"unlimited\" or { at_most = N }";
        match value.get_ref() {
            DeValue::String(text) if text == "unlimited" => return Some(CountBound::Unlimited),
            DeValue::Table(table) if table.len() == 1 => {
                if let Some((name, number)) = table.iter().next()
                    && name.get_ref() == "at_most"
                {
                    return self.count(key, number).map(CountBound::AtMost);
                }
            }
            _ => {}
        }
        self.mistyped(key, value, wanted);
        None
    }

    fn generations(&mut self, key: &str, value: &Value<'_>) -> Option<Scope<u64>> {
        let Some(list) = self.scope(key, value)? else { return Some(Scope::All) };
        let Some(array) = list.get_ref().as_array() else {
            self.mistyped(key, list, "a list of whole numbers");
            return None;
        };
        let numbers: Vec<u64> = array.iter().filter_map(|v| self.count(key, v)).collect();
        Some(Scope::only(numbers))
    }
}

/// The list of `{ add = [...] }`.
fn added<'v, 'a>(value: &'v Value<'a>) -> Option<&'v Value<'a>> {
    match value.get_ref() {
        DeValue::Table(table) if table.len() == 1 => {
            table.iter().find(|(name, _)| name.get_ref() == "add").map(|(_, list)| list)
        }
        _ => None,
    }
}

fn in_some_home(rule: &Rule) -> Rule {
    Rule { home: Some(Path::new(SOME_HOME).into()), ..rule.clone() }
}

/// What the kernel's compiler says to a net rule that is a host name.
pub(crate) fn host_name(rule: &Rule) -> Option<Problem> {
    let entry = rule.net(Some(Path::new(SOME_WORKDIR)));
    matches!(entry, Ok(NetEntry::Host { .. }))
        .then(|| Problem::new(place(rule), Wrong::HostName { text: rule.text.clone() }))
}

/// Where a rule stands.
pub(crate) fn place(rule: &Rule) -> At {
    At { file: rule.file.to_path_buf(), line: rule.line, key: rule.key.to_owned() }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
