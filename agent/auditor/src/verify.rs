//! Whether the record of MCP sessions is whole: journals, ledger, database and heads kept elsewhere, against each other.
//!
//! The chain of a journal shows an edit, the ledger a session that is gone, the fold of a journal a row that was changed,
//! and heads that others kept an older copy of everything.

use ringfence_base::clock::rfc3339;
use ringfence_files::Dir;
use ringfence_session::rows::ingest::{Fold, Row};
use ringfence_session::{
    heads::{Head, Of},
    journal::{Broken, Direction, Reader},
    ledger::{self, Known, Ledger},
    strict,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, BufReader},
    path::Path,
};

/// What is wrong with the record.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The auditor met it before.
    #[error("the auditor found it broken: {0}")]
    Known(String),
    /// No journal.
    #[error("its journal {path} cannot be read")]
    Journal {
        /// Where it should be.
        path: String,
        /// Why.
        #[source]
        source: Broken,
    },
    /// Another journal.
    #[error(
        "line {line} of its journal {path} is not the one that {found_in} has: the journal is another one, or was written anew"
    )]
    Other {
        /// The journal.
        path: String,
        /// The line.
        line: u64,
        /// Who has the hash.
        found_in: HashSource,
    },
    /// A journal that lost its end.
    #[error(
        "its journal {path} ends after {lines} lines, and {found_in} has {expected}: it was cut, or is an older copy"
    )]
    Cut {
        /// The journal.
        path: String,
        /// Its lines.
        lines: u64,
        /// The lines it should have.
        expected: u64,
        /// Who says so.
        found_in: HashSource,
    },
    /// A session that the ledger does not name.
    #[error("the ledger does not name it: its rows were added by somebody else")]
    Unknown,
    /// Rows that the journal does not make.
    #[error(
        "its {0} in the database are not those that its journal makes: rows were changed, added or removed"
    )]
    Rows(&'static str),
    /// The session's row.
    #[error("its row in the database has another {0} than its journal")]
    Row(&'static str),
    /// A session that is gone without a checkpoint.
    #[error("it is gone from the database, and retention did not remove it")]
    Gone,
    /// A head that does not fit what retention left.
    #[error(
        "the checkpoint has {lines} lines, and the heads that were kept elsewhere tell of {expected}, or of another hash"
    )]
    Checkpoint {
        /// Lines of the checkpoint.
        lines: u64,
        /// Lines of the head.
        expected: u64,
    },
    /// A head of a session that nobody here knows.
    #[error(
        "a head that was kept elsewhere names it, and the record does not: it was removed, or this is an older copy"
    )]
    Lost,
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] ledger::Broken),
    /// A ledger that lost its end, or is another one.
    #[error(
        "entry {0} of the ledger is not the one that was kept elsewhere: it was cut, is an older copy, or was written anew"
    )]
    LedgerHead(u64),
}

/// Where a hash is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashSource {
    /// The session's row.
    Database,
    /// The ledger.
    Ledger,
    /// A head that was kept elsewhere.
    Elsewhere,
}

impl std::fmt::Display for HashSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Database => "the database",
            Self::Ledger => "the ledger",
            Self::Elsewhere => "the head that was kept elsewhere",
        })
    }
}

/// Sum of rows, whatever their order: each row's SHA-256, added up lane by lane. It shows a change by somebody who does
/// not look for collisions; who does can also write the database's own hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sum([u64; 4]);

impl Sum {
    fn add(&mut self, row: &Value) {
        let digest = Sha256::digest(row.to_string().as_bytes());
        for (lane, bytes) in self.0.iter_mut().zip(digest.as_chunks::<8>().0) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*bytes));
        }
    }
}

/// Sums of one session's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    messages: Sum,
    calls: Sum,
    stderr: Sum,
    outcomes: Sum,
}

impl Sums {
    /// A row of `messages` as the auditor gives it. What is derived from `raw` alone is left out: a later version may
    /// derive more.
    pub fn message(&mut self, row: &Value) {
        self.messages.add(&json!([row["id"], row["direction"], row["timestamp"], row["raw"]]));
    }

    /// A row of `tool_calls`: what was asked, how it was answered, what was decided, each for itself, as a journal tells
    /// them one after the other. A call that no list shows is as good as removed.
    pub fn call(&mut self, row: &Value) {
        if row["_listed"] == 0 {
            return;
        }
        let decided = !row["decided_at"].is_null();
        let at_once = if decided { &Value::Null } else { &row["decision"] };
        self.calls.add(&json!([
            row["id"],
            row["request_msg_id"],
            row["tool_name"],
            row["arguments"],
            row["operation_type"],
            row["risk_score"],
            row["risk_reasons"],
            row["requested_at"],
            row["policy_action"],
            row["rules"],
            at_once
        ]));
        if has(row, &["responded_at", "response_msg_id", "result", "error"]) {
            self.calls.add(&json!([
                row["id"],
                "answer",
                row["response_msg_id"],
                row["result"],
                row["error"],
                row["responded_at"]
            ]));
        }
        if decided {
            self.calls.add(&json!([
                row["id"],
                "decision",
                row["decision"],
                row["decided_by"],
                row["decided_at"]
            ]));
        }
        if !row["exceptions"].is_null() {
            self.calls.add(&json!([row["id"], "exceptions", row["exceptions"]]));
        }
        if !row["answer"].is_null() {
            self.outcomes.add(&json!([row["id"], "answer", row["answer"]]));
        }
        if !row["cancelled_at"].is_null() {
            self.outcomes.add(&json!([row["id"], "cancelled", row["cancelled_at"]]));
        }
        if has(row, &["task_answer", "task_msg_id", "task_result"]) {
            let (message, result) = (&row["task_msg_id"], &row["task_result"]);
            self.outcomes.add(&json!([row["id"], "task", row["task_answer"], message, result]));
        }
    }

