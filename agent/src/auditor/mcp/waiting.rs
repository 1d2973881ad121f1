//! Calls that wait for a person: who may decide, and that a decision counts once.

use super::{link::Link, refusals::Refusals};
use crate::auditor::clock;
use ringfence_wire::{
    audit::PeerFacts,
    mcp::{SessionOrder, WaitingCall},
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Calls of one user that may wait at once. More are denied at once, by nobody.
const MOST_PER_UID: usize = 256;

/// Fewest bytes of an id's beginning that name it.
const LEAST_NAMED: usize = 4;

/// The first process. Everybody descends from it: as a session's client (the interceptor's parent is gone, or never was
/// another) it says of nobody that they are the client's own.
pub(super) const FIRST: u32 = 1;

/// One call, whose it is, and where the decision goes.
#[derive(Debug)]
struct Held {
    call: WaitingCall,
    uid: u32,
    client: u32,
    link: Link,
}

/// All calls that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(super) refusals: Refusals,
    held: Mutex<HashMap<String, Held>>,
}

/// Who wants to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decider {
    /// A process, by the kernel's word.
    Process {
        /// Its uid.
        uid: u32,
        /// Its ancestors, and whether it is governed.
        facts: PeerFacts,
    },
    /// Whoever holds the dashboard's token of a user.
    Dashboard {
        /// The user.
        uid: u32,
    },
}

impl Decider {
    fn uid(&self) -> u32 {
        match self {
            Self::Process { uid, .. } | Self::Dashboard { uid } => *uid,
        }
    }

    /// As the record names whoever decided a call of `owner` and `client`.
    fn name(&self, owner: u32, client: u32) -> String {
        match self {
            Self::Process { uid, .. } if client <= FIRST => format!("uid {uid}, who may be the client"),
            Self::Process { uid, .. } => format!("uid {uid}"),
            Self::Dashboard { uid } if *uid == owner => "dashboard".to_owned(),
            Self::Dashboard { uid } => format!("dashboard of uid {uid}"),
        }
    }
}

/// Why a decision does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// No such call waits: decided, cancelled or late already, or never there.
    #[error(
        "no call {0:?} waits for approval: it was decided, cancelled or came too late already; `ringfence approvals` lists those that do (give at least four characters of an id)"
    )]
    Gone(String),
    /// More than one call begins with this.
    #[error("{0:?} is the beginning of more than one call that waits; give more of it")]
    Unclear(String),
    /// Another user's call.
    #[error("the call is of uid {owner}; only that user and root decide it")]
    NotYours {
        /// Whose it is.
        owner: u32,
    },
    /// The peer was started by the very client whose call waits.
    #[error(
        "this process was started by the MCP client (pid {client}) whose call waits: an agent does not approve its own calls; use another terminal or the dashboard"
    )]
    Descendant {
        /// The client.
        client: u32,
    },
    /// The peer is in a container.
    #[error(
        "this process belongs to a container: what is governed does not approve calls; use a terminal outside, or the dashboard"
    )]
    Governed,
    /// Who the peer is cannot be told.
    #[error("cannot tell who asks, so nothing is decided: {0}")]
    Unknown(String),
    /// The interceptor did not take it.
    #[error("the interceptor of this call is gone")]
    Lost,
}

impl Waiting {
    /// A call begins to wait. `false`: too many of this user's do already.
    pub(crate) fn add(&self, call: WaitingCall, uid: u32, client: u32, link: Link) -> bool {
        let mut held = self.lock();
        let room = held.values().filter(|held| held.uid == uid).count() < MOST_PER_UID;
        if room {
            held.insert(call.id.clone(), Held { call, uid, client, link });
        }
        room
    }

    /// A call waits no longer.
    pub(crate) fn remove(&self, call: &str) -> bool {
        self.lock().remove(call).is_some()
    }

    /// The calls that `uid` may see, oldest first.
    pub(crate) fn list(&self, uid: u32) -> Vec<WaitingCall> {
        let held = self.lock();
        let mut calls: Vec<_> =
            held.values().filter(|h| uid == 0 || h.uid == uid).map(|h| h.call.clone()).collect();
        calls.sort_by_key(|call| call.since);
        calls
    }

