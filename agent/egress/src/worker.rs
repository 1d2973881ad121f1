//! What all connections and questions of a worker share: the policy, the table of names, counts.

use crate::{
    addresses::{Found, MOST_ADDRESSES, Not, is_granted, may_dial},
    asks::Questions,
    confine::Limits,
    credentials::{Credentials, has},
    flow::Mover,
    link::Link,
    lookups::Lookups,
    records::Records,
    refusal::Refusal,
    search::Search,
    share,
    turns::Turns,
    uploads::Uploads,
};
use ringfence_names::block::{NoRoom, NotABlock, Table};
use ringfence_wire::egress::{
    EgressCause, EgressCounts, EgressStart, Flow, FromEgress, MOST_ASKING, NameOutcome, NameRule, Names,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::sync::{Notify, Semaphore};

/// Connections at once.
const MOST_CONNECTIONS: u64 = 16_384;
/// The same where a user may have few descriptors: one that finds none is told so.
const FEWEST_CONNECTIONS: u64 = 64;
/// Servers that are looked for at once, from the name to the connection; others wait.
const MOST_DIALS: u32 = 256;
/// Descriptors that other things need: the other addresses that a server is tried at, sockets of name servers, pipes, those that
/// the core gives, the runtime's own, connections for which there is no room and that are closed in a moment.
const OTHER_DESCRIPTORS: u64 = 512 + MOST_ASKING as u64 + MOST_DIALS as u64 * (MOST_ADDRESSES as u64 - 1);

/// See the module.
pub(crate) struct Worker {
    /// Name of the profile, for what users are told.
    pub(crate) profile: String,
    pub(crate) link: Link,
    pub(crate) records: Records,
    pub(crate) questions: Questions,
    pub(crate) mover: Mover,
    pub(crate) credentials: Credentials,
    /// Memory that connections may borrow.
    pub(crate) pool: Semaphore,
    pub(crate) dials: Semaphore,
    /// How many of them what one entry of the profile grants may have.
    pub(crate) dials_of: Turns,
    pub(crate) lookups: Lookups,
    /// Below which nobody is asked about names.
    pub(crate) search: Search,
    pub(crate) most_connections: u64,
    policy: RefCell<Rc<Policy>>,
    table: RefCell<Table>,
    /// The name that each address was last given out for, where that is on record.
    answered: RefCell<HashMap<Ipv4Addr, String>>,
    /// What was sent to what each entry of the profile grants.
    pub(crate) uploads: Uploads,
    live: RefCell<HashMap<u64, Rc<Live>>>,
    last_connection: Cell<u64>,
    counts: Cell<EgressCounts>,
    told: Cell<EgressCounts>,
}

/// What may be reached.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) names: Names,
    /// Denials are recorded, not enforced.
    pub(crate) audit: bool,
    /// The container is in this process's network namespace.
    pub(crate) host_network: bool,
}

/// What a connection was let through as.
pub(crate) struct Passing {
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Its server's address, which is this host's own or not.
    pub(crate) address: SocketAddr,
    pub(crate) is_own: bool,
    /// It was not looked at, for its rule is a `tcp:` one.
    pub(crate) tcp: bool,
    /// Its ClientHello has an encrypted one in it.
    pub(crate) ech: bool,
    /// A person was asked about it, and let it pass.
    pub(crate) asked: bool,
    /// Its client asked a proxy for the address: no name led there.
    pub(crate) by_address: bool,
    /// It ends where the host's credential is.
    pub(crate) is_for_credential: bool,
    /// Of audit mode: why it would have been refused.
    pub(crate) would_deny: Rc<RefCell<Option<Refusal>>>,
}

/// A connection that is let through.
pub(crate) struct Live {
    passing: Passing,
    /// Wakes it to end, with what is here.
    pub(crate) cut: Notify,
    pub(crate) why: Cell<Option<Refusal>>,
}

/// A connection that is counted.
pub(crate) struct Open(Rc<Worker>);

/// Keeps a connection known for as long as it lives.
pub(crate) struct Known<'a> {
    worker: &'a Worker,
    id: u64,
    pub(crate) live: Rc<Live>,
}

