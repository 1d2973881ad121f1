//! The interceptor's link to the auditor: updates one way, decisions the other. Starts a user's auditor where none runs.
//!
//! Nothing of a session waits for this link but paused calls: what happened is in the journal, and the auditor reads
//! that. A link that breaks is made again.

use super::{
    ending::SILENCE,
    forward::PipeSession,
    rule_file::RuleFileFollower,
    session::{Decision, Report},
};
use ringfence_base::error::chain;
use ringfence_client::{places::Places, sessions as client};
use ringfence_session::notice;
use ringfence_wire::{
    conn::Conn,
    mcp::{MAX_MESSAGE, McpReply, McpRequest, SessionOrder, SessionUpdate},
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
    net::Shutdown,
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long a message may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long an auditor with much to store may take to welcome a session.
const WELCOME: Duration = Duration::from_secs(15);
/// How long the auditor may be out of reach before calls that wait are denied: longer than one takes to start or to welcome a
/// session, so that it is looked for a second time; shorter than the minute after which many clients give up.
const UNREACHABLE: Duration = Duration::from_secs(40);
/// Pause between the first two tries to reach an auditor; each failure doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// How long a session that the daemon's auditor served waits for it to come back before the user's own takes over: a
/// daemon that is started again is no reason to split a session.
const DAEMON_RETURN: Duration = Duration::from_secs(30);

/// How long an auditor that hangs up may be one that is just ending. Calls that wait time out meanwhile, and are
/// answered a little later.
const ENDING: Duration = Duration::from_secs(2);

/// How long the auditor may take for what it has not read yet when the session is over: some hundred thousand calls.
const COMMIT_LIMIT: Duration = Duration::from_secs(60);

/// How long lines are gathered before the auditor is notified: it reads many as fast as one, and each notification takes
/// the processor from the lines themselves.
const BATCH_TIME: Duration = Duration::from_millis(20);

/// How often the session's clock is ticked and its rule file is looked at.
const TICK: Duration = Duration::from_secs(1);

/// What the link needs to know of its session.
pub struct Link {
    /// The session.
    pub session: Arc<PipeSession>,
    /// Its id.
    pub id: String,
    /// Its journal.
    pub journal: PathBuf,
    /// The places of its database.
    pub places: Places,
    /// Its client speaks HTTP, and is not the parent of this process.
    pub http: bool,
    /// Port that an auditor started by us tries for its dashboard.
    pub port: u16,
}

/// An open link. It ends with this, though a thread that waits for orders has its socket, too: an auditor that sees no end of it
/// takes no other link of this session.
struct Connection {
    conn: Conn,
    orders: mpsc::Receiver<SessionOrder>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.conn.stream().shutdown(Shutdown::Both);
    }
}

