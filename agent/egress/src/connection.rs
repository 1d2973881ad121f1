//! One connection of the container, from its first byte to its record.
//!
//! 1. whose it is and where it was to go: the core knows, from the kernel
//! 2. the name that its address stands for, and whether the policy grants that at this port
//! 3. what the client says first: a ClientHello or a request for that very name (not where the rule is a `tcp:` one); where the
//!    policy grants no such name and has a person asked, what that person says ([`crate::asks`])
//! 4. the name's server, found and dialled here
//! 5. bytes both ways ([`crate::pass`]), or, for a host with a credential, the process that has it ([`crate::credentials`])
//!
//! In audit mode nothing is refused: what would be is kept, and the connection goes on.

mod credential;
mod head;

use crate::{
    addresses::is_granted,
    dial::{self, NoServer, Server},
    held::Held,
    link::Unanswered,
    pass::{Cut, Pass, Terms},
    proxy::{self, Asked, Speaks},
    records::{Begun, sentence},
    refusal::{Refusal, reset, say_last},
    share::{Portion, Share},
    uploads::{May, Spent},
    worker::{Passing, Policy, Worker},
};
use head::Head;
use ringfence_base::clock::now_micros;
use ringfence_names::Opening;
use ringfence_wire::egress::{AddressRule, EgressCause, EgressOutcome, EgressRecord, Flow, NameRule};
use rustix::net::sockopt;
use std::{
    cell::{Cell, RefCell},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit},
};

/// How long a silent client is left alone before it is asked whether it is there, how often it is asked, and how many times.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(30), 4);

/// A connection, as far as it is known.
pub(crate) struct Connection<'a> {
    worker: &'a Worker,
    /// The memory that it takes.
    share: &'a Share<'a>,
    /// Whose it is; nothing, where the worker is a proxy.
    flow: Option<Flow>,
    /// What its address stands for; empty: nothing.
    name: String,
    port: u16,
    /// Of a proxy: what its client asked for.
    asked: Option<Asked>,
    /// It was told that there is a server.
    is_told: Cell<bool>,
    began: Instant,
    /// The same, µs since 1970.
    at: i64,
    rule: Cell<Option<u32>>,
    tls: Cell<bool>,
    /// What its first byte begins, once that was taken of the client.
    opening: Cell<Option<Opening>>,
    dialled: Cell<Option<SocketAddr>>,
    /// Who approved it, where a person was asked.
    approved: RefCell<Option<String>>,
    sent: Cell<u64>,
    received: Cell<u64>,
    /// That it begins to pass is on record.
    begun: Cell<Option<Begun>>,
    /// Of audit mode: the first reason to refuse it.
    would_deny: Rc<RefCell<Option<Refusal>>>,
}

/// A connection that may go on.
struct Opened<'a> {
    server: TcpStream,
    passing: Passing,
    head: Head<'a>,
}

/// Whose a connection is.
pub(crate) async fn whose(worker: &Worker, from: SocketAddr) -> Result<Option<Flow>, Unanswered> {
    match from.ip() {
        // Sockets that were redirected come from there, unless they were bound to another address before.
        IpAddr::V4(Ipv4Addr::LOCALHOST) => worker.link.who_is(from.port()).await,
        _ => Ok(None),
    }
}

/// Serves a connection until it is over. `asks`: its place among those of which is not known yet whose they are.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    client: TcpStream,
    from: SocketAddr,
    asks: OwnedSemaphorePermit,
) {
    let begun = (Instant::now(), now_micros());
    set_up(&client);
    let flow = whose(&worker, from).await;
    drop(asks);
    let flow = match flow {
        Ok(Some(flow)) => flow,
        // Not a governed task's, and nothing of its container's; or nobody can tell.
        Ok(None) | Err(_) => {
            worker.count(|counts| counts.refused += 1);
            return reset(client);
        }
    };
    let name = worker.name_of(flow.address);
    let is_known = name.is_some();
    let _in_use = worker.in_use(flow.address);
    let share = Share::new(&worker.pool);
    let place = (name.unwrap_or_default(), flow.port);
    let connection = Connection::new(&worker, &share, Some(flow), place, begun);
    if !is_known {
        let reason =
            format!("no name has the address {} now: the client has to resolve it again", flow.address);
        connection.record(EgressOutcome::Refused, Some(Refusal::new(EgressCause::NotGranted, &reason)));
        return reset(client);
    }
    connection.go(client, Held::new(&share)).await;
}

