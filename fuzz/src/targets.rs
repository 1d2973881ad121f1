//! What each target tries: one call, and what must hold after it whatever the bytes were. `tests/corpus.rs` runs
//! the same over the corpus.

use super::{guest, roles};
use crate::auditor_targets as auditor;
use crate::llm_targets as llm;
use ringfence_grant::{
    Grant, NetEntry, Scope,
    gate::{Gate, Registry},
};
use ringfence_names::address::screen;
use ringfence_pins::{LONGEST_DEFINITION, LONGEST_NAME, difference, flags};
use ringfence_redact as redact;
use ringfence_session::{
    conditions::Facts,
    fingerprint,
    line::{self, Kind, Line},
    listing, plain, risk, rough, rules, strict,
};
use ringfence_tools::{
    programs::HostPrograms,
    shell::Shell,
    spawn::{Enforcement, ProcessSpec, Running, Spawner},
    web::{admit, target::Host, target::Target as WebTarget},
};
use ringfence_wire::{audit, frame, mcp as messages, message, runner as tools};
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
};

/// A target by name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them; each has its corpus in `fuzz/corpus/NAME`.
pub const ALL: [Target; 32] = [
    ("line", line),
    ("listing", listing),
    ("classify", classify),
    ("rules", rules),
    ("redact", redact),
    ("runner", runner),
    ("shell", shell),
    ("grant", grant),
    ("wire", wire),
    ("frames", llm::frames),
    ("turn", llm::turn),
    ("sse", llm::sse),
    ("provider", llm::provider),
    ("log", llm::log),
    ("secrets", llm::secrets),
    ("web", web),
    ("records", auditor::records),
    ("journal", auditor::journal),
    ("ledger", auditor::ledger),
    ("roles", roles),
    ("guest", guest),
    ("hook", hook),
    ("dashboard", dashboard),
    ("endpoint", endpoint),
    ("relay", relay),
    ("remote", crate::remote_targets::remote),
    ("oauth", crate::oauth_targets::oauth),
    ("dns", crate::names_targets::dns),
    ("client_hello", crate::names_targets::client_hello),
    ("http_requests", crate::names_targets::http_requests),
    ("proxy", crate::names_targets::proxy),
    ("request_target", crate::names_targets::request_target),
];

/// The line judge: what it accepts reads the same to a parser that knows nothing of it, and what its fast path takes reads
/// the same on the strict one. Every call has a fingerprint, which blanks around it do not change.
pub fn line(data: &[u8]) {
    fast_path(data);
    let Ok(Line::Message(message)) = line::read(data) else { return };
    let value: Value = serde_json::from_slice(data).expect("an accepted message is JSON");
    match message.kind {
        Kind::Call(id, call) => {
            assert_eq!(value["method"], "tools/call");
            assert_eq!(value["params"]["name"], call.name.as_str());
            let arguments: Value = serde_json::from_str(call.arguments).expect("arguments are JSON");
            assert!(arguments.is_object());
            let sent = &value["params"]["arguments"];
            assert!(*sent == arguments || sent.is_null());
            assert!(!value["id"].is_null());
            let params = message.params.expect("a call has params");
            let print = fingerprint::of_params(params).expect("they are an object");
            assert_eq!(fingerprint::of_params(&format!(" {params}\t")), Some(print));
            serde_json::from_str::<Value>(&id.to_json()).expect("an id is JSON");
        }
        Kind::Request(_, method) | Kind::Notification(method) => {
            assert_eq!(value["method"], method.as_str());
            assert_ne!(method, "tools/call");
        }
        Kind::Response(..) => assert!(value.get("method").is_none()),
    }
}

