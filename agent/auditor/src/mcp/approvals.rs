//! Approvals of more than one call: who may give and revoke one, and the calls that they answer.

use super::{
    link::Link,
    sessions::Sessions,
    waiting::{Decider, KnownCall, Origin, Refused},
    writer::Turn,
};
use ringfence_base::{clock, error::chain, quota::Lane};
use ringfence_store::{self as store, ActiveApproval, CallFacts, Given, Viewer};
use ringfence_wire::{
    approvals::{ApprovalScope, LONGEST_STANDING, Standing},
    mcp::WaitingCall,
};
use serde_json::Value;
use std::sync::Arc;

/// How long one may stand that is bound to a session, microseconds: a year. It ends with the session.
const LONGEST_OF_SESSION: i64 = 365 * 24 * 3_600 * 1_000_000;

/// Why no approval stands, or none was revoked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotApproved {
    /// The call may not be decided, or no longer.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No approval can be like that.
    #[error("{0}")]
    Invalid(&'static str),
    /// There is no such approval.
    #[error(
        "no active approval, or more than one, has an ID starting with {0:?}; it may have been revoked or have expired: `ringfence approvals standing` lists those that stand (give at least four characters)"
    )]
    Unknown(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What became of a call that was to wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeldNow {
    /// It goes on, by those words.
    Answered(String),
    /// It waits, or did until a moment ago.
    Waits,
    /// Too many wait already.
    TooMany,
}

const PAST: &str = "that time is past already; nothing was approved";
const TOO_LONG: &str =
    "an approval that is bound to no session stands for eight hours at most; nothing was approved";
const FOR_EVER: &str = "an approval stands for a year at most; nothing was approved";
const NO_FINGERPRINT: &str = "the interceptor of this call is of an earlier version, and cannot tell when another call is the same: approve the call alone, or start the MCP client again";
const NOT_ON_RECORD: &str = "this call is not on record yet, or no longer, so no other can be told to be like it: try again in a moment, or approve the call alone";
const NOT_SEEN: &str = "the arguments of this call are so long that nobody could see all of them: approve the call alone, or for its tool";

/// Until when an approval stands that is given `now`.
fn end_of(standing: &Standing, now: i64) -> Result<Option<i64>, NotApproved> {
    let is_bound = matches!(standing.scope, ApprovalScope::Session | ApprovalScope::Container);
    let (longest, why) = if is_bound { (LONGEST_OF_SESSION, FOR_EVER) } else { (LONGEST_STANDING, TOO_LONG) };
    match standing.until {
        Some(until) if until <= now => Err(NotApproved::Invalid(PAST)),
        Some(until) if until > now.saturating_add(longest) => Err(NotApproved::Invalid(why)),
        Some(until) => Ok(Some(until)),
        None if is_bound => Ok(None),
        None => Ok(Some(now.saturating_add(longest))),
    }
}

/// Who let a call go on that an approval answers, for the record.
fn by(approval: &ActiveApproval) -> String {
    format!("approval {} of {}", approval.id, approval.by)
}

fn facts(known: &KnownCall) -> CallFacts<'_> {
    CallFacts {
        call: &known.call,
        uid: known.uid,
        session: &known.session,
        governed: known.governed,
        fingerprint: known.fingerprint.as_ref(),
    }
}

/// What `take` gave of a call that an approval answers, and by which words the call goes on. Only if it gave something the approval
/// counts as used: else somebody was faster. What cannot be found out a person decides.
fn answer<T>(
    writer: &mut Turn<'_>,
    known: &KnownCall,
    take: impl FnOnce() -> Option<T>,
) -> Option<(T, String)> {
    let now = clock::now_micros();
    let found = writer.approval_for(&facts(known), now).unwrap_or_else(|error| {
        let session = &known.session;
        tracing::warn!(
            "whether an approval answers a call of session {session} is not known: {}",
            chain(&error)
        );
        None
    })?;
    let taken = take()?;
    if let Err(error) = writer.count_use(&found.id, now) {
        tracing::warn!("{}", chain(&error));
    }
    Some((taken, by(&found)))
}

