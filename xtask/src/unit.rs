//! Unit and black-box tests: every one that needs no kernel of its own.

use crate::build;
use crate::guest;
use crate::report::{quietly, say, tail};
use crate::vm_test::Tally;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What selects the unit tests.
const UNITS: [&str; 2] = ["--lib", "--bins"];

/// Compiles them; the names of those that are programs of their own, from `tests/`.
///
/// # Errors
/// What the compiler said.
pub(crate) fn compile() -> Result<BTreeSet<String>> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--quiet", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    Ok(targets(&quietly(&mut cargo).context("the tests do not compile")?))
}

/// Targets of the kind `test` among cargo's messages.
fn targets(messages: &str) -> BTreeSet<String> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let targets =
        artifacts.map(|message| message["target"].clone()).filter(|target| target["kind"][0] == "test");
    targets.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect()
}

/// Compiles and runs them, `at_once` programs at a time; each test function counts.
///
/// # Errors
/// Where they do not compile, or cargo failed though no test did.
pub(crate) fn tests(at_once: usize) -> Result<Tally> {
    let programs = compile()?;
    let jobs: Vec<Vec<&str>> = if at_once == 1 {
        vec![vec![]]
    } else {
        let own = programs.iter().map(|name| vec!["--test", name.as_str()]);
        [UNITS.to_vec()].into_iter().chain(own).chain([vec!["--doc"]]).collect()
    };
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run(job);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().map_err(|_| anyhow!("a thread that ran tests panicked"))?;
    if outcomes.len() != jobs.len() {
        bail!("{} of {} test programs were not run", jobs.len() - outcomes.len(), jobs.len());
    }
    let mut tally = Tally::default();
    for outcome in outcomes {
        let outcome = outcome?;
        tally.passed += outcome.passed;
        tally.failed.extend(outcome.failed);
    }
    if tally.passed == 0 && tally.failed.is_empty() {
        bail!("cargo test ran no test at all");
    }
    say(&format!("unit and black-box tests: {} passed, {} failed", tally.passed, tally.failed.len()));
    Ok(tally)
}

/// Unit tests alone.
///
/// # Errors
/// As [`tests`].
pub(crate) fn units() -> Result<Tally> {
    quietly(build::cargo().args(["test", "--quiet", "--workspace", "--no-run"]).args(UNITS))
        .context("the tests do not compile")?;
    let tally = run(&UNITS)?;
    say(&format!("unit tests: {} passed, {} failed", tally.passed, tally.failed.len()));
    Ok(tally)
}

/// Runs what `selected` selects.
fn run(selected: &[&str]) -> Result<Tally> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]).args(selected).stdin(Stdio::null());
    // Programs for containers are tested as they ship. Where they cannot be built, a check of its own has said why.
    if let Ok(programs) = guest::programs() {
        cargo.env("RINGFENCE_RUNTIME", programs.runtime).env("RINGFENCE_TOOLRUNNER", programs.toolrunner);
    }
    let mut running =
        cargo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start cargo test")?;
    let errors = running.stderr.take().context("cargo test has no standard error")?;
    // Read beside, so that neither pipe fills up.
    let errors = thread::spawn(move || {
        let mut text = String::new();
        let _ = BufReader::new(errors).read_to_string(&mut text);
        text
    });
    let mut tally = Tally::default();
    let output = running.stdout.take().context("cargo test has no standard output")?;
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read what cargo test says")?;
        match verdict(&line) {
            Some((_, "ok")) => tally.passed += 1,
            Some((name, "FAILED")) => tally.failed.push(name.to_owned()),
            _ if is_noise(&line) => {}
            _ => println!("  {line}"),
        }
    }
    let status = running.wait().context("cannot wait for cargo test")?;
    let errors = errors.join().unwrap_or_default();
    if !status.success() && tally.failed.is_empty() {
        bail!("cargo test failed ({status}), though no test did:\n{}", tail(&errors, 60));
    }
    Ok(tally)
}

/// `(name, result)` of a line such as `test wire::frame ... ok`.
fn verdict(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.rsplit_once(" ... ")
}

/// Lines of cargo test that say nothing beyond what is counted.
fn is_noise(line: &str) -> bool {
    line.trim().is_empty()
        || line.starts_with("running ")
        || line.starts_with("test result: ok")
        || verdict(line).is_some_and(|(_, result)| result.starts_with("ignored"))
}

#[cfg(test)]
mod tests {
    use super::{is_noise, targets, verdict};

    #[test]
    fn programs_of_tests_are_told_from_libraries_once_each() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"mcp"}}
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"wire"}}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"mcp"}}
not JSON
{"reason":"build-finished","success":true}"#;
        assert_eq!(targets(messages).into_iter().collect::<Vec<_>>(), ["mcp"]);
    }

    #[test]
    fn a_tests_line_gives_its_name_and_result() {
        assert_eq!(verdict("test frame::tests::whole ... ok"), Some(("frame::tests::whole", "ok")));
        assert_eq!(verdict("test a ... FAILED"), Some(("a", "FAILED")));
        assert_eq!(verdict("testing 1 ... ok"), None);
        assert!(is_noise("test result: ok. 3 passed; 0 failed"));
        assert!(!is_noise("test result: FAILED. 3 passed; 1 failed"));
        assert!(!is_noise("thread 'a' panicked at src/lib.rs:1"));
    }
}
