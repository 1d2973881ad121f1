//! The process: takes its order, confines itself, and does it.

use super::{
    fetch::Fetch,
    flow::{self, Done, Failed},
    metadata::Reach,
};
use crate::remote::confine;
use ringfence_credentials::{self as secret, Secret};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp_login::{LogIn, MAX, Order, Revoke, Said},
};
use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// How long a message from or to `ringfence mcp login` may take.
const TIME: Duration = Duration::from_secs(30);
/// Bytes that answers may take.
const ROOM: usize = 16 << 20;

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by `ringfence mcp login`.
    #[error("`ringfence mcp-oauth` is started by `ringfence mcp login`, with its link as standard input")]
    NotFromLogin(#[source] io::Error),
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// Whoever gives the order.
    #[error("`ringfence mcp login` cannot be understood")]
    Link(#[from] FrameError),
    /// A credential.
    #[error("cannot read or pass on a credential")]
    Secret(#[from] secret::Error),
    /// HTTPS.
    #[error("cannot set up HTTPS")]
    Client(#[source] reqwest::Error),
    /// The event loop.
    #[error("cannot set up the event loop")]
    Io(#[source] io::Error),
}

/// Carries out one order.
///
/// # Errors
/// [`Error`].
pub fn serve() -> Result<(), Error> {
    confine::hide()?;
    let stream =
        io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(Error::NotFromLogin)?;
    stream.peer_addr().map_err(Error::NotFromLogin)?;
    let mut conn = Conn::new(stream, TIME, MAX);
    let served = answered(&mut conn);
    if let Err(error) = &served {
        let _ = conn.send(&Said::Failed { why: ringfence_base::error::chain(error) });
    }
    served
}

fn answered(conn: &mut Conn) -> Result<(), Error> {
    let (order, descriptors) = conn.receive_with_descriptors::<Order>()?;
    confine::enter_listening(ROOM)?;
    let reach = match &order {
        Order::LogIn(LogIn { server, .. }) => Reach::of_text(server),
        Order::Revoke(Revoke { url, .. }) => Reach::of_text(url),
    };
    let fetch = Fetch::new(reach).map_err(Error::Client)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let done = runtime.block_on(carried_out(&fetch, order, descriptors, conn));
    // Threads that wait for a name end with the process.
    runtime.shutdown_background();
    match done {
        Ok(Done::LoggedIn { what, tokens }) => {
            let pipes: Vec<OwnedFd> = tokens.iter().map(Secret::pipe).collect::<Result<_, _>>()?;
            let beside: Vec<_> = pipes.iter().map(AsFd::as_fd).collect();
            conn.send_with_descriptors(&Said::LoggedIn(what), &beside)?;
        }
        Ok(Done::Revoked) => conn.send(&Said::Revoked)?,
        Err(Failed(why)) => conn.send(&Said::Failed { why })?,
    }
    Ok(())
}

async fn carried_out(
    fetch: &Fetch,
    order: Order,
    descriptors: Vec<OwnedFd>,
    conn: &mut Conn,
) -> Result<Done, Failed> {
    let none = || Failed("there is too little beside the order".to_owned());
    let mut descriptors = descriptors.into_iter();
    let first = descriptors.next().ok_or_else(none)?;
    let secret = descriptors.next().map(Secret::from_descriptor).transpose();
    let secret = secret.map_err(|error| Failed(error.to_string()))?;
    match order {
        Order::LogIn(order) => flow::log_in(fetch, order, TcpListener::from(first), secret, conn).await,
        Order::Revoke(order) => {
            let token = Secret::from_descriptor(first).map_err(|error| Failed(error.to_string()))?;
            flow::revoke(fetch, order, &token, secret.as_ref()).await
        }
    }
}
