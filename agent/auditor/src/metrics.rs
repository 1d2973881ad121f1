//! Counts for `/metrics`: of MCP sessions since this auditor began, and of the kernel's denials and what the record of them
//! lost. A bounded number of series, whatever servers are called.
//!
//! A denial is what the kernel counts as one ([`ringfence_store::is_denied`]): not what audit mode would have denied. A tool
//! call is `denied` where a person decided so.

use super::shared::lock;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};
use ringfence_events::{
    decode::Decoded,
    egress::{Told, word},
};
use ringfence_session::rows::ingest::Row;
use ringfence_store::Losses;
use ringfence_wire::tool_call::{Named, Outcome, Recorded};
use std::{collections::HashSet, fmt, sync::Mutex};

/// Servers with series of their own; the rest are `other`.
const MOST_SERVERS: usize = 50;
/// Tools with series of their own, over all servers; the rest are `other`.
const MOST_TOOLS: usize = 100;
/// Most bytes that one connection counts for, 1 PiB: a worker says how many there were.
const MOST_BYTES: u64 = 1 << 50;
/// Longest name of a server or a tool in a label, characters.
const LONGEST_NAME: usize = 64;
/// Upper bounds of the durations' buckets, seconds.
const SECONDS: [f64; 10] = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    server: String,
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    server: String,
    outcome: &'static str,
}

/// OpenTelemetry's `mcp.method.name` and `gen_ai.tool.name`, as Prometheus spells names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolLabels {
    mcp_method_name: &'static str,
    gen_ai_tool_name: String,
}

/// What became of connections by name, and of questions for names. No name is a label: an agent asks for as many as it likes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EgressLabels {
    outcome: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

/// Where what is in no event was lost, and what it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostLabels {
    place: &'static str,
    verdict: &'static str,
}

/// The metrics of one auditor.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    outcomes: Family<OutcomeLabels, Counter>,
    operations: Family<ToolLabels, Counter>,
    sessions: Counter,
    duration: Histogram,
    linked: Gauge,
    waiting: Gauge,
    denied: Gauge,
    lost: Family<LostLabels, Gauge>,
    connections: Family<EgressLabels, Counter>,
    bytes: Family<DirectionLabels, Counter>,
    questions: Family<EgressLabels, Counter>,
    servers: Mutex<HashSet<String>>,
    tools: Mutex<HashSet<String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ringfence");
        let help = "Operations that the kernel denied in the containers that the database still knows";
        let denied = registered(&mut registry, "operations_denied", help, Gauge::default());
        let help = "Operations of these containers that are in no event: no room in the kernel or in the store, or missing \
                    (on their way, or in the memory of a daemon that was killed)";
        let lost = registered(&mut registry, "operations_lost", help, Family::default());
        let egress = registry.sub_registry_with_prefix("egress");
        let help = "Connections by name that are over or were refused, by what became of them";
        let connections = registered(egress, "connections", help, Family::default());
        let help = "Bytes of connections by name that are over: `sent` to servers, `received` from them";
        let bytes = registered(egress, "bytes", help, Family::default());
        let help = "Questions for names, by what they were answered; of those that were answered, only the first of a name";
        let questions = registered(egress, "names", help, Family::default());
        let mcp = registry.sub_registry_with_prefix("mcp");
        let help = "Tool calls asked for, by what the policy did";
        let calls = registered(mcp, "tool_calls", help, Family::default());
        let help = "Tool calls asked for, by tool, under OpenTelemetry's names";
        let operations = registered(mcp, "operations", help, Family::default());
        let help = "What became of tool calls; `denied`: by a person, `blocked`: by a rule";
        Self {
            denied,
            lost,
            connections,
            bytes,
            questions,
            calls,
            operations,
            outcomes: registered(mcp, "tool_call_outcomes", help, Family::default()),
            sessions: registered(mcp, "sessions", "Sessions that began", Counter::default()),
            duration: registered(
                mcp,
                "tool_call_duration_seconds",
                "From the request to the server's answer",
                Histogram::new(SECONDS),
            ),
            linked: registered(
                mcp,
                "sessions_linked",
                "Sessions whose interceptor is connected",
                Gauge::default(),
            ),
            waiting: registered(mcp, "calls_waiting", "Calls that wait for approval", Gauge::default()),
            servers: Mutex::default(),
            tools: Mutex::default(),
            registry,
        }
    }
}

