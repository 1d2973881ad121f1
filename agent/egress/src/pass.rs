//! A connection that was let through: its bytes go both ways until one side ends it, and what the client says is looked at for as
//! long as it could name another host.

use crate::{
    flow::{Mover, Seen, Step},
    held::Held,
    refusal::Refusal,
    share::{Portion, Share},
};
use ringfence_names::{
    http::Requests,
    tls::{Client, State},
};
use rustix::net::{Shutdown, shutdown};
use std::{
    cell::{Cell, RefCell},
    io,
    time::Duration,
};
use tokio::{
    io::Interest,
    net::TcpStream,
    sync::Notify,
    task::coop::consume_budget,
    time::{Instant, sleep, timeout_at},
};

/// How long what a client began to say may take to be whole.
const WHOLE: Duration = Duration::from_secs(30);
/// How long a server has to take what a client sent that broke the connection off.
const LAST: Duration = Duration::from_secs(10);

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

/// What holds for a connection while it lasts.
pub(crate) trait Terms {
    /// How many bytes may still be sent, now: none, if no more may be at all. It waits until it is known that they are sent.
    async fn left(&self) -> usize;
    /// So many are: before anything is waited for.
    fn spend(&self, bytes: usize);
    /// Why no more may be.
    fn refusal(&self) -> Refusal;
    /// Audit mode: what is refused goes on, and is kept. The first counts.
    ///
    /// # Errors
    /// The refusal, in force.
    fn unless_audit(&self, refusal: Refusal) -> Result<(), Refusal>;
}

/// A connection and its server.
pub(crate) struct Pass<'a, T> {
    pub(crate) mover: &'a Mover,
    pub(crate) client: &'a TcpStream,
    pub(crate) server: &'a TcpStream,
    /// The memory that it takes, and what of that is a part of an answer which the check has.
    pub(crate) share: &'a Share<'a>,
    pub(crate) answer: Portion<'a>,
    pub(crate) terms: T,
    pub(crate) check: RefCell<Check>,
    /// What the check found and is to be done once what it approved is sent.
    pub(crate) found: Cell<Option<Refusal>>,
    pub(crate) sent: &'a Cell<u64>,
    pub(crate) received: &'a Cell<u64>,
    /// The server said something that the client's bytes wait for, or nothing more.
    pub(crate) answered: Notify,
    pub(crate) server_ended: Cell<bool>,
}

