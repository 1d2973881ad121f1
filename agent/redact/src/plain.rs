//! Secrets in text as it stands: what is assigned to names of secrets, and what has a shape or a form.
//!
//! Where a text has no keyword nothing else is done. What is done at a keyword looks at a bounded number of bytes, or at
//! bytes that no other keyword makes it look at again, so that the time is linear whatever the text.

use crate::{
    assign::{self, Assigned, By},
    forms::{self, Form},
    judge,
    names::{self, Surety},
    rules,
    scan::{Hit, What, hits},
    shapes, values,
};

/// Most bytes of a line that are looked through for a program's words.
const LINE: usize = 2048;

/// How often each byte may be a part of a value that is looked at. Texts made to take long reach it: then every value is a
/// secret, whatever it looks like.
const LOOKS: usize = 4;

/// Where secrets are in a text, from the left, none in another.
pub(crate) fn find(text: &str) -> Vec<(usize, usize)> {
    Finder::new(text, true).find()
}

/// Whether something is found at once, in what was base64.
fn has_token(text: &str) -> bool {
    !Finder::new(text, false).find().is_empty()
}

/// Whether a keyword may be of a secret, by a glance around it: most are words of prose and of code.
pub(crate) fn may_matter(text: &str, hit: &Hit) -> bool {
    match hit.what {
        What::Escape => true,
        What::Name => {
            let Some((start, end)) = name_around(text, hit.at) else { return false };
            let name = text.get(start..end).unwrap_or_default();
            may_assign(text, name, end) && names::judge(name) != Surety::None
        }
        What::Shape(index) => {
            shapes::SHAPES.get(index).is_some_and(|shape| shapes::end(text, hit.at, shape).is_some())
        }
        What::Rule(index) => rules::may_match(text, index, hit.at + hit.len),
        What::Form(form) => match form {
            Form::Address => forms::userinfo(text, hit.at + hit.len).is_some(),
            Form::WebToken => forms::web_token(text, hit.at).is_some(),
            Form::Bearer => forms::bearer(text, hit.at, hit.len).is_some(),
            Form::Basic => forms::basic(text, hit.at, hit.len).is_some(),
            Form::Encoded => forms::encoded(text, hit.at, has_token).is_some(),
            Form::Key
            | Form::PuttyKey
            | Form::Manifest
            | Form::Identified
            | Form::Piped
            | Form::Phrase
            | Form::Program(_) => true,
        },
    }
}

/// Whether a value may be behind a name, by the first byte that is no quote and no space.
fn may_assign(text: &str, name: &str, end: usize) -> bool {
    let behind = text.as_bytes().get(end..).unwrap_or_default();
    let next = behind.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b'`' | b'\\' | b']'));
    let is_quoted = matches!(behind, [b'"' | b'\'' | b'`' | b'\\', ..]);
    let is_call = || name.contains("set") || name.contains("with") || name.contains("auth");
    name.starts_with('-')
        || matches!(behind, [b'\\', b'n' | b'r', ..])
        || matches!(behind, [b' ', b'"' | b'\'' | b'`' | b'\\', ..])
        || assign::is_followed(behind)
        || behind.starts_with(b"</key>")
        || matches!(name, "password" | "passwd")
        || match next {
            Some(b'=' | b':' | b'>' | b'?' | b'|' | b'\n' | b'\r' | b'i' | b'I') => true,
            Some(b',' | b'}' | b'v' | b'V') => is_quoted,
            Some(b'(') => is_call(),
            _ => false,
        }
}

/// The name that the keyword at `at` is in.
fn name_around(text: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let before = bytes.get(..at)?.iter().rev().take(names::LONGEST + 1).take_while(is_part).count();
    let behind = behind(text, at);
    if before + behind > names::LONGEST {
        return None;
    }
    let (mut start, end) = (at - before, at + behind);
    // The letter of an escape is no part of it.
    if start > 0
        && bytes.get(start - 1) == Some(&b'\\')
        && matches!(bytes.get(start), Some(b'n' | b'r' | b't'))
    {
        start += 1;
    }
    let name = text.get(start..end)?;
    Some((start, start + name.trim_end_matches(['.', '-']).len()))
}

