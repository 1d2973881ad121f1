//! Remote servers: an entry with an address becomes one that starts `ringfence mcp --url`. Pure.
//!
//! What it had is kept by a store, for taking Ringfence out again; so are its headers' values and an address that holds a secret,
//! each in a private file that the new entry names. A configuration is no place for them, and neither are arguments.

use super::{Edit, Found, Left, Server, Text, named, quoted, values};
use ringfence_base::{loopback, remote_headers};
use ringfence_redact::misplaced;
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
    pub(super) headers: Vec<(String, Text)>,
    pub(super) form: Form,
    /// As in [`Server`].
    pub(super) variables: Vec<String>,
}

impl Remote {
    /// Whether it goes without any credential.
    pub(super) fn is_bare(&self) -> bool {
        self.headers.is_empty() && !is_secret(&self.url)
    }
}

/// Where the private files of wrapped remote servers are, and what is in them.
pub trait Store {
    /// The directory.
    fn place(&self) -> &Path;

    /// What the file of this name holds.
    fn read(&self, name: &str) -> Option<String>;

    /// Whether whoever starts the servers can read it.
    fn is_readable(&self) -> bool {
        true
    }
}

/// Private files that nothing needs any more once what they are for is unwrapped.
pub(super) struct Spare {
    /// The name of the one that leads from a server's words to the others.
    link: String,
    /// What the names of the others begin with, and the words of a wrapped server have in them.
    pub(super) id: String,
    /// The address in those words, where they have it and not a file.
    address: Option<String>,
}

impl Spare {
    /// Whether a server that is left may need them once it is mended: a copy of the one that they were for.
    pub(super) fn is_needed(&self, left: &[&Server]) -> bool {
        let Some(address) = self.address.as_deref() else { return false };
        left.iter().any(|server| values(server).contains(&address))
    }

