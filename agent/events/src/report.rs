//! What agents' workers report, checked.

use ringfence_wire::{
    audit::{self, What},
    trace::{MAX_GIVEN, MAX_ID, MAX_TEXT, Renamed, Said},
};

/// Most bytes of an agent's name.
const MAX_NAME: usize = 255;

/// A report, taken apart. Whose it is and when it came is the core's word, the rest its worker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The agent.
    pub agent: String,
    /// Who may see it, beside root.
    pub uid: u32,
    /// Microseconds since 1970.
    pub at: i64,
    /// What.
    pub what: Report,
}

/// See [`Reported`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
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
pub fn reported(reported: audit::Reported) -> Option<Reported> {
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
