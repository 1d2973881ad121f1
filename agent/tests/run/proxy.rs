//! Hosts by name on a host without a daemon: through the run's own proxy, and nothing past it.

use super::*;
use nix::sys::signal::Signal;
use std::{
    io::{BufRead, BufReader},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A server of HTTP that answers every request with what it was asked for. Gives its port.
fn http() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\nserved {target}",
                    target.len() + 7
                );
                let _ = (&stream).write_all(answer.as_bytes());
            });
        }
    });
    port
}

/// What the refusal says to type.
fn accepted(host: &Host) -> String {
    let refused = host.run(&["-p", "confined", "--", "echo", "ran"]);
    assert_eq!((status(&refused), stdout(&refused).as_str()), (125, ""));
    let said = stderr(&refused);
    said.trim().rsplit_once("--accept-partial ").unwrap().1.to_owned()
}

/// Everything that leads past the proxy, with the server's port: a line for each that succeeded. `asked`: the proxy is there.
const PAST: &str = r#"
import base64, os, socket, sys, urllib.parse
port = int(sys.argv[1])
def attempt(name, way):
    try:
        way()
        print(name)
    except OSError:
        pass
def inet(family, kind, protocol=0):
    return lambda: socket.socket(family, kind, protocol).close()
def listens(bound):
    with socket.socket() as one:
        if bound:
            one.bind(bound)
        one.listen()
