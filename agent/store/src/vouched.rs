//! Rows that no journal makes, and that can be verified all the same: intents, the calls' places in them, rules, rule files.
//!
//! The auditor's connections copy what they write of them into `vouched`, by triggers that only those connections have: a
//! row that somebody else writes differs from its copy, has none, or leaves one behind. Who knows of the copies can write
//! those too, as with the database's own hashes.
//!
//! A column that is NULL is no part of a copy, so that a new column changes none. A migration that gives rows of these
//! tables anything else has to write their copies anew.

use rusqlite::{Connection, TransactionBehavior};

/// A table whose rows have copies. In the texts, `$` stands for a row.
struct Vouched {
    /// What a row is called.
    kind: &'static str,
    table: &'static str,
    /// What tells a row from others.
    key: &'static str,
    /// Whose it is; 0: root's, or everybody's.
    uid: &'static str,
}

const ALL: [Vouched; 4] = [
    Vouched {
        kind: "intent",
        table: "intent_contexts",
        key: "$.id",
        uid: "coalesce((SELECT s.uid FROM sessions s WHERE s.id = $.session_id), 0)",
    },
    Vouched {
        kind: "link",
        table: "intent_tool_calls",
        key: "$.intent_id || ' ' || $.tool_call_id",
        uid: "coalesce((SELECT s.uid FROM tool_calls c JOIN sessions s ON s.id = c.session_id WHERE c.id = $.tool_call_id), 0)",
    },
    Vouched { kind: "rule", table: "policy_rules", key: "$.id", uid: "$.uid" },
    Vouched { kind: "rule file", table: "rule_files", key: "$.uid || ' ' || $.path", uid: "$.uid" },
];

/// Migration 30. The row of no kind says that every row of before has its copy.
pub(crate) const MIGRATION: &str = "
    CREATE TABLE vouched (
        kind    TEXT NOT NULL,
        id      TEXT NOT NULL,
        uid     INTEGER NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (kind, id)
    ) WITHOUT ROWID;
";

/// Has a connection that writes copy what it writes. Rows of before there were copies are taken for what they are.
pub(crate) fn install(connection: &mut Connection) -> rusqlite::Result<()> {
    let whole = "SELECT 1 FROM vouched WHERE kind = '' LIMIT 1";
    if !connection.prepare(whole)?.exists([])? {
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Asked again within: another connection may have just done it.
        if !step.prepare(whole)?.exists([])? {
            for of in &ALL {
                step.execute_batch(&format!(
                    "DELETE FROM vouched WHERE kind = '{}'; INSERT INTO vouched SELECT {} FROM {} t;",
                    of.kind,
                    of.copy(&step, "t")?,
                    of.table
                ))?;
            }
            step.execute("INSERT INTO vouched VALUES ('', '', 0, '')", [])?;
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

    /// Rows that are not what the auditor wrote, as a query: kind, id, what was done, whose.
    fn differing(&self, connection: &Connection) -> rusqlite::Result<String> {
        let Self { kind, table, .. } = self;
        let (key, uid, content) = (self.key_of("t"), self.uid_of("t"), self.content(connection, "t")?);
        Ok(format!(
            "SELECT '{kind}' AS kind, {key} AS id, iif(v.content IS NULL, 'added', 'changed') AS how, {uid} AS uid
             FROM {table} t LEFT JOIN vouched v ON v.kind = '{kind}' AND v.id = {key} WHERE v.content IS NOT {content}
             UNION ALL SELECT v.kind, v.id, 'removed', v.uid FROM vouched v
             WHERE v.kind = '{kind}' AND v.id NOT IN (SELECT {key} FROM {table} t WHERE {key} IS NOT NULL)"
        ))
    }
}

/// The same of all kinds.
pub(crate) fn differing(connection: &Connection) -> rusqlite::Result<String> {
    let each: Result<Vec<String>, _> = ALL.iter().map(|of| of.differing(connection)).collect();
    Ok(each?.join(" UNION ALL "))
}
