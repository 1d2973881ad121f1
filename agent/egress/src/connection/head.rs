//! What a client says before there is a server: a ClientHello or a request for the very name that its address stands for.

use super::Connection;
use crate::{held::Held, pass::Check, records::sentence, refusal::Refusal, worker::Policy};
use ringfence_names::{
    Opening,
    http::{self, Requests},
    opening,
    tls::{Client, Hello, State},
};
use ringfence_wire::egress::EgressCause;
use std::time::Duration;
use tokio::{net::TcpStream, time::timeout};

/// How long a client may take to say anything.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// The same in audit mode, where a client that waits for its server is let through.
const FIRST_BYTE_OF_AUDIT: Duration = Duration::from_secs(1);
/// How long its whole head may take, and in audit mode.
const HEAD: Duration = Duration::from_secs(30);
const HEAD_OF_AUDIT: Duration = Duration::from_secs(3);

/// What is known of a client before there is a server.
pub(super) struct Head<'a> {
    pub(super) check: Check,
    /// What the client said, judged.
    pub(super) held: Held<'a>,
    /// Of that, so many bytes may go on.
    pub(super) approved: usize,
    /// What came behind what may go on.
    pub(super) found: Option<Refusal>,
    /// Its ClientHello has an encrypted one in it.
    pub(super) ech: bool,
}

/// What was made of what a client says first.
struct Judged {
    check: Check,
    approved: usize,
    found: Option<Refusal>,
    ech: bool,
}

impl<'a> Head<'a> {
    /// Nothing of it is judged.
    pub(super) fn unseen(held: Held<'a>) -> Self {
        Self { check: Check::Nothing, approved: held.len(), held, found: None, ech: false }
    }
}

