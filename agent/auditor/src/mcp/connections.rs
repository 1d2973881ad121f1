//! Questions of containers' egress workers: connections to hosts that a profile neither grants nor denies. They are judged as calls
//! of a tool are, and wait among them.
//!
//! Rules and exceptions see a call of `net.connect`, of a server that is called as the host. A worker may be in its container's
//! hands: what it asks is about its own container, few wait, and more than a person could read are refused without being shown.
//! That is counted by the outermost container, as what is governed may start any number of others within.

use super::{
    approvals::{HeldNow, NotApproved},
    link::Link,
    sessions::Sessions,
    waiting::{Asked, Decider, KnownCall, NOBODY, Origin, TOO_MANY},
    watchers::Change,
    writer::Turn,
};
use ringfence_base::{clock, error::chain, quota::Lane};
use ringfence_session::{risk::Risk, ruleset::RuleSet};
use ringfence_store::{ActiveApproval, NameFacts, Viewer};
use ringfence_wire::{
    approvals::{ApprovalScope, Standing},
    egress::{EgressLine, MAX_NAME},
    egress_asks::{CONNECT, EgressAsk, EgressDecision, LONGEST_WAIT_MS, MOST_QUESTIONS, WaitingConnection},
    frame::FrameError,
    mcp::WaitingCall,
    tool_call::Action,
};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc, time::Instant};

/// Connections of one user's containers that may wait at once: they leave room for calls.
const MOST_OF_A_USER: usize = 96;
/// The same of one container and all within it: they leave room for other containers of the user.
const MOST_WITHIN: usize = 24;
/// How long a question is shown whose time is up: its worker says that nobody waits, and may be stuck.
const LATE: i64 = 5_000_000;

const NO_CALL: &str =
    "only a connection is approved for a container; this is a call of a tool: approve it for its session";
const NO_TOOL: &str = "a connection is approved once or for its container (`--scope container`): all calls of `net.connect` would be all hosts";

/// The questions of one line that wait.
pub(super) struct Questions<'a> {
    sessions: &'a Sessions,
    line: &'a EgressLine,
    link: &'a Link,
    /// By the worker's number: our id, and when it is over.
    waiting: HashMap<u64, (String, i64)>,
}

/// What rules and exceptions say of a question.
enum Judged {
    Decided {
        approve: bool,
        by: String,
    },
    Waits {
        risk: Risk,
        rules: Vec<String>,
        /// The rules are known, so that none of them forbids what somebody approved before.
        known: bool,
    },
}

impl<'a> Questions<'a> {
    pub(super) fn new(sessions: &'a Sessions, line: &'a EgressLine, link: &'a Link) -> Self {
        Self { sessions, line, link, waiting: HashMap::new() }
    }

    /// Whether nobody has to look for those whose time is up.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets those that were decided, and those whose time is up. The worker hears of these: its clock stands still while the host
    /// sleeps, and a question that only it knows would be answered by nobody.
    pub(super) fn tidy(&mut self) {
        let now = clock::now_micros();
        let waiting = std::mem::take(&mut self.waiting);
        for (number, (call, until)) in waiting {
            if now > until.saturating_add(LATE) {
                self.forget(call);
                let by = "nobody decided in time".to_owned();
                let over = EgressDecision { question: number, approve: false, by, stands: false, full: true };
                if let Err(error) = self.link.send(&over) {
                    tracing::debug!("an egress worker cannot be told that its question is over: {error}");
                }
            } else if self.sessions.waiting.waits(&call) {
                self.waiting.insert(number, (call, until));
            }
        }
    }

    /// Takes what a worker says of its questions. `Ok(false)`: no worker of ours says that.
    ///
    /// # Errors
    /// The worker is gone.
    pub(super) fn take(&mut self, ask: EgressAsk, still: &dyn Fn() -> bool) -> Result<bool, FrameError> {
        self.tidy();
        match ask {
            EgressAsk::Gone { question } => {
                if let Some((call, _)) = self.waiting.remove(&question) {
                    self.forget(call);
                }
                Ok(true)
            }
            EgressAsk::Ask { question, name, port, wait_ms } => {
                if self.waiting.contains_key(&question)
                    || !is_host(&name)
                    || port == 0
                    || wait_ms > LONGEST_WAIT_MS
                {
                    return Ok(false);
                }
                self.ask(question, (name, port), wait_ms, still)?;
                Ok(true)
            }
        }
    }

