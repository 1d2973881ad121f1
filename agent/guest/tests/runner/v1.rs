//! The old protocol: a line with tabs, an Erlang term.

use crate::support::{Runner, decode, text, wait_until};
use std::{
    fs,
    io::{Read, Write},
    os::unix::process::CommandExt,
    time::{Duration, Instant},
};

#[test]
fn the_bytes_are_the_old_protocol_s() {
    let runner = Runner::start(&[]);
    runner.file("file.txt", "hi\n");
    let answer = runner.exchange(b"cat\tfile.txt\n");
    let expected = [131, 104, 3, 109, 0, 0, 0, 3, b'h', b'i', b'\n', 109, 0, 0, 0, 0, 97, 0];
    assert_eq!(answer, expected);
}

#[test]
fn streams_and_codes_are_kept_apart() {
    let runner = Runner::start(&[]);
    let ask = |request: &[u8]| decode(&runner.exchange(request));
    assert_eq!(ask(b"sh\t-c\techo out; echo err >&2; exit 3\n"), ("out\n".into(), "err\n".into(), 3));
    assert_eq!(ask(b"printf\t%s|\ta b\t\t\xc3\xa4%d\n"), ("a b||ä%d|".into(), String::new(), 0));
    assert_eq!(ask(b"sh\t-c\tkill -9 $$\n").2, 137);
    let (out, err, code) = ask(b"no-such-tool\tx\n");
    assert_eq!((out.as_str(), code), ("", 127));
    assert!(err.contains("no-such-tool: command not found"), "{err}");
    let (_, err, code) = ask(b"/etc/passwd\n");
    assert_eq!(code, 126);
    assert!(err.contains("permission denied"), "{err}");
    // Nothing to read, and no terminal.
    assert_eq!(ask(b"cat\n"), (String::new(), String::new(), 0));
    assert_eq!(ask(b"pwd\n").0.trim_end(), runner.work().to_str().unwrap());
}

#[test]
fn a_script_without_an_interpreter_is_sh_s() {
    let runner = Runner::start(&[]);
    runner.program("work/plain", "echo \"$1 $#\"\n");
    assert_eq!(decode(&runner.exchange(b"./plain\ta\tb\n")), ("a 2\n".into(), String::new(), 0));
}

#[test]
fn long_output_is_cut_and_kept() {
    let runner = Runner::start(&[]);
    let whole: String = (1..=3000).map(|number| format!("{number}\n")).collect();
    runner.file("big", &whole);
    let (out, err, code) = decode(&runner.exchange(b"cat\tbig\n"));
    let (shown, remark) = out.split_once("...[truncated]").unwrap();
    assert_eq!((shown.lines().count(), err.as_str(), code), (200, "", 0));
    assert!(whole.starts_with(shown));
    assert!(!remark.contains("...[truncated]"));
    let path = remark.trim_end().rsplit(' ').next().unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), whole);
    let (out, ..) = decode(&runner.exchange(b"printf\t%5000s\n"));
    assert_eq!(out.split_once("\n...[truncated]").unwrap().0.len(), 4000);
    let log = runner.log("cat", 1);
    assert_eq!((&log[0]["bytes"], &log[0]["cut"]), (&whole.len().into(), &true.into()));
}

#[test]
fn uncut_output_is_whole() {
    let runner = Runner::start(&["--truncate", "off"]);
    let (out, ..) = decode(&runner.exchange(b"sh\t-c\thead -c 300000 /dev/zero | tr '\\0' x\n"));
    assert_eq!(out.len(), 300_000);
}

#[test]
fn one_request_a_connection() {
    let runner = Runner::start(&[]);
    let first = runner.work().join("first");
    let second = runner.work().join("second");
    let answer = runner.exchange(format!("tee\t{}\ntee\t{}\n", first.display(), second.display()).as_bytes());
    assert_eq!(decode(&answer).2, 0);
    // The first is done; a connection after it has been served too, and still there is no second.
    runner.exchange(b"true\n");
    assert!(first.exists() && !second.exists());
}

#[test]
fn who_hangs_up_ends_the_tool() {
    let runner = Runner::start(&[]);
    let mut stream = runner.connect();
    let pid = runner.work().join("pid");
    let script = format!("sh\t-c\techo $$ > {0}.new; mv {0}.new {0}; sleep 600 & wait\n", pid.display());
    stream.write_all(script.as_bytes()).unwrap();
    wait_until("the tool runs", || pid.exists());
    let pid = fs::read_to_string(pid).unwrap();
    drop(stream);
    let proc = format!("/proc/{}", pid.trim());
    wait_until("the tool is gone", || !fs::exists(&proc).unwrap());
}

