//! Whether a shell runs a call's command: what of its arguments may be one, and whether that is it. Pure.
//!
//! A shell's arguments are its own to choose, and each agent wraps a command in its own way. So a command is looked for in few
//! places, and has to begin and end there: directly behind a tie, or as all that a shell was given, raw or as one word in quotes.
//! What fits in another way is not found, which costs a tie and makes none wrong.

use ringfence_wire::tie::{COMMAND, PROGRAM};

/// Most arguments that are looked at, and most places in one.
const MAX_ARGUMENTS: usize = 64;
const MAX_PLACES: usize = 16;

/// What may follow a raw command that an agent wrapped: gemini-cli's, which asks for the processes that are left.
const TAILS: [&str; 2] = ["}; __code=$?;", ")\n__code=$?;"];

/// Where a command may be in a shell's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places<'a>(Vec<Place<'a>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place<'a> {
    /// It follows a tie, which named this call, or none.
    tie: Option<Option<&'a str>>,
    quoting: Quoting,
    /// From its beginning to the argument's end.
    rest: &'a str,
}

/// How a command is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    Raw,
    Single,
    Double,
}

impl<'a> Places<'a> {
    /// Of a process with these arguments. A tie in an argument comes before all else in it that may be a command.
    pub(crate) fn of(arguments: &'a [String]) -> Self {
        let mut places = Vec::new();
        for (before, text) in arguments.iter().zip(arguments.iter().skip(1)).take(MAX_ARGUMENTS) {
            let ties = behind_ties(text);
            if !ties.is_empty() {
                places.extend(ties);
            } else if is_script_flag(before) {
                places.push(Place { tie: None, quoting: Quoting::Raw, rest: text });
                places.extend(evaluated(text));
            }
        }
        Self(places)
    }

    /// Whether a command is at one of them. `named`: the call that the process says it is; a tie in its arguments says the same.
    pub(crate) fn agree(&self, named: Option<&str>, command: &str) -> bool {
        let command = command.trim();
        !command.is_empty()
            && self.0.iter().any(|place| place.tie.is_none_or(|of| of == named) && place.is(command))
    }
}

impl Place<'_> {
    fn is(&self, command: &str) -> bool {
        match self.quoting {
            Quoting::Raw => self.rest.strip_prefix(command).is_some_and(is_over),
            Quoting::Single => [r"'\''", r#"'"'"'"#].iter().any(|quote| {
                behind(self.rest, command, |c| (c == '\'').then_some(*quote))
                    .is_some_and(|rest| is_closed(rest, '\''))
            }),
            Quoting::Double => behind(self.rest, command, |c| match c {
                '"' => Some(r#"\""#),
                '\\' => Some(r"\\"),
                '$' => Some(r"\$"),
                '`' => Some(r"\`"),
                '!' => Some(r"\!"),
                _ => None,
            })
            .is_some_and(|rest| is_closed(rest, '"')),
        }
    }
}

/// What follows a command in a text that begins with it, some of its characters written as `escape` says.
fn behind<'t>(
    text: &'t str,
    command: &str,
    escape: impl Fn(char) -> Option<&'static str>,
) -> Option<&'t str> {
    let mut rest = text;
    for c in command.chars() {
        rest = match escape(c) {
            Some(escaped) => rest.strip_prefix(escaped)?,
            None => rest.strip_prefix(c)?,
        };
    }
    Some(rest)
}

/// Whether nothing more is in quotes, and the word ends with them.
fn is_closed(rest: &str, quote: char) -> bool {
    let Some(behind) = rest.trim_start().strip_prefix(quote) else { return false };
    behind.chars().next().is_none_or(|c| c.is_whitespace() || ";)&|<>}".contains(c))
}

/// Whether a raw command ends here.
fn is_over(rest: &str) -> bool {
    let is_apart = rest.starts_with(|c: char| c.is_whitespace() || c == ';');
    let rest = rest.trim_start();
    let rest = rest.strip_prefix(';').unwrap_or(rest).trim_start();
    rest.is_empty() || (is_apart && TAILS.iter().any(|tail| rest.starts_with(tail)))
}

/// Whether an argument says that the next one is a script: `-c`, `-lc`.
fn is_script_flag(argument: &str) -> bool {
    argument
        .strip_prefix('-')
        .is_some_and(|flags| flags.ends_with('c') && flags.bytes().all(|flag| flag.is_ascii_lowercase()))
}

/// What is directly behind the ties in an argument.
fn behind_ties(text: &str) -> Vec<Place<'_>> {
    let mut places = Vec::new();
    for (at, _) in text.match_indices(PROGRAM).take(MAX_PLACES) {
        let (before, behind) =
            (text.get(..at).unwrap_or_default(), text.get(at + PROGRAM.len()..).unwrap_or_default());
        let Some((tie, rest)) = arguments_of_tie(behind) else { continue };
        let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._-+~".contains(c);
        let quoting = match before.trim_end_matches(is_of_path).chars().next_back() {
            Some('\'') => Quoting::Single,
            Some('"') => Quoting::Double,
            _ => Quoting::Raw,
        };
        places.push(Place { tie: Some(tie), quoting, rest });
    }
    places
}

/// The call that a tie names, and what comes behind the tie.
fn arguments_of_tie(text: &str) -> Option<(Option<&str>, &str)> {
    let is_blank = |c: char| c == ' ' || c == '\t';
    let blank = |text: &'_ str| text.starts_with(is_blank);
    let rest = Some(text).filter(|text| blank(text))?.trim_start_matches(is_blank).strip_prefix(COMMAND)?;
    let is_of_id = |c: char| c.is_ascii_graphic() && !"'\"\\;&|<>()$`".contains(c);
    let (tie, rest) = if blank(rest) {
        let rest = rest.trim_start_matches(is_blank);
        let end = rest.find(|c| !is_of_id(c)).unwrap_or(rest.len());
        let (id, rest) = rest.split_at_checked(end)?;
        (Some(id).filter(|id| !id.is_empty()), rest.trim_start_matches(is_blank))
    } else {
        (None, rest)
    };
    let rest = rest.strip_prefix("&&").or_else(|| rest.strip_prefix(['\n', ';']))?;
    Some((tie, rest.trim_start()))
}

/// What a script evaluates: the words in quotes behind `eval`.
fn evaluated(text: &str) -> Vec<Place<'_>> {
    let places = text.match_indices("eval ").take(MAX_PLACES).filter_map(|(at, eval)| {
        let rest = text.get(at + eval.len()..)?.trim_start();
        let quoting = match rest.chars().next()? {
            '\'' => Quoting::Single,
            '"' => Quoting::Double,
            _ => return None,
        };
        Some(Place { tie: None, quoting, rest: rest.get(1..)?.trim_start() })
    });
    places.collect()
}

#[cfg(test)]
mod tests;
