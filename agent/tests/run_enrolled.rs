//! `ringfence run` towards the core: what it asks for, and what it does with each answer. The core here is a stand-in
//! that tags nothing; the real one is in the VM tests.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use ringfence_test_support::{
    processes::lives,
    wait::{PATIENCE, wait_until},
};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    message::{EnrollRequest, Enrolled, Failure, MAX_REQUEST, Reply},
    status::Mode,
};
use std::{
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{PermissionsExt, chown},
            net::UnixListener,
            process::CommandExt,
        },
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const PROFILE: &str = r#"
[grant]
fs_read = { only = [] }
fs_write = { only = [] }
exec = { only = [] }
net = { only = [] }
max_calls = "unlimited"
valid_for_generation = "all"
"#;

struct Host {
    dir: TempDir,
    listener: UnixListener,
}

/// A request as the core sees it.
struct Asked {
    conn: Conn,
    request: EnrollRequest,
    descriptors: Vec<OwnedFd>,
}

impl Host {
    fn new(profile: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("config/profiles")).unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::write(dir.path().join("config/profiles/tight.toml"), profile).unwrap();
        let listener = UnixListener::bind(dir.path().join("run/enroll.sock")).unwrap();
        Self { dir, listener }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        self.command_under("tight", args)
    }

    fn command_under(&self, profile: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .env("RINGFENCE_RUNTIME_DIR", self.path("run"))
            .env("RINGFENCE_CONFIG_DIR", self.path("config"));
        command.env("PATH", "/usr/bin:/bin").current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.args(["run", "-p", profile]).args(args);
        command
    }

    /// Waits for a request. A connection that says nothing only asks whether somebody listens.
    fn asked(&self) -> Asked {
        loop {
            let (stream, _) = self.listener.accept().unwrap();
            let mut conn = Conn::new(stream, PATIENCE, MAX_REQUEST);
            if let Ok((request, descriptors)) = conn.receive_with_descriptors() {
                return Asked { conn, request, descriptors };
            }
        }
    }
}

impl Asked {
    fn answer(&mut self, mode: Mode) {
        let enrolled =
            Enrolled { container: "0123456789ab".into(), profile: "tight".into(), mode, bundle: None };
        self.conn.send(&Reply::Ok(enrolled)).unwrap();
    }

    /// The process behind the pidfd that came beside the request.
    fn child(&self) -> u32 {
        let [pidfd] = self.descriptors.as_slice() else {
            panic!("one descriptor, not {}", self.descriptors.len())
        };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).expect("a pidfd");
        pid.trim().parse().unwrap()
    }
}

fn field(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_stopped_child_is_offered_and_runs_when_it_is_enrolled() {
    let host = Host::new(PROFILE);
    let launcher = host.command(&["-v", "--", "sh", "-c", "echo $$; exit 5"]).spawn().unwrap();
    let mut asked = host.asked();
    let child = asked.child();
    assert_eq!(field(child, "PPid"), launcher.id().to_string());
    assert_eq!(field(child, "Threads"), "1");
    let EnrollRequest::Enroll { profile, workdir, audit } = &asked.request else { panic!("no enrolment") };
    let here = host.dir.path().canonicalize().unwrap();
    assert_eq!((profile.as_str(), workdir.as_deref(), *audit), ("tight", here.to_str(), false));
    std::thread::sleep(Duration::from_millis(50));
    let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap();
    assert_eq!(name.trim(), "ringfence", "it waits for the answer");
    asked.answer(Mode::Enforce);
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        child.to_string(),
        "that child became the command"
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("container 0123456789ab, profile tight, enforcement: kernel\n"), "{said}");
}

