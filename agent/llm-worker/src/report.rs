//! What the auditor learns of an agent, for `ringfence events trace`: what its owner asked for, which tools the model
//! wanted, what came of them. Beginnings of texts, without credentials.

use super::{
    access::Issued,
    calls::{self, Begun, CallKey},
    core_client::{CoreClient, RefusedParty},
    message::{Block, Kind, ToolCall},
    named_paths,
    redact::Redactor,
    tie::{Outstanding, Waiting},
};
pub(crate) use ringfence_base::clock::since_boot as now;
use ringfence_wire::trace::{AgentEvent, MAX_ID, MAX_TEXT, Refusal, Via};
use std::sync::{Arc, atomic::Ordering};
use tokio_util::sync::CancellationToken;

/// What the record has where a provider gave a tool no name.
const NAMELESS: &str = "(no name)";

/// Tells the auditor, where there is one.
#[derive(Clone, Default)]
pub(crate) struct Reporter {
    host: CoreClient,
    /// The calls that wait for a process.
    issued: Arc<Issued>,
    /// Those of clients that a process may be tied to.
    outstanding: Arc<Outstanding>,
    governed: bool,
    /// Where its client works, if that is known.
    workdir: Option<Arc<str>>,
}

/// A message that is being worked on.
#[derive(Debug, Clone)]
pub(crate) struct Intent {
    /// 12 hex digits.
    pub id: Arc<str>,
    /// Its sender's connection.
    pub conn: u64,
}

impl Reporter {
    pub(crate) fn new(host: CoreClient, issued: Arc<Issued>, governed: bool) -> Self {
        Self { host, issued, outstanding: Arc::default(), governed, workdir: None }
    }

    /// With the directory that paths in the arguments of calls begin in.
    pub(crate) fn with_workdir(self, workdir: Option<&str>) -> Self {
        Self { workdir: workdir.map(Arc::from), ..self }
    }

    /// The same, whose clients' calls are kept here while they wait.
    pub(crate) fn with_outstanding(self, outstanding: Arc<Outstanding>) -> Self {
        Self { outstanding, ..self }
    }

    /// Keeps a client's call among those that a process may be tied to.
    pub(crate) fn wait_for(&self, key: &CallKey, call: &ToolCall) -> Waiting {
        self.outstanding.add(key, &call.id, &call.input)
    }

    /// Whether the runtime's processes can be tagged: a core is there to do it, and a container where events come from.
    pub(crate) fn can_tag(&self) -> bool {
        self.governed && self.host.has_core()
    }

    /// Who is at the other ends of its links.
    pub(crate) fn host(&self) -> &CoreClient {
        &self.host
    }

    /// Whether anybody hears what is reported.
    pub(crate) fn is_heard(&self) -> bool {
        self.host.has_reports()
    }

    /// Somebody of whom nothing is known was refused something.
    pub(crate) fn refused(&self, what: &str, why: &str) {
        self.host.counts().refused_peers.fetch_add(1, Ordering::Relaxed);
        if self.host.may_record(RefusedParty::Strangers) {
            tracing::warn!("`{what}` refused to a process that is not known: {why}");
            let (what, why) = (what.to_owned(), why.chars().take(MAX_TEXT).collect());
            self.host.report(&AgentEvent::Refused(Refusal {
                what,
                why,
                pid: None,
                uid: None,
                container: None,
            }));
        }
    }

    /// The provider refused the key: the next turn may have another one.
    pub(crate) fn key_refused(&self) {
        self.host.key_refused();
    }

    /// A message goes to the runtime.
    pub(crate) fn intent(
        &self,
        conn: u64,
        uid: Option<u32>,
        content: &[Block],
        redactor: &Redactor,
    ) -> Intent {
        let intent = Intent { id: new_id(), conn };
        self.asked(&intent, (uid, Via::Send, None), content, redactor);
        intent
    }

    /// Somebody asks for something: who, as far as that is known, by which way, and in which
    /// session.
    pub(crate) fn asked(
        &self,
        intent: &Intent,
        (uid, via, session): (Option<u32>, Via, Option<&str>),
        content: &[Block],
        redactor: &Redactor,
    ) {
        let text = beginning(content, redactor);
        let session = session.map(str::to_owned);
        self.host.report(&AgentEvent::Intent { id: intent.id.to_string(), uid, text, via, session });
    }

    /// The agent is done with a message.
    pub(crate) fn intent_ended(&self, intent: &Intent, error: Option<&str>, redactor: &Redactor) {
        let error = error.map(|why| cut(&ringfence_redact::redact(&redactor.text(why))));
        self.host.report(&AgentEvent::IntentEnded { id: intent.id.to_string(), error, moment: now() });
    }

    /// The model wants a tool called. Its arguments were redacted where they were received. Nobody runs it before this is
    /// on its way: the provider says how many there are, and the record is to have them all. Whether it is: a daemon that
    /// stands still is waited for once, and not for each of them; and not once `patience` is cancelled. Without it nobody waits.
    pub(crate) async fn call(
        &self,
        intent: Option<&Intent>,
        begun: &Begun,
        call: &ToolCall,
        server: Option<&str>,
        patience: Option<&CancellationToken>,
    ) -> bool {
        let said = self.said(intent, begun, call, server);
        match patience {
            None => {
                self.host.report(&said);
                false
            }
            Some(cut) => self.host.report_patiently(&said, cut).await,
        }
    }