    /// Their names; not all of them need be there.
    pub(super) fn files(self) -> impl Iterator<Item = String> {
        let Self { link, id, .. } = self;
        let own = [format!("{id}.entry"), format!("{id}.url")];
        [link]
            .into_iter()
            .chain(own)
            .chain((0..remote_headers::MOST).map(move |at| format!("{id}.header-{at}")))
    }
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
    (name, program): (&str, &str),
    store: &dyn Store,
    others: &[PrivateFile],
) -> Result<(Vec<Edit>, Vec<PrivateFile>), Left> {
    if remote.kind.as_deref() == Some("sse") {
        return Err(Left::Unable(
            "it speaks HTTP+SSE, the transport of 2024, which Ringfence does not (most such servers offer streamable HTTP at another address, too)",
        ));
    }
    let url = url_of(remote)?;
    if !store.is_readable() {
        return Err(Left::Unable(ANOTHERS));
    }
    let original = text.get(remote.range.clone()).unwrap_or_default();
    // Another project may have the same server: each has files of its own, which go when it does.
    let is_free = |name: &str| store.read(name).is_none() && others.iter().all(|file| file.name != name);
    let id = (0..MOST_ALIKE).map(|n| digest(&format!("{name}\0{original}\0{n}")));
    let id = id.into_iter().find(|id| is_free(&format!("{id}.entry"))).ok_or(Left::Unable(TOO_MANY))?;
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
    let sent = remote.headers.iter().filter(|(name, _)| !is_written(name));
    for (at, (header, value)) in sent.enumerate() {
        let of = file(&format!("header-{at}"));
        words.extend(["--header".to_owned(), format!("{header}=file:{}", path(&of))]);
        files.push(PrivateFile { name: of, text: format!("{}\n", value.value) });
    }
    let entry = entry(text, remote, program, &words);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let link = links(&words).find(|link| is_free(link)).ok_or(Left::Unable(TOO_MANY))?;
    files.push(PrivateFile { name: link, text: format!("{id} {}\n", digest(&entry)) });
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

/// Most servers of one name and one address in a file.
const MOST_ALIKE: usize = 32;
pub(super) const ANOTHERS: &str = "what it needs would be in private files of root's, and this is run for another user by sudo or pkexec, or of a user who does not own the file (run this as the file's owner, as the user whose client reads the file)";
const TOO_MANY: &str = "there are too many servers of its name and address in the file";

fn digest(text: &str) -> String {
    sha256(text.as_bytes()).chars().take(20).collect()
}

/// Names of the files that lead from a wrapped server's words to what it was before: by what they say, since clients and editors
/// write them anew in another form. Servers with the same words have one each.
fn links(words: &[&str]) -> impl Iterator<Item = String> {
    let words = words.join("\0");
    (0..MOST_ALIKE).map(move |n| format!("{}.of", digest(&format!("{words}\0\0{n}"))))
}

/// Takes Ringfence out of an entry that [`wrap`] wrote.
pub(super) fn unwrap(
    text: &str,
    server: &Server,
    store: &dyn Store,
    used: &[Spare],
) -> Result<(Vec<Edit>, Spare), Left> {
    let lost = Left::Lost(match store.is_readable() {
        true => {
            "what it was before is not kept, or its command or args were changed since; write its url and headers in their place"
        }
        false => {
            "what it was before is kept in private files of the file's owner; run this as the file's owner"
        }
    });
    let whole = server.whole.clone().ok_or_else(|| lost.clone())?;
    let as_written = digest(text.get(whole.clone()).unwrap_or_default());
    let mut kept: Vec<(String, String)> =
        links(&values(server)).filter_map(|link| store.read(&link).map(|text| (link, text))).collect();
    // Of several alike: the very one, else one that no other has taken.
    let is_used = |link: &String| used.iter().any(|spare| spare.link == *link);
    kept.sort_by_key(|(link, text)| (is_used(link), !text.trim_end().ends_with(&as_written)));
    let (link, id) = kept.into_iter().next().ok_or_else(|| lost.clone())?;
    let id = id.split_ascii_whitespace().next().unwrap_or_default();
    let known = id.len() == 20 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let original = store.read(&format!("{id}.entry")).filter(|_| known).ok_or(lost)?;
    let mut words = values(server).into_iter().skip_while(|word| *word != "--url");
    let address = words.nth(1).map(str::to_owned);
    Ok((vec![(whole, original)], Spare { link, id: id.to_owned(), address }))
}

/// Whether a server's words are those that [`wrap`] wrote for a remote server, each of them: with another address, its headers
/// would go there.
pub(super) fn is_wrapped(words: &[&str], name: &str, store: &dyn Store) -> bool {
    let place = store.place();
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
    // Without a private file there is nothing to lose.
    let is_plain = *how == "--url" && headers.is_empty();
    has_address && pairs && (is_plain || links(words).any(|link| store.read(&link).is_some()))
}

/// Whether a server's words name a remote server.
pub(super) fn is_remote(words: &[&str]) -> bool {
    let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    words.iter().take(own).any(|word| matches!(*word, "--url" | "--url-file"))
}

fn url_of(remote: &Remote) -> Result<&str, Left> {
    let has_variable = |text: &str| text.contains("${") || text.contains("{{");
    if has_variable(&remote.url) || remote.headers.iter().any(|(_, value)| has_variable(&value.value)) {
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
    let names: Vec<String> = remote.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let sendable = remote.headers.iter().all(|(name, value)| is_name(name) && is_value(&value.value));
    let is_twice = |(at, name): (usize, &String)| names.iter().take(at).any(|other| other == name);
    if names.len() > remote_headers::MOST || !sendable || names.iter().enumerate().any(is_twice) {
        return Err(Left::Unable("its headers cannot be sent: one is there twice, or is no header"));
    }
    if names.iter().any(|name| remote_headers::is_reserved(name) && !is_written(name)) {
        return Err(Left::Unable(
            "it sets a header that the transport writes itself; take that out, and wrap again",
        ));
    }
    let host = authority(&remote.url);
    if host.contains('@') && names.iter().any(|name| name == "authorization") {
        return Err(Left::Unable("it has a user in its address and an Authorization header, too"));
    }
    if remote.url.starts_with("http://") && !is_loopback(host) {
        return Err(Left::Unable(
            "its address is http to another machine, where anybody on the way could read and change what is sent; use https, or write `ringfence mcp --insecure-http --url` in its place",
        ));
    }
    Ok(&remote.url)
}

/// Headers that the transport writes itself, and that say no more than it does.
fn is_written(name: &str) -> bool {
    ["accept", "content-type"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// User, host and port of an address.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#', '\\']).next().unwrap_or_default()
}

fn is_loopback(authority: &str) -> bool {
    let host = authority.rsplit('@').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    loopback::is_name(if host.ends_with(']') { host } else { name })
}

/// Whether an address may hold a secret: a user, a password, a query, or a path with what looks like a key.
pub(super) fn is_secret(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    host.contains(['@', '?', '#'])
        || path.contains(['?', '#'])
        || path.split('/').any(misplaced::may_be_secret)
}

/// Which of a command's words may hold a secret in an address: those behind `--url`, and all that are an address.
pub(super) fn secret_words<'a>(words: &[&'a Text]) -> Vec<&'a Text> {
    let before = std::iter::once("").chain(words.iter().map(|word| word.value.as_str()));
    let may = before.zip(words).filter(|(before, word)| {
        let is_address = *before == "--url" || word.value.starts_with("--url=") || word.value.contains("://");
        is_address && is_secret(word.value.strip_prefix("--url=").unwrap_or(&word.value))
    });
    may.map(|(_, word)| *word).collect()
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
