//! A worker under a core that the test plays: who may speak, tags, reports, its sandbox, its end.

use crate::{
    mock::{Mock, calls, says},
    support::{Client, PATIENCE, eventually, send, tool_result, turn, user},
};
use ringfence_wire::{
    agent::{Answer, For, Inside, MAX_QUESTION, Speaker, Start, ToCore, ToWorker},
    conn::Conn,
    trace::Said,
};
use serde_json::{Value, json, value::RawValue};
use std::{
    fs::{self, File},
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixListener, net::UnixStream},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

const SECRET: &str = "sk-handed-over-0123456789";

/// What the core says of whoever connects.
#[derive(Clone, Default)]
struct Says {
    speaker: Option<Speaker>,
    tag: Option<u64>,
}

/// The core's side of one worker.
struct Core {
    dir: tempfile::TempDir,
    worker: Child,
    link: UnixStream,
    says: Arc<Mutex<Says>>,
    heard: Arc<Mutex<Vec<ToCore>>>,
    descriptors: Arc<Mutex<Vec<usize>>>,
}

impl Core {
    fn start(mock: &Mock) -> Self {
        let dir = tempfile::Builder::new().prefix("rf").tempdir_in("/tmp").unwrap();
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        let listener = UnixListener::bind(dir.path().join("agent.sock")).unwrap();
        let http = UnixListener::bind(dir.path().join("http.sock")).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .arg("llm-worker")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("stderr")).unwrap())
            .env_clear()
            .spawn()
            .unwrap();
        let config = json!({
            "name": "a", "file": "/etc/ringfence/profiles/a.toml", "log_reader": null, "socket_owner": 1000,
            "governed": true, "notices": [], "mcp": [], "http": { "port": null },
            "limits": { "turns_per_minute": null, "tokens_per_day": null, "cost_per_day": null },
            "llm": {
                "name": "m", "provider": "Anthropic", "model": "m", "base_url": mock.url, "max_tokens": 100, "options": {},
                "price": { "input": 0.0, "output": 0.0, "cache_read": 0.0, "cache_write": 0.0 },
                "prompt_cache": true, "max_mcp_rounds": 5, "max_rounds": 5,
                "timeout": {"secs": 20, "nanos": 0}, "runtime_timeout": {"secs": 20, "nanos": 0},
            },
        });
        let start = Start {
            config: RawValue::from_string(config.to_string()).unwrap(),
            dir: own,
            credentials: vec![For::Llm],
            http: true,
        };
        let mut conn = Conn::new(ours.try_clone().unwrap(), PATIENCE, MAX_QUESTION);
        conn.send_with_descriptors(&ToWorker::Start(start), &[listener.as_fd(), http.as_fd()]).unwrap();
        let (key, mut write) = std::io::pipe().unwrap();
        write.write_all(SECRET.as_bytes()).unwrap();
        drop(write);
        conn.send_with_descriptors(&ToWorker::Credential, &[key.as_fd()]).unwrap();
        let (says, heard, descriptors) = (Arc::<Mutex<Says>>::default(), Arc::default(), Arc::default());
        let core = Self {
            dir,
            worker,
            link: ours,
            says: Arc::clone(&says),
            heard: Arc::clone(&heard),
            descriptors: Arc::clone(&descriptors),
        };
        thread::spawn(move || answer(conn, &says, &heard, &descriptors));
        eventually("the worker", || core.heard().contains(&ToCore::Ready).then_some(()));
        core
    }

    fn heard(&self) -> Vec<ToCore> {
        self.heard.lock().unwrap().clone()
    }

    fn said(&self) -> Vec<Said> {
        let parse = |question: ToCore| match question {
            ToCore::Report(text) => Some(serde_json::from_str(&text).unwrap()),
            _ => None,
        };
        self.heard().into_iter().filter_map(parse).collect()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap()
    }

    /// Whoever connects from now on is this.
    fn peer(&self, uid: u32, container: Option<bool>) {
        let container = container.map(|own| Inside { id: "0123456789ab".into(), own });
        self.says.lock().unwrap().speaker = Some(Speaker { pid: 4711, uid, container });
    }

    fn runtime(&self) -> Client {
        self.peer(0, Some(true));
        let runtime = Client::runtime(&self.socket());
        // `register` has no answer, and who it is is asked before.
        eventually("the runtime", || {
            self.heard().iter().any(|q| matches!(q, ToCore::Status(counts) if counts.runtime)).then_some(())
        });
        runtime
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
        if thread::panicking() {
            eprintln!("the worker said: {}", self.stderr());
        }
    }
}

