//! What words mean to a shell before it expands them: assignments, braces, its own commands.

use super::{Piece, Word};

/// What follows `NAME=` or `NAME+=`, or `NAME[...]=`.
pub(super) fn assigned(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return None;
    }
    let rest = match rest.strip_prefix('[') {
        Some(index) => index.split_once(']').map_or("", |(_, after)| after),
        None => rest,
    };
    rest.strip_prefix('+').unwrap_or(rest).strip_prefix('=')
}

/// Whether a shell would make several words of this one: `{a,b}`, `{1..9}`. A little more than that.
pub(super) fn expands_braces(word: &Word) -> bool {
    let (mut open, mut separated, mut dot) = (false, false, false);
    for piece in &word.0 {
        let Piece::Plain(text) = piece else {
            dot = false;
            continue;
        };
        for c in text.chars() {
            match c {
                '{' => open = true,
                '}' if open && separated => return true,
                ',' if open => separated = true,
                '.' if open && dot => separated = true,
                _ => {}
            }
            dot = c == '.';
        }
    }
    false
}

/// Names that a shell runs itself. Those that are also programs (`echo`, `test`, `kill`) are not among them.
pub(super) fn is_builtin(name: &str) -> bool {
    const BUILTINS: &[&str] = &[
        ".",
        ":",
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "cd",
        "command",
        "compgen",
        "complete",
        "compopt",
        "continue",
        "declare",
        "dirs",
        "disown",
        "enable",
        "eval",
        "exec",
        "exit",
        "export",
        "fc",
        "fg",
        "getopts",
        "hash",
        "help",
        "history",
        "jobs",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "pushd",
        "read",
        "readarray",
        "readonly",
        "return",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "times",
        "trap",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
    ];
    BUILTINS.binary_search(&name).is_ok()
}
