//! What a change of one rule would have meant for calls on record. Pure.
//!
//! A call on record has its verdict, and the names of the rules that asked for it. Where the changed rule is not the only
//! one of them, that verdict stands at least; where it is, the score and the other rules are asked again. What a call that
//! was refused would have led to, nobody knows: the calls are taken as they are.

use super::{
    conditions::Facts,
    exceptions,
    risk::{self, Risk},
    rules::{self, Rule},
};
use ringfence_wire::{
    exception::{Excepted, Exception},
    tool_call::{Action, Named as _, Operation, Recorded},
};
use serde_json::{Value, json};

/// Most calls that are shown of each kind.
const EXAMPLES: usize = 5;

/// A call on record.
#[derive(Debug, Clone)]
pub struct PastCall {
    /// Its id.
    pub id: String,
    /// When it was asked for: RFC 3339.
    pub at: String,
    /// Its server's name.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// What it does.
    pub operation: Recorded<Operation>,
    /// 0 to 100.
    pub score: u8,
    /// What that is made of.
    pub reasons: Vec<String>,
    /// Exceptions that lowered it.
    pub excepted: Vec<Excepted>,
    /// Its arguments as they are on record, where they are asked for and not too long.
    pub arguments: Option<String>,
    /// What was decided.
    pub action: Recorded<Action>,
    /// The rules that asked for that.
    pub rules: Vec<String>,
}

impl PastCall {
    /// Its score without any exception: what rules were held against.
    fn full_score(&self) -> u8 {
        let excepted: Vec<&String> = self.excepted.iter().flat_map(|one| &one.reasons).collect();
        risk::score_with(self.score, &excepted)
    }
}

/// A change that is held against calls.
#[derive(Debug)]
pub struct Trial {
    /// The changed rule's name; none for a new one.
    name: Option<String>,
    /// The rule as it is to be; none where it is deleted.
    after: Vec<Rule>,
    others: Vec<Rule>,
    days: u32,
    calls: usize,
    matched: usize,
    stricter: usize,
    milder: usize,
    is_cut: bool,
    oldest: Option<String>,
    changed: Vec<Value>,
    same: Vec<Value>,
}

impl Trial {
    /// A change of the rule of that `name`, or of none for a new one, into `after`, or into nothing, beside `others`.
    pub fn new(name: Option<String>, after: Option<Rule>, others: Vec<Rule>, days: u32) -> Self {
        Self {
            name,
            after: after.into_iter().collect(),
            others,
            days,
            calls: 0,
            matched: 0,
            stricter: 0,
            milder: 0,
            is_cut: false,
            oldest: None,
            changed: Vec::new(),
            same: Vec::new(),
        }
    }

    /// Calls that were held against the change.
    pub const fn calls(&self) -> usize {
        self.calls
    }

    /// Older calls are not looked at.
    pub const fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Holds one call against the change.
    pub fn hold(&mut self, call: &PastCall) {
        self.calls += 1;
        self.oldest = Some(call.at.clone());
        // What another version recorded cannot be compared.
        let (Recorded::Known(was), Recorded::Known(operation)) = (&call.action, &call.operation) else {
            return;
        };
        let risk = Risk { operation: *operation, score: call.full_score(), reasons: Vec::new() };
        let facts = Facts::new(&call.server, &call.tool, &risk);
        let (by_this, by_others): (Vec<&String>, Vec<&String>) =
            call.rules.iter().partition(|name| self.name.as_ref() == Some(*name));
        let rest = if by_this.is_empty() || !by_others.is_empty() {
            *was
        } else {
            rules::judge_at(&self.others, facts, call.score).action.min(*was)
        };
        let asks = rules::matching(&self.after, facts).first().map(|rule| rule.action);
        let would = rest.max(asks.unwrap_or(Action::Pass));
        self.count(call, (*was, would), asks.is_some() || !by_this.is_empty());
    }

