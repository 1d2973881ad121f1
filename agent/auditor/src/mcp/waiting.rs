//! Calls that wait for a person: who may decide, and that a decision counts once.

use super::{link::Link, paces::Paces};
use ringfence_base::{
    clock,
    quota::{Owners, Refusals},
};
use ringfence_wire::{
    approvals::Fingerprint,
    audit::PeerFacts,
    egress_asks::{EgressDecision, MAX_BY, WaitingConnection},
    frame::FrameError,
    mcp::{SessionOrder, WaitingCall},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
pub(super) const MOST_NAMED: usize = 36;

/// The first process. Everybody descends from it: as a session's client (the interceptor's parent is gone, or never was
/// another) it says of nobody that they are the client's own.
pub(super) const FIRST: u32 = 1;

/// No process: as a client it is nobody's ancestor, and nobody may be it.
pub(super) const NOBODY: u32 = u32::MAX;

/// One call, whose it is, and where the decision goes.
#[derive(Debug)]
pub(super) struct Held {
    call: WaitingCall,
    uid: u32,
    /// Whose the id was when the call began to wait.
    owner: u32,
    client: u32,
    governed: bool,
    fingerprint: Option<Fingerprint>,
    question: Option<Asked>,
    link: Link,
}

/// What is known of a connection that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The number that an egress worker has for it.
    pub number: u64,
    /// The outermost container around whoever asks.
    pub outermost: String,
}

/// Where a call comes from that waits.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Whose it is.
    pub uid: u32,
    /// The process that started its interceptor.
    pub client: u32,
    /// Whether that is in a container.
    pub governed: bool,
    /// What it says of the call.
    pub fingerprint: Option<Fingerprint>,
    /// Where it is a connection of a container's, and no call.
    pub question: Option<Asked>,
}

/// A call that waits, and what is known by which another is told to be the same.
#[derive(Debug, Clone)]
pub(super) struct KnownCall {
    /// Its whole id.
    pub(super) call: String,
    pub(super) session: String,
    pub(super) uid: u32,
    pub(super) governed: bool,
    pub(super) fingerprint: Option<Fingerprint>,
    /// What it is in place of a call.
    pub(super) connection: Option<WaitingConnection>,
    /// How the record names whoever asked for this; empty where nobody did.
    pub(super) decided_by: String,
}

impl Held {
    fn known(&self, decided_by: String) -> KnownCall {
        KnownCall {
            call: self.call.id.clone(),
            session: self.call.session.clone(),
            uid: self.uid,
            governed: self.governed,
            fingerprint: self.fingerprint.clone(),
            connection: self.call.connection.clone(),
            decided_by,
        }
    }

    fn is_for(&self, uid: u32) -> bool {
        uid == 0 || self.uid == uid
    }

    /// Lets the call go on, by those words, which are an approval's. If its interceptor is gone it waits for nobody.
    pub(super) fn let_go(self, by: String) {
        let _ = self.answer(true, by, true);
    }

    /// Tells whoever waits. `stands`: it would be answered so again.
    fn answer(&self, approve: bool, mut by: String, stands: bool) -> Result<(), FrameError> {
        let Some(Asked { number: question, .. }) = self.question else {
            return self.link.send(&SessionOrder::Decide { call: self.call.id.clone(), approve, by });
        };
        by.truncate(by.floor_char_boundary(MAX_BY));
        self.link.send(&EgressDecision { question, approve, by, stands, full: false })
    }

    /// Tells whoever waits that nobody is asked: there is no room.
    fn displace(&self) -> Result<(), FrameError> {
        let Some(Asked { number: question, .. }) = self.question else {
            return self.answer(false, TOO_MANY.to_owned(), false);
        };
        let by = TOO_MANY.to_owned();
        self.link.send(&EgressDecision { question, approve: false, by, stands: false, full: true })
    }

    /// Whether whoever says that this call waits has said so before.
    fn is_from(&self, session: &str, from: &Origin, link: &Link) -> bool {
        self.call.session == session
            && (self.uid, &self.question) == (from.uid, &from.question)
            && Arc::ptr_eq(&self.link, link)
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
    // A host is no longer than a name may be, and its end says whose it is.
    let texts = [(call.connection.is_none()).then_some(&mut call.server), Some(&mut call.tool)];
    texts.into_iter().flatten().for_each(cut);
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
    /// How fast people were asked about connections.
    pub(super) paces: Paces,
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
    /// Whoever waits did not take it.
    #[error("whoever waits for this is gone: the call's interceptor, or the container's egress worker")]
    Lost,
}

impl Waiting {
    /// None waits yet.
    pub fn new(owners: Owners) -> Self {
        Self {
            refusals: Refusals::new(owners.clone()),
            owners,
            paces: Paces::default(),
            held: Mutex::default(),
        }
    }

