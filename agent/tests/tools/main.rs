//! `ringfence tools` as an MCP client meets it, on a host where no daemon answers.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancel;
mod denied;
mod grants;
mod live;
mod outlive;
mod protocol;
mod shell;

use assert_cmd::Command;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};
use tempfile::TempDir;

/// How long a session may take before a test fails instead of hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// A user with a home of their own and no daemon.
struct Host {
    dir: TempDir,
    /// The home's real path.
    home: PathBuf,
    variables: BTreeMap<String, String>,
}

/// What a session said.
struct Said {
    lines: Vec<Value>,
    errors: String,
    success: bool,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        for name in ["work", "out", "run", "config"] {
            fs::create_dir(home.join(name)).unwrap();
        }
        Self { dir, home, variables: BTreeMap::new() }
    }

    fn granting(grant: &Value) -> Self {
        Self::new().with("RINGFENCE_GRANT", &grant.to_string())
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.dir.path());
        command.env("XDG_CONFIG_HOME", self.path("config")).env("RINGFENCE_RUNTIME_DIR", self.path("run"));
        command.env("RINGFENCE_CONFIG_DIR", self.path("etc")).envs(&self.variables);
        command.args(arguments).current_dir(self.path("work")).timeout(LIMIT);
        command
    }

    /// A whole session: the lines go in, the input ends, what is said comes out.
    fn say(&self, arguments: &[&str], lines: &[String]) -> Said {
        let mut all = vec!["tools"];
        all.extend(arguments);
        let input = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let output = self.command(&all).write_stdin(input).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        Said {
            lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
            success: output.status.success(),
        }
    }

    /// One call's result.
    fn call(&self, tool: &str, arguments: Value) -> Outcome {
        let said = self.say(&[], &[call(1, tool, arguments)]);
        said.outcome(1)
    }
}

/// A call's result as a model sees it.
#[derive(Debug)]
struct Outcome {
    text: String,
    is_error: bool,
}

impl Outcome {
    /// The envelope of a command that ran.
    fn envelope(&self) -> Value {
        assert!(!self.is_error, "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }

    fn stdout(&self) -> String {
        self.envelope()["stdout"].as_str().unwrap().to_owned()
    }

    fn denied(&self) -> &str {
        assert!(self.is_error && self.text.starts_with("denied: "), "{self:?}");
        &self.text
    }
}

impl Said {
    fn answer(&self, id: u64) -> &Value {
        let mut answers = self.lines.iter().filter(|line| line["id"] == id);
        let first =
            answers.next().unwrap_or_else(|| panic!("no answer {id}: {:?} {}", self.lines, self.errors));
        assert!(answers.next().is_none(), "two answers {id}");
        first
    }

    fn outcome(&self, id: u64) -> Outcome {
        let answer = self.answer(id);
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str();
        Outcome {
            text: text.unwrap_or_else(|| panic!("{answer} {}", self.errors)).to_owned(),
            is_error: result["isError"].as_bool().unwrap(),
        }
    }
}

fn request(id: u64, method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string()
}

fn call(id: u64, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// A grant of some programs, with everything else as it says.
fn grant(exec: &[&str], rest: Value) -> Value {
    let mut grant = json!({
        "fs_read": "all", "fs_write": "all", "exec": {"only": exec}, "net": "all",
        "max_calls": "unlimited", "valid_for_generation": "all",
    });
    for (key, value) in rest.as_object().unwrap() {
        grant[key] = value.clone();
    }
    grant
}
