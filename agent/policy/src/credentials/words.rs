//! The files that a credential's command may mean by its words. It is the user's own, so nothing here is hidden on purpose: what is
//! looked for is a file that the user forgot an agent may write.

use super::Variable;
use nix::unistd::User;
use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// Where programs are looked for without a PATH.
const NO_PATH: &str = "/bin:/usr/bin";
/// How often a word may be a line in a line: `sh -c 'sh -c "..."'`.
const DEEPEST: usize = 8;
/// What ends a word outside of quotes, beside white space.
const ENDS: &[u8] = b";&|<>()`";
/// What a path may stand behind within a word: `--file=/x`, `a:/x`, `@/x`.
const BEFORE_PATHS: &[u8] = b"=:,@{}";

/// The directories in which the programs of a command are looked for. It runs in `/`.
pub(super) fn path_dirs(variable: Variable<'_>) -> Vec<PathBuf> {
    let path = variable("PATH").unwrap_or_else(|| NO_PATH.into());
    env::split_paths(&path).map(|dir| Path::new("/").join(dir)).collect()
}

/// Every path that a word of the command may mean, a word of a line for a shell among them; of those without a slash, what it would be in
/// each of these directories.
pub(super) fn named(
    words: &[String],
    dirs: &[PathBuf],
    home: Option<&Path>,
    variable: Variable<'_>,
) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for word in words {
        // Not only behind `-c`: `env`, `nice`, `xargs` and others take commands, too.
        let line = expanded(word.as_bytes(), home, variable);
        for part in parts(&line) {
            paths(&part, dirs, home, variable, &mut found);
        }
    }
    found
}

/// What a word may be: itself, each word of the line that it may be, and what stands behind a sign in one.
fn parts(line: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut parts = BTreeSet::from([line.to_vec()]);
    let mut lines = vec![line.to_vec()];
    for _ in 0..DEEPEST {
        let next: Vec<Vec<u8>> = lines.iter().flat_map(|line| shell_words(line)).collect();
        lines = next.into_iter().filter(|word| parts.insert(word.clone())).collect();
    }
    // Once more without regard for quotes, which stand otherwise in other languages.
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || ENDS.contains(byte) || b"\"'".contains(byte);
    parts.extend(line.split(is_end).map(<[u8]>::to_vec));
    let behind: Vec<Vec<u8>> = parts
        .iter()
        .flat_map(|part| part.split(|byte| BEFORE_PATHS.contains(byte)))
        .map(<[u8]>::to_vec)
        .collect();
    parts.extend(behind);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The words of a line, quotes and backslashes taken away.
fn shell_words(line: &[u8]) -> Vec<Vec<u8>> {
    let mut words = vec![Vec::new()];
    let mut quote = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(open), _) if byte == open => quote = None,
            (None, b'"' | b'\'') => quote = Some(byte),
            (None | Some(b'"'), b'\\') => {
                words.last_mut().into_iter().for_each(|word| word.extend(bytes.next()))
            }
            (None, _) if byte.is_ascii_whitespace() || ENDS.contains(&byte) => words.push(Vec::new()),
            _ => words.last_mut().into_iter().for_each(|word| word.push(byte)),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A text with the variables in it that are set.
fn expanded(text: &[u8], home: Option<&Path>, variable: Variable<'_>) -> Vec<u8> {
    let is_named = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut out = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((first, rest)) = left.split_first() {
        left = rest;
        if *first != b'$' {
            out.push(*first);
            continue;
        }
        let (name, behind) = match rest.strip_prefix(b"{") {
            Some(rest) => {
                let (name, behind) = rest.split_at(rest.iter().take_while(|byte| is_named(byte)).count());
                (name, behind.strip_prefix(b"}"))
            }
            None => {
                let (name, behind) = rest.split_at(rest.iter().take_while(|byte| is_named(byte)).count());
                (name, Some(behind))
            }
        };
        let value = str::from_utf8(name).ok().filter(|name| !name.is_empty()).and_then(|name| match name {
            "HOME" => own_home(home, variable).map(PathBuf::into_os_string),
            _ => variable(name),
        });
        match (value, behind) {
            (Some(value), Some(behind)) => {
                out.extend_from_slice(value.as_bytes());
                left = behind;
            }
            _ => out.push(*first),
        }
    }
    out
}

/// What a shell has as home.
fn own_home(home: Option<&Path>, variable: Variable<'_>) -> Option<PathBuf> {
    variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from).or_else(|| home.map(Path::to_owned))
}

