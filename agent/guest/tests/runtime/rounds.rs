//! Rounds of tool calls: together, in order, up to a limit.

use crate::daemon::{Scene, eventually, human, results};
use serde_json::{Value, json};
use std::fs;

#[test]
fn five_calls_run_together_and_their_results_come_in_order() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    // Each waits until all have begun: one after the other they would never end.
    let calls: Vec<(String, Value)> = (0..5)
        .map(|index| {
            let wait = format!(
                "touch go.{index}; until [ $(ls go.* | wc -l) = 5 ]; do sleep 0.02; done; sleep 0.{}; echo {index}; exit {}",
                4 - index,
                index % 2
            );
            (format!("tc-{index}"), json!({"command": wait, "timeout": 300}))
        })
        .collect();
    let calls: Vec<(&str, &str, Value)> =
        calls.iter().map(|(id, input)| (id.as_str(), "bash", input.clone())).collect();
    let turn = daemon.round(&calls);
    let expected: Vec<(String, String, bool)> = (0..5)
        .map(|index| {
            let text =
                if index % 2 == 0 { format!("{index}\n") } else { format!("{index}\n[exit status 1]") };
            (format!("tc-{index}"), text, index % 2 == 1)
        })
        .collect();
    assert_eq!(results(&turn), expected);
}

#[test]
fn a_hundred_and_thirty_calls_are_128_and_two_refusals() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    let ids: Vec<String> = (0..130).map(|index| format!("tc-{index}")).collect();
    let calls: Vec<(&str, &str, Value)> =
        ids.iter().map(|id| (id.as_str(), "bash", json!({"command": format!("echo {id}")}))).collect();
    let turn = daemon.round(&calls);
    let results = results(&turn);
    assert_eq!(results.len(), 130);
    for (index, (id, text, is_error)) in results.into_iter().enumerate() {
        assert_eq!(id, ids[index]);
        assert_eq!(is_error, index >= 128);
        assert_eq!(text == format!("{id}\n"), index < 128, "{text}");
    }
}

#[test]
fn the_file_tools_work_in_the_working_directory() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let (said, is_error) = daemon.tool("write_file", json!({"path": "src/a.rs", "content": "fn a() {}\n"}));
    assert!(said.starts_with("wrote 10 bytes to ") && !is_error);
    let edit = json!({"path": "src/a.rs", "old_string": "a()", "new_string": "b()"});
    assert!(!daemon.tool("edit_file", edit.clone()).1);
    let (said, is_error) = daemon.tool("edit_file", edit);
    assert!(said.contains("does not occur in") && is_error);
    assert_eq!(daemon.tool("read_file", json!({"path": "src/a.rs"})), ("fn b() {}\n".to_owned(), false));
    assert_eq!(daemon.tool("list_directory", Value::Null), ("src/\n".to_owned(), false));
    assert_eq!(daemon.tool("search", json!({"pattern": "b\\("})).0, "src/a.rs:1: fn b() {}\n");
    assert_eq!(fs::read_to_string(scene.work().join("src/a.rs")).unwrap(), "fn b() {}\n");
}

#[test]
fn parallel_edits_of_one_file_are_all_there() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let before: String = (0..12).map(|line| format!("<{line}>\n")).collect();
    fs::write(scene.work().join("a"), before).unwrap();
    let ids: Vec<String> = (0..12).map(|index| index.to_string()).collect();
    let calls: Vec<(&str, &str, Value)> = ids
        .iter()
        .map(|id| {
            (
                id.as_str(),
                "edit_file",
                json!({"path": "a", "old_string": format!("<{id}>"), "new_string": format!("({id})")}),
            )
        })
        .collect();
    assert!(results(&daemon.round(&calls)).iter().all(|(_, _, is_error)| !is_error));
    let after: String = (0..12).map(|line| format!("({line})\n")).collect();
    assert_eq!(fs::read_to_string(scene.work().join("a")).unwrap(), after);
}

#[test]
fn a_file_tool_and_a_shell_keep_their_order() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    // A shell that is slow to write, and slow to read: whoever did not wait would see something else.
    let shell = |command: &str| json!({"command": format!("sleep 0.2; {command}; sleep 0.2")});
    let edit = |old: &str, new: &str| json!({"path": "a", "old_string": old, "new_string": new});
    for _ in 0..3 {
        let turn = daemon.round(&[
            ("1", "write_file", json!({"path": "a", "content": "one\n"})),
            ("2", "bash", shell("cat a; echo two > a")),
            ("3", "read_file", json!({"path": "a"})),
            ("4", "edit_file", edit("two", "three")),
            ("5", "edit_file", edit("three", "four")),
            ("6", "bash", shell("cat a")),
            ("7", "write_file", json!({"path": "a", "content": "five\n"})),
            ("8", "search", json!({"pattern": "five"})),
        ]);
        let results = results(&turn);
        assert!(results.iter().all(|(_, _, is_error)| !is_error), "{results:?}");
        let said = |at: usize| results[at].1.as_str();
        assert_eq!([said(1), said(2), said(5), said(7)], ["one\n", "two\n", "four\n", "a:1: five\n"]);
        assert_eq!(fs::read_to_string(scene.work().join("a")).unwrap(), "five\n");
        daemon.end(&turn);
    }
}

