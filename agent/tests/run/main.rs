//! `ringfence run` as a user meets it, on a host where no daemon answers: Landlock and seccomp hold what they can.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ringfence_test_support::programs;
use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

mod closed;
mod held;
mod kits;
mod proxy;
mod signals;

const RINGFENCE: &str = env!("CARGO_BIN_EXE_ringfence");
/// How long anything may take before a test fails instead of hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// Everything is granted and every gap accepted: for tests of the launcher itself.
const OPEN: &str = r#"
[grant]
fs_read = "all"
fs_write = "all"
exec = "all"
net = "all"
max_calls = "unlimited"
valid_for_generation = "all"
[kernel]
accept_partial = ["fs_read", "fs_write", "exec", "net", "unix"]
"#;

/// A host without a daemon, with profiles of its own.
struct Host {
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(host.path("config/profiles")).unwrap();
        fs::create_dir(host.path("run")).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn executable(&self, name: &str, content: &[u8]) {
        programs::executable(&self.path(name), content);
    }

    fn profile(&self, name: &str, text: &str) -> &Self {
        let file = self.path("config/profiles").join(format!("{name}.toml"));
        fs::write(&file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        self
    }

    /// A profile that grants reading and executing what the tests use, and `read`, `write` and `net` beside.
    fn confined(&self, read: &[&Path], write: &[&Path], net: &str, kernel: &str) -> &Self {
        let list = |paths: &[&Path]| paths.iter().map(|path| format!("{path:?}, ")).collect::<String>();
        self.profile(
            "confined",
            &format!(
                r#"
                [grant]
                fs_read = {{ only = [{}{}] }}
                fs_write = {{ only = [{}] }}
                exec = {{ only = ["/usr/bin", "/bin"] }}
                net = {net}
                max_calls = "unlimited"
                valid_for_generation = "all"
                [kernel]
                {kernel}
                "#,
                list(read),
                list(write),
                list(write),
            ),
        )
    }

    fn command(&self) -> Command {
        let mut command = Command::new(RINGFENCE);
        command
            .env("RINGFENCE_RUNTIME_DIR", self.path("run"))
            .env("RINGFENCE_CONFIG_DIR", self.path("config"))
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .arg("run");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Under the profile that grants everything.
    fn open(&self, args: &[&str]) -> Output {
        self.profile("open", OPEN);
        self.run(&[&["--profile", "open"], args].concat())
    }

    /// Under the profile of [`Host::confined`], all its gaps accepted.
    fn in_confined(&self, args: &[&str]) -> Output {
        let accepted = ["--profile", "confined", "--accept-partial", "exec,fs_read,fs_write,net"];
        self.run(&[&accepted, args].concat())
    }
}

#[track_caller]
fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("the launcher died of a signal: {output:?}"))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    assert_eq!(status(output), 0, "{}", stderr(output));
    stdout(output)
}

fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().or_else(|| status.signal().map(|signal| -signal));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    panic!("the launcher did not end");
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

// The command's status, words and environment.

#[test]
fn the_exit_status_passes_through() {
    let host = Host::new();
    for expected in [0, 1, 3, 125, 255] {
        assert_eq!(status(&host.open(&["--", "sh", "-c", &format!("exit {expected}")])), expected);
    }
    for (signal, expected) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        assert_eq!(status(&host.open(&["--", "sh", "-c", &format!("kill -{signal} $$")])), expected);
    }
}

#[test]
fn a_command_that_is_missing_is_127_and_one_that_cannot_run_is_126() {
    let host = Host::new();
    fs::write(host.path("plain"), "text").unwrap();
    host.executable("noformat", b"text");
    host.executable("orphan", b"#!/nonexistent/interpreter\n");
    for (command, expected, why) in [
        ("no-such-command-here", 127, "command not found"),
        ("./absent", 127, "command not found"),
        ("", 127, "command not found"),
        ("./plain", 126, "not executable"),
        ("./noformat", 126, "#!"),
        ("./orphan", 126, "interpreter"),
        ("/", 126, "directory"),
    ] {
        let output = host.open(&["--", command]);
        assert_eq!(status(&output), expected, "{command:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{command:?}: {}", stderr(&output));
    }
    succeeds(&host.open(&["--", "true"]));
}

#[test]
fn words_after_the_command_are_the_command_s() {
    let host = Host::new();
    let words = ["--", "printf", "%s,", "--profile", "", "a b", "--", "-x"];
    assert_eq!(succeeds(&host.open(&words)), "--profile,,a b,--,-x,");
    assert_eq!(succeeds(&host.open(&["printf", "%s,", "-v"])), "-v,", "the -- may be left out");
}

