//! Calls that wait for a person: who may decide, and that a decision counts once.

use super::link::Link;
use ringfence_base::{
    clock,
    quota::{Owners, Refusals},
};
use ringfence_wire::{
    audit::PeerFacts,
    mcp::{SessionOrder, WaitingCall},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Calls of one user, subordinate ids included, that may wait at once. More are denied at once, by nobody.
const MOST_PER_USER: usize = 256;
/// The same of all users together. Who comes then takes the place of the newest of whoever has most, or is denied if that is
/// nobody with more.
const MOST_IN_ALL: usize = 1024;
/// Who denies what is too much, for the record.
pub(super) const TOO_MANY: &str = "the auditor: too many calls wait already";

/// Bytes of a call's arguments that are kept and shown while it waits, and of the texts beside them. What an agent wrote is
/// held once for each call and sent to everybody who watches; the whole of it is asked for by the call's id.
pub(super) const ARGUMENTS: usize = 4096;
const TEXT: usize = 200;
/// Most reasons, and most rules, that are kept of a call.
const MOST_TEXTS: usize = 8;

/// Most calls of one list. Only root sees more than one user's: then each user has the same share of the list, the oldest
/// calls first. However long each of them is, they fit one message.
const MOST_LISTED: usize = MOST_PER_USER;

/// Fewest bytes of an id's beginning that name it.
const LEAST_NAMED: usize = 4;
/// Most bytes of what is looked for: those of an id. What is longer names none, and is not on record in full.
const MOST_NAMED: usize = 36;

/// The first process. Everybody descends from it: as a session's client (the interceptor's parent is gone, or never was
/// another) it says of nobody that they are the client's own.
pub(super) const FIRST: u32 = 1;

/// One call, whose it is, and where the decision goes.
#[derive(Debug)]
struct Held {
    call: WaitingCall,
    uid: u32,
    /// Whose the id was when the call began to wait.
    owner: u32,
    client: u32,
    link: Link,
}

impl Held {
    fn is_for(&self, uid: u32) -> bool {
        uid == 0 || self.uid == uid
    }
}

/// A call with as much of each text as is kept.
fn bounded(mut call: WaitingCall) -> WaitingCall {
    if call.arguments.len() > ARGUMENTS {
        call.arguments_bytes.get_or_insert(call.arguments.len() as u64);
        call.arguments.truncate(call.arguments.floor_char_boundary(ARGUMENTS));
        call.arguments.shrink_to_fit();
    }
    for texts in [&mut call.reasons, &mut call.rules] {
        texts.truncate(MOST_TEXTS);
        texts.iter_mut().for_each(cut);
    }
    [&mut call.server, &mut call.tool].into_iter().for_each(cut);
    call
}

fn cut(text: &mut String) {
    if text.len() > TEXT {
        text.truncate(text.floor_char_boundary(TEXT));
        text.push('…');
        text.shrink_to_fit();
    }
}

/// All calls that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    pub(super) refusals: Refusals,
    owners: Owners,
    held: Mutex<HashMap<String, Held>>,
}

/// Who wants to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decider {
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
pub enum Refused {
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
    /// It is not known who the peer is.
    #[error("cannot tell who asks, so nothing is decided: {0}")]
    Unknown(String),
    /// The interceptor did not take it.
    #[error("the interceptor of this call is gone")]
    Lost,
}

impl Waiting {
    /// None waits yet.
    pub fn new(owners: Owners) -> Self {
        Self { refusals: Refusals::new(owners.clone()), owners, held: Mutex::default() }
    }