impl Link {
    /// Keeps the link until the session is over; ticks the session's clock and follows its rule file meanwhile.
    pub fn keep(&self, reports: &mpsc::Receiver<Report>, mut rules: RuleFileFollower) {
        let mut connection: Option<Connection> = None;
        let mut tried: Option<Instant> = None;
        let mut pause = PAUSE;
        let mut ticked = Instant::now();
        let mut reached = Instant::now();
        let mut waiting = BTreeSet::new();
        let mut changed = None;
        // When the daemon's auditor was last seen to serve this session.
        let mut daemon: Option<Instant> = None;
        let mut last_error = String::new();
        self.session.report(Report::Grew);
        let (mut grew, mut notified) = (false, Instant::now());
        loop {
            let (mut newly_paused, mut released) = (Vec::new(), Vec::new());
            let wait = match (&connection, grew) {
                (Some(_), true) => BATCH_TIME.saturating_sub(notified.elapsed()),
                // Whatever else there is to do wakes this.
                (Some(_), false) => TICK.saturating_sub(ticked.elapsed()),
                (None, _) => Duration::from_millis(200),
            };
            let mut next = reports.recv_timeout(wait);
            // Before what is over or lost is looked at: what was reported before is here.
            while let Ok(report) = next {
                match report {
                    Report::Grew => grew = true,
                    Report::Wake => {}
                    Report::Paused(call) => newly_paused.push(call),
                    Report::Released(call) => {
                        waiting.remove(&call);
                        released.push(call);
                    }
                }
                next = reports.try_recv().map_err(|_| mpsc::RecvTimeoutError::Timeout);
            }
            // Before the exchange: what it finds is told at once.
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                let _ = self.session.tick();
                changed = rules.poll(&self.session).or(changed);
            }
            let over = self.session.is_over();
            if self.session.take_missed() {
                grew = true;
                let held: BTreeSet<String> = self.session.waiting().into_iter().collect();
                released.extend(waiting.difference(&held).cloned());
                waiting.retain(|call| held.contains(call));
                newly_paused.extend(held.into_iter().filter(|call| !waiting.contains(call)));
                newly_paused.sort_unstable();
                newly_paused.dedup();
            }
            for call in released {
                // An auditor that does not take one in time takes no other: each would cost its time again.
                let update = SessionUpdate::Released { call };
                if connection.as_mut().is_some_and(|link| link.conn.send(&update).is_err()) {
                    give_up(&self.session, connection.take(), &mut rules);
                }
            }
            if connection.is_none() && tried.is_none_or(|tried| tried.elapsed() >= pause || over) {
                tried = Some(Instant::now());
                let patient = daemon.is_some_and(|seen| seen.elapsed() < DAEMON_RETURN);
                match self.connect(patient) {
                    Ok((link, by_daemon)) => {
                        connection = Some(link);
                        daemon = by_daemon.then(Instant::now);
                        last_error.clear();
                    }
                    Err(why) if why != last_error => {
                        notice::print(&why);
                        last_error = why;
                    }
                    Err(_) => {}
                }
                changed = Some(rules.offer());
                pause = if connection.is_some() || patient { PAUSE } else { (2 * pause).min(LONG_PAUSE) };
                if connection.is_none() {
                    self.session.rules().none_stored();
                }
                // A new auditor knows nothing of the calls that wait.
                newly_paused.extend(std::mem::take(&mut waiting));
            }
            // A call that waits for a person is in the journal: the auditor must have read that far.
            let due = grew
                && connection.is_some()
                && (notified.elapsed() >= BATCH_TIME || !newly_paused.is_empty() || over);
            if due {
                (grew, notified) = (false, Instant::now());
                self.session.mark_reported();
            }
            if let Some(link) = &mut connection
                && !exchange(&self.session, link, due, &newly_paused, changed.take(), &mut rules)
            {
                give_up(&self.session, connection.take(), &mut rules);
            }
            waiting.extend(newly_paused);
            if connection.is_some() {
                reached = Instant::now();
                daemon = daemon.map(|_| reached);
            } else if reached.elapsed() >= UNREACHABLE {
                // Nobody can be asked: better a refusal now than silence until the client gives up.
                for call in self.session.waiting() {
                    let _ = self.session.decide(&call, &Decision::NoApprover);
                }
                waiting.clear();
            }
            if over {
                self.finish(connection);
                return;
            }
        }
    }

    /// Waits until the auditor has everything in the database.
    fn finish(&self, connection: Option<Connection>) {
        let Some(mut link) = connection else { return };
        if link.conn.send(&SessionUpdate::Ended).is_err() {
            return;
        }
        // A link that breaks ends this at once; one that is up means that the auditor reads what many fast calls left.
        let until = Instant::now() + COMMIT_LIMIT;
        let mut is_said = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match link.orders.recv_timeout(if is_said { left } else { left.min(SILENCE) }) {
                Ok(SessionOrder::Committed) => return,
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) if !is_said && left > SILENCE => {
                    is_said = true;
                    if io::stderr().is_terminal() {
                        notice::print(
                            "waiting for the auditor to store the session, whose journal is whole; Ctrl-C ends it at once",
                        );
                    }
                }
                Err(_) => break,
            }
        }
        notice::print(&format!(
            "the auditor did not say that the session is stored; its journal is {}",
            self.journal.display()
        ));
    }

    /// An auditor that serves the session, and whether it is the daemon's; else why there is none.
    fn connect(&self, patient: bool) -> Result<(Connection, bool), String> {
        let by_daemon = client::again(ENDING, || {
            client::connect_daemon(&self.places).map(|conn| self.open_session(conn)).transpose()
        });
        if let Some(connection) = by_daemon.map_err(|error| chain(&error))? {
            let places = self.places.clone();
            self.offer(move || {
                let gone = io::ErrorKind::ConnectionRefused.into();
                client::connect_daemon(&places)
                    .ok_or_else(|| client::Error::Reach { db: places.db.clone(), source: gone })
            });
            return Ok((connection, true));
        }
        if patient {
            return Err("the daemon's auditor is gone; trying again".to_owned());
        }
        let own = client::again(ENDING, || self.open_session(client::connect_own(&self.places, self.port)?));
        let connection = own.map_err(|error| chain(&error))?;
        let (places, port) = (self.places.clone(), self.port);
        self.offer(move || client::connect_own(&places, port));
        Ok((connection, false))
    }

    /// Hands over what earlier interceptors left behind, beside this session's own business.
    fn offer(&self, connect: impl Fn() -> Result<Conn, client::Error> + Send + 'static) {
        let places = self.places.clone();
        // What is not taken now is offered by the next interceptor.
        thread::spawn(move || client::offer_journals(&places, connect));
    }

    fn open_session(&self, mut conn: Conn) -> Result<Connection, client::Error> {
        let refused = client::Error::Refused;
        let file = ringfence_files::read(&self.journal).map_err(|error| {
            refused(format!("cannot read the journal {}: {error}", self.journal.display()))
        })?;
        let request = McpRequest::Session {
            session: self.id.clone(),
            journal: self.journal.display().to_string(),
            http: self.http,
        };
        conn.send_with_descriptors(&request, &[file.as_fd()])?;
        conn = conn.within(WELCOME);
        match conn.receive::<McpReply>()? {
            McpReply::Welcome { port, rules, tools } => {
                self.session.rules().set_stored(&rules);
                if !tools {
                    // An auditor of before there were pins.
                    self.session.pins().none_stored();
                }
                if ![0, self.port].contains(&port) && self.port != 0 {
                    notice::print(&format!("the dashboard is on port {port}, not on {}", self.port));
                }
            }
            McpReply::Failed(failure) => {
                return Err(refused(format!("the auditor refuses this session: {}", failure.error)));
            }
            _ => return Err(refused("the auditor answered something else".to_owned())),
        }
        conn = conn.within(LIMIT);
        let stream = conn
            .stream()
            .try_clone()
            .map_err(|error| refused(format!("cannot duplicate the link: {error}")))?;
        let mut reading = Conn::new(stream, LIMIT, MAX_MESSAGE);
        let (sender, orders) = mpsc::channel();
        let session = Arc::clone(&self.session);
        thread::spawn(move || {
            loop {
                let ready = poll(&mut [PollFd::new(reading.stream(), PollFlags::IN)], None);
                if !matches!(ready, Ok(_) | Err(rustix::io::Errno::INTR)) {
                    break;
                }
                let Ok(order) = reading.receive::<SessionOrder>() else { break };
                if sender.send(order).is_err() {
                    break;
                }
                // Wakes the link; where that has no room it is awake.
                session.report(Report::Wake);
            }
            // So does the end of the link.
            drop(sender);
            session.report(Report::Wake);
        });
        Ok(Connection { conn, orders })
    }
}

