//! Reading the inventory: servers, their tools, what waits for a person, and what interceptors are told of pins.

use super::{
    Error, SessionReader, Viewer,
    connection::rows,
    mcp_read::{PAGE_BYTES, Shown},
    sql,
};
use ringfence_pins::definition::name_digest;
use ringfence_wire::mcp::PinnedTool;
use rusqlite::{OptionalExtension as _, params};
use serde_json::Value;

/// Servers that one answer has.
const MOST_SERVERS: u32 = 1000;
/// Changes of a server that one answer has.
const MOST_CHANGES: u32 = 100;

/// What waits for a person: a change that nobody refused, or an odd description that nobody approved.
const WAITS: &str = "(p.changed_sha256 IS NOT NULL AND p.rejected_at IS NULL
    OR p.changed_sha256 IS NULL AND p.flags <> '[]' AND p.approved_at IS NULL)";

/// Those of them that a viewer (1) may see, of what is named (2). Whoever names a tool may think again about what they refused.
fn pending(select: &str) -> String {
    let tool = "(s.name || '/' || p.name = ?2 OR s.id || '/' || p.name = ?2 OR s.agent || '/' || s.name || '/' || p.name = ?2)";
    let server = "s.name = ?2 OR CAST(s.id AS TEXT) = ?2 OR s.agent || '/' || s.name = ?2";
    let named = format!("(?2 IS NULL OR {server} OR {tool})");
    let waits = format!("({WAITS} OR p.changed_sha256 IS NOT NULL AND {tool})");
    select.replace("{PENDING}", &format!("(?1 = 0 OR p.uid = ?1) AND {named} AND {waits}"))
}

const SERVER: &str = "SELECT s.id, s.uid, s.name, s.command, s.info, s.contained, s.agent, s.of_daemon, s.first_seen, s.last_seen,
    (SELECT count(*) FROM mcp_tools t WHERE t.server = s.id AND t.gone_at IS NULL) AS tool_count,
    iif(s.agent IS NULL, (SELECT coalesce(sum(calls), 0) FROM mcp_tools t WHERE t.server = s.id), NULL) AS calls,
    (SELECT count(*) FROM tool_pins p WHERE p.server = s.id AND p.changed_sha256 IS NOT NULL) AS held,
    (SELECT count(*) FROM tool_pins p WHERE p.server = s.id AND p.changed_sha256 IS NULL AND p.flags <> '[]'
        AND p.approved_at IS NULL) AS flagged,
    (SELECT max(at) FROM tool_changes c WHERE c.server = s.id) AS last_change
    FROM mcp_servers s WHERE (?1 = 0 OR s.uid = ?1)";

