//! Asks the confined process that speaks to authorization servers. What it says was read from them, and is checked here as a
//! stranger's word.

use super::{Revocable, Tokens};
use ringfence_base::error::chain;
use ringfence_credentials::Secret;
use ringfence_supervise::worker;
use ringfence_wire::{
    conn::Conn,
    mcp_login::{LogIn, LoggedIn, MAX, Order, Revoke, Said},
};
use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

/// How long one message may take: longer than that process waits for the user in the browser, and for servers.
const PATIENCE: Duration = Duration::from_secs(900);

/// Logs in. `open` gets the address that the user is to open, printable ASCII of https or of http, and the authorization server's
/// name.
///
/// # Errors
/// In words, printable.
pub fn log_in(
    order: LogIn,
    listener: TcpListener,
    secret: Option<&Secret>,
    open: impl FnOnce(&str, &str),
) -> Result<(LoggedIn, Tokens), String> {
    let listener = OwnedFd::from(listener);
    let secret = secret.map(Secret::pipe).transpose().map_err(|error| chain(&error))?;
    let beside: Vec<_> = [&listener].into_iter().chain(&secret).map(AsFd::as_fd).collect();
    let is_near = order.server.starts_with("http:");
    let mut open = Some(open);
    let mut asked = Asked::start(&Order::LogIn(order), &beside)?;
    loop {
        match asked.said()? {
            (Said::Open { url, issuer }, _) => {
                let open = open.take().ok_or_else(odd)?;
                open(&address(&url)?, &worker::printable_reason(&issuer));
            }
            (Said::LoggedIn(what), descriptors) => {
                // They go there when the login is renewed and when it ends.
                for url in
                    [Some(&what.token_endpoint), what.revocation_endpoint.as_ref()].into_iter().flatten()
                {
                    let url = address(url)?;
                    if url.starts_with("http:") && !is_near {
                        return Err(odd());
                    }
                }
                let tokens = Tokens::taken(&what, descriptors)?;
                return Ok((*what, tokens));
            }
            (Said::Failed { why }, _) => return Err(worker::printable_reason(&why)),
            (Said::Revoked, _) => return Err(odd()),
        }
    }
}

/// Revokes a token.
///
/// # Errors
/// In words, printable.
pub fn revoke(what: &Revocable) -> Result<(), String> {
    let Revocable { url, client, auth, secret, token, is_refresh } = what;
    let order = Revoke { url: url.clone(), client: client.clone(), auth: *auth, is_refresh: *is_refresh };
    let token = token.pipe().map_err(|error| chain(&error))?;
    let secret = secret.as_ref().map(Secret::pipe).transpose().map_err(|error| chain(&error))?;
    let beside: Vec<_> = [&token].into_iter().chain(&secret).map(AsFd::as_fd).collect();
    match Asked::start(&Order::Revoke(order), &beside)?.said()? {
        (Said::Revoked, _) => Ok(()),
        (Said::Failed { why }, _) => Err(worker::printable_reason(&why)),
        _ => Err(odd()),
    }
}

fn odd() -> String {
    "the process that speaks to the authorization server says what it may not".to_owned()
}

/// An address that can be printed, and given to a browser: it does not begin like an option.
fn address(text: &str) -> Result<String, String> {
    let is_address = text.starts_with("https://") || text.starts_with("http://");
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_address && is_plain { Ok(text.to_owned()) } else { Err(odd()) }
}

/// The process, which ends with this.
struct Asked {
    child: Child,
    conn: Conn,
}

impl Asked {
    fn start(order: &Order, beside: &[BorrowedFd<'_>]) -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!("the process that speaks to the authorization server cannot be started: {error}")
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new("/proc/self/exe")
            .arg0("ringfence")
            .arg("mcp-oauth")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            // It says why in words that are checked.
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .envs(worker::of_user())
            .spawn()
            .map_err(failed)?;
        let mut asked = Self { child, conn: Conn::new(ours, PATIENCE, MAX) };
        asked.conn.send_with_descriptors(order, beside).map_err(|error| asked_failed(&error))?;
        Ok(asked)
    }

    fn said(&mut self) -> Result<(Said, Vec<OwnedFd>), String> {
        self.conn.receive_with_descriptors().map_err(|error| asked_failed(&error))
    }
}

fn asked_failed(error: &dyn std::error::Error) -> String {
    format!("the process that speaks to the authorization server does not answer: {}", chain(error))
}

impl Drop for Asked {
    fn drop(&mut self) {
        // It has read what servers say: nobody waits for it to end by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn only_an_address_is_opened_and_printed() {
        assert!(
            address("https://as.example/authorize?a=b%20c&d").is_ok()
                && address("http://127.0.0.1:1/").is_ok()
        );
        for other in [
            "",
            "--help",
            "file:///etc/passwd",
            "javascript:1",
            "https://a/\u{1b}[31m",
            "https://a/ b",
            "https://a/\n",
        ] {
            assert!(address(other).is_err(), "{other}");
        }
    }
}
