//! Agents that Ringfence knows: their model is served by the run, and the credential stays on the host.

mod chatgpt;
mod renewal;
mod vendor;

use super::*;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpStream},
    sync::mpsc,
    thread,
};

const KEY: &str = "sk-test-the-real-key-0123456789";

/// Shows what it was given, and asks its model once.
const AGENT: &[u8] = br#"#!/bin/bash
printf 'argument %s\n' "$@"
env | sort
address=${FAKE_URL#http://}
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
body='{"model":"m1","max_tokens":70000,"messages":[{"role":"user","content":"hi"}]}'
printf 'POST /v1/messages HTTP/1.1\r\nHost: %s\r\nx-api-key: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
    "$address" "${OTHER_TOKEN-$FAKE_TOKEN}" "${#body}" "$body" >&3
cat <&3
"#;

/// A host with an agent `fake` and a profile of its name.
struct Fake {
    host: Host,
}

impl Fake {
    fn new() -> Self {
        let host = Host::new();
        host.executable("fake", AGENT);
        ["work", "home"].iter().for_each(|dir| fs::create_dir(host.path(dir)).unwrap());
        let dir = host.path("");
        let dir = dir.display();
        host.profile(
            "fake",
            &format!(
                r#"
                extends = "agent"
                [grant]
                fs_read = {{ add = ["{dir}"] }}
                exec = {{ add = ["{dir}"] }}
                [kernel]
                accept_partial = ["fs_read", "fs_write", "exec", "net", "unix"]
                [kit]
                provider = "anthropic"
                credentials = [{{ env = "FAKE_KEY" }}, {{ file = "{dir}/login.json", at = "/oauth/access", expires = "/oauth/expires" }}]
                login = "set FAKE_KEY"
                arguments = ["--endpoint", "${{ENDPOINT}}/v1"]
                tried = ["1.0.0"]
                [kit.environment]
                FAKE_URL = "${{ENDPOINT}}"
                FAKE_TOKEN = "${{TOKEN}}"
                "#
            ),
        );
        Self { host }
    }

    /// `ringfence run` with these words, its files in the host's directory.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.host.command();
        command
            .env("HOME", self.host.path("home"))
            .current_dir(self.host.path("work"))
            .env("XDG_CONFIG_HOME", self.host.path("user"))
            .env("XDG_DATA_HOME", self.host.path("data"))
            .env_remove("FAKE_KEY")
            .args(words);
        command
    }

    fn agent(&self) -> String {
        self.host.path("fake").display().to_string()
    }

    fn login(&self, text: &str) {
        let file = self.host.path("login.json");
        fs::write(&file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// What the runs' logs of calls have.
    fn logged(&self) -> String {
        let runs = self.host.path("data/ringfence/logs").read_dir().into_iter().flatten().flatten();
        runs.map(|run| fs::read_to_string(run.path().join("http.ndjson")).unwrap_or_default()).collect()
    }
}

/// What a provider was sent.
struct Asked {
    head: String,
    body: Value,
}

/// A provider that answers each request with the same words.
fn provider() -> (String, mpsc::Receiver<Asked>) {
    provider_that(|_| true)
}

/// One that takes only keys in whose request's head `takes` finds nothing wrong. Its thread ends with the test process.
fn provider_that(takes: impl Fn(&str) -> bool + Send + 'static) -> (String, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap() > 2 {}
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let answer = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m1","content":[{"type":"text","text":"the model's words"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":4}}"#;
            let said = if takes(&head) { "200 OK" } else { "401 Unauthorized" };
            let head_of_answer = format!(
                "HTTP/1.1 {said}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                answer.len()
            );
            let _ = reader.get_mut().write_all(format!("{head_of_answer}{answer}").as_bytes());
            let _ = asked.send(Asked { head, body: serde_json::from_slice(&body).unwrap() });
        }
    });
    (address, received)
}

