//! Lists that are added to, installed profiles that are extended, homes.

use crate::{problem::Wrong, *};
use ringfence_common::policy::axis::{READ, WRITE};
use std::fs;

struct Files {
    dir: tempfile::TempDir,
    dirs: Dirs,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["installed", "own"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let dirs = Dirs { system: dir.path().join("installed"), user: None };
        Self { dir, dirs }
    }

    fn write(&self, file: &str, text: &str) -> &Self {
        fs::write(self.dir.path().join(file), text).unwrap();
        self
    }

    fn load(&self, file: &str) -> Result<Profile, LoadErrors> {
        load(self.dir.path().join(file).to_str().unwrap(), &self.dirs)
    }

    fn loaded(&self, file: &str) -> Profile {
        self.load(file).unwrap_or_else(|e| panic!("{e}"))
    }
}

const BASE: &str = "[grant]
fs_read = { only = [\"/srv/a\", \"/srv/b\"] }
fs_write = \"all\"
exec = { only = [] }
net = { only = [] }
max_calls = \"unlimited\"
valid_for_generation = \"all\"
[deny]
fs_read = [\"**/.env\"]
";

/// Each rule as `FILE:LINE TEXT`.
fn listed(rules: &[Rule]) -> Vec<String> {
    let file = |rule: &Rule| rule.file.file_name().unwrap().to_string_lossy().into_owned();
    rules.iter().map(|rule| format!("{}:{} {}", file(rule), rule.line, rule.text)).collect()
}

#[test]
fn what_is_added_stands_behind_what_is_inherited_with_its_own_line() {
    let files = Files::new();
    files.write("installed/base.toml", BASE);
    files.write(
        "own/middle.toml",
        "extends = \"base\"\n[grant]\nfs_read = { add = [\"/srv/c\"] }\n[deny]\nexec = { add = [\"su\"] }\n",
    );
    files.write(
        "own/p.toml",
        "extends = \"middle\"\n[grant]\nfs_read = { add = [\n  \"/srv/d\",\n  \"/srv/a\",\n] }\nfs_write = { add = [\"/tmp\"] }\n[deny]\nfs_read = { add = [\"**/key\"] }\n",
    );
    let profile = files.loaded("own/p.toml");
    assert_eq!(
        listed(profile.rules.fs_read.listed()),
        ["base.toml:2 /srv/a", "base.toml:2 /srv/b", "middle.toml:3 /srv/c", "p.toml:4 /srv/d"]
    );
    assert!(matches!(profile.rules.fs_write, AxisRules::All(_)), "there is nothing beyond all");
    assert_eq!(listed(&profile.denials.fs_read), ["base.toml:9 **/.env", "p.toml:9 **/key"]);
    assert_eq!(listed(&profile.denials.exec), ["middle.toml:5 su"]);
    // A whole list is in the place of all that.
    files.write("own/q.toml", "extends = \"middle\"\n[grant]\nfs_read = { only = [\"/srv/d\"] }\n");
    assert_eq!(listed(files.loaded("own/q.toml").rules.fs_read.listed()), ["q.toml:3 /srv/d"]);
}

#[test]
fn named_options_and_commands_replace_the_inherited_ones() {
    let files = Files::new();
    files.write(
        "own/a.toml",
        "[kernel]\nioctl = [\"TIOCSTI\"]\nsocket_options = [\"SO_MARK\", \"SO_DONTROUTE\"]\n",
    );
    files.write("own/p.toml", "extends = \"a\"\n[kernel]\nsocket_options = [\"SO_MARK\"]\n");
    let profile = files.loaded("own/p.toml");
    assert_eq!(listed(&profile.socket_options), ["p.toml:3 SO_MARK"]);
    assert_eq!(listed(&profile.ioctl), ["a.toml:2 TIOCSTI"]);
    files.write("own/p.toml", "extends = \"a\"\n");
    assert_eq!(
        listed(&files.loaded("own/p.toml").socket_options),
        ["a.toml:3 SO_MARK", "a.toml:3 SO_DONTROUTE"]
    );
}

#[test]
fn a_list_that_adds_to_nothing_is_an_error_with_its_place() {
    let files = Files::new();
    files.write("own/p.toml", &BASE.replace("net = { only = [] }", "net = { add = [\"10.0.0.1\"] }"));
    let LoadErrors(problems) = files.load("own/p.toml").unwrap_err();
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert!(matches!(problem.what, Wrong::NothingToAddTo), "{problem:?}");
    assert_eq!((problem.at.line, problem.at.key.as_str()), (5, "grant.net"));
    for wrong in ["{ add = [\"x/y\"] }", "{ add = \"/srv\" }", "{ add = [], only = [] }", "{ ad = [] }"] {
        files.write("own/p.toml", &BASE.replace("fs_write = \"all\"", &format!("fs_write = {wrong}")));
        let LoadErrors(problems) = files.load("own/p.toml").unwrap_err();
        assert!(
            problems.iter().all(|p| p.at.line == 3 && p.at.key.starts_with("grant.fs_write")),
            "{problems:?}"
        );
    }
}

#[test]
fn a_name_is_the_installed_profile_s_before_that_of_a_file_beside() {
    let files = Files::new();
    let described = |what: &str| format!("description = \"{what}\"\n");
    files.write("own/p.toml", "extends = \"base\"\n").write("own/base.toml", &described("beside"));
    assert_eq!(files.loaded("own/p.toml").description.as_deref(), Some("beside"));
    files.write("installed/base.toml", &described("installed"));
    let profile = files.loaded("own/p.toml");
    assert_eq!(profile.description.as_deref(), Some("installed"));
    assert!(
        profile.notices.iter().any(|n| n.contains("p.toml:1") && n.contains("own/base.toml")),
        "{:?}",
        profile.notices
    );
    // One that is made out of the installed profile of its own name.
    files.write("own/base.toml", "extends = \"base\"\n");
    let profile = files.loaded("own/base.toml");
    assert_eq!(profile.description.as_deref(), Some("installed"));
    assert_eq!(profile.sources.len(), 2);
}

/// What an agent puts beside a profile that is not protected, because it was not there before, changes nothing.
#[test]
fn a_file_beside_takes_no_shipped_profile_s_place() {
    let files = Files::new();
    files.write("own/p.toml", "extends = \"coder\"\n");
    let shipped = files.loaded("own/p.toml");
    files.write("own/coder.toml", BASE);
    let profile = files.loaded("own/p.toml");
    assert_eq!((&profile.rules, &profile.denials), (&shipped.rules, &shipped.denials));
    assert!(profile.notices.iter().any(|n| n.contains("shipped") && n.contains("own/coder.toml")));
    files.write("installed/coder.toml", BASE);
    assert_ne!(files.loaded("own/p.toml").rules, shipped.rules, "the host's own file does");
}

#[test]
fn a_home_is_that_of_who_runs_the_command() {
    let files = Files::new();
    files.write(
        "own/p.toml",
        &BASE
            .replace("\"/srv/a\"", "\"${HOME}/.cache\", \"${HOME}\"")
            .replace("fs_write = \"all\"", "fs_write = { only = [\"${HOME}/.cache\"] }")
            .replace("\"**/.env\"", "\"${HOME}/.ssh\""),
    );
    let root = tempfile::tempdir().unwrap();
    let allowed = |home: Option<&str>, axis, path: &str| {
        let profile = files.loaded("own/p.toml").at_home(home.map(Path::new));
        let done =
            profile.compile_whole(&CompileContext::new(root.path(), None)).unwrap_or_else(|e| panic!("{e}"));
        let decision = decide::Decider::new(&done.policy).path(axis, path.as_bytes());
        (decision.allowed(), done.notes.len())
    };
    let home = Some("/home/[u]");
    assert_eq!(allowed(home, READ, "/home/[u]/x"), (true, 0));
    assert_eq!(allowed(home, READ, "/home/u/x"), (false, 0));
    assert_eq!(allowed(home, READ, "/home/[u]/.ssh/key"), (false, 0));
    assert_eq!(allowed(home, WRITE, "/home/[u]/.cache/x"), (true, 0));
    assert_eq!(allowed(home, WRITE, "/home/[u]/x"), (false, 0));
    assert_eq!(allowed(None, READ, "/home/[u]/x"), (false, 4), "each such rule is told");
    for wrong in ["/srv/${HOME}", "${HOME}x", "${HOME}/${WORKDIR}", "${HOME}/../x"] {
        files.write("own/q.toml", &BASE.replace("/srv/a", wrong));
        assert!(files.load("own/q.toml").is_err(), "{wrong}");
    }
}

#[test]
fn what_a_kit_has_for_ties_comes_in_the_place_of_the_rest_and_is_inherited() {
    let files = Files::new();
    files.write(
        "own/parent.toml",
        "[kit]\nprovider = \"anthropic\"\nstate = \"${HOME}/.a\"\narguments = [\"-a\"]\n\
         [kit.environment]\nA = \"1\"\nB = \"1\"\n\
         [kit.tie]\narguments = [\"${RUNTIME}\"]\nenvironment = { B = \"2\" }\nfiles = { f = \"3\" }\n",
    );
    files.write("own/child.toml", "extends = \"parent\"\n[kit.tie]\nenvironment = { C = \"4\" }\n");
    let kit = files.loaded("own/child.toml").kit.unwrap();
    assert_eq!((kit.arguments.len(), kit.environment.len(), kit.files.len()), (1, 2, 0), "without a tie");
    let tying = kit.tying();
    assert_eq!(tying.arguments, ["-a", "${RUNTIME}"]);
    assert_eq!(tying.files["f"], "3");
    let variables: Vec<_> = tying.environment.iter().map(|(name, text)| format!("{name}={text}")).collect();
    assert_eq!(variables, ["A=1", "B=1", "C=4"], "a table of its own is whole");
    let tying = files.loaded("own/parent.toml").kit.unwrap().tying();
    assert_eq!(tying.environment["B"], "2");
    // There is no directory for them.
    files.write("own/odd.toml", "[kit]\nprovider = \"anthropic\"\n[kit.tie.files]\nf = \"\"\n");
    assert!(files.load("own/odd.toml").unwrap_err().to_string().contains("kit.tie.files"));
}

#[test]
fn a_known_agent_s_hook_is_added_only_where_the_run_ties() {
    let files = Files::new();
    for name in ["claude", "codex", "opencode"] {
        let kit = load(name, &files.dirs).unwrap_or_else(|e| panic!("{e}")).kit.unwrap();
        let texts = |kit: &kit::Kit| -> Vec<String> {
            let parts = kit.environment.values().chain(kit.files.values()).chain(&kit.arguments);
            parts.cloned().collect()
        };
        assert!(!texts(&kit).concat().contains(kit::RUNTIME), "{name}");
        let tying = texts(&kit.tying());
        assert!(tying.concat().contains(kit::RUNTIME), "{name}");
        for text in tying.iter().filter(|text| text.starts_with('{')) {
            serde_json::from_str::<serde_json::Value>(text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
        }
    }
}

#[test]
fn a_model_is_told_of_denials_unless_a_kit_says_otherwise() {
    let files = Files::new();
    let explains = |text: &str| {
        files.write("own/p.toml", text);
        files.loaded("own/p.toml").kit.unwrap().explain_denials
    };
    assert!(explains("[kit]\nprovider = \"openai\"\n"));
    files.write("own/parent.toml", "[kit]\nprovider = \"openai\"\nexplain_denials = false\n");
    assert!(!explains("extends = \"parent\"\n"));
    assert!(explains("extends = \"parent\"\n[kit]\nexplain_denials = true\n"));
    files.write("own/odd.toml", "[kit]\nprovider = \"openai\"\nexplain_denials = \"no\"\n");
    assert!(files.load("own/odd.toml").unwrap_err().to_string().contains("kit.explain_denials"));
}

#[test]
fn codex_s_file_says_which_of_its_logins_is_used_and_none_is_renewed() {
    let files = Files::new();
    let kit = load("codex", &files.dirs).unwrap_or_else(|e| panic!("{e}")).kit.unwrap();
    assert!(!kit.renews());
    let logins = kit.credentials.iter().filter_map(|place| match place {
        ringfence_credentials::Source::Login(login) => Some(login),
        _ => None,
    });
    let said: Vec<_> = logins
        .map(|login| {
            let when = login.when.as_ref().unwrap();
            assert!(login.path.ends_with(".codex/auth.json") && when.at == "/auth_mode");
            (login.at.as_str(), when.is.as_str(), login.chatgpt_account.as_deref())
        })
        .collect();
    assert_eq!(
        said,
        [
            ("/OPENAI_API_KEY", "apikey", None),
            ("/tokens/access_token", "chatgpt", Some("/tokens/account_id"))
        ]
    );
    for (provider, place, why) in [
        ("openai", r#"chatgpt_account = "/b""#, None),
        ("anthropic", r#"chatgpt_account = "/b""#, Some("the provider is anthropic")),
        ("openai", r#"chatgpt_account = "b""#, Some("is not a JSON pointer")),
        ("openai", r#"when = { at = "/b", is = "c" }"#, None),
        ("openai", r#"when = { at = "b", is = "c" }"#, Some("is not a JSON pointer")),
        ("openai", r#"when = { at = "/b", is = "" }"#, Some("must not be empty")),
        ("openai", r#"when = { at = "/b" }"#, Some("has no `is`")),
        ("openai", r#"renew = { client = "c", at = "/b" }"#, Some("has no `url`")),
        ("openai", r#"when = "/b""#, Some("kit.credentials")),
        ("openai", r#"when = { at = "/b", is = "c", or = "d" }"#, Some("kit.credentials")),
    ] {
        let text = format!(
            "[kit]\nprovider = \"{provider}\"\ncredentials = [{{ file = \"/l\", at = \"/a\", {place} }}]\n"
        );
        files.write("own/p.toml", &text);
        let said = files.load("own/p.toml").map_err(|error| error.to_string());
        match why {
            None => assert!(said.is_ok(), "{place}: {said:?}"),
            Some(why) => assert!(said.as_ref().is_err_and(|said| said.contains(why)), "{place}: {said:?}"),
        }
    }
}

#[test]
fn claude_s_login_is_renewed_where_its_vendor_does_that_and_under_its_own_locks() {
    let files = Files::new();
    let kit = load("claude", &files.dirs).unwrap_or_else(|e| panic!("{e}")).kit.unwrap();
    let login = kit.credentials.iter().find_map(|place| match place {
        ringfence_credentials::Source::Login(login) => Some(login),
        _ => None,
    });
    let login = login.unwrap();
    let renewal = login.renewal.as_ref().unwrap();
    assert!(login.path.ends_with(".claude/.credentials.json"), "{}", login.path.display());
    assert_eq!(
        (login.at.as_str(), login.expires.as_deref(), renewal.at.as_str()),
        ("/claudeAiOauth/accessToken", Some("/claudeAiOauth/expiresAt"), "/claudeAiOauth/refreshToken")
    );
    // A refresh token goes there, and nowhere else.
    assert_eq!(renewal.url, "https://platform.claude.com/v1/oauth/token");
    assert_eq!((renewal.client.as_str(), renewal.json), ("9d1c250a-e61b-44d9-88ed-5944d1962f5e", true));
    let [refresh, dir] = &renewal.locks[..] else { panic!("{:?}", renewal.locks) };
    assert!(refresh.ends_with(".claude/.oauth_refresh.lock") && dir.ends_with(".claude.lock"));
    assert!(renewal.write_lock.as_ref().unwrap().ends_with(".claude/.storage-write.lock"));
}
