//! One connection of the container, from its first byte to its record.
//!
//! 1. whose it is and where it was to go: the core knows, from the kernel
//! 2. the name that its address stands for, and whether the policy grants that at this port
//! 3. what the client says first: a ClientHello or a request for that very name (not where the rule is a `tcp:` one)
//! 4. the name's server, found and dialled here
//! 5. bytes both ways ([`crate::pass`])
//!
//! In audit mode nothing is refused: what would be is kept, and the connection goes on.

use crate::{
    dial::{self, NoServer, Server},
    flow::Seen,
    pass::{Allowance, Check, Cut, Pass},
    refusal::{Refusal, reset},
    worker::{Policy, Worker},
};
use ringfence_base::clock::now_micros;
use ringfence_names::{
    Opening,
    http::{self, Requests},
    opening,
    tls::{Client, Hello, State},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, EgressRecord, Flow, NameRule};
use rustix::net::sockopt;
use std::{
    cell::{Cell, RefCell},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, sync::Notify, time::timeout};

/// How long a client may take to say anything.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// The same in audit mode, where a client that waits for its server is let through.
const FIRST_BYTE_OF_AUDIT: Duration = Duration::from_secs(1);
/// How long its whole head may take, and in audit mode.
const HEAD: Duration = Duration::from_secs(30);
const HEAD_OF_AUDIT: Duration = Duration::from_secs(3);

/// A connection, as far as it is known.
struct Connection<'a> {
    worker: &'a Worker,
    flow: Flow,
    /// What its address stands for; empty: nothing.
    name: String,
    began: Instant,
    /// The same, µs since 1970.
    at: i64,
    rule: Cell<Option<u32>>,
    tls: Cell<bool>,
    dialled: Cell<Option<SocketAddr>>,
    sent: Cell<u64>,
    received: Cell<u64>,
    /// Of audit mode: the first reason to refuse it.
    would_deny: RefCell<Option<Refusal>>,
}

/// What is known of a client before there is a server.
struct Head {
    check: Check,
    /// Of what waits at the client, so many bytes may go on, and so many were looked at.
    approved: usize,
    looked: usize,
    /// What came behind what may go on.
    found: Option<Refusal>,
}

/// A connection that may go on.
struct Opened {
    server: TcpStream,
    address: SocketAddr,
    head: Head,
    /// The entry of the profile that granted it.
    host: String,
}

/// Serves a connection until it is over.
pub(crate) async fn serve(worker: Rc<Worker>, client: TcpStream, from: SocketAddr) {
    let (began, at) = (Instant::now(), now_micros());
    let _ = client.set_nodelay(true);
    let _ = sockopt::set_socket_oobinline(&client, true);
    let flow = match from.ip() {
        // Sockets that were redirected come from there, unless they were bound to another address before.
        IpAddr::V4(Ipv4Addr::LOCALHOST) => worker.link.who_is(from.port()).await,
        _ => Ok(None),
    };
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
    let connection = Connection {
        worker: &worker,
        flow,
        name: name.unwrap_or_default(),
        began,
        at,
        rule: Cell::new(None),
        tls: Cell::new(false),
        dialled: Cell::new(None),
        sent: Cell::new(0),
        received: Cell::new(0),
        would_deny: RefCell::new(None),
    };
    if !is_known {
        let reason =
            format!("no name has the address {} now: the client has to resolve it again", flow.address);
        connection.record(EgressOutcome::Refused, Some(Refusal::new(EgressCause::NotGranted, &reason)));
        return reset(client);
    }
    // What it takes to open a connection is not kept for as long as it is open.
    match Box::pin(connection.open(&client)).await {
        Ok(opened) => connection.pass(client, opened).await,
        Err(refusal) => connection.refuse(client, refusal).await,
    }
}

/// Puts a connection on record for which there is no room: nobody asks whose it is.
pub(crate) fn full(worker: &Worker) {
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
    worker.records.push(now_micros(), None, record);
}

