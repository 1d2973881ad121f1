//! `ringfence mcp --url`: where a remote server is, and where its credentials come from.

use anyhow::{Context as _, bail};
use ringfence_client::sessions;
use ringfence_credentials::Source;
use ringfence_kit::mcp_login::Logins;
use ringfence_mcp_http::config::{Config, CredentialSource, Header, MAX};
use ringfence_pins::definition::secret_digest;
use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf, absolute},
    process::{Command, ExitCode, Stdio},
};

/// A server that is spoken to over streamable HTTP, in place of a command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Remote servers")]
pub(crate) struct RemoteArgs {
    /// Address of a remote server, in place of a command: https://HOST/PATH. It is spoken to over MCP's streamable HTTP. A user, a
    /// password and a query in it are kept out of the record. Where no credential is given, a login for it is used, if there is one
    /// (`ringfence mcp login`).
    #[arg(long, value_name = "URL", conflicts_with_all = ["command", "profile"])]
    url: Option<String>,
    /// A file with that address, which only its owner can read.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "command", "profile"])]
    url_file: Option<PathBuf>,
    /// The variable of the environment with the token that goes to it as `Authorization: Bearer`.
    #[arg(long, value_name = "NAME", group = "token")]
    token_env: Option<String>,
    /// The file with that token, which only its owner can read.
    #[arg(long, value_name = "FILE", group = "token")]
    token_file: Option<PathBuf>,
    /// The systemd credential (`LoadCredential=`) with that token.
    #[arg(long, value_name = "NAME", group = "token")]
    token_credential: Option<String>,
    /// The command that prints that token, its words separated by spaces; not as root.
    #[arg(long, value_name = "COMMAND", group = "token")]
    token_command: Option<String>,
    /// A header that goes to it with every request, and where its value is from: NAME=env:VARIABLE, NAME=file:PATH or
    /// NAME=credential:NAME. May be given several times.
    #[arg(long = "header", value_name = "NAME=FROM")]
    headers: Vec<Header>,
    /// Allow http to hosts other than this one, in the clear.
    #[arg(long)]
    insecure_http: bool,
}

/// The address in a file of `--url-file`.
pub(super) fn in_file(file: &Path) -> anyhow::Result<String> {
    let read = Source::File(file.to_owned()).read();
    Ok(read.context("cannot read the address of the remote server")?.expose().to_owned())
}

/// A remote server, as the interceptor needs it.
pub(super) struct Remote {
    config: Config,
    /// Its name where none was given.
    pub(super) name: String,
    /// What stands on record as the session's command.
    pub(super) words: Vec<String>,
    /// Its address as a whole.
    whole: String,
}

impl RemoteArgs {
    /// The remote server, if one is named.
    pub(super) fn server(&self, max_line: u64) -> anyhow::Result<Option<Remote>> {
        let url = match (&self.url, &self.url_file) {
            (Some(url), _) => url.clone(),
            (None, Some(file)) => in_file(file)?,
            (None, None) if self.is_empty() => return Ok(None),
            (None, None) => bail!(
                "--token-..., --header and --insecure-http are for a remote server; name it with --url https://HOST/PATH"
            ),
        };
        let whole = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        let token = None
            .or_else(|| self.token_env.clone().map(CredentialSource::Env))
            .or_else(|| self.token_file.as_deref().map(whole).map(CredentialSource::File))
            .or_else(|| self.token_credential.clone().map(CredentialSource::Credential))
            .or_else(|| {
                let words = self.token_command.as_ref()?.split_whitespace();
                Some(CredentialSource::Command(words.map(str::to_owned).collect()))
            });
        let headers = self.headers.iter().cloned().map(|header| match header.from {
            CredentialSource::File(path) => Header { from: CredentialSource::File(whole(&path)), ..header },
            _ => header,
        });
        let mut config = Config {
            url,
            token,
            headers: headers.collect(),
            login: false,
            is_secret: self.url_file.is_some(),
            insecure_http: self.insecure_http,
            max_line: usize::try_from(max_line).unwrap_or(usize::MAX),
        };
        let url = config.checked()?;
        let has_login = || Logins::locate().is_ok_and(|logins| logins.has(&config.server_of_login()));
        config.login = config.has_no_credential() && has_login();
        let shown = Config::shown(&url, config.is_secret);
        let words = ["ringfence", "mcp", "--url"].map(str::to_owned).into_iter().chain([shown]);
        let whole = Config::whole(&url);
        Ok(Some(Remote { name: Config::name(&url), words: words.collect(), whole, config }))
    }