/// Lists of tools: whoever reads the line finds the tools that were judged, no others, and none of those that were taken out;
/// what was taken out leaves all else as it was. No definition is longer than may be, whatever is odd in it.
pub fn listing(data: &[u8]) {
    let _ = line::answers(data);
    let _ = (rough::may_list(data), rough::answered(data), rough::last_id(data), rough::within_line(data));
    let _ = listing::server_info(data);
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let messages = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let found: Vec<usize> =
        messages.iter().filter_map(|message| message["result"]["tools"].as_array().map(Vec::len)).collect();
    assert!(found.is_empty() || (listing::may_be_list(data) && rough::may_list(data)));
    let Ok(lists) = listing::read(data) else { return };
    assert_eq!(found, lists.iter().map(|list| list.tools.len()).collect::<Vec<_>>());
    for tool in lists.iter().flat_map(|list| &list.tools) {
        assert_eq!(data.get(tool.at.clone()), Some(tool.raw.as_bytes()));
        let Ok(definition) = tool.definition() else { continue };
        assert!(definition.name.len() <= LONGEST_NAME && definition.text.len() <= LONGEST_DEFINITION);
        let parsed: Value = serde_json::from_str(tool.raw).expect("a definition is JSON");
        assert_eq!(parsed["name"], definition.name.as_str());
        let found = flags::of(&definition.text, "s");
        assert!(found.len() <= flags::MOST);
        assert!(found.iter().all(|flag| !flag.excerpt.chars().any(char::is_control)));
        assert!(!difference::as_text(&definition.text).is_empty() || definition.text.len() < 64);
    }
    for kept in [0, 1, usize::MAX] {
        let text = listing::without(data, &lists, |_, at| at % 3 != kept);
        let value: Value = serde_json::from_slice(&text).expect("it is JSON as before");
        let messages = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let left: Vec<usize> = messages
            .iter()
            .filter_map(|message| message["result"]["tools"].as_array().map(Vec::len))
            .collect();
        let expected = lists.iter().map(|list| (0..list.tools.len()).filter(|at| at % 3 == kept).count());
        assert_eq!(left, expected.collect::<Vec<_>>());
    }
    assert_eq!(listing::without(data, &lists, |_, _| false), data);
}

fn fast_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(members) = plain::object(text) else { return };
    strict::json(text).expect("the strict path takes it");
    strict::unique(text).expect("and finds nothing twice");
    let strict: strict::Members<'_> = serde_json::from_str(text).expect("an object");
    for (key, value) in members {
        assert_eq!(strict.find(&key), Some(value));
    }
}

/// The classifier and the score, SQL in the arguments included: a tool's name, a line end, its arguments. The same call
/// has the same score, and a first call never a lower one.
pub fn classify(data: &[u8]) {
    let Some((tool, arguments)) = halves(data) else { return };
    let Ok(arguments) = serde_json::from_str::<Value>(arguments) else { return };
    let (again, first) = (risk::assess(tool, &arguments, false), risk::assess(tool, &arguments, true));
    let risk = risk::assess(tool, &arguments, false);
    assert!(risk.score <= 100 && first.score >= risk.score);
    assert_eq!((risk.score, risk.operation), (again.score, again.operation));
    assert_eq!(risk.reasons, again.reasons);
}

/// The rule parser: a file that is accepted judges any call at least as strictly as no rules at all.
pub fn rules(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(rules) = rules::parse(text) else { return };
    for (server, tool) in [("db", "delete_x"), ("", ""), ("fs", "read_file")] {
        let risk = risk::assess(tool, &Value::Null, false);
        let judgement = rules::judge(&rules, Facts::new(server, tool, &risk));
        assert!(judgement.action >= rules::action_of_score(risk.score));
        assert!(judgement.rules.iter().all(|name| rules.iter().any(|rule| rule.name == *name)));
    }
    let written = rules::read(text).expect("what compiles can be read");
    assert_eq!(written.len(), rules.len());
}

/// Redaction: JSON stays JSON, and nothing of a token's shape is left.
pub fn redact(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let redacted = redact::redact(text);
    if serde_json::from_str::<Value>(text).is_ok() {
        assert!(serde_json::from_str::<Value>(&redacted).is_ok(), "{text:?} became {redacted:?}");
    }
    let _ = redact::redact(&redacted);
}

