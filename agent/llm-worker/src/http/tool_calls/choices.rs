//! Where OpenAI's answers have tool calls. Pure.

use super::{
    Form, Growth, MAX_CALLS, PartialCall, ToolCalls, Value, ambiguous, index, is_object, list, no_alike,
    object, present, texty, too_many, written,
};
use std::collections::BTreeSet;

/// What is changed of a piece of a call.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    /// Which choice of the chunk, and which piece of its list; none: the single one's.
    place: (usize, Option<usize>),
    /// The index that it is to have.
    index: Option<u64>,
    /// It says nothing, and of a call that is not the newest.
    is_left_out: bool,
    drops_id: bool,
    drops_name: bool,
}

/// What a piece of a call was found to be.
#[derive(Debug, Default, Clone, Copy)]
struct Found {
    /// It is a call of its own where another is.
    is_own: bool,
    slot: Option<u64>,
    /// The call has an id, or a name, already.
    has_id: bool,
    has_name: bool,
}

impl ToolCalls {
    /// Writes what was read last as it is to go on: the index of a stream's call is its place, and neither its id nor its name
    /// is said again. Some clients join what has one index, or the newest one's, and names and ids as they join the input.
    /// True: there was something to change.
    pub(in super::super) fn rewrite(&mut self, data: &mut Value) -> bool {
        let rewrites = std::mem::take(&mut self.rewrites);
        for Rewrite { place: (choice, call), index, is_left_out, drops_id, drops_name } in &rewrites {
            let delta = data.get_mut("choices").and_then(|all| all.get_mut(choice)?.get_mut("delta"));
            let Some(delta) = delta else { continue };
            let mut functions = match call {
                None => vec![delta.get_mut("function_call")],
                Some(call) => {
                    let call = delta.get_mut("tool_calls").and_then(|all| all.get_mut(call)?.as_object_mut());
                    let Some(call) = call else { continue };
                    if *is_left_out {
                        call.clear();
                    } else if let Some(index) = index {
                        call.insert("index".into(), (*index).into());
                    }
                    if *drops_id {
                        call.remove("id");
                    }
                    let of = |(key, value)| matches!(key, "function" | "custom").then_some(value);
                    call.iter_mut().map(|(key, value)| of((key.as_str(), value))).collect()
                }
            };
            for function in functions.iter_mut().flatten().filter(|_| *drops_name) {
                function.as_object_mut().and_then(|function| function.remove("name"));
            }
        }
        let left_out = rewrites.iter().filter(|rewrite| rewrite.is_left_out);
        for choice in left_out.map(|rewrite| rewrite.place.0).collect::<BTreeSet<_>>() {
            let calls = data.pointer_mut(&format!("/choices/{choice}/delta/tool_calls"));
            if let Some(calls) = calls.and_then(Value::as_array_mut) {
                calls.retain(|call| call.as_object().is_none_or(|call| !call.is_empty()));
            }
        }
        !rewrites.is_empty()
    }

    /// Some clients take the first of the choices that a chunk has, others go by the index. So it is to be the place in the
    /// chunk: 0, where a chunk has one. Where the profile asks for several answers, a chunk of one has any of them.
    pub(crate) fn choices(&mut self, data: &Value) -> Result<(), String> {
        no_alike(data, &["choices"])?;
        let choices = list(data, "choices")?;
        if self.is_over && !choices.is_empty() {
            return ambiguous("an answer that goes on behind its end");
        }
        for (place, (nth, choice)) in (0..).zip(choices.iter().enumerate()) {
            no_alike(choice, &["index", "delta", "message", "finish_reason"])?;
            let says = present(choice.get("index")).map(index).transpose()?;
            let of = if self.has_many && choices.len() == 1 { says.unwrap_or(place) } else { place };
            if says.is_some_and(|says| says != of)
                || *self.choices_say.get_or_insert(says.is_some()) != says.is_some()
            {
                return ambiguous("a choice whose index is not its place");
            }
            for (key, is_whole) in [("delta", false), ("message", true)] {
                let Some(said) = object(choice, key)? else { continue };
                no_alike(said, &["tool_calls", "function_call"])?;
                self.list((nth, of), list(said, "tool_calls")?, is_whole)?;
                if let Some(function) = object(said, "function_call")? {
                    let found = self.piece((of, None), Form::Single, is_whole, ("", function))?;
                    if found.has_name && function.get("name").is_some_and(Value::is_string) {
                        self.rewrites.push(Rewrite {
                            place: (nth, None),
                            drops_name: true,
                            ..Rewrite::default()
                        });
                    }
                }
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.complete()?;
                // Some servers say that they have none so.
                if !reason.is_empty() {
                    self.stopped.insert(of);
                    self.close(Some(of));
                }
            }
        }
        Ok(())
    }

