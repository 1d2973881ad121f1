//! Rule files of interceptors: what of each is in force, and a change that waits for a confirmation.

use super::{
    Error, SessionReader, SessionWriter, Viewer, connection::rows, session_writer::of_user, sql, turn,
};
use ringfence_base::{clock::rfc3339, quota::Owners};
use ringfence_session::{journal::sha256, reload};
use ringfence_wire::mcp::RuleFile;
use rusqlite::{Connection, OptionalExtension as _, params};

/// Rule files that are remembered for each user, subordinate ids included. Beyond that none is taken: if older ones gave way,
/// whoever names enough files could make the auditor forget what was confirmed.
const MOST_FILES: u64 = 256;
/// A file that no session had for so long is forgotten, µs: 90 days.
const FORGOTTEN: i64 = 90 * 24 * 3_600 * 1_000_000;

/// How a rule file stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The text in force.
    pub text: String,
    /// The rule that the file loosens, where it waits for a confirmation.
    pub held: Option<String>,
}

/// A rule file beside the one in force: what came of comparing them, and of which texts that holds.
#[derive(Debug)]
pub struct Compared {
    known: Option<Known>,
    held: Option<String>,
}

impl Compared {
    /// How the file stands, if it is taken.
    pub fn standing(&self, file: &RuleFile) -> Standing {
        match (&self.held, &self.known) {
            (Some(_), Some((text, _))) => Standing { text: text.clone(), held: self.held.clone() },
            _ => Standing { text: file.text.clone(), held: None },
        }
    }
}

impl SessionReader {
    /// Compares a rule file with what is in force, for [`SessionWriter::take_rules`]. How long that takes is the user's to say:
    /// so it is done by a reader, for which nobody waits.
    ///
    /// # Errors
    /// [`Error::Sql`], [`Error::LongRuleFile`].
    pub fn compare_rules(&self, uid: u32, file: &RuleFile) -> Result<Compared, Error> {
        self.compare_rules_by(uid, file, reload::loosens)
    }

    /// The same by another comparison.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn compare_rules_by(
        &self,
        uid: u32,
        file: &RuleFile,
        loosens: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<Compared, Error> {
        if let Some(why) = reload::too_long(file) {
            return Err(Error::LongRuleFile(why));
        }
        let known = known(self.connection(), uid, file)?;
        let held = match &known {
            Some((text, _)) if !file.trusted => loosens(text, &file.text),
            _ => None,
        };
        Ok(Compared { known, held })
    }

    /// The text of this hash that waits to be put in force, where `viewer` may do so.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn pending_text(&self, viewer: Viewer, path: &str, sha256: &str) -> Result<Option<String>, Error> {
        let query = "SELECT pending FROM rule_files
             WHERE path = ?1 AND pending_sha256 = ?2 AND (?3 = 0 OR uid = ?3) LIMIT 1";
        self.connection()
            .query_row(query, params![path, sha256, viewer.0], |row| row.get(0))
            .optional()
            .map_err(sql("read a change of a rule file"))
    }
}

impl SessionWriter {
    /// Takes a rule file, or keeps it waiting because it loosens what is in force. A file that nobody has seen before is
    /// taken as it is. False: the texts in force are others than those that it was compared with, and nothing was done.
    ///
    /// # Errors
    /// [`Error::Sql`], [`Error::TooManyRuleFiles`].
    pub fn take_rules(
        &mut self,
        uid: u32,
        file: &RuleFile,
        compared: &Compared,
        now: i64,
    ) -> Result<bool, Error> {
        let owners = self.owners.clone();
        let connection = self.connection()?;
        let _turn = turn::wait();
        if known(connection, uid, file)? != compared.known {
            return Ok(false);
        }
        let fail = sql("store a rule file's state");
        match (&compared.held, &compared.known) {
            (None, Some((text, None))) if *text == file.text => {
                let used = "UPDATE rule_files SET used = ?3 WHERE uid = ?1 AND path = ?2";
                connection.execute(used, params![uid, file.path, rfc3339(now)]).map_err(&fail)?;
            }
            (None, Some(_)) => put(connection, uid, file, now).map_err(&fail)?,
            (None, None) => {
                if !room(connection, &owners, uid, now).map_err(&fail)? {
                    return Err(Error::TooManyRuleFiles);
                }
                put(connection, uid, file, now).map_err(&fail)?;
            }
            (Some(_), Some((_, pending))) => {
                if pending.as_ref() != Some(&file.text) {
                    connection
                        .execute(
                            "UPDATE rule_files SET pending = ?3, pending_sha256 = ?4, pending_at = ?5 WHERE uid = ?1 AND path = ?2",
                            params![uid, file.path, file.text, sha256(file.text.as_bytes()), rfc3339(now)],
                        )
                        .map_err(&fail)?;
                }
            }
            (Some(_), None) => {}
        }
        Ok(true)
    }

    /// Compares a rule file and takes it.
    #[cfg(any(test, feature = "test-support"))]
    pub fn offer_rules(&mut self, uid: u32, file: &RuleFile, now: i64) -> Result<Standing, Error> {
        self.connection()?;
        let compared = SessionReader::open(&self.path)?.compare_rules(uid, file)?;
        assert!(self.take_rules(uid, file, &compared, now)?, "nobody else writes");
        Ok(compared.standing(file))
    }

