//! Command lines, as words.

use crate::{
    REDACTED,
    forms::{self, PROGRAMS},
    names::{self, Surety},
    redact, values,
};

/// A command line without its secrets: by shape, behind a flag that names one (`--api-key VALUE`), in `NAME=VALUE`,
/// `Header: VALUE` where the name does, and where a program has passwords (`mysql -pVALUE`).
pub fn command(words: &[String]) -> Vec<String> {
    let is_flag = |word: &str| word.starts_with('-') && !word.contains(['=', ':']);
    let mut behind_secret = false;
    let mut redacted = Vec::with_capacity(words.len());
    for word in words {
        let named = word.find(['=', ':']).filter(|at| holds_secret(word, *at));
        redacted.push(match named {
            _ if behind_secret && !is_flag(word) && !values::is_template(word) => {
                Word::Hidden(REDACTED.to_owned())
            }
            Some(at) => Word::Hidden(format!("{}{REDACTED}", word.get(..=at).unwrap_or_default())),
            None => Word::Shown(word),
        });
        behind_secret = is_flag(word) && names::judge(word) >= Surety::Secret;
    }
    passwords(words, &mut redacted);
    let shown = |word: Word<'_>| match word {
        Word::Hidden(text) => text,
        Word::Shown(text) => redact(text).into_owned(),
    };
    redacted.into_iter().map(shown).collect()
}

/// What is shown of a word.
enum Word<'w> {
    /// This, whatever else is in it.
    Hidden(String),
    /// All but its secrets.
    Shown(&'w str),
}

/// Whether what is before the byte at `at` names a secret, and what is behind it is one.
fn holds_secret(word: &str, at: usize) -> bool {
    let (name, value) = (word.get(..at).unwrap_or_default(), word.get(at + 1..).unwrap_or_default().trim());
    match names::judge(name) {
        Surety::None => false,
        Surety::Random => values::is_random(value),
        Surety::Secret | Surety::Header => !value.is_empty() && !values::is_template(value),
    }
}

/// Takes out what programs have behind short flags.
fn passwords(words: &[String], redacted: &mut [Word<'_>]) {
    for (index, word) in words.iter().enumerate() {
        let base = word.rsplit('/').next().unwrap_or_default();
        let Some(program) = PROGRAMS.iter().position(|(name, _)| {
            let mut parts = name.split(' ');
            let rest = words.get(index + 1..).unwrap_or_default();
            parts.next() == Some(base)
                && parts
                    .zip(rest.iter().map(Some).chain([None]))
                    .all(|(part, word)| word.is_some_and(|word| word == part))
        }) else {
            continue;
        };
        // As if they stood behind one another, each where its number says.
        let stride = words.iter().map(String::len).max().unwrap_or_default() + 1;
        let places: Vec<(usize, &str)> =
            words.iter().enumerate().skip(index + 1).map(|(at, word)| (at * stride, word.as_str())).collect();
        let mut found = Vec::new();
        forms::passwords(program, &places, &mut found);
        for (start, end) in found {
            let (at, from, to) = (start / stride, start % stride, end - start / stride * stride);
            // What is hidden already is so to its end.
            if let Some(place @ Word::Shown(_)) = redacted.get_mut(at)
                && let Some(word) = words.get(at)
                && let (Some(before), Some(behind)) = (word.get(..from), word.get(to..))
            {
                *place = Word::Hidden(format!("{}{REDACTED}{}", redact(before), redact(behind)));
            }
        }
    }
}
