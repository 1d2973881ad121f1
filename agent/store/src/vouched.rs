//! Rows that no journal makes, and that can be verified all the same: intents, the calls' places in them, rules, rule files,
//! approvals that stand, and what is pinned of tools.
//!
//! The auditor's connections copy what they write of them into `vouched`, by triggers that only those connections have: a
//! row that somebody else writes differs from its copy, has none, or leaves one behind. Who knows of the copies can write
//! those too, as with the database's own hashes.
//!
//! Rows of before there were copies are taken for what they are. There may be hundreds of thousands: they are copied a few at
//! a time, while the auditor does its work, and nothing is compared before that is done.
//!
//! A column that is NULL is no part of a copy, so that a new column changes none. A migration that gives rows of these
//! tables anything else has to write their copies anew.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

/// A table whose rows have copies. In the texts, `$` stands for a row.
struct Vouched {
    /// What a row is called.
    kind: &'static str,
    table: &'static str,
    /// What tells a row from others.
    key: &'static str,
    /// How a row `t` is found, by an index, from the id of a copy `v`: as far as the index goes.
    by_key: &'static str,
    /// Whose it is; 0: root's, or everybody's.
    uid: &'static str,
}

/// Most of an id that is told, characters: who writes to the database chooses how long it is.
const MOST_ID: u32 = 200;

const ALL: [Vouched; 6] = [
    Vouched {
        kind: "intent",
        table: "intent_contexts",
        key: "$.id",
        by_key: "t.id = v.id",
        uid: "coalesce((SELECT s.uid FROM sessions s WHERE s.id = $.session_id), 0)",
    },
    Vouched {
        kind: "link",
        table: "intent_tool_calls",
        key: "$.intent_id || ' ' || $.tool_call_id",
        // No id of the auditor's has a blank.
        by_key: "t.intent_id = substr(v.id, 1, instr(v.id, ' ') - 1)",
        uid: "coalesce((SELECT s.uid FROM tool_calls c JOIN sessions s ON s.id = c.session_id WHERE c.id = $.tool_call_id), 0)",
    },
    Vouched { kind: "rule", table: "policy_rules", key: "$.id", by_key: "t.id = v.id", uid: "$.uid" },
    Vouched {
        kind: "rule file",
        table: "rule_files",
        key: "$.uid || ' ' || $.path",
        by_key: "t.uid = CAST(substr(v.id, 1, instr(v.id, ' ') - 1) AS INTEGER)",
        uid: "$.uid",
    },
    Vouched {
        kind: "tool pin",
        table: "tool_pins",
        key: "$.server || ' ' || $.name",
        by_key: "t.server = CAST(substr(v.id, 1, instr(v.id, ' ') - 1) AS INTEGER)",
        uid: "$.uid",
    },
    // A table that is younger than the copies: it has no rows of before.
    Vouched {
        kind: "approval",
        table: "standing_approvals",
        key: "$.id",
        by_key: "t.id = v.id",
        uid: "$.uid",
    },
];

/// Rows of before that one transaction copies.
const AT_ONCE: i64 = 2000;

/// Migration 30. A row of no kind and no id says that every row of before has its copy. Until then one for each kind, with that
/// as its id, says up to which row number it is copied, and up to which there are rows of before. The rows have
/// numbers, for pages of them.
pub(crate) const MIGRATION: &str = "
    CREATE TABLE vouched (
        kind    TEXT NOT NULL,
        id      TEXT NOT NULL,
        uid     INTEGER NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (kind, id)
    );
";

/// Whether every row of before has its copy.
pub(crate) fn is_whole(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM vouched WHERE kind = '' AND id = ''")?.exists([])
}

/// Copies some of the rows of before that have no copy yet, in one transaction; whether there are more.
pub(crate) fn copy_some(connection: &mut Connection) -> rusqlite::Result<bool> {
    if is_whole(connection)? {
        return Ok(false);
    }
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for of in &ALL {
        let place = "SELECT content FROM vouched WHERE kind = '' AND id = ?1";
        let place: Option<String> =
            step.prepare_cached(place)?.query_row([of.kind], |row| row.get(0)).optional()?;
        let Some((done, last)) = place.as_deref().and_then(place_of) else { continue };
        if done >= last {
            continue;
        }
        // By the numbers of rows that there are: of those that were removed, any number may be missing.
        let to: i64 = step.query_row(
            &format!(
                "SELECT coalesce(max(n), ?2) FROM
                     (SELECT rowid AS n FROM {} WHERE rowid > ?1 AND rowid <= ?2 ORDER BY rowid LIMIT ?3)",
                of.table
            ),
            params![done, last, AT_ONCE],
            |row| row.get(0),
        )?;
        // What has a copy was written since.
        step.execute(
            &format!(
                "INSERT OR IGNORE INTO vouched SELECT {} FROM {} t WHERE t.rowid > ?1 AND t.rowid <= ?2",
                of.copy(&step, "t")?,
                of.table
            ),
            params![done, to],
        )?;
        step.execute(
            "UPDATE vouched SET content = ?2 WHERE kind = '' AND id = ?1",
            params![of.kind, format!("{to} {last}")],
        )?;
        step.commit()?;
        return Ok(true);
    }
    whole(&step)?;
    step.commit()?;
    Ok(false)
}

/// Up to which row number rows are copied, and up to which they are to be.
fn place_of(text: &str) -> Option<(i64, i64)> {
    let (done, last) = text.split_once(' ')?;
    Some((done.parse().ok()?, last.parse().ok()?))
}

/// Notes that every row of before has its copy.
fn whole(step: &Connection) -> rusqlite::Result<()> {
    step.execute_batch("DELETE FROM vouched WHERE kind = ''; INSERT INTO vouched VALUES ('', '', 0, '')")
}

