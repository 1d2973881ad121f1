//! What agents' workers report, checked.

use ringfence_wire::{
    audit::{AgentReport, Payload},
    trace::{AgentEvent, MAX_GIVEN, MAX_ID, MAX_PATHS, MAX_PATHS_BYTES, MAX_SESSION, MAX_TEXT, Renamed, Via},
};

/// Most bytes of an agent's name.
const MAX_NAME: usize = 255;

/// A report within its bounds. Whose it is and when it came is the core's word, the rest its worker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedReport {
    /// The agent.
    pub agent: String,
    /// Who may see it, beside root.
    pub uid: u32,
    /// The container that it is about, by the core's word; `None`: of an agent of the daemon's.
    pub container: Option<String>,
    /// Microseconds since 1970.
    pub at: i64,
    /// What it is about.
    pub payload: CheckedPayload,
}

/// See [`CheckedReport`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckedPayload {
    /// The core tagged a process.
    Tagged {
        /// The tag.
        tag: u64,
        /// Public id of the container.
        container: String,
    },
    /// A run reports from now on.
    LineOpened,
    /// A run reports no more.
    LineClosed {
        /// When, ns since boot.
        moment: u64,
    },
    /// From the worker.
    Event(AgentEvent),
}

/// Checks a report. `None`: no worker of this version sends that.
pub fn check(report: AgentReport) -> Option<CheckedReport> {
    let AgentReport { agent, uid, container, at, payload } = report;
    let payload = match payload {
        Payload::Tagged { tag, container } => CheckedPayload::Tagged { tag, container },
        Payload::LineOpened => CheckedPayload::LineOpened,
        Payload::LineClosed { moment } => CheckedPayload::LineClosed { moment },
        Payload::Event(json) => {
            let event = bounded(serde_json::from_str(json.get()).ok()?)?;
            CheckedPayload::Event(if container.is_some() { of_run(event)? } else { of_agent(event)? })
        }
    };
    (agent.len() <= MAX_NAME).then_some(CheckedReport { agent, uid, container, at, payload })
}

/// What a run may say: its user's word, and never as if the kernel or the daemon had said it. Nobody sends it messages. Which call
/// a tag is is its word, too: that the tag is of this container is looked up where it is stored, in what the core said.
fn of_run(mut event: AgentEvent) -> Option<AgentEvent> {
    match &mut event {
        AgentEvent::Began { .. } => return None,
        AgentEvent::Intent { uid, via, .. } => (*uid, *via) = (None, Via::Http),
        AgentEvent::Refused(refusal) => {
            (refusal.pid, refusal.uid, refusal.container) = (None, None, None);
        }
        AgentEvent::IntentEnded { .. }
        | AgentEvent::Call { .. }
        | AgentEvent::CallEnded { .. }
        | AgentEvent::Tagged { .. }
        | AgentEvent::Contested { .. }
        | AgentEvent::HookDone { .. }
        | AgentEvent::Lost { .. } => {}
    }
    Some(event)
}

/// What an agent of the daemon's may say. Of what it lost the core tells as of a refusal.
fn of_agent(event: AgentEvent) -> Option<AgentEvent> {
    (!matches!(event, AgentEvent::Lost { .. })).then_some(event)
}

/// A worker may be subverted: its bounds are kept here, too.
fn bounded(mut event: AgentEvent) -> Option<AgentEvent> {
    let id = |id: &str| (!id.is_empty() && id.len() <= MAX_ID).then_some(());
    let in_session = |id: &str| (!id.is_empty() && id.len() <= MAX_SESSION).then_some(());
    let cut = |text: &mut String| {
        if let Some((at, _)) = text.char_indices().nth(MAX_TEXT) {
            text.truncate(at);
        }
    };
    match &mut event {
        AgentEvent::Began { .. } | AgentEvent::Lost { .. } => {}
        AgentEvent::Intent { id: of, text, session, .. } => {
            id(of)?;
            session.as_deref().map_or(Some(()), in_session)?;
            cut(text);
        }
        AgentEvent::IntentEnded { id: of, error, .. } => {
            id(of)?;
            error.as_mut().map(cut);
        }
        AgentEvent::Call { key, id: of, renamed, intent, tool, server, input, paths, moment: _ } => {
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
            // Some of them are as good as none: what the others are is not known.
            *paths = paths.take().filter(|paths| is_bounded(paths));
        }
        AgentEvent::CallEnded { key, output, .. } => {
            id(key)?;
            cut(output);
        }
        AgentEvent::Tagged { key, .. } | AgentEvent::Contested { key } => id(key)?,
        AgentEvent::HookDone { key, session, .. } => {
            id(key)?;
            session.as_deref().map_or(Some(()), in_session)?;
        }
        AgentEvent::Refused(refusal) => {
            id(&refusal.what)?;
            refusal.container.as_deref().map_or(Some(()), id)?;
            cut(&mut refusal.why);
        }
    }
    Some(event)
}

