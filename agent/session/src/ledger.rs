//! The ledger of a user's sessions: which there were, how far each journal went, what retention removed. Pure.
//!
//! A journal proves itself; that there was a journal, only another record can prove. Each user has one ledger in the
//! database, chained as journals are, so that a session that is gone without a checkpoint is found.

use super::journal::{self, GENESIS, link};
use ringfence_wire::mcp::StoredRule;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// The database has a session's journal up to a line: at its start, and when it ended.
    Reached {
        /// When; microseconds since 1970, as every `at`.
        at: i64,
        /// The session.
        session: String,
        /// Lines of its journal.
        lines: u64,
        /// Hash of the last of them.
        head: String,
        /// The session had ended.
        ended: bool,
        /// The database has the kind of each of its answers, from its first call on.
        #[serde(default, skip_serializing_if = "is_not")]
        outcomes: bool,
    },
    /// Retention removed a session: what is left of it.
    Removed(Checkpoint),
    /// Somebody changed a rule of the database.
    Rule(Box<ChangedRule>),
    /// Somebody decided about what is pinned of a tool.
    Tool(Box<DecidedTool>),
    /// Somebody approved more than one call, or an approval ended before its time.
    Approval(Box<ChangedApproval>),
    /// The entries up to a number were about removed sessions, changed rules, decisions about tools and approvals only, and are gone
    /// themselves.
    Folded {
        /// When.
        at: i64,
        /// Number of the last entry that is gone.
        upto: u64,
        /// Its hash.
        head: String,
        /// Sessions whose checkpoints went with it, all earlier folds included.
        sessions: u64,
        /// Their calls.
        calls: u64,
        /// Changes of rules and decisions about tools that went with it, all earlier folds included.
        #[serde(default, skip_serializing_if = "is_zero")]
        rules: u64,
        /// The same of approvals.
        #[serde(default, skip_serializing_if = "is_zero")]
        approvals: u64,
    },
}

/// Whether nothing is counted. Folds from before rules were in ledgers have no such count, and their text is hashed.
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Whether a mark is not set. Entries from before there was one have none, and their text is hashed.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_not(mark: &bool) -> bool {
    !*mark
}

/// One change of a rule: who, when, and the rule before and after, or its places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRule {
    /// When; microseconds since 1970.
    pub at: i64,
    /// Who, in words.
    pub by: String,
    /// What was done: `add`, `edit`, `enable`, `disable`, `move`, `delete`.
    pub change: String,
    /// The rule's id.
    pub id: String,
    /// Where it was moved from and to: of a rule that is only moved nothing else is here, or moves would make ledgers long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// The rule before; none where it was added or moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<RuleState>,
    /// The rule after; none where it was deleted or moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<RuleState>,
}

/// One decision about a tool of a server: it was approved, rejected, or its server forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedTool {
    /// When; microseconds since 1970.
    pub at: i64,
    /// Who, in words.
    pub by: String,
    /// What was decided: `approved`, `rejected`, `forgotten`.
    pub change: String,
    /// The server's name.
    pub server: String,
    /// The tool's; none where all of the server's are meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Hash of the definition that was trusted before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Hash of the definition that was decided about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// An approval of more than one call that was given, or that ended before its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedApproval {
    /// When; microseconds since 1970.
    pub at: i64,
    /// Who, in words.
    pub by: String,
    /// What was done: `add` or `revoke`; in entries of before also `end`, where nobody did it.
    pub change: String,
    /// The approval's id.
    pub id: String,
    /// Which calls it answers: an [`ApprovalScope`](ringfence_wire::approvals::ApprovalScope).
    pub scope: String,
    /// The server's name.
    pub server: String,
    /// The tool's.
    pub tool: String,
    /// The session, where it is bound to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Until when: RFC 3339. None: until the session's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The call for which it was given.
    pub call: String,
}

/// A rule's move among those of its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The rule's name.
    pub name: String,
    /// Counts the rule's changes, this one included.
    pub version: i64,
    /// The place before, from 1.
    pub from: u32,
    /// The place after.
    pub to: u32,
}

/// A rule of the database at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleState {
    /// Counts the rule's changes, from 1.
    pub version: i64,
    /// Its place among the rules of its owner, from 1.
    pub place: u32,
    /// Whether it is on.
    pub enabled: bool,
    /// The rule.
    #[serde(flatten)]
    pub rule: StoredRule,
}