    /// A row of `stderr`.
    pub fn stderr(&mut self, row: &Value) {
        self.stderr.add(&json!([row["number"], row["timestamp"], row["text"], row["dropped"]]));
    }

    /// What a journal's fold makes of an entry.
    fn folded(&mut self, row: &Row) {
        match row {
            Row::Message(message) => {
                let direction = match message.direction {
                    Direction::ClientToServer => "client_to_server",
                    Direction::ServerToClient => "server_to_client",
                };
                self.messages.add(&json!([message.id, direction, rfc3339(message.at), message.raw]));
            }
            Row::Call(call) => {
                let judged = &call.judged;
                self.calls.add(&json!([
                    judged.call,
                    call.message,
                    judged.tool,
                    as_read(Some(&call.arguments)),
                    judged.operation,
                    judged.score,
                    judged.reasons,
                    rfc3339(call.at),
                    judged.action,
                    judged.rules,
                    call.blocked.then_some("blocked")
                ]));
                if !judged.exceptions.is_empty() {
                    self.calls.add(&json!([judged.call, "exceptions", judged.exceptions]));
                }
            }
            Row::Answer { call, message, result, error, at, answer, .. } => {
                self.calls.add(&json!([
                    call,
                    "answer",
                    message,
                    as_read(result.as_ref()),
                    as_read(error.as_ref()),
                    rfc3339(*at)
                ]));
                self.outcomes.add(&json!([call, "answer", answer]));
            }
            Row::Cancelled { call, at } => self.outcomes.add(&json!([call, "cancelled", rfc3339(*at)])),
            Row::TaskAnswer { call, message, answer, result, .. } => {
                self.outcomes.add(&json!([call, "task", answer, message, as_read(Some(result))]));
            }
            Row::Decision { call, outcome, by, at, .. } => {
                self.calls.add(&json!([call, "decision", outcome, by, rfc3339(*at)]));
            }
            Row::Stderr { number, at, text, dropped } => {
                self.stderr.add(&json!([number, rfc3339(*at), text, dropped]));
            }
            // The inventory is of all sessions, and what is pinned is vouched for.
            Row::Server { .. } | Row::Tools(_) => {}
            Row::Session { .. }
            | Row::Client { .. }
            | Row::Asked { .. }
            | Row::Answered { .. }
            | Row::Governed { .. }
            | Row::Gap
            | Row::End { .. } => {}
        }
    }
}

/// Whether any of these columns has a value: no journal makes a part of them.
fn has(row: &Value, columns: &[&str]) -> bool {
    columns.iter().any(|column| !row[*column].is_null())
}

/// A JSON column as it arrives from the auditor: read there as the store reads it, written, read again.
fn as_read(text: Option<&String>) -> Value {
    let Some(text) = text else { return Value::Null };
    match strict::value(text) {
        Ok(value) => serde_json::from_str(&value.to_string()).unwrap_or(value),
        Err(_) => Value::from(text.as_str()),
    }
}

