//! Servers of agents, in the same inventory as those of sessions: what their workers list, and what is pinned of that.
//!
//! A worker speaks of its own agent's servers alone. They have rows of their own: no journal's key is like theirs, they take
//! no server of a session its place, and what they have is compared with the same agent's tools only.

use super::{
    Error, SessionReader, SessionWriter, Viewer,
    connection::{begin, rows},
    mcp_read::Shown,
    sql, tools, turn,
};
use ringfence_base::clock::rfc3339;
use ringfence_pins::{
    Definition,
    definition::{differing, hash_of_before},
    flags,
};
use ringfence_session::journal::ListedTool;
use ringfence_wire::agent_tools::{SeenDefinition, SeenTool};
use rusqlite::{OptionalExtension as _, Transaction, params};
use serde_json::Value;

/// Most servers of one agent in the inventory. Of more, those go that were not seen for longest and that nobody decided about.
const MOST_OF_AGENT: i64 = 64;
/// Most servers of all agents of one user, those of the daemon counted apart. Of more, those go that were not seen for 90 days and
/// that nobody decided about; if there is none, a new one is not taken: no agent's makes room for another's that is in use.
const MOST_OF_USER: i64 = 512;
/// Most servers of one user's agents of which it is known that a person had them forgotten.
const MOST_FORGOTTEN: i64 = MOST_OF_USER;

/// A server of an agent's.
#[derive(Debug, Clone, Copy)]
pub struct AgentServer<'a> {
    /// Whose agent it is.
    pub uid: u32,
    /// The agent.
    pub agent: &'a str,
    /// It is the daemon's; else one that `ringfence agent start` serves.
    pub of_daemon: bool,
    /// Name of its section.
    pub name: &'a str,
    /// Where it is.
    pub address: &'a str,
}

impl AgentServer<'_> {
    /// No key of a journal has a blank.
    fn key(&self) -> String {
        let by = if self.of_daemon { "daemon" } else { "user" };
        format!("agent {by} {}/{}", self.agent, self.name)
    }

    /// Whether a person had it forgotten since it was listed last.
    fn is_forgotten(&self, step: &Transaction<'_>) -> rusqlite::Result<bool> {
        step.prepare_cached("SELECT 1 FROM forgotten_servers WHERE uid = ?1 AND key = ?2")?
            .exists(params![self.uid, self.key()])
    }
}

/// What an agent's line of pins is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfAgent {
    /// Whose agent it is.
    pub uid: u32,
    /// The agent.
    pub agent: String,
    /// As in [`AgentServer`].
    pub of_daemon: bool,
    /// Name of the server's section.
    pub server: String,
}

impl SessionWriter {
    /// Notes what a server of an agent's lists, or a part of a list that `began` at that time, and pins what is not pinned. With the
    /// last part the list `is_whole`: what was not in it is gone. Gives the server's id; `None`: there is no room for it. Times
    /// are microseconds since 1970.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn agent_tools(
        &mut self,
        of: &AgentServer<'_>,
        seen: &[SeenTool],
        (began, is_whole, now): (i64, bool, i64),
    ) -> Result<Option<i64>, Error> {
        let fail = sql("store the tools of an agent's server");
        let owner = self.owners.of(of.uid);
        let connection = self.connection()?;
        let _turn = turn::wait();
        let step = begin(connection)?;
        let when = rfc3339(now);
        let Some(server) = find_or_make(&step, of, owner, &when).map_err(&fail)? else { return Ok(None) };
        list(&step, (of, server), seen, (&rfc3339(began), is_whole, &when)).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(Some(server))
    }
}