/// What is left of a session that retention removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// When it was removed.
    pub at: i64,
    /// The session.
    pub session: String,
    /// Name of its server.
    pub server: String,
    /// When it began and ended: RFC 3339.
    pub began: String,
    /// See `began`.
    pub ended: String,
    /// First line of its journal that is gone: 1.
    pub first: u64,
    /// Last line that the database had.
    pub last: u64,
    /// Hash of that line.
    pub head: String,
    /// How many tool calls it had.
    pub calls: u64,
    /// Why.
    pub why: Why,
    /// What was wrong with its journal already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// Which bound a session was beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Too old.
    Age,
    /// All sessions together took too much room.
    Size,
}

/// An entry as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Whose ledger.
    pub uid: u32,
    /// Number, from 1, without gaps.
    pub seq: u64,
    /// JSON of an [`Entry`].
    pub entry: String,
    /// Hex SHA-256 of the hash before and `entry`.
    pub hash: String,
}

/// Hash of an entry, from the hash before it.
pub fn hash(previous: &str, entry: &str) -> String {
    journal::text(&link(previous.as_bytes(), entry.as_bytes()))
}

/// Why a ledger is not what was written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// An entry is missing.
    #[error("the ledger has no entry {0}: it was removed")]
    Gap(u64),
    /// An entry does not follow from the one before.
    #[error("entry {0} of the ledger does not follow from the one before it: it was changed or added")]
    Chain(u64),
    /// Not an entry.
    #[error("entry {0} of the ledger is none")]
    Form(u64),
    /// It begins in the middle, and no later entry vouches for that.
    #[error("the ledger begins with entry {0}, and nothing says that retention removed those before")]
    Start(u64),
}

/// What a ledger holds about one session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// Lines of the journal whose hashes are on record.
    pub marks: BTreeMap<u64, String>,
    /// Retention removed it.
    pub removed: Option<Checkpoint>,
    /// The database has the kind of each of its answers: one that is missing there was removed.
    pub outcomes: bool,
}

/// A ledger that was read to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// The sessions it names.
    pub sessions: HashMap<String, Known>,
    /// Hashes by number, for comparing with heads that others kept.
    pub hashes: BTreeMap<u64, String>,
    /// Sessions and calls whose checkpoints are gone too.
    pub folded: (u64, u64),
}

impl Ledger {
    /// Reads one user's rows, in order.
    ///
    /// # Errors
    /// The first [`Broken`] place.
    pub fn read<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Result<Self, Broken> {
        let mut ledger = Self::default();
        let mut before: Option<(u64, &str)> = None;
        let mut start: Option<&Row> = None;
        let mut folds: HashMap<u64, String> = HashMap::new();
        for row in rows {
            match before {
                // Of a database that somebody edited, any number can come.
                Some((seq, _)) if seq.checked_add(1) != Some(row.seq) => {
                    return Err(Broken::Gap(seq.saturating_add(1)));
                }
                Some((_, head)) if hash(head, &row.entry) != row.hash => return Err(Broken::Chain(row.seq)),
                None => start = Some(row),
                Some(_) => {}
            }
            before = Some((row.seq, &row.hash));
            ledger.hashes.insert(row.seq, row.hash.clone());
            match serde_json::from_str(&row.entry).map_err(|_| Broken::Form(row.seq))? {
                Entry::Reached { session, lines, head, outcomes, .. } => {
                    let known = ledger.sessions.entry(session).or_default();
                    known.marks.insert(lines, head);
                    known.outcomes |= outcomes;
                }
                Entry::Removed(checkpoint) => {
                    let known = ledger.sessions.entry(checkpoint.session.clone()).or_default();
                    known.marks.insert(checkpoint.last, checkpoint.head.clone());
                    known.removed = Some(checkpoint);
                }
                Entry::Rule(_) | Entry::Tool(_) | Entry::Approval(_) => {}
                Entry::Folded { upto, head, sessions, calls, .. } => {
                    ledger.folded = (sessions, calls);
                    folds.insert(upto, head);
                }
            }
        }
        // The first entry stands on what was folded, or on nothing.
        if let Some(first) = start {
            let base = match first.seq {
                1 => GENESIS,
                seq => seq.checked_sub(1).and_then(|upto| folds.get(&upto)).ok_or(Broken::Start(seq))?,
            };
            if hash(base, &first.entry) != first.hash {
                return Err(Broken::Chain(first.seq));
            }
            if first.seq > 1 {
                ledger.hashes.insert(first.seq - 1, base.to_owned());
            }
        }
        Ok(ledger)
    }
}

