//! What a server is, as far as its interceptor can tell: an approval stands for the server that it was given for, and for no other
//! that has its name later.

use ringfence_base::escape;
use ringfence_session::{fingerprint, listing};
use ringfence_wire::approvals::Fingerprint;
use rustix::fs::{Access, access};
use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

/// Ends of names of files that a server works on and nothing runs: they change with its work. Every other file that a command names may
/// be its script; no list of interpreters has them all.
const DATA: &[&str] = &["csv", "db", "db3", "duckdb", "log", "parquet", "sqlite", "sqlite3", "tsv"];
/// Variables that tell one start from another and no server from another: those of terminals, of logins and of service managers.
const OF_A_START: &[&str] = &[
    "ALACRITTY_LOG",
    "ALACRITTY_SOCKET",
    "ALACRITTY_WINDOW_ID",
    "COLORTERM",
    "COLUMNS",
    "CURSOR_TRACE_ID",
    "DESKTOP_STARTUP_ID",
    "DISPLAY",
    "GIO_LAUNCHED_DESKTOP_FILE",
    "GIO_LAUNCHED_DESKTOP_FILE_PID",
    "GNOME_TERMINAL_SCREEN",
    "GNOME_TERMINAL_SERVICE",
    "GPG_TTY",
    "ICEAUTHORITY",
    "INVOCATION_ID",
    "ITERM_SESSION_ID",
    "JOURNAL_STREAM",
    "KITTY_LISTEN_ON",
    "KITTY_PID",
    "KITTY_PUBLIC_KEY",
    "KITTY_WINDOW_ID",
    "KONSOLE_DBUS_SERVICE",
    "KONSOLE_DBUS_SESSION",
    "KONSOLE_DBUS_WINDOW",
    "LINES",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "MANAGERPID",
    "MANAGERPIDFDID",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "NOTIFY_SOCKET",
    "NVIM",
    "OLDPWD",
    "PWD",
    "SESSION_MANAGER",
    "SHELL_SESSION_ID",
    "SHLVL",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "STY",
    "SYSTEMD_EXEC_PID",
    "TERM",
    "TERMINATOR_DBUS_NAME",
    "TERMINATOR_DBUS_PATH",
    "TERMINATOR_UUID",
    "TERM_PROGRAM",
    "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID",
    "TILIX_ID",
    "TMUX",
    "TMUX_PANE",
    "VSCODE_CWD",
    "VSCODE_GIT_IPC_AUTH_TOKEN",
    "VSCODE_GIT_IPC_HANDLE",
    "VSCODE_IPC_HOOK",
    "VSCODE_IPC_HOOK_CLI",
    "VSCODE_PID",
    "VTE_VERSION",
    "WAYLAND_DISPLAY",
    "WEZTERM_PANE",
    "WEZTERM_UNIX_SOCKET",
    "WINDOW",
    "WINDOWID",
    "XAUTHORITY",
    "XDG_ACTIVATION_TOKEN",
    "XDG_SEAT",
    "XDG_SEAT_PATH",
    "XDG_SESSION_ID",
    "XDG_SESSION_PATH",
    "XDG_VTNR",
    "ZELLIJ",
    "ZELLIJ_PANE_ID",
    "ZELLIJ_SESSION_NAME",
    "_",
];
/// Lines of a server's among which it introduces itself; later ones are not searched.
const FIRST_LINES: u32 = 32;

/// What is known of a server from the start: its name, its profile, its command, where it is started, its environment, and the files that
/// the command names: one that is written anew is another server. It is looked at before the server starts and at its first line: what
/// was written or exchanged in between ran, or did not, and nobody can tell. What was exchanged and put back by then is not seen, where
/// that was a directory or a link on the way to the file: the file itself is as it was.
#[derive(Debug, Clone)]
pub struct StartIdentity {
    texts: Vec<String>,
    command: Vec<OsString>,
    before: String,
}

impl StartIdentity {
    /// Looks at a server that is to be started with this command, in this process's directory and with its environment. What is in none
    /// of the files of `command`, and says which server that is, is among `texts`. No command: it runs elsewhere, where neither
    /// directory nor environment of this process means anything.
    pub fn of(texts: &[&str], command: &[OsString]) -> Self {
        Self::with_environment(texts, command, env::vars_os())
    }

