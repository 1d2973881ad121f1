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
    let config = json!({ "mcpServers": { "kept": { "command": "python3", "args": [SERVER, home.text("received.log")],
        "env": { "TOKEN": "x" } }, "remote": { "type": "sse", "url": "https://example.com/sse" } } });
    let text = serde_json::to_string_pretty(&config).expect("JSON");
    fs::write(&file, &text).expect("written");
    let asked = wrap(&home, &[&file]);
    assert_eq!(asked.status.code(), Some(1), "nobody said yes");
    assert!(said(&asked.stdout).contains("+      \"command\": "), "the difference comes first");
    assert!(said(&asked.stderr).contains("unchanged") && fs::read_to_string(&file).expect("text") == text);

    let done = wrap(&home, &[&file, "--yes"]);
    assert_eq!(done.status.code(), Some(1), "one is not protected: {}", said(&done.stderr));
    assert!(said(&done.stderr).contains("remote: left as it is"), "{}", said(&done.stderr));
    assert!(said(&done.stderr).contains("so it is not protected"), "{}", said(&done.stderr));
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
    assert_eq!(fs::read_to_string(&file).expect("text"), text);
}

/// Names beside the configuration that begin as its own does.
fn beside(home: &Home, name: &str) -> Vec<String> {
    let entries = fs::read_dir(home.path("")).expect("the home").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|other| other.starts_with(name)).collect();
    names.sort();
    names
}

#[test]
fn undoing_restores_the_bytes_and_backups_do_not_pile_up() {
    let json = "\u{feff}{\r\n\t// kept\r\n\t\"mcpServers\": {\r\n\t\t\"a\": { \"command\": \"x\", \"args\": [] },\r\n\t\t\"b\": {\r\n\t\t\t\"command\": \"y\"\r\n\t\t}\r\n\t}\r\n}";
    let toml = "# kept\nmodel = \"m\"\n\n[mcp_servers.a]\ncommand = 'x' # why\nargs = [\n  \"1\", # one\n]\n[mcp_servers.a.env]\nK = \"v\"\n\n[mcp_servers.b]\r\ncommand = \"y\"\r\n";
    for (name, text, more) in [
        (
            "client.json",
            json,
            "{\"servers\": {\"a\": {\"command\": \"ringfence\", \"args\": [\"mcp\", \"--\", \"x\"]}, \"c\": {\"command\": \"z\"}}}",
        ),
        (
            "config.toml",
            toml,
            "[mcp_servers.a]\ncommand = \"ringfence\"\nargs = [\"mcp\", \"--\", \"x\"]\n[mcp_servers.c]\ncommand = \"z\"\n",
        ),
    ] {
        let home = Home::new();
        let (file, kept) = (home.text(name), format!("{name}.before-ringfence"));
        fs::write(&file, text).expect("written");
        for _ in 0..3 {
            let done = wrap(&home, &[&file, "--yes"]);
            assert!(done.status.success(), "{}", said(&done.stderr));
            assert!(said(&done.stderr).contains("changed a, b in"), "{}", said(&done.stderr));
            assert_eq!(beside(&home, name), [name, kept.as_str()]);
            assert_eq!(fs::read_to_string(home.path(&kept)).expect("a backup"), text);
            let undone = wrap(&home, &[&file, "--undo", "--yes"]);
            assert!(undone.status.success(), "{}", said(&undone.stderr));
            assert_eq!(fs::read_to_string(&file).expect("text"), text);
            assert_eq!(beside(&home, name), [name], "{}", said(&undone.stderr));
        }
        // One more server beside one that somebody wrapped in a way of their own: what is kept has neither.
        fs::write(&file, more).expect("written");
        let done = wrap(&home, &[&file, "--yes"]);
        let why = said(&done.stderr);
        assert!(
            why.contains("a: left as it is: it names a Ringfence of its own path")
                && why.contains("\"ringfence\" \"mcp\" \"--\" \"x\""),
            "{why}"
        );
        assert!(done.status.code() == Some(1) && why.contains("changed c in"), "{why}");
        let original = fs::read_to_string(home.path(&kept)).expect("a backup");
        assert!(!original.contains("ringfence") && original.contains('z'), "{original}");
        // A change since is not undone, and what was kept is not thrown away.
        let changed = fs::read_to_string(&file).expect("text") + "\n";
        fs::write(&file, &changed).expect("written");
        let undone = wrap(&home, &[&file, "--undo", "--yes"]);
        assert!(said(&undone.stderr).contains("differs from it, and is left"), "{}", said(&undone.stderr));
        assert_eq!(fs::read_to_string(&file).expect("text"), original.clone() + "\n");
        assert_eq!(fs::read_to_string(home.path(&kept)).expect("a backup"), original);
    }
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

#[test]
fn a_remote_server_s_secrets_leave_the_configuration_and_come_back() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let file = home.text("remote.json");
    let text = "{\"mcpServers\": {\"far\": {\n  \"type\": \"http\", \"url\": \"https://h.example/mcp\",\n  \"headers\": {\"Authorization\": \"Bearer s3cr3t\"}}}}\n";
    fs::write(&file, text).expect("written");
    let done = wrap(&home, &[&file, "--yes"]);
    assert!(done.status.success(), "{}", said(&done.stderr));
    let wrapped = fs::read_to_string(&file).expect("text");
    assert!(
        !wrapped.contains("s3cr3t") && wrapped.contains("\"--url\", \"https://h.example/mcp\""),
        "{wrapped}"
    );
    let value: Value = serde_json::from_str(&wrapped).expect("JSON");
    let header = value["mcpServers"]["far"]["args"][6].as_str().expect("a header").to_owned();
    let kept = header.strip_prefix("Authorization=file:").expect("a file").to_owned();
    assert_eq!(fs::read_to_string(&kept).expect("the header"), "Bearer s3cr3t\n");
    assert_eq!(fs::metadata(&kept).expect("the header").permissions().mode() & 0o777, 0o600);
    let again = wrap(&home, &[&file, "--yes"]);
    assert!(said(&again.stderr).contains("it is wrapped already"), "{}", said(&again.stderr));
    let undone = wrap(&home, &[&file, "--undo", "--yes"]);
    assert!(undone.status.success(), "{}", said(&undone.stderr));
    assert_eq!(fs::read_to_string(&file).expect("text"), text);
    let folder = std::path::Path::new(&kept).parent().expect("a folder");
    assert_eq!(fs::read_dir(folder).expect("the folder").count(), 0, "nothing is left behind");
}

