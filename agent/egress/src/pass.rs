//! A connection that was let through: its bytes go both ways until one side ends it, and what the client says is looked at for as
//! long as it could name another host.

use crate::{
    flow::{Mover, Seen, Step},
    refusal::Refusal,
};
use ringfence_names::{
    http::Requests,
    tls::{Client, State},
};
use rustix::net::{Shutdown, shutdown};
use std::{
    cell::{Cell, RefCell},
    io,
};
use tokio::{net::TcpStream, sync::Notify, task::coop::consume_budget};

/// What of the client's bytes is looked at.
pub(crate) enum Check {
    /// Nothing any more, or nothing ever.
    Nothing,
    /// Whether another ClientHello follows.
    Tls(Box<Client>),
    /// Every request.
    Http(Box<Requests>),
}

/// Why a connection is over, where none of its ends ended it in order.
#[derive(Debug)]
pub(crate) enum Cut {
    /// A socket broke, as when a peer is gone.
    Broken(io::Error),
    /// It is not let through any more.
    Refused(Refusal),
}

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// How much may still be sent.
pub(crate) trait Allowance {
    /// So many bytes, now.
    fn left(&self) -> usize;
    /// So many were.
    fn spend(&self, bytes: usize);
    /// Why no more may be.
    fn refusal(&self) -> Refusal;
}

/// A connection and its server.
pub(crate) struct Pass<'a, A> {
    pub(crate) mover: &'a Mover,
    pub(crate) client: &'a TcpStream,
    pub(crate) server: &'a TcpStream,
    pub(crate) allowance: A,
    /// Of what waits at the client, so many bytes may go on: they were looked at before there was a server.
    pub(crate) approved: usize,
    /// Of what waits at the client, so many bytes were looked at.
    pub(crate) looked: usize,
    pub(crate) check: RefCell<Check>,
    /// What the check found and is to be done once what it approved is sent.
    pub(crate) found: Cell<Option<Refusal>>,
    /// Audit mode: what is refused goes on, and is kept here. The first counts.
    pub(crate) would_deny: Option<&'a RefCell<Option<Refusal>>>,
    pub(crate) sent: &'a Cell<u64>,
    pub(crate) received: &'a Cell<u64>,
    /// The server said something that the client's bytes wait for, or nothing more.
    pub(crate) answered: Notify,
    pub(crate) server_ended: Cell<bool>,
}

