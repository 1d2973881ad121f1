//! Names of tool calls. The record knows a call by a key of our own; what a provider calls it is data.
//!
//! The runtime, the conversation's log and the provider share a second name, which travels in their protocols: the
//! provider's id where that can be used, else one of ours. It is unique in the conversation, so that a result, a tag or
//! an event can only be one call's.

use super::redact::Redactor;
use ringfence_wire::trace::{MAX_GIVEN, MAX_ID, Renamed};
use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

/// A call's own name in the record: 16 hex digits, random.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey(Arc<str>);

impl CallKey {
    pub(crate) fn mint() -> Self {
        Self(random(16).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id that stands in for a provider's: letters and digits that every provider takes, few enough for OpenAI (40).
    fn id(&self) -> String {
        format!("call_{}", self.0)
    }
}

/// So many random hex digits, at most 32.
pub(crate) fn random(digits: usize) -> String {
    uuid::Uuid::new_v4().simple().to_string().chars().take(digits).collect()
}

/// A tool call that began.
#[derive(Debug, Clone)]
pub struct Begun {
    pub key: CallKey,
    /// What the runtime or the client calls it.
    pub id: String,
    /// The provider's id, where it was replaced.
    pub renamed: Option<Renamed>,
    /// When it was first heard of, before anybody was told who may begin it: ns since boot.
    pub moment: u64,
}

impl Begun {
    /// A call whose provider's id cannot be changed, because the client reads it in the answer. The record still has
    /// another where this one is not fit to be shown.
    pub fn relayed(given: &str, moment: u64, redactor: &Redactor) -> Self {
        Self::named(given, unfit(given, redactor), moment, redactor)
    }

    /// By the provider's id, or by one of ours where there is a reason not to use that.
    fn named(given: &str, why: Option<&str>, moment: u64, redactor: &Redactor) -> Self {
        let key = CallKey::mint();
        let renamed = why.map(|why| {
            // Redacted before it is cut: half a credential is one too many. What is cut away was bounded by the
            // provider's event, so the search is, too.
            let given = redactor.text(given);
            let given = given[..given.floor_char_boundary(MAX_GIVEN)].to_owned();
            Renamed { given, why: why.to_owned() }
        });
        let id = if renamed.is_some() { key.id() } else { given.to_owned() };
        Self { key, id, renamed, moment }
    }
}

/// The ids that a conversation has had.
#[derive(Debug, Default)]
pub struct Used {
    /// Numbers made of the ids: an id may be long, and two that share a number cost one of them its name.
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl Used {
    /// Takes note of an id; whether it is new.
    pub fn note(&mut self, id: &str) -> bool {
        self.seen.insert(self.hasher.hash_one(id))
    }

    /// Names a call that the provider calls `given`.
    pub fn begin(&mut self, given: &str, moment: u64, redactor: &Redactor) -> Begun {
        let why = unfit(given, redactor);
        let why = why.or_else(|| (!self.note(given)).then_some("the id was used before"));
        let begun = Begun::named(given, why, moment, redactor);
        self.note(&begun.id);
        begun
    }
}

/// Why an id cannot be used as it is.
fn unfit(given: &str, redactor: &Redactor) -> Option<&'static str> {
    if given.is_empty() {
        return Some("it had no id");
    }
    if given.len() > MAX_ID {
        return Some("the id was too long");
    }
    // It stands in logs, on terminals and in SQL's comparisons: nothing that is folded, hidden or obeyed.
    if !given.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("the id had characters that ids do not have");
    }
    (redactor.text(given) != given).then_some("the id held a credential of the agent's")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn redactor() -> Redactor {
        Redactor::new([&"sk-secret-token".to_owned().into()])
    }

    #[test]
    fn a_provider_s_id_is_kept_where_it_can_be_used() {
        let (mut used, redactor) = (Used::default(), redactor());
        for given in
            ["toolu_01A2", "call_9", "functions.bash:0", "chatcmpl-tool-1", "9aB3xYz01", &"x".repeat(MAX_ID)]
        {
            let begun = used.begin(given, 1, &redactor);
            assert_eq!((begun.id.as_str(), begun.renamed), (given, None));
        }
    }

    #[test]
    fn an_id_that_cannot_be_used_is_replaced_and_the_reason_told() {
        let (mut used, redactor) = (Used::default(), redactor());
        let long = "x".repeat(MAX_ID + 1);
        used.begin("first", 1, &redactor);
        for (given, why) in [
            ("", "no id"),
            (long.as_str(), "too long"),
            ("first", "used before"),
            ("a\u{1b}[2Jb", "characters"),
            ("a b", "characters"),
            ("\u{430}", "characters"),
            ("x-sk-secret-token", "credential"),
        ] {
            let begun = used.begin(given, 1, &redactor);
            let renamed = begun.renamed.expect("replaced");
            assert!(renamed.why.contains(why), "{given:?}: {}", renamed.why);
            assert!(renamed.given.len() <= MAX_GIVEN && !renamed.given.contains("secret"), "{renamed:?}");
            assert_eq!(begun.id, format!("call_{}", begun.key.as_str()));
            let relayed = Begun::relayed(given, 1, &redactor);
            assert_eq!(relayed.renamed.is_some(), given != "first", "only the store knows what was before");
        }
    }

    proptest! {
        /// However ids come: names differ, can be shown, and no provider can foretell one of ours.
        #[test]
        fn no_two_calls_have_one_name(
            given in prop::collection::vec(prop_oneof!["[a-c]{0,2}", "call_[0-9a-f]{1}", any::<String>()], 0..40),
            had in prop::collection::vec("[a-c]{1,2}", 0..4),
        ) {
            let (mut used, redactor) = (Used::default(), redactor());
            had.iter().for_each(|id| {
                used.note(id);
            });
            let mut names: HashSet<String> = had.iter().cloned().collect();
            let mut keys = HashSet::new();
            for given in &given {
                let begun = used.begin(given, 1, &redactor);
                prop_assert!(!begun.id.is_empty() && begun.id.len() <= MAX_ID);
                prop_assert!(begun.id.bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert!(names.insert(begun.id.clone()), "{:?} twice", begun.id);
                prop_assert!(keys.insert(begun.key.as_str().to_owned()));
            }
        }
    }
}