impl Sessions {
    /// Approves a call that waits, and those like it from now on: the call's whole id, and the approval as lists have it, with
    /// `only_session` where no other session has that server. `lane`: that of whoever decides.
    pub(crate) fn approve_for(
        &self,
        named: &str,
        standing: &Standing,
        who: &Decider,
        lane: Lane,
    ) -> Result<(String, Value), NotApproved> {
        let now = clock::now_micros();
        let until = end_of(standing, now)?;
        let known = self.waiting.known(named, who)?;
        if known.connection.is_some() || standing.scope == ApprovalScope::Container {
            return self.approve_connection(&known, (standing, until), who, lane);
        }
        let mut writer = self.writer.lock_in(lane);
        let given = writer.add_approval(&facts(&known), (standing.scope, until), &known.decided_by, now)?;
        let id = match given {
            Given::Stands(id) => id,
            Given::NoFingerprint => return Err(NotApproved::Invalid(NO_FINGERPRINT)),
            Given::NotOnRecord => return Err(NotApproved::Invalid(NOT_ON_RECORD)),
            Given::NotSeen => return Err(NotApproved::Invalid(NOT_SEEN)),
        };
        if let Err(refused) = self.waiting.decide_by(&known.call, true, who, Some(&id)) {
            // It was decided at the same moment: what was to be approved for longer is not.
            writer.revoke_approval(Viewer(known.uid), &id, "nobody: its call was decided before", now)?;
            return Err(refused.into());
        }
        // Others wait that it answers as well.
        let others = self.waiting.known_of(known.uid);
        let take = |other: &KnownCall| answer(&mut writer, other, || self.waiting.take(&other.call));
        let answered: Vec<_> = others.iter().filter_map(take).collect();
        drop(writer);
        answered.into_iter().for_each(|(held, by)| held.let_go(by));
        let row = self.readers.ask(|reader| reader.approval(Viewer(known.uid), &id))?;
        let mut row = row.unwrap_or_default();
        let is_unsettled = known.fingerprint.is_some_and(|fingerprint| fingerprint.unsettled);
        if is_unsettled && standing.scope != ApprovalScope::Session {
            row["only_session"] = true.into();
        }
        Ok((known.call, row))
    }

    /// A call is to wait, unless an approval stands that answers it.
    pub(super) fn hold(
        &self,
        waiting: WaitingCall,
        known: &KnownCall,
        (from, link): (Origin, &Link),
        still: &dyn Fn() -> bool,
    ) -> HeldNow {
        if let Some(((), by)) = self.standing_answer(known, still, || Some(())) {
            return HeldNow::Answered(by);
        }
        if !self.waiting.add_from(waiting, from, Arc::clone(link)) {
            return HeldNow::TooMany;
        }
        // Who gave an approval since did not find this call among those that wait.
        let again = self.standing_answer(known, still, || self.waiting.take(&known.call));
        if let Some((held, by)) = again {
            held.let_go(by);
        }
        HeldNow::Waits
    }

    /// [`answer`], in the call's user's turn.
    fn standing_answer<T>(
        &self,
        known: &KnownCall,
        still: &dyn Fn() -> bool,
        take: impl FnOnce() -> Option<T>,
    ) -> Option<(T, String)> {
        known.fingerprint.as_ref()?;
        answer(&mut self.writer.lock(known.uid, still)?, known, take)
    }