    fn with_environment(
        texts: &[&str],
        command: &[OsString],
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let whole = |text: &OsString| escape::name(text.as_bytes());
        let place = if command.is_empty() { PathBuf::new() } else { env::current_dir().unwrap_or_default() };
        let mut variables: Vec<String> = environment
            .filter(|(name, _)| !command.is_empty() && !OF_A_START.iter().any(|one| name == one))
            .map(|(name, value)| format!("{}={}", whole(&name), whole(&value)))
            .collect();
        variables.sort_unstable();
        // The number of each: none can be taken for one of another kind.
        let mut all = vec![texts.len().to_string(), command.len().to_string(), variables.len().to_string()];
        all.extend(texts.iter().map(|text| (*text).to_owned()));
        all.push(whole(&place.into_os_string()));
        all.extend(command.iter().map(whole));
        all.extend(variables);
        let mut identity = Self { texts: all, command: command.to_vec(), before: String::new() };
        identity.before = identity.look();
        identity
    }

    /// Hex SHA-256 of what it is now.
    fn look(&self) -> String {
        let mut states = Vec::new();
        if let Some((first, rest)) = self.command.split_first() {
            states.push(program(first).as_deref().map(state).unwrap_or_default());
            states.extend(rest.iter().map(named_file));
        }
        fingerprint::of_texts(self.texts.iter().chain(&states).map(String::as_str))
    }

    /// What it is, if that is what it was before it started; else something that no other server is.
    fn settled(&self) -> Settled {
        if self.look() == self.before {
            return Settled { hash: self.before.clone(), is_known: true };
        }
        let hash = fingerprint::of_texts([uuid::Uuid::new_v4().to_string().as_str()]);
        Settled { hash, is_known: false }
    }
}

/// What a server is from its first line on.
#[derive(Debug)]
struct Settled {
    hash: String,
    /// Whether a later session can be told to have the same server.
    is_known: bool,
}

/// The state of a file that a word of a command names, alone or as an option's value: but not of data.
fn named_file(word: &OsString) -> String {
    let of = |name: &[u8]| {
        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        let is_data =
            path.extension().is_some_and(|end| DATA.iter().any(|data| end.eq_ignore_ascii_case(data)));
        if name.is_empty() || is_data { String::new() } else { state(path) }
    };
    let bytes = word.as_bytes();
    let value = bytes.iter().position(|byte| *byte == b'=').and_then(|at| bytes.get(at + 1..));
    of(bytes) + &value.map(of).unwrap_or_default()
}

/// The file of a program, as the system finds it.
fn program(word: &OsString) -> Option<PathBuf> {
    if Path::new(word).components().count() > 1 {
        return Some(PathBuf::from(word));
    }
    on_path(word, &env::var_os("PATH")?)
}

/// On `PATH`, what may not be run is passed over.
fn on_path(word: &OsString, path: &OsString) -> Option<PathBuf> {
    let may_run = |path: &PathBuf| access(path, Access::EXEC_OK).is_ok();
    env::split_paths(path).map(|dir| dir.join(word)).find(|path| !state(path).is_empty() && may_run(path))
}

/// One state of a regular file, also of one that may be run and not read; nothing where there is none. Whoever writes a file can set
/// the time when it was modified, but not the one when that was done.
fn state(path: &Path) -> String {
    fs::metadata(path).ok().filter(|meta| meta.is_file()).map_or_else(String::new, |meta| {
        let (dev, ino, size) = (meta.dev(), meta.ino(), meta.size());
        let (modified, changed) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
        format!("{dev} {ino} {size} {}.{:09} {}.{:09};", modified.0, modified.1, changed.0, changed.1)
    })
}

/// What a server is, and what it calls itself once it has said so.
#[derive(Debug)]
pub struct ServerIdentity {
    start: StartIdentity,
    /// What it is, since its first line or its first call that waits.
    settled: OnceLock<Settled>,
    /// What it says of itself, as JSON, and lines of its that were searched for that.
    said: OnceLock<String>,
    lines: AtomicU32,
}

impl ServerIdentity {
    /// A server that has said nothing yet.
    pub(crate) fn new(start: StartIdentity) -> Self {
        Self { start, settled: OnceLock::new(), said: OnceLock::new(), lines: AtomicU32::new(0) }
    }

    /// Looks at a line of the server's, whether it says which server that is. What it says first counts.
    pub(crate) fn look_at(&self, line: &[u8]) {
        if self.lines.load(Ordering::Relaxed) >= FIRST_LINES {
            return;
        }
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.settle();
        if let Some(introduction) = listing::server_info(line) {
            self.said.get_or_init(|| introduction);
            self.lines.store(FIRST_LINES, Ordering::Relaxed);
        }
    }

    /// What tells that a later call is the same as one with these params.
    pub(crate) fn fingerprint(&self, params: Option<&str>) -> Option<Fingerprint> {
        let arguments = fingerprint::of_params(params?)?;
        let Settled { hash, is_known } = self.settle();
        let said = self.said.get().map_or("", String::as_str);
        let server = fingerprint::of_texts([hash.as_str(), said]);
        Some(Fingerprint { arguments, server, unsettled: !is_known })
    }

