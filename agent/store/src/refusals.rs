//! What was refused on agents' sockets.

use super::{
    Error, Reader, Viewer,
    agents::{NAMED, TraceTarget},
    connection::rows,
    sql,
};
use ringfence_wire::trace::Refusal;
use rusqlite::params;

impl Reader {
    /// Refusals on agents' sockets, the newest, oldest first: agent, time, what.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn refusals(
        &self,
        viewer: Viewer,
        target: &TraceTarget,
        most: u32,
    ) -> Result<Vec<(String, i64, Refusal)>, Error> {
        let (which, value): (_, Box<dyn rusqlite::ToSql>) = match target {
            TraceTarget::All => ("?2 = 0", Box::new(0)),
            TraceTarget::Agent(name) => (NAMED, Box::new(name.clone())),
            TraceTarget::Intent(row) => (
                // Runs of one user under one profile have one agent's name.
                "EXISTS (SELECT 1 FROM intents i WHERE i.row = ?2 AND i.agent = refusals.agent AND refusals.run IS i.container
                 AND refusals.at BETWEEN i.at AND coalesce(i.ended, refusals.at))",
                Box::new(*row),
            ),
            TraceTarget::Call(_) => return Ok(Vec::new()),
        };
        let text = format!(
            "SELECT agent, at, what, why, pid, peer_uid, container FROM refusals WHERE (?1 = 0 OR uid = ?1) AND {which}
             ORDER BY id DESC LIMIT ?3"
        );
        let refusals = rows(self.connection(), &text, params![viewer.0, value, most], |row| {
            let refusal = Refusal {
                what: row.get(2)?,
                why: row.get(3)?,
                pid: row.get(4)?,
                uid: row.get(5)?,
                container: row.get(6)?,
            };
            Ok((row.get(0)?, row.get(1)?, refusal))
        });
        let mut all = refusals.map_err(sql("read refusals"))?;
        all.reverse();
        Ok(all)
    }
}