    fn said(
        &self,
        intent: Option<&Intent>,
        begun: &Begun,
        call: &ToolCall,
        server: Option<&str>,
    ) -> AgentEvent {
        if let Some(renamed) = &begun.renamed
            && self.host.may_record(RefusedParty::Provider)
        {
            let (id, given, why) = (&begun.id, &renamed.given, &renamed.why);
            tracing::warn!("a tool call is named {id} in place of the provider's {given:?}: {why}");
        }
        let tool = &call.name[..call.name.floor_char_boundary(MAX_ID)];
        AgentEvent::Call {
            key: begun.key.as_str().to_owned(),
            id: begun.id.clone(),
            renamed: begun.renamed.clone(),
            intent: intent.map(|intent| intent.id.to_string()),
            tool: if tool.is_empty() { NAMELESS } else { tool }.to_owned(),
            server: server.map(str::to_owned),
            input: cut(&ringfence_redact::redact(beginning_of(call.input.get()))),
            // What another host does is not this kernel's to see.
            paths: server.is_none().then(|| named_paths::of(call, self.workdir.as_deref())).flatten(),
            moment: begun.moment,
        }
    }

    /// The calls that the runtime is to run: a process may be tagged for each.
    pub(crate) fn issue<'a>(&self, calls: impl IntoIterator<Item = (&'a str, CallKey)>) {
        self.issued.set(calls);
    }

    /// The result of a call.
    pub(crate) fn ended(&self, key: &CallKey, is_error: bool, content: &[Block], redactor: &Redactor) {
        let (key, output) = (key.as_str().to_owned(), beginning(content, redactor));
        self.host.report(&AgentEvent::CallEnded { key, is_error, output, moment: now() });
    }
}

/// The id of a new intent: 12 hex digits, random.
pub(crate) fn new_id() -> Arc<str> {
    calls::random(12).into()
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// As much of a text as is looked through for secrets before it is cut: a request may have megabytes, and all of a worker waits.
/// It ends between two words, so that no half of a credential is at its end.
fn beginning_of(text: &str) -> &str {
    const MOST: usize = 16 * MAX_TEXT;
    if text.len() <= MOST {
        return text;
    }
    let beginning = &text[..text.floor_char_boundary(MOST)];
    let is_between = |c: char| c.is_whitespace() || c == '"';
    let last = &beginning[beginning.floor_char_boundary(MOST - 2 * MAX_TEXT)..];
    let end = last.rfind(is_between).map_or(0, |end| last.len() - end);
    &beginning[..beginning.len() - end]
}

/// The beginning of what blocks say. Redacted before it is cut: half a credential is one too many.
fn beginning(content: &[Block], redactor: &Redactor) -> String {
    let mut text = String::new();
    for block in content {
        if !text.is_empty() {
            text.push('\n');
        }
        match block.kind() {
            Kind::Text(words) => text.push_str(&redactor.text(words)),
            Kind::Image(_) => text.push_str("[image]"),
            Kind::ToolUse(_) | Kind::Other(_) => text.push_str("[...]"),
        }
        if text.len() > 4 * MAX_TEXT {
            break;
        }
    }
    // Its own credentials are out. Others' are in what people paste, and in what tools print.
    cut(&ringfence_redact::redact(beginning_of(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_credentials::Secret;

    #[test]
    fn no_more_is_looked_through_than_may_be_shown_and_no_half_of_a_credential_is() {
        let long = format!("{} {}", "word ".repeat(16 * MAX_TEXT), "x".repeat(9));
        assert!(beginning_of(&long).len() <= 16 * MAX_TEXT && beginning_of(&long).ends_with("word"));
        assert_eq!(beginning_of("short"), "short");
        let run = "é".repeat(16 * MAX_TEXT);
        assert!(run.starts_with(beginning_of(&run)));
    }

    #[test]
    fn a_call_is_said_with_the_files_that_it_names_whole_and_from_the_working_directory() {
        let content = "x".repeat(2 * MAX_TEXT);
        let input = serde_json::json!({ "content": content, "file_path": "src/a" });
        let input = serde_json::value::to_raw_value(&input).unwrap();
        let call = ToolCall { id: "c".into(), name: "Write".into(), input };
        let said = |reporter: Reporter, server: Option<&str>| {
            let begun = Begun::relayed(&call.id, 1, &Redactor::default());
            match reporter.said(None, &begun, &call, server) {
                AgentEvent::Call { input, paths, .. } => (input.chars().count(), paths),
                other => panic!("{other:?}"),
            }
        };
        let named = |path: &str| (MAX_TEXT, Some(vec![path.to_owned()]));
        assert_eq!(said(Reporter::default(), None), named("src/a"));
        assert_eq!(said(Reporter::default().with_workdir(Some("/w")), None), named("/w/src/a"));
        let remote = said(Reporter::default().with_workdir(Some("/w")), Some("server"));
        assert_eq!(remote, (MAX_TEXT, None), "on another host");
    }

    #[test]
    fn a_beginning_is_redacted_before_it_is_cut() {
        let secret = Secret::from("sk-0123456789abcdef".to_owned());
        let redactor = Redactor::new([&secret]);
        let text = format!("{}sk-0123456789abcdef and more", "x".repeat(MAX_TEXT - 8));
        let shown = beginning(&[Block::text(&text)], &redactor);
        assert!(!shown.contains("sk-"), "{}", &shown[MAX_TEXT - 20..]);
        assert_eq!(shown.chars().count(), MAX_TEXT);
        let text = format!("{} DB_PASSWORD=hunter2x", "x".repeat(MAX_TEXT - 24));
        let shown = beginning(&[Block::text(&text)], &redactor);
        assert!(shown.ends_with("DB_PASSWORD=[redacted]"), "others' too: {shown}");
        assert_eq!(beginning(&[Block::text("a"), Block::text("\u{fc}")], &redactor), "a\n\u{fc}");
    }
}
