//! `hook`: what a coding agent's own hooks start, before and after each of its tool calls.
//!
//! Before a command goes to the tool's shell, `ringfence-runtime tie` is put in front of it, so that the shell says which call
//! it runs before it runs it. After any call, the run's socket is told that it is over: nothing is printed then. Nothing that goes
//! wrong here may stop a call or change what it does: then nothing is printed, and the status is 0 whatever happens.

use crate::tie;
use ringfence_wire::{
    tie::{Done, Said as Told},
    trace::{MAX_ID as MAX_DONE_ID, MAX_SESSION},
};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use std::{
    collections::BTreeMap,
    env,
    io::{self, Read as _, Write as _},
    process::ExitCode,
    time::Duration,
};

/// Most bytes of what an agent says of a call: what a tool was given and what came of it may be in there.
const MAX_INPUT: u64 = 8 << 20;
/// Most bytes of a call's id.
const MAX_ID: usize = 128;
/// What agents call the moment before a tool runs. opencode has no word for it: its plugin, which is its kit's, says this one.
const BEFORE: &str = "PreToolUse";
/// What they call the moment after one, and after one that failed, where that is another.
const AFTER: &str = "PostToolUse";
const AFTER_FAILURE: &str = "PostToolUseFailure";
/// How long the host may take to hear that a call is over: the agent waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// opencode's own tools that fail by an error, after which it starts no hook.
const OPENCODE_TOOLS: &[&str] =
    &["apply_patch", "edit", "glob", "grep", "list", "multiedit", "patch", "read", "write"];
/// A shell tool's command in what it is given.
const COMMAND: &str = "command";

/// Answers a hook of a coding agent: its JSON comes on standard input.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose hook it is: claude, codex, opencode; of another, nothing is answered
    #[arg(value_name = "AGENT")]
    agent: String,
}

/// Answers one hook.
pub fn run(args: &Args) -> ExitCode {
    let answer = Agent::named(&args.agent).zip(heard()).and_then(|(agent, said)| {
        if let Some(done) = after(agent, &said) {
            // Nobody hears why it was not told.
            let _ = tie::say(&Told::Done(done), PATIENCE);
            return None;
        }
        let program = env::current_exe().ok()?;
        before(agent, &said, program.to_str()?)
    });
    if let Some(answer) = answer {
        // Half an answer is none: agents ignore what is not JSON.
        let _ = io::stdout().write_all(answer.as_bytes());
    }
    ExitCode::SUCCESS
}

/// What the agent says; nothing where that is too long.
fn heard() -> Option<Vec<u8>> {
    let mut said = Vec::new();
    let mut stdin = io::stdin().lock();
    stdin.by_ref().take(MAX_INPUT + 1).read_to_end(&mut said).ok()?;
    if said.len() as u64 <= MAX_INPUT {
        return Some(said);
    }
    // An agent that is still writing would see a broken pipe.
    let _ = io::copy(&mut stdin, &mut io::sink());
    None
}

/// The agents whose hooks are known. gemini-cli's is none of them: it compares what it allows with the command that a hook made, and
/// a command that its user allowed would be refused; and its hooks are not told the call's id, so nothing could be said of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// opencode.
    Opencode,
}

impl Agent {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Claude, Self::Codex, Self::Opencode];

    fn named(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::Claude),
            "codex" => Some(Self::Codex),
            "opencode" => Some(Self::Opencode),
            _ => None,
        }
    }

    /// Whether its hooks know how a call of a tool ended: Claude Code has another one for failures. Codex's is told of commands that failed
    /// as of others. opencode's is told of nothing that failed, where the tool is its own and runs no command: what another tool
    /// calls a failure, and a command's status, it does not tell.
    fn knows_failures(self, tool: &str) -> bool {
        match self {
            Self::Claude => true,
            Self::Codex => false,
            Self::Opencode => OPENCODE_TOOLS.contains(&tool),
        }
    }

    /// What it calls its tool that gives a command to a shell.
    fn shell(self) -> &'static str {
        match self {
            Self::Claude | Self::Codex => "Bash",
            Self::Opencode => "bash",
        }
    }
}

/// Of what an agent says before a call: what is needed here.
#[derive(Debug, Deserialize)]
struct Said {
    hook_event_name: String,
    tool_name: String,
    /// The provider's id of the call, where the agent says it.
    #[serde(default)]
    tool_use_id: Option<String>,
    /// What is not the command stays as it came, byte for byte.
    tool_input: BTreeMap<String, Box<RawValue>>,
}