    /// A call begins to wait of whose interceptor nothing more is known.
    #[cfg(test)]
    pub(super) fn add(&self, call: WaitingCall, uid: u32, client: u32, link: Link) -> bool {
        let from = Origin { uid, client, governed: false, fingerprint: None, question: None };
        self.add_from(call, from, link)
    }

    /// A call begins to wait, or waits on until another time. `false`: too many of this user's do already, or of all users'; or
    /// another has its id. Those are no secret, and a connection's is in no table where it could be only once: whoever says that a
    /// call of its own has that one takes nobody's place.
    pub fn add_from(&self, call: WaitingCall, from: Origin, link: Link) -> bool {
        let call = bounded(call);
        let owner = self.owners.of(from.uid);
        let displaced = {
            let mut held = self.lock();
            let displaced = if let Some(before) = held.get(&call.id) {
                if !before.is_from(&call.session, &from, &link) {
                    return false;
                }
                None
            } else {
                let Some(displaced) = room_for(&held, owner) else { return false };
                displaced.and_then(|id| held.remove(&id))
            };
            let Origin { uid, client, governed, fingerprint, question } = from;
            let id = call.id.clone();
            held.insert(id, Held { call, uid, owner, client, governed, fingerprint, question, link });
            displaced
        };
        if let Some(displaced) = displaced {
            // If its interceptor is gone it waits for nobody.
            let _ = displaced.displace();
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

    /// Whether a call waits.
    pub(super) fn waits(&self, call: &str) -> bool {
        self.lock().contains_key(call)
    }

    /// How many connections of a user's containers wait, subordinate ids included; and how many of those within one of them, whoever
    /// they say that they are there.
    pub(super) fn connections(&self, uid: u32, outermost: &str) -> (usize, usize) {
        let owner = self.owners.of(uid);
        let held = self.lock();
        let asked = held.values().filter_map(|held| Some((held.owner == owner, held.question.as_ref()?)));
        asked.fold((0, 0), |(all, own), (is_owner_s, asked)| {
            (all + usize::from(is_owner_s), own + usize::from(asked.outermost == outermost))
        })
    }

    /// Whether it waits, may be seen by that user, and is no call of a tool.
    pub(crate) fn is_connection(&self, call: &str, uid: u32) -> bool {
        self.lock().get(call).is_some_and(|held| held.is_for(uid) && held.call.connection.is_some())
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
        self.decide_by(named, approve, who, None)
    }

    /// The same; `approval` is what stands from now on for calls like it, for the record.
    pub(super) fn decide_by(
        &self,
        named: &str,
        approve: bool,
        who: &Decider,
        approval: Option<&str>,
    ) -> Result<String, Refused> {
        let held = {
            let mut all = self.lock();
            let id = decidable(&all, named, who)?;
            all.remove(&id).ok_or_else(|| Refused::Gone(named.to_owned()))?
        };
        let mut by = who.name(held.uid, held.client);
        if let Some(approval) = approval {
            by += &format!(", approval {approval}");
        }
        held.answer(approve, by, approval.is_some()).map_err(|_| Refused::Lost)?;
        Ok(held.call.id)
    }

    /// A call that may be decided, which waits on.
    ///
    /// # Errors
    /// Those of [`Self::decide`].
    pub(super) fn known(&self, named: &str, who: &Decider) -> Result<KnownCall, Refused> {
        let all = self.lock();
        let id = decidable(&all, named, who)?;
        let held = all.get(&id).ok_or_else(|| Refused::Gone(named.to_owned()))?;
        Ok(held.known(who.name(held.uid, held.client)))
    }

    /// All calls of a user that wait.
    pub(super) fn known_of(&self, uid: u32) -> Vec<KnownCall> {
        let all = self.lock();
        all.values().filter(|held| held.uid == uid).map(|held| held.known(String::new())).collect()
    }

    /// A call that is to go on: it waits no longer. None: somebody was faster.
    pub(super) fn take(&self, call: &str) -> Option<Held> {
        self.lock().remove(call)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The whole id of the call that is named, if it waits and may be decided.
fn decidable(all: &HashMap<String, Held>, named: &str, who: &Decider) -> Result<String, Refused> {
    let id = whole(all, named, who.uid())?;
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
    Ok(id)
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
mod tests;
