//! A tool call and what was decided about it.

use ringfence_session::{draft::Verdict, line::Id, risk::Risk, rules::Judgement};
use ringfence_wire::exception::Excepted;

/// A call that was judged.
#[derive(Debug, Clone)]
pub struct JudgedCall {
    /// The client's id.
    pub id: Id,
    /// The tool's name.
    pub tool: String,
    /// What the call does, its score and what that is made of.
    pub risk: Risk,
    /// What the rules and the score ask for.
    pub judgement: Judgement,
    /// Why its tool is not called at all: it is not what is pinned.
    pub held: Option<String>,
    /// Exceptions that lowered the score.
    pub exceptions: Vec<Excepted>,
}

impl JudgedCall {
    /// The same for the journal, under an id of its own. `index`: the place in a batch.
    pub(crate) fn verdict(&self, index: usize) -> Verdict<'_> {
        Verdict {
            call: uuid::Uuid::new_v4(),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            tool: &self.tool,
            operation: self.risk.operation,
            score: self.risk.score,
            reasons: &self.risk.reasons,
            action: self.judgement.action,
            rules: &self.judgement.rules,
            exceptions: &self.exceptions,
        }
    }
}