/// Whether a byte is part of a name, with its separators.
fn is_part(byte: &&u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// Bytes of a run of such characters from a place on, as far as it is looked at.
fn behind(text: &str, at: usize) -> usize {
    text.as_bytes().get(at..).unwrap_or_default().iter().take(names::LONGEST + 1).take_while(is_part).count()
}

struct Finder<'t> {
    text: &'t str,
    secrets: Vec<(usize, usize)>,
    /// Which rule's keyword is where.
    rules: Vec<(usize, usize)>,
    /// What is before was taken, or is a name that was looked at.
    taken: usize,
    named: usize,
    /// Bytes of values that were looked at.
    work: usize,
    /// Where the documents end whose manifest was looked through.
    manifest: usize,
    /// Where the line ends that was looked through for each program's words.
    lines: Vec<usize>,
    /// What is in base64 is looked into.
    decodes: bool,
}

impl<'t> Finder<'t> {
    fn new(text: &'t str, decodes: bool) -> Self {
        Self {
            text,
            secrets: Vec::new(),
            rules: Vec::new(),
            taken: 0,
            named: 0,
            work: 0,
            manifest: 0,
            lines: Vec::new(),
            decodes,
        }
    }

    fn find(mut self) -> Vec<(usize, usize)> {
        for hit in hits(self.text) {
            if hit.at >= self.taken {
                self.look_at(&hit);
            }
        }
        rules::search(self.text, std::mem::take(&mut self.rules), &mut self.secrets);
        self.secrets.sort_unstable();
        let mut apart: Vec<(usize, usize)> = Vec::with_capacity(self.secrets.len());
        for (start, end) in self.secrets {
            match apart.last_mut() {
                Some((_, last)) if start < *last => *last = end.max(*last),
                _ => apart.push((start, end)),
            }
        }
        apart
    }

    fn look_at(&mut self, hit: &Hit) {
        let (text, end) = (self.text, hit.at + hit.len);
        match hit.what {
            What::Escape => {}
            What::Name => {
                if hit.at >= self.named {
                    self.look_at_name(hit.at);
                }
            }
            What::Shape(index) => {
                let shape = shapes::SHAPES.get(index);
                if let Some(end) = shape.and_then(|shape| shapes::end(text, hit.at, shape)) {
                    self.take((hit.at, end));
                }
            }
            What::Rule(index) => {
                if rules::may_match(text, index, end) {
                    self.rules.push((index, hit.at));
                }
            }
            What::Form(Form::Program(program)) => self.look_at_program(program, end),
            What::Form(Form::Manifest) => self.look_at_manifest(hit.at),
            What::Form(form) => {
                let found = match form {
                    Form::Address => forms::userinfo(text, end),
                    Form::Key => forms::key(text, hit.at, hit.len),
                    Form::PuttyKey => forms::putty_key(text, hit.at, hit.len),
                    Form::WebToken => forms::web_token(text, hit.at),
                    Form::Bearer => forms::bearer(text, hit.at, hit.len),
                    Form::Basic => forms::basic(text, hit.at, hit.len),
                    Form::Identified => forms::identified(text, hit.at, hit.len),
                    Form::Piped => forms::piped(text, hit.at),
                    Form::Phrase => forms::phrase(text, hit.at, hit.len),
                    Form::Encoded if self.decodes => forms::encoded(text, hit.at, has_token),
                    Form::Encoded | Form::Manifest | Form::Program(_) => None,
                };
                if let Some(found) = found {
                    self.take(found);
                }
            }
        }
    }

    fn take(&mut self, (start, end): (usize, usize)) {
        if start < end && self.text.is_char_boundary(start) && self.text.is_char_boundary(end) {
            self.taken = self.taken.max(end);
            self.secrets.push((start, end));
        }
    }

    fn look_at_name(&mut self, at: usize) {
        let Some((start, end)) = name_around(self.text, at) else {
            // As far as it was looked at behind that place it is one run of characters.
            self.named = at + behind(self.text, at);
            return;
        };
        self.named = end;
        let Some(name) = self.text.get(start..end) else { return };
        let surety = names::judge(name);
        if surety == Surety::None {
            return;
        }
        if let Some(found) = assign::of_arguments(self.text, name, end) {
            return self.take(found);
        }
        let Some(assigned) = assign::behind(self.text, (start, end)) else {
            if surety == Surety::Secret
                && let Some(found) = assign::of_pair(self.text, start, end)
            {
                self.take(found);
            }
            return;
        };
        if let Some(found) = self.judged(name, surety, &assigned) {
            self.take(found);
        }
    }

