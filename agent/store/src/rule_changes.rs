//! Changing a rule of the database: one transaction with its entry of the ledger, or nothing.

use super::{
    Error, SessionWriter, Viewer, condition_columns,
    connection::begin,
    ledger,
    policy_rules::{Owned, binding},
    session_writer::of_user,
    sql, turn,
};
use ringfence_base::clock::rfc3339;
use ringfence_session::{
    exceptions,
    ledger::{ChangedRule, Entry, Moved, RuleState},
    reload,
    rules::{self, RuleSpec},
    ruleset::{is_exception, rule_spec},
};
use ringfence_wire::mcp::{MAX_STORED_RULES, RuleChange};
use rusqlite::{Connection, OptionalExtension as _, ToSql, Transaction, params};
use std::slice;

/// Rules for the sessions of each user id.
const RULES_BY_UID: &str = "SELECT uid, count(*) FROM policy_rules GROUP BY uid";

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// It was made. The rule's id, and whose sessions it binds: everybody's for 0.
    Done {
        /// The rule's id.
        id: String,
        /// Whose it is.
        uid: u32,
    },
    /// Nothing had to be changed: the rule is like that.
    Same {
        /// The rule's id.
        id: String,
        /// Whose it is.
        uid: u32,
    },
    /// Another rule that binds some of the same sessions has the name.
    Taken,
    /// There is no such rule that the viewer can see.
    Unknown,
    /// It is root's, and binds the viewer's sessions.
    NotYours,
    /// The rule has another name: it keeps the one it has.
    Renamed,
    /// Somebody else changed it: it is another version now.
    Stale {
        /// Who.
        by: String,
    },
    /// A rule is an exception for good, or never.
    OtherKind,
    /// The change loosens this rule, and nobody agreed to that.
    Loosens(String),
    /// This rule has more than [`MOST_PATTERNS`]: nothing is tried with it.
    ///
    /// [`MOST_PATTERNS`]: super::MOST_PATTERNS
    TooManyPatterns(String),
}

/// Which rule a change is about, and which version of it; nothing for a new one.
fn aim(change: &RuleChange) -> Option<(&str, i64)> {
    match change {
        RuleChange::Add { .. } => None,
        RuleChange::Edit { id, version, .. }
        | RuleChange::Switch { id, version, .. }
        | RuleChange::Move { id, version, .. }
        | RuleChange::Delete { id, version } => Some((id, *version)),
    }
}

/// The rule that a change is about as it is and as it is to be, among the rules that bind its owner's sessions.
pub(crate) struct Aimed {
    /// Whose sessions it binds: everybody's for 0.
    pub(crate) uid: u32,
    pub(crate) before: Option<Owned>,
    pub(crate) after: Option<RuleState>,
    /// All others, as they stay.
    pub(crate) others: Vec<Owned>,
}

impl Aimed {
    /// Looks a change up; what it cannot be made for is in the error.
    pub(crate) fn at(
        connection: &Connection,
        viewer: Viewer,
        change: &RuleChange,
    ) -> rusqlite::Result<Result<Self, Changed>> {
        let Some((id, version)) = aim(change) else {
            let others = binding(connection, viewer.0)?;
            let RuleChange::Add { rule } = change else { return Ok(Err(Changed::Unknown)) };
            let own = others.iter().filter(|other| other.uid == viewer.0).count();
            let place = u32::try_from(own).unwrap_or(u32::MAX).saturating_add(1);
            let after = RuleState { version: 1, place, enabled: true, rule: rule.clone() };
            return Ok(Ok(Self { uid: viewer.0, before: None, after: Some(after), others }));
        };
        let found: Option<(u32, Option<String>)> = connection
            .query_row("SELECT uid, changed_by FROM policy_rules WHERE id = ?1", [id], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let Some((uid, by)) = found.filter(|(uid, _)| [0, *uid].contains(&viewer.0) || *uid == 0) else {
            return Ok(Err(Changed::Unknown));
        };
        if uid == 0 && viewer.0 != 0 {
            return Ok(Err(Changed::NotYours));
        }
        let mut others = binding(connection, uid)?;
        let Some(index) = others.iter().position(|rule| rule.id == id) else {
            return Ok(Err(Changed::Unknown));
        };
        let before = others.swap_remove(index);
        others.sort_by_key(|rule| (rule.uid, rule.state.place));
        if before.state.version != version {
            return Ok(Err(Changed::Stale { by: by.unwrap_or_default() }));
        }
        let next = RuleState { version: version.saturating_add(1), ..before.state.clone() };
        let after = match change {
            RuleChange::Add { .. } | RuleChange::Delete { .. } => None,
            RuleChange::Edit { rule, .. } if rule.name != before.state.rule.name => {
                return Ok(Err(Changed::Renamed));
            }
            RuleChange::Edit { rule, .. } if is_exception(rule) != is_exception(&before.state.rule) => {
                return Ok(Err(Changed::OtherKind));
            }
            RuleChange::Edit { rule, .. } => Some(RuleState { rule: rule.clone(), ..next }),
            RuleChange::Switch { enabled, .. } => Some(RuleState { enabled: *enabled, ..next }),
            RuleChange::Move { place, .. } => {
                let last = others.iter().filter(|other| other.uid == uid).count();
                let last = u32::try_from(last).unwrap_or(u32::MAX).saturating_add(1);
                Some(RuleState { place: (*place).clamp(1, last), ..next })
            }
        };
        Ok(Ok(Self { uid, before: Some(before), after, others }))
    }

    /// Whether the rule is already as it is to be.
    fn is_same(&self) -> bool {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return false };
        before.state == RuleState { version: before.state.version, ..after.clone() }
    }