#[test]
fn what_cannot_be_run_gets_a_reason() {
    let scene = Scene::with_tools("bash,read_file", &[]);
    let mut daemon = scene.registered();
    let turn = daemon.round(&[
        ("1", "write_file", json!({"path": "a", "content": ""})),
        ("2", "bash", json!({"cmd": "ls"})),
        ("3", "bash", Value::Null),
        ("4", "read_file", json!({"path": "missing"})),
        ("5", "bash", json!({"command": "echo fine"})),
    ]);
    let results = results(&turn);
    assert_eq!(results[0].1, "there is no tool `write_file` here; there are: bash, read_file");
    assert!(
        results[1].1.contains("unknown field `cmd`, expected `command` or `timeout`"),
        "{}",
        results[1].1
    );
    assert!(results[2].1.contains("bash cannot use this input"));
    assert!(
        results[3].1.starts_with("cannot open /") && results[3].1.contains("No such file"),
        "{}",
        results[3].1
    );
    assert_eq!(results[4].1, "fine\n");
    let errors: Vec<bool> = results.iter().map(|(_, _, is_error)| *is_error).collect();
    assert_eq!(errors, [true, true, true, true, false]);
    assert!(!scene.work().join("a").exists());
}

#[test]
fn the_limit_of_rounds_answers_the_turn_and_frees_the_agent() {
    let (scene, mut daemon) = Scene::with_daemon(&["--max-iterations", "2"]);
    let call = [("x", "bash", json!({"command": "echo run >> runs; echo ran"}))];
    let mut turn = daemon.round(&call);
    daemon.call(&turn, &call);
    turn = daemon.receive();
    assert!(turn["params"].get("stop").is_none());
    daemon.call(&turn, &call);
    turn = daemon.receive();
    assert_eq!(turn["params"]["stop"], "max_iterations");
    let result = results(&turn).remove(0);
    assert!(result.1.starts_with("not run: the limit of 2 rounds") && result.2, "{}", result.1);
    assert_eq!(fs::read_to_string(scene.work().join("runs")).unwrap(), "run\nrun\n");
    daemon.answer(&turn, &json!({"stop_reason": "max_iterations", "content": []}));
    // The next message has all its rounds.
    assert_eq!(daemon.bash("echo next").0, "next\n");
}

#[test]
fn a_daemon_that_ignores_the_limit_is_left_after_three_answers() {
    let (scene, mut daemon) = Scene::with_daemon(&["--max-iterations", "0"]);
    let call = [("x", "bash", json!({"command": "touch ran"}))];
    daemon.human("Go");
    let mut turn = daemon.receive();
    for _ in 0..3 {
        daemon.call(&turn, &call);
        turn = daemon.receive();
        assert_eq!(turn["params"]["stop"], "max_iterations");
    }
    daemon.call(&turn, &call);
    assert!(daemon.receive_bytes().is_none());
    let mut daemon = scene.registered();
    daemon.say(&human("again"));
    assert_eq!(daemon.receive()["params"]["messages"][0]["role"], "user");
    assert!(!scene.work().join("ran").exists());
}

#[test]
fn results_that_fit_no_message_together_are_cut_until_they_do() {
    let (_scene, mut daemon) = Scene::with_daemon(&["--max-output-chars", "2000000"]);
    // Control characters take six bytes each in JSON: 12 MB a call.
    let command = json!({"command": "head -c 2000000 /dev/zero | tr '\\0' '\\1'"});
    let ids = ["1", "2", "3"];
    let calls: Vec<(&str, &str, Value)> = ids.iter().map(|id| (*id, "bash", command.clone())).collect();
    let turn = daemon.round(&calls);
    let results = results(&turn);
    assert_eq!(results.len(), 3);
    for (_, text, _) in results {
        assert!(text.contains("[...truncated ") && text.chars().count() <= 1_000_000);
        assert!(text.chars().count() > 100_000);
    }
}

#[test]
fn a_call_with_a_lock_in_its_way_ends_in_time() {
    let (scene, mut daemon) = Scene::with_daemon(&["--tool-timeout", "1"]);
    fs::write(scene.work().join("a"), "x").unwrap();
    let directory = fs::File::open(scene.work()).unwrap();
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let edit = json!({"path": "a", "old_string": "x", "new_string": "y"});
    let (said, is_error) = daemon.tool("edit_file", edit.clone());
    assert_eq!((said.as_str(), is_error), ("[killed after 1 seconds, the time for this call]", true));
    drop(directory);
    // On a busy machine an edit may be over its second with nothing in its way.
    let is_done = || fs::read_to_string(scene.work().join("a")).unwrap() == "y";
    eventually("the edit", || (!daemon.tool("edit_file", edit.clone()).1 || is_done()).then_some(()));
    assert!(is_done());
}
