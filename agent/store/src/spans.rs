//! What attribution asks: whose server runs in a container, and which of its calls were in flight.

use super::{
    Error, Reader, SessionReader, Viewer,
    agents::{CALL, call},
    connection::rows,
    read, run_lines, sql,
};
use ringfence_events::{
    attribute::Span,
    matched::Asked,
    present::Stored,
    ties::{Gap, Processes, RunCall},
};
use rusqlite::{OptionalExtension as _, Row, params};

/// Most calls that are looked at for one page of events; beyond it nothing is certain.
pub const MOST_SPANS: u32 = 5_000;

/// A session whose server runs in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The session.
    pub session: String,
    /// A call may have gone by unseen.
    pub gap: bool,
    /// Latest time of its journal's entries that are stored, ns since boot.
    pub read_to: u64,
    /// It ended by its own word: its journal is whole.
    pub ended: bool,
}

/// Where and when the kernel may have seen something of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flight {
    /// Public id of the container.
    pub container: String,
    /// From when, ns since boot.
    pub began: u64,
    /// To when; `None`: to now.
    pub ended: Option<u64>,
}

/// What is known of the calls of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCalls {
    /// Those that were asked for.
    pub calls: Vec<RunCall>,
    /// Up to when it reported every call, ns since boot.
    pub known_to: u64,
    /// When the first of all its calls began, ns since boot.
    pub first: Option<u64>,
    /// But for these times.
    pub gaps: Vec<Gap>,
}

impl SessionReader {
    /// The sessions that say that their server runs in a container, if whoever enrolled that says so too: nobody's
    /// events are tied to another user's calls.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn inside(&self, container: &str) -> Result<Vec<Inside>, Error> {
        let text = "SELECT s.id, s.gap, s.read_to, s.exit_status IS NOT NULL FROM sessions s
             WHERE s.container = ?1 AND EXISTS (SELECT 1 FROM containers c WHERE c.public = ?1 AND c.uid = s.uid) LIMIT 16";
        let inside = rows(self.connection(), text, [container], |row| {
            Ok(Inside {
                session: row.get(0)?,
                gap: row.get(1)?,
                read_to: row.get::<_, i64>(2)?.cast_unsigned(),
                ended: row.get(3)?,
            })
        });
        inside.map_err(sql("read whose events these are"))
    }

    /// Calls of a session that were in flight at some time from `from` to `to`; at most one more than [`MOST_SPANS`].
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn spans(&self, session: &str, from: u64, to: u64) -> Result<Vec<Span>, Error> {
        let text = "SELECT id, began, ended FROM tool_calls
             WHERE session_id = ?1 AND began <= ?3 AND (ended IS NULL OR ended >= ?2) LIMIT ?4";
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let values = params![session, number(from), number(to), MOST_SPANS + 1];
        let spans = rows(self.connection(), text, values, |row| {
            Ok(Span {
                call: row.get(0)?,
                began: row.get::<_, i64>(1)?.cast_unsigned(),
                ended: row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
            })
        });
        spans.map_err(sql("read which calls were in flight"))
    }

    /// When the first call of a session began, ns since boot.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn first_call(&self, session: &str) -> Result<Option<u64>, Error> {
        let text = "SELECT began FROM tool_calls WHERE session_id = ?1 AND began IS NOT NULL ORDER BY requested_at LIMIT 1";
        let began = self.connection().query_row(text, [session], |row| row.get::<_, i64>(0)).optional();
        Ok(began.map_err(sql("read when the first call began"))?.map(i64::cast_unsigned))
    }

    /// Where and when a call was in flight. `None`: never forwarded, or its server is in no container.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn flight(&self, viewer: Viewer, call: &str) -> Result<Option<Flight>, Error> {
        let text =
            "SELECT s.container, c.began, c.ended FROM tool_calls c JOIN sessions s ON s.id = c.session_id
             WHERE c.id = ?2 AND (?1 = 0 OR s.uid = ?1) AND s.container IS NOT NULL AND c.began IS NOT NULL";
        self.connection()
            .query_row(text, params![viewer.0, call], |row| {
                Ok(Flight {
                    container: row.get(0)?,
                    began: row.get::<_, i64>(1)?.cast_unsigned(),
                    ended: row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
                })
            })
            .optional()
            .map_err(sql("read when a call was in flight"))
    }
}

