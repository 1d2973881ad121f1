//! What the connections of one auditor share: who is linked, who opened the dashboard, what waits, who watches.

use super::{
    agent_lines::AgentLines,
    claims::{Claim, Claims},
    intake::{self, Intake, Progress},
    link::Link,
    origin::{self, Origin},
    peers::PeerResolver,
    waiting::{FIRST, Refused, Waiting},
    watchers::{Change, Watcher, Watchers},
    writer::SharedWriter,
};
use crate::{
    metrics::Metrics,
    shared::{Shared, lock},
};
use nix::sys::eventfd::EventFd;
use ringfence_base::{
    clock,
    error::chain,
    quota::{Bounds, Lanes, Owners, Permits, Refusals},
};
use ringfence_session::rows::ingest::Row;
use ringfence_store::{SessionReaders, SessionWriter, Viewer};
use ringfence_wire::message::McpStatus;
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use subtle::ConstantTimeEq;

/// How long links may take to read what their journals have.
const REFRESH: Duration = Duration::from_millis(400);
/// How long the core may take to hand over what its rings hold.
const SETTLE: Duration = Duration::from_secs(1);
/// Links at once, of all users.
const MAX_LINKS: usize = 512;
/// The same with questions, and with the lines of workers, all of which are root's here.
const MAX_CONNECTIONS: usize = 1024;
/// The same of one user, and how many of them may be sessions; a user's own auditor has no others to keep room for.
const CONNECTIONS_EACH: usize = 96;
const SESSIONS_EACH: usize = 64;
/// Lines of agents' workers at once, of all users, and of one; the daemon's agents are root's here.
const MAX_AGENTS: usize = 256;
const AGENTS_EACH: usize = 64;
/// Lines of containers' egress workers at once, of all users' containers but root's, and of one user's. The core gives out 510
/// blocks of addresses, each for one worker: none is off the record because others have one.
const MAX_EGRESS: usize = 512;
const EGRESS_EACH: usize = 96;
/// Tokens of the dashboard of all users but root, and of one user, subordinate ids included. Of more, those go that were
/// not used for longest.
const MAX_TOKENS: usize = 1024;
const TOKENS_EACH: usize = 8;
/// Pages that watch at once, of all users but root and of one.
const MAX_PAGES: usize = 128;
const PAGES_EACH: usize = 16;

/// Whom an auditor serves.
#[derive(Debug)]
pub enum Serving {
    /// The user whose it is.
    Own,
    /// Everybody, on behalf of the daemon.
    Everybody {
        /// How to learn who a peer is.
        peers: PeerResolver,
        /// The threads beside, which replace a corrupt database.
        shared: Arc<Shared>,
        /// Whose subordinate ids are.
        owners: Owners,
        /// Bytes that the sessions of all users may take together.
        session_bytes: u64,
    },
}

/// An interceptor's link.
#[derive(Debug, Clone)]
pub(super) struct Linked {
    /// For writing.
    pub(super) link: Link,
    /// Whose it is.
    pub(super) uid: u32,
    /// The process that started the interceptor; the first, if that is governed or nobody knows it.
    pub(super) client: u32,
    /// How far its journal is read.
    pub(super) progress: Arc<Progress>,
    /// Has the link's thread look at the journal.
    pub(super) nudge: Arc<EventFd>,
}

