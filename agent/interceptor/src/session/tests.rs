//! A session with memory at both ends.

mod lists;

use super::{Decision, Options, Report, Session};
use crate::seen::SeenTools;
use ringfence_session::{
    journal::{Entry, Journal, Reader},
    line::Id,
    rows::ingest::{Fold, Row},
    rules,
};
use ringfence_wire::tool_call::{Outcome, Recorded};
use std::{
    fs::File,
    io::{self, BufReader, Write},
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

#[derive(Clone, Default)]
struct End(Arc<Mutex<Vec<u8>>>);

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("end").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End {
    fn text(&self) -> String {
        String::from_utf8(self.bytes()).expect("text")
    }

    fn bytes(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().expect("end"))
    }
}

struct Rig {
    session: Session<End, End>,
    server: End,
    client: End,
    reports: mpsc::Receiver<Report>,
    journal: PathBuf,
    _folder: tempfile::TempDir,
}

fn options() -> Options {
    Options {
        server_name: "fs".to_owned(),
        allow_unrecorded: false,
        unrecorded: None,
        store_raw: false,
        lenient: false,
        approval_timeout: Duration::from_secs(50),
        identity: crate::identity::StartIdentity::of(&["i"], &[]),
        max_held_bytes: 1 << 20,
    }
}

fn rig(change: impl FnOnce(&mut Options)) -> Rig {
    let mut options = options();
    change(&mut options);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let journal = Journal::create(&path).expect("a journal");
    let rules = rules::parse(include_str!("../../../../profiles/rules.yaml")).expect("rules");
    let seen = SeenTools::of(&["read_file", "delete_file", "create_x", "drop_all"]);
    let (server, client) = (End::default(), End::default());
    let (sender, reports) = mpsc::sync_channel(64);
    let session = Session::new(options, journal, rules, seen, (server.clone(), client.clone()), sender);
    Rig { session, server, client, reports, journal: path, _folder: folder }
}

impl Rig {
    fn journal(&self) -> Vec<Entry> {
        let mut reader = Reader::new(BufReader::new(File::open(&self.journal).expect("the journal")));
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry().expect("an unbroken chain") {
            entries.push(entry);
        }
        entries
    }

    fn call(&self, id: &str, tool: &str) -> String {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","_meta":{{"progressToken":"p"}}}}}}"#
        );
        self.session.client_lines(format!("{line}\n").as_bytes()).expect("both ends");
        line + "\n"
    }
}

#[test]
fn bytes_pass_as_they_came() {
    let rig = rig(|_| ());
    let lines = [
        "{\"jsonrpc\" : \"2.0\",\t\"id\":1,\"method\":\"initialize\",\"params\":{}}\r\n",
        "\n",
        "  \r\n",
        "{\"method\":\"notifications/initialized\"}\n",
        "{\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"read_file\",\"arguments\":{\"a\":1.0e0}}}\n",
        "{\"id\":3,\"method\":\"ping\"}",
    ];
    for line in lines {
        rig.session.client_lines(line.as_bytes()).expect("both ends");
    }
    assert_eq!(rig.server.text(), lines.concat());
    let from_server = ["not json\n", "{\"id\":1,\"result\":{}}\n", "{\"x\":\"\u{2028}\"}\n", "{} {}\n"];
    for line in from_server {
        rig.session.server_lines(line.as_bytes()).expect("both ends");
    }
    assert_eq!(rig.client.text(), from_server.concat());
    assert_eq!(rig.journal().len(), 4 + 4, "blank lines are nothing");
}

#[test]
fn a_call_is_on_record_before_it_is_forwarded() {
    let rig = rig(|_| ());
    let line = rig.call("7", "create_x");
    assert_eq!(rig.server.text(), line);
    let Some(Entry::Message { calls, .. }) = rig.journal().pop() else { panic!("no message") };
    assert_eq!((calls[0].tool.as_str(), calls[0].action.as_str(), calls[0].score), ("create_x", "flag", 20));
}

