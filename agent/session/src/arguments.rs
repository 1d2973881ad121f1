//! What the arguments of a call do: commands, code, actions by name, paths. Pure.
//!
//! Each value is looked at once, by its key. Nothing here follows a reference or decodes an encoding.

use super::{
    classify, code,
    deeds::{Deeds, Mark},
    mentions::Mentions,
    sensitive, shell, strict,
    word_list::WordList,
};
use ringfence_redact::words::words;
use ringfence_wire::tool_call::Operation;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Values longer than this many bytes are not searched for sensitive words: prose and source code hold them all.
const LONGEST_VALUE: usize = 512;
/// Longest text that is looked at as a list in JSON, bytes.
const LONGEST_JSON: usize = 256 << 10;
/// Longest text that names an action, bytes.
const LONGEST_ACTION: usize = 64;
/// Longest key that is known, bytes, without what separates words.
const LONGEST_KEY: usize = 24;

/// Keys of a command line: a script, or the words of one command.
const COMMANDS: WordList = WordList::of(&[
    "bash",
    "bashcommand",
    "clicommand",
    "cmd",
    "cmdline",
    "command",
    "commandline",
    "commands",
    "execcommand",
    "shellcommand",
    "terminalcommand",
]);
/// Keys of what a shell is given to read.
const SCRIPTS: WordList = WordList::of(&["input", "keys", "script", "stdin"]);
/// Keys of code, where a tool runs something.
const CODES: WordList = WordList::of(&[
    "code",
    "expression",
    "function",
    "input",
    "javascript",
    "js",
    "program",
    "python",
    "script",
    "snippet",
    "source",
]);
/// Keys of an HTTP method, or of one of several actions of a tool.
const METHODS: WordList = WordList::of(&["httpmethod", "method", "requestmethod", "verb"]);
/// Keys of an action: what a tool that reads is asked to do it to, elsewhere (`action` of a log's entries).
const ACTIONS: WordList = WordList::of(&["action", "op", "operation", "runaction", "subcommand"]);
/// Keys of the further words of a command.
const FURTHER: WordList = WordList::of(&["args", "arguments", "argv"]);
/// Commands of one object that are judged with its further words: each spelling of a key is one more.
const MOST_PROGRAMS: usize = 16;

/// What a value is, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Command,
    Code,
    Method,
    Action,
    Other,
}

/// What the arguments of a call do.
#[derive(Debug)]
pub(crate) struct Found {
    /// What they do by themselves; unknown, if they do not say.
    pub(crate) deeds: Deeds,
    /// What they are about.
    pub(crate) mentions: Mentions,
    /// Length of the longest array.
    pub(crate) longest_list: usize,
}

/// Looks into the arguments of a tool. `tool`: what its name says, and whether it names a shell.
pub(crate) fn look(arguments: &Value, tool: Operation, is_shell: bool) -> Found {
    let mut search =
        Search { tool, is_shell, deeds: Deeds::NONE, mentions: Mentions::default(), longest_list: 0 };
    search.value(arguments, Kind::Other, 0);
    let Search { deeds, mentions, longest_list, .. } = search;
    Found { deeds, mentions, longest_list }
}

/// Whether the value of an argument with this name is run, at a tool of which that is known.
pub(crate) fn holds_code(name: &str, tool: Operation, is_shell: bool) -> bool {
    matches!(kind(&words(name), tool, is_shell), Kind::Command | Kind::Code)
}

struct Search {
    tool: Operation,
    is_shell: bool,
    deeds: Deeds,
    mentions: Mentions,
    longest_list: usize,
}

impl Search {
    /// Depth is bounded by the line judge's own limit; this only follows it.
    fn value(&mut self, value: &Value, kind: Kind, depth: usize) {
        if depth > strict::MAX_DEPTH {
            return;
        }
        match value {
            Value::String(text) => self.text(text, kind),
            Value::Array(items) => {
                self.longest_list = self.longest_list.max(items.len());
                if kind == Kind::Command && self.command_words(items, &[]) {
                    return;
                }
                items.iter().for_each(|item| self.value(item, kind, depth + 1));
            }
            Value::Object(members) => self.members(members, depth),
            _ => {}
        }
    }

