//! Servers in TOML, as Codex has them.

use super::{
    Arguments, Entry, Error, Found, Left, Server, Text,
    remote::{Form, Remote, is_secret, secret_words},
};
use ::toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use std::ops::Range;

/// Keys that Codex takes beside an address, and refuses beside a command.
const HTTP_ONLY: &[&str] = &[
    "bearer_token",
    "bearer_token_env_var",
    "env_http_headers",
    "http_headers",
    "oauth",
    "oauth_resource",
    "scopes",
];
/// Those of them that hold a credential.
const SECRETS: &[&str] = &["bearer_token", "http_headers", "oauth"];
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

/// Where the credentials of remote servers are, whatever becomes of those, also in addresses that a command is given.
pub(super) fn secrets(text: &str) -> Vec<Range<usize>> {
    let root = DeTable::parse(text).ok();
    let servers = root.as_ref().and_then(|root| get(root.get_ref(), SERVERS)).map(|(_, servers)| servers);
    let entries =
        servers.and_then(|servers| servers.get_ref().as_table()).into_iter().flat_map(DeTable::values);
    let mut found = Vec::new();
    for (key, value) in entries.filter_map(|entry| entry.get_ref().as_table()).flat_map(DeTable::iter) {
        if SECRETS.contains(&key.get_ref().as_ref()) {
            values(value, &mut found);
        } else if key.get_ref() == "url" {
            let address = string(value).filter(|address| is_secret(&address.value));
            found.extend(address.map(|address| address.range));
        } else if let Some(list) = value.get_ref().as_array() {
            let words: Vec<Text> = list.iter().filter_map(string).collect();
            let secret = secret_words(&words.iter().collect::<Vec<_>>());
            found.extend(secret.into_iter().map(|word| word.range.clone()));
        }
    }
    found
}

/// Where the values are that one has, however deep, but for true and false.
fn values(value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(table) => table.values().for_each(|each| values(each, found)),
        DeValue::Array(list) => list.iter().for_each(|each| values(each, found)),
        DeValue::Boolean(_) => {}
        _ => found.push(value.span()),
    }
}

type Pair<'a, 'b> = (&'b Spanned<std::borrow::Cow<'a, str>>, &'b Spanned<DeValue<'a>>);

fn get<'a, 'b>(table: &'b DeTable<'a>, name: &str) -> Option<Pair<'a, 'b>> {
    table.iter().find(|(key, _)| key.get_ref() == name)
}

fn server(text: &str, value: &Spanned<DeValue<'_>>) -> Result<Found, Left> {
    let server = value.get_ref().as_table().ok_or("it is not an object")?;
    let Some((key, command)) = get(server, "command") else { return Ok(remote(text, value, server)?.into()) };
    let command = string(command).ok_or(Left::Unable("its command is not a string"))?;
    let arguments = get(server, "args").map(|(_, value)| {
        let list = value.get_ref().as_array().ok_or(Left::Unable("its args are not a list"))?;
        let item = |item| string(item).ok_or(Left::Unable("its args are not all strings"));
        let items = list.iter().map(item).collect::<Result<_, Left>>()?;
        Ok::<_, Left>(Arguments { range: value.span(), items })
    });
    let variables = variables(server);
    let is_inline = text.get(value.span()).is_some_and(|text| text.starts_with('{'));
    let place = place(text, key.span().start, command.range.end, is_inline);
    let arguments = arguments.transpose()?;
    // As wrapping writes them: one behind the other. What a formatter put between them must not go with them.
    let between = arguments.as_ref().and_then(|arguments| text.get(command.range.end..arguments.range.start));
    let between = between.is_some_and(|between| {
        between.trim_start_matches([',', ' ', '\t', '\r', '\n']).trim_end_matches([' ', '\t', '=']) == "args"
    });
    let whole = arguments.as_ref().map(|arguments| key.span().start..arguments.range.end);
    Ok(Found::Stdio(Server {
        command,
        arguments,
        place,
        variables,
        whole: whole.filter(|whole| whole.start < whole.end && between),
    }))
}

/// Variables that a server is started with.
fn variables(server: &DeTable<'_>) -> Vec<String> {
    let variables = get(server, "env").and_then(|(_, env)| env.get_ref().as_table());
    let variables = variables.into_iter().flat_map(|env| env.iter());
    variables.map(|(name, _)| name.get_ref().to_string()).collect()
}

/// A server without a command.
fn remote(text: &str, value: &Spanned<DeValue<'_>>, server: &DeTable<'_>) -> Result<Remote, Left> {
    let (key, url) = get(server, "url").ok_or("it has neither a command nor an address")?;
    let url = string(url).ok_or(Left::Unable("its address is not a string"))?;
    if server.iter().any(|(key, _)| HTTP_ONLY.contains(&key.get_ref().as_ref())) {
        return Err(Left::Unable(
            "it has keys that only a remote server has in Codex (bearer_token_env_var, http_headers and the like); write command = \"ringfence\" and args = [\"mcp\", \"--url\", ..., \"--token-file\", ...] in their place",
        ));
    }
    let is_inline = text.get(value.span()).is_some_and(|text| text.starts_with('{'));
    let (_, between) = place(text, key.span().start, url.range.end, is_inline)
        .map_err(|_| Left::Unable("its url has a dotted key: write it as a table"))?;
    let between = between.strip_suffix("args = ").unwrap_or(" ").to_owned();
    Ok(Remote {
        range: key.span().start..url.range.end,
        url: url.value,
        kind: None,
        headers: Vec::new(),
        form: Form::Toml(between),
        variables: variables(server),
    })
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