attempt("direct", lambda: socket.create_connection(("127.0.0.1", port)))
attempt("mapped", lambda: socket.socket(socket.AF_INET6).connect(("::ffff:127.0.0.1", port)))
attempt("fast open", lambda: socket.socket().sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port)))
attempt("udp", inet(socket.AF_INET, socket.SOCK_DGRAM))
attempt("udp6", inet(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("mptcp", inet(socket.AF_INET, socket.SOCK_STREAM, 262))
attempt("netlink", inet(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("listen", lambda: listens(None))
attempt("bind", lambda: listens(("127.0.0.1", 0)))
if "HTTPS_PROXY" in os.environ:
    proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
    secret = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    attempt("listen at the proxy's port", lambda: listens(("127.0.0.2", proxy.port)))
    with socket.create_connection((proxy.hostname, proxy.port)) as stream:
        stream.sendall(f"CONNECT evil.example:443 HTTP/1.1\r\nProxy-Authorization: Basic {secret}\r\n\r\n".encode())
        print(stream.makefile().readline().strip())
"#;

#[test]
fn names_alone_leave_the_proxy_s_port_open_and_nothing_else() {
    let host = Host::new();
    let port = http();
    host.confined(&[], &[], r#"{ only = ["example.org:443"] }"#, "");
    let words = ["--", "/usr/bin/python3", "-Ic", PAST, &port.to_string()];
    let free = Command::new(words[1]).args(&words[2..]).output().unwrap();
    let free = succeeds(&free);
    for way in ["direct", "mapped", "udp", "udp6", "netlink", "listen", "bind"] {
        assert!(free.lines().any(|line| line == way), "the control, {way}: {free}");
    }
    let accept = accepted(&host);
    let parts: Vec<_> = accept.split(',').collect();
    assert!(parts.contains(&"names") && !parts.contains(&"net"), "{accept}");
    let output = host.run(&[&["-v", "-p", "confined", "--accept-partial", &accept], &words[..]].concat());
    assert_eq!(succeeds(&output), "HTTP/1.1 403 Forbidden\n", "{}", stderr(&output));
    let said = stderr(&output);
    assert!(!said.contains("enforcement: kernel") && said.contains("the run's proxy in part"), "{said}");
    assert!(said.contains("reached through the run's proxy alone"), "{said}");
    let line = r#"refused evil.example:443: no rule of the profile grants evil.example at port 443; what would allow it, under [grant]"#;
    assert!(said.contains(line) && said.contains(r#"net = { only = ["evil.example:443"] }"#), "{said}");
}

#[test]
fn what_a_proxy_leaves_open_has_to_be_accepted() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = ["example.org:443", "*.pypi.org"] }"#, "");
    let refused = host.run(&["-p", "confined", "--accept-partial", "exec,fs_read", "--", "echo", "ran"]);
    assert_eq!((status(&refused), stdout(&refused).as_str()), (125, ""));
    let said = stderr(&refused);
    for part in [
        "it could reach past the run's proxy for names: whoever listens, at any address, at the TCP port of the run's proxy",
        "Landlock holds the port, and not the address",
        "Not accepted: names.",
        "or accept that no host is reached by name, and what else is not held: --accept-partial ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(
        succeeds(&host.run(&["-p", "confined", "--accept-partial", &accepted(&host), "--", "echo", "ran"])),
        "ran\n"
    );
}

#[test]
fn who_accepted_the_network_before_there_was_a_proxy_has_none_opened() {
    let host = Host::new();
    let port = http();
    let net = format!(r#"{{ only = ["localhost:{port}"] }}"#);
    let looks = format!(
        "env | grep PROXY; /usr/bin/curl -s --noproxy '*' http://127.0.0.1:{port}/x; echo $?; python3 -Ic 'import socket; socket.socket()'"
    );
    for (kernel, accept) in [("", "exec,fs_read,net"), (r#"accept_partial = ["net"]"#, "exec,fs_read")] {
        host.confined(&[], &[], &net, kernel);
        let output = host.run(&["-p", "confined", "--accept-partial", accept, "--", "sh", "-c", &looks]);
        // No proxy, and no socket of the internet at all, as ever: curl finds none, nor does Python.
        assert_eq!((status(&output), stdout(&output).as_str()), (1, "7\n"), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("PermissionError") && said.contains("no host is reached by name"), "{said}");
        assert!(
            said.contains("`--accept-partial names` has them reached through a proxy of the run"),
            "{said}"
        );
        let named = accept.to_owned() + ",names";
        let output = host.run(&["-p", "confined", "--accept-partial", &named, "--", "sh", "-c", &looks]);
        assert!(succeeds(&output).contains("HTTPS_PROXY="), "the control: {}", stderr(&output));
    }
}

#[test]
fn a_program_that_knows_no_proxy_is_led_through_it_and_no_argument_has_the_password() {
    let host = Host::new();
    let (port, other) = (http(), http());
    let program = Path::new(RINGFENCE).parent().unwrap();
    let text = format!(
        r#"
        [grant]
        fs_read = {{ only = [{program:?}] }}
        fs_write = {{ only = [] }}
        exec = {{ only = ["/usr/bin", "/bin", {program:?}] }}
        net = {{ only = ["localhost:{port}", "127.0.0.1:{port}"] }}
        max_calls = "unlimited"
        valid_for_generation = "all"
        "#
    );
    host.profile("confined", &text);
    let accept = accepted(&host);
    let connect = |to: &str, before: &str| {
        let request =
            format!("GET /x HTTP/1.1\\r\\nHost: localhost:{port}\\r\\nConnection: close\\r\\n\\r\\n");
        let script = format!("{before}printf '{request}' | {RINGFENCE} proxy-connect {to}");
        host.run(&["-p", "confined", "--accept-partial", &accept, "--", "sh", "-c", &script])
    };
    let served = connect(&format!("localhost {port}"), "");
    assert!(succeeds(&served).ends_with("\r\n\r\nserved /x"), "{served:?}");
    let refused = connect(&format!("localhost {other}"), "");
    assert_eq!((status(&refused), stdout(&refused).as_str()), (1, ""), "{refused:?}");
    let said = stderr(&refused);
    assert!(
        said.contains("the run's proxy does not connect to localhost:") && said.contains("into `net`"),
        "{said}"
    );
    let wrong = connect(&format!("localhost {port}"), "export RINGFENCE_SOCKS_PROXY=http://x; ");
    assert!(status(&wrong) == 1 && stdout(&wrong).is_empty(), "{wrong:?}");
    // Where there is no proxy it connects by itself.
    let direct = connect(&format!("127.0.0.1 {port}"), "unset RINGFENCE_SOCKS_PROXY; ");
    assert!(succeeds(&direct).ends_with("served /x"), "{direct:?}");
}

#[test]
fn another_process_s_limits_are_its_own() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = ["example.org:443"] }"#, "");
    let accept = accepted(&host);
    let script = "import os, resource\nresource.prlimit(0, resource.RLIMIT_CPU)\nprint('own')\n\
                  resource.prlimit(os.getppid(), resource.RLIMIT_CPU)\nprint('another')";
    let words = ["/usr/bin/python3", "-Ic", script];
    let free = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert_eq!(succeeds(&free), "own\nanother\n", "the control");
    let output = host.run(&[&["-p", "confined", "--accept-partial", &accept, "--"], &words[..]].concat());
    assert_eq!((status(&output), stdout(&output).as_str()), (1, "own\n"), "{}", stderr(&output));
    assert!(stderr(&output).contains("PermissionError"), "{}", stderr(&output));
}

#[test]
fn the_priority_of_all_of_a_user_s_processes_is_not_the_command_s() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = ["example.org:443"] }"#, "");
    let accept = accepted(&host);
    // A process group that there is not, and its own, and one process: what is refused is refused before anything is looked for.
    let script = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *words):
    ctypes.set_errno(0)
    libc.syscall(*map(ctypes.c_long, words))
    print(name, errno.errorcode.get(ctypes.get_errno(), "done"))
number = {"x86_64": (141, 251), "aarch64": (140, 30)}[os.uname().machine]
attempt("own nice", number[0], 0, 0, 5)
attempt("group nice", number[0], 1, 0, 5)
attempt("user nice", number[0], 2, 999999, 5)
attempt("own io", number[1], 1, 0, 2 << 13)
attempt("group io", number[1], 2, 0, 2 << 13)
attempt("user io", number[1], 3, 999999, 2 << 13)
"#;
    let words = ["/usr/bin/python3", "-Ic", script];
    let free = Command::new("setsid").arg("-w").args(words).output().unwrap();
    let control =
        "own nice done\ngroup nice done\nuser nice ESRCH\nown io done\ngroup io done\nuser io ESRCH\n";
    assert_eq!(succeeds(&free), control, "the control");
    let output = host.run(&[&["-p", "confined", "--accept-partial", &accept, "--"], &words[..]].concat());
    let held =
        "own nice done\ngroup nice EPERM\nuser nice EPERM\nown io done\ngroup io EPERM\nuser io EPERM\n";
    assert_eq!(succeeds(&output), held, "{}", stderr(&output));
}

#[test]
fn clients_reach_what_is_granted_and_learn_what_is_not() {
    let host = Host::new();
    let (port, other) = (http(), http());
    host.confined(&[], &[], &format!(r#"{{ only = ["localhost:{port}", "127.0.0.1:{port}"] }}"#), "");
    let accept = accepted(&host);
    let get = |more: &[&str], place: &str| {
        let url = format!("http://{place}/x");
        let flags = ["-p", "confined", "--accept-partial", &accept];
        // Past the proxy is what NO_PROXY says.
        let curl = ["--", "/usr/bin/curl", "-sS", "--max-time", "100", "--noproxy", ""];
        host.run(&[&flags[..], &curl, more, &[&url]].concat())
    };
    let own = format!("localhost:{port}");
    assert_eq!(succeeds(&get(&[], &own)), "served /x");
    // By CONNECT, and by SOCKS with the name.
    assert_eq!(succeeds(&get(&["--proxytunnel"], &own)), "served /x");
    let script = format!(
        r#"exec /usr/bin/curl -sS --max-time 100 --noproxy "" --proxy "$RINGFENCE_SOCKS_PROXY" http://{own}/x"#
    );
    let flags = ["-p", "confined", "--accept-partial", &accept];
    let by_socks = host.run(&[&flags[..], &["--", "sh", "-c", &script]].concat());
    assert_eq!(succeeds(&by_socks), "served /x");
    let refused = get(&[], &format!("localhost:{other}"));
    let answer = succeeds(&refused);
    assert!(
        answer.contains("Ringfence refused a connection to localhost") && answer.contains("into `net`"),
        "{answer}"
    );
    assert!(stderr(&refused).contains(&format!("refused localhost:{other}")), "{}", stderr(&refused));
    assert!(stderr(&get(&["--proxytunnel"], &format!("localhost:{other}"))).contains("403"));
    // The password opens it: without, a client goes nowhere.
    let script = format!(
        r#"place=${{HTTP_PROXY#*@}}; env -u HTTP_PROXY -u http_proxy /usr/bin/curl -sS --noproxy "" --proxy "http://$place" http://{own}/x"#
    );
    let stranger = host.run(&[&flags[..], &["--", "sh", "-c", &script]].concat());
    assert!(!stdout(&stranger).contains("served") && stdout(&stranger).contains("password"), "{stranger:?}");
}

#[test]
fn its_variables_are_there_unless_they_are_named_and_its_token_is_shown_nowhere() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = ["example.org:443", "10.1.0.0/16:5432", "192.0.2.7:22"] }"#, "");
    let accept = accepted(&host);
    let flags = ["-v", "-p", "confined", "--accept-partial", &accept, "--env", "ALL_PROXY=http://mine"];
    let mut command = host.command();
    command.env("HTTPS_PROXY", "http://the.host.s").args(flags).args(["--", "env"]);
    let output = command.output().unwrap();
    let environment = succeeds(&output);
    let value = |name: &str| {
        let line = environment.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name}: {environment}")).to_owned()
    };
    let url = value("HTTPS_PROXY");
    let token = url.strip_prefix("http://ringfence:").and_then(|rest| rest.split_once('@')).unwrap().0;
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{url}");
    for name in ["https_proxy", "HTTP_PROXY", "http_proxy", "all_proxy"] {
        assert_eq!(value(name), url, "{name}");
    }
    assert_eq!(value("ALL_PROXY"), "http://mine");
    assert_eq!(value("RINGFENCE_SOCKS_PROXY"), url.replace("http:", "socks5h:"));
    assert_eq!(value("NO_PROXY"), "localhost,127.0.0.1,::1,10.1.0.0/16,192.0.2.7");
    assert_eq!(value("NODE_USE_ENV_PROXY"), "1");
    assert!(!stderr(&output).contains(token), "{}", stderr(&output));
    let again = host.run(&["-p", "confined", "--accept-partial", &accept, "--", "env"]);
    assert!(!succeeds(&again).contains(token), "a run has a token of its own");
    host.confined(&[], &[], r#"{ only = [] }"#, "");
    let none = host.run(&["-p", "confined", "--accept-partial", "exec,fs_read", "--", "env"]);
    assert!(!succeeds(&none).contains("PROXY"), "no name, no proxy");
}

/// The process ids of a launcher's workers.
fn workers(launcher: u32) -> Vec<i32> {
    let is_worker = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (parent == launcher && words.ends_with(b"\0egress-worker\0")).then(|| pid.parse().ok())?
    };
    let names =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| is_worker(&name)).collect()
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

fn is_gone(pid: i32) -> Option<()> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    (stat.is_empty() || stat.contains(") Z ")).then_some(())
}

