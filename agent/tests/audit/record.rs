//! The record against those who would change it: journals, rows, the ledger, heads and retention.

use super::support::{Home, Session, wait_until};
use std::{fs, path::Path};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[test]
fn an_edit_a_gap_a_cut_and_a_lost_journal_are_found() {
    let home = Home::new(&[]);
    home.session();
    home.session();
    home.is_whole(&[], "2 sessions whole");
    let journal = home.journals().remove(0);
    let original = fs::read_to_string(&journal).expect("a journal");
    let lines: Vec<&str> = original.lines().collect();
    let without = |gone: usize| {
        let kept = lines.iter().enumerate().filter(|(index, _)| *index != gone);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    let cases = [
        (original.replacen("read_file", "find_file", 1), "does not follow"),
        (without(3), "does not follow"),
        (without(lines.len() - 1), "it was cut"),
        (String::new(), "it was cut"),
        (original.clone() + lines[1] + "\n", "does not follow"),
    ];
    for (changed, what) in cases {
        fs::write(&journal, changed).expect("written");
        home.finds(&[], what);
    }
    fs::write(
        &journal,
        home.journals().get(1).map(|other| fs::read(other).expect("a journal")).expect("two"),
    )
    .expect("written");
    home.finds(&[], "is another one");
    fs::remove_file(&journal).expect("removed");
    home.finds(&[], "cannot be read");
    // Opening one of these would wait for ever, or do something.
    nix::unistd::mkfifo(&journal, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    home.finds(&[], "not a regular file");
    fs::remove_file(&journal).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", &journal).expect("a link");
    home.finds(&[], "not a regular file");
    fs::remove_file(&journal).expect("removed");
    fs::write(&journal, original).expect("written");
    home.is_whole(&[], "2 sessions whole");
}

#[test]
fn changed_rows_and_sessions_that_are_gone_are_found() {
    let changes = [
        ("UPDATE tool_calls SET tool_name = 'nothing' WHERE tool_name = 'write_file'", "tool calls"),
        ("UPDATE tool_calls SET arguments = '{}' WHERE rowid = 1", "tool calls"),
        ("UPDATE tool_calls SET decision = 'approved' WHERE decision IS NOT NULL", "tool calls"),
        ("UPDATE tool_calls SET answer = 'tool_error' WHERE answer IS NOT NULL", "outcomes of tool calls"),
        (
            "UPDATE sessions SET outcomes = NULL; UPDATE tool_calls SET answer = NULL",
            "outcomes of tool calls",
        ),
        ("UPDATE tool_calls SET cancelled_at = requested_at WHERE rowid = 1", "outcomes of tool calls"),
        ("UPDATE tool_calls SET task_answer = 'error' WHERE rowid = 1", "outcomes of tool calls"),
        ("DELETE FROM calls_by_user WHERE id = (SELECT id FROM tool_calls WHERE rowid = 1)", "tool calls"),
        ("UPDATE calls_by_user SET flagged = 1 - flagged", "tool calls"),
        ("UPDATE messages SET raw = '{}' WHERE rowid = 2", "messages"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM messages WHERE rowid = 2", "messages"),
        ("UPDATE stderr SET text = 'all is well'", "lines of standard error"),
        ("DELETE FROM stderr", "lines of standard error"),
        ("UPDATE sessions SET server_name = 'other'", "another server"),
        ("UPDATE sessions SET ended_at = started_at", "another end"),
        ("UPDATE sessions SET exit_status = 99", "another exit status"),
        ("UPDATE ledger SET entry = replace(entry, '\"ended\":true', '\"ended\":false')", "does not follow"),
        ("DELETE FROM ledger WHERE seq = 1", "begins with entry 2"),
        ("DELETE FROM ledger", "the ledger does not name it"),
        ("UPDATE intent_contexts SET human_prompt = 'tidy up'", "its row in the database was changed"),
        ("UPDATE intent_tool_calls SET sequence_order = 7 WHERE rowid = 1", "link "),
        ("DELETE FROM intent_tool_calls WHERE rowid = 1", "was removed, and not by the auditor"),
        (
            "INSERT INTO policy_rules (id, name, action, created_at) VALUES ('x', 'x', 'block', '')",
            "rule x: its row",
        ),
    ];
    let mut home = Home::new(&[]);
    home.session();
    home.is_whole(&[], "1 session whole");
    home.stop();
    let (data, kept) = (home.data(), home.dir.path().join("kept"));
    copy(&data, &kept);
    for (change, what) in changes {
        home.sql(change);
        home.start(&[]);
        home.finds(&[], what);
        home.stop();
        fs::remove_dir_all(&data).expect("removed");
        copy(&kept, &data);
    }
    // A session that began before standard error was kept here has none of it; the ledger knows that this one did not.
    home.sql("UPDATE sessions SET stderr_bytes = NULL, stderr_dropped = NULL; DELETE FROM stderr");
    home.start(&[]);
    home.finds(&[], "lines of standard error");
    home.stop();
    // The whole session: rows and journal.
    home.sql("PRAGMA foreign_keys = OFF; DELETE FROM sessions; DELETE FROM messages; DELETE FROM tool_calls");
    fs::remove_file(&home.journals()[0]).expect("removed");
    home.start(&[]);
    home.finds(&[], "retention did not remove it");
}

#[test]
fn a_copy_is_compared_with_the_journals_beside_it() {
    let mut home = Home::new(&[]);
    home.session();
    let heads = home.heads("heads");
    home.stop();
    let moved = home.dir.path().join("moved");
    copy(&home.data(), &moved);
    home.start(&[]);
    let db = moved.join("audit.db").display().to_string();
    let made_as = format!("this database was made as {}", home.data().join("audit.db").display());
    home.is_whole(&["--db", &db], &made_as);
    home.is_whole(&["--db", &db, "--heads", &heads], "heads kept elsewhere compared");
    // The live journals are no concern of the copy's, nor the copy's of theirs.
    let journal = home.journals().remove(0);
    let original = fs::read_to_string(&journal).expect("a journal");
    fs::write(&journal, original.replacen("read_file", "find_file", 1)).expect("written");
    home.is_whole(&["--db", &db], "1 session whole");
    home.finds(&[], "does not follow");
    fs::write(&journal, &original).expect("written");
    let copied = moved.join("audit.db.journals").join(journal.file_name().expect("a name"));
    fs::write(&copied, original.replacen("read_file", "find_file", 1)).expect("written");
    home.finds(&["--db", &db], "does not follow");
    home.is_whole(&[], "1 session whole");
    fs::remove_file(&copied).expect("removed");
    home.finds(&["--db", &db], "cannot be read");
    let (said, _) = home.verify(&[]);
    assert!(!said.contains("this database was made as"), "{said}");
}

#[test]
fn an_older_copy_of_everything_is_found_by_heads_kept_elsewhere() {
    let mut home = Home::new(&[]);
    home.session();
    let early = home.heads("early");
    home.stop();
    let (data, kept) = (home.data(), home.dir.path().join("kept"));
    copy(&data, &kept);
    home.start(&[]);
    home.session();
    let late = home.heads("late");
    home.is_whole(&["--heads", &early], "heads kept elsewhere compared");
    home.is_whole(&["--heads", &late], "heads kept elsewhere compared");
    home.stop();
    fs::remove_dir_all(&data).expect("removed");
    copy(&kept, &data);
    home.start(&[]);
    home.is_whole(&[], "1 session whole");
    home.is_whole(&["--heads", &early], "1 session whole");
    home.finds(&["--heads", &late], "older copy");
    // Heads of nobody prove nothing.
    let other = home.dir.path().join("other");
    fs::write(&other, fs::read_to_string(&late).expect("heads").replace(" db=", " db=0")).expect("written");
    home.finds(&["--heads", &other.display().to_string()], "no head of the database");
}

#[test]
fn a_head_of_another_user_s_says_nothing_of_a_session() {
    let home = Home::new(&[]);
    home.session();
    let file = home.heads("heads");
    let heads = fs::read_to_string(&file).expect("heads");
    let head = heads.lines().find(|line| line.contains(" session=")).expect("a session's head");
    let longer = head.replace(" lines=", " lines=9");
    fs::write(&file, format!("{heads}{longer}\n")).expect("written");
    home.finds(&["--heads", &file], "it was cut");
    let foreign = longer.replace(" uid=", " uid=4");
    fs::write(&file, format!("{heads}{foreign}\n")).expect("written");
    home.is_whole(&["--heads", &file], "1 session whole");
    // Of one that is not on record, it is said whose head names it.
    let unknown = foreign.replace(" session=", " session=0");
    fs::write(&file, format!("{heads}{unknown}\n")).expect("written");
    home.finds(&["--heads", &file], " of uid 4");
}

#[test]
fn retention_leaves_checkpoints_and_sessions_that_run() {
    let mut home = Home::new(&[]);
    home.session();
    home.session();
    let heads = home.heads("heads");
    let old = home.journals();
    let kept = fs::read(&old[0]).expect("a journal");
    home.stop();
    home.start(&["--keep-bytes", "1", "--grace", "0"]);
    let mut running = Session::open(&home);
    wait_until("the old sessions are removed", || old.iter().all(|journal| !journal.exists()));
    home.is_whole(&["--heads", &heads], "2 sessions with 8 calls removed by retention");
    assert_eq!(home.journals().len(), 1, "the one that runs stays");
    let db = rusqlite::Connection::open(home.data().join("audit.db")).expect("the database");
    let count = |table: &str| {
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).expect(table)
    };
    // The rows of the session that runs may be on their way.
    wait_until("the rows of the one that runs are all there are", || {
        ["sessions", "tool_calls", "session_bounds", "stderr"].map(count) == [1, 4, 1, 1]
    });
    drop(db);

    // A removed session's journal that comes back is not taken in again; a head that says more than its checkpoint is
    // found.
    fs::write(&old[0], kept).expect("written");
    running.send(r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#);
    let halted = running.halted();
    home.stop();
    home.start(&[]);
    drop(halted);
    home.is_whole(&["--heads", &heads], "2 sessions with 8 calls removed by retention");
    assert!(!old[0].exists(), "whoever offers it is told that it was removed");
    let longer = fs::read_to_string(&heads).expect("heads").replacen("lines=1", "lines=91", 1);
    assert!(longer.contains("lines=91"));
    fs::write(&heads, longer).expect("written");
    home.finds(&["--heads", &heads], "the checkpoint has");
    running.end();
    home.is_whole(&[], "1 session whole");
}

#[test]
fn what_is_too_old_is_removed_and_the_rest_stays() {
    let mut home = Home::new(&[]);
    home.session();
    home.stop();
    // Within the bounds nothing goes, however little room each would leave.
    home.start(&["--keep-days", "1", "--keep-bytes", "100000000", "--grace", "0"]);
    home.session();
    std::thread::sleep(std::time::Duration::from_millis(500));
    home.is_whole(&[], "2 sessions whole");
    home.stop();
    home.start(&["--keep-days", "0", "--grace", "3600"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    home.is_whole(&[], "2 sessions whole");
    home.stop();
    home.start(&["--keep-days", "0", "--grace", "0"]);
    wait_until("both are too old", || home.journals().is_empty());
    home.is_whole(&[], "2 sessions with 8 calls removed by retention");
}
