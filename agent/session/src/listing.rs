//! Answers to `tools/list`: the tools in a line of the server's, where each stands, and the line without some of them. Pure.
//!
//! A server is hostile: what one client's parser reads as a list of tools and another's does not is a list that cannot be
//! judged. What is odd about one tool alone concerns that tool alone.

use super::{
    line::{self, Id},
    strict::{self, Members},
};
use ringfence_pins::{Definition, LONGEST_DEFINITION, MOST_TOOLS, Unjudged};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};
use std::{fmt, ops::Range};

/// Longest tool that is parsed, bytes: a definition that is pinned, with each character written by its code.
const LONGEST_WRITTEN: usize = 8 * LONGEST_DEFINITION;

/// Keys of a message, of a result, and of a tool that clients act on.
const MESSAGE_KEYS: &[&str] = &["jsonrpc", "id", "method", "params", "result", "error"];
const RESULT_KEYS: &[&str] = &["tools", "nextCursor"];
const TOOL_KEYS: &[&str] = &[
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
    "_meta",
    "execution",
    "icons",
];

/// One list in a line: of one answer.
#[derive(Debug)]
pub struct Listing<'a> {
    /// The id that it answers.
    pub id: Id,
    /// Its tools, in their order. Those beyond [`MOST_TOOLS`] are one at the end.
    pub tools: Vec<Listed<'a>>,
    /// How many that one is besides the first of them.
    pub beyond: u64,
    /// Another page follows.
    pub has_more: bool,
}

/// A tool in it.
#[derive(Debug)]
pub struct Listed<'a> {
    /// As it stands.
    pub raw: &'a str,
    /// Where, in bytes of the line.
    pub at: Range<usize>,
}

/// Reads the lists in a line without its end; none where it has none.
///
/// # Errors
/// Why parsers could read the line differently, in words.
pub fn read(line: &[u8]) -> Result<Vec<Listing<'_>>, String> {
    let text = strict::text(line).map_err(|why| why.to_string())?;
    let message = |text| strict::object(text, MESSAGE_KEYS).map_err(|why| why.to_string());
    let start = text.as_ptr() as usize;
    if !text.trim_start().starts_with('[') {
        return Ok(listing(start, &message(text)?)?.into_iter().collect());
    }
    let elements: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|why| format!("not one JSON value: {why}"))?;
    let lists = elements.into_iter().map(|element| listing(start, &message(element.get())?));
    lists.filter_map(Result::transpose).collect()
}

fn listing<'a>(start: usize, message: &Members<'a>) -> Result<Option<Listing<'a>>, String> {
    let Some(result) = message.find("result").filter(|result| result.starts_with('{')) else {
        return Ok(None);
    };
    let result = strict::object(result, RESULT_KEYS).map_err(|why| why.to_string())?;
    let Some(tools) = result.find("tools").filter(|tools| tools.starts_with('[')) else { return Ok(None) };
    let id = message.find("id").and_then(Id::parse).unwrap_or(Id::Null);
    let Gathered { tools, rest } =
        serde_json::from_str(tools).map_err(|why| format!("a list of tools that is no JSON: {why}"))?;
    let place = |raw: &str| {
        let from = (raw.as_ptr() as usize).saturating_sub(start);
        from..from + raw.len()
    };
    let mut tools: Vec<Listed<'_>> =
        tools.into_iter().map(|tool| Listed { raw: tool.get(), at: place(tool.get()) }).collect();
    let mut beyond = 0;
    if let Some((first, last, count)) = rest {
        tools.push(Listed { raw: first.get(), at: place(first.get()).start..place(last.get()).end });
        beyond = count;
    }
    let has_more = result.find("nextCursor").is_some_and(|cursor| cursor != "null");
    Ok(Some(Listing { id, tools, beyond, has_more }))
}

