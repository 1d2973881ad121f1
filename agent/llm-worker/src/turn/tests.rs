//! Tests of turns with remote tools, over a scripted provider on loopback.

use super::*;
use crate::{
    core_client::CoreClient,
    frame::{Counters, FrameReader, writer},
    message::{Block, raw},
    remote::Later,
    samples,
};
use ringfence_policy::agents::registry::{Mcp, ProviderKind};
use ringfence_wire::{agent::ToCore, trace::AgentEvent};
use serde_json::{Value, json, value::RawValue};
use std::{sync::Mutex, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::{TcpListener, UnixStream},
    sync::Notify,
};

mod calls;
mod usage;

/// Servers whose tools say what they were called with.
#[derive(Default)]
struct Servers {
    tools: Vec<(&'static str, &'static str)>,
    called: Mutex<Vec<String>>,
}

impl RemoteTools for Servers {
    fn list(&self) -> Later<'_, Result<Vec<RemoteTool>, String>> {
        let tool = |name: &str| Tool {
            name: name.to_owned(),
            description: format!("does {name}"),
            parameters: raw(&match name {
                "either" => json!({ "type": "object", "oneOf": [{ "properties": { "a": {} } }] }),
                "text" => json!({ "type": "string" }),
                _ => json!({ "type": "object" }),
            }),
            whole: None,
        };
        let tools = self
            .tools
            .iter()
            .map(|(server, name)| RemoteTool { server: (*server).to_owned(), tool: Arc::new(tool(name)) });
        let tools = tools.collect();
        Box::pin(async move { Ok(tools) })
    }

    fn call<'a>(&'a self, server: &'a str, tool: &'a str, input: &'a RawValue) -> Later<'a, RemoteResult> {
        Box::pin(async move {
            self.called.lock().unwrap().push(format!("{server}.{tool}"));
            // The first of several is the slowest.
            let wait = 30_u64.saturating_sub(10 * self.called.lock().unwrap().len() as u64);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            RemoteResult {
                content: vec![Block::text(&format!("{tool} {input}")), Block::text("key sk-secret-token")],
                is_error: tool == "fails",
            }
        })
    }

    fn is_stale(&self) -> bool {
        false
    }
}

/// Where an answer of the provider stands still until [`Lab::go_on`] is told.
const PAUSE: &str = "PAUSE";

/// A provider that gives these answers, and what it was asked.
async fn provider(answers: Vec<String>, go_on: Arc<Notify>) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut answers = answers.into_iter();
        while let Ok((mut stream, _)) = listener.accept().await {
            loop {
                let mut request = Vec::new();
                let body = loop {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        break None;
                    }
                    let text = String::from_utf8_lossy(&request);
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length =
                        head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
                    if length == Some(body.len()) {
                        break Some(body.to_owned());
                    }
                };
                let Some(body) = body else { break };
                seen.lock().unwrap().push(serde_json::from_str(&body).unwrap());
                let answer = answers.next().unwrap_or_default();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n",
                    answer.replace(PAUSE, "").len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                for (at, piece) in answer.split(PAUSE).enumerate() {
                    if at > 0 {
                        go_on.notified().await;
                    }
                    stream.write_all(piece.as_bytes()).await.unwrap();
                }
            }
        }
    });
    (url, asked)
}

