//! What a client asks for, made into what the provider is asked for. Pure.

use super::strict_json;
use crate::{
    message::raw,
    provider::{Wire, endpoint},
};
use axum::http::Method;
use percent_encoding::percent_decode_str;
use ringfence_policy::agents::{
    config::{ANY_MODEL, UNLIMITED_TOKENS},
    registry::{Llm, ProviderKind},
};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

pub mod head;
pub(crate) mod provider_run;
mod tools;

pub(crate) use tools::{every, every_named};

/// What a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The model is to answer.
    Complete,
    /// The same, in the newer of OpenAI's two forms.
    Respond,
    /// The same, in Gemini's form.
    Generate,
    /// The same, as a stream.
    StreamGenerate,
    /// Only count what a request has.
    CountTokens,
    /// Which models there are: the profile's.
    Models,
    /// What is known of one of them.
    Model,
    /// Whether anybody is there.
    Alive,
}

impl Route {
    /// Whether the model is to answer: what is a turn, and costs.
    pub fn is_turn(self) -> bool {
        match self {
            Self::Complete | Self::Respond | Self::Generate | Self::StreamGenerate => true,
            Self::CountTokens | Self::Models | Self::Model | Self::Alive => false,
        }
    }
}

/// The API whose form has what belongs to none.
fn first(kind: ProviderKind) -> Wire {
    Wire::on(kind, Route::Complete)
}

/// What a request is to the provider.
///
/// # Errors
/// Status and reason.
pub fn route(kind: ProviderKind, method: &Method, path: &str) -> Result<Route, (u16, String)> {
    let path = path.trim_end_matches('/');
    let bare = bare(kind, path);
    // A method that is not served, where models have some.
    let is_method = *method == Method::POST
        && bare.contains(':')
        && routes(kind).any(|(pattern, _)| pattern.contains(MODEL));
    let (route, wanted) = match routes(kind).find(|(pattern, _)| fits(pattern, bare).is_some()) {
        Some((_, route)) => (*route, Method::POST),
        None if bare == "/models" => (Route::Models, Method::GET),
        None if bare.starts_with("/models/") && !is_method => (Route::Model, Method::GET),
        // Clients look whether anybody is there before they ask.
        None if bare.is_empty() => (Route::Alive, Method::HEAD),
        None => {
            let prefix = endpoint(first(kind)).prefixes().first().copied().unwrap_or_default();
            let has: Vec<_> = routes(kind).map(|(path, _)| format!("POST {prefix}{path}")).collect();
            let has = format!("this agent's endpoint has {} and GET {prefix}/models", has.join(", "));
            return Err((404, format!("there is nothing at {path:?}; {has}")));
        }
    };
    // What answers a GET answers a HEAD, without its body.
    let is_head = *method == Method::HEAD && wanted == Method::GET;
    if *method != wanted && !is_head {
        let path = if path.is_empty() { "/" } else { path };
        return Err((405, format!("{path:?} is for {wanted}, not for {method}")));
    }
    Ok(route)
}

/// What clients call of a provider.
fn routes(kind: ProviderKind) -> impl Iterator<Item = &'static (&'static str, Route)> {
    Wire::of(kind).iter().flat_map(|wire| endpoint(*wire).routes())
}

/// A path without what stands before it: a client's base URL may end in that or not.
fn bare(kind: ProviderKind, path: &str) -> &str {
    let prefixes = endpoint(first(kind)).prefixes();
    let is_whole = |rest: &&str| rest.is_empty() || rest.starts_with('/');
    prefixes.iter().find_map(|prefix| path.strip_prefix(prefix).filter(is_whole)).unwrap_or(path)
}

/// In the path of a route, what stands for a model's name.
const MODEL: &str = "MODEL";

/// Whether a path is that of a route, and the model's name in it; empty: it has none.
fn fits<'a>(pattern: &str, bare: &'a str) -> Option<&'a str> {
    match pattern.split_once(MODEL) {
        None => (pattern == bare).then_some(""),
        Some((before, behind)) => {
            bare.strip_prefix(before)?.strip_suffix(behind).filter(|name| !name.is_empty())
        }
    }
}

/// The model that a path names, where its API has that there.
pub fn model_in_path(kind: ProviderKind, path: &str) -> Option<String> {
    let bare = bare(kind, path.trim_end_matches('/'));
    let name = routes(kind).find_map(|(pattern, _)| fits(pattern, bare)).filter(|name| !name.is_empty())?;
    Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
}

/// What is known of the model that a path names.
///
/// # Errors
/// It is none of the profile's: status and reason.
pub fn model(llm: &Llm, path: &str) -> Result<Value, (u16, String)> {
    let asked = path.trim_end_matches('/').split_once("/models/").map_or("", |(_, model)| model);
    let decoded = percent_decode_str(asked).decode_utf8_lossy();
    match llm.offered().find(|offered| decoded == *offered || asked == *offered) {
        Some(offered) => Ok(endpoint(first(llm.provider)).model(offered)),
        None if llm.offers_any() && is_model(&decoded) => Ok(endpoint(first(llm.provider)).model(&decoded)),
        None => Err((404, no_model(llm, &decoded))),
    }
}