fn find_or_make(
    step: &Transaction<'_>,
    of: &AgentServer<'_>,
    owner: u32,
    when: &str,
) -> rusqlite::Result<Option<i64>> {
    let key = of.key();
    let found: Option<(i64, String)> = step
        .prepare_cached("SELECT id, command FROM mcp_servers WHERE uid = ?1 AND key = ?2 AND contained = 0")?
        .query_row(params![of.uid, key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((server, address)) = found {
        step.prepare_cached(
            "UPDATE mcp_servers SET last_seen = max(last_seen, ?2), command = ?3 WHERE id = ?1",
        )?
        .execute(params![server, when, of.address])?;
        if address != of.address {
            // The same section: what was pinned still counts, and its tools have to be what they were.
            tools::change(step, server, None, ("another_program", when), &address)?;
        }
        return Ok(Some(server));
    }
    if !make_room(step, (owner, of.of_daemon))? {
        tracing::warn!(
            "agent {}: the tools of [mcp.{}] have no place in the inventory: uid {owner} has {MOST_OF_USER} servers of agents; `ringfence mcp inventory SERVER --forget` makes room",
            of.agent,
            of.name
        );
        return Ok(None);
    }
    let mine = "SELECT count(*) FROM mcp_servers WHERE uid = ?1 AND agent = ?2 AND of_daemon = ?3";
    let mine: i64 =
        step.prepare_cached(mine)?.query_row(params![of.uid, of.agent, of.of_daemon], |row| row.get(0))?;
    if mine >= MOST_OF_AGENT {
        let oldest: Option<i64> = step
            .prepare_cached(
                "SELECT id FROM mcp_servers s WHERE uid = ?1 AND agent = ?2 AND of_daemon = ?3
                     AND NOT EXISTS (SELECT 1 FROM tool_pins p WHERE p.server = s.id AND (p.approved_at IS NOT NULL
                         OR p.rejected_at IS NOT NULL OR p.changed_sha256 IS NOT NULL))
                 ORDER BY last_seen, id LIMIT 1",
            )?
            .query_row(params![of.uid, of.agent, of.of_daemon], |row| row.get(0))
            .optional()?;
        let Some(oldest) = oldest else {
            tracing::warn!(
                "agent {}: the tools of [mcp.{}] have no place in the inventory: it has {MOST_OF_AGENT} servers that were decided about",
                of.agent,
                of.name
            );
            return Ok(None);
        };
        tools::remove(step, oldest)?;
    }
    step.prepare_cached(
        "INSERT INTO mcp_servers (uid, owner, key, contained, name, command, first_seen, last_seen, agent, of_daemon)
         VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?6, ?7, ?8) RETURNING id",
    )?
    .query_row(params![of.uid, owner, key, of.name, of.address, when, of.agent, of.of_daemon], |row| row.get(0))
    .map(Some)
}

/// Makes room for one more server of a user's agents. False: each was seen lately, or somebody decided about it.
fn make_room(step: &Transaction<'_>, whose: (u32, bool)) -> rusqlite::Result<bool> {
    let count = "SELECT count(*) FROM mcp_servers WHERE owner = ?1 AND of_daemon = ?2 AND agent IS NOT NULL";
    let count: i64 = step.prepare_cached(count)?.query_row(whose, |row| row.get(0))?;
    if count < MOST_OF_USER {
        return Ok(true);
    }
    let oldest: Option<i64> = step
        .prepare_cached(
            "SELECT id FROM mcp_servers s WHERE owner = ?1 AND of_daemon = ?2 AND agent IS NOT NULL AND last_seen < ?3
                 AND NOT EXISTS (SELECT 1 FROM tool_pins p WHERE p.server = s.id AND (p.approved_at IS NOT NULL
                     OR p.rejected_at IS NOT NULL OR p.changed_sha256 IS NOT NULL))
             ORDER BY last_seen, id LIMIT 1",
        )?
        .query_row(params![whose.0, whose.1, tools::long_ago()], |row| row.get(0))
        .optional()?;
    oldest.map_or(Ok(false), |oldest| tools::remove(step, oldest).map(|()| true))
}

fn list(
    step: &Transaction<'_>,
    (of, server): (&AgentServer<'_>, i64),
    seen: &[SeenTool],
    (began, is_whole, when): (&str, bool, &str),
) -> rusqlite::Result<()> {
    let had_some = step
        .prepare_cached("SELECT 1 FROM mcp_tools WHERE server = ?1 AND first_seen < ?2 LIMIT 1")?
        .exists(params![server, began])?;
    let mut words = tools::Words::of(seen.iter().map(|tool| tool.name.as_str()));
    let ids = (of.uid, server, of.name);
    let is_forgotten = of.is_forgotten(step)?;
    for tool in seen {
        let pinned = || {
            step.prepare_cached("SELECT sha256, parts FROM tool_pins WHERE server = ?1 AND name = ?2")?
                .query_row(params![server, tool.name], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
                })
                .optional()
        };
        let now = listed(&tool.name, &tool.now, of.name);
        match pinned()? {
            // What the worker trusted, by whoever's word, is what is trusted: unless a person wants that forgotten.
            None => {
                let first = match &tool.trusted {
                    Some(trusted) if !is_forgotten => &listed(&tool.name, trusted, of.name),
                    _ => &now,
                };
                tools::pin_new(step, ids, first, &mut words, when)?;
            }
            Some((sha256, _)) if is_of_before(&sha256, &tool.now) => {
                tools::rename(step, server, &now, &sha256)?;
            }
            Some(_) => {}
        }
        let held = pinned()?.filter(|(sha256, _)| *sha256 != tool.now.sha256).map(|(_, parts)| {
            let parts = serde_json::from_str(&parts).unwrap_or_default();
            format!("its {} changed since it was pinned", differing(&parts, &now.parts))
        });
        tools::note(step, server, &ListedTool { held, ..now.clone() }, when, had_some)?;
        tools::pin(step, ids, &now, &mut words, when)?;
    }
    if is_whole {
        let gone: Vec<String> = rows(
            step,
            "UPDATE mcp_tools SET gone_at = ?2, held = NULL WHERE server = ?1 AND last_seen < ?3 AND gone_at IS NULL RETURNING name",
            params![server, when, began],
            |row| row.get(0),
        )?;
        for tool in &gone {
            tools::change(step, server, Some(tool), ("removed", when), "")?;
        }
        if is_forgotten {
            step.prepare_cached("DELETE FROM forgotten_servers WHERE uid = ?1 AND key = ?2")?
                .execute(params![of.uid, of.key()])?;
        }
    }
    tools::trim(step, server)
}

/// Notes that a person had a server forgotten, if it is an agent's, before its row goes.
pub(crate) fn forget(step: &Transaction<'_>, server: i64) -> rusqlite::Result<()> {
    let new = "INSERT INTO forgotten_servers (uid, key) SELECT uid, key FROM mcp_servers WHERE id = ?1 AND agent IS NOT NULL
         ON CONFLICT DO NOTHING";
    step.execute(new, [server])?;
    // One that is never listed again is one of so many.
    step.execute(
        "DELETE FROM forgotten_servers WHERE id IN (SELECT id FROM forgotten_servers
             WHERE uid = (SELECT uid FROM mcp_servers WHERE id = ?1) ORDER BY id DESC LIMIT -1 OFFSET ?2)",
        params![server, MOST_FORGOTTEN],
    )
    .map(drop)
}

