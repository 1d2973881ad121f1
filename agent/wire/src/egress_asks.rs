//! What an egress worker asks a person, on its line to the auditor, and what it is answered.
//!
//! Where a profile has `[net] ask`, a connection to a name that is neither granted nor denied waits in the worker. The auditor
//! answers by rules, by an approval that stands, or has a person decide. Nothing of it goes to the core.

use crate::egress::{EgressReport, REPORTS_AT_ONCE, at_most};
use serde::{Deserialize, Serialize};

/// Most [`EgressAsk`]s in a frame.
pub const ASKS_AT_ONCE: usize = 32;
/// Questions of one container that may wait at once, each for one name and port.
pub const MOST_QUESTIONS: usize = 16;
/// Longest that a question waits for an answer, ms.
pub const LONGEST_WAIT_MS: u32 = 600_000;
/// Most bytes of an [`EgressDecision`] as a frame.
pub const MAX_DECISION: usize = 4096;
/// Most bytes of [`EgressDecision::by`].
pub const MAX_BY: usize = 300;

/// The tool that such a question is for, where rules and people see it as a call. Its server is the host, its arguments are
/// `host` and `port`.
pub const CONNECT: &str = "net.connect";

/// All that a frame on the line to the auditor may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressSaid {
    /// For the record: as [`EgressReports`](crate::egress::EgressReports) has them.
    #[serde(
        deserialize_with = "at_most::<_, EgressReport, REPORTS_AT_ONCE>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reports: Vec<EgressReport>,
    /// For a person, at most [`ASKS_AT_ONCE`].
    #[serde(
        deserialize_with = "at_most::<_, EgressAsk, ASKS_AT_ONCE>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub asks: Vec<EgressAsk>,
}

/// About one question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EgressAsk {
    /// May connections go on? [`EgressDecision`] answers, once.
    Ask {
        /// The worker's own number for it, never used twice on a line.
        question: u64,
        /// The host: lower-case ASCII, at most [`MAX_NAME`](crate::egress::MAX_NAME) bytes.
        name: String,
        /// The port.
        port: u16,
        /// How long the worker waits for the answer from now on, ms, at most [`LONGEST_WAIT_MS`].
        wait_ms: u32,
    },
    /// Its time is up, or it is answered otherwise. That its clients gave up is not said: they are likely to try again.
    Gone {
        /// The question's number.
        question: u64,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressDecision {
    /// Its number.
    pub question: u64,
    /// The connections that wait for it go on.
    pub approve: bool,
    /// Who decided, at most [`MAX_BY`] bytes.
    pub by: String,
    /// The same question would be answered so again for a while.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands: bool,
    /// Nobody decided: it was not shown to anybody, as too much waits already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
}

/// A question as people see it while it waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingConnection {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Public id of the container.
    pub container: String,
    /// Name of its profile.
    pub profile: String,
    /// Public id of the outermost container around it, whose profile bounds what it reaches, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{EgressRecord, EgressReports, MAX_NAME, MAX_REPORTS};

    #[test]
    fn what_was_said_before_there_were_questions_is_said_the_same_way() {
        let reports = vec![EgressReport { at: 1, flow: None, record: EgressRecord::Lost { count: 2 } }];
        let text = serde_json::to_string(&EgressReports { reports: reports.clone() }).unwrap();
        let said = EgressSaid { reports, ..EgressSaid::default() };
        assert_eq!(serde_json::from_str::<EgressSaid>(&text).unwrap(), said);
        assert_eq!(serde_json::to_string(&said).unwrap(), text);
    }

    #[test]
    fn a_frame_has_few_questions_and_room_for_the_longest() {
        let ask = EgressAsk::Ask {
            question: u64::MAX,
            name: "x".repeat(MAX_NAME),
            port: u16::MAX,
            wait_ms: LONGEST_WAIT_MS,
        };
        let text = |many| {
            serde_json::to_string(&EgressSaid { asks: vec![ask.clone(); many], ..EgressSaid::default() })
                .unwrap()
        };
        assert!(text(ASKS_AT_ONCE).len() <= MAX_REPORTS);
        assert!(serde_json::from_str::<EgressSaid>(&text(ASKS_AT_ONCE)).is_ok());
        assert!(serde_json::from_str::<EgressSaid>(&text(ASKS_AT_ONCE + 1)).is_err());
        let by = "\u{1}".repeat(MAX_BY);
        let decision = EgressDecision { question: u64::MAX, approve: false, by, stands: true, full: true };
        assert!(serde_json::to_vec(&decision).unwrap().len() <= MAX_DECISION);
    }
}