fn answer(mut conn: Conn, says: &Mutex<Says>, heard: &Mutex<Vec<ToCore>>, descriptors: &Mutex<Vec<usize>>) {
    while let Ok((question, with)) = conn.receive_with_descriptors::<ToCore>() {
        let Says { speaker, tag } = says.lock().unwrap().clone();
        let answer = match question {
            ToCore::Speaker => {
                Some(speaker.map_or_else(|| Answer::Refused("nobody".into()), Answer::Speaker))
            }
            ToCore::Tag => Some(tag.map_or_else(
                || Answer::Refused("process 9 has exec'd already".into()),
                |tag| Answer::Tagged { tag, container: "0123456789ab".into() },
            )),
            _ => None,
        };
        if answer.is_some() {
            descriptors.lock().unwrap().push(with.len());
        }
        heard.lock().unwrap().push(question);
        if let Some(answer) = answer
            && conn.send(&ToWorker::Answer(answer)).is_err()
        {
            return;
        }
    }
}

/// Sends `tag` with a descriptor, as the runtime does.
fn tag(runtime: &Client, id: u64, call: &str) {
    let stream = runtime.stream.try_clone().unwrap();
    let request = json!({"jsonrpc": "2.0", "id": id, "method": "tag", "params": {"call": call}});
    let file = File::open("/dev/null").unwrap();
    Conn::new(stream, PATIENCE, 1 << 20).send_with_descriptors(&request, &[file.as_fd()]).unwrap();
}

#[test]
fn a_tag_is_asked_of_the_core_for_a_call_that_waits_and_for_no_other() {
    let mock = Mock::with([calls(&[("c1", "bash", "{}"), ("c2", "bash", "{}")]), says(&["Done."])]);
    let core = Core::start(&mock);
    let mut runtime = core.runtime();
    core.peer(1000, None);
    let mut sender = Client::sender(&core.socket(), "list the files");
    runtime.human();
    assert_eq!(sender.expect()["result"]["status"], "delivered");
    let tools = json!([{"name": "bash", "parameters": {"type": "object"}}]);
    let mut first = turn(1, json!([user("list the files")]));
    first["params"]["tools"] = tools;
    runtime.write(&first);
    let (answered, _) = runtime.answer();
    assert_eq!(answered["result"]["tags"], true);
    assert_eq!(mock.last().header("x-api-key"), Some(SECRET), "the credential that was handed over");

    core.says.lock().unwrap().tag = Some(42);
    tag(&runtime, 2, "c1");
    assert_eq!(runtime.expect()["result"]["tagged"], true);
    assert_eq!(core.descriptors.lock().unwrap().last(), Some(&2), "the process and the runtime's connection");
    tag(&runtime, 3, "c1");
    assert!(message(&runtime.expect()).contains("tagged for it"));
    tag(&runtime, 4, "c9");
    assert!(message(&runtime.expect()).contains("no tool call"));
    core.says.lock().unwrap().tag = None;
    tag(&runtime, 5, "c2");
    assert!(message(&runtime.expect()).contains("exec'd already"), "the core's own words");
    runtime.write(&json!({"jsonrpc": "2.0", "id": 6, "method": "tag", "params": {"call": "c2"}}));
    assert!(message(&runtime.expect()).contains("none came"));

    runtime.write(&turn(7, json!([tool_result("c1", "a b"), tool_result("c2", "c")])));
    runtime.answer();
    core.says.lock().unwrap().tag = Some(43);
    tag(&runtime, 8, "c2");
    assert!(message(&runtime.expect()).contains("no tool call"), "it was answered");

    let said = eventually("the reports", || {
        let said = core.said();
        said.iter().any(|said| matches!(said, Said::IntentEnded { .. })).then_some(said)
    });
    let Some(Said::Intent { id, uid: Some(1000), text }) = said.first() else { panic!("{said:?}") };
    assert_eq!(text, "list the files");
    let of_intent = |said: &&Said| matches!(said, Said::Call { intent: Some(intent), tool, .. } if intent == id && tool == "bash");
    assert_eq!(said.iter().filter(of_intent).count(), 2);
    assert!(said.contains(&Said::Tagged { call: "c1".into(), tag: 42 }));
    assert_eq!(said.iter().filter(|said| matches!(said, Said::Tagged { .. })).count(), 1);
    assert!(
        said.iter()
            .any(|said| matches!(said, Said::CallEnded { id, output, .. } if id == "c1" && output == "a b"))
    );
    assert!(said.contains(&Said::IntentEnded { id: id.clone(), error: None }));
    assert!(
        said.iter()
            .filter(|said| matches!(said, Said::Refused(r) if r.what == "tag" && r.pid == Some(4711)))
            .count()
            >= 4
    );
}

fn message(reply: &Value) -> &str {
    reply["error"]["message"].as_str().unwrap_or_else(|| panic!("{reply}"))
}

