//! Which calls an approval answers, and when it ends.

use super::{ActiveApproval, CallFacts, Given, MOST_APPROVALS};
use crate::{Error, SessionReader, SessionWriter, Viewer};
use ringfence_base::{clock::now_micros, quota::Owners};
use ringfence_session::ledger::{Entry, Ledger, Row};
use ringfence_wire::approvals::{ApprovalScope, Fingerprint};
use rusqlite::params;

/// A second, microseconds.
const SECOND: i64 = 1_000_000;

struct Scene {
    folder: tempfile::TempDir,
    writer: SessionWriter,
    now: i64,
}

/// A call of user 5 in a session on the server `fs`, with arguments as they are on record and a letter for what came.
#[derive(Clone, Copy)]
struct Call {
    id: &'static str,
    uid: u32,
    session: &'static str,
    tool: &'static str,
    recorded: &'static str,
    real: char,
    server: char,
    governed: bool,
}

const CALL: Call = Call {
    id: "c1",
    uid: 5,
    session: "s1",
    tool: "t",
    recorded: r#"{"a":"[redacted]"}"#,
    real: 'a',
    server: 'f',
    governed: false,
};

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // 7 is a subordinate id of 5.
        let owners = Owners::parse("user:7:1", |_| Some(5));
        let writer = SessionWriter::new(folder.path().join("audit.db"), None).with_owners(owners);
        Self { folder, writer, now: now_micros() }
    }

    fn reader(&self) -> SessionReader {
        SessionReader::open(&self.folder.path().join("audit.db")).expect("opens")
    }

    /// Puts a call on record.
    fn record(&mut self, call: Call) {
        let connection = self.writer.connection().expect("open");
        let Call { id, uid, session, tool, recorded, .. } = call;
        connection
            .execute(
                "INSERT OR IGNORE INTO sessions (id, server_name, server_command, started_at, uid) VALUES (?1, 'fs', 'x', '', ?2)",
                params![session, uid],
            )
            .and_then(|_| {
                connection.execute(
                    "INSERT OR IGNORE INTO messages (id, session_id, direction, timestamp, raw) VALUES (?1, ?2, '', '', '')",
                    params![format!("m-{id}"), session],
                )
            })
            .and_then(|_| {
                connection.execute(
                    "INSERT OR REPLACE INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at)
                     VALUES (?1, ?2, ?3, ?4, ?5, 'write', '')",
                    params![id, session, format!("m-{id}"), tool, recorded],
                )
            })
            .expect("stored");
    }

    fn add(&mut self, call: Call, scope: ApprovalScope, until: Option<i64>) -> Result<Given, Error> {
        self.record(call);
        let (print, now) = (call.print(), self.now);
        self.writer.add_approval(&call.facts(&print), (scope, until), "uid 5", now)
    }

    fn given(&mut self, call: Call, scope: ApprovalScope, until: Option<i64>) -> String {
        match self.add(call, scope, until).expect("stored") {
            Given::Stands(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// The approval that answers a call, which goes on by it.
    fn answer(&mut self, call: Call) -> Option<ActiveApproval> {
        self.record(call);
        let (print, now) = (call.print(), self.now);
        let found = self.writer.approval_for(&call.facts(&print), now).expect("asked")?;
        self.writer.count_use(&found.id, now).expect("counted");
        Some(found)
    }

    fn is_answered(&mut self, call: Call) -> bool {
        self.answer(call).is_some()
    }

    /// How many approvals there are like that.
    fn count(&mut self, like: &str) -> i64 {
        let text = format!("SELECT count(*) FROM standing_approvals WHERE {like}");
        self.writer.connection().expect("open").query_row(&text, [], |row| row.get(0)).expect("counted")
    }

    /// What the ledger of user 5 has, in its order.
    fn changes(&self) -> Vec<(String, String)> {
        let rows = self.reader().table(Viewer(5), "ledger", 0, 1000, crate::Shown::Parsed).expect("reads");
        let rows: Vec<Row> = rows
            .iter()
            .map(|row| Row {
                uid: 5,
                seq: row["seq"].as_u64().expect("a number"),
                entry: row["entry"].as_str().expect("a text").into(),
                hash: row["hash"].as_str().expect("a text").into(),
            })
            .collect();
        Ledger::read(&rows).expect("whole");
        let of = |row: &Row| match serde_json::from_str(&row.entry).expect("an entry") {
            Entry::Approval(change) => Some((change.change, change.by)),
            _ => None,
        };
        rows.iter().filter_map(of).collect()
    }
}

impl Call {
    fn print(self) -> Fingerprint {
        let hash = |letter: char| letter.to_string().repeat(64);
        Fingerprint { arguments: hash(self.real), server: hash(self.server), unsettled: false }
    }

    fn facts<'a>(&self, print: &'a Fingerprint) -> CallFacts<'a> {
        CallFacts {
            call: self.id,
            uid: self.uid,
            session: self.session,
            governed: self.governed,
            fingerprint: Some(print),
        }
    }
}