    /// A call begins to wait, or waits on until another time. `false`: too many of this user's do already, or of all users'.
    pub fn add(&self, call: WaitingCall, uid: u32, client: u32, link: Link) -> bool {
        let call = bounded(call);
        let owner = self.owners.of(uid);
        let displaced = {
            let mut held = self.lock();
            let displaced = if held.contains_key(&call.id) {
                None
            } else {
                let Some(displaced) = room_for(&held, owner) else { return false };
                displaced.and_then(|id| held.remove(&id))
            };
            held.insert(call.id.clone(), Held { call, uid, owner, client, link });
            displaced
        };
        if let Some(Held { call, link, .. }) = displaced {
            // If its interceptor is gone it waits for nobody.
            let _ =
                link.send(&SessionOrder::Decide { call: call.id, approve: false, by: TOO_MANY.to_owned() });
        }
        true
    }

    /// A call of a session's waits no longer; whether it did. Ids are no secret: another session's waits on.
    pub fn remove(&self, call: &str, session: &str) -> bool {
        let mut all = self.lock();
        let waits = all.get(call).is_some_and(|held| held.call.session == session);
        if waits {
            all.remove(call);
        }
        waits
    }

    /// None of a session's calls waits any longer.
    pub(crate) fn remove_all(&self, session: &str) {
        self.lock().retain(|_, held| held.call.session != session);
    }

    /// The calls that `uid` may see, oldest first, within [`MOST_LISTED`].
    pub fn list(&self, uid: u32) -> Vec<WaitingCall> {
        let held = self.lock();
        let mut calls: Vec<&Held> = held.values().filter(|held| held.is_for(uid)).collect();
        calls.sort_by_key(|held| held.call.since);
        if calls.len() > MOST_LISTED {
            let mut listed: HashMap<u32, usize> = HashMap::new();
            let mut rank = |held: &Held| {
                let rank = listed.entry(held.owner).or_default();
                *rank += 1;
                *rank
            };
            let mut ranked: Vec<_> = calls.into_iter().map(|held| (rank(held), held)).collect();
            ranked.sort_by_key(|(rank, _)| *rank);
            ranked.truncate(MOST_LISTED);
            calls = ranked.into_iter().map(|(_, held)| held).collect();
            calls.sort_by_key(|held| held.call.since);
        }
        calls.into_iter().map(|held| held.call.clone()).collect()
    }

    /// How many calls wait that `uid` may see.
    pub fn count(&self, uid: u32) -> usize {
        self.lock().values().filter(|held| held.is_for(uid)).count()
    }

    /// Which those are.
    pub fn ids(&self, uid: u32) -> BTreeSet<String> {
        let held = self.lock();
        held.values().filter(|held| held.is_for(uid)).map(|held| held.call.id.clone()).collect()
    }

