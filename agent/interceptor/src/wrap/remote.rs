//! Remote servers: an entry with an address becomes one that starts `ringfence mcp --url`. Pure.
//!
//! What it had is kept by a store, for taking Ringfence out again; so are its headers' values and an address that holds a secret,
//! each in a private file that the new entry names. A configuration is no place for them, and neither are arguments.

use super::{Edit, Found, Left, Server, named, quoted};
use ringfence_session::journal::sha256;
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

/// Keys that say where a remote server is and how it is spoken to; what else an entry has stays.
pub(super) const KEYS: [&str; 6] = ["type", "transport", "url", "serverUrl", "httpUrl", "headers"];

/// How an entry is written.
pub(super) enum Form {
    /// An object of JSON; where the properties are that stay.
    Json(Vec<Range<usize>>),
    /// The address's own key in TOML; what stands between it and the next key.
    Toml(String),
}

/// A remote server as a configuration has it.
pub(super) struct Remote {
    /// Where what is replaced is: the whole object in JSON, the address and its key in TOML.
    pub(super) range: Range<usize>,
    pub(super) url: String,
    /// `type`, or what stands for it.
    pub(super) kind: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) form: Form,
    /// As in [`Server`].
    pub(super) variables: Vec<String>,
}

/// Where the private files of wrapped remote servers are, and what is in them.
pub trait Store {
    /// The directory.
    fn place(&self) -> &Path;

    /// What the file of this name holds.
    fn read(&self, name: &str) -> Option<String>;
}

/// A private file that a wrapped server needs, by its name in the store.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateFile {
    /// Its name.
    pub name: String,
    /// What it holds; a secret.
    pub text: String,
}

impl std::fmt::Debug for PrivateFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrivateFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Puts `program` before a remote server.
pub(super) fn wrap(
    text: &str,
    remote: &Remote,
    name: &str,
    program: &str,
    store: &dyn Store,
) -> Result<(Vec<Edit>, Vec<PrivateFile>), Left> {
    if remote.kind.as_deref() == Some("sse") {
        return Err("it speaks HTTP+SSE, the transport of 2024, which Ringfence does not; most such servers offer streamable HTTP at another address, too".into());
    }
    let url = url_of(remote)?;
    let original = text.get(remote.range.clone()).unwrap_or_default();
    let id: String = sha256(format!("{name}\0{original}").as_bytes()).chars().take(20).collect();
    let file = |what: &str| format!("{id}.{what}");
    let path = |name: &str| store.place().join(name).to_string_lossy().into_owned();
    let mut files = vec![PrivateFile { name: file("entry"), text: original.to_owned() }];
    let mut words = vec!["mcp".to_owned()];
    words.extend(named(name));
    if is_secret(url) {
        files.push(PrivateFile { name: file("url"), text: format!("{url}\n") });
        words.extend(["--url-file".to_owned(), path(&file("url"))]);
    } else {
        words.extend(["--url".to_owned(), url.to_owned()]);
    }
    for (at, (header, value)) in remote.headers.iter().enumerate() {
        let of = file(&format!("header-{at}"));
        words.extend(["--header".to_owned(), format!("{header}=file:{}", path(&of))]);
        files.push(PrivateFile { name: of, text: format!("{value}\n") });
    }
    let entry = entry(text, remote, program, &words);
    files.push(PrivateFile { name: by_entry(&entry), text: format!("{id}\n") });
    Ok((vec![(remote.range.clone(), entry)], files))
}

/// The entry that starts `ringfence mcp`, with what stays of the one before.
fn entry(text: &str, remote: &Remote, program: &str, words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let others = match &remote.form {
        Form::Json(others) => others,
        Form::Toml(between) => {
            return format!("command = {}{between}args = [{}]", quoted(program), words.join(", "));
        }
    };
    let mut parts = Vec::new();
    if remote.kind.is_some() {
        parts.push("\"type\": \"stdio\"".to_owned());
    }
    parts.push(format!("\"command\": {}", quoted(program)));
    parts.push(format!("\"args\": [{}]", words.join(", ")));
    parts.extend(others.iter().filter_map(|range| text.get(range.clone())).map(str::to_owned));
    format!("{{ {} }}", parts.join(", "))
}