/// What all connections share.
#[derive(Debug)]
pub struct Sessions {
    /// The database.
    pub db: PathBuf,
    /// The user's rules; `None` where users have files of their own, which only their interceptors can read.
    pub(crate) rule_file: Option<PathBuf>,
    /// The one writer of sessions.
    pub writer: SharedWriter,
    /// Calls that wait for a person.
    pub waiting: Waiting,
    /// Links that are up.
    pub links: Permits,
    /// What asks the store.
    pub(crate) readers: SessionReaders,
    /// Each session's link.
    pub(super) linked: Mutex<HashMap<String, Linked>>,
    /// Which connection has a session, from before its journal is read to after.
    pub(super) claims: Claims,
    /// Connections of any kind.
    pub(super) connections: Permits,
    /// Connections and links that were turned away.
    pub(super) turned_away: AtomicU64,
    /// Port of the dashboard; 0: none yet.
    pub port: AtomicU16,
    /// What opens the dashboard, for each user that asked.
    tokens: Mutex<Vec<Token>>,
    /// Whose subordinate ids are.
    pub owners: Owners,
    /// One question of a user to the store at a time.
    pub(super) questions: Lanes,
    /// Connections and links that were turned away, for the log; and what the dashboard refused. Neither hides the other, nor
    /// what those who decide were refused, even of one user.
    pub turned: Refusals,
    pub(crate) refused_pages: Refusals,
    /// One long line of a user's is read at a time, whichever of its ids has the session.
    pub(super) long: Lanes,
    /// One journal of a user's is taken in at a time that nobody is linked to: it may be long, and that user's questions do not
    /// wait for it.
    pub(super) journals: Lanes,
    pub(super) peers: PeerResolver,
    shared: Option<Arc<Shared>>,
    /// Pages that watch.
    pub pages: Permits,
    /// Somebody asked something since this was last looked at.
    pub used: AtomicBool,
    /// What is counted for `/metrics`.
    pub metrics: Metrics,
    watchers: Watchers,
    /// One thread at a time sends a user's links the rules of the database: the last to read them is the last to send them.
    pub(super) sending_rules: Lanes,
    /// Users whose sessions could not be sent them, because they could not be read; 0: everybody's.
    pub(super) unsent_rules: Mutex<BTreeSet<u32>>,
    /// The same of what is pinned of servers.
    pub(super) sending_tools: Mutex<()>,
    /// Lines of agents' workers that are up.
    pub(crate) agents: Permits,
    /// Lines of containers' egress workers that are up, by whose container it is.
    pub(crate) egress: Permits,
    /// Who is told on them what is pinned of which agent's servers.
    pub(super) agent_lines: AgentLines,
}

/// A user's token of the dashboard.
#[derive(Debug)]
struct Token {
    uid: u32,
    owner: u32,
    token: String,
    used: Instant,
}

impl Sessions {
    /// Shared state over a database.
    pub fn new(db: PathBuf, serving: Serving) -> Self {
        let (peers, shared, owners, bound) = match serving {
            Serving::Own => (PeerResolver::Proc, None, Owners::default(), None),
            Serving::Everybody { peers, shared, owners, session_bytes } => {
                (peers, Some(shared), owners, Some(session_bytes))
            }
        };
        let within = |all: usize, each: usize| {
            // A user's own auditor has no others to keep room for.
            let each = if shared.is_some() { each } else { all };
            Permits::within(Bounds::of(all, each), owners.clone())
        };
        Self {
            writer: SharedWriter::new(
                SessionWriter::new(db.clone(), bound).with_owners(owners.clone()),
                owners.clone(),
            ),
            readers: SessionReaders::new(db.clone()),
            db,
            rule_file: None,
            waiting: Waiting::new(owners.clone()),
            links: within(MAX_LINKS, SESSIONS_EACH),
            agents: within(MAX_AGENTS, AGENTS_EACH),
            egress: within(MAX_EGRESS, EGRESS_EACH),
            linked: Mutex::default(),
            claims: Claims::default(),
            connections: within(MAX_CONNECTIONS, CONNECTIONS_EACH),
            pages: within(MAX_PAGES, PAGES_EACH),
            turned_away: AtomicU64::new(0),
            port: AtomicU16::new(0),
            tokens: Mutex::default(),
            questions: Lanes::new(owners.clone()),
            turned: Refusals::new(owners.clone()),
            refused_pages: Refusals::new(owners.clone()),
            long: Lanes::new(owners.clone()),
            journals: Lanes::new(owners.clone()),
            owners,
            peers,
            shared,
            used: AtomicBool::new(false),
            metrics: Metrics::default(),
            watchers: Watchers::default(),
            sending_rules: Lanes::new(Owners::default()),
            unsent_rules: Mutex::default(),
            sending_tools: Mutex::default(),
            agent_lines: AgentLines::default(),
        }
    }

    /// The same for one user, whose rule file this is.
    pub fn with_rule_file(self, path: PathBuf) -> Self {
        Self { rule_file: Some(path), ..self }
    }

    /// What happens from now on.
    pub fn watch(&self) -> Arc<Watcher> {
        self.watchers.add()
    }

    /// Logs how many refusals were not logged, as [`Refusals::log_suppressed`].
    pub(super) fn log_refusals(&self, now: Instant, at_end: bool) {
        [&self.turned, &self.refused_pages, &self.waiting.refusals]
            .into_iter()
            .for_each(|refusals| refusals.log_suppressed(now, at_end));
    }

    /// Whether an interceptor of this session is linked.
    pub fn is_linked(&self, session: &str) -> bool {
        lock(&self.linked).contains_key(session)
    }

