//! What is put into configurations, and taken out of them.

use super::{Client, Empty, Error, Left, Rewritten};
use proptest::prelude::*;
use std::path::PathBuf;

mod remote;

fn rewrite(text: &str, client: Option<Client>, program: &str, undo: bool) -> Result<Rewritten, Error> {
    super::rewrite(text, client, program, undo, &Empty(PathBuf::from("/p")))
}

fn is_original(kept: &str, wrapped: &str, client: Option<Client>, program: &str) -> bool {
    super::is_original(kept, wrapped, client, program, &Empty(PathBuf::from("/p")))
}

#[test]
fn servers_of_single_projects_are_servers_too() {
    let text = r#"{"projects": {"/a": {"mcpServers": {"x": {"command": "x", "args": ["1"]}}}, "/b": {},
            "/c": {"mcpServers": {"y": {"command": "y", "args": ["1"]}}}}, "mcpServers": {"z": {"command": "z", "args": ["1"]}}}"#;
    let done = rewrite(text, None, "ringfence", false).expect("a configuration");
    assert_eq!(done.changed, ["z", "x", "y"]);
    let undone = rewrite(&done.text, Some(Client::Claude), "ringfence", true).expect("a configuration");
    assert_eq!(undone.text, text);
    let without = r#"{"projects": {"/a": {"mcpServers": {"x": {"command": "x", "args": ["1"]}}}}}"#;
    assert_eq!(rewrite(without, None, "ringfence", false).expect("a configuration").changed, ["x"]);
    assert!(rewrite(without, Some(Client::Cursor), "ringfence", false).is_err(), "Cursor has no projects");
}