    /// Puts a change in force that waits under this hash. Whose it was; nobody's where none waits.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn confirm_rules(
        &mut self,
        viewer: Viewer,
        path: &str,
        sha256: &str,
        by: &str,
        now: i64,
    ) -> Result<Vec<u32>, Error> {
        let _turn = turn::wait();
        let text = "UPDATE rule_files SET text = pending, since = ?4, confirmed_by = ?5,
                 pending = NULL, pending_sha256 = NULL, pending_at = NULL
             WHERE path = ?1 AND pending_sha256 = ?2 AND (?3 = 0 OR uid = ?3) RETURNING uid";
        let values = params![path, sha256, viewer.0, rfc3339(now), by];
        rows(self.connection()?, text, values, |row| row.get(0)).map_err(sql("confirm a rule file"))
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

/// The text in force, and the one that waits.
type Known = (String, Option<String>);

fn known(connection: &Connection, uid: u32, file: &RuleFile) -> Result<Option<Known>, Error> {
    connection
        .prepare_cached("SELECT text, pending FROM rule_files WHERE uid = ?1 AND path = ?2")
        .and_then(|mut s| {
            s.query_row(params![uid, file.path], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(sql("read a rule file's state"))
}

/// Whether one more of a user's can be remembered; forgets those that nobody uses, where it takes that.
fn room(connection: &Connection, owners: &Owners, uid: u32, now: i64) -> rusqlite::Result<bool> {
    let by_uid = "SELECT uid, count(*) FROM rule_files GROUP BY uid";
    let owner = owners.of(uid);
    if of_user(connection, owners, owner, by_uid)? < MOST_FILES {
        return Ok(true);
    }
    let before = rfc3339(now.saturating_sub(FORGOTTEN));
    let uids: Vec<u32> = rows(connection, by_uid, [], |row| row.get(0))?;
    for uid in uids.into_iter().filter(|uid| owners.of(*uid) == owner) {
        connection.execute("DELETE FROM rule_files WHERE uid = ?1 AND used < ?2", params![uid, before])?;
    }
    Ok(of_user(connection, owners, owner, by_uid)? < MOST_FILES)
}

#[cfg(test)]
mod tests {
    use super::MOST_FILES;
    use crate::{Error, SessionReader, SessionWriter, turn};
    use ringfence_base::quota::Owners;
    use ringfence_session::reload::{LONGEST, LONGEST_PATH};
    use ringfence_wire::mcp::RuleFile;
    use std::{sync::mpsc, thread, time::Duration};

    fn file(path: &str, text: String) -> RuleFile {
        RuleFile { path: path.into(), text, trusted: false }
    }

    fn comment(length: u64) -> String {
        format!("#{}", " ".repeat(length as usize - 1))
    }

    #[test]
    fn nobody_waits_while_rule_files_are_compared() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
        writer.offer_rules(5, &file("/rules", "# first".into()), 1).expect("taken");
        let path = folder.path().join("audit.db");
        let other = rusqlite::Connection::open(&path).expect("opens");
        let (compared, compares) = mpsc::channel();
        let compare = |old: &str, _: &str| {
            compared.send(old.to_owned()).expect("counted");
            if old == "# first" {
                let (done, is_done) = mpsc::channel();
                thread::spawn(move || {
                    drop(turn::wait());
                    done.send(()).expect("waits");
                });
                is_done.recv_timeout(Duration::from_secs(20)).expect("others write meanwhile");
                // Another change comes first.
                let query = "UPDATE rule_files SET text = '# second'";
                other.execute(query, []).expect("updates");
            }
            Some(format!("not {old}"))
        };
        let third = file("/rules", "# third".into());
        let reader = SessionReader::open(&path).expect("opens");
        let first = reader.compare_rules_by(5, &third, compare).expect("compared");
        assert!(!writer.take_rules(5, &third, &first, 2).expect("looked at"), "it holds of another text");
        let again = reader.compare_rules_by(5, &third, compare).expect("compared");
        assert!(writer.take_rules(5, &third, &again, 2).expect("held"));
        let standing = again.standing(&third);
        assert_eq!((standing.text.as_str(), standing.held.as_deref()), ("# second", Some("not # second")));
        assert_eq!(compares.try_iter().collect::<Vec<_>>(), ["# first", "# second"]);
        let pending = reader.compare_rules(5, &third).expect("reads").known.expect("is known").1;
        assert_eq!(pending.as_deref(), Some("# third"));
    }

    #[test]
    fn what_no_interceptor_reads_is_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
        let path = "p".repeat(LONGEST_PATH);
        writer.offer_rules(5, &file(&path, comment(LONGEST)), 1).expect("as long as may be");
        let longer = format!("{path}p");
        let odd = [(path.as_str(), LONGEST + 1, LONGEST), (&longer, 5, LONGEST_PATH as u64)];
        for (path, length, bound) in odd {
            let error = writer.offer_rules(5, &file(path, comment(length)), 1).expect_err("too long");
            assert!(matches!(error, Error::LongRuleFile(_)), "{error:?}");
            assert!(error.to_string().contains(&bound.to_string()), "{error}");
        }
    }

    #[test]
    fn a_user_s_files_are_counted_whatever_the_id() {
        let folder = tempfile::tempdir().expect("a folder");
        let owners = Owners::parse("5:100:10\n", |name| name.parse().ok());
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None).with_owners(owners);
        let mut offer = |uid, number, now| {
            writer.offer_rules(uid, &file(&format!("/{number}"), String::new()), now).map(drop)
        };
        for number in 0..MOST_FILES as u32 {
            offer([5, 100, 101][number as usize % 3], number, 1).expect("taken");
        }
        for uid in [5, 100, 105] {
            assert!(matches!(offer(uid, 999, 1), Err(Error::TooManyRuleFiles)), "{uid}");
        }
        offer(6, 999, 1).expect("another user's");
        offer(105, 999, super::FORGOTTEN + 9_000_000).expect("none of the others is in use any more");
    }
}
