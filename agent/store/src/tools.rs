//! Servers of MCP sessions and their tools: the inventory, what is pinned of each tool, and what changed.
//!
//! The inventory is what journals say, and journals say what their users like. Of a tool that is listed for the first time the
//! definition is pinned by whichever session comes first; another one waits until a person has approved it (`tool_decisions`).

use super::{Position, connection::rows};
use ringfence_base::clock::{now_micros, rfc3339};
use ringfence_pins::{Flag, MOST_TOOLS, flags};
use ringfence_session::{journal::ListedTool, rows::ingest::ToolsRow};
use rusqlite::{OptionalExtension as _, Transaction, params};
use std::collections::{HashMap, HashSet};

/// What the key of a server begins with whose sessions begin in containers: what those say pins nothing for others.
pub const CONTAINED: &str = "contained ";

/// Most servers of one user, subordinate ids included; those in containers are counted apart. Of more, those go of which nothing is
/// pinned, then those that nobody used for as long as [`FORGOTTEN`], but for those that somebody decided about.
pub(crate) const MOST_SERVERS: i64 = 256;
/// Most bytes of the definitions of one user's servers, counted like those, but for what each has room for whatever the others
/// take. What has no room is pinned by its hash alone.
const MOST_BYTES: i64 = 64 << 20;
/// The same of one server: what is pinned, and as much that waits.
const MOST_BYTES_OF_SERVER: i64 = 2 * ringfence_pins::MOST_BYTES as i64;
/// Bytes of definitions that a server has room for whatever the user's others take.
const BYTES_OF_EACH: i64 = 1 << 20;
/// Most words of the tools of one row that are looked up: each costs a query while everybody else's writes wait.
const MOST_WORDS: usize = 512;
/// Most tools of a server in the inventory, those that are gone included.
const MOST_LISTED: i64 = 2 * MOST_TOOLS as i64;
/// Changes of a server that are kept.
const MOST_CHANGES: i64 = 500;
/// How many tools that are gone are removed at once.
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
    trim(step, server)
}

