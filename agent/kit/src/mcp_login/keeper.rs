//! The keeper of one login: a process beside the one that speaks to the MCP server, which is confined and reads no file. It hands
//! over the access token, renews it before it is over or when the server refused it, and never hands over the refresh token.

use super::{Error, Logins, MARGIN, expires, refused};
use crate::{hidden::Hidden, renewal::Renewer};
use nix::sys::signal::SigSet;
use ringfence_base::{clock::now_micros, signals};
use ringfence_credentials::{Login, Secret, Source};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp_login::{MAX, Token, Wanted},
};
use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
    time::Duration,
};

/// For how long nothing may be wanted: a session may last for months.
const QUIET: Duration = Duration::from_secs(366 * 86_400);

/// Answers over standard input until the other end closes. `command`: how a user logs in to a server, whose address came from a file
/// or not.
///
/// # Errors
/// [`Error::NotFromSession`].
pub fn keep(command: impl Fn(&str, bool) -> String) -> Result<(), Error> {
    // Whoever ends the session would end a renewal, whose answer may hold the only token that is still good.
    let _ = SigSet::from_iter(signals::OF_A_RUN).thread_block();
    let _hidden = Hidden::new().map_err(|error| Error::NotFromSession(error.into()))?;
    let stream = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let stream = stream.map_err(Error::NotFromSession)?;
    stream.peer_addr().map_err(Error::NotFromSession)?;
    let mut conn = Conn::new(stream, QUIET, MAX);
    let logins = Logins::locate()?;
    let (mut server, mut given) = (None::<(String, bool)>, None::<(u64, Secret)>);
    loop {
        let wanted: Wanted = match conn.receive() {
            Ok(wanted) => wanted,
            Err(FrameError::Closed) => return Ok(()),
            Err(error) => return Err(Error::NotFromSession(io::Error::other(error))),
        };
        // Whoever is taken over by what a server says gets no other server's token.
        let (server, is_secret) = &*server.get_or_insert((wanted.server, wanted.is_secret));
        let advice = format!("log in again with {}", command(server, *is_secret));
        // What was given, and did not arrive, was not refused.
        let old =
            given.as_ref().filter(|(number, _)| Some(*number) == wanted.refused).map(|(_, secret)| secret);
        let token = token(&logins, server, old, given.is_none(), &advice);
        let sent = match &token {
            Ok(secret) => {
                let number = match &given {
                    Some((number, last)) if last == secret => *number,
                    last => last.as_ref().map_or(0, |(number, _)| number + 1),
                };
                given = Some((number, secret.clone()));
                let pipe = secret.pipe().map_err(|error| Error::NotFromSession(io::Error::other(error)))?;
                let expires = expires(&logins, server);
                let (due_in, over_in) = (expires.map(|at| left(at, MARGIN)), expires.map(|at| left(at, 0)));
                conn.send_with_descriptors(&Token::Given { number, due_in, over_in }, &[pipe.as_fd()])
            }
            Err(why) => conn.send(&Token::None { why: why.clone() }),
        };
        if sent.is_err() {
            // The session is over.
            return Ok(());
        }
    }
}

/// How many seconds are left until `margin` milliseconds before a token's end.
fn left(expires: u64, margin: u64) -> u64 {
    let now = u64::try_from(now_micros() / 1000).unwrap_or_default();
    expires.saturating_sub(margin).saturating_sub(now) / 1000
}

/// The access token; another than the one that was refused. `is_first`: none was given before. It is the one that is there, if it is
/// good for a moment only: no session waits at its beginning for what may be done meanwhile.
fn token(
    logins: &Logins,
    server: &str,
    old: Option<&Secret>,
    is_first: bool,
    advice: &str,
) -> Result<Secret, String> {
    let login = logins.login(server, advice).map_err(|error| ringfence_base::error::chain(&error))?;
    let mut login = login.ok_or_else(|| format!("the login is there no more; {advice}"))?;
    if is_first {
        let there = Login { margin: 0, renewal: None, ..login.clone() };
        if let Ok(secret) = there.read() {
            return Ok(secret);
        }
    }
    let is_refused = |secret: &Secret| old == Some(secret);
    // One that was refused long ago says nothing of the next: what is asked too often is on record beside the login.
    match Renewer::new(true).after_refusal(&Source::Login(login.clone()), &is_refused) {
        Ok(secret) if is_refused(&secret) => {
            Err(format!("the remote server refuses the login, and it was not renewed; {advice}"))
        }
        Ok(secret) => Ok(secret),
        Err(error) => {
            // It is good for a little while yet, whatever became of the renewal.
            login.margin = 0;
            login.read().ok().filter(|secret| !is_refused(secret)).ok_or_else(|| refused(&error, advice))
        }
    }
}
