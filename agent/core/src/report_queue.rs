//! Reports about agents that wait for the auditor: bounded together, and fair to each agent. No I/O.
//!
//! While the auditor is slow or gone, reports wait here. When there is no more room, the agent with the most waiting loses its
//! newest: one that floods takes its own room, not that of another. What is lost is counted, and told to whose it was.

use ringfence_wire::{
    agent::MAX_REPORT,
    audit::{AgentReport, Payload},
    trace::{AgentEvent, Refusal},
};
use serde_json::value::to_raw_value;
use std::collections::{BTreeMap, VecDeque};

/// Most bytes of reports that wait, of all agents.
pub(crate) const MAX_REPORTS: usize = 4 << 20;
/// What a report takes beside its text.
const ENTRY: usize = 64;
/// Owners of one agent's reports whose losses wait to be told.
const MOST_OWNERS: usize = 1024;

/// Reports that wait.
#[derive(Debug, Default)]
pub struct ReportQueue {
    agents: BTreeMap<String, Waiting>,
    bytes: usize,
    /// Whose turn it was last.
    last: String,
    /// Of each agent that ever lost any, how many.
    lost: BTreeMap<String, u64>,
}

/// One agent's.
#[derive(Debug, Default)]
struct Waiting {
    /// The oldest first.
    reports: VecDeque<Report>,
    bytes: usize,
    /// What was lost since that was told, by whose it was: an agent may have had another owner before, and a profile has many runs.
    lost: BTreeMap<Owner, Lost>,
}

/// One that waits.
#[derive(Debug)]
struct Report {
    /// JSON of an [`AgentReport`].
    json: Vec<u8>,
    /// Whose it is, and when it was made.
    owner: Owner,
    at: i64,
}

/// Whose a report is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    uid: u32,
    /// The run's container; `None`: an agent of the daemon's.
    container: Option<String>,
}

impl Owner {
    fn of(report: &AgentReport) -> Self {
        Self { uid: report.uid, container: report.container.clone() }
    }
}

impl Report {
    fn size(&self) -> usize {
        self.json.len() + ENTRY
    }
}

/// How many of one owner's were lost, and when the last of them was made.
#[derive(Debug)]
struct Lost {
    count: u64,
    at: i64,
}

impl ReportQueue {
    /// Takes a report in. False: it is dropped, or another one of the agent with the most is. One that is longer than a worker
    /// makes them is dropped.
    pub fn add(&mut self, report: &AgentReport) -> bool {
        if let Payload::Event(event) = &report.payload
            && event.get().len() > MAX_REPORT
        {
            self.lose(&report.agent, Owner::of(report), report.at);
            return false;
        }
        let Ok(json) = serde_json::to_vec(report) else { return false };
        let waits = Report { json, owner: Owner::of(report), at: report.at };
        let size = waits.size();
        let waiting = self.agents.entry(report.agent.clone()).or_default();
        waiting.bytes += size;
        waiting.reports.push_back(waits);
        self.bytes += size;
        let mut kept = true;
        while self.bytes > MAX_REPORTS {
            self.drop_one();
            kept = false;
        }
        kept
    }

    /// The agent with the most loses its newest.
    fn drop_one(&mut self) {
        let most = self.agents.iter_mut().max_by_key(|(_, waiting)| waiting.bytes);
        let Some((agent, waiting)) = most else { return };
        let Some(report) = waiting.reports.pop_back() else { return };
        waiting.bytes -= report.size();
        self.bytes -= report.size();
        let agent = agent.clone();
        self.lose(&agent, report.owner, report.at);
    }

    /// Counts one that is lost, for the status and for whose it was.
    fn lose(&mut self, agent: &str, owner: Owner, at: i64) {
        let waiting = self.agents.entry(agent.to_owned()).or_default();
        // Of a run of which not even this has room nothing else comes: what it says of its end is lost, too.
        if waiting.lost.len() < MOST_OWNERS || waiting.lost.contains_key(&owner) {
            let lost = waiting.lost.entry(owner).or_insert(Lost { count: 0, at });
            (lost.count, lost.at) = (lost.count + 1, lost.at.max(at));
        }
        match self.lost.get_mut(agent) {
            Some(lost) => *lost += 1,
            None => drop(self.lost.insert(agent.to_owned(), 1)),
        }
    }