/// The tool runner's requests, of both protocols: what is read of them is in them.
pub fn runner(data: &[u8]) {
    let Some(first) = data.first() else { return };
    if tools::Protocol::of(*first) == tools::Protocol::V1 {
        let Ok(Some(line)) = tools::line(data) else { return };
        let mut request = line.words.join(&b'\t');
        request.push(b'\n');
        assert!(data.starts_with(&request) && !line.words[0].is_empty() && !request.contains(&0));
        // Where the bytes are cut on their way changes nothing.
        assert!((0..request.len()).all(|end| matches!(tools::line(&data[..end]), Ok(None))));
        return;
    }
    let mut rest = data;
    while let Ok(Some((message, taken))) = tools::message::<tools::Request>(rest) {
        assert!(taken > frame::HEADER && taken <= frame::HEADER + tools::MAX_REQUEST);
        let mut again = Vec::new();
        frame::write_message(&mut again, &message).expect("what was read can be written");
        let read = tools::message::<tools::Request>(&again);
        assert!(matches!(read, Ok(Some((same, _))) if same == message) || again.len() > tools::MAX_REQUEST);
        rest = &rest[taken..];
    }
    let _ = tools::message::<tools::Answer>(data);
}

/// Grants as they are written: one that is accepted is written and read back the same, lies between nothing and
/// everything, and meets another in something below both. Two grants stand behind one another, a line end between.
pub fn grant(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = |text: &str| serde_json::from_str::<Grant>(text).ok();
    let grants: Vec<Grant> = text.lines().take(2).filter_map(read).collect();
    for grant in &grants {
        let written = serde_json::to_string(grant).expect("a grant can be written");
        assert_eq!(read(&written).as_ref(), Some(grant), "{written}");
        assert!(Grant::bottom().leq(grant) && grant.leq(&Grant::top()));
        assert_eq!(grant.meet(grant), *grant);
    }
    if let [one, other] = grants.as_slice() {
        let met = one.meet(other);
        assert!(met.leq(one) && met.leq(other));
        assert_eq!(met, other.meet(one));
        let written = serde_json::to_string(&met).expect("a grant can be written");
        assert_eq!(read(&written), Some(met), "{written}");
    }
}

/// Messages between roles, and the sockets that carry them: see [`roles::roles`].
pub fn roles(data: &[u8]) {
    roles::roles(data);
}

/// Requests to the dashboard: see `web` in `ringfence-auditor`.
pub fn dashboard(data: &[u8]) {
    auditor::web::dashboard(data);
}

/// Requests to an agent's HTTP endpoint: see `http` in `ringfence-llm-worker`.
pub fn endpoint(data: &[u8]) {
    llm::http::endpoint(data);
}

/// A provider's answer on its way to a client: see `http` in `ringfence-llm-worker`.
pub fn relay(data: &[u8]) {
    llm::http::relay(data);
}

/// What agents say to their hooks: see [`guest::hook`].
pub fn hook(data: &[u8]) {
    guest::hook(data);
}

/// What a runtime receives from the daemon: see [`guest::guest`].
pub fn guest(data: &[u8]) {
    guest::guest(data);
}

/// Frames and messages between the roles.
pub fn wire(data: &[u8]) {
    let mut rest = data;
    while let Ok(body) = frame::read_frame(&mut rest, 1 << 16) {
        assert!(body.len() <= 1 << 16);
        if let Ok(audit::CoreMessage::Records { records, .. }) = audit::CoreMessage::parse(&body) {
            assert!(records.iter().map(|record| record.len()).sum::<usize>() <= body.len());
        }
        let _ = audit::Answer::parse(&body);
        let _ = serde_json::from_slice::<messages::McpRequest>(&body);
        let _ = serde_json::from_slice::<messages::SessionUpdate>(&body);
        let _ = serde_json::from_slice::<messages::SessionOrder>(&body);
        let _ = serde_json::from_slice::<message::Failure>(&body);
        auditor::told(&body);
    }
}

/// `web_fetch`, up to where it would look a name up: a URL, a line end, where it redirects to. Whatever they are, what is
/// made of them is a host that a grant can name, reads back as itself, and is no address that is not public unless that is
/// granted by itself.
pub fn web(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (url, location) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(first) = WebTarget::parse(url) else { return };
    let second = first.follow(location).ok();
    for target in [Some(first), second].into_iter().flatten() {
        let shown = target.url.as_str();
        assert_eq!(WebTarget::parse(shown).as_ref(), Ok(&target));
        assert!(matches!(target.url.scheme(), "http" | "https") && target.port > 0, "{shown}");
        assert!(target.url.username().is_empty() && target.url.password().is_none(), "{shown}");
        let entry: NetEntry = target.entry().to_string().parse().expect("an entry");
        assert_eq!(entry, target.entry(), "{shown}");
        let Host::Addr(addr) = target.host else { continue };
        let admitted = admit::address(&Scope::All, &target, addr);
        assert_eq!(admitted.is_ok(), screen(addr).is_ok() && matches!(target.port, 80 | 443), "{shown}");
        let named = Scope::only([entry]);
        assert_eq!(admit::address(&named, &target, addr), Ok(addr.to_canonical()), "{shown}");
        assert!(!addr.is_loopback() || admitted.is_err(), "{shown}");
    }
}

