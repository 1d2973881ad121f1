//! One round of tool calls, in parallel where that changes nothing, and waiting for everything that a runtime waits for.

use super::{
    args::Settings,
    call::{Background, CHUNK, Call, MOST_BACKGROUND, Outcome},
    message::ToolCall,
    tag::Tagger,
    work::Job,
};
use crate::signals::{Signal, Signals, wait_for};
use rustix::{
    event::{PollFd, PollFlags},
    io::retry_on_intr,
    process::{self, Pid, WaitOptions},
};
use std::{
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Most calls that run at once; the others of a round wait for a place.
const MOST_AT_ONCE: usize = 16;

/// Most calls of one answer that are run.
const MOST_CALLS: usize = 128;

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wakeup {
    /// The runtime is to end.
    Stop,
    /// There is something to read from the daemon, or it is gone.
    Link,
    /// Something else, or the time.
    Other,
}

/// How a round ended.
#[derive(Debug)]
pub(super) enum Round {
    /// Every call's outcome, in the order of the calls.
    Done(Vec<Outcome>),
    /// The daemon went away; everything that ran was ended.
    LinkGone,
    /// The runtime is to end.
    Stop,
}

/// Waits for signals, the daemon, calls, and what they left running.
#[derive(Debug)]
pub(super) struct Watch {
    signals: Signals,
    background: Vec<Background>,
}

impl Watch {
    /// Takes over the signals that end the runtime or report its children, and adopts its orphans.
    ///
    /// # Errors
    /// signalfd(2)'s or prctl(2)'s.
    pub(super) fn new() -> io::Result<Self> {
        let signals = Signals::block(&[Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
        // A supervisor that is killed leaves its tree to us.
        process::set_child_subreaper(Some(process::getpid()))?;
        Ok(Self { signals, background: Vec::new() })
    }

    /// Waits until the daemon sends something or is gone.
    ///
    /// # Errors
    /// poll(2)'s.
    pub(super) fn for_link(&mut self, link: BorrowedFd<'_>) -> io::Result<Wakeup> {
        loop {
            match self.once(Some((link, PollFlags::IN)), &mut [], None)? {
                Wakeup::Other => {}
                wakeup => return Ok(wakeup),
            }
        }
    }

    /// Waits for a time; `Stop` ends it early.
    ///
    /// # Errors
    /// poll(2)'s.
    pub(super) fn for_time(&mut self, time: Duration) -> io::Result<Wakeup> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.once(None, &mut [], Some(until))? == Wakeup::Stop {
                return Ok(Wakeup::Stop);
            }
        }
        Ok(Wakeup::Other)
    }

    /// Runs calls, at most [`MOST_AT_ONCE`] at a time. One that another's work could change waits for those before it.
    ///
    /// # Errors
    /// poll(2)'s.
    pub(super) fn run(
        &mut self,
        calls: &[ToolCall],
        settings: &Settings,
        link: BorrowedFd<'_>,
        tagger: &mut dyn Tagger,
    ) -> io::Result<Round> {
        let mut outcomes: Vec<Option<Outcome>> = calls.iter().map(|_| None).collect();
        let mut running: Vec<Slot> = Vec::new();
        let mut waiting = calls.iter().enumerate().peekable();
        loop {
            while running.len() < MOST_AT_ONCE
                && let Some((index, call)) = waiting.next_if(|(_, call)| may_join(&running, &call.name))
            {
                match start(index, call, settings, tagger) {
                    Ok(started) => running.push(Slot { index, call: started, job: Job::named(&call.name) }),
                    Err(refused) => outcomes[index] = Some(refused),
                }
            }
            let Some(until) = running.iter().map(|slot| slot.call.deadline()).min() else { break };
            let wakeup = self.once(Some((link, PollFlags::empty())), &mut running, Some(until))?;
            if wakeup != Wakeup::Other {
                // Nobody waits for the outcomes any more; ending the calls is what dropping them does, file tools apart.
                running.iter_mut().for_each(|slot| slot.call.end_all());
                return Ok(if wakeup == Wakeup::Stop { Round::Stop } else { Round::LinkGone });
            }
            let now = Instant::now();
            running.retain_mut(|slot| {
                let has_room = self.background.len() < MOST_BACKGROUND;
                let Some((outcome, left)) = slot.call.settle(now, has_room) else { return true };
                outcomes[slot.index] = Some(outcome);
                self.background.extend(left);
                false
            });
        }
        let missing = || Outcome::refused("this call was not run");
        Ok(Round::Done(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect()))
    }

    /// One wait; sees to everything that became ready.
    fn once(
        &mut self,
        link: Option<(BorrowedFd<'_>, PollFlags)>,
        running: &mut [Slot],
        until: Option<Instant>,
    ) -> io::Result<Wakeup> {
        let signals = self.signals.as_fd();
        let mut watched = vec![PollFd::new(&signals, PollFlags::IN)];
        let others = running.iter().flat_map(|slot| [&slot.call.status, &slot.call.out]).flatten();
        let left = self.background.iter().flat_map(|left| left.out.iter().chain([&left.status]));
        watched.extend(others.chain(left).map(|file| PollFd::new(file, PollFlags::IN)));
        if let Some((link, flags)) = &link {
            watched.push(PollFd::new(link, *flags));
        }
        // Rounded up: waking early would spin.
        let time = until.map(|end| end.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        wait_for(&mut watched, time)?;
        let has_link = link.is_some() && watched.last().is_some_and(|last| !last.revents().is_empty());
        drop(watched);

        let stop = self.read_signals(running);
        for slot in running {
            slot.call.read();
        }
        self.background.retain_mut(discard);
        Ok(match (stop, has_link) {
            (true, _) => Wakeup::Stop,
            (false, true) => Wakeup::Link,
            (false, false) => Wakeup::Other,
        })
    }

    /// Takes the signals that came and reaps who died; whether the runtime is to end.
    fn read_signals(&mut self, running: &mut [Slot]) -> bool {
        let mut stop = false;
        while let Ok(Some(signal)) = self.signals.next() {
            stop |= signal != Signal::SIGCHLD;
        }
        while let Some(pid) = reap() {
            running.iter_mut().for_each(|slot| slot.call.reaped(pid));
        }
        stop
    }
}

/// A call that runs, and its place in the round.
#[derive(Debug)]
struct Slot {
    index: usize,
    call: Call,
    job: Option<Job>,
}

/// Whether a call of a tool may run beside these.
fn may_join(running: &[Slot], tool: &str) -> bool {
    // One of no tool is refused at once.
    let Some(job) = Job::named(tool) else { return true };
    running.iter().all(|slot| slot.job.is_none_or(|beside| beside.is_independent_of(job)))
}

fn start(
    index: usize,
    call: &ToolCall,
    settings: &Settings,
    tagger: &mut dyn Tagger,
) -> Result<Call, Outcome> {
    if index >= MOST_CALLS {
        return Err(Outcome::refused(format!(
            "not run: one answer may have {MOST_CALLS} tool calls, the others have to be made again"
        )));
    }
    let Some(job) = settings.jobs.iter().find(|job| job.name() == call.name) else {
        let names: Vec<&str> = settings.jobs.iter().copied().map(Job::name).collect();
        return Err(Outcome::refused(format!(
            "there is no tool `{}` here; there are: {}",
            call.name,
            names.join(", ")
        )));
    };
    let (work, limit) = job.plan(call.input.clone(), settings.timeout).map_err(Outcome::refused)?;
    Call::start(&call.id, work, limit, settings.max_chars, &settings.dir, tagger)
        .map_err(|error| Outcome::refused(format!("no process could be started for this call: {error}")))
}

/// Throws away what a background process prints; whether it still runs.
fn discard(left: &mut Background) -> bool {
    let mut chunk = [0; CHUNK];
    if let Some(out) = &mut left.out
        && matches!(out.read(&mut chunk), Ok(0))
    {
        left.out = None;
    }
    !matches!(left.status.read(&mut chunk), Ok(0))
}

fn reap() -> Option<Pid> {
    retry_on_intr(|| process::wait(WaitOptions::NOHANG)).ok().flatten().map(|(pid, _)| pid)
}