impl<T: Terms> Pass<'_, T> {
    /// Until both sides have ended, or one breaks, or something is refused. `held` was taken of the client before there was a
    /// server, and judged; so many bytes of it may go on.
    ///
    /// # Errors
    /// [`Cut`].
    pub(crate) async fn run(&self, held: Held<'_>, approved: usize) -> Result<(), Cut> {
        let both = async { tokio::try_join!(self.up(held, approved), self.down()).map(drop) };
        tokio::select! {
            biased;
            ended = both => ended,
            refusal = self.share.overdue() => Err(Cut::Refused(refusal)),
            error = self.is_broken_off() => Err(Cut::Broken(error)),
        }
    }

    /// Waits until the client breaks the connection off, whatever else is waited for: nobody may be reading what it sends, or have
    /// anything to say to it.
    async fn is_broken_off(&self) -> io::Error {
        if let Err(error) = self.client.ready(Interest::ERROR).await {
            return error;
        }
        sleep(LAST).await;
        io::ErrorKind::ConnectionReset.into()
    }

    async fn up(&self, mut held: Held<'_>, mut approved: usize) -> Result<(), Cut> {
        // Of what is held, so much was judged.
        let mut judged = held.len();
        // When what the client began to say has to be whole.
        let mut whole = None;
        loop {
            consume_budget().await;
            held.settle(self.kept_with(0));
            if approved > 0 {
                let sent = self.send_held(&mut held, approved).await?;
                approved = approved.saturating_sub(sent);
                judged = judged.saturating_sub(sent);
                whole = None;
                continue;
            }
            if let Some(refusal) = self.found.take() {
                return Err(Cut::Refused(refusal));
            }
            if self.is_over() {
                if !held.is_empty() {
                    (approved, judged) = (held.len(), held.len());
                    continue;
                }
                if self.send(usize::MAX).await? == 0 {
                    break;
                }
                continue;
            }
            let waits = self.is_held();
            if waits && self.server_ended.get() {
                return Ok(());
            }
            // Bytes that wait for the server were judged before, and are again once it has spoken.
            if waits {
                let more = async {
                    match held.is_empty() {
                        true => self.hold(&mut held).await.map(Some),
                        false => std::future::pending().await,
                    }
                };
                let more = tokio::select! {
                    more = more => more?,
                    () = self.answered.notified() => None,
                };
                if more == Some(0) {
                    break;
                }
                (approved, judged) = self.judge(held.bytes(), judged);
                continue;
            }
            // What need not be looked at stays in the kernel for as long as the server does not take it.
            if held.is_empty() && self.opaque() > 0 {
                match self.send(self.opaque()).await? {
                    0 => break,
                    sent => self.passed(sent),
                }
                continue;
            }
            let holds = self.hold(&mut held);
            let is_begun = judged > 0;
            let more = match is_begun {
                true => timeout_at(*whole.get_or_insert_with(|| Instant::now() + WHOLE), holds).await,
                false => Ok(holds.await),
            };
            match more {
                Ok(Ok(0)) if is_begun => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(Ok(0)) => break,
                Ok(more) => {
                    more?;
                    (approved, judged) = self.judge(held.bytes(), judged);
                }
                Err(_) => {
                    let refusal = self.share.late("what the client says was not whole", WHOLE);
                    self.terms.unless_audit(refusal).map_err(Cut::Refused)?;
                    self.forget();
                }
            }
        }
        // No byte of the client's follows that would depend on anything.
        self.forget();
        // A server that is gone already need not be told.
        let _ = shutdown(self.server, Shutdown::Write);
        Ok(())
    }

    /// Sends some of what is held, of which so many bytes may go on.
    async fn send_held(&self, held: &mut Held<'_>, approved: usize) -> Result<usize, Cut> {
        loop {
            let left = self.terms.left().await;
            if left == 0 {
                return Err(Cut::Refused(self.terms.refusal()));
            }
            let bytes = held.bytes().get(..approved.min(left)).unwrap_or_default();
            if let Some(count) = self.mover.send(self.server, bytes)? {
                self.count(count);
                held.forward(count);
                return Ok(count);
            }
            self.server.writable().await?;
        }
    }

    /// Takes more of the client's bytes to be judged. None: its end.
    async fn hold(&self, held: &mut Held<'_>) -> io::Result<usize> {
        self.mover.hold(self.client, held, |more| self.kept_with(more)).await
    }

    /// Sends some of what is not judged, of which there are so many bytes at most. None: the client's end.
    async fn send(&self, most: usize) -> Result<usize, Cut> {
        loop {
            let left = self.terms.left().await.min(most);
            if left == 0 {
                return match self.mover.look(self.client, 0, |_| ()).await? {
                    Seen::Bytes(()) => Err(Cut::Refused(self.terms.refusal())),
                    Seen::End => Ok(0),
                };
            }
            let count = |bytes| self.count(bytes);
            match self.mover.advance(self.client, self.server, left, count).await? {
                Step::Moved(count) => return Ok(count),
                Step::End => return Ok(0),
                Step::NothingToRead => self.client.readable().await?,
                Step::NoRoomToWrite => self.server.writable().await?,
            }
        }
    }

    fn count(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
        self.terms.spend(bytes);
    }

    /// Judges what is held, of which `before` bytes were judged before: how many may go on, and how many were judged now.
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
        match refusal.map(|refusal| self.terms.unless_audit(refusal)) {
            None => (may_go, bytes.len()),
            Some(Ok(())) => {
                drop(check);
                self.forget();
                (bytes.len(), bytes.len())
            }
            Some(Err(refusal)) => {
                self.found.set(Some(refusal));
                (may_go, bytes.len())
            }
        }
    }

    /// Whether nothing is judged any more.
    fn is_over(&self) -> bool {
        matches!(*self.check.borrow(), Check::Nothing)
    }

    fn is_held(&self) -> bool {
        matches!(&*self.check.borrow(), Check::Http(requests) if requests.awaits_response())
    }

    /// Nothing is judged any more.
    fn forget(&self) {
        *self.check.borrow_mut() = Check::Nothing;
        self.answer.shrink(0);
    }

    /// The bytes of memory that the check has of what the client says, once it is fed so many more.
    fn kept_with(&self, more: usize) -> usize {
        match &*self.check.borrow() {
            Check::Tls(client) if more == 0 => client.kept(),
            Check::Tls(client) => client.kept_with(more),
            Check::Nothing | Check::Http(_) => 0,
        }
    }

    /// The same, of what the server says.
    fn answer_kept_with(&self, more: usize) -> usize {
        match &*self.check.borrow() {
            Check::Http(requests) if more == 0 => requests.kept(),
            Check::Http(requests) => requests.kept_with(more),
            Check::Nothing | Check::Tls(_) => 0,
        }
    }

    /// How many of the client's next bytes may go on whatever they are, although what follows is judged.
    fn opaque(&self) -> usize {
        match &*self.check.borrow() {
            Check::Tls(client) => client.opaque(),
            Check::Http(requests) => usize::try_from(requests.opaque()).unwrap_or(usize::MAX),
            Check::Nothing => 0,
        }
    }

    /// So many of them went on.
    fn passed(&self, count: usize) {
        let mut check = self.check.borrow_mut();
        match &mut *check {
            Check::Tls(client) => client.passed(count),
            Check::Http(requests) => {
                requests.passed(count as u64);
                if requests.is_tunnel() {
                    *check = Check::Nothing;
                }
            }
            Check::Nothing => {}
        }
    }

    async fn down(&self) -> Result<(), Cut> {
        // Of the server, and looked at: it goes on before anything else.
        let mut heard = Vec::new();
        loop {
            consume_budget().await;
            if heard.is_empty() && self.is_held() {
                let with = |more| self.answer_kept_with(more);
                heard = self.mover.hear(self.server, &self.answer, with).await?;
                if heard.is_empty() {
                    break;
                }
                self.hear(&heard).map_err(Cut::Refused)?;
                self.answer.shrink(self.answer_kept_with(0));
                self.answered.notify_one();
            }
            if !heard.is_empty() {
                match self.mover.send(self.client, &heard)? {
                    Some(count) => {
                        self.received.set(self.received.get() + count as u64);
                        heard.drain(..count.min(heard.len()));
                    }
                    None => self.client.writable().await?,
                }
                continue;
            }
            let count = |bytes| self.received.set(self.received.get() + bytes as u64);
            match self.mover.advance(self.server, self.client, usize::MAX, count).await? {
                Step::Moved(_) => {}
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
    fn hear(&self, bytes: &[u8]) -> Result<(), Refusal> {
        let mut check = self.check.borrow_mut();
        let Check::Http(requests) = &mut *check else { return Ok(()) };
        if let Err(refused) = requests.response(bytes) {
            self.terms.unless_audit(Refusal::of_http(&refused))?;
            *check = Check::Nothing;
        }
        Ok(())
    }
}
