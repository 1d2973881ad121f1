//! What a server is, as far as its interceptor can tell: an approval stands for the server that it was given for, and for no other
//! that has its name later.

use ringfence_files as files;
use ringfence_session::fingerprint;
use ringfence_wire::approvals::Fingerprint;
use std::{
    env,
    ffi::OsString,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// Programs that run a script: the first word behind them that names a file is the server's, too. Other words name what a server
/// works on, which changes with its work.
const INTERPRETERS: &[&str] =
    &["bash", "bun", "deno", "node", "perl", "php", "pypy", "python", "ruby", "sh", "tsx", "zsh"];
/// Lines of a server's among which it introduces itself; later ones are not searched.
const FIRST_LINES: u32 = 32;

/// What is known from the start: the server's name, its profile, its command, where it is started, and the files of its program and
/// of the script that this runs: one that is written anew is another server. Hex SHA-256.
pub fn of_command(name: &str, profile: Option<&str>, command: &[OsString]) -> String {
    let place = env::current_dir().unwrap_or_default();
    let mut texts =
        vec![name.to_owned(), profile.unwrap_or_default().to_owned(), place.display().to_string()];
    texts.extend(command.iter().map(|word| word.to_string_lossy().into_owned()));
    let Some((first, rest)) = command.split_first() else {
        return fingerprint::of_texts(texts.iter().map(String::as_str));
    };
    texts.push(program(first).as_deref().map(state).unwrap_or_default());
    if is_interpreter(first) {
        texts.extend(rest.iter().map(|word| state(Path::new(word))).find(|state| !state.is_empty()));
    }
    fingerprint::of_texts(texts.iter().map(String::as_str))
}

/// Whether a program runs scripts; its version may stand behind its name.
fn is_interpreter(word: &OsString) -> bool {
    let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.contains(&name)
}

/// The file of a program, as the system finds it.
fn program(word: &OsString) -> Option<PathBuf> {
    if Path::new(word).components().count() > 1 {
        return Some(PathBuf::from(word));
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(word)).find(|path| !state(path).is_empty())
}

/// One state of a regular file; nothing where there is none.
fn state(path: &Path) -> String {
    let meta = files::read(path).and_then(|file| file.metadata());
    meta.ok().filter(|meta| meta.is_file()).map_or_else(String::new, |meta| {
        let (dev, ino, size) = (meta.dev(), meta.ino(), meta.size());
        format!("{dev} {ino} {size} {}.{:09}", meta.mtime(), meta.mtime_nsec())
    })
}

/// What a server is, and what it calls itself once it has said so.
#[derive(Debug)]
pub struct ServerIdentity {
    command: String,
    /// What it says of itself, and lines of its that were searched for that.
    said: Mutex<Option<String>>,
    lines: AtomicU32,
}

impl ServerIdentity {
    /// A server that has said nothing yet.
    pub(crate) fn new(command: String) -> Self {
        Self { command, said: Mutex::default(), lines: AtomicU32::new(0) }
    }

    /// Looks at a line of the server's, whether it says which server that is. What it says first counts.
    pub(crate) fn look_at(&self, line: &[u8]) {
        if self.lines.load(Ordering::Relaxed) >= FIRST_LINES {
            return;
        }
        self.lines.fetch_add(1, Ordering::Relaxed);
        let Some(introduction) = fingerprint::introduction(line) else { return };
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.get_or_insert_with(|| introduction.to_owned());
        self.lines.store(FIRST_LINES, Ordering::Relaxed);
    }

    /// What tells that a later call is the same as one with these params.
    pub(crate) fn fingerprint(&self, params: Option<&str>) -> Option<Fingerprint> {
        let arguments = fingerprint::of_params(params?)?;
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let server = fingerprint::of_texts([self.command.as_str(), said.as_deref().unwrap_or_default()]);
        Some(Fingerprint { arguments, server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn words(command: &[&str]) -> Vec<OsString> {
        command.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_file_of_the_command_that_is_written_anew_makes_another_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("server.py");
        fs::write(&script, "one").expect("written");
        let command = ["sh", script.to_str().expect("a path")];
        let of = |name: &str, profile: Option<&str>, more: &[&str]| {
            of_command(name, profile, &words(&[&command[..], more].concat()))
        };
        let one = of("s", None, &[]);
        assert_eq!(of("s", None, &[]), one, "the control");
        for other in [of("t", None, &[]), of("s", Some("p"), &[]), of("s", None, &["x"])] {
            assert_ne!(other, one);
        }
        let data = folder.path().join("data");
        let with_data = || of("s", None, &[data.to_str().expect("a path")]);
        fs::write(&data, "one").expect("written");
        let before = with_data();
        fs::write(&data, "other").expect("written");
        assert_eq!(with_data(), before, "what a server works on is no part of it");
        assert!(is_interpreter(&"/usr/bin/python3.11".into()) && !is_interpreter(&"npx".into()));
        fs::write(&script, "other").expect("written");
        assert_ne!(of("s", None, &[]), one);
        assert_eq!(of_command("s", None, &[]).len(), 64, "no command at all");
    }

    #[test]
    fn what_a_server_says_first_of_itself_counts() {
        let params = Some(r#"{"name":"t"}"#);
        let server = |identity: &ServerIdentity| identity.fingerprint(params).expect("an object").server;
        let identity = ServerIdentity::new("c".into());
        let silent = server(&identity);
        identity.look_at(br#"{"id":1,"result":{"tools":[]}}"#);
        assert_eq!(server(&identity), silent);
        let info = |version: u32| {
            format!(r#"{{"id":1,"result":{{"serverInfo":{{"name":"s","version":"{version}"}}}}}}"#)
        };
        identity.look_at(info(1).as_bytes());
        let one = server(&identity);
        assert_ne!(one, silent);
        identity.look_at(info(2).as_bytes());
        assert_eq!(server(&identity), one);
        let newer = ServerIdentity::new("c".into());
        newer.look_at(info(2).as_bytes());
        assert_ne!(server(&newer), one);
        assert_eq!(identity.fingerprint(None), None);
    }
}
