//! The run's proxy: how hosts are reached by name where no daemon leads connections there. The same egress worker as under the
//! daemon, as the launcher's user, at a port of loopback that is this run's, for whoever has this run's token. It ends with the
//! launcher; one that dies is started again, and the command stays closed meanwhile, for that is none of its doing.
//!
//! What clients and servers say is read by the worker alone. What it says of them is read here: numbers, and sentences that are
//! shown as text that somebody else wrote.

mod refused;
mod voice;

use crate::proxy_connect::VARIABLE;
use refused::Refused;
use ringfence_base::{error::chain, hex, loopback, socket_owners::SocketOwners};
use ringfence_policy::Profile;
use ringfence_supervise::{
    child::{Backoff, Process},
    worker::{QUIET, printable_reason, spawn_role},
};
use ringfence_wire::{
    conn::Conn,
    egress::{
        EgressProxy, EgressReports, Flow, FromEgress, MAX_QUESTION, MAX_REPORTS, Names, PROXY_USER,
        ProxyToken, ToEgress, Upload,
    },
    frame::{FrameError, read_message},
    mcp::McpReply,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, IsTerminal as _, Read as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use voice::Voice;

/// The worker's subcommand.
const ROLE: &str = "egress-worker";
/// How long a worker may take until it serves.
const START: Duration = Duration::from_secs(30);
/// How long it may take to end, with what it still has to say.
const END: Duration = Duration::from_secs(5);
/// How long a message of its may take once it has begun.
const MESSAGE: Duration = Duration::from_secs(5);
/// Lines for records that one worker is given, and complaints of workers that are shown in a run.
const MOST_LINES: usize = 16;
const MOST_COMPLAINTS: usize = 16;
/// Addresses that clients are told to reach without the proxy.
const MOST_DIRECT: usize = 64;
/// Bytes of the token.
const TOKEN: usize = 16;

/// A port for a proxy, before anything is served there.
pub(crate) struct Port {
    listener: TcpListener,
    /// It is nobody else's for UDP.
    _beside: UdpSocket,
    number: u16,
}

impl Port {
    /// A free one of loopback.
    ///
    /// # Errors
    /// As listen(2).
    pub(crate) fn open() -> io::Result<Self> {
        let (listener, beside) = loopback::listen_alone()?;
        let number = listener.local_addr()?.port();
        Ok(Self { listener, _beside: beside, number })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// See the module. Dropping it ends the worker.
pub(crate) struct Proxy {
    run: Arc<Run>,
    /// Until it is watched.
    worker: Option<Worker>,
    watch: Option<JoinHandle<()>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("port", &self.run.port.number).finish_non_exhaustive()
    }
}

/// A worker, and the end of the line on which its records come.
struct Worker {
    process: Process,
    records: UnixStream,
}

/// What is the same for every worker of a run.
struct Run {
    /// It stays the run's when its worker is gone.
    port: Port,
    setup: EgressProxy,
    /// The command's user, whose connections alone are served; `None`: it may become any.
    uid: Option<u32>,
    owners: SocketOwners,
    state: Mutex<State>,
    changed: Condvar,
    refused: Mutex<Refused>,
    voice: Arc<Voice>,
}

#[derive(Default)]
struct State {
    is_ending: bool,
    /// The worker's, while there is one.
    link: Option<UnixStream>,
    complaints: usize,
    /// What workers said that they send to what each entry of the profile grants. The next goes on from there: to end one's worker
    /// gives a command nothing back.
    uploads: HashMap<String, u64>,
}

impl Proxy {
    /// Starts a worker and waits until it serves. `uid`: the command's user; `None`: it may become any.
    ///
    /// # Errors
    /// Why it does not, in words.
    pub(crate) fn start(
        port: Port,
        profile: &Profile,
        names: Names,
        uid: Option<u32>,
    ) -> Result<Self, String> {
        let mut token = [0; TOKEN];
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut token))
            .map_err(|error| format!("/dev/urandom cannot be read: {error}"))?;
        let token = ProxyToken(hex::of(&token));
        let setup = EgressProxy { profile: profile.name.clone(), names, token, uploads: Vec::new() };
        // Where a person may look at the terminal, it is the command's until that ends.
        let refused = Refused::new(profile, !io::stderr().is_terminal());
        let hosts = setup.names.rules.iter().map(|rule| (rule.host.clone(), 0));
        let state = State { uploads: hosts.collect(), ..State::default() };
        let run = Arc::new(Run {
            port,
            setup,
            uid,
            owners: SocketOwners::open(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            refused: Mutex::new(refused),
            voice: Arc::default(),
        });
        let worker = Some(run.start_worker()?);
        Ok(Self { run, worker, watch: None })
    }

    /// What leads clients to it, and past it to the addresses that the profile grants.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let EgressProxy { token: ProxyToken(token), names, .. } = &self.run.setup;
        let place = format!("{PROXY_USER}:{token}@127.0.0.1:{}", self.run.port.number);
        let by_http = format!("http://{place}");
        let granted = names.addresses.iter().filter(|rule| rule.allow).map(|rule| {
            let is_one = rule.net.prefix_len() == rule.net.max_prefix_len();
            if is_one { rule.net.addr().to_string() } else { rule.net.to_string() }
        });
        let mut direct: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        for addr in granted.take(MOST_DIRECT) {
            if !direct.contains(&addr) {
                direct.push(addr);
            }
        }
        let direct = direct.join(",");
        vec![
            ("HTTPS_PROXY", by_http.clone()),
            ("https_proxy", by_http.clone()),
            ("HTTP_PROXY", by_http.clone()),
            ("http_proxy", by_http.clone()),
            // Not socks5h: clients that have no SOCKS fail at it, whatever they were to do (Python's httpx).
            ("ALL_PROXY", by_http.clone()),
            ("all_proxy", by_http),
            (VARIABLE, format!("socks5h://{place}")),
            ("NO_PROXY", direct.clone()),
            ("no_proxy", direct),
            // node asks for none of these without it.
            ("NODE_USE_ENV_PROXY", "1".to_owned()),
        ]
    }

    /// Hears the worker, and starts another when it ends. Starts threads: not before the command is forked.
    pub(crate) fn watch(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        let run = Arc::clone(&self.run);
        if let Err(error) = run.voice.start(io::stderr()) {
            run.voice.say(&format!("no host is reached by name: no thread can be started: {error}"));
            return;
        }
        let watch = thread::Builder::new().name("proxy".into()).spawn(move || run.supervise(worker));
        match watch {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => {
                self.run.voice.say(&format!("no host is reached by name: no thread can be started: {error}"));
            }
        }
    }

    /// Ends the worker, and says what is left to say.
    pub(crate) fn end(mut self) {
        self.stop();
        let Run { refused, voice, .. } = &*self.run;
        held(refused).rest().iter().for_each(|line| voice.say(line));
        // Whoever waits for the command's end does not wait for who reads this.
        voice.finish(END);
    }

    fn stop(&mut self) {
        self.run.end();
        if let Some(worker) = self.worker.take() {
            worker.process.finish(END);
        }
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Run {
    fn start_worker(&self) -> Result<Worker, String> {
        let process = spawn_role(ROLE, None, [QUIET]).map_err(|error| error.to_string())?;
        match self.hand_over(&process) {
            Ok(records) => Ok(Worker { process, records }),
            Err(why) => Err(format!("{why} ({})", process.kill())),
        }
    }

    /// Tells a worker what it serves, waits until it does, and gives it a line for its records before anybody asks it for anything.
    fn hand_over(&self, process: &Process) -> Result<UnixStream, String> {
        let link = process.socket().try_clone().map_err(|error| error.to_string())?;
        let mut conn = Conn::new(link, START, MAX_QUESTION);
        let order = ToEgress::Proxy(EgressProxy { uploads: self.uploads(), ..self.setup.clone() });
        conn.send_with_descriptors(&order, &[self.port.listener.as_fd()]).map_err(|error| chain(&error))?;
        loop {
            match conn.receive::<FromEgress>().map_err(|error| chain(&error))? {
                FromEgress::Ready => return give_line(&mut conn).map_err(|error| chain(&error)),
                FromEgress::Complaint(why) => return Err(printable_reason(&why)),
                FromEgress::Uploads(said) => self.sends(said),
                FromEgress::Counts(_) | FromEgress::Over(_) | FromEgress::Line => {}
                // A run has no process with credentials.
                FromEgress::LinkEnded { .. } => {}
                FromEgress::WhoIs { .. } => {
                    return Err("it asks whose a connection is before it serves any".to_owned());
                }
            }
        }
    }

    /// From one worker to the next, until the run ends.
    fn supervise(self: Arc<Self>, first: Worker) {
        let mut backoff = Backoff::default();
        let mut next = Some(first);
        while let Some(Worker { process, records }) = next.take() {
            let begun = Instant::now();
            let mut readers: Vec<_> = self.read(records).into_iter().collect();
            self.hear(&process, &mut readers);
            let is_ending = self.state().is_ending;
            // One that is asked to end is asked by the end of its link.
            let rest = if is_ending { None } else { process.socket().try_clone().ok() };
            let how = if is_ending { process.finish(END) } else { process.kill() };
            if let Some(rest) = rest {
                self.hear_rest(rest);
            }
            // What it said is read to its end.
            for reader in readers {
                let _ = reader.join();
            }
            if is_ending {
                return;
            }
            self.voice.say(&format!(
                "the run's proxy ended ({how}), and no host is reached by name until it is started again"
            ));
            backoff.failed(begun.elapsed());
            next = self.another(&mut backoff);
        }
    }

    /// The next worker, once there is one; `None`: the run ends.
    fn another(&self, backoff: &mut Backoff) -> Option<Worker> {
        let mut is_said = false;
        loop {
            let state = self.state();
            let waits = self.changed.wait_timeout_while(state, backoff.wait(), |state| !state.is_ending);
            if waits.unwrap_or_else(PoisonError::into_inner).0.is_ending {
                return None;
            }
            match self.start_worker() {
                Ok(worker) => return Some(worker),
                Err(why) if !is_said => {
                    is_said = true;
                    self.voice
                        .say(&format!("the run's proxy cannot be started again, which is tried on: {why}"));
                }
                Err(_) => {}
            }
            backoff.failed(Duration::ZERO);
        }
    }

    /// Hears a worker until its link is closed, or it takes no answers.
    fn hear(self: &Arc<Self>, process: &Process, readers: &mut Vec<JoinHandle<()>>) {
        let (Ok(link), Ok(kept)) = (process.socket().try_clone(), process.socket().try_clone()) else {
            return;
        };
        {
            let mut state = self.state();
            if state.is_ending {
                return;
            }
            state.link = Some(kept);
        }
        let mut conn = Conn::new(link, MESSAGE, MAX_QUESTION);
        loop {
            match poll(&mut [PollFd::new(conn.stream(), PollFlags::IN)], None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            }
            match conn.receive::<FromEgress>() {
                Ok(FromEgress::Complaint(what)) => self.complain(&what),
                Ok(FromEgress::Line) => {
                    let is_read = readers.last().is_some_and(|reader| !reader.is_finished());
                    if !is_read && readers.len() < MOST_LINES {
                        readers.extend(give_line(&mut conn).ok().and_then(|records| self.read(records)));
                    }
                }
                Ok(FromEgress::Uploads(said)) => self.sends(said),
                Ok(
                    FromEgress::Ready
                    | FromEgress::Counts(_)
                    | FromEgress::Over(_)
                    | FromEgress::LinkEnded { .. },
                ) => {}
                Ok(FromEgress::WhoIs { id, port }) => {
                    if conn.send(&ToEgress::Flow { id, flow: self.flow(port) }).is_err() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        self.state().link = None;
    }

    /// Hears what one had said that is gone, also behind a question that nobody could answer any more: it told what it sends before it
    /// sent that.
    fn hear_rest(&self, link: UnixStream) {
        let mut conn = Conn::new(link, MESSAGE, MAX_QUESTION);
        while let Ok(said) = conn.receive::<FromEgress>() {
            match said {
                FromEgress::Uploads(said) => self.sends(said),
                FromEgress::Complaint(what) => self.complain(&what),
                _ => {}
            }
        }
    }

    /// Whose a connection is, by its own port of loopback, if it may be the command's: it cannot be told which process's. Where the
    /// kernel does not say whose sockets are, it may be, and the token decides.
    fn flow(&self, port: u16) -> Option<Flow> {
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let uid = match self.uid.filter(|_| self.owners.are_known()) {
            Some(uid) => self.owners.of(at(port), at(self.port.number)).filter(|of| *of == uid)?,
            None => 0,
        };
        Some(Flow { address: Ipv4Addr::LOCALHOST, port, call: 0, pid: 0, tgid: 0, start: 0, uid })
    }

    /// A worker says how much it sends, of entries of the profile: it never becomes less.
    fn sends(&self, said: Vec<Upload>) {
        let mut state = self.state();
        for Upload { host, bytes } in said {
            if let Some(known) = state.uploads.get_mut(&host) {
                *known = bytes.max(*known);
            }
        }
    }

    fn uploads(&self) -> Vec<Upload> {
        let state = self.state();
        let sent = state.uploads.iter().filter(|(_, bytes)| **bytes > 0);
        sent.map(|(host, bytes)| Upload { host: host.clone(), bytes: *bytes }).collect()
    }

    /// Reads a worker's records, which nobody else keeps, until it closes their line.
    fn read(self: &Arc<Self>, mut records: UnixStream) -> Option<JoinHandle<()>> {
        let run = Arc::clone(self);
        let read = move || {
            while let Ok(EgressReports { reports }) = read_message(&mut records, MAX_REPORTS) {
                for report in reports {
                    let sentence = held(&run.refused).add(&report.record);
                    sentence.inspect(|sentence| run.voice.say(sentence));
                }
            }
        };
        thread::Builder::new().name("refusals".into()).spawn(read).ok()
    }

    fn complain(&self, what: &str) {
        let is_shown = {
            let mut state = self.state();
            state.complaints += 1;
            state.complaints <= MOST_COMPLAINTS
        };
        if is_shown {
            self.voice.say(&format!("the run's proxy says: {}", printable_reason(what)));
        }
    }

    /// The run ends, and its worker.
    fn end(&self) {
        let mut state = self.state();
        state.is_ending = true;
        if let Some(link) = state.link.take() {
            let _ = link.shutdown(std::net::Shutdown::Both);
        }
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }
}

/// Gives a worker a line for its records.
fn give_line(link: &mut Conn) -> Result<UnixStream, FrameError> {
    let (ours, theirs) = UnixStream::pair().map_err(FrameError::from_io)?;
    let other = ours.try_clone().map_err(FrameError::from_io)?;
    Conn::new(other, MESSAGE, MAX_QUESTION).send(&McpReply::Linked)?;
    link.send_with_descriptors(&ToEgress::Line, &[theirs.as_fd()])?;
    Ok(ours)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
