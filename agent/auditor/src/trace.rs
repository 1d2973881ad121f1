//! The trace: what was asked of agents, the calls they made, and what the kernel saw of each.

use super::mcp::{attribution::Attributor, sessions::Sessions};
use ringfence_base::clock;
use ringfence_store::{AgentCall, AgentIntent, Error, HookWord, Reader, TraceTarget, Viewer};
use ringfence_wire::{
    event::Event,
    trace::{Trace, TraceQuery, TracedCall, TracedIntent, TracedRefusal},
};

/// Intents that are shown unless more are asked for, and at most.
const INTENTS: (u32, u32) = (10, 200);
/// Most calls of an intent that are shown.
const MOST_CALLS: u32 = 200;
/// Most events of a call that are shown.
const MOST_EVENTS: u32 = 200;
/// Most refusals that are shown.
const MOST_REFUSALS: u32 = 50;

/// Makes the trace that the query asks for. `None`: nothing of that name is known to this viewer.
///
/// # Errors
/// Those of the store.
pub(crate) fn of(sessions: &Sessions, viewer: Viewer, query: &TraceQuery) -> Result<Option<Trace>, Error> {
    let reader = Reader::open(&sessions.db)?;
    let limit = query.limit.unwrap_or(INTENTS.0).min(INTENTS.1);
    let what = query.what.as_deref().filter(|what| !what.is_empty());
    // One more than is shown, to know whether there are more.
    let mut targets = reader.trace_targets(viewer, what, limit.saturating_add(1))?;
    if targets.is_empty() {
        return Ok(None);
    }
    let (mut trace, mut attributor) = (Trace::default(), Attributor::new(sessions));
    let too_many = targets.len().saturating_sub(limit as usize);
    trace.more = targets.drain(..too_many).next().is_some();
    for target in targets {
        add(&mut trace, (&mut attributor, &reader, viewer), &target, limit)?;
    }
    // Intents of one beginning may have been under way at once.
    trace.refusals.sort_by(|a, b| a.ts.cmp(&b.ts));
    trace.refusals.dedup();
    Ok(Some(trace))
}

fn add(
    trace: &mut Trace,
    (attributor, reader, viewer): (&mut Attributor<'_>, &Reader, Viewer),
    target: &TraceTarget,
    limit: u32,
) -> Result<(), Error> {
    for intent in reader.intents(viewer, target, limit)? {
        let only = if let TraceTarget::Call(row) = *target { Some(row) } else { None };
        let calls = reader.agent_calls(viewer, &intent, only, MOST_CALLS + 1)?;
        trace.more |= calls.len() > MOST_CALLS as usize;
        let mut traced = traced_intent(intent);
        for call in calls.into_iter().take(MOST_CALLS as usize) {
            traced.calls.push(traced_call(attributor, reader, viewer, call)?);
        }
        trace.intents.push(traced);
    }
    if !matches!(target, TraceTarget::Call(_)) {
        let refusals = reader.refusals(viewer, target, MOST_REFUSALS)?;
        let refusals = refusals.into_iter();
        let refusals =
            refusals.map(|(agent, at, refusal)| TracedRefusal { agent, ts: clock::rfc3339(at), refusal });
        trace.refusals.extend(refusals);
    }
    Ok(())
}

fn traced_intent(intent: AgentIntent) -> TracedIntent {
    TracedIntent {
        intent: intent.id,
        agent: intent.agent,
        container: intent.container,
        ts: clock::rfc3339(intent.at),
        ended: intent.ended.map(clock::rfc3339),
        uid: intent.sender,
        via: intent.via,
        session: intent.session,
        text: intent.text,
        error: intent.error,
        calls: Vec::new(),
    }
}

fn traced_call(
    attributor: &mut Attributor<'_>,
    reader: &Reader,
    viewer: Viewer,
    call: AgentCall,
) -> Result<TracedCall, Error> {
    let (events, more) = if call.server.is_some() {
        // What another host does is not this kernel's to see.
        (Vec::new(), false)
    } else {
        events_of(attributor, reader, viewer, &call)?
    };
    Ok(TracedCall {
        tagged: call.tagged,
        hook: call.hook.map(HookWord::traced),
        call: call.id,
        key: call.key,
        renamed: call.renamed,
        ts: clock::rfc3339(call.at),
        ended: call.ended.map(clock::rfc3339),
        tool: call.tool,
        server: call.server,
        input: call.input,
        is_error: call.is_error,
        output: call.output,
        events,
        more,
    })
}

/// What the kernel saw of a call: of its tagged tree for sure; of others while it was in flight, if it may be its.
fn events_of(
    attributor: &mut Attributor<'_>,
    reader: &Reader,
    viewer: Viewer,
    call: &AgentCall,
) -> Result<(Vec<Event>, bool), Error> {
    let stored = match call.tagged {
        true => reader.events_tagged(viewer, call.row, MOST_EVENTS + 1)?,
        false => reader.events_beside(viewer, call, MOST_EVENTS + 1)?,
    };
    let more = stored.len() > MOST_EVENTS as usize;
    let mut events = attributor.events(&stored[..stored.len().min(MOST_EVENTS as usize)])?;
    events.retain(|event| event.tool_call.as_ref() == Some(&call.id) || event.candidates.contains(&call.id));
    Ok((events, more))
}

#[cfg(test)]
mod tests;
