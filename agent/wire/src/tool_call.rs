//! What a tool call does, what is decided about it and what becomes of it: enums, each with the text that journals, rows
//! and messages have for it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An enum whose variants each have a text.
pub trait Named: Copy + 'static {
    /// All variants, in their order.
    const ALL: &'static [Self];

    /// The text of this one.
    fn name(self) -> &'static str;

    /// The variant of that text.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|variant| variant.name() == name)
    }
}

macro_rules! named {
    ($($(#[$about:meta])* enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ })+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)+
        }

        impl Named for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    )+};
}

named! {
    /// What happens to a call, mildest first.
    enum Action {
        /// Recorded.
        Pass = "pass",
        /// Recorded and marked.
        Flag = "flag",
        /// Held until a human approves it.
        Pause = "pause",
        /// Refused.
        Block = "block",
    }

    /// What a call does, mildest first: where several match, the gravest counts.
    enum Operation {
        /// Nothing is known.
        Unknown = "unknown",
        /// Looks.
        Read = "read",
        /// Makes or changes.
        Write = "write",
        /// Runs something.
        Execute = "execute",
        /// Removes.
        Delete = "delete",
    }

    /// What became of a call. The first six are decided before a call goes on; of those, journals have any but `blocked` as
    /// a decision, and `approved` is none to end with: what the server makes of the call follows.
    enum Outcome {
        /// It was refused at once.
        Blocked = "blocked",
        /// A person let it go on.
        Approved = "approved",
        /// A person did not, or nobody could be asked.
        Denied = "denied",
        /// Nobody decided in time.
        Timeout = "timeout",
        /// The client cancelled it before anybody decided.
        Cancelled = "cancelled",
        /// The session ended before anybody decided.
        Ended = "ended",
        /// The server answered with a result.
        Answered = "answered",
        /// The server answered with a result that says of itself that it is an error (`isError`).
        ToolError = "tool_error",
        /// The server answered with a JSON-RPC error.
        Error = "error",
        /// The server took it as a task, whose result was not seen yet.
        Task = "task",
        /// The result of that task came, in the answer to another request.
        TaskAnswered = "task_answered",
        /// The client cancelled it when the server had it.
        CancelledInFlight = "cancelled_in_flight",
        /// The session ended, or the server died, when the server had it and had not answered.
        Killed = "killed",
    }
}

/// What a record says: a variant that this version knows, or another text. Journals and databases outlive versions, and
/// whoever owns a journal can write anything into it: such a record is read and shown all the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Recorded<T> {
    /// One of the variants.
    Known(T),
    /// Any other text.
    Other(String),
}

impl<T: Named> Recorded<T> {
    /// The text on record.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(variant) => variant.name(),
            Self::Other(text) => text,
        }
    }

    /// The text, where it is no variant's: it can have any length.
    pub fn other_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Known(_) => None,
            Self::Other(text) => Some(text),
        }
    }
}

impl<T: Named> From<String> for Recorded<T> {
    fn from(text: String) -> Self {
        T::from_name(&text).map_or(Self::Other(text), Self::Known)
    }
}

impl<T: Named> From<&str> for Recorded<T> {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl<T: Named> Serialize for Recorded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Named> Deserialize<'de> for Recorded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Named, Operation, Outcome, Recorded};

    #[test]
    fn every_text_stays_what_it_was_and_those_of_other_versions_are_kept() {
        fn texts<T: Named>() -> Vec<&'static str> {
            T::ALL.iter().map(|variant| variant.name()).collect()
        }
        assert_eq!(texts::<Action>(), ["pass", "flag", "pause", "block"]);
        assert_eq!(texts::<Operation>(), ["unknown", "read", "write", "execute", "delete"]);
        let decided = ["blocked", "approved", "denied", "timeout", "cancelled", "ended"];
        let became =
            ["answered", "tool_error", "error", "task", "task_answered", "cancelled_in_flight", "killed"];
        assert_eq!(texts::<Outcome>(), [&decided[..], &became[..]].concat());
        for (text, known) in [("block", true), ("Block", false), ("explode", false), ("", false)] {
            let json = serde_json::to_string(text).expect("JSON");
            let recorded: Recorded<Action> = serde_json::from_str(&json).expect("any text can be read");
            assert_eq!(matches!(recorded, Recorded::Known(Action::Block)), known, "{text}");
            assert_eq!(serde_json::to_string(&recorded).expect("JSON"), json);
        }
        assert!(serde_json::from_str::<Recorded<Action>>(r#"{"block":null}"#).is_err());
    }
}
