//! Rules by the API: those of the database, to which one can add, and those of the file, to read.

use super::{
    Dashboard,
    api::{self, Refusal, sentence},
};
use crate::{
    auditor::{
        clock,
        keeper::chain,
        mcp::server::NOT_PENDING,
        store::{SessionReader, Viewer},
    },
    mcp::{
        reload,
        rules::{self, Written},
        ruleset,
    },
};
use axum::{
    Extension, Json,
    extract::{State, rejection::JsonRejection},
    http::StatusCode,
};
use ringfence_wire::mcp::{MAX_STORED_RULES, StoredRule};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, Read},
    sync::{Arc, PoisonError},
};

/// Bytes of a rule file that are read.
const LONGEST_FILE: u64 = 1 << 20;
/// Characters of a rule's name.
const LONGEST_NAME: usize = 100;
/// Characters of a rule's other texts. With [`MAX_STORED_RULES`] it bounds what interceptors are sent.
const LONGEST_TEXT: usize = 1000;

/// A rule as it is posted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Posted {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    tool_pattern: Option<String>,
    #[serde(default)]
    server_pattern: Option<String>,
    #[serde(default)]
    min_risk_score: Option<u8>,
    #[serde(default, deserialize_with = "list_or_text")]
    operation_types: Option<Vec<String>>,
    action: String,
}

fn list_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        List(Vec<String>),
        Text(String),
    }
    let list = match Option::<Either>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Either::List(list)) => list,
        Some(Either::Text(text)) => text.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    let list: Vec<String> = list.into_iter().filter(|name| !name.is_empty()).collect();
    Ok((!list.is_empty()).then_some(list))
}

/// All rules, those of the database first.
pub(super) async fn list(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
) -> Result<Json<Value>, Refusal> {
    let mut rows = api::ask(&dashboard, move |reader| reader.rules(viewer)).await?;
    for row in &mut rows {
        let operations = row["operation_types"].as_str().map(|list| list.split(',').collect::<Vec<_>>());
        row["operation_types"] = json!(operations);
        row["enabled"] = (row["enabled"] != 0).into();
        row["source"] = "database".into();
    }
    let (source, written) = api::beside(move || Ok(file_rules(&dashboard))).await?;
    for rule in written.unwrap_or_default() {
        let mut row = json!(rule);
        row["source"] = source.clone().into();
        rows.push(row);
    }
    Ok(Json(rows.into()))
}

/// What is wrong with the rules that are not the database's.
pub(super) fn problems(dashboard: &Dashboard) -> Vec<String> {
    let (source, written) = file_rules(dashboard);
    written.err().map(|error| format!("{source}: {error}")).into_iter().collect()
}

/// The rules that an interceptor started without `--rules` has: the user's file, or those that ship.
fn file_rules(dashboard: &Dashboard) -> (String, Result<Vec<Written>, String>) {
    let Some(path) = &dashboard.rules else {
        // Each interceptor reads its user's own; the daemon's auditor may not.
        return (String::new(), Ok(Vec::new()));
    };
    let read = |file: File| {
        let mut text = String::new();
        file.take(LONGEST_FILE).read_to_string(&mut text).map(|_| text)
    };
    match File::open(path).and_then(read) {
        Ok(text) => {
            let checked = rules::parse(&text).and_then(|_| rules::read(&text));
            (path.display().to_string(), checked.map_err(|error| chain(&error)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ("built in".to_owned(), rules::read(rules::SHIPPED).map_err(|error| chain(&error)))
        }
        Err(error) => (path.display().to_string(), Err(error.to_string())),
    }
}

/// Adds a rule to the database and puts it in force.
pub(super) async fn add(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
    posted: Result<Json<Posted>, JsonRejection>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let rule = check(api::body(posted)?)?;
    let shown = json!(ruleset::written(&rule).map_err(unfit)?);
    let id = api::beside(move || store(&dashboard, viewer, &rule)).await?;
    let mut row = shown;
    row["id"] = id.into();
    row["source"] = "database".into();
    Ok((StatusCode::CREATED, Json(row)))
}

/// Changes of rule files that wait for a confirmation: what is in force, what the file has, the rule that it loosens.
pub(super) async fn pending(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
) -> Result<Json<Value>, Refusal> {
    let mut rows = api::ask(&dashboard, move |reader| reader.pending_rules(viewer)).await?;
    for row in &mut rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let (old, new) = (text("text"), text("pending"));
        row["loosens"] = reload::loosens(&old, &new).into();
        row["difference"] = reload::difference(&old, &new).into();
    }
    Ok(Json(rows.into()))
}

/// Which change is confirmed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Confirmed {
    path: String,
    sha256: String,
}

