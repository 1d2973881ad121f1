//! Approvals of more than one call: given by a person, used by calls that would wait, ended by hand or by time.
//! Each is given and ended in one transaction with its entry of the ledger.
//!
//! A call is the same as an approved one if its interceptor, which has it as it came, says so, and if what is on record of it is the
//! same: that is what the person saw. Neither is believed alone. Whoever writes a journal of their own could have a harmless call shown
//! and say the hash of another; and on record secrets look alike.

use super::{
    Error, SessionReader, SessionWriter, Viewer,
    connection::{begin, rows},
    ledger, sql, turn,
};
use ringfence_base::clock::rfc3339;
use ringfence_session::{
    fingerprint,
    ledger::{ChangedApproval, Entry},
};
use ringfence_wire::{
    approvals::{ApprovalScope, Fingerprint, MOST_APPROVALS},
    tool_call::Named as _,
};
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use serde_json::Value;

/// Approvals of one user, subordinate ids included, that are kept when they are over, and for how long, microseconds: the ledger has
/// them all.
const MOST_KEPT: i64 = 500;
const KEPT: i64 = 30 * 24 * 3_600 * 1_000_000;
/// Most that one look at old ones forgets, and most that it clears: everybody who writes waits for it.
const AT_ONCE: i64 = 500;
/// Characters of a call's arguments that an approval is shown with.
const SHOWN: i64 = 300;
/// How arguments begin that the database has only the length of: nobody saw what is approved.
const CUT: &str = "{\"ringfence_cut\":";
/// Most approvals that one call is held against.
const MOST_HELD: i64 = 200;

/// What stands, of an approval `a`: at the time `?1`.
pub(super) const STANDS: &str = "a.ended_at IS NULL AND (a.until IS NULL OR a.until > ?1)
    AND (a.scope <> 'session' OR EXISTS (SELECT 1 FROM sessions s WHERE s.id = a.session_id AND s.ended_at IS NULL))
    AND (a.scope <> 'container'
        OR NOT EXISTS (SELECT 1 FROM containers c WHERE c.public = a.session_id AND c.ended IS NOT NULL))";

/// How many of the user `?2` stand, and of ids that are that user's.
const COUNT: &str = "SELECT count(*) FROM standing_approvals a WHERE coalesce(a.owner, a.uid) = ?2";

/// A call that waits, as far as its link and its interceptor tell.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'a> {
    /// Our id of it.
    pub call: &'a str,
    /// Whose it is.
    pub uid: u32,
    /// Its session.
    pub session: &'a str,
    /// Whether its interceptor is in a container.
    pub governed: bool,
    /// What its interceptor says of it.
    pub fingerprint: Option<&'a Fingerprint>,
}

/// What became of an approval that was to be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// It stands, with this id.
    Stands(String),
    /// Its call's interceptor cannot tell when another call is the same.
    NoFingerprint,
    /// Its call is not on record, or not yet.
    NotOnRecord,
    /// It is about the call's arguments, and nobody could see all of them.
    NotSeen,
}

/// An approval that answers a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveApproval {
    /// Its id.
    pub id: String,
    /// Who gave it.
    pub by: String,
}

/// A call that waits, as it is on record.
struct OnRecord {
    server_name: String,
    tool: String,
    /// Hash of its arguments; none where those are not on record.
    recorded: Option<String>,
    shown: String,
}

impl OnRecord {
    /// Reads it; none where that session has no such call.
    fn of(connection: &Connection, of: &CallFacts<'_>) -> rusqlite::Result<Option<Self>> {
        let text = "SELECT s.server_name, c.tool_name, c.arguments FROM tool_calls c JOIN sessions s ON s.id = c.session_id
             WHERE c.id = ?1 AND s.id = ?2 AND s.uid = ?3";
        let read = |row: &Row<'_>| {
            let arguments: String = row.get(2)?;
            let shown = arguments.chars().take(usize::try_from(SHOWN).unwrap_or(0)).collect();
            // In whichever order, as the interceptor compares them.
            let recorded = (!arguments.starts_with(CUT))
                .then(|| fingerprint::of_params(&format!("{{\"arguments\":{arguments}}}")))
                .flatten();
            Ok(Self { server_name: row.get(0)?, tool: row.get(1)?, recorded, shown })
        };
        connection.prepare_cached(text)?.query_row(params![of.call, of.session, of.uid], read).optional()
    }
}