/// What every client's socket has. The kernel notices that a client is gone that has closed the connection, although nothing is said
/// to it: whoever has closed only one direction still answers when it is asked.
pub(crate) fn set_up(client: &TcpStream) {
    let (idle, interval, count) = KEEP_ALIVE;
    let _ = client.set_nodelay(true);
    let _ = sockopt::set_socket_oobinline(client, true);
    let _ = sockopt::set_socket_keepalive(client, true);
    let _ = sockopt::set_tcp_keepidle(client, idle);
    let _ = sockopt::set_tcp_keepintvl(client, interval);
    let _ = sockopt::set_tcp_keepcnt(client, count);
}

/// Puts a connection on record for which there is no room, and closes it. It is asked whose it is for that alone that the kernel does
/// not keep what nobody asks about, and before it is closed: another may have its port then. `from`: nothing, where the worker is a
/// proxy, and there is nobody to ask.
pub(crate) async fn full(worker: &Worker, client: TcpStream, from: Option<SocketAddr>) {
    let record = EgressRecord::Connection {
        name: String::new(),
        port: 0,
        dialled: None,
        tls: false,
        sent: 0,
        received: 0,
        duration_us: 0,
        outcome: EgressOutcome::Refused,
        cause: Some(EgressCause::Full),
        reason: Some("the container has as many connections as it may".to_owned()),
        rule: None,
    };
    worker.records.connection(now_micros(), None, record, Instant::now());
    if let Some(from) = from {
        let _ = whose(worker, from).await;
    }
    reset(client);
}

impl<'a> Connection<'a> {
    /// A connection to this name and port, which takes this memory. `begun`: when, and the same in µs since 1970.
    pub(crate) fn new(
        worker: &'a Worker,
        share: &'a Share<'a>,
        flow: Option<Flow>,
        (name, port): (String, u16),
        (began, at): (Instant, i64),
    ) -> Self {
        Self {
            worker,
            share,
            flow,
            name,
            port,
            asked: None,
            is_told: Cell::new(false),
            began,
            at,
            rule: Cell::new(None),
            tls: Cell::new(false),
            opening: Cell::new(None),
            dialled: Cell::new(None),
            approved: RefCell::default(),
            sent: Cell::new(0),
            received: Cell::new(0),
            begun: Cell::new(None),
            would_deny: Rc::default(),
        }
    }

    /// Its client asked a proxy for it.
    pub(crate) fn asked_for(self, asked: Asked) -> Self {
        Self { asked: Some(asked), ..self }
    }

    /// It is for one request of plain HTTP, which is held.
    fn is_forwarded(&self) -> bool {
        self.asked.is_some_and(|asked| asked.speaks == Speaks::Forward)
    }

    /// The address that it is for, where no name leads there.
    fn address(&self) -> Option<IpAddr> {
        self.asked.and_then(|asked| asked.address)
    }

    /// Serves it until it is over. `held`: what its client said already.
    pub(crate) async fn go(&self, client: TcpStream, held: Held<'a>) {
        // What it takes to open a connection is not kept for as long as it is open.
        let opened = Box::pin(async {
            tokio::select! {
                biased;
                opened = self.open(&client, held) => opened,
                refusal = self.share.overdue() => Err(refusal),
            }
        });
        match opened.await {
            Ok(opened) if opened.passing.is_for_credential => self.hand_over(client, opened).await,
            Ok(opened) => self.pass(client, opened).await,
            Err(refusal) => self.refuse(client, refusal).await,
        }
    }

