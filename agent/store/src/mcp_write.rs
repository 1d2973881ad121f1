//! Writing MCP sessions: some entries of one journal in one transaction, and how far that journal is.

use super::{
    Error, Position, SessionWriter, client_groups::Client, connection::begin, intents, ledger, rule_hits,
    session_retention::who_waits, sql, tools, turn,
};
use ringfence_base::clock::{now_micros, rfc3339};
use ringfence_session::{
    journal::Direction,
    rows::{
        ingest::{MessageRow, Row},
        intent::Grouping,
    },
};
use ringfence_wire::{
    mcp::MAX_PATH,
    tool_call::{Named as _, Outcome, Recorded},
};
use rusqlite::{OptionalExtension as _, Transaction, params};
use std::time::{Duration, Instant};

/// How long it is believed who must wait: a sum over all sessions is behind it.
pub(crate) const CROWDED: Duration = Duration::from_secs(2);

impl SessionWriter {
    /// Lines of a session's journal that are in the store, and which store that is; `None` where the session is
    /// another uid's.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lines(&mut self, session: &str, uid: u32) -> Result<Option<(u64, u64)>, Error> {
        let found: Option<(i64, u32)> = self
            .connection()?
            .query_row("SELECT journal_lines, uid FROM sessions WHERE id = ?1", [session], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .map_err(sql("read how far a journal is"))?;
        Ok(match found {
            Some((_, owner)) if owner != uid => None,
            Some((lines, _)) => Some((lines.cast_unsigned(), self.epoch)),
            None => Some((0, self.epoch)),
        })
    }

    /// Whether retention removed a session: its journal is not taken in again.
    ///
    /// # Errors
    /// [`Error`].
    pub fn is_removed(&mut self, session: &str) -> Result<bool, Error> {
        ledger::is_removed(self.connection()?, session).map_err(sql("read the ledger of sessions"))
    }

    /// Writes rows of one session, and then its position.
    ///
    /// # Errors
    /// [`Error`]; some of the rows may be written, but not the position: the same may be tried again, except after [`Error::Replaced`]: then the whole journal.
    pub fn write(&mut self, at: &Position<'_>, rows: &[Row]) -> Result<(), Error> {
        self.write_step(at, rows, true)
    }