/// The elements of a list as they stand, as many as are told apart; of the others the first, the last, and how many there are
/// between and with the last.
struct Gathered<'a> {
    tools: Vec<&'a RawValue>,
    rest: Option<(&'a RawValue, &'a RawValue, u64)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Gathered<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Gather;
        impl<'de> Visitor<'de> for Gather {
            type Value = Gathered<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut gathered = Gathered { tools: Vec::new(), rest: None };
                while let Some(tool) = seq.next_element::<&'de RawValue>()? {
                    match &mut gathered.rest {
                        _ if gathered.tools.len() < MOST_TOOLS => gathered.tools.push(tool),
                        None => gathered.rest = Some((tool, tool, 0)),
                        Some((_, last, count)) => (*last, *count) = (tool, *count + 1),
                    }
                }
                Ok(gathered)
            }
        }
        deserializer.deserialize_seq(Gather)
    }
}

/// Whether a line may be read as a list of tools by any client: whether the word stands in it, in any case, or something that
/// is written by its code and could be a letter of it, or what decoders may leave out that do not stop at bytes that are no
/// characters, or an escape that JSON does not have: some parsers take `\o` for an `o`, or `\x74` for a `t`.
pub fn may_be_list(line: &[u8]) -> bool {
    memchr::memchr2_iter(b't', b'T', line)
        .any(|at| line.get(at..at + 4).is_some_and(|word| word.eq_ignore_ascii_case(b"tool")))
        || line::has_written_ascii(line)
        || has_odd_escape(line)
        || std::str::from_utf8(line).is_err()
}

/// Whether a backslash stands before something else than what JSON has behind one.
fn has_odd_escape(line: &[u8]) -> bool {
    let mut escaped = None;
    memchr::memchr_iter(b'\\', line).any(|at| {
        if escaped.take() == Some(at) {
            return false;
        }
        let next = line.get(at + 1);
        escaped = (next == Some(&b'\\')).then_some(at + 1);
        !next.is_some_and(|next| b"\"\\/bfnrtu".contains(next))
    })
}

impl Listed<'_> {
    /// The tool's definition.
    ///
    /// # Errors
    /// [`Unjudged`].
    pub fn definition(&self) -> Result<Definition, Unjudged> {
        if !self.raw.starts_with('{') {
            return Err(Unjudged::NoObject);
        }
        if self.raw.len() > LONGEST_WRITTEN {
            return Err(Unjudged::Long);
        }
        let ambiguous = |why: strict::Ambiguity| Unjudged::Ambiguous(why.to_string());
        strict::object(self.raw, TOOL_KEYS).map_err(ambiguous)?;
        strict::unique(self.raw).map_err(ambiguous)?;
        let tool: Map<String, Value> =
            serde_json::from_str(self.raw).map_err(|why| Unjudged::Ambiguous(why.to_string()))?;
        Definition::of(&tool)
    }
}

/// Longest of the texts by which a server says what it is, characters.
const LONGEST_INFO: usize = 100;

/// What a server says it is in an answer: name, title and version, as JSON. Its answer to `initialize` has that, and in the
/// newer era the metadata of any answer.
pub fn server_info(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        result: Introduction,
    }
    #[derive(Deserialize)]
    struct Introduction {
        #[serde(default, rename = "serverInfo")]
        info: Option<Info>,
        #[serde(default, rename = "_meta")]
        meta: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(default, rename = "io.modelcontextprotocol/serverInfo")]
        info: Option<Info>,
    }
    #[derive(Deserialize, Serialize)]
    struct Info {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    }
    let Introduction { info, meta } = serde_json::from_slice::<Answer>(line).ok()?.result;
    let mut info = info.or_else(|| meta?.info)?;
    for text in [Some(&mut info.name), info.title.as_mut(), info.version.as_mut()].into_iter().flatten() {
        *text = text.chars().take(LONGEST_INFO).collect();
    }
    serde_json::to_string(&info).ok()
}