/// Whether this hash, of which a version pinned it that knew description and schema only, is of what a tool says now.
fn is_of_before(sha256: &str, now: &SeenDefinition) -> bool {
    if sha256 == now.sha256 {
        return false;
    }
    let Some(Ok(now)) = now.text.as_deref().map(serde_json::from_str::<Value>) else { return false };
    hash_of_before(now["description"].as_str().unwrap_or_default(), &now["inputSchema"]) == sha256
}

/// As an interceptor would have listed it. Its parts are those of the text: secrets are taken out of that in one way.
fn listed(name: &str, definition: &SeenDefinition, server: &str) -> ListedTool {
    let SeenDefinition { sha256, text } = definition.clone();
    let whole = text.map(|text| Definition { name: name.to_owned(), sha256: sha256.clone(), text });
    ListedTool {
        name: name.to_owned(),
        sha256: Some(sha256),
        held: None,
        parts: whole.as_ref().map(Definition::parts).unwrap_or_default(),
        flags: whole.as_ref().map(|whole| flags::of(&whole.text, server)).unwrap_or_default(),
        definition: whole.map(|whole| whole.text),
    }
}

impl SessionReader {
    /// Whose server it is, if it is an agent's.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn agent_of_server(&self, server: i64) -> Result<Option<OfAgent>, Error> {
        let text = "SELECT uid, agent, of_daemon, name FROM mcp_servers WHERE id = ?1 AND agent IS NOT NULL";
        let read = |row: &rusqlite::Row<'_>| {
            let (uid, agent, of_daemon) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(OfAgent { uid, agent, of_daemon, server: row.get(3)? })
        };
        self.connection()
            .prepare_cached(text)
            .and_then(|mut found| found.query_row([server], read).optional())
            .map_err(sql("read whose a server is"))
    }

    /// What is pinned of the tools of an agent's servers, those first that wait; the first `after` left out, as many as fit into
    /// a page.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn agent_pins(
        &self,
        viewer: Viewer,
        (agent, of_daemon): (&str, bool),
        after: u32,
    ) -> Result<Vec<Value>, Error> {
        let text = "SELECT s.id AS server, s.name AS server_name, s.uid, p.name AS tool, p.sha256, p.since, p.flags, p.approved_by,
                 p.approved_at, p.changed_sha256, p.changed_flags, p.changed_at, p.rejected_by, p.rejected_at,
                 (SELECT definition FROM tool_definitions d WHERE d.server = p.server AND d.sha256 = p.sha256) AS definition,
                 (SELECT definition FROM tool_definitions d WHERE d.server = p.server AND d.sha256 = p.changed_sha256)
                     AS changed_definition
             FROM mcp_servers s JOIN tool_pins p ON p.server = s.id
             WHERE s.agent = ?2 AND s.of_daemon = ?3 AND (?1 = 0 AND (s.of_daemon OR s.uid = 0) OR s.uid = ?1)
             ORDER BY p.changed_sha256 IS NULL, s.name, p.name LIMIT -1 OFFSET ?4";
        self.page(text, params![viewer.0, agent, of_daemon, after], Shown::Parsed)
    }
}

#[cfg(test)]
mod tests;
