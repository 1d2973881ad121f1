//! The daemon: permits shims to go on, runs v1's tools, writes down every run.
//!
//! | what | file |
//! |---|---|
//! | flags | `args` |
//! | its socket | `socket` |
//! | one connection | `client` |
//! | a v1 run | `work` |
//! | who may use v1 | `caller` |
//! | what is written down | `log` |
//!
//! One thread that waits for everything at once. Connections, tools, requests and answers are all bounded.

mod args;
mod caller;
mod client;
mod log;
mod socket;
mod work;

pub use args::{Args, Limits};

use super::{child::End, find, say};
use crate::{
    runtime::tree,
    signals::{Signal, Signals},
};
use client::{Client, ClientEvent, NoPidfd, State, refusal};
use log::{Log, Record};
use ringfence_base::error::chain;
use ringfence_wire::runner::{Answer, Ask, Done, Line, Protocol, RequestError};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    process::{
        Pid, Resource, Rlimit, WaitOptions, geteuid, getpgid, getrlimit, kill_process, kill_process_group,
        setrlimit, wait,
    },
};
use socket::Socket;
use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use work::Work;

/// Most connections at a time, beside those of running tools.
const MOST_CLIENTS: usize = 192;

/// Descriptors that a running tool takes: a v1 tool's connection and both its outputs; a shim's connection and process.
const PER_TOOL: usize = 3;

/// Descriptors of the daemon itself, with room for those that are open for a moment.
const OWN_FILES: usize = 32;

/// How long until a tool that has had its time, and still runs, is killed again.
const AGAIN: Duration = Duration::from_millis(200);
/// So often a process that may be a shim is left to end by itself.
const SPARED: u8 = 15;

/// Status of a tool that was refused, as a shell has it for what cannot be run.
const REFUSED: u8 = 126;

/// Status of a v1 request that cannot be understood, as the old protocol has it for exceptions.
const BROKEN: u8 = 1;