/// An address is in use.
pub(crate) struct InUse<'a> {
    worker: &'a Worker,
    address: Ipv4Addr,
}

impl Policy {
    /// The rule that grants a name at a port.
    ///
    /// # Errors
    /// Why none does.
    pub(crate) fn judge(&self, name: &str, port: u16) -> Result<&NameRule, Refusal> {
        if let Some(deny) = self.names.denied(name, port) {
            let refusal = Refusal::new(EgressCause::Denied, &format!("the profile denies {}", deny.host));
            return Err(Refusal { rule: Some(deny.rule), ..refusal });
        }
        self.names.granted(name, port).ok_or_else(|| {
            Refusal::new(
                EgressCause::NotGranted,
                &format!("no rule of the profile grants {name} at port {port}"),
            )
        })
    }

    /// How long a person is asked about a name at a port; `None`: it is granted or denied, or nobody is asked.
    pub(crate) fn asks(&self, name: &str, port: u16) -> Option<Duration> {
        let is_open = !self.audit && self.names.asks(name);
        let is_decided =
            || self.names.denied(name, port).is_some() || self.names.granted(name, port).is_some();
        let seconds = self.names.options.ask.filter(|_| is_open && !is_decided())?;
        Some(Duration::from_secs(seconds.into()))
    }

    /// Whether a name may lead there: the address to dial.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn judge_address(&self, found: Found, port: u16) -> Result<IpAddr, Not> {
        may_dial(&self.names, self.host_network, found, port)
    }

    /// Whether a connection that was let through before would be now.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn judge_passing(&self, passing: &Passing) -> Result<(), Refusal> {
        let Passing { name, port, address, is_own, tcp, ech, asked, .. } = passing;
        let Passing { by_address, is_for_credential, would_deny, .. } = passing;
        if *by_address {
            return is_granted(&self.names, address.ip(), *port).map(drop);
        }
        let rule = match self.judge(name, *port) {
            Ok(rule) => Some(rule),
            // That stands as long as others would be asked about.
            Err(_) if *asked && self.asks(name, *port).is_some() => None,
            Err(refusal) => return Err(refusal),
        };
        self.judge_address(Found { addr: address.ip(), is_own: *is_own }, *port)
            .map_err(|not| not.refusal)?;
        if *tcp && rule.is_none_or(|rule| !rule.tcp) {
            return Err(Refusal::new(EgressCause::NotTls, "what it says was not looked at"));
        }
        if *ech && !self.names.options.ech {
            return Err(Refusal::new(EgressCause::Ech, "its ClientHello has an encrypted one in it"));
        }
        // Requests that go by rules and those that go by none do not change places in the middle of a connection.
        if *is_for_credential != has(&self.names, name, *port) {
            let reason = "the profile has a credential for it only since, or has none any more";
            return Err(Refusal::new(EgressCause::NoCredential, reason));
        }
        would_deny.borrow().clone().map_or(Ok(()), Err)
    }
}

impl Worker {
    /// A worker that may have so much.
    ///
    /// # Errors
    /// The block is none.
    pub(crate) fn new(start: EgressStart, link: Link, limits: Limits) -> Result<Self, NotABlock> {
        let EgressStart { profile, block, names, audit, host_network, uploads, .. } = start;
        let table = Table::new(block, names.exact().into_iter().map(str::to_owned))?;
        Ok(Self {
            profile,
            link,
            records: Records::new(Instant::now()),
            questions: Questions::new(Instant::now()),
            mover: Mover::default(),
            credentials: Credentials::default(),
            pool: share::pool(limits.memory),
            dials: Semaphore::new(MOST_DIALS as usize),
            dials_of: Turns::new(MOST_DIALS as usize / 4),
            lookups: Lookups::default(),
            search: Search::default(),
            // Each has a client and a server.
            most_connections: (limits.descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2)
                .clamp(FEWEST_CONNECTIONS, MOST_CONNECTIONS)
                .min(share::most_connections(limits.memory)),
            uploads: Uploads::new(uploads, &names),
            policy: RefCell::new(Rc::new(Policy { names, audit, host_network })),
            table: RefCell::new(table),
            answered: RefCell::default(),
            live: RefCell::default(),
            last_connection: Cell::new(0),
            counts: Cell::default(),
            told: Cell::default(),
        })
    }

