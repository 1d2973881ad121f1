//! Rows about a session's server and its tools. Whoever writes a journal writes any length: each text is bounded here. Pure.

use super::row::{LONGEST_TEXT, Row, ToolsRow};
use crate::journal::ListedTool;
use ringfence_pins::{LONGEST_DEFINITION, LONGEST_NAME, MOST_TOOLS, definition::is_hash, flags};

/// Most names in the note of a message that tools were taken out of.
const MOST_NAMED: usize = 8;
/// Longest name in it, characters.
const LONGEST_NAMED: usize = 64;

/// The row of what a server is.
pub(super) fn server(at: i64, key: Option<String>, info: Option<String>) -> Option<Row> {
    let key = key.filter(|key| is_hash(key));
    let info = info.filter(|info| info.len() <= LONGEST_TEXT);
    (key.is_some() || info.is_some()).then_some(Row::Server { key, info, at })
}

/// The row of tools; what no interceptor of ours writes is left out.
pub(super) fn tools(at: i64, mut tools: Vec<ListedTool>, whole: Option<i64>) -> Row {
    tools.truncate(MOST_TOOLS);
    tools.retain(|tool| !tool.name.is_empty() && tool.name.len() <= LONGEST_NAME);
    for tool in &mut tools {
        tool.sha256 = tool.sha256.take().filter(|hash| is_hash(hash));
        // Redaction changes its length a little.
        tool.definition = tool.definition.take().filter(|text| text.len() <= 2 * LONGEST_DEFINITION);
        tool.held = tool.held.take().map(|mut why| {
            why.truncate(why.floor_char_boundary(LONGEST_TEXT));
            why
        });
        // As many as there can be, and short.
        if tool.parts.len() > 16 || tool.parts.iter().any(|(key, digest)| key.len() + digest.len() > 64) {
            tool.parts.clear();
        }
        tool.flags.truncate(flags::MOST);
        tool.flags.retain(|flag| flag.place.len() + flag.why.len() + flag.excerpt.len() <= LONGEST_TEXT);
    }
    Row::Tools(Box::new(ToolsRow { at, tools, whole, counts: true }))
}

/// What is noted of a message whose client did not get some of these tools, or that has `more` than these.
pub(super) fn note(tools: &[ListedTool], more: u64) -> Option<String> {
    let held: Vec<&ListedTool> = tools.iter().filter(|tool| tool.held.is_some()).collect();
    let beyond = (more > 0).then(|| format!("{more} more tools of its list are not on record"));
    if held.is_empty() {
        return beyond;
    }
    let named =
        held.iter().take(MOST_NAMED).map(|tool| tool.name.chars().take(LONGEST_NAMED).collect::<String>());
    let mut note = format!("the client got it without {}", named.collect::<Vec<_>>().join(", "));
    if held.len() > MOST_NAMED {
        note += &format!(" and {} more tools", held.len() - MOST_NAMED);
    }
    if let Some(beyond) = beyond {
        note += &format!("; {beyond}");
    }
    Some(note)
}