/// The answer before a call.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(rename = "hookSpecificOutput")]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Output {
    #[serde(rename = "hookEventName")]
    event: &'static str,
    #[serde(rename = "permissionDecision", skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    #[serde(rename = "updatedInput")]
    updated: BTreeMap<String, Box<RawValue>>,
}

/// The answer to a call that gives a command to a shell: the same input, the tie in front of its command. `program`: this one's path.
#[must_use]
pub fn before(agent: Agent, said: &[u8], program: &str) -> Option<String> {
    let said: Said = serde_json::from_slice(said).ok()?;
    if said.hook_event_name != BEFORE || said.tool_name != agent.shell() || !is_path(program) {
        return None;
    }
    let mut input = said.tool_input;
    let command: String = serde_json::from_str(input.get(COMMAND)?.get()).ok()?;
    let command = tied(program, said.tool_use_id.as_deref(), &command);
    input.insert(COMMAND.to_owned(), to_raw_value(&command).ok()?);
    // Claude Code asks as ever for what is not allowed: a decision of a hook's would go before that. Codex changes no
    // input without this word, and asks afterwards all the same.
    let decision = (agent == Agent::Codex).then_some("allow");
    let output = Output { event: BEFORE, decision, updated: input };
    serde_json::to_string(&Answer { output }).ok()
}

/// Of what an agent says after a call: what is needed here.
#[derive(Debug, Deserialize)]
struct Over {
    hook_event_name: String,
    tool_name: String,
    #[serde(default)]
    tool_use_id: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
}

/// What the host is told of a call that is over. Without an id, or with one that is too long for a report, it is nobody's and not told
/// of.
#[must_use]
pub fn after(agent: Agent, said: &[u8]) -> Option<Done> {
    let Over { hook_event_name, tool_name, tool_use_id: call, session_id } =
        serde_json::from_slice(said).ok()?;
    let has_failed = match hook_event_name.as_str() {
        AFTER => false,
        AFTER_FAILURE => true,
        _ => return None,
    };
    let call = call.filter(|id| !id.is_empty() && id.len() <= MAX_DONE_ID)?;
    if tool_name.is_empty() {
        return None;
    }
    let knows = agent.knows_failures(&tool_name);
    Some(Done {
        call,
        tool: tool_name[..tool_name.floor_char_boundary(MAX_DONE_ID)].to_owned(),
        session: session_id.filter(|session| !session.is_empty() && session.len() <= MAX_SESSION),
        failed: knows.then_some(has_failed),
    })
}

/// A command that says which call it is, and then is what it was. In a line of its own and not around it: what the command
/// does to its shell (`cd`, `set -e`, a function) stays, and so does its status.
fn tied(program: &str, id: Option<&str>, command: &str) -> String {
    match id.filter(|id| is_id(id)) {
        Some(id) => format!("{program} tie {id}\n{command}"),
        None => format!("{program} tie\n{command}"),
    }
}

/// Whether a shell takes a path as it is. One that it would not is not quoted either: what agents allow of a command, they
/// compare as text.
fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+@".contains(&b))
}

