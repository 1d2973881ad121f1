//! Where Anthropic's answers have tool calls. Pure.

use super::{
    BlockState, Form, Growth, ToolCalls, Value, ambiguous, index, no_alike, present, text, texty, written,
};

impl ToolCalls {
    /// Clients append each block that begins, and take what follows by its index as a place in their list. (One counts
    /// backwards there from -1.) So the index of a block is to be its place.
    pub(crate) fn blocks(&mut self, data: &Value) -> Result<(), String> {
        no_alike(data, &["type", "index", "content", "message", "content_block", "delta"])?;
        no_alike(data.get("message").unwrap_or(&Value::Null), &["content"])?;
        let says = text(data, "type");
        let (whole, start) = (data.get("content"), data.pointer("/message/content"));
        let delta = data.get("delta").unwrap_or(&Value::Null);
        no_alike(delta, &["type", "partial_json"])?;
        let (block, piece) = (data.get("content_block"), present(delta.get("partial_json")));
        // Some clients go by the one, others by the other.
        if piece.is_some() != (text(delta, "type") == "input_json_delta") {
            return ambiguous("a piece of an input that is not of its type");
        }
        let is_other = |is_there: bool, what: &str| is_there && says != what;
        if is_other(start.is_some(), "message_start")
            || is_other(block.is_some(), "content_block_start")
            || is_other(piece.is_some(), "content_block_delta")
        {
            return ambiguous("an event that is not of its type");
        }
        for blocks in [whole, start].into_iter().flatten().filter_map(Value::as_array) {
            if std::mem::replace(&mut self.has_message, true) || !self.blocks.is_empty() {
                return ambiguous("an answer that begins twice");
            }
            blocks.iter().try_for_each(|block| self.block(block, true))?;
        }
        if !matches!(says, "content_block_start" | "content_block_delta" | "content_block_stop") {
            if says == "message_stop" {
                self.is_over = true;
                self.close(None);
            }
            return Ok(());
        }
        if self.is_over {
            return ambiguous("an answer that goes on behind its end");
        }
        let place = index(data.get("index").unwrap_or(&Value::Null))?;
        if says == "content_block_start" {
            if place != self.blocks.len() as u64 {
                return ambiguous("a block whose index is not its place");
            }
            self.close(None);
            return self.block(block.unwrap_or(&Value::Null), false);
        }
        // Some clients add to the newest, whatever the index.
        let is_newest = place + 1 == self.blocks.len() as u64;
        let Some(begun) = self.blocks.last_mut().filter(|begun| is_newest && !begun.is_over) else {
            return ambiguous("a piece of a block that is not open, or not the newest");
        };
        begun.is_over = says == "content_block_stop";
        if begun.is_over
            && let Some(call) = begun.call.and_then(|at| self.calls.get_mut(at))
        {
            call.growth = Growth::Closed;
        }
        let Some(piece) = piece else { return Ok(()) };
        let Some(piece) = piece.as_str() else { return ambiguous("a piece of an input that is no text") };
        match begun.call.and_then(|at| self.calls.get_mut(at)) {
            _ if piece.is_empty() && begun.has_input => Ok(()),
            // The input of a tool that the provider runs.
            None if begun.takes => Ok(()),
            Some(call) if begun.takes => call.grow(piece),
            _ => ambiguous("a piece of an input for what takes none"),
        }
    }

    /// `is_whole`: it came with the answer's beginning, and clients run it as it is.
    fn block(&mut self, block: &Value, is_whole: bool) -> Result<(), String> {
        no_alike(block, &["type", "id", "name", "input"])?;
        let kind = text(block, "type");
        let mut call = None;
        if kind == "tool_use" {
            let (id, name) = (texty(block, "id")?, texty(block, "name")?);
            // An empty object, or some servers' empty text, stands where pieces are to come.
            let is_empty = |input: &Value| {
                input.as_object().is_some_and(serde_json::Map::is_empty) || input.as_str() == Some("")
            };
            let input = present(block.get("input")).filter(|input| !is_empty(input));
            let at = self.begin((0, None), Form::Block, id)?;
            if let (Some(input), Some(call)) = (input, self.calls.get_mut(at)) {
                call.take(written(input));
            }
            if let Some(call) = self.calls.get_mut(at).filter(|_| is_whole) {
                call.growth = Growth::Closed;
            }
            self.name(at, name)?;
            call = Some(at);
        }
        // One that has its input already has it replaced by some clients, and extended by others.
        let is_empty = call.and_then(|at| self.calls.get(at)).is_none_or(|call| call.input.is_empty());
        let has_input = kind.ends_with("tool_use");
        self.blocks.push(BlockState {
            call,
            has_input,
            takes: has_input && is_empty && !is_whole,
            is_over: is_whole,
        });
        Ok(())
    }
}
