//! Where the grant comes from, and what is said of a bad one.

use crate::{Host, Said, call, grant};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt};

#[test]
fn without_a_grant_everything_is_denied_and_that_is_said() {
    let said = Host::new().say(
        &[],
        &[call(1, "shell", json!({"program": "echo"})), call(2, "read_file", json!({"path": "x"}))],
    );
    assert!(said.success);
    assert!(said.errors.contains("there is no grant, so every call is denied"), "{}", said.errors);
    for id in [1, 2] {
        assert!(said.outcome(id).denied().contains("nothing is granted in this session"));
    }
}

#[test]
fn a_bad_grant_starts_nothing_and_names_the_field() {
    let good = grant(&["echo"], json!({}));
    for (field, value, said) in [
        ("exec", json!(null), "`exec`"),
        ("exec", json!("some"), "`exec`"),
        ("exec", json!({"only": ["echo", 7]}), "`exec.only[1]`"),
        ("exec", json!({"only": [""]}), "`exec.only[0]`"),
        ("exec", json!({"only": ["bin/echo"]}), "`exec.only[0]`"),
        ("fs_read", json!({"only": ["relative"]}), "`fs_read.only[0]`"),
        ("fs_write", json!({"only": ["/a/../b"]}), "`fs_write.only[0]`"),
        ("net", json!({"only": ["http://example.com"]}), "`net.only[0]`"),
        ("max_calls", json!(-1), "`max_calls`"),
        ("valid_for_generation", json!({"only": ["one"]}), "`valid_for_generation.only[0]`"),
        ("extra", json!("all"), "`extra`"),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let said_of = Host::granting(&bad).say(&[], &[call(1, "shell", json!({"program": "echo"}))]);
        assert!(!said_of.success && said_of.lines.is_empty(), "{bad}");
        assert!(
            said_of.errors.contains("RINGFENCE_GRANT") && said_of.errors.contains(said),
            "{}",
            said_of.errors
        );
    }
    // What is set to nothing is no way to the next source, which may grant more.
    for text in ["", " ", "{}", "[1,2]", "{\"fs_read\":\"all\",\"fs_read\":\"all\"}"] {
        for variable in ["RINGFENCE_GRANT", "AGENT_BRIDLE_CAVEATS"] {
            let said = Host::new().with(variable, text).say(&[], &[]);
            let named = format!("{variable} is not a grant");
            assert!(!said.success && said.errors.contains(&named), "{text:?}: {}", said.errors);
        }
    }
}

/// Writes the profile `p`, which reads the working directory.
fn profile(host: &Host, grant: &str, deny: &str) {
    fs::create_dir_all(host.path("etc/profiles")).unwrap();
    let work = host.path("work").display().to_string();
    let text = format!(
        "[grant]\nfs_read = {{ only = [\"{work}\"] }}\nfs_write = {{ only = [] }}\nnet = {{ only = [] }}\n\
         valid_for_generation = \"all\"\n{grant}\n[deny]\n{deny}\n"
    );
    fs::write(host.path("etc/profiles/p.toml"), text).unwrap();
}

#[test]
fn a_profile_gives_its_grant_and_its_denies() {
    let host = Host::new();
    profile(
        &host,
        "exec = { only = [\"echo\", \"cat\"] }\nmax_calls = { at_most = 9 }",
        "fs_read = [\"**/secret\", \"**/*.pem\"]\nexec = [\"cat\"]",
    );
    fs::write(host.path("work/a.pem"), "pem\n").unwrap();
    fs::write(host.path("work/plain"), "plain\n").unwrap();
    fs::write(host.path("work/secret"), "secret\n").unwrap();
    let said = host.say(
        &["--profile", "p"],
        &[
            call(1, "read_file", json!({"path": "plain"})),
            call(2, "read_file", json!({"path": "secret"})),
            call(3, "shell", json!({"program": "echo", "args": ["hi"]})),
            call(4, "shell", json!({"program": "cat", "args": ["plain"]})),
            call(5, "read_file", json!({"path": "a.pem"})),
        ],
    );
    assert_eq!(said.outcome(1).text, "plain\n", "{}", said.errors);
    assert!(said.outcome(5).text.contains("forbidden by the rule **/*.pem"), "{:?}", said.outcome(5));
    assert!(said.outcome(2).text.contains("forbidden by the rule **/secret"), "{:?}", said.outcome(2));
    assert_eq!(said.outcome(3).stdout(), "hi\n");
    assert!(said.outcome(4).denied().contains("forbidden by the rule cat"));
    // What is explained is what the gate does.
    for (what, target, allowed) in
        [("read", "plain", true), ("read", "secret", false), ("exec", "echo", true), ("exec", "cat", false)]
    {
        let output = host.command(&["grant", "explain", "p", what, target]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.success(), allowed, "{what} {target}: {text}");
        assert!(text.contains(if allowed { "allowed by" } else { "forbidden by the rule" }), "{text}");
    }
}