    /// Decides a call, once. Gives its whole id.
    ///
    /// # Errors
    /// [`Refused`]; the call waits on, unless it is gone.
    pub fn decide(&self, named: &str, approve: bool, who: &Decider) -> Result<String, Refused> {
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

/// Whether there is room for one more call of `owner`, and which has to go for it.
#[expect(clippy::option_option, reason = "no room; room; room if that one goes")]
fn room_for(all: &HashMap<String, Held>, owner: u32) -> Option<Option<String>> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for held in all.values() {
        *counts.entry(held.owner).or_default() += 1;
    }
    let own = counts.get(&owner).copied().unwrap_or(0);
    if own >= MOST_PER_USER {
        return None;
    }
    if all.len() < MOST_IN_ALL {
        return Some(None);
    }
    let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    if count <= own + 1 {
        return None;
    }
    let newest = all.values().filter(|held| held.owner == most).max_by_key(|held| held.call.since)?;
    Some(Some(newest.call.id.clone()))
}

/// The call that is named: by its whole id, or by the beginning of one that this user may decide. A beginning says nothing of
/// others' calls, neither that they wait nor whose they are, and others' calls make none unclear, nor take its place.
fn whole(all: &HashMap<String, Held>, named: &str, uid: u32) -> Result<String, Refused> {
    if named.len() > MOST_NAMED {
        let cut = named.floor_char_boundary(MOST_NAMED);
        return Err(Refused::Gone(format!("{}…", &named[..cut])));
    }
    if all.get(named).is_some_and(|held| held.is_for(uid)) {
        return Ok(named.to_owned());
    }
    let begins = |(id, held): &(&String, &Held)| held.is_for(uid) && id.starts_with(named);
    let mut matching = all.iter().filter(|_| named.len() >= LEAST_NAMED).filter(begins);
    match (matching.next(), matching.next()) {
        (Some((id, _)), None) => Ok(id.clone()),
        // Another's, by its whole id: whoever has that knows that it waits.
        (None, _) if all.contains_key(named) => Ok(named.to_owned()),
        (None, _) => Err(Refused::Gone(named.to_owned())),
        (Some(_), Some(_)) => Err(Refused::Unclear(named.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ARGUMENTS, Decider, Link, MOST_IN_ALL, MOST_LISTED, MOST_PER_USER, Refused, TOO_MANY, Waiting,
    };
    use crate::mcp::link::LinkWriter;
    use ringfence_base::quota::Owners;
    use ringfence_wire::{
        audit::PeerFacts,
        conn::Conn,
        mcp::{MAX_MESSAGE, McpReply, SessionOrder, WaitingCall},
    };
    use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

    fn call(id: &str) -> WaitingCall {
        WaitingCall {
            id: id.into(),
            session: "s".into(),
            server: "fs".into(),
            tool: "t".into(),
            arguments: "{}".into(),
            arguments_bytes: None,
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
    fn whatever_waits_a_list_is_short_and_each_user_is_in_it() {
        let (waiting, (link, _interceptor)) = (Waiting::default(), link());
        // Six bytes each in JSON: nothing is longer there.
        let long = "\u{1}".repeat(2_100_000);
        for (uid, many) in [(5, MOST_PER_USER), (6, MOST_PER_USER), (7, MOST_PER_USER), (8, 1)] {
            for number in 0..many {
                let call = WaitingCall {
                    arguments: if uid == 8 { "{}".into() } else { long.clone() },
                    tool: long[..400].to_owned(),
                    reasons: vec![long[..400].to_owned(); 100],
                    rules: vec![long[..400].to_owned(); 100],
                    // Whoever came last.
                    since: i64::from(uid),
                    ..call(&format!("{uid}-{number}"))
                };
                assert!(waiting.add(call, uid, 1, link.clone()));
            }
        }
        assert!(!waiting.add(call("5-more"), 5, 1, link), "too many of this user's");
        let listed = waiting.list(0);
        assert_eq!((listed.len(), waiting.count(0), waiting.ids(0).len()), (MOST_LISTED, 769, 769));
        for (uid, many) in [("5-", 85), ("6-", 85), ("7-", 85), ("8-", 1)] {
            assert_eq!(listed.iter().filter(|call| call.id.starts_with(uid)).count(), many, "{uid}");
        }
        assert!(listed.is_sorted_by_key(|call| call.since));
        let (cut, whole) = (&listed[0], &listed[listed.len() - 1]);
        assert_eq!(cut.arguments_bytes, Some(2_100_000), "given with it");
        assert!(cut.arguments.len() <= ARGUMENTS && long.starts_with(&cut.arguments));
        assert_eq!((whole.arguments.as_str(), whole.arguments_bytes), ("{}", None));
        let message = serde_json::to_string(&McpReply::Waiting { calls: listed }).expect("JSON");
        assert!(message.len() < MAX_MESSAGE, "{} bytes", message.len());
        assert_eq!((waiting.list(6).len(), waiting.count(6)), (MOST_PER_USER, MOST_PER_USER));
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
        // Nor where another's id is what one types of one's own.
        assert!(waiting.add(call("ijkl"), 6, 1, link.clone()) && waiting.add(call("ijkl-mine"), 5, 1, link));
        assert_eq!(waiting.decide("ijkl", true, &who), Ok("ijkl-mine".into()));
        assert_eq!(waiting.decide("ijkl", true, &who), Err(Refused::NotYours { owner: 6 }), "the control");
        let Err(Refused::Gone(shown)) = waiting.decide(&"x".repeat(1 << 20), true, &who) else {
            panic!("found")
        };
        assert!(shown.len() < 50, "{} bytes in the log", shown.len());
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
        assert!((0..MOST_PER_USER).all(|n| fits(5, n)));
        assert!(!fits(5, MOST_PER_USER) && fits(6, 0));
    }

    #[test]
    fn subordinate_ids_give_nobody_more_calls_and_others_have_room() {
        let owners = Owners::parse("1000:100000:65536\n", |name| name.parse().ok());
        let waiting = Waiting::new(owners);
        let (link, _interceptor) = link();
        let fits = |uid, n: usize| waiting.add(call(&format!("{uid}-{n}")), uid, 1, link.clone());
        assert!((0..MOST_PER_USER).all(|n| fits(100_000 + n as u32, n)));
        assert!(!fits(1000, 0) && !fits(165_535, 0), "one user's, whichever id");
        assert!((0..MOST_PER_USER).all(|n| fits(7, n)));
        let listed = waiting.list(0);
        let of_7 = listed.iter().filter(|call| call.id.starts_with("7-")).count();
        assert_eq!(
            (listed.len(), of_7),
            (MOST_LISTED, MOST_LISTED / 2),
            "a share for each user, not each id"
        );
    }

    #[test]
    fn all_calls_together_are_bounded_and_whoever_has_most_makes_room() {
        let waiting = Waiting::default();
        let (link, mut interceptor) = link();
        let add = |uid: u32, n: usize| {
            let call = WaitingCall { since: n as i64, ..call(&format!("{uid}-{n}")) };
            waiting.add(call, uid, 1, link.clone())
        };
        for uid in [5, 6, 7] {
            assert!((0..MOST_PER_USER).all(|n| add(uid, n)));
        }
        assert!((0..MOST_PER_USER - 1).all(|n| add(8, n)) && add(9, 0));
        assert_eq!(waiting.count(0), MOST_IN_ALL);
        assert!(!add(8, MOST_PER_USER), "nobody has so many more");
        for n in 1..4 {
            assert!(add(9, n));
            let order = interceptor.receive::<SessionOrder>().expect("an order");
            let SessionOrder::Decide { call, approve, by } = order else { panic!("{order:?}") };
            assert!(!approve && by == TOO_MANY && !call.starts_with("9-"), "{call}");
            assert!(call.ends_with("-255"), "the newest: {call}");
        }
        assert_eq!((waiting.count(0), waiting.count(9)), (MOST_IN_ALL, 4));
    }

    #[test]
    fn a_call_that_is_paused_again_is_one_and_ends_with_its_own_session() {
        let waiting = Waiting::default();
        let (link, _interceptor) = link();
        let again = |until| waiting.add(WaitingCall { until, ..call("abcdef") }, 5, 1, link.clone());
        assert!((1..=MOST_PER_USER as i64).all(again), "none of these is one more");
        assert!((1..MOST_PER_USER).all(|n| waiting.add(call(&n.to_string()), 5, 1, link.clone())));
        assert!(again(i64::MAX), "nor where there is no room for one more");
        assert!(!waiting.add(call("more"), 5, 1, link.clone()));
        assert_eq!(waiting.count(5), MOST_PER_USER);
        let other = WaitingCall { session: "other".into(), ..call("of another") };
        assert!(waiting.add(other, 6, 1, link.clone()));
        assert!(!waiting.remove("abcdef", "other") && !waiting.remove("of another", "s"));
        assert_eq!(waiting.count(0), MOST_PER_USER + 1, "another session's call is none of its own");
        assert!(waiting.remove("abcdef", "s"));
        assert!(!waiting.remove("abcdef", "s"), "nor does one that waits no more");
        assert_eq!(waiting.count(5), MOST_PER_USER - 1);
        waiting.remove_all("s");
        assert_eq!((waiting.count(5), waiting.count(6)), (0, 1));
    }
}
