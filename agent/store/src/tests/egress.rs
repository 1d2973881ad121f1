//! Connections by name: stored, found by their host, counted, deleted; and which host an address stood for.

use super::*;
use ringfence_common::event::op;
use ringfence_events::{
    egress::Told,
    report::{CheckedPayload, CheckedReport},
};
use ringfence_wire::egress::NameOutcome;
use std::net::Ipv4Addr;

fn at(ts: i64, container: u64, record: Decoded) -> Incoming {
    let Incoming::Event(event) = of(container, 1000, record) else { panic!("an event") };
    Incoming::Event(Box::new(Event { ts, ..*event }))
}

fn mapped(last: u8) -> [u8; 16] {
    Ipv4Addr::new(198, 18, 3, last).to_ipv6_mapped().octets()
}

/// An address stands for a name from now on.
fn answered(name: &str, last: u8) -> Decoded {
    let mut record = samples::question(name);
    if let Some(Told::Question(question)) = record.egress.as_mut().map(|egress| &mut egress.told) {
        (question.outcome, question.address) = (NameOutcome::Answered, Some([198, 18, 3, last].into()));
    }
    Decoded { verdict: verdict::ALLOWED, family: 2, addr: mapped(last), ..record }
}

/// The kernel's own event about an address of the block.
fn refused(last: u8) -> Decoded {
    Decoded { op: op::CONNECT, family: 2, port: 8080, addr: mapped(last), path: None, ..samples::decoded() }
}

fn reader(dir: &tempfile::TempDir) -> Reader {
    Reader::open(&dir.path().join(FILE)).expect("opens")
}

#[test]
fn what_a_worker_tells_comes_out_as_it_went_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let unknown = Decoded { lineage: [1, 0, 0, 0], ..samples::connection("pypi.org", 443) };
    let nameless = samples::connection("", 443);
    let told = [unknown, samples::question("evil.example"), nameless];
    opened(&dir).write(&told.clone().map(|record| of(0x1005, 1000, record))).expect("writes");
    let filter = Filter::default();
    let stored = reader(&dir).events(Viewer(1000), &filter, 0, 9, 9).expect("reads");
    for (stored, told) in stored.iter().zip(told) {
        assert_eq!(stored.record, told);
    }
    assert_eq!(stored[0].name.as_deref(), Some("pypi.org"));
    // By what was told of that address.
    assert_eq!(stored[2].name, None);
}

#[test]
fn a_host_is_asked_for_by_its_name_or_by_what_is_above_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let hosts = ["pypi.org", "files.pypi.org", "a.files.pypi.org", "notpypi.org"];
    writer.write(&[of(1, 1000, samples::decoded())]).expect("writes");
    writer.write(&hosts.map(|host| of(1, 1000, samples::question(host)))).expect("writes");
    writer.write(&[of(2, 1001, samples::connection("pypi.org", 443))]).expect("writes");
    let named = |name: &str| Filter { name: Some(name.into()), ..Filter::default() };
    let found = |viewer, filter: &Filter| ids(&dir, Viewer(viewer), filter, None);
    assert_eq!(found(0, &named("pypi.org")), [2, 6]);
    assert_eq!(found(0, &named("PyPI.org")), [2, 6]);
    assert_eq!(found(1000, &named("pypi.org")), [2], "another user's");
    assert_eq!(found(0, &named("*.pypi.org")), [3, 4]);
    assert_eq!(found(0, &named("*.files.pypi.org")), [4]);
    assert_eq!(found(0, &named("%")), [0u64; 0]);
    let egress = Filter { egress: true, ..Filter::default() };
    assert_eq!(found(0, &egress), [2, 3, 4, 5, 6]);
    assert_eq!(ids(&dir, Viewer(0), &egress, Some(2)), [5, 6]);
    assert_eq!(found(0, &Filter { refused: true, ..egress }), [2, 3, 4, 5]);
    assert_eq!(found(0, &Filter::default()), [1, 2, 3, 4, 5, 6], "the control");
    let plan: Vec<String> = writer
        .connection()
        .prepare(&format!(
            "EXPLAIN QUERY PLAN SELECT e.id FROM events e WHERE {} LIMIT ?6",
            read::condition(&named("x"))
        ))
        .and_then(|mut plan| {
            plan.query_map(rusqlite::params![0, 9, 0, 0, "", 9, "x"], |row| row.get(3))?.collect()
        })
        .expect("plans");
    assert!(plan.iter().any(|step| step.contains("events_by_name")), "{plan:?}");
}

