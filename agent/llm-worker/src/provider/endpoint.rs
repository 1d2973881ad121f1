//! What the HTTP endpoint serves of a provider: its APIs, each with what differs from the others. Pure.

use super::{Answers, Usage, anthropic, gemini, openai};
use crate::{
    http::{
        denials::Room,
        intents::{ClientMessage, ToolResult},
        relay::split_secrets::SplitSecrets,
        request::{Route, listed},
        tool_calls::ToolCalls,
    },
    message::{Block, raw},
    redact::Redactor,
};
use ringfence_policy::agents::config::{Llm, ProviderKind};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// An API of a provider's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Chat Completions.
    ChatCompletions,
    /// OpenAI's Responses.
    Responses,
    /// Google's `generateContent`.
    GenerateContent,
}

impl Wire {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Messages, Self::ChatCompletions, Self::Responses, Self::GenerateContent];

    /// A provider's: that of turns first, whose form also has what belongs to none.
    pub fn of(kind: ProviderKind) -> &'static [Self] {
        match kind {
            ProviderKind::Anthropic => &[Self::Messages],
            ProviderKind::OpenAi => &[Self::ChatCompletions, Self::Responses],
            ProviderKind::Gemini => &[Self::GenerateContent],
        }
    }

    /// That of a provider's which a route is of.
    pub fn on(kind: ProviderKind, route: Route) -> Self {
        match (kind, route) {
            (ProviderKind::Anthropic, _) => Self::Messages,
            (ProviderKind::OpenAi, Route::Respond) => Self::Responses,
            (ProviderKind::OpenAi, _) => Self::ChatCompletions,
            (ProviderKind::Gemini, _) => Self::GenerateContent,
        }
    }
}

/// The API's own file.
pub(crate) fn endpoint(wire: Wire) -> &'static dyn Endpoint {
    match wire {
        Wire::Messages => &anthropic::Messages,
        Wire::ChatCompletions => &openai::ChatCompletions,
        Wire::Responses => &openai::Responses,
        Wire::GenerateContent => &gemini::GenerateContent,
    }
}