/// Whether an id is one word of a shell's, and no flag.
fn is_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    id.len() <= MAX_ID && id.bytes().all(is_plain) && !id.is_empty() && !id.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::process::{self, Command};

    const PROGRAM: &str = "/opt/ringfence-runtime";

    fn asked(agent: Agent, input: &Value, id: Option<&str>) -> Option<Value> {
        let said = json!({
            "session_id": "s", "cwd": "/w", "hook_event_name": BEFORE, "tool_name": agent.shell(),
            "tool_input": input, "tool_use_id": id,
        });
        before(agent, said.to_string().as_bytes(), PROGRAM)
            .map(|answer| serde_json::from_str(&answer).unwrap())
    }

    #[test]
    fn each_agent_is_answered_in_its_own_words() {
        let input = json!({"command": "cd x; ls # all", "timeout": 1, "description": "look"});
        let tied = json!({"command": "/opt/ringfence-runtime tie toolu_1\ncd x; ls # all", "timeout": 1, "description": "look"});
        let output = |agent| asked(agent, &input, Some("toolu_1")).unwrap()["hookSpecificOutput"].clone();
        let plain = json!({"hookEventName": "PreToolUse", "updatedInput": tied});
        assert_eq!(output(Agent::Claude), plain, "nothing is decided in its place");
        assert_eq!(output(Agent::Opencode), plain);
        let codex =
            json!({"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": tied});
        assert_eq!(output(Agent::Codex), codex);
        assert_eq!(Agent::named("gemini"), None);
    }

    #[test]
    fn what_is_not_the_command_stays_as_it_was() {
        let said = r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_use_id":"a",
            "tool_input":{"command":"ls","timeout":120000.0,"much":12345678901234567890123,"nested":{"b":1,"a":[1e2]}}}"#;
        let answer = before(Agent::Claude, said.as_bytes(), PROGRAM).unwrap();
        for text in ["120000.0", "12345678901234567890123", r#"{"b":1,"a":[1e2]}"#] {
            assert!(answer.contains(text), "{answer}");
        }
    }

    #[test]
    fn only_a_shells_command_is_answered() {
        let said = |event: &str, tool: &str, input: &str| {
            let said =
                format!(r#"{{"hook_event_name":"{event}","tool_name":"{tool}","tool_input":{input}}}"#);
            before(Agent::Claude, said.as_bytes(), PROGRAM)
        };
        let command = r#"{"command":"ls"}"#;
        assert!(said("PreToolUse", "Bash", command).is_some(), "the control");
        assert_eq!(said("PostToolUse", "Bash", command), None);
        assert_eq!(said("PreToolUse", "Read", command), None);
        for odd in [r#"{"command":["ls"]}"#, "{}", "[]", "null", r#""ls""#] {
            assert_eq!(said("PreToolUse", "Bash", odd), None, "{odd}");
        }
        let whole = br#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"ls"}}"#;
        assert!(before(Agent::Claude, whole, PROGRAM).is_some());
        for odd in ["relative/path", "/with space/p", "/q'uote", "/$HOME/p", ""] {
            assert_eq!(before(Agent::Claude, whole, odd), None, "{odd}");
        }
    }

    #[test]
    fn an_id_that_is_no_plain_word_is_not_passed_on() {
        for odd in ["", "a b", "$(id)", "a;b", "-x", "a\nb", "a'b", "é", &"x".repeat(MAX_ID + 1)] {
            assert_eq!(tied(PROGRAM, Some(odd), "ls"), format!("{PROGRAM} tie\nls"), "{odd:?}");
        }
        assert_eq!(tied(PROGRAM, Some("call_1-a.b:c"), "ls"), format!("{PROGRAM} tie call_1-a.b:c\nls"));
    }

    #[test]
    fn after_a_call_it_is_said_which_and_how_it_ended_where_the_agent_knows() {
        let said = |event: &str, tool: &str, id: Option<&str>, session: &str| {
            json!({
                "session_id": session, "cwd": "/w", "hook_event_name": event, "tool_name": tool, "tool_use_id": id,
                "tool_input": {"file_path": "/w/a"}, "tool_response": {"much": [1, 2]}, "error": "no such file",
            })
            .to_string()
        };
        let over = |agent, text: &str| after(agent, text.as_bytes());
        let done = |failed| {
            let (call, tool, session) = ("toolu_1".to_owned(), "Edit".to_owned(), Some("s".to_owned()));
            Some(Done { call, tool, session, failed })
        };
        let ended = said(AFTER, "Edit", Some("toolu_1"), "s");
        assert_eq!(over(Agent::Claude, &ended), done(Some(false)));
        assert_eq!(over(Agent::Codex, &ended), done(None));
        assert_eq!(over(Agent::Opencode, &ended), done(None), "another's tool");
        let own = over(Agent::Opencode, &said(AFTER, "edit", Some("toolu_1"), "s"));
        assert_eq!(own.and_then(|done| done.failed), Some(false));
        let command = over(Agent::Opencode, &said(AFTER, "bash", Some("toolu_1"), "s"));
        assert_eq!(command.map(|done| done.failed), Some(None));
        assert_eq!(over(Agent::Claude, &said(AFTER_FAILURE, "Edit", Some("toolu_1"), "s")), done(Some(true)));
        assert_eq!(before(Agent::Claude, ended.as_bytes(), PROGRAM), None, "nothing is answered");
        let without = over(Agent::Claude, &said(AFTER, "Edit", Some("toolu_1"), ""));
        assert!(without.is_some_and(|done| done.session.is_none()));
        let long = over(
            Agent::Claude,
            &said(AFTER, &"\u{fc}".repeat(MAX_DONE_ID), Some("a"), &"s".repeat(MAX_SESSION + 1)),
        );
        assert!(long.is_some_and(|done| done.tool.len() == MAX_DONE_ID && done.session.is_none()));
        for odd in [
            said(BEFORE, "Edit", Some("toolu_1"), "s"),
            said("Stop", "Edit", Some("toolu_1"), "s"),
            said(AFTER, "", Some("toolu_1"), "s"),
            said(AFTER, "Edit", None, "s"),
            said(AFTER, "Edit", Some(""), "s"),
            said(AFTER, "Edit", Some(&"x".repeat(MAX_DONE_ID + 1)), "s"),
            r#"{"hook_event_name":"PostToolUse"}"#.to_owned(),
            r#"{"hook_event_name":"PostToolUse","tool_name":7}"#.to_owned(),
        ] {
            assert_eq!(over(Agent::Claude, &odd), None, "{odd}");
        }
    }

    /// What a shell does with a command, and with the same command when it is tied: by a program that does nothing.
    fn shells(command: &str) -> (process::Output, process::Output) {
        let run = |text: &str| {
            let mut bash = Command::new("/bin/bash");
            bash.args(["-c", &format!("{text}\n")])
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .current_dir("/")
                .output()
                .unwrap()
        };
        (run(command), run(&tied("/bin/true", Some("toolu_1"), command)))
    }

    #[test]
    fn a_tied_command_does_in_its_shell_what_it_did() {
        for command in [
            "cd /tmp; pwd; (exit 3)",
            "set -e\nfalse\necho not",
            "cat <<X | tr a-z A-Z\nhere\nX",
            "echo one # and a comment",
            "# a comment\n\n  echo two",
            "f() { echo three; return 4; }; f",
            "exec echo four",
            "echo $?; echo \"$0 $# $-\"",
            "read line; echo \"got $line\"",
            "echo 'a\nb' && ! true",
            "trap 'echo bye' EXIT; exit 5",
            "if",
        ] {
            let (plain, tied) = shells(command);
            assert_eq!((plain.status, &plain.stdout), (tied.status, &tied.stdout), "{command}");
            assert_eq!(plain.stderr.is_empty(), tied.stderr.is_empty(), "{command}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_with_the_same_input_or_not_at_all(said in prop::collection::vec(any::<u8>(), 0..200)) {
            for agent in Agent::ALL {
                prop_assert_eq!(before(agent, &said, PROGRAM), None);
                prop_assert_eq!(after(agent, &said), None);
            }
        }

        /// Whatever is said of a call that is over, what is told of it fits a report.
        #[test]
        fn what_is_told_of_a_call_is_bounded(tool in any::<String>(), id in any::<Option<String>>(), session in any::<Option<String>>()) {
            let said = json!({ "hook_event_name": AFTER, "tool_name": tool.repeat(20), "tool_use_id": id.map(|id| id.repeat(20)),
                "session_id": session.map(|session| session.repeat(20)) });
            if let Some(done) = after(Agent::Claude, said.to_string().as_bytes()) {
                prop_assert!(!done.tool.is_empty() && done.tool.len() <= MAX_DONE_ID);
                prop_assert!(!done.call.is_empty() && done.call.len() <= MAX_DONE_ID);
                prop_assert!(done.session.is_none_or(|session| !session.is_empty() && session.len() <= MAX_SESSION));
            }
        }

        #[test]
        fn whatever_the_command_is_it_is_what_comes_last(command in any::<String>(), id in any::<Option<String>>()) {
            let answer = asked(Agent::Claude, &json!({"command": command}), id.as_deref()).unwrap();
            let changed = answer.pointer("/hookSpecificOutput/updatedInput/command").and_then(Value::as_str).unwrap();
            let (first, rest) = changed.split_once('\n').unwrap();
            prop_assert_eq!(rest, command);
            prop_assert!(first.strip_prefix(PROGRAM).is_some_and(|words| {
                words == " tie" || words.strip_prefix(" tie ").is_some_and(is_id)
            }), "{}", first);
        }
    }
}