/// Which model a request is sent on for.
///
/// # Errors
/// The client asks for one that is none of those which it may ask for.
fn chosen<'a>(llm: &'a Llm, asked: Option<&RawValue>) -> Result<Cow<'a, str>, String> {
    let Some(asked) = asked.filter(|_| !llm.models.is_empty()) else {
        return match llm.model.as_str() {
            ANY_MODEL => Err("this agent's profile has no default model: name one".into()),
            model => Ok(model.into()),
        };
    };
    let asked: String = serde_json::from_str(asked.get()).map_err(|_| "model is to be a text")?;
    match llm.offered().find(|offered| *offered == asked) {
        Some(offered) => Ok(offered.into()),
        None if llm.offers_any() && is_model(&asked) => {
            let searches = SEARCHING.iter().any(|word| asked.to_ascii_lowercase().contains(word));
            let may_search = llm.provider_tools.iter().any(|entry| entry == "*" || entry == "web_search");
            if searches && !may_search {
                return Err(format!(
                    "the model {asked:?} searches by itself, beyond the container's limits; `provider_tools = [\"web_search\"]` allows it"
                ));
            }
            Ok(asked.into())
        }
        None => Err(no_model(llm, &asked)),
    }
}

/// What is in the names of models that search without a tool to ask for it: where any model may be asked for, these are not.
const SEARCHING: [&str; 4] = ["search", ":online", "deep-research", "sonar"];

/// Whether a text can be a model's name: it goes into logs and addresses.
fn is_model(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/@+[]".contains(&b);
    (1..=128).contains(&name.len()) && name.bytes().all(known)
}

/// Whether a name that a client puts into a path is one that ends there.
fn is_one_segment(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
}

fn no_model(llm: &Llm, asked: &str) -> String {
    let offered: Vec<String> = llm.offered().map(|model| format!("{model:?}")).collect();
    let asked: String = asked.chars().take(100).collect();
    if llm.offers_any() {
        return format!("{asked:?} is no model's name");
    }
    format!("this agent's profile has {}, and no model {asked:?}", offered.join(", "))
}

/// A request, rewritten.
#[derive(Debug)]
pub struct Rewritten {
    /// Where the provider has it: what follows its address.
    pub path: Cow<'static, str>,
    /// What the provider is sent.
    pub body: Vec<u8>,
    /// Whether the answer is to stream.
    pub streams: bool,
    /// The client did not ask for the last chunk with the usage; we did.
    pub(super) hides_usage: bool,
    /// The profile asks for several answers at once.
    pub(super) has_many: bool,
    /// The conversation.
    pub(super) messages: Vec<Box<RawValue>>,
    /// What the client says of itself.
    pub(super) metadata: Option<Box<RawValue>>,
}

/// How many answers a request is to have, or how many are made to choose from.
const MANY: [&str; 3] = ["n", "n_cmpl", "best_of"];

/// What names other models than the profile's, for servers that pass requests on; or has fields of a request in it.
const MODELS: [&str; 10] = [
    "models",
    "fallbacks",
    "route",
    "preset",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "extra_body",
    "plugins",
    "user_config",
    "model_list",
];

/// Names of the most tokens of an answer. Some servers take one of them over the API's own.
const LIMITS: [&str; 7] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "num_predict",
    "max_new_tokens",
    "max_tokens_to_sample",
];

/// Fields that are looked at or fixed, beside the profile's options, the API's own, [`MANY`], [`MODELS`] and [`LIMITS`].
const OURS: [&str; 4] = ["model", "stream", "stream_options", "tools"];

/// What names are alike by that differ only in case, as parsers that ignore it have it: long s and the Kelvin sign are
/// an s and a k.
pub fn folded(key: &str) -> Cow<'_, str> {
    // As nearly all keys are: they are looked at many times in each request and event.
    if key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(key);
    }
    let ascii = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c,
    };
    key.chars().map(ascii).flat_map(char::to_lowercase).collect()
}

/// A key without what its spellings differ by.
pub(crate) fn squashed(key: &str) -> Cow<'_, str> {
    let folded = folded(key);
    if !folded.contains(['_', '-']) {
        return folded;
    }
    folded.chars().filter(|c| !matches!(c, '_' | '-')).collect()
}

/// A list in a request, item by item; what is none is the provider's to refuse.
pub(crate) fn listed(request: &BTreeMap<String, Box<RawValue>>, key: &str) -> Vec<Box<RawValue>> {
    request.get(key).and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default()
}

/// Puts in what the profile fixes: model, options, most tokens of an answer, and that there is one. Everything else stays the client's.
///
/// # Errors
/// Not a JSON object, or one whose `stream` or `stream_options` are not what they are to be, or of too many values; a tool of
/// the provider's that is to use another model; what the provider is to run or fetch itself, and may not; or a reference to
/// what the provider keeps.
pub fn rewrite(llm: &Llm, route: Route, body: &[u8]) -> Result<Rewritten, String> {
    rewrite_for(llm, (route, None), body)
}