    /// What of the value is a secret, if any.
    fn judged(&mut self, name: &str, surety: Surety, assigned: &Assigned) -> Option<(usize, usize)> {
        let value = self.text.get(assigned.start..assigned.end)?;
        let whole = Some((assigned.start, assigned.end));
        let header_end =
            if surety == Surety::Header { judge::header_end(self.text, assigned) } else { assigned.end };
        self.work = self.work.saturating_add(header_end.max(assigned.end) - assigned.start);
        if self.work / LOOKS > self.text.len().max(LINE) {
            return whole;
        }
        match surety {
            Surety::None => None,
            Surety::Header => judge::header(self.text, assigned, header_end, name),
            Surety::Random if names::is_signature(name) => {
                // What is signed elsewhere is no secret: a commit, what a model thought.
                let before = assigned.name.checked_sub(1).and_then(|at| self.text.as_bytes().get(at));
                let is_one = matches!(before, Some(b'?' | b'&' | b';'))
                    && value.len() >= 20
                    && !values::is_placeholder(value);
                is_one.then_some(whole)?
            }
            // A digest or a UUID says nothing: keys of caches, of idempotency.
            Surety::Random => {
                let is_one = !matches!(assigned.by, By::Is | By::Space)
                    && values::is_random(value)
                    && !values::is_placeholder(value)
                    && !values::is_place(value)
                    && (names::is_shouted(name) || !values::is_digest(value));
                is_one.then_some(whole)?
            }
            Surety::Secret => judge::is_secret(name, value, assigned).then_some(whole)?,
        }
    }

    fn look_at_program(&mut self, program: usize, end: usize) {
        if self.lines.len() < forms::PROGRAMS.len() {
            self.lines.resize(forms::PROGRAMS.len(), 0);
        }
        let Some(line_end) = self.lines.get_mut(program).filter(|until| **until <= end) else { return };
        let rest = self.text.get(end..).unwrap_or_default();
        let rest = rest.get(..rest.floor_char_boundary(LINE)).unwrap_or_default();
        // A line goes on behind a backslash at its end.
        let mut length = 0;
        for line in rest.split_inclusive('\n') {
            length += line.len();
            if !line.trim_end().ends_with('\\') {
                break;
            }
        }
        let line = rest.get(..length).unwrap_or_default();
        let mut at = end;
        let words: Vec<(usize, &str)> = line
            .split_inclusive([' ', '\t', '\n'])
            .map(|word| {
                let start = at;
                at += word.len();
                (start, word.trim_end())
            })
            .filter(|(_, word)| !word.is_empty())
            .take_while(|(_, word)| !matches!(*word, "|" | "&&" | ";" | "||"))
            .collect();
        // Behind that it may be started once more.
        *line_end = words.last().map_or(end, |(start, word)| start + word.len()).max(end);
        let mut found = Vec::new();
        forms::passwords(program, &words, &mut found);
        found.into_iter().for_each(|found| self.take_within(found));
    }

    /// Takes what is not beside what was taken before: the search goes on where it is.
    fn take_within(&mut self, (start, end): (usize, usize)) {
        if start < end && self.text.is_char_boundary(start) && self.text.is_char_boundary(end) {
            self.secrets.push((start, end));
        }
    }

    fn look_at_manifest(&mut self, at: usize) {
        if at < self.manifest {
            return;
        }
        let before = self.text.get(self.manifest..at).unwrap_or_default();
        let begin = self.manifest + before.rfind("\n---").map_or(0, |begin| begin + 1);
        let behind = self.text.get(at..).unwrap_or_default();
        let end = at + behind.find("\n---").unwrap_or(behind.len());
        self.manifest = end;
        let mut found = Vec::new();
        forms::manifest(self.text.get(begin..end).unwrap_or_default(), begin, &mut found);
        found.into_iter().for_each(|found| self.take_within(found));
    }
}
