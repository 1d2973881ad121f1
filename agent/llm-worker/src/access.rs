//! Who may speak on an agent's socket, and which of the model's tool calls a process may be tagged for.

use super::{
    calls::CallKey,
    core_client::{CoreClient, Error, RefusedParty},
    rpc::{FORBIDDEN, RpcError},
};
use ringfence_policy::agents::registry::AgentConfig;
use ringfence_wire::{
    agent::PeerIdentity,
    rights,
    trace::{AgentEvent, MAX_ID, MAX_TEXT, Refusal},
};
use rustix::{net::RecvFlags, process::geteuid};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, Interest, ReadBuf},
    net::{UnixStream, unix::OwnedReadHalf},
};

/// Most descriptors of one peer that wait for the request which they came with; more are closed.
const MOST_DESCRIPTORS: usize = 4;

/// The calls of the model's last answer that nobody answered yet, by the names that the runtime has for them.
#[derive(Debug, Default)]
pub(crate) struct Issued(Mutex<HashMap<String, UntaggedCall>>);

/// A call that waits for its result.
#[derive(Debug)]
struct UntaggedCall {
    key: CallKey,
    /// A process was tagged for it.
    taken: bool,
}

impl Issued {
    /// The model wants these called; what it wanted before is over.
    pub(crate) fn set<'a>(&self, calls: impl IntoIterator<Item = (&'a str, CallKey)>) {
        let mut issued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let untagged = calls.into_iter().map(|(id, key)| (id.to_owned(), UntaggedCall { key, taken: false }));
        *issued = untagged.collect();
    }

    /// Takes a call for a process.
    ///
    /// # Errors
    /// Nobody waits for it, or it has a process.
    pub(crate) fn claim(&self, call: &str) -> Result<CallKey, String> {
        let mut issued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: String = call.chars().take(MAX_ID).collect();
        match issued.get_mut(call) {
            None => Err(format!("no tool call {shown:?} of the model's waits for a result")),
            Some(UntaggedCall { taken: true, .. }) => {
                Err(format!("the tool call {shown:?} has a process that is tagged for it"))
            }
            Some(untagged) => {
                untagged.taken = true;
                Ok(untagged.key.clone())
            }
        }
    }

    fn give_back(&self, key: &CallKey) {
        let mut issued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(untagged) = issued.values_mut().find(|untagged| untagged.key == *key) {
            untagged.taken = false;
        }
    }
}

/// What every connection to one agent's socket is judged by.
pub(crate) struct Access {
    /// The core.
    pub host: CoreClient,
    /// The agent has a container of its own.
    pub governed: bool,
    /// Who may send, beside root.
    pub owner: u32,
    /// What may be tagged.
    pub(crate) issued: Arc<Issued>,
}

/// Who is at the other end of one connection.
pub(crate) struct ConnectionPeer {
    access: Arc<Access>,
    /// `Ok(None)`: there is no core, and the socket's mode says who may connect.
    speaker: Result<Option<PeerIdentity>, Error>,
    /// Without a core: the peer is the user that the worker serves, or root.
    is_user: bool,
    connection: Option<OwnedFd>,
}

impl Access {
    /// As the configuration says.
    pub(crate) fn new(config: &AgentConfig, host: CoreClient, issued: Arc<Issued>) -> Self {
        Self { host, governed: config.governed, owner: config.socket_owner.unwrap_or(0), issued }
    }

    /// Asks who made a connection.
    pub(crate) async fn of(self: &Arc<Self>, stream: &UnixStream) -> ConnectionPeer {
        let speaker = self.host.speaker(stream.as_fd()).await;
        let connection = match self.host.has_core() {
            true => stream.as_fd().try_clone_to_owned().ok(),
            false => None,
        };
        let is_user =
            stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw());
        ConnectionPeer { access: Arc::clone(self), speaker, is_user, connection }
    }
}

impl ConnectionPeer {
    /// Whether it may be the runtime: from the agent's own container, where it has one.
    ///
    /// # Errors
    /// It may not; that is reported.
    pub(crate) fn may_register(&self) -> Result<(), RpcError> {
        self.check_container("register", "a runtime speaks")
    }

    /// Whether it may call the provider's API: from the agent's own container, where it has one.
    ///
    /// # Errors
    /// It may not; that is reported.
    pub(crate) fn may_call(&self) -> Result<(), RpcError> {
        self.check_container("http", "this API is called")
    }