fn paths(
    part: &[u8],
    dirs: &[PathBuf],
    home: Option<&Path>,
    variable: Variable<'_>,
    found: &mut BTreeSet<PathBuf>,
) {
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let Some(slash) = part.iter().position(|byte| *byte == b'/') else {
        if part != b"." && part != b".." && part != b"~" {
            found.extend(dirs.iter().map(|dir| dir.join(OsStr::from_bytes(part))));
        }
        if part == b"~" {
            found.extend(own_home(home, variable));
        }
        return;
    };
    let (before, behind) = part.split_at(slash);
    // Also of a word such as `-I~/x`.
    if let Some(tilde) = before.iter().rposition(|byte| *byte == b'~') {
        let user = before.get(tilde + 1..).and_then(|user| str::from_utf8(user).ok());
        let home = match user {
            Some("") => own_home(home, variable),
            Some(user) => User::from_name(user).ok().flatten().map(|user| user.dir),
            None => None,
        };
        let mut whole = home.map(|home| home.into_os_string().into_vec()).unwrap_or_default();
        whole.extend_from_slice(behind);
        found.insert(path(&whole));
    }
    found.insert(Path::new("/").join(path(part)));
    found.insert(path(behind));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let variable = |name: &str| match name {
            "TOOLS" => Some(OsString::from("/opt/tools")),
            "HOME" => Some(OsString::from("/home/u")),
            _ => None,
        };
        let found = named(&words, &[PathBuf::from("/usr/bin")], Some(Path::new("/elsewhere")), &variable);
        found.into_iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_words_of_a_line_are_files_as_a_shell_would_have_them() {
        let sh = |line: &str| of(&["/bin/sh", "-c", line]);
        for (line, file) in [
            ("~/work/bin/token | head -1", "/home/u/work/bin/token"),
            ("~/work/bin/token | head -1", "/usr/bin/head"),
            ("pass show x", "/usr/bin/pass"),
            ("cat<\"$HOME/My Work/token\"", "/home/u/My Work/token"),
            ("cat ${HOME}/a\\ b", "/home/u/a b"),
            ("exec $TOOLS/token", "/opt/tools/token"),
            ("tool --config=~/work/c -I~/work/i -f/x/y @/z/w", "/home/u/work/c"),
            ("tool --config=~/work/c -I~/work/i -f/x/y @/z/w", "/home/u/work/i"),
            ("tool --config=~/work/c -I~/work/i -f/x/y @/z/w", "/x/y"),
            ("curl -d @/z/w", "/z/w"),
            ("PATH=~/work/bin:/bin tok", "/home/u/work/bin"),
            ("echo $(/a/b 2>&1;/c/d)`/e/f`", "/e/f"),
            ("echo $(/a/b 2>&1;/c/d)`/e/f`", "/c/d"),
            ("sh -c 'sh -c \"cat \\\"$HOME/My Work/x\\\"\"'", "/home/u/My Work/x"),
            ("cd work/bin && ./token", "/work/bin"),
            ("cd ~ && ./token", "/home/u"),
            ("~root/token", &format!("{}/token", User::from_name("root").unwrap().unwrap().dir.display())),
        ] {
            let found = sh(line);
            assert!(found.iter().any(|found| found == file), "{line}: {file}: {found:?}");
        }
        assert!(!sh("pass show x").iter().any(|found| found.starts_with("/home")), "the control");
    }

    #[test]
    fn a_list_is_looked_at_as_a_line_is() {
        assert!(of(&["env", "tok"]).contains(&"/usr/bin/tok".to_owned()));
        assert!(of(&["bash", "-lc", "~/work/token"]).contains(&"/home/u/work/token".to_owned()));
        assert!(of(&["python3", "/srv/a b.py"]).contains(&"/srv/a b.py".to_owned()));
    }

    #[test]
    fn no_text_makes_it_fail_or_go_on_for_long() {
        for text in ["", "$", "${", "${A", "\\", "'", "\"\\", "~", "/", "//", "a/", "=", "$()"] {
            of(&[text]);
        }
        let deep = "\\".repeat(4000) + "'\"".repeat(4000).as_str();
        of(&[&deep]);
    }

    #[test]
    fn without_a_path_the_usual_directories_are_searched_and_relative_ones_below_the_root() {
        let dirs = |path: Option<&str>| path_dirs(&|_| path.map(OsString::from));
        assert_eq!(dirs(None), [PathBuf::from("/bin"), PathBuf::from("/usr/bin")]);
        assert_eq!(dirs(Some("/a::b")), ["/a", "/", "/b"].map(PathBuf::from));
    }
}