/// Anthropic calls these tools, or says that it is done.
fn answer(calls: &[(&str, &str)]) -> String {
    let blocks =
        calls.iter().map(|(id, name)| json!({ "type": "tool_use", "id": id, "name": name, "input": {} }));
    let blocks: Vec<Value> =
        if calls.is_empty() { vec![json!({ "type": "text", "text": "done" })] } else { blocks.collect() };
    let mut events: Vec<Value> = blocks
        .into_iter()
        .enumerate()
        .map(
            |(index, block)| json!({ "type": "content_block_start", "index": index, "content_block": block }),
        )
        .collect();
    let reason = if calls.is_empty() { "end_turn" } else { "tool_use" };
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": reason } }));
    events.push(json!({ "type": "message_stop" }));
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

struct Lab {
    turns: Turns,
    servers: Arc<Servers>,
    asked: Arc<Mutex<Vec<Value>>>,
    go_on: Arc<Notify>,
    runtime: Peer,
    heard: FrameReader<DuplexStream>,
    epoch: u64,
    _dir: tempfile::TempDir,
}

impl Lab {
    async fn new(
        tools: &[(&'static str, &'static str)],
        allowed: Option<&[&str]>,
        answers: Vec<String>,
    ) -> Self {
        Self::of(ProviderKind::Anthropic, tools, allowed, answers).await
    }

    async fn of(
        kind: ProviderKind,
        tools: &[(&'static str, &'static str)],
        allowed: Option<&[&str]>,
        answers: Vec<String>,
    ) -> Self {
        let go_on = Arc::<Notify>::default();
        let (url, asked) = provider(answers, Arc::clone(&go_on)).await;
        let mcp = |name: &str| Mcp {
            name: name.into(),
            url: "https://example.org".parse().unwrap(),
            auth_token: None,
            tools: allowed.map(|tools| tools.iter().map(|t| (*t).to_owned()).collect()),
            required: false,
        };
        let mut config = samples::config();
        config.llm = Llm {
            provider: kind,
            base_url: Some(url.parse().unwrap()),
            prompt_cache: false,
            max_mcp_rounds: 3,
            max_rounds: 10,
            ..config.llm
        };
        config.mcp = vec![mcp("one"), mcp("two")];
        let dir = tempfile::tempdir().unwrap();
        let servers = Arc::new(Servers { tools: tools.to_vec(), ..Servers::default() });
        let parts = Parts {
            provider: Arc::new(Provider::new(&config.llm, None, None).unwrap()),
            config: Arc::new(config),
            remote: Some(Arc::clone(&servers) as Arc<dyn RemoteTools>),
            redactor: Arc::new(Redactor::new([&"sk-secret-token".to_owned().into()])),
            log: dir.path().join("logs/conversation.ndjson"),
        };
        let conversation = parts.open().unwrap();
        let (near, far) = tokio::io::duplex(1 << 20);
        let (runtime, writing) = writer(near, &Arc::new(Counters::default()));
        tokio::spawn(writing);
        Self {
            turns: Turns::new(parts, conversation),
            servers,
            asked,
            go_on,
            runtime,
            heard: FrameReader::new(far),
            epoch: 0,
            _dir: dir,
        }
    }

    /// A turn that the runtime asks for.
    fn job(&mut self, params: Value) -> Job {
        self.epoch += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.epoch, "method": "turn", "params": params }).to_string();
        let request = rpc::parse(request.as_bytes()).unwrap();
        Job {
            epoch: self.epoch,
            id: request.id.clone().unwrap(),
            params: rpc::params(&request).unwrap(),
            runtime: self.runtime.clone(),
            subscriber: None,
            intent: None,
            last: false,
            cancel: CancellationToken::new(),
            answered: Arc::default(),
        }
    }

    /// The answer to a turn, and everything that streamed before it.
    async fn turn(&mut self, params: Value) -> (Value, String) {
        let job = self.job(params);
        self.turns.job(job).await;
        let mut streamed = String::new();
        loop {
            let frame = self.heard.next(Some(Duration::from_secs(120))).await.unwrap();
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            if frame.get("id").is_some() {
                return (frame, streamed);
            }
            streamed += &frame.to_string();
        }
    }

    /// Contents of the last message that the provider was sent.
    fn sent(&self) -> Value {
        let asked = self.asked.lock().unwrap();
        asked.last().unwrap()["messages"].as_array().unwrap().last().unwrap()["content"].clone()
    }
}

fn says(text: &str) -> Value {
    json!({ "role": "user", "content": [{ "type": "text", "text": text }] })
}

fn result(id: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": [{ "type": "text", "text": "local" }] })
}

fn local(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "name": name, "parameters": { "type": "object" } })).collect()
}

