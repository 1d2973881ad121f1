//! Servers of MCP sessions and their tools: the inventory, what is pinned of each tool, and what changed.
//!
//! The inventory is what journals say, and journals say what their users like. Of a tool that is listed for the first time the
//! definition is pinned by whichever session comes first; another one waits until a person has approved it (`tool_decisions`).

use super::{Position, connection::rows};
use ringfence_base::clock::rfc3339;
use ringfence_pins::{Flag, MOST_TOOLS, flags};
use ringfence_session::{journal::ListedTool, rows::ingest::ToolsRow};
use rusqlite::{OptionalExtension as _, Transaction, params};

/// What the key of a server begins with whose sessions begin in containers: what those say pins nothing for others.
pub const CONTAINED: &str = "contained ";

/// Most servers of one user, subordinate ids included; those in containers are counted apart. Of more, those go that were not
/// seen for longest.
pub(crate) const MOST_SERVERS: i64 = 256;
/// Most bytes of the definitions of one user's servers, counted like those.
const MOST_BYTES: i64 = 64 << 20;
/// Most tools of a server in the inventory, those that are gone included.
const MOST_LISTED: i64 = 2 * MOST_TOOLS as i64;
/// Changes of a server that are kept, and how many more go at once.
const MOST_CHANGES: i64 = 500;
const SLACK: i64 = 100;

