//! What the ledger has of one kind, printed: `mcp rules log`, `approvals log`.

use crate::cli::output;
use anyhow::bail;
use ringfence_base::clock::rfc3339;
use ringfence_client::{places::Places, sessions as client};
use ringfence_session::ledger::Entry;
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;

/// Rows of the ledger that are asked for at once.
const PAGE: u32 = 1000;

/// An entry that is shown: what it says, when it was made (microseconds since 1970), and the same for people.
pub(super) struct Shown<T> {
    pub(super) entry: T,
    pub(super) at: i64,
    pub(super) text: String,
}

/// Prints those entries that `select` takes, the oldest first; as JSON, one object per line.
pub(super) fn print<T: Serialize>(
    places: &Places,
    as_json: bool,
    select: impl Fn(Entry) -> Option<Shown<T>>,
) -> anyhow::Result<ExitCode> {
    let mut after = 0;
    loop {
        let request = McpRequest::Table { table: "ledger".to_owned(), after, limit: PAGE, as_text: false };
        let McpReply::Rows { rows: page } = client::ask(places, &request)? else {
            bail!("the auditor sent an unexpected answer");
        };
        let Some(last) = page.last().and_then(|row| row["_rowid"].as_i64()) else {
            return Ok(ExitCode::SUCCESS);
        };
        after = last;
        let mut text = String::new();
        for row in &page {
            // What is no entry `ringfence audit verify` reports.
            let entry = row["entry"].as_str().and_then(|entry| serde_json::from_str(entry).ok());
            let Some(shown) = entry.and_then(&select) else { continue };
            if as_json {
                let mut line = json!(shown.entry);
                line["uid"] = row["uid"].clone();
                line["at"] = rfc3339(shown.at).into();
                text += &format!("{line}\n");
            } else {
                text += &shown.text;
            }
        }
        output::print(&text)?;
    }
}
