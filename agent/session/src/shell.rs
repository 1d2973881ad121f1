//! What a shell command does: each simple command of a script, through `sudo`, `xargs`, `sh -c` and their like, code and
//! SQL that it is given on its command line included. Pure: nothing is run, expanded or looked up.
//!
//! A script that cannot be read, or not to its end, is judged by the gravest of its words.

mod commands;
mod git;
mod reader;
mod targets;
mod wrappers;

use crate::{
    code,
    deeds::{Deeds, Mark},
    sql,
};
use commands::Cursor;
use reader::{Command, Script};
use ringfence_wire::tool_call::Operation;

/// Longest script that is read, bytes. The confined shell takes as much.
const LONGEST: usize = 128 * 1024;
/// Most texts of a call that are read as scripts, code or SQL, those within others included.
const MOST_TEXTS: usize = 256;
/// How many scripts stand in one another, as in `sh -c "sh -c ..."`.
const DEEPEST: usize = 5;

/// Words that destroy something wherever they stand in a script that cannot be read.
const DESTROYING: &[&str] = &[
    "dd", "del", "delete", "destroy", "drop", "erase", "mkfs", "purge", "remove", "rimraf", "rm", "rmdir",
    "rmtree", "shred", "truncate", "unlink", "wipefs",
];

/// A text that is to be read.
#[derive(Debug)]
enum Text {
    Script(String),
    Words(Vec<String>),
    Code(String),
    Sql(String),
}

/// Texts that wait, each with how many scripts it stands in.
#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<(Text, usize)>,
    /// How many were ever put in, and how many bytes.
    many: usize,
    bytes: usize,
    /// Some were not put in.
    full: bool,
    depth: usize,
}

impl Queue {
    fn put(&mut self, text: Text) {
        let bytes = match &text {
            Text::Script(text) | Text::Code(text) | Text::Sql(text) => text.len(),
            Text::Words(words) => words.iter().map(String::len).sum(),
        };
        self.many += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        // What stands in a script is a part of it: each depth has no more bytes than the first.
        if self.many > MOST_TEXTS || self.depth >= DEEPEST || self.bytes > DEEPEST * LONGEST {
            self.full = true;
        } else {
            self.waiting.push((text, self.depth + 1));
        }
    }
}

/// What a script does.
pub(crate) fn script(text: &str, deeds: &mut Deeds) {
    // What is too long is never copied.
    if text.len() > LONGEST {
        by_words(text, deeds);
    } else {
        all(Text::Script(text.to_owned()), text, deeds);
    }
}

/// What one program does with these arguments, as no shell reads them.
pub(crate) fn words(words: &[String], deeds: &mut Deeds) {
    let bytes: usize = words.iter().map(String::len).sum();
    if bytes > LONGEST {
        words.iter().for_each(|word| by_words(word, deeds));
    } else {
        all(Text::Words(words.to_vec()), &words.join(" "), deeds);
    }
}

/// `whole`: the text that all of it stands in.
fn all(first: Text, whole: &str, deeds: &mut Deeds) {
    let mut queue = Queue { waiting: vec![(first, 0)], ..Queue::default() };
    let mut understood = true;
    while let Some((text, depth)) = queue.waiting.pop() {
        queue.depth = depth;
        match text {
            Text::Script(text) => understood &= one(&text, &mut queue, deeds),
            Text::Words(words) => {
                let command = Command { words, ..Command::default() };
                commands::judge(&command, None, &mut Cursor::default(), &mut queue, deeds);
            }
            Text::Code(text) => code::judge(&text, deeds).into_iter().for_each(|text| match text {
                code::Shell::Script(text) => queue.put(Text::Script(text)),
                code::Shell::Words(words) => queue.put(Text::Words(words)),
            }),
            Text::Sql(text) => {
                if let Some(found) = sql::statements(&text) {
                    deeds.does(found.operation);
                    deeds.mark_if(found.unbounded, Mark::Unbounded);
                }
            }
        }
    }
    if !understood || queue.full {
        by_words(whole, deeds);
    }
}

/// One script; whether it was understood.
fn one(text: &str, queue: &mut Queue, deeds: &mut Deeds) -> bool {
    let Script { commands, texts, whole } = reader::read(text);
    let mut cursor = Cursor::default();
    let mut before = None;
    for command in &commands {
        commands::judge(command, before, &mut cursor, queue, deeds);
        before = Some(command);
    }
    // A function that pipes itself into itself.
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).take(16).collect();
    deeds.mark_if(compact.starts_with(":(){:|:"), Mark::Stops);
    texts.into_iter().for_each(|text| queue.put(Text::Script(text)));
    whole
}

/// The gravest that a text could do, by its words.
fn by_words(text: &str, deeds: &mut Deeds) {
    deeds.does(Operation::Execute);
    deeds.mark(Mark::Unreadable);
    let destroys = |word: &str| DESTROYING.iter().any(|known| word.eq_ignore_ascii_case(known));
    if text.split(|c: char| !c.is_ascii_alphanumeric()).any(destroys) {
        deeds.does(Operation::Delete);
    }
}

#[cfg(test)]
mod tests;