    /// Claims a session for a user's connection, as [`Claims::claim`], unless it is on record as another user's, or nobody can tell:
    /// what has a claim waits for its own user's lane before the writer says so, and that user says how long that takes.
    ///
    /// # Errors
    /// In words.
    pub(super) fn claim(
        &self,
        (session, uid): (&str, u32),
        stream: &UnixStream,
        still: &dyn Fn() -> bool,
    ) -> Result<Option<Claim>, String> {
        match self.readers.ask(|reader| reader.is_another_s(session, uid)) {
            Ok(true) => return Err(intake::Error::NotYours.to_string()),
            Ok(false) => {}
            // Nothing is on record before the writer has made the database.
            Err(_) if !self.db.exists() => {}
            Err(error) => {
                let error = intake::Error::Store(error);
                self.suspect(&error);
                return Err(chain(&error));
            }
        }
        self.claims.claim(session, uid, stream, still).map_err(|error| error.to_string())
    }

    /// The links of a user's sessions; for root, of all.
    pub(super) fn linked_of(&self, uid: u32) -> Vec<Linked> {
        let linked = lock(&self.linked);
        linked.values().filter(|linked| uid == 0 || linked.uid == uid).cloned().collect()
    }

    /// How many of a user's sessions are linked; for root, of all. Each one's client is known by then.
    pub(crate) fn linked_count(&self, uid: u32) -> usize {
        self.linked_of(uid).len()
    }

    /// Whether the process may have what approves a user's calls: not if it is governed, nor if one of the clients
    /// started it.
    pub(super) fn may_approve(
        &self,
        uid: u32,
        connection: &UnixStream,
        still: &dyn Fn() -> bool,
    ) -> Result<(), Refused> {
        let facts = self.peers.facts(uid, connection, still)?;
        if facts.governed {
            return Err(Refused::Governed);
        }
        let clients = self.linked_of(uid).into_iter().filter(|linked| linked.client > FIRST);
        let above = clients.map(|linked| linked.client).find(|client| facts.lineage.contains(client));
        above.map_or(Ok(()), |client| Err(Refused::Descendant { client }))
    }

    /// What opens the dashboard for a user: the same until this auditor ends, unless others take its place who have fewer.
    pub fn token(&self, uid: u32) -> String {
        let mut tokens = lock(&self.tokens);
        if let Some(known) = tokens.iter_mut().find(|known| known.uid == uid) {
            known.used = Instant::now();
            return known.token.clone();
        }
        let owner = self.owners.of(uid);
        if let Some(goes) = one_too_many(&tokens, owner) {
            tokens.swap_remove(goes);
        }
        let random = || uuid::Uuid::new_v4().simple().to_string();
        let token = random() + &random();
        tokens.push(Token { uid, owner, token: token.clone(), used: Instant::now() });
        token
    }

    /// Whether this is one user's own auditor.
    pub fn is_own(&self) -> bool {
        self.shared.is_none()
    }

    /// What the threads beside share, where the auditor is the daemon's.
    pub(super) fn shared(&self) -> Option<&Shared> {
        self.shared.as_deref()
    }

    /// Whose token this is. Every one is compared, each in constant time.
    pub fn holder(&self, token: &str) -> Option<Viewer> {
        lock(&self.tokens).iter_mut().fold(None, |found, known| {
            if bool::from(known.token.as_bytes().ct_eq(token.as_bytes())) {
                known.used = Instant::now();
                Some(Viewer(known.uid))
            } else {
                found
            }
        })
    }

    /// Counts for `ringfence status`: a user's own, for root all.
    pub fn status(&self, uid: u32) -> McpStatus {
        let unstored = self
            .linked_of(uid)
            .into_iter()
            .map(|linked| linked.progress.unwritten.load(Ordering::Relaxed) as u64);
        McpStatus {
            sessions: self.links.count(uid) as u64,
            connections: self.connections.count(uid) as u64,
            waiting: self.waiting.count(uid) as u64,
            unstored: unstored.sum(),
            turned_away: self.turned_away.load(Ordering::Relaxed),
            dashboard: self.port.load(Ordering::SeqCst),
        }
    }

    /// Has the kernel's records stored that are on their way, for a moment.
    pub fn settle(&self) {
        if let Some(shared) = &self.shared {
            // What did not come in time is seen the next time somebody asks.
            let _ = shared.flush(SETTLE);
        }
    }