    /// Holds one call against a change of the exception of that name into `after`, or into nothing. Its arguments are those on
    /// record: secrets in them are no longer what they were.
    pub fn hold_exception(&mut self, call: &PastCall, after: Option<&Exception>) {
        self.calls += 1;
        self.oldest = Some(call.at.clone());
        let (Recorded::Known(was), Recorded::Known(operation)) = (&call.action, &call.operation) else {
            return;
        };
        let (by_this, by_others): (Vec<&Excepted>, Vec<&Excepted>) =
            call.excepted.iter().partition(|one| self.name.as_ref() == Some(&one.name));
        let of_call: Vec<&String> =
            call.reasons.iter().chain(call.excepted.iter().flat_map(|one| &one.reasons)).collect();
        let is_about = |exception: &&Exception| {
            // Most calls are of another tool: their arguments are not read.
            let arguments = call.arguments.as_deref().filter(|_| exception.tool == call.tool);
            let arguments = arguments.and_then(|text| serde_json::from_str(text).ok());
            arguments.is_some_and(|value| exceptions::is_about(exception, &call.server, &call.tool, &value))
        };
        let after = after
            .filter(is_about)
            .filter(|exception| exception.reasons.iter().any(|reason| of_call.contains(&reason)));
        let is_excepted = |reason: &str| {
            by_others.iter().any(|one| one.reasons.iter().any(|name| name == reason))
                || after.is_some_and(|after| after.reasons.iter().any(|name| name == reason))
        };
        let full = call.full_score();
        let score = risk::score_without(full, &of_call, is_excepted);
        let risk = Risk { operation: *operation, score: full, reasons: Vec::new() };
        let facts = Facts::new(&call.server, &call.tool, &risk);
        let would = if call.rules.is_empty() {
            rules::judge_at(&self.others, facts, score).action
        } else {
            // Rules asked for it, and hold.
            (*was).max(rules::action_of_score(score))
        };
        self.count(call, (*was, would), after.is_some() || !by_this.is_empty());
    }

    /// Counts a call with its verdict as it is and as it would be.
    fn count(&mut self, call: &PastCall, (was, would): (Action, Action), matched: bool) {
        self.matched += usize::from(matched);
        self.stricter += usize::from(would > was);
        self.milder += usize::from(would < was);
        let shown = if would == was { &mut self.same } else { &mut self.changed };
        if matched && shown.len() < EXAMPLES {
            shown.push(json!({ "id": call.id, "requested_at": call.at, "server_name": call.server, "tool_name": call.tool,
                "risk_score": call.score, "was": was.name(), "would_be": would.name() }));
        }
    }

    /// What came of it: `calls` were looked at, of the last `days` or, where that is `cut`, since `oldest`; `matched` are those
    /// that the rule is about before or after, `stricter` and `milder` those with another verdict; `examples` are the newest.
    pub fn report(&self) -> Value {
        let examples: Vec<&Value> = self.changed.iter().chain(&self.same).take(EXAMPLES).collect();
        json!({ "days": self.days, "calls": self.calls, "cut": self.is_cut, "oldest": self.oldest, "matched": self.matched,
            "stricter": self.stricter, "milder": self.milder, "examples": examples })
    }
}

#[cfg(test)]
mod tests {
    use super::{PastCall, Trial};
    use crate::rules::{self, Rule};
    use ringfence_wire::exception::{Excepted, Exception};
    use serde_json::json;

    fn rules(text: &str) -> Vec<Rule> {
        rules::parse(&format!("rules: [{text}]")).expect("rules")
    }

