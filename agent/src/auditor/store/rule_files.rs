//! Rule files of interceptors: what of each is in force, and a change that waits for a confirmation.

use super::{Error, SessionWriter, Viewer, sql, turn};
use crate::{
    auditor::clock::rfc3339,
    mcp::{journal::sha256, reload},
};
use ringfence_wire::mcp::RuleFile;
use rusqlite::{Connection, OptionalExtension as _, params};

/// Rule files that are remembered for each user. Beyond that none is taken: if older ones gave way, whoever names enough
/// files could make the auditor forget what was confirmed.
const MOST_FILES: i64 = 256;
/// A file that no session had for so long is forgotten, µs: 90 days.
const FORGOTTEN: i64 = 90 * 24 * 3_600 * 1_000_000;

/// Migration 4.
pub(super) const MIGRATION: &str = "
    CREATE TABLE rule_files (
        uid            INTEGER NOT NULL,
        path           TEXT NOT NULL,
        text           TEXT NOT NULL,       -- in force
        since          TIMESTAMP NOT NULL,
        used           TIMESTAMP NOT NULL,
        confirmed_by   TEXT,                -- who, where it loosened the one before
        pending        TEXT,                -- the file's text, where that loosens this one
        pending_sha256 TEXT,
        pending_at     TIMESTAMP,
        PRIMARY KEY (uid, path)
    );
";

/// How a rule file stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The text in force.
    pub(crate) text: String,
    /// The rule that the file loosens, where it waits for a confirmation.
    pub(crate) held: Option<String>,
}

impl SessionWriter {
    /// Takes a rule file, or keeps it waiting because it loosens what is in force. A file that nobody has seen before is
    /// taken as it is.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn offer_rules(&mut self, uid: u32, file: &RuleFile, now: i64) -> Result<Standing, Error> {
        let fail = sql("read a rule file's state");
        let _turn = turn::wait();
        let connection = self.connection()?;
        let known: Option<(String, Option<String>)> = connection
            .query_row(
                "SELECT text, pending FROM rule_files WHERE uid = ?1 AND path = ?2",
                params![uid, file.path],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .map_err(&fail)?;
        let held = match &known {
            Some((text, _)) if !file.trusted => reload::loosens(text, &file.text),
            _ => None,
        };
        let fail = sql("store a rule file's state");
        match (&held, known) {
            (None, Some((text, None))) if text == file.text => {
                let used = "UPDATE rule_files SET used = ?3 WHERE uid = ?1 AND path = ?2";
                connection.execute(used, params![uid, file.path, rfc3339(now)]).map_err(&fail)?;
            }
            (None, Some(_)) => put(connection, uid, file, now).map_err(&fail)?,
            (None, None) => {
                if !room(connection, uid, now).map_err(&fail)? {
                    return Err(Error::TooManyRuleFiles);
                }
                put(connection, uid, file, now).map_err(&fail)?;
            }
            (Some(_), Some((text, pending))) => {
                if pending.as_ref() != Some(&file.text) {
                    connection
                        .execute(
                            "UPDATE rule_files SET pending = ?3, pending_sha256 = ?4, pending_at = ?5 WHERE uid = ?1 AND path = ?2",
                            params![uid, file.path, file.text, sha256(file.text.as_bytes()), rfc3339(now)],
                        )
                        .map_err(&fail)?;
                }
                return Ok(Standing { text, held });
            }
            (Some(_), None) => {}
        }
        Ok(Standing { text: file.text.clone(), held: None })
    }

    /// Puts a change in force that waits under this hash. Whose it was, and the text; nobody's where none waits.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn confirm_rules(
        &mut self,
        viewer: Viewer,
        path: &str,
        sha256: &str,
        by: &str,
        now: i64,
    ) -> Result<Vec<(u32, String)>, Error> {
        let _turn = turn::wait();
        self.connection()?
            .prepare_cached(
                "UPDATE rule_files SET text = pending, since = ?4, confirmed_by = ?5,
                     pending = NULL, pending_sha256 = NULL, pending_at = NULL
                 WHERE path = ?1 AND pending_sha256 = ?2 AND (?3 = 0 OR uid = ?3) RETURNING uid, text",
            )
            .and_then(|mut statement| {
                let rows = statement.query_map(params![path, sha256, viewer.0, rfc3339(now), by], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                });
                rows?.collect()
            })
            .map_err(sql("confirm a rule file"))
    }
}

fn put(connection: &Connection, uid: u32, file: &RuleFile, now: i64) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO rule_files (uid, path, text, since, used) VALUES (?1, ?2, ?3, ?4, ?4)
             ON CONFLICT DO UPDATE SET text = excluded.text, since = excluded.since, used = excluded.used,
                 confirmed_by = NULL, pending = NULL, pending_sha256 = NULL, pending_at = NULL",
            params![uid, file.path, file.text, rfc3339(now)],
        )
        .map(drop)
}

/// Whether one more can be remembered; forgets those that nobody uses.
fn room(connection: &Connection, uid: u32, now: i64) -> rusqlite::Result<bool> {
    connection.execute(
        "DELETE FROM rule_files WHERE uid = ?1 AND used < ?2",
        params![uid, rfc3339(now.saturating_sub(FORGOTTEN))],
    )?;
    let count: i64 =
        connection.query_row("SELECT count(*) FROM rule_files WHERE uid = ?1", [uid], |row| row.get(0))?;
    Ok(count < MOST_FILES)
}