#[test]
fn a_worker_that_dies_is_started_again_and_ends_with_its_run() {
    let host = Host::new();
    let port = http();
    host.confined(&[], &[], &format!(r#"{{ only = ["localhost:{port}", "127.0.0.1:{port}"] }}"#), "");
    let accept = accepted(&host);
    // A line of input is a request; what it says is there when it was served, or was not.
    let script = format!(
        r#"while read -r line; do /usr/bin/curl -s --retry 0 --max-time 100 --noproxy "" http://localhost:{port}/$line || echo nothing; echo; done"#
    );
    let mut command = host.command();
    command.args(["-p", "confined", "--accept-partial", &accept, "--", "sh", "-c", &script]);
    let mut run =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (run.stdin.take().unwrap(), BufReader::new(run.stdout.take().unwrap()));
    let mut lines = output.lines();
    let mut ask = |word: &str| {
        writeln!(input, "{word}").unwrap();
        lines.find_map(|line| line.ok().filter(|line| !line.is_empty())).unwrap()
    };
    assert_eq!(ask("first"), "served /first");
    let [first] = workers(run.id())[..] else { panic!("{:?}", workers(run.id())) };
    // What a terminal, or who ends a run, sends to all of its processes is for the command.
    use Signal::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
    for of_all in [SIGINT, SIGQUIT, SIGTSTP, SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM] {
        signal(first, of_all);
    }
    assert_eq!(ask("still"), "served /still");
    assert_eq!(workers(run.id()), [first]);
    signal(first, Signal::SIGKILL);
    eventually("its end", || is_gone(first));
    let second = eventually("another worker", || workers(run.id()).into_iter().find(|pid| *pid != first));
    eventually("it serves", || (ask("second") == "served /second").then_some(()));
    drop(input);
    let output = run.wait_with_output().unwrap();
    succeeds(&output);
    let said = stderr(&output);
    assert!(said.contains("the run's proxy ended (") && said.contains("until it is started again"), "{said}");
    eventually("the end of the run's worker", || is_gone(second));
}

#[test]
fn another_worker_does_not_begin_max_upload_anew() {
    let host = Host::new();
    let port = http();
    host.confined(
        &[],
        &[],
        &format!(r#"{{ only = ["localhost:{port}", "127.0.0.1:{port}"] }}"#),
        "[net]\nmax_upload = 20000",
    );
    let accept = accepted(&host);
    // Each line of input is how many bytes the next request has.
    let script = format!(
        r#"while read -r count; do /usr/bin/curl -s --retry 0 --max-time 100 --noproxy "" -H "X: $(printf "%0${{count}}d" 0)" http://localhost:{port}/$count || echo nothing; echo; done"#
    );
    let mut command = host.command();
    command.args(["-p", "confined", "--accept-partial", &accept, "--", "sh", "-c", &script]);
    let mut run =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (run.stdin.take().unwrap(), BufReader::new(run.stdout.take().unwrap()));
    let mut lines = output.lines();
    let mut ask = |count: u32| {
        writeln!(input, "{count}").unwrap();
        lines.find_map(|line| line.ok().filter(|line| !line.is_empty())).unwrap()
    };
    assert_eq!(ask(14_000), "served /14000");
    let [first] = workers(run.id())[..] else { panic!("{:?}", workers(run.id())) };
    signal(first, Signal::SIGKILL);
    eventually("its end", || is_gone(first));
    eventually("another serves", || (ask(10) == "served /10").then_some(()));
    assert_ne!(ask(14_001), "served /14001", "what the one before it sent counts");
    drop(input);
    let output = run.wait_with_output().unwrap();
    succeeds(&output);
    assert!(stderr(&output).contains("max_upload"), "{}", stderr(&output));
}

/// A tunnel through the proxy, and questions of others; a line of input is what is done next.
const TUNNEL: &str = r#"
import base64, os, socket, sys, time, urllib.parse
port, proxy = sys.argv[1], urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
secret = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
head = f"CONNECT localhost:{port} HTTP/1.1\r\nProxy-Authorization: Basic {secret}\r\n\r\n".encode()
def tunnel():
    while True:
        try:
            stream = socket.create_connection((proxy.hostname, proxy.port))
            stream.sendall(head)
            if stream.makefile("rb", buffering=0).readline().startswith(b"HTTP/1.1 200"):
                return stream
        except OSError:
            pass
        time.sleep(0.05)
def trips(stream, count):
    for _ in range(count):
        stream.sendall(b"x")
        stream.recv(1)
others = []
for line in sys.stdin:
    if line == "open\n":
        stream = tunnel()
        stream.recv(2)
        trips(stream, 1)
    elif line == "ask\n":
        others.append(socket.create_connection((proxy.hostname, proxy.port)))
        trips(stream, 50)
    else:
        try:
            stream.sendall(b"y" * int(line))
        except OSError:
            pass
    print("done", flush=True)
"#;

/// A server that sends back each `x`, and counts what it gets.
fn counting() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, got) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let all = Arc::clone(&got);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let got = Arc::clone(&got);
            thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut chunk) {
                    got.fetch_add(count, Ordering::SeqCst);
                    if chunk[..count].contains(&b'x') && stream.write_all(b"x").is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, all)
}

