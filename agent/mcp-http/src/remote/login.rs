//! The login that a session uses where no other credential is given (`ringfence mcp login`). A process beside this one keeps it, and
//! renews it: here is the access token alone.

use crate::config::Config;
use ringfence_base::error::chain;
use ringfence_credentials::Secret;
use ringfence_wire::{
    conn::Conn,
    mcp_login::{MAX, Token, Wanted},
};
use std::{
    io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long the keeper may take: a renewal, behind another session's.
const PATIENCE: Duration = Duration::from_secs(600);
/// For how long a refusal that nothing came of stands for the next ones.
const PAUSE: Duration = Duration::from_secs(10);

/// Which token that was, as the keeper has it.
pub(super) type Number = u64;

/// The keeper, and the token that it gave last.
pub(super) struct Login {
    conn: Arc<Mutex<Conn>>,
    server: String,
    /// One asks at a time, and who waited has what the one before got.
    current: tokio::sync::Mutex<Current>,
}

struct Current {
    token: Secret,
    number: Number,
    /// When another is to be asked for.
    until: Option<Instant>,
    /// When one was refused last and no other was to be had, and why.
    failed: Option<(Instant, String)>,
}

impl Login {
    /// Starts the keeper, and has the first token of it. Before this process is confined.
    ///
    /// # Errors
    /// In words.
    pub(super) fn start(config: &Config) -> Result<Self, String> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        start(theirs)
            .map_err(|error| format!("the process that keeps the login cannot be started: {error}"))?;
        let conn = Arc::new(Mutex::new(Conn::new(ours, PATIENCE, MAX)));
        let server = config.server_of_login();
        let current = asked(&conn, &server, None)?;
        Ok(Self { conn, server, current: tokio::sync::Mutex::new(current) })
    }

    /// The token; another, where that one is nearly over.
    ///
    /// # Errors
    /// In words: there is none any more.
    pub(super) async fn token(&self) -> Result<(Secret, Number), String> {
        let mut current = self.current.lock().await;
        if current.until.is_some_and(|until| Instant::now() >= until) {
            self.renew(&mut current, None).await?;
        }
        Ok((current.token.clone(), current.number))
    }

    /// Another token than this one, which the server refused.
    ///
    /// # Errors
    /// In words: there is none.
    pub(super) async fn other_than(&self, number: Number) -> Result<(Secret, Number), String> {
        let mut current = self.current.lock().await;
        if current.number == number {
            if let Some((_, why)) = current.failed.as_ref().filter(|(last, _)| last.elapsed() < PAUSE) {
                return Err(why.clone());
            }
            if let Err(why) = self.renew(&mut current, Some(number)).await {
                current.failed = Some((Instant::now(), why.clone()));
                return Err(why);
            }
        }
        Ok((current.token.clone(), current.number))
    }

    /// A request that is called off meanwhile leaves the answer to the next one: the keeper knows which token was refused.
    async fn renew(&self, current: &mut Current, refused: Option<Number>) -> Result<(), String> {
        let (conn, server) = (Arc::clone(&self.conn), self.server.clone());
        let asked = tokio::task::spawn_blocking(move || asked(&conn, &server, refused)).await;
        *current = asked.map_err(|error| error.to_string())??;
        Ok(())
    }
}

/// Asks the keeper.
fn asked(conn: &Mutex<Conn>, server: &str, refused: Option<Number>) -> Result<Current, String> {
    let mut conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
    let gone =
        |error: &dyn std::error::Error| format!("the process that keeps the login is gone: {}", chain(error));
    conn.send(&Wanted { server: server.to_owned(), refused }).map_err(|error| gone(&error))?;
    let begun = Instant::now();
    match conn.receive_with_descriptors::<Token>().map_err(|error| gone(&error))? {
        (Token::Given { number, good_for }, descriptors) => {
            let pipe = descriptors.into_iter().next();
            let pipe = pipe.ok_or("the process that keeps the login hands over nothing")?;
            let token = Secret::from_descriptor(pipe).map_err(|error| chain(&error))?;
            // Where the time is over already, it is asked again soon, and not for every request.
            let until = good_for.and_then(|seconds| begun.checked_add(Duration::from_secs(seconds.max(1))));
            Ok(Current { token, number, until, failed: None })
        }
        (Token::None { why }, _) => Err(why),
    }
}

fn start(link: UnixStream) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ringfence").arg("mcp-login-keeper").current_dir("/");
    // It ends when this process does, by its link; a signal to all of the session ends no renewal that is under way.
    command.stdin(OwnedFd::from(link)).stdout(Stdio::null()).process_group(0);
    command.spawn().map(drop)
}