/// An approval that may answer a call: of its user and tool.
struct Candidate {
    id: String,
    scope: String,
    session: String,
    server_name: String,
    server: String,
    arguments: String,
    recorded: String,
    governed: bool,
    by: String,
}

impl Candidate {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get("id")?,
            scope: row.get("scope")?,
            session: row.get("session_id")?,
            server_name: row.get("server_name")?,
            server: row.get("server")?,
            arguments: row.get("arguments")?,
            recorded: row.get("recorded")?,
            governed: row.get("governed")?,
            by: row.get("created_by")?,
        })
    }

    fn answers(&self, of: &CallFacts<'_>, call: &OnRecord) -> bool {
        let Some(fingerprint) = of.fingerprint else { return false };
        let same_server = self.server_name == call.server_name
            && self.server == fingerprint.server
            && self.governed == of.governed;
        same_server
            && match ApprovalScope::from_name(&self.scope) {
                Some(ApprovalScope::Session) => self.session == of.session,
                Some(ApprovalScope::Tool) => true,
                Some(ApprovalScope::Arguments) => {
                    self.arguments == fingerprint.arguments
                        && call.recorded.as_ref().is_some_and(|recorded| *recorded == self.recorded)
                }
                // Of connections, which are no calls: `name_approvals`.
                Some(ApprovalScope::Container) | None => false,
            }
    }
}