/// Sends what is new, carries out what came. False: the link is broken.
fn exchange(
    session: &PipeSession,
    link: &mut Connection,
    grew: bool,
    newly_paused: &[String],
    changed: Option<SessionUpdate>,
    rules: &mut RuleFileFollower,
) -> bool {
    // One that is decided already needs nobody.
    let paused = newly_paused.iter().filter_map(|call| {
        session.until(call).map(|until| SessionUpdate::Paused {
            call: call.clone(),
            until,
            fingerprint: session.fingerprint(call),
        })
    });
    let mut updates = changed.into_iter().chain(grew.then_some(SessionUpdate::Grew)).chain(paused);
    if !updates.all(|update| link.conn.send(&update).is_ok()) {
        return false;
    }
    loop {
        match link.orders.try_recv() {
            Ok(order) => carry_out(session, order, rules),
            Err(mpsc::TryRecvError::Empty) => return true,
            Err(mpsc::TryRecvError::Disconnected) => return false,
        }
    }
}

/// Ends a link that is broken, and carries out what came by it, also what its thread has still to read: whoever decided was told
/// that it counts.
fn give_up(session: &PipeSession, link: Option<Connection>, rules: &mut RuleFileFollower) {
    if let Some(link) = link {
        // Nothing more comes. The thread reads what is there, and ends.
        let _ = link.conn.stream().shutdown(Shutdown::Both);
        while let Ok(order) = link.orders.recv_timeout(LIMIT) {
            carry_out(session, order, rules);
        }
    }
    // What is pinned is waited for: the next link may come in time, and what goes to the client before cannot be called back.
    session.rules().none_stored();
}