    /// Has what governed sessions journalled before now taken in, so that events can be attributed to their calls. Waits no
    /// longer than a moment: a journal is read by its own link's thread, which a slow file holds up, and nobody else.
    pub fn refresh(&self, viewer: Viewer) {
        let now = clock::since_boot();
        let mut behind = self.linked_of(viewer.0);
        behind.retain(|linked| linked.progress.governed.load(Ordering::Relaxed));
        for linked in &behind {
            // Full: it is nudged already.
            let _ = linked.nudge.write(1);
        }
        let until = Instant::now() + REFRESH;
        loop {
            behind.retain(|linked| linked.progress.looked.load(Ordering::Acquire) < now);
            if behind.is_empty() || Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Up to when, in ns since boot, a session's journal is known to be in the store; `None`: it is not linked.
    pub fn looked(&self, session: &str) -> Option<u64> {
        let linked = lock(&self.linked);
        linked.get(session).map(|linked| linked.progress.looked.load(Ordering::Acquire))
    }

    /// Notifies watchers of a change of a user's rows.
    pub fn notify(&self, uid: u32, change: Change) {
        self.watchers.notify(uid, &change);
    }

    /// Takes in all that a journal has, for as long as `still` says that whoever gave it has a place here.
    pub(super) fn advance(
        &self,
        intake: &mut Intake,
        session: &str,
        still: &dyn Fn() -> bool,
    ) -> Result<(), intake::Error> {
        while self.advance_a_little(intake, session, still)? {}
        Ok(())
    }

    /// Takes in a batch of what a journal has; whether there is more.
    pub(super) fn advance_a_little(
        &self,
        intake: &mut Intake,
        session: &str,
        still: &dyn Fn() -> bool,
    ) -> Result<bool, intake::Error> {
        if !still() {
            return Err(intake::Error::Evicted);
        }
        match intake.advance((&self.writer, still)) {
            Ok(batch) => {
                let intake::Batch { rows, more, long } = batch;
                self.announce(intake, session, rows);
                // Room for another long line of this user's is made when nothing is left of this one.
                drop(long);
                Ok(more)
            }
            Err(error) => {
                let rows = intake.take_written();
                self.announce(intake, session, rows);
                Err(error)
            }
        }
    }

    /// Counts rows that are in the store now, and notifies watchers of them.
    fn announce(&self, intake: &Intake, session: &str, rows: Vec<Row>) {
        // However much a server wrote, its session is one change.
        let (mut of_session, mut pinned, uid) = (false, false, intake.uid());
        for row in rows {
            self.metrics.count(intake.server(), &row);
            match row {
                Row::Call(call) => self.notify(uid, Change::Call(call.judged.call)),
                Row::Answer { call, .. }
                | Row::Cancelled { call, .. }
                | Row::TaskAnswer { call, .. }
                | Row::Decision { call, .. } => self.notify(uid, Change::Call(call)),
                Row::Tools(row) => {
                    pinned |= origin::is_news(&row);
                    of_session = true;
                }
                Row::Session { .. }
                | Row::Server { .. }
                | Row::Client { .. }
                | Row::Governed { .. }
                | Row::Stderr { .. }
                | Row::End { .. } => of_session = true,
                Row::Message(_) | Row::Asked { .. } | Row::Answered { .. } | Row::Gap => {}
            }
        }
        if pinned && let Err(error) = self.send_tools_of(session) {
            // Each session judges by what it knows, and learns the rest when it is linked anew.
            tracing::warn!("session {session}: what is pinned of its server is not sent: {}", chain(&error));
        }
        if of_session {
            self.notify(uid, Change::Session(session.to_owned()));
        }
    }

    /// Takes in a journal that nobody is linked to any more.
    pub(super) fn catch_up(
        &self,
        names: (String, String),
        uid: u32,
        file: File,
        still: &dyn Fn() -> bool,
    ) -> Result<(), intake::Error> {
        let session = names.0.clone();
        let of = (file, Origin::Past);
        let mut intake = Intake::new((&self.writer, still), names, (uid, self.long.clone()), of)?;
        let outcome = self
            .advance(&mut intake, &session, still)
            .and_then(|()| intake.abandon((&self.writer, still), clock::now_micros()));
        if let Err(
            error @ (intake::Error::Journal(_) | intake::Error::Name(_) | intake::Error::OtherSession(_)),
        ) = &outcome
        {
            self.broken(&session, uid, error);
        }
        self.unlinked(&session);
        outcome
    }

    /// Nobody is linked to a session any more: what was remembered of it goes, and with the last of a client's all that was
    /// remembered of that one's.
    pub(super) fn unlinked(&self, session: &str) {
        self.writer.ours().unlinked(session);
    }

    /// Records that a session's journal cannot be read on.
    pub(super) fn broken(&self, session: &str, uid: u32, error: &intake::Error) {
        tracing::error!("session {session}: {}", chain(error));
        if let Some(mut writer) = self.writer.lock(uid, || true) {
            let _ = writer.broken(session, uid, &chain(error));
        }
    }

    /// A database that was found corrupt is somebody else's to replace.
    pub(super) fn suspect(&self, error: &intake::Error) {
        if let (intake::Error::Store(error), Some(shared)) = (error, &self.shared)
            && error.is_corrupt()
        {
            shared.suspect();
        }
    }
}

/// Which token goes for a new one of `owner`: of the user's own if those are too many, of whoever has the most if all are.
/// Never root's.
fn one_too_many(tokens: &[Token], owner: u32) -> Option<usize> {
    let of = |owner: u32| tokens.iter().filter(move |token| token.owner == owner).count();
    let users = || tokens.iter().enumerate().filter(|(_, token)| token.owner != 0);
    let oldest = |(index, _): (usize, &Token)| index;
    if owner == 0 {
        None
    } else if of(owner) >= TOKENS_EACH {
        users().filter(|(_, token)| token.owner == owner).min_by_key(|(_, token)| token.used).map(oldest)
    } else if users().count() >= MAX_TOKENS {
        let most = users().map(|(_, token)| of(token.owner)).max();
        users()
            .filter(|(_, token)| Some(of(token.owner)) == most)
            .min_by_key(|(_, token)| token.used)
            .map(oldest)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Linked, MAX_TOKENS, Refused, Serving, Sessions, TOKENS_EACH, Viewer};
    use crate::mcp::link::LinkWriter;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use ringfence_base::quota::Owners;
    use std::{os::unix::net::UnixStream, process, sync::Arc};

    #[test]
    fn there_is_a_line_for_the_egress_worker_of_every_block() {
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Sessions::new(folder.path().join("audit.db"), Serving::Own);
        // Docker's containers and those of other engines are all root's.
        let lines: Vec<_> = (0..510).map_while(|_| sessions.egress.take(0, || ())).collect();
        assert_eq!(lines.len(), 510);
        assert!(lines.iter().all(|line| line.busy()), "none went for another");
    }

    #[test]
    fn nobody_s_ids_take_all_tokens() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sessions = Sessions::new(folder.path().join("audit.db"), Serving::Own);
        sessions.owners = Owners::parse("1000:100000:65536\n", |name| name.parse().ok());
        let kept = sessions.token(1001);
        let many: Vec<_> = (0..3000).map(|n| sessions.token(100_000 + n)).collect();
        let valid = many.iter().filter(|token| sessions.holder(token).is_some()).count();
        assert_eq!(valid, TOKENS_EACH, "the newest of one user's ids");
        assert!(sessions.holder(&kept).is_some(), "another user's");
        let root = sessions.token(0);
        let users: Vec<_> = (0..MAX_TOKENS as u32 + 500).map(|n| sessions.token(200_000 + n)).collect();
        let valid = users.iter().filter(|token| sessions.holder(token).is_some()).count();
        assert!(valid >= MAX_TOKENS - TOKENS_EACH - 1, "{valid}");
        assert!(sessions.holder(&root).is_some_and(|viewer| viewer == Viewer(0)), "root's stays");
        assert_eq!(sessions.token(200_000 + MAX_TOKENS as u32 + 499), users[users.len() - 1]);
    }

    #[test]
    fn whoever_a_client_started_approves_nothing_but_of_the_first_process_nobody_knows() {
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Sessions::new(folder.path().join("audit.db"), Serving::Own);
        let (asking, _theirs) = UnixStream::pair().expect("a pair");
        let uid = nix::unistd::geteuid().as_raw();
        let link_to = |client: u32, of: u32| {
            let (link, _) = UnixStream::pair().expect("a pair");
            let linked = Linked {
                link: Arc::new(LinkWriter::new(link)),
                uid: of,
                client,
                progress: Arc::default(),
                nudge: Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor")),
            };
            sessions.linked.lock().expect("whole").insert("s".into(), linked);
            sessions.may_approve(uid, &asking, &|| true)
        };
        assert_eq!(sessions.may_approve(uid, &asking, &|| true), Ok(()), "no session at all");
        // The client is this very process, and then its parent.
        for client in [process::id(), std::os::unix::process::parent_id()] {
            assert_eq!(link_to(client, uid), Err(Refused::Descendant { client }));
        }
        // Everybody descends from the first process: as a client it says of nobody that they are its own.
        for client in [0, 1] {
            assert_eq!(link_to(client, uid), Ok(()), "{client}");
        }
        if uid != 0 {
            assert_eq!(link_to(process::id(), uid + 1), Ok(()), "another user's client");
        }
    }
}