/// A metric that is in the registry.
fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    /// Counts what an egress worker told.
    pub(crate) fn told(&self, record: &Decoded) {
        match record.egress.as_ref().map(|egress| &egress.told) {
            Some(Told::Connection(connection)) => {
                let outcome = word(&connection.outcome);
                self.connections.get_or_create(&EgressLabels { outcome }).inc();
                for (direction, bytes) in [("sent", connection.sent), ("received", connection.received)] {
                    self.bytes.get_or_create(&DirectionLabels { direction }).inc_by(bytes.min(MOST_BYTES));
                }
            }
            Some(Told::Question(question)) => {
                let outcome = word(&question.outcome);
                self.questions.get_or_create(&EgressLabels { outcome }).inc_by(record.repeats.into());
            }
            None => {}
        }
    }

    /// Counts what was stored.
    pub fn count(&self, server: &str, row: &Row) {
        match row {
            Row::Session { .. } => drop(self.sessions.inc()),
            Row::Call(call) => {
                let server = self.label(server);
                let labels = ToolLabels {
                    mcp_method_name: "tools/call",
                    gen_ai_tool_name: label(&self.tools, MOST_TOOLS, &call.judged.tool),
                };
                self.operations.get_or_create(&labels).inc();
                let action = known(&call.judged.action);
                self.calls.get_or_create(&CallLabels { server: server.clone(), action }).inc();
                if call.blocked {
                    self.outcome(server, Outcome::Blocked.name());
                }
            }
            Row::Answer { answer, duration_ms, .. } => {
                self.outcome(self.label(server), answer.name());
                self.duration
                    .observe(std::time::Duration::from_millis(duration_ms.unsigned_abs()).as_secs_f64());
            }
            Row::Cancelled { .. } => self.outcome(self.label(server), Outcome::CancelledInFlight.name()),
            Row::TaskAnswer { answer, .. } => self.outcome(self.label(server), answer.name()),
            Row::Decision { outcome, .. } => self.outcome(self.label(server), known(outcome)),
            Row::Message(_)
            | Row::Server { .. }
            | Row::Tools(_)
            | Row::Client { .. }
            | Row::Asked { .. }
            | Row::Answered { .. }
            | Row::Governed { .. }
            | Row::Stderr { .. }
            | Row::Gap
            | Row::End { .. } => {}
        }
    }

    /// The text format of Prometheus.
    ///
    /// # Errors
    /// None that is known; the encoder's type has them.
    pub fn text(&self, linked: usize, waiting: usize, losses: Losses) -> Result<String, fmt::Error> {
        let set = |gauge: &Gauge, n| {
            gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        };
        let Losses { denied, kernel_denied, kernel_other, store_denied, store_other, missing_denied, egress } =
            losses;
        set(&self.denied, denied);
        for (place, verdict, n) in [
            ("kernel", "denied", kernel_denied),
            ("kernel", "other", kernel_other),
            ("store", "denied", store_denied),
            ("store", "other", store_other),
            ("missing", "denied", missing_denied),
            ("egress", "other", egress),
        ] {
            set(&self.lost.get_or_create(&LostLabels { place, verdict }), n);
        }
        self.linked.set(i64::try_from(linked).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn outcome(&self, server: String, outcome: &'static str) {
        self.outcomes.get_or_create(&OutcomeLabels { server, outcome }).inc();
    }

    fn label(&self, server: &str) -> String {
        label(&self.servers, MOST_SERVERS, server)
    }
}

/// A name as a label, if it is among the first `most`.
fn label(names: &Mutex<HashSet<String>>, most: usize, name: &str) -> String {
    // The encoder writes labels as they are; the text format wants these three escaped.
    let name: String = name.chars().take(LONGEST_NAME).collect();
    let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut names = lock(names);
    if names.len() < most || names.contains(&name) {
        names.insert(name.clone());
        return name;
    }
    "other".to_owned()
}

/// A journal is somebody else's file: only what is known becomes a label.
fn known<T: Named>(recorded: &Recorded<T>) -> &'static str {
    match recorded {
        Recorded::Known(variant) => variant.name(),
        Recorded::Other(_) => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoded, Losses, MOST_SERVERS, MOST_TOOLS, Metrics, Told};
    use ringfence_events::samples;
    use ringfence_session::{
        journal::Judged,
        rows::ingest::{CallRow, Row},
    };
    use ringfence_wire::egress::EgressOutcome;

    fn decided(outcome: &str) -> Row {
        Row::Decision { call: "c".into(), outcome: outcome.into(), by: None, at: 0, boot: 0 }
    }

    fn called(tool: String) -> Row {
        let judged = Judged {
            call: "c".into(),
            index: 0,
            tool,
            operation: "read".into(),
            score: 0,
            reasons: vec![],
            action: "pass".into(),
            rules: vec![],
            exceptions: vec![],
        };
        Row::Call(Box::new(CallRow {
            judged,
            message: "m".into(),
            arguments: "{}".into(),
            at: 0,
            blocked: false,
            began: None,
            evidence: Default::default(),
        }))
    }

    #[test]
    fn tools_are_counted_under_opentelemetrys_names_and_their_number_is_bounded() {
        let metrics = Metrics::default();
        for n in 0..MOST_TOOLS + 7 {
            metrics.count("server", &called(format!("tool\"{n}")));
        }
        let text = metrics.text(0, 0, Losses::default()).expect("text");
        let line = |tool: &str, n: u32| {
            format!(
                r#"ringfence_mcp_operations_total{{mcp_method_name="tools/call",gen_ai_tool_name="{tool}"}} {n}"#
            )
        };
        assert!(text.contains(&line(r#"tool\"0"#, 1)) && text.contains(&line("other", 7)), "{text}");
        assert_eq!(text.matches("gen_ai_tool_name").count(), MOST_TOOLS + 1);
    }

    #[test]
    fn what_egress_workers_tell_is_counted_without_a_name() {
        let metrics = Metrics::default();
        for n in 0..3 {
            metrics.told(&samples::connection(&format!("host-{n}.example"), 443));
            metrics.told(&Decoded { repeats: 5, ..samples::question(&format!("host-{n}.example")) });
        }
        let mut liar = samples::connection("a.example", 443);
        if let Some(Told::Connection(connection)) = liar.egress.as_mut().map(|egress| &mut egress.told) {
            (connection.sent, connection.outcome) = (u64::MAX, EgressOutcome::Ended);
        }
        (0..9).for_each(|_| metrics.told(&liar));
        let text = metrics.text(0, 0, Losses { egress: 4, ..Losses::default() }).expect("text");
        for line in [
            r#"ringfence_egress_connections_total{outcome="passed"} 3"#,
            r#"ringfence_egress_connections_total{outcome="ended"} 9"#,
            r#"ringfence_egress_bytes_total{direction="received"} 49152"#,
            r#"ringfence_egress_names_total{outcome="refused"} 15"#,
            r#"ringfence_operations_lost{place="egress",verdict="other"} 4"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let sent = (9u64 << 50) + 3 * 517;
        assert!(
            text.contains(&format!(r#"ringfence_egress_bytes_total{{direction="sent"}} {sent}"#)),
            "{text}"
        );
        assert!(!text.contains("example"), "{text}");
    }

    #[test]
    fn the_manual_has_every_metric() {
        let manual = include_str!("../../../docs/operate.md");
        let text = Metrics::default().text(0, 0, Losses::default()).expect("text");
        for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
            let is_there = ["", "_total"].iter().any(|end| manual.contains(&format!("`{name}{end}`")));
            assert!(is_there, "docs/operate.md has no {name}");
        }
    }

    #[test]
    fn hostile_names_are_escaped_and_their_number_is_bounded() {
        let metrics = Metrics::default();
        metrics.count("a\"}\n1", &decided("approved"));
        for n in 0..2 * MOST_SERVERS {
            metrics.count(&format!("server-{n}"), &decided("denied"));
        }
        metrics.count("server-0", &decided("made up"));
        let losses = Losses { denied: 9, kernel_denied: 4, missing_denied: 1, ..Losses::default() };
        let text = metrics.text(3, 1, losses).expect("text");
        assert!(text.contains("ringfence_operations_denied 9"), "{text}");
        assert!(text.contains(r#"ringfence_operations_lost{place="kernel",verdict="denied"} 4"#), "{text}");
        assert!(text.contains(r#"ringfence_operations_lost{place="missing",verdict="denied"} 1"#), "{text}");
        assert!(text.contains(r#"outcomes_total{server="a\"}\n1",outcome="approved"} 1"#), "{text}");
        assert!(text.contains(r#"{server="other",outcome="denied"} 51"#), "{text}");
        assert!(text.contains(r#"{server="server-0",outcome="other"} 1"#), "{text}");
        assert!(text.contains("ringfence_mcp_sessions_linked 3"), "{text}");
        assert!(text.lines().count() < 200, "{text}");
    }
}