    /// A choice's calls, or pieces of some.
    fn list(&mut self, (nth, of): (usize, u64), calls: &[Value], is_whole: bool) -> Result<(), String> {
        let mut here = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            if !call.is_object() {
                return ambiguous("a tool call that is no object");
            }
            no_alike(call, &["index", "id", "type", "function", "custom"])?;
            // Of a whole message's, clients do not look at it.
            let index = present(call.get("index")).filter(|_| !is_whole).map(index).transpose()?;
            let is_again = index.is_some_and(|index| here.contains(&index));
            if let Some(index) = index.filter(|_| !is_again) {
                here.push(index);
                self.place(of, index)?;
            }
            let (id, mut found) = (texty(call, "id")?, Found::default());
            let (function, custom) = (object(call, "function")?, object(call, "custom")?);
            if function.is_some() && custom.is_some() {
                return ambiguous("a tool call of two forms");
            }
            for (form, said, other) in [(Form::Function, function, custom), (Form::Custom, custom, function)]
            {
                // What comes before either is known may be of both.
                if other.is_some() {
                    continue;
                }
                let of_form = self.piece((of, index), form, is_whole, (id, said.unwrap_or(&Value::Null)))?;
                found = Found {
                    is_own: found.is_own || of_form.is_own,
                    slot: found.slot.or(of_form.slot),
                    has_id: found.has_id || of_form.has_id,
                    has_name: found.has_name || of_form.has_name,
                };
            }
            // Some clients keep the first list as it is.
            if is_again && !found.is_own {
                return ambiguous("two pieces of a tool call at once");
            }
            if is_whole {
                continue;
            }
            let (slot, behind) = (found.slot.unwrap_or_default(), self.next_slot(of));
            let says_name =
                function.or(custom).and_then(|said| said.get("name")).is_some_and(Value::is_string);
            let rewrite = Rewrite {
                place: (nth, Some(at)),
                index: Some(slot).filter(|slot| index != Some(*slot)),
                is_left_out: found.slot.is_none_or(|slot| slot + 1 != behind),
                drops_id: found.has_id && call.get("id").is_some_and(Value::is_string),
                drops_name: found.has_name && says_name,
            };
            if rewrite.index.is_some() || rewrite.is_left_out || rewrite.drops_id || rewrite.drops_name {
                self.rewrites.push(rewrite);
            }
        }
        Ok(())
    }

    /// Some clients count in the list of the calls that they heard of. So where there are several, the index of a call is to
    /// be its place there. One alone may have any: some servers count from 1.
    fn place(&mut self, of: u64, index: u64) -> Result<(), String> {
        let places = self.places.entry(of).or_default();
        if !places.contains(&index) {
            places.push(index);
        }
        let is_other = |(place, index): (u64, &u64)| *index != place;
        match places.len() > 1 && (0..).zip(places.iter()).any(is_other) {
            true => ambiguous("a tool call whose index is not its place"),
            false if places.len() > MAX_CALLS => Err(too_many()),
            false => Ok(()),
        }
    }

    /// The place behind all calls of a choice's list.
    fn next_slot(&self, of: u64) -> u64 {
        let slots = self.calls.iter().filter(|call| call.place.0 == of).filter_map(|call| call.slot);
        slots.max().map_or(0, |slot| slot + 1)
    }

    /// A piece of one of OpenAI's calls, or a whole one. Of two names of one call some clients take the second for the whole
    /// name, some put them together, and some take it for another call's; but some servers say the same name again with each
    /// piece. What one index stands for is one call, with one id. But some servers give all their calls one index, or none,
    /// and each in one piece: then it is one of its own.
    fn piece(
        &mut self,
        (of, index): (u64, Option<u64>),
        form: Form,
        is_whole: bool,
        (id, said): (&str, &Value),
    ) -> Result<Found, String> {
        no_alike(said, &["name", "arguments", "input"])?;
        let name = texty(said, "name")?;
        let input = present(said.get(if form == Form::Custom { "input" } else { "arguments" }));
        // Some servers give the object itself. Then it is whole, as nothing fits behind it.
        let is_text = input.is_some_and(Value::is_string);
        if !is_text && input.is_some_and(|input| !input.is_object() || form == Form::Custom) {
            return ambiguous("an input that is neither text nor object");
        }
        let input = input.map(written).unwrap_or_default();
        if is_whole {
            self.goes_on(of)?;
            let at = self.begin((of, index), form, id)?;
            if let Some(call) = self.calls.get_mut(at) {
                call.is_whole = true;
                call.take(input);
            }
            return self.name(at, name).map(|()| Found::default());
        }
        let mut alike = self.calls.iter().enumerate().filter(|(_, call)| {
            call.place.0 == of && !call.is_whole && (call.form == Form::Single) == (form == Form::Single)
        });
        if alike.clone().any(|(_, call)| call.place.1.is_some() != index.is_some()) {
            return ambiguous("tool calls with and without an index");
        }
        let has_id = |(_, call): (usize, &PartialCall)| call.place.1 == index && call.id == id;
        let is_new_id = if id.is_empty() { index.is_none() } else { !alike.clone().any(has_id) };
        let known = alike.rfind(|(_, call)| call.form == form && call.place.1 == index).map(|(at, _)| at);
        let is_alone = form == Form::Function && is_text && !name.is_empty() && is_object(&input);
        let Some((at, call)) = known.and_then(|at| Some((at, self.calls.get_mut(at)?))) else {
            if name.is_empty() && id.is_empty() && input.is_empty() {
                return Ok(Found::default());
            }
            return self.first((of, index), form, (id, name, &input), is_alone);
        };
        if call.is_own && is_alone && is_new_id {
            let found = self.first((of, index), form, (id, name, &input), true)?;
            return Ok(Found { is_own: true, ..found });
        }
        let is_named = call.number.is_some();
        let is_other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let is_other_name = !name.is_empty() && is_named && name != call.name;
        // Without an index, a name or an id is a call's beginning.
        let begins = index.is_none() && form != Form::Single && !(name.is_empty() && id.is_empty());
        if is_other_id || is_other_name || (is_named && begins) {
            return ambiguous("two tool calls in one place");
        }
        let is_late = call.growth == Growth::Closed || call.is_complete();
        let is_more = (!is_named && !name.is_empty()) || (call.id.is_empty() && !id.is_empty());
        if is_late && is_more {
            return ambiguous("a name or an id for a tool call that is over");
        }
        let found = Found { is_own: false, slot: call.slot, has_id: !call.id.is_empty(), has_name: is_named };
        call.grow(&input)?;
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        self.name(at, name).map(|()| found)
    }

    /// Whether a choice may have another call.
    fn goes_on(&self, of: u64) -> Result<(), String> {
        match self.stopped.contains(&of) {
            true => ambiguous("a tool call behind its choice's reason to stop"),
            false => Ok(()),
        }
    }

    /// The first piece of a call; or all of it.
    fn first(
        &mut self,
        place: (u64, Option<u64>),
        form: Form,
        (id, name, input): (&str, &str, &str),
        is_own: bool,
    ) -> Result<Found, String> {
        self.goes_on(place.0)?;
        // Some clients take it for the end of the one before, others add whatever comes to the newest.
        let is_before = |call: &&mut PartialCall| {
            let is_place = call.place == place && (call.form == Form::Single) == (form == Form::Single);
            call.place.0 == place.0 && (!is_place || call.form == form)
        };
        self.calls.iter_mut().filter(is_before).for_each(|call| call.growth = Growth::Closed);
        // What is of no form yet has a place in both.
        let is_there = |call: &&PartialCall| call.place == place && call.form != form && !call.is_whole;
        let there = self.calls.iter().rev().find(is_there).and_then(|call| call.slot);
        let slot = (form != Form::Single)
            .then(|| there.filter(|_| !is_own).unwrap_or_else(|| self.next_slot(place.0)));
        let at = self.begin(place, form, id)?;
        if let Some(call) = self.calls.get_mut(at) {
            (call.is_own, call.slot) = (is_own, slot);
            call.grow(input)?;
        }
        self.name(at, name).map(|()| Found { slot, ..Found::default() })
    }
}
