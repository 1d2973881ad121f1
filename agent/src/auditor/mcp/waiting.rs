//! Calls that wait for a person: who may decide, and that a decision counts once.

use crate::auditor::clock;
use ringfence_wire::{
    conn::Conn,
    mcp::{SessionOrder, WaitingCall},
};
use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A session's link, for writing.
pub(crate) type Link = Arc<Mutex<Conn>>;

/// One call, whose it is, and where the decision goes.
#[derive(Debug)]
struct Held {
    call: WaitingCall,
    uid: u32,
    client: i32,
    link: Link,
}

/// All calls that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    held: Mutex<HashMap<String, Held>>,
}

/// Who wants to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decider {
    /// A process, by the kernel's word: its uid and pid.
    Process {
        /// The uid.
        uid: u32,
        /// The process id.
        pid: i32,
    },
    /// Whoever holds the dashboard's token.
    Dashboard,
}

/// Why a decision does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// No such call waits: decided, cancelled or late already, or never there.
    #[error("no call {0:?} waits for approval: it was decided, cancelled or came too late already")]
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
        client: i32,
    },
    /// The interceptor did not take it.
    #[error("the interceptor of this call is gone")]
    Lost,
}

impl Waiting {
    /// A call begins to wait.
    pub(crate) fn add(&self, call: WaitingCall, uid: u32, client: i32, link: Link) {
        self.lock().insert(call.id.clone(), Held { call, uid, client, link });
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
    pub(crate) fn decide(
        &self,
        named: &str,
        approve: bool,
        who: &Decider,
        by: &str,
    ) -> Result<String, Refused> {
        let held = {
            let mut all = self.lock();
            let mut matching =
                all.keys().filter(|id| id.as_str() == named || (named.len() >= 4 && id.starts_with(named)));
            let id = matching.next().cloned().ok_or_else(|| Refused::Gone(named.to_owned()))?;
            if matching.next().is_some() {
                return Err(Refused::Unclear(named.to_owned()));
            }
            if let (Decider::Process { uid, pid }, Some(held)) = (who, all.get(&id)) {
                if *uid != 0 && *uid != held.uid {
                    return Err(Refused::NotYours { owner: held.uid });
                }
                if descends(*pid, held.client) {
                    return Err(Refused::Descendant { client: held.client });
                }
            }
            // Late: the interceptor is about to say so, or did.
            if all.get(&id).is_some_and(|held| clock::now_micros() >= held.call.until) {
                return Err(Refused::Gone(id));
            }
            all.remove(&id).ok_or_else(|| Refused::Gone(named.to_owned()))?
        };
        let order = SessionOrder::Decide { call: held.call.id.clone(), approve, by: by.to_owned() };
        let mut link = held.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.send(&order).map_err(|_| Refused::Lost)?;
        Ok(held.call.id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `pid` is `ancestor` or descends from it. A process that cannot be read counts as a descendant: it has gone,
/// or hides.
pub(super) fn descends(mut pid: i32, ancestor: i32) -> bool {
    for _ in 0..1024 {
        if pid == ancestor {
            return true;
        }
        if pid <= 1 {
            return false;
        }
        let parent = fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok());
        match parent {
            Some(parent) => pid = parent,
            None => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Decider, Link, Refused, Waiting, descends};
    use ringfence_wire::{
        conn::Conn,
        mcp::{SessionOrder, WaitingCall},
    };
    use std::{
        os::unix::net::UnixStream,
        sync::{Arc, Mutex},
        time::Duration,
    };

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
        let conn = |stream| Conn::new(stream, Duration::from_secs(1), 4096);
        (Arc::new(Mutex::new(conn(ours))), conn(theirs))
    }

    #[test]
    fn a_decision_counts_once_and_reaches_the_interceptor() {
        let (waiting, (link, mut interceptor)) = (Waiting::default(), link());
        waiting.add(call("abcdef"), 5, 1, link);
        assert_eq!(waiting.list(6).len(), 0);
        assert_eq!(waiting.list(5).len(), 1);
        let who = Decider::Dashboard;
        assert_eq!(waiting.decide("abcd", true, &who, "me"), Ok("abcdef".into()));
        assert_eq!(
            interceptor.receive::<SessionOrder>().expect("an order"),
            SessionOrder::Decide { call: "abcdef".into(), approve: true, by: "me".into() }
        );
        assert_eq!(waiting.decide("abcdef", false, &who, "me"), Err(Refused::Gone("abcdef".into())));
    }

    #[test]
    fn a_late_decision_does_not_count() {
        let waiting = Waiting::default();
        waiting.add(WaitingCall { until: 1, ..call("abcdef") }, 5, 1, link().0);
        assert_eq!(
            waiting.decide("abcdef", true, &Decider::Dashboard, "me"),
            Err(Refused::Gone("abcdef".into()))
        );
    }

    #[test]
    fn others_and_the_clients_own_processes_are_refused() {
        let waiting = Waiting::default();
        let me = i32::try_from(std::process::id()).expect("a pid");
        waiting.add(call("aaaa-1"), 5, me, link().0);
        waiting.add(call("aaaa-2"), 5, me, link().0);
        let process = |uid, pid| Decider::Process { uid, pid };
        assert_eq!(waiting.decide("aaaa", true, &process(5, 1), "x"), Err(Refused::Unclear("aaaa".into())));
        assert_eq!(waiting.decide("aaaa-1", true, &process(6, 1), "x"), Err(Refused::NotYours { owner: 5 }));
        assert_eq!(
            waiting.decide("aaaa-1", true, &process(5, me), "x"),
            Err(Refused::Descendant { client: me })
        );
        assert_eq!(
            waiting.decide("aaaa-1", true, &process(0, me), "x"),
            Err(Refused::Descendant { client: me })
        );
        assert_eq!(waiting.list(0).len(), 2, "a refusal decides nothing");
        assert!(!descends(1, me) && descends(me, me) && descends(i32::MAX, me));
    }
}