fn carry_out(session: &PipeSession, order: SessionOrder, rules: &mut RuleFileFollower) {
    match order {
        SessionOrder::Decide { call, approve, by } => {
            let outcome = if approve { Decision::Approved(by) } else { Decision::Denied(by) };
            let _ = session.decide(&call, &outcome);
        }
        SessionOrder::Rules { rules } => session.rules().set_stored(&rules),
        // A client that is gone hears of nothing.
        SessionOrder::Tools { tools } => drop(session.set_pins(tools)),
        order @ SessionOrder::RuleFile { .. } => rules.apply_order(session, order),
        SessionOrder::Committed => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        seen::SeenTools,
        server_stdin::{ServerStdin, WriteProgress},
        session::{Options, Session},
    };
    use ringfence_session::{journal::Journal, reload::RuleFileWatch, rules};
    use ringfence_wire::{conn::is_hung_up, message::Failure};
    use std::{
        io::Read as _,
        os::unix::net::{UnixListener, UnixStream},
        path::Path,
    };

    /// A session with these rules, and what its server reads.
    fn session(folder: &Path, rules: &str) -> (Arc<PipeSession>, io::PipeReader) {
        let options = Options {
            server_name: "fs".into(),
            allow_unrecorded: false,
            unrecorded: None,
            store_raw: false,
            lenient: false,
            approval_timeout: Duration::from_secs(600),
            identity: crate::identity::StartIdentity::of(&[], &[]),
            max_held_bytes: 1 << 20,
        };
        let (server, stdin) = io::pipe().expect("a pipe");
        let ends = (ServerStdin::new(stdin, WriteProgress::default()), io::stdout());
        let journal = Journal::create(&folder.join("journal")).expect("a journal");
        let (reports, _reported) = mpsc::sync_channel(64);
        let parsed = rules::parse(rules).expect("rules");
        (Arc::new(Session::new(options, journal, parsed, SeenTools::default(), ends, reports)), server)
    }

    fn follower(folder: &Path, rules: &str) -> RuleFileFollower {
        let watch = RuleFileWatch::new(folder.join("rules"), rules.into()).expect("rules");
        RuleFileFollower::new(watch)
    }

    #[test]
    fn what_was_decided_counts_though_the_auditor_takes_nothing_any_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "rules: [{name: a, action: pause}]";
        let (session, mut server) = session(folder.path(), text);
        let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"t\"}}\n";
        session.client_lines(line.as_bytes()).expect("both ends");
        let call = session.waiting().pop().expect("it waits");
        let mut follower = follower(folder.path(), text);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut reading = Conn::new(ours.try_clone().expect("a descriptor"), LIMIT, MAX_MESSAGE);
        let (sender, orders) = mpsc::channel();
        let mut link = Connection { conn: Conn::new(ours, LIMIT, MAX_MESSAGE), orders };
        assert!(exchange(&session, &mut link, true, &[], None, &mut follower), "the control");
        let mut auditor = Conn::new(theirs, LIMIT, MAX_MESSAGE);
        auditor.send(&SessionOrder::Decide { call, approve: true, by: "uid 5".into() }).expect("sent");
        auditor.stream().shutdown(Shutdown::Read).expect("it takes nothing any more");
        // The thread is slow: it reads the order when the link has ended.
        let reads = thread::spawn(move || {
            while !is_hung_up(reading.stream()) {
                thread::sleep(Duration::from_millis(1));
            }
            while let Ok(order) = reading.receive::<SessionOrder>() {
                sender.send(order).expect("waited for");
            }
        });
        assert!(!exchange(&session, &mut link, true, &[], None, &mut follower), "the link is broken");
        assert_eq!(session.waiting().len(), 1, "nothing was read yet");
        session.pins().await_stored();
        give_up(&session, Some(link), &mut follower);
        reads.join().expect("no panic");
        assert_eq!(session.waiting().len(), 0, "decided all the same");
        assert!(session.pins().is_awaited(), "a list does not go to the client because a link broke");
        let mut forwarded = vec![0; line.len()];
        server.read_exact(&mut forwarded).expect("the call");
        assert_eq!(forwarded, line.as_bytes());
    }

    #[test]
    fn where_no_link_can_be_made_lists_wait_for_what_is_pinned() {
        let folder = tempfile::tempdir().expect("a folder");
        let (session, _server) = session(folder.path(), "rules: []");
        session.pins().await_stored();
        let socket = folder.path().join("daemon");
        let auditor = UnixListener::bind(&socket).expect("a socket");
        let (refuses, refused) = mpsc::channel();
        thread::spawn(move || {
            for stream in auditor.incoming().flatten() {
                let mut conn = Conn::new(stream, Duration::from_secs(60), MAX_MESSAGE);
                let _ = conn.receive::<McpRequest>();
                let _ = conn.send(&McpReply::Failed(Failure::new("no".to_owned())));
                let _ = refuses.send(());
            }
        });
        let db = folder.path().join("audit.db");
        let mut places = Places::locate(Some(&db.display().to_string())).expect("places");
        places.daemon = Some(socket);
        let journal = folder.path().join("journal");
        let id = uuid::Uuid::new_v4().to_string();
        let link = Link { session: Arc::clone(&session), id, journal, places, http: false, port: 0 };
        let rules = follower(folder.path(), "rules: []");
        let (_reports, reported) = mpsc::channel();
        let keeps = thread::spawn(move || link.keep(&reported, rules));
        // Where it tries again, all is done that there is to do about the first.
        (0..2).for_each(|_| refused.recv().expect("a link"));
        assert!(session.pins().is_awaited(), "what is pinned is not known");
        session.finish();
        keeps.join().expect("no panic");
        session.set_pins(Vec::new()).expect("both ends");
        assert!(!session.pins().is_awaited(), "the control");
    }

    #[test]
    fn a_link_that_is_given_up_ends_though_a_thread_still_waits_for_its_orders() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let waits = ours.try_clone().expect("a descriptor");
        let (_sender, orders) = mpsc::channel();
        let connection = Connection { conn: Conn::new(ours, LIMIT, MAX_MESSAGE), orders };
        assert!(!is_hung_up(&theirs), "the control");
        drop(connection);
        assert!(is_hung_up(&theirs), "the auditor sees the end of it");
        assert!(is_hung_up(&waits), "and so does the thread");
    }
}
