//! The values of a profile's keys: each is checked where it stands.

use super::{
    AxisRules, Capabilities, Partial, Rule, Seccomp,
    commands::{self, Ioctl},
    keys::Keys,
    problem::{At, Problem, Wrong},
    rule::{Listed, RuleError},
    socket_options::SocketOption,
};
use ringfence_grant::{CountBound, Denied, ExecEntry, NetEntry, PathEntry, Scope};
use serde::{
    Deserialize,
    de::{self, IntoDeserializer as _, value::StrDeserializer},
};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The directories that stand for `${WORKDIR}` and `${HOME}` while entries are checked.
const SOME_WORKDIR: &str = "/workdir";
const SOME_HOME: &str = "/home/user";

pub(crate) type Value<'a> = Spanned<DeValue<'a>>;

/// One file, and what is wrong with it.
pub(crate) struct Parser {
    file: Arc<Path>,
    newlines: Vec<usize>,
    pub problems: Vec<Problem>,
}

impl Parser {
    pub(crate) fn new(file: &Path, text: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i).collect();
        Self { file: file.into(), newlines, problems: Vec::new() }
    }

    pub(crate) fn at(&self, offset: usize, key: &str) -> At {
        let line = u32::try_from(self.newlines.partition_point(|n| *n < offset) + 1).unwrap_or(u32::MAX);
        At { file: self.file.to_path_buf(), line, key: key.to_owned() }
    }

    pub(crate) fn wrong(&mut self, offset: usize, key: &str, what: Wrong) {
        let at = self.at(offset, key);
        self.problems.push(Problem::new(at, what));
    }

    pub(crate) fn mistyped(&mut self, key: &str, value: &Value<'_>, wanted: &'static str) {
        let found = match value.get_ref() {
            DeValue::Integer(number) if number.as_str().starts_with('-') => "a number below 0",
            other => kind(other),
        };
        self.wrong(value.span().start, key, Wrong::Type { wanted, found });
    }

    pub(crate) fn table<'v, 'a>(&mut self, key: &str, value: &'v Value<'a>) -> Option<&'v DeTable<'a>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.mistyped(key, value, "a table");
        }
        table
    }

    /// The keys of a table that is the value of a key.
    pub(crate) fn keys<T>(
        &mut self,
        key: &str,
        value: &Value<'_>,
        read: impl FnOnce(&mut Keys<'_>) -> T,
    ) -> Option<T> {
        let table = self.table(key, value)?;
        Some(Keys::read_all(self, key.to_owned(), Some(table), read))
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

    /// One of the names of an enum.
    pub(crate) fn choice<T: for<'de> Deserialize<'de>>(&mut self, key: &str, value: &Value<'_>) -> Option<T> {
        let text = self.text(key, value)?;
        let name: StrDeserializer<'_, UnknownName> = text.as_str().into_deserializer();
        match T::deserialize(name) {
            Ok(choice) => Some(choice),
            Err(UnknownName(known)) => {
                self.wrong(value.span().start, key, Wrong::Value { value: text, known: known.to_vec() });
                None
            }
        }
    }

    pub(crate) fn seccomp(&mut self, key: &str, value: &Value<'_>) -> Option<Seccomp> {
        let text = self.text(key, value)?;
        Some(match text.as_str() {
            "default" => Seccomp::Default,
            "strict" => Seccomp::Strict,
            "off" => Seccomp::Off,
            path if path.starts_with('/') => Seccomp::File(PathBuf::from(path)),
            _ => {
                let known = vec!["default", "strict", "off", "an absolute path"];
                self.wrong(value.span().start, key, Wrong::Value { value: text, known });
                return None;
            }
        })
    }

    pub(crate) fn partial(&mut self, key: &str, value: &Value<'_>) -> Option<Vec<Partial>> {
        let Some(array) = value.get_ref().as_array() else {
            self.mistyped(key, value, "a list of axes");
            return None;
        };
        Some(array.iter().filter_map(|v| self.choice(key, v)).collect())
    }

    /// One word, or a list of them.
    pub(crate) fn capabilities(&mut self, key: &str, value: &Value<'_>) -> Option<Capabilities> {
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

    pub(crate) fn axis<E: Ord>(
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
    pub(crate) fn denied<E: Ord>(
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
        self.rule_at(value.span().start, key, text)
    }

    pub(crate) fn rule_at(&self, offset: usize, key: &'static str, text: &str) -> Rule {
        let line = self.at(offset, "").line;
        Rule { text: text.to_owned(), file: Arc::clone(&self.file), line, key, home: None }
    }

    pub(crate) fn rules<E: Ord>(
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

    pub(crate) fn check_path(&mut self, rule: &Rule) -> Option<PathEntry> {
        let result = in_some_home(rule).path(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Path { text, error })
    }

    pub(crate) fn check_exec(&mut self, rule: &Rule) -> Option<ExecEntry> {
        let result = in_some_home(rule).exec(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Exec { text, error })
    }

    pub(crate) fn check_denied_path(&mut self, rule: &Rule) -> Option<Denied<PathEntry>> {
        let result = in_some_home(rule).denied_path(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Path { text, error })
    }

    pub(crate) fn check_denied_exec(&mut self, rule: &Rule) -> Option<Denied<ExecEntry>> {
        let result = in_some_home(rule).denied_exec(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Exec { text, error })
    }

    pub(crate) fn check_net(&mut self, rule: &Rule) -> Option<NetEntry> {
        let result = in_some_home(rule).net(Some(Path::new(SOME_WORKDIR)));
        self.checked(rule, result, |text, error| Wrong::Net { text, error })
    }

    pub(crate) fn check_ioctl(&mut self, rule: &Rule) -> Option<Ioctl> {
        let parsed = Ioctl::parse(&rule.text);
        if parsed.is_none() {
            let (text, near) = (rule.text.clone(), commands::near(&rule.text));
            self.problems.push(Problem::new(place(rule), Wrong::Ioctl { text, near }));
        }
        parsed
    }

    pub(crate) fn check_socket_option(&mut self, rule: &Rule) -> Option<SocketOption> {
        let parsed = SocketOption::parse(&rule.text);
        parsed
            .map_err(|error| {
                let what = Wrong::SocketOption { text: rule.text.clone(), error };
                self.problems.push(Problem::new(place(rule), what));
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
        self.problems.push(Problem::new(place(rule), what));
        None
    }

    pub(crate) fn count(&mut self, key: &str, value: &Value<'_>) -> Option<u64> {
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(&n.as_str().replace('_', ""), n.radix()).ok());
        if number.is_none() {
            self.mistyped(key, value, "a whole number, 0 or more");
        }
        number
    }

    pub(crate) fn calls(&mut self, key: &str, value: &Value<'_>) -> Option<CountBound> {
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

    pub(crate) fn generations(&mut self, key: &str, value: &Value<'_>) -> Option<Scope<u64>> {
        let Some(list) = self.scope(key, value)? else { return Some(Scope::All) };
        let Some(array) = list.get_ref().as_array() else {
            self.mistyped(key, list, "a list of whole numbers");
            return None;
        };
        let numbers: Vec<u64> = array.iter().filter_map(|v| self.count(key, v)).collect();
        Some(Scope::only(numbers))
    }
}

/// A text is not one of an enum's names.
#[derive(Debug, thiserror::Error)]
#[error("not one of {}", .0.join(", "))]
struct UnknownName(&'static [&'static str]);

impl de::Error for UnknownName {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self(known)
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

/// A rule of the net axis, in some working directory.
pub(crate) fn net_entry(rule: &Rule) -> Option<NetEntry> {
    in_some_home(rule).net(Some(Path::new(SOME_WORKDIR))).ok()
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