    /// What is in force.
    pub(crate) fn policy(&self) -> Rc<Policy> {
        Rc::clone(&self.policy.borrow())
    }

    /// Puts another policy in force: connections to what it does not grant end.
    pub(crate) fn replace(&self, names: Names, audit: bool) {
        self.table.borrow_mut().reload(names.exact().into_iter().map(str::to_owned));
        self.uploads.adopt(&names);
        let policy = Policy { names, audit, host_network: self.policy.borrow().host_network };
        if !audit {
            for live in self.live.borrow().values() {
                if let Err(refusal) = policy.judge_passing(&live.passing) {
                    let reason = "the profile was changed, and does not grant it any more";
                    live.end(Refusal { rule: refusal.rule, ..Refusal::new(EgressCause::Revoked, reason) });
                }
            }
        }
        let policy = Rc::new(policy);
        *self.policy.borrow_mut() = Rc::clone(&policy);
        self.questions.reconsider(&policy);
    }

    /// Ends all connections.
    pub(crate) fn end_all(&self, reason: &str) {
        self.questions.end_all(reason);
        for live in self.live.borrow().values() {
            live.end(Refusal::new(EgressCause::Revoked, reason));
        }
    }

    /// The address of a name, which is granted or would be refused.
    ///
    /// # Errors
    /// There is none left.
    pub(crate) fn address_of(
        &self,
        name: &str,
        kind: &str,
        outcome: NameOutcome,
    ) -> Result<Ipv4Addr, NoRoom> {
        let (mut table, now) = (self.table.borrow_mut(), Instant::now());
        let address = match outcome {
            NameOutcome::Asked => table.for_asked(name, now)?,
            _ => table.for_name(name, now)?,
        };
        drop(table);
        let mut answered = self.answered.borrow_mut();
        // What found no room is tried again with the next question.
        if answered.get(&address).is_none_or(|before| before != name)
            && self.records.answered(name, kind, outcome, address)
        {
            answered.insert(address, name.to_owned());
        }
        Ok(address)
    }

