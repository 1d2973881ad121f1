//! Remote servers: what becomes of them, and what of their secrets.

use super::rewrite;
use crate::wrap::{Client, Left, PrivateFile, Store};
use std::{collections::BTreeMap, path::Path};

/// What was written when servers were wrapped.
#[derive(Default)]
struct Kept(BTreeMap<String, String>);

impl Store for Kept {
    fn place(&self) -> &Path {
        Path::new("/p")
    }

    fn read(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}

const REMOTE: &str = r#"{ "mcpServers": {
  "plain": {"type":"http", "url": "https://h.example/mcp"},
  "keyed": { // why
    "url": "https://h.example/mcp?key=s3cr3t",
    "headers": { "Authorization": "Bearer t0k3n", "X-Team": "a b" },
    "disabled": true, "alwaysAllow": ["x"]
  },
  "old": {"type": "sse", "url": "https://h.example/sse"},
  "filled": {"url": "https://h.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
  "two": {"url": "https://a.example/", "serverUrl": "https://b.example/"},
  "led": {"url": "https://h.example/mcp", "env": {"LD_PRELOAD": "./x"}},
  "file": {"url": "file:///etc/passwd"},
  "split": {"url": "https://h.example/mcp", "headers": {"X": "a\r\nB: c"}}
} }
"#;

#[test]
fn remote_servers_are_wrapped_without_their_secrets_and_unwrapped_to_the_byte() {
    let mut kept = Kept::default();
    let wrapped = crate::wrap::rewrite(REMOTE, None, "ringfence", false, &kept).expect("servers");
    assert_eq!(wrapped.changed, ["plain", "keyed"]);
    let left: Vec<&str> = wrapped.left.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(left, ["old", "filled", "two", "led", "file", "split"]);
    for secret in ["s3cr3t", "t0k3n"] {
        assert!(!wrapped.text.contains(secret), "{}", wrapped.text);
        assert!(!format!("{wrapped:?}").contains(secret));
        assert!(wrapped.needs.iter().any(|file| file.text.contains(secret)));
    }
    let value: serde_json::Value = jsonc(&wrapped.text);
    let plain = &value["mcpServers"]["plain"];
    let expected = serde_json::json!({"type": "stdio", "command": "ringfence",
        "args": ["mcp", "--server-name", "plain", "--url", "https://h.example/mcp"]});
    assert_eq!(plain, &expected);
    let keyed = &value["mcpServers"]["keyed"];
    assert_eq!((&keyed["disabled"], &keyed["alwaysAllow"][0]), (&true.into(), &"x".into()));
    assert_eq!(keyed["args"][3], "--url-file");
    assert!(keyed["args"][6].as_str().expect("a header").starts_with("Authorization=file:/p/"));
    kept.0 = wrapped.needs.iter().map(|file| (file.name.clone(), file.text.clone())).collect();
    let again = crate::wrap::rewrite(&wrapped.text, None, "ringfence", false, &kept).expect("servers");
    assert_eq!((again.changed.len(), &again.text), (0, &wrapped.text));
    assert!(again.left.contains(&("keyed".into(), Left::Because("it is wrapped already"))));
    let undone = crate::wrap::rewrite(&wrapped.text, None, "ringfence", true, &kept).expect("servers");
    assert_eq!(undone.text, REMOTE);
    assert!(wrapped.needs.iter().all(|file| undone.spares.contains(&file.name)));
    assert!(crate::wrap::is_original(REMOTE, &wrapped.text, None, "ringfence", &kept));
    // What nobody kept is not guessed.
    let lost =
        crate::wrap::rewrite(&wrapped.text, None, "ringfence", true, &Kept::default()).expect("servers");
    assert_eq!((lost.changed.len(), &lost.text), (0, &wrapped.text));
}