#[test]
fn what_the_server_says_of_its_tools_raises_their_score_and_never_lowers_it() {
    let rig = rig(|_| ());
    let score = |tool: &str| {
        rig.call("1", tool);
        let Some(Entry::Message { calls, .. }) = rig.journal().pop() else { panic!("no message") };
        (calls[0].operation.as_str().to_owned(), calls[0].score)
    };
    assert_eq!(score("create_x"), ("write".to_owned(), 20), "the control");
    let list = r#"{"id":0,"result":{"tools":[{"name":"create_x","annotations":{"destructiveHint":true}},{"name":"read_file","annotations":{"readOnlyHint":false}}]}}"#;
    rig.session.server_lines(format!("{list}\n").as_bytes()).expect("both ends");
    assert_eq!(score("create_x"), ("write".to_owned(), 40));
    assert_eq!(score("read_file"), ("write".to_owned(), 20));
    let praise = r#"{"id":0,"result":{"tools":[{"name":"create_x","annotations":{"readOnlyHint":true,"destructiveHint":false}}]}}"#;
    rig.session.server_lines(format!("{praise}\n").as_bytes()).expect("both ends");
    assert_eq!(score("create_x"), ("write".to_owned(), 40));
}

#[test]
fn a_paused_call_waits_and_is_decided_once() {
    let rig = rig(|_| ());
    let line = rig.call("1", "delete_file");
    rig.call("2", "read_file");
    let forwarded = rig.server.text();
    assert!(
        !forwarded.contains("delete_file") && forwarded.contains("read_file"),
        "others are not held back"
    );
    let call = rig.session.waiting().pop().expect("it waits");
    assert!(rig.reports.try_iter().any(|report| report == Report::Paused(call.clone())));
    assert!(rig.session.decide(&call, &Decision::Approved("a person".into())).expect("both ends"));
    assert_eq!(rig.server.text(), line, "the very bytes");
    assert!(!rig.session.decide(&call, &Decision::Approved("again".into())).expect("both ends"));
    assert_eq!(rig.server.text() + &rig.client.text(), "");
}

