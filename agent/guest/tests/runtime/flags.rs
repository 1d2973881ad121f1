//! The command line: what it asks for, what it refuses and with which words.

use crate::daemon::binary;
use std::{fs, process::Command};

fn refused(flags: &[&str]) -> String {
    let output = Command::new(binary()).args(flags).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_seed_s_flags_are_required() {
    let said = refused(&[]);
    for flag in ["--system-prompt", "--tools", "--socket"] {
        assert!(said.contains(flag), "{said}");
    }
    assert!(refused(&["--tools", "bash"]).contains("--socket"));
}

#[test]
fn help_has_examples_and_defaults() {
    let output = Command::new(binary()).arg("--help").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for words in ["Examples:", "default: 100", "default: 30000", "bridge"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(Command::new(binary()).arg("--version").output().unwrap().status.success());
}

#[test]
fn what_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = dir.path().join("prompt.md");
    fs::write(&prompt, "x").unwrap();
    let prompt = prompt.to_str().unwrap();
    let with = |prompt: &str, tools: &str, more: &[&str]| {
        let mut flags = vec!["--system-prompt", prompt, "--tools", tools, "--socket", "/nonexistent"];
        flags.extend(more);
        refused(&flags)
    };
    assert!(with("/nonexistent/p.md", "bash", &[]).contains("/nonexistent/p.md: No such file or directory"));
    let said = with(prompt, "bash,fly", &[]);
    assert!(said.contains("no tool `fly`") && said.contains("bash, read_file, write_file"), "{said}");
    assert!(with(prompt, "bash,bash", &[]).contains("`bash` twice"));
    assert!(with(prompt, "bash", &["--max-output-chars", "0"]).contains("--max-output-chars"));
    assert!(with(prompt, "bash", &["--tool-timeout", "0"]).contains("--tool-timeout"));
    let binary_prompt = dir.path().join("bytes");
    fs::write(&binary_prompt, b"\xff\xfe").unwrap();
    assert!(with(binary_prompt.to_str().unwrap(), "bash", &[]).contains("not UTF-8"));
}
