//! `ringfence mcp login`, `logins` and `logout`: logins at remote servers (OAuth).

use super::remote::in_file;
use crate::cli::output;
use anyhow::{Context as _, bail};
use ringfence_base::{clock, escape::line as printable};
use ringfence_credentials::Source;
use ringfence_kit::mcp_login::{self, Kept, Logins, Removed};
use ringfence_mcp_http::{
    config::{self, Config},
    oauth,
};
use ringfence_wire::mcp_login::LogIn;
use serde_json::json;
use std::{
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

/// Logs in to a remote MCP server in the browser (OAuth), for the sessions of `ringfence mcp --url`.
///
/// The server says where: its authorization server gives a token, which is kept in a file that only you can read, renewed by
/// itself, and sent to that server only. No client gets it. `ringfence mcp --url URL` uses it where no other credential is given. What
/// runs as you and outside a container can read that file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp login https://mcp.example.com/mcp
  ringfence mcp login https://mcp.example.com/mcp --scope files:read --scope files:write
  ringfence mcp login https://mcp.example.com/mcp --client-id my-client --issuer https://login.example.com --port 8765
  ringfence mcp login https://mcp.example.com/mcp --no-browser    # over SSH: open the printed address here")]
pub(crate) struct LoginArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The id of a client that is registered at the authorization server, or the https address of a client's metadata. Without it,
    /// one is registered.
    #[arg(long, value_name = "ID", requires = "issuer")]
    client_id: Option<String>,
    /// The authorization server that it must be, by the address that it is called by: the one where that client is registered. It is
    /// refused if the server names another today.
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// The file with that client's secret, which only its owner can read.
    #[arg(long, value_name = "FILE", requires = "client_id")]
    client_secret_file: Option<PathBuf>,
    /// A scope to ask for, beside what an earlier login has; without it, what the server says. May be given several times.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Open no browser: print the address only.
    #[arg(long)]
    no_browser: bool,
    /// The port of 127.0.0.1 that the browser is sent back to: of a client that is registered with one. 0 is any free one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
}

/// Lists the logins at remote servers: server, authorization server, scopes and when the token is over. Never a token.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp logins
  ringfence mcp logins --json | jq -r .server")]
pub(crate) struct LoginsArgs {
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Removes a login at a remote server, and revokes it where its authorization server can.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  ringfence mcp logout https://mcp.example.com/mcp")]
pub(crate) struct LogoutArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// Which server.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ServerArgs {
    /// The server's address, as `ringfence mcp --url` has it.
    url: Option<String>,
    /// A file with that address, which only its owner can read, as `ringfence mcp --url-file` has it.
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
}

/// A server's name among logins, and how it is shown.
fn server(args: &ServerArgs) -> anyhow::Result<(String, String)> {
    let url = match (&args.url, &args.url_file) {
        (Some(url), _) => url.clone(),
        (None, Some(file)) => in_file(file)?,
        (None, None) => bail!("which server is it? Give its address"),
    };
    let config = Config {
        url,
        is_secret: args.url_file.is_some(),
        token: None,
        headers: Vec::new(),
        login: false,
        insecure_http: false,
        max_line: 0,
    };
    let checked = config.checked().map_err(|error| match error {
        config::Error::Clear(shown) => {
            anyhow::anyhow!(
                "{shown}: a login goes over https, and http is for loopback only; give the https address"
            )
        }
        error => error.into(),
    })?;
    let shown = Config::shown(&checked, config.is_secret);
    if !config.has_no_credential() {
        bail!(
            "{shown}: it has a user and a password in it, which are its credential; leave them out to log in"
        );
    }
    Ok((config.server_of_login(), shown))
}

