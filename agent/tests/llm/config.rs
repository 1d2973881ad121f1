//! Registry, profiles and credentials: what is taken from where, and every mistake with its place.

use crate::{
    mock::{Mock, says},
    support::{Client, Home},
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt};

/// Some user who is not root, where the tests are root's.
const SOMEBODY: u32 = 12345;

const REGISTRY: &str = r#"
[llm.claude-sonnet]
provider = "anthropic"
model = "claude-sonnet-4-20250514"
api_key = "sk-ant-registry-key"
max_tokens = 4096

[mcp.github]
url = "https://mcp.github.com/sse"
auth_token = "ghp_registry_token"
tools = ["create_pull_request"]
"#;

fn home(profile: &str) -> Home {
    let home = Home::empty();
    home.write(".config/ringfence/registry.toml", REGISTRY);
    home.profile("a", profile);
    home
}

fn shown(home: &Home) -> Value {
    let ran = home.run(&["agent", "show", "a", "--json"]);
    assert!(ran.status, "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn an_empty_section_takes_everything_from_the_registry() {
    let shown = shown(&home("[llm.claude-sonnet]\n\n[mcp.github]\n"));
    let llm = &shown["llm"];
    assert_eq!(
        [&llm["provider"], &llm["model"], &llm["max_tokens"], &llm["api_key"]],
        [
            &json!("anthropic"),
            &json!("claude-sonnet-4-20250514"),
            &json!(4096),
            &json!("[redacted] (in the file)")
        ]
    );
    assert_eq!(shown["mcp"][0]["tools"], json!(["create_pull_request"]));
    assert_eq!(shown["governed"], false);
    let notices = shown["notices"].to_string();
    assert!(notices.contains("nothing governs this agent's container"), "{notices}");
}

#[test]
fn a_field_overrides_that_field_only() {
    let shown = shown(&home(
        "[llm.claude-sonnet]\nmodel = \"other\"\napi_key_env = \"KEY\"\n[mcp.github]\ntools = []\n[mcp.own]\nurl = \"https://example.org/mcp\"\n",
    ));
    let llm = &shown["llm"];
    assert_eq!(
        [&llm["provider"], &llm["model"], &llm["max_tokens"], &llm["api_key"]],
        [&json!("anthropic"), &json!("other"), &json!(4096), &json!("the variable KEY")]
    );
    assert_eq!(shown["mcp"][0]["tools"], json!([]), "none, not all");
    assert_eq!(shown["mcp"][0]["url"], "https://mcp.github.com/sse");
    assert_eq!(shown["mcp"][1]["tools"], Value::Null, "omitted: all");
}

#[test]
fn an_agent_needs_no_registry_and_may_have_a_grant() {
    let home = Home::empty();
    home.profile("a", "[llm.x]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"http://localhost:11434/v1\"\n\n[grant]\nfs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }\nnet = { only = [] }\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n");
    let shown = shown(&home);
    assert_eq!(
        (&shown["governed"], &shown["llm"]["max_tokens"], &shown["llm"]["api_key"]),
        (&json!(true), &json!(8192), &Value::Null)
    );
    assert_eq!(shown["notices"], json!([]));
}

#[test]
fn the_first_of_several_models_is_the_default_and_a_profile_s_comes_before_the_registry_s() {
    let models = |profile: &str| {
        let shown = shown(&home(profile));
        (shown["llm"]["model"].clone(), shown["llm"]["models"].clone())
    };
    let section = "[llm.claude-sonnet]\n";
    let listed = models(&format!("{section}models = [\"large\", \"small\"]\n"));
    assert_eq!(listed, (json!("large"), json!(["large", "small"])), "the registry has a `model`");
    let both = models(&format!("{section}models = [\"large\", \"small\"]\nmodel = \"small\"\n"));
    assert_eq!(both.0, "small");
    assert_eq!(models(section).1, json!([]));
}

#[test]
fn every_mistake_is_named_with_its_place() {
    for (profile, expected) in [
        ("description = \"x\"\n", "a.toml: no [llm.*] section"),
        (
            "[llm.claude-sonnet]\n[llm.other]\n",
            "a.toml:2: llm.other: 2 [llm.*] sections (llm.claude-sonnet, llm.other)",
        ),
        ("[llm.none]\n", "a.toml:1: llm.none: `provider` is missing"),
        ("[llm.none]\n", "`model` is missing"),
        ("[llm.none]\n", "`api_key` is missing"),
        (
            "[llm.claude-sonnet]\nprovider = \"azure\"\n",
            "a.toml:2: llm.claude-sonnet.provider: \"azure\" is not one of anthropic, openai",
        ),
        (
            "[llm.claude-sonnet]\nauth = \"basic\"\n",
            "llm.claude-sonnet.auth: \"basic\" is not one of api-key, bearer",
        ),
        (
            "[llm.claude-sonnet]\nprovider = \"openai\"\nauth = \"api-key\"\n",
            "llm.claude-sonnet.auth: \"api-key\" is not one of bearer",
        ),
        (
            "[llm.claude-sonnet]\nprovider_tools = [\"\"]\n",
            "llm.claude-sonnet.provider_tools: must not be empty",
        ),
        ("[llm.claude-sonnet]\nmodle = \"x\"\n", "did you mean `model`?"),
        ("[llm.claude-sonnet]\nmodle = \"x\"\n", "a.toml:2: llm.claude-sonnet.modle: unknown key"),
        ("[llm.claude-sonnet]\napi_kee_env = \"x\"\n", "llm.claude-sonnet.api_kee_env: unknown key"),
        ("[llm.claude-sonnet]\napi_key_envv = \"x\"\n", "llm.claude-sonnet.api_key_envv: unknown key"),
        (
            "[llm.claude-sonnet]\nmodel = 7\n",
            "llm.claude-sonnet.model: expected a string, found a whole number",
        ),
        ("[llm.claude-sonnet]\nmodel = \"\"\n", "llm.claude-sonnet.model: must not be empty"),
        ("[llm.claude-sonnet]\nmodels = [\"a\", \"\"]\n", "llm.claude-sonnet.models: must not be empty"),
        (
            "[llm.claude-sonnet]\nmodels = []\n",
            "llm.claude-sonnet.models: expected a list of at least one string, found ",
        ),
        (
            "[llm.claude-sonnet]\nmax_tokens = 0\n",
            "llm.claude-sonnet.max_tokens: 0 is out of range: 1 to 4294967295",
        ),
        (
            "[llm.claude-sonnet]\nmax_tokens = \"many\"\n",
            "expected a whole number, 0 or more, found a string",
        ),
        (
            "[llm.claude-sonnet]\napi_key = \"a\"\napi_key_env = \"B\"\n",
            "is given, too, but a credential has one source",
        ),
        ("[llm.claude-sonnet]\napi_key_file = \"relative\"\n", "api_key_file: is not an absolute path"),
        ("[llm.claude-sonnet]\napi_key_fil = \"/x\"\n", "did you mean `api_key_file`?"),
        ("[llm.claude-sonnet]\nbase_url = \"http://example.org\"\n", "in the clear"),
        ("[llm.claude-sonnet]\nbase_url = \"ftp://example.org\"\n", "only https"),
        ("[llm.claude-sonnet]\nbase_url = \"nonsense\"\n", "it is not a URL"),
        (
            "[llm.claude-sonnet]\noptions = { model = \"x\" }\n",
            "llm.claude-sonnet.options.model: cannot be set here",
        ),
        ("[llm]\nclaude = 7\n", "a.toml:2: llm.claude: is directly in [llm]"),
        ("[llm]\nprovider = \"anthropic\"\n", "write `[llm.NAME]`"),
        ("[llm.claude-sonet]\n", "did you mean `claude-sonnet`, which the registry has?"),
        ("[llm.claude-sonnet]\n[mcp.git-hub]\n", "did you mean `github`, which the registry has?"),
        (
            "[llm.claude-sonnet]\ntimeout = -3\n",
            "timeout: expected a whole number, 0 or more, found a number below 0",
        ),
        ("[llm.claude-sonnet]\n[mcp.none]\n", "a.toml:2: mcp.none: `url` is missing"),
        (
            "[llm.claude-sonnet]\n[mcp.github]\ntools = \"x\"\n",
            "mcp.github.tools: expected a list of strings, found a string",
        ),
        ("[llm.claude-sonnet]\n[mcp.github]\ntool = []\n", "did you mean `tools`?"),
        ("log_reader = 4294967296\n[llm.claude-sonnet]\n", "log_reader: is not a user id"),
        (
            "[limits]\ncost_per_day = 5\n[llm.claude-sonnet]\n",
            "a.toml:2: limits.cost_per_day: `price` is missing",
        ),
        ("[limits]\ntokens_per_day = -1\n[llm.claude-sonnet]\n", "limits.tokens_per_day: "),
        ("[limits]\nturns_a_minute = 1\n[llm.claude-sonnet]\n", "did you mean `turns_per_minute`?"),
        (
            "[llm.claude-sonnet]\nprice = { input = \"x\" }\n",
            "llm.claude-sonnet.price.input: expected an amount, 0 or more, found a string",
        ),
        ("[llm.claude-sonnet]\nprice = { in = 1 }\n", "llm.claude-sonnet.price.in: unknown key"),
        ("[llm.claude-sonnet\n", "a.toml:1:"),
    ] {
        let ran = home(profile).run(&["agent", "check", "a"]);
        assert!(!ran.status, "{profile}");
        assert!(ran.err.contains(expected), "{profile}: expected {expected:?} in:\n{}", ran.err);
    }
    let home = home("[llm.claude-sonnet]\n");
    assert!(home.run(&["agent", "check", "a"]).status, "the control");
    let ran = home.run(&["agent", "check", "nobody"]);
    assert!(
        ran.err.contains("no profile named \"nobody\"") && ran.err.contains("there are: a"),
        "{}",
        ran.err
    );
    home.write(".config/ringfence/registry.toml", "[llm.x]\nmodel = 1\n[extra]\n");
    let ran = home.run(&["agent", "check", "a"]);
    assert!(
        ran.err.contains("registry.toml:2: llm.x.model")
            && ran.err.contains("registry.toml:3: extra: unknown key"),
        "{}",
        ran.err
    );
    let ran = home.run(&["agent", "start"]);
    assert!(!ran.status && ran.err.contains("registry"), "{}", ran.err);
}

#[test]
fn mistakes_are_told_from_the_top_of_the_file() {
    let home =
        home("socket_owner = \"me\"\nhttp = 1\n[mcp.github]\ntols = []\n[llm.claude-sonnet]\nmodle = 1\n");
    let ran = home.run(&["agent", "check", "a"]);
    let at: Vec<_> = ["toml:1: socket_owner", "toml:2: http", "toml:4: mcp", "toml:6: llm"]
        .map(|place| ran.err.find(place))
        .into();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{}", ran.err);
}

#[test]
fn a_file_that_is_no_agent_for_its_name_alone_is_shown() {
    let home = Home::with(&Mock::new());
    let text = fs::read_to_string(home.path(".config/ringfence/agents/a.toml")).unwrap();
    home.profile("two words", &text);
    home.profile(".hidden", &text);
    let daemon = home.start();
    let why = daemon.status("two words");
    assert_eq!(why["state"], "failed");
    assert!(
        why["error"].as_str().unwrap().contains("\"two words\" is not a profile's name: use letters"),
        "{why}"
    );
    assert!(daemon.status(".hidden").is_null(), "an editor's file is nobody's mistake");
    assert_eq!(daemon.status("a")["state"], "running");
}

#[test]
fn a_socket_that_no_path_can_name_is_found_before_it_is_bound() {
    let home = Home::with(&Mock::new());
    let config = home.path(&"x".repeat(80));
    fs::create_dir_all(config.join("ringfence/agents")).unwrap();
    fs::copy(home.path(".config/ringfence/agents/a.toml"), config.join("ringfence/agents/a.toml")).unwrap();
    let said = |arguments: &[&str]| {
        let output = home.ringfence(arguments).env("XDG_CONFIG_HOME", &config).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    for command in [["agent", "check", "a"].as_slice(), &["agent", "send", "a", "hi"]] {
        let (succeeded, error) = said(command);
        assert!(!succeeded && error.contains("agent.sock has") && error.contains("at most 107"), "{error}");
    }
    assert!(home.run(&["agent", "check", "a"]).status, "the control: the same profile in a shorter place");
}

#[test]
fn limits_and_other_users_are_shown() {
    let home = home(
        "socket_owner = 1234\nlog_reader = 1235\n[llm.claude-sonnet]\n[limits]\nturns_per_minute = 9\ntokens_per_day = 10000\n",
    );
    let shown = home.run(&["agent", "show", "a"]).out;
    for part in [
        "9 turns a minute, 10000 tokens a day\n",
        "agent.sock, also for user 1234\n",
        "readable for user 1235\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn no_message_has_a_secret_in_it() {
    for profile in [
        "[llm.x]\napi_key = \"sk-very-secret\"\n",
        "[llm.x]\napi_key = \"sk-very-secret\"\napi_key_env = \"X\"\n",
        "[llm.x]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key = \"sk-very-secret\\n\\u0001\"\n",
        "[llm.x]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key = \"sk-ok\"\nbase_url = \"https://user:sk-very-secret@example.org\"\n",
    ] {
        let home = Home::empty();
        home.profile("a", profile);
        let ran = home.run(&["agent", "check", "a"]);
        assert!(!ran.status && !ran.err.contains("very-secret"), "{}", ran.err);
    }
    // The same for a key that stands where none belongs.
    let good = "[llm.x]\nprovider = \"anthropic\"\nmodel = \"m\"\n";
    for line in [
        "api_key_env = \"KEY\"",
        "api_key_file = \"KEY\"",
        "api_key_file = \"/nowhere/KEY\"",
        "api_key_credential = \"KEY\"",
        "api_key_command = [\"KEY\"]",
        "api_key_command = [\"/bin/false\", \"KEY\"]",
        "api_key_command = \"echo KEY; false\"",
        "api_key = KEY",
        "api_key = \"k\"\nbase_url = \"KEY\"",
        "api_key = \"k\"\nbase_url = \"https://KEY@example.org/\"",
        "api_key = \"k\"\nbase_url = \"https://example.org/?key=KEY\"",
        "api_key = \"k\"\nbase_url = \"https://example.org/#KEY\"",
        "api_key = \"k\"\nbase_url = \"http://example.org/KEY\"",
        "api_key = \"k\"\nKEY = 1",
        "api_key = \"k\"\nmax_tokens = \"KEY\"",
        "api_key = \"k\"\n[llm.KEY]",
        "api_key = \"k\"\n[mcp.x]\nurl = \"https://example.org/?token=KEY\"",
        "api_key = \"k\"\n[mcp.x]\nurl = \"https://example.org/\"\nauth_token_env = \"KEY\"",
    ] {
        for key in ["sk-ant-api03-abcdefghijklmnop-verysecret", "gsk_a1B2c3D4e5F6g7H8i9J0verysecret"] {
            let home = Home::empty();
            home.profile("a", &format!("{good}{}\n", line.replace("KEY", key)));
            for command in
                [&["agent", "check", "a"][..], &["agent", "show", "a"], &["agent", "show", "a", "--json"]]
            {
                let ran = home.run(command);
                let all = format!("{}{}", ran.out, ran.err);
                assert!(!all.contains("verysecret") && !all.is_empty(), "{line} {command:?}: {all}");
            }
        }
    }
    let home = home("[llm.claude-sonnet]\n[mcp.github]\n");
    let asking = [&["agent", "show", "a"][..], &["agent", "show", "a", "--json"], &["agent", "check", "a"]];
    let all: String = asking
        .map(|args| {
            let ran = home.run(args);
            ran.out + &ran.err
        })
        .concat();
    assert!(!all.contains("registry-key") && !all.contains("registry_token"), "{all}");
}

/// The key that an agent's provider is sent, where its profile has this line.
fn key_sent(line: &str, environment: &[(&str, &str)], prepare: impl Fn(&Home)) -> String {
    let mock = Mock::with([says(&["ok"])]);
    let home = Home::empty();
    prepare(&home);
    let line = line.replace("HOME", &home.path("").display().to_string());
    home.profile(
        "a",
        &format!("[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\n{line}\nbase_url = \"{}\"\n", mock.url),
    );
    let _daemon = home.start_with(environment);
    Client::runtime(&home.socket("a")).says(1, "x");
    mock.last().header("x-api-key").unwrap_or_default().to_owned()
}

#[test]
fn a_key_comes_from_each_of_its_sources() {
    let nothing = |_: &Home| {};
    let file = |home: &Home| home.write("secrets/key", "sk-from-file\n");
    assert_eq!(key_sent("api_key = \"sk-given\"", &[], nothing), "sk-given");
    assert_eq!(key_sent("api_key_env = \"MY_KEY\"", &[("MY_KEY", "sk-from-env")], nothing), "sk-from-env");
    assert_eq!(key_sent("api_key_file = \"HOME/secrets/key\"", &[], file), "sk-from-file");
    assert_eq!(key_sent("api_key_file = \"~/secrets/key\"", &[], file), "sk-from-file");
    let credentials = tempfile::tempdir().unwrap();
    fs::write(credentials.path().join("llm"), "sk-from-systemd").unwrap();
    fs::set_permissions(credentials.path().join("llm"), fs::Permissions::from_mode(0o400)).unwrap();
    let directory = credentials.path().display().to_string();
    let environment = [("CREDENTIALS_DIRECTORY", directory.as_str())];
    assert_eq!(key_sent("api_key_credential = \"llm\"", &environment, nothing), "sk-from-systemd");
    assert_eq!(key_sent("", &[], nothing), "", "a server of one's own may want none");
    if !nix::unistd::geteuid().is_root() {
        assert_eq!(
            key_sent("api_key_command = [\"echo\", \"sk-from-command\"]", &[], nothing),
            "sk-from-command"
        );
        assert_eq!(key_sent("api_key_command = \"echo sk-from-shell | cat\"", &[], nothing), "sk-from-shell");
    }
}

#[test]
fn a_key_that_cannot_be_had_is_a_specific_error() {
    let home = Home::empty();
    home.write("open", "sk-very-secret");
    fs::set_permissions(home.path("open"), fs::Permissions::from_mode(0o644)).unwrap();
    home.write("empty", "\n");
    let path = home.path("").display().to_string();
    for (line, expected) in [
        ("api_key_env = \"RINGFENCE_NO_SUCH\"", "the environment variable RINGFENCE_NO_SUCH is not set"),
        ("api_key_file = \"HOME/none\"", "cannot read"),
        ("api_key_file = \"HOME/open\"", "can be read or written by others (mode 0644): chmod 600 it"),
        ("api_key_file = \"HOME/empty\"", "is empty"),
        ("api_key_file = \"HOME/\"", "is not a regular file"),
        ("api_key_credential = \"llm\"", "add LoadCredential=llm:PATH"),
    ] {
        home.profile(
            "a",
            &format!("[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\n{}\n", line.replace("HOME/", &path)),
        );
        let ran = home.run(&["agent", "check", "a"]);
        assert!(!ran.status && ran.err.contains(expected), "{line}: {}", ran.err);
        assert!(ran.err.contains("[llm.m]") && !ran.err.contains("very-secret"), "{}", ran.err);
    }
    if nix::unistd::geteuid().is_root() {
        home.profile(
            "a",
            "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key_command = [\"echo\", \"x\"]\n",
        );
        assert!(home.run(&["agent", "check", "a"]).err.contains("never run as root"));
    }
}

#[test]
fn credentials_in_a_file_that_others_can_read_are_noticed() {
    let home = home("[llm.claude-sonnet]\n");
    fs::set_permissions(home.path(".config/ringfence/registry.toml"), fs::Permissions::from_mode(0o644))
        .unwrap();
    let ran = home.run(&["agent", "check", "a"]);
    assert!(ran.status, "the seed's own example makes such a file");
    assert!(
        ran.out.contains("registry.toml: contains credentials, and other users can read it"),
        "{}",
        ran.out
    );
}

#[test]
fn tightbeams_files_are_used_where_ours_are_absent() {
    let mock = Mock::with([says(&["ok"])]);
    let home = Home::empty();
    home.write(
        ".config/tightbeam/registry.toml",
        &REGISTRY.replace("api_key =", &format!("base_url = \"{}\"\napi_key =", mock.url)),
    );
    home.write(".config/tightbeam/agents/my-agent.toml", "[llm.claude-sonnet]\n");
    let daemon = home.start();
    assert!(daemon.log().contains("nothing governs this agent's container"), "{}", daemon.log());
    let mut runtime = Client::runtime(&home.path(".config/tightbeam/sockets/my-agent.sock"));
    assert_eq!(runtime.says(1, "x")["result"]["content"][0]["text"], "ok");
    assert_eq!(mock.last().body["max_tokens"], 4096);
    assert!(home.path(".local/share/tightbeam/logs/my-agent/conversation.ndjson").exists());
}

#[test]
fn a_plain_profile_is_no_agent() {
    let home = Home::with(&Mock::new());
    home.profile("plain", "[grant]\nfs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }\nnet = { only = [] }\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n");
    home.profile("neither", "description = \"nothing\"\n");
    let daemon = home.start();
    assert!(daemon.status("plain").is_null());
    assert!(daemon.status("neither")["error"].as_str().unwrap().contains("no [llm.*] section"));
    assert_eq!(daemon.status("a")["state"], "running");
}

#[test]
fn a_command_gives_the_key_to_whoever_is_not_root() {
    use std::os::unix::{fs::chown, process::CommandExt};
    let mock = Mock::with([says(&["ok"])]);
    let home = Home::empty();
    home.profile(
        "a",
        &format!(
            "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{}\"\napi_key_command = [\"sh\", \"-c\", \"echo sk-of-user-$(id -u)\"]\n",
            mock.url
        ),
    );
    let me = nix::unistd::geteuid();
    let mut start = home.ringfence(&["agent", "start"]);
    let uid = if me.is_root() { SOMEBODY } else { me.as_raw() };
    if me.is_root() {
        // Root is refused; its home becomes somebody's.
        let ran = home.run(&["agent", "check", "a"]);
        assert!(!ran.status && ran.err.contains("never run as root"), "{}", ran.err);
        for path in [
            "",
            ".config",
            ".config/ringfence",
            ".config/ringfence/agents",
            ".config/ringfence/agents/a.toml",
        ] {
            chown(home.path(path), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
        start.uid(SOMEBODY).gid(SOMEBODY);
    }
    let _daemon = home.started(&mut start);
    let answer = Client::runtime(&home.socket("a")).says(1, "x");
    assert_eq!(answer["result"]["content"][0]["text"], "ok", "{answer}");
    assert_eq!(mock.last().header("x-api-key"), Some(&*format!("sk-of-user-{uid}")));
}
