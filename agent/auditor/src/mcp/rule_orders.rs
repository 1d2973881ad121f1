//! Rules on their way to sessions: files that interceptors offer, changes that are confirmed, rules of the dashboard.

use super::{
    link::{self, Link},
    sessions::{Linked, Sessions},
};
use crate::shared::lock;
use ringfence_base::{clock, quota::Lane};
use ringfence_store::{self as store, Compared, SessionReader, Viewer};
use ringfence_wire::mcp::{RuleFile, SessionOrder};
use std::{collections::BTreeSet, mem};

/// How often a rule file is compared anew because the one in force is another by then.
const COMPARED: usize = 8;

impl Sessions {
    /// Puts the rules that the database has now in force in every session of a user that is linked; root's bind all. What cannot
    /// be read for one of them is sent by [`Self::send_unsent`] later, and keeps no other from its rules.
    ///
    /// # Errors
    /// The first of the store's.
    pub(crate) fn send_rules(&self, uid: u32) -> Result<(), store::Error> {
        let reader = SessionReader::open(&self.db).inspect_err(|_| {
            lock(&self.unsent_rules).insert(uid);
        })?;
        let uids: BTreeSet<u32> = self.linked_of(uid).iter().map(|linked| linked.uid).collect();
        let mut outcome = Ok(());
        for uid in uids {
            if let Err(error) = self.send_rules_to(uid, &reader) {
                lock(&self.unsent_rules).insert(uid);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    fn send_rules_to(&self, uid: u32, reader: &SessionReader) -> Result<(), store::Error> {
        let _alone = self.sending_rules.wait(uid, || true);
        let Ok(frame) = link::frame(&SessionOrder::Rules { rules: reader.stored_rules(uid)? }) else {
            return Ok(());
        };
        for linked in self.linked_to(uid) {
            // A link that is broken is made again, and welcomed with the rules.
            let _ = linked.link.keep(&frame).and_then(|()| linked.link.flush());
        }
        Ok(())
    }

    /// Sends rules that could not be sent.
    ///
    /// # Errors
    /// The first of the store's: what still cannot be sent waits for the next time.
    pub(crate) fn send_unsent(&self) -> Result<(), store::Error> {
        let unsent = mem::take(&mut *lock(&self.unsent_rules));
        let mut outcome = Ok(());
        for uid in unsent {
            outcome = outcome.and(self.send_rules(uid));
        }
        outcome
    }

    /// Takes a rule file that a session offers and answers its link; whether it waits for a confirmation. `None`: whoever offers
    /// it has no place here any more. What takes long, to compare the file and to write the answer, is done while others write;
    /// for the order of the answers it is enough that they are kept before the writer is given back.
    pub(super) fn offer_rules(
        &self,
        uid: u32,
        (number, file): (u32, RuleFile),
        link: &Link,
        still: &dyn Fn() -> bool,
    ) -> Result<Option<bool>, store::Error> {
        self.offer_rules_by(uid, (number, file), link, still, SessionReader::compare_rules)
    }

    pub(super) fn offer_rules_by(
        &self,
        uid: u32,
        (number, file): (u32, RuleFile),
        link: &Link,
        still: &dyn Fn() -> bool,
        compare: impl Fn(&SessionReader, u32, &RuleFile) -> Result<Compared, store::Error>,
    ) -> Result<Option<bool>, store::Error> {
        let reader = SessionReader::open(&self.db)?;
        for _ in 0..COMPARED {
            let compared = compare(&reader, uid, &file)?;
            let store::Standing { text, held } = compared.standing(&file);
            let is_held = held.is_some();
            let order = SessionOrder::RuleFile { answers: Some(number), path: file.path.clone(), text, held };
            // A rule file is shorter than a message may be.
            let Ok(frame) = link::frame(&order) else { return Ok(None) };
            let Some(mut writer) = self.writer.lock(uid, still) else { return Ok(None) };
            if !writer.take_rules(uid, &file, &compared, clock::now_micros())? {
                continue;
            }
            let kept = link.keep(&frame);
            drop(writer);
            return Ok(kept.and_then(|()| link.flush()).is_ok().then_some(is_held));
        }
        Err(store::Error::ChangingRuleFile)
    }

    /// Puts a changed rule file in force in every session of its user that has it, if that very change waits and
    /// `viewer`, whose lane this is, may decide it.
    pub fn confirm_rules(
        &self,
        viewer: u32,
        (path, sha256): (&str, &str),
        by: &str,
        lane: Lane,
    ) -> Result<bool, store::Error> {
        // Whoever's change it is, the text is that of this hash.
        let waits = self.readers.ask(|reader| reader.pending_text(Viewer(viewer), path, sha256))?;
        let Some(text) = waits else { return Ok(false) };
        let order = SessionOrder::RuleFile { answers: None, path: path.to_owned(), text, held: None };
        let Ok(frame) = link::frame(&order) else { return Ok(false) };
        let mut writer = self.writer.lock_in(lane);
        let confirmed = writer.confirm_rules(Viewer(viewer), path, sha256, by, clock::now_micros())?;
        let links: Vec<Linked> = confirmed.iter().flat_map(|uid| self.linked_to(*uid)).collect();
        // A link that is broken is made again, and asks for what is in force.
        links.iter().for_each(|linked| drop(linked.link.keep(&frame)));
        drop(writer);
        links.iter().for_each(|linked| drop(linked.link.flush()));
        Ok(!confirmed.is_empty())
    }

    /// The links of one user's own sessions.
    fn linked_to(&self, uid: u32) -> Vec<Linked> {
        let mut linked = self.linked_of(uid);
        linked.retain(|linked| linked.uid == uid);
        linked
    }
}
