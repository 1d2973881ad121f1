//! What agents' workers report, checked; and the trace that is made of it and of the kernel's events.

use super::{
    belongs::Ties,
    clock,
    mcp::sessions::Sessions,
    store::{AgentCall, AgentIntent, Asked, Error, Reader, Viewer},
};
use ringfence_wire::{
    audit::{self, What},
    event::Event,
    trace::{
        MAX_GIVEN, MAX_ID, MAX_TEXT, Renamed, Said, Trace, TraceQuery, TracedCall, TracedIntent,
        TracedRefusal,
    },
};

/// Most bytes of an agent's name.
const MAX_NAME: usize = 255;
/// Intents that are shown unless more are asked for, and at most.
const INTENTS: (u32, u32) = (10, 200);
/// Most calls of an intent that are shown.
const MOST_CALLS: u32 = 200;
/// Most events of a call that are shown.
const MOST_EVENTS: u32 = 200;
/// Most refusals that are shown.
const MOST_REFUSALS: u32 = 50;

/// A report, taken apart. Whose it is and when it came is the core's word, the rest its worker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reported {
    /// The agent.
    pub(crate) agent: String,
    /// Who may see it, beside root.
    pub(crate) uid: u32,
    /// Microseconds since 1970.
    pub(crate) at: i64,
    /// What.
    pub(crate) what: Report,
}

/// See [`Reported`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// The core tagged a process.
    Tagged {
        /// The tag.
        tag: u64,
        /// Public id of the container.
        container: String,
    },
    /// The worker said something.
    Said(Said),
}

/// Checks a report. `None`: no worker of this version says that.
pub(super) fn reported(reported: audit::Reported) -> Option<Reported> {
    let audit::Reported { agent, uid, at, what } = reported;
    let what = match what {
        What::Tagged { tag, container } => Report::Tagged { tag, container },
        What::Said(text) => Report::Said(bounded(serde_json::from_str(&text).ok()?)?),
    };
    (agent.len() <= MAX_NAME).then_some(Reported { agent, uid, at, what })
}

/// A worker may be subverted: its bounds are kept here, too.
fn bounded(mut said: Said) -> Option<Said> {
    let id = |id: &str| (!id.is_empty() && id.len() <= MAX_ID).then_some(());
    let cut = |text: &mut String| {
        if let Some((at, _)) = text.char_indices().nth(MAX_TEXT) {
            text.truncate(at);
        }
    };
    match &mut said {
        Said::Began { .. } => {}
        Said::Intent { id: of, text, .. } => {
            id(of)?;
            cut(text);
        }
        Said::IntentEnded { id: of, error, .. } => {
            id(of)?;
            error.as_mut().map(cut);
        }
        Said::Call { key, id: of, renamed, intent, tool, server, input, moment: _ } => {
            id(key)?;
            id(of)?;
            if let Some(Renamed { given, why }) = renamed {
                given.truncate(given.floor_char_boundary(MAX_GIVEN));
                cut(why);
            }
            intent.as_deref().map_or(Some(()), id)?;
            id(tool)?;
            server.as_deref().map_or(Some(()), id)?;
            cut(input);
        }
        Said::CallEnded { key, output, .. } => {
            id(key)?;
            cut(output);
        }
        Said::Tagged { key, .. } => id(key)?,
        Said::Refused(refusal) => {
            id(&refusal.what)?;
            refusal.container.as_deref().map_or(Some(()), id)?;
            cut(&mut refusal.why);
        }
    }
    Some(said)
}

/// Makes the trace that is asked for. `None`: nothing of that name is known to this viewer.
///
/// # Errors
/// Those of the store.
pub(super) fn of(sessions: &Sessions, viewer: Viewer, query: &TraceQuery) -> Result<Option<Trace>, Error> {
    let reader = Reader::open(&sessions.db)?;
    let limit = query.limit.unwrap_or(INTENTS.0).min(INTENTS.1);
    let what = query.what.as_deref().filter(|what| !what.is_empty());
    // One more than is shown, so that it can be told whether there are more.
    let mut all = reader.asked(viewer, what, limit.saturating_add(1))?;
    if all.is_empty() {
        return Ok(None);
    }
    let (mut trace, mut ties) = (Trace::default(), Ties::new(sessions));
    let too_many = all.len().saturating_sub(limit as usize);
    trace.more = all.drain(..too_many).next().is_some();
    for asked in all {
        add(&mut trace, (&mut ties, &reader, viewer), &asked, limit)?;
    }
    // Intents of one beginning may have been under way at once.
    trace.refusals.sort_by(|a, b| a.ts.cmp(&b.ts));
    trace.refusals.dedup();
    Ok(Some(trace))
}

