//! The rules in force in a session: those of its file, and those of the database once the auditor has sent them.

use super::{
    conditions::{Facts, KeptFacts},
    exceptions::{self, NamedException},
    notice,
    risk::Risk,
    rules::{self, Judgement, Rule, RuleSpec},
};
use ringfence_wire::{
    exception::{EXCEPT, Excepted},
    mcp::StoredRule,
    tool_call::Recorded,
};
use serde_json::Value;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long the first call waits for the database's rules. Longer than a link takes to fail.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rules that can be replaced while calls are judged.
#[derive(Debug)]
pub struct RuleSet {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    file: Vec<Rule>,
    stored: Vec<Rule>,
    all: Vec<Rule>,
    /// The database's exceptions.
    exceptions: Vec<NamedException>,
    /// The last call's judgement, and all that it was made of beside the rules: calls of one tool come in rows.
    last: Option<(KeptFacts, Judgement)>,
    /// The database's rules are still to come.
    awaited: bool,
    /// What of the file is in force is still to come.
    file_awaited: bool,
}

impl RuleSet {
    /// Rules of a file alone.
    pub fn new(file: Vec<Rule>) -> Self {
        let all = file.clone();
        Self { state: Mutex::new(State { file, all, ..State::default() }), arrived: Condvar::new() }
    }

    /// From now on a call waits for the auditor's word on the database's rules and on the file's: otherwise those at a
    /// session's start would slip past them.
    pub fn await_stored(&self) {
        let mut state = self.lock();
        state.awaited = true;
        state.file_awaited = true;
    }

    /// The file's rules are those that are to be in force.
    pub fn file_known(&self) {
        self.lock().file_awaited = false;
        self.arrived.notify_all();
    }

    /// Replaces the file's rules.
    pub fn set_file(&self, file: Vec<Rule>) {
        let mut state = self.lock();
        state.file = file;
        state.join();
    }

    /// Replaces the database's rules. They only add: the strictest of all rules wins.
    pub fn set_stored(&self, stored: &[StoredRule]) {
        let excepting = stored.iter().filter_map(excepting).collect();
        let stored = stored.iter().filter(|rule| !is_exception(rule));
        let read = |rule: &StoredRule| match rule_spec(rule)
            .and_then(|spec| rules::compile(spec).map_err(|e| e.to_string()))
        {
            Ok(rule) => Some(rule),
            Err(error) => {
                notice::print(&format!("a rule of the database is not in force: {error}"));
                None
            }
        };
        let mut state = self.lock();
        state.stored = stored.filter_map(read).collect();
        state.exceptions = excepting;
        state.join();
        state.awaited = false;
        self.arrived.notify_all();
    }

    /// Nobody can tell the database's rules: calls are judged by the file's, and by what is known of the database's, until somebody
    /// can. Nobody can say either that an exception was taken back, so none holds.
    pub fn none_stored(&self) {
        let mut state = self.lock();
        state.exceptions.clear();
        state.awaited = false;
        state.file_awaited = false;
        drop(state);
        self.arrived.notify_all();
    }

    /// What the rules in force make of a call.
    pub fn judge(&self, facts: Facts<'_>) -> Judgement {
        let mut state = self.in_force();
        if let Some((_, judgement)) = state.last.as_ref().filter(|(last, _)| last.get() == facts) {
            return judgement.clone();
        }
        let judgement = rules::judge(&state.all, facts);
        state.last = Some((KeptFacts::new(facts), judgement.clone()));
        judgement
    }

    /// What the rules in force make of a call, and its risk as it counts: without what exceptions except, which are given beside
    /// it. Rules are held against the call as it is without them.
    pub fn judge_call(
        &self,
        (server, tool): (&str, &str),
        risk: Risk,
        arguments: &Value,
    ) -> (Risk, Judgement, Vec<Excepted>) {
        let state = self.in_force();
        let lowered = exceptions::lowered(&state.exceptions, (server, tool), arguments, &risk);
        let Some((lowered, excepted)) = lowered else {
            drop(state);
            let judgement = self.judge(Facts { server, tool, risk: &risk });
            return (risk, judgement, Vec::new());
        };
        let judgement = rules::judge_at(&state.all, Facts { server, tool, risk: &risk }, lowered.score);
        (lowered, judgement, excepted)
    }