/// Why the daemon cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("another daemon serves {0}; end it first, or give --socket another path")]
    Served(String),
    #[error("{0} is there and is no socket; remove it, or give --socket another path")]
    NoSocket(String),
    #[error("{0} is too long for a socket's path, which has at most 107 bytes")]
    LongPath(String),
    #[error("cannot listen on {path}")]
    Listen {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot write the log {path}")]
    Log {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{tools} tools at a time (--max-tools) need {wanted} open files, and no more than {hard} may be: see `ulimit -Hn`"
    )]
    Files { tools: usize, wanted: u64, hard: u64 },
    #[error("cannot set how many files may be open")]
    SetFiles(#[source] io::Error),
    #[error("cannot wait for signals and connections")]
    Wait(#[source] io::Error),
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &Args) -> ExitCode {
    match Daemon::start(&args.socket, &args.limits).and_then(|mut daemon| daemon.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{}", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// A daemon that listens.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: Socket,
    signals: Signals,
    limits: Limits,
    own: Option<(u64, u64)>,
    log: Log,
    clients: Vec<Client>,
    runs: Vec<Run>,
    next: u64,
}

/// A tool that was permitted to run.
#[derive(Debug)]
struct Run {
    record: Record,
    began: Instant,
    deadline: Option<Instant>,
    /// Tells when the process ends; none for v1's own children, and where the kernel has none to give.
    process: Option<OwnedFd>,
    done: Option<Done>,
    /// How often it was left alone when its time was over, as a shim that may be about to end with its tool.
    spared: u8,
}

impl Daemon {
    /// Listens.
    pub(crate) fn start(socket: &Path, limits: &Limits) -> Result<Self, Error> {
        room_for_files(limits.max_tools())?;
        let log = Log::open(limits.log.as_deref()).map_err(|source| Error::Log {
            path: limits.log.as_deref().unwrap_or(Path::new("")).display().to_string(),
            source,
        })?;
        let signals =
            Signals::block(&[Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT]).map_err(Error::Wait)?;
        Ok(Self {
            socket: Socket::bind(socket)?,
            signals,
            limits: limits.clone(),
            own: find::own_file(),
            log,
            clients: Vec::new(),
            runs: Vec::new(),
            next: 1,
        })
    }

    /// Serves until SIGTERM or SIGINT; then v1's tools are ended. What shims became goes on.
    pub(crate) fn serve(&mut self) -> Result<(), Error> {
        loop {
            let (accept, signalled) = self.wait()?;
            if signalled && self.signals()? {
                break;
            }
            self.enforce_deadlines();
            let is_over = |client: &mut Client| matches!(client.state, State::Closed);
            self.clients.extract_if(.., is_over).for_each(|client| client.end());
            if accept {
                self.accept();
            }
        }
        for client in &self.clients {
            if let State::Working(work) = &client.state {
                work.kill();
            }
        }
        Ok(())
    }

    /// Waits, and does what the clients and tools want. Whether somebody connects, and whether a signal came.
    fn wait(&mut self) -> Result<(bool, bool), Error> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        // Nobody can be asked to go: the rest waits in the socket's queue.
        let is_full = self.is_crowded() && self.to_crowd_out().is_none();
        let listens = if is_full { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(self.socket.listener.as_fd(), listens));
        let polled: Vec<usize> = (0..self.clients.len())
            .filter(|index| self.clients.get(*index).is_some_and(|client| client.events().is_some()))
            .collect();
        for client in &self.clients {
            fds.extend(client.events().map(|events| PollFd::from_borrowed_fd(client.stream.as_fd(), events)));
        }
        let watched: Vec<u64> =
            self.runs.iter().filter(|run| run.process.is_some()).map(|run| run.record.run).collect();
        fds.extend(
            self.runs
                .iter()
                .filter_map(|run| run.process.as_ref())
                .map(|process| PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)),
        );
        for client in &self.clients {
            if let State::Working(work) = &client.state {
                fds.extend(work.watch());
            }
        }
        match poll(&mut fds, self.next_deadline().as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((false, false)),
            Err(error) => return Err(Error::Wait(error.into())),
        }
        let happened: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut happened = happened.into_iter();
        let mut next = || happened.next().unwrap_or(PollFlags::empty());
        let (signalled, accept) = (!next().is_empty(), !next().is_empty());
        for index in polled {
            let what = next();
            if !what.is_empty()
                && let Some(client) = self.clients.get_mut(index)
            {
                let event = client.ready(what);
                self.handle(index, event);
            }
        }
        for run in watched {
            if !next().is_empty() {
                self.ended(run);
            }
        }
        for client in &mut self.clients {
            if let State::Working(work) = &mut client.state {
                work.read();
            }
        }
        Ok((accept, signalled))
    }

    fn next_deadline(&self) -> Option<Timespec> {
        let clients = self.clients.iter().filter_map(Client::deadline);
        let next = clients.chain(self.runs.iter().filter_map(|run| run.deadline)).min()?;
        // A millisecond more: poll is not to wake up before the time has come.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    }

    fn is_crowded(&self) -> bool {
        self.clients.len() >= MOST_CLIENTS + self.limits.max_tools()
    }

    /// The oldest connection without a tool of the user who has the most of those.
    fn to_crowd_out(&self) -> Option<usize> {
        let idle = || self.clients.iter().enumerate().filter(|(_, client)| client.is_idle());
        let of = |uid: u32| idle().filter(|(_, client)| client.uid == uid).count();
        let uids: HashSet<u32> = idle().map(|(_, client)| client.uid).collect();
        let uid = uids.into_iter().max_by_key(|uid| of(*uid))?;
        idle().find(|(_, client)| client.uid == uid).map(|(index, _)| index)
    }

    fn accept(&mut self) {
        if self.is_crowded()
            && let Some(index) = self.to_crowd_out()
        {
            // In its place: the oldest are first.
            self.clients.remove(index).end();
        }
        match self.socket.listener.accept().and_then(|(stream, _)| Client::new(stream)) {
            Ok(mut client) => {
                // A shim's question comes with its connection: no need to wait for it once more.
                let event = client.ready(PollFlags::IN);
                self.clients.push(client);
                self.handle(self.clients.len() - 1, event);
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => say(format_args!("cannot take a connection: {error}")),
        }
    }

    fn handle(&mut self, index: usize, event: ClientEvent) {
        match event {
            ClientEvent::Nothing => {}
            ClientEvent::AskPermission(ask) => self.permit(index, ask),
            ClientEvent::Run(line) => self.work(index, line),
            ClientEvent::Gone => self.gone(index),
            ClientEvent::Bad(protocol, error) => self.bad(index, protocol, &error),
        }
    }

    /// A shim asks for permission.
    fn permit(&mut self, index: usize, ask: Ask) {
        let full = self.clients.get(index).and_then(|client| self.no_room(client.uid));
        let Some(client) = self.clients.get_mut(index) else { return };
        let number = if full.is_some() { 0 } else { self.next };
        let mut record = Record::new(number, 2, client.pid, client.uid, ask);
        if let Some(why) = full {
            client.refuse(Protocol::V2, REFUSED, &why);
            record.refused = Some(why);
            self.log.write(&record);
            return;
        }
        self.next += 1;
        // A kernel or a filter without pidfds leaves its end unknown. Of one that ended there is nothing to follow: what
        // has its number now is somebody else's.
        let process = client.process().ok();
        // Before the answer: where processors are few, the tool may be done when this goes on.
        let began = Instant::now();
        client.go(number, &Answer::Go { run: number, shape: self.limits.shape() });
        if process.is_none() {
            client.state = State::Closed;
            self.log.write(&record);
            return;
        }
        self.runs.push(Run {
            record,
            began,
            deadline: self.limits.deadline(began),
            process,
            done: None,
            spared: 0,
        });
    }

    /// Why a user may not have one more tool now. Half of the places are the most for one user, three quarters for all users
    /// together: the rest is for root and for the daemon's own user, whose container it is.
    fn no_room(&self, uid: u32) -> Option<String> {
        let most = self.limits.max_tools();
        if self.runs.len() >= most {
            return Some(format!("{most} tools run, which is the most (--max-tools)"));
        }
        let has_all = |uid: u32| uid == 0 || uid == geteuid().as_raw();
        if has_all(uid) {
            return None;
        }
        let (each, all) = (most.div_ceil(2), most - most / 4);
        let count =
            |wanted: &dyn Fn(u32) -> bool| self.runs.iter().filter(|run| wanted(run.record.uid)).count();
        if count(&|of| of == uid) >= each {
            return Some(format!(
                "{each} tools of user {uid} run, which is the most for one user (half of --max-tools)"
            ));
        }
        (count(&|of| !has_all(of)) >= all)
            .then(|| format!("{all} tools of users run; the rest of --max-tools is kept for root"))
    }

    /// A v1 request.
    fn work(&mut self, index: usize, line: Line) {
        let full = self.clients.get(index).and_then(|client| self.no_room(client.uid));
        let Some(client) = self.clients.get_mut(index) else { return };
        let mut words = line.words.iter().map(|word| String::from_utf8_lossy(word));
        let cmd = words.next().unwrap_or_default().into_owned();
        let cwd = std::env::current_dir().unwrap_or_default().to_string_lossy().into_owned();
        let mut record = Record::new(0, 1, client.pid, client.uid, Ask::new(cmd, words, cwd, false));
        let refused = full.map_or_else(|| may_borrow(client), Err);
        if let Err(why) = refused {
            client.refuse(Protocol::V1, BROKEN, &why);
            record.refused = Some(why);
            self.log.write(&record);
            return;
        }
        record.run = self.next;
        self.next += 1;
        let began = Instant::now();
        match Work::start(record.run, line, &self.limits.shape(), self.limits.timeout(), self.own) {
            Ok(work) => {
                record.pid = work.tool.as_raw_nonzero().get();
                client.state = State::Working(Box::new(work));
                self.runs.push(Run { record, began, deadline: None, process: None, done: None, spared: 0 });
            }
            Err((status, why)) => {
                client.answer(refusal(status, &why));
                record.ended(began.elapsed(), Some(Done { status: Some(status), ..Done::default() }));
                self.log.write(&record);
            }
        }
    }

    /// Whoever waits for a v1 tool hung up: nobody will read its output.
    fn gone(&mut self, index: usize) {
        let Some(client) = self.clients.get_mut(index) else { return };
        if let State::Working(work) = std::mem::replace(&mut client.state, State::Closed) {
            work.kill();
            let run = work.run;
            self.ended(run);
        }
    }

    fn bad(&mut self, index: usize, protocol: Protocol, error: &RequestError) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let why = format!("{error}; nothing was run");
        let status = if protocol == Protocol::V1 { BROKEN } else { REFUSED };
        client.refuse(protocol, status, &why);
        let version = if protocol == Protocol::V1 { 1 } else { 2 };
        let mut record = Record::new(0, version, client.pid, client.uid, Ask::default());
        record.refused = Some(why);
        self.log.write(&record);
    }

    /// A run is over.
    fn ended(&mut self, number: u64) {
        let Some(index) = self.runs.iter().position(|run| run.record.run == number) else { return };
        let mut run = self.runs.swap_remove(index);
        let permitted =
            |client: &&mut Client| matches!(client.state, State::Permitted { run } if run == number);
        if let Some(client) = self.clients.iter_mut().find(permitted) {
            run.done = client.take_report();
        }
        run.record.ended(run.began.elapsed(), run.done.take());
        self.log.write(&run.record);
    }

    /// Takes in signals; whether it is time to go.
    fn signals(&mut self) -> Result<bool, Error> {
        while let Some(signal) = self.signals.next().map_err(Error::Wait)? {
            if signal != Signal::SIGCHLD {
                return Ok(true);
            }
        }
        // Also what is nobody's: as a container's first process the daemon inherits every orphan.
        while let Ok(Some((pid, status))) = retry_on_intr(|| wait(WaitOptions::NOHANG)) {
            if let Some(end) = End::of(status) {
                self.reaped(pid, end);
            }
        }
        Ok(false)
    }

    fn reaped(&mut self, pid: Pid, end: End) {
        let its = |client: &&mut Client| matches!(&client.state, State::Working(work) if work.tool == pid);
        let Some(client) = self.clients.iter_mut().find(its) else { return };
        let State::Working(work) = std::mem::replace(&mut client.state, State::Closed) else { return };
        let number = work.run;
        let (answer, done) = work.finish(end);
        client.answer(answer);
        if let Some(run) = self.runs.iter_mut().find(|run| run.record.run == number) {
            run.done = Some(done);
        }
        self.ended(number);
    }

    /// Ends what has had its time: slow clients, and tools.
    fn enforce_deadlines(&mut self) {
        let now = Instant::now();
        for index in 0..self.clients.len() {
            let Some(client) = self.clients.get_mut(index) else { continue };
            let mut over = None;
            if let State::Working(work) = &mut client.state
                && work.check(now)
            {
                over = Some(work.run);
            }
            let event = client.check_deadline(now);
            if let Some(run) = self.runs.iter_mut().find(|run| Some(run.record.run) == over) {
                run.record.timed_out = true;
            }
            self.handle(index, event);
        }
        for run in &mut self.runs {
            if run.deadline.is_some_and(|deadline| now >= deadline) {
                run.record.timed_out = true;
                let stands_in = self.clients.iter().any(|client| client.stands_in(run.record.run));
                end_tool(run, stands_in);
                // A shim that has not come to its tool yet is left alone, and looked at again.
                run.deadline = Some(now + AGAIN);
            }
        }
    }
}

/// Whether a caller may use v1. What is read of it goes by its number, which is its own only until it has ended.
fn may_borrow(client: &Client) -> Result<(), String> {
    let process = match client.process() {
        Ok(process) => Some(process),
        Err(NoPidfd::Unknown) => None,
        Err(NoPidfd::Ended) => return Err(caller::refusal("the caller has ended")),
    };
    caller::may_borrow(client.pid)?;
    let ended = |process: OwnedFd| {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)) != Ok(0)
    };
    if process.is_some_and(ended) {
        return Err(caller::refusal("the caller has ended"));
    }
    Ok(())
}