    fn is_empty(&self) -> bool {
        let no_token = self.token_env.is_none()
            && self.token_file.is_none()
            && self.token_credential.is_none()
            && self.token_command.is_none();
        no_token && self.headers.is_empty() && !self.insecure_http
    }
}

impl Remote {
    /// What is started in place of a server: this program, in the role that speaks HTTP.
    pub(super) fn command() -> anyhow::Result<Vec<OsString>> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(vec![program.into(), "mcp-remote".into()])
    }

    /// What tells it from other servers: the words that are on record, and where these leave out a part of its address, what
    /// tells that from others. A new user, password or query is no new server.
    pub(super) fn key_words(&self, recorded: &[String]) -> Vec<String> {
        let left_out = recorded.last() != Some(&self.whole);
        recorded.iter().cloned().chain(left_out.then(|| secret_digest(&self.whole))).collect()
    }

    /// Starts the process that keeps its login, and gives the end of the link to it that is for the role. It is no child of that: what is
    /// below the guard ends with the session, and a renewal that is under way then has the only refresh token that is still good.
    pub(super) fn keeper(&self) -> anyhow::Result<Option<OwnedFd>> {
        if !self.config.login {
            return Ok(None);
        }
        let started = || -> io::Result<_> {
            let (ours, theirs) = UnixStream::pair()?;
            let mut command = Command::new("/proc/self/exe");
            command.arg0("ringfence").arg("mcp-login-keeper").current_dir("/").stdin(OwnedFd::from(theirs));
            // Nor has it the client's pipes, whose end a client may wait for.
            let keeper = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
            sessions::spare(&keeper);
            Ok(ours.into())
        };
        started().map(Some).context("the process that keeps the login cannot be started")
    }

    /// The variables of the environment that have its credentials, or say where they are.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        let sources = self.config.token.iter().chain(self.config.headers.iter().map(|header| &header.from));
        sources.filter_map(|source| source.source().variable().map(str::to_owned))
    }

    /// All that tells which server that is: its whole address, and where its credentials are from. It is for a hash, and nothing else.
    pub(super) fn identity(&self) -> anyhow::Result<String> {
        // Where the address is from makes it no other server.
        let config = Config { is_secret: false, ..self.config.clone() };
        serde_json::to_string(&config).context("cannot write the address")
    }

    /// Tells it which server, over its standard input: a process's arguments and variables are there for others to read.
    pub(super) fn hand_over(&self, mut stdin: impl Write) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&self.config).context("cannot write the address")?;
        line.push(b'\n');
        if line.len() > MAX {
            bail!("the address of the remote server and its headers are too long: more than {MAX} bytes");
        }
        stdin.write_all(&line).context("the process that speaks to the remote server ended")
    }
}

/// `ringfence mcp-remote`.
pub(crate) fn serve() -> anyhow::Result<ExitCode> {
    Ok(ringfence_mcp_http::remote::role::serve()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        remote: RemoteArgs,
        #[arg(long)]
        profile: Option<String>,
        #[arg(last = true)]
        command: Vec<OsString>,
    }

    fn key_words(words: &[&str]) -> (Vec<String>, Vec<String>) {
        let words = Words::parse_from([&["ringfence"], words].concat());
        let remote = words.remote.server(1 << 20).expect("fine").expect("a server");
        (remote.key_words(&remote.words), remote.words)
    }

    #[test]
    fn servers_whose_addresses_are_shown_alike_are_told_apart() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let in_file = |url: &str| {
            let file = folder.path().join("url");
            std::fs::write(&file, url).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("private");
            key_words(&["--url-file", file.to_str().expect("text")])
        };
        let (one, other) =
            (in_file("https://gw.example/github/mcp?key=K"), in_file("https://gw.example/slack/mcp?key=K"));
        assert_eq!(one.1, other.1, "the record has no path");
        assert_ne!(one.0, other.0);
        assert_eq!(one, in_file("https://me:pw@gw.example/github/mcp?key=L"), "a new key is no new server");
        let of = |key: &str| key_words(&["--url", &format!("https://h.example/{key}/mcp")]);
        let (one, other) =
            (of("6f9619ff-8b86-d011-b42d-00c04fc964ff"), of("6f9619ff-8b86-d011-b42d-00c04fc964fe"));
        assert_eq!(one.1, other.1);
        assert_ne!(one.0, other.0);
        assert_eq!(one, of("6f9619ff-8b86-d011-b42d-00c04fc964ff"));
        let (words, recorded) = key_words(&["--url", "https://h.example/mcp?key=K"]);
        assert_eq!(words, recorded, "what is shown whole is told apart by that");
    }
}
