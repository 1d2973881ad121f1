//! A session and its rule file: what the file's changes and the auditor's word on them do to the rules in force.

use super::forward::Live;
use ringfence_base::clock::now_micros as now;
use ringfence_session::{
    journal::Entry,
    notice,
    reload::{Change, Watch},
};
use ringfence_wire::mcp::{SessionNews, SessionOrder};

/// A rule file that a session follows.
#[derive(Debug)]
pub struct Follow {
    watch: Watch,
    /// Number of the last offer: an answer to an earlier one is out of date.
    offers: u32,
    /// The last thing that was said, so that it is said once.
    said: String,
}

impl Follow {
    /// Follows a file.
    pub const fn new(watch: Watch) -> Self {
        Self { watch, offers: 0, said: String::new() }
    }

    /// The file, for the auditor's word on it.
    pub fn offer(&mut self) -> SessionNews {
        self.offers = self.offers.wrapping_add(1);
        SessionNews::RuleFile { number: self.offers, file: self.watch.offer() }
    }

    /// Looks at the file. What the auditor should know of it now.
    pub fn look(&mut self, session: &Live) -> Option<SessionNews> {
        match self.watch.look()? {
            Change::Taken(rules) => {
                session.set_rules(rules);
                self.say(session, "other rules are in force".to_owned());
            }
            Change::Back => self.said.clear(),
            Change::Held(why) => self.say(session, why),
            Change::Refused(why) => {
                self.say(session, why);
                return None;
            }
        }
        Some(self.offer())
    }

    /// The auditor says what of a file is in force. Any other order is none of ours.
    pub fn ordered(&mut self, session: &Live, order: SessionOrder) {
        let SessionOrder::RuleFile { answers, path, text, held } = order else { return };
        if !self.watch.is_of(&path) || answers.is_some_and(|number| number != self.offers) {
            return;
        }
        match self.watch.ordered(&text) {
            Ok(None) => {}
            Ok(Some(rules)) => {
                session.set_rules(rules);
                if answers.is_none() {
                    self.say(session, format!("other rules are in force: a person confirmed {path}"));
                }
            }
            Err(error) => self.say(session, format!("the rules that were confirmed cannot be read: {error}")),
        }
        if let Some(rule) = held {
            self.say(session, self.watch.held(&rule));
        }
        session.rules().file_known();
    }

    fn say(&mut self, session: &Live, text: String) {
        if text == self.said {
            return;
        }
        notice::say(&text);
        let _ = session.record(&Entry::Note { at: now(), text: text.clone() });
        self.said = text;
    }
}