    /// Hands reports out, of each agent in turn, for as long as `take` has room for them.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8]) -> bool) {
        while let Some((agent, waiting)) = next(&mut self.agents, &self.last) {
            self.last.clone_from(agent);
            while let Some(lost) = waiting.lost.first_entry() {
                if !loss(agent, lost.key(), lost.get()).is_none_or(|report| take(&report)) {
                    return;
                }
                lost.remove();
            }
            if let Some(report) = waiting.reports.front() {
                if !take(&report.json) {
                    return;
                }
                waiting.bytes -= report.size();
                self.bytes -= report.size();
                waiting.reports.pop_front();
            }
            if waiting.reports.is_empty() {
                self.agents.remove(&self.last);
            }
        }
    }

    /// Whether any wait.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// How many of an agent's were lost.
    pub fn lost(&self, agent: &str) -> u64 {
        self.lost.get(agent).copied().unwrap_or(0)
    }
}

/// The agent after `last`.
fn next<'a>(agents: &'a mut BTreeMap<String, Waiting>, last: &str) -> Option<(&'a String, &'a mut Waiting)> {
    use std::ops::Bound::{Excluded, Unbounded};
    let after = agents.range::<str, _>((Excluded(last), Unbounded)).next().map(|(agent, _)| agent.clone());
    match after {
        Some(agent) => agents.range_mut(agent..).next(),
        None => agents.iter_mut().next(),
    }
}