/// The name of the file that leads from an entry as it was written to what it was before.
fn by_entry(entry: &str) -> String {
    let digest: String = sha256(entry.as_bytes()).chars().take(20).collect();
    format!("{digest}.of")
}

/// Takes Ringfence out of an entry that [`wrap`] wrote.
pub(super) fn unwrap(
    text: &str,
    server: &Server,
    store: &dyn Store,
) -> Result<(Vec<Edit>, Vec<String>), Left> {
    let whole = server.whole.clone().ok_or("it is not wrapped")?;
    let entry = text.get(whole.clone()).unwrap_or_default();
    let link = by_entry(entry);
    let lost = "what it was before is not kept, or the entry was changed since; write its url and headers in its place";
    let id = store.read(&link).ok_or(Left::Unable(lost))?;
    let id = id.trim();
    let known = id.len() == 20 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let original = store.read(&format!("{id}.entry")).filter(|_| known).ok_or(Left::Unable(lost))?;
    let mut files = vec![link, format!("{id}.entry"), format!("{id}.url")];
    files.extend((0..MAX_HEADERS).map(|at| format!("{id}.header-{at}")));
    Ok((vec![(whole, original)], files))
}

/// Most headers of an entry.
const MAX_HEADERS: usize = 32;

/// Whether a server's words are those that [`wrap`] writes for a remote server.
pub(super) fn is_wrapped(words: &[&str], name: &str, place: &Path) -> bool {
    let mut ours = vec!["mcp".to_owned()];
    ours.extend(named(name));
    let Some(rest) =
        words.get(ours.len()..).filter(|_| ours.iter().zip(words).all(|(our, word)| our == word))
    else {
        return false;
    };
    let in_place = |path: &str| Path::new(path).parent() == Some(place);
    let [how, address, headers @ ..] = rest else { return false };
    let has_address = match *how {
        "--url" => !address.starts_with('-'),
        "--url-file" => in_place(address),
        _ => false,
    };
    let pairs = headers.chunks(2).all(|pair| match pair {
        ["--header", header] => header.split_once("=file:").is_some_and(|(_, path)| in_place(path)),
        _ => false,
    });
    has_address && pairs
}

/// Whether a server's words name a remote server.
pub(super) fn is_remote(words: &[&str]) -> bool {
    let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    words.iter().take(own).any(|word| matches!(*word, "--url" | "--url-file"))
}

fn url_of(remote: &Remote) -> Result<&str, Left> {
    let has_variable = |text: &str| text.contains("${") || text.contains("{{");
    if has_variable(&remote.url) || remote.headers.iter().any(|(_, value)| has_variable(value)) {
        return Err(Left::Unable("its address or headers have variables, which only the client can fill in"));
    }
    let is_http = |url: &str| url.starts_with("https://") || url.starts_with("http://");
    if !is_http(&remote.url)
        || remote.url.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control())
    {
        return Err(Left::Unable("its address is none of http or https"));
    }
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let is_value =
        |value: &str| !value.trim().is_empty() && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if remote.headers.len() > MAX_HEADERS
        || !remote.headers.iter().all(|(name, value)| is_name(name) && is_value(value))
    {
        return Err(Left::Unable("its headers cannot be sent"));
    }
    Ok(&remote.url)
}

/// Whether an address may hold a secret: a user, a password, a query, or a path with what looks like a key.
fn is_secret(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let long = |part: &str| part.len() >= 16 && part.bytes().any(|byte| byte.is_ascii_digit());
    host.contains(['@', '?', '#']) || path.contains(['?', '#']) || path.split('/').any(long)
}

impl From<Remote> for Found {
    fn from(remote: Remote) -> Self {
        Self::Remote(remote)
    }
}

/// A store that holds nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Empty(pub PathBuf);

impl Store for Empty {
    fn place(&self) -> &Path {
        &self.0
    }

    fn read(&self, _: &str) -> Option<String> {
        None
    }
}