    /// Writes rows of one session that others follow before its position: until those are written, all are to be read again
    /// after a restart.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_some(&mut self, at: &Position<'_>, rows: &[Row]) -> Result<(), Error> {
        self.write_step(at, rows, false)
    }

    fn write_step(&mut self, at: &Position<'_>, rows: &[Row], is_last: bool) -> Result<(), Error> {
        if self.must_wait(at.uid)? {
            return Err(Error::Crowded { uid: at.uid });
        }
        let mut rest = rows;
        loop {
            let written = self.write_a_while(at, rest, is_last)?;
            rest = &rest[written..];
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Writes rows in one transaction, the first of these, for as long as others can wait; how many. With the last of them the
    /// position, if that `is_last`.
    fn write_a_while(&mut self, at: &Position<'_>, rows: &[Row], is_last: bool) -> Result<usize, Error> {
        self.connection()?;
        if self.epoch != at.epoch {
            return Err(Error::Replaced);
        }
        let patience = self.patience;
        let client = self.client_of(at, rows)?;
        let owner = self.owners.of(at.uid);
        // Taken out, and put back when the step is written: whoever fails reads it anew.
        let known = self.groups.take(&client);
        let connection = self.connection()?;
        let mut grouping = match known {
            Some(grouping) => grouping,
            // Before the turn: only this connection writes what is read here.
            None => intents::last(connection, &client).map_err(sql("read the last intent"))?,
        };
        let _turn = turn::wait();
        let began = Instant::now();
        let step = begin(connection)?;
        let mut written = 0;
        for row in rows {
            write(&step, (at, owner), row, &mut grouping).map_err(sql("store an MCP session"))?;
            written += 1;
            if began.elapsed() >= patience {
                break;
            }
        }
        let is_last = is_last && written == rows.len();
        ledger::bytes(&step, at).map_err(sql("write how long a journal is"))?;
        if is_last {
            ledger::reached(&step, at, rows).map_err(sql("write the ledger of sessions"))?;
            let journal = &at.journal[..at.journal.floor_char_boundary(MAX_PATH)];
            step.prepare_cached(
                "UPDATE sessions SET journal_lines = ?2, journal_head = ?3, journal = ?4, read_to = ?5 WHERE id = ?1",
            )
            .and_then(|mut s| {
                let (lines, read_to) = (at.lines.cast_signed(), at.read_to.cast_signed());
                s.execute(params![at.session, lines, at.head, journal, read_to])
            })
            .map_err(sql("store how far a journal is"))?;
        }
        step.commit().map_err(sql("commit"))?;
        self.groups.put(client, at.session, grouping);
        Ok(written)
    }

    /// Nobody is linked to a session any more: what was remembered of it goes, and with the last of a client's all that was
    /// remembered of that one's calls. It is read from the store again where somebody comes back.
    pub fn unlinked(&mut self, session: &str) {
        self.groups.unlinked(session);
    }

    /// Whose session it is: by these rows, if they begin it.
    fn client_of(&mut self, at: &Position<'_>, rows: &[Row]) -> Result<Client, Error> {
        if let Some(client) = self.groups.client_of(at.session) {
            return Ok(client);
        }
        let begun = rows.iter().find_map(|row| match row {
            Row::Session { client, .. } => Some(client.clone()),
            _ => None,
        });
        let name = match begun {
            Some(name) => name,
            None => intents::client_of(self.connection()?, at.session)
                .map_err(sql("read which client a session is of"))?,
        };
        Ok(Client::new(at.uid, name, at.session))
    }

    fn must_wait(&mut self, uid: u32) -> Result<bool, Error> {
        let Some(bound) = self.bound else { return Ok(false) };
        let owners = self.owners.clone();
        let waits = match self.crowded {
            Some((at, waits)) if at.elapsed() < CROWDED => waits,
            _ => {
                let waits = who_waits(self.connection()?, &owners, bound)
                    .map_err(sql("measure what sessions take"))?;
                self.crowded = Some((Instant::now(), waits));
                waits
            }
        };
        Ok(waits == Some(owners.of(uid)))
    }

    /// Says that a user's session's journal was tampered with or cannot be read: nothing more of it comes, and for retention it
    /// ended. Of one that could not be read from its start on, that is all there is on record.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn broken(&mut self, session: &str, uid: u32, why: &str) -> Result<(), Error> {
        if self.is_removed(session)? {
            return Ok(());
        }
        let fail = sql("note a broken journal");
        let _turn = turn::wait();
        let now = now_micros();
        let step = begin(self.connection()?)?;
        step.execute(
            "INSERT INTO sessions (id, server_name, server_command, started_at, uid, ended_at, broken, stderr_bytes, stderr_dropped)
             VALUES (?1, '', '', ?3, ?2, ?3, ?4, 0, 0)
             ON CONFLICT (id) DO UPDATE SET broken = excluded.broken, ended_at = coalesce(ended_at, excluded.ended_at)
                 WHERE uid = excluded.uid",
            params![session, uid, rfc3339(now), why],
        )
        .map_err(&fail)?;
        step.execute(
            "INSERT OR IGNORE INTO session_bounds (session_id, bytes, written) VALUES (?1, 0, ?2)",
            params![session, now],
        )
        .map_err(&fail)?;
        step.commit().map_err(sql("commit"))
    }
}

