//! One file's tables, key by key: each key is read where it stands, and every mistake is collected.

use super::{
    parse::{Parser, Value},
    problem::{At, Problem, Wrong},
    sections::Located,
};
use std::{collections::BTreeSet, path::Path};
use toml::{
    Spanned,
    de::{DeString, DeTable},
};

/// How a value is read: where it stands, and the value.
pub(crate) type Read<T> = fn(&mut Parser, &str, &Value<'_>) -> Option<T>;

/// What reading one file gave.
#[derive(Debug, Default)]
pub(crate) struct Parsed<T> {
    pub table: T,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Reads a file's text; `read` gets the keys at the top.
pub(crate) fn parse<T: Default>(file: &Path, text: &str, read: impl FnOnce(&mut Keys<'_>) -> T) -> Parsed<T> {
    let mut parser = Parser::new(file, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let start = error.span().map_or(0, |s| s.start);
        parser.wrong(start, "", Wrong::Syntax(error.message().to_owned()));
    }
    // After a syntax error the rest may be misread.
    let table = if errors.is_empty() {
        Keys::read_all(&mut parser, String::new(), Some(root.get_ref()), read)
    } else {
        T::default()
    };
    // A person reads from the top.
    parser.problems.sort_by_key(|problem| problem.at.line);
    Parsed { table, problems: parser.problems }
}

/// The keys of one table. Those that are not asked for are unknown.
pub(crate) struct Keys<'k> {
    parser: &'k mut Parser,
    /// The table's path; empty for the file itself.
    path: String,
    /// `None`: the file does not have it.
    table: Option<&'k DeTable<'k>>,
    /// The keys that were asked for.
    known: Vec<String>,
}

impl<'k> Keys<'k> {
    /// Reads a table, and reports its unknown keys.
    pub(crate) fn read_all<T>(
        parser: &'k mut Parser,
        path: String,
        table: Option<&'k DeTable<'k>>,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let mut keys = Self { parser, path, table, known: Vec::new() };
        let read = read(&mut keys);
        keys.end();
        read
    }

    fn end(self) {
        let Self { parser, path, table, mut known } = self;
        known.sort();
        known.dedup();
        for key in table.into_iter().flat_map(|table| table.keys()) {
            let name: &str = key.get_ref();
            if known.iter().any(|known| known == name) {
                continue;
            }
            let near = known.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
            let near = near.filter(|(distance, known)| *distance <= 1 + known.len() / 4);
            let near = near.map(|(_, known)| known.clone());
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            parser.wrong(key.span().start, &path, Wrong::UnknownKey { near, known: known.clone() });
        }
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn find(&mut self, name: &str) -> Option<(&'k Spanned<DeString<'k>>, &'k Value<'k>)> {
        self.known.push(name.to_owned());
        self.table?.iter().find(|(key, _)| key.get_ref() == name)
    }

    /// A key's value, as `read` takes it.
    pub(crate) fn get<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Parser, &str, &'k Value<'k>) -> Option<T>,
    ) -> Option<T> {
        let (_, value) = self.find(name)?;
        let path = self.path_of(name);
        read(self.parser, &path, value)
    }

    /// The same, with the value's place.
    pub(crate) fn located<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Parser, &str, &'k Value<'k>) -> Option<T>,
    ) -> Option<Located<T>> {
        self.get(name, |parser, path, value| {
            let at = parser.at(value.span().start, path);
            read(parser, path, value).map(|value| Located { value, at })
        })
    }

    /// Where a key stands.
    pub(crate) fn place(&mut self, name: &str) -> Option<At> {
        let (key, _) = self.find(name)?;
        Some(self.parser.at(key.span().start, &self.path_of(name)))
    }

    /// The names of all keys, known or not.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.table.into_iter().flat_map(|table| table.keys()).map(|key| key.get_ref().to_string()).collect()
    }

    /// A table below this one. `read` runs without it, too: everything in it is inherited then.
    pub(crate) fn table<T>(&mut self, name: &str, read: impl FnOnce(&mut Keys<'_>) -> T) -> T {
        let table = self.get(name, Parser::table);
        let path = self.path_of(name);
        Keys::read_all(self.parser, path, table, read)
    }

    /// The sections `[TITLE.NAME]`.
    pub(crate) fn sections<T>(
        &mut self,
        title: &str,
        read: impl Fn(&mut Keys<'_>, &str, At) -> T,
    ) -> Option<Vec<T>> {
        self.get(title, |parser, title, value| {
            let mut sections = Vec::new();
            for (name, body) in parser.table(title, value)? {
                let path = format!("{title}.{}", name.get_ref());
                let Some(table) = body.get_ref().as_table() else {
                    let what = Wrong::NoSectionName { title: title.to_owned() };
                    parser.wrong(name.span().start, &path, what);
                    continue;
                };
                let at = parser.at(name.span().start, &path);
                let section = |keys: &mut Keys<'_>| read(keys, name.get_ref(), at);
                sections.push(Keys::read_all(parser, path, Some(table), section));
            }
            Some(sections)
        })
    }

    /// A value that has alternatives, each under its own key; a second one is a mistake.
    pub(crate) fn one_of<T>(&mut self, alternatives: &[(&str, Read<T>)]) -> Option<Located<T>> {
        let mut found: Option<Located<T>> = None;
        for (name, read) in alternatives {
            let (value, at) = (self.located(name, *read), self.place(name));
            match &found {
                None => found = value,
                Some(first) => {
                    let what = Wrong::TwoSources { first: first.at.key.clone() };
                    self.parser.problems.extend(at.map(|at| Problem::new(at, what)));
                }
            }
        }
        found
    }
}