/// Runs a command that prints how it is confined, after an answer with this mode.
fn confined_as(profile: &str, args: &[&str], mode: Mode) -> String {
    let host = Host::new(profile);
    let words = ["--", "sed", "-n", "s/^\\(Seccomp\\|NoNewPrivs\\):.//p", "/proc/self/status"];
    let launcher = host.command(&[args, &words[..]].concat()).spawn().unwrap();
    host.asked().answer(mode);
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn beside_ebpf_there_is_seccomp_and_no_landlock_and_in_audit_mode_neither() {
    // That sed runs and reads at all shows that Landlock is off: the profile grants nothing.
    assert_eq!(confined_as(PROFILE, &[], Mode::Enforce), "1\n2\n");
    assert_eq!(confined_as(PROFILE, &["--audit"], Mode::Audit), "1\n0\n");
    assert_eq!(confined_as(&format!("mode = \"audit\"\n{PROFILE}"), &[], Mode::Audit), "1\n0\n");
    assert_eq!(confined_as(PROFILE, &["--audit"], Mode::Enforce), "1\n2\n", "the core's word counts");
    assert_eq!(confined_as(&format!("{PROFILE}[kernel]\nseccomp = \"off\"\n"), &[], Mode::Enforce), "1\n0\n");
}

#[test]
fn landlock_is_set_beside_ebpf_where_the_profile_says_always() {
    let host = Host::new(&format!("{PROFILE}[kernel]\nlandlock = \"always\"\n"));
    let launcher = host.command(&["--", "true"]).spawn().unwrap();
    host.asked().answer(Mode::Enforce);
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_refusal_is_told_and_nothing_runs() {
    let host = Host::new(PROFILE);
    let launcher = host.command(&["--accept-partial", "exec,fs_read", "--", "touch", "ran"]).spawn().unwrap();
    let mut asked = host.asked();
    asked.conn.send(&Reply::<Enrolled>::Failed(Failure::new("too many containers for user 0"))).unwrap();
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8(output.stderr).unwrap().contains("too many containers for user 0"));
    assert!(!host.path("ran").exists(), "a daemon that refuses is no reason to run with less");
}

#[test]
fn a_core_that_hangs_up_is_an_error_and_nothing_runs() {
    let host = Host::new(PROFILE);
    let launcher = host.command(&["--", "touch", "ran"]).spawn().unwrap();
    drop(host.asked());
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(!host.path("ran").exists());
}

#[test]
fn when_the_launcher_dies_before_the_answer_the_child_dies_too() {
    let host = Host::new(PROFILE);
    let mut launcher = host.command(&["--", "touch", "ran"]).spawn().unwrap();
    let mut asked = host.asked();
    let child = asked.child();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let _ = asked.conn.send(&Reply::Ok("anything"));
    wait_until("the child is gone", || !lives(child));
    assert!(!host.path("ran").exists());
}

#[test]
fn a_run_without_a_model_of_its_own_asks_for_no_line() {
    let host = Host::new(PROFILE);
    let mut launcher = host.command(&["--", "true"]).spawn().unwrap();
    let mut asked = host.asked();
    asked.answer(Mode::Enforce);
    assert!(launcher.wait().unwrap().success());
    assert!(matches!(asked.conn.receive::<EnrollRequest>(), Err(FrameError::Closed)));
}

#[test]
fn a_profile_outside_the_system_directory_is_asked_for_by_its_path() {
    let host = Host::new(PROFILE);
    let own = host.path("own.toml");
    fs::write(&own, PROFILE).unwrap();
    let mut launcher = host.command_under("./own.toml", &["--", "true"]).spawn().unwrap();
    let mut asked = host.asked();
    let EnrollRequest::Enroll { profile, .. } = &asked.request else { panic!("no enrolment") };
    assert_eq!(profile, own.to_str().unwrap());
    asked.answer(Mode::Enforce);
    assert!(launcher.wait().unwrap().success());
}

/// Somebody who is not root, and has no home.
const NOBODY: u32 = 65534;

#[test]
fn no_command_for_a_credential_is_run_where_the_daemon_would_refuse_the_profile() {
    // Of root's, no command is run at all; and what the daemon takes of others is what only root can make.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let host = Host::new("");
    let (config, own) = (host.path("config/profiles/tight.toml"), host.path("mine/.config/ringfence/agents"));
    fs::create_dir_all(&own).unwrap();
    let mark = host.path("mine/ran");
    let profile = PROFILE.replace("net = { only = [] }", "net = { only = [\"a.org\"] }")
        + &format!(
            "[net.credentials.\"a.org\"]\ntoken_command = \"touch {} && echo a-secret-token-of-a-service\"\nallow = [\"GET /a\"]\n",
            mark.display()
        );
    fs::write(&config, &profile).unwrap();
    fs::write(own.join("mine.toml"), &profile).unwrap();
    fs::write(host.path("ca.pem"), "").unwrap();
    chown(host.path("mine"), Some(NOBODY), None).unwrap();
    // The test's own build directory may be closed to others: run a copy, which another process makes, as a child of another test
    // that is forked while we write would keep it busy.
    let program = host.path("ringfence");
    assert!(
        Command::new("cp").arg(env!("CARGO_BIN_EXE_ringfence")).arg(&program).status().unwrap().success()
    );
    for (path, mode) in [("", 0o755), ("run/enroll.sock", 0o666)] {
        fs::set_permissions(host.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let launcher = |profile: &str| {
        let mut command = Command::new(&program);
        command.env_clear().env("RINGFENCE_RUNTIME_DIR", host.path("run")).env("PATH", "/usr/bin:/bin");
        command.env("RINGFENCE_CONFIG_DIR", host.path("config")).env("HOME", host.path("mine"));
        command.env("SSL_CERT_FILE", host.path("ca.pem")).env("PIP_CERT", "/none/ca.pem");
        command.args(["run", "-p", profile, "--", "true"]).uid(NOBODY).gid(NOBODY).current_dir("/usr");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let refused = |profile: &str| {
        let output = launcher(profile).wait_with_output().unwrap();
        assert!(!output.status.success() && !mark.exists(), "{profile}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused("mine");
    assert!(said.contains("from root alone") && said.contains("agents/mine.toml"), "{said}");
    chown(&config, Some(NOBODY), None).unwrap();
    let said = refused("tight");
    assert!(said.contains("tight.toml can be changed by others than root"), "{said}");
    // The control.
    chown(&config, Some(0), None).unwrap();
    let running = launcher("tight");
    drop(host.asked());
    assert!(mark.exists());
    let said = String::from_utf8(running.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("PIP_CERT: /none/ca.pem is not there"), "{said}");
}