    /// Everything until bytes may go both ways.
    ///
    /// # Errors
    /// Why they may not.
    async fn open(&self, client: &TcpStream, held: Held<'a>) -> Result<Opened<'a>, Refusal> {
        let policy = self.worker.policy();
        let patience = policy.asks(&self.name, self.port);
        let tcp = match (self.address(), patience) {
            (Some(addr), _) => is_granted(&policy.names, addr, self.port).map(|_| true)?,
            (None, Some(_)) => false,
            (None, None) => {
                let judged = self.judge(&policy).map_err(|refusal| self.or_by_address(refusal, &policy))?;
                judged.is_some_and(|rule| rule.tcp)
            }
        };
        // What follows a request that was written anew is another one, for whichever host.
        let tcp = tcp && !self.is_forwarded();
        // A client of a proxy says nothing to its server before it is told that there is one; and is told so of none that is not there.
        let first = match self.asked.and_then(|asked| asked.speaks.granted()) {
            Some(granted) => Some(self.reach_and_say(client, granted).await?),
            None => None,
        };
        let head = match tcp {
            true => Head::unseen(held),
            false => self.head(client, held, &policy).await?,
        };
        if let Some(patience) = patience {
            let place = (self.name.as_str(), self.port);
            let approval = self.worker.questions.ask(place, patience, client).await?;
            self.approved.replace(approval.by);
            self.worker.keep(self.flow);
        }
        // It may be another by now.
        let is_for_credential = self.judge_credential(&self.worker.policy())?;
        let Server { stream, address, is_own, .. } = match first {
            Some(server) => server,
            None => self.reach().await?,
        };
        let (name, port, would_deny) = (self.name.clone(), self.port, Rc::clone(&self.would_deny));
        let (asked, by_address) = (patience.is_some(), self.address().is_some());
        let ech = head.ech;
        let passing = Passing {
            name,
            port,
            address,
            is_own,
            tcp,
            ech,
            asked,
            by_address,
            is_for_credential,
            would_deny,
        };
        // Another policy may be in force by now.
        let policy = self.worker.policy();
        if !by_address && (!asked || policy.asks(&self.name, self.port).is_none()) {
            self.judge(&policy)?;
        }
        if !policy.audit {
            policy.judge_passing(&passing)?;
        }
        Ok(Opened { server: stream, passing, head })
    }

    /// A refusal, with what is left to a client of a proxy whose name leads to an address that is granted, where it does: this one
    /// resolves no name that is not.
    fn or_by_address(&self, refusal: Refusal, policy: &Policy) -> Refusal {
        let at_port = |rule: &AddressRule| rule.allow && rule.port.is_none_or(|port| port == self.port);
        let is_other = self.asked.is_none() || refusal.cause != EgressCause::NotGranted;
        if is_other || !policy.names.addresses.iter().any(at_port) {
            return refusal;
        }
        let reason = format!(
            "{}; addresses are granted at that port: if it has one of those, ask for the address, or resolve it and connect without \
             the proxy (NO_PROXY)",
            refusal.reason
        );
        Refusal { reason: sentence(&reason), ..refusal }
    }

    /// Its server, found and dialled.
    async fn reach(&self) -> Result<Server, Refusal> {
        // It may be another by now.
        let policy = self.worker.policy();
        let reached = match self.address() {
            Some(addr) => dial::reach_address(self.worker, &policy, addr, self.port).await,
            None => dial::reach(self.worker, &policy, &self.name, self.port).await,
        };
        let mut server = reached.map_err(|NoServer { refusal, address }| {
            self.dialled.set(address);
            refusal
        })?;
        self.dialled.set(Some(server.address));
        if let Some(refusal) = server.would_deny.take() {
            self.keep(refusal);
        }
        Ok(server)
    }

    /// The same, and tells the client so.
    async fn reach_and_say(&self, client: &TcpStream, granted: &[u8]) -> Result<Server, Refusal> {
        let server = self.reach().await?;
        self.is_told.set(true);
        let told = proxy::say(self.worker, client, granted).await;
        told.map_err(|error| Refusal::new(EgressCause::NotTls, &format!("the client is gone: {error}")))?;
        Ok(server)
    }

    /// The rule that grants it; of audit mode, there may be none.
    fn judge<'p>(&self, policy: &'p Policy) -> Result<Option<&'p NameRule>, Refusal> {
        match policy.judge(&self.name, self.port) {
            Ok(rule) => {
                self.rule.set(Some(rule.rule));
                Ok(Some(rule))
            }
            Err(refusal) => self.unless_audit(policy, refusal).map(|()| None),
        }
    }

    fn unless_audit(&self, policy: &Policy, refusal: Refusal) -> Result<(), Refusal> {
        if !policy.audit {
            return Err(refusal);
        }
        self.keep(refusal);
        Ok(())
    }

    fn keep(&self, refusal: Refusal) {
        self.would_deny.borrow_mut().get_or_insert(refusal);
    }

    /// Bytes both ways, until it is over.
    async fn pass(&self, client: TcpStream, opened: Opened<'a>) {
        let Opened { server, passing, head: Head { check, held, approved, found, .. }, .. } = opened;
        let known = self.worker.know(passing);
        // Whatever becomes of this process, it is known that there was one.
        let begun = self.as_record(EgressOutcome::Open, None);
        self.begun.set(self.worker.records.begun(self.at, self.flow, begun));
        let pass = Pass {
            mover: &self.worker.mover,
            client: &client,
            server: &server,
            share: self.share,
            answer: Portion::new(self.share),
            terms: self.terms(),
            check: RefCell::new(check),
            found: Cell::new(found),
            sent: &self.sent,
            received: &self.received,
            answered: Notify::new(),
            server_ended: Cell::new(false),
        };
        let ended = tokio::select! {
            ended = pass.run(held, approved) => ended,
            () = known.live.cut.notified() => known.live.why.take().map_or(Ok(()), |why| Err(Cut::Refused(why))),
        };
        drop(pass);
        match ended {
            Ok(()) => self.record(EgressOutcome::Passed, None),
            Err(Cut::Broken(error)) => {
                tracing::debug!("a connection broke: {error}");
                self.record(EgressOutcome::Passed, None);
                reset(client);
                reset(server);
            }
            Err(Cut::Refused(refusal)) => {
                self.record(EgressOutcome::Ended, Some(refusal));
                reset(client);
                reset(server);
            }
        }
    }

    fn terms(&self) -> Now<'_> {
        let policy = self.worker.policy();
        let spent = self.worker.uploads.of(&policy.names, &self.name);
        Now { connection: self, spent: RefCell::new((policy, spent)) }
    }

    /// Puts it on record, and tells the client.
    pub(crate) async fn refuse(&self, client: TcpStream, refusal: Refusal) {
        let outcome = if refusal.is_failure() { EgressOutcome::Failed } else { EgressOutcome::Refused };
        self.record(outcome, Some(refusal.clone()));
        let place = (self.worker.profile.as_str(), self.name.as_str(), self.port);
        if let Some(Asked { speaks, .. }) = self.asked.filter(|_| !self.is_told.get()) {
            return say_last(&self.worker.mover, client, &speaks.refused(&refusal, place)).await;
        }
        refusal.tell(&self.worker.mover, client, self.opening.get(), place).await;
    }

    /// Puts it on record, once: it is over.
    fn record(&self, outcome: EgressOutcome, refusal: Option<Refusal>) {
        let (sent, received) = (self.sent.get(), self.received.get());
        self.worker.count(|counts| {
            counts.sent += sent;
            counts.received += received;
            match outcome {
                EgressOutcome::Refused | EgressOutcome::Ended => counts.refused += 1,
                EgressOutcome::Failed => counts.failed += 1,
                EgressOutcome::Open | EgressOutcome::Passed | EgressOutcome::WouldDeny => {}
            }
        });
        let kept = self.would_deny.borrow_mut().take();
        match (kept, outcome) {
            (Some(kept), EgressOutcome::Passed) => self.put(EgressOutcome::WouldDeny, Some(kept)),
            _ => self.put(outcome, refusal),
        }
    }

    /// Why it came to that, and who approved it.
    fn reason(&self, refusal: Option<Refusal>) -> Option<String> {
        let approved = self.approved.borrow().as_ref().map(|by| format!("approved by {by}"));
        match (refusal.map(|refusal| refusal.reason), approved) {
            (Some(reason), Some(approved)) => Some(sentence(&format!("{approved}; {reason}"))),
            (reason, approved) => reason.or(approved),
        }
    }

    fn put(&self, outcome: EgressOutcome, refusal: Option<Refusal>) {
        let record = self.as_record(outcome, refusal);
        self.worker.records.over(self.at, self.flow, record, self.begun.take(), Instant::now());
    }

    fn as_record(&self, outcome: EgressOutcome, refusal: Option<Refusal>) -> EgressRecord {
        let rule = refusal.as_ref().and_then(|refusal| refusal.rule).or(self.rule.get());
        EgressRecord::Connection {
            name: self.name.clone(),
            port: self.port,
            dialled: self.dialled.get(),
            tls: self.tls.get(),
            sent: self.sent.get(),
            received: self.received.get(),
            duration_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            outcome,
            cause: refusal.as_ref().map(|refusal| refusal.cause),
            reason: self.reason(refusal),
            rule,
        }
    }
}