/// Tells an agent's record that something is missing from it. Of a run that is a gap: nothing of a report is read here, so it may
/// have been of any time.
fn loss(agent: &str, Owner { uid, container }: &Owner, lost: &Lost) -> Option<Vec<u8>> {
    let uid = *uid;
    if container.is_some() {
        let event = AgentEvent::Lost { count: lost.count, from: 0, to: None };
        let payload = Payload::Event(to_raw_value(&event).ok()?);
        let (agent, container) = (agent.to_owned(), container.clone());
        return serde_json::to_vec(&AgentReport { agent, uid, container, at: lost.at, payload }).ok();
    }
    let why = format!(
        "{} reports of this agent's worker are lost: they were more, or longer, than the auditor takes; what is missing between its calls here may have happened",
        lost.count
    );
    let refusal = Refusal { what: "report".to_owned(), why, pid: None, uid: None, container: None };
    let payload = Payload::Event(to_raw_value(&AgentEvent::Refused(refusal)).ok()?);
    serde_json::to_vec(&AgentReport { agent: agent.to_owned(), uid, container: None, at: lost.at, payload })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(agent: &str, number: usize, bytes: usize) -> AgentReport {
        let payload = Payload::Event(to_raw_value(&format!("{number} {}", "x".repeat(bytes))).unwrap());
        AgentReport { agent: agent.to_owned(), uid: 7, container: None, at: 1, payload }
    }

    /// What is handed out, at most so many: the agents, and what was said.
    fn drained(reports: &mut ReportQueue, most: usize) -> Vec<(String, String)> {
        let mut all = Vec::new();
        reports.drain(|report| {
            let room = all.len() < most;
            if room {
                let AgentReport { agent, payload: Payload::Event(event), .. } =
                    serde_json::from_slice(report).unwrap()
                else {
                    panic!("not an event")
                };
                all.push((agent, event.get().to_owned()));
            }
            room
        });
        all
    }

    #[test]
    fn a_flood_of_one_agent_loses_its_own_reports_and_says_so() {
        let mut reports = ReportQueue::default();
        for number in 0..20 {
            assert!(reports.add(&report("quiet", number, 1000)), "the control");
        }
        let kept = (0..2000).filter(|number| reports.add(&report("flood", *number, 10_000))).count();
        assert!(kept < 500 && reports.bytes <= MAX_REPORTS, "{kept} kept");
        // Others who come later have room, too.
        for agent in ["late", "quiet"] {
            for number in 20..120 {
                reports.add(&report(agent, number, 10_000));
            }
        }
        assert_eq!((reports.lost("quiet"), reports.lost("late")), (0, 0));
        let lost = reports.lost("flood");
        assert!(lost > 1500, "{lost}");
        let all = drained(&mut reports, usize::MAX);
        let of = |agent: &str| all.iter().filter(|(of, _)| of == agent).count();
        assert_eq!((of("quiet"), of("late")), (120, 100));
        assert_eq!(of("flood") as u64 + lost, 2000 + 1, "and one that says how many are missing");
        let said: Vec<_> = all.iter().filter(|(_, text)| text.contains("are lost")).collect();
        assert_eq!(said.len(), 1);
        assert!(said[0].0 == "flood" && said[0].1.contains(&format!("{lost} reports")), "{said:?}");
        assert!(reports.is_empty() && reports.bytes == 0 && reports.agents.is_empty());
    }

    #[test]
    fn a_report_that_is_too_long_is_counted_and_its_loss_told() {
        let mut reports = ReportQueue::default();
        assert!(reports.add(&report("a", 0, MAX_REPORT - 10)), "the control");
        assert!(!reports.add(&report("b", 0, MAX_REPORT)));
        assert_eq!((reports.lost("a"), reports.lost("b")), (0, 1));
        let all = drained(&mut reports, usize::MAX);
        assert_eq!(all.iter().map(|(agent, _)| agent.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(all[1].1.contains("1 reports"), "{all:?}");
        assert!(reports.is_empty() && reports.agents.is_empty());
    }

    #[test]
    fn a_loss_is_told_to_whose_it_was_when_the_agent_has_another_owner_since() {
        let mut reports = ReportQueue::default();
        let of = |uid: u32, at: i64| AgentReport { uid, at, ..report("a", 0, 10_000) };
        let fill = |reports: &mut ReportQueue, uid: u32, at: i64| {
            (0..600).filter(|_| !reports.add(&of(uid, at))).count() as u64
        };
        let before = fill(&mut reports, 7, 10);
        let after = fill(&mut reports, 8, 20);
        assert!(before > 100 && after > 100, "{before} and {after} lost");
        let mut losses = Vec::new();
        reports.drain(|report| {
            let AgentReport { uid, at, payload: Payload::Event(event), .. } =
                serde_json::from_slice(report).unwrap()
            else {
                panic!("not an event")
            };
            let text = event.get();
            if text.contains("are lost") {
                losses.push((
                    uid,
                    at,
                    text.contains(&format!("{} reports", [before, after][uid as usize - 7])),
                ));
            }
            true
        });
        assert_eq!(losses, [(7, 10, true), (8, 20, true)]);
        assert!(reports.is_empty() && reports.bytes == 0);
    }

    #[test]
    fn what_is_lost_of_a_run_is_a_gap_of_that_run() {
        let mut reports = ReportQueue::default();
        let of = |container: &str, bytes| AgentReport {
            container: Some(container.to_owned()),
            ..report("p@7", 0, bytes)
        };
        assert!(!reports.add(&of("c1", MAX_REPORT)) && !reports.add(&of("c1", MAX_REPORT)));
        assert!(reports.add(&of("c2", 10)), "the control");
        for container in 0..2 * MOST_OWNERS {
            reports.add(&of(&container.to_string(), MAX_REPORT));
        }
        let mut gaps = Vec::new();
        reports.drain(|report| {
            let report: AgentReport = serde_json::from_slice(report).unwrap();
            let Payload::Event(event) = report.payload else { panic!("not an event") };
            if let Ok(AgentEvent::Lost { count, from: 0, to: None }) = serde_json::from_str(event.get()) {
                gaps.push((report.container.unwrap(), report.uid, count));
            }
            true
        });
        assert_eq!(gaps.len(), MOST_OWNERS);
        assert!(gaps.contains(&("c1".to_owned(), 7, 2)) && !gaps.iter().any(|(of, ..)| of == "c2"));
        assert!(reports.is_empty());
    }

    #[test]
    fn each_agent_s_come_in_their_order_and_nobody_waits_for_another_s() {
        let mut reports = ReportQueue::default();
        for number in 0..100 {
            reports.add(&report("a", number, 10));
        }
        for number in 0..3 {
            reports.add(&report("b", number, 10));
        }
        let first = drained(&mut reports, 7);
        assert_eq!(first.iter().filter(|(agent, _)| agent == "b").count(), 3, "{first:?}");
        let rest = drained(&mut reports, usize::MAX);
        let of_a: Vec<_> = first.iter().chain(&rest).filter(|(agent, _)| agent == "a").collect();
        assert_eq!(of_a.len(), 100, "what found no room is not lost");
        assert!(of_a.iter().enumerate().all(|(number, (_, text))| text.starts_with(&format!("\"{number} "))));
    }
}
