//! Journals whose writer means ill, or whose reader is stopped in the middle.

use super::*;
use crate::verify;
use ringfence_base::quota::Owners;
use ringfence_session::{
    journal::{Direction, Journal, Judged, ListedTool},
    ledger::Known,
};
use ringfence_store::{SessionReader, SessionWriter, Shown, Viewer};
use rusqlite::{Connection, types::Value};
use serde_json::json;
use std::path::{Path, PathBuf};

const UID: u32 = 5;

/// A database, and a journal.
struct Scene {
    folder: tempfile::TempDir,
    writer: SharedWriter,
    long: Lanes,
    session: String,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = SessionWriter::new(folder.path().join("audit.db"), None);
        let writer = SharedWriter::new(writer, Owners::default());
        Self { folder, writer, long: Lanes::new(Owners::default()), session: name(7) }
    }

    fn journal(&self, entries: &[Entry]) -> PathBuf {
        let path = self.folder.path().join(format!("{}.journal", entries.len()));
        let mut journal = Journal::create(&path).expect("a journal");
        for entry in entries {
            journal.append(entry).expect("written");
        }
        path
    }

    fn intake(&self, path: &Path) -> Intake {
        let names = (self.session.clone(), path.display().to_string());
        let file = File::open(path).expect("the journal");
        Intake::new((&self.writer, &|| true), names, (UID, self.long.clone()), (file, Origin::Linked))
            .expect("an intake")
    }

    /// How many lines of the journal are in the store, by its own word.
    fn lines(&self) -> u64 {
        self.writer.ours().lines(&self.session, UID).expect("reads").expect("one's own").0
    }

    fn rows(&self, table: &str) -> Vec<Vec<Value>> {
        let database = Connection::open(self.folder.path().join("audit.db")).expect("opens");
        let mut all = database.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2")).expect("a table");
        let columns = all.column_count();
        let rows = all.query_map([], |row| (0..columns).map(|n| row.get(n)).collect());
        rows.and_then(Iterator::collect).expect("reads")
    }
}

fn start() -> Entry {
    start_of(&name(7))
}

fn start_of(session: &str) -> Entry {
    Entry::Start {
        session: session.into(),
        at: 1,
        server_name: "fs".into(),
        server_command: vec!["fs".into()],
        pid: 1,
        version: "1".into(),
        client: Some("c".into()),
    }
}

/// A line with so many calls, each named like that.
fn calls(many: usize, named: impl Fn(usize) -> String) -> Entry {
    let judged = |index: usize| Judged {
        call: named(index),
        index: index as u32,
        tool: "t".into(),
        operation: "read".into(),
        score: 0,
        reasons: vec![],
        action: "pass".into(),
        rules: vec![],
        exceptions: vec![],
    };
    let call =
        |id: usize| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "t" } });
    Entry::Message {
        id: uuid::Uuid::new_v4().to_string(),
        at: 1_000_000,
        boot: 5,
        direction: Direction::ClientToServer,
        raw: serde_json::Value::from((0..many).map(call).collect::<Vec<_>>()).to_string(),
        bytes: 0,
        sha256: String::new(),
        calls: (0..many).map(judged).collect(),
        refused: None,
        outline: None,
        repaired: 0,
    }
}

fn name(n: usize) -> String {
    format!("{n:08}-0000-4000-8000-000000000000")
}