#[test]
fn an_address_stands_for_what_it_stood_for_then_and_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let second = 1_000_000;
    opened(&dir)
        .write(&[
            at(10 * second, 1, answered("a.org", 128)),
            at(100 * second, 1, answered("b.org", 128)),
            at(10 * second, 2, answered("other.org", 128)),
            at(9 * second, 1, answered("c.org", 1)),
            // Told a moment later than the kernel's event, which its clock may be.
            at(20 * second, 1, refused(128)),
            at(100 * second - 200, 1, refused(128)),
            at(200 * second, 1, refused(128)),
            at(200 * second, 2, refused(128)),
            at(5 * second, 1, refused(128)),
            at(200 * second, 1, refused(77)),
            at(200 * second, 1, Decoded { addr: [9; 16], ..refused(128) }),
        ])
        .expect("writes");
    let name = |id| reader(&dir).event(Viewer(0), id).expect("reads").expect("is there").name;
    assert_eq!(name(5).as_deref(), Some("a.org"));
    assert_eq!(name(6).as_deref(), Some("b.org"));
    assert_eq!(name(7).as_deref(), Some("b.org"));
    assert_eq!(name(8).as_deref(), Some("other.org"));
    assert_eq!([name(9), name(10), name(11)], [None, None, None]);
}

#[test]
fn a_tag_of_another_container_is_no_call_of_this_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let said = |payload| {
        Incoming::Report(Box::new(CheckedReport {
            agent: "coder".into(),
            uid: 1000,
            container: None,
            at: now_micros(),
            payload,
        }))
    };
    let call = ringfence_wire::trace::AgentEvent::Call {
        key: "k".into(),
        id: "toolu_1".into(),
        renamed: None,
        intent: None,
        tool: "bash".into(),
        server: None,
        input: "{}".into(),
        paths: None,
        moment: 1,
    };
    let tagged = |record| Decoded { call: 7, ..record };
    writer
        .write(&[
            of(0xa, 1000, samples::decoded()),
            of(0xb, 1000, samples::decoded()),
            said(CheckedPayload::Event(call)),
            said(CheckedPayload::Tagged { tag: 7, container: format!("{:012x}", 0xa) }),
            said(CheckedPayload::Event(ringfence_wire::trace::AgentEvent::Tagged {
                key: "k".into(),
                tag: 7,
                matched: false,
            })),
            of(0xa, 1000, tagged(samples::connection("a.org", 443))),
            of(0xb, 1000, tagged(samples::connection("a.org", 443))),
        ])
        .expect("writes");
    let call = |id| reader(&dir).event(Viewer(0), id).expect("reads").expect("is there").call;
    assert_eq!((call(3).as_deref(), call(4)), (Some("toolu_1"), None));
    let row: i64 =
        writer.connection().query_row("SELECT row FROM agent_calls", [], |row| row.get(0)).expect("the call");
    let of_call = reader(&dir).events_tagged(Viewer(0), row, 9).expect("reads");
    assert_eq!(of_call.iter().map(|stored| stored.id).collect::<Vec<_>>(), [3]);
}

#[test]
fn what_a_worker_refuses_hides_no_denial_of_the_kernel_s() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let counted = Counted { container: 1, denied: 5, ..Counted::default() };
    writer.write(&[of(1, 1000, samples::decoded()), Incoming::Counted(counted)]).expect("writes");
    let missing = || reader(&dir).losses().expect("reads").missing_denied;
    assert_eq!(missing(), 4);
    writer.write(&[(); 9].map(|()| of(1, 1000, samples::question("evil.example")))).expect("writes");
    assert_eq!(missing(), 4);
    let lost = |count| Incoming::EgressLost {
        kernel: 1,
        identity: identity("000000000001", 1000).expect("one"),
        count,
    };
    writer.write(&[lost(3), lost(u64::MAX)]).expect("writes");
    let of_container = reader(&dir).lost(Viewer(1000)).expect("reads");
    assert_eq!(of_container[0].egress, 3 + u64::from(u32::MAX));
    assert_eq!(reader(&dir).losses().expect("reads").egress, 3 + u64::from(u32::MAX));
    assert!(reader(&dir).lost(Viewer(1001)).expect("reads").is_empty());
}

#[test]
fn retention_gives_back_what_rows_were_counted_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    let long = "n".repeat(200);
    let records = [samples::question(&long), samples::connection(&long, 1), samples::decoded()];
    let records = records.map(|record| Decoded { lineage: [3, 4, 0, 0], ..record });
    writer.write(&records.map(|record| of(1, 1000, record))).expect("writes");
    let account = |writer: &Writer| -> i64 {
        writer
            .connection()
            .query_row("SELECT sum(bytes) FROM containers", [], |row| row.get(0))
            .expect("reads")
    };
    assert!(account(&writer) > 3 * 120 + 400);
    let retention = Retention::default();
    while writer.retain(&retention, now_micros() + retention.age + 60_000_000).expect("deletes") {}
    assert_eq!(reader(&dir).size(Viewer(0)).expect("reads").0, 0);
    assert_eq!(account(&writer), 0);
}

#[test]
fn what_another_version_wrote_is_shown_without_its_details() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = opened(&dir);
    writer.write(&[of(1, 1000, samples::question("a.org"))]).expect("writes");
    writer.connection().execute("UPDATE events SET egress = '{\"more\":1}'", []).expect("changes");
    let stored = reader(&dir).event(Viewer(0), 1).expect("reads").expect("is there");
    assert_eq!((stored.record.egress, stored.name.as_deref()), (None, Some("a.org")));
}