impl Connection<'_> {
    /// Everything until bytes may go both ways.
    ///
    /// # Errors
    /// Why they may not.
    async fn open(&self, client: &TcpStream) -> Result<Opened, Refusal> {
        let policy = self.worker.policy();
        let judged = self.judge(&policy)?;
        let head = match judged {
            Some(rule) if rule.tcp => Head::unseen(),
            _ => self.head(client, &policy).await?,
        };
        let host = judged.map_or_else(|| self.name.clone(), |rule| rule.host.clone());
        let reached = dial::reach(self.worker, &policy, &self.name, self.flow.port).await;
        let Server { stream, address, would_deny } = reached.map_err(|NoServer { refusal, address }| {
            self.dialled.set(address);
            refusal
        })?;
        self.dialled.set(Some(address));
        if let Some(refusal) = would_deny {
            self.keep(refusal);
        }
        // Another policy may be in force by now.
        let policy = self.worker.policy();
        self.judge(&policy)?;
        if !policy.audit {
            policy.judge_address(address)?;
        }
        Ok(Opened { server: stream, address, head, host })
    }

    /// The rule that grants it; of audit mode, there may be none.
    fn judge<'p>(&self, policy: &'p Policy) -> Result<Option<&'p NameRule>, Refusal> {
        match policy.judge(&self.name, self.flow.port) {
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

    /// What the client says first.
    async fn head(&self, client: &TcpStream, policy: &Policy) -> Result<Head, Refusal> {
        let patience = if policy.audit { FIRST_BYTE_OF_AUDIT } else { FIRST_BYTE };
        let mover = &self.worker.mover;
        let first = timeout(patience, mover.look(client, 0, |bytes| bytes.first().copied())).await;
        let not_tls = |reason: &str| Refusal::new(EgressCause::NotTls, reason);
        let first = match first {
            Ok(Ok(Seen::Bytes(Some(byte)))) => opening(byte),
            Ok(Ok(_)) => return Err(not_tls("the client closed the connection without a word")),
            Ok(Err(error)) => return Err(not_tls(&format!("the client is gone: {error}"))),
            Err(_) => {
                let reason = format!("the client said nothing within {} s", patience.as_secs());
                return self.unless_audit(policy, not_tls(&reason)).map(|()| Head::unseen());
            }
        };
        let reading = async {
            match first {
                Opening::Tls => self.hello(client, policy).await,
                Opening::Http => self.request(client, policy).await,
                Opening::Unknown => {
                    let refusal = not_tls("the client speaks neither TLS nor HTTP/1.1");
                    self.unless_audit(policy, refusal).map(|()| Head::unseen())
                }
            }
        };
        let patience = if policy.audit { HEAD_OF_AUDIT } else { HEAD };
        match timeout(patience, reading).await {
            Ok(head) => head,
            Err(_) => {
                let reason =
                    format!("what the client says first was not whole within {} s", patience.as_secs());
                let refusal = Refusal::new(EgressCause::Malformed, &reason);
                self.unless_audit(policy, refusal).map(|()| Head::unseen())
            }
        }
    }

    async fn hello(&self, client: &TcpStream, policy: &Policy) -> Result<Head, Refusal> {
        self.tls.set(true);
        let mut tls = Box::new(Client::new());
        let mut looked = 0;
        loop {
            let fed = self.worker.mover.look(client, looked, |bytes| {
                let more = bytes.get(looked..).unwrap_or_default();
                (tls.feed(more), bytes.len())
            });
            let (fed, count) = seen(fed.await)?;
            looked = count;
            let state = match fed {
                Ok(State::Reading) => continue,
                Ok(state) => state,
                Err(refused) => {
                    self.unless_audit(policy, Refusal::of_tls(&refused))?;
                    return Ok(Head::unseen());
                }
            };
            if let Err(refusal) = self.judge_hello(tls.hello(), policy) {
                self.unless_audit(policy, refusal)?;
                return Ok(Head::unseen());
            }
            let check = if state == State::Done { Check::Nothing } else { Check::Tls(tls) };
            return Ok(Head { check, approved: count, looked: count, found: None });
        }
    }

    fn judge_hello(&self, hello: Option<&Hello>, policy: &Policy) -> Result<(), Refusal> {
        let other = |reason: &str| Err(Refusal::new(EgressCause::OtherName, reason));
        let Some(hello) = hello else { return other("the ClientHello is not whole") };
        match &hello.server_name {
            None => return other("the ClientHello names no server"),
            Some(name) if *name != self.name => {
                return other(&format!("the ClientHello is for another server, {name}"));
            }
            Some(_) => {}
        }
        if hello.ech && !policy.names.options.ech {
            let reason = "the ClientHello has an encrypted one in it, which may be for another server";
            return Err(Refusal::new(EgressCause::Ech, reason));
        }
        Ok(())
    }

    async fn request(&self, client: &TcpStream, policy: &Policy) -> Result<Head, Refusal> {
        let mut requests = Box::new(Requests::new(&self.name, self.flow.port));
        let mut looked = 0;
        loop {
            let fed = self.worker.mover.look(client, looked, |bytes| {
                (requests.feed(bytes), is_another_protocol(bytes), bytes.len())
            });
            let (fed, is_another, count) = seen(fed.await)?;
            looked = count;
            let found = match fed.refused {
                // SSH, SMTP and others have lines, too. Nobody has to wait for the end of a head that they do not have.
                None if fed.forward == 0 && is_another => Some(http::Refused::NotHttp),
                refused => refused,
            };
            let found = found.map(|refused| Refusal::of_http(&refused));
            match found {
                Some(refusal) if policy.audit => {
                    self.keep(refusal);
                    return Ok(Head::unseen());
                }
                Some(refusal) if fed.forward == 0 => return Err(refusal),
                None if fed.forward == 0 => {}
                found => {
                    let check = Check::Http(requests);
                    return Ok(Head { check, approved: fed.forward, looked, found });
                }
            }
        }
    }

    /// Bytes both ways, until it is over.
    async fn pass(&self, client: TcpStream, opened: Opened) {
        let Opened { server, address, head: Head { check, approved, looked, found }, host } = opened;
        let known = self.worker.know(self.name.clone(), self.flow.port, address);
        let is_audit = self.worker.policy().audit;
        let pass = Pass {
            mover: &self.worker.mover,
            client: &client,
            server: &server,
            allowance: Upload { connection: self, spent: self.worker.upload(&host) },
            approved,
            looked,
            check: RefCell::new(check),
            found: Cell::new(found),
            would_deny: is_audit.then_some(&self.would_deny),
            sent: &self.sent,
            received: &self.received,
            answered: Notify::new(),
            server_ended: Cell::new(false),
        };
        let ended = tokio::select! {
            ended = pass.run() => ended,
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

    async fn refuse(&self, client: TcpStream, refusal: Refusal) {
        let outcome = if refusal.is_failure() { EgressOutcome::Failed } else { EgressOutcome::Refused };
        self.record(outcome, Some(refusal.clone()));
        let place = (self.worker.profile.as_str(), self.name.as_str(), self.flow.port);
        refusal.tell(&self.worker.mover, client, place).await;
    }

    /// Puts it on record, once.
    fn record(&self, outcome: EgressOutcome, refusal: Option<Refusal>) {
        let (sent, received) = (self.sent.get(), self.received.get());
        self.worker.count(|counts| {
            counts.sent += sent;
            counts.received += received;
            match outcome {
                EgressOutcome::Refused | EgressOutcome::Ended => counts.refused += 1,
                EgressOutcome::Failed => counts.failed += 1,
                EgressOutcome::Passed | EgressOutcome::WouldDeny => {}
            }
        });
        let kept = self.would_deny.borrow_mut().take();
        let (outcome, refusal) = match (kept, outcome) {
            (Some(kept), EgressOutcome::Passed) => (EgressOutcome::WouldDeny, Some(kept)),
            _ => (outcome, refusal),
        };
        let rule = refusal.as_ref().and_then(|refusal| refusal.rule).or(self.rule.get());
        let record = EgressRecord::Connection {
            name: self.name.clone(),
            port: self.flow.port,
            dialled: self.dialled.get(),
            tls: self.tls.get(),
            sent,
            received,
            duration_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            outcome,
            cause: refusal.as_ref().map(|refusal| refusal.cause),
            reason: refusal.map(|refusal| refusal.reason),
            rule,
        };
        self.worker.records.push(self.at, Some(self.flow), record);
    }
}

impl Head {
    /// Nothing of it is looked at.
    fn unseen() -> Self {
        Self { check: Check::Nothing, approved: 0, looked: 0, found: None }
    }
}

/// Whether the first line, if it is whole, is no request's.
fn is_another_protocol(bytes: &[u8]) -> bool {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().filter(|line| line.ends_with(b"\n"));
    first.is_some_and(|line| !line.windows(6).any(|part| part == b" HTTP/"))
}

fn seen<T>(seen: io::Result<Seen<T>>) -> Result<T, Refusal> {
    let reason = match seen {
        Ok(Seen::Bytes(seen)) => return Ok(seen),
        Ok(Seen::End) => "the client ended in the middle of what it says first".to_owned(),
        Err(error) => format!("the client is gone: {error}"),
    };
    Err(Refusal::new(EgressCause::Malformed, &reason))
}

/// What the container may still send to what an entry of the profile grants.
struct Upload<'a> {
    connection: &'a Connection<'a>,
    spent: Rc<Cell<u64>>,
}

impl Allowance for Upload<'_> {
    fn left(&self) -> usize {
        let policy = self.connection.worker.policy();
        let Some(most) = policy.names.options.max_upload else { return usize::MAX };
        let left = most.saturating_sub(self.spent.get());
        if left == 0 && policy.audit {
            self.connection.keep(self.refusal());
            return usize::MAX;
        }
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    fn spend(&self, bytes: usize) {
        self.spent.set(self.spent.get().saturating_add(bytes as u64));
    }

    fn refusal(&self) -> Refusal {
        let policy = self.connection.worker.policy();
        let most = policy.names.options.max_upload.unwrap_or_default();
        let reason = format!("the container has sent the {most} bytes to it that `max_upload` allows");
        Refusal::new(EgressCause::TooMuch, &reason)
    }
}
