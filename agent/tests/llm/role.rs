//! A worker under a core that the test plays: who may speak, tags, reports, its sandbox, its end.

use crate::{
    mock::{Answer as Provided, Mock, calls, says},
    played_core::{Core, SECRET},
    support::{Client, PATIENCE, eventually, send, tool_result, turn, user},
};
use ringfence_wire::{
    agent::ToCore,
    conn::Conn,
    trace::{AgentEvent, Via},
};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::PathBuf,
    process::{Command, Stdio},
};

/// Sends `tag` with a descriptor, as the runtime does.
pub(crate) fn tag(runtime: &Client, id: u64, call: &str) {
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
        said.iter().any(|said| matches!(said, AgentEvent::IntentEnded { .. })).then_some(said)
    });
    assert!(matches!(said.first(), Some(AgentEvent::Began { moment }) if *moment > 0), "{said:?}");
    let Some(AgentEvent::Intent { id, uid: Some(1000), text, via: Via::Send, .. }) = said.get(1) else {
        panic!("{said:?}")
    };
    assert_eq!(text, "list the files");
    let of_intent = |said: &&AgentEvent| matches!(said, AgentEvent::Call { intent: Some(intent), tool, .. } if intent == id && tool == "bash");
    assert_eq!(said.iter().filter(of_intent).count(), 2);
    let key_of = |call: &str| {
        let key = said.iter().find_map(|said| match said {
            AgentEvent::Call { id, key, .. } if id == call => Some(key.clone()),
            _ => None,
        });
        key.expect("the call is on record")
    };
    let c1 = key_of("c1");
    assert!(c1 != key_of("c2") && c1 != "c1", "a key is the worker's own: {c1}");
    assert!(said.contains(&AgentEvent::Tagged { key: c1.clone(), tag: 42, matched: false }));
    assert_eq!(said.iter().filter(|said| matches!(said, AgentEvent::Tagged { .. })).count(), 1);
    assert!(said.iter().any(
        |said| matches!(said, AgentEvent::CallEnded { key, output, .. } if *key == c1 && output == "a b")
    ));
    let ended = |said: &AgentEvent| matches!(said, AgentEvent::IntentEnded { id: of, error: None, moment: 1.. } if of == id);
    assert!(said.iter().any(ended));
    assert!(
        said.iter()
            .filter(|said| matches!(said, AgentEvent::Refused(r) if r.what == "tag" && r.pid == Some(4711)))
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
            core.said().into_iter().filter(|said| matches!(said, AgentEvent::Refused(_))).collect();
        (refused.len() == 6).then_some(refused)
    });
    assert!(refused.iter().any(
        |said| matches!(said, AgentEvent::Refused(r) if r.container.as_deref() == Some("0123456789ab"))
    ));
    assert!(mock.asked().is_empty());
}

/// Calls the provider's API; the whole answer, head and body.
fn call(core: &Core) -> String {
    call_with(core, true, &json!([{"role": "user", "content": "hello"}]))
}