    fn members(&mut self, members: &Map<String, Value>, depth: usize) {
        let mut programs = 0;
        for (key, member) in members {
            let words = words(key);
            if member.is_number() {
                self.mentions.look_at_number(&words);
            } else if !self.mentions.is_full() {
                self.mentions.look_at(&words);
            }
            let kind = kind(&words, self.tool, self.is_shell);
            let with_further = match (kind, member) {
                (Kind::Command, Value::String(program)) if is_one_word(program) => {
                    programs += 1;
                    self.program(program, members, programs > MOST_PROGRAMS)
                }
                _ => false,
            };
            if !with_further {
                self.value(member, kind, depth + 1);
            }
        }
    }

    /// A program with each list of further words beside it: which of them a tool takes is the tool's to know. Whether there
    /// was any. `too_many`: others were before it, and what it does is not looked at any more.
    fn program(&mut self, program: &str, members: &Map<String, Value>, too_many: bool) -> bool {
        let mut any = false;
        for (_, member) in members.iter().filter(|(key, _)| FURTHER.contains(key)) {
            if too_many {
                self.deeds.deletes(true);
                self.deeds.mark(Mark::Unreadable);
                return true;
            }
            let further = match member {
                Value::Array(words) => Some(Cow::Borrowed(words)),
                Value::String(text) => {
                    let words = list(text);
                    if words.is_none() && !text.trim().is_empty() {
                        shell::script(&format!("{program} {text}"), &mut self.deeds);
                    }
                    words.map(Cow::Owned)
                }
                _ => None,
            };
            let further = further.filter(|words| !words.is_empty());
            any |= further.is_some_and(|words| self.command_words(&words, &[program]));
        }
        any
    }

    /// A text. One that is a list in JSON is looked at as that list, too: some clients send lists so, and some tools take them.
    /// Others give the same text to a shell, so that the graver of both counts.
    fn text(&mut self, text: &str, kind: Kind) {
        if let Some(items) = list(text) {
            self.longest_list = self.longest_list.max(items.len());
            if kind == Kind::Command && !self.command_words(&items, &[]) {
                items.iter().for_each(|item| self.value(item, kind, 0));
            }
        }
        match kind {
            Kind::Command if is_one_word(text) => {
                // `{"command": "view"}` of an editor, `{"command": "delete"}` of a client, `{"command": "ls"}`.
                self.action(text);
                if self.is_shell {
                    shell::script(text, &mut self.deeds);
                }
            }
            Kind::Command => {
                self.deeds.does(Operation::Execute);
                return shell::script(text, &mut self.deeds);
            }
            Kind::Code => {
                for command in code::judge(text, &mut self.deeds) {
                    match command {
                        code::Shell::Script(script) => shell::script(&script, &mut self.deeds),
                        code::Shell::Words(words) => shell::words(&words, &mut self.deeds),
                    }
                }
            }
            Kind::Method | Kind::Action => self.action(text),
            Kind::Other => {}
        }
        self.deeds.mark_if(sensitive::is_secret(text), Mark::Credentials);
        if text.len() <= LONGEST_VALUE && !self.mentions.is_full() && kind != Kind::Code {
            self.mentions.look_into(text);
        }
    }

    /// A text that names an action.
    fn action(&mut self, text: &str) {
        if text.len() <= LONGEST_ACTION {
            self.deeds.does(classify::name(&words(text)));
        }
    }

    /// The words of one command, or several command lines; whether they were either.
    fn command_words(&mut self, items: &[Value], before: &[&str]) -> bool {
        let text = |item: &Value| match item {
            Value::String(text) => Some(text.clone()),
            // As a tool joins them.
            Value::Number(_) | Value::Bool(_) => Some(item.to_string()),
            Value::Null => Some(String::new()),
            Value::Array(_) | Value::Object(_) => None,
        };
        let texts: Option<Vec<String>> = items.iter().map(text).collect();
        let Some(texts) = texts.filter(|_| items.is_empty() || items.iter().any(Value::is_string)) else {
            return false;
        };
        let lines = before.is_empty() && texts.first().is_some_and(|first| !is_one_word(first));
        if texts.is_empty() && before.is_empty() || lines {
            return false;
        }
        self.longest_list = self.longest_list.max(items.len());
        let all: Vec<String> = before.iter().map(|text| (*text).to_owned()).chain(texts).collect();
        self.deeds.does(Operation::Execute);
        shell::words(&all, &mut self.deeds);
        true
    }
}

