//! What a client's request has below its top: the profile's part of it. Pure.

use super::names::{self, CONFIG, Fields, THINKING, TOP};
use crate::{
    http::request::{Route, every, folded, squashed},
    message::raw,
};
use ringfence_policy::agents::config::{Llm, UNLIMITED_TOKENS};
use serde_json::{Value, value::RawValue};

/// The whole request of which tokens are to be counted.
pub(super) const COUNTED: &str = "generateContentRequest";
/// What sets how an answer is made.
const HOW: &str = "generationConfig";
/// A switch by which calls come in pieces. No two clients join those alike.
const PIECES: &str = "streamfunctioncallarguments";

/// Reads a request's names, and takes out what says again what its path says. True: it is one whose tokens are to be
/// counted, which stands in another.
///
/// # Errors
/// A name is there under both its spellings, or something is not what it is to be.
pub(super) fn open(route: Route, request: &mut Fields) -> Result<bool, String> {
    let mut fields = names::read(std::mem::take(request), &TOP)?;
    let mut is_inner = false;
    if let Some(counted) = fields.remove(COUNTED).filter(|counted| counted.get() != "null") {
        if route != Route::CountTokens || fields.contains_key("contents") {
            return Err(format!("{COUNTED} stands alone, in what counts tokens"));
        }
        let inner =
            serde_json::from_str(counted.get()).map_err(|_| format!("{COUNTED} is to be an object"))?;
        fields = names::read(inner, &TOP)?;
        if fields.remove(COUNTED).is_some() {
            return Err(format!("{COUNTED} stands alone, in what counts tokens"));
        }
        is_inner = true;
    }
    // The path has it.
    fields.retain(|key, _| !matches!(&*squashed(key), "model" | "models" | "modelid" | "modelname"));
    if let Some(how) = fields.remove(HOW) {
        let how = config(&how)?;
        fields.insert(HOW.into(), raw(&how));
    }
    if let Some(choice) = fields.get("toolConfig")
        && streams_calls(choice)?
    {
        return Err(
            "toolConfig: streamFunctionCallArguments: calls in pieces are not served; ask without".into()
        );
    }
    *request = fields;
    Ok(is_inner)
}

/// Puts a request whose tokens are to be counted where it stood.
pub(super) fn close(model: &str, request: &mut Fields) {
    let mut inner = std::mem::take(request);
    inner.insert("model".into(), raw(&format!("models/{model}")));
    request.insert(COUNTED.into(), raw(&inner));
}

/// Whether a request wants calls in pieces.
fn streams_calls(choice: &RawValue) -> Result<bool, String> {
    let calling = ["functioncallingconfig", "function_calling_config"];
    for key in calling {
        for config in every(choice, key)? {
            let config: Fields = serde_json::from_str(config.get()).unwrap_or_default();
            let is_on = |key: &str, value: &RawValue| {
                squashed(key) == PIECES && !matches!(value.get(), "false" | "null")
            };
            if config.iter().any(|(key, value)| is_on(key, value)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// How an answer is made, by its fields.
fn config(how: &RawValue) -> Result<Fields, String> {
    let fields: Option<Fields> =
        serde_json::from_str(how.get()).map_err(|_| format!("{HOW} is to be an object"))?;
    names::read(fields.unwrap_or_default(), &CONFIG)
}

/// Puts in the profile's options. What it says of how an answer is made goes before the client's, name by name.
///
/// # Errors
/// What the profile has there is no object.
pub(super) fn put_options(llm: &Llm, request: &mut Fields) -> Result<(), String> {
    let mut how = request.get(HOW).map(|how| config(how)).transpose()?.unwrap_or_default();
    // One answer, and one model.
    how.retain(|key, _| key != "candidateCount" && !names::names_model(key));
    for (key, value) in &llm.options {
        let key = names::top(key);
        if key != HOW {
            request.insert(key, raw(value));
            continue;
        }
        let Value::Object(fixed) = value else {
            return Err(format!("options: {HOW} of this agent's profile is to be an object"));
        };
        for (key, value) in fixed {
            let key = names::config(key);
            how.retain(|theirs, _| squashed(theirs) != squashed(&key));
            how.insert(key, raw(value));
        }
    }
    limit(llm, &mut how)?;
    if how.is_empty() {
        request.remove(HOW);
    } else {
        request.insert(HOW.into(), raw(&how));
    }
    Ok(())
}

/// Whether the profile's options have this of how an answer is made.
fn is_fixed(llm: &Llm, key: &str) -> bool {
    let how =
        llm.options.iter().find(|(name, _)| names::top(name) == HOW).and_then(|(_, how)| how.as_object());
    how.is_some_and(|how| how.keys().any(|name| names::config(name) == key))
}

/// Whether the profile asks for several answers at once.
pub(super) fn has_many(llm: &Llm) -> bool {
    let how =
        llm.options.iter().find(|(name, _)| names::top(name) == HOW).and_then(|(_, how)| how.as_object());
    let count = how.and_then(|how| how.iter().find(|(name, _)| names::config(name) == "candidateCount"));
    count.and_then(|(_, count)| count.as_u64()).is_some_and(|count| count > 1)
}

/// Has an answer be no longer than the profile allows, with what is thought before it. However freely a provider reads a
/// number (`1e9`, `"9"`, null for no limit).
fn limit(llm: &Llm, how: &mut Fields) -> Result<(), String> {
    if llm.max_tokens == UNLIMITED_TOKENS {
        return Ok(());
    }
    let most = u64::from(llm.max_tokens);
    let asked = how.get("maxOutputTokens").and_then(|asked| asked.get().parse::<u64>().ok());
    let most = asked.filter(|asked| *asked <= most).unwrap_or(most);
    how.insert("maxOutputTokens".into(), raw(&most));
    let Some(thinking) = how.get("thinkingConfig").filter(|_| !is_fixed(llm, "thinkingConfig")) else {
        return Ok(());
    };
    let thinking: Option<Fields> =
        serde_json::from_str(thinking.get()).map_err(|_| "thinkingConfig is to be an object")?;
    let mut thinking = names::read(thinking.unwrap_or_default(), &THINKING)?;
    if let Some(budget) = thinking.get("thinkingBudget").filter(|budget| budget.get() != "null") {
        // -1 leaves it to the model, which the most tokens of the answer end all the same.
        let fits = |budget: i64| budget < 0 || budget.unsigned_abs() < most;
        if !budget.get().parse::<i64>().is_ok_and(fits) {
            thinking.insert("thinkingBudget".into(), raw(&most.saturating_sub(1)));
        }
    }
    how.insert("thinkingConfig".into(), raw(&thinking));
    Ok(())
}

/// Has a request refer to nothing that the provider keeps, and leave nothing there.
///
/// # Errors
/// It refers to something.
pub(super) fn keep_nothing(llm: &Llm, request: &mut Fields) -> Result<(), String> {
    let is_fixed = |key: &str| llm.options.keys().any(|name| names::top(name) == key);
    let is_said = |key: &str| request.get(key).is_some_and(|value| !matches!(value.get(), "null" | "\"\""));
    if !is_fixed("cachedContent") && is_said("cachedContent") {
        return Err(
            "cachedContent refers to what the provider keeps, and this endpoint has it keep nothing; send the whole \
             conversation in contents"
                .into(),
        );
    }
    if !is_fixed("store") && request.get("store").is_some_and(|store| folded(store.get()) != "false") {
        request.insert("store".into(), raw(&false));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
