//! Approvals of more than one call: who may give and revoke one, and the calls that they answer.

use super::{
    sessions::Sessions,
    waiting::{Decider, KnownCall, Refused},
};
use ringfence_base::{clock, quota::Lane};
use ringfence_store::{self as store, ActiveApproval, CallFacts, Viewer};
use ringfence_wire::approvals::{ApprovalScope, LONGEST_STANDING, Standing};
use serde_json::Value;

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
        "no approval that stands begins with {0:?}, or more than one does: it was revoked, is over, or never was; `ringfence approvals standing` lists those that stand (give at least four characters of an id)"
    )]
    Unknown(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
}

const PAST: &str = "that time is past already; nothing was approved";
const TOO_LONG: &str =
    "an approval that is bound to no session stands for eight hours at most; nothing was approved";
const FOR_EVER: &str = "an approval stands for a year at most; nothing was approved";
const NO_FINGERPRINT: &str = "the interceptor of this call is of an earlier version, and cannot tell when another call is the same: approve the call alone, or start the MCP client again";
const NOT_SEEN: &str = "the arguments of this call are so long that nobody could see all of them: approve the call alone, or for its tool";

/// Until when an approval stands that is given `now`.
fn end_of(standing: &Standing, now: i64) -> Result<Option<i64>, NotApproved> {
    let is_bound = standing.scope == ApprovalScope::Session;
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

impl Sessions {
    /// Approves a call that waits, and those like it from now on: the call's whole id, and the approval as lists have it. `lane`:
    /// that of whoever decides.
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
        if known.fingerprint.is_none() {
            return Err(NotApproved::Invalid(NO_FINGERPRINT));
        }
        let mut writer = self.writer.lock_in(lane);
        let given = writer.add_approval(&facts(&known), (standing.scope, until), &known.decided_by, now)?;
        let id = given.ok_or(NotApproved::Invalid(NOT_SEEN))?;
        if let Err(refused) = self.waiting.decide_by(&known.call, true, who, Some(&id)) {
            // It was decided at the same moment: what was to be approved for longer is not.
            writer.revoke_approval(Viewer(known.uid), &id, "nobody: its call was decided before", now)?;
            return Err(refused.into());
        }
        // Others wait that it answers as well.
        let mut answered = Vec::new();
        for other in self.waiting.known_of(known.uid) {
            if let Some(approval) = writer.use_approval(&facts(&other), now)? {
                answered.push((other.call, by(&approval)));
            }
        }
        drop(writer);
        answered.into_iter().for_each(|(call, by)| self.waiting.let_go(&call, by));
        let row = self.readers.ask(|reader| reader.approval(Viewer(known.uid), &id))?;
        Ok((known.call, row.unwrap_or_default()))
    }

    /// Who lets a call go on that is about to wait, if an approval stands that answers it. What cannot be found out a person decides.
    pub(super) fn standing_answer(&self, known: &KnownCall, still: &dyn Fn() -> bool) -> Option<String> {
        known.fingerprint.as_ref()?;
        let mut writer = self.writer.lock(known.uid, still)?;
        match writer.use_approval(&facts(known), clock::now_micros()) {
            Ok(found) => found.as_ref().map(by),
            Err(error) => {
                tracing::warn!(
                    "whether an approval answers a call of session {} is not known: {}",
                    known.session,
                    ringfence_base::error::chain(&error)
                );
                None
            }
        }
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
    use super::{NotApproved, end_of};
    use ringfence_wire::approvals::{ApprovalScope, LONGEST_STANDING, Standing};

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
