//! The command line as a whole: helps, completions, manual pages, older names and exit statuses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

/// Runs ringfence with nothing of this host: no home, no daemon.
fn ringfence(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command.env_clear().env("HOME", dir.path()).env("RINGFENCE_RUNTIME_DIR", dir.path());
    command.env("RINGFENCE_CONFIG_DIR", dir.path()).args(args).output().unwrap()
}

fn out(args: &[&str]) -> String {
    let output = ringfence(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_help_lists_commands_by_task_and_statuses() {
    let long = out(&["--help"]);
    for expected in
        ["\nRun LLM agents:\n  agent ", "\nControl MCP servers:\n  mcp ", "\nExit status:\n  0 ", "  125 "]
    {
        assert!(long.contains(expected), "{expected:?}: {long}");
    }
    for hidden in ["\n  why ", "\n  start ", "\n  daemon ", "\n  mcp-guard ", "\n  llm-worker "] {
        assert!(!long.contains(hidden), "{hidden:?}: {long}");
    }
    let short = out(&["-h"]);
    assert!(short.contains("\nExamples:\n") && !short.contains("Exit status"), "{short}");
    // A subcommand has clap's own layout, not the overview.
    let agent = out(&["agent", "--help"]);
    assert!(agent.contains("Usage: ringfence agent <COMMAND>") && agent.contains("\n  list "), "{agent}");
    assert!(!agent.contains("Control MCP servers"), "{agent}");
}

#[test]
fn completions_name_the_subcommands_and_nothing_hidden() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = out(&["completions", shell]);
        for name in ["approvals", "events", "rules", "confirm", "uninstall", "--on-audit-failure"] {
            // fish writes the long option's name alone.
            assert!(script.contains(name.trim_start_matches('-')), "{shell}: {name}");
        }
        for hidden in ["mcp-guard", "llm-worker", "llm-commands"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
}

#[test]
fn bash_completes_nouns_and_verbs() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("ringfence.bash");
    fs::write(&script, out(&["completions", "bash"])).unwrap();
    let complete = |words: &[&str]| -> BTreeSet<String> {
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let ask = format!(
            "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _ringfence ringfence '{last}' '{before}'; echo \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.iter().map(|word| format!("'{word}' ")).collect::<String>(),
            words.len() - 1
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(complete(&["ringfence", "ev"]), BTreeSet::from(["events".to_owned()]));
    assert_eq!(complete(&["ringfence", "agent", "st"]), ["start", "stop"].map(str::to_owned).into());
    assert_eq!(complete(&["ringfence", "mcp", "rules", "p"]), BTreeSet::from(["pending".to_owned()]));
    assert!(complete(&["ringfence", "daem"]).is_empty());
}

fn pages(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn manual_pages_are_one_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("new/man1");
    let told = out(&["man", man.to_str().unwrap()]);
    let pages = pages(&man);
    assert_eq!(told, format!("{} pages in {}\n", pages.len(), man.display()));
    for page in ["ringfence.1", "ringfence-run.1", "ringfence-agent-stop.1", "ringfence-mcp-rules-test.1"] {
        assert!(pages.contains(page), "{page}: {pages:?}");
    }
    for page in ["ringfence-why.1", "ringfence-daemon.1", "ringfence-help.1", "ringfence-agent-ls.1"] {
        assert!(!pages.contains(page), "{page}");
    }
    let text = fs::read_to_string(man.join("ringfence-mcp-rules.1")).unwrap();
    for expected in [
        ".TH ringfence-mcp-rules 1",
        "ringfence\\-mcp\\-rules\\-confirm(1)",
        ".SH EXAMPLES",
        "\\fBringfence-mcp\\fR(1)",
    ] {
        assert!(text.replace("\\-", "-").contains(&expected.replace("\\-", "-")), "{expected}: {text}");
    }
    let first = out(&["man"]);
    assert_eq!(first, fs::read_to_string(man.join("ringfence.1")).unwrap());
    for expected in [".SH \"EXIT STATUS\"", ".SH EXAMPLES", "agent", "approvals"] {
        assert!(first.contains(expected), "{expected}: {first}");
    }
    // Again, over what is there.
    out(&["man", man.to_str().unwrap()]);
    assert_eq!(self::pages(&man), pages);
}

#[test]
fn older_names_say_and_exit_as_their_commands_do() {
    let same = |old: &[&str], new: &[&str], status: i32| {
        let (old_output, new_output) = (ringfence(old), ringfence(new));
        assert_eq!(old_output.status.code(), Some(status), "{old:?}: {old_output:?}");
        assert_eq!(new_output.status.code(), Some(status), "{new:?}: {new_output:?}");
        // The temporary home's name is in some.
        let length = |output: &Output| (output.stdout.len(), output.stderr.len());
        assert_eq!(length(&old_output), length(&new_output), "{old_output:?} {new_output:?}");
    };
    same(&["version"], &["--version"], 0);
    same(&["show", "nobody"], &["agent", "show", "nobody"], 1);
    same(&["send", "nobody", "hi"], &["agent", "send", "nobody", "hi"], 1);
    same(&["logs", "nobody"], &["agent", "logs", "nobody"], 1);
    same(&["stop"], &["agent", "stop", "--all"], 1);
    same(&["agent", "ls"], &["agent", "list"], 1);
    same(&["why", "42"], &["events", "why", "42"], 1);
    same(&["trace"], &["events", "trace"], 1);
    same(&["events"], &["events", "list"], 1);
    let db = "--db=/nonexistent.db";
    same(&["sessions", db], &["mcp", "sessions", db], 1);
    same(&["calls", db], &["mcp", "calls", db], 1);
    same(&["stats", db], &["mcp", "stats", db], 1);
    same(&["approve", "3f2a", db], &["approvals", "approve", "3f2a", db], 1);
    same(&["deny", "3f2a", db], &["approvals", "deny", "3f2a", db], 1);
    let call = r#"{"name":"delete_file","arguments":{"path":"/tmp/x"}}"#;
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../profiles/rules.yaml");
    same(&["rules", "test", rules, "--call", call], &["mcp", "rules", "test", rules, "--call", call], 0);
    same(&["rules", "check", "/nonexistent"], &["mcp", "rules", "check", "/nonexistent"], 1);
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for line in
        [&["fly"][..], &["agent", "stop"], &["mcp"], &["events", "why", "x"], &["completions", "tcsh"]]
    {
        let output = ringfence(line);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{line:?}: {output:?}");
    }
}