/// Puts a change in force that waits.
pub(super) async fn confirm(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
    posted: Result<Json<Confirmed>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let Confirmed { path, sha256 } = api::body(posted)?;
    let done =
        api::beside(move || Ok(dashboard.sessions.confirm_rules(viewer.0, &path, &sha256, "dashboard")?));
    if done.await? {
        return Ok(Json(json!({ "confirmed": true })));
    }
    Err(Refusal::new(StatusCode::CONFLICT, format!("{}.", sentence(NOT_PENDING))))
}

fn unfit(why: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{}.", sentence(&why.into())))
}

/// Everything but whether it is there already.
fn check(posted: Posted) -> Result<StoredRule, Refusal> {
    // A form sends empty texts for what was left out.
    let text = |value: Option<String>| value.filter(|text| !text.trim().is_empty());
    let rule = StoredRule {
        name: posted.name.trim().to_owned(),
        description: posted.description.unwrap_or_default(),
        tool_pattern: text(posted.tool_pattern),
        server_pattern: text(posted.server_pattern),
        min_risk_score: posted.min_risk_score.unwrap_or(0),
        operation_types: posted.operation_types,
        action: posted.action,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if rule.name.is_empty() || rule.name.len() > LONGEST_NAME || !rule.name.chars().all(plain) {
        return Err(unfit(format!(
            "a rule's name is 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 _ - ."
        )));
    }
    let texts = [("description", Some(&rule.description)), ("tool_pattern", rule.tool_pattern.as_ref())];
    for (key, value) in texts.into_iter().chain([("server_pattern", rule.server_pattern.as_ref())]) {
        if value.is_some_and(|value| value.chars().count() > LONGEST_TEXT) {
            return Err(unfit(format!("{key} is longer than {LONGEST_TEXT} characters")));
        }
    }
    if rule.operation_types.as_ref().is_some_and(|list| list.len() > 5) {
        return Err(unfit("operation_types names more operations than there are"));
    }
    let written = ruleset::written(&rule).map_err(unfit)?;
    rules::compile(written).map_err(|error| unfit(chain(&error)))?;
    Ok(rule)
}

fn store(dashboard: &Dashboard, viewer: Viewer, rule: &StoredRule) -> Result<String, Refusal> {
    let sessions = &dashboard.sessions;
    let taken = || {
        let error = format!(
            "There is a rule named {:?} already; a verdict that names it would be unclear.",
            rule.name
        );
        Refusal::new(StatusCode::CONFLICT, error)
    };
    if file_rules(dashboard).1.is_ok_and(|written| written.iter().any(|other| other.name == rule.name)) {
        return Err(taken());
    }
    // The lock orders this with other additions: interceptors end with the newest list.
    let mut writer = sessions.writer.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = SessionReader::open(&sessions.db)?;
    if reader.stored_rules(viewer.0)?.len() >= MAX_STORED_RULES {
        let error =
            format!("The database holds {MAX_STORED_RULES} rules already; put more into a rule file.");
        return Err(Refusal::new(StatusCode::CONFLICT, error));
    }
    let id = writer.add_rule(viewer.0, rule, clock::now_micros())?.ok_or_else(taken)?;
    sessions.send_rules(viewer.0)?;
    drop(writer);
    Ok(id)
}