    /// The name that an address stands for.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<String> {
        self.table.borrow().name_of(address).map(str::to_owned)
    }

    /// Keeps an address from being given to another name.
    pub(crate) fn in_use(&self, address: Ipv4Addr) -> InUse<'_> {
        self.table.borrow_mut().opened(address, Instant::now());
        InUse { worker: self, address }
    }

    /// Keeps the address of a name for as long as one that is granted, as somebody let this connection go there.
    pub(crate) fn keep(&self, flow: Option<Flow>) {
        if let Some(Flow { address, .. }) = flow {
            self.table.borrow_mut().keep(address);
        }
    }

    /// Registers a connection that is let through, so that another policy can end it.
    pub(crate) fn know(&self, passing: Passing) -> Known<'_> {
        let id = self.last_connection.get() + 1;
        self.last_connection.set(id);
        let live = Rc::new(Live { passing, cut: Notify::new(), why: Cell::new(None) });
        self.live.borrow_mut().insert(id, Rc::clone(&live));
        Known { worker: self, id, live }
    }

    /// Tells the operator, now and then: `last` is when.
    pub(crate) fn complain(&self, last: &Cell<Option<Instant>>, what: &str) {
        const OFTEN: Duration = Duration::from_secs(60);
        if last.get().is_none_or(|last| last.elapsed() >= OFTEN) {
            last.set(Some(Instant::now()));
            tracing::warn!("{what}");
            self.link.say(FromEgress::Complaint(what.to_owned()));
        }
    }

    /// The same of connections for which there is no room.
    pub(crate) fn is_full(&self, last: &Cell<Option<Instant>>) {
        self.complain(last, "the container has as many connections as it may, and more are refused");
    }

    /// Counts something.
    pub(crate) fn count(&self, change: impl FnOnce(&mut EgressCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> EgressCounts {
        EgressCounts { lost_records: self.records.lost(), ..self.counts.get() }
    }

    /// Tells the core, if anything changed.
    pub(crate) fn tell_counts(&self) {
        self.uploads.tell(&self.link.uploads);
        let counts = self.counts();
        if self.told.replace(counts) != counts {
            self.link.say(FromEgress::Counts(counts));
        }
    }
}

impl Live {
    fn end(&self, why: Refusal) {
        self.why.set(Some(why));
        self.cut.notify_one();
    }
}

impl Open {
    /// One more, if there is room.
    pub(crate) fn new(worker: &Rc<Worker>) -> Option<Self> {
        let has_room = worker.counts().open < worker.most_connections;
        has_room.then(|| {
            worker.count(|counts| counts.open += 1);
            Self(Rc::clone(worker))
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.count(|counts| counts.open = counts.open.saturating_sub(1));
    }
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.worker.live.borrow_mut().remove(&self.id);
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.worker.table.borrow_mut().closed(self.address, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::{
        credentials::{CredentialPlace, HostCredential, Otherwise},
        egress::AddressRule,
    };

    fn worker(granted: &[&str], descriptors: u64) -> Worker {
        let rule = |host: &&str| NameRule { host: (*host).to_owned(), port: None, tcp: false, rule: 0 };
        let start = EgressStart {
            container: "0123456789ab".into(),
            profile: "tested".into(),
            block: "198.18.7.0/24".parse().unwrap(),
            names: Names { rules: granted.iter().map(rule).collect(), ..Names::default() },
            audit: false,
            v6: false,
            host_network: true,
            uploads: Vec::new(),
        };
        Worker::new(start, Link::new().0, Limits { memory: 512 << 20, descriptors }).unwrap()
    }

    #[test]
    fn a_connection_ends_when_its_host_gets_a_credential_or_loses_it() {
        let worker = worker(&["a.org"], 4096);
        let passing = |is_for_credential| Passing {
            name: "a.org".into(),
            port: 443,
            address: "192.0.2.1:443".parse().unwrap(),
            is_own: false,
            by_address: false,
            tcp: false,
            ech: false,
            asked: false,
            is_for_credential,
            would_deny: Rc::default(),
        };
        let credential = |port| HostCredential {
            host: "a.org".into(),
            port,
            place: CredentialPlace::Bearer,
            allow: Vec::new(),
            otherwise: Otherwise::Refuse,
            cookies: false,
        };
        let address = AddressRule { net: "192.0.2.0/24".parse().unwrap(), port: None, allow: true };
        let names =
            |credentials| Names { addresses: vec![address], credentials, ..worker.policy().names.clone() };
        let judged = |names, is_for_credential| {
            let policy = Policy { names, audit: false, host_network: true };
            policy.judge_passing(&passing(is_for_credential)).map_err(|refusal| refusal.cause)
        };
        assert_eq!(judged(names(vec![]), false), Ok(()));
        assert_eq!(judged(names(vec![credential(8443)]), false), Ok(()), "at another port");
        assert_eq!(judged(names(vec![credential(443)]), true), Ok(()));
        assert_eq!(judged(names(vec![credential(443)]), false), Err(EgressCause::NoCredential));
        assert_eq!(judged(names(vec![]), true), Err(EgressCause::NoCredential));
    }

    #[test]
    fn there_are_descriptors_for_all_that_may_happen_at_once() {
        for limit in [4096, 65_536] {
            let worker = worker(&["a.org"], limit);
            let dials = worker.dials.available_permits() as u64 * (MOST_ADDRESSES as u64 - 1);
            let rest = limit - worker.most_connections * 2 - dials;
            assert!(worker.most_connections > 500 && rest >= 500, "{limit}: {rest}");
        }
        let most = worker(&["a.org"], 1 << 20).most_connections;
        assert_eq!(most, MOST_CONNECTIONS, "there is memory for all of them");
    }
}
