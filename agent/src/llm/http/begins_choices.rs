//! Where OpenAI's answers have tool calls. Pure.

use super::{
    Begins, Ends, Form, Growing, MAX_CALLS, Value, ambiguous, index, is_object, list, no_alike, object,
    present, texty, too_many, written,
};

impl Begins {
    /// Some clients take the first of the choices that a chunk has, others go by the index. So it is to be the place in the
    /// chunk: 0, where a chunk has one. Where the profile asks for several answers, a chunk of one has any of them.
    pub(super) fn choices(&mut self, data: &Value) -> Result<(), String> {
        no_alike(data, &["choices"])?;
        let choices = list(data, "choices")?;
        if self.is_over && !choices.is_empty() {
            return ambiguous("an answer that goes on behind its end");
        }
        for (place, choice) in (0..).zip(choices) {
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
                self.list(of, list(said, "tool_calls")?, is_whole)?;
                if let Some(function) = object(said, "function_call")? {
                    self.piece((of, None), Form::Single, is_whole, ("", function))?;
                }
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.complete()?;
                // Some servers say that they have none so.
                if !reason.is_empty() {
                    self.stopped.insert(of);
                    self.shut(Some(of));
                }
            }
        }
        Ok(())
    }

    /// A choice's calls, or pieces of some.
    fn list(&mut self, of: u64, calls: &[Value], is_whole: bool) -> Result<(), String> {
        let mut here = Vec::new();
        for call in calls {
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
            let (id, mut is_own) = (texty(call, "id")?, false);
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
                is_own |= self.piece((of, index), form, is_whole, (id, said.unwrap_or(&Value::Null)))?;
            }
            // Some clients keep the first list as it is.
            if is_again && !is_own {
                return ambiguous("two pieces of a tool call at once");
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

    /// A piece of one of OpenAI's calls, or a whole one. Of two names of one call some clients take the second for the whole
    /// name, some put them together, and some take it for another call's; but some servers say the same name again with each
    /// piece. What one index stands for is one call, with one id. True: it is a call of its own where another is; some servers
    /// give all their calls one index, or none, and each in one piece. A client that puts those together has no JSON, and no
    /// call.
    fn piece(
        &mut self,
        (of, index): (u64, Option<u64>),
        form: Form,
        is_whole: bool,
        (id, said): (&str, &Value),
    ) -> Result<bool, String> {
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
            return self.name(at, name).map(|()| false);
        }
        let mut alike = self.calls.iter().enumerate().filter(|(_, call)| {
            call.place.0 == of && !call.is_whole && (call.form == Form::Single) == (form == Form::Single)
        });
        if alike.clone().any(|(_, call)| call.place.1.is_some() != index.is_some()) {
            return ambiguous("tool calls with and without an index");
        }
        let has_id = |(_, call): (usize, &Growing)| call.place.1 == index && call.id == id;
        let is_new_id = if id.is_empty() { index.is_none() } else { !alike.clone().any(has_id) };
        let known = alike.rfind(|(_, call)| call.form == form && call.place.1 == index).map(|(at, _)| at);
        let is_alone = form == Form::Function && is_text && !name.is_empty() && is_object(&input);
        let Some((at, call)) = known.and_then(|at| Some((at, self.calls.get_mut(at)?))) else {
            if name.is_empty() && id.is_empty() && input.is_empty() {
                return Ok(false);
            }
            return self.first((of, index), form, (id, name, &input), is_alone).map(|()| false);
        };
        if call.is_own && is_alone && is_new_id {
            return self.first((of, index), form, (id, name, &input), true).map(|()| true);
        }
        let is_named = call.number.is_some();
        let is_other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let is_other_name = !name.is_empty() && is_named && name != call.name;
        // Without an index, a name or an id is a call's beginning.
        let begins = index.is_none() && form != Form::Single && !(name.is_empty() && id.is_empty());
        if is_other_id || is_other_name || (is_named && begins) {
            return ambiguous("two tool calls in one place");
        }
        let is_late = call.ends == Ends::Shut || call.is_complete();
        let is_more = (!is_named && !name.is_empty()) || (call.id.is_empty() && !id.is_empty());
        if is_late && is_more {
            return ambiguous("a name or an id for a tool call that is over");
        }
        call.grow(&input)?;
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        self.name(at, name).map(|()| false)
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
    ) -> Result<(), String> {
        self.goes_on(place.0)?;
        // Some clients take it for the end of the one before, others add whatever comes to the newest.
        let is_before = |call: &&mut Growing| {
            let is_place = call.place == place && (call.form == Form::Single) == (form == Form::Single);
            call.place.0 == place.0 && (!is_place || call.form == form)
        };
        self.calls.iter_mut().filter(is_before).for_each(|call| call.ends = Ends::Shut);
        let at = self.begin(place, form, id)?;
        if let Some(call) = self.calls.get_mut(at) {
            call.is_own = is_own;
            call.grow(input)?;
        }
        self.name(at, name)
    }
}