/// Everything of an API at the HTTP endpoint that differs from one to another. What a limit or a check depends on has no
/// default: an API that needs none says so.
pub(crate) trait Endpoint: Answers {
    /// What stands before the paths of its API, its own first; a client may leave it out.
    fn prefixes(&self) -> &'static [&'static str] {
        &["/v1"]
    }

    /// What clients of the HTTP endpoint call behind that, beside the list of models. `MODEL` stands for a model's name.
    fn routes(&self) -> &'static [(&'static str, Route)];

    /// Where its provider's API has what a client asks for here: what follows the address.
    fn path(&self, route: Route, model: &str) -> Cow<'static, str>;

    /// What follows that path whatever the client has there.
    ///
    /// # Errors
    /// The client asks for an answer in a form that is not served.
    fn query(&self, _route: Route, _asked: &str) -> Result<Option<&'static str>, String> {
        Ok(None)
    }

    /// Reads the names of a client's request, where its API has several for one field. True: what is asked for stands in
    /// another request, and was taken out of it.
    ///
    /// # Errors
    /// It cannot be read in one way only.
    fn open(&self, _route: Route, _request: &mut BTreeMap<String, Box<RawValue>>) -> Result<bool, String> {
        Ok(false)
    }

    /// Puts a request back to where [`Self::open`] took it from.
    fn close(&self, _model: &str, _request: &mut BTreeMap<String, Box<RawValue>>) {}

    /// Puts in the model, where the path does not have it.
    fn put_model(&self, model: &str, request: &mut BTreeMap<String, Box<RawValue>>) {
        request.insert("model".into(), raw(&model));
    }

    /// Puts in the profile's options.
    ///
    /// # Errors
    /// They do not go together with what the client has.
    fn put_options(&self, llm: &Llm, request: &mut BTreeMap<String, Box<RawValue>>) -> Result<(), String> {
        request.extend(llm.options.iter().map(|(key, value)| (key.clone(), raw(value))));
        Ok(())
    }

    /// Whether the profile asks for several answers at once.
    fn has_many(&self, llm: &Llm) -> bool {
        let many =
            |key: &&str| llm.options.get(*key).and_then(Value::as_u64).is_some_and(|answers| answers > 1);
        ["n", "n_cmpl"].iter().any(many)
    }

    /// The names of the most tokens of an answer that its API goes by, its own first.
    fn limit_keys(&self, llm: &Llm) -> &'static [&'static str];

    /// Fields of a request that are looked at or fixed here alone: what looks like one of them is none of the client's.
    fn own_fields(&self) -> &'static [&'static str];

    /// Has a client's request refer to nothing that its provider keeps, and leave nothing there.
    ///
    /// # Errors
    /// It refers to something, or asks for what never comes this way.
    fn keep_nothing(&self, llm: &Llm, request: &mut BTreeMap<String, Box<RawValue>>) -> Result<(), String>;

    /// Lists of tools in a request beside its `tools`.
    ///
    /// # Errors
    /// Where one may be cannot be read in one way only.
    fn more_tools(&self, request: &BTreeMap<String, Box<RawValue>>) -> Result<Vec<Box<RawValue>>, String>;

    /// The field in which a request has its conversation.
    fn conversation(&self) -> &'static str;

    /// The field of a request in which one stands whose tokens are to be counted, where its API has that.
    fn counted(&self) -> Option<&'static str> {
        None
    }

    /// The conversation in a client's request, message by message.
    fn messages(&self, request: &BTreeMap<String, Box<RawValue>>) -> Vec<Box<RawValue>> {
        listed(request, self.conversation())
    }

    /// The same as intents are followed in it: each with a `role`, which is `user`, `assistant` or another.
    fn in_common_form<'a>(&self, messages: &'a [Box<RawValue>]) -> Cow<'a, [Box<RawValue>]> {
        messages.into()
    }

    /// Has a client's request for a stream ask for the usage, too. True: the client did not.
    ///
    /// # Errors
    /// What it has there is not what it is to be.
    fn ask_for_usage(&self, request: &mut BTreeMap<String, Box<RawValue>>) -> Result<bool, String>;

    /// Has what a client's request says of the model's thinking fit the most tokens of an answer, which the profile has made
    /// less than the client `asked` for.
    ///
    /// # Errors
    /// It leaves no room for thinking.
    fn fit_thinking(
        &self,
        request: &mut BTreeMap<String, Box<RawValue>>,
        asked: Option<u64>,
    ) -> Result<(), String>;

    /// A model, as its API describes one.
    fn model(&self, model: &str) -> Value;

    /// The list of models.
    fn models(&self, models: &[&str]) -> Value;

    /// An error of our own, of a status and of what most providers call that.
    fn error(&self, status: u16, kind: &str, message: &str) -> Value;

    /// The same as a stream's event has it, and the line before that.
    fn error_event(&self, status: u16, kind: &str, message: &str) -> (&'static str, Value);

    /// What the names of its headers about rate limits begin with, where it has some.
    fn rate_limit_prefix(&self) -> Option<&'static str>;

    /// The tool results in a client's message, of which `raw` is the whole.
    fn tool_results(&self, message: &ClientMessage, raw: &RawValue) -> Vec<ToolResult>;

    /// The tool results in a client's message that can take more text, as in [`Self::tool_results`], in their order, and where each
    /// can. Of what is not in a known form there is none.
    fn rooms<'a>(&self, raw: &'a RawValue) -> Vec<(ToolResult, Room<'a>)>;

    /// The id of the call that a client's message is, where its API has each by itself: of results that stand before it,
    /// none is that call's.
    fn call_said(&self, raw: &RawValue) -> Option<String>;

    /// What a message says.
    fn blocks(&self, content: Option<&RawValue>) -> Vec<Block>;

    /// Tokens, from a whole answer.
    fn usage(&self, answer: &Value) -> Option<Usage>;

    /// Why a whole answer ended.
    fn stop_reason(&self, answer: &Value) -> Option<String>;

    /// Bytes of what an event says once more as a whole, where its API does: of the model's words there are at least these.
    fn whole_bytes(&self, event: &Value) -> usize;

    /// The blocks of a whole answer, tool calls among them, as the provider wrote them.
    fn content(&self, answer: &Value) -> Vec<Block>;

    /// Whether an event has a name by which some clients take it for another than others do.
    fn is_misnamed(&self, name: &str, event: &Value) -> bool;

    /// Whether its streams have a final event, behind which nothing comes. Else their end is the answer's, if that says why
    /// it ended; and its clients know no comments in a stream.
    fn ends_by_event(&self) -> bool {
        true
    }

    /// Checks an answer, or an event of one, for what only some clients take for tool calls.
    ///
    /// # Errors
    /// It has some.
    fn check_answer(&self, answer: &Value) -> Result<(), String>;

    /// Takes in the tool calls of an answer, or of an event of one.
    ///
    /// # Errors
    /// Clients would not all make the same calls of it.
    fn read_calls(&self, calls: &mut ToolCalls, data: &Value) -> Result<(), String>;

    /// The usage in an event, where its decoder may have ended before; whether the event has nothing else.
    fn event_usage(&self, event: &Value) -> (Option<Usage>, bool);

    /// Looks for pieces of credentials in an event, by its number.
    ///
    /// # Errors
    /// A credential, of which the client has a part already.
    fn hold_back(
        &self,
        split: &mut SplitSecrets,
        event: (usize, &Value),
        redactor: &Redactor,
    ) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_of_the_api_that_serves_it() {
        for &kind in ProviderKind::ALL {
            for &wire in Wire::of(kind) {
                for (path, route) in endpoint(wire).routes() {
                    assert_eq!(Wire::on(kind, *route), wire, "{path}");
                    let below = path.trim_start_matches('/');
                    assert!(endpoint(wire).path(*route, "MODEL").ends_with(below), "{path}");
                }
            }
        }
        let of = |kind: &ProviderKind| Wire::of(*kind).iter();
        assert_eq!(ProviderKind::ALL.iter().flat_map(of).count(), Wire::ALL.len(), "each is somebody's");
    }
}