impl SessionWriter {
    /// Gives an approval on behalf of `by`.
    ///
    /// # Errors
    /// [`Error::Sql`], [`Error::TooManyApprovals`].
    pub fn add_approval(
        &mut self,
        of: &CallFacts<'_>,
        (scope, until): (ApprovalScope, Option<i64>),
        by: &str,
        now: i64,
    ) -> Result<Given, Error> {
        let fail = sql("store an approval");
        let owner = self.owners.of(of.uid);
        let Some(fingerprint) = of.fingerprint else { return Ok(Given::NoFingerprint) };
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        let Some(call) = OnRecord::of(&step, of).map_err(&fail)? else { return Ok(Given::NotOnRecord) };
        let recorded = match (scope, call.recorded) {
            (ApprovalScope::Arguments, None) => return Ok(Given::NotSeen),
            (_, recorded) => recorded.unwrap_or_default(),
        };
        has_room(&step, owner, now)?;
        let id = uuid::Uuid::new_v4().to_string();
        let (at, until) = (rfc3339(now), until.map(rfc3339));
        step.prepare_cached(
            "INSERT INTO standing_approvals (id, uid, scope, session_id, call_id, server_name, server, tool, arguments, recorded,
                 shown, governed, created_at, created_by, until, owner)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                id, of.uid, scope.name(), of.session, of.call, call.server_name, fingerprint.server, call.tool,
                fingerprint.arguments, recorded, call.shown, of.governed, at, by, until, owner
            ])
        })
        .map_err(&fail)?;
        note(&step, &id, ("add", by), now).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(Given::Stands(id))
    }

    /// The approval that answers a call, if one stands. Whoever lets the call go on by it says so with [`Self::count_use`].
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn approval_for(&mut self, of: &CallFacts<'_>, now: i64) -> Result<Option<ActiveApproval>, Error> {
        let fail = sql("look for an approval");
        let connection = self.connection()?;
        // Nearly always there is none: nobody waits for that.
        let any = "SELECT 1 FROM standing_approvals WHERE uid = ?1 AND ended_at IS NULL LIMIT 1";
        if !connection.prepare_cached(any).and_then(|mut any| any.exists([of.uid])).map_err(&fail)? {
            return Ok(None);
        }
        let Some(call) = OnRecord::of(connection, of).map_err(&fail)? else { return Ok(None) };
        let text = format!(
            "SELECT a.* FROM standing_approvals a WHERE a.uid = ?2 AND a.tool = ?3 AND {STANDS}
             ORDER BY a.created_at DESC, a.id LIMIT ?4"
        );
        let values = params![rfc3339(now), of.uid, call.tool, MOST_HELD];
        let candidates = rows(connection, &text, values, Candidate::read).map_err(&fail)?;
        let found = candidates.into_iter().find(|one| one.answers(of, &call));
        Ok(found.map(|found| ActiveApproval { id: found.id, by: found.by }))
    }

    /// An approval let a call go on.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn count_use(&mut self, id: &str, now: i64) -> Result<(), Error> {
        let _turn = turn::wait();
        self.connection()?
            .prepare_cached("UPDATE standing_approvals SET uses = uses + 1, last_use = ?2 WHERE id = ?1")
            .and_then(|mut used| used.execute(params![id, rfc3339(now)]))
            .map(drop)
            .map_err(sql("count the use of an approval"))
    }

    /// Forgets approvals that are over for long, and what others that are over show of sessions that were removed: some of them.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn forget_approvals(&mut self, now: i64) -> Result<(), Error> {
        let fail = sql("forget approvals");
        let old = format!(
            "DELETE FROM standing_approvals WHERE id IN (
                 SELECT a.id FROM standing_approvals a WHERE a.created_at < ?2 AND NOT ({STANDS}) LIMIT ?3)"
        );
        let left = format!(
            "UPDATE standing_approvals SET shown = '', is_left = NULL WHERE id IN (
                 SELECT a.id FROM standing_approvals a WHERE a.is_left = 1 AND NOT ({STANDS}) LIMIT ?2)"
        );
        let _turn = turn::wait();
        let connection = self.connection()?;
        let run =
            |text: &str, values: &[&dyn rusqlite::ToSql]| connection.prepare_cached(text)?.execute(values);
        let at = rfc3339(now);
        run(&old, &[&at, &rfc3339(now.saturating_sub(KEPT)), &AT_ONCE])
            .and_then(|_| run(&left, &[&at, &AT_ONCE]))
            .map(drop)
            .map_err(fail)
    }

    /// Ends an approval that stands, by its id or the beginning of one; its whole id. None: the viewer has no such approval, or more
    /// than one that begins so.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn revoke_approval(
        &mut self,
        viewer: Viewer,
        named: &str,
        by: &str,
        now: i64,
    ) -> Result<Option<String>, Error> {
        let fail = sql("revoke an approval");
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        let text = format!(
            "SELECT a.id FROM standing_approvals a WHERE (?2 = 0 OR a.uid = ?2) AND a.id >= ?3 AND a.id < ?3 || 'g'
                 AND length(?3) >= 4 AND {STANDS} LIMIT 2"
        );
        let mut ids: Vec<String> =
            rows(&step, &text, params![rfc3339(now), viewer.0, named], |row| row.get(0)).map_err(&fail)?;
        let (Some(id), true) = (ids.pop(), ids.is_empty()) else { return Ok(None) };
        end(&step, &id, ("revoke", by), now).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(Some(id))
    }
}

impl SessionReader {
    /// The viewer's approvals that stand, newest first; for root, everybody's.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn approvals(&self, viewer: Viewer, now: i64) -> Result<Vec<Value>, Error> {
        let text = format!(
            "{SHOWN_AS} WHERE (?2 = 0 OR a.uid = ?2) AND {STANDS} ORDER BY a.created_at DESC, a.id LIMIT 1000"
        );
        self.rows(&text, &[&rfc3339(now), &viewer.0])
    }

    /// One of them, standing or not.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn approval(&self, viewer: Viewer, id: &str) -> Result<Option<Value>, Error> {
        let text = format!("{SHOWN_AS} WHERE (?1 = 0 OR a.uid = ?1) AND a.id = ?2");
        Ok(self.rows(&text, &[&viewer.0, &id])?.pop())
    }
}

