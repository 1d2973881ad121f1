//! Where the grant comes from, and what is said of a bad one.

use crate::{Host, call, grant};
use serde_json::json;
use std::fs;

#[test]
fn without_a_grant_everything_is_denied_and_that_is_said() {
    let said = Host::new().say(
        &[],
        &[call(1, "shell", json!({"program": "echo"})), call(2, "read_file", json!({"path": "x"}))],
    );
    assert!(said.success);
    assert!(said.errors.contains("no grant was given, so every call is denied"), "{}", said.errors);
    for id in [1, 2] {
        said.outcome(id).denied();
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
    for text in ["", "{}", "[1,2]", "\u{0}1", "{\"fs_read\":\"all\",\"fs_read\":\"all\"}"] {
        if text.is_empty() || text.contains('\0') {
            continue;
        }
        let said = Host::new().with("RINGFENCE_GRANT", text).say(&[], &[]);
        assert!(!said.success && said.errors.contains("RINGFENCE_GRANT is not a grant"), "{}", said.errors);
    }
}

#[test]
fn a_profile_gives_its_grant_and_its_denies() {
    let host = Host::new();
    fs::create_dir_all(host.path("etc/profiles")).unwrap();
    let work = host.path("work").display().to_string();
    fs::write(
        host.path("etc/profiles/p.toml"),
        format!(
            "[grant]\nfs_read = {{ only = [\"{work}\"] }}\nfs_write = {{ only = [] }}\nexec = {{ only = [\"echo\", \"cat\"] }}\n\
             net = {{ only = [] }}\nmax_calls = {{ at_most = 9 }}\nvalid_for_generation = \"all\"\n[deny]\nfs_read = [\"**/secret\"]\nexec = [\"cat\"]\n"
        ),
    )
    .unwrap();
    fs::write(host.path("work/plain"), "plain\n").unwrap();
    fs::write(host.path("work/secret"), "secret\n").unwrap();
    let said = host.say(
        &["--profile", "p"],
        &[
            call(1, "read_file", json!({"path": "plain"})),
            call(2, "read_file", json!({"path": "secret"})),
            call(3, "shell", json!({"program": "echo", "args": ["hi"]})),
            call(4, "shell", json!({"program": "cat", "args": ["plain"]})),
        ],
    );
    assert_eq!(said.outcome(1).text, "plain\n", "{}", said.errors);
    assert!(said.outcome(2).text.contains("forbidden by the rule **/secret"), "{:?}", said.outcome(2));
    assert_eq!(said.outcome(3).stdout(), "hi\n");
    assert!(said.outcome(4).denied().contains("forbidden by the rule cat"));
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
    assert_eq!(run(&["grant", "show"]).0, Some(0));
}