    /// The rule that is looser afterwards, if one is. A rule that cannot be compiled is in force nowhere, and makes up for no
    /// other.
    fn loosens(&self) -> Option<String> {
        if let Some(after) = self.after.as_ref().filter(|after| after.enabled && is_exception(&after.rule)) {
            // The other way round: what it is about more is what is looser.
            let before = self.before.as_ref().filter(|before| before.state.enabled);
            let before = before.and_then(|before| before.state.rule.exception.as_ref());
            let is_covered = match (before, &after.rule.exception) {
                (Some(before), Some(after)) => exceptions::covers(before, after),
                _ => false,
            };
            return (!is_covered).then(|| after.rule.name.clone());
        }
        let before = [spec(&self.before.as_ref()?.state)?];
        let loosened = reload::loosened(&before, &[])?;
        let others = self.others.iter().filter_map(|other| spec(&other.state));
        // Those that would make up for it come to be compiled, which takes long, one by one.
        let covers = |rule: RuleSpec| {
            reload::loosened(&before, slice::from_ref(&rule)).is_none() && rules::compile(rule).is_ok()
        };
        let is_covered = self.after.iter().filter_map(spec).chain(others).any(covers);
        (!is_covered).then(|| loosened.to_owned())
    }
}

/// A rule as a rule file would have it; nothing for an action of a later version.
pub(crate) fn spec(state: &RuleState) -> Option<RuleSpec> {
    rule_spec(&state.rule).ok().map(|spec| RuleSpec { enabled: state.enabled, ..spec })
}

impl SessionWriter {
    /// Makes a change of a rule on behalf of `viewer`, with its entry of the ledger of whoever's rule it is. What loosens a rule
    /// needs `agreed`.
    ///
    /// # Errors
    /// [`Error::Sql`], [`Error::TooManyRules`].
    pub fn change_rule(
        &mut self,
        viewer: Viewer,
        change: &RuleChange,
        (by, agreed): (&str, bool),
        now: i64,
    ) -> Result<Changed, Error> {
        let fail = sql("change a rule");
        let owners = self.owners.clone();
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        let aimed = match Aimed::at(&step, viewer, change).map_err(&fail)? {
            Ok(aimed) => aimed,
            Err(why) => return Ok(why),
        };
        if let RuleChange::Add { rule } = change {
            let count =
                of_user(&step, &owners, owners.of(aimed.uid), RULES_BY_UID).map_err(sql("count rules"))?;
            if count >= MAX_STORED_RULES as u64 {
                return Err(Error::TooManyRules);
            }
            if is_taken(&step, aimed.uid, &rule.name).map_err(&fail)? {
                return Ok(Changed::Taken);
            }
        }
        if aimed.is_same() {
            let id = aimed.before.map(|before| before.id).unwrap_or_default();
            return Ok(Changed::Same { id, uid: aimed.uid });
        }
        if !agreed && let Some(rule) = aimed.loosens() {
            return Ok(Changed::Loosens(rule));
        }
        let id = match &aimed.before {
            Some(before) => before.id.clone(),
            None => uuid::Uuid::new_v4().to_string(),
        };
        write(&step, &id, &aimed, (by, now)).map_err(&fail)?;
        let word = match change {
            RuleChange::Add { .. } => "add",
            RuleChange::Edit { .. } => "edit",
            RuleChange::Switch { enabled: true, .. } => "enable",
            RuleChange::Switch { enabled: false, .. } => "disable",
            RuleChange::Move { .. } => "move",
            RuleChange::Delete { .. } => "delete",
        };
        let uid = aimed.uid;
        let (moved, before, after) = match (aimed.before, aimed.after) {
            (Some(before), Some(after)) if matches!(change, RuleChange::Move { .. }) => {
                let (name, from) = (after.rule.name, before.state.place);
                (Some(Moved { name, version: after.version, from, to: after.place }), None, None)
            }
            (before, after) => (None, before.map(|before| before.state), after),
        };
        let entry = Entry::Rule(Box::new(ChangedRule {
            at: now,
            by: by.to_owned(),
            change: word.to_owned(),
            id: id.clone(),
            moved,
            before,
            after,
        }));
        ledger::append(&step, uid, &entry).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(Changed::Done { id, uid })
    }

