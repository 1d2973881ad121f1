//! What the run's proxy refused, as its user learns of it: nothing else keeps it. Each host and port is said once, and how often it
//! was, when the command has ended.

use ringfence_base::escape;
use ringfence_policy::Profile;
use ringfence_wire::egress::{EgressCause, EgressOutcome, EgressRecord, MAX_NAME, MAX_SENTENCE};
use std::collections::HashMap;

/// Different ones that are said; the rest is counted.
const MOST: usize = 64;

/// See the module.
pub(crate) struct Refused {
    /// The profile's name and its file.
    profile: String,
    at_once: bool,
    /// In the order in which they came.
    said: Vec<Line>,
    places: HashMap<(String, u16, Option<EgressCause>), usize>,
    /// Of hosts beyond [`MOST`], or that the worker did not name, and what the worker had no room for.
    more: u64,
    lost: u64,
}

struct Line {
    sentence: String,
    times: u64,
}

impl Refused {
    /// Of nothing yet. `at_once`: what is refused is said when it is, and not only in the end.
    pub(crate) fn new(profile: &Profile, at_once: bool) -> Self {
        let profile = format!("{} ({})", profile.name, profile.file.display());
        Self {
            profile: escape::line(&profile),
            at_once,
            said: Vec::new(),
            places: HashMap::new(),
            more: 0,
            lost: 0,
        }
    }

    /// Takes a record; what is to be said at once.
    pub(crate) fn add(&mut self, record: &EgressRecord) -> Option<String> {
        let (name, port, cause, reason) = match record {
            EgressRecord::Connection {
                name,
                port,
                outcome: EgressOutcome::Refused | EgressOutcome::Ended,
                cause,
                reason,
                ..
            } => (
                upto(name, MAX_NAME),
                *port,
                *cause,
                upto(reason.as_deref().unwrap_or_default(), MAX_SENTENCE),
            ),
            EgressRecord::Lost { count } => {
                self.lost = self.lost.saturating_add(*count);
                return None;
            }
            EgressRecord::Connection { .. } | EgressRecord::Name { .. } => return None,
        };
        let (reason, more, wherever) = folded(reason);
        self.more = self.more.saturating_add(wherever);
        let times = more.saturating_add(1);
        let key = (name.to_owned(), port, cause);
        if let Some(line) = self.places.get(&key).and_then(|at| self.said.get_mut(*at)) {
            line.times = line.times.saturating_add(times);
            return None;
        }
        if self.said.len() >= MOST {
            self.more = self.more.saturating_add(times);
            return None;
        }
        let sentence = self.sentence((name, port), cause, reason);
        self.places.insert(key, self.said.len());
        self.said.push(Line { sentence: sentence.clone(), times });
        self.at_once.then_some(sentence)
    }

    /// What is to be said when the command has ended.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for Line { sentence, times } in self.said.drain(..) {
            match (self.at_once, times) {
                (true, 1) => {}
                (false, 1) => lines.push(sentence),
                (_, times) => lines.push(format!("{sentence} ({times} times in all)")),
            }
        }
        self.places.clear();
        if self.more > 0 {
            lines.push(format!("{} more connections to other hosts were refused", self.more));
        }
        if self.lost > 0 {
            lines.push(format!("{} more connections found no room to be kept in mind", self.lost));
        }
        lines
    }

    /// In a worker's words, which may have been taken over by what it reads.
    fn sentence(&self, (name, port): (&str, u16), cause: Option<EgressCause>, reason: &str) -> String {
        let place = if name.is_empty() {
            "a connection".to_owned()
        } else {
            format!("{}:{port}", escape::line(name))
        };
        let entry = match cause {
            Some(EgressCause::NotGranted) if !name.is_empty() => Some(format!("{name}:{port}")),
            Some(EgressCause::NotTls) => Some(format!("tcp:{name}:{port}")),
            _ => None,
        };
        let advice = entry.map(|entry| {
            let entry = escape::toml(&escape::line(&entry));
            format!(
                "; what would allow it, under [grant] of the profile {}: net = {{ only = [{entry}] }}",
                self.profile
            )
        });
        format!("refused {place}: {}{}", escape::line(reason), advice.unwrap_or_default())
    }
}

