//! A session and its rule file: how changes of the file and the auditor's orders change the rules in force.

use super::forward::PipeSession;
use ringfence_base::clock::now_micros as now;
use ringfence_session::{
    journal::Entry,
    notice,
    reload::{Change, RuleFileWatch},
};
use ringfence_wire::mcp::{SessionOrder, SessionUpdate};

/// A rule file that a session follows.
#[derive(Debug)]
pub struct RuleFileFollower {
    watch: RuleFileWatch,
    /// Number of the last offer: an answer to an earlier one is out of date.
    offers: u32,
    /// The last notice, so that it is not repeated.
    last_notice: String,
}

impl RuleFileFollower {
    /// Follows a file.
    pub const fn new(watch: RuleFileWatch) -> Self {
        Self { watch, offers: 0, last_notice: String::new() }
    }

    /// The file, for the auditor to decide on.
    pub fn offer(&mut self) -> SessionUpdate {
        self.offers = self.offers.wrapping_add(1);
        SessionUpdate::RuleFile { number: self.offers, file: self.watch.offer() }
    }

    /// Looks at the file. What the auditor should know of it now.
    pub fn poll(&mut self, session: &PipeSession) -> Option<SessionUpdate> {
        match self.watch.poll()? {
            Change::Taken(rules) => {
                session.set_rules(rules);
                self.announce(session, "other rules are in force".to_owned());
            }
            Change::Back => self.last_notice.clear(),
            Change::Held(why) => self.announce(session, why),
            Change::Refused(why) => {
                self.announce(session, why);
                return None;
            }
        }
        Some(self.offer())
    }

    /// The auditor's order: what of a file is in force. Ignores any other order.
    pub fn apply_order(&mut self, session: &PipeSession, order: SessionOrder) {
        let SessionOrder::RuleFile { answers, path, text, held } = order else { return };
        if !self.watch.is_of(&path) || answers.is_some_and(|number| number != self.offers) {
            return;
        }
        match self.watch.put_in_force(&text) {
            Ok(None) => {}
            Ok(Some(rules)) => {
                session.set_rules(rules);
                if answers.is_none() {
                    self.announce(session, format!("other rules are in force: a person confirmed {path}"));
                }
            }
            Err(error) => {
                self.announce(session, format!("the rules that were confirmed cannot be read: {error}"))
            }
        }
        if let Some(rule) = held {
            self.announce(session, self.watch.held(&rule));
        }
        session.rules().file_known();
    }

    fn announce(&mut self, session: &PipeSession, text: String) {
        if text == self.last_notice {
            return;
        }
        notice::print(&text);
        let _ = session.record(&Entry::Note { at: now(), text: text.clone() });
        self.last_notice = text;
    }
}