#[test]
fn the_same_arguments_are_those_that_came_and_those_that_were_seen() {
    let mut scene = Scene::new();
    let id = scene.given(CALL, ApprovalScope::Arguments, Some(scene.now + 60 * SECOND));
    let same = Call { id: "c2", session: "s2", recorded: r#"{ "a": "[redacted]" }"#, ..CALL };
    assert_eq!(scene.answer(same), Some(ActiveApproval { id: id.clone(), by: "uid 5".into() }));
    for (what, other) in [
        ("a secret differs, which the record does not show", Call { id: "c3", real: 'b', ..CALL }),
        (
            "the record differs, whatever its interceptor says",
            Call { id: "c4", recorded: r#"{"a":"x"}"#, ..CALL },
        ),
        ("another tool", Call { id: "c5", tool: "u", ..CALL }),
        ("another user", Call { id: "c6", uid: 6, session: "s6", ..CALL }),
        ("out of a container", Call { id: "c7", governed: true, ..CALL }),
    ] {
        assert!(!scene.is_answered(other), "{what}");
    }
    let row = scene.reader().approval(Viewer(5), &id).expect("reads").expect("is there");
    assert_eq!((row["uses"].as_u64(), row["tool_name"].as_str()), (Some(1), Some("t")));
    assert!(row["last_use"].is_string() && row["ended_at"].is_null());
    assert_eq!(scene.reader().approval(Viewer(6), &id).expect("reads"), None, "another user's");
    assert!(scene.is_answered(CALL), "it still stands");
}

#[test]
fn arguments_that_nobody_could_see_are_approved_once_only() {
    let mut scene = Scene::new();
    let cut =
        Call { recorded: r#"{"ringfence_cut":"3000000 bytes; the session's journal has them"}"#, ..CALL };
    let add = |scene: &mut Scene, scope| scene.add(cut, scope, None).expect("asked");
    assert_eq!(add(&mut scene, ApprovalScope::Arguments), Given::NotSeen);
    assert!(matches!(add(&mut scene, ApprovalScope::Session), Given::Stands(_)), "the control");
    let print = CALL.print();
    let missing =
        CallFacts { call: "none", uid: 5, session: "s1", governed: false, fingerprint: Some(&print) };
    for (facts, why) in [
        (missing, Given::NotOnRecord),
        (CallFacts { fingerprint: None, ..CALL.facts(&print) }, Given::NoFingerprint),
    ] {
        for scope in [ApprovalScope::Arguments, ApprovalScope::Tool] {
            assert_eq!(scene.writer.add_approval(&facts, (scope, None), "x", 1).expect("asked"), why);
        }
    }
}

#[test]
fn a_sessions_ends_with_the_session_and_others_with_their_time() {
    let mut scene = Scene::new();
    scene.given(CALL, ApprovalScope::Session, None);
    let other_arguments = Call { id: "c2", real: 'b', recorded: "{}", ..CALL };
    assert!(scene.is_answered(other_arguments));
    assert!(!scene.is_answered(Call { id: "c3", session: "s2", ..CALL }), "another session");
    assert!(!scene.is_answered(Call { id: "c4", tool: "u", ..CALL }), "another tool");
    let connection = scene.writer.connection().expect("open");
    connection.execute("UPDATE sessions SET ended_at = 'x' WHERE id = 's1'", []).expect("ends");
    assert!(!scene.is_answered(other_arguments));
    let standing = |scene: &Scene| scene.reader().approvals(Viewer(5), scene.now).expect("reads").len();
    assert_eq!(standing(&scene), 0);
    let elsewhere = Call { session: "s3", id: "c5", ..CALL };
    scene.given(elsewhere, ApprovalScope::Tool, Some(scene.now + SECOND));
    assert_eq!(standing(&scene), 1);
    assert!(scene.is_answered(Call { id: "c6", session: "s4", real: 'z', recorded: "{}", ..CALL }));
    scene.now += SECOND;
    assert!(!scene.is_answered(elsewhere));
    assert_eq!(standing(&scene), 0);
}

#[test]
fn another_server_behind_the_name_is_not_answered_and_ends_nothing() {
    let mut scene = Scene::new();
    scene.given(CALL, ApprovalScope::Tool, Some(scene.now + 60 * SECOND));
    let elsewhere = Call { id: "c2", session: "s2", ..CALL };
    assert!(scene.is_answered(elsewhere), "the control");
    let other = Call { id: "c3", server: 'e', session: "s3", ..CALL };
    assert!(!scene.is_answered(other));
    // Two terminals of one client differ, and neither is in the other's way.
    scene.given(other, ApprovalScope::Tool, Some(scene.now + 60 * SECOND));
    for same in [elsewhere, other, elsewhere] {
        assert!(scene.is_answered(same));
    }
    let words: Vec<String> = scene.changes().into_iter().map(|(change, _)| change).collect();
    assert_eq!(words, ["add", "add"]);
}

#[test]
fn it_is_revoked_at_once_by_its_user_and_by_root() {
    let mut scene = Scene::new();
    let now = scene.now;
    let given = |scene: &mut Scene| scene.given(CALL, ApprovalScope::Tool, Some(now + 60 * SECOND));
    let first = given(&mut scene);
    let revoke = |scene: &mut Scene, viewer, named: &str| {
        scene.writer.revoke_approval(Viewer(viewer), named, "uid 5", now).expect("asked")
    };
    assert_eq!(revoke(&mut scene, 6, &first), None, "another user's");
    assert_eq!(revoke(&mut scene, 5, &first[..3]), None, "too little of it");
    assert!(scene.is_answered(CALL), "the control");
    assert_eq!(revoke(&mut scene, 5, &first[..8]), Some(first.clone()));
    assert!(!scene.is_answered(CALL));
    assert_eq!(revoke(&mut scene, 5, &first), None, "once");
    let second = given(&mut scene);
    assert_eq!(revoke(&mut scene, 0, &second), Some(second));
    let words: Vec<String> = scene.changes().into_iter().map(|(change, _)| change).collect();
    assert_eq!(words, ["add", "revoke", "add", "revoke"]);
}

#[test]
fn a_user_has_so_many_and_no_more_and_what_is_over_is_forgotten() {
    let mut scene = Scene::new();
    let until = Some(scene.now + 3_600 * SECOND);
    let ids: Vec<String> =
        (0..MOST_APPROVALS).map(|_| scene.given(CALL, ApprovalScope::Tool, until)).collect();
    let of_subordinate = Call { id: "sub", uid: 7, session: "sub", ..CALL };
    for call in [CALL, of_subordinate] {
        assert!(matches!(scene.add(call, ApprovalScope::Tool, until), Err(Error::TooManyApprovals)));
    }
    let of_another = Call { id: "o", uid: 6, session: "o", ..CALL };
    scene.given(of_another, ApprovalScope::Tool, until);
    let now = scene.now;
    scene.writer.revoke_approval(Viewer(5), &ids[0], "uid 5", now).expect("asked").expect("it stood");
    scene.given(CALL, ApprovalScope::Tool, until);
    scene.writer.revoke_approval(Viewer(5), &ids[1], "uid 5", now).expect("asked").expect("it stood");
    // Much later: those that are over are gone from the table, some at a time, and the ledger has them.
    scene.now += super::KEPT + 2 * 3_600 * SECOND;
    let late = Some(scene.now + SECOND);
    let stands = scene.given(of_subordinate, ApprovalScope::Tool, late);
    let before = scene.count("1");
    let now = scene.now;
    scene.writer.forget_approvals(now).expect("forgotten");
    assert_eq!((before, scene.count("1")), (MOST_APPROVALS as i64 + 3, 1));
    assert_eq!(scene.count(&format!("id = '{stands}'")), 1, "the control");
    assert_eq!(
        scene.changes().iter().filter(|(change, _)| change == "add").count(),
        MOST_APPROVALS as usize + 1
    );
}

#[test]
fn what_is_kept_of_approvals_that_are_over_is_bounded_by_user() {
    let mut scene = Scene::new();
    let of_subordinate = Call { id: "sub", uid: 7, session: "sub", ..CALL };
    let of_another = Call { id: "o", uid: 6, session: "o", ..CALL };
    let gives_and_revokes = |scene: &mut Scene, call: Call| {
        let id = scene.given(call, ApprovalScope::Session, None);
        let now = scene.now;
        scene.writer.revoke_approval(Viewer(call.uid), &id, "x", now).expect("asked").expect("it stood");
        scene.now += 1;
    };
    gives_and_revokes(&mut scene, of_another);
    for _ in 0..super::MOST_KEPT / 2 + 2 {
        gives_and_revokes(&mut scene, CALL);
        gives_and_revokes(&mut scene, of_subordinate);
    }
    scene.given(of_subordinate, ApprovalScope::Session, None);
    let over = |scene: &mut Scene, of: &str| scene.count(&format!("ended_at IS NOT NULL AND {of}"));
    assert_eq!(over(&mut scene, "uid IN (5, 7)"), super::MOST_KEPT);
    assert_eq!(over(&mut scene, "uid = 6"), 1, "nobody's go for another's");
    assert_eq!(scene.count("ended_at IS NULL"), 1);
}

#[test]
fn nothing_about_approvals_looks_at_all_of_them() {
    let mut scene = Scene::new();
    let connection = scene.writer.connection().expect("open");
    for of in [
        "coalesce(a.owner, a.uid) = 5 ORDER BY a.created_at DESC",
        "coalesce(a.owner, a.uid) = 5",
        "a.session_id = 's' AND a.shown <> ''",
        "a.created_at < '2'",
        "a.is_left = 1",
    ] {
        let text = format!("EXPLAIN QUERY PLAN SELECT a.id FROM standing_approvals a WHERE {of}");
        let plan: String = connection.query_row(&text, [], |row| row.get(3)).expect("plans");
        assert!(plan.contains("USING INDEX") || plan.contains("USING COVERING INDEX"), "{of}: {plan}");
    }
    let all = "EXPLAIN QUERY PLAN SELECT a.id FROM standing_approvals a WHERE a.shown = 'x'";
    let plan: String = connection.query_row(all, [], |row| row.get(3)).expect("plans");
    assert!(!plan.contains("INDEX"), "the control: {plan}");
}

#[test]
fn what_stood_for_a_session_that_was_removed_takes_no_room() {
    let mut scene = Scene::new();
    for _ in 0..MOST_APPROVALS {
        scene.given(CALL, ApprovalScope::Session, None);
    }
    assert!(matches!(scene.add(CALL, ApprovalScope::Session, None), Err(Error::TooManyApprovals)));
    let connection = scene.writer.connection().expect("open");
    for removed in ["tool_calls", "messages", "sessions"] {
        connection.execute(&format!("DELETE FROM {removed}"), []).expect("removed");
    }
    assert_eq!(scene.reader().approvals(Viewer(5), scene.now).expect("reads").len(), 0, "none is listed");
    let next = Call { id: "c2", session: "s2", ..CALL };
    scene.given(next, ApprovalScope::Session, None);
}

#[test]
fn the_arguments_of_a_removed_session_are_removed_with_it_unless_they_stand_approved() {
    let mut scene = Scene::new();
    let until = Some(scene.now + 3_600 * SECOND);
    let of_session = scene.given(CALL, ApprovalScope::Session, None);
    let of_tool = scene.given(CALL, ApprovalScope::Tool, until);
    let stays = scene.given(Call { id: "c2", session: "s2", ..CALL }, ApprovalScope::Tool, until);
    let beginnings = |scene: &Scene| {
        [&of_session, &of_tool, &stays].map(|id| {
            let row = scene.reader().approval(Viewer(5), id).expect("reads").expect("is there");
            row["beginning"].as_str().expect("a text").is_empty()
        })
    };
    let remove = |scene: &mut Scene, session: &str| {
        let removal = crate::session_retention::Removal { session: session.into(), fresh: true };
        while scene.writer.remove_rows(&removal).expect("removes") {}
    };
    assert_eq!(beginnings(&scene), [false; 3], "the control");
    remove(&mut scene, "s1");
    assert_eq!(beginnings(&scene), [true, false, false]);
    let now = scene.now;
    scene.writer.revoke_approval(Viewer(5), &of_tool, "uid 5", now).expect("asked").expect("it stood");
    assert_eq!(beginnings(&scene), [true, false, false], "the control");
    scene.writer.forget_approvals(now).expect("forgotten");
    assert_eq!(beginnings(&scene), [true, true, false]);
    let kinds = scene.reader().unvouched(Viewer(5), 0, 1000).expect("reads");
    assert!(!kinds.iter().any(|row| row["kind"] == "approval"), "the auditor's own change is no finding");
}

#[test]
fn what_somebody_else_writes_is_found() {
    let mut scene = Scene::new();
    let id = scene.given(CALL, ApprovalScope::Tool, Some(scene.now + 60 * SECOND));
    assert!(scene.is_answered(CALL), "the auditor's own changes are no finding");
    let kinds = |scene: &Scene| -> Vec<String> {
        let rows = scene.reader().unvouched(Viewer(5), 0, 1000).expect("reads");
        rows.iter().filter_map(|row| row["kind"].as_str().map(str::to_owned)).collect()
    };
    assert!(!kinds(&scene).contains(&"approval".to_owned()));
    let other = rusqlite::Connection::open(scene.folder.path().join("audit.db")).expect("opens");
    other.execute("UPDATE standing_approvals SET until = '9' WHERE id = ?1", [&id]).expect("changed");
    assert!(kinds(&scene).contains(&"approval".to_owned()));
}