#[tokio::test]
async fn mixed_calls_go_back_in_their_order() {
    let calls = [("l1", "bash"), ("m1", "search"), ("l2", "bash"), ("m2", "fails")];
    let mut lab =
        Lab::new(&[("one", "search"), ("two", "fails")], None, vec![answer(&calls), answer(&[])]).await;
    let (answer, streamed) = lab.turn(json!({ "tools": local(&["bash"]), "messages": [says("x")] })).await;
    let ids: Vec<&Value> =
        answer["result"]["tool_calls"].as_array().unwrap().iter().map(|c| &c["id"]).collect();
    assert_eq!(ids, ["l1", "l2"]);
    assert!(
        streamed.contains("l1") && !streamed.contains("m1") && !streamed.contains("search"),
        "{streamed}"
    );
    // However the runtime orders its own.
    let (answer, _) = lab.turn(json!({ "messages": [result("l2"), result("l1")] })).await;
    assert_eq!(answer["result"]["content"][0]["text"], "done");
    let remote = |tool: &str| json!([{ "type": "text", "text": format!("{tool} {{}}") }, { "type": "text", "text": "key [redacted]" }]);
    let local = json!([{ "type": "text", "text": "local" }]);
    assert_eq!(
        lab.sent(),
        json!([
            { "type": "tool_result", "tool_use_id": "l1", "content": local },
            { "type": "tool_result", "tool_use_id": "m1", "content": remote("search") },
            { "type": "tool_result", "tool_use_id": "l2", "content": local },
            { "type": "tool_result", "tool_use_id": "m2", "content": remote("fails"), "is_error": true },
        ])
    );
}

#[tokio::test]
async fn nothing_is_answered_before_the_disk_has_it() {
    use std::{fs::File, io::Read, os::fd::OwnedFd};
    let mut lab = Lab::new(&[], None, vec![answer(&[]), answer(&[("l1", "bash")]), answer(&[])]).await;
    let disk = File::options().append(true).open(&lab.turns.parts.log).unwrap();
    // A pipe takes what is written, and cannot be synced: a disk that breaks between the two.
    let (mut read, write) = std::io::pipe().unwrap();
    lab.turns.conversation.write_to(File::from(OwnedFd::from(write)));
    for what in ["x", "y"] {
        let (refused, streamed) = lab.turn(json!({ "messages": [says(what)] })).await;
        assert_eq!(refused["error"]["code"], INTERNAL, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("cannot be logged"), "{refused}");
        assert!(!streamed.is_empty(), "the provider had answered");
    }
    // The control: with a disk that works it is answered.
    lab.turns.conversation.write_to(disk);
    let (fine, _) = lab.turn(json!({ "messages": [says("z")] })).await;
    assert_eq!(fine["result"]["stop_reason"], "end_turn", "{fine}");
    let mut written = String::new();
    read.read_to_string(&mut written).unwrap();
    assert_eq!(written.lines().count(), 4, "it was written, and only the sync failed: {written}");
}

#[tokio::test]
async fn remote_calls_alone_do_not_reach_the_runtime() {
    let calls = [("m1", "search"), ("m2", "fetch")];
    let mut lab =
        Lab::new(&[("one", "search"), ("two", "fetch")], None, vec![answer(&calls), answer(&[])]).await;
    let (answer, streamed) = lab.turn(json!({ "messages": [says("x")] })).await;
    assert_eq!(
        answer["result"],
        json!({ "stop_reason": "end_turn", "content": [{ "type": "text", "text": "done" }] })
    );
    assert!(!streamed.contains("tool_use"), "{streamed}");
    let sent = lab.sent();
    assert_eq!([&sent[0]["tool_use_id"], &sent[1]["tool_use_id"]], ["m1", "m2"]);
    let tools = lab.asked.lock().unwrap()[0]["tools"].clone();
    assert_eq!(
        tools[1],
        json!({ "name": "fetch", "description": "does fetch", "input_schema": { "type": "object" } })
    );
}

#[tokio::test]
async fn a_schema_that_the_provider_refuses_does_not_fail_the_turn() {
    let tools = [("one", "search"), ("one", "either"), ("two", "text")];
    let mut lab = Lab::new(&tools, None, vec![answer(&[("m1", "either")]), answer(&[])]).await;
    let (answer, _) = lab.turn(json!({ "messages": [says("x")] })).await;
    assert_eq!(answer["result"]["stop_reason"], "end_turn", "{answer}");
    let sent = lab.asked.lock().unwrap()[0]["tools"].clone();
    let schemas: Vec<(&Value, &Value)> =
        sent.as_array().unwrap().iter().map(|tool| (&tool["name"], &tool["input_schema"])).collect();
    let either = json!({ "type": "object", "properties": { "a": {} } });
    assert_eq!(
        schemas,
        [(&json!("search"), &json!({ "type": "object" })), (&json!("either"), &either)],
        "one is rewritten, one is left out"
    );
    assert_eq!(*lab.servers.called.lock().unwrap(), ["one.either"]);
}