impl<'a> Connection<'a> {
    /// What the client says first.
    pub(super) async fn head(
        &self,
        client: &TcpStream,
        mut held: Held<'a>,
        policy: &Policy,
    ) -> Result<Head<'a>, Refusal> {
        let patience = if policy.audit { FIRST_BYTE_OF_AUDIT } else { FIRST_BYTE };
        let not_tls = |reason: &str| Refusal::new(EgressCause::NotTls, reason);
        if held.is_empty() && timeout(patience, client.readable()).await.is_err() {
            let reason = format!("the client said nothing within {} s", patience.as_secs());
            return self.unless_audit(policy, not_tls(&reason)).map(|()| Head::unseen(held));
        }
        let reading = async {
            // A proxy may have some already.
            if held.is_empty() {
                match self.worker.mover.hold(client, &mut held, |_| 0).await {
                    Ok(0) => return Err(not_tls("the client closed the connection without a word")),
                    Ok(_) => {}
                    Err(error) => return Err(not_tls(&format!("the client is gone: {error}"))),
                }
            }
            let first = held.bytes().first().map_or(Opening::Unknown, |byte| opening(*byte));
            self.opening.set(Some(first));
            match first {
                Opening::Tls => self.hello(client, &mut held, policy).await,
                Opening::Http => self.request(client, &mut held, policy).await,
                Opening::Unknown => {
                    let refusal = not_tls("the client speaks neither TLS nor HTTP/1.1");
                    self.unless_audit(policy, refusal).map(|()| None)
                }
            }
        };
        let patience = if policy.audit { HEAD_OF_AUDIT } else { HEAD };
        let judged = match timeout(patience, reading).await {
            Ok(judged) => judged?,
            Err(_) => {
                let what = "what the client says first was not whole";
                let refusal = self.share.late(what, patience);
                self.unless_audit(policy, refusal).map(|()| None)?
            }
        };
        // What it took to be judged is not needed any more.
        held.settle(match &judged {
            Some(Judged { check: Check::Tls(client), .. }) => client.kept(),
            _ => 0,
        });
        Ok(match judged {
            Some(Judged { check, approved, found, ech }) => Head { check, held, approved, found, ech },
            None => Head::unseen(held),
        })
    }

    /// Takes more of what the client says first. `beside`: as [`hold`](crate::flow::Mover::hold).
    async fn more(
        &self,
        client: &TcpStream,
        held: &mut Held<'_>,
        beside: impl Fn(usize) -> usize,
    ) -> Result<(), Refusal> {
        let reason = match self.worker.mover.hold(client, held, beside).await {
            Ok(1..) => return Ok(()),
            Ok(0) => "the client ended in the middle of what it says first".to_owned(),
            Err(error) => format!("the client is gone: {error}"),
        };
        Err(Refusal::new(EgressCause::Malformed, &reason))
    }

    /// A ClientHello; `None`: of audit mode, it is not looked at.
    async fn hello(
        &self,
        client: &TcpStream,
        held: &mut Held<'_>,
        policy: &Policy,
    ) -> Result<Option<Judged>, Refusal> {
        self.tls.set(true);
        let mut tls = Box::new(Client::new());
        let mut fed = 0;
        loop {
            let state = tls.feed(held.bytes().get(fed..).unwrap_or_default());
            fed = held.len();
            let state = match state {
                Ok(State::Reading) => {
                    self.more(client, held, |more| tls.kept_with(more)).await?;
                    continue;
                }
                Ok(state) => state,
                Err(refused) => {
                    return self.unless_audit(policy, Refusal::of_tls(&refused)).map(|()| None);
                }
            };
            if let Err(refusal) = self.judge_hello(tls.hello(), policy) {
                return self.unless_audit(policy, refusal).map(|()| None);
            }
            let ech = tls.hello().is_some_and(|hello| hello.ech);
            let check = if state == State::Done { Check::Nothing } else { Check::Tls(tls) };
            return Ok(Some(Judged { check, approved: fed, found: None, ech }));
        }
    }

    fn judge_hello(&self, hello: Option<&Hello>, policy: &Policy) -> Result<(), Refusal> {
        let other = |reason: &str| Err(Refusal::new(EgressCause::OtherName, reason));
        let Some(hello) = hello else { return other("the ClientHello is not whole") };
        match &hello.server_name {
            None => return other("the ClientHello names no server"),
            Some(name) if *name != self.name => {
                let more = self.searched(name, policy);
                return other(&format!("the ClientHello is for another server, {name}{more}"));
            }
            Some(_) => {}
        }
        if hello.ech && !policy.names.options.ech {
            let reason = "the ClientHello has an encrypted one in it, which may be for another server";
            return Err(Refusal::new(EgressCause::Ech, reason));
        }
        Ok(())
    }

    /// A client went to an address that is only asked about, for another name. What is to be said of that, where it comes of a list
    /// of domains that its resolver puts behind names: the next time it finds the name itself.
    fn searched(&self, other: &str, policy: &Policy) -> String {
        let is_granted = policy.judge(other, self.port).is_ok();
        let noticed = policy
            .asks(&self.name, self.port)
            .and_then(|_| self.worker.search.notice(&self.name, other, is_granted));
        noticed.map_or_else(String::new, |domain| {
            format!("; its resolver put {domain} behind that, and names below it are not found from now on: try again")
        })
    }

    /// A request; `None`: of audit mode, it is not looked at.
    async fn request(
        &self,
        client: &TcpStream,
        held: &mut Held<'_>,
        policy: &Policy,
    ) -> Result<Option<Judged>, Refusal> {
        let mut requests = Box::new(match self.is_forwarded() {
            true => Requests::once(&self.name, self.port),
            false => Requests::new(&self.name, self.port),
        });
        loop {
            let fed = requests.feed(held.bytes());
            let found = match fed.refused {
                // SSH, SMTP and others have lines, too. Nobody has to wait for the end of a head that they do not have.
                None if fed.forward == 0 && is_another_protocol(held.bytes()) => Some(http::Refused::NotHttp),
                refused => refused,
            };
            let refusal = |refused: http::Refused| {
                let mut refusal = Refusal::of_http(&refused);
                if let http::Refused::AnotherHost(name) = &refused {
                    refusal.reason = sentence(&(refusal.reason + &self.searched(name, policy)));
                }
                refusal
            };
            match found.map(refusal) {
                Some(refusal) if policy.audit => {
                    self.keep(refusal);
                    return Ok(None);
                }
                Some(refusal) if fed.forward == 0 => return Err(refusal),
                None if fed.forward == 0 => self.more(client, held, |_| 0).await?,
                found => {
                    let check = Check::Http(requests);
                    return Ok(Some(Judged { check, approved: fed.forward, found, ech: false }));
                }
            }
        }
    }
}

/// Whether the first line, if it is whole, is no request's.
fn is_another_protocol(bytes: &[u8]) -> bool {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().filter(|line| line.ends_with(b"\n"));
    first.is_some_and(|line| !line.windows(6).any(|part| part == b" HTTP/"))
}