/// The value of a variable that [`AGENT`] printed.
fn variable<'a>(printed: &'a str, name: &str) -> &'a str {
    let of = |line: &'a str| line.strip_prefix(name)?.strip_prefix('=');
    printed.lines().find_map(of).unwrap_or_else(|| panic!("no {name} in {printed}"))
}

#[test]
fn a_known_agent_has_its_model_and_the_host_has_the_key() {
    let (fake, (url, asked)) = (Fake::new(), provider());
    let mut command = fake.command(&["--base-url", &url, &fake.agent(), "--", "-p", "x"]);
    let output = command.env("FAKE_KEY", KEY).output().unwrap();
    let printed = succeeds(&output);
    assert!(printed.contains("the model's words"), "{printed}");
    let Asked { head, body } = asked.recv_timeout(LIMIT).unwrap();
    assert!(head.starts_with("POST /v1/messages") && head.contains(&format!("x-api-key: {KEY}")), "{head}");
    // Which model and how many tokens is the agent's to say.
    assert_eq!((&body["model"], &body["max_tokens"]), (&"m1".into(), &70000.into()));
    let (endpoint, token) = (variable(&printed, "FAKE_URL"), variable(&printed, "FAKE_TOKEN"));
    assert!(endpoint.starts_with("http://127.0.0.1:"), "{endpoint}");
    let words: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("argument ")).collect();
    assert_eq!(words, ["--endpoint", &format!("{endpoint}/v1"), "--", "-p", "x"]);
    // The key is nowhere but at the provider, the token nowhere but in the container.
    let logged = fake.logged();
    assert!(logged.contains("the model's words"), "{logged}");
    for text in [&printed, &stderr(&output), &logged] {
        assert!(!text.contains(KEY), "{text}");
    }
    assert!(token.starts_with("ringfence-") && !head.contains(token) && !logged.contains(token));
    // All of it ended with the run.
    let address: SocketAddr = endpoint.trim_start_matches("http://").parse().unwrap();
    assert!(TcpStream::connect(address).is_err());
    assert_eq!(fake.host.path("data/ringfence/state").read_dir().unwrap().count(), 0);
}

#[test]
fn only_the_run_s_token_opens_its_endpoint() {
    let (fake, (url, asked)) = (Fake::new(), provider());
    for token in ["", "ringfence-0000", KEY] {
        let other = format!("OTHER_TOKEN={token}");
        let mut command = fake.command(&["--base-url", &url, "--env", &other, &fake.agent()]);
        let printed = succeeds(&command.env("FAKE_KEY", KEY).output().unwrap());
        assert!(printed.contains("HTTP/1.1 401"), "{printed}");
    }
    assert!(asked.try_recv().is_err(), "the provider was asked");
}