#[test]
fn a_line_of_many_calls_is_written_in_steps_and_whoever_is_stopped_between_them_begins_again() {
    let entries = [start(), calls(3 * STEP, name), Entry::End { at: 9, status: Some(0) }];
    let of = |scene: &Scene| {
        ["messages", "tool_calls", "intent_contexts", "intent_tool_calls"].map(|table| scene.rows(table))
    };
    // At once, which is the control.
    let scene = Scene::new();
    let path = scene.journal(&entries);
    let mut intake = scene.intake(&path);
    let mut rows = 0;
    loop {
        let batch = intake.advance((&scene.writer, &|| true)).expect("taken in");
        rows += batch.rows.len();
        if !batch.more {
            break;
        }
    }
    assert_eq!((rows, scene.lines()), (3 * STEP + 3, 3));
    let expected = of(&scene);
    assert_eq!(expected[1].len(), 3 * STEP);
    // It had to go while others of its user's were in the lane, and has its place again.
    let scene = Scene::new();
    let path = scene.journal(&entries);
    let mut intake = scene.intake(&path);
    let lane = scene.writer.lock(UID, || true).expect("the lane");
    assert!(matches!(intake.advance((&scene.writer, &|| false)), Err(Error::Evicted)));
    drop(lane);
    assert_eq!(scene.lines(), 0);
    let again = |_| intake.advance((&scene.writer, &|| true)).expect("taken in").rows;
    let all: Vec<Row> = (0..2).flat_map(again).collect();
    assert_eq!((all.len(), scene.lines()), (3 * STEP + 3, 3), "each row is told of once");
    assert_eq!(of(&scene), expected);
    // A step that was written and its position was not: the same again.
    let scene = Scene::new();
    let path = scene.journal(&entries);
    {
        let mut intake = scene.intake(&path);
        let [_, first, _] = &entries;
        let fold = &mut intake.fold;
        let rows: Vec<Row> =
            [start(), first.clone()].into_iter().flat_map(|entry| fold.next(entry)).collect();
        let at = Position { lines: 2, head: "h", ..intake.position() };
        scene.writer.ours().write_some(&at, &rows[..STEP]).expect("written");
        assert_eq!(
            (scene.lines(), scene.rows("tool_calls").len()),
            (0, STEP - 2),
            "and it does not say that more is there"
        );
    }
    let mut intake = scene.intake(&path);
    while intake.advance((&scene.writer, &|| true)).expect("taken in").more {}
    assert_eq!(scene.lines(), 3);
    assert_eq!(of(&scene), expected);
}

#[test]
fn what_is_written_together_is_bounded_in_rows_and_in_bytes() {
    let gaps = vec![Row::Gap; 5000];
    let most = |rows: &[Row]| step(rows, STEP);
    assert_eq!((most(&gaps), most(&gaps[..7]), most(&[]), step(&gaps, LEAST)), (STEP, 7, 1, LEAST));
    let long = |bytes| Row::Client { info: "x".repeat(bytes) };
    assert_eq!(most(&[long(STEP_BYTES / 2), long(STEP_BYTES / 2), long(1)]), 2);
    assert_eq!(most(&[long(2 * STEP_BYTES), long(1)]), 1, "one that is longer goes alone");
    let part = STEP_BYTES / STEP * LEAST;
    assert_eq!(step(&[long(part / 2), long(part / 2), long(1)], LEAST), 2, "few rows have few bytes");
}

#[test]
fn what_takes_long_is_written_in_smaller_steps_and_what_does_not_in_larger_ones() {
    assert_eq!(paced(STEP, STEP_TIME), STEP);
    assert_eq!(paced(STEP, STEP_TIME * 2), STEP / 2);
    assert_eq!(paced(STEP, STEP_TIME * 1000), LEAST, "however slow, it goes on");
    assert_eq!(paced(LEAST, STEP_TIME / 2), 2 * LEAST);
    assert_eq!(paced(LEAST, Duration::ZERO), 2 * LEAST, "not at once");
    assert_eq!(paced(STEP, Duration::ZERO), STEP);
}

