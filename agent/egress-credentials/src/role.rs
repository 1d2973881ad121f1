//! The process: what it is given, how it confines itself, what it serves until it is told to end or the core is gone.

use crate::{
    authority::{self, Authority},
    confine,
    hosts::{Host, Hosts, Unfit},
    link::{Messages, connections},
    refusal::printable,
    server,
    taken::Shared,
};
use nix::sys::{
    socket::{getsockopt, sockopt},
    stat::{Mode, umask},
};
use ringfence_base::{error::chain, precedence};
use ringfence_credentials::Secret;
use ringfence_wire::{
    conn::Conn,
    credentials::{CredentialsStart, FromCredentials, MAX_CERTIFICATE, MAX_HOSTS, MAX_ORDER, ToCredentials},
    frame::FrameError,
};
use rustix::fs::{SeekFrom, seek};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
    time::Duration,
};
use tokio::task::LocalSet;

/// How long the core may take for each of its first messages.
const START_TIME: Duration = Duration::from_secs(10);

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by the core.
    #[error(
        "`ringfence egress-credentials` is started by the daemon, with its link as standard input; start the daemon"
    )]
    NotFromDaemon(#[source] Option<io::Error>),
    /// The core's first messages.
    #[error("cannot parse the first messages; do this process and the daemon have the same version?")]
    Startup(#[source] FrameError),
    /// Descriptors that are missing or too many.
    #[error(
        "the first messages do not fit their descriptors; do this process and the daemon have the same version?"
    )]
    Descriptors,
    /// No roots.
    #[error(
        "cannot find the certificate authorities that this host trusts: install ca-certificates, or set SSL_CERT_FILE"
    )]
    Roots(#[source] rustls::Error),
    /// No certificates.
    #[error("cannot make a certificate authority for the container")]
    Authority(#[from] authority::Error),
    /// Too many hosts.
    #[error("the certificate of the container's authority is too long: give fewer hosts credentials")]
    TooLong,
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// A credential that cannot be read.
    #[error("cannot read the credential of {0}")]
    Secret(String, #[source] ringfence_credentials::Error),
    /// A credential that cannot be put in.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The runtime.
    #[error("cannot set up the event loop")]
    Io(#[source] io::Error),
    /// The core.
    #[error("the daemon says what no daemon says")]
    Link(#[source] FrameError),
}

/// Runs the role over standard input.
///
/// # Errors
/// [`Error`].
pub fn run() -> Result<(), Error> {
    precedence::not_core();
    let own = |error| Error::NotFromDaemon(Some(error));
    let core = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(own)?);
    if getsockopt(&core, sockopt::AcceptConn) != Ok(false) {
        return Err(Error::NotFromDaemon(None));
    }
    umask(Mode::from_bits_truncate(0o077));
    confine::hide()?;
    serve(&core).inspect_err(|error| {
        // Its user asks the core how the container fares, and does not look for what is on standard error.
        let sent = core.try_clone().and_then(|core| {
            core.set_nonblocking(false)?;
            let why = FromCredentials::Complaint(printable(&chain(error)));
            Conn::new(core, START_TIME, MAX_ORDER).send(&why).map_err(io::Error::other)
        });
        if let Err(why) = sent {
            tracing::debug!("the daemon cannot be told why this process ends: {why}");
        }
    })
}

fn serve(core: &UnixStream) -> Result<(), Error> {
    let own = |error| Error::NotFromDaemon(Some(error));
    let mut conn = Conn::new(core.try_clone().map_err(own)?, START_TIME, MAX_ORDER);
    let (start, descriptors) = receive_start(&mut conn)?;
    // What is read of files is read now.
    let trusted = server::trusted().map_err(Error::Roots)?;
    let authority = Authority::new(&start.container, start.hosts.iter().map(|host| host.host.as_str()))?;
    let certificate = authority.pem();
    if certificate.len() > MAX_CERTIFICATE {
        return Err(Error::TooLong);
    }
    confine::enter()?;
    let hosts = start.hosts.into_iter().zip(descriptors).map(|(rules, descriptor)| {
        // Where an earlier process had the same one, it is at its end. A pipe has no place to go to.
        let _ = seek(&descriptor, SeekFrom::Start(0));
        let secret =
            Secret::from_descriptor(descriptor).map_err(|error| Error::Secret(rules.host.clone(), error))?;
        Ok(Host::new(rules, &secret)?)
    });
    let hosts = Hosts::new(hosts.collect::<Result<_, Error>>()?);
    conn.send(&FromCredentials::Ready { certificate }).map_err(Error::Link)?;
    core.set_nonblocking(true).map_err(Error::Io)?;
    let core = core.try_clone().map_err(Error::Io)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let shared = Rc::new(Shared { profile: start.profile, hosts, authority, trusted });
    LocalSet::new().block_on(&runtime, obey(shared, core))
}

/// Takes what the core gives first: the start, and a descriptor for each host.
fn receive_start(conn: &mut Conn) -> Result<(CredentialsStart, Vec<OwnedFd>), Error> {
    let ToCredentials::Start(start) = conn.receive().map_err(Error::Startup)? else {
        return Err(Error::Descriptors);
    };
    if start.hosts.is_empty() || start.hosts.len() > MAX_HOSTS {
        return Err(Error::Descriptors);
    }
    let mut descriptors = Vec::with_capacity(start.hosts.len());
    for _ in &start.hosts {
        let (ToCredentials::Secret, mut beside) = conn.receive_with_descriptors().map_err(Error::Startup)?
        else {
            return Err(Error::Descriptors);
        };
        match (beside.pop(), beside.is_empty()) {
            (Some(descriptor), true) => descriptors.push(descriptor),
            _ => return Err(Error::Descriptors),
        }
    }
    Ok((start, descriptors))
}

/// Does what the core says until it says stop, or is gone.
async fn obey(shared: Rc<Shared>, core: UnixStream) -> Result<(), Error> {
    let (read, _write) = tokio::net::UnixStream::from_std(core).map_err(Error::Io)?.into_split();
    let mut orders = Messages::new(read, MAX_ORDER);
    let mut worker = None;
    while let Some(order) = orders.next().await.map_err(Error::Link)? {
        match order {
            ToCredentials::Link => {
                let link = orders.descriptor().ok_or(Error::Descriptors)?;
                let shared = Rc::clone(&shared);
                // The connections of the worker before end with it.
                let served = tokio::task::spawn_local(async move {
                    if let Err(error) = connections(shared, link).await {
                        tracing::error!(
                            "the egress worker says what none says, and its connections end: {error}"
                        );
                    }
                });
                if let Some(before) = worker.replace(served) {
                    before.abort();
                }
            }
            ToCredentials::Rules { hosts } => shared.hosts.replace(&hosts),
            ToCredentials::Stop => return Ok(()),
            ToCredentials::Start(_) | ToCredentials::Secret => return Err(Error::Descriptors),
        }
    }
    Ok(())
}
