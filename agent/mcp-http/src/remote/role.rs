//! The process: takes its configuration and credentials, confines itself, and carries messages.

use super::{confine, http, login::Login, session};
use crate::{
    config::{self, Config},
    room::Rooms,
};
use http::Server;
use ringfence_session::{
    line,
    lines::{Lines, Taken},
};
use serde_json::json;
use session::{End, Outgoing, Session};
use std::{
    io::{self, Read, Write as _},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::sync::mpsc;
use url::Url;

/// Bytes of messages that are held at a time, at least, and how many of the longest there may be.
const MIN_ROOM: usize = 128 << 20;
const LONGEST: usize = 4;
/// Messages that wait to be written.
const WAITING: usize = 16;
/// How long the last lines may take to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by the interceptor.
    #[error(
        "`ringfence mcp-remote` is started by `ringfence mcp --url`, which says on standard input what it is to do"
    )]
    NotFromInterceptor,
    /// The server or its credentials.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The login.
    #[error("{0}")]
    Login(String),
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// HTTPS.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// The event loop.
    #[error("cannot set up the event loop")]
    Io(#[source] io::Error),
}

/// Carries one session between standard input and output and a remote server, until the client is done. The status is 0 then,
/// and 1 where the server has forgotten the session.
///
/// # Errors
/// [`Error`]. A client is told so under the id of its first request.
pub fn serve() -> Result<ExitCode, Error> {
    confine::hide()?;
    let config = configuration(io::stdin().lock())?;
    let end = prepared(&config).and_then(|(url, headers, login)| run(&config, url, headers, login));
    if let Err(error) = &end {
        refuse(&format!("ringfence mcp --url: {}", ringfence_base::error::chain(error)));
    }
    Ok(match end? {
        End::Done => ExitCode::SUCCESS,
        End::Lost => ExitCode::FAILURE,
    })
}

type Prepared = (Url, Vec<(String, ringfence_credentials::Secret)>, Option<Login>);

/// The server's address and the credentials, which are not to be had any more afterwards.
fn prepared(config: &Config) -> Result<Prepared, Error> {
    let url = config.checked()?;
    let headers = config.read_headers()?;
    let login = config.login.then(|| Login::start(config)).transpose().map_err(Error::Login)?;
    if !confine::enter(room(config.max_line))? {
        let _ = writeln!(
            io::stderr(),
            "ringfence mcp --url: this kernel has no Landlock, so the process that speaks to the remote server may read files as its user may"
        );
    }
    Ok((url, headers, login))
}

fn room(max_line: usize) -> usize {
    MIN_ROOM.max(max_line.saturating_mul(LONGEST))
}

fn run(
    config: &Config,
    url: Url,
    headers: Vec<(String, ringfence_credentials::Secret)>,
    login: Option<Login>,
) -> Result<End, Error> {
    let server = Server::new(url, headers)?.with(login, config);
    let (out, outgoing) = mpsc::channel::<Outgoing>(WAITING);
    let (incoming, lines) = mpsc::channel::<Vec<u8>>(1);
    let limit = config.max_line;
    let refusals = out.clone();
    let rooms = Rooms::new(room(limit));
    let own = rooms.clone();
    thread::spawn(move || {
        read(&incoming, limit, |line| drop(refusals.blocking_send(Some((line, own.one())))))
    });
    let writer = thread::spawn(move || write(outgoing));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let end = runtime.block_on(async {
        let session = Arc::new(Session::new(server, limit, rooms, out.clone()));
        let end = session.run(lines).await;
        let _ = tokio::time::timeout(LAST_LINES, out.send(None)).await;
        end
    });
    // Threads that wait for a name end with the process.
    runtime.shutdown_background();
    let begun = std::time::Instant::now();
    while !writer.is_finished() && begun.elapsed() < LAST_LINES {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(end)
}

/// The first line, byte by byte: what follows it is the client's.
fn configuration(mut input: impl Read) -> Result<Config, Error> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < config::MAX {
        match input.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(1) if byte == *b"\n" => {
                return serde_json::from_slice(&line).map_err(|_| Error::NotFromInterceptor);
            }
            Ok(1) => line.extend(byte),
            _ => break,
        }
    }
    Err(Error::NotFromInterceptor)
}

/// Reads the client's lines until there are no more. `refuse` gets the answers to what is too long.
fn read(incoming: &mpsc::Sender<Vec<u8>>, limit: usize, refuse: impl Fn(Vec<u8>)) {
    let mut lines = Lines::new(io::stdin(), limit);
    loop {
        let taken = match lines.next_line() {
            Ok(Taken::Line(line)) => line.to_vec(),
            Ok(Taken::Overlong(beginning)) => {
                let error = json!({ "code": -32600, "message": format!("Ringfence did not send this: it has more than {limit} bytes") });
                for id in line::request_ids(beginning) {
                    refuse(id.answer("error", &error).into_bytes());
                }
                if lines.rest(|_| Ok(())).is_err() {
                    return;
                }
                continue;
            }
            Ok(Taken::End) | Err(_) => return,
        };
        if incoming.blocking_send(taken).is_err() {
            return;
        }
    }
}

/// Writes lines until there are no more, or nobody reads them.
fn write(mut outgoing: mpsc::Receiver<Outgoing>) {
    let mut stdout = io::stdout().lock();
    while let Some(Some((line, _room))) = outgoing.blocking_recv() {
        if stdout.write_all(&line).and_then(|()| stdout.flush()).is_err() {
            return;
        }
    }
}

/// Answers the client's first request with why there is no server: clients show that, and few show standard error.
fn refuse(why: &str) {
    let mut lines = Lines::new(io::stdin(), config::MAX);
    while let Ok(Taken::Line(line) | Taken::Overlong(line)) = lines.next_line() {
        if let Some(id) = line::request_ids(line).first() {
            let answer = id.answer("error", &json!({ "code": -32603, "message": why }));
            let _ = io::stdout().lock().write_all(answer.as_bytes());
            return;
        }
    }
}