/// The line without those tools for which `is_out` says so, by list and place in it; all other bytes are as they came.
pub fn without(line: &[u8], lists: &[Listing<'_>], is_out: impl Fn(usize, usize) -> bool) -> Vec<u8> {
    let mut cuts: Vec<Range<usize>> = Vec::new();
    for (number, list) in lists.iter().enumerate() {
        let kept: Vec<usize> = (0..list.tools.len()).filter(|at| !is_out(number, *at)).collect();
        let (Some(first), Some(last)) = (list.tools.first(), list.tools.last()) else { continue };
        let (Some(first_kept), Some(last_kept)) = (kept.first(), kept.last()) else {
            cuts.push(first.at.start..last.at.end);
            continue;
        };
        // What goes takes along what stands between it and the next that stays.
        cuts.push(first.at.start..list.tools[*first_kept].at.start);
        for pair in kept.windows(2) {
            let (before, next) = (pair[0], pair[1]);
            if next > before + 1 {
                cuts.push(list.tools[before + 1].at.start..list.tools[next].at.start);
            }
        }
        cuts.push(list.tools[*last_kept].at.end..last.at.end);
    }
    let (mut out, mut from) = (Vec::with_capacity(line.len()), 0);
    for cut in cuts {
        out.extend_from_slice(line.get(from..cut.start).unwrap_or_default());
        from = from.max(cut.end);
    }
    out.extend_from_slice(line.get(from..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn only(line: &str) -> Listing<'_> {
        read(line.as_bytes()).expect("a line").pop().expect("a list")
    }

    #[test]
    fn a_list_is_found_with_its_tools_and_its_page() {
        let line = r#" {"jsonrpc":"2.0", "id":"a\u0062", "result": {"tools": [ {"name":"a"} , {"name":"b"}], "nextCursor":"2"}}"#;
        let list = only(line);
        assert_eq!((list.id.clone(), list.has_more), (Id::String("ab".into()), true));
        for tool in &list.tools {
            assert_eq!(&line[tool.at.clone()], tool.raw);
        }
        assert_eq!(list.tools[1].definition().expect("one").name, "b");
        assert!(!only(r#"{"id":1,"result":{"tools":[],"nextCursor":null}}"#).has_more);
        assert_eq!(
            only(r#"{"id":1,"result":{"\u0074ools":[{"name":"x"}]}}"#).tools.len(),
            1,
            "however it is written"
        );
        let batch =
            r#"[{"id":1,"result":{"tools":[]}},{"id":2,"result":{}},{"id":3,"result":{"tools":[{}]}}]"#;
        let lists = read(batch.as_bytes()).expect("a batch");
        assert_eq!(lists.iter().map(|list| list.tools.len()).collect::<Vec<_>>(), [0, 1]);
        for none in [
            r#"{"id":1,"error":{"code":1}}"#,
            r#"{"id":1,"result":{"content":[]}}"#,
            r#"{"id":1,"result":["tools"]}"#,
            r#"{"id":1,"result":{"tools":{}}}"#,
            r#"{"method":"x"}"#,
        ] {
            assert!(read(none.as_bytes()).expect("a line").is_empty(), "{none}");
        }
    }

    #[test]
    fn what_parsers_read_differently_is_no_list_that_can_be_judged() {
        for odd in [
            r#"{"id":1,"result":{"tools":[]},"result":{"tools":[{"name":"x"}]}}"#,
            r#"{"id":1,"Result":{"tools":[{"name":"x"}]}}"#,
            r#"{"id":1,"ID":2,"result":{"tools":[]}}"#,
            r#"{"id":1,"result":{"tools":[],"tools":[{"name":"x"}]}}"#,
            r#"{"id":1,"result":{"Tools":[{"name":"x"}]}}"#,
            r#"{"id":1,"result":{"tools":[]}} {"#,
            r#"{"id":1,"result":{"tools":[{"name":"x"},]}}"#,
            "\u{feff}{\"id\":1,\"result\":{\"tools\":[]}}",
            "log\r{\"id\":1,\"result\":{\"tools\":[]}}",
        ] {
            assert!(read(odd.as_bytes()).is_err(), "{odd}");
        }
        assert!(read(b"{\"id\":1,\"result\":{\"tools\":[{\"name\":\"\xff\"}]}}").is_err());
    }

    #[test]
    fn what_may_be_a_list_has_the_word_or_what_may_be_a_part_of_it() {
        for line in [
            &br#"{"result":{"tOOls":[]}}"#[..],
            br#"{"result":{"\u0074ools":[]}}"#,
            br#"{"result":{"t\ools":[]}}"#,
            br#"{"result":{"\\":1,"\x74ools":[]}}"#,
            br#"{"result":{"a":"\\\d"}}"#,
            b"{\"result\":{\"t\xffools\":[]}}",
            b"\\",
        ] {
            assert!(may_be_list(line), "{}", line.escape_ascii());
        }
        for line in
            [r#"{"result":{"a":"\\d\\x \" \/ \b\f\n\r\t \ud83c\udf89 \\\\o"}}"#, r#"{"result":{"a":"\\"}}"#]
        {
            assert!(!may_be_list(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn what_a_server_says_it_is_is_read_in_both_eras_and_cut() {
        let old = br#"{"id":1,"result":{"protocolVersion":"x","serverInfo":{"name":"s","version":"1","icons":[]}}}"#;
        assert_eq!(server_info(old).as_deref(), Some(r#"{"name":"s","version":"1"}"#));
        let new = br#"{"id":1,"result":{"tools":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}}}}"#;
        assert_eq!(server_info(new).as_deref(), Some(r#"{"name":"s","version":"2"}"#));
        assert_eq!(server_info(br#"{"id":1,"result":{"tools":[]}}"#), None);
        let long = format!("{{\"result\":{{\"serverInfo\":{{\"name\":\"{}\"}}}}}}", "é".repeat(100_000));
        assert_eq!(server_info(long.as_bytes()).expect("a name").chars().count(), LONGEST_INFO + 11);
    }

    #[test]
    fn what_is_odd_about_one_tool_concerns_that_tool() {
        let deep = format!(r#"{{"name":"deep","inputSchema":{}{}}}"#, "[".repeat(400), "]".repeat(400));
        let line = format!(
            r#"{{"id":1,"result":{{"tools":[{{"name":"a"}},{{"name":"b","name":"c"}},{{"name":"d","Description":"x"}},
               {{"name":"e","inputSchema":{{"a":1,"a":2}}}},5,null,{{"x":1}},{deep}]}}}}"#
        );
        let list = only(&line);
        let judged: Vec<bool> = list.tools.iter().map(|tool| tool.definition().is_ok()).collect();
        assert_eq!(judged, [true, false, false, false, false, false, false, false]);
    }

    proptest! {
        #[test]
        fn a_line_without_tools_is_the_line_but_for_those(out in proptest::collection::vec(any::<bool>(), 0..9), blanks in any::<bool>()) {
            let blank = if blanks { " \t" } else { "" };
            let names: Vec<String> = (0..out.len()).map(|n| format!("{blank}{{\"name\":\"t{n}\",\"x\":[1,{{}}]}}{blank}")).collect();
            let head = format!("{{\"id\":7,{blank}\"result\":{{\"z\":0.10,\"tools\":[{blank}");
            let line = format!("{head}{}],\"w\":\"]}}\"}}}}", names.join(","));
            let lists = read(line.as_bytes()).expect("a line");
            let text = String::from_utf8(without(line.as_bytes(), &lists, |_, at| out[at])).expect("text");
            let left: Value = serde_json::from_str(&text).expect("JSON");
            let expected: Vec<Value> = (0..out.len()).filter(|at| !out[*at]).map(|n| json!({"name": format!("t{n}"), "x": [1, {}]})).collect();
            prop_assert_eq!(&left["result"]["tools"], &json!(expected));
            prop_assert!(text.starts_with(&head) && text.ends_with("],\"w\":\"]}\"}}"), "{}", text);
            if !out.contains(&true) {
                prop_assert_eq!(text, line);
            }
        }
    }
}
