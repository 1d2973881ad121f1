//! The arguments of a call: one program, or a script.

use ringfence_file_tools::tool::type_mismatch;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a call may take by default.
const TIMEOUT: u64 = 60;
/// The longest that it may request, in seconds.
const MAX_TIMEOUT: u64 = 300;
/// Most bytes of all arguments of a program together: what Linux takes with its default stack limit.
pub(super) const MAX_ARGUMENTS: usize = 2 * 1024 * 1024;

/// What a call asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    /// What to run.
    pub(super) command: Command,
    /// Where, if not in the tool's own directory.
    pub(super) cwd: Option<String>,
    /// For how long at most.
    pub(super) timeout: Duration,
}

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A program and its arguments, taken literally.
    Program(String, Vec<String>),
    /// A text of the safe subset.
    Script(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArguments {
    program: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    script: Option<String>,
    cwd: Option<String>,
    timeout_secs: Option<u64>,
}

/// The JSON Schema of the arguments. That there is a program or a script, and not both, is in words only: providers refuse
/// alternatives at the top of a schema.
pub(super) fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "program": {"type": "string", "description": "The program: a name on PATH, or a path. Either this or script is required, not both"},
            "args": {"type": "array", "items": {"type": "string"}, "description": "The program's arguments, taken literally: no quoting, no globs, no variables"},
            "script": {"type": "string", "description": "Instead of program: commands connected by | && || ; or newlines, with quotes, globs, redirects (< > >> 2> 2>> 2>&1) and $NAME of some variables. No substitution, no control flow, no background, no here-documents, no assignments"},
            "cwd": {"type": "string", "description": "The directory to run in, where this call's relative paths start; the working directory, where those of every tool start, if left out"},
            "timeout_secs": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT, "description": "Seconds until everything is killed; 60 if left out"},
        },
        "additionalProperties": false,
    })
}

/// Reads the arguments.
///
/// # Errors
/// What is wrong with them, in words for who wrote them.
pub(super) fn read(args: &Value) -> Result<Arguments, String> {
    // Serde would read a list as the fields in their order.
    if !args.is_object() {
        return Err("the arguments are not an object".into());
    }
    let RawArguments { program, args, script, cwd, timeout_secs } = RawArguments::deserialize(args)
        .map_err(|error| type_mismatch(&schema(), args).unwrap_or_else(|| error.to_string()))?;
    let command = match (program, script) {
        (Some(program), None) => {
            let size = args.iter().fold(program.len(), |sum, arg| sum + arg.len() + 1);
            if size > MAX_ARGUMENTS {
                return Err(format!("`args` has {size} bytes, and may have {MAX_ARGUMENTS}"));
            }
            Command::Program(program, args)
        }
        (None, Some(script)) if args.is_empty() => Command::Script(script),
        (None, Some(_)) => return Err("`args` goes with `program`, not with `script`".into()),
        (Some(_), Some(_)) => return Err("either `program` or `script`, not both".into()),
        (None, None) => return Err("`program` or `script` is missing".into()),
    };
    let seconds = timeout_secs.unwrap_or(TIMEOUT);
    if !(1..=MAX_TIMEOUT).contains(&seconds) {
        return Err(format!("`timeout_secs` must be 1 to {MAX_TIMEOUT}"));
    }
    let nul = |text: &String| text.contains('\0');
    let texts = match &command {
        Command::Program(program, args) => nul(program) || args.iter().any(nul),
        // The script's reader reports where.
        Command::Script(_) => false,
    };
    if texts || cwd.as_ref().is_some_and(nul) {
        return Err("an argument has a NUL character".into());
    }
    Ok(Arguments { command, cwd, timeout: Duration::from_secs(seconds) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_or_one_script() {
        let program =
            read(&json!({"program": "echo", "args": ["a"], "timeout_secs": 5, "cwd": "/x"})).unwrap();
        assert_eq!(program.command, Command::Program("echo".into(), vec!["a".into()]));
        assert_eq!((program.timeout, program.cwd.as_deref()), (Duration::from_secs(5), Some("/x")));
        let script = read(&json!({"script": "a | b"})).unwrap();
        assert_eq!(script.command, Command::Script("a | b".into()));
        assert_eq!(script.timeout, Duration::from_secs(60));
    }

    #[test]
    fn anything_else_is_a_clear_error() {
        for (args, says) in [
            (json!(null), "not an object"),
            (json!(["echo", ["a"]]), "not an object"),
            (json!("ls"), "not an object"),
            (json!({}), "`program` or `script` is missing"),
            (json!({"program": "a", "script": "b"}), "not both"),
            (json!({"script": "b", "args": ["a"]}), "goes with `program`"),
            (json!({"program": 1}), "`program` is not a string"),
            (json!({"program": "a", "args": "b"}), "`args` is not a list"),
            (json!({"program": "a", "args": ["b", 1]}), "`args[1]` is not a string"),
            (json!({"program": "a", "env": {"LD_PRELOAD": "x"}}), "unknown field `env`"),
            (json!({"program": "a", "timeout_secs": 0}), "1 to 300"),
            (json!({"program": "a", "timeout_secs": 301}), "1 to 300"),
            (json!({"program": "a", "timeout_secs": -1}), "invalid value"),
            (json!({"program": "a", "timeout_secs": 1.5}), "`timeout_secs` is not a whole number"),
            (json!({"program": "a\0b"}), "NUL"),
            (json!({"program": "a", "args": ["\0"]}), "NUL"),
            (json!({"program": "a", "cwd": "\0"}), "NUL"),
            (json!({"program": "a", "args": ["x".repeat(MAX_ARGUMENTS)]}), "may have"),
        ] {
            let why = read(&args).unwrap_err();
            assert!(why.contains(says), "{args}: {why}");
        }
    }
}
