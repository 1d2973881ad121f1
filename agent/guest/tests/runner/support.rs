//! A daemon with shims in a folder of its own, and shells that find them.

use ringfence_test_support::programs::executable;
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::{fs::symlink, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

pub(crate) use ringfence_test_support::wait::{PATIENCE, wait_until};

/// What is found behind the shims.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

pub(crate) fn binary() -> PathBuf {
    std::env::var_os("RINGFENCE_TOOLRUNNER")
        .map_or_else(|| env!("CARGO_BIN_EXE_ringfence-toolrunner").into(), PathBuf::from)
}

/// A command with an environment that is the same everywhere.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs([("PATH", PATH), ("HOME", "/"), ("LC_ALL", "C.UTF-8"), ("TERM", "dumb")]);
    command.stdin(Stdio::null());
    command
}

/// A folder with shims, a daemon that serves them, and a place to work.
pub(crate) struct Runner {
    pub(crate) dir: tempfile::TempDir,
    daemon: Option<Child>,
    flags: Vec<String>,
}

impl Runner {
    /// With the shims of all usual tools.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut runner = Self::without_daemon();
        runner.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        runner.restart();
        runner
    }

    pub(crate) fn without_daemon() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::create_dir(dir.path().join("spill")).unwrap();
        let mut install = command(binary());
        install.arg("install-shims").arg(dir.path().join("shims")).arg("--no-profile");
        let output = install.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { dir, daemon: None, flags: Vec::new() }
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        let mut daemon = command(binary());
        daemon.arg("--socket").arg(self.socket()).arg("--log").arg(self.at("log"));
        daemon.arg("--spill-dir").arg(self.at("spill")).args(&self.flags).current_dir(self.work());
        self.daemon = Some(daemon.env("PATH", self.path()).spawn().unwrap());
        wait_until("the daemon listens", || UnixStream::connect(self.socket()).is_ok());
    }

    /// Ends the daemon as a container's end does, and waits for it.
    pub(crate) fn stop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let pid = rustix::process::Pid::from_child(&daemon);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        assert!(daemon.wait().unwrap().success());
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.at("socket")
    }

    /// Where shells start.
    pub(crate) fn work(&self) -> PathBuf {
        self.at("work")
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        executable(&path, text.as_bytes());
        path
    }

    pub(crate) fn path(&self) -> String {
        format!("{}:{PATH}", self.at("shims").display())
    }

    /// A program that finds the shims.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = command(program);
        command
            .env("PATH", self.path())
            .env("RINGFENCE_TOOLRUNNER_SOCKET", self.socket())
            .current_dir(self.work());
        command
    }

    /// Runs a script far below the outermost process: nothing is at the end of its line.
    pub(crate) fn shell(&self, script: &str) -> Output {
        self.command("bash").args(["-c", script]).output().unwrap()
    }

    /// Runs a script as `ringfence-runtime` would: the shell is the outermost process of its run.
    pub(crate) fn outermost(&self, script: &str) -> Output {
        as_outermost(self.command("bash"), script).output().unwrap()
    }

    /// The lines of the log about tools of this name, when there are so many.
    pub(crate) fn log(&self, cmd: &str, count: usize) -> Vec<Value> {
        let mut found = Vec::new();
        wait_until(&format!("{count} runs of {cmd} are in the log"), || {
            let text = fs::read_to_string(self.at("log")).unwrap_or_default();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            found = lines.filter(|line| line["cmd"] == cmd).collect();
            found.len() >= count
        });
        found
    }

    /// Sends these bytes, ends the sending, reads all that is answered.
    pub(crate) fn exchange(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// `bash` runs `script` in a shell that is the outermost process of its run: its parent has the runtime's name.
pub(crate) fn as_outermost(mut bash: Command, script: &str) -> Command {
    let wrapper = "printf ringfence-runti >/proc/$$/comm || exit 99\nbash -c \"$1\"\nexit $?";
    bash.args(["-c", wrapper, "bash", script]);
    bash
}

/// A real tool under another name, first in a PATH of its own.
pub(crate) fn link(target: impl AsRef<Path>, link: impl AsRef<Path>) {
    symlink(target, link).unwrap();
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A v1 answer's parts.
pub(crate) fn decode(answer: &[u8]) -> (String, String, i32) {
    fn binary<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
        assert_eq!(rest[0], 109, "a binary");
        let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
        let (bytes, after) = rest[5..].split_at(length);
        *rest = after;
        bytes
    }
    let mut rest = answer.strip_prefix(&[131, 104, 3]).expect("a tuple of three");
    let (out, err) = (binary(&mut rest), binary(&mut rest));
    let code = match rest {
        [97, code] => i32::from(*code),
        [98, code @ ..] => i32::from_be_bytes(code.try_into().unwrap()),
        other => panic!("no code: {other:?}"),
    };
    (text(out), text(err), code)
}