    /// Whether it is in the agent's container, where there is one. `act`: what it wants, in words.
    fn check_container(&self, what: &str, act: &str) -> Result<(), RpcError> {
        let own = |speaker: &PeerIdentity| speaker.container.as_ref().is_some_and(|container| container.own);
        let why = match &self.speaker {
            Ok(None) => return Ok(()),
            Ok(Some(_)) if !self.access.governed => return Ok(()),
            Ok(Some(speaker)) if own(speaker) => return Ok(()),
            Ok(Some(PeerIdentity { container: None, .. })) => {
                format!(
                    "{act} from the agent's container, and this process is in none; start it by `ringfence run --profile`"
                )
            }
            Ok(Some(_)) => format!("{act} from the agent's container, and this process is in another"),
            Err(error) => format!("it is not known who this is: {error}"),
        };
        Err(self.refuse(what, why))
    }

    /// Whether it may send: the owner, from no container. Where nothing tells a container's processes from the owner's,
    /// only root.
    ///
    /// # Errors
    /// It may not; that is reported.
    pub(crate) fn may_send(&self) -> Result<(), RpcError> {
        let Access { governed, owner, .. } = *self.access;
        let why = match &self.speaker {
            Ok(None) if self.is_user => return Ok(()),
            // What a container could say in its user's name would be no intent.
            Ok(None) => "only the user who runs the agent's worker, and root, may send".to_owned(),
            Ok(Some(PeerIdentity { container: Some(_), .. })) => {
                "a message is sent from the host, never from a container: an agent does not give itself orders".to_owned()
            }
            Ok(Some(speaker)) if speaker.uid == 0 || (governed && speaker.uid == owner) => return Ok(()),
            Ok(Some(speaker)) => format!("user {} is not the agent's owner", speaker.uid),
            Err(error) => format!("it is not known who this is: {error}"),
        };
        Err(self.refuse("send", why))
    }

    /// User id, where the kernel said.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.speaker.as_ref().ok()?.as_ref().map(|speaker| speaker.uid)
    }

    /// Has the runtime's process tagged for a call.
    ///
    /// # Errors
    /// It is not tagged; that is reported.
    pub(crate) async fn tag(&self, call: &str, process: Option<OwnedFd>) -> Result<(), RpcError> {
        let Access { host, issued, .. } = &*self.access;
        let Some(connection) = self.connection.as_ref().filter(|_| host.has_core()) else {
            return Err(RpcError::new(
                FORBIDDEN,
                "no tags here: they take the system's daemon (ringfence daemon)",
            ));
        };
        let tagged = async {
            let process = process.ok_or("a pidfd of the process comes beside a `tag`, and none came")?;
            if call.len() > MAX_ID {
                return Err(format!("a call's id has at most {MAX_ID} bytes here"));
            }
            let key = issued.claim(call)?;
            match host.tag(process, connection.as_fd()).await {
                Ok(tag) => Ok((key, tag)),
                Err(error) => {
                    issued.give_back(&key);
                    Err(error.to_string())
                }
            }
        };
        match tagged.await {
            Ok((key, tag)) => {
                host.counts().tags.fetch_add(1, Ordering::Relaxed);
                host.report(&AgentEvent::Tagged { key: key.as_str().to_owned(), tag, matched: false });
                Ok(())
            }
            Err(why) => {
                host.counts().refused_tags.fetch_add(1, Ordering::Relaxed);
                Err(self.record("tag", why))
            }
        }
    }

    fn refuse(&self, what: &str, why: String) -> RpcError {
        self.access.host.counts().refused_peers.fetch_add(1, Ordering::Relaxed);
        self.record(what, why)
    }

    fn record(&self, what: &str, why: String) -> RpcError {
        let speaker = self.speaker.as_ref().ok().and_then(Option::as_ref);
        let whose = if speaker.is_some() { RefusedParty::Known } else { RefusedParty::Strangers };
        if !self.access.host.may_record(whose) {
            return RpcError::new(FORBIDDEN, why);
        }
        tracing::warn!(
            "`{what}` refused to process {} of user {}: {why}",
            speaker.map_or_else(|| "unknown".to_owned(), |s| s.pid.to_string()),
            speaker.map_or_else(|| "unknown".to_owned(), |s| s.uid.to_string()),
        );
        self.access.host.report(&AgentEvent::Refused(Refusal {
            what: what.to_owned(),
            why: why.chars().take(MAX_TEXT).collect(),
            pid: speaker.map(|speaker| speaker.pid),
            uid: speaker.map(|speaker| speaker.uid),
            container: speaker.and_then(|s| s.container.as_ref()).map(|container| container.id.clone()),
        }));
        RpcError::new(FORBIDDEN, why)
    }
}

/// Descriptors that came and were not asked for yet.
pub(crate) type Descriptors = Arc<Mutex<Vec<OwnedFd>>>;