/// What holds for a connection: by the policy that is in force.
struct Now<'a> {
    connection: &'a Connection<'a>,
    /// What is sent to each entry of the profile that names its host, by the policy that said so last.
    spent: RefCell<(Rc<Policy>, Rc<Spent>)>,
}

impl Now<'_> {
    fn spent(&self, policy: &Rc<Policy>) -> Rc<Spent> {
        let mut spent = self.spent.borrow_mut();
        if !Rc::ptr_eq(&spent.0, policy) {
            let connection = self.connection;
            *spent = (Rc::clone(policy), connection.worker.uploads.of(&policy.names, &connection.name));
        }
        Rc::clone(&spent.1)
    }
}

impl Terms for Now<'_> {
    async fn left(&self) -> usize {
        let worker = self.connection.worker;
        loop {
            let policy = worker.policy();
            // What is granted as an address is bounded nowhere.
            let most = policy.names.options.max_upload.filter(|_| self.connection.address().is_none());
            let Some(most) = most else { return usize::MAX };
            match self.spent(&policy).may_send(most, &worker.link.uploads) {
                May::Send(bytes) => return bytes,
                // Another policy may be in force by then.
                May::Later => worker.link.uploads.told().await,
                May::No if policy.audit => {
                    self.connection.keep(self.refusal());
                    return usize::MAX;
                }
                May::No => return 0,
            }
        }
    }

    fn spend(&self, bytes: usize) {
        if self.connection.address().is_none() {
            self.spent(&self.connection.worker.policy()).spend(bytes as u64);
        }
    }

    fn refusal(&self) -> Refusal {
        let policy = self.connection.worker.policy();
        let most = policy.names.options.max_upload.unwrap_or_default();
        let reason = format!("the container has sent the {most} bytes to it that `max_upload` allows");
        Refusal::new(EgressCause::TooMuch, &reason)
    }

    fn unless_audit(&self, refusal: Refusal) -> Result<(), Refusal> {
        self.connection.unless_audit(&self.connection.worker.policy(), refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{confine::Limits, link::Link};
    use ringfence_wire::egress::{EgressStart, NameOptions, Names};
    use std::future::poll_fn;

    fn names(granted: &[&str]) -> Names {
        let rule = |host: &&str| NameRule { host: (*host).to_owned(), port: None, tcp: false, rule: 0 };
        let options = NameOptions { max_upload: Some(100), ..NameOptions::default() };
        Names { rules: granted.iter().map(rule).collect(), options, ..Names::default() }
    }

    #[tokio::test]
    async fn a_reload_begins_no_budget_anew_for_those_that_are_open_and_for_those_that_come() {
        let start = EgressStart {
            container: "0123456789ab".into(),
            profile: "tested".into(),
            block: "198.18.7.0/24".parse().unwrap(),
            names: names(&["*.a.org"]),
            audit: false,
            v6: false,
            host_network: true,
            uploads: Vec::new(),
        };
        let limits = Limits { memory: 512 << 20, descriptors: 4096 };
        let worker = Worker::new(start, Link::new().0, limits).unwrap();
        let share = Share::new(&worker.pool);
        let begun = (Instant::now(), 0);
        let connection = |name: &str| Connection::new(&worker, &share, None, (name.to_owned(), 443), begun);
        // Sends all that may be sent, up to `most`: how much that is. The core is told at once.
        let send = async |now: &Now<'_>, most: usize| {
            let mut sent = 0;
            while sent < most {
                let mut left = std::pin::pin!(now.left());
                let left = poll_fn(|context| {
                    let ready = left.as_mut().poll(context);
                    if ready.is_pending() {
                        assert!(worker.link.uploads.next().is_some(), "what is waited for is said");
                        worker.link.uploads.was_said();
                    }
                    ready
                });
                let count = left.await.min(most - sent);
                if count == 0 {
                    break;
                }
                now.spend(count);
                sent += count;
            }
            sent
        };
        let (one, other) = (connection("x.a.org"), connection("x.a.org"));
        let one = one.terms();
        assert_eq!(send(&one, 60).await, 60);
        worker.replace(names(&["x.a.org"]), false);
        let other = other.terms();
        assert_eq!(send(&other, 30).await, 30);
        assert_eq!(send(&one, 100).await, 10, "what is sent beside it counts");
        assert_eq!(send(&other, 100).await, 0);
        worker.replace(names(&["*.a.org", "b.org"]), false);
        assert_eq!((send(&one, 100).await, send(&other, 100).await), (0, 0));
        let third = connection("y.a.org");
        assert_eq!(send(&third.terms(), 100).await, 0);
        let third = connection("b.org");
        assert_eq!(send(&third.terms(), 200).await, 100, "the control");
    }
}
