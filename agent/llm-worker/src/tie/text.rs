//! Whether a shell runs a call's command: what of its arguments it runs, and whether that is the command. Pure.
//!
//! A shell's arguments are its own to choose, so what agrees has to be what runs: of the arguments only the script is looked at (never
//! `$0` and what follows it), the tie is the first thing in it, and the command is all that follows. Around the two may be what a
//! known agent puts there, whole, and nothing else. What fits in another way is not found, which costs a tie and makes none wrong.

use ringfence_wire::tie::{COMMAND, PROGRAM};

/// Most arguments that are looked at: options before a script.
const MAX_ARGUMENTS: usize = 16;

/// What gemini-cli puts before any script of bash's.
const GUARD: &str = "shopt -u promptvars nullglob extglob nocaseglob dotglob; ";
/// What gemini-cli puts around a command: it asks for the processes that are left. The file's name is between the last two.
const AROUND: [(&str, &str); 2] =
    [("{ ", "}; __code=$?; pgrep -g 0 >"), ("(\n", ")\n__code=$?; pgrep -g 0 >")];
const AROUND_END: &str = " 2>&1; exit $__code;";

/// What Claude Code puts before a command: its snapshot, where it has one, and what sets the shell's own globs.
const SNAPSHOT: (&str, &str) = ("source ", " 2>/dev/null || true && ");
const GLOBS: [&str; 2] = [
    "shopt -u extglob 2>/dev/null || true && ",
    "setopt NO_EXTENDED_GLOB NO_BARE_GLOB_QUAL 2>/dev/null || true && ",
];
const EVAL: &str = "eval ";
/// What it puts behind: no input, perhaps, and a file for the directory.
const NO_INPUT: [&str; 2] = [" < /dev/null", " \\< /dev/null"];
const DIRECTORY: &str = " && pwd -P >| ";

/// Where a command may be in a shell's arguments: directly behind a tie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places<'a>(Option<Place<'a>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place<'a> {
    /// The call that the tie named.
    tie: Option<&'a str>,
    wrapper: Wrapper,
    /// From the command's beginning to the script's end.
    rest: &'a str,
}

/// What is around a tie and its command, and so how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrapper {
    Nothing,
    /// One of [`AROUND`]: how it goes on behind the command.
    Gemini(&'static str),
    /// Claude Code's, in these quotes.
    Claude(char),
}

impl<'a> Places<'a> {
    /// Of a process with these arguments.
    pub(crate) fn of(arguments: &'a [String]) -> Self {
        Self(script(arguments).and_then(place))
    }

    /// Whether a command is there. `named`: the call that the process says it is; the tie in its arguments says the same.
    pub(crate) fn agree(&self, named: Option<&str>, command: &str) -> bool {
        let command = command.trim();
        !command.is_empty() && self.0.as_ref().is_some_and(|place| place.tie == named && place.is(command))
    }
}

/// What a shell with these arguments runs: the first argument behind its options, among which is `-c`.
fn script(arguments: &[String]) -> Option<&str> {
    let mut is_script = false;
    for argument in arguments.iter().skip(1).take(MAX_ARGUMENTS) {
        match argument.strip_prefix('-') {
            None => return is_script.then_some(argument.as_str()),
            Some("-login" | "-noprofile" | "-norc" | "-posix") => {}
            // Those that take no argument, and change nothing of what runs.
            Some(flags) if !flags.is_empty() && flags.bytes().all(|flag| b"ceilu".contains(&flag)) => {
                is_script |= flags.contains('c');
            }
            Some(_) => return None,
        }
    }
    None
}

/// The tie at a script's beginning, or at that of what an agent's own words lead to.
fn place(script: &str) -> Option<Place<'_>> {
    let at = |text, wrapper| behind_tie(text).map(|(tie, rest)| Place { tie, wrapper, rest });
    let script = script.trim_start();
    at(script, Wrapper::Nothing)
        .or_else(|| {
            let script = script.strip_prefix(GUARD).unwrap_or(script);
            AROUND
                .iter()
                .find_map(|(before, behind)| at(script.strip_prefix(before)?, Wrapper::Gemini(behind)))
        })
        .or_else(|| {
            let (before, behind) = SNAPSHOT;
            let script = match script.strip_prefix(before) {
                Some(rest) => word(rest)?.strip_prefix(behind)?,
                None => script,
            };
            let script = GLOBS.iter().find_map(|globs| script.strip_prefix(globs)).unwrap_or(script);
            let script = script.strip_prefix(EVAL)?;
            let quote = script.chars().next().filter(|c| ['\'', '"'].contains(c))?;
            at(script.strip_prefix(quote)?.trim_start(), Wrapper::Claude(quote))
        })
}

/// What follows a word that is a path, in quotes or not, in which nothing can run.
fn word(text: &str) -> Option<&str> {
    let is_of_path = |c: char| c.is_alphanumeric() || "/._-+~=@:,".contains(c);
    let rest = match text.strip_prefix('\'') {
        Some(quoted) => quoted.split_once('\'')?.1,
        None => text.trim_start_matches(is_of_path),
    };
    (rest.len() < text.len()).then_some(rest)
}

impl Place<'_> {
    fn is(&self, command: &str) -> bool {
        match self.wrapper {
            Wrapper::Nothing => self.rest.strip_prefix(command).is_some_and(|rest| ended(rest).is_empty()),
            Wrapper::Gemini(behind) => self.rest.strip_prefix(command).is_some_and(|rest| {
                let is_apart = rest.starts_with(|c: char| c.is_whitespace() || c == ';');
                let end = ended(rest).strip_prefix(behind).and_then(|rest| word(rest.trim_start()));
                is_apart && end.is_some_and(|rest| rest.trim_end() == AROUND_END)
            }),
            Wrapper::Claude('\'') => [r"'\''", r#"'"'"'"#].iter().any(|quote| {
                behind(self.rest, command, |c| (c == '\'').then_some(*quote))
                    .is_some_and(|rest| is_claude_s_end(rest, '\''))
            }),
            Wrapper::Claude(quote) => behind(self.rest, command, |c| match c {
                '"' => Some(r#"\""#),
                '\\' => Some(r"\\"),
                '$' => Some(r"\$"),
                '`' => Some(r"\`"),
                '!' => Some(r"\!"),
                _ => None,
            })
            .is_some_and(|rest| is_claude_s_end(rest, quote)),
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

/// What follows a raw command's end: blanks, and one `;`.
fn ended(rest: &str) -> &str {
    let rest = rest.trim_start();
    rest.strip_prefix(';').unwrap_or(rest).trim_start()
}

/// Whether the quotes end here, and all that follows is what Claude Code puts there.
fn is_claude_s_end(rest: &str, quote: char) -> bool {
    let Some(rest) = rest.trim_start().strip_prefix(quote) else { return false };
    let rest = NO_INPUT.iter().find_map(|no_input| rest.strip_prefix(no_input)).unwrap_or(rest);
    rest.strip_prefix(DIRECTORY).and_then(word).is_some_and(|rest| rest.trim().is_empty())
}

/// The call that a text's tie names, and what comes directly behind the tie. It begins with the program's path.
fn behind_tie(text: &str) -> Option<(Option<&str>, &str)> {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._-+~".contains(c);
    let rest = text.trim_start_matches(is_of_path);
    let path = text.strip_suffix(rest)?;
    path.strip_suffix(PROGRAM).filter(|dir| dir.is_empty() || dir.ends_with('/'))?;
    arguments_of_tie(rest)
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

#[cfg(test)]
mod tests;