/// Whether they are no more than a report carries.
fn is_bounded(paths: &[String]) -> bool {
    paths.len() <= MAX_PATHS && paths.iter().map(String::len).sum::<usize>() <= MAX_PATHS_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::trace::Refusal;
    use serde_json::value::{RawValue, to_raw_value};

    fn checked(event: &AgentEvent) -> Option<AgentEvent> {
        checked_json(to_raw_value(event).unwrap())
    }

    fn checked_json(json: Box<RawValue>) -> Option<AgentEvent> {
        checked_of(None, json)
    }

    fn checked_of(container: Option<&str>, json: Box<RawValue>) -> Option<AgentEvent> {
        let container = container.map(str::to_owned);
        let report =
            AgentReport { agent: "a".into(), uid: 0, container, at: 1, payload: Payload::Event(json) };
        check(report).map(|checked| match checked.payload {
            CheckedPayload::Event(event) => event,
            _ => panic!("an event became something else"),
        })
    }

    #[test]
    fn a_run_says_nothing_in_the_name_of_the_kernel_or_the_daemon() {
        let of_run = |event: &AgentEvent| checked_of(Some("0123456789ab"), to_raw_value(event).unwrap());
        let intent = |uid, via| AgentEvent::Intent {
            id: "0123456789ab".into(),
            uid,
            text: "do it".into(),
            via,
            session: None,
        };
        assert_eq!(of_run(&intent(Some(0), Via::Send)), Some(intent(None, Via::Http)));
        assert_eq!(checked(&intent(Some(0), Via::Send)), Some(intent(Some(0), Via::Send)), "the control");
        let began = AgentEvent::Began { moment: 1 };
        assert_eq!(of_run(&began), None);
        assert_eq!(checked(&began).as_ref(), Some(&began), "the control");
        let lost = AgentEvent::Lost { count: 1, from: 2, to: None };
        assert_eq!(of_run(&lost), Some(lost.clone()));
        assert_eq!(checked(&lost), None, "of a run alone");
        // Whose the tag is is the store's to know.
        let tagged = AgentEvent::Tagged { key: "k".into(), tag: 1, matched: true };
        assert_eq!(of_run(&tagged), Some(tagged));
        let refusal = |known: bool| {
            AgentEvent::Refused(Refusal {
                what: "http".into(),
                why: "no token".into(),
                pid: known.then_some(1),
                uid: known.then_some(0),
                container: known.then(|| "0123456789ab".into()),
            })
        };
        assert_eq!(of_run(&refusal(true)), Some(refusal(false)));
    }

    #[test]
    fn what_a_worker_says_is_bounded() {
        let long = AgentEvent::Intent {
            id: "0123456789ab".into(),
            uid: None,
            text: "\u{fc}".repeat(MAX_TEXT + 5),
            via: Via::Send,
            session: Some("s".repeat(MAX_SESSION)),
        };
        let Some(AgentEvent::Intent { text, .. }) = checked(&long) else { panic!("refused") };
        assert_eq!(text.chars().count(), MAX_TEXT);
        for session in [String::new(), "s".repeat(MAX_SESSION + 1)] {
            let (id, text) = ("0123456789ab".to_owned(), String::new());
            let intent = AgentEvent::Intent { id, uid: None, text, via: Via::Http, session: Some(session) };
            assert_eq!(checked(&intent), None);
        }
        assert_eq!(
            checked(&AgentEvent::Tagged { key: "x".repeat(MAX_ID + 1), tag: 1, matched: false }),
            None
        );
        assert_eq!(checked(&AgentEvent::Contested { key: String::new() }), None);
        let done = |session: &str| {
            let (key, session) = ("k".to_owned(), Some(session.to_owned()));
            AgentEvent::HookDone { key, session, failed: None, moment: 1 }
        };
        assert_eq!(checked(&done("s")), Some(done("s")), "the control");
        assert_eq!(checked(&done(&"s".repeat(MAX_SESSION + 1))), None);
        let refusal =
            Refusal { what: "send".into(), why: "w".repeat(9000), pid: None, uid: None, container: None };
        let Some(AgentEvent::Refused(kept)) = checked(&AgentEvent::Refused(refusal)) else {
            panic!("refused")
        };
        assert_eq!(kept.why.len(), MAX_TEXT);
    }

    #[test]
    fn paths_beyond_the_bounds_are_not_known() {
        let kept = |paths: Option<Vec<String>>| {
            let call = AgentEvent::Call {
                key: "k".into(),
                id: "i".into(),
                renamed: None,
                intent: None,
                tool: "Read".into(),
                server: None,
                input: "{}".into(),
                paths,
                moment: 1,
            };
            match checked(&call) {
                Some(AgentEvent::Call { paths, .. }) => paths,
                _ => panic!("refused"),
            }
        };
        for paths in [None, Some(vec![]), Some(vec!["/a".to_owned(); MAX_PATHS])] {
            assert_eq!(kept(paths.clone()), paths);
        }
        assert!(kept(Some(vec!["x".repeat(MAX_PATHS_BYTES)])).is_some());
        assert_eq!(kept(Some(vec!["/a".to_owned(); MAX_PATHS + 1])), None);
        assert_eq!(kept(Some(vec!["x".repeat(MAX_PATHS_BYTES), "y".into()])), None);
    }

    #[test]
    fn what_no_worker_says_is_refused() {
        for text in ["[]", r#"{"said":"nothing"}"#, r#"{"said":"tagged","key":"a","tag":1,"more":2}"#] {
            assert_eq!(checked_json(RawValue::from_string(text.to_owned()).unwrap()), None, "{text}");
        }
    }
}