#[test]
fn codexs_remote_servers_are_wrapped_and_unwrapped_to_the_byte() {
    let text = "[mcp_servers.a]\n  url = 'https://h.example/mcp' # why\nenabled = true\n\n[mcp_servers]\nb = { url = \"https://h.example/x?k=s3cr3t\", enabled = false }\nc.url = \"https://h.example/\"\n";
    for text in [text.to_owned(), text.replace('\n', "\r\n")] {
        let mut kept = Kept::default();
        let codex = Some(Client::Codex);
        let wrapped = crate::wrap::rewrite(&text, codex, "ringfence", false, &kept).expect("servers");
        assert_eq!(wrapped.changed, ["a", "b"]);
        assert!(matches!(&wrapped.left[..], [(_, Left::Unable(_))]), "{:?}", wrapped.left);
        let end = if text.contains('\r') { "\r\n" } else { "\n" };
        let a = format!(
            "  command = \"ringfence\"{end}  args = [\"mcp\", \"--server-name\", \"a\", \"--url\", \"https://h.example/mcp\"] # why"
        );
        assert!(wrapped.text.contains(&a), "{}", wrapped.text);
        assert!(!wrapped.text.contains("s3cr3t"));
        kept.0 = wrapped.needs.iter().map(|file| (file.name.clone(), file.text.clone())).collect();
        let again = crate::wrap::rewrite(&wrapped.text, codex, "ringfence", false, &kept).expect("servers");
        assert_eq!((again.changed.len(), &again.text), (0, &wrapped.text));
        let undone = crate::wrap::rewrite(&wrapped.text, codex, "ringfence", true, &kept).expect("servers");
        assert_eq!(undone.text, text);
    }
}

fn jsonc(text: &str) -> serde_json::Value {
    let lines = text.lines().map(|line| line.split_once(" //").map_or(line, |(line, _)| line));
    serde_json::from_str(&lines.collect::<String>()).expect("JSON")
}

#[test]
fn a_remote_server_with_options_of_its_own_is_not_taken_for_wrapped() {
    let left = |args: &[&str]| {
        let server = serde_json::json!({ "command": "ringfence", "args": args });
        let text = serde_json::json!({ "mcpServers": { "a": server } }).to_string();
        rewrite(&text, None, "ringfence", false).expect("servers").left[0].1.clone()
    };
    let exact = ["mcp", "--server-name", "a", "--url", "https://h/"];
    assert_eq!(left(&exact), Left::Because("it is wrapped already"), "the control");
    for more in [
        &["--lenient"][..],
        &["--header", "A=file:/elsewhere/x"],
        &["--header", "A=env:X"],
        &["--rules", "./allow.yaml"],
        &["--header"],
        &["--insecure-http"],
    ] {
        assert!(matches!(left(&[&exact[..], more].concat()), Left::Foreign(_)), "{more:?}");
    }
    assert!(matches!(left(&["mcp", "--server-name", "a", "--url-file", "/elsewhere/url"]), Left::Foreign(_)));
}

fn kept(files: &[PrivateFile]) -> Kept {
    Kept(files.iter().map(|file| (file.name.clone(), file.text.clone())).collect())
}

#[test]
fn a_remote_server_is_unwrapped_after_its_file_was_written_anew() {
    let text = REMOTE.replace("// why", "");
    let wrapped = crate::wrap::rewrite(&text, None, "ringfence", false, &Kept::default()).expect("servers");
    let value: serde_json::Value = serde_json::from_str(&wrapped.text).expect("JSON");
    let pretty = serde_json::to_string_pretty(&value).expect("JSON");
    let undone =
        crate::wrap::rewrite(&pretty, None, "ringfence", true, &kept(&wrapped.needs)).expect("servers");
    assert_eq!(undone.changed.len(), 2);
    let original: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&undone.text).expect("JSON"), original);
    let lost =
        crate::wrap::rewrite(&pretty, None, "ringfence", true, &Kept::default()).expect("servers").left;
    assert_eq!(lost.iter().filter(|(_, why)| matches!(why, Left::Lost(_))).count(), 2, "{lost:?}");
    // A key that came between in TOML is not taken away with them.
    let toml = "[mcp_servers.a]\nurl = \"https://h/\"\n";
    let codex = Some(Client::Codex);
    let wrapped = crate::wrap::rewrite(toml, codex, "ringfence", false, &Kept::default()).expect("servers");
    let between = wrapped.text.replace("args =", "enabled = false\nargs =");
    let left = crate::wrap::rewrite(&between, codex, "ringfence", true, &kept(&wrapped.needs))
        .expect("servers")
        .left;
    assert!(matches!(left[..], [(_, Left::Lost(_))]), "{left:?}");
}