impl<A: Allowance> Pass<'_, A> {
    /// Until both sides have ended, or one breaks, or something is refused.
    ///
    /// # Errors
    /// [`Cut`].
    pub(crate) async fn run(&self) -> Result<(), Cut> {
        tokio::try_join!(self.up(), self.down()).map(drop)
    }

    async fn up(&self) -> Result<(), Cut> {
        let (mut approved, mut looked) = (self.approved, self.looked);
        loop {
            consume_budget().await;
            if approved > 0 {
                let sent = self.send(approved).await?;
                approved = approved.saturating_sub(sent);
                looked = looked.saturating_sub(sent);
                continue;
            }
            if let Some(refusal) = self.found.take() {
                return Err(Cut::Refused(refusal));
            }
            if matches!(*self.check.borrow(), Check::Nothing) {
                if self.send(usize::MAX).await? == 0 {
                    break;
                }
                continue;
            }
            let held = self.is_held();
            if held && self.server_ended.get() {
                return Ok(());
            }
            // Bytes that wait for the server were looked at before, and are again once it has spoken.
            if held && looked > 0 {
                self.answered.notified().await;
                looked = 0;
                continue;
            }
            match self.mover.look(self.client, looked, |bytes| self.judge(bytes, looked)).await? {
                Seen::Bytes((may_go, count)) => (approved, looked) = (may_go, count),
                // The rest of a request that never comes, or the end.
                Seen::End if looked > 0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Seen::End => break,
            }
        }
        // A server that is gone already need not be told.
        let _ = shutdown(self.server, Shutdown::Write);
        Ok(())
    }

    /// Sends up to so many bytes that may go on. None: the client's end.
    async fn send(&self, most: usize) -> Result<usize, Cut> {
        loop {
            let left = self.allowance.left();
            if left == 0 {
                return match self.mover.look(self.client, 0, |_| ()).await? {
                    Seen::Bytes(()) => Err(Cut::Refused(self.allowance.refusal())),
                    Seen::End => Ok(0),
                };
            }
            match self.mover.advance(self.client, self.server, most.min(left)).await? {
                Step::Moved(count) => {
                    self.sent.set(self.sent.get() + count as u64);
                    self.allowance.spend(count);
                    return Ok(count);
                }
                Step::End => return Ok(0),
                Step::NothingToRead => self.client.readable().await?,
                Step::NoRoomToWrite => self.server.writable().await?,
            }
        }
    }

    /// Looks at all that waits at the client, of which `before` bytes were looked at before: how many may go on, and how many
    /// were looked at now.
    fn judge(&self, bytes: &[u8], before: usize) -> (usize, usize) {
        let mut check = self.check.borrow_mut();
        let (may_go, refusal) = match &mut *check {
            Check::Nothing => (bytes.len(), None),
            Check::Tls(client) => match client.feed(bytes.get(before..).unwrap_or_default()) {
                Ok(State::Done) => {
                    *check = Check::Nothing;
                    (bytes.len(), None)
                }
                Ok(State::Watching) => (bytes.len(), None),
                Ok(State::Reading) => (0, None),
                Err(refused) => (0, Some(Refusal::of_tls(&refused))),
            },
            Check::Http(requests) => {
                let fed = requests.feed(bytes);
                if requests.is_tunnel() && fed.refused.is_none() {
                    *check = Check::Nothing;
                }
                (fed.forward, fed.refused.map(|refused| Refusal::of_http(&refused)))
            }
        };
        match (refusal, self.would_deny) {
            (None, _) => (may_go, bytes.len()),
            (Some(refusal), Some(kept)) => {
                kept.borrow_mut().get_or_insert(refusal);
                *check = Check::Nothing;
                (bytes.len(), bytes.len())
            }
            (Some(refusal), None) => {
                self.found.set(Some(refusal));
                (may_go, bytes.len())
            }
        }
    }

    fn is_held(&self) -> bool {
        matches!(&*self.check.borrow(), Check::Http(requests) if requests.awaits_response())
    }

    async fn down(&self) -> Result<(), Cut> {
        // Of what waits at the server, so many bytes were looked at and go on before anything else.
        let mut looked = 0;
        loop {
            consume_budget().await;
            if looked == 0 && self.is_held() {
                let heard = self.mover.look(self.server, 0, |bytes| self.hear(bytes)).await?;
                let Seen::Bytes(heard) = heard else { break };
                looked = heard.map_err(Cut::Refused)?;
                self.answered.notify_one();
            }
            let most = if looked > 0 { looked } else { usize::MAX };
            match self.mover.advance(self.server, self.client, most).await? {
                Step::Moved(count) => {
                    self.received.set(self.received.get() + count as u64);
                    looked = looked.saturating_sub(count);
                }
                Step::End => break,
                // Afterwards client's bytes may wait for what it says.
                Step::NothingToRead => self.server.readable().await?,
                Step::NoRoomToWrite => self.client.writable().await?,
            }
        }
        self.server_ended.set(true);
        self.answered.notify_one();
        let _ = shutdown(self.client, Shutdown::Write);
        Ok(())
    }

    /// Looks at what the server says while client's bytes wait for it.
    fn hear(&self, bytes: &[u8]) -> Result<usize, Refusal> {
        let mut check = self.check.borrow_mut();
        let Check::Http(requests) = &mut *check else { return Ok(bytes.len()) };
        let heard = requests.response(bytes);
        if let Err(refused) = &heard {
            let refusal = Refusal::of_http(refused);
            let Some(kept) = self.would_deny else { return Err(refusal) };
            kept.borrow_mut().get_or_insert(refusal);
            *check = Check::Nothing;
        }
        Ok(bytes.len())
    }
}