/// Notes what the server of a session is: which one, or what it says of itself.
pub(crate) fn server(
    step: &Transaction<'_>,
    (at, owner): (&Position<'_>, u32),
    (key, info): (Option<&str>, Option<&str>),
    when: i64,
) -> rusqlite::Result<()> {
    let when = rfc3339(when);
    if let Some(key) = key {
        begin(step, (at, owner), key, &when)?;
    }
    let (Some(info), Some((server, _))) = (info, of_session(step, at)?) else { return Ok(()) };
    let before: Option<String> = step
        .prepare_cached("SELECT info FROM mcp_servers WHERE id = ?1")?
        .query_row([server], |row| row.get(0))
        .optional()?
        .flatten();
    if before.as_deref() == Some(info) {
        return Ok(());
    }
    step.prepare_cached("UPDATE mcp_servers SET info = ?2 WHERE id = ?1")?.execute(params![server, info])?;
    if let Some(before) = before {
        change(step, server, None, ("version", &when), &format!("{before} -> {info}"))?;
    }
    Ok(())
}

/// Finds or makes the row of a session's server.
fn begin(
    step: &Transaction<'_>,
    (at, owner): (&Position<'_>, u32),
    key: &str,
    when: &str,
) -> rusqlite::Result<()> {
    let (contained, key) = match key.strip_prefix(CONTAINED) {
        Some(key) => (true, key),
        None => (false, key),
    };
    let found: Option<i64> = step
        .prepare_cached("SELECT id FROM mcp_servers WHERE uid = ?1 AND key = ?2 AND contained = ?3")?
        .query_row(params![at.uid, key, contained], |row| row.get(0))
        .optional()?;
    let server = match found {
        Some(server) => {
            step.prepare_cached("UPDATE mcp_servers SET last_seen = max(last_seen, ?2) WHERE id = ?1")?
                .execute(params![server, when])?;
            server
        }
        None => {
            // A session whose journal has a key has a name.
            let new = "INSERT INTO mcp_servers (uid, owner, key, contained, name, command, first_seen, last_seen)
                 SELECT ?2, ?3, ?4, ?5, server_name, server_command, ?6, ?6 FROM sessions WHERE id = ?1 AND uid = ?2 RETURNING id";
            let made: Option<i64> = step
                .prepare_cached(new)?
                .query_row(params![at.session, at.uid, owner, key, contained, when], |row| row.get(0))
                .optional()?;
            let Some(server) = made else { return Ok(()) };
            let other = "SELECT o.command FROM mcp_servers s JOIN mcp_servers o ON o.uid = s.uid AND o.name = s.name
                 WHERE s.id = ?1 AND o.id <> s.id AND o.contained = s.contained ORDER BY o.last_seen DESC LIMIT 1";
            let other: Option<String> =
                step.prepare_cached(other)?.query_row([server], |row| row.get(0)).optional()?;
            if let Some(other) = other {
                // Whoever reads the name alone would take it for that one.
                change(step, server, None, ("another_program", when), &other)?;
            }
            bound(step, (owner, contained), server)?;
            server
        }
    };
    step.prepare_cached("UPDATE sessions SET server = ?2 WHERE id = ?1 AND uid = ?3")?
        .execute(params![at.session, server, at.uid])
        .map(drop)
}

/// The server of a session, and its name.
fn of_session(step: &Transaction<'_>, at: &Position<'_>) -> rusqlite::Result<Option<(i64, String)>> {
    step.prepare_cached(
        "SELECT m.id, m.name FROM sessions s JOIN mcp_servers m ON m.id = s.server WHERE s.id = ?1 AND m.uid = ?2",
    )?
    .query_row(params![at.session, at.uid], |row| Ok((row.get(0)?, row.get(1)?)))
    .optional()
}

/// Notes tools that a session's server listed, and pins those that are new.
pub(crate) fn listed(
    step: &Transaction<'_>,
    (at, owner): (&Position<'_>, u32),
    row: &ToolsRow,
) -> rusqlite::Result<()> {
    let Some((server, name)) = of_session(step, at)? else { return Ok(()) };
    let when = rfc3339(row.at);
    let had_some =
        step.prepare_cached("SELECT 1 FROM mcp_tools WHERE server = ?1 LIMIT 1")?.exists([server])?;
    for tool in &row.tools {
        note(step, server, tool, &when, had_some)?;
    }
    if row.counts {
        let mut grew = false;
        for tool in &row.tools {
            grew |= pin(step, (at.uid, server, &name), tool, row, &when)?;
        }
        if grew {
            let contained: bool =
                step.query_row("SELECT contained FROM mcp_servers WHERE id = ?1", [server], |row| {
                    row.get(0)
                })?;
            bound(step, (owner, contained), server)?;
        }
    }
    if let Some(since) = row.whole {
        let gone: Vec<String> = rows(
            step,
            "UPDATE mcp_tools SET gone_at = ?2, held = NULL WHERE server = ?1 AND last_seen < ?3 AND gone_at IS NULL RETURNING name",
            params![server, when, rfc3339(since)],
            |row| row.get(0),
        )?;
        for tool in &gone {
            change(step, server, Some(tool), ("removed", &when), "")?;
        }
    }
    Ok(())
}

/// Notes one tool in the inventory.
fn note(
    step: &Transaction<'_>,
    server: i64,
    tool: &ListedTool,
    when: &str,
    had_some: bool,
) -> rusqlite::Result<()> {
    let known: Option<Option<String>> = step
        .prepare_cached("SELECT gone_at FROM mcp_tools WHERE server = ?1 AND name = ?2")?
        .query_row(params![server, tool.name], |row| row.get(0))
        .optional()?;
    match known {
        Some(gone) => {
            step.prepare_cached(
                "UPDATE mcp_tools SET last_seen = max(last_seen, ?3), gone_at = NULL, held = ?4 WHERE server = ?1 AND name = ?2",
            )?
            .execute(params![server, tool.name, when, tool.held])?;
            if gone.is_some() {
                change(step, server, Some(&tool.name), ("back", when), "")?;
            }
        }
        None => {
            let count: i64 = step
                .prepare_cached("SELECT count(*) FROM mcp_tools WHERE server = ?1")?
                .query_row([server], |row| row.get(0))?;
            if count >= MOST_LISTED {
                // A server that gives its tools ever new names loses those that are gone.
                let old = "DELETE FROM mcp_tools WHERE server = ?1 AND name IN
                     (SELECT name FROM mcp_tools WHERE server = ?1 AND gone_at IS NOT NULL ORDER BY gone_at LIMIT ?2)";
                if step.prepare_cached(old)?.execute(params![server, SLACK])? == 0 {
                    return Ok(());
                }
            }
            step.prepare_cached(
                "INSERT INTO mcp_tools (server, name, first_seen, last_seen, held) VALUES (?1, ?2, ?3, ?3, ?4)",
            )?
            .execute(params![server, tool.name, when, tool.held])?;
            if had_some {
                change(step, server, Some(&tool.name), ("new", when), "")?;
            }
        }
    }
    Ok(())
}

/// Pins a tool that is not pinned; has one wait that is another than the pinned. Whether a definition was added.
fn pin(
    step: &Transaction<'_>,
    (uid, server, server_name): (u32, i64, &str),
    tool: &ListedTool,
    row: &ToolsRow,
    when: &str,
) -> rusqlite::Result<bool> {
    let Some(sha256) = &tool.sha256 else { return Ok(false) };
    let known: Option<(String, Option<String>)> = step
        .prepare_cached("SELECT sha256, changed_sha256 FROM tool_pins WHERE server = ?1 AND name = ?2")?
        .query_row(params![server, tool.name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match (known, &tool.definition) {
        (None, Some(definition)) if tool.held.is_none() => {
            let count: i64 = step
                .prepare_cached("SELECT count(*) FROM tool_pins WHERE server = ?1")?
                .query_row([server], |row| row.get(0))?;
            if count >= MOST_TOOLS as i64 && !forget_one(step, server)? {
                return Ok(false);
            }
            let flags = flagged(step, (uid, server, server_name), (tool, definition), row)?;
            step.prepare_cached(
                "INSERT INTO tool_pins (uid, server, name, sha256, parts, flags, since) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![uid, server, tool.name, sha256, json(&tool.parts), json(&flags), when])?;
            define(step, server, sha256, definition)
        }
        // Somebody forgot it meanwhile: the next session pins it anew.
        (None, _) => Ok(false),
        (Some((pinned, waits)), _) if pinned == *sha256 => {
            if let Some(waits) = waits {
                step.prepare_cached(
                    "UPDATE tool_pins SET changed_sha256 = NULL, changed_parts = NULL, changed_flags = NULL, changed_at = NULL,
                         rejected_by = NULL, rejected_at = NULL WHERE server = ?1 AND name = ?2",
                )?
                .execute(params![server, tool.name])?;
                undefine(step, server, &waits)?;
                change(step, server, Some(&tool.name), ("as_before", when), sha256)?;
            }
            Ok(false)
        }
        (Some((_, waits)), definition) => {
            let is_new = waits.as_ref() != Some(sha256);
            if is_new {
                let flags = match definition {
                    Some(definition) => flagged(step, (uid, server, server_name), (tool, definition), row)?,
                    None => Vec::new(),
                };
                step.prepare_cached(
                    "UPDATE tool_pins SET changed_sha256 = ?3, changed_parts = ?4, changed_flags = ?5, changed_at = ?6,
                         rejected_by = NULL, rejected_at = NULL WHERE server = ?1 AND name = ?2",
                )?
                .execute(params![server, tool.name, sha256, json(&tool.parts), json(&flags), when])?;
                if let Some(waits) = waits {
                    undefine(step, server, &waits)?;
                }
                change(step, server, Some(&tool.name), ("changed", when), sha256)?;
            }
            match definition {
                Some(definition) => define(step, server, sha256, definition),
                None => Ok(false),
            }
        }
    }
}

/// Makes room for one more pin: of a tool that is gone for longest. False: all are there.
fn forget_one(step: &Transaction<'_>, server: i64) -> rusqlite::Result<bool> {
    let oldest: Option<(String, String, Option<String>)> = step
        .prepare_cached(
            "SELECT p.name, p.sha256, p.changed_sha256 FROM tool_pins p LEFT JOIN mcp_tools t ON t.server = p.server AND t.name = p.name
             WHERE p.server = ?1 AND (t.name IS NULL OR t.gone_at < ?2) ORDER BY t.gone_at LIMIT 1",
        )?
        .query_row(params![server, rfc3339(ringfence_base::clock::now_micros().saturating_sub(FORGOTTEN))], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((name, sha256, changed)) = oldest else { return Ok(false) };
    step.execute("DELETE FROM tool_pins WHERE server = ?1 AND name = ?2", params![server, name])?;
    undefine(step, server, &sha256)?;
    changed.map_or(Ok(()), |changed| undefine(step, server, &changed))?;
    Ok(true)
}

/// A tool that is gone for so long, µs, may be forgotten where its server has too many: 90 days.
const FORGOTTEN: i64 = 90 * 24 * 3_600 * 1_000_000;

/// What is odd about a definition: what its session found, and what other servers of the user have that it names.
fn flagged(
    step: &Transaction<'_>,
    (uid, server, server_name): (u32, i64, &str),
    (tool, definition): (&ListedTool, &str),
    row: &ToolsRow,
) -> rusqlite::Result<Vec<Flag>> {
    let mut found = tool.flags.clone();
    let mut others = step.prepare_cached(
        "SELECT s.name FROM mcp_tools t JOIN mcp_servers s ON s.id = t.server
             WHERE t.name = ?3 AND s.uid = ?1 AND s.id <> ?2 AND s.name <> ?4
             AND NOT EXISTS (SELECT 1 FROM mcp_tools own WHERE own.server = ?2 AND own.name = ?3)
         UNION ALL SELECT name FROM mcp_servers WHERE uid = ?1 AND name = ?3 AND name <> ?4 LIMIT 1",
    )?;
    for word in flags::distinctive_words(definition) {
        // The server's own, also what the same list has further down.
        if found.len() >= flags::MOST || row.tools.iter().any(|own| own.name == word) {
            continue;
        }
        let other: Option<String> =
            others.query_row(params![uid, server, word, server_name], |row| row.get(0)).optional()?;
        if let Some(other) = other {
            found.push(flags::mention(&word, &other));
            break;
        }
    }
    Ok(found)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// Keeps a definition; whether it was not there.
fn define(step: &Transaction<'_>, server: i64, sha256: &str, definition: &str) -> rusqlite::Result<bool> {
    let new = step
        .prepare_cached(
            "INSERT OR IGNORE INTO tool_definitions (server, sha256, definition) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![server, sha256, definition])?;
    count(step, server, if new == 0 { 0 } else { definition.len() as i64 })?;
    Ok(new > 0)
}

/// Removes a definition that nothing names any more.
pub(crate) fn undefine(step: &Transaction<'_>, server: i64, sha256: &str) -> rusqlite::Result<()> {
    let gone: Option<i64> = step
        .prepare_cached(
            "DELETE FROM tool_definitions WHERE server = ?1 AND sha256 = ?2 RETURNING octet_length(definition)",
        )?
        .query_row(params![server, sha256], |row| row.get(0))
        .optional()?;
    count(step, server, -gone.unwrap_or(0))
}

fn count(step: &Transaction<'_>, server: i64, more: i64) -> rusqlite::Result<()> {
    if more == 0 {
        return Ok(());
    }
    step.prepare_cached("UPDATE mcp_servers SET bytes = max(0, bytes + ?2) WHERE id = ?1")?
        .execute([server, more])
        .map(drop)
}

/// Notes a change. `detail`: a hash, or what was before.
pub(crate) fn change(
    step: &Transaction<'_>,
    server: i64,
    tool: Option<&str>,
    (what, when): (&str, &str),
    detail: &str,
) -> rusqlite::Result<()> {
    step.prepare_cached(
        "INSERT INTO tool_changes (server, tool, at, change, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![server, tool, when, what, detail])?;
    let id = step.last_insert_rowid();
    if id % SLACK == 0 {
        step.prepare_cached(
            "DELETE FROM tool_changes WHERE server = ?1 AND id <=
                 (SELECT id FROM tool_changes WHERE server = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute([server, MOST_CHANGES])?;
    }
    Ok(())
}

/// Counts a call of a session's tool.
pub(crate) fn called(
    step: &Transaction<'_>,
    at: &Position<'_>,
    tool: &str,
    when: &str,
) -> rusqlite::Result<()> {
    step.prepare_cached(
        "UPDATE mcp_tools SET calls = calls + 1, last_call = max(coalesce(last_call, ''), ?3)
         WHERE server = (SELECT server FROM sessions WHERE id = ?1) AND name = ?2",
    )?
    .execute(params![at.session, tool, when])
    .map(drop)
}

/// Keeps a user's servers within their bounds; `kept` stays.
fn bound(step: &Transaction<'_>, (owner, contained): (u32, bool), kept: i64) -> rusqlite::Result<()> {
    loop {
        let (servers, bytes): (i64, i64) = step
            .prepare_cached("SELECT count(*), coalesce(sum(bytes), 0) FROM mcp_servers WHERE owner = ?1 AND contained = ?2")?
            .query_row(params![owner, contained], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if servers <= MOST_SERVERS && bytes <= MOST_BYTES {
            return Ok(());
        }
        let oldest: Option<i64> = step
            .prepare_cached(
                "SELECT id FROM mcp_servers WHERE owner = ?1 AND contained = ?2 AND id <> ?3 ORDER BY last_seen, id LIMIT 1",
            )?
            .query_row(params![owner, contained, kept], |row| row.get(0))
            .optional()?;
        let Some(oldest) = oldest else { return Ok(()) };
        remove(step, oldest)?;
    }
}

/// Removes a server and all that is known of it.
pub(crate) fn remove(step: &Transaction<'_>, server: i64) -> rusqlite::Result<()> {
    for text in [
        "UPDATE sessions SET server = NULL WHERE server = ?1",
        "DELETE FROM tool_definitions WHERE server = ?1",
        "DELETE FROM tool_changes WHERE server = ?1",
        "DELETE FROM tool_pins WHERE server = ?1",
        "DELETE FROM mcp_tools WHERE server = ?1",
        "DELETE FROM mcp_servers WHERE id = ?1",
    ] {
        step.prepare_cached(text)?.execute([server])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
