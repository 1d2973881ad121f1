//! Takes credentials out of JSON, in its source. Pure.

use super::{
    REDACTED, Redactor,
    escapes::{At, Places, Unescaped, characters, strings},
    replaced,
};
use crate::message::raw;
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

impl Redactor {
    /// JSON without credentials in its strings and keys, however they are escaped there; also where a string is JSON itself,
    /// as a tool's arguments are. They are looked for in the source: what no parser reads whole is none the less sent on.
    pub fn json(&self, json: Box<RawValue>) -> Box<RawValue> {
        let source = json.get();
        if self.patterns.is_empty()
            || (!source.contains('\\') && matches!(self.text(source), Cow::Borrowed(_)))
        {
            return json;
        }
        let (mut out, mut from): (Option<String>, _) = (None, 0);
        for (at, end) in strings(source) {
            let Cow::Owned(clean) = self.string(&source[at..end]) else { continue };
            let out = out.get_or_insert_default();
            out.push_str(&source[from..at]);
            out.push_str(&clean);
            from = end;
        }
        let clean = match out {
            None => json,
            Some(out) => match RawValue::from_string(out + &source[from..]) {
                Ok(clean) => clean,
                Err(_) => return raw(&REDACTED),
            },
        };
        // In no string: a number, or over several of them. There is no taking it out that leaves JSON.
        match self.text(clean.get()) {
            Cow::Borrowed(_) => clean,
            Cow::Owned(_) => raw(&REDACTED),
        }
    }

    /// A value without credentials.
    pub fn value(&self, value: Value) -> Value {
        let before = raw(&value);
        let clean = self.json(before.clone());
        if clean.get() == before.get() {
            return value;
        }
        serde_json::from_str(clean.get()).unwrap_or_else(|_| REDACTED.into())
    }

    /// What is between a string's quotes.
    fn string<'t>(&self, source: &'t str) -> Cow<'t, str> {
        let mut clean = self.text(source);
        if clean.contains('\\') {
            if let Some(other) = self.behind(&clean, Unescaped(characters(&clean))) {
                clean = Cow::Owned(other);
            }
            if let Some(other) = self.behind(&clean, Unescaped(Unescaped(characters(&clean)))) {
                clean = Cow::Owned(other);
            }
        }
        clean
    }

    /// A source without what stands for a credential; none: it has none.
    fn behind(&self, source: &str, characters: impl Iterator<Item = At> + Clone) -> Option<String> {
        let (found, _) = self.found_behind(characters);
        (!found.is_empty()).then(|| replaced(source, found))
    }

    /// As [`Self::found`], in what a source stands for.
    pub(super) fn found_behind(
        &self,
        characters: impl Iterator<Item = At> + Clone,
    ) -> (Vec<(usize, usize)>, usize) {
        let text: String = characters.clone().map(|(_, character)| character).collect();
        let (mut places, mut last) = (Places::new(characters), 0);
        let found = self.finds(&text).map(|(at, end)| {
            last = end;
            (places.of(at), places.of(end))
        });
        let found = found.collect();
        let decided = text.len() - self.undecided(&text[last..]);
        (found, places.of(decided))
    }
}

#[cfg(test)]
mod tests;
