//! Why a script is not run: every refusal has a name, and suggests what to do instead.

use super::script::{MAX_COMMANDS, MAX_PIPELINE, MAX_SCRIPT};

/// Why a text is not a script of the safe subset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// More than 128 KiB.
    #[error("the script has {bytes} bytes, and may have {MAX_SCRIPT}; put data into files")]
    TooLong {
        /// What it has.
        bytes: usize,
    },
    /// More than 1,000 commands.
    #[error("the script has more than {MAX_COMMANDS} commands; split it into several calls")]
    TooMany,
    /// More than 64 commands that would run at the same time.
    #[error("line {line}: a pipeline has more than {MAX_PIPELINE} commands")]
    LongPipeline {
        /// Where, from 1.
        line: usize,
    },
    /// Nothing but blanks and comments.
    #[error("the script has no command")]
    Empty,
    /// Something of a shell's that is not in the subset.
    #[error("line {line}: {construct}")]
    Refused {
        /// What it is.
        construct: Construct,
        /// Where, from 1.
        line: usize,
    },
    /// The same, found when the words were expanded.
    #[error(transparent)]
    Word(Construct),
    /// A quote that does not end.
    #[error("line {line}: the quote {quote} that begins here does not end")]
    Unterminated {
        /// Which.
        quote: char,
        /// Where it begins, from 1.
        line: usize,
    },
    /// An operator or the end, where a command should be.
    #[error("line {line}: {what} is not expected here")]
    Unexpected {
        /// What was found.
        what: &'static str,
        /// Where, from 1.
        line: usize,
    },
}

/// What the safe subset leaves out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Construct {
    /// `$(...)` and backquotes.
    #[error(
        "command substitution (`{0}`) is refused: run the inner command first, and use its output in a second call"
    )]
    Substitution(&'static str),
    /// `<(...)`, `>(...)`.
    #[error("process substitution is refused: use a pipe or a file")]
    ProcessSubstitution,
    /// `$((...))`, `$[...]`, `((...))`.
    #[error("arithmetic is refused")]
    Arithmetic,
    /// `${x:-y}`, `$?`, `$1` and the like.
    #[error(
        "the parameter expansion `${0}` is refused: only $NAME and ${{NAME}} of the allowed variables are known"
    )]
    Parameter(String),
    /// A variable outside of the allowlist.
    #[error("the variable ${} is refused: only {allowed} may be used", start(name))]
    Variable {
        /// Which.
        name: String,
        /// Those that are allowed.
        allowed: String,
    },
    /// `(...)`.
    #[error("a subshell is refused: parentheses must be quoted")]
    Subshell,
    /// `{ ...; }`.
    #[error(
        "a group of commands in braces is refused: quote the brace, or write the commands one after another"
    )]
    Group,
    /// `&`.
    #[error("a background command (`&`) is refused: what a call starts ends with the call")]
    Background,
    /// `<<`.
    #[error("a here-document is refused: write the text to a file first")]
    Heredoc,
    /// `<<<`.
    #[error("a here-string is refused: use printf and a pipe")]
    HereString,
    /// `f() {...}` and `function f`.
    #[error("a function definition is refused")]
    Function,
    /// `if`, `for`, `[[` and the like.
    #[error("control flow (`{0}`) is refused: only | && || ; and newlines connect commands")]
    ControlFlow(String),
    /// `! command`.
    #[error("negation (`!`) is refused: use || or &&")]
    Negation,
    /// A command that only a shell can run, or that would run text.
    #[error("`{0}` is a shell's own command and is refused{hint}", hint = builtin_hint(.0))]
    Builtin(String),
    /// `NAME=value`.
    #[error("an assignment is refused: tools get the environment that they were given")]
    Assignment,
    /// `{a,b}`.
    #[error("brace expansion is refused: write the words out, or quote them")]
    Braces,
    /// `$'...'`, `$"..."`.
    #[error("the quote {0} is refused: use '...' or \"...\"")]
    Quote(&'static str),
    /// `~`.
    #[error("tilde expansion is refused: write $HOME, or quote the ~")]
    Tilde,
    /// An operator that redirects in another way than `< > >> 2> 2>> 2>&1`.
    #[error("the redirect `{0}` is refused: only < > >> 2> 2>> 2>&1 and >&2 are known")]
    Redirect(&'static str),
    /// Another descriptor than the standard ones.
    #[error("a redirect of descriptor `{}` is refused: only 0 can be read from a file, and 1 and 2 written", start(.0))]
    Descriptor(String),
    /// A redirect without a command.
    #[error("a redirect without a program is refused")]
    NoProgram,
    /// A program whose name depends on the file system or a variable.
    #[error("a {0} as the program is refused: name the program itself")]
    Program(&'static str),
    /// A redirect to a file whose name depends on the file system.
    #[error("a glob as the file of a redirect is refused: name the file itself")]
    GlobTarget,
    /// A variable that is no word, or several, as the file of a redirect.
    #[error("the file of a redirect must be one word")]
    AmbiguousTarget,
    /// `[[=a=]]`, `[[.a.]]`.
    #[error("a collating symbol or an equivalence class in a glob is refused")]
    Collation,
    /// A NUL character.
    #[error("a NUL character is refused: no argument can have one")]
    Nul,
}

/// Enough of a name to know it by.
fn start(name: &str) -> &str {
    name.char_indices().nth(64).map_or(name, |(end, _)| &name[..end])
}

fn builtin_hint(name: &str) -> &'static str {
    match name {
        "cd" | "pushd" | "popd" => ": use the argument `cwd`",
        "eval" | "exec" | "source" | "." | "command" | "builtin" => ": name the program itself",
        "export" | "unset" | "set" => ": tools get the environment that they were given",
        _ => "",
    }
}