#[tokio::test]
async fn rounds_of_remote_calls_are_capped() {
    let again = || answer(&[("m", "search")]);
    let answers =
        vec![again().replace("\"m\"", "\"m1\""), again().replace("\"m\"", "\"m2\""), again(), answer(&[])];
    let mut lab = Lab::new(&[("one", "search")], None, answers).await;
    let (capped, _) = lab.turn(json!({ "messages": [says("x")] })).await;
    assert_eq!(capped["result"], json!({ "stop_reason": "max_iterations", "content": [] }));
    let (next, _) = lab.turn(json!({ "messages": [says("y")] })).await;
    assert_eq!(next["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn two_tools_of_one_name_are_refused_with_both_named() {
    let mut lab = Lab::new(&[("one", "bash"), ("two", "fetch")], None, vec![answer(&[])]).await;
    let (refused, _) = lab.turn(json!({ "tools": local(&["bash"]), "messages": [says("x")] })).await;
    assert_eq!(refused["error"]["code"], -32602);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("the runtime") && message.contains("\"one\"") && message.contains("\"bash\""),
        "{message}"
    );
    let (fine, _) = lab.turn(json!({ "tools": local(&["other"]), "messages": [says("x")] })).await;
    assert_eq!(fine["result"]["stop_reason"], "end_turn");
    let mut lab = Lab::new(&[("one", "fetch"), ("two", "fetch")], None, Vec::new()).await;
    let (refused, _) = lab.turn(json!({ "messages": [says("x")] })).await;
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("\"one\"") && message.contains("\"two\""), "{message}");
}

#[tokio::test]
async fn a_tool_that_is_not_allowed_is_neither_listed_nor_called() {
    let answers = vec![answer(&[("m1", "drop_database")]), answer(&[])];
    let mut lab = Lab::new(&[("one", "drop_database"), ("one", "search")], Some(&["search"]), answers).await;
    let (answer, _) = lab.turn(json!({ "tools": local(&["bash"]), "messages": [says("x")] })).await;
    let asked = lab.asked.lock().unwrap()[0].to_string();
    assert!(asked.contains("search") && !asked.contains("drop_database"), "{asked}");
    // The model made it up. The runtime has no such tool, and says so.
    assert_eq!(answer["result"]["tool_calls"][0]["name"], "drop_database");
    assert!(lab.servers.called.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_call_begins_before_the_runtime_hears_of_it_and_ends_before_the_model_does() {
    let mut first = answer(&[("l1", "bash")]);
    let begins = first.find("\n\n").unwrap() + 2;
    first.insert_str(begins, PAUSE);
    let mut lab = Lab::new(&[], None, vec![first, format!("{PAUSE}{}", answer(&[]))]).await;
    let (near, far) = UnixStream::pair().unwrap();
    let host = CoreClient::new(near, CancellationToken::new(), CancellationToken::new());
    lab.turns.reporter = Reporter::new(host, Arc::default(), true);

    // The runtime begins the call as soon as its name has come, while the provider still talks.
    let job = lab.job(json!({ "tools": local(&["bash"]), "messages": [says("x")] }));
    let Lab { turns, heard, go_on, .. } = &mut lab;
    let runtime = async {
        let mut began = None;
        loop {
            let frame = heard.next(Some(Duration::from_secs(120))).await.unwrap();
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            if frame.get("id").is_some() {
                break began.expect("it heard of the call before the answer");
            }
            if began.is_none() && frame.to_string().contains("l1") {
                began = Some(report::now());
                go_on.notify_one();
            }
        }
    };
    let (_, began) = tokio::join!(turns.job(job), runtime);

    // The model hears the result, and goes on when it wants to.
    let job = lab.job(json!({ "messages": [result("l1")] }));
    let Lab { turns, go_on, asked, .. } = &mut lab;
    let model = async {
        while asked.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let ended = report::now();
        go_on.notify_one();
        ended
    };
    let (_, ended) = tokio::join!(turns.job(job), model);

    let mut core = FrameReader::new(far);
    let mut moments = Vec::new();
    while moments.len() < 2 {
        let frame = core.next(Some(Duration::from_secs(120))).await.unwrap();
        let ToCore::Report(json) = serde_json::from_slice(&frame).unwrap() else { continue };
        match serde_json::from_str(json.get()).unwrap() {
            AgentEvent::Call { moment, .. } | AgentEvent::CallEnded { moment, .. } => moments.push(moment),
            _ => {}
        }
    }
    assert!(moments[0] < began && began < moments[1] && moments[1] < ended, "{moments:?} {began} {ended}");
}