/// An approval as lists have it: without what only tells calls apart.
const SHOWN_AS: &str = "SELECT a.id, a.uid, a.scope, a.session_id, a.call_id, a.server_name, a.tool AS tool_name, a.shown AS beginning,
         a.created_at, a.created_by, a.until, a.uses, a.last_use, a.ended_at, a.ended_by
     FROM standing_approvals a";

/// Ends one, with its entry of the ledger.
pub(super) fn end(
    step: &Transaction<'_>,
    id: &str,
    (change, by): (&str, &str),
    now: i64,
) -> rusqlite::Result<()> {
    step.prepare_cached("UPDATE standing_approvals SET ended_at = ?2, ended_by = ?3 WHERE id = ?1")?
        .execute(params![id, rfc3339(now), by])?;
    note(step, id, (change, by), now)
}

/// Makes room for one more of a user's.
///
/// # Errors
/// [`Error::TooManyApprovals`]: as many stand as may.
pub(super) fn has_room(step: &Transaction<'_>, owner: u32, now: i64) -> Result<(), Error> {
    bound(step, owner, now).map_err(sql("store an approval"))?;
    let standing: i64 = step
        .prepare_cached(&format!("{COUNT} AND {STANDS}"))
        .and_then(|mut count| count.query_row(params![rfc3339(now), owner], |row| row.get(0)))
        .map_err(sql("count approvals"))?;
    if standing >= MOST_APPROVALS.cast_signed() {
        return Err(Error::TooManyApprovals);
    }
    Ok(())
}

/// The entry of the ledger about an approval.
pub(super) fn note(
    step: &Transaction<'_>,
    id: &str,
    (change, by): (&str, &str),
    now: i64,
) -> rusqlite::Result<()> {
    let text = "SELECT uid, scope, session_id, server_name, tool, until, call_id FROM standing_approvals WHERE id = ?1";
    let (uid, entry) = step.prepare_cached(text)?.query_row([id], |row| {
        let scope: String = row.get(1)?;
        let is_bound = [ApprovalScope::Session, ApprovalScope::Container].iter().any(|it| it.name() == scope);
        let session: String = row.get(2)?;
        let entry = ChangedApproval {
            at: now,
            by: by.to_owned(),
            change: change.to_owned(),
            id: id.to_owned(),
            scope,
            server: row.get(3)?,
            tool: row.get(4)?,
            session: is_bound.then_some(session),
            until: row.get(5)?,
            call: row.get(6)?,
        };
        Ok((row.get::<_, u32>(0)?, entry))
    })?;
    ledger::append(step, uid, &Entry::Approval(Box::new(entry)))
}

/// A session was removed, and with it what was shown of its calls: where an approval stands, it still says what was approved, until that
/// is over.
pub(super) fn session_removed(step: &Transaction<'_>, session: &str, now: i64) -> rusqlite::Result<()> {
    for (does, stands) in [("shown = ''", 0), ("is_left = 1", 1)] {
        let text = format!(
            "UPDATE standing_approvals SET {does} WHERE id IN (
                 SELECT a.id FROM standing_approvals a WHERE a.session_id = ?2 AND a.shown <> '' AND ({STANDS}) = {stands})"
        );
        step.prepare_cached(&text)?.execute(params![rfc3339(now), session])?;
    }
    Ok(())
}

/// Forgets what a user's approvals that are over have beyond the bound.
fn bound(step: &Transaction<'_>, owner: u32, now: i64) -> rusqlite::Result<()> {
    let text = format!(
        "DELETE FROM standing_approvals WHERE id IN (
             SELECT a.id FROM standing_approvals a WHERE coalesce(a.owner, a.uid) = ?2 AND NOT ({STANDS})
             ORDER BY a.created_at DESC LIMIT -1 OFFSET ?3)"
    );
    step.prepare_cached(&text)?.execute(params![rfc3339(now), owner, MOST_KEPT]).map(drop)
}

#[cfg(test)]
mod tests;