/// The fold of a ledger's oldest entries, of which these are the first, as far as all of them are about changes of rules,
/// approvals and sessions that retention removed, as `is_removed` says; `None` where that would take away fewer than `least` entries.
///
/// # Errors
/// Those of `is_removed`.
pub fn fold<E>(
    rows: &[Row],
    is_removed: impl Fn(&str) -> Result<bool, E>,
    least: usize,
    now: i64,
) -> Result<Option<Entry>, E> {
    let (mut sessions, mut calls, mut rules, mut approvals, mut count) = (0u64, 0u64, 0u64, 0u64, 0usize);
    for row in rows {
        let Ok(entry) = serde_json::from_str(&row.entry) else { break };
        match entry {
            Entry::Reached { session, .. } if !is_removed(&session)? => break,
            Entry::Reached { .. } => {}
            Entry::Removed(checkpoint) => {
                sessions = sessions.saturating_add(1);
                calls = calls.saturating_add(checkpoint.calls);
            }
            Entry::Rule(_) | Entry::Tool(_) => rules = rules.saturating_add(1),
            Entry::Approval(_) => approvals = approvals.saturating_add(1),
            Entry::Folded {
                sessions: more,
                calls: more_calls,
                rules: more_rules,
                approvals: more_approvals,
                ..
            } => {
                approvals = approvals.saturating_add(more_approvals);
                sessions = sessions.saturating_add(more);
                calls = calls.saturating_add(more_calls);
                rules = rules.saturating_add(more_rules);
            }
        }
        count += 1;
    }
    // The last entry stays: the chain goes on from it.
    let last = count.min(rows.len().saturating_sub(1)).checked_sub(1).and_then(|last| rows.get(last));
    Ok(last.filter(|_| count >= least.max(2)).map(|last| Entry::Folded {
        at: now,
        upto: last.seq,
        head: last.hash.clone(),
        sessions,
        calls,
        rules,
        approvals,
    }))
}

#[cfg(test)]
mod tests {
    use super::{Broken, Checkpoint, Entry, Ledger, Row, Why, hash};
    use crate::journal::GENESIS;
    use serde_json::json;
    use std::convert::Infallible;

    /// The fold of a whole ledger.
    fn fold(rows: &[Row], least: usize, now: i64) -> Option<Entry> {
        let removed = |session: &str| {
            let is_it = |row: &Row| matches!(serde_json::from_str(&row.entry), Ok(Entry::Removed(of)) if of.session == session);
            Ok::<_, Infallible>(rows.iter().any(is_it))
        };
        super::fold(rows, removed, least, now).unwrap_or_else(|never| match never {})
    }

    fn reached(session: &str, lines: u64) -> Entry {
        Entry::Reached {
            at: 1,
            session: session.into(),
            lines,
            head: format!("h{lines}"),
            ended: lines > 1,
            outcomes: lines == 1,
        }
    }

    fn removed(session: &str) -> Entry {
        Entry::Removed(Checkpoint {
            at: 2,
            session: session.into(),
            server: "s".into(),
            began: "b".into(),
            ended: "e".into(),
            first: 1,
            last: 9,
            head: "h9".into(),
            calls: 3,
            why: Why::Age,
            broken: None,
        })
    }

    fn rows(entries: &[Entry]) -> Vec<Row> {
        let (mut rows, mut head) = (Vec::new(), GENESIS.to_owned());
        for (index, entry) in entries.iter().enumerate() {
            let entry = serde_json::to_string(entry).expect("JSON");
            head = hash(&head, &entry);
            rows.push(Row { uid: 0, seq: index as u64 + 1, entry, hash: head.clone() });
        }
        rows
    }

