//! Tests of the store: what goes in comes out, quotas, corrupt and full databases.

mod egress;

use super::*;
use ringfence_base::clock::now_micros;
use ringfence_common::event::verdict;
use ringfence_events::{
    decode::Decoded,
    manifests::{Decider, Identity},
    samples,
};
use ringfence_session::{
    journal::{Direction, Judged},
    rows::ingest::{CallRow, MessageRow},
};
use ringfence_wire::{audit::Counted, event::RuleText};
use rusqlite::Connection;
use std::{fs, sync::Arc};
use write::Event;

fn identity(public: &str, uid: u32) -> Option<Arc<Identity>> {
    Some(Arc::new(Identity { public: public.into(), profile: "coder".into(), uid, created: 7 }))
}

fn of(container: u64, uid: u32, record: Decoded) -> Incoming {
    Incoming::Event(Box::new(Event {
        ts: now_micros(),
        identity: identity(&format!("{container:012x}"), uid),
        decider: Decider::Default,
        record: Decoded { container, ..record },
    }))
}

/// A call that passed, and the message that asked for it, `m-` and the call's id.
pub(crate) fn call_rows(call: &str, at: i64) -> (MessageRow, CallRow) {
    let message = MessageRow {
        id: format!("m-{call}"),
        direction: Direction::ClientToServer,
        at,
        jsonrpc_id: None,
        method: None,
        params: None,
        result: None,
        error: None,
        raw: String::new(),
        note: None,
    };
    let judged = Judged {
        call: call.into(),
        index: 0,
        tool: "t".into(),
        operation: "read".into(),
        score: 0,
        reasons: vec![],
        action: "pass".into(),
        rules: vec![],
        exceptions: vec![],
    };
    let row = CallRow {
        judged,
        message: message.id.clone(),
        arguments: "{}".into(),
        at,
        blocked: false,
        began: None,
        evidence: Default::default(),
    };
    (message, row)
}

fn opened(dir: &tempfile::TempDir) -> Writer {
    let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
    writer.hello("s", "boot").expect("greets");
    writer
}

fn ids(dir: &tempfile::TempDir, viewer: Viewer, filter: &Filter, limit: Option<u32>) -> Vec<u64> {
    let reader = Reader::open(&dir.path().join(FILE)).expect("opens");
    let last = reader.last_id().expect("reads");
    let begin = reader.begin(viewer, filter, last, limit).expect("reads");
    reader.events(viewer, filter, begin, last, 1000).expect("reads").iter().map(|e| e.id).collect()
}

#[test]
fn what_goes_in_comes_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let rule = Arc::new(RuleText {
        id: "deny.fs_read:/etc/shadow".into(),
        file: Some("/etc/ringfence/profiles/coder.toml".into()),
        line: 12,
        key: "deny.fs_read".into(),
        text: "/etc/shadow".into(),
    });
    let record = Decoded {
        start: u64::MAX,
        call: u64::MAX - 1,
        container: u64::MAX - 2,
        family: 10,
        addr: [9; 16],
        path2: Some("/b".into()),
        ..samples::decoded()
    };
    let event = Event {
        ts: 77,
        identity: identity("aabbccddeeff", 5),
        decider: Decider::Rule(Arc::clone(&rule)),
        record,
    };
    let expected = event.record.clone();
    opened(&dir).write(&[Incoming::Event(Box::new(event))]).expect("writes");
    let stored = Reader::open(&dir.path().join(FILE))
        .expect("opens")
        .event(Viewer(5), 1)
        .expect("reads")
        .expect("is there");
    assert_eq!((stored.id, stored.ts, stored.container.as_str()), (1, 77, "aabbccddeeff"));
    assert_eq!(stored.decider, Decider::Rule(rule));
    // One number is not kept: the slot (the rule is).
    assert_eq!(stored.record, Decoded { rule_kind: 1, ..expected });
}

#[test]
fn a_uid_sees_its_own_and_root_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let allowed = Decoded { verdict: verdict::ALLOWED, ..samples::decoded() };
    opened(&dir)
        .write(&[
            of(0xa1, 1000, samples::decoded()),
            of(0xa2, 1001, samples::decoded()),
            of(0xa1, 1000, allowed),
            of(0xb1, 1000, samples::decoded()),
        ])
        .expect("writes");
    let all = Filter::default();
    assert_eq!(ids(&dir, Viewer(0), &all, None), [1, 2, 3, 4]);
    assert_eq!(ids(&dir, Viewer(1000), &all, None), [1, 3, 4]);
    assert_eq!(ids(&dir, Viewer(1002), &all, None), [0u64; 0]);
    assert_eq!(ids(&dir, Viewer(1000), &all, Some(2)), [3, 4]);
    assert_eq!(ids(&dir, Viewer(1000), &all, Some(0)), [0u64; 0]);
    assert_eq!(ids(&dir, Viewer(1000), &all, Some(100)), [1, 3, 4]);
    assert_eq!(ids(&dir, Viewer(1000), &Filter { refused: true, ..all.clone() }, None), [1, 4]);
    let of = |name: &str| Filter { container: Some(name.into()), ..Filter::default() };
    assert_eq!(ids(&dir, Viewer(0), &of("0000000000a2"), None), [2]);
    assert_eq!(ids(&dir, Viewer(0), &of("0000000000a"), None), [1, 2, 3]);
    assert_eq!(ids(&dir, Viewer(0), &of("coder"), None), [1, 2, 3, 4]);
    assert_eq!(ids(&dir, Viewer(0), &of("%"), None), [0u64; 0]);
    assert_eq!(ids(&dir, Viewer(1000), &of("0000000000a2"), None), [0u64; 0]);
    let since = |ts| Filter { since: Some(ts), ..Filter::default() };
    assert_eq!(ids(&dir, Viewer(0), &since(0), None), [1, 2, 3, 4]);
    assert_eq!(ids(&dir, Viewer(0), &since(i64::MAX), None), [0u64; 0]);
    let reader = Reader::open(&dir.path().join(FILE)).expect("opens");
    assert!(reader.event(Viewer(1001), 1).expect("reads").is_none());
    assert!(reader.event(Viewer(1001), 2).expect("reads").is_some());
    assert_eq!(reader.size(Viewer(1001)).expect("reads").0, 1);
}