/// A connection's reading side that keeps the descriptors which come beside bytes.
pub(crate) struct WithDescriptors {
    io: OwnedReadHalf,
    kept: Descriptors,
}

impl WithDescriptors {
    pub(crate) fn new(io: OwnedReadHalf) -> (Self, Descriptors) {
        let kept = Descriptors::default();
        (Self { io, kept: Arc::clone(&kept) }, kept)
    }
}

impl AsyncRead for WithDescriptors {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket: &UnixStream = self.io.as_ref();
        loop {
            ready!(socket.poll_read_ready(cx))?;
            let into = buf.initialize_unfilled();
            match socket.try_io(Interest::READABLE, || receive(socket, into, &self.kept)) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

fn receive(socket: &UnixStream, into: &mut [u8], kept: &Descriptors) -> io::Result<usize> {
    let received = rights::receive_all(socket, into, RecvFlags::DONTWAIT)?;
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let room = MOST_DESCRIPTORS - kept.len();
    // Those beyond it are closed here.
    kept.extend(received.descriptors.into_iter().take(room));
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::agent::PeerContainer;

    fn known(governed: bool, owner: u32, speaker: Result<Option<PeerIdentity>, Error>) -> ConnectionPeer {
        let access = Access { host: CoreClient::default(), governed, owner, issued: Arc::default() };
        ConnectionPeer { access: Arc::new(access), speaker, is_user: true, connection: None }
    }

    fn speaker(uid: u32, container: Option<bool>) -> Result<Option<PeerIdentity>, Error> {
        let container = container.map(|own| PeerContainer { id: "0123456789ab".into(), own });
        Ok(Some(PeerIdentity { pid: 7, uid, container }))
    }

    #[test]
    fn a_runtime_is_in_the_agents_container_where_it_has_one() {
        for (governed, container, may) in [
            (true, Some(true), true),
            (true, Some(false), false),
            (true, None, false),
            (false, None, true),
            (false, Some(false), true),
        ] {
            let result = known(governed, 0, speaker(0, container)).may_register();
            assert_eq!(result.is_ok(), may, "{governed} {container:?}");
        }
        assert!(known(true, 0, Err(Error::Silent)).may_register().is_err(), "unknown is not allowed");
        assert!(known(true, 0, Ok(None)).may_register().is_ok(), "without a core the mode decides");
    }

    #[test]
    fn a_sender_is_the_owner_and_in_no_container() {
        for (owner, uid, container, may) in [
            (1000, 1000, None, true),
            (1000, 0, None, true),
            (1000, 1001, None, false),
            (0, 1000, None, false),
            (1000, 1000, Some(true), false),
            (0, 0, Some(false), false),
        ] {
            let result = known(true, owner, speaker(uid, container)).may_send();
            assert_eq!(result.is_ok(), may, "{owner} {uid} {container:?}");
        }
        assert!(known(false, 0, Err(Error::Silent)).may_send().is_err());
        assert!(
            known(false, 1000, speaker(1000, None)).may_send().is_err(),
            "it may be the container's user"
        );
        assert!(known(false, 1000, speaker(0, None)).may_send().is_ok());
        assert!(known(true, 0, Ok(None)).may_send().is_ok());
        let other = ConnectionPeer { is_user: false, ..known(true, 0, Ok(None)) };
        assert!(other.may_send().is_err() && other.may_register().is_ok());
    }

    #[test]
    fn a_call_is_claimed_once_while_it_waits() {
        let issued = Issued::default();
        assert!(issued.claim("a").unwrap_err().contains("\"a\""));
        let [a, b, c] = [(); 3].map(|()| CallKey::mint());
        issued.set([("a", a.clone()), ("b", b)]);
        issued.claim("a").unwrap();
        assert!(issued.claim("a").unwrap_err().contains("has a process"));
        issued.give_back(&a);
        issued.claim("a").unwrap();
        issued.set([("c", c)]);
        assert!(issued.claim("b").is_err(), "answered meanwhile");
    }

    #[tokio::test]
    async fn descriptors_come_with_their_bytes_and_are_bounded() {
        use ringfence_wire::conn::Conn;
        use tokio::io::AsyncReadExt;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut sender = Conn::new(theirs, std::time::Duration::from_secs(5), 1 << 20);
        ours.set_nonblocking(true).unwrap();
        let (read, _write) = UnixStream::from_std(ours).unwrap().into_split();
        let (mut reader, kept) = WithDescriptors::new(read);
        let file = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..3 {
            sender.send_with_descriptors(&"x", &[file.as_fd(), file.as_fd()]).unwrap();
            reader.read_exact(&mut [0; 7]).await.unwrap();
        }
        assert_eq!(kept.lock().unwrap().len(), MOST_DESCRIPTORS);
    }
}