/// Lets the daemon open what so many tools need. The usual limit of 1024 is enough for the usual 256 tools.
fn room_for_files(tools: usize) -> Result<(), Error> {
    let wanted = (tools * PER_TOOL + MOST_CLIENTS + OWN_FILES) as u64;
    let now = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    match now.maximum {
        _ if enough(now.current) => Ok(()),
        Some(hard) if hard < wanted => Err(Error::Files { tools, wanted, hard }),
        maximum => setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
            .map_err(|error| Error::SetFiles(error.into())),
    }
}

/// Ends a tool that a shim became, or runs, with all below it; and its group where it leads one. A tool that a script
/// started is in the script's group, which is not the tool's to end.
fn end_tool(run: &mut Run, stands_in: bool) {
    // The process is watched: until its end was seen, its number is its own.
    let Some(pid) = Pid::from_raw(run.record.pid) else { return };
    let leads = getpgid(Some(pid)) == Ok(pid);
    // A shim ends by itself soon after its tool, and says what was cut; what does not end has only held its connection open.
    let is_shim = stands_in && run.spared < SPARED;
    run.spared = run.spared.saturating_add(1);
    let tool = (!is_shim).then_some(pid);
    // The tool before what it started: it is not to see that end, and end in a manner of its own.
    for one in tool.into_iter().chain(tree::descendants(pid)) {
        let _ = kill_process(one, rustix::process::Signal::KILL);
    }
    // Not a shim's: what stands beside it in a pipe may be in its group.
    if leads && !is_shim {
        let _ = kill_process_group(pid, rustix::process::Signal::KILL);
    }
}