#[test]
fn a_glob_passes_over_what_a_profile_denies() {
    let host = Host::new();
    let closed = host.path("work/closed").display().to_string();
    profile(
        &host,
        "exec = { only = [\"echo\"] }\nmax_calls = \"unlimited\"",
        &format!("fs_read = [\"{closed}\", \"**/hidden\"]"),
    );
    for dir in ["open", "closed", "hidden"] {
        fs::create_dir(host.path("work").join(dir)).unwrap();
        fs::write(host.path("work").join(dir).join("name"), "x").unwrap();
    }
    let lines = [
        call(1, "shell", json!({"script": "echo */n*"})),
        call(2, "shell", json!({"script": "echo closed/n*"})),
    ];
    let said = host.say(&["--profile", "p"], &lines);
    assert_eq!(said.outcome(1).stdout(), "open/name\n", "{}", said.errors);
    assert!(said.outcome(2).denied().contains("forbidden by the rule"), "{:?}", said.outcome(2));
}

#[test]
fn the_budget_holds_over_the_session() {
    let host = Host::granting(&grant(&["true"], json!({"max_calls": {"at_most": 50}})));
    // Eight calls run at once; denials among them cost nothing.
    let lines: Vec<String> = (0..120)
        .map(|id| call(id, "shell", json!({"program": if id % 3 == 0 { "rm" } else { "true" }})))
        .collect();
    let said = host.say(&[], &lines);
    let outcomes: Vec<_> = (0..120).map(|id| said.outcome(id)).collect();
    assert_eq!(outcomes.iter().filter(|outcome| !outcome.is_error).count(), 50, "{}", said.errors);
    let used_up = outcomes.iter().filter(|o| o.text == "denied: the 50 granted calls are used up").count();
    assert!(used_up >= 30, "{used_up}");
}

#[test]
fn decisions_are_recorded_with_their_reasons() {
    let host = Host::granting(&grant(&["echo"], json!({})));
    let record = host.path("decisions");
    let lines = [call(1, "shell", json!({"program": "echo"})), call(2, "shell", json!({"program": "rm"}))];
    let said = host.say(&["--record", record.to_str().unwrap()], &lines);
    assert_eq!(said.lines.len(), 2);
    let text = fs::read_to_string(record).unwrap();
    let decisions: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |outcome: &str, target: &str| {
        decisions.iter().any(|d| d["outcome"] == outcome && d["asked"] == "exec" && d["target"] == target)
    };
    assert!(find("allowed", "echo") && find("denied", "rm"), "{text}");
    assert!(decisions.iter().all(|d| !d["reason"].as_str().unwrap().is_empty()));
}

