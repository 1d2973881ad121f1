//! The tools of the runtime, and what one call of them is to do.

use ringfence_file_tools::Tool;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Most bytes of a command: Linux takes arguments of less than 128 KiB.
const MOST_COMMAND: usize = (128 << 10) - 1;

/// A tool of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// `bash`: a command line.
    Shell,
    /// The file tools.
    File(Tool),
}

/// What one call is to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Run a command line.
    Shell {
        /// For the shell's `-c`.
        command: String,
    },
    /// Run a file tool.
    File {
        /// Which.
        tool: Tool,
        /// Its input, not looked at yet.
        input: Value,
    },
}

/// The input of `bash`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shell {
    command: String,
    timeout: Option<u32>,
}

impl Job {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Shell).chain(Tool::ALL.into_iter().map(Self::File))
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|job| job.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shell => "bash",
            Self::File(tool) => tool.name(),
        }
    }

    /// Whether calls of the two come to the same in any order. Shells are taken for that: what several do at once is the model's
    /// to say, and each can wait for what it likes. A file tool that writes is nobody's.
    pub(super) fn is_independent_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shell, Self::Shell) => true,
            (Self::File(one), Self::File(two)) => !one.writes() && !two.writes(),
            (Self::Shell, Self::File(_)) | (Self::File(_), Self::Shell) => false,
        }
    }

    /// What a turn's `tools` says about it. `timeout` is the longest that a call may take.
    pub(super) fn describe(self, timeout: Duration) -> Value {
        let (description, parameters) = match self {
            Self::Shell => (
                "Runs a command with bash, in the working directory, without standard input. Returns its output, and its exit status if that is not 0. Each call is a new shell.",
                json!({
                    "type": "object",
                    "properties": {
                        "command": {"type": "string", "description": "The command line"},
                        "timeout": {
                            "type": "integer", "minimum": 1, "maximum": timeout.as_secs(),
                            "description": format!("Seconds until it is killed, with all that it started; {} if left out", timeout.as_secs()),
                        },
                    },
                    "required": ["command"],
                    "additionalProperties": false,
                }),
            ),
            Self::File(tool) => (tool.description(), tool.parameters()),
        };
        json!({"name": self.name(), "description": description, "parameters": parameters})
    }

    /// What a call with this input is to do, and how long it may take; or why there is nothing to do.
    pub(super) fn plan(self, input: Value, most: Duration) -> Result<(Work, Duration), String> {
        let tool = match self {
            Self::File(tool) => return Ok((Work::File { tool, input }, most)),
            Self::Shell => "bash",
        };
        let Shell { command, timeout } =
            Shell::deserialize(&input).map_err(|error| format!("{tool} cannot use this input: {error}"))?;
        if command.contains('\0') {
            return Err("`command` has a NUL character in it, which no command line can have".to_owned());
        }
        if command.len() > MOST_COMMAND {
            return Err(format!(
                "`command` has {} bytes, {MOST_COMMAND} is the most; write it to a file and run that",
                command.len()
            ));
        }
        let wanted = timeout.map_or(most, |seconds| Duration::from_secs(seconds.max(1).into()));
        Ok((Work::Shell { command }, wanted.min(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(300);

    fn shell(input: Value) -> Result<Duration, String> {
        Job::Shell.plan(input, MOST).map(|(_, timeout)| timeout)
    }

    #[test]
    fn only_shells_and_what_only_reads_run_beside_each_other() {
        let named = |name: &str| Job::named(name).expect("a tool");
        let independent = |one: &str, two: &str| named(one).is_independent_of(named(two));
        assert!(independent("bash", "bash") && independent("read_file", "search"));
        for one in Job::all() {
            for writing in ["write_file", "edit_file"] {
                assert!(!one.is_independent_of(named(writing)) && !named(writing).is_independent_of(one));
            }
        }
        assert!(!independent("bash", "read_file") && !independent("list_directory", "bash"));
    }

    #[test]
    fn a_call_may_ask_for_less_time_and_not_for_more() {
        assert_eq!(shell(json!({"command": "x"})), Ok(MOST));
        assert_eq!(shell(json!({"command": "x", "timeout": 5})), Ok(Duration::from_secs(5)));
        assert_eq!(shell(json!({"command": "x", "timeout": 5000})), Ok(MOST));
        assert_eq!(shell(json!({"command": "x", "timeout": 0})), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn bad_input_gets_a_sentence() {
        let error = |input| shell(input).unwrap_err();
        assert!(error(json!({})).contains("missing field `command`"));
        assert!(error(Value::Null).contains("bash cannot use this input"));
        assert!(error(json!({"command": ["ls"]})).contains("expected a string"));
        assert!(error(json!({"command": "x", "cwd": "/"})).contains("unknown field `cwd`"));
        assert!(error(json!({"command": "a\0b"})).contains("NUL"));
        assert!(error(json!({"command": "x".repeat(1 << 17)})).contains("131071 is the most"));
    }

    #[test]
    fn every_tool_has_a_name_of_its_own() {
        let names: Vec<&str> = Job::all().map(Job::name).collect();
        assert_eq!(names, ["bash", "read_file", "write_file", "edit_file", "list_directory", "search"]);
        for job in Job::all() {
            assert_eq!(Job::named(job.name()), Some(job));
            assert_eq!(job.describe(MOST)["name"], job.name());
        }
    }

    #[test]
    fn the_documented_schemas_are_these() {
        let document = include_str!("../../../../docs/runtime.md");
        let block = document.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let documented: Vec<Value> =
            serde_json::Deserializer::from_str(block).into_iter().collect::<Result<_, _>>().unwrap();
        let bare = |mut tool: Value| {
            tool["description"] = json!("...");
            for property in tool["parameters"]["properties"].as_object_mut().unwrap().values_mut() {
                property.as_object_mut().unwrap().remove("description");
            }
            tool
        };
        let mut described: Vec<Value> = Job::all().map(|job| bare(job.describe(MOST))).collect();
        assert_eq!(documented.len(), described.len());
        described.retain(|tool| !documented.contains(tool));
        assert_eq!(described, Vec::<Value>::new());
    }
}
