//! What all connections and questions of a worker share: the policy, the table of names, counts.

use crate::{addresses::may_dial, flow::Mover, link::Link, records::Records, refusal::Refusal};
use ringfence_names::block::{NoRoom, NotABlock, Table};
use ringfence_wire::egress::{
    EgressCause, EgressCounts, EgressStart, FromEgress, NameOutcome, NameRule, Names,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Instant,
};
use tokio::sync::{Notify, Semaphore};

/// Connections at once.
const MOST_CONNECTIONS: u64 = 16_384;
/// Descriptors that other things need: sockets of name servers, pipes, the runtime's own.
const OTHER_DESCRIPTORS: u64 = 512;
/// Servers that are looked for at once, from the name to the connection.
pub(crate) const MOST_DIALS: usize = 1024;
/// Look-ups at once: each has a thread.
pub(crate) const MOST_LOOKUPS: usize = 16;

/// See the module.
pub(crate) struct Worker {
    /// Name of the profile, for what users are told.
    pub(crate) profile: String,
    pub(crate) link: Link,
    pub(crate) records: Records,
    pub(crate) mover: Mover,
    pub(crate) dials: Semaphore,
    pub(crate) lookups: std::sync::Arc<Semaphore>,
    pub(crate) most_connections: u64,
    policy: RefCell<Rc<Policy>>,
    table: RefCell<Table>,
    /// The name that each address was last given out for, where that is on record.
    answered: RefCell<HashMap<Ipv4Addr, String>>,
    /// What was sent, by the entry of the profile that granted the name.
    uploads: RefCell<HashMap<String, Rc<Cell<u64>>>>,
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
}

/// A connection that is let through.
pub(crate) struct Live {
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Its server's address.
    pub(crate) address: SocketAddr,
    /// Wakes it to end, with what is here.
    pub(crate) cut: Notify,
    pub(crate) why: Cell<Option<Refusal>>,
}

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

    /// Whether a name may lead there.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn judge_address(&self, address: SocketAddr) -> Result<(), Refusal> {
        may_dial(&self.names, address.ip(), address.port()).map(drop)
    }
}

impl Worker {
    /// A worker that may have so many descriptors open.
    ///
    /// # Errors
    /// The block is none.
    pub(crate) fn new(start: EgressStart, link: Link, descriptors: u64) -> Result<Self, NotABlock> {
        let EgressStart { profile, block, names, audit, .. } = start;
        let table = Table::new(block, names.exact().into_iter().map(str::to_owned))?;
        Ok(Self {
            profile,
            link,
            records: Records::new(Instant::now()),
            mover: Mover::default(),
            dials: Semaphore::new(MOST_DIALS),
            lookups: std::sync::Arc::new(Semaphore::new(MOST_LOOKUPS)),
            // Each has a client and a server.
            most_connections: MOST_CONNECTIONS.min(descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2),
            policy: RefCell::new(Rc::new(Policy { names, audit })),
            table: RefCell::new(table),
            answered: RefCell::default(),
            uploads: RefCell::default(),
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
        let policy = Policy { names, audit };
        if !audit {
            for live in self.live.borrow().values() {
                let judged = policy.judge(&live.name, live.port).map(drop);
                if let Err(refusal) = judged.and_then(|()| policy.judge_address(live.address)) {
                    let reason = "the profile was changed, and does not grant it any more";
                    live.end(Refusal { rule: refusal.rule, ..Refusal::new(EgressCause::Revoked, reason) });
                }
            }
        }
        *self.policy.borrow_mut() = Rc::new(policy);
    }

    /// Ends all connections.
    pub(crate) fn end_all(&self, reason: &str) {
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
        let address = self.table.borrow_mut().for_name(name, Instant::now())?;
        let mut answered = self.answered.borrow_mut();
        if answered.get(&address).is_none_or(|before| before != name) {
            answered.insert(address, name.to_owned());
            self.records.answered(name, kind, outcome, address);
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

    /// Registers a connection that is let through, so that another policy can end it.
    pub(crate) fn know(&self, name: String, port: u16, address: SocketAddr) -> Known<'_> {
        let id = self.last_connection.get() + 1;
        self.last_connection.set(id);
        let live = Rc::new(Live { name, port, address, cut: Notify::new(), why: Cell::new(None) });
        self.live.borrow_mut().insert(id, Rc::clone(&live));
        Known { worker: self, id, live }
    }

    /// How much was sent to what an entry of the profile grants.
    pub(crate) fn upload(&self, host: &str) -> Rc<Cell<u64>> {
        Rc::clone(self.uploads.borrow_mut().entry(host.to_owned()).or_default())
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