    fn settle(&self) -> &Settled {
        self.settled.get_or_init(|| self.start.settled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn words(command: &[&str]) -> Vec<OsString> {
        command.iter().map(OsString::from).collect()
    }

    /// What a server is that is started so, by now.
    fn of(texts: &[&str], command: &[&str]) -> String {
        StartIdentity::of(texts, &words(command)).settled().hash
    }

    #[test]
    fn a_file_of_the_command_that_is_written_anew_makes_another_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let in_folder = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
        let (script, option, data) = (in_folder("server.py"), in_folder("a.mjs"), in_folder("data.DB"));
        for path in [&script, &option, &data] {
            fs::write(path, "one").expect("written");
        }
        let mut length = 3;
        let by_value = format!("--import={option}");
        for command in [
            vec!["sh", script.as_str()],
            vec!["node", "--import", &option, &script],
            vec!["node", &by_value, &script, &data],
            vec!["uv", "run", &script],
            vec!["env", "A=1", "nodejs", &script],
        ] {
            let one = of(&["s", ""], &command);
            assert_eq!(of(&["s", ""], &command), one, "the control");
            let more = [&command[..], &["x"]].concat();
            for other in [of(&["t", ""], &command), of(&["s", "p"], &command), of(&["s", ""], &more)] {
                assert_ne!(other, one);
            }
            for path in [&script, &option, &data] {
                let before = of(&["s", ""], &command);
                let names = command.iter().any(|word| word.ends_with(path.as_str()));
                // Of another length: the clock of files may stand still in between.
                length += 1;
                fs::write(path, "x".repeat(length)).expect("written");
                let is_same = of(&["s", ""], &command) == before;
                assert_eq!(is_same, !names || *path == data, "{command:?} {path}");
            }
        }
        assert_eq!(of(&["s"], &[]).len(), 64, "no command at all");
        assert_ne!(of(&["a", "b"], &["c"]), of(&["a"], &["b", "c"]));
    }

    #[test]
    fn the_times_of_a_file_can_be_put_back_and_do_not_bring_the_server_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.py");
        fs::write(&path, "one").expect("written");
        let command = ["sh", path.to_str().expect("a path")];
        let one = of(&[], &command);
        let modified = fs::metadata(&path).and_then(|meta| meta.modified()).expect("its time");
        // As coarse as the clock of files is, it goes on meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
        std::io::Write::write_all(&mut &file, b"two").expect("written");
        file.set_modified(modified).expect("set");
        let meta = fs::metadata(&path).expect("there");
        assert_eq!((meta.modified().expect("its time"), meta.len()), (modified, 3), "the control");
        assert_ne!(of(&[], &command), one);
    }

