//! Signals and the terminal.

use super::*;
use ringfence_test_support::wait::{eventually, wait_until};

/// A launcher whose command has said "ready" on its standard output.
fn ready(host: &Host, script: &str) -> Child {
    host.profile("open", OPEN);
    let mut command = host.command();
    // Who runs the tests may ignore a signal (`nohup` does), and a shell cannot trap what it was started to ignore.
    command.args(["-p", "open", "--", "env", "--default-signal", "sh", "-c", script]).stdout(Stdio::piped());
    // A group of its own, so that a signal to it reaches nobody else.
    let mut child = command.process_group(0).spawn().unwrap();
    let mut line = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    child
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn signals_to_the_launcher_reach_the_command() {
    use nix::sys::signal::Signal;
    let host = Host::new();
    for (sent, status) in
        [(Signal::SIGTERM, 21), (Signal::SIGINT, 22), (Signal::SIGHUP, 23), (Signal::SIGUSR1, 24)]
    {
        let name = sent.as_str().trim_start_matches("SIG");
        let script = format!("trap 'exit {status}' {name}; echo ready; while :; do sleep 0.01; done");
        let mut child = ready(&host, &script);
        signal(&child, sent);
        assert_eq!(wait(&mut child), Some(status), "{sent}");
    }
    let mut child = ready(&host, "echo ready; exec sleep 60");
    signal(&child, Signal::SIGTERM);
    assert_eq!(wait(&mut child), Some(143), "the command's own default");
}

/// The third field of /proc/PID/stat, past the name in brackets.
fn state(child: &Child) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn becomes(child: &Child, expected: char) {
    let start = Instant::now();
    while state(child) != Some(expected) {
        assert!(start.elapsed() < LIMIT, "state {:?} instead of {expected}", state(child));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stop_and_its_end_are_shared() {
    use nix::sys::signal::Signal;
    let host = Host::new();
    let mut child = ready(&host, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    signal(&child, Signal::SIGTSTP);
    becomes(&child, 'T');
    signal(&child, Signal::SIGCONT);
    becomes(&child, 'S');
    signal(&child, Signal::SIGTERM);
    assert_eq!(wait(&mut child), Some(7));
}

/// A terminal of its own, by util-linux's `script`, and what was printed on it.
struct Terminal {
    child: Child,
    seen: Vec<u8>,
}

impl Terminal {
    fn open(host: &Host, command: &str) -> Self {
        // Who runs the tests may ignore a signal, and what a shell was started to ignore its commands ignore too.
        let mut script = Command::new("env");
        script.args(["--default-signal", "script", "-q", "-e", "-c", command, "/dev/null"]);
        script.current_dir(host.dir.path());
        script
            .env("RINGFENCE_RUNTIME_DIR", host.path("run"))
            .env("RINGFENCE_CONFIG_DIR", host.path("config"));
        // The prompt is bash's own, whichever shell `script` starts it by.
        script.env("PATH", "/usr/bin:/bin").env("TERM", "dumb").env("SHELL", "/bin/sh");
        script.env_remove("PS1").env_remove("PROMPT_COMMAND");
        let child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = std::os::fd::AsFd::as_fd(child.stdout.as_ref().unwrap());
        nix::fcntl::fcntl(stdout, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        Self { child, seen: Vec::new() }
    }

    fn type_in(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Types it, and waits until the other was printed.
    #[track_caller]
    fn ask(&mut self, text: &str, answer: &str) {
        self.type_in(text);
        self.expect(answer);
    }

    /// Waits until a text was printed, and forgets everything up to it.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        self.line(text);
    }

    /// The same; what was printed before it.
    #[track_caller]
    fn line(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let mut some = [0; 4096];
            match self.child.stdout.as_mut().unwrap().read(&mut some) {
                Ok(0) => {}
                Ok(n) => self.seen.extend(&some[..n]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            let seen = String::from_utf8_lossy(&self.seen).into_owned();
            if let Some((before, rest)) = seen.split_once(text) {
                self.seen = rest.as_bytes().to_vec();
                return before.to_owned();
            }
            assert!(start.elapsed() < LIMIT, "no {text:?} in {seen:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    /// A test that failed leaves a shell that waits for a line, and holds what the tests' output goes to.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell on a terminal of a host that has the profile `open`.
fn shell() -> (Host, Terminal) {
    let host = Host::new();
    host.profile("open", OPEN);
    let terminal = Terminal::open(&host, "bash --norc -i");
    (host, terminal)
}

/// Answers each line it is given, so that a test knows that it runs, and in the foreground.
const ANSWERING: &str = "sed -u s/^/got:/";

#[test]
fn an_interactive_shell_works() {
    let host = Host::new();
    host.profile("open", OPEN);
    let mut terminal = Terminal::open(&host, &format!("{RINGFENCE} run -p open -- bash --norc -i"));
    terminal.expect("enforcement:");
    // The quotes keep the echo of what is typed from being what is waited for.
    terminal.ask("tty && echo on''e\n", "/dev/pts/");
    terminal.expect("one");
    terminal.type_in(&format!("{ANSWERING}\n"));
    terminal.ask("alpha\n", "got:alpha");
    // Job control: the inner shell stops and continues its own job.
    terminal.ask("\x1a", "Stopped");
    terminal.expect("bash-");
    terminal.type_in("fg\n");
    terminal.ask("beta\n", "got:beta");
    terminal.type_in("\x03");
    // What is typed before the prompt is back, Ctrl-C throws away.
    terminal.expect("bash-");
    terminal.ask("echo status''=$?\n", "status=130");
    terminal.type_in("exit 9\n");
    assert_eq!(wait(&mut terminal.child), Some(9));
}

#[test]
fn the_outer_shell_can_stop_and_continue_the_launcher() {
    let (_host, mut terminal) = shell();
    terminal.ask(&format!("{RINGFENCE} run -p open -- {ANSWERING}\n"), "enforcement:");
    terminal.ask("first\n", "got:first");
    terminal.ask("\x1a", "Stopped");
    terminal.ask("echo outer''shell\n", "outershell");
    terminal.type_in("fg\n");
    terminal.ask("again\n", "got:again");
    terminal.ask("\x03", "bash-");
    terminal.ask("echo status''=$?; exit 4\n", "status=130");
    assert_eq!(wait(&mut terminal.child), Some(4));
}

/// Process, process group, session and the terminal's foreground group, of `sh -c` itself.
const WHERE: &str = "cut -d' ' -f1,5,6,8 /proc/$$/stat";

fn numbers(text: &str) -> Vec<i64> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

#[test]
fn without_a_terminal_the_command_is_a_session_of_its_own() {
    let host = Host::new();
    host.profile("open", OPEN);
    let output = host.command().args(["-p", "open", "--", "sh", "-c", WHERE]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let [pid, group, session, foreground] = numbers(&text)[..] else { panic!("{text:?}") };
    assert_eq!((group, session, foreground), (pid, pid, -1));
}

#[test]
fn on_a_terminal_the_command_is_the_foreground_group_of_the_same_session() {
    let (host, mut terminal) = shell();
    fs::write(host.path("where.sh"), format!("echo at=$({WHERE}).\n")).unwrap();
    terminal.ask(&format!("{RINGFENCE} run -p open -- sh where.sh\n"), "at=");
    let text = terminal.line(".");
    let [pid, group, session, foreground] = numbers(&text)[..] else { panic!("{text:?}") };
    assert_eq!((group, foreground), (pid, pid));
    assert_ne!(session, pid);
    terminal.type_in("exit 3\n");
    assert_eq!(wait(&mut terminal.child), Some(3));
}

/// Signals that wait to be taken by the process.
fn pending(child: &Child) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    status.lines().filter(|line| line.starts_with("ShdPnd") || line.starts_with("SigPnd")).collect()
}

#[test]
fn a_stop_of_everything_inside_stops_nothing_outside() {
    use nix::sys::signal::Signal;
    let host = Host::new();
    let script =
        "trap 'exit 8' TERM; echo ready; cut -d' ' -f1 /proc/$$/stat > pid.new; mv pid.new pid; kill -STOP 0";
    let mut child = ready(&host, script);
    let inside = eventually("it says who it is", || fs::read_to_string(host.path("pid")).ok());
    let stat = format!("/proc/{}/stat", inside.trim());
    let stopped = || fs::read_to_string(&stat).unwrap().contains(") T ");
    wait_until("it is stopped, and that was seen", || stopped() && !pending(&child).contains('1'));
    // It has seen that the command is stopped, and lives on.
    becomes(&child, 'S');
    signal(&child, Signal::SIGTERM);
    signal(&child, Signal::SIGCONT);
    assert_eq!(wait(&mut child), Some(8));
}

#[test]
fn a_background_command_that_reads_is_stopped_until_it_is_in_the_foreground() {
    let (_host, mut terminal) = shell();
    terminal.ask(&format!("{RINGFENCE} run -p open -- {ANSWERING} &\n"), "enforcement:");
    terminal.ask("while ! jobs -s | grep -q sed; do sleep 0.01; done; echo is''stopped\n", "isstopped");
    terminal.type_in("fg\n");
    terminal.ask("first\n", "got:first");
    terminal.ask("\x03", "bash-");
    terminal.ask("echo status''=$?; exit 4\n", "status=130");
    assert_eq!(wait(&mut terminal.child), Some(4));
}

#[test]
fn a_command_of_a_script_gets_the_terminal_when_it_reads() {
    let (_host, mut terminal) = shell();
    terminal.type_in(&format!("sh -c '{RINGFENCE} run -p open -- {ANSWERING}; echo after''=$?'\n"));
    terminal.expect("enforcement:");
    terminal.ask("line\n", "got:line");
    terminal.ask("\x04", "after=0");
    terminal.type_in("exit 5\n");
    assert_eq!(wait(&mut terminal.child), Some(5));
}

#[test]
fn an_interrupt_reaches_a_command_in_a_pipeline() {
    let (_host, mut terminal) = shell();
    terminal.type_in(&format!(
        "{RINGFENCE} run -p open -- sh -c 'trap \"exit 9\" INT; echo be''gun; while :; do sleep 0.01; done' | cat; \
         true\n"
    ));
    terminal.expect("begun");
    terminal.ask("\x03", "bash-");
    terminal.type_in("exit 6\n");
    assert_eq!(wait(&mut terminal.child), Some(6));
}