fn add(
    trace: &mut Trace,
    (ties, reader, viewer): (&mut Ties<'_>, &Reader, Viewer),
    asked: &Asked,
    limit: u32,
) -> Result<(), Error> {
    for intent in reader.intents(viewer, asked, limit)? {
        let only = if let Asked::Call(row) = *asked { Some(row) } else { None };
        let calls = reader.agent_calls(viewer, &intent, only, MOST_CALLS + 1)?;
        trace.more |= calls.len() > MOST_CALLS as usize;
        let mut traced = traced_intent(intent);
        for call in calls.into_iter().take(MOST_CALLS as usize) {
            traced.calls.push(traced_call(ties, reader, viewer, call)?);
        }
        trace.intents.push(traced);
    }
    if !matches!(asked, Asked::Call(_)) {
        let refusals = reader.refusals(viewer, asked, MOST_REFUSALS)?;
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
        ts: clock::rfc3339(intent.at),
        ended: intent.ended.map(clock::rfc3339),
        uid: intent.sender,
        via: intent.via,
        text: intent.text,
        error: intent.error,
        calls: Vec::new(),
    }
}

fn traced_call(
    ties: &mut Ties<'_>,
    reader: &Reader,
    viewer: Viewer,
    call: AgentCall,
) -> Result<TracedCall, Error> {
    let (events, more) = if call.server.is_some() {
        // What another host does is not this kernel's to see.
        (Vec::new(), false)
    } else {
        events_of(ties, reader, viewer, &call)?
    };
    Ok(TracedCall {
        tagged: call.tagged,
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
    ties: &mut Ties<'_>,
    reader: &Reader,
    viewer: Viewer,
    call: &AgentCall,
) -> Result<(Vec<Event>, bool), Error> {
    let stored = match call.tagged {
        true => reader.events_tagged(viewer, call.row, MOST_EVENTS + 1)?,
        false => reader.events_beside(viewer, call, MOST_EVENTS + 1)?,
    };
    let more = stored.len() > MOST_EVENTS as usize;
    let mut events = ties.events(&stored[..stored.len().min(MOST_EVENTS as usize)])?;
    events.retain(|event| event.tool_call.as_ref() == Some(&call.id) || event.candidates.contains(&call.id));
    Ok((events, more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::trace::{Refusal, Via};

    fn said(said: &Said) -> audit::Reported {
        let what = What::Said(serde_json::to_string(said).unwrap());
        audit::Reported { agent: "a".into(), uid: 0, at: 1, what }
    }

    #[test]
    fn what_a_worker_says_is_bounded() {
        let long = Said::Intent {
            id: "0123456789ab".into(),
            uid: None,
            text: "\u{fc}".repeat(MAX_TEXT + 5),
            via: Via::Send,
        };
        let Some(Reported { what: Report::Said(Said::Intent { text, .. }), .. }) = reported(said(&long))
        else {
            panic!("refused");
        };
        assert_eq!(text.chars().count(), MAX_TEXT);
        let id = Said::Tagged { key: "x".repeat(MAX_ID + 1), tag: 1 };
        assert_eq!(reported(said(&id)), None);
        assert_eq!(reported(said(&Said::Tagged { key: String::new(), tag: 1 })), None);
        let refusal =
            Refusal { what: "send".into(), why: "w".repeat(9000), pid: None, uid: None, container: None };
        let Some(Reported { what: Report::Said(Said::Refused(kept)), .. }) =
            reported(said(&Said::Refused(refusal)))
        else {
            panic!("refused");
        };
        assert_eq!(kept.why.len(), MAX_TEXT);
    }

    #[test]
    fn what_no_worker_says_is_refused() {
        for text in
            ["", "{", "[]", r#"{"said":"nothing"}"#, r#"{"said":"tagged","key":"a","tag":1,"more":2}"#]
        {
            let what = What::Said(text.to_owned());
            assert_eq!(reported(audit::Reported { agent: "a".into(), uid: 0, at: 1, what }), None, "{text}");
        }
    }
}