#[test]
fn the_credential_is_the_first_that_is_there() {
    let (fake, (url, asked)) = (Fake::new(), provider());
    let agent = fake.agent();
    let key_of = |more: &[&str], variables: &[(&str, &str)]| {
        let words = [&["--base-url", &url], more, &[agent.as_str()]].concat();
        succeeds(&fake.command(&words).envs(variables.iter().copied()).output().unwrap());
        let head = asked.recv_timeout(LIMIT).unwrap().head;
        head.lines().find_map(|line| line.strip_prefix("x-api-key: ")).unwrap_or_default().to_owned()
    };
    assert_eq!(key_of(&[], &[]), "", "a server of one's own may want none");
    fake.login(r#"{"oauth":{"access":"sk-login","expires":4000000000000}}"#);
    assert_eq!(key_of(&[], &[]), "sk-login");
    assert_eq!(key_of(&[], &[("FAKE_KEY", "sk-variable")]), "sk-variable");
    assert_eq!(key_of(&["--api-key-env", "OTHER"], &[("FAKE_KEY", "a"), ("OTHER", "sk-other")]), "sk-other");
    let file = fake.host.path("key");
    fs::write(&file, "sk-file\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(key_of(&["--api-key-file", file.to_str().unwrap()], &[("FAKE_KEY", "a")]), "sk-file");
    // The registry's section of the agent's name: before the kit's places, behind the command line.
    fs::create_dir_all(fake.host.path("user/ringfence")).unwrap();
    let registry = format!("[llm.fake]\napi_key_file = {file:?}\n");
    let path = fake.host.path("user/ringfence/registry.toml");
    fs::write(&path, registry).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(key_of(&[], &[("FAKE_KEY", "sk-variable")]), "sk-file");
    assert_eq!(key_of(&["--api-key-env", "OTHER"], &[("OTHER", "sk-other")]), "sk-other");
}

#[test]
fn what_is_missing_or_wrong_is_said_and_nothing_runs() {
    let fake = Fake::new();
    let agent = fake.agent();
    let refused = |words: &[&str]| {
        let output = fake.command(&[words, &[agent.as_str()]].concat()).output().unwrap();
        assert_eq!(status(&output), 125, "{}", stdout(&output));
        assert_eq!(stdout(&output), "", "the agent ran");
        stderr(&output)
    };
    let said = refused(&[]);
    assert!(said.contains("no credential for fake's model") && said.contains("set FAKE_KEY"), "{said}");
    fake.login(r#"{"oauth":{"access":"sk-login","expires":1000}}"#);
    let said = refused(&[]);
    assert!(said.contains("login.json expired"), "{said}");
    let said = refused(&["--api-key-env", "RINGFENCE_NO_SUCH_VARIABLE"]);
    assert!(said.contains("RINGFENCE_NO_SUCH_VARIABLE is not set"), "{said}");
    let said = refused(&["--base-url", "http://gateway.example", "--api-key-env", "HOME"]);
    assert!(said.contains("--base-url") && said.contains("http is for loopback only"), "{said}");
    let key = fake.host.path("work/key");
    fs::write(&key, KEY).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let said = refused(&["--base-url", "http://127.0.0.1:1", "--api-key-file", key.to_str().unwrap()]);
    assert!(said.contains("may read its working directory"), "{said}");
    fake.host.profile("daily", "extends = \"fake\"\n[limits]\ntokens_per_day = 10\n");
    let said = refused(&["--profile", "daily", "--api-key-env", "HOME"]);
    assert!(said.contains("daily.toml:3") && said.contains("count each run by itself"), "{said}");
    fake.host.profile("open", OPEN);
    let said = refused(&["--profile", "open", "--base-url", "http://127.0.0.1:1"]);
    assert!(said.contains("ringfence agent kits"), "{said}");
}

#[test]
fn a_named_profile_beats_the_kit_and_one_that_extends_it_has_it() {
    let (fake, (url, asked)) = (Fake::new(), provider());
    fake.host.profile("open", OPEN);
    let output = fake.command(&["--profile", "open", "--env", "FAKE_URL=x", &fake.agent()]).output().unwrap();
    assert!(!stdout(&output).contains("FAKE_TOKEN"), "{output:?}");
    fake.host.profile("mine", "extends = \"fake\"\n[kit]\nmodels = [\"m2\"]\n");
    let words = ["--profile", "mine", "--base-url", &url, &fake.agent()];
    let printed = succeeds(&fake.command(&words).env("FAKE_KEY", KEY).output().unwrap());
    assert!(printed.contains("HTTP/1.1 400") && printed.contains("no model"), "{printed}");
    assert!(asked.try_recv().is_err(), "the provider was asked");
}

#[test]
fn one_in_the_binary_can_be_extended_under_its_own_name() {
    let host = Host::new();
    let list = || {
        let mut command = Command::new(RINGFENCE);
        command.env("RINGFENCE_CONFIG_DIR", host.path("config")).args(["agent", "kits", "--json"]);
        let printed = succeeds(&command.output().unwrap());
        let kits: Vec<Value> = serde_json::from_str(&printed).unwrap();
        kits.into_iter().find(|kit| kit["name"] == "claude").unwrap()
    };
    assert_eq!(list()["file"], Value::Null);
    host.profile("claude", "extends = \"claude\"\n[kit]\nmodels = [\"one\"]\n");
    let claude = list();
    assert!(claude["file"].as_str().unwrap().ends_with("profiles/claude.toml"), "{claude}");
    assert_eq!((&claude["models"][0], &claude["provider"]), (&"one".into(), &"anthropic".into()));
}

#[test]
fn a_host_s_profile_of_the_base_s_name_is_not_what_agents_are_made_of() {
    let (fake, (url, _asked)) = (Fake::new(), provider());
    fake.host.profile("agent", OPEN);
    fake.host.profile("claude", "extends = \"claude\"\n");
    let list = || {
        let mut command = Command::new(RINGFENCE);
        command.env("RINGFENCE_CONFIG_DIR", fake.host.path("config")).args(["profile", "show", "claude"]);
        succeeds(&command.output().unwrap())
    };
    assert!(list().contains("/usr/bin") && !list().contains("fs_read  \"all\""), "{}", list());
    // What is said to be built in, in the working directory, is not.
    fs::create_dir(fake.host.path("work/(built-in)")).unwrap();
    fs::write(fake.host.path("work/(built-in)/claude.toml"), OPEN).unwrap();
    std::os::unix::fs::symlink("claude.toml", fake.host.path("work/(built-in)/agent.toml")).unwrap();
    fs::remove_file(fake.host.path("config/profiles/agent.toml")).unwrap();
    let words = ["--base-url", &url, &fake.agent()];
    succeeds(&fake.command(&words).env("FAKE_KEY", KEY).output().unwrap());
}

#[test]
fn two_at_once_have_addresses_and_logs_of_their_own() {
    let (fake, (url, asked)) = (Fake::new(), provider());
    let start = || {
        let mut command = fake.command(&["--base-url", &url, &fake.agent()]);
        command.env("FAKE_KEY", KEY).stdout(Stdio::piped()).spawn().unwrap()
    };
    let runs = [start(), start()];
    let printed = runs.map(|run| succeeds(&run.wait_with_output().unwrap()));
    assert_ne!(variable(&printed[0], "FAKE_TOKEN"), variable(&printed[1], "FAKE_TOKEN"));
    assert_eq!(fake.host.path("data/ringfence/logs").read_dir().unwrap().count(), 2);
    assert_eq!(asked.iter().take(2).count(), 2);
}

#[test]
fn an_untried_version_runs_and_is_told_of() {
    let (fake, (url, _asked)) = (Fake::new(), provider());
    let run = |version: &str| {
        fs::write(fake.host.path("package.json"), format!(r#"{{"version":"{version}"}}"#)).unwrap();
        let output =
            fake.command(&["--base-url", &url, &fake.agent()]).env("FAKE_KEY", KEY).output().unwrap();
        succeeds(&output);
        stderr(&output)
    };
    assert!(!run("1.0.0").contains("not tried"));
    assert!(run("1.0.1").contains("fake 1.0.1 was not tried"));
}

#[test]
fn endpoint_and_agent_end_with_a_launcher_that_is_killed() {
    let (fake, (url, _asked)) = (Fake::new(), provider());
    fake.host.executable("fake", b"#!/bin/bash\necho $FAKE_URL $$\nexec sleep 1000\n");
    let mut command = fake.command(&["--base-url", &url, &fake.agent()]);
    let mut launcher = command.env("FAKE_KEY", KEY).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (endpoint, pid) = line.trim().split_once(' ').unwrap();
    let address: SocketAddr = endpoint.trim_start_matches("http://").parse().unwrap();
    TcpStream::connect(address).unwrap();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let end = Instant::now() + LIMIT;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "the endpoint is still served");
        thread::sleep(Duration::from_millis(50));
    }
    // Whoever took that address would be believed: the agent ends, too.
    let of_agent = PathBuf::from(format!("/proc/{pid}/comm"));
    while fs::read_to_string(&of_agent).is_ok_and(|name| name.trim() == "sleep") {
        assert!(Instant::now() < end, "the agent still runs");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_key_that_the_provider_refuses_is_read_again() {
    let fake = Fake::new();
    let file = fake.host.path("key");
    let put = |key: &str| {
        fs::write(&file, key).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    };
    put("sk-old");
    // Whoever renews the login does so when the old one is over.
    let renewed = file.clone();
    let (url, asked) = provider_that(move |head| {
        fs::write(&renewed, "sk-new").unwrap();
        head.contains("sk-new")
    });
    let words = ["--base-url", &url, "--api-key-file", file.to_str().unwrap(), &fake.agent()];
    let printed = succeeds(&fake.command(&words).output().unwrap());
    assert!(printed.contains("HTTP/1.1 200"), "{printed}");
    let heads = [asked.recv_timeout(LIMIT).unwrap().head, asked.recv_timeout(LIMIT).unwrap().head];
    assert!(heads[0].contains("sk-old") && heads[1].contains("sk-new"), "{heads:?}");
}

#[test]
fn a_kit_s_files_are_written_anew_whatever_the_agent_made_of_them() {
    let (fake, (url, _asked)) = (Fake::new(), provider());
    let profile = fake.host.path("config/profiles/fake.toml");
    let home = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().dir;
    // What an agent keeps is in its user's home, whatever HOME says.
    let state = tempfile::Builder::new().prefix(".ringfence-test-").tempdir_in(&home).unwrap();
    let below = state.path().file_name().unwrap().to_str().unwrap().to_owned();
    let written = state.path().join("settings.json");
    let other = fake.host.path("other");
    fs::write(&other, "another's").unwrap();
    let text = fs::read_to_string(&profile).unwrap();
    let kit = format!(
        "state = \"${{HOME}}/{below}\"\nfiles = {{ \"settings.json\" = '{{\"url\":\"${{ENDPOINT}}\",\"dir\":\"${{STATE}}\"}}' }}\ntried ="
    );
    fs::write(&profile, text.replacen("tried =", &kit, 1)).unwrap();
    let run = || {
        let mut command = fake.command(&["--base-url", &url, &fake.agent()]);
        let printed = succeeds(&command.env("FAKE_KEY", KEY).output().unwrap());
        let expected = format!(
            "{{\"url\":\"{}\",\"dir\":\"{}\"}}",
            variable(&printed, "FAKE_URL"),
            state.path().display()
        );
        assert_eq!(fs::read_to_string(&written).unwrap(), expected);
        assert!(fs::symlink_metadata(&written).unwrap().is_file());
    };
    run();
    fs::write(&written, "the agent's").unwrap();
    run();
    // A link goes; what it leads to stays as it is.
    fs::remove_file(&written).unwrap();
    std::os::unix::fs::symlink(&other, &written).unwrap();
    run();
    assert_eq!(fs::read_to_string(&other).unwrap(), "another's");
    // A directory in its place is in the way, and said.
    fs::remove_file(&written).unwrap();
    fs::create_dir(&written).unwrap();
    let output = fake.command(&["--base-url", &url, &fake.agent()]).env("FAKE_KEY", KEY).output().unwrap();
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("settings.json"),
        "{output:?}"
    );
    for (name, why) in [
        ("../x", "is not the name of a file"),
        ("a/b", "is not the name of a file"),
        ("..", "is not the name of a file"),
        ("", "is not the name of a file"),
    ] {
        let kit = format!("state = \"${{HOME}}/{below}\"\nfiles = {{ \"{name}\" = \"x\" }}\ntried =");
        fs::write(&profile, text.replacen("tried =", &kit, 1)).unwrap();
        let output = fake.command(&[&fake.agent()]).env("FAKE_KEY", KEY).output().unwrap();
        assert!(
            !output.status.success() && String::from_utf8_lossy(&output.stderr).contains(why),
            "{name}: {output:?}"
        );
    }
    fs::write(&profile, text.replacen("tried =", "files = { \"x\" = \"x\" }\ntried =", 1)).unwrap();
    let output = fake.command(&[&fake.agent()]).env("FAKE_KEY", KEY).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no directory for them"), "{output:?}");
}