/// Reads a session's journal to its end and compares it with everything that knows it. `sums` are those of its rows in
/// the database, where nothing was written meanwhile.
///
/// # Errors
/// The first problem.
pub fn session(
    row: &Value,
    known: Option<&Known>,
    heads: &[&Head],
    sums: Option<Sums>,
) -> Result<(), Problem> {
    if let Some(why) = row["broken"].as_str() {
        return Err(Problem::Known(why.to_owned()));
    }
    let known = known.ok_or(Problem::Unknown)?;
    let path = row["journal"].as_str().unwrap_or_default().to_owned();
    let stored = row["journal_lines"].as_u64().unwrap_or(0);
    let mut marks: BTreeMap<u64, Vec<(&str, HashSource)>> = BTreeMap::new();
    let mut mark = |line, hash, found_in| marks.entry(line).or_default().push((hash, found_in));
    mark(stored, row["journal_head"].as_str().unwrap_or_default(), HashSource::Database);
    known.marks.iter().for_each(|(line, hash)| mark(*line, hash, HashSource::Ledger));
    heads.iter().for_each(|head| mark(head.lines, &head.hash, HashSource::Elsewhere));

    let broken = |source| Problem::Journal { path: path.clone(), source };
    let file = open(Path::new(&path)).map_err(|error| broken(error.into()))?;
    let mut reader = Reader::new(BufReader::new(file));
    let (mut fold, mut made) = (Fold::default(), Sums::default());
    // Rows are written in steps, and the position with the last: where that is still to come, there are as many more as were
    // written of what the journal goes on with.
    let (mut beyond, mut goes_on) = (None::<Sums>, false);
    // Said last: of another session's journal the hashes tell more.
    let mut of_row = None;
    while let Some(entry) = reader.next_entry().map_err(broken)? {
        let (hash, line) = reader.position();
        for (expected, found_in) in marks.remove(&line).unwrap_or_default() {
            if expected != hash {
                return Err(Problem::Other { path, line, found_in });
            }
        }
        if line <= stored {
            for folded in fold.next(entry) {
                made.folded(&folded);
                of_row = of_row.or(same_session(row, &folded).err());
            }
        } else if let Some(sums) = &sums
            && !goes_on
            && differing(row, known.outcomes, sums, &made).is_some()
        {
            let beyond = beyond.get_or_insert(made);
            for folded in fold.next(entry) {
                beyond.folded(&folded);
                goes_on |= differing(row, known.outcomes, sums, beyond).is_none();
            }
        }
    }
    marks.remove(&0);
    if let Some((expected, of)) = marks.pop_last() {
        let found_in = of.first().map_or(HashSource::Database, |(_, found_in)| *found_in);
        return Err(Problem::Cut { path, lines: reader.position().1, expected, found_in });
    }
    if let Some(problem) = of_row {
        return Err(problem);
    }
    match sums {
        Some(sums) if !goes_on => differing(row, known.outcomes, &sums, &made).map_or(Ok(()), Err),
        _ => Ok(()),
    }
}

/// Opens a journal. Its user chose the path and has the directory, and whoever verifies may be root.
fn open(path: &Path) -> io::Result<File> {
    let (dir, name) = Dir::of(path)?;
    dir.entry(&name)?.ok_or(io::ErrorKind::NotFound)?.read()
}

/// What of a session's rows is not what was made of its journal. `outcomes`: the ledger says that they have them.
fn differing(row: &Value, outcomes: bool, sums: &Sums, made: &Sums) -> Option<Problem> {
    if sums.messages != made.messages {
        Some(Problem::Rows("messages"))
    } else if sums.calls != made.calls {
        Some(Problem::Rows("tool calls"))
    } else if (outcomes || row["outcomes"] == 1) && sums.outcomes != made.outcomes {
        // Calls of a session that began before there were columns for it have what they have.
        Some(Problem::Rows("outcomes of tool calls"))
    } else if (outcomes || !row["stderr_bytes"].is_null()) && sums.stderr != made.stderr {
        // A session that began before there was a table for it has only a part, or nothing; so has none that has outcomes.
        Some(Problem::Rows("lines of standard error"))
    } else {
        None
    }
}

fn same_session(row: &Value, folded: &Row) -> Result<(), Problem> {
    match folded {
        Row::Session { server_name, .. } if row["server_name"] != server_name.as_str() => {
            Err(Problem::Row("server"))
        }
        Row::Session { started_at, .. } if row["started_at"] != rfc3339(*started_at) => {
            Err(Problem::Row("start"))
        }
        Row::End { at, .. } if row["ended_at"] != rfc3339(*at) => Err(Problem::Row("end")),
        Row::End { status, .. } if row["exit_status"] != json!(status) => Err(Problem::Row("exit status")),
        _ => Ok(()),
    }
}

/// Heads that no session's journal answers for: those of ledgers, of sessions that retention removed, and of nobody.
/// Gives each with the session's or ledger's name.
pub fn heads<'a>(
    heads: &'a [Head],
    ledgers: &HashMap<u32, Ledger>,
    present: impl Fn(&str) -> bool,
) -> Vec<(&'a Head, Problem)> {
    heads
        .iter()
        .filter_map(|head| {
            let ledger = ledgers.get(&head.uid);
            let problem = match &head.of {
                Of::Ledger => {
                    let first = ledger.and_then(|l| l.hashes.keys().next().copied()).unwrap_or(0);
                    let same = ledger.and_then(|l| l.hashes.get(&head.lines)) == Some(&head.hash);
                    // What was folded away cannot be compared any more.
                    let folded = first > 1 && head.lines < first;
                    (!same && !folded).then_some(Problem::LedgerHead(head.lines))
                }
                Of::Session(session) if present(session) => None,
                Of::Session(session) => match ledger.and_then(|l| l.sessions.get(session)) {
                    Some(Known { removed: Some(checkpoint), marks, .. }) => {
                        let differs = marks.get(&head.lines).is_some_and(|hash| *hash != head.hash);
                        (head.lines > checkpoint.last || differs)
                            .then_some(Problem::Checkpoint { lines: checkpoint.last, expected: head.lines })
                    }
                    // One that the ledger names and the database has not is `Gone`, and reported so.
                    Some(Known { removed: None, .. }) => None,
                    // Its checkpoint may be folded away.
                    None if ledger.is_some_and(|l| l.folded.0 > 0) => None,
                    None => Some(Problem::Lost),
                },
            };
            problem.map(|problem| (head, problem))
        })
        .collect()
}