#[test]
fn a_tool_that_takes_too_long_is_killed_with_its_group() {
    // A busy machine may need more than a second until there is a group.
    let is_killed = |seconds: u64| {
        let runner = Runner::start(&["--timeout", &seconds.to_string()]);
        let begin = Instant::now();
        let request = b"sh\t-c\techo before; sleep 600 & echo $!; wait\n";
        let (out, err, code) = decode(&runner.exchange(request));
        assert!(begin.elapsed() >= Duration::from_secs(seconds));
        assert_eq!(code, 124);
        assert!(err.contains(&format!("killed after {seconds} s")), "{err}");
        assert_eq!(runner.log("sh", 1)[0]["timed_out"], true);
        let Some((before, sleep)) = out.trim_end().split_once('\n') else { return false };
        assert_eq!(before, "before");
        let state = || fs::read_to_string(format!("/proc/{sleep}/stat")).unwrap_or_default();
        wait_until("what it started is gone", || state().is_empty() || state().contains(") Z "));
        true
    };
    assert!([1, 5, 40].into_iter().any(is_killed), "not even in 40 seconds was there a group");
}

#[test]
fn a_caller_that_belongs_to_a_tool_call_or_has_less_is_refused() {
    let runner = Runner::start(&[]);
    let ask = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(b'id\\n')\n\
               sys.stdout.buffer.write(s.makefile('rb').read())";
    let python = |script: &str| format!("python3 -c \"{ask}\" {} {script}", runner.socket().display());
    // The control: the same client from anywhere else.
    let (out, _, code) = decode(&runner.shell(&python("")).stdout);
    assert_eq!(code, 0);
    assert!(out.starts_with("uid="), "{out}");
    let (out, err, code) = decode(&runner.outermost(&python("")).stdout);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(err.contains("belongs to a tool call"), "{err}");
    if fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs:\t1") {
        // The daemon is confined in the same way then.
        return;
    }
    let mut confined = runner.command("setpriv");
    confined.args(["--no-new-privs", "bash", "-c", &python("")]).process_group(0);
    let (_, err, code) = decode(&confined.output().unwrap().stdout);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("confined more than the daemon"), "{err}");
}

#[test]
fn a_second_daemon_does_not_take_the_socket_and_a_dead_one_s_is_taken() {
    let mut runner = Runner::start(&[]);
    let mut second = crate::support::command(crate::support::binary());
    let output = second.arg("--socket").arg(runner.socket()).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("another daemon serves"), "{output:?}");
    let killed = rustix::process::Pid::from_raw(i32::try_from(runner.daemon_pid()).unwrap()).unwrap();
    rustix::process::kill_process(killed, rustix::process::Signal::TERM).unwrap();
    wait_until("the socket is gone with its daemon", || !runner.socket().exists());
    runner.stop();
    drop(std::os::unix::net::UnixListener::bind(runner.socket()).unwrap());
    runner.restart();
    let mut answer = Vec::new();
    let mut stream = runner.connect();
    stream.write_all(b"echo\thi\n").unwrap();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(decode(&answer).0, "hi\n");
}

/// Python that asks the daemon for a file before and after it may not read it itself any more.
const LANDLOCKED: &str = "import ctypes,os,socket,struct,sys
path,secret=sys.argv[1:3]
def ask():
 s=socket.socket(socket.AF_UNIX);s.connect(path);s.sendall(b'cat\\t'+secret.encode()+b'\\n')
 return b'hidden' in s.makefile('rb').read()
libc=ctypes.CDLL(None,use_errno=True)
before=open(secret).read()
# no_new_privs; a ruleset that handles reading files, and has no rule.
assert libc.prctl(38,1,0,0,0)==0
rules=libc.syscall(444,struct.pack('Q',1<<2),8,0)
if rules<0: print('no landlock');sys.exit()
assert libc.syscall(446,rules,0)==0
try: open(secret);own='read'
except PermissionError: own='refused'
print(before.strip(),own,ask())";

#[test]
fn a_caller_under_landlock_of_its_own_does_not_leave_it() {
    let mut runner = Runner::start(&[]);
    runner.stop();
    let secret = runner.file("secret", "hidden\n");
    // A daemon that has no_new_privs, as in a container that is started with it.
    let mut daemon = crate::support::command("setpriv");
    daemon.arg("--no-new-privs").arg(crate::support::binary()).arg("--socket").arg(runner.socket());
    let mut daemon = daemon.arg("--log").arg(runner.at("log")).env("PATH", runner.path()).spawn().unwrap();
    wait_until("the daemon listens", || std::os::unix::net::UnixStream::connect(runner.socket()).is_ok());
    let mut python = runner.command("python3");
    python.args(["-c", LANDLOCKED]).arg(runner.socket()).arg(secret).process_group(0);
    let output = python.output().unwrap();
    let said = text(&output.stdout).trim().to_owned();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    if said == "no landlock" {
        eprintln!("left out: this kernel has no Landlock");
        return;
    }
    assert_eq!(said, "hidden refused False", "{}", text(&output.stderr));
}