#[test]
fn a_remote_server_s_secrets_are_not_printed_and_a_file_written_anew_is_undone() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let file = home.text("remote.json");
    let value = json!({"mcpServers": {"far": {"type": "http", "url": "https://h.example/mcp",
        "headers": {"Authorization": "Bearer s3cr3t"}}, "open": {"url": "https://h.example/"}}});
    fs::write(&file, value.to_string()).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("its mode");
    let done = wrap(&home, &[&file, "--yes"]);
    assert!(done.status.success(), "{}", said(&done.stderr));
    let all = said(&done.stdout) + &said(&done.stderr);
    assert!(
        !all.contains("s3cr3t") && all.contains("[redacted]") && all.contains("version control"),
        "{all}"
    );
    assert!(all.contains("open: it has no credential"), "{all}");
    let backup = home.path("remote.json.before-ringfence");
    assert_eq!(fs::metadata(&backup).expect("a backup").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o777, 0o644);
    // As a client writes it.
    let wrapped: Value = serde_json::from_str(&fs::read_to_string(&file).expect("text")).expect("JSON");
    fs::write(&file, serde_json::to_string_pretty(&wrapped).expect("JSON")).expect("written");
    let undone = wrap(&home, &[&file, "--undo", "--yes"]);
    assert!(undone.status.success(), "{}", said(&undone.stderr));
    assert!(!(said(&undone.stdout) + &said(&undone.stderr)).contains("s3cr3t"), "{}", said(&undone.stdout));
    let now: Value = serde_json::from_str(&fs::read_to_string(&file).expect("text")).expect("JSON");
    assert_eq!(now, value);
    // What cannot be undone is no success, and the last readable original stays.
    fs::write(&file, value.to_string()).expect("written");
    assert!(wrap(&home, &[&file, "--yes"]).status.success());
    let original = fs::read_to_string(&backup).expect("a backup");
    let mut changed: Value = serde_json::from_str(&fs::read_to_string(&file).expect("text")).expect("JSON");
    changed["mcpServers"]["far"]["args"][4] = json!("https://other.example/mcp");
    changed["mcpServers"]["more"] = json!({"command": "x"});
    fs::write(&file, changed.to_string()).expect("written");
    let undone = wrap(&home, &[&file, "--undo"]);
    assert!(
        undone.status.code() == Some(1) && said(&undone.stderr).contains("far: left as it is"),
        "{}",
        said(&undone.stderr)
    );
    let again = wrap(&home, &[&file, "--yes"]);
    assert!(said(&again.stderr).contains("changed more in"), "{}", said(&again.stderr));
    assert_eq!(fs::read_to_string(&backup).expect("a backup"), original);
}