    /// Ends an approval; its whole id. `lane`: the viewer's.
    pub(crate) fn revoke_approval(
        &self,
        viewer: Viewer,
        named: &str,
        by: &str,
        lane: Lane,
    ) -> Result<String, NotApproved> {
        let mut writer = self.writer.lock_in(lane);
        let revoked = writer.revoke_approval(viewer, named, by, clock::now_micros())?;
        revoked.ok_or_else(|| NotApproved::Unknown(named.chars().take(super::waiting::MOST_NAMED).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::{HeldNow, NotApproved, answer, end_of, facts};
    use crate::mcp::{
        link::{Frame, Link, LinkWriter, frame},
        sessions::{Serving, Sessions},
        waiting::{KnownCall, Origin},
        writer::Turn,
    };
    use ringfence_base::clock;
    use ringfence_store::{Given, Viewer};
    use ringfence_wire::{
        approvals::{ApprovalScope, Fingerprint, LONGEST_STANDING, Standing},
        mcp::{SessionOrder, WaitingCall},
    };
    use std::{
        os::unix::net::UnixStream,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
        time::Duration,
    };

    /// Waits until it comes to that.
    fn until(what: &str, it_does: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if it_does() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("it does not come to that: {what}");
    }

    /// What happens between the two looks for an approval that a call is held against.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Between {
        Nothing,
        /// Somebody gave one, and did not find the call.
        Given,
        /// Somebody gave one, and let the call go on.
        Found,
    }

    /// A call that is on record, and how it is known.
    fn recorded(sessions: &Sessions) -> KnownCall {
        sessions.writer.ours().lines("s", 5).expect("opens");
        let other = rusqlite::Connection::open(&sessions.db).expect("opens");
        other
            .execute_batch(
                "INSERT INTO sessions (id, server_name, server_command, started_at, uid) VALUES ('s', 'fs', 'x', '', 5);
                 INSERT INTO messages (id, session_id, direction, timestamp, raw) VALUES ('m', 's', '', '', '');
                 INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at)
                     VALUES ('call', 's', 'm', 't', '{}', 'write', '');",
            )
            .expect("stored");
        let hash = || "a".repeat(64);
        KnownCall {
            call: "call".into(),
            session: "s".into(),
            uid: 5,
            governed: false,
            fingerprint: Some(Fingerprint { arguments: hash(), server: hash(), unsettled: false }),
            connection: None,
            decided_by: String::new(),
        }
    }

    fn gives(writer: &mut Turn<'_>, known: &KnownCall) -> String {
        let now = clock::now_micros();
        let standing = (ApprovalScope::Tool, Some(now + LONGEST_STANDING));
        match writer.add_approval(&facts(known), standing, "uid 5", now).expect("stored") {
            Given::Stands(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// Holds a call while that happens: what the auditor said to its interceptor, and how often the approval was used.
    fn held_while(between: Between) -> (Vec<Frame>, Option<(String, u64)>) {
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
        let known = recorded(&sessions);
        let waiting = WaitingCall {
            id: "call".into(),
            session: "s".into(),
            server: "fs".into(),
            tool: "t".into(),
            arguments: "{}".into(),
            arguments_bytes: None,
            score: 1,
            reasons: vec![],
            rules: vec![],
            since: 0,
            until: i64::MAX,
            connection: None,
        };
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        // One that keeps what it is given: nothing goes before its first message.
        let link: Link = Arc::new(LinkWriter::new(ours));
        // Whoever comes to the writer waits for its lane, in the order in which they come.
        let gate = sessions.writer.wait(5, || true).expect("free");
        let [first, behind, second] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let holds = {
            let (sessions, first, second) = (Arc::clone(&sessions), Arc::clone(&first), Arc::clone(&second));
            let (known, link) = (known.clone(), Arc::clone(&link));
            thread::spawn(move || {
                let fingerprint = known.fingerprint.clone();
                let from = Origin { uid: 5, client: 1, governed: false, fingerprint, question: None };
                let still = || {
                    first.store(true, Ordering::SeqCst);
                    if sessions.waiting.count(5) == 1 {
                        second.store(true, Ordering::SeqCst);
                    }
                    true
                };
                sessions.hold(waiting, &known, (from, &link), &still)
            })
        };
        until("it looks for an approval", || first.load(Ordering::SeqCst));
        let giver = {
            let (sessions, behind, second) =
                (Arc::clone(&sessions), Arc::clone(&behind), Arc::clone(&second));
            thread::spawn(move || {
                let still = || {
                    behind.store(true, Ordering::SeqCst);
                    true
                };
                let lane = sessions.writer.wait(5, still).expect("its turn");
                until("it looks once more, among those that wait", || second.load(Ordering::SeqCst));
                let mut turn = sessions.writer.lock_in(lane);
                let id = (between != Between::Nothing).then(|| gives(&mut turn, &known));
                if between == Between::Found {
                    let take = || sessions.waiting.take(&known.call);
                    let (held, by) = answer(&mut turn, &known, take).expect("it waits");
                    held.let_go(by);
                }
                id
            })
        };
        until("somebody is to give one", || behind.load(Ordering::SeqCst));
        drop(gate);
        let id = giver.join().expect("it looked once more");
        assert_eq!(holds.join().expect("no panic"), HeldNow::Waits);
        assert_eq!(sessions.waiting.count(5), usize::from(between == Between::Nothing));
        let uses = |id: String| {
            let row = sessions.readers.ask(|reader| reader.approval(Viewer(5), &id)).expect("reads");
            let uses = row.and_then(|row| row["uses"].as_u64()).expect("a number");
            (id, uses)
        };
        (link.kept(), id.map(uses))
    }

    #[test]
    fn a_call_is_held_against_approvals_once_more_when_whoever_gives_one_did_not_find_it() {
        assert_eq!(held_while(Between::Nothing), (vec![], None), "the control: none stands");
        for between in [Between::Given, Between::Found] {
            let (told, approval) = held_while(between);
            let (id, uses) = approval.expect("it was given");
            let by = format!("approval {id} of uid 5");
            let order = frame(&SessionOrder::Decide { call: "call".into(), approve: true, by });
            assert_eq!((told, uses), (vec![order.expect("a frame")], 1), "once: {between:?}");
        }
    }

    #[test]
    fn only_what_ends_with_a_session_stands_for_long() {
        let now = 1_000;
        let end = |scope, until| {
            end_of(&Standing { scope, until }, now).map_err(|error| matches!(error, NotApproved::Invalid(_)))
        };
        for scope in [ApprovalScope::Arguments, ApprovalScope::Tool] {
            assert_eq!(end(scope, None), Ok(Some(now + LONGEST_STANDING)));
            assert_eq!(end(scope, Some(now + LONGEST_STANDING)), Ok(Some(now + LONGEST_STANDING)));
            assert_eq!(end(scope, Some(now + LONGEST_STANDING + 1)), Err(true));
        }
        assert_eq!(end(ApprovalScope::Session, None), Ok(None));
        assert_eq!(
            end(ApprovalScope::Session, Some(now + 2 * LONGEST_STANDING)),
            Ok(Some(now + 2 * LONGEST_STANDING))
        );
        for scope in [ApprovalScope::Arguments, ApprovalScope::Session, ApprovalScope::Tool] {
            assert_eq!((end(scope, Some(now)), end(scope, Some(i64::MIN))), (Err(true), Err(true)));
            assert_eq!(end(scope, Some(i64::MAX)), Err(true));
        }
    }
}