impl SessionReader {
    /// A user's servers, those first that were seen last; with `server`, a name or an id, those alone, with their tools and
    /// what changed in them.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn inventory(&self, viewer: Viewer, server: Option<&str>) -> Result<Vec<Value>, Error> {
        let order = "ORDER BY s.last_seen DESC, s.id DESC LIMIT ?2";
        let Some(server) = server else {
            return self.page(&format!("{SERVER} {order}"), params![viewer.0, MOST_SERVERS], Shown::Parsed);
        };
        let text = format!(
            "{SERVER} AND (s.name = ?3 OR CAST(s.id AS TEXT) = ?3 OR s.agent || '/' || s.name = ?3) {order}"
        );
        let mut servers = self.page(&text, params![viewer.0, MOST_SERVERS, server], Shown::Parsed)?;
        let mut bytes = 0;
        for row in &mut servers {
            if bytes > PAGE_BYTES {
                row["cut"] = true.into();
                continue;
            }
            let id = row["id"].as_i64().unwrap_or_default();
            row["tools"] = self.tools_of(id)?.into();
            let changes = "SELECT at, tool, change, detail FROM tool_changes WHERE server = ?1 ORDER BY id DESC LIMIT ?2";
            row["changes"] = self.page(changes, params![id, MOST_CHANGES], Shown::Parsed)?.into();
            bytes += row.to_string().len();
        }
        Ok(servers)
    }

    fn tools_of(&self, server: i64) -> Result<Vec<Value>, Error> {
        let text = "SELECT t.name, t.first_seen, t.last_seen, t.gone_at, t.held,
                 (SELECT iif(agent IS NULL, t.calls, NULL) FROM mcp_servers s WHERE s.id = t.server) AS calls, t.last_call, p.sha256, p.since, p.flags,
                 p.approved_by, p.approved_at, p.changed_sha256, p.changed_flags, p.changed_at, p.rejected_by, p.rejected_at
             FROM mcp_tools t LEFT JOIN tool_pins p ON p.server = t.server AND p.name = t.name
             WHERE t.server = ?1 ORDER BY t.gone_at IS NOT NULL, t.name";
        self.page(text, params![server], Shown::Parsed)
    }

    /// Tools that wait for a person, those first that wait for longest; how many more there are than fit has the first as
    /// `left_out`. With `named` those of that server alone, a name or an id; or one tool as `SERVER/TOOL`, also where its change
    /// was refused.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn pending_tools(&self, viewer: Viewer, named: Option<&str>) -> Result<Vec<Value>, Error> {
        let text = pending(
            "SELECT p.server, s.uid, s.name AS server_name, s.command, s.contained, s.agent, p.name AS tool,
                 coalesce(p.changed_sha256, p.sha256) AS sha256, coalesce(p.changed_flags, p.flags) AS flags,
                 coalesce(p.changed_at, p.since) AS since, p.changed_sha256 IS NOT NULL AS changed, p.since AS pinned_since,
                 (SELECT definition FROM tool_definitions d WHERE d.server = p.server AND d.sha256 = coalesce(p.changed_sha256, p.sha256))
                     AS definition,
                 iif(p.changed_sha256 IS NULL, NULL,
                     (SELECT definition FROM tool_definitions d WHERE d.server = p.server AND d.sha256 = p.sha256)) AS pinned
             FROM tool_pins p JOIN mcp_servers s ON s.id = p.server
             WHERE {PENDING} ORDER BY p.changed_sha256 IS NULL, coalesce(p.changed_at, p.since), p.rowid"
        );
        let mut page = self.page(&text, params![viewer.0, named], Shown::Parsed)?;
        let count =
            pending("SELECT count(*) FROM tool_pins p JOIN mcp_servers s ON s.id = p.server WHERE {PENDING}");
        let all = self.connection().prepare_cached(&count);
        let all = all.and_then(|mut all| all.query_row(params![viewer.0, named], |row| row.get::<_, i64>(0)));
        let all = all.map_err(sql("count tools that wait"))?.max(0).cast_unsigned();
        let left_out = all.saturating_sub(page.len() as u64);
        if let Some(first) = page.first_mut() {
            first["left_out"] = left_out.into();
        }
        for row in &mut page {
            row["changed"] = (row["changed"] == 1).into();
        }
        Ok(page)
    }

    /// How many wait.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn pending_tool_count(&self, viewer: Viewer) -> Result<u64, Error> {
        let text = format!("SELECT count(*) FROM tool_pins p WHERE (?1 = 0 OR p.uid = ?1) AND {WAITS}");
        let count = self.connection().prepare_cached(&text);
        let count = count.and_then(|mut count| count.query_row([viewer.0], |row| row.get::<_, i64>(0)));
        count.map(|count| count.max(0).cast_unsigned()).map_err(sql("count tools that wait"))
    }

    /// The server of a session, if its interceptor says which that is.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn server_of(&self, session: &str) -> Result<Option<i64>, Error> {
        let text = "SELECT server FROM sessions WHERE id = ?1";
        let found = self
            .connection()
            .prepare_cached(text)
            .and_then(|mut found| found.query_row([session], |row| row.get::<_, Option<i64>>(0)).optional());
        found.map(Option::flatten).map_err(sql("read which server a session has"))
    }

    /// Sessions of a server that did not end.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn sessions_of_server(&self, server: i64) -> Result<Vec<String>, Error> {
        let text = "SELECT id FROM sessions WHERE server = ?1 AND ended_at IS NULL";
        rows(self.connection(), text, [server], |row| row.get(0))
            .map_err(sql("read the sessions of a server"))
    }

    /// What is pinned of a server, as its interceptors are told.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn pinned_tools(&self, server: i64) -> Result<Vec<PinnedTool>, Error> {
        let text =
            "SELECT name, sha256, parts, flags <> '[]' AND approved_at IS NULL, changed_sha256 IS NOT NULL, rejected_at IS NOT NULL
             FROM tool_pins WHERE server = ?1";
        let read = |row: &rusqlite::Row<'_>| {
            let (name, parts): (String, String) = (row.get(0)?, row.get(2)?);
            Ok(PinnedTool {
                name: name_digest(&name),
                sha256: row.get(1)?,
                parts: serde_json::from_str(&parts).unwrap_or_default(),
                flagged: row.get(3)?,
                changed: row.get(4)?,
                rejected: row.get(5)?,
            })
        };
        rows(self.connection(), text, [server], read).map_err(sql("read what is pinned of a server"))
    }
}
