//! Events and the calls they belong to, as they are asked for: the rows of a call may arrive after its events, so nothing
//! of this is stored.

use super::sessions::Sessions;
use ringfence_base::platform;
use ringfence_events::{
    attribute::{Attribution, Moment, Span, attribute, from, line},
    decode::Decoded,
    matched::{Asked, by_path, touched},
    present::{self, Stored},
    ties::{attribute_untagged, known_beside, since},
};
use ringfence_sandbox::host;
use ringfence_store::{Error, Inside, MOST_SPANS, Reader, RunCalls, SessionReader, Viewer};
use ringfence_wire::event::Event;
use std::collections::HashMap;

/// Events shown under one call.
const MOST_EVENTS: u32 = 500;

/// The oldest kernel on which no process loses its tag: before, a fork goes on without it where its storage is busy.
const KEEPS_TAGS: (u32, u32) = (6, 2);

/// What is known of one container's calls.
struct KnownCalls {
    calls: Vec<Span>,
    /// Every call forwarded up to then is among them, ns since boot.
    to: u64,
    /// When the first of all calls began, ns since boot.
    first: Option<u64>,
}

/// What is known of the calls of an agent of the daemon's that may be of a container.
struct AgentCalls {
    calls: Vec<Asked>,
    /// When the first began since there is the container, ns since boot.
    first: Option<u64>,
}

/// What of an event says whose it is. `first`: when the first of all calls began that may be of its container.
fn moment(record: &Decoded, first: Option<u64>) -> Moment {
    let (at, born) = (record.time, record.start);
    let single = record.repeats == 1 && at != 0;
    Moment { at, born, line: line(born, &record.lineage, first), single }
}

/// Finds the calls that events belong to: the store, opened once, and only where an event's process was tagged for none.
pub(crate) struct Attributor<'a> {
    sessions: &'a Sessions,
    readers: Option<(SessionReader, Reader)>,
}

/// One page of events, see [`Attributor::events`].
///
/// # Errors
/// Those of the store.
pub(crate) fn events(sessions: &Sessions, page: &[Stored]) -> Result<Vec<Event>, Error> {
    Attributor::new(sessions).events(page)
}

impl<'a> Attributor<'a> {
    /// For events and calls of these sessions, and of agents.
    pub(crate) fn new(sessions: &'a Sessions) -> Self {
        Self { sessions, readers: None }
    }

    /// Events as they are sent, with the calls they belong to. Call [`Sessions::refresh`] before the events are read.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn events(&mut self, page: &[Stored]) -> Result<Vec<Event>, Error> {
        // Where the kernel tagged a process, nothing is looked up.
        if page.iter().all(|stored| stored.record.call != 0) {
            return Ok(page.iter().map(present::event).collect());
        }
        let (reader, agents) = match &mut self.readers {
            Some(readers) => readers,
            none => none.insert((SessionReader::open(&self.sessions.db)?, Reader::open(&self.sessions.db)?)),
        };
        let mut known = HashMap::new();
        for (container, times) in spread(page, |stored| &stored.container) {
            known.insert(container, calls_of(reader, self.sessions, container, times)?);
        }
        let (of_agents, of_runs) = (in_flight(agents, page)?, reported(agents, page)?);
        let keeps_tags = platform::version(&host::release()).is_some_and(|version| version >= KEEPS_TAGS);
        let attributed = page.iter().map(|stored| {
            let mut event = present::event(stored);
            let record = &stored.record;
            if record.call != 0 {
                return event;
            }
            if let Some(Some(KnownCalls { calls, to, first })) = known.get(stored.container.as_str()) {
                present::attribute(&mut event, attribute(moment(record, *first), calls, *to));
            } else if let Some(RunCalls { calls, known_to, first, gaps }) =
                of_runs.get(stored.container.as_str())
            {
                // Whatever agent of the daemon's has the same profile. The first call may be one that was lost.
                let first = first.iter().copied().chain(gaps.iter().map(|gap| gap.from)).min();
                let moment = moment(record, first);
                let known_to = known_beside(gaps, moment, *known_to);
                let answer = attribute_untagged(moment, calls, known_to, keeps_tags);
                let asked = calls.iter().map(|call| &call.asked);
                let answer = by_path(answer, moment, &touched(record), asked, known_to);
                present::attribute(&mut event, answer);
            } else if let Some(AgentCalls { calls, first }) = of_agents.get(stored.container.as_str()) {
                let answer = attribute_in_flight(moment(record, *first), &touched(record), calls);
                present::attribute(&mut event, answer);
            }
            event
        });
        Ok(attributed.collect())
    }
}

/// What an untagged event in an agent's container belongs to, which is about these paths. `calls`: those in flight about
/// then.
fn attribute_in_flight(moment: Moment, touched: &[&str], calls: &[Asked]) -> Attribution {
    // There may be more than are looked at.
    let known_to = if calls.len() < MOST_SPANS as usize { u64::MAX } else { 0 };
    match attribute(moment, &spans(calls), known_to) {
        // Where processes are tagged, one that is not is somebody else's, or has lost its tag (before 6.2, see `task_alloc`).
        Attribution::Sole(call) if calls.iter().any(|asked| asked.tagged) => {
            Attribution::Ambiguous(vec![call])
        }
        answer => by_path(answer, moment, touched, calls, known_to),
    }
}