#[test]
fn no_server_hides_behind_a_name_that_is_there_twice_or_in_another_place() {
    let (a, b) = (r#"{"a": {"command": "a"}}"#, r#"{"b": {"command": "b"}}"#);
    for (text, client) in [
        (format!(r#"{{"mcpServers": {a}, "mcpServers": {b}}}"#), Some(Client::Claude)),
        (format!(r#"{{"mcpServers": {{}}, "mcpServers": {a}, "mcp\u0053ervers": {b}}}"#), None),
        (format!(r#"{{"mcpServers": 1, "servers": {a}, "servers": {b}}}"#), Some(Client::Vscode)),
        (format!(r#"{{"mcp": {{"servers": {a}}}, "mcp": {{"servers": {b}}}}}"#), Some(Client::Vscode)),
        (format!(r#"{{"mcp": {{"servers": {a}, "servers": {b}}}}}"#), None),
        (format!(r#"{{"servers": {a}, "mcp": {{"servers": {b}}}}}"#), Some(Client::Vscode)),
        (format!(r#"{{"mcpServers": {a}, "servers": {b}}}"#), None),
        (format!(r#"{{"context_servers": {a}, "context_servers": {b}}}"#), Some(Client::Zed)),
        (
            format!(
                r#"{{"projects": {{"/p": {{"mcpServers": {a}}}}}, "projects": {{"/p": {{"mcpServers": {b}}}}}}}"#
            ),
            None,
        ),
        (format!(r#"{{"projects": {{"/p": {{"mcpServers": {a}}}, "/p": {{"mcpServers": {b}}}}}}}"#), None),
        (format!(r#"{{"projects": {{"/p": {{"mcpServers": {a}, "mcpServers": {b}}}}}}}"#), None),
        (r#"{"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}}}"#.to_owned(), None),
    ] {
        let done = rewrite(&text, client, "ringfence", false).expect("servers");
        assert_eq!(done.changed, ["a", "b"], "{text}");
        assert_eq!(done.text.matches(r#""command": "ringfence""#).count(), 2, "{}", done.text);
        assert_eq!(rewrite(&done.text, client, "ringfence", true).expect("servers").text, text);
    }
}

const CLAUDE: &str = r#"{
  // kept
  "mcpServers": {
    "github": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-github"],
      "env": { "GITHUB_TOKEN": "x" }
    },
    "bare": { "command": "srv" },
    "remote": { "type": "sse", "url": "https://example.com/sse" }
  },
  "other": 1
}
"#;

#[test]
fn servers_are_wrapped_once_and_unwrapped_to_what_they_were() {
    let wrapped = rewrite(CLAUDE, None, "ringfence", false).expect("servers");
    assert_eq!(wrapped.changed, ["github", "bare"]);
    assert_eq!(wrapped.left[0].0, "remote");
    assert!(wrapped.text.contains("// kept") && wrapped.text.contains(r#""env": { "GITHUB_TOKEN": "x" }"#));
    assert!(wrapped.text.contains(
        r#"["mcp", "--server-name", "github", "--", "npx", "-y", "@modelcontextprotocol/server-github"]"#
    ));
    let again = rewrite(&wrapped.text, None, "ringfence", false).expect("servers");
    assert_eq!((again.changed.len(), &again.text), (0, &wrapped.text));
    let undone = rewrite(&wrapped.text, Some(Client::Claude), "ringfence", true).expect("servers");
    assert_eq!(undone.changed, ["github", "bare"]);
    assert_eq!(undone.text, CLAUDE);
    for piece in
        [r#""command": "npx""#, r#""command": "srv""#, r#"["-y", "@modelcontextprotocol/server-github"]"#]
    {
        assert!(undone.text.contains(piece), "{piece}: {}", undone.text);
    }
    assert!(!undone.text.contains("ringfence"));
}

#[test]
fn what_only_passes_for_ours_is_not_taken_for_wrapped() {
    let program = "/opt/ringfence";
    let server = |command: &str, args: &[&str]| {
        let server = serde_json::json!({ "command": command, "args": args });
        serde_json::json!({ "mcpServers": { "a": server, "b": { "command": "x" } } }).to_string()
    };
    let exact = &["mcp", "--server-name", "a", "--", "x"];
    for (command, args) in [
        ("./tools/ringfence", &exact[..]),
        ("ringfence", exact),
        (program, &["mcp", "--", "x"]),
        (program, &["mcp", "--server-name", "b", "--", "x"]),
        (program, &["mcp", "--server-name", "a", "--on-audit-failure", "allow", "--", "x"]),
        (program, &["mcp", "--server-name", "a", "--rules", "./allow.yaml", "--", "x"]),
        (program, &["mcp", "--lenient", "--server-name", "a", "--", "x"]),
        (program, &["mcp", "--server-name", "a", "--db", "/dev/null/x", "--", "x"]),
        (program, &["mcp", "--server-name", "a", "--"]),
        (program, &["mcp"]),
    ] {
        let text = server(command, args);
        let done = rewrite(&text, None, program, false).expect("servers");
        assert_eq!(done.changed, ["b"], "{text}");
        let [(name, Left::Foreign(words))] = &done.left[..] else { panic!("{text}: {:?}", done.left) };
        assert_eq!(name, "a");
        for word in args.iter().chain([&command]) {
            assert!(words.contains(&format!("{word:?}")), "{words}");
        }
        // It is taken out all the same.
        let undone = rewrite(&text, None, program, true).expect("servers");
        assert_eq!(undone.changed.is_empty(), args.last() != Some(&"x"), "{text}");
    }
    // The control.
    let done = rewrite(&server(program, exact), None, program, false).expect("servers");
    assert_eq!(done.left, [("a".to_owned(), Left::Because("it is wrapped already"))]);
}

#[test]
fn vs_codes_form_and_absolute_programs_work() {
    let text = r#"{"servers":{"a":{"type":"stdio","command":"x","args":[]}}}"#;
    let wrapped = rewrite(text, Some(Client::Vscode), "/usr/local/bin/ringfence", false).expect("servers");
    assert!(
        wrapped.text.contains(r#""/usr/local/bin/ringfence""#) && wrapped.text.contains(r#""type":"stdio""#)
    );
    assert_eq!(rewrite(&wrapped.text, None, "ringfence", true).expect("servers").changed, ["a"]);
    let nested = r#"{"mcp":{"servers":{"a":{"command":"x"}}}}"#;
    assert_eq!(rewrite(nested, Some(Client::Vscode), "ringfence", false).expect("servers").changed, ["a"]);
}

#[test]
fn names_that_look_like_flags_or_like_nothing_do_not_break_the_server() {
    let text = r#"{"mcpServers":{"--":{"command":"a","args":["1"]},"-x":{"command":"b","args":["--","2"]},"":{"command":"c","args":["3"]}}}"#;
    for program in ["ringfence", "/opt/ringfence-0.1"] {
        let wrapped = rewrite(text, None, program, false).expect("servers");
        for written in [
            r#"["mcp", "--server-name=--", "--", "a", "1"]"#,
            r#"["mcp", "--server-name=-x", "--", "b", "--","2"]"#,
            r#"["mcp", "--", "c", "3"]"#,
        ] {
            assert!(wrapped.text.contains(written), "{}", wrapped.text);
        }
        let again = rewrite(&wrapped.text, None, program, false).expect("servers");
        assert_eq!(again.changed.len(), 0, "wrapped once, by whatever name the program has");
        let undone = rewrite(&wrapped.text, None, program, true).expect("servers");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&undone.text), value(text));
    }
}

#[test]
fn what_is_no_configuration_is_refused_and_odd_servers_are_left() {
    assert!(matches!(rewrite("{", None, "r", false), Err(Error::Syntax(_))));
    assert!(matches!(rewrite("[]", None, "r", false), Err(Error::NoServers(_))));
    assert!(matches!(rewrite("", None, "r", false), Err(Error::NoServers(_) | Error::Syntax(_))));
    let odd = r#"{"mcpServers":{"a":3,"b":{"command":4},"c":{"command":"x","args":"y"},"d":{"command":"x","args":[1]}}}"#;
    let left = rewrite(odd, None, "r", false).expect("servers");
    assert_eq!((left.changed.len(), left.left.len(), left.text.as_str()), (0, 4, odd));
}

/// What `undo` makes of what wrapping makes of a text.
fn there_and_back(text: &str, client: Option<Client>) -> (usize, String) {
    let wrapped = rewrite(text, client, "/opt/ringfence", false).expect("servers");
    let undone = rewrite(&wrapped.text, client, "/opt/ringfence", true).expect("servers");
    assert_eq!(wrapped.changed, undone.changed, "{}", wrapped.text);
    assert!(is_original(text, &wrapped.text, client, "/opt/ringfence"), "{}", wrapped.text);
    (wrapped.changed.len(), undone.text)
}

#[test]
fn undoing_restores_every_byte() {
    for text in [
        CLAUDE.to_owned(),
        CLAUDE.replace('\n', "\r\n"),
        format!("\u{feff}{}", CLAUDE.replace("  ", "\t")),
        r#"{"mcpServers":{"a":{"command":"\u0073rv"},"b":{"args":[ ],"command":"x"},"c":{"command":"y","args":["1" , "2" ,]}}}"#.to_owned(),
        "{ 'mcpServers' : {\n\t'a' : {\n\t\t'command' : 'x', // why\n\t\t'env': {}\n\t} } }".to_owned(),
        "{\"mcpServers\": {\"a\": {\r\n  \"command\": \"x\",\r\n  \"args\": [\r\n    // one\r\n    \"1\",\r\n    \"2\"\r\n  ]\r\n}}}".to_owned(),
        "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"args\": [\n \"1\"]}}}\n\n".to_owned(),
    ] {
        let (changed, undone) = there_and_back(&text, None);
        assert!(changed > 0);
        assert_eq!(undone, text);
    }
    let lines =
        "{\"servers\": {\"a\": {\r\n    \"command\": \"x\",\r\n    \"args\": [\r\n      \"1\"\r\n    ]}}}";
    let wrapped = rewrite(lines, None, "ringfence", false).expect("servers").text;
    assert!(
        wrapped.contains("[\r\n      \"mcp\", \"--server-name\", \"a\", \"--\", \"x\",\r\n      \"1\""),
        "{wrapped}"
    );
}

#[test]
fn an_empty_list_is_known_from_none_by_the_file_as_it_was() {
    let [none, empty] = ["{\"command\": \"x\"}", "{\"command\": \"x\", \"args\": []}"]
        .map(|server| format!("{{\"servers\": {{\"a\": {server}}}}}"));
    let [of_none, of_empty] =
        [&none, &empty].map(|text| rewrite(text, None, "r", false).expect("servers").text);
    assert_eq!(of_none, of_empty);
    assert_eq!(rewrite(&of_empty, None, "r", true).expect("servers").text, none, "which means the same");
    assert!(is_original(&empty, &of_empty, None, "r") && is_original(&none, &of_empty, None, "r"));
    assert!(!is_original(&of_empty, &of_empty, None, "r"), "it is wrapped");
    assert!(
        !is_original(&none.replace('x', "y"), &of_empty, None, "r") && !is_original("", &of_empty, None, "r")
    );
}

#[test]
fn a_list_that_somebody_laid_out_anew_is_taken_out_all_the_same() {
    let text =
        "{\"servers\": {\"a\": {\"command\": \"r\",\n\"args\": [\n  \"mcp\",\n  \"--\",\n  \"x\",\n]}}}";
    let undone = rewrite(text, None, "r", true).expect("servers").text;
    assert_eq!(undone, "{\"servers\": {\"a\": {\"command\": \"x\",\n\"args\": [\n  \n]}}}");
}

const CODEX: &str = r#"# mine
model = "gpt-5" # kept

[mcp_servers.docs]
command = "npx" # the launcher
args = [
  "-y", # yes
  'docs-mcp',
]
env = { "KEY" = "x" }

[mcp_servers.bare]
  command = 'srv'   # no args

[mcp_servers."a.b"]
url = "https://example.com/mcp"
bearer_token_env_var = "T"

[mcp_servers]
inline = { command = """x""", cwd = "/" }
odd.command = "y"
more.command = "z"
more.args = ["1"]

[tui]
theme = "dark"
"#;

#[test]
fn codexs_servers_are_wrapped_and_unwrapped_to_the_byte() {
    let wrapped = rewrite(CODEX, Some(Client::Codex), "ringfence", false).expect("servers");
    assert_eq!(wrapped.changed, ["docs", "bare", "inline", "more"]);
    let left: Vec<&str> = wrapped.left.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(left, ["a.b", "odd"]);
    for piece in [
        "command = \"ringfence\" # the launcher\nargs = [\n  \"mcp\", \"--server-name\", \"docs\", \"--\", \"npx\",\n  \"-y\", # yes",
        "  command = \"ringfence\"   # no args\n  args = [\"mcp\", \"--server-name\", \"bare\", \"--\", 'srv']\n",
        "{ command = \"ringfence\", args = [\"mcp\", \"--server-name\", \"inline\", \"--\", \"\"\"x\"\"\"], cwd",
        "more.args = [\"mcp\", \"--server-name\", \"more\", \"--\", \"z\", \"1\"]",
    ] {
        assert!(wrapped.text.contains(piece), "{piece}: {}", wrapped.text);
    }
    let again = rewrite(&wrapped.text, Some(Client::Codex), "ringfence", false).expect("servers");
    assert_eq!((again.changed.len(), &again.text), (0, &wrapped.text));
    for text in [CODEX.to_owned(), CODEX.replace('\n', "\r\n"), format!("\u{feff}{CODEX}")] {
        assert_eq!(there_and_back(&text, Some(Client::Codex)), (4, text));
    }
    let last = "[mcp_servers.x]\ncommand = \"x\"";
    assert_eq!(there_and_back(last, Some(Client::Codex)), (1, last.to_owned()));
    for (text, what) in
        [("x", "not TOML"), ("a = 1", "it has no servers"), ("mcp_servers = 1", "it has no servers")]
    {
        let error = rewrite(text, Some(Client::Codex), "r", false).expect_err(text).to_string();
        assert!(error.contains(what), "{error}");
    }
    let odd = "[mcp_servers]\na = 3\nb.command = 4\nc = { command = \"x\", args = \"y\" }\nd = { command = \"x\", args = [1] }";
    let left = rewrite(odd, Some(Client::Codex), "r", false).expect("servers");
    assert_eq!((left.changed.len(), left.left.len(), left.text.as_str()), (0, 4, odd));
}

#[test]
fn a_comment_that_ends_a_sentence_is_no_dotted_key() {
    for comment in ["# Mine.\n", "# Mine.\r\n  ", "a = 1 # Mine.\n\n\t"] {
        let text = format!("[mcp_servers.x]\n{comment}command = \"x\"\n");
        assert_eq!(there_and_back(&text, Some(Client::Codex)), (1, text.clone()));
    }
    // The control.
    for dotted in ["odd.command", "odd . \tcommand", "odd. \"command\""] {
        let text = format!("[mcp_servers]\n# Mine.\n{dotted} = \"x\"\n");
        let done = rewrite(&text, Some(Client::Codex), "r", false).expect("servers");
        assert_eq!((done.changed.len(), done.left.len()), (0, 1), "{text}");
    }
}

/// White space and comments that may stand between any two parts of JSON.
fn gap() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", " ", "\n  ", "\r\n\t", "/* , [ */ ", "// \"x\"\n"])
}

/// A string as somebody may write it.
fn text() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "\"x\"",
        "'x y'",
        "\"\\u0041\"",
        "\"\\\"\"",
        "\"--\"",
        "\"mcp\"",
        "\"ä,]\"",
        "\"\"",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    /// However it is laid out, what comes back is what was there; only an empty list of arguments may be left out, which the
    /// file as it was makes up for.
    #[test]
    fn any_layout_comes_back(
        command in text(), list in prop::option::of(prop::collection::vec(text(), 0..4)), gaps in prop::collection::vec(gap(), 12),
        comes_first in any::<bool>(), mark in any::<bool>(),
    ) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = <[&str; 12]>::try_from(gaps).unwrap_or_default();
        let command = format!("{a}\"command\"{b}:{c}{command}{d}");
        let is_empty = list.as_ref().is_some_and(Vec::is_empty);
        let list = list.map(|list| format!("{e}\"args\"{f}:{g}[{h}{}{i}]{j}", list.join(&format!("{i},{h}"))));
        let server = match (list, comes_first) {
            (None, _) => command,
            (Some(list), true) => format!("{list},{command}"),
            (Some(list), false) => format!("{command},{list}"),
        };
        let mark = if mark { "\u{feff}" } else { "" };
        let text = format!("{mark}{{{k}\"mcpServers\":{{\"s\":{{{server}}}}}{l}}}");
        let wrapped = rewrite(&text, None, "ringfence", false).unwrap();
        if !wrapped.changed.is_empty() {
            let undone = rewrite(&wrapped.text, None, "ringfence", true).unwrap();
            prop_assert!(undone.text == text || is_empty, "{text:?}: {:?}", undone.text);
            prop_assert!(is_original(&text, &wrapped.text, None, "ringfence"));
        }
    }

    /// Nothing panics, and what is written is a configuration.
    #[test]
    fn any_text_is_taken_or_refused(text in "\\PC{0,40}|\\[mcp_servers(\\.x)?\\]\n(command|args|x\\.command)( = )?(\"x\"|\\[(\"x\",?){0,3}\\]|\\{command=\"x\"\\})?\r?\n?") {
        for client in [None, Some(Client::Codex)] {
            for undo in [false, true] {
                let _ = rewrite(&text, client, "ringfence", undo);
            }
        }
    }
}

#[test]
fn a_server_whose_environment_leads_elsewhere_is_not_said_to_be_protected() {
    let left = |env: &str, program: &str, args: &str| {
        let text = format!(r#"{{"mcpServers": {{"a": {{"command": "x", "env": {env}{args}}}}}}}"#);
        rewrite(&text, None, program, false).expect("servers").left
    };
    for env in [
        r#"{"LD_PRELOAD": "./a.so"}"#,
        r#"{"A": "1", "HOME": "."}"#,
        r#"{"XDG_CONFIG_HOME": "."}"#,
        r#"{"RINGFENCE_X": ""}"#,
    ] {
        assert!(matches!(&left(env, "/opt/ringfence", "")[..], [(_, Left::Environment(_))]), "{env}");
    }
    let path = r#"{"PATH": "/proj/bin"}"#;
    assert_eq!(left(path, "ringfence", ""), [("a".to_owned(), Left::Environment("PATH".to_owned()))]);
    let file = left("{}", "/opt/ringfence", r#", "envFile": "./e""#);
    assert_eq!(file, [("a".to_owned(), Left::Environment("envFile".to_owned()))]);
    // The controls.
    assert!(left(path, "/opt/ringfence", "").is_empty(), "it is not looked for");
    assert!(left(r#"{"API_KEY": "k"}"#, "ringfence", "").is_empty());
    // Wrapped already, and in TOML.
    let wrapped = r#"{"mcpServers": {"a": {"command": "ringfence", "args": ["mcp", "--server-name", "a", "--", "x"], "env": {"PATH": "."}}}}"#;
    let left = rewrite(wrapped, None, "ringfence", false).expect("servers").left;
    assert!(matches!(left[..], [(_, Left::Environment(_))]), "{left:?}");
    let toml = "[mcp_servers.a]\ncommand = \"x\"\nenv = { LD_PRELOAD = \"a\" }\n";
    let left = rewrite(toml, Some(Client::Codex), "ringfence", false).expect("servers").left;
    assert_eq!(left, [("a".to_owned(), Left::Environment("LD_PRELOAD".to_owned()))]);
}

#[test]
fn what_is_started_and_cannot_be_wrapped_is_no_remote_server() {
    let left = |server: &str| {
        let text = format!(r#"{{"mcp.servers": {{"a": {server}}}}}"#);
        rewrite(&text, None, "ringfence", false).expect("servers").left
    };
    for server in [
        r#"{"command": "x", "command": "y"}"#,
        r#"{"command": ["x"]}"#,
        r#"{"command": "x", "args": "y"}"#,
        r#"{"command": "x", "args": [1]}"#,
    ] {
        assert!(matches!(left(server)[..], [(_, Left::Unable(_))]), "{server}: {:?}", left(server));
    }
    assert!(matches!(left(r#"{"a": "https://a"}"#)[..], [(_, Left::Because(_))]), "the control");
    assert!(left(r#"{"url": "https://a"}"#).is_empty());
    assert!(left(r#"{"command": "x"}"#).is_empty(), "a dotted key of VS Code's has servers, too");
}