/// As [`rewrite`], of a request whose path names a model: nothing in it names another.
///
/// # Errors
/// As [`rewrite`].
pub fn rewrite_for(
    llm: &Llm,
    (route, in_path): (Route, Option<&str>),
    body: &[u8],
) -> Result<Rewritten, String> {
    // Each is kept by itself for a while.
    if !strict_json::is_light(body) {
        return Err("the body has too many values".into());
    }
    let mut fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(body).map_err(|error| format!("the body is no JSON object: {error}"))?;
    let endpoint = endpoint(Wire::on(llm.provider, route));
    let is_inner = endpoint.open(route, &mut fields)?;
    // A provider may read names in any case: what only looks like one of those that are ours would count beside it.
    let named =
        || OURS.iter().chain(endpoint.own_fields()).chain(&MANY).chain(&MODELS).chain(&LIMITS).copied();
    let ours = || named().chain(llm.options.keys().map(String::as_str));
    fields.retain(|key, _| {
        let alike = folded(key);
        ours().all(|ours| key == ours || alike != folded(ours))
    });
    MODELS.iter().for_each(|key| drop(fields.remove(*key)));
    let in_path = in_path.map(|name| raw(&name));
    let asked = in_path.as_deref().or(fields.get("model").map(|model| &**model));
    let model = chosen(llm, asked)?.into_owned();
    if in_path.is_some() && !llm.offered().any(|offered| offered == model) && !is_one_segment(&model) {
        return Err(no_model(llm, &model));
    }
    endpoint.put_model(&model, &mut fields);
    if let Some(tools) = fields.get("tools").filter(|_| !llm.options.contains_key("tools")) {
        tools::use_no_model(tools)?;
    }
    let more_tools = endpoint.more_tools(&fields)?;
    more_tools.iter().try_for_each(|tools| tools::use_no_model(tools))?;
    let is_fixed = |key: &str| route.is_turn() && llm.options.contains_key(key);
    provider_run::check(llm, Wire::on(llm.provider, route), (&fields, &more_tools), is_fixed)?;
    let messages = endpoint.messages(&fields);
    // A provider that reads it freely would stream where we do not expect it.
    let streams = match fields.get("stream").map(|value| value.get()) {
        None | Some("false" | "null") => false,
        Some("true") => true,
        Some(_) => return Err("stream is to be true or false".into()),
    };
    let streams = match route {
        Route::Generate | Route::StreamGenerate => {
            fields.remove("stream");
            route == Route::StreamGenerate
        }
        _ => streams,
    };
    let mut hides_usage = false;
    let most_asked = fields.get("max_tokens").and_then(|value| value.get().parse::<u64>().ok());
    endpoint.keep_nothing(llm, &mut fields)?;
    if route.is_turn() {
        // Several answers to one request have the most tokens each.
        MANY.iter().for_each(|key| drop(fields.remove(*key)));
        endpoint.put_options(llm, &mut fields)?;
        let keys = endpoint.limit_keys(llm);
        let asked: Vec<&str> = keys.iter().filter(|key| fields.contains_key(**key)).copied().collect();
        let own = if asked.is_empty() { keys.iter().take(1).copied().collect() } else { asked };
        let others =
            LIMITS.iter().filter(|key| fields.contains_key(**key) && !llm.options.contains_key(**key));
        // Whichever of them a provider goes by, and however freely it reads a number (`1e9`, `"9"`, null for no limit).
        let limited = llm.max_tokens < UNLIMITED_TOKENS;
        for key in own.iter().chain(others).copied().filter(|_| limited).collect::<Vec<_>>() {
            let number = fields.get(key).and_then(|value| value.get().parse::<u64>().ok());
            if number.is_none_or(|number| number > u64::from(llm.max_tokens)) {
                fields.insert(key.into(), raw(&llm.max_tokens));
            }
        }
        // What the profile says of it is fixed.
        if !llm.options.contains_key("thinking") {
            endpoint.fit_thinking(&mut fields, most_asked)?;
        }
        if streams {
            hides_usage = endpoint.ask_for_usage(&mut fields)?;
        }
    }
    if is_inner {
        endpoint.close(&model, &mut fields);
    }
    let metadata = fields.get("metadata").cloned();
    let body = serde_json::to_vec(&fields).map_err(|error| error.to_string())?;
    let (path, has_many) = (endpoint.path(route, &model), endpoint.has_many(llm));
    Ok(Rewritten { path, body, streams, hides_usage, has_many, messages, metadata })
}

/// An error of our own, in the provider's form.
pub(super) fn error(kind: ProviderKind, status: u16, message: &str) -> Value {
    endpoint(first(kind)).error(status, error_kind(status), &our_own(message))
}

/// The same as a stream's event has it, and the line before that.
pub(super) fn error_event(wire: Wire, status: u16, message: &str) -> (&'static str, Value) {
    endpoint(wire).error_event(status, error_kind(status), &our_own(message))
}

fn our_own(message: &str) -> String {
    format!("ringfence: {message}")
}

/// What the providers call an error of this status.
fn error_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests;