#[test]
fn the_environment_is_an_allowlist_and_what_is_named() {
    let host = Host::new();
    host.profile("open", OPEN);
    let mut command = host.command();
    command.env("API_KEY", "secret").env("EDITOR", "vi").env("LC_ALL", "C").env("LD_PRELOAD", "");
    command.args(["-p", "open", "--env", "EDITOR", "--env", "MODE=a=b", "--env", "ABSENT", "--", "env"]);
    let output = command.output().unwrap();
    let environment = succeeds(&output);
    let has = |line: &str| environment.lines().any(|known| known == line);
    assert!(
        has("EDITOR=vi") && has("MODE=a=b") && has("LC_ALL=C") && has("PATH=/usr/bin:/bin"),
        "{environment}"
    );
    for name in ["API_KEY", "LD_PRELOAD", "RINGFENCE_RUNTIME_DIR", "CARGO_BIN_EXE_ringfence", "ABSENT"] {
        assert!(!environment.lines().any(|line| line.starts_with(&format!("{name}="))), "{environment}");
    }
    assert!(stderr(&output).contains("ABSENT"), "{}", stderr(&output));
}

#[test]
fn the_working_directory_is_the_current_one_or_the_named_one() {
    let host = Host::new();
    fs::create_dir(host.path("below")).unwrap();
    let here = host.dir.path().canonicalize().unwrap();
    assert_eq!(succeeds(&host.open(&["--", "pwd"])).trim(), here.to_str().unwrap());
    assert_eq!(
        succeeds(&host.open(&["-w", "below", "--", "pwd"])).trim(),
        here.join("below").to_str().unwrap()
    );
    for missing in ["nowhere", "config/profiles/open.toml"] {
        let output = host.open(&["-w", missing, "--", "pwd"]);
        assert_eq!(status(&output), 125);
        assert!(stderr(&output).contains(missing), "{}", stderr(&output));
    }
}