/// Writes one row of a session whose user is `owner`.
fn write(
    step: &Transaction<'_>,
    (at, owner): (&Position<'_>, u32),
    row: &Row,
    grouping: &mut Grouping,
) -> rusqlite::Result<()> {
    match row {
        Row::Session { server_name, server_command, started_at, client } => step
            .prepare_cached(
                // One of which nothing but its fault was on record has no name.
                "INSERT INTO sessions (id, server_name, server_command, started_at, uid, client, stderr_bytes, stderr_dropped, outcomes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 1)
                 ON CONFLICT (id) DO UPDATE SET server_name = excluded.server_name, server_command = excluded.server_command,
                     started_at = excluded.started_at, client = excluded.client WHERE server_command = '' AND uid = excluded.uid",
            )?
            .execute(params![at.session, server_name, server_command, rfc3339(*started_at), at.uid, client])
            .map(drop),
        Row::Client { info } => step
            .prepare_cached("UPDATE sessions SET client_info = ?2 WHERE id = ?1")?
            .execute(params![at.session, info])
            .map(drop),
        Row::Server { key, info, at: when } => {
            tools::server(step, (at, owner), (key.as_deref(), info.as_deref()), *when)
        }
        Row::Tools(listed) => tools::listed(step, at, listed),
        Row::Message(message) => insert_message(step, at, message),
        Row::Call(call) => {
            if intents::insert_call(step, at, call, grouping)? {
                let when = rfc3339(call.at);
                let excepted = call.judged.exceptions.iter().map(|one| &one.name);
                let names: Vec<&String> = call.judged.rules.iter().chain(excepted).collect();
                rule_hits::count(step, (at.uid, owner), &names, &when)?;
                tools::called(step, at, &call.judged.tool, &when)?;
            }
            Ok(())
        }
        Row::Asked { question, prompt } => {
            grouping.asked(at.session, question, prompt.clone());
            Ok(())
        }
        Row::Answered { question, at: when } => {
            grouping.answered(at.session, question, *when);
            Ok(())
        }
        Row::Answer { call, message, result, error, at: when, duration_ms, ended, answer } => step
            .prepare_cached(
                "UPDATE tool_calls SET response_msg_id = ?2, result = ?3, error = ?4, responded_at = ?5, duration_ms = ?6, ended = ?7,
                     answer = ?9 WHERE id = ?1 AND session_id = ?8",
            )?
            .execute(params![
                call,
                message,
                result,
                error,
                rfc3339(*when),
                duration_ms,
                ended.cast_signed(),
                at.session,
                answer.name()
            ])
            .map(drop),
        Row::Cancelled { call, at: when } => step
            .prepare_cached("UPDATE tool_calls SET cancelled_at = ?2 WHERE id = ?1 AND session_id = ?3")?
            .execute(params![call, rfc3339(*when), at.session])
            .map(drop),
        Row::TaskAnswer { call, message, answer, result, .. } => step
            .prepare_cached(
                "UPDATE tool_calls SET task_answer = ?2, task_msg_id = ?3, task_result = ?4
                     WHERE id = ?1 AND session_id = ?5",
            )?
            .execute(params![call, answer.name(), message, result, at.session])
            .map(drop),
        Row::Decision { call, outcome, by, at: when, boot } => {
            let approved = (*outcome == Recorded::Known(Outcome::Approved)).then(|| by.clone().unwrap_or_default());
            let approved_at = approved.is_some().then(|| rfc3339(*when));
            let began = approved.is_some().then(|| boot.cast_signed());
            step.prepare_cached(
                "UPDATE tool_calls SET decision = ?2, decided_by = ?3, decided_at = ?4, approved_by = ?5, approved_at = ?6,
                     began = coalesce(?7, began) WHERE id = ?1 AND session_id = ?8",
            )?
            .execute(params![call, outcome.as_str(), by, rfc3339(*when), approved, approved_at, began, at.session])
            .map(drop)
        }
        Row::Governed { profile, enforcement, container } => step
            .prepare_cached("UPDATE sessions SET profile = ?2, enforcement = ?3, container = ?4 WHERE id = ?1")?
            .execute(params![at.session, profile, enforcement, container])
            .map(drop),
        Row::Stderr { number, at: when, text, dropped } => {
            let dropped = dropped.cast_signed();
            let new = step
                .prepare_cached(
                    "INSERT OR IGNORE INTO stderr (session_id, number, timestamp, text, dropped) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![at.session, number, rfc3339(*when), text, dropped])?;
            if new == 0 {
                return Ok(());
            }
            step.prepare_cached(
                "UPDATE sessions SET stderr_bytes = stderr_bytes + ?2, stderr_dropped = stderr_dropped + ?3 WHERE id = ?1",
            )?
            .execute(params![at.session, text.len() as i64, dropped])
            .map(drop)
        }
        Row::Gap => step
            .prepare_cached("UPDATE sessions SET gap = 1 WHERE id = ?1")?
            .execute([at.session])
            .map(drop),
        Row::End { at: when, status } => {
            grouping.ended(at.session);
            step.prepare_cached("UPDATE sessions SET ended_at = ?2, exit_status = ?3 WHERE id = ?1")?
                .execute(params![at.session, rfc3339(*when), status])
                .map(drop)
        }
    }
}

fn insert_message(step: &Transaction<'_>, at: &Position<'_>, row: &MessageRow) -> rusqlite::Result<()> {
    let direction = match row.direction {
        Direction::ClientToServer => "client_to_server",
        Direction::ServerToClient => "server_to_client",
    };
    step.prepare_cached(
        "INSERT OR IGNORE INTO messages (id, session_id, direction, timestamp, jsonrpc_id, method, params, result, error, raw, note)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![
        row.id,
        at.session,
        direction,
        rfc3339(row.at),
        row.jsonrpc_id,
        row.method,
        row.params,
        row.result,
        row.error,
        row.raw,
        row.note
    ])
    .map(drop)
}

#[cfg(test)]
mod tests;
