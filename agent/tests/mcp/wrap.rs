//! `ringfence mcp wrap`: what a client's configuration becomes, that it works then, and that it can be undone.

use crate::support::{Client, Home, SERVER, answered};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Output},
};

fn wrap(home: &Home, arguments: &[&str]) -> Output {
    home.ringfence(&["mcp", "wrap"]).args(arguments).output().expect("ringfence")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_wrapped_server_works_and_is_unwrapped_to_what_it_was() {
    let home = Home::new();
    let file = home.text("client.json");
    let config = json!({ "mcpServers": { "kept": { "command": "python3", "args": [SERVER, home.text("received")],
        "env": { "TOKEN": "x" } }, "remote": { "url": "https://example.com/mcp" } } });
    let text = serde_json::to_string_pretty(&config).expect("JSON");
    fs::write(&file, &text).expect("written");
    let asked = wrap(&home, &[&file]);
    assert_eq!(asked.status.code(), Some(1), "nobody said yes");
    assert!(said(&asked.stdout).contains("+      \"command\": "), "the difference comes first");
    assert!(said(&asked.stderr).contains("unchanged") && fs::read_to_string(&file).expect("text") == text);

    let done = wrap(&home, &[&file, "--yes"]);
    assert!(done.status.success(), "{}", said(&done.stderr));
    assert!(said(&done.stderr).contains("remote: left as it is"), "{}", said(&done.stderr));
    assert_eq!(fs::read_to_string(home.path("client.json.before-ringfence")).expect("a backup"), text);
    let wrapped: Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("text")).expect("JSON, as it was");
    let server = &wrapped["mcpServers"]["kept"];
    assert_eq!(server["env"]["TOKEN"], "x");

    // As the client would start it.
    let mut command = Command::new(server["command"].as_str().expect("a command"));
    home.settle(&mut command);
    command.args(server["args"].as_array().expect("arguments").iter().filter_map(Value::as_str));
    let mut client = Client::start(&mut command);
    client.call("1", "read_it");
    assert_eq!(client.out.line(), answered("1"));
    assert!(client.end().success());
    let sessions = home.output(&["mcp", "sessions", "--json"]);
    assert!(sessions.contains("\"server_name\":\"kept\""), "{sessions}");

    let undone = wrap(&home, &[&file, "--undo", "--yes"]);
    assert!(undone.status.success(), "{}", said(&undone.stderr));
    let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(value(&fs::read_to_string(&file).expect("text")), config);
}

#[test]
fn what_a_projects_file_says_is_shown_and_not_obeyed() {
    let home = Home::new();
    let file = home.text("hostile.json");
    // The comment would move the cursor up and rub out a line; the name turns the text around.
    let text = "{\"mcpServers\":{\"a\u{202e}b\":{\n\"command\": \"x\", // \u{1b}[1A\u{1b}[2K\n\"args\": [\"y\"]},\"c\u{9b}d\":{\"url\":\"u\"}}}";
    fs::write(&file, text).expect("written");
    let done = wrap(&home, &[&file]);
    let shown = said(&done.stdout) + &said(&done.stderr);
    assert!(shown.contains("\\x1b[2K"), "{shown:?}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{shown:?}");
}

#[test]
fn what_cannot_be_wrapped_is_said_with_the_files_name() {
    let home = Home::new();
    for (text, why) in [
        ("{\"mcpServers\":", "not JSON"),
        ("{}", "it has no servers"),
        ("[]", "it has no servers"),
        ("\u{fffd}", "not JSON"),
    ] {
        let file = home.text("bad.json");
        fs::write(&file, text).expect("written");
        let done = wrap(&home, &[&file, "--yes"]);
        let errors = said(&done.stderr);
        assert!(!done.status.success() && errors.contains("bad.json") && errors.contains(why), "{errors}");
        assert_eq!(fs::read_to_string(&file).expect("text"), text);
    }
    let none = wrap(&home, &[&home.text("none.json")]);
    assert!(said(&none.stderr).contains("none.json"), "{}", said(&none.stderr));
}