#[test]
fn a_session_remembers_its_last_batch_and_losses_add_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let counted = Counted { container: 0xa1, denied: 9, lost_denied: 2, lost_allowed: 1, aggregated: 4 };
    let dropped = || Incoming::Dropped { kernel: 0xa1, denied: 1, allowed: 10 };
    writer
        .write(&[
            of(0xa1, 1, samples::decoded()),
            Incoming::Counted(counted),
            dropped(),
            Incoming::Sequence(41),
        ])
        .expect("writes");
    writer.write(&[dropped(), Incoming::Sequence(42), Incoming::Ended { kernel: 0xa1 }]).expect("writes");
    drop(writer);
    let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
    assert_eq!(writer.hello("s", "boot").expect("greets"), 42);
    assert_eq!(writer.hello("t", "boot").expect("greets"), 0);
    let lost = Reader::open(&dir.path().join(FILE)).expect("opens").lost(Viewer(1)).expect("reads");
    assert_eq!(lost.len(), 1);
    let lost = &lost[0];
    assert_eq!((lost.ring_denied, lost.ring_allowed, lost.store_denied, lost.store_allowed), (2, 1, 2, 20));
    assert_eq!(lost.missing_denied, 9 - 1 - 2 - 2, "what is counted and did not come");

    // What comes late is not missing any more, and a repeat counts as often as it happened.
    let repeated = Decoded { repeats: 4, ..samples::decoded() };
    writer.write(&[of(0xa1, 1, repeated)]).expect("writes");
    let lost = Reader::open(&dir.path().join(FILE)).expect("opens").lost(Viewer(1)).expect("reads");
    assert_eq!(lost[0].missing_denied, 0);
    let all = Reader::open(&dir.path().join(FILE)).expect("opens").losses().expect("reads");
    let wanted = Losses {
        denied: 9,
        kernel_denied: 2,
        kernel_other: 1,
        store_denied: 2,
        store_other: 20,
        missing_denied: 0,
        egress: 0,
    };
    assert_eq!(all, wanted);
}

#[test]
fn a_greedy_container_loses_its_own_and_keeps_denials_longest() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let allowed = Decoded { verdict: verdict::ALLOWED, ..samples::decoded() };
    let mut batch = vec![of(0xbb, 2, samples::decoded())];
    batch.extend((0..10).map(|_| of(0xaa, 1, samples::decoded())));
    batch.extend((0..20_000).map(|_| of(0xaa, 1, allowed.clone())));
    writer.write(&batch).expect("writes");
    let retention = Retention { event_bytes: 8 << 20, container_share: 4, ..Retention::default() };
    while writer.retain(&retention, now_micros()).expect("deletes") {}
    let refused = Filter { refused: true, ..Filter::default() };
    assert_eq!(ids(&dir, Viewer(2), &Filter::default(), None), [1]);
    assert_eq!(ids(&dir, Viewer(1), &refused, None).len(), 10);
    let (rows, _) = Reader::open(&dir.path().join(FILE)).expect("opens").size(Viewer(0)).expect("reads");
    assert!((5_000..20_000).contains(&rows), "{rows} rows are left");
}

#[test]
fn the_oldest_go_by_size_and_by_age() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    for container in 1..=8 {
        let batch: Vec<_> = (0..5_000).map(|_| of(container, 1, samples::decoded())).collect();
        writer.write(&batch).expect("writes");
    }
    let retention = Retention { event_bytes: 4 << 20, container_share: 1, ..Retention::default() };
    while writer.retain(&retention, now_micros()).expect("deletes") {}
    let reader = Reader::open(&dir.path().join(FILE)).expect("opens");
    let (rows, bytes) = reader.size(Viewer(0)).expect("reads");
    assert!(bytes <= 4 << 20 && rows > 1_000, "{rows} rows, {bytes} bytes");
    let first = reader.events(Viewer(0), &Filter::default(), 0, u64::MAX >> 1, 1).expect("reads")[0].id;
    assert_eq!(first, 40_000 - rows + 1);
    while writer.retain(&retention, now_micros() + retention.age + 60_000_000).expect("deletes") {}
    assert_eq!(reader.size(Viewer(0)).expect("reads").0, 0);
    // Numbers are never used twice, and what comes next is stored as ever.
    writer.write(&[of(1, 1, samples::decoded())]).expect("writes");
    assert_eq!(writer.last_id().expect("reads"), 40_001);
}

