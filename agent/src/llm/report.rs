//! What the auditor is told of an agent, for `ringfence trace`: what its owner asked for, which tools the model wanted,
//! what came of them. Beginnings of texts, without credentials.

use super::{
    access::Issued,
    host::Host,
    message::{Block, Kind, Message, Role, ToolCall},
    redact::Redactor,
};
use nix::time::ClockId;
use ringfence_wire::trace::{MAX_ID, MAX_TEXT, Said, Via};
use std::{sync::Arc, time::Duration};

/// Tells the auditor, where there is one.
#[derive(Clone, Default)]
pub(super) struct Reporter {
    host: Host,
    /// The calls that wait for a process.
    issued: Arc<Issued>,
    governed: bool,
}

/// A message that is being worked on.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    /// 12 hex digits.
    pub(super) id: Arc<str>,
    /// Its sender's connection.
    pub(super) conn: u64,
}

impl Reporter {
    pub(super) fn new(host: Host, issued: Arc<Issued>, governed: bool) -> Self {
        Self { host, issued, governed }
    }

    /// Whether the runtime's processes can be tagged: a core is there to do it, and a container where events come from.
    pub(super) fn can_tag(&self) -> bool {
        self.governed && self.host.is_there()
    }

    /// A message goes to the runtime.
    pub(super) fn intent(
        &self,
        conn: u64,
        uid: Option<u32>,
        content: &[Block],
        redactor: &Redactor,
    ) -> Intent {
        let intent = Intent { id: new_id(), conn };
        self.asked(&intent, (uid, Via::Send), content, redactor);
        intent
    }

    /// Somebody asks for something: `from` is who, as far as that is known, and by which way.
    pub(super) fn asked(
        &self,
        intent: &Intent,
        (uid, via): (Option<u32>, Via),
        content: &[Block],
        redactor: &Redactor,
    ) {
        let text = beginning(content, redactor);
        self.host.report(&Said::Intent { id: intent.id.to_string(), uid, text, via });
    }

    /// The agent is done with a message.
    pub(super) fn intent_ended(&self, intent: &Intent, error: Option<&str>, redactor: &Redactor) {
        let error = error.map(|why| cut(&redactor.text(why)));
        self.host.report(&Said::IntentEnded { id: intent.id.to_string(), error, moment: now() });
    }

    /// The model wants a tool called. Its arguments were redacted where they were received. `moment`: taken before
    /// anybody heard of the call who may begin it.
    pub(super) fn call(&self, intent: Option<&Intent>, call: &ToolCall, server: Option<&str>, moment: u64) {
        if call.id.len() > MAX_ID {
            return;
        }
        self.host.report(&Said::Call {
            id: call.id.clone(),
            intent: intent.map(|intent| intent.id.to_string()),
            tool: call.name.chars().take(MAX_ID).collect(),
            server: server.map(str::to_owned),
            input: cut(call.input.get()),
            moment,
        });
    }

    /// The calls that the runtime is to run: a process may be tagged for each.
    pub(super) fn issue(&self, calls: &[ToolCall]) {
        self.issued.set(calls.iter().map(|call| call.id.as_str()));
    }

    /// Results came: these calls are over, and nothing can be tagged for any before them.
    pub(super) fn results(&self, messages: &[Message], redactor: &Redactor) {
        self.issued.set([]);
        messages
            .iter()
            .filter(|message| message.role == Role::Tool)
            .for_each(|message| self.result(message, redactor));
    }

    /// The result of one call.
    pub(super) fn result(&self, message: &Message, redactor: &Redactor) {
        let Some(id) = &message.tool_call_id else { return };
        self.ended(id, message.is_error, &message.content, redactor);
    }

    /// The same, in its parts.
    pub(super) fn ended(&self, call: &str, is_error: bool, content: &[Block], redactor: &Redactor) {
        if call.len() > MAX_ID {
            return;
        }
        let output = beginning(content, redactor);
        self.host.report(&Said::CallEnded { id: call.to_owned(), is_error, output, moment: now() });
    }
}

/// The id of a new intent: 12 hex digits, random.
pub(super) fn new_id() -> Arc<str> {
    let id: String = uuid::Uuid::new_v4().simple().to_string().chars().take(12).collect();
    id.into()
}

/// The clock of the kernel's events.
pub(super) fn now() -> u64 {
    let since = nix::time::clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
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
    cut(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::secret::Secret;

    #[test]
    fn a_beginning_is_redacted_before_it_is_cut() {
        let secret = Secret::from("sk-0123456789abcdef".to_owned());
        let redactor = Redactor::new([&secret]);
        let text = format!("{}sk-0123456789abcdef and more", "x".repeat(MAX_TEXT - 8));
        let shown = beginning(&[Block::text(&text)], &redactor);
        assert!(!shown.contains("sk-"), "{}", &shown[MAX_TEXT - 20..]);
        assert_eq!(shown.chars().count(), MAX_TEXT);
        assert_eq!(beginning(&[Block::text("a"), Block::text("\u{fc}")], &redactor), "a\n\u{fc}");
    }
}