/// Has a connection that writes copy what it writes, and notes which rows there were before there were copies.
pub(crate) fn install(connection: &mut Connection) -> rusqlite::Result<()> {
    let begun = "SELECT 1 FROM vouched WHERE kind = '' LIMIT 1";
    if !connection.prepare(begun)?.exists([])? {
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Asked again within: another connection may have just done it.
        if !step.prepare(begun)?.exists([])? {
            let mut are_there = false;
            for of in &ALL {
                let last = format!("SELECT coalesce(max(rowid), 0) FROM {}", of.table);
                let last: i64 = step.query_row(&last, [], |row| row.get(0))?;
                are_there |= last > 0;
                step.execute(
                    "INSERT INTO vouched VALUES ('', ?1, 0, ?2)",
                    params![of.kind, format!("0 {last}")],
                )?;
            }
            if !are_there {
                whole(&step)?;
            }
        }
        step.commit()?;
    }
    for of in &ALL {
        let Vouched { kind, table, .. } = of;
        let name = table;
        // Not by a conflict clause: that of the statement which fires the trigger would stand in its place.
        let remove = |row| format!("DELETE FROM vouched WHERE kind = '{kind}' AND id = {};", of.key_of(row));
        let (forget, replace) = (remove("OLD"), remove("NEW"));
        let copy = format!("{replace} INSERT INTO vouched VALUES ({});", of.copy(connection, "NEW")?);
        connection.execute_batch(&format!(
            "CREATE TEMP TRIGGER {name}_vouched AFTER INSERT ON main.{table} BEGIN {copy} END;
             CREATE TEMP TRIGGER {name}_vouched_anew AFTER UPDATE ON main.{table} BEGIN {forget} {copy} END;
             CREATE TEMP TRIGGER {name}_forgotten AFTER DELETE ON main.{table} BEGIN {forget} END;"
        ))?;
    }
    Ok(())
}

impl Vouched {
    fn key_of(&self, row: &str) -> String {
        self.key.replace('$', row)
    }

    fn uid_of(&self, row: &str) -> String {
        self.uid.replace('$', row)
    }

    /// A row's copy: every column that is not NULL, by its name, with its type and its bytes; `quote` would end at a NUL, and
    /// whoever reads the column may not.
    fn content(&self, connection: &Connection, row: &str) -> rusqlite::Result<String> {
        let statement = connection.prepare(&format!("SELECT * FROM {}", self.table))?;
        let column = |name: &str| {
            let value = format!("{row}.{name}");
            format!(
                "CASE WHEN {value} IS NULL THEN ''
                 ELSE '{name}=' || typeof({value}) || ':' || hex(CAST({value} AS BLOB)) || ';' END"
            )
        };
        let columns: Vec<String> = statement.column_names().map(column).collect();
        Ok(columns.join(" || "))
    }

    /// The values of a row of `vouched`.
    fn copy(&self, connection: &Connection, row: &str) -> rusqlite::Result<String> {
        let content = self.content(connection, row)?;
        Ok(format!("'{}', {}, {}, {content}", self.kind, self.key_of(row), self.uid_of(row)))
    }

    /// Its rows with numbers from `?2` to `?4`, up to `?3` of them, that user `?1` is shown, as a query: the row's number, its id, and what was
    /// done to it, or NULL if it is what the auditor wrote. Rows of others are left out before any of their text is read.
    fn compared(&self, connection: &Connection) -> rusqlite::Result<String> {
        let Self { kind, table, .. } = self;
        let (key, uid, content) = (self.key_of("t"), self.uid_of("t"), self.content(connection, "t")?);
        let shown = self.shown(&uid);
        Ok(format!(
            "SELECT t._at, substr({key}, 1, {MOST_ID}),
                 CASE WHEN v.content IS NULL THEN 'added' WHEN v.content IS NOT {content} THEN 'changed' END
             FROM (SELECT t.rowid AS _at, t.* FROM {table} t WHERE t.rowid BETWEEN ?2 AND ?4 AND {shown} ORDER BY t.rowid LIMIT ?3) t
             LEFT JOIN vouched v ON v.kind = '{kind}' AND v.id = {key} ORDER BY t._at"
        ))
    }

    /// The same of copies whose row is gone, or is another user's now: its owner would not be shown that it differs.
    fn copies(&self) -> String {
        let Self { kind, table, .. } = self;
        let (key, shown, uid) = (self.key_of("t"), self.shown("v.uid"), self.uid_of("t"));
        let own_key = self.by_key;
        format!(
            "SELECT v._at, substr(v.id, 1, {MOST_ID}),
                 iif(EXISTS (SELECT 1 FROM {table} t WHERE {own_key} AND {key} = v.id AND (?1 = 0 OR {uid} IS v.uid)), NULL, 'removed')
             FROM (SELECT v.rowid AS _at, v.id, v.uid FROM vouched v WHERE v.rowid BETWEEN ?2 AND ?4 AND +v.kind = '{kind}' AND {shown}
                 ORDER BY v.rowid LIMIT ?3) v ORDER BY v._at"
        )
    }

    /// Whether user `?1` is shown a row of this user. Root's rules bind everybody.
    fn shown(&self, uid: &str) -> String {
        let all = if self.kind == "rule" { format!(" OR {uid} = 0") } else { String::new() };
        format!("(?1 = 0 OR {uid} = ?1{all})")
    }
}

/// Queries that compare everything, one after another: what their rows are called, and the text.
pub(crate) fn comparisons(connection: &Connection) -> rusqlite::Result<Vec<(&'static str, String)>> {
    let rows = ALL.iter().map(|of| Ok((of.kind, of.compared(connection)?)));
    let copies = ALL.iter().map(|of| Ok((of.kind, of.copies())));
    rows.chain(copies).collect()
}