/// Finds or makes the row of a session's server.
fn begin(
    step: &Transaction<'_>,
    (at, owner): (&Position<'_>, u32),
    key: &str,
    when: &str,
) -> rusqlite::Result<()> {
    // Of nobody's word but ours: a journal may say any time, and others' servers would go by it.
    let seen = rfc3339(now_micros());
    let (contained, key) = key.strip_prefix(CONTAINED).map_or((false, key), |key| (true, key));
    let found: Option<i64> = step
        .prepare_cached("SELECT id FROM mcp_servers WHERE uid = ?1 AND key = ?2 AND contained = ?3")?
        .query_row(params![at.uid, key, contained], |row| row.get(0))
        .optional()?;
    let server = match found {
        Some(server) => {
            step.prepare_cached("UPDATE mcp_servers SET last_seen = max(last_seen, ?2) WHERE id = ?1")?
                .execute(params![server, seen])?;
            server
        }
        None => {
            if !make_room(step, (owner, contained))? {
                tracing::warn!(
                    "session {}: nothing is pinned of its server for other sessions: uid {owner} has {MOST_SERVERS} servers, each of which is in use, or was pinned and used within 90 days or decided about; `ringfence mcp inventory SERVER --forget` makes room",
                    at.session
                );
                return Ok(());
            }
            // A session whose journal has a key has a name.
            let new = "INSERT INTO mcp_servers (uid, owner, key, contained, name, command, first_seen, last_seen)
                 SELECT ?2, ?3, ?4, ?5, server_name, server_command, ?6, ?7 FROM sessions WHERE id = ?1 AND uid = ?2 RETURNING id";
            let made: Option<i64> = step
                .prepare_cached(new)?
                .query_row(params![at.session, at.uid, owner, key, contained, when, seen], |row| row.get(0))
                .optional()?;
            let Some(server) = made else { return Ok(()) };
            let other = "SELECT o.command FROM mcp_servers s JOIN mcp_servers o ON o.uid = s.uid AND o.name = s.name
                 WHERE s.id = ?1 AND o.id <> s.id AND o.contained = s.contained AND o.agent IS NULL ORDER BY o.last_seen DESC LIMIT 1";
            let other: Option<String> =
                step.prepare_cached(other)?.query_row([server], |row| row.get(0)).optional()?;
            if let Some(other) = other {
                // Whoever reads the name alone would take it for that one.
                change(step, server, None, ("another_program", when), &other)?;
            }
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
pub(crate) fn listed(step: &Transaction<'_>, at: &Position<'_>, row: &ToolsRow) -> rusqlite::Result<()> {
    let Some((server, name)) = of_session(step, at)? else { return Ok(()) };
    let when = rfc3339(row.at);
    let had_some =
        step.prepare_cached("SELECT 1 FROM mcp_tools WHERE server = ?1 LIMIT 1")?.exists([server])?;
    for tool in &row.tools {
        note(step, server, tool, &when, had_some)?;
    }
    if row.counts {
        let mut words = Words::of(row.tools.iter().map(|tool| tool.name.as_str()));
        for tool in &row.tools {
            pin(step, (at.uid, server, &name), tool, &mut words, &when)?;
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
    trim(step, server)
}

/// Notes one tool in the inventory.
pub(crate) fn note(
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

/// Pins a tool that is not pinned; has one wait that is another than the pinned.
pub(crate) fn pin(
    step: &Transaction<'_>,
    (uid, server, server_name): (u32, i64, &str),
    tool: &ListedTool,
    words: &mut Words<'_>,
    when: &str,
) -> rusqlite::Result<()> {
    let Some(sha256) = &tool.sha256 else { return Ok(()) };
    let known: Option<(String, Option<String>)> = step
        .prepare_cached("SELECT sha256, changed_sha256 FROM tool_pins WHERE server = ?1 AND name = ?2")?
        .query_row(params![server, tool.name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match (known, &tool.definition) {
        (None, Some(_)) if tool.held.is_none() => {
            pin_new(step, (uid, server, server_name), tool, words, when)
        }
        // Somebody forgot it meanwhile: the next session pins it anew.
        (None, _) => Ok(()),
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
            Ok(())
        }
        (Some((_, waits)), definition) => {
            let is_new = waits.as_ref() != Some(sha256);
            if is_new {
                let flags = match definition {
                    Some(definition) => flagged(step, (uid, server, server_name), (tool, definition), words)?,
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
                None => Ok(()),
            }
        }
    }
}

/// Pins a tool that is not pinned, by its hash alone where its definition is not kept.
pub(crate) fn pin_new(
    step: &Transaction<'_>,
    (uid, server, server_name): (u32, i64, &str),
    tool: &ListedTool,
    words: &mut Words<'_>,
    when: &str,
) -> rusqlite::Result<()> {
    let Some(sha256) = &tool.sha256 else { return Ok(()) };
    let count: i64 = step
        .prepare_cached("SELECT count(*) FROM tool_pins WHERE server = ?1")?
        .query_row([server], |row| row.get(0))?;
    if count >= MOST_TOOLS as i64 && !forget_one(step, server)? {
        return Ok(());
    }
    let flags = match &tool.definition {
        Some(definition) => flagged(step, (uid, server, server_name), (tool, definition), words)?,
        None => tool.flags.clone(),
    };
    step.prepare_cached(
        "INSERT INTO tool_pins (uid, server, name, sha256, parts, flags, since) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![uid, server, tool.name, sha256, json(&tool.parts), json(&flags), when])?;
    tool.definition.as_ref().map_or(Ok(()), |definition| define(step, server, sha256, definition))
}

/// Has the same pin name a definition by another hash: of the same words, taken otherwise.
pub(crate) fn rename(
    step: &Transaction<'_>,
    server: i64,
    tool: &ListedTool,
    before: &str,
) -> rusqlite::Result<()> {
    let (Some(sha256), Some(definition)) = (&tool.sha256, &tool.definition) else { return Ok(()) };
    step.prepare_cached("UPDATE tool_pins SET sha256 = ?3, parts = ?4 WHERE server = ?1 AND name = ?2")?
        .execute(params![server, tool.name, sha256, json(&tool.parts)])?;
    undefine(step, server, before)?;
    define(step, server, sha256, definition)
}

/// Makes room for one more pin: of a tool that is gone for longest. False: all are there.
fn forget_one(step: &Transaction<'_>, server: i64) -> rusqlite::Result<bool> {
    let oldest: Option<(String, String, Option<String>)> = step
        .prepare_cached(
            "SELECT p.name, p.sha256, p.changed_sha256 FROM tool_pins p LEFT JOIN mcp_tools t ON t.server = p.server AND t.name = p.name
             WHERE p.server = ?1 AND (t.name IS NULL OR t.gone_at < ?2) ORDER BY t.gone_at LIMIT 1",
        )?
        .query_row(params![server, long_ago()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((name, sha256, changed)) = oldest else { return Ok(false) };
    step.execute("DELETE FROM tool_pins WHERE server = ?1 AND name = ?2", params![server, name])?;
    undefine(step, server, &sha256)?;
    changed.map_or(Ok(()), |changed| undefine(step, server, &changed))?;
    Ok(true)
}

/// A tool that is gone for so long, µs, may be forgotten where its server has too many, and a server that nobody used for so
/// long where its user has: 90 days.
const FORGOTTEN: i64 = 90 * 24 * 3_600 * 1_000_000;

/// That long before now.
pub(crate) fn long_ago() -> String {
    rfc3339(now_micros().saturating_sub(FORGOTTEN))
}

/// Words of the tools of one row that other servers may have for theirs.
pub(crate) struct Words<'a> {
    /// What the row lists: the server's own.
    own: HashSet<&'a str>,
    /// What was looked up: the other server, where there is one.
    known: HashMap<String, Option<String>>,
}

impl<'a> Words<'a> {
    /// Of a row that lists these tools.
    pub(crate) fn of(own: impl Iterator<Item = &'a str>) -> Self {
        Self { own: own.collect(), known: HashMap::new() }
    }
}

/// What is odd about a definition: what its session found, and what other servers of the user have that it names.
fn flagged(
    step: &Transaction<'_>,
    (uid, server, server_name): (u32, i64, &str),
    (tool, definition): (&ListedTool, &str),
    words: &mut Words<'_>,
) -> rusqlite::Result<Vec<Flag>> {
    let mut found = tool.flags.clone();
    let mut others = step.prepare_cached(
        "SELECT s.name FROM mcp_tools t JOIN mcp_servers s ON s.id = t.server
             WHERE t.name = ?3 AND s.uid = ?1 AND s.id <> ?2 AND s.name <> ?4 AND s.agent IS (SELECT agent FROM mcp_servers WHERE id = ?2)
             AND NOT EXISTS (SELECT 1 FROM mcp_tools own WHERE own.server = ?2 AND own.name = ?3)
         UNION ALL SELECT name FROM mcp_servers WHERE uid = ?1 AND name = ?3 AND name <> ?4
             AND agent IS (SELECT agent FROM mcp_servers WHERE id = ?2) LIMIT 1",
    )?;
    for word in flags::distinctive_words(definition) {
        // The server's own, also what the same list has further down.
        if found.len() >= flags::MOST || words.own.contains(word.as_str()) {
            continue;
        }
        let other = match words.known.get(&word) {
            Some(other) => other.clone(),
            None if words.known.len() >= MOST_WORDS => continue,
            None => {
                let other: Option<String> =
                    others.query_row(params![uid, server, word, server_name], |row| row.get(0)).optional()?;
                words.known.insert(word.clone(), other.clone());
                other
            }
        };
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

/// Keeps a definition, if there is room: no server takes another's.
fn define(step: &Transaction<'_>, server: i64, sha256: &str, definition: &str) -> rusqlite::Result<()> {
    let (own, owner, contained): (i64, u32, bool) = step
        .prepare_cached("SELECT bytes, owner, contained FROM mcp_servers WHERE id = ?1")?
        .query_row([server], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let more = definition.len() as i64;
    if own + more > BYTES_OF_EACH {
        let all: i64 = step
            .prepare_cached(
                "SELECT coalesce(sum(bytes), 0) FROM mcp_servers WHERE owner = ?1 AND contained = ?2
                     AND (agent IS NULL) = (SELECT agent IS NULL FROM mcp_servers WHERE id = ?3)",
            )?
            .query_row(params![owner, contained, server], |row| row.get(0))?;
        if own + more > MOST_BYTES_OF_SERVER || all + more > MOST_BYTES {
            return Ok(());
        }
    }
    let new = step
        .prepare_cached(
            "INSERT OR IGNORE INTO tool_definitions (server, sha256, definition) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![server, sha256, definition])?;
    count(step, server, if new == 0 { 0 } else { more })
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
    .execute(params![server, tool, when, what, detail])
    .map(drop)
}

/// Removes old changes of a server beyond those that are kept.
pub(crate) fn trim(step: &Transaction<'_>, server: i64) -> rusqlite::Result<()> {
    step.prepare_cached(
        "DELETE FROM tool_changes WHERE server = ?1 AND id <=
             (SELECT id FROM tool_changes WHERE server = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute([server, MOST_CHANGES])
    .map(drop)
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

/// Makes room for one more server of a user: those of which nothing is pinned go first, whenever they were used. False: each is in
/// use, or something is pinned of it and it was used within [`FORGOTTEN`], decided about, or has something waiting, and whoever
/// could remove those could have what was pinned of them pinned anew.
fn make_room(step: &Transaction<'_>, (owner, contained): (u32, bool)) -> rusqlite::Result<bool> {
    loop {
        let servers: i64 = step
            .prepare_cached(
                "SELECT count(*) FROM mcp_servers WHERE owner = ?1 AND contained = ?2 AND agent IS NULL",
            )?
            .query_row(params![owner, contained], |row| row.get(0))?;
        if servers < MOST_SERVERS {
            return Ok(true);
        }
        let oldest: Option<i64> = step
            .prepare_cached(
                "WITH known AS (SELECT id, last_seen, EXISTS (SELECT 1 FROM tool_pins p WHERE p.server = s.id) AS is_pinned
                     FROM mcp_servers s WHERE owner = ?1 AND contained = ?2 AND agent IS NULL
                         AND NOT EXISTS (SELECT 1 FROM sessions WHERE server = s.id AND ended_at IS NULL))
                 SELECT id FROM known s WHERE NOT is_pinned OR (last_seen < ?3
                     AND NOT EXISTS (SELECT 1 FROM sessions WHERE server = s.id AND ended_at >= ?3)
                     AND NOT EXISTS (SELECT 1 FROM tool_pins p WHERE p.server = s.id AND (p.approved_at IS NOT NULL
                         OR p.rejected_at IS NOT NULL OR p.changed_sha256 IS NOT NULL)))
                 ORDER BY is_pinned, last_seen, id LIMIT 1",
            )?
            .query_row(params![owner, contained, long_ago()], |row| row.get(0))
            .optional()?;
        let Some(oldest) = oldest else { return Ok(false) };
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