/// When they were in flight.
fn spans(calls: &[Asked]) -> Vec<Span> {
    calls.iter().map(|asked| asked.span.clone()).collect()
}

/// The first and last times of untagged events, by what they are of.
fn spread(page: &[Stored], of: fn(&Stored) -> &String) -> HashMap<&str, (u64, u64)> {
    let mut spread: HashMap<&str, (u64, u64)> = HashMap::new();
    for stored in page.iter().filter(|stored| stored.record.call == 0) {
        let at = stored.record.time;
        let (first, last) = spread.entry(of(stored)).or_insert((at, at));
        (*first, *last) = ((*first).min(at), (*last).max(at));
    }
    spread
}

/// The calls of agents that were in flight at the times of untagged events in containers of their profiles.
fn in_flight<'a>(reader: &Reader, page: &'a [Stored]) -> Result<HashMap<&'a str, AgentCalls>, Error> {
    let profiles: HashMap<&str, &str> =
        page.iter().map(|stored| (stored.container.as_str(), stored.profile.as_str())).collect();
    let mut known = HashMap::new();
    for (container, (first, last)) in spread(page, |stored| &stored.container) {
        let (Some(owner), Some(profile)) = (reader.owner(container)?, profiles.get(container)) else {
            continue;
        };
        let agent = (*profile, owner);
        let mut calls = reader.calls_in_flight(agent, (first, last), MOST_SPANS)?;
        if let Some(since) = from(calls.iter().map(|asked| &asked.span)).filter(|since| *since < first) {
            calls = reader.calls_in_flight(agent, (since, last), MOST_SPANS)?;
        }
        if !calls.is_empty() {
            known.insert(container, AgentCalls { calls, first: reader.first_call(container)? });
        }
    }
    Ok(known)
}

/// The calls of runs that were in flight at the times of untagged events in their own containers, and up to when each run
/// reported all of its calls.
fn reported<'a>(reader: &Reader, page: &'a [Stored]) -> Result<HashMap<&'a str, RunCalls>, Error> {
    let mut known = HashMap::new();
    for (container, (first, last)) in spread(page, |stored| &stored.container) {
        let Some(mut found) = reader.run_calls_in_flight(container, (first, last), MOST_SPANS)? else {
            continue;
        };
        if let Some(since) = since(&found.calls).filter(|since| *since < first)
            && let Some(earlier) = reader.run_calls_in_flight(container, (since, last), MOST_SPANS)?
        {
            found = earlier;
        }
        if found.calls.len() >= MOST_SPANS as usize {
            // There may be more than are looked at.
            found.known_to = 0;
        }
        known.insert(container, found);
    }
    Ok(known)
}

/// The calls that matter to a container's events of some time; `None` where no session has its server there.
fn calls_of(
    reader: &SessionReader,
    sessions: &Sessions,
    container: &str,
    (first, last): (u64, u64),
) -> Result<Option<KnownCalls>, Error> {
    let inside = reader.inside(container)?;
    if inside.is_empty() {
        return Ok(None);
    }
    let mut known = KnownCalls { calls: Vec::new(), to: u64::MAX, first: None };
    // More than one session can only be somebody's word against another's of the same user: all calls count.
    for session in inside {
        known.to = known.to.min(known_to(sessions, &session));
        let mut calls = reader.spans(&session.session, first, last)?;
        if let Some(since) = from(&calls).filter(|since| *since < first) {
            calls = reader.spans(&session.session, since, last)?;
        }
        if calls.len() > MOST_SPANS as usize {
            known.to = 0;
        }
        known.calls.append(&mut calls);
        let began = reader.first_call(&session.session)?;
        known.first = known.first.into_iter().chain(began).min();
    }
    Ok(Some(known))
}

/// Up to when every call that was forwarded is in the store.
fn known_to(sessions: &Sessions, session: &Inside) -> u64 {
    if session.gap {
        return 0;
    }
    match sessions.looked(&session.session) {
        Some(looked) => looked.max(session.read_to),
        None if session.ended => u64::MAX,
        None => session.read_to,
    }
}

/// What the kernel saw while a call was in flight and may be of it, oldest first; and whether there is more.
///
/// # Errors
/// Those of the store.
pub(crate) fn of_call(sessions: &Sessions, viewer: Viewer, call: &str) -> Result<(Vec<Event>, bool), Error> {
    sessions.settle();
    sessions.refresh(viewer);
    let Some(flight) = sessions.readers.ask(|reader| reader.flight(viewer, call))? else {
        return Ok((Vec::new(), false));
    };
    let stored = Reader::open(&sessions.db)?.events_during(viewer, &flight, MOST_EVENTS + 1)?;
    let more = stored.len() > MOST_EVENTS as usize;
    let shown = &stored[..stored.len().min(MOST_EVENTS as usize)];
    let mut events = events(sessions, shown)?;
    events.retain(|event| {
        event.tool_call.as_deref() == Some(call) || event.candidates.iter().any(|candidate| candidate == call)
    });
    Ok((events, more))
}
