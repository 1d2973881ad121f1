//! A client's configuration with Ringfence put before each server, and taken out again. Pure.
//!
//! The text is edited where a server's command and arguments are, and is the same to the byte elsewhere: comments, order,
//! white space, line ends, a byte order mark. What is put in is found again, so that taking it out restores what was there.

mod json;
mod remote;
mod toml;

use remote::Spare;
pub use remote::{Empty, PrivateFile, Store};

// A basic string of TOML as it is written there is one of JSON, too.
use ringfence_base::escape::toml as quoted;
use ringfence_session::line::MAX_CONFIG;
use std::ops::Range;

/// Where a client keeps its servers: the key of the object that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    /// Claude Desktop and Claude Code: `mcpServers`, also those of single projects.
    Claude,
    /// Codex: `[mcp_servers.NAME]` in TOML.
    Codex,
    /// Cursor: `mcpServers`.
    Cursor,
    /// Windsurf: `mcpServers`.
    Windsurf,
    /// VS Code: `servers` in mcp.json, or `mcp.servers` in settings.json.
    Vscode,
    /// Zed: `context_servers`.
    Zed,
}

/// Why a configuration cannot be rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not JSON, comments allowed.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// Not TOML.
    #[error("not TOML: {0}")]
    Toml(String),
    /// Too long to be one.
    #[error("longer than {MAX_CONFIG} bytes: this is no client's configuration")]
    Long,
    /// No servers in it.
    #[error("it has no servers: expected an object under {0}")]
    NoServers(String),
}

/// A rewritten configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// The text.
    pub text: String,
    /// Names of the servers that were changed.
    pub changed: Vec<String>,
    /// Names of those left as they are, and why.
    pub left: Vec<(String, Left)>,
    /// Private files that wrapped remote servers need, to be there before the text is.
    pub needs: Vec<PrivateFile>,
    /// Names of such files that nothing needs any more once the text is there; they may be missing.
    pub spares: Vec<String>,
    /// Names of remote servers that were changed and are given no credential: one that wants a login refuses them now.
    pub bare: Vec<String>,
}

/// Why a server stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Left {
    /// There is nothing to do, or nothing that can be done.
    #[error("{0}")]
    Because(&'static str),
    /// It is started, and cannot be wrapped.
    #[error("{0}, so it is not protected")]
    Unable(&'static str),
    /// Its environment has these variables, which lead to another Ringfence, into it, or to other rules and records.
    #[error(
        "its environment sets {0}, by which another program, other rules or another record could take the place of Ringfence's, so it may not be protected; take that out, and wrap again"
    )]
    Environment(String),
    /// It is wrapped, and cannot be taken out.
    #[error("{0}")]
    Lost(&'static str),
    /// It starts what passes for Ringfence, but not as wrapping does: another program of that name, or options that may take
    /// the protection away. These are its words, up to the command behind its `--`, quoted.
    #[error(
        "it names a Ringfence of its own path or with options of its own, so it may not be protected: {0}; write the server's own command in their place, and wrap again"
    )]
    Foreign(String),
}

impl From<&'static str> for Left {
    fn from(why: &'static str) -> Self {
        Self::Because(why)
    }
}

/// A string of a configuration.
struct Text {
    /// What it says.
    value: String,
    /// Where it is, its quotes included.
    range: Range<usize>,
}

/// A server's arguments.
struct Arguments {
    /// Where the list is, its brackets included.
    range: Range<usize>,
    /// Each of them.
    items: Vec<Text>,
}

/// A server as a configuration has it.
struct Server {
    /// The program that it is.
    command: Text,
    /// What follows the program; `None`: no list is there.
    arguments: Option<Arguments>,
    /// Where a list would be put that is not there, and what is put before it there.
    place: Result<(usize, String), &'static str>,
    /// Names of variables that it is started with; of a file with more of them, the key that names the file.
    variables: Vec<String>,
    /// Where the entry is, where it is one piece.
    whole: Option<Range<usize>>,
}

/// What an entry is.
enum Found {
    /// A command.
    Stdio(Server),
    /// An address.
    Remote(remote::Remote),
}

/// A server by its name, or why its entry cannot be wrapped.
type Entry = (String, Result<Found, Left>);

/// One replacement in the text.
type Edit = (Range<usize>, String);

