//! The process: what it is given, how it confines itself, what it serves until it is told to end or the core is gone.

use crate::{
    authority::{self, Authority},
    confine,
    exchange::Exchanges,
    hosts::{Hosts, Unfit},
    link::{Messages, connections, most_connections, write_all},
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
    credentials::{
        CredentialsStart, FromCredentials, MAX_HOSTS, MAX_ORDER, NotACertificate, OtherSecrets,
        ToCredentials, assigned,
    },
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
use tokio::{sync::mpsc, task::LocalSet};

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
    #[error(
        "the certificate of the container's authority is none that programs are given: give fewer hosts credentials"
    )]
    TooLong(#[from] NotACertificate),
    /// Credentials of other hosts.
    #[error("the credentials are not those of the profile's hosts; start the container again")]
    Other(#[from] OtherSecrets),
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
    let Given { start, earlier, secrets } = receive_start(&mut conn)?;
    // What is read of files, or made, is read and made now.
    let trusted = server::trusted().map_err(Error::Roots)?;
    let (new, kept) = authority::make_key()?;
    let memory = confine::enter()?;
    let (key, kept) = match earlier.map(|earlier| (authority::kept_key(&earlier), earlier)) {
        Some((Ok(key), earlier)) => (key, earlier),
        Some((Err(error), _)) => {
            let why = format!(
                "the key of the container's CA cannot be read, and there is another: programs have to read its file again: {error}"
            );
            conn.send(&FromCredentials::Complaint(printable(&why))).map_err(Error::Link)?;
            (new, kept)
        }
        None => (new, kept),
    };
    let names = start.hosts.iter().map(|host| host.host.as_str());
    let authority = Authority::new(&start.container, names, key)?;
    let certificate = authority.pem()?;
    let hosts = start.hosts.into_iter().zip(secrets).map(|(rules, descriptor)| {
        // Where an earlier process had the same one, it is at its end. A pipe has no place to go to.
        let _ = seek(&descriptor, SeekFrom::Start(0));
        let secret =
            Secret::from_descriptor(descriptor).map_err(|error| Error::Secret(rules.host.clone(), error))?;
        Ok((rules, secret))
    });
    let hosts = Rc::new(Hosts::new(hosts.collect::<Result<_, Error>>()?)?);
    let most_connections = most_connections(memory, hosts.mask.memory());
    let ready = FromCredentials::Ready { certificate };
    conn.send_with_descriptors(&ready, &[kept.as_fd()]).map_err(Error::Link)?;
    // The core has it from here on.
    drop(kept);
    core.set_nonblocking(true).map_err(Error::Io)?;
    let core = core.try_clone().map_err(Error::Io)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let shared = Shared {
        profile: start.profile,
        hosts,
        exchanges: Exchanges::default(),
        most_connections,
        authority,
        trusted,
    };
    let shared = Rc::new(shared);
    LocalSet::new().block_on(&runtime, obey(shared, core))
}

/// What the core gives first.
struct Given {
    start: CredentialsStart,
    /// What an earlier process kept of the container's CA.
    earlier: Option<OwnedFd>,
    /// In the order of the hosts.
    secrets: Vec<OwnedFd>,
}

fn receive_start(conn: &mut Conn) -> Result<Given, Error> {
    let (first, beside) = conn.receive_with_descriptors().map_err(Error::Startup)?;
    let ToCredentials::Start(start) = first else { return Err(Error::Descriptors) };
    let earlier = at_most_one(beside)?;
    if start.hosts.is_empty() || start.hosts.len() > MAX_HOSTS {
        return Err(Error::Descriptors);
    }
    let mut given = Vec::with_capacity(start.hosts.len());
    for _ in &start.hosts {
        let (ToCredentials::Secret(of), beside) = conn.receive_with_descriptors().map_err(Error::Startup)?
        else {
            return Err(Error::Descriptors);
        };
        given.push((of, at_most_one(beside)?.ok_or(Error::Descriptors)?));
    }
    let secrets = assigned(&start.hosts, given)?;
    Ok(Given { start, earlier, secrets })
}

fn at_most_one(mut descriptors: Vec<OwnedFd>) -> Result<Option<OwnedFd>, Error> {
    let one = descriptors.pop();
    if descriptors.is_empty() { Ok(one) } else { Err(Error::Descriptors) }
}

/// Does what the core says until it says stop, or is gone.
async fn obey(shared: Rc<Shared>, core: UnixStream) -> Result<(), Error> {
    let (read, write) = tokio::net::UnixStream::from_std(core).map_err(Error::Io)?.into_split();
    // Each is an answer to something that the core said.
    let (tell, told) = mpsc::unbounded_channel();
    tokio::select! {
        ended = follow(&shared, Messages::new(read, MAX_ORDER), &tell) => ended,
        written = write_all(write, told) => {
            if let Err(error) = written {
                tracing::info!("the daemon is gone, and so is this process: {error}");
            }
            Ok(())
        }
    }
}

async fn follow(
    shared: &Rc<Shared>,
    mut orders: Messages,
    tell: &mpsc::UnboundedSender<FromCredentials>,
) -> Result<(), Error> {
    let mut worker = None;
    while let Some(order) = orders.next().await.map_err(Error::Link)? {
        match order {
            ToCredentials::Link { id } => {
                let link = orders.descriptor().ok_or(Error::Descriptors)?;
                let link = link.as_fd().try_clone_to_owned().map_err(Error::Io)?;
                let (shared, tell) = (Rc::clone(shared), tell.clone());
                // The connections of the worker before end with it.
                let served = tokio::task::spawn_local(async move {
                    if let Err(error) = connections(shared, link).await {
                        tracing::error!(
                            "the egress worker says what none says, and its connections end: {error}"
                        );
                    }
                    // Where the core is gone, this process ends.
                    let _ = tell.send(FromCredentials::LinkEnded { id });
                });
                if let Some(before) = worker.replace(served) {
                    before.abort();
                }
            }
            ToCredentials::Rules { id, hosts } => {
                shared.exchanges.replace_rules(&shared.hosts, &hosts);
                let _ = tell.send(FromCredentials::InForce { id });
            }
            ToCredentials::Stop => return Ok(()),
            ToCredentials::Start(_) | ToCredentials::Secret(_) => return Err(Error::Descriptors),
        }
    }
    Ok(())
}