#[test]
fn what_is_in_the_file_beside_events_deletes_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let batch: Vec<_> = (0..8_000).map(|n| of(n % 8, 1, samples::decoded())).collect();
    writer.write(&batch).expect("writes");
    let reader = Reader::open(&dir.path().join(FILE)).expect("opens");
    let events = reader.size(Viewer(0)).expect("reads").1;
    let retention = Retention { event_bytes: events + events / 4, ..Retention::default() };
    // Of no account: as rule files, ledgers and the paths of journals are.
    let text = "x".repeat(1 << 20);
    for path in 0..8 {
        let row = "INSERT INTO rule_files (uid, path, text, since, used) VALUES (5, ?1, ?2, '', '')";
        writer.connection().execute(row, rusqlite::params![path, text]).expect("inserts");
    }
    assert!(reader.size(Viewer(0)).expect("reads").1 > retention.event_bytes);
    while writer.retain(&retention, now_micros()).expect("looks") {}
    assert_eq!(reader.size(Viewer(0)).expect("reads").0, 8_000, "no event went");
    // What events take is bounded as ever.
    let retention = Retention { event_bytes: events / 2, ..retention };
    while writer.retain(&retention, now_micros()).expect("deletes") {}
    let left = reader.size(Viewer(0)).expect("reads").0;
    assert!((1_000..4_500).contains(&left), "{left} rows are left");
}

#[test]
fn a_corrupt_database_is_moved_aside() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(FILE);
    fs::write(&file, b"this was never a database, however long one looks at it".repeat(100)).expect("writes");
    let Opened { mut writer, moved_to } = open(&dir.path().join(FILE), 1234).expect("opens");
    let moved_to = moved_to.expect("moved");
    assert!(moved_to.to_string_lossy().contains("audit.db.corrupt-"));
    assert!(fs::read(moved_to).expect("reads").starts_with(b"this was never"));
    writer.write(&[of(1, 1, samples::decoded())]).expect("writes");
    assert_eq!(ids(&dir, Viewer(0), &Filter::default(), None), [1235]);
    drop(writer);
    // A good one stays.
    assert!(open(&dir.path().join(FILE), 0).expect("opens").moved_to.is_none());
    assert_eq!(ids(&dir, Viewer(0), &Filter::default(), None), [1235]);
}

#[test]
fn a_torn_page_and_a_foreign_database_are_corrupt_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(FILE);
    let mut writer = opened(&dir);
    let batch: Vec<_> = (0..2_000).map(|_| of(1, 1, samples::decoded())).collect();
    writer.write(&batch).expect("writes");
    writer.finish();
    let mut bytes = fs::read(&file).expect("reads");
    let half = bytes.len() / 2;
    bytes[half..half + 8192].fill(0x5a);
    fs::write(&file, bytes).expect("writes");
    assert!(open(&dir.path().join(FILE), 0).expect("opens").moved_to.is_some());

    fs::remove_file(&file).expect("removes");
    Connection::open(&file).expect("opens").execute_batch("CREATE TABLE songs (id)").expect("creates");
    assert!(open(&dir.path().join(FILE), 0).expect("opens").moved_to.is_some());
}

#[test]
fn a_later_schema_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    opened(&dir).connection().pragma_update(None, "user_version", 99).expect("updates");
    let error = open(&dir.path().join(FILE), 0).expect_err("refused").to_string();
    assert!(error.contains("later Ringfence (schema 99, this one knows "), "{error}");
}

#[test]
fn a_full_disk_stores_nothing_of_a_batch_and_passes() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    writer.write(&[of(1, 1, samples::decoded())]).expect("writes");
    let pages: i64 =
        writer.connection().pragma_query_value(None, "page_count", |row| row.get(0)).expect("reads");
    writer.connection().pragma_update(None, "max_page_count", pages + 2).expect("updates");
    let batch: Vec<_> = (0..2_000).map(|_| of(2, 1, samples::decoded())).collect();
    let error = writer.write(&batch).expect_err("the disk is full");
    assert!(error.may_pass() && !error.is_corrupt(), "{error:?}");
    assert_eq!(ids(&dir, Viewer(0), &Filter::default(), None), [1]);
    writer.connection().pragma_update(None, "max_page_count", 1 << 20).expect("updates");
    writer.write(&batch).expect("there is room again");
    assert_eq!(ids(&dir, Viewer(0), &Filter::default(), None).len(), 1000);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let error = open(Path::new("/proc/nowhere/audit.db"), 0).expect_err("refused");
    assert!(error.to_string().contains("/proc/nowhere/audit.db") && !error.may_pass(), "{error}");
}