#[test]
fn grants_are_shown_compared_and_explained() {
    let host = Host::new();
    let small = grant(&["echo"], json!({"net": {"only": ["example.com:443"]}})).to_string();
    let large = grant(&["echo", "git"], json!({})).to_string();
    let run = |arguments: &[&str]| {
        let output = host.command(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (code, shown) = run(&["grant", "show", &small]);
    assert_eq!(
        (code, serde_json::from_str::<serde_json::Value>(&shown).unwrap().to_string()),
        (Some(0), small.parse::<serde_json::Value>().unwrap().to_string())
    );
    let (_, met) = run(&["grant", "meet", &small, &large]);
    assert_eq!(met, shown);
    assert_eq!(run(&["grant", "leq", &small, &large]).0, Some(0));
    let (code, text) = run(&["grant", "leq", &large, &small]);
    assert_eq!(code, Some(1));
    assert!(text.contains("exec of \"git\""), "{text}");
    for (what, target, allowed) in [
        ("exec", "echo", true),
        ("exec", "rm", false),
        ("net", "example.com:443", true),
        ("net", "example.com:80", false),
        ("net", "169.254.169.254", false),
        ("read", "/etc/passwd", true),
    ] {
        let (code, text) = run(&["grant", "explain", &small, what, target]);
        assert_eq!(code, Some(i32::from(!allowed)), "{what} {target}: {text}");
        assert!(text.starts_with(if allowed { "allowed" } else { "denied: " }), "{text}");
    }
    let (code, text) = run(&["grant", "show", "{\"exec\":\"all\"}"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("`fs_read` is missing"), "{text}");
    let (code, text) = run(&["grant", "show"]);
    assert!(code == Some(0) && text.contains("there is no grant here"), "{text}");
    let (code, text) = run(&["grant", "leq", "-", "-"]);
    assert!(code == Some(1) && text.contains("standard input can hold only one"), "{text}");
    let (code, text) = run(&["grant", "explain", &large, "net", "https://example.com/"]);
    assert!(code == Some(1) && text.contains("is a URL or a range"), "{text}");

    let file = host.path("work/config.toml");
    fs::write(&file, "[caveats]\nfs_read = \"all\"\n").unwrap();
    let (code, text) = run(&["grant", "show", file.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(text.contains("config.toml") && text.contains("`fs_write` is missing"), "{text}");
}

/// What an earlier session left in a directory that the grant lets tools write does not stand for a name of the grant,
/// even where PATH has it first.
#[test]
fn a_name_is_no_program_that_an_earlier_session_planted() {
    let host = Host::new();
    let bin = host.path("work/bin");
    fs::create_dir(&bin).unwrap();
    for name in ["uname", "planted"] {
        fs::write(bin.join(name), "#!/bin/sh\necho planted\n").unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let writes = |dir: &str| json!({"fs_write": {"only": [host.path(dir)]}});
    let names = ["uname", "planted", "sh"];
    let run = |granted: Value, lines: &[String]| {
        let mut command = host.command(&["tools"]);
        command.env("PATH", &path).env("RINGFENCE_GRANT", granted.to_string());
        let output = command.write_stdin(lines.concat()).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Said { lines, errors: String::from_utf8_lossy(&output.stderr).into_owned(), success: true }
    };
    let lines: Vec<String> = (1..)
        .zip([json!({"program": "uname"}), json!({"program": "planted"}), json!({"script": "uname | cat"})])
        .map(|(id, arguments)| call(id, "shell", arguments) + "\n")
        .collect();
    let said = run(grant(&names, writes("work")), &lines);
    assert_eq!(said.outcome(1).stdout(), "Linux\n");
    assert!(said.outcome(2).denied().contains("planted"), "{:?}", said.outcome(2));
    assert!(said.errors.contains("no name in `exec` means a program in"), "{}", said.errors);
    // Who may not write there could not have planted them, and who is granted the path is granted what lies there.
    let said = run(grant(&names, writes("out")), &lines);
    assert_eq!(said.outcome(1).stdout(), "planted\n", "{}", said.errors);
    assert_eq!(said.outcome(2).stdout(), "planted\n");
    assert!(!said.errors.contains("no name in `exec`"), "{}", said.errors);
    let by_path = [bin.to_str().unwrap(), "sh"];
    assert_eq!(run(grant(&by_path, writes("work")), &lines).outcome(1).stdout(), "planted\n");
}

/// One directory for every tool, also where it was named by a link that has been turned since.
#[test]
fn relative_paths_start_at_one_directory_for_every_tool() {
    let host = Host::granting(&grant(&["cat", "pwd"], json!({})));
    for name in ["work", "out"] {
        fs::write(host.path(name).join("which"), name).unwrap();
    }
    std::os::unix::fs::symlink("out", host.path("link")).unwrap();
    let link = host.path("link");
    for (arguments, expected) in [(vec![], "work"), (vec!["--workdir", link.to_str().unwrap()], "out")] {
        let calls = [
            call(1, "read_file", json!({"path": "which"})),
            call(2, "shell", json!({"program": "cat", "args": ["which"]})),
            call(3, "shell", json!({"script": "cat < ./which"})),
            call(4, "shell", json!({"program": "cat", "args": ["which"], "cwd": "."})),
        ];
        let said = host.say(&arguments, &calls);
        assert!(said.outcome(1).text.contains(expected), "{:?}", said.outcome(1));
        for id in 2..=4 {
            assert_eq!(said.outcome(id).stdout(), expected);
        }
    }
}