#[test]
fn a_journal_that_names_calls_by_what_is_no_name_is_broken_there() {
    let long = |_| "x".repeat(1 << 20);
    let upper = |n| name(n).replace("00000000-", "A0000000-");
    let decision = |call: &str| Entry::Decision {
        call: call.to_owned(),
        at: 2,
        boot: 2,
        outcome: "denied".into(),
        by: None,
    };
    let mut message = calls(1, name);
    if let Entry::Message { id, .. } = &mut message {
        "m".clone_into(id);
    }
    for bad in [calls(1, long), calls(1, |_| "abcd".into()), calls(1, upper), decision("abcd"), message] {
        let scene = Scene::new();
        let path = scene.journal(&[start(), bad, calls(1, name)]);
        let mut intake = scene.intake(&path);
        for _ in 0..2 {
            let Err(error) = intake.advance((&scene.writer, &|| true)) else { panic!("taken in") };
            assert!(matches!(error, Error::Name(2)), "{error}");
        }
        assert_eq!((scene.lines(), scene.rows("tool_calls").len()), (1, 0), "what was before it is there");
    }
    let scene = Scene::new();
    let path = scene.journal(&[start(), calls(1, name), decision(&name(0))]);
    scene.intake(&path).advance((&scene.writer, &|| true)).expect("the control");
    assert_eq!((scene.lines(), scene.rows("tool_calls").len()), (3, 1));
}

#[test]
fn what_is_before_a_line_that_is_broken_is_on_record() {
    let scene = Scene::new();
    let path = scene.journal(&[start(), calls(3, name), calls(1, name)]);
    let text = std::fs::read_to_string(&path).expect("reads");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[2] = lines[2].replace("tools/call", "tools/cull");
    std::fs::write(&path, lines.join("\n") + "\n").expect("written");
    let mut intake = scene.intake(&path);
    for _ in 0..2 {
        let Err(error) = intake.advance((&scene.writer, &|| true)) else { panic!("taken in") };
        assert!(matches!(error, Error::Journal(Broken::Chain(3))), "{error}");
        assert_eq!((scene.lines(), scene.rows("tool_calls").len()), (2, 3));
    }
    assert_eq!(intake.take_written().len(), 5, "and watchers are notified of them");
}

#[test]
fn while_nothing_can_be_written_nothing_more_is_read() {
    let scene = Scene::new();
    let entries: Vec<Entry> =
        [start()].into_iter().chain((0..8).map(|n| calls(BATCH, |call| name(n * BATCH + call)))).collect();
    let path = scene.journal(&entries);
    let mut intake = scene.intake(&path);
    // Somebody else of this user's has the lane: whoever has no place does not get it.
    let lane = scene.writer.lock(UID, || true).expect("the lane");
    let mut read = Vec::new();
    for _ in 0..5 {
        assert!(matches!(intake.advance((&scene.writer, &|| false)), Err(Error::Evicted)));
        read.push((intake.reader.position().1, intake.unwritten.len()));
    }
    assert_eq!(read, [(2, BATCH + 2); 5]);
    drop(lane);
    while intake.advance((&scene.writer, &|| true)).expect("the control").more {}
    assert_eq!((scene.lines(), scene.rows("tool_calls").len()), (9, 8 * BATCH));
}

#[test]
fn who_has_no_place_any_more_does_not_wait_for_another_s_long_line() {
    let scene = Scene::new();
    let mut long = calls(1, name);
    if let Entry::Message { raw, .. } = &mut long {
        *raw = format!("{raw}{}", " ".repeat(2 * SHORT));
    }
    let path = scene.journal(&[start(), long]);
    let mut intake = scene.intake(&path);
    let alone = scene.long.wait(UID, || true).expect("the lane");
    assert!(matches!(intake.advance((&scene.writer, &|| false)), Err(Error::Evicted)));
    drop(alone);
    while intake.advance((&scene.writer, &|| true)).expect("the control").more {}
    assert_eq!(scene.lines(), 2);
}