#[test]
fn the_profile_s_workdir_is_where_the_command_starts() {
    let host = Host::new();
    fs::create_dir(host.path("below")).unwrap();
    host.confined(&[Path::new("${WORKDIR}")], &[], r#"{ only = [] }"#, "");
    fs::write(host.path("below/inside"), "in").unwrap();
    fs::write(host.path("outside"), "out").unwrap();
    assert_eq!(succeeds(&host.in_confined(&["-w", "below", "--", "cat", "inside"])), "in");
    let output = host.in_confined(&["-w", "below", "--", "cat", "../outside"]);
    assert_eq!(status(&output), 1);
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
}

#[test]
fn only_the_standard_descriptors_are_inherited() {
    let host = Host::new();
    host.profile("open", OPEN);
    let script = format!(
        "exec 7</dev/null 8>/dev/null; exec {RINGFENCE} run -p open -- sh -c 'ls /proc/self/fd | tr \"\\n\" \" \"'"
    );
    let mut command = Command::new("sh");
    command.env("RINGFENCE_RUNTIME_DIR", host.path("run")).env("RINGFENCE_CONFIG_DIR", host.path("config"));
    let output = command.args(["-c", &script]).output().unwrap();
    // 3 is the directory that ls reads.
    assert_eq!(succeeds(&output), "0 1 2 3 ");
}

#[test]
fn standard_streams_pass_through() {
    let host = Host::new();
    host.profile("open", OPEN);
    let mut command = host.command();
    command.args(["-p", "open", "--", "sh", "-c", "cat; echo err >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(succeeds(&output), "through");
    assert_eq!(stderr(&output), "err\n", "nothing of the launcher's own where no terminal is");
}

#[test]
fn a_broken_pipe_ends_the_command_as_in_a_shell() {
    let host = Host::new();
    host.profile("open", OPEN);
    let mut child = host.command().args(["-p", "open", "--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(wait(&mut child), Some(141), "128 + SIGPIPE");
}

// Profiles.

#[test]
fn without_a_profile_it_is_shell_or_a_list() {
    let host = Host::new();
    let output = host.run(&["--", "true"]);
    assert_eq!(status(&output), 125);
    assert!(stderr(&output).contains("ringfence install"), "{}", stderr(&output));
    host.profile("builder", OPEN).profile("writer", OPEN);
    let output = host.run(&["--", "true"]);
    assert_eq!(status(&output), 125);
    assert!(stderr(&output).contains("builder, writer"), "{}", stderr(&output));
    host.profile("shell", OPEN);
    assert_eq!(succeeds(&host.run(&["--", "echo", "ran"])), "ran\n");
}

#[test]
fn a_profile_that_is_missing_or_wrong_is_an_error() {
    let host = Host::new();
    host.profile("wrong", "[grant]\nfs_raed = \"all\"\n");
    for (name, expected) in [("absent", "absent"), ("wrong", "fs_raed"), ("./nowhere.toml", "nowhere.toml")] {
        let output = host.run(&["-p", name, "--", "echo", "ran"]);
        assert_eq!(status(&output), 125);
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
    let fifo = host.path("config/profiles/fifo.toml");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let output = host.run(&["-p", "fifo", "--", "echo", "ran"]);
    assert_eq!((status(&output), stdout(&output)), (125, String::new()), "and nobody waits for a writer");
}

#[test]
fn a_bad_argument_is_told_before_anything_runs() {
    let host = Host::new();
    host.profile("open", OPEN);
    for args in [
        &["-p", "open", "--env", "=x", "--", "echo", "ran"][..],
        &["-p", "open", "--accept-partial", "everything", "--", "echo", "ran"],
        &["-p", "open"],
    ] {
        let output = host.run(args);
        assert_ne!(status(&output), 0);
        assert_eq!(stdout(&output), "");
    }
}

// Partial enforcement.

#[test]
fn what_cannot_be_held_is_refused_unless_exactly_that_is_accepted() {
    let host = Host::new();
    let here = host.path("data");
    host.confined(&[&here], &[], r#"{ only = [] }"#, "");
    let refused = host.run(&["-p", "confined", "--", "echo", "ran"]);
    assert_eq!(status(&refused), 125);
    assert_eq!(stdout(&refused), "");
    let said = stderr(&refused);
    assert!(said.contains("nobody listens") && said.contains("ld.so"), "{said}");
    assert!(said.contains("Not accepted: fs_read, exec."), "{said}");
    assert!(said.contains("--accept-partial fs_read,exec"), "{said}");

    let wrong = host.run(&["-p", "confined", "--accept-partial", "net,exec", "--", "echo", "ran"]);
    assert_eq!(status(&wrong), 125, "accepting something else does not help");
    let accepted = host.run(&["-p", "confined", "--accept-partial", "fs_read,exec", "--", "echo", "ran"]);
    assert_eq!(succeeds(&accepted), "ran\n");
    host.confined(&[&here], &[], r#"{ only = [] }"#, r#"accept_partial = ["exec", "fs_read"]"#);
    assert_eq!(succeeds(&host.run(&["-p", "confined", "--", "echo", "ran"])), "ran\n");
}

#[test]
fn hosts_by_name_are_refused_where_nothing_leads_to_them() {
    let host = Host::new();
    // Without Landlock nothing would keep a command to a proxy.
    host.confined(&[], &[], r#"{ only = ["example.org:443", "*.pypi.org"] }"#, r#"landlock = "off""#);
    let refused = host.run(&["-p", "confined", "--", "echo", "ran"]);
    assert_eq!((status(&refused), stdout(&refused).as_str()), (125, ""));
    let said = stderr(&refused);
    for part in
        ["by name (net:*.pypi.org, net:example.org:443)", "only the daemon can hold", "nobody listens"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let accept = said.trim().rsplit_once("--accept-partial ").unwrap().1;
    assert!(accept.split(',').any(|part| part == "net"), "{said}");
    // What it said is enough, and the names are as closed as they were.
    let accepted = host.run(&["-v", "-p", "confined", "--accept-partial", accept, "--", "echo", "ran"]);
    assert_eq!(succeeds(&accepted), "ran\n");
    assert!(stderr(&accepted).contains("no host is reached by name"), "{}", stderr(&accepted));
}

#[test]
fn enforcement_is_never_called_kernel_without_the_kernel() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = [] }"#, "");
    let output = host.run(&["-v", "-p", "confined", "--accept-partial", "fs_read,exec", "--", "true"]);
    let said = stderr(&output);
    assert!(
        said.contains("exec Landlock") && said.contains("in part") && said.contains("net seccomp"),
        "{said}"
    );
    assert!(!said.contains("enforcement: kernel"), "{said}");
}

#[test]
fn audit_mode_without_ebpf_is_refused() {
    let host = Host::new();
    for (profile, args) in
        [(format!("mode = \"audit\"\n{OPEN}"), &[][..]), (OPEN.to_owned(), &["--audit"][..])]
    {
        host.profile("audited", &profile);
        let output = host.run(&[&["-p", "audited"], args, &["--", "echo", "ran"]].concat());
        assert_eq!(status(&output), 125);
        assert!(stderr(&output).contains("audit mode"), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn with_every_enforcer_off_nothing_is_held_and_everything_must_be_accepted() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = [] }"#, "landlock = \"off\"\nseccomp = \"off\"");
    let output = host.run(&["-p", "confined", "--", "true"]);
    assert_eq!(status(&output), 125);
    assert!(stderr(&output).contains("--accept-partial fs_read,fs_write,exec,net"), "{}", stderr(&output));
}

#[test]
fn help_has_examples() {
    let output = Command::new(RINGFENCE).args([OsStr::new("run"), OsStr::new("--help")]).output().unwrap();
    assert!(succeeds(&output).contains("Examples:"));
}