    /// The state once the rules are known.
    fn in_force(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        if !state.awaited && !state.file_awaited {
            return state;
        }
        let waited =
            self.arrived.wait_timeout_while(state, PATIENCE, |state| state.awaited || state.file_awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Waited for once: an auditor that hangs does not slow every call.
        state.awaited = false;
        state.file_awaited = false;
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn join(&mut self) {
        self.all = self.file.iter().chain(&self.stored).cloned().collect();
        self.last = None;
    }
}

/// Whether a rule of the database is an exception.
pub fn is_exception(rule: &StoredRule) -> bool {
    rule.action.as_str() == EXCEPT
}

/// An exception as it is in force; nothing where it is none, or one that could not have been made.
fn excepting(rule: &StoredRule) -> Option<NamedException> {
    let exception = rule.exception.clone().filter(|_| is_exception(rule))?;
    if let Err(why) = exceptions::check(&exception) {
        notice::print(&format!("the exception {:?} is not in force: {why}", rule.name));
        return None;
    }
    Some(NamedException { name: rule.name.clone(), exception })
}

/// A rule of the database in the form of a rule file.
///
/// # Errors
/// Where its action is unknown: a later version wrote it.
pub fn rule_spec(rule: &StoredRule) -> Result<RuleSpec, String> {
    let action = match &rule.action {
        Recorded::Known(action) => *action,
        Recorded::Other(text) => {
            return Err(format!("rule {:?}: action: {text:?} is none of flag, pause, block", rule.name));
        }
    };
    Ok(RuleSpec {
        name: rule.name.clone(),
        description: rule.description.clone(),
        conditions: rule.conditions.clone(),
        action,
        enabled: true,
    })
}

#[cfg(test)]
mod tests {
    use super::{Facts, RuleSet};
    use crate::{risk, rules};
    use ringfence_wire::{
        mcp::{Conditions, StoredRule},
        tool_call::Action,
    };
    use serde_json::json;
    use std::{sync::Arc, thread, time::Duration};

    fn stored(name: &str, action: &str) -> StoredRule {
        StoredRule {
            name: name.into(),
            description: String::new(),
            conditions: Conditions { tool_pattern: Some("x_*".into()), ..Conditions::default() },
            action: action.into(),
            exception: None,
        }
    }

    fn names(set: &RuleSet) -> Vec<String> {
        set.in_force().all.iter().map(|rule| rule.name.clone()).collect()
    }

    #[test]
    fn either_kind_is_replaced_without_the_other() {
        let file =
            |name| rules::parse(&format!("rules:\n  - {{name: {name}, action: flag}}")).expect("rules");
        let set = RuleSet::new(file("a"));
        assert_eq!(names(&set), ["a"]);
        set.set_stored(&[stored("s", "block"), stored("later", "explode")]);
        assert_eq!(names(&set), ["a", "s"], "what is not understood is left out");
        set.set_file(file("b"));
        assert_eq!(names(&set), ["b", "s"]);
        set.set_stored(&[]);
        assert_eq!(names(&set), ["b"]);
    }

    #[test]
    fn a_judgement_is_believed_only_for_the_same_call_under_the_same_rules() {
        let set = RuleSet::new(Vec::new());
        let judge = |tool: &str, arguments: &str| {
            let arguments = serde_json::from_str(arguments).expect("JSON");
            let risk = risk::assess(tool, &arguments, false);
            set.judge(Facts::new("s", tool, &risk)).action
        };
        assert_eq!([judge("x_a", "{}"), judge("x_a", "{}")], [Action::Pass; 2]);
        assert_eq!(judge("x_a", r#"{"sql":"DROP TABLE t"}"#), Action::Flag, "another risk");
        set.set_stored(&[stored("s", "block")]);
        assert_eq!(
            [judge("x_a", "{}"), judge("y", "{}"), judge("x_a", "{}")],
            [Action::Block, Action::Pass, Action::Block]
        );
        set.set_stored(&[]);
        assert_eq!(judge("x_a", "{}"), Action::Pass);
        set.set_file(rules::parse("rules:\n  - {name: f, action: pause}").expect("rules"));
        assert_eq!(judge("x_a", "{}"), Action::Pause);
    }

    #[test]
    fn an_exception_lowers_the_score_and_every_rule_holds_all_the_same() {
        let set = RuleSet::new(
            rules::parse("rules:\n  - {name: high, min_risk_score: 30, action: flag}").expect("rules"),
        );
        let exception = json!({ "server": "s", "tool": "x_a", "arguments": [{ "name": "sql", "type": "string", "equals": "DELETE FROM t" }],
            "reasons": ["destructive", "sql_without_where"] });
        let except = StoredRule {
            action: "except".into(),
            exception: serde_json::from_value(exception).expect("an exception"),
            conditions: Conditions::default(),
            ..stored("mild", "except")
        };
        let arguments = json!({"sql": "DELETE FROM t"});
        let judge = |set: &RuleSet| {
            let risk = risk::assess("x_a", &arguments, true);
            assert_eq!(risk.score, 80);
            let (risk, judgement, excepted) = set.judge_call(("s", "x_a"), risk, &arguments);
            (risk.score, judgement.action, judgement.rules, excepted.len())
        };
        assert_eq!(judge(&set), (80, Action::Pause, vec![], 0), "without it");
        set.set_stored(std::slice::from_ref(&except));
        assert_eq!(judge(&set), (10, Action::Flag, vec!["high".to_owned()], 1));
        set.set_stored(&[except.clone(), stored("s", "block")]);
        assert_eq!(judge(&set).1, Action::Block, "a rule's is a rule's");
        set.set_stored(std::slice::from_ref(&except));
        set.none_stored();
        assert_eq!(judge(&set).0, 80, "nobody can say that it was not taken back");
        let mut odd = except;
        odd.exception.as_mut().expect("one").reasons.push("fun".into());
        set.set_stored(&[odd.clone()]);
        assert_eq!(judge(&set).0, 80);
        odd.exception = None;
        set.set_stored(&[odd]);
        assert_eq!(judge(&set).0, 80);
    }

    #[test]
    fn a_call_waits_for_the_databases_rules_until_they_or_their_absence_is_known() {
        let set = Arc::new(RuleSet::new(Vec::new()));
        set.await_stored();
        let judging = thread::spawn({
            let set = Arc::clone(&set);
            move || names(&set)
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!judging.is_finished());
        set.set_stored(&[stored("s", "pause")]);
        thread::sleep(Duration::from_millis(50));
        assert!(!judging.is_finished(), "and for the file's");
        set.file_known();
        assert_eq!(judging.join().expect("the judge"), ["s"]);

        let set = RuleSet::new(Vec::new());
        set.await_stored();
        set.none_stored();
        assert!(names(&set).is_empty());
    }
}