    #[test]
    fn what_is_changed_or_missing_is_found() {
        let whole = rows(&[reached("a", 1), reached("b", 1), reached("a", 9), removed("a")]);
        let ledger = Ledger::read(&whole).expect("whole");
        assert_eq!(ledger.sessions["a"].marks.keys().copied().collect::<Vec<_>>(), [1, 9]);
        assert!(ledger.sessions["a"].removed.is_some() && ledger.sessions["b"].removed.is_none());
        for gone in 0..3 {
            let mut cut = whole.clone();
            cut.remove(gone);
            assert!(Ledger::read(&cut).is_err(), "without entry {}", gone + 1);
        }
        for edited in 0..4 {
            let mut edit = whole.clone();
            edit[edited].entry = edit[edited].entry.replace("\"at\":", "\"at\":7");
            assert_eq!(Ledger::read(&edit), Err(Broken::Chain(edited as u64 + 1)));
        }
    }

    #[test]
    fn numbers_and_counts_of_an_edited_database_are_refused_or_bounded() {
        let numbered = |first: u64| {
            let mut rows = rows(&[reached("a", 1), reached("a", 2)]);
            (rows[0].seq, rows[1].seq) = (first, first.wrapping_add(1));
            rows
        };
        assert!(Ledger::read(&numbered(1)).is_ok());
        assert_eq!(Ledger::read(&numbered(0)), Err(Broken::Start(0)));
        assert_eq!(Ledger::read(&numbered(u64::MAX)), Err(Broken::Gap(u64::MAX)));
        let Entry::Removed(mut checkpoint) = removed("a") else { panic!("a checkpoint") };
        checkpoint.calls = u64::MAX;
        let many = rows(&[Entry::Removed(checkpoint.clone()), Entry::Removed(checkpoint), removed("b")]);
        assert!(matches!(fold(&many, 2, 5), Some(Entry::Folded { calls: u64::MAX, .. })));
    }

    #[test]
    fn only_checkpointed_sessions_are_folded_away() {
        let entries =
            [reached("a", 1), reached("a", 9), removed("a"), reached("b", 1), reached("c", 1), removed("c")];
        let before = rows(&entries);
        assert_eq!(fold(&before, 4, 5), None, "b is still there");
        let folded = fold(&before, 3, 5).expect("a can go");
        assert!(matches!(folded, Entry::Folded { upto: 3, sessions: 1, calls: 3, .. }));
        let after = rows(&[&entries[..], std::slice::from_ref(&folded)].concat());
        let ledger = Ledger::read(&after[3..]).expect("the fold vouches for what is gone");
        assert_eq!(ledger.folded, (1, 3));
        assert!(!ledger.sessions.contains_key("a") && ledger.sessions.contains_key("b"));
        assert_eq!(Ledger::read(&after[4..]), Err(Broken::Start(5)), "more is gone than it says");
        assert_eq!(Ledger::read(&before[3..]), Err(Broken::Start(4)));
        // A later fold counts the earlier one's.
        let more = rows(&[&entries[..], &[folded, removed("b")]].concat());
        assert!(matches!(fold(&more[3..], 3, 6), Some(Entry::Folded { upto: 7, sessions: 2 | 3, .. })));
    }

    #[test]
    fn changes_of_rules_are_folded_away_and_counted_and_older_folds_are_as_they_were() {
        let state = json!({ "version": 1, "place": 1, "enabled": true, "name": "a", "tool_pattern": "x", "action": "block" });
        let change =
            json!({ "kind": "rule", "at": 3, "by": "uid 5", "change": "add", "id": "i", "after": state });
        let change: Entry = serde_json::from_value(change).expect("an entry");
        let entries = [change.clone(), reached("a", 1), removed("a"), change, reached("b", 1)];
        let before = rows(&entries);
        Ledger::read(&before).expect("whole");
        let folded = fold(&before, 3, 5).expect("they can go");
        assert!(matches!(folded, Entry::Folded { upto: 4, sessions: 1, rules: 2, .. }));
        let after = rows(&[&entries[..], &[folded.clone(), reached("c", 1)]].concat());
        Ledger::read(&after[4..]).expect("the fold vouches for what is gone");
        let of_before =
            serde_json::to_value(fold(&rows(&[reached("a", 1), removed("a"), removed("b")]), 2, 5));
        assert_eq!(of_before.expect("JSON").get("rules"), None);
    }
}