/// The items of a list of texts, numbers and the like that a text has as JSON; none where it is anything else, or too long.
fn list(text: &str) -> Option<Vec<Value>> {
    let text = text.trim();
    if text.len() > LONGEST_JSON || !text.starts_with('[') || !text.ends_with(']') {
        return None;
    }
    let Ok(Value::Array(items)) = strict::value(text) else { return None };
    Some(items)
}

/// What a value is by its key's words, at a tool that does that, and that is a shell or is none.
fn kind(words: &[String], tool: Operation, is_shell: bool) -> Kind {
    let length: usize = words.iter().map(String::len).sum();
    if length > LONGEST_KEY {
        return Kind::Other;
    }
    let joined;
    let key = match words {
        [one] => one.as_str(),
        _ => {
            joined = words.concat();
            joined.as_str()
        }
    };
    let runs = tool == Operation::Execute || is_shell;
    match key {
        key if COMMANDS.contains(key) => Kind::Command,
        key if SCRIPTS.contains(key) && is_shell => Kind::Command,
        key if CODES.contains(key) && runs => Kind::Code,
        key if METHODS.contains(key) => Kind::Method,
        key if ACTIONS.contains(key) && tool != Operation::Read => Kind::Action,
        _ => Kind::Other,
    }
}

/// Whether a text is no command line, but one name.
fn is_one_word(text: &str) -> bool {
    !text.trim().contains(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')))
}

#[cfg(test)]
mod tests {
    use super::{Found, MOST_PROGRAMS, look};
    use crate::deeds::Mark;
    use ringfence_wire::tool_call::Operation;
    use serde_json::{Map, Value, json};

    fn found(arguments: &Value) -> Found {
        look(arguments, Operation::Execute, true)
    }

    #[test]
    fn a_list_in_a_text_is_a_script_as_well() {
        for text in [
            r#"["echo","$(rm -rf ~)"]"#,
            r#"["rm","-rf","~"]"#,
            r#"["ls a","rm -rf ~"]"#,
            r#" ["echo", "`rm -rf ~`"] "#,
        ] {
            let Found { deeds, .. } = found(&json!({ "command": text }));
            assert!(deeds.operation == Operation::Delete && deeds.is(Mark::Wide), "{text}");
        }
        let Found { deeds, .. } = found(&json!({"command": r#"["echo","rm -rf ~"]"#}));
        assert!(deeds.operation == Operation::Execute && !deeds.is(Mark::Unreadable));
    }

    #[test]
    fn further_words_do_not_hide_others() {
        for more in [
            json!({"argv": ["-rf", "~"]}),
            json!({"args": "[]", "argv": ["-rf", "~"]}),
            json!({"args": [], "argv": "[\"-rf\",\"~\"]"}),
            json!({"args": ["--help"], "arguments": ["-rf", "~"], "argv": ["--version"]}),
            json!({"args": ["-rf", "~", 0]}),
            json!({"args": ["-rf", null, "~"]}),
            json!({"args": "-rf ~"}),
        ] {
            let mut arguments = more.clone();
            arguments["command"] = "rm".into();
            let Found { deeds, .. } = found(&arguments);
            assert!(deeds.operation == Operation::Delete && deeds.is(Mark::Wide), "{more}");
        }
        let Found { deeds, .. } = found(&json!({"command": "ls", "args": [], "argv": ["-l"]}));
        assert_eq!(deeds.operation, Operation::Execute);
        for empty in [json!([]), json!("[]"), json!([1])] {
            let Found { deeds, .. } = found(&json!({"command": "delete", "args": empty}));
            assert_eq!(deeds.operation, Operation::Delete, "an action by name: {empty}");
        }
    }

    #[test]
    fn many_spellings_of_a_key_cost_no_more_and_hide_nothing() {
        let object = |many: usize| {
            let keys = (0..many).map(|n| (format!("command{}", "_".repeat(n)), json!("ls")));
            let mut members: Map<String, Value> = keys.collect();
            members.insert("args".into(), json!(["a"]));
            found(&Value::Object(members)).deeds
        };
        assert_eq!(object(MOST_PROGRAMS).operation, Operation::Execute);
        assert!(object(MOST_PROGRAMS + 1).is(Mark::Unreadable));
    }
}