    fn call(tool: &str, score: u8, action: &str, rules: &[&str]) -> PastCall {
        PastCall {
            id: tool.into(),
            at: "2026-01-01T00:00:00Z".into(),
            server: "s".into(),
            tool: tool.into(),
            operation: "read".into(),
            score,
            reasons: Vec::new(),
            excepted: Vec::new(),
            arguments: None,
            action: action.into(),
            rules: rules.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Calls, matched, stricter, milder.
    fn tried(name: Option<&str>, after: &str, others: &str, calls: &[PastCall]) -> [u64; 4] {
        let mut trial = Trial::new(name.map(str::to_owned), rules(after).pop(), rules(others), 7);
        calls.iter().for_each(|call| trial.hold(call));
        let report = trial.report();
        ["calls", "matched", "stricter", "milder"].map(|key| report[key].as_u64().expect("a number"))
    }

    #[test]
    fn a_new_rule_only_tightens() {
        let calls = [call("x_a", 0, "pass", &[]), call("x_b", 90, "block", &[]), call("y", 0, "pass", &[])];
        let rule = "{name: n, tool_pattern: 'x_*', action: pause}";
        assert_eq!(tried(None, rule, "", &calls), [3, 2, 1, 0]);
        assert_eq!(tried(None, &rule.replace("action", "enabled: false, action"), "", &calls), [3, 0, 0, 0]);
    }

    #[test]
    fn without_a_rule_a_call_is_as_the_score_and_the_others_have_it() {
        let calls = [
            call("x_a", 0, "block", &["n"]),
            call("x_b", 40, "block", &["n"]),
            call("x_c", 0, "block", &["n", "m"]),
            call("x_d", 0, "flag", &["m"]),
        ];
        assert_eq!(tried(Some("n"), "", "", &calls), [4, 3, 0, 2], "also asked for by another");
        let other = "{name: o, tool_pattern: 'x_a', action: block}";
        assert_eq!(tried(Some("n"), "", other, &calls), [4, 3, 0, 1], "another asks for it anyway");
        let narrower = "{name: n, tool_pattern: 'x_a', action: block}";
        assert_eq!(tried(Some("n"), narrower, "", &calls), [4, 3, 0, 1]);
    }

    #[test]
    fn an_exception_lowers_what_the_score_decided_and_its_end_raises_it_again() {
        let exception = |reason: &str| -> Exception {
            let value = json!({ "server": "s", "tool": "t", "arguments": [{ "name": "a", "type": "string" }],
                "reasons": [reason] });
            serde_json::from_value(value).expect("an exception")
        };
        let of = |arguments: &str, action: &str, rules: &[&str]| PastCall {
            reasons: vec!["execute".into(), "unseen_code".into()],
            arguments: Some(arguments.into()),
            ..call("t", 70, action, rules)
        };
        let tried = |name: Option<&str>, after: Option<&Exception>, calls: &[PastCall]| {
            let mut trial = Trial::new(name.map(str::to_owned), None, Vec::new(), 7);
            calls.iter().for_each(|call| trial.hold_exception(call, after));
            let report = trial.report();
            ["calls", "matched", "stricter", "milder"].map(|key| report[key].as_u64().expect("a number"))
        };
        let calls = [
            of(r#"{"a":"x"}"#, "pause", &[]),
            of(r#"{"a":1}"#, "pause", &[]),
            of(r#"{"a":"x"}"#, "pause", &["r"]),
            of("no JSON", "pause", &[]),
        ];
        assert_eq!(tried(None, Some(&exception("unseen_code")), &calls), [4, 2, 0, 1]);
        assert_eq!(tried(None, Some(&exception("write")), &calls), [4, 0, 0, 0]);
        // Of calls that it was applied to, and is to be no longer.
        let lowered = PastCall {
            score: 30,
            reasons: vec!["execute".into()],
            excepted: vec![Excepted { name: "e".into(), reasons: vec!["unseen_code".into()] }],
            ..of(r#"{"a":"x"}"#, "pass", &[])
        };
        assert_eq!(tried(Some("e"), None, std::slice::from_ref(&lowered)), [1, 1, 1, 0]);
        assert_eq!(
            tried(Some("e"), Some(&exception("unseen_code")), std::slice::from_ref(&lowered)),
            [1, 1, 0, 0]
        );
        assert_eq!(tried(Some("other"), None, &[lowered]), [1, 0, 0, 0]);
    }

    #[test]
    fn what_another_version_recorded_is_counted_and_not_compared() {
        let calls = [call("x_a", 0, "explode", &[]), call("x_b", 0, "pass", &[])];
        assert_eq!(tried(None, "{name: n, action: flag}", "", &calls), [2, 1, 1, 0]);
    }

    #[test]
    fn examples_are_few_and_those_that_change_come_first() {
        let mut trial = Trial::new(None, rules("{name: n, action: flag}").pop(), Vec::new(), 7);
        (0..9).for_each(|n| trial.hold(&call(&format!("same{n}"), 0, "flag", &[])));
        trial.hold(&call("other", 0, "pass", &[]));
        trial.cut();
        let report = trial.report();
        let tools: Vec<&str> = report["examples"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|row| row["tool_name"].as_str())
            .collect();
        assert_eq!(tools, ["other", "same0", "same1", "same2", "same3"]);
        assert_eq!((&report["examples"][0]["would_be"], &report["cut"]), (&"flag".into(), &true.into()));
    }
}