pub(crate) fn call_with(core: &Core, stream: bool, messages: &Value) -> String {
    let socket = UnixStream::connect(core.dir.path().join("http.sock")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    call_over(socket, "host: agent\r\nx-api-key: sk-theirs\r\nx-session-id: of-client\r\n", stream, messages)
}

pub(crate) fn call_over(
    mut socket: impl Read + Write,
    headers: &str,
    stream: bool,
    messages: &Value,
) -> String {
    let body = json!({"max_tokens": 9, "stream": stream, "messages": messages}).to_string();
    let head = format!("POST /v1/messages HTTP/1.1\r\n{headers}connection: close\r\n");
    // In two writes, as clients do: a refusal hears them out.
    socket.write_all(format!("{head}content-length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
    socket.write_all(body.as_bytes()).unwrap();
    std::io::read_to_string(socket).unwrap()
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
    let refused = |said: &AgentEvent| matches!(said, AgentEvent::Refused(r) if r.what == "http");
    eventually("the refusals", || {
        (core.said().iter().filter(|said| refused(said)).count() == 3).then_some(())
    });
    assert!(
        fs::read_to_string(core.dir.path().join("own/log/http.ndjson")).unwrap().contains("/v1/messages")
    );
}

#[test]
fn on_loopback_whoever_has_the_token_may_call() {
    let mock = Mock::with([says(&["Hello."])]);
    let tcp = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = tcp.local_addr().unwrap().port();
    let core = Core::start_on(&mock, Some(&tcp));
    let path = core.dir.path().join("own/state/http-token");
    let token = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let call = |headers: &str| {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        call_over(socket, headers, true, &json!([{"role": "user", "content": "hello"}]))
    };
    let (host, key) = (format!("host: 127.0.0.1:{port}\r\n"), format!("x-api-key: {}\r\n", token.trim()));
    for (headers, status) in [
        (host.clone(), "401"),
        (format!("{host}x-api-key: sk-theirs\r\n"), "401"),
        (format!("{host}{key}origin: http://127.0.0.1:{port}\r\n"), "403"),
        (format!("host: evil.example:{port}\r\n{key}"), "403"),
    ] {
        let answer = call(&headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
    }
    assert!(mock.asked().is_empty(), "a refused call reached the provider");
    let answer = call(&(host + &key));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Hello."), "{answer}");
    assert_eq!(mock.last().header("x-api-key"), Some(SECRET));
    assert!(
        !core.heard().iter().any(|q| matches!(q, ToCore::Speaker { .. })),
        "of TCP the core knows nothing"
    );
}

#[test]
fn a_token_of_an_earlier_worker_is_worth_nothing() {
    let mock = Mock::with([says(&["Hello."]), says(&["Hello."])]);
    let tcp = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = tcp.local_addr().unwrap().port();
    let earlier = format!("ringfence-{}", "0123456789abcdef".repeat(4));
    let core = Core::start_in(&mock, Some(&tcp), "Anthropic", |own| {
        fs::create_dir(own.join("state")).unwrap();
        let file = own.join("state/http-token");
        fs::write(&file, format!("{earlier}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    });
    let token = fs::read_to_string(core.dir.path().join("own/state/http-token")).unwrap();
    assert_ne!(token.trim(), earlier);
    for (key, status) in [(earlier.as_str(), "401"), (token.trim(), "200")] {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let headers = format!("host: 127.0.0.1:{port}\r\nx-api-key: {key}\r\n");
        let answer = call_over(socket, &headers, true, &json!([{"role": "user", "content": "hello"}]));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{key}: {answer}");
    }
}

#[test]
fn what_a_client_of_the_api_was_asked_and_did_is_reported_as_its_own_word() {
    let whole = json!({
        "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "h2", "name": "read", "input": {"p": 1}}],
    });
    let whole =
        Provided::Whole(200, "content-type: application/json\r\n".into(), whole.to_string().into_bytes());
    let mock = Mock::with([calls(&[("h1", "bash", r#"{"command":"ls"}"#)]), whole, says(&["Done."])]);
    let core = Core::start(&mock);
    core.peer(0, Some(true));
    let asked = json!({"role": "user", "content": format!("list the files, not {SECRET}")});
    let result = |id: &str| {
        let block =
            json!({"type": "tool_result", "tool_use_id": id, "is_error": id == "h2", "content": "a b"});
        json!({"role": "user", "content": [block]})
    };
    let answer = json!({"role": "assistant", "content": "..."});
    for (stream, messages) in [
        (true, json!([asked])),
        (false, json!([asked, answer, result("h1")])),
        (true, json!([asked, answer, result("h1"), answer, result("h2")])),
    ] {
        let answer = call_with(&core, stream, &messages);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let said = eventually("the reports", || {
        let said = core.said();
        said.iter().any(|said| matches!(said, AgentEvent::IntentEnded { .. })).then_some(said)
    });
    let [
        AgentEvent::Began { .. },
        AgentEvent::Intent { id, uid: None, text, via: Via::Http, session: Some(session) },
        AgentEvent::Call {
            key: first_key,
            id: first,
            renamed: None,
            intent: of_first,
            tool,
            server: None,
            input,
            paths: Some(paths),
            moment: began,
        },
        AgentEvent::CallEnded { key: first_ended, is_error: false, output, moment: ended },
        AgentEvent::Call { key: second_key, id: second, intent: of_second, .. },
        AgentEvent::CallEnded { key: second_ended, is_error: true, .. },
        AgentEvent::IntentEnded { id: of_end, error: None, .. },
    ] = said.as_slice()
    else {
        panic!("{said:#?}")
    };
    assert_eq!((text.as_str(), session.as_str()), ("list the files, not [redacted]", "of-client"));
    assert_eq!([of_first, of_second], [&Some(id.clone()), &Some(id.clone())]);
    assert_eq!((id, tool.as_str(), input.as_str()), (of_end, "bash", r#"{"command":"ls"}"#));
    assert!(paths.is_empty(), "a shell's call names no file: {paths:?}");
    assert_eq!((first.as_str(), first_ended, output.as_str()), ("h1", first_key, "a b"));
    assert_eq!((second.as_str(), second_ended), ("h2", second_key));
    assert!(began < ended);
    // One that failed is on record as such, and goes on when it is tried again.
    let refused = Provided::Whole(529, "content-type: application/json\r\n".into(), b"{}".to_vec());
    mock.then([refused, says(&["Done."])]);
    for status in ["529", "200"] {
        let answer = call_with(&core, true, &json!([asked]));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let said = eventually("the reports", || {
        let said = core.said().split_off(7);
        (said.len() == 4).then_some(said)
    });
    let [
        AgentEvent::Intent { id: one, .. },
        AgentEvent::IntentEnded { error: Some(why), .. },
        AgentEvent::Intent { id: again, .. },
        AgentEvent::IntentEnded { id: end, error: None, .. },
    ] = said.as_slice()
    else {
        panic!("{said:#?}")
    };
    assert!(one == again && again == end && one != id, "{said:#?}");
    assert!(why.contains("529"), "{why}");
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
    let limits = fs::read_to_string(proc.join("limits")).unwrap();
    let core_size = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core_size.split_whitespace().nth(5), Some("0"), "{core_size}");
    let memory = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert_eq!(memory.split_whitespace().nth(3), Some("1073741824"), "{memory}");
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
    core.stop();
    let status = eventually("its end", || core.ended());
    assert!(status.success(), "{status}: {}", core.stderr());

    let mut core = Core::start(&mock);
    core.leave();
    let status = eventually("its end", || core.ended());
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
