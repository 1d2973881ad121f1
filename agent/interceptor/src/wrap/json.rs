//! Servers in JSON with comments.

use super::{
    Arguments, Client, ENV_FILE, Entry, Error, Found, Left, Server, Text,
    remote::{Form, KEYS, Remote, is_secret, secret_words},
};
use jsonc_parser::{
    CollectOptions, ParseOptions,
    ast::{Object, ObjectProp, Value},
    common::Ranged,
    parse_to_ast,
};
use std::ops::Range;

/// Every place where any client has servers. Where no client was named, all of them count: which one reads the file is not
/// known, and servers in one place must not hide those in another.
const ANY: &[&[&str]] =
    &[&["mcpServers"], &["servers"], &["mcp", "servers"], &["mcp.servers"], &["context_servers"]];

const fn paths(client: Option<Client>) -> &'static [&'static [&'static str]] {
    match client {
        None => ANY,
        Some(Client::Claude | Client::Cursor | Client::Windsurf) => &[&["mcpServers"]],
        Some(Client::Vscode) => &[&["servers"], &["mcp", "servers"], &["mcp.servers"]],
        Some(Client::Zed) => &[&["context_servers"]],
        // It has no JSON.
        Some(Client::Codex) => &[],
    }
}

/// Keys by which a client gets the credential of a remote server itself.
const LOGINS: [&str; 5] = ["oauth", "auth", "authorization", "authProviderType", "headersHelper"];

/// Keys that have an address, each in some client.
const ADDRESSES: [&str; 3] = ["url", "serverUrl", "httpUrl"];

/// The servers of a client's configuration.
///
/// # Errors
/// [`Error::Syntax`], [`Error::NoServers`]
pub(super) fn servers(text: &str, client: Option<Client>) -> Result<Vec<Entry>, Error> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    let root = parsed.map_err(|error| Error::Syntax(error.to_string()))?.value;
    let top = root.as_ref().and_then(Value::as_object);
    let places = top.map(|top| places(top, client)).unwrap_or_default();
    if places.is_empty() {
        let names = paths(client).iter().map(|path| format!("\"{}\"", path.join(".")));
        return Err(Error::NoServers(names.collect::<Vec<_>>().join(" or ")));
    }
    let properties = places.into_iter().flat_map(|place| &place.properties);
    Ok(properties.map(|property| (property.name.as_str().to_owned(), server(text, property))).collect())
}

/// The objects that hold servers.
fn places<'a, 'b>(top: &'b Object<'a>, client: Option<Client>) -> Vec<&'b Object<'a>> {
    let within = |path: &&[&str]| path.iter().fold(vec![top], |objects, key| named(objects, key));
    let mut places: Vec<_> = paths(client).iter().flat_map(within).collect();
    if matches!(client, None | Some(Client::Claude)) {
        places.extend(projects(top));
    }
    places
}

/// Where the credentials of remote servers are, whatever becomes of those and whichever client they are for: in headers, in what
/// logs in, in addresses, also in those that a command is given.
pub(super) fn secrets(text: &str) -> Vec<Range<usize>> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    let root = parsed.ok().and_then(|parsed| parsed.value);
    let top = root.as_ref().and_then(Value::as_object);
    let places = top.map(|top| places(top, None)).unwrap_or_default();
    let entries = places.into_iter().flat_map(|place| &place.properties);
    let mut found = Vec::new();
    for property in entries.filter_map(|entry| entry.value.as_object()).flat_map(|entry| &entry.properties) {
        let name = property.name.as_str();
        if name == "headers" || LOGINS.contains(&name) {
            values(&property.value, &mut found);
        } else if ADDRESSES.contains(&name) {
            let address = string(&property.value).filter(|address| is_secret(&address.value));
            found.extend(address.map(|address| address.range));
        } else if let Some(list) = property.value.as_array() {
            let words: Vec<Text> = list.elements.iter().filter_map(string).collect();
            let secret = secret_words(&words.iter().collect::<Vec<_>>());
            found.extend(secret.into_iter().map(|word| word.range.clone()));
        }
    }
    found
}

/// Where the texts and numbers are that a value has, however deep.
fn values(value: &Value<'_>, found: &mut Vec<Range<usize>>) {
    match value {
        Value::Object(object) => object.properties.iter().for_each(|each| values(&each.value, found)),
        Value::Array(list) => list.elements.iter().for_each(|each| values(each, found)),
        Value::StringLit(_) | Value::NumberLit(_) => found.push(value.start()..value.end()),
        Value::BooleanLit(_) | Value::NullKeyword(_) => {}
    }
}

/// Every object that has this name within these. One name may be there twice, and which of the two counts is the client's to
/// say.
fn named<'a, 'b>(objects: Vec<&'b Object<'a>>, name: &str) -> Vec<&'b Object<'a>> {
    let properties = objects.into_iter().flat_map(|object| &object.properties);
    let named = properties.filter(|property| property.name.as_str() == name);
    named.filter_map(|property| property.value.as_object()).collect()
}