    fn ask(
        &mut self,
        question: u64,
        (host, port): (String, u16),
        wait_ms: u32,
        still: &dyn Fn() -> bool,
    ) -> Result<(), FrameError> {
        let EgressLine { public, profile, uid, within, .. } = self.line;
        let outermost = self.line.outermost();
        let decide = |approve: bool, by: String, stands| {
            self.link.send(&EgressDecision { question, approve, by, stands, full: false })
        };
        let connection = WaitingConnection {
            host,
            port,
            container: public.clone(),
            profile: profile.clone(),
            within: within.clone(),
        };
        let arguments = json!({ "host": connection.host, "port": port });
        let ((risk, rules), is_judged) =
            match self.sessions.judge_connection(*uid, &connection.host, &arguments) {
                Judged::Decided { approve, by } => {
                    return decide(approve, by, approve);
                }
                Judged::Waits { risk, rules, known } => ((risk, rules), known),
            };
        // Not as calls are named: whoever writes a journal of its own can have no row of that name.
        let (call, since) = (uuid::Uuid::new_v4().simple().to_string(), clock::now_micros());
        let until = since.saturating_add(i64::from(wait_ms) * 1000);
        let known = KnownCall {
            call: call.clone(),
            session: public.clone(),
            uid: *uid,
            governed: true,
            fingerprint: None,
            connection: Some(connection.clone()),
            decided_by: String::new(),
        };
        let waiting = WaitingCall {
            id: call.clone(),
            session: public.clone(),
            server: connection.host.clone(),
            tool: CONNECT.to_owned(),
            arguments: arguments.to_string(),
            arguments_bytes: None,
            score: risk.score,
            reasons: risk.reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            rules,
            since,
            until,
            connection: Some(connection),
        };
        // Whose descendants decide nothing is not known: who is governed never does.
        let asked = Asked { number: question, outermost: outermost.to_owned() };
        let from =
            Origin { uid: *uid, client: NOBODY, governed: true, fingerprint: None, question: Some(asked) };
        let has_room = self.waiting.len() < MOST_QUESTIONS;
        let how = Hold { has_room, is_judged, outermost };
        match self.sessions.hold_connection((waiting, how), &known, (from, self.link), still) {
            HeldNow::Answered(by) => decide(true, by, true),
            HeldNow::TooMany => {
                let by = TOO_MANY.to_owned();
                self.link.send(&EgressDecision { question, approve: false, by, stands: false, full: true })
            }
            HeldNow::Waits => {
                self.waiting.insert(question, (call.clone(), until));
                self.sessions.notify(*uid, Change::Call(call));
                Ok(())
            }
        }
    }

    fn forget(&self, call: String) {
        if self.sessions.waiting.remove(&call, &self.line.public) {
            self.sessions.notify(self.line.uid, Change::Call(call));
        }
    }
}

/// The line is over, and nobody waits on it.
impl Drop for Questions<'_> {
    fn drop(&mut self) {
        for (_, (call, _)) in std::mem::take(&mut self.waiting) {
            self.forget(call);
        }
    }
}

/// Whether a text can be a host's name as a worker has it, with a domain.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    name.len() <= MAX_NAME && name.contains('.') && name.split('.').all(is_label)
}

fn facts<'a>(known: &'a KnownCall, connection: &'a WaitingConnection) -> NameFacts<'a> {
    NameFacts {
        call: &known.call,
        uid: known.uid,
        container: &known.session,
        host: &connection.host,
        port: connection.port,
    }
}

/// The approval that answers a question, if one stands.
fn standing(writer: &mut Turn<'_>, facts: &NameFacts<'_>) -> Option<ActiveApproval> {
    writer.name_approval_for(facts, clock::now_micros()).unwrap_or_else(|error| {
        let container = facts.container;
        tracing::warn!(
            "whether an approval answers a connection of container {container} is not known: {}",
            chain(&error)
        );
        None
    })
}

/// How a connection is to wait.
#[derive(Debug, Clone, Copy)]
struct Hold<'a> {
    /// Its container has room for it.
    has_room: bool,
    /// The rules are known, and none of them decides.
    is_judged: bool,
    outermost: &'a str,
}