/// Puts `program` before every server, or takes it out again (`undo`). `store` holds what remote servers had.
///
/// # Errors
/// [`Error`]; nothing is guessed.
pub fn rewrite(
    text: &str,
    client: Option<Client>,
    program: &str,
    undo: bool,
    store: &dyn Store,
) -> Result<Rewritten, Error> {
    if text.len() > MAX_CONFIG {
        return Err(Error::Long);
    }
    // Neither format has one within.
    let (mark, body) = text.strip_prefix('\u{feff}').map_or(("", text), |body| ("\u{feff}", body));
    let (mut changed, mut left, mut edits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut needs, mut spares, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for (name, found) in servers(body, client)? {
        let done = found.and_then(|found| match (found, undo) {
            (Found::Stdio(server), true)
                if is_ours(&server, program) && remote::is_remote(&values(&server)) =>
            {
                let (edits, spare) = remote::unwrap(body, &server, store, &spares)?;
                spares.push(spare);
                Ok(edits)
            }
            (Found::Stdio(server), true) => Ok(unwrap(body, &server, program)?),
            (Found::Stdio(server), false) => wrap(body, &server, &name, program, store),
            (Found::Remote(_), true) => Err("it is not wrapped".into()),
            (Found::Remote(remote), false) => {
                let leading = leading(&remote.variables, program, true);
                if !leading.is_empty() {
                    return Err(Left::Environment(leading));
                }
                let (edits, files) = remote::wrap(body, &remote, (&name, program), store, &needs)?;
                if remote.is_bare() {
                    bare.push(name.clone());
                }
                needs.extend(files);
                Ok(edits)
            }
        });
        match done {
            Ok(more) => {
                changed.push(name);
                edits.extend(more);
            }
            Err(why) => left.push((name, why)),
        }
    }
    let text = edited(body, edits);
    // What comes out is a configuration, or nothing does.
    let stay = servers(&text, client)?;
    let stay = stay.iter().filter_map(|(_, found)| match found {
        Ok(Found::Stdio(server)) => Some(server),
        _ => None,
    });
    let stay: Vec<&Server> = stay.collect();
    // One that was copied, and is left, needs them still; with the one that leads to them it can be unwrapped when it is mended.
    let is_needed = |spare: &Spare| text.contains(&spare.id) || spare.is_needed(&stay);
    let spares = spares.into_iter().filter(|spare| !is_needed(spare));
    let spares = spares.flat_map(Spare::files).collect();
    Ok(Rewritten { text: format!("{mark}{text}"), changed, left, needs, spares, bare })
}

/// A configuration as it may be printed: without the headers and logins of remote servers, and addresses that may hold a secret,
/// also of servers that are left as they are: all of a file may be one line.
pub fn shown(text: &str, client: Option<Client>) -> String {
    let (mark, body) = text.strip_prefix('\u{feff}').map_or(("", text), |body| ("\u{feff}", body));
    let secrets = if client == Some(Client::Codex) { toml::secrets(body) } else { json::secrets(body) };
    let edits = secrets.into_iter().map(|range| (range, quoted(ringfence_redact::REDACTED))).collect();
    format!("{mark}{}", edited(body, edits))
}

/// What the configuration was before it was wrapped, if `kept` is that: the same to the byte, also where taking Ringfence
/// out again would leave an empty list of arguments out.
pub fn is_original(
    kept: &str,
    wrapped: &str,
    client: Option<Client>,
    program: &str,
    store: &dyn Store,
) -> bool {
    rewrite(kept, client, program, true, store).is_ok_and(|undone| undone.changed.is_empty())
        // The names of private files are those of the first time.
        && rewrite(kept, client, program, false, &Empty(store.place().to_owned()))
            .is_ok_and(|again| again.text == wrapped)
}

fn servers(text: &str, client: Option<Client>) -> Result<Vec<Entry>, Error> {
    match client {
        Some(Client::Codex) => toml::servers(text),
        client => json::servers(text, client),
    }
}

/// The text with its edits, which do not overlap.
fn edited(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let (mut whole, mut at) = (String::with_capacity(text.len()), 0);
    for (range, new) in edits {
        whole += text.get(at..range.start).unwrap_or_default();
        whole += &new;
        at = range.end;
    }
    whole + text.get(at..).unwrap_or_default()
}

/// Whether a command may be the interceptor: by its usual name wherever it is, or as the program that wraps. Enough to take it
/// out; a project's file may well name a program of its own so.
fn is_ours(server: &Server, program: &str) -> bool {
    let command = server.command.value.as_str();
    let name = command.rsplit(['/', '\\']).next().unwrap_or(command);
    let first = server.arguments.as_ref().and_then(|arguments| arguments.items.first());
    (name == "ringfence" || command == program) && first.is_some_and(|first| first.value == "mcp")
}

/// The flag that names the server, as the interceptor takes it: a name may begin like a flag, or be empty.
fn named(name: &str) -> Vec<String> {
    match name {
        "" => Vec::new(),
        dashed if dashed.starts_with('-') => vec![format!("--server-name={dashed}")],
        plain => vec!["--server-name".to_owned(), plain.to_owned()],
    }
}

/// What stands before a server's own command: all that wrapping writes, and nothing else.
fn before_command(name: &str) -> Vec<String> {
    let mut words = vec!["mcp".to_owned()];
    words.extend(named(name));
    words.push("--".to_owned());
    words
}

/// Whether a server is just as wrapping leaves it: by this program, without an option that wrapping does not write.
fn is_wrapped(server: &Server, name: &str, program: &str) -> bool {
    let ours = before_command(name);
    let items = server.arguments.as_ref().map_or(&[][..], |arguments| &arguments.items);
    server.command.value == program
        && items.len() > ours.len()
        && ours.iter().zip(items).all(|(our, item)| *our == item.value)
}

/// A server's arguments.
fn values(server: &Server) -> Vec<&str> {
    let items = server.arguments.as_ref().map_or(&[][..], |arguments| &arguments.items);
    items.iter().map(|item| item.value.as_str()).collect()
}

/// A server's command and arguments up to the command behind its `--`, each in quotes; of an address that may hold a secret, only
/// that there is one.
fn words(server: &Server) -> String {
    let items = server.arguments.as_ref().map_or(&[][..], |arguments| &arguments.items);
    let own = items.iter().position(|item| item.value == "--").map_or(items.len(), |at| at + 2);
    let words: Vec<&Text> = std::iter::once(&server.command).chain(items.iter().take(own)).collect();
    let secret = remote::secret_words(&words);
    let shown = words.iter().map(|word| {
        let is_secret = secret.iter().any(|secret| secret.range == word.range);
        quoted(if is_secret { ringfence_redact::REDACTED } else { &word.value })
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Variables of a server that decide which interceptor it gets, and where that has its rules and its record. `PATH` does so
/// only where the program is looked for. Before a remote server, it is Ringfence that a proxy, or another's certificates, would
/// stand before.
fn leading(variables: &[String], program: &str, is_remote: bool) -> String {
    let leads = |name: &&String| match name.as_str() {
        "PATH" => !program.starts_with('/'),
        "HOME" | ENV_FILE => true,
        "SSL_CERT_FILE" | "SSL_CERT_DIR" if is_remote => true,
        other if is_remote && other.to_ascii_uppercase().ends_with("_PROXY") => true,
        other => ["LD_", "RINGFENCE_", "XDG_"].iter().any(|start| other.starts_with(start)),
    };
    variables.iter().filter(leads).map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The key of a file with more variables, as VS Code has it.
const ENV_FILE: &str = "envFile";

fn wrap(
    text: &str,
    server: &Server,
    name: &str,
    program: &str,
    store: &dyn Store,
) -> Result<Vec<Edit>, Left> {
    let is_remote = is_ours(server, program) && remote::is_remote(&values(server));
    let leading = leading(&server.variables, program, is_remote);
    if !leading.is_empty() {
        return Err(Left::Environment(leading));
    }
    let is_known = || server.command.value == program && remote::is_wrapped(&values(server), name, store);
    if is_wrapped(server, name, program) || is_known() {
        return Err("it is wrapped already".into());
    }
    if is_remote && !store.is_readable() {
        return Err(Left::Unable(remote::ANOTHERS));
    }
    if is_ours(server, program) {
        return Err(Left::Foreign(words(server)));
    }
    let command = server.command.range.clone();
    let mut ours: Vec<String> = before_command(name).iter().map(|word| quoted(word)).collect();
    // As it is written, to be put back so.
    ours.push(text.get(command.clone()).unwrap_or_default().to_owned());
    let ours = ours.join(", ");
    let list = match &server.arguments {
        None => {
            let (at, lead) = server.place.clone().map_err(Left::Unable)?;
            (at..at, format!("{lead}[{ours}]"))
        }
        Some(Arguments { range, items }) => {
            let begin = range.start + 1;
            match items.first() {
                None => (begin..begin, ours),
                Some(first) => {
                    let before = text.get(begin..first.range.start).unwrap_or_default();
                    // A list of lines gets one more.
                    let line = before.rfind('\n').filter(|_| before.trim().is_empty());
                    let line = line.map(|at| {
                        if before.get(..at).is_some_and(|b| b.ends_with('\r')) { at - 1 } else { at }
                    });
                    let between = line.and_then(|at| before.get(at..)).unwrap_or(" ");
                    (first.range.start..first.range.start, format!("{ours},{between}"))
                }
            }
        }
    };
    Ok(vec![(command, quoted(program)), list])
}

fn unwrap(text: &str, server: &Server, program: &str) -> Result<Vec<Edit>, &'static str> {
    let arguments =
        server.arguments.as_ref().filter(|_| is_ours(server, program)).ok_or("it is not wrapped")?;
    let mut old = arguments.items.iter().skip_while(|item| item.value != "--").skip(1);
    let original = old.next().ok_or("no command stands behind its --")?;
    let begin = arguments.items.first().map_or(arguments.range.start, |first| first.range.start);
    let removed = match (old.next(), &server.place) {
        (Some(first), _) => begin..first.range.start,
        // The list itself was put there.
        (None, Ok((at, lead))) if text.get(*at..arguments.range.start) == Some(lead) => {
            *at..arguments.range.end
        }
        (None, _) => {
            // A comma that a formatter put behind the last element goes, too.
            let rest = text.get(original.range.end..arguments.range.end).unwrap_or_default();
            let comma =
                rest.find(',').filter(|at| rest.get(..*at).is_some_and(|rest| rest.trim().is_empty()));
            begin..original.range.end + comma.map_or(0, |at| at + 1)
        }
    };
    let command = text.get(original.range.clone()).unwrap_or_default().to_owned();
    Ok(vec![(server.command.range.clone(), command), (removed, String::new())])
}

#[cfg(test)]
mod tests;