#[test]
fn a_user_s_next_long_line_is_not_read_before_the_rows_of_the_one_before_are_written() {
    let mut scene = Scene::new();
    let long = |n: usize| {
        let mut long = calls(1, |_| name(n));
        if let Entry::Message { raw, .. } = &mut long {
            *raw = format!("{raw}{}", " ".repeat(2 * SHORT));
        }
        long
    };
    let path = scene.journal(&[start(), long(1), Entry::Gap { at: 3 }]);
    let mut first = scene.intake(&path);
    scene.session = name(8);
    let path = scene.journal(&[start_of(&name(8)), long(2)]);
    let mut second = scene.intake(&path);
    // It has its place as long as it reads, and none when it is to write: what it read waits.
    let asked = std::cell::Cell::new(0);
    let still = || {
        asked.set(asked.get() + 1);
        asked.get() == 1
    };
    let lane = scene.writer.lock(UID, || true).expect("the lane");
    assert!(matches!(first.advance((&scene.writer, &still)), Err(Error::Evicted)));
    drop(lane);
    assert!(first.unwritten.iter().any(|row| row.bytes() > SHORT), "it is read");
    let room = |uid: u32| scene.long.enter(uid, Instant::now(), || true).is_some();
    assert!(!room(UID) && room(UID + 1), "for nobody else of this user's");
    assert!(matches!(second.advance((&scene.writer, &|| false)), Err(Error::Evicted)));
    assert!(second.unwritten.is_empty());
    // Written, the rows are still there until whoever watches is told.
    let batch = first.advance((&scene.writer, &|| true)).expect("written");
    assert!(!room(UID) && batch.rows.iter().any(|row| row.bytes() > SHORT));
    drop(batch);
    assert!(room(UID), "and then there is room again");
    while second.advance((&scene.writer, &|| true)).expect("the control").more {}
    assert_eq!(scene.lines(), 2);
}

#[test]
fn a_journal_that_begins_another_session_is_broken_there() {
    let scene = Scene::new();
    let path = scene.journal(&[start_of(&name(9)), calls(1, name)]);
    let mut intake = scene.intake(&path);
    for _ in 0..2 {
        let Err(error) = intake.advance((&scene.writer, &|| true)) else { panic!("taken in") };
        assert!(matches!(error, Error::OtherSession(1)), "{error}");
    }
    assert_eq!((scene.lines(), scene.rows("sessions").len()), (0, 0));
    let path = scene.journal(&[start(), calls(1, name), Entry::Gap { at: 3 }]);
    scene.intake(&path).advance((&scene.writer, &|| true)).expect("the control");
    assert_eq!((scene.lines(), scene.rows("sessions").len()), (3, 1));
}

/// The source of the only call of a session.
fn source(scene: &Scene, session: &str) -> String {
    let database = Connection::open(scene.folder.path().join("audit.db")).expect("opens");
    let query = "SELECT n.source FROM tool_calls c JOIN intent_tool_calls i ON i.tool_call_id = c.id
         JOIN intent_contexts n ON n.id = i.intent_id WHERE c.session_id = ?1";
    database.query_row(query, [session], |row| row.get(0)).expect("the call")
}

#[test]
fn a_question_is_forgotten_when_its_session_s_link_ends_however_it_does() {
    let asks = |n: usize| {
        let prompt = json!({ "jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {
            "messages": [{ "role": "user", "content": { "type": "text", "text": "tidy" } }] } });
        line(n, Direction::ServerToClient, &prompt.to_string())
    };
    for (parted, expected) in [(false, "sampling"), (true, "time")] {
        let mut scene = Scene::new();
        let path = scene.journal(&[start(), asks(1)]);
        while scene.intake(&path).advance((&scene.writer, &|| true)).expect("taken in").more {}
        if parted {
            scene.writer.ours().unlinked(&scene.session);
        }
        scene.session = name(8);
        let path = scene.journal(&[start_of(&name(8)), calls(1, |_| name(2)), Entry::Gap { at: 3 }]);
        while scene.intake(&path).advance((&scene.writer, &|| true)).expect("taken in").more {}
        assert_eq!(source(&scene, &scene.session), expected);
    }
}