    /// Adds a rule for the sessions of `uid`, or of everybody for 0. Gives its id, or nothing where one of that name binds some
    /// of them already.
    #[cfg(any(test, feature = "test-support"))]
    pub fn add_rule(
        &mut self,
        uid: u32,
        rule: &ringfence_wire::mcp::StoredRule,
        now: i64,
    ) -> Result<Option<String>, Error> {
        let change = RuleChange::Add { rule: rule.clone() };
        match self.change_rule(Viewer(uid), &change, ("a test", false), now)? {
            Changed::Done { id, .. } => Ok(Some(id)),
            _ => Ok(None),
        }
    }
}

/// Whether a rule of this name binds some of the sessions that one of `uid` would.
fn is_taken(step: &Transaction<'_>, uid: u32, name: &str) -> rusqlite::Result<bool> {
    let text = "SELECT 1 FROM policy_rules WHERE name = ?2 AND (uid IN (0, ?1) OR ?1 = 0)";
    step.prepare_cached(text)?.exists(params![uid, name])
}

/// Brings the table to what is to be.
fn write(step: &Transaction<'_>, id: &str, aimed: &Aimed, (by, now): (&str, i64)) -> rusqlite::Result<()> {
    let Some(after) = &aimed.after else {
        step.execute("DELETE FROM policy_rules WHERE id = ?1", [id])?;
        // Another rule of the name begins anew.
        let name = aimed.before.as_ref().map(|before| &before.state.rule.name);
        return step
            .execute(
                "DELETE FROM rule_hits WHERE name = ?1 AND (?2 = 0 OR uid = ?2)",
                params![name, aimed.uid],
            )
            .map(drop);
    };
    let conditions = condition_columns::values(&after.rule.conditions);
    let (action, at) = (after.rule.action.as_str(), rfc3339(now));
    let exception = after.rule.exception.as_ref().map(|exception| serde_json::json!(exception).to_string());
    let mut columns: Vec<(&str, &dyn ToSql)> = vec![
        ("id", &id),
        ("name", &after.rule.name),
        ("description", &after.rule.description),
        ("action", &action),
        ("enabled", &after.enabled),
        ("version", &after.version),
        ("changed_by", &by),
        ("exception", &exception),
    ];
    columns.extend(conditions.iter().map(|(name, value)| (*name, value as &dyn ToSql)));
    let is_new = aimed.before.is_none();
    columns.push((if is_new { "created_at" } else { "changed_at" }, &at));
    if is_new {
        columns.push(("uid", &aimed.uid));
    }
    let values: Vec<&dyn ToSql> = columns.iter().map(|(_, value)| *value).collect();
    let text = if is_new {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let numbers: Vec<String> = (1..=columns.len()).map(|number| format!("?{number}")).collect();
        format!("INSERT INTO policy_rules ({}) VALUES ({})", names.join(", "), numbers.join(", "))
    } else {
        let set = (1..).zip(&columns).map(|(number, (name, _))| format!("{name} = ?{number}"));
        format!("UPDATE policy_rules SET {} WHERE id = ?1", set.collect::<Vec<_>>().join(", "))
    };
    step.execute(&text, values.as_slice())?;
    // Places are those of the owner's rules from the first to the last.
    let mut ids: Vec<&str> =
        aimed.others.iter().filter(|other| other.uid == aimed.uid).map(|other| other.id.as_str()).collect();
    let index = usize::try_from(after.place).unwrap_or(usize::MAX).saturating_sub(1);
    ids.insert(index.min(ids.len()), id);
    let mut place =
        step.prepare_cached("UPDATE policy_rules SET position = ?2 WHERE id = ?1 AND position <> ?2")?;
    for (position, id) in (1i64..).zip(ids) {
        place.execute(params![id, position])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
