//! Every decision of the gate, on record: denials on standard error, and all of them in a file where one is named.

use ringfence_grant::gate::{Decision, Outcome, Question, Record};
use serde_json::{Value, json};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most characters of a target that are kept: a model may send a path of any length.
const SHOWN: usize = 1_000;

/// Writes decisions down. What cannot be written is counted.
#[derive(Debug, Default)]
pub struct Recorder {
    file: Option<Mutex<File>>,
    lost: AtomicU64,
}

impl Recorder {
    /// Denials on standard error only.
    pub fn quiet() -> Self {
        Self::default()
    }

    /// And all decisions behind what is in a file, one JSON object a line. Only its owner can read a new one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn into_file(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Self { file: Some(Mutex::new(file)), lost: AtomicU64::new(0) })
    }
}

impl Record for Recorder {
    fn record(&self, decision: &Decision<'_>) {
        if let Outcome::Denied(denied) = decision.outcome {
            let text = shorten(&denied.to_string());
            // Whoever started us may have closed it.
            let _ = writeln!(io::stderr(), "ringfence tools: {}: {text}", decision.tool);
        }
        let Some(file) = &self.file else { return };
        let mut line = line(decision, self.lost.load(Ordering::Relaxed)).to_string();
        line.push('\n');
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write: lines of several sessions do not mix.
        match file.write(line.as_bytes()) {
            Ok(written) if written == line.len() => {}
            _ => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn line(decision: &Decision<'_>, lost: u64) -> Value {
    let (asked, target) = match decision.question {
        Question::Call => ("call", None),
        Question::Exec(path) => ("exec", Some(path.to_string_lossy().into_owned())),
        Question::Read(path) => ("read", Some(path.to_string_lossy().into_owned())),
        Question::Write(path) => ("write", Some(path.to_string_lossy().into_owned())),
        Question::Net { host, port, .. } => ("net", Some(format!("{host}:{port}"))),
    };
    let (outcome, reason) = match decision.outcome {
        Outcome::Allowed => ("allowed", "within the granted authority".to_owned()),
        Outcome::Denied(denied) => ("denied", denied.to_string()),
        Outcome::Refused(why) => ("refused", why.to_owned()),
        Outcome::Cancelled(why) => ("cancelled", why.to_owned()),
    };
    json!({
        "at": jiff::Timestamp::now().to_string(),
        "pid": std::process::id(),
        "tool": decision.tool,
        "asked": asked,
        "target": target.map(|target| shorten(&target)),
        "outcome": outcome,
        "reason": shorten(&reason),
        "calls": decision.used,
        "lost": lost,
    })
}

fn shorten(text: &str) -> String {
    let flat = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN).map(flat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_grant::gate::{Axis, Denied};

    #[test]
    fn a_decision_is_a_line_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("decisions");
        let recorder = Recorder::into_file(&path).unwrap();
        let denied = Denied::Scope { axis: Axis::Exec, target: "rm\n".repeat(1000) };
        for outcome in [Outcome::Allowed, Outcome::Denied(&denied)] {
            let question = Question::Exec(Path::new("rm\n"));
            recorder.record(&Decision { tool: "shell", question, outcome, used: 3 });
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["outcome"], "allowed");
        assert_eq!(lines[1]["asked"], "exec");
        assert_eq!(lines[1]["target"], "rm\u{fffd}");
        assert!(lines[1]["reason"].as_str().unwrap().starts_with("denied: exec of"));
        assert!(lines[1].to_string().len() < 2 * SHOWN);
    }
}