/// What a verification says of the only session of a scene, of which its ledger holds this.
fn verified(scene: &Scene, known: &Known) -> Result<(), verify::Problem> {
    let reader = SessionReader::open(&scene.folder.path().join("audit.db")).expect("opens");
    let table = |table: &str| reader.table(Viewer(UID), table, 0, 100, Shown::Parsed).expect("reads");
    let mut sums = verify::Sums::default();
    table("messages").iter().for_each(|row| sums.message(row));
    table("tool_calls").iter().for_each(|row| sums.call(row));
    verify::session(&table("sessions")[0], Some(known), &[], Some(sums))
}

/// A line that is no call.
fn line(n: usize, direction: Direction, raw: &str) -> Entry {
    Entry::Message {
        id: name(1000 + n),
        at: 1_000_000 * n as i64,
        boot: 5,
        direction,
        raw: raw.to_owned(),
        bytes: 0,
        sha256: String::new(),
        calls: Vec::new(),
        refused: None,
        outline: None,
        repaired: 0,
    }
}

#[test]
fn a_call_that_is_cancelled_and_then_again_as_a_task_is_no_tampering() {
    use Direction::{ClientToServer, ServerToClient};
    let scene = Scene::new();
    let path = scene.journal(&[
        start(),
        calls(1, name),
        line(
            2,
            ClientToServer,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#,
        ),
        line(3, ServerToClient, r#"{"jsonrpc":"2.0","id":0,"result":{"task":{"taskId":"t"}}}"#),
        line(
            4,
            ClientToServer,
            r#"{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"t"}}"#,
        ),
        line(5, ServerToClient, r#"{"jsonrpc":"2.0","id":1,"result":{"status":"cancelled"}}"#),
    ]);
    let mut intake = scene.intake(&path);
    while intake.advance((&scene.writer, &|| true)).expect("taken in").more {}
    assert_eq!(scene.lines(), 6);
    verified(&scene, &Known::default()).expect("nobody changed it");
    let database = Connection::open(scene.folder.path().join("audit.db")).expect("opens");
    database.execute("UPDATE tool_calls SET cancelled_at = requested_at", []).expect("changed");
    assert!(matches!(verified(&scene, &Known::default()), Err(verify::Problem::Rows(_))), "the control");
}

#[test]
fn what_a_session_s_own_row_says_switches_no_check_off() {
    let scene = Scene::new();
    let end = Entry::End { at: 9_000_000, status: Some(3) };
    let answer = line(2, Direction::ServerToClient, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    let path = scene.journal(&[start(), calls(2, name), answer, end]);
    let mut intake = scene.intake(&path);
    while intake.advance((&scene.writer, &|| true)).expect("taken in").more {}
    let database = Connection::open(scene.folder.path().join("audit.db")).expect("opens");
    let entry: String =
        database.query_row("SELECT entry FROM ledger WHERE seq = 1", [], |row| row.get(0)).expect("an entry");
    assert!(entry.contains(r#""outcomes":true"#), "{entry}");
    let before = Known::default();
    let since = Known { outcomes: true, ..Known::default() };
    verified(&scene, &since).expect("the control");
    // A session from before there were these columns has nothing in them.
    let undone =
        "UPDATE sessions SET outcomes = 1; UPDATE tool_calls SET answer = 'answered' WHERE answer IS NULL
                  AND responded_at IS NOT NULL";
    let nothing = "UPDATE sessions SET outcomes = NULL; UPDATE tool_calls SET answer = NULL";
    database.execute_batch(nothing).expect("changed");
    verified(&scene, &before).expect("its ledger says nothing of them");
    assert!(matches!(verified(&scene, &since), Err(verify::Problem::Rows("outcomes of tool calls"))));
    database.execute_batch(undone).expect("changed");
    for (change, undo) in [
        ("tool_calls SET task_result = '{}'", "tool_calls SET task_result = NULL"),
        ("tool_calls SET task_msg_id = 'x'", "tool_calls SET task_msg_id = NULL"),
        (
            "tool_calls SET result = '{}' WHERE responded_at IS NULL",
            "tool_calls SET result = NULL WHERE responded_at IS NULL",
        ),
        ("sessions SET ended_at = started_at", "sessions SET ended_at = '1970-01-01T00:00:09.000000Z'"),
        ("sessions SET exit_status = 0", "sessions SET exit_status = 3"),
    ] {
        verified(&scene, &since).expect("as it was");
        assert!(database.execute(&format!("UPDATE {change}"), []).expect(change) > 0, "{change}");
        verified(&scene, &since).expect_err(change);
        database.execute(&format!("UPDATE {undo}"), []).expect(undo);
    }
    verified(&scene, &since).expect("as it was");
}

#[test]
fn rows_of_a_batch_that_is_not_written_to_its_end_are_no_tampering() {
    let scene = Scene::new();
    let path = scene.folder.path().join("growing.journal");
    let mut journal = Journal::create(&path).expect("a journal");
    [start(), calls(3, name)].iter().for_each(|entry| journal.append(entry).expect("written"));
    let mut intake = scene.intake(&path);
    while intake.advance((&scene.writer, &|| true)).expect("taken in").more {}
    let head = intake.position().head.to_owned();
    let known = Known { marks: [(2, head)].into(), ..Known::default() };
    let verified = || verified(&scene, &known);
    verified().expect("the control");
    // A part of what comes next is written, and then no more.
    let next = calls(5, |n| name(100 + n));
    journal.append(&next).expect("written");
    let rows = intake.fold.next(next);
    for step in [&rows[..1], &rows[1..4]] {
        scene.writer.ours().write_some(&intake.position(), step).expect("written");
        verified().expect("as far as it is written");
    }
    let database = Connection::open(scene.folder.path().join("audit.db")).expect("opens");
    let change = "UPDATE tool_calls SET tool_name = 'other' WHERE id = ?1";
    for changed in [name(101), name(1)] {
        database.execute(change, [&changed]).expect("changed");
        assert!(matches!(verified(), Err(verify::Problem::Rows(_))), "{changed}");
        database.execute(&change.replace("other", "t"), [&changed]).expect("changed");
        verified().expect("as it was");
    }
}

/// The journal of a session whose server lists one tool.
fn lists(session: &str, tool: &str) -> [Entry; 3] {
    let listed = ListedTool {
        name: tool.into(),
        sha256: Some("b".repeat(64)),
        held: None,
        definition: Some("{}".into()),
        parts: Default::default(),
        flags: vec![],
    };
    let key = Some("a".repeat(64));
    [
        start_of(session),
        Entry::Server { at: 2, key, info: Some("{\"name\":\"s\"}".into()) },
        Entry::Tools { at: 3, message: name(9), tools: vec![listed], more: 0, whole: Some(3) },
    ]
}

#[test]
fn a_journal_of_nobody_says_nothing_of_a_server_that_its_session_was_not_linked_with() {
    let mut scene = Scene::new();
    let take = |scene: &mut Scene, number: usize, tool: &str, origin: Origin| {
        scene.session = name(number);
        let path = scene.journal(&lists(&name(number), tool));
        let file = File::open(&path).expect("the journal");
        let names = (scene.session.clone(), path.display().to_string());
        let intake = Intake::new((&scene.writer, &|| true), names, (UID, scene.long.clone()), (file, origin));
        intake.expect("an intake").advance((&scene.writer, &|| true)).expect("taken in");
        std::fs::remove_file(path).expect("removed");
    };
    let known = |scene: &Scene| ["mcp_servers", "mcp_tools", "tool_changes"].map(|table| scene.rows(table));
    take(&mut scene, 1, "mine", Origin::Linked);
    let before = known(&scene);
    assert_eq!(before.each_ref().map(Vec::len), [1, 1, 0]);
    // Of a session in a container it may be.
    take(&mut scene, 2, "another", Origin::Past);
    assert_eq!(known(&scene), before);
    assert_eq!(scene.rows("sessions").len(), 2, "it is on record all the same");
    take(&mut scene, 3, "another", Origin::Linked);
    assert_eq!(known(&scene).map(|rows| rows.len()), [1, 2, 1], "the control");
}