impl Reader {
    /// The local calls of an agent of the daemon's that were in flight at some time between two, and may be of a container of
    /// `owner`: of that user's agent, and of any where it is root's.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn calls_in_flight(
        &self,
        (agent, owner): (&str, u32),
        (from, to): (u64, u64),
        most: u32,
    ) -> Result<Vec<Asked>, Error> {
        let whose = if owner == 0 { "" } else { &format!("a.uid = {owner} AND ") };
        let text = format!(
            "SELECT {CALL} WHERE {whose}a.agent = ?1 AND a.container IS NULL AND a.server IS NULL AND a.began <= ?3
             AND (a.done IS NULL OR a.done >= ?2) LIMIT ?4"
        );
        self.spans(&text, agent, (from, to), most, |asked, _| asked)
    }

    /// Whose a container is; `None`: it is not known.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn owner(&self, container: &str) -> Result<Option<u32>, Error> {
        let text = "SELECT uid FROM containers WHERE public = ?1";
        let owner = self.connection().query_row(text, [container], |row| row.get(0)).optional();
        owner.map_err(sql("read whose a container is"))
    }

    /// When the first call of the agent whose profile a container has began since there is the container, ns since boot.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn first_call(&self, container: &str) -> Result<Option<u64>, Error> {
        let text =
            "SELECT a.began FROM containers c JOIN agent_calls a ON a.agent = c.profile AND a.at >= c.created
             WHERE c.public = ?1 AND a.container IS NULL AND c.uid IN (0, a.uid) ORDER BY a.at LIMIT 1";
        let began = self.connection().query_row(text, [container], |row| row.get::<_, i64>(0)).optional();
        Ok(began.map_err(sql("read when the first call began"))?.map(i64::cast_unsigned))
    }

    /// The local calls of the run in a container that were in flight at some time between two. `None`: no run reports of it.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn run_calls_in_flight(
        &self,
        container: &str,
        (from, to): (u64, u64),
        most: u32,
    ) -> Result<Option<RunCalls>, Error> {
        let line = "SELECT until, first FROM run_lines WHERE container = ?1";
        let line: Option<(Option<i64>, Option<i64>)> = self
            .connection()
            .query_row(line, [container], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(sql("read which runs report"))?;
        let Some((until, first)) = line else { return Ok(None) };
        let first = first.map(i64::cast_unsigned);
        let text = format!(
            "SELECT {CALL} WHERE a.container = ?1 AND a.server IS NULL AND a.began <= ?3
             AND (a.done IS NULL OR a.done >= ?2) LIMIT ?4"
        );
        let calls = self.spans(&text, container, (from, to), most, |asked, contested| {
            let processes = match (contested, asked.tagged) {
                (true, _) => Processes::Contested,
                (false, true) => Processes::Tied,
                (false, false) => Processes::Untied,
            };
            RunCall { asked, processes }
        })?;
        let gaps = run_lines::gaps(self.connection(), container).map_err(sql("read what is lost of runs"))?;
        Ok(Some(RunCalls { calls, known_to: until.map_or(u64::MAX, i64::cast_unsigned), first, gaps }))
    }

    fn spans<T>(
        &self,
        text: &str,
        of: &str,
        (from, to): (u64, u64),
        most: u32,
        made: impl Fn(Asked, bool) -> T,
    ) -> Result<Vec<T>, Error> {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let span = |row: &Row<'_>| {
            let call = call(row)?;
            let span = Span { call: call.id, began: call.began, ended: call.done };
            Ok(made(Asked { span, tagged: call.tagged, paths: call.paths }, call.contested))
        };
        let values = params![of, number(from), number(to), most];
        rows(self.connection(), text, values, span).map_err(sql("read which calls were in flight"))
    }

    /// Events of a container while a call was in flight, oldest first, at most `most`.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn events_during(&self, viewer: Viewer, flight: &Flight, most: u32) -> Result<Vec<Stored>, Error> {
        let select = format!(
            "SELECT {} WHERE e.container IN (SELECT id FROM containers WHERE public = ?1 AND (?2 = 0 OR uid = ?2))
             AND e.moment BETWEEN ?3 AND ?4 ORDER BY e.moment, e.id LIMIT ?5",
            read::COLUMNS
        );
        let ended = flight.ended.and_then(|ended| i64::try_from(ended).ok()).unwrap_or(i64::MAX);
        let values = params![flight.container, viewer.0, flight.began.cast_signed(), ended, most];
        rows(self.connection(), &select, values, read::stored).map_err(sql("read a call's events"))
    }
}
