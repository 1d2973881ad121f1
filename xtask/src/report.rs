//! What the person sees while something takes long: a spinner on a terminal, plain lines elsewhere, all on stderr.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Says one line.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// Does something long, saying what before and how long it took after.
pub(crate) fn step<T>(what: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    if !std::io::stderr().is_terminal() {
        say(&format!("{what} ..."));
    }
    let result = brief(what, action);
    let seconds = start.elapsed().as_secs_f32();
    match &result {
        Ok(_) => say(&format!("{what}: done in {seconds:.1} s")),
        Err(_) => say(&format!("{what}: failed after {seconds:.1} s")),
    }
    result
}

/// Does something that is often quick: a spinner on a terminal, nothing elsewhere.
pub(crate) fn brief<T>(what: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
    let spinner = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    });
    let result = action();
    if let Some(bar) = spinner {
        bar.finish_and_clear();
    }
    result
}

/// Runs a command with nothing on stdin and its output kept; a failure is an error with the command and the end of what it said.
pub(crate) fn quietly(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        bail!("`{shown}` failed ({}):\n{}", output.status, tail(&said, 40));
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed something that is not UTF-8"))
}

/// The command line as a person would type it, roughly.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// The last `lines` lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