/// Servers that Claude Code keeps for one project each: its default scope, in the user's file.
fn projects<'a, 'b>(top: &'b Object<'a>) -> Vec<&'b Object<'a>> {
    let projects = named(vec![top], "projects").into_iter().flat_map(|projects| &projects.properties);
    named(projects.filter_map(|project| project.value.as_object()).collect(), "mcpServers")
}

fn server(text: &str, property: &ObjectProp<'_>) -> Result<Found, Left> {
    let server = property.value.as_object().ok_or("it is not an object")?;
    let Some(command) = only(server, "command")? else { return Ok(remote(server)?.into()) };
    let string = string(&command.value).ok_or(Left::Unable("its command is not a string"))?;
    let arguments = only(server, "args")?.map(|property| {
        let list = property.value.as_array().ok_or(Left::Unable("its args are not a list"))?;
        let item = |item| self::string(item).ok_or(Left::Unable("its args are not all strings"));
        let items = list.elements.iter().map(item).collect::<Result<_, Left>>()?;
        Ok::<_, Left>(Arguments { range: list.start()..list.end(), items })
    });
    let variables = variables(server);
    let (at, line) = (string.range.end, lead(text, command.start()));
    let place = Ok((at, format!(",{line}\"args\": ")));
    let whole = Some(server.start()..server.end());
    Ok(Found::Stdio(Server { command: string, arguments: arguments.transpose()?, place, variables, whole }))
}

/// Variables that an entry's process is started with.
fn variables(server: &Object<'_>) -> Vec<String> {
    let variables = named(vec![server], "env").into_iter().flat_map(|env| &env.properties);
    let files = server.properties.iter().filter(|property| property.name.as_str() == ENV_FILE);
    variables.chain(files).map(|property| property.name.as_str().to_owned()).collect()
}

/// An entry without a command.
fn remote(server: &Object<'_>) -> Result<Remote, Left> {
    let text = |name: &str| -> Result<Option<Text>, Left> {
        let unable = || Left::Unable("its address or its type is not a string");
        only(server, name)?.map(|property| string(&property.value).ok_or_else(unable)).transpose()
    };
    let urls = ADDRESSES.map(text).into_iter().collect::<Result<Vec<_>, Left>>()?;
    let mut urls = urls.into_iter().flatten();
    let url = urls.next().ok_or("it has neither a command nor an address")?;
    if urls.next().is_some() {
        return Err(Left::Unable("it has two addresses"));
    }
    if server.properties.iter().any(|property| LOGINS.contains(&property.name.as_str())) {
        return Err(Left::Unable(
            "the client logs in to it (oauth, auth or headersHelper); take that out of the entry and log in with `ringfence mcp login`, or give it a token in a header",
        ));
    }
    let headers = only(server, "headers")?.map(|property| {
        let headers = property.value.as_object().ok_or(Left::Unable("its headers are not an object"))?;
        let header = |property: &ObjectProp<'_>| {
            let value = string(&property.value).ok_or(Left::Unable("its headers are not all strings"))?;
            Ok((property.name.as_str().to_owned(), value))
        };
        headers.properties.iter().map(header).collect::<Result<Vec<_>, Left>>()
    });
    let others = server.properties.iter().filter(|property| !KEYS.contains(&property.name.as_str()));
    Ok(Remote {
        range: server.start()..server.end(),
        url: url.value,
        kind: text("type")?.or(text("transport")?).map(|kind| kind.value),
        headers: headers.transpose()?.unwrap_or_default(),
        form: Form::Json(others.map(|property| property.start()..property.end()).collect()),
        variables: variables(server),
    })
}

/// A property that must not be there twice: which of them counts is the client's to say.
fn only<'a, 'b>(object: &'b Object<'a>, name: &str) -> Result<Option<&'b ObjectProp<'a>>, Left> {
    let mut all = object.properties.iter().filter(|property| property.name.as_str() == name);
    let first = all.next();
    match all.next() {
        Some(_) => Err(Left::Unable("it has a key twice: two commands, addresses or lists of args")),
        None => Ok(first),
    }
}

fn string(value: &Value<'_>) -> Option<Text> {
    let string = value.as_string_lit()?;
    Some(Text { value: string.value.clone().into_owned(), range: string.start()..string.end() })
}

/// What stands before a property that is put behind the one at `at`: a line of its own, if that one has one.
fn lead(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    match before.rfind('\n') {
        Some(line) if before.get(line..).is_some_and(|line| line.trim().is_empty()) => {
            let line =
                if before.get(..line).is_some_and(|rest| rest.ends_with('\r')) { line - 1 } else { line };
            before.get(line..).unwrap_or(" ")
        }
        _ => " ",
    }
}