#[test]
fn what_a_worker_had_told_behind_a_question_that_nobody_answered_counts() {
    const MOST: usize = 20_000;
    let host = Host::new();
    let (port, got) = counting();
    let net = format!(r#"{{ only = ["tcp:localhost:{port}", "127.0.0.1:{port}"] }}"#);
    host.confined(&[], &[], &net, &format!("[net]\nmax_upload = {MOST}"));
    let accept = accepted(&host);
    let mut command = host.command();
    command.args(["-p", "confined", "--accept-partial", &accept, "--", "/usr/bin/python3", "-Ic", TUNNEL]);
    command.arg(port.to_string());
    let mut run =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (run.stdin.take().unwrap(), BufReader::new(run.stdout.take().unwrap()));
    let mut lines = output.lines();
    let mut act = |what: &str| {
        writeln!(input, "{what}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "done", "{what}");
    };
    act("open");
    let [first] = workers(run.id())[..] else { panic!("{:?}", workers(run.id())) };
    let launcher = i32::try_from(run.id()).unwrap();
    signal(launcher, Signal::SIGSTOP);
    act("ask");
    let before = got.load(Ordering::SeqCst);
    act("14000");
    eventually("the control: it was sent", || (got.load(Ordering::SeqCst) == before + 14_000).then_some(()));
    signal(first, Signal::SIGKILL);
    eventually("its end", || is_gone(first));
    signal(launcher, Signal::SIGCONT);
    act("open");
    act("14000");
    drop(input);
    let output = run.wait_with_output().unwrap();
    succeeds(&output);
    let sent = got.load(Ordering::SeqCst);
    assert!((14_000..=MOST).contains(&sent), "{sent}: {}", stderr(&output));
    assert!(stderr(&output).contains("max_upload"), "{}", stderr(&output));
}

#[test]
fn a_run_ends_with_its_command_though_nobody_reads_standard_error() {
    /// Refused names, each of which is said.
    const REFUSED: &str = r#"
import base64, os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
secret = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
for at in range(60):
    with socket.create_connection((proxy.hostname, proxy.port)) as stream:
        stream.sendall(f"CONNECT h{at}.example:443 HTTP/1.1\r\nProxy-Authorization: Basic {secret}\r\n\r\n".encode())
        print(stream.makefile().readline().strip())
"#;
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = ["example.org:443"] }"#, "");
    let accept = accepted(&host);
    let (unread, full) = nix::unistd::pipe().unwrap();
    // Room for a few of them.
    nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let mut command = host.command();
    command.args(["-p", "confined", "--accept-partial", &accept, "--", "/usr/bin/python3", "-Ic", REFUSED]);
    let mut run = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    drop(command);
    let mut said = String::new();
    run.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "HTTP/1.1 403 Forbidden\n".repeat(60));
    assert_eq!(wait(&mut run), Some(0), "its end");
    let mut read = String::new();
    fs::File::from(unread).read_to_string(&mut read).unwrap();
    assert!(read.len() > 3000 && read.contains("refused h0.example:443"), "the control: {read}");
}

#[test]
fn a_launcher_that_is_killed_leaves_no_worker_and_no_command() {
    let host = Host::new();
    host.confined(&[], &[], r#"{ only = ["example.org:443"] }"#, "");
    let accept = accepted(&host);
    let mut command = host.command();
    command.args([
        "-p",
        "confined",
        "--accept-partial",
        &accept,
        "--",
        "sh",
        "-c",
        "echo $$; exec sleep 600",
    ]);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child: i32 = line.trim().parse().unwrap();
    let [worker] = workers(run.id())[..] else { panic!("{:?}", workers(run.id())) };
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("the worker's end", || is_gone(worker));
    eventually("the command's end", || is_gone(child));
}