#[test]
fn an_answer_that_is_too_long_to_be_read_is_an_answer() {
    let long = "x".repeat(4096);
    for (start, end, answered) in [
        (format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"text":"{long}"#), "\"}}\n", true),
        (format!(r#"{{"jsonrpc":"2.0","error":{{}},"id":7,"x":"{long}"#), "\"}\n", true),
        (format!(r#"{{"result":{{"text":"{long}"#), "\"},\"id\":7}\n", true),
        (format!(r#"{{"jsonrpc":"2.0","id":8,"result":{{"text":"{long}"#), "\"}}\n", false),
        (format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ping","params":{{"text":"{long}"#), "\"}}\n", false),
        (format!(r#"{{"method":"ping","params":{{"text":"{long}"#), "\"},\"id\":7}\n", false),
        (format!(r#"{{"result":{{"text":"{long}"#), "\"},\"x\":{\"id\":7}}\n", false),
        (long.clone(), "{\"id\":7}\n", false),
    ] {
        let rig = rig(|_| ());
        rig.call("7", "create_x");
        let mut bytes = start.clone().into_bytes();
        bytes.push(0xe2);
        let said = rig.says_at_length(&bytes, end.as_bytes());
        assert_eq!(super::lock(&rig.session.outstanding).has(&Id::Number("7".into())), !answered, "{start}");
        let mut fold = Fold::default();
        let rows: Vec<Row> = rig.journal().into_iter().flat_map(|entry| fold.next(entry)).collect();
        let answers = rows.iter().filter(|row| matches!(row, Row::Answer { .. })).count();
        assert_eq!(answers, usize::from(answered), "{start}");
        let kept = |row: &Row| matches!(row, Row::Message(message) if message.raw.contains("xxx"));
        assert!(!rows.iter().any(kept), "{start}");
        let is_log = start == long;
        assert_eq!(said.contains("xxx"), is_log, "{start}");
        assert_eq!(said.contains(r#""id":7,"error""#), answered, "{said}");
    }
}

#[test]
fn denied_late_blocked_and_cancelled_calls_never_reach_the_server() {
    let rig = rig(|options| options.approval_timeout = Duration::ZERO);
    rig.call("\"a\"", "delete_file");
    let call = rig.session.waiting().pop().expect("it waits");
    rig.session.decide(&call, &Decision::Denied("me".into())).expect("both ends");
    let answer: serde_json::Value = serde_json::from_str(&rig.client.text()).expect("an answer");
    assert_eq!((answer["id"].as_str(), answer["result"]["isError"].as_bool()), (Some("a"), Some(true)));

    rig.call("2", "delete_file");
    rig.session.tick().expect("both ends");
    assert!(
        !rig.client.text().contains("nobody approved"),
        "a decision of the last moment may be on its way"
    );
    std::thread::sleep(super::GRACE);
    rig.session.tick().expect("both ends");
    assert!(rig.client.text().contains("nobody approved"));

    let line = r#"{"id":3,"method":"tools/call","params":{"name":"drop_all","arguments":{"sql":"DELETE FROM t","password":"hunter2"}}}"#;
    rig.session.client_lines(line.as_bytes()).expect("both ends");
    assert!(rig.client.text().contains("block_bulk_destructive"));

    rig.call("4", "delete_file");
    let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":4}}"#;
    rig.session.client_lines(cancel.as_bytes()).expect("both ends");
    assert!(rig.session.waiting().is_empty());
    rig.call("5", "delete_file");
    rig.session.client_done();

    assert_eq!(rig.server.text(), "");
    let outcomes: Vec<Recorded<Outcome>> = rig
        .journal()
        .into_iter()
        .filter_map(|entry| if let Entry::Decision { outcome, .. } = entry { Some(outcome) } else { None })
        .collect();
    let expected = [Outcome::Denied, Outcome::Timeout, Outcome::Cancelled, Outcome::Ended];
    assert_eq!(outcomes, expected.map(Recorded::Known));
    let text = std::fs::read_to_string(&rig.journal).expect("the journal");
    assert!(text.contains("[redacted]") && !text.contains("hunter2"));
}

#[test]
fn a_cancel_of_something_else_goes_on() {
    let rig = rig(|_| ());
    rig.call("4", "delete_file");
    let cancel = "{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"4\"}}\n";
    rig.session.client_lines(cancel.as_bytes()).expect("both ends");
    assert_eq!(rig.server.text(), cancel);
    assert_eq!(rig.session.waiting().len(), 1);
}

#[test]
fn a_cancel_drops_every_call_of_its_id() {
    let rig = rig(|_| ());
    for id in ["4", "4", "5"] {
        rig.call(id, "delete_file");
    }
    let cancel = "{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":4}}\n";
    rig.session.client_lines(cancel.as_bytes()).expect("both ends");
    assert_eq!(rig.session.waiting().len(), 1);
    rig.session.decide(&rig.session.waiting()[0], &Decision::Approved("me".into())).expect("both ends");
    assert!(rig.server.text().contains("\"id\":5") && rig.session.waiting().is_empty());
}

#[test]
fn what_waits_is_bounded_in_bytes() {
    let rig = rig(|options| options.max_held_bytes = 3000);
    let lines: Vec<String> = ["1", "2", "3"].map(|id| rig.call(id, "delete_file")).to_vec();
    assert_eq!(rig.session.waiting().len(), 2);
    assert!(rig.client.text().starts_with("{\"jsonrpc\":\"2.0\",\"id\":3,"), "the third is answered");
    let denied = |entry: &Entry| matches!(entry, Entry::Decision { outcome, .. } if *outcome == Recorded::Known(Outcome::Denied));
    assert_eq!(rig.journal().iter().filter(|entry| denied(entry)).count(), 1);
    for call in rig.session.waiting() {
        rig.session.decide(&call, &Decision::Approved("me".into())).expect("both ends");
    }
    assert_eq!(rig.server.text().len(), lines[0].len() + lines[1].len());
    rig.call("4", "delete_file");
    assert_eq!(rig.session.waiting().len(), 1, "and there is room again");
}

#[test]
fn a_lost_report_is_made_good_by_looking() {
    let rig = rig(|_| ());
    for id in 0..100 {
        rig.call(&id.to_string(), "delete_file");
    }
    let told = rig.reports.try_iter().filter(|report| matches!(report, Report::Paused(_))).count();
    assert!(told < 100, "the channel has 64 places");
    assert!(rig.session.take_missed() && !rig.session.take_missed(), "said once");
    assert_eq!(rig.session.waiting().len(), 100);
    assert!(!rig.session.is_over());
    for _ in 0..100 {
        rig.session.report(Report::Wake);
    }
    rig.session.finish();
    assert!(rig.session.is_over(), "with a full channel, too");
}

#[test]
fn ours_never_stands_within_a_line_of_the_servers() {
    let rig = rig(|_| ());
    rig.session.piece_to_client(b"{\"jsonrpc\":").expect("both ends");
    rig.call("1", "delete_file");
    let call = rig.session.waiting().pop().expect("it waits");
    rig.session.decide(&call, &Decision::Denied("me".into())).expect("both ends");
    rig.session.tick().expect("both ends");
    rig.session.piece_to_client(b"\"2.0\"}\n").expect("both ends");
    let text = rig.client.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("{\"jsonrpc\":\"2.0\"}"));
    assert!(lines.next().is_some_and(|line| line.contains("\"id\":1") && line.contains("isError")));
}

#[test]
fn a_cancel_in_a_batch_cancels_too() {
    let rig = rig(|_| ());
    rig.call("4", "delete_file");
    let batch = "[{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":4}},{\"id\":5,\"method\":\"ping\"}]\n";
    rig.session.client_lines(batch.as_bytes()).expect("both ends");
    assert_eq!(rig.server.text(), batch);
    assert!(rig.session.waiting().is_empty());
}

#[test]
fn hostile_lines_are_answered_and_lenient_forwards_them() {
    let hostile = "{\"id\":1,\"method\":\"tools/call\",\"method\":\"ping\",\"params\":{\"name\":\"x\"}}\n";
    let strict = rig(|_| ());
    strict.session.client_lines(hostile.as_bytes()).expect("both ends");
    assert_eq!(strict.server.text(), "");
    assert!(strict.client.text().contains("-32600"));
    let lenient = rig(|options| options.lenient = true);
    lenient.session.client_lines(hostile.as_bytes()).expect("both ends");
    assert_eq!(lenient.server.text(), hostile);
}

#[test]
fn a_batch_goes_whole_or_not_at_all() {
    let rig = rig(|_| ());
    let call =
        |id: u32, tool: &str| format!(r#"{{"id":{id},"method":"tools/call","params":{{"name":"{tool}"}}}}"#);
    let good = format!("[{},{}]\n", call(1, "read_file"), call(2, "read_file"));
    rig.session.client_lines(good.as_bytes()).expect("both ends");
    assert_eq!(rig.server.text(), good);
    let mixed = format!("[{},{}]\n", call(1, "read_file"), call(2, "delete_file"));
    rig.session.client_lines(mixed.as_bytes()).expect("both ends");
    assert_eq!(rig.server.text(), "");
    assert_eq!(rig.client.text().lines().count(), 2, "each call is answered");
    assert!(rig.session.waiting().is_empty());
}

#[test]
fn what_cannot_be_recorded_is_not_forwarded_unless_asked() {
    for allow in [false, true] {
        let rig = rig(|options| options.allow_unrecorded = allow);
        // A journal on a full disk.
        let full = Journal::over_full_device().expect("/dev/full");
        *rig.session.journal.lock().expect("journal") = full;
        let line = rig.call("1", "read_file");
        assert_eq!(rig.server.text(), if allow { line } else { String::new() });
        assert_eq!(rig.client.text().contains("could not record"), !allow);
    }
}

/// Counts its writes.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<(usize, Vec<u8>)>>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().expect("end");
        all.0 += 1;
        all.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_that_came_together_are_forwarded_together_and_in_order() {
    let line = |id: u32, tool: &str| {
        format!("{{\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\"}}}}\n")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let (server, client) = (Counted::default(), End::default());
    let (sender, _reports) = mpsc::sync_channel(64);
    let session = Session::new(
        options(),
        Journal::create(&path).expect("a journal"),
        rules::parse(include_str!("../../../../profiles/rules.yaml")).expect("rules"),
        SeenTools::of(&["read_file", "delete_file"]),
        (server.clone(), client.clone()),
        sender,
    );
    let passing: Vec<String> = (0..20).map(|id| line(id, "read_file")).collect();
    session.client_lines(passing.concat().as_bytes()).expect("both ends");
    {
        let all = server.0.lock().expect("end");
        assert_eq!((all.0, all.1.as_slice()), (1, passing.concat().as_bytes()));
    }
    // What is held or refused comes after what stood before it, and before what stood behind it.
    let mixed = [line(30, "read_file"), line(31, "delete_file"), line(32, "read_file")].concat();
    session.client_lines(mixed.as_bytes()).expect("both ends");
    let forwarded =
        String::from_utf8(server.0.lock().expect("end").1.split_off(passing.concat().len())).expect("text");
    assert_eq!(forwarded, line(30, "read_file") + &line(32, "read_file"));
    let answers: Vec<String> = (0..5).map(|id| format!("{{\"id\":{id},\"result\":{{}}}}\n")).collect();
    session.server_lines(answers.concat().as_bytes()).expect("both ends");
    assert_eq!(client.text(), answers.concat());
    let mut reader = Reader::new(BufReader::new(File::open(&path).expect("the journal")));
    let mut raws = Vec::new();
    while let Some(entry) = reader.next_entry().expect("an unbroken chain") {
        if let Entry::Message { raw, .. } = entry {
            raws.push(raw + "\n");
        }
    }
    assert_eq!(raws.concat(), passing.concat() + &mixed + &answers.concat());
}

/// A client that has an answer and writes its next call before the write of the answer returns to the interceptor.
struct Quick {
    session: Arc<std::sync::OnceLock<std::sync::Weak<Session<End, Quick>>>>,
    next: Option<String>,
}

impl Write for Quick {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(next) = self.next.take() {
            let session = self.session.get().and_then(std::sync::Weak::upgrade).expect("a session");
            session.client_lines(next.as_bytes()).expect("both ends");
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_answer_is_on_record_before_its_client_has_it() {
    let line = |id: u32| {
        format!("{{\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"read_file\"}}}}\n")
    };
    let answer = "{\"id\":1,\"result\":{}}\n";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let itself = Arc::new(std::sync::OnceLock::new());
    let client = Quick { session: Arc::clone(&itself), next: Some(line(2)) };
    let (sender, _reports) = mpsc::sync_channel(64);
    let session = Arc::new(Session::new(
        options(),
        Journal::create(&path).expect("a journal"),
        Vec::new(),
        SeenTools::of(&["read_file"]),
        (End::default(), client),
        sender,
    ));
    itself.set(Arc::downgrade(&session)).expect("once");
    session.client_lines(line(1).as_bytes()).expect("both ends");
    session.server_lines(answer.as_bytes()).expect("both ends");
    let mut reader = Reader::new(BufReader::new(File::open(&path).expect("the journal")));
    let (mut lines, mut times) = (Vec::new(), Vec::new());
    while let Some(entry) = reader.next_entry().expect("an unbroken chain") {
        let Entry::Message { raw, boot, .. } = entry else { panic!("{entry:?}") };
        lines.push(raw + "\n");
        times.push(boot);
    }
    assert_eq!(lines, [line(1), answer.to_owned(), line(2)]);
    assert!(
        times.is_sorted_by(|before, after| before < after),
        "and it ended before the next began: {times:?}"
    );
}