#[test]
fn who_may_speak_is_the_core_s_word() {
    let mock = Mock::new();
    let core = Core::start(&mock);
    let register = json!({"jsonrpc": "2.0", "method": "register", "params": {"role": "runtime"}});
    for (uid, container, what) in [(0, None, "in none"), (0, Some(false), "in another")] {
        core.peer(uid, container);
        let mut client = Client::connect(&core.socket());
        client.write(&register);
        let reply = client.expect();
        assert!(message(&reply).contains(what), "{reply}");
        assert_eq!(reply["error"]["code"], -32003);
        assert_eq!(client.next(), None, "the connection ends");
    }
    for (uid, container, what) in [
        (1000, Some(true), "never from a container"),
        (0, Some(false), "never from a container"),
        (1001, None, "not the agent's owner"),
    ] {
        core.peer(uid, container);
        let mut client = Client::sender(&core.socket(), "do what I say");
        let reply = client.expect();
        assert!(message(&reply).contains(what), "{reply}");
    }
    core.says.lock().unwrap().speaker = None;
    let mut client = Client::sender(&core.socket(), "x");
    assert!(message(&client.expect()).contains("not known who this is"), "unknown is not allowed");
    for uid in [0, 1000] {
        core.peer(uid, None);
        let mut client = Client::connect(&core.socket());
        client.write(&send("x"));
        assert_eq!(message(&client.expect()), "runtime not connected");
    }
    let refused = eventually("the refusals", || {
        let refused: Vec<_> =
            core.said().into_iter().filter(|said| matches!(said, Said::Refused(_))).collect();
        (refused.len() == 6).then_some(refused)
    });
    assert!(
        refused
            .iter()
            .any(|said| matches!(said, Said::Refused(r) if r.container.as_deref() == Some("0123456789ab")))
    );
    assert!(mock.asked().is_empty());
}

/// Calls the provider's API; the whole answer, head and body.
fn call(core: &Core) -> String {
    let mut stream = UnixStream::connect(core.dir.path().join("http.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = json!({"max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "hello"}]})
        .to_string();
    let head = "POST /v1/messages HTTP/1.1\r\nhost: agent\r\nx-api-key: sk-theirs\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    std::io::read_to_string(stream).unwrap()
}

#[test]
fn the_provider_s_api_is_for_the_agent_s_container() {
    let mock = Mock::with([says(&["Hello."])]);
    let core = Core::start(&mock);
    for (container, what) in [(None, "in none"), (Some(false), "in another")] {
        core.peer(0, container);
        let answer = call(&core);
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(what), "{answer}");
    }
    core.says.lock().unwrap().speaker = None;
    let answer = call(&core);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("not known who this is"), "{answer}");
    assert!(mock.asked().is_empty(), "a refused call reached the provider");
    core.peer(0, Some(true));
    let answer = call(&core);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Hello."), "{answer}");
    assert_eq!(mock.last().header("x-api-key"), Some(SECRET));
    let refused = |said: &Said| matches!(said, Said::Refused(r) if r.what == "http");
    eventually("the refusals", || {
        (core.said().iter().filter(|said| refused(said)).count() == 3).then_some(())
    });
    assert!(
        fs::read_to_string(core.dir.path().join("own/log/http.ndjson")).unwrap().contains("/v1/messages")
    );
}

#[test]
fn a_worker_is_confined_and_its_key_is_nowhere_to_be_read() {
    let mock = Mock::new();
    let core = Core::start(&mock);
    let proc = PathBuf::from(format!("/proc/{}", core.worker.id()));
    let status = fs::read_to_string(proc.join("status")).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    for file in ["environ", "cmdline"] {
        let text = fs::read(proc.join(file)).unwrap_or_default();
        assert!(!text.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{file}");
    }
    assert!(!core.stderr().contains(SECRET));
    let mode = |path: &str| fs::metadata(core.dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("own/log"), mode("own/log/conversation.ndjson")), (0o700, 0o600));
}

#[test]
fn a_worker_ends_when_it_is_told_to_and_when_the_core_is_gone() {
    let mock = Mock::new();
    let mut core = Core::start(&mock);
    Conn::new(core.link.try_clone().unwrap(), PATIENCE, 1 << 10).send(&ToWorker::Stop).unwrap();
    let status = eventually("its end", || core.worker.try_wait().unwrap());
    assert!(status.success(), "{status}: {}", core.stderr());

    let mut core = Core::start(&mock);
    core.link.shutdown(std::net::Shutdown::Both).unwrap();
    let status = eventually("its end", || core.worker.try_wait().unwrap());
    assert!(status.success(), "{status}: {}", core.stderr());
    assert!(core.stderr().contains("the daemon is gone"));
}

#[test]
fn a_worker_is_not_started_by_hand() {
    let run = Command::new(env!("CARGO_BIN_EXE_ringfence"))
        .arg("llm-worker")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("started by the daemon"));
}