/// The confined shell, up to where a process would start: whatever the script, only granted programs come so far, with
/// nothing of this process's environment; no glob finds what may not be read, and no file appears but where writing is
/// granted.
pub fn shell(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let dir = shell_dir();
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let siblings = dir.with_file_name("*");
    let granted: Grant = serde_json::from_value(json!({
        "exec": {"only": ["cat", "true"]},
        // The folder itself, but not what is in it; that by name.
        "fs_read": {"only": [[siblings, at("")], at("a.txt"), at("b.txt"), at("out")]},
        "fs_write": {"only": [at("out")]},
        "net": {"only": []},
        "max_calls": "unlimited",
        "valid_for_generation": "all",
    }))
    .expect("a grant");
    let path = OsStr::new("/usr/bin:/bin");
    let shell =
        Shell::new(&dir, path, Arc::new(Judge { dir: dir.clone() })).with_variable("HOME", "out/a b*");
    let registry = Registry::new(Gate::new(HostPrograms::on_path(path))).with(shell);
    let call = registry.dispatch("shell", json!({"script": text}), &granted);
    let answer = pin!(call).poll(&mut Context::from_waker(Waker::noop()));
    assert!(answer.is_ready(), "a call blocks until it is done");
    assert_eq!(names(&dir), ["a.txt", "b.txt", "link", "out", "secret"], "made by {text:?}");
    assert_eq!(names(&dir.join("secret")), [SECRET], "made by {text:?}");
    assert!(fs::read(dir.join("a.txt")).expect("a file") == b"kept", "written by {text:?}");
    fs::remove_dir_all(&dir).expect("the folder");
}

/// A name that no script guesses.
const SECRET: &str = "k7Qz-m2Xw";

/// A new folder with files that may be read, one that may be written, one that may be neither, and a link to that.
fn shell_dir() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("ringfence-fuzz-{}-{count}", std::process::id()));
    for folder in ["out", "secret"] {
        fs::create_dir_all(dir.join(folder)).expect("a folder");
    }
    for file in ["a.txt", "b.txt", &format!("secret/{SECRET}")] {
        fs::write(dir.join(file), "kept").expect("a file");
    }
    std::os::unix::fs::symlink("secret", dir.join("link")).expect("a link");
    dir.canonicalize().expect("the folder")
}

/// Starts nothing, and looks at what it should have started.
struct Judge {
    dir: PathBuf,
}

impl Spawner for Judge {
    fn spawn(&self, _: &Grant, spec: ProcessSpec) -> io::Result<Box<dyn Running>> {
        let name = spec.program.file_name().and_then(OsStr::to_str);
        assert!(spec.program.is_absolute() && matches!(name, Some("cat" | "true")), "{spec:?}");
        assert!(!spec.program.starts_with(&self.dir), "{spec:?}");
        assert!(spec.args.iter().all(|arg| !arg.as_encoded_bytes().contains(&0)));
        assert!(spec.args.iter().all(|arg| !arg.to_string_lossy().contains(SECRET)), "{spec:?}");
        assert!(spec.env.iter().all(|(name, _)| !name.to_string_lossy().starts_with("CARGO")));
        assert_eq!(spec.cwd, self.dir);
        Err(io::ErrorKind::Other.into())
    }

    fn within(&self, _: &Grant, work: &mut (dyn FnMut() + Send)) -> io::Result<()> {
        work();
        Ok(())
    }

    fn enforcement(&self, granted: &Grant) -> Enforcement {
        Enforcement::by_gate(granted)
    }
}

/// The names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn halves(data: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(data).ok()?.split_once('\n')
}
