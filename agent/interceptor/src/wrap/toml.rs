//! Servers in TOML, as Codex has them.

use super::{Arguments, Entry, Error, Left, Server, Text};
use ::toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The table of the servers.
const SERVERS: &str = "mcp_servers";

/// The servers of a configuration.
///
/// # Errors
/// [`Error::Toml`], [`Error::NoServers`]
pub(super) fn servers(text: &str) -> Result<Vec<Entry>, Error> {
    let root = DeTable::parse(text).map_err(|error| Error::Toml(error.message().to_owned()))?;
    let servers = get(root.get_ref(), SERVERS).and_then(|(_, servers)| servers.get_ref().as_table());
    let servers = servers.ok_or_else(|| Error::NoServers(format!("[{SERVERS}]")))?;
    let mut all: Vec<(usize, Entry)> = servers
        .iter()
        .map(|(name, value)| (name.span().start, (name.get_ref().to_string(), server(text, value))))
        .collect();
    // In the file's order, which a table does not keep.
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, entry)| entry).collect())
}

type Found<'a, 'b> = (&'b Spanned<std::borrow::Cow<'a, str>>, &'b Spanned<DeValue<'a>>);

fn get<'a, 'b>(table: &'b DeTable<'a>, name: &str) -> Option<Found<'a, 'b>> {
    table.iter().find(|(key, _)| key.get_ref() == name)
}

fn server(text: &str, value: &Spanned<DeValue<'_>>) -> Result<Server, Left> {
    let server = value.get_ref().as_table().ok_or("it is not an object")?;
    let (key, command) = get(server, "command")
        .ok_or("it has no command: a remote server, which the interceptor does not see")?;
    let command = string(command).ok_or(Left::Unable("its command is not a string"))?;
    let arguments = get(server, "args").map(|(_, value)| {
        let list = value.get_ref().as_array().ok_or(Left::Unable("its args are not a list"))?;
        let item = |item| string(item).ok_or(Left::Unable("its args are not all strings"));
        let items = list.iter().map(item).collect::<Result<_, Left>>()?;
        Ok::<_, Left>(Arguments { range: value.span(), items })
    });
    let variables = get(server, "env").and_then(|(_, env)| env.get_ref().as_table());
    let variables = variables
        .into_iter()
        .flat_map(|env| env.iter())
        .map(|(name, _)| name.get_ref().to_string())
        .collect();
    let is_inline = text.get(value.span()).is_some_and(|text| text.starts_with('{'));
    let place = place(text, key.span().start, command.range.end, is_inline);
    Ok(Server { command, arguments: arguments.transpose()?, place, variables })
}

fn string(value: &Spanned<DeValue<'_>>) -> Option<Text> {
    Some(Text { value: value.get_ref().as_str()?.to_owned(), range: value.span() })
}

/// Where a list of arguments goes that is not there, and what stands before it: a line behind the one where the command,
/// whose key is at `key`, ends at `end`; or in the table's own line.
fn place(text: &str, key: usize, end: usize, is_inline: bool) -> Result<(usize, String), &'static str> {
    let before = text.get(..key).unwrap_or_default();
    // In one line, as TOML has it: a comment above may end in a full stop.
    if before.trim_end_matches([' ', '\t']).ends_with('.') {
        return Err("its command has a dotted key, and it has no args: write `args = []` beside it");
    }
    if is_inline {
        return Ok((end, ", args = ".to_owned()));
    }
    let line = before.rfind('\n').map_or(before, |at| before.get(at + 1..).unwrap_or_default());
    let indent: String = line.chars().take_while(|c| matches!(c, ' ' | '\t')).collect();
    let rest = text.get(end..).unwrap_or_default();
    let (at, line) = match rest.find('\n') {
        Some(at) if rest.get(..at).is_some_and(|rest| rest.ends_with('\r')) => (at - 1, "\r\n"),
        Some(at) => (at, "\n"),
        None => (rest.len(), if text.contains("\r\n") { "\r\n" } else { "\n" }),
    };
    Ok((end + at, format!("{line}{indent}args = ")))
}