#[test]
fn the_same_server_in_two_projects_has_files_of_its_own_in_each() {
    let entry = r#"{"url": "https://h.example/mcp", "headers": {"A": "s3cr3t"}}"#;
    let plain = r#"{"url":   "https://h.example/mcp"}"#;
    let project = |a: &str, b: &str| format!(r#"{{"mcpServers": {{"a": {a}, "b": {b}}}}}"#);
    let text = format!(
        r#"{{"projects": {{"/x": {}, "/y": {}}}}}"#,
        project(entry, plain),
        project(entry, r#"{"url": "https://h.example/mcp"}"#)
    );
    let wrapped = crate::wrap::rewrite(&text, None, "ringfence", false, &Kept::default()).expect("servers");
    let names: std::collections::BTreeSet<&str> =
        wrapped.needs.iter().map(|file| file.name.as_str()).collect();
    assert_eq!((wrapped.changed.len(), names.len()), (4, wrapped.needs.len()));
    let undone =
        crate::wrap::rewrite(&wrapped.text, None, "ringfence", true, &kept(&wrapped.needs)).expect("servers");
    assert_eq!((undone.text.as_str(), undone.spares.is_empty()), (text.as_str(), false));
    // One more beside what is wrapped already needs nothing that is there.
    let one = format!(r#"{{"projects": {{"/x": {}}}}}"#, project(entry, plain));
    let first = crate::wrap::rewrite(&one, None, "ringfence", false, &Kept::default()).expect("servers");
    let both = first.text.replace(r#"{"/x""#, &format!(r#"{{"/w": {}, "/x""#, project(entry, plain)));
    let second = crate::wrap::rewrite(&both, None, "ringfence", false, &kept(&first.needs)).expect("servers");
    assert_eq!(second.changed, ["a", "b"]);
    assert!(second.needs.iter().all(|file| first.needs.iter().all(|other| other.name != file.name)));
    // What a copy that cannot be taken out names still is no spare.
    let copied = wrapped.text.replacen("\"--server-name\", \"a\"", "\"--server-name\", \"z\"", 1);
    let undone =
        crate::wrap::rewrite(&copied, None, "ringfence", true, &kept(&wrapped.needs)).expect("servers");
    let still: Vec<&str> =
        undone.text.split("file:/p/").skip(1).filter_map(|rest| rest.split('.').next()).collect();
    assert_eq!(still.len(), 1);
    assert!(undone.spares.iter().all(|file| !file.starts_with(still[0])));
}

#[test]
fn a_copy_that_is_left_can_be_unwrapped_when_it_is_mended() {
    for entry in [
        r#"{"url": "https://h.example/mcp", "headers": {"A": "s3cr3t"}}"#,
        r#"{"url": "https://h.example/mcp?key=s3cr3t"}"#,
        r#"{"url": "https://h.example/mcp"}"#,
    ] {
        copy_can_be_unwrapped(entry);
    }
}

fn copy_can_be_unwrapped(entry: &str) {
    let text = format!(r#"{{"mcpServers": {{"a": {entry}}}}}"#);
    let wrapped = crate::wrap::rewrite(&text, None, "ringfence", false, &Kept::default()).expect("servers");
    let mut store = kept(&wrapped.needs);
    let undo = |text: &str, store: &Kept| {
        crate::wrap::rewrite(text, None, "ringfence", true, store).expect("servers")
    };
    let mut value: serde_json::Value = serde_json::from_str(&wrapped.text).expect("JSON");
    let mut copy = value["mcpServers"]["a"].clone();
    copy["args"][2] = "b".into();
    value["mcpServers"]["b"] = copy;
    let undone = undo(&value.to_string(), &store);
    assert_eq!((&undone.changed[..], &undone.spares[..]), (&["a".to_owned()][..], &[][..]));
    undone.spares.iter().for_each(|file| drop(store.0.remove(file)));
    let mended = undone.text.replace(r#""--server-name","b""#, r#""--server-name","a""#);
    let undone = undo(&mended, &store);
    assert_eq!(undone.changed, ["b"]);
    let now: serde_json::Value = serde_json::from_str(&undone.text).expect("JSON");
    assert_eq!(now["mcpServers"]["b"], serde_json::from_str::<serde_json::Value>(entry).expect("JSON"));
    undone.spares.iter().for_each(|file| drop(store.0.remove(file)));
    assert_eq!(store.0.len(), 0, "nothing is left behind");
}

/// What belongs to somebody else than who starts the servers.
struct Anothers(Kept);

impl Store for Anothers {
    fn place(&self) -> &Path {
        self.0.place()
    }

    fn read(&self, name: &str) -> Option<String> {
        self.0.read(name)
    }

    fn is_readable(&self) -> bool {
        false
    }
}

#[test]
fn private_files_that_who_starts_the_server_could_not_read_are_not_written() {
    let text =
        r#"{"mcpServers": {"a": {"url": "https://h/", "headers": {"A": "x"}}, "b": {"command": "x"}}}"#;
    let theirs = rewrite(text, None, "ringfence", false).expect("servers");
    assert_eq!(theirs.changed, ["a", "b"], "the control");
    let anothers = Anothers(Kept::default());
    let of =
        |text: &str, undo| crate::wrap::rewrite(text, None, "ringfence", undo, &anothers).expect("servers");
    let done = of(text, false);
    assert_eq!((&done.changed[..], &done.needs[..]), (&["b".to_owned()][..], &[][..]));
    assert!(matches!(&done.left[..], [(_, Left::Unable(why))] if why.contains("as the file's owner")));
    let again = of(&theirs.text, false).left;
    assert!(matches!(&again[0].1, Left::Unable(why) if why.contains("as the file's owner")), "{again:?}");
    let undone = of(&theirs.text, true);
    assert_eq!(undone.changed, ["b"]);
    assert!(matches!(&undone.left[..], [(_, Left::Lost(why))] if why.contains("as the file's owner")));
}

#[test]
fn a_remote_server_that_could_not_be_started_is_left() {
    let left = |entry: &str| {
        let text = format!(r#"{{"mcpServers": {{"a": {entry}}}}}"#);
        rewrite(&text, None, "ringfence", false).expect("servers").left
    };
    for entry in [
        r#"{"url": "https://h/", "headers": {"Host": "other"}}"#,
        r#"{"url": "https://h/", "headers": {"MCP-Protocol-Version": "2025-06-18"}}"#,
        r#"{"url": "https://h/", "headers": {"X": "1", "x": "2"}}"#,
        r#"{"url": "https://me:secret@h/", "headers": {"authorization": "Bearer x"}}"#,
        r#"{"url": "http://10.0.0.5/mcp"}"#,
        r#"{"url": "http://127.0.0.1.example/mcp"}"#,
        r#"{"url": "http://localhost@h.example/mcp"}"#,
        r#"{"url": "https://h/", "oauth": {"clientId": "x"}}"#,
        r#"{"url": "https://h/", "headersHelper": "x"}"#,
        r#"{"type": "sse", "url": "https://h/"}"#,
    ] {
        assert!(matches!(left(entry)[..], [(_, Left::Unable(_))]), "{entry}: {:?}", left(entry));
    }
    for name in ["HTTPS_PROXY", "http_proxy", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"] {
        let entry = format!(r#"{{"url": "https://h/", "env": {{"{name}": "x"}}}}"#);
        assert_eq!(left(&entry), [("a".to_owned(), Left::Environment(name.to_owned()))]);
        let entry = format!(
            r#"{{"command": "ringfence", "args": ["mcp", "--server-name", "a", "--url", "https://h/"], "env": {{"{name}": "x"}}}}"#
        );
        assert_eq!(left(&entry), [("a".to_owned(), Left::Environment(name.to_owned()))], "wrapped already");
        assert!(
            left(&format!(r#"{{"command": "x", "env": {{"{name}": "x"}}}}"#)).is_empty(),
            "its own business"
        );
    }
    for entry in [
        r#"{"url": "http://127.0.0.1:7/mcp"}"#,
        r#"{"url": "http://[::1]:7/mcp"}"#,
        r#"{"url": "https://h/", "headers": {"X": "1", "Accept": "application/json", "content-type": "application/json"}}"#,
    ] {
        assert!(left(entry).is_empty(), "{entry}: {:?}", left(entry));
    }
    let text = r#"{"mcpServers": {"a": {"url": "https://h/", "headers": {"Accept": "application/json", "X": "1"}}, "b": {"url": "https://h/"}}}"#;
    let wrapped = rewrite(text, None, "ringfence", false).expect("servers");
    assert!(!wrapped.text.contains("Accept") && wrapped.text.contains("X=file:"), "{}", wrapped.text);
    assert_eq!(wrapped.bare, ["b"]);
}

#[test]
fn headers_that_would_go_elsewhere_are_not_taken_for_wrapped() {
    let text =
        r#"{"mcpServers": {"a": {"url": "https://h.example/", "headers": {"Authorization": "Bearer x"}}}}"#;
    let wrapped = rewrite(text, None, "ringfence", false).expect("servers");
    let again = |text: &str| {
        crate::wrap::rewrite(text, None, "ringfence", false, &kept(&wrapped.needs)).expect("servers").left[0]
            .1
            .clone()
    };
    assert_eq!(again(&wrapped.text), Left::Because("it is wrapped already"), "the control");
    let elsewhere = wrapped.text.replace("https://h.example/", "https://evil.example/");
    assert!(matches!(again(&elsewhere), Left::Foreign(_)));
}

#[test]
fn an_address_that_may_hold_a_key_goes_into_a_private_file() {
    let needs = |path: &str| {
        let text = format!(r#"{{"mcpServers": {{"a": {{"url": "https://h.example/{path}"}}}}}}"#);
        let wrapped = rewrite(&text, None, "ringfence", false).expect("servers");
        wrapped.needs.iter().any(|file| file.name.ends_with(".url"))
    };
    for path in [
        "s/6f9619ff-8b86-d011-b42d-00c04fc964ff/mcp",
        "a8f3k2j1m9x0q7w5",
        "ghp_abcdefghijklmnopqrstuvwxyzABCDEFGHIJ",
        "?k=v",
    ] {
        assert!(needs(path), "{path}");
    }
    assert!(!needs("mcp/v1/pull_requests"), "the control");
}

#[test]
fn a_configuration_is_shown_without_what_remote_servers_are_given() {
    let text = crate::wrap::shown(REMOTE, None);
    assert!(!text.contains("s3cr3t") && !text.contains("t0k3n") && text.contains("\"[redacted]\""), "{text}");
    let plain = r#"{"mcpServers": {"a": {"url": "https://h.example/"}}}"#;
    assert_eq!(crate::wrap::shown(plain, None), plain);
    // What is left may be in the same line as what is not.
    for left in [
        r#""url": "https://h/", "oauth": {"clientId": "c", "clientSecret": "s3cr3t"}"#,
        r#""url": "https://h/", "headers": {"A": "s3cr3t", "a": "t0k3n"}"#,
        r#""url": "https://h/", "headers": {"A": ["s3cr3t"], "B": 1}"#,
        r#""url": "https://h/", "headers": "s3cr3t""#,
        r#""url": "https://h/", "authorization": "s3cr3t""#,
        r#""url": "https://h/?k=s3cr3t", "serverUrl": "https://me:s3cr3t@h/""#,
        r#""type": "sse", "url": "https://h/", "headers": {"A": "s3cr3t"}"#,
        r#""command": "x", "headers": {"A": "s3cr3t"}, "headers": {"A": "t0k3n"}"#,
    ] {
        for place in ["mcpServers", "servers"] {
            let text = format!(r#"{{"{place}": {{"a": {{{left}}}, "b": {{"command": "y"}}}}}}"#);
            for client in [None, Some(Client::Claude)] {
                let shown = crate::wrap::shown(&text, client);
                assert!(!shown.contains("s3cr3t") && !shown.contains("t0k3n"), "{shown}");
                assert!(
                    shown.contains("[redacted]") && shown.contains(r#""b": {"command": "y"}"#),
                    "{shown}"
                );
            }
        }
    }
    for left in [
        "bearer_token = 's3cr3t'",
        "http_headers = { A = 's3cr3t' }",
        "[mcp_servers.a.http_headers]\nA = 's3cr3t'",
    ] {
        let text = format!("[mcp_servers.a]\nurl = 'https://h/'\n{left}\n");
        let shown = crate::wrap::shown(&text, Some(Client::Codex));
        assert_eq!(shown, text.replace("'s3cr3t'", "\"[redacted]\""));
    }
    let toml = crate::wrap::shown("[mcp_servers.a]\nurl = 'https://h/x?k=s3cr3t'\n", Some(Client::Codex));
    assert_eq!(toml, "[mcp_servers.a]\nurl = \"[redacted]\"\n");
}

#[test]
fn an_address_that_a_command_is_given_is_not_shown_either() {
    for words in [
        r#""mcp", "--url", "https://h.example/?key=s3cr3t""#,
        r#""mcp", "--url=https://h.example/?key=s3cr3t""#,
        r#""mcp", "--lenient", "--url", "https://u:s3cr3t@h.example/", "--", "x""#,
    ] {
        let json = format!(
            r#"{{"mcpServers":{{"a":{{"command":"ringfence","args":[{words}]}},"b":{{"command":"x"}}}}}}"#
        );
        let toml = format!(
            "[mcp_servers.a]\ncommand = 'ringfence'\nargs = [{words}]\n[mcp_servers.b]\ncommand = 'x'\n"
        );
        for (text, client) in [(json, None), (toml, Some(Client::Codex))] {
            let shown = crate::wrap::shown(&text, client);
            assert!(!shown.contains("s3cr3t") && shown.contains("[redacted]"), "{shown}");
            let done = rewrite(&text, client, "ringfence", false).expect("servers");
            let [(_, Left::Foreign(words))] = &done.left[..] else { panic!("{text}: {:?}", done.left) };
            assert!(!words.contains("s3cr3t") && words.contains("[redacted]"), "{words}");
        }
    }
    let plain =
        r#"{"mcpServers":{"a":{"command":"ringfence","args":["mcp","--url","https://h.example/mcp"]}}}"#;
    assert_eq!(crate::wrap::shown(plain, None), plain, "the control");
}