    #[test]
    fn what_was_exchanged_while_the_server_started_is_no_server_that_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, kept) = (folder.path().join("server.py"), folder.path().join("kept"));
        fs::write(&path, "one").expect("written");
        let identity = StartIdentity::of(&[], &words(&["sh", path.to_str().expect("a path")]));
        let params = Some(r#"{"name":"t"}"#);
        let server = |identity: &ServerIdentity| identity.fingerprint(params).expect("an object").server;
        let started = ServerIdentity::new(identity.clone());
        let one = server(&started);
        assert_eq!(server(&ServerIdentity::new(identity.clone())), one, "the control");
        fs::hard_link(&path, &kept).expect("linked");
        fs::write(folder.path().join("other"), "other").expect("written");
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::rename(folder.path().join("other"), &path).expect("exchanged");
        let exchanged = ServerIdentity::new(identity.clone());
        let unknown = server(&exchanged);
        assert_ne!(unknown, one);
        fs::rename(&kept, &path).expect("put back");
        assert_eq!(
            (server(&exchanged), server(&started)),
            (unknown.clone(), one.clone()),
            "what it was stays"
        );
        let later = server(&ServerIdentity::new(identity));
        assert!(later != one && later != unknown);
        let is_unsettled = |of: &ServerIdentity| of.fingerprint(params).expect("an object").unsettled;
        assert_eq!([is_unsettled(&started), is_unsettled(&exchanged)], [false, true], "and says so");
    }

    #[test]
    fn what_is_written_after_the_first_line_whatever_that_says_ran_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.py");
        fs::write(&path, "one").expect("written");
        let identity = StartIdentity::of(&[], &words(&["sh", path.to_str().expect("a path")]));
        let (spoke, silent) = (ServerIdentity::new(identity.clone()), ServerIdentity::new(identity));
        spoke.look_at(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}");
        fs::write(&path, "longer").expect("written");
        let is_unsettled = |of: &ServerIdentity| of.fingerprint(Some("{}")).expect("an object").unsettled;
        assert_eq!([is_unsettled(&spoke), is_unsettled(&silent)], [false, true]);
    }

    #[test]
    fn a_server_elsewhere_has_neither_this_directory_nor_this_environment() {
        let of = |command: &[&str], value: &str| {
            let environment = [(OsString::from("A"), OsString::from(value))];
            let command = words(command);
            StartIdentity::with_environment(&["s", "", "https://a"], &command, environment.into_iter())
        };
        assert_eq!(of(&[], "1").settled().hash, of(&[], "2").settled().hash);
        let here = escape::name(env::current_dir().expect("a directory").as_os_str().as_bytes());
        assert!(!of(&[], "1").texts.contains(&here));
        assert!(of(&["x"], "1").texts.contains(&here), "the control");
        assert_ne!(of(&["x"], "1").settled().hash, of(&["x"], "2").settled().hash, "the control");
    }

    #[test]
    fn a_file_that_may_be_run_and_not_read_has_a_state() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server");
        fs::write(&path, "one").expect("written");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o111)).expect("set");
        let is_found = || !state(&path).is_empty();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
        // Root may read whatever there is; a thread's file access may be another user's.
        let unread = std::thread::scope(|scope| {
            let look = || {
                nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
                fs::File::open(&path).is_err() && is_found()
            };
            scope.spawn(look).join().expect("no panic")
        });
        assert!(unread);
        assert_eq!(state(folder.path()), "", "the control: no regular file");
    }

    #[test]
    fn a_program_is_the_first_on_the_path_that_may_be_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, second] = ["a", "b"].map(|name| folder.path().join(name));
        for (at, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(at).expect("a folder");
            fs::write(at.join("server"), "x").expect("written");
            fs::set_permissions(at.join("server"), std::os::unix::fs::PermissionsExt::from_mode(mode))
                .expect("set");
        }
        let path = env::join_paths([&first, &second]).expect("a path");
        let found = || on_path(&OsString::from("server"), &path);
        assert_eq!(found(), Some(second.join("server")));
        fs::set_permissions(first.join("server"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("set");
        assert_eq!(found(), Some(first.join("server")), "the control");
    }

    #[test]
    fn its_environment_makes_a_server_another_one_but_for_what_every_start_changes() {
        let of = |variables: &[(&str, &str)]| {
            let environment = variables.iter().map(|(name, value)| (name.into(), value.into()));
            StartIdentity::with_environment(&[], &words(&["server"]), environment).settled().hash
        };
        let one = of(&[("A", "1"), ("DATABASE_URL", "dev"), ("TERM", "xterm")]);
        assert_eq!(of(&[("DATABASE_URL", "dev"), ("PWD", "/x"), ("SHLVL", "2"), ("A", "1")]), one);
        let tab =
            ["GNOME_TERMINAL_SCREEN", "KITTY_WINDOW_ID", "VSCODE_GIT_IPC_HANDLE", "GPG_TTY", "XAUTHORITY"];
        let in_tab = [&[("A", "1"), ("DATABASE_URL", "dev")][..], &tab.map(|name| (name, "2"))].concat();
        assert_eq!(of(&in_tab), one, "another tab of a terminal");
        for other in [
            vec![("A", "1"), ("DATABASE_URL", "prod")],
            vec![("A", "1")],
            vec![("A", "1"), ("DATABASE_URL", "dev"), ("NODE_OPTIONS", "--require /x.js")],
            vec![("A", "1"), ("DATABASE_URL", "dev"), ("LD_PRELOAD", "/x.so")],
        ] {
            assert_ne!(of(&other), one, "{other:?}");
        }
    }

    #[test]
    fn what_a_server_says_first_of_itself_counts() {
        let params = Some(r#"{"name":"t"}"#);
        let server = |identity: &ServerIdentity| identity.fingerprint(params).expect("an object").server;
        let start = StartIdentity::of(&[], &[]);
        let identity = ServerIdentity::new(start.clone());
        let silent = server(&identity);
        identity.look_at(br#"{"id":1,"result":{"tools":[]}}"#);
        assert_eq!(server(&identity), silent);
        let by_meta = ServerIdentity::new(start.clone());
        by_meta.look_at(
            br#"{"id":1,"result":{"tools":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}}"#,
        );
        let info = |version: u32| {
            format!(r#"{{"id":1,"result":{{"serverInfo":{{"name":"s","version":"{version}"}}}}}}"#)
        };
        identity.look_at(info(1).as_bytes());
        let one = server(&identity);
        assert_ne!(one, silent);
        assert_eq!(server(&by_meta), one, "where the newer era has it");
        identity.look_at(info(2).as_bytes());
        assert_eq!(server(&identity), one);
        let newer = ServerIdentity::new(start);
        newer.look_at(info(2).as_bytes());
        assert_ne!(server(&newer), one);
        assert_eq!(identity.fingerprint(None), None);
    }
}
