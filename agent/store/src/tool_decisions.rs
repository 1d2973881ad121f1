//! What a person decides about a tool that changed, or whose description is odd: one transaction with its entry of the ledger.

use super::{Error, SessionWriter, Viewer, agent_tools, connection::begin, ledger, sql, tools, turn};
use ringfence_base::clock::rfc3339;
use ringfence_session::ledger::{DecidedTool, Entry};
use rusqlite::{OptionalExtension as _, Transaction, params};

/// The hash of nothing: of a tool of which nothing is trusted.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What came of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It is made.
    Done,
    /// There is no such server, or no such tool of it, that the viewer can see.
    Unknown,
    /// It is an agent's of the daemon: root's to decide. The user whose agent it is may be whom its runtime runs as.
    Roots,
    /// The tool is as it was pinned, and nothing about it is odd that was not approved.
    NothingWaits,
    /// What waits is not what was shown.
    Another,
    /// There was no room for its text: nobody can have seen what it says.
    NotKept,
}

/// A pin as it is decided about.
struct Pin {
    uid: u32,
    of_daemon: bool,
    server_name: String,
    sha256: String,
    is_flagged: bool,
    changed: Option<String>,
}

impl SessionWriter {
    /// Trusts what a tool says, or has it stay away from clients, if that is what has this hash: the server may have changed
    /// it again since somebody looked.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn decide_tool(
        &mut self,
        viewer: Viewer,
        (server, tool, sha256): (i64, &str, &str),
        (by, approve): (&str, bool),
        now: i64,
    ) -> Result<Decided, Error> {
        let fail = sql("decide about a tool");
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        let pin = find(&step, viewer, server, tool).map_err(&fail)?;
        let Some(pin) = pin else { return Ok(Decided::Unknown) };
        if pin.of_daemon && viewer.0 != 0 {
            return Ok(Decided::Roots);
        }
        let waits = pin.changed.as_deref() == Some(sha256);
        let is_flagged = pin.sha256 == sha256 && pin.is_flagged;
        if !waits && !is_flagged {
            let nothing = pin.changed.is_none() && !pin.is_flagged;
            return Ok(if nothing { Decided::NothingWaits } else { Decided::Another });
        }
        let kept = "SELECT 1 FROM tool_definitions WHERE server = ?1 AND sha256 = ?2";
        let is_kept = step.prepare_cached(kept).and_then(|mut kept| kept.exists(params![server, sha256]));
        if approve && !is_kept.map_err(&fail)? {
            return Ok(Decided::NotKept);
        }
        let when = rfc3339(now);
        let nothing;
        let text = match (waits, approve) {
            (true, true) => {
                "UPDATE tool_pins SET sha256 = changed_sha256, parts = changed_parts, flags = changed_flags, since = ?4,
                     approved_by = ?3, approved_at = ?4, changed_sha256 = NULL, changed_parts = NULL, changed_flags = NULL,
                     changed_at = NULL, rejected_by = NULL, rejected_at = NULL WHERE server = ?1 AND name = ?2"
            }
            (true, false) => "UPDATE tool_pins SET rejected_by = ?3, rejected_at = ?4 WHERE server = ?1 AND name = ?2",
            (false, true) => "UPDATE tool_pins SET approved_by = ?3, approved_at = ?4 WHERE server = ?1 AND name = ?2",
            // Nothing of it is trusted: as it is now it waits, and was refused already.
            (false, false) => {
                nothing = format!(
                    "UPDATE tool_pins SET changed_sha256 = sha256, changed_parts = parts, changed_flags = flags, changed_at = ?4,
                         sha256 = '{NOTHING}', parts = '{{}}', flags = '[]', rejected_by = ?3, rejected_at = ?4
                     WHERE server = ?1 AND name = ?2"
                );
                nothing.as_str()
            }
        };
        step.execute(text, params![server, tool, by, when]).map_err(&fail)?;
        // What nothing names any more: what was pinned, or what waited in the place of what is refused now.
        let unnamed = match (waits, approve) {
            (true, true) => Some(&pin.sha256).filter(|pinned| *pinned != NOTHING),
            (false, false) => pin.changed.as_ref(),
            _ => None,
        };
        if let Some(unnamed) = unnamed {
            tools::undefine(&step, server, unnamed).map_err(&fail)?;
        }
        let word = if approve { "approved" } else { "rejected" };
        tools::change(&step, server, Some(tool), (word, &when), &format!("{sha256} by {by}"))
            .map_err(&fail)?;
        tools::trim(&step, server).map_err(&fail)?;
        let decided = DecidedTool {
            at: now,
            by: by.to_owned(),
            change: word.to_owned(),
            server: pin.server_name,
            tool: Some(tool.to_owned()),
            before: Some(pin.sha256),
            sha256: Some(sha256.to_owned()),
        };
        ledger::append(&step, pin.uid, &Entry::Tool(Box::new(decided))).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(Decided::Done)
    }

    /// Forgets a server and what is pinned of it: its next session pins what it says then.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn forget_server(
        &mut self,
        viewer: Viewer,
        server: i64,
        by: &str,
        now: i64,
    ) -> Result<Decided, Error> {
        let fail = sql("forget a server");
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        let found: Option<(u32, String, bool)> = step
            .query_row(
                "SELECT uid, name, of_daemon FROM mcp_servers WHERE id = ?1 AND (?2 = 0 OR uid = ?2)",
                params![server, viewer.0],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .optional()
            .map_err(&fail)?;
        let Some((uid, name, of_daemon)) = found else { return Ok(Decided::Unknown) };
        if of_daemon && viewer.0 != 0 {
            return Ok(Decided::Roots);
        }
        agent_tools::forget(&step, server).map_err(&fail)?;
        tools::remove(&step, server).map_err(&fail)?;
        let forgotten = DecidedTool {
            at: now,
            by: by.to_owned(),
            change: "forgotten".to_owned(),
            server: name,
            tool: None,
            before: None,
            sha256: None,
        };
        ledger::append(&step, uid, &Entry::Tool(Box::new(forgotten))).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(Decided::Done)
    }
}

fn find(step: &Transaction<'_>, viewer: Viewer, server: i64, tool: &str) -> rusqlite::Result<Option<Pin>> {
    step.query_row(
        "SELECT p.uid, s.name, p.sha256, p.flags <> '[]' AND p.approved_at IS NULL, p.changed_sha256, s.of_daemon
         FROM tool_pins p JOIN mcp_servers s ON s.id = p.server
         WHERE p.server = ?1 AND p.name = ?2 AND (?3 = 0 OR p.uid = ?3)",
        params![server, tool, viewer.0],
        |row| {
            Ok(Pin {
                uid: row.get(0)?,
                server_name: row.get(1)?,
                sha256: row.get(2)?,
                is_flagged: row.get(3)?,
                changed: row.get(4)?,
                of_daemon: row.get(5)?,
            })
        },
    )
    .optional()
}