impl Sessions {
    /// What the rules of the database that bind this user, and their exceptions, say of a connection.
    fn judge_connection(&self, uid: u32, host: &str, arguments: &Value) -> Judged {
        let rules = RuleSet::new(Vec::new());
        let known = match self.readers.ask(|reader| reader.stored_rules(uid)) {
            Ok(stored) => {
                rules.set_stored(&stored);
                true
            }
            // There are none before there is a database.
            Err(_) if !self.db.exists() => true,
            // A person decides, who may know them. Who approved it before did not know of one that was made since.
            Err(error) => {
                tracing::warn!("the rules about a connection cannot be read: {}", chain(&error));
                false
            }
        };
        let (risk, judgement, excepted) = rules.judge_call((host, CONNECT), Risk::of_connection(), arguments);
        let named = |what: &str, names: &[String]| match names {
            [] => "the score".to_owned(),
            names => format!("{what} {}", names.join(", ")),
        };
        match judgement.action {
            Action::Block => Judged::Decided { approve: false, by: named("rule", &judgement.rules) },
            Action::Pause => Judged::Waits { risk, rules: judgement.rules, known },
            // It is judged again when they can be read.
            Action::Pass | Action::Flag if !known => Judged::Waits { risk, rules: judgement.rules, known },
            Action::Pass | Action::Flag => {
                let names: Vec<String> = excepted.into_iter().map(|one| one.name).collect();
                Judged::Decided { approve: true, by: named("exception", &names) }
            }
        }
    }

    /// A connection is to wait, if there is room, unless an approval stands that answers it.
    fn hold_connection(
        &self,
        (waiting, how): (WaitingCall, Hold<'_>),
        known: &KnownCall,
        (from, link): (Origin, &Link),
        still: &dyn Fn() -> bool,
    ) -> HeldNow {
        let Hold { has_room, is_judged, outermost } = how;
        if is_judged && let Some(((), by)) = self.approved_before(known, still, || Some(())) {
            return HeldNow::Answered(by);
        }
        // Two lines at once may pass by one or two more: none waits for another's.
        let (of_user, within) = self.waiting.connections(known.uid, outermost);
        if !has_room || of_user >= MOST_OF_A_USER || within >= MOST_WITHIN {
            return HeldNow::TooMany;
        }
        // Only what a person sees counts.
        if !self.waiting.paces.take(outermost, Instant::now()) {
            return HeldNow::TooMany;
        }
        if !self.waiting.add_from(waiting, from, Arc::clone(link)) {
            self.waiting.paces.give_back(outermost);
            return HeldNow::TooMany;
        }
        // Who gave an approval since did not find this one among those that wait.
        if is_judged
            && let Some((held, by)) = self.approved_before(known, still, || self.waiting.take(&known.call))
        {
            held.let_go(by);
        }
        HeldNow::Waits
    }

    fn approved_before<T>(
        &self,
        known: &KnownCall,
        still: &dyn Fn() -> bool,
        take: impl FnOnce() -> Option<T>,
    ) -> Option<(T, String)> {
        let facts = facts(known, known.connection.as_ref()?);
        let mut writer = self.writer.lock(known.uid, still)?;
        let found = standing(&mut writer, &facts)?;
        let taken = take()?;
        if let Err(error) = writer.count_use(&found.id, clock::now_micros()) {
            tracing::warn!("{}", chain(&error));
        }
        Some((taken, format!("approval {} of {}", found.id, found.by)))
    }

    /// Approves a connection that waits, and those of its container to the same host and port from now on: the question's whole
    /// id, and the approval as lists have it.
    pub(super) fn approve_connection(
        &self,
        known: &KnownCall,
        (approval, until): (&Standing, Option<i64>),
        who: &Decider,
        lane: Lane,
    ) -> Result<(String, Value), NotApproved> {
        let Some(connection) =
            known.connection.as_ref().filter(|_| approval.scope == ApprovalScope::Container)
        else {
            return Err(NotApproved::Invalid(if known.connection.is_some() { NO_TOOL } else { NO_CALL }));
        };
        let now = clock::now_micros();
        let mut writer = self.writer.lock_in(lane);
        let id = writer.add_name_approval(&facts(known, connection), until, &known.decided_by, now)?;
        if let Err(refused) = self.waiting.decide_by(&known.call, true, who, Some(&id)) {
            // It was decided at the same moment: what was to be approved for longer is not.
            writer.revoke_approval(Viewer(known.uid), &id, "nobody: it was decided before", now)?;
            return Err(refused.into());
        }
        drop(writer);
        let row = self.readers.ask(|reader| reader.approval(Viewer(known.uid), &id))?;
        Ok((known.call.clone(), row.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::is_host;

    #[test]
    fn only_a_host_with_a_domain_is_shown_to_anybody() {
        for host in ["a.org", "x-1.b_c.example", "xn--bcher-kva.example"] {
            assert!(is_host(host), "{host}");
        }
        let long = format!("{}.org", "a".repeat(64));
        for other in [
            "",
            "a",
            ".org",
            "a..org",
            "a.org.",
            "A.org",
            "a b.org",
            "a.org\n",
            "\u{e4}.org",
            "a.org:443",
            &long,
        ] {
            assert!(!is_host(other), "{other}");
        }
    }
}