    /// Decides a call, once. Gives its whole id.
    ///
    /// # Errors
    /// [`Refused`]; the call waits on, unless it is gone.
    pub(crate) fn decide(&self, named: &str, approve: bool, who: &Decider) -> Result<String, Refused> {
        let held = {
            let mut all = self.lock();
            let id = whole(&all, named, who.uid())?;
            let (owner, client) = all.get(&id).map_or((0, 0), |held| (held.uid, held.client));
            if who.uid() != 0 && who.uid() != owner {
                return Err(Refused::NotYours { owner });
            }
            if let Decider::Process { facts, .. } = who {
                if facts.governed {
                    return Err(Refused::Governed);
                }
                if client > FIRST && facts.lineage.contains(&client) {
                    return Err(Refused::Descendant { client });
                }
            }
            // Late: the interceptor is about to say so, or did.
            if all.get(&id).is_some_and(|held| clock::now_micros() >= held.call.until) {
                return Err(Refused::Gone(id));
            }
            all.remove(&id).ok_or_else(|| Refused::Gone(named.to_owned()))?
        };
        let by = who.name(held.uid, held.client);
        let order = SessionOrder::Decide { call: held.call.id.clone(), approve, by };
        held.link.send(&order).map_err(|_| Refused::Lost)?;
        Ok(held.call.id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The call that is named: by its whole id, or by the beginning of one that this user may decide. A beginning says nothing of
/// others' calls, neither that they wait nor whose they are, and others' calls make none unclear.
fn whole(all: &HashMap<String, Held>, named: &str, uid: u32) -> Result<String, Refused> {
    if let Some((id, _)) = all.get_key_value(named) {
        return Ok(id.clone());
    }
    let begins = |(id, held): &(&String, &Held)| (uid == 0 || held.uid == uid) && id.starts_with(named);
    let mut matching = all.iter().filter(|_| named.len() >= LEAST_NAMED).filter(begins);
    match (matching.next(), matching.next()) {
        (Some((id, _)), None) => Ok(id.clone()),
        (None, _) => Err(Refused::Gone(named.to_owned())),
        (Some(_), Some(_)) => Err(Refused::Unclear(named.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::{Decider, Link, MOST_PER_UID, Refused, Waiting};
    use crate::auditor::mcp::link::LinkWriter;
    use ringfence_wire::{
        audit::PeerFacts,
        conn::Conn,
        mcp::{SessionOrder, WaitingCall},
    };
    use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

    fn call(id: &str) -> WaitingCall {
        WaitingCall {
            id: id.into(),
            session: "s".into(),
            server: "fs".into(),
            tool: "t".into(),
            arguments: "{}".into(),
            score: 70,
            reasons: vec![],
            rules: vec![],
            since: 1,
            until: i64::MAX,
        }
    }

    fn link() -> (Link, Conn) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let link = LinkWriter::new(ours);
        link.open(&"welcome").expect("sent");
        let mut theirs = Conn::new(theirs, Duration::from_secs(1), 4096);
        assert_eq!(theirs.receive::<String>().expect("the first message"), "welcome");
        (Arc::new(link), theirs)
    }

    #[test]
    fn a_decision_counts_once_and_reaches_the_interceptor() {
        let (waiting, (link, mut interceptor)) = (Waiting::default(), link());
        assert!(waiting.add(call("abcdef"), 5, 1, link));
        assert_eq!(waiting.list(6).len(), 0);
        assert_eq!(waiting.list(5).len(), 1);
        let who = Decider::Dashboard { uid: 5 };
        assert_eq!(waiting.decide("abcd", true, &who), Ok("abcdef".into()));
        assert_eq!(
            interceptor.receive::<SessionOrder>().expect("an order"),
            SessionOrder::Decide { call: "abcdef".into(), approve: true, by: "dashboard".into() }
        );
        assert_eq!(waiting.decide("abcdef", false, &who), Err(Refused::Gone("abcdef".into())));
    }

    #[test]
    fn a_late_decision_does_not_count() {
        let waiting = Waiting::default();
        assert!(waiting.add(WaitingCall { until: 1, ..call("abcdef") }, 5, 1, link().0));
        let who = Decider::Dashboard { uid: 5 };
        assert_eq!(waiting.decide("abcdef", true, &who), Err(Refused::Gone("abcdef".into())));
    }

    #[test]
    fn others_the_governed_and_the_clients_own_processes_are_refused() {
        let waiting = Waiting::default();
        let (link, _interceptor) = link();
        for id in ["aaaa-1", "aaaa-2"] {
            assert!(waiting.add(call(id), 5, 77, link.clone()));
        }
        let process = |uid, lineage: &[u32]| Decider::Process {
            uid,
            facts: PeerFacts { lineage: lineage.to_vec(), governed: false },
        };
        let decide = |id: &str, who: &Decider| waiting.decide(id, true, who);
        let other = process(5, &[90, 1]);
        assert_eq!(decide("aaaa", &other), Err(Refused::Unclear("aaaa".into())));
        assert_eq!(decide("aaaa-1", &process(6, &[90, 1])), Err(Refused::NotYours { owner: 5 }));
        assert_eq!(decide("aaaa-1", &Decider::Dashboard { uid: 6 }), Err(Refused::NotYours { owner: 5 }));
        for uid in [5, 0] {
            assert_eq!(
                decide("aaaa-1", &process(uid, &[91, 77, 1])),
                Err(Refused::Descendant { client: 77 })
            );
        }
        let facts = PeerFacts { lineage: vec![90, 1], governed: true };
        assert_eq!(decide("aaaa-1", &Decider::Process { uid: 5, facts }), Err(Refused::Governed));
        assert_eq!(waiting.list(0).len(), 2, "a refusal decides nothing");
        assert!(decide("aaaa-1", &other).is_ok() && decide("aaaa-2", &Decider::Dashboard { uid: 0 }).is_ok());
    }

    #[test]
    fn the_beginning_of_another_user_s_call_says_nothing() {
        let waiting = Waiting::default();
        let (link, mut interceptor) = link();
        for (id, uid) in [("abcd-theirs", 6), ("abcd-mine", 5), ("efgh-theirs", 6)] {
            assert!(waiting.add(call(id), uid, 1, link.clone()));
        }
        let who = Decider::Dashboard { uid: 5 };
        assert_eq!(waiting.decide("efgh", true, &who), Err(Refused::Gone("efgh".into())), "nor whose it is");
        let gone = waiting.decide("none", true, &who);
        assert_eq!(gone, Err(Refused::Gone("none".into())), "as one that never was");
        assert_eq!(waiting.decide("efgh-theirs", true, &who), Err(Refused::NotYours { owner: 6 }));
        assert_eq!(waiting.decide("abc", true, &who), Err(Refused::Gone("abc".into())), "too short");
        let root = Decider::Dashboard { uid: 0 };
        assert_eq!(waiting.decide("abcd", true, &root), Err(Refused::Unclear("abcd".into())));
        // Whatever waits of others: one's own is not unclear.
        assert_eq!(waiting.decide("abcd", true, &who), Ok("abcd-mine".into()));
        assert!(matches!(
            interceptor.receive::<SessionOrder>().expect("an order"),
            SessionOrder::Decide { call, .. } if call == "abcd-mine"
        ));
        assert_eq!(waiting.list(0).len(), 2);
    }

    #[test]
    fn the_first_process_as_a_client_keeps_nobody_out_and_the_record_says_so() {
        let (waiting, (link, mut interceptor)) = (Waiting::default(), link());
        for client in [0, 1] {
            assert!(waiting.add(call("abcdef"), 5, client, link.clone()));
            let facts = PeerFacts { lineage: vec![90, 40, 1], governed: false };
            let who = Decider::Process { uid: 5, facts };
            assert_eq!(waiting.decide("abcdef", true, &who), Ok("abcdef".into()));
            let order = interceptor.receive::<SessionOrder>().expect("an order");
            let by = "uid 5, who may be the client".into();
            assert_eq!(order, SessionOrder::Decide { call: "abcdef".into(), approve: true, by });
        }
    }

    #[test]
    fn a_users_waiting_calls_are_bounded_and_others_have_room() {
        let waiting = Waiting::default();
        let (link, _interceptor) = link();
        let fits = |uid, n: usize| waiting.add(call(&format!("{uid}-{n}")), uid, 1, link.clone());
        assert!((0..MOST_PER_UID).all(|n| fits(5, n)));
        assert!(!fits(5, MOST_PER_UID) && fits(6, 0));
    }
}