pub(super) fn login(args: &LoginArgs) -> anyhow::Result<ExitCode> {
    let (server, shown) = server(&args.server)?;
    if let Some(id) = args.client_id.as_ref().filter(|id| !oauth::answer::is_client(id)) {
        bail!("--client-id {}: a client's id is printable ASCII", printable(id));
    }
    if let Some(issuer) = args.issuer.as_ref().filter(|issuer| config::server_of_login(issuer).is_none()) {
        bail!(
            "--issuer {}: it is no address; write https://HOST or what the server calls it",
            printable(issuer)
        );
    }
    if let Some(scope) = args.scopes.iter().find(|scope| !oauth::challenge::is_scope(scope)) {
        bail!("--scope {}: a scope is one word; give --scope once for each", printable(scope));
    }
    let secret = args.client_secret_file.clone().map(|file| Source::File(file).read()).transpose();
    let secret = secret.context("cannot read the client's secret")?;
    let logins = Logins::locate()?;
    // What cannot be read is replaced.
    let before = logins.of(&server).ok().flatten();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).with_context(|| {
        format!("cannot listen on port {} of 127.0.0.1, which the browser is sent back to; name another with --port", args.port)
    })?;
    let order = LogIn {
        server: server.clone(),
        client: args.client_id.clone(),
        issuer: args.issuer.clone(),
        scopes: args.scopes.clone(),
        before: before.as_ref().map(|kept| (kept.issuer.clone(), kept.scopes.clone())),
    };
    let done = mcp_login::log_in(order, listener, secret.as_ref(), |address, issuer| {
        let other = before.as_ref().filter(|kept| kept.issuer != issuer).map_or_else(String::new, |kept| {
            let before = printable(&kept.issuer);
            format!("This is another authorization server than that of the login there is ({before}).\n")
        });
        let _ = output::print(&format!(
            "{other}Log in at {} (authorization server: {}). Open this address in a browser of this machine:\n\n  {address}\n\n",
            origin(address),
            printable(issuer)
        ));
        if !args.no_browser {
            open(address);
        }
    });
    let (what, tokens) = done.map_err(|why| anyhow::anyhow!("{shown}: {why}"))?;
    logins.put(&server, &what, &tokens)?;
    let scopes =
        if what.scopes.is_empty() { String::new() } else { format!(" (scopes: {})", what.scopes.join(" ")) };
    let renewal = if what.has_refresh {
        "It is renewed by itself"
    } else {
        "It cannot be renewed: log in again when it is over"
    };
    let used = match &args.server.url_file {
        None if config::is_shown_whole(&server) => format!("Use it with: ringfence mcp --url {shown}"),
        None => "`ringfence mcp --url` uses it with the same address".to_owned(),
        Some(_) => "`ringfence mcp --url-file` uses it with the same file".to_owned(),
    };
    output::print(&format!("Logged in to {shown}{}. {renewal}. {used}\n", printable(&scopes)))
}

/// The beginning of an address that was checked: where the browser really goes, whatever it is called.
fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    let rest = address.get(host..).unwrap_or_default();
    let end = host + rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    address.get(..end).unwrap_or(address)
}

/// Opens an address in the browser, where there is a display. It begins like no option.
fn open(address: &str) {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    if has_display {
        let mut command = Command::new("xdg-open");
        command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Without it, the address is printed all the same.
        let _ = command.spawn();
    }
}

pub(super) fn logins(args: &LoginsArgs) -> anyhow::Result<ExitCode> {
    let (found, errors) = Logins::locate()?.all()?;
    for error in errors {
        eprintln!("ringfence: {}", ringfence_base::error::chain(&error));
    }
    if args.json {
        let row = |kept: &Kept| {
            let row = json!({
                "server": config::shown_server(&kept.server), "authorization_server": kept.issuer, "scopes": kept.scopes,
                "expires_at": kept.expires.map(time), "renewed": kept.is_renewed,
            });
            format!("{row}\n")
        };
        return output::print(&found.iter().map(row).collect::<String>());
    }
    if found.is_empty() {
        return output::print("There are no logins; `ringfence mcp login URL` makes one.\n");
    }
    let row = |kept: &Kept| {
        let expires = kept.expires.map_or_else(|| "not known".to_owned(), time);
        let renewed = if kept.is_renewed { "yes" } else { "no" };
        let scopes = if kept.scopes.is_empty() { "-".to_owned() } else { kept.scopes.join(" ") };
        [config::shown_server(&kept.server), kept.issuer.clone(), scopes, expires, renewed.to_owned()]
            .map(|cell| printable(&cell).to_string())
            .to_vec()
    };
    let head =
        ["SERVER", "AUTHORIZATION SERVER", "SCOPES", "TOKEN UNTIL", "RENEWED"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = [head].into_iter().chain(found.iter().map(row)).collect();
    output::print(&output::table(&rows))
}

fn time(milliseconds: u64) -> String {
    clock::rfc3339(i64::try_from(milliseconds).unwrap_or(i64::MAX).saturating_mul(1000))
}

pub(super) fn logout(args: &LogoutArgs) -> anyhow::Result<ExitCode> {
    let (server, shown) = server(&args.server)?;
    let Some(removed) = Logins::locate()?.remove(&server)? else {
        bail!("there is no login for {shown}; `ringfence mcp logins` lists them");
    };
    let revoked = match removed {
        Removed::Revocable(what) => match mcp_login::revoke(&what) {
            Ok(()) => "and revoked it".to_owned(),
            Err(why) => format!(
                "but its authorization server did not revoke it ({why}): end it in your account there, if it must not live on"
            ),
        },
        Removed::NoEndpoint => {
            "but its authorization server has no way to revoke it: its token is good until it is over".to_owned()
        }
        Removed::Unreadable => {
            "but what was in its file, or beside it, could not be read, so nothing was revoked: end it in your account at its authorization server, if it must not live on"
                .to_owned()
        }
    };
    output::print(&format!("Removed the login for {shown}, {revoked}.\n"))
}

/// `ringfence mcp-login-keeper`.
pub(crate) fn keeper() -> anyhow::Result<ExitCode> {
    mcp_login::keep(|server, is_secret| config::login_command(server, is_secret, ""))?;
    Ok(ExitCode::SUCCESS)
}

/// `ringfence mcp-oauth`.
pub(crate) fn oauth() -> anyhow::Result<ExitCode> {
    oauth::role::serve()?;
    Ok(ExitCode::SUCCESS)
}
