//! What a change of a rule would have meant for calls on record.

use super::{
    Changed, Error, SessionReader, Viewer,
    connection::rows,
    rule_changes::{Aimed, spec},
    sql,
};
use ringfence_base::clock::rfc3339;
use ringfence_session::{
    rules::{self, Rule, RuleSpec},
    ruleset::is_exception,
    trial::{PastCall, Trial},
};
use ringfence_wire::mcp::{Conditions, RuleChange};
use rusqlite::{Row, params};
use std::time::{Duration, Instant};

/// Most calls that one trial looks at, and for how long it does.
const MOST_CALLS: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(3);
/// Most days that it goes back.
const MOST_DAYS: u32 = 366;
/// Microseconds of a day.
const DAY: i64 = 24 * 3_600 * 1_000_000;
/// Calls that are read at once.
const PAGE: usize = 500;
/// Longest arguments of a call that an exception is held against, bytes.
const MOST_ARGUMENTS: u32 = 32 << 10;
/// Most patterns for tools, and for servers, of a rule that calls are held against.
pub const MOST_PATTERNS: usize = 64;

impl SessionReader {
    /// Holds the calls of the last `days` against a change of a rule, newest first, until a bound on calls or on time ends it.
    /// `file` are the rules that hold beside those of the database, as far as anybody knows them.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn try_rule(
        &self,
        viewer: Viewer,
        change: &RuleChange,
        file_and_days: (Vec<RuleSpec>, u32),
        now: i64,
    ) -> Result<Result<Trial, Changed>, Error> {
        let until = Instant::now() + PATIENCE;
        self.try_rule_while(viewer, change, file_and_days, now, || Instant::now() < until)
    }

    /// The same for as long as it `goes_on`, which is asked before each rule is compiled and before each call is looked at.
    fn try_rule_while(
        &self,
        viewer: Viewer,
        change: &RuleChange,
        (file, days): (Vec<RuleSpec>, u32),
        now: i64,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Result<Trial, Changed>, Error> {
        let fail = sql("try a rule on calls on record");
        let aimed = match Aimed::at(self.connection(), viewer, change).map_err(&fail)? {
            Ok(aimed) => aimed,
            Err(why) => return Ok(Err(why)),
        };
        let after = aimed.after.as_ref().and_then(spec);
        let others = aimed.others.iter().filter_map(|other| spec(&other.state)).chain(file);
        let others: Vec<RuleSpec> = others.filter(|other| other.enabled).collect();
        let in_force = after.iter().filter(|rule| rule.enabled).chain(&others);
        if let Some(rule) = in_force.into_iter().find(|rule| has_many_patterns(rule)) {
            return Ok(Err(Changed::TooManyPatterns(rule.name.clone())));
        }
        let after = after.and_then(|spec| rules::compile(spec).ok());
        let states = [aimed.before.as_ref().map(|before| &before.state), aimed.after.as_ref()];
        let of_exception = states.into_iter().flatten().any(|state| is_exception(&state.rule));
        let exception = aimed.after.as_ref().filter(|after| after.enabled);
        let exception = exception.and_then(|after| after.rule.exception.clone());
        let count = others.len();
        let others = others.into_iter().take_while(|_| goes_on()).map(rules::compile);
        let others: Vec<Result<Rule, _>> = others.collect();
        let is_late = others.len() < count;
        let name = aimed.before.as_ref().map(|before| before.state.rule.name.clone());
        let days = days.clamp(1, MOST_DAYS);
        let since = rfc3339(now.saturating_sub(i64::from(days).saturating_mul(DAY)));
        let mut trial = Trial::new(name, after, others.into_iter().flatten().collect(), days);
        if is_late {
            // Without the other rules nothing can be said of any call.
            trial.cut();
            return Ok(Ok(trial));
        }
        let whose = aimed.uid;
        // As the list of calls is read: a user's by the index that has them by time.
        let arguments = if of_exception {
            format!("CASE WHEN octet_length(c.arguments) <= {MOST_ARGUMENTS} THEN c.arguments END")
        } else {
            "NULL".to_owned()
        };
        let columns = format!(
            "c.id, c.requested_at, s.server_name, c.tool_name, c.operation_type, c.risk_score, c.policy_action, c.rules,
             c.risk_reasons, c.exceptions, {arguments}"
        );
        let text = if whose == 0 {
            format!(
                "SELECT {columns} FROM tool_calls c JOIN sessions s ON s.id = c.session_id
             WHERE ?1 = 0 AND c.requested_at >= ?2 AND (c.requested_at, c.id) < (?3, ?4)
             ORDER BY c.requested_at DESC, c.id DESC LIMIT ?5"
            )
        } else {
            format!("SELECT {columns} FROM calls_by_user u JOIN tool_calls c ON c.id = u.id JOIN sessions s ON s.id = c.session_id
             WHERE u.uid = ?1 AND u.requested_at >= ?2 AND (u.requested_at, u.id) < (?3, ?4)
             ORDER BY u.requested_at DESC, u.id DESC LIMIT ?5")
        };
        // Later than any time.
        let mut before = ("z".to_owned(), String::new());
        loop {
            let values = params![whose, since, before.0, before.1, PAGE as i64];
            let page = rows(self.connection(), &text, values, past).map_err(&fail)?;
            for call in &page {
                if !goes_on() {
                    trial.cut();
                    return Ok(Ok(trial));
                }
                if of_exception {
                    trial.hold_exception(call, exception.as_ref());
                } else {
                    trial.hold(call);
                }
            }
            let Some(last) = page.last().filter(|_| page.len() == PAGE) else { return Ok(Ok(trial)) };
            before = (last.at.clone(), last.id.clone());
            if trial.calls() >= MOST_CALLS {
                trial.cut();
                return Ok(Ok(trial));
            }
        }
    }
}

fn has_many_patterns(rule: &RuleSpec) -> bool {
    let Conditions { tool_pattern, server_pattern, min_risk_score: _, operation_types: _ } = &rule.conditions;
    let patterns = [tool_pattern, server_pattern];
    patterns.into_iter().flatten().any(|patterns| patterns.split(',').count() > MOST_PATTERNS)
}

fn past(row: &Row<'_>) -> rusqlite::Result<PastCall> {
    let list = |column: usize| {
        let text: Option<String> = row.get(column)?;
        Ok::<Vec<String>, rusqlite::Error>(
            text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        )
    };
    let excepted: Option<String> = row.get(9)?;
    Ok(PastCall {
        id: row.get(0)?,
        at: row.get(1)?,
        server: row.get(2)?,
        tool: row.get(3)?,
        operation: row.get::<_, String>(4)?.into(),
        score: u8::try_from(row.get::<_, i64>(5)?).unwrap_or(u8::MAX),
        action: row.get::<_, String>(6)?.into(),
        rules: list(7)?,
        reasons: list(8)?,
        excepted: excepted.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        arguments: row.get(10)?,
    })
}

#[cfg(test)]
mod tests;