/// As much of a text as its worker was to send.
fn upto(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

/// A reason, and how many more refusals the worker had folded into it: at the same place, and wherever.
fn folded(reason: &str) -> (&str, u64, u64) {
    let parts = reason.rsplit_once(" (and ").and_then(|(reason, rest)| {
        let (times, which) = rest.split_once(" more ")?;
        let times = times.parse().ok()?;
        let is_here = which.starts_with("like it") || which.starts_with("there");
        Some(if is_here { (reason, times, 0) } else { (reason, 0, times) })
    });
    parts.unwrap_or((reason, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusals(at_once: bool) -> Refused {
        Refused {
            profile: "p (/p.toml)".into(),
            at_once,
            said: Vec::new(),
            places: HashMap::new(),
            more: 0,
            lost: 0,
        }
    }

    fn record(name: &str, outcome: EgressOutcome, cause: EgressCause, reason: &str) -> EgressRecord {
        EgressRecord::Connection {
            name: name.into(),
            port: 443,
            dialled: None,
            tls: false,
            sent: 0,
            received: 0,
            duration_us: 0,
            outcome,
            cause: Some(cause),
            reason: Some(reason.into()),
            rule: None,
        }
    }

    #[test]
    fn each_host_is_said_once_with_the_line_that_would_allow_it_and_how_often_in_the_end() {
        use {EgressCause::*, EgressOutcome::*};
        let line = "refused a.example:443: no rule; what would allow it, under [grant] of the profile p (/p.toml): \
                    net = { only = [\"a.example:443\"] }";
        let mut refused = refusals(true);
        assert_eq!(refused.add(&record("a.example", Refused, NotGranted, "no rule")).as_deref(), Some(line));
        let again = "no rule (and 2 more like it within 10 s)";
        assert_eq!(refused.add(&record("a.example", Refused, NotGranted, again)), None);
        let ssh = refused.add(&record("b.example", Refused, NotTls, "silent")).unwrap();
        assert!(ssh.ends_with(r#"net = { only = ["tcp:b.example:443"] }"#), "{ssh}");
        let fronted = refused.add(&record("b.example", Ended, OtherName, "another host"));
        assert_eq!(fronted.as_deref(), Some("refused b.example:443: another host"));
        for outcome in [Open, Passed, Failed] {
            assert_eq!(refused.add(&record("c.example", outcome, Unreachable, "x")), None, "{outcome:?}");
        }
        let there = "no rule (and 3 more there, for the same cause, within 10 s)";
        assert_eq!(refused.add(&record("a.example", Refused, NotGranted, there)), None);
        let wherever = "no rule (and 5 more for the same cause, wherever, within 10 s)";
        assert_eq!(refused.add(&record("a.example", Refused, NotGranted, wherever)), None);
        let rest =
            [format!("{line} (9 times in all)"), "5 more connections to other hosts were refused".to_owned()];
        assert_eq!(refused.rest(), rest);
        let mut late = refusals(false);
        assert_eq!(late.add(&record("a.example", Refused, NotGranted, "no rule")), None);
        assert_eq!(late.rest(), [line]);
    }

    #[test]
    fn who_makes_names_up_fills_no_terminal_and_writes_nothing_that_it_obeys() {
        let mut refused = refusals(true);
        let odd =
            record("a\u{1b}[2J\"]\n", EgressOutcome::Refused, EgressCause::NotGranted, "\u{1b}]0;x\u{7}");
        let said = refused.add(&odd).unwrap();
        assert!(!said.chars().any(char::is_control), "{said:?}");
        let long =
            record(&"\u{fc}".repeat(9000), EgressOutcome::Refused, EgressCause::OtherName, &"x".repeat(9000));
        assert!(refused.add(&long).unwrap().len() < 1000);
        let said = (0..1000).filter(|at| {
            let name = format!("{at}.example");
            refused.add(&record(&name, EgressOutcome::Refused, EgressCause::NotGranted, "x")).is_some()
        });
        assert_eq!(said.count(), MOST - 2);
        refused.add(&EgressRecord::Lost { count: 3 });
        assert_eq!(
            refused.rest(),
            [
                "938 more connections to other hosts were refused",
                "3 more connections found no room to be kept in mind"
            ]
        );
    }
}
