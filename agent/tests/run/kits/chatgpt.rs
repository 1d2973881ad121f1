//! Logins with ChatGPT, which Codex keeps in a file with an API key or in its place.

use super::*;
use base64::Engine as _;
use vendor::{Vendor, http};

/// Asks its model once, as Codex does.
const CODEX: &[u8] = br#"#!/bin/bash
env | sort
address=${FAKE_URL#http://}
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
body='{"model":"m1","store":true,"input":"hi"}'
printf 'POST /v1/responses HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\noriginator: codex_exec\r\nuser-agent: codex_exec/1.0\r\nsession-id: s-1\r\nchatgpt-account-id: theirs\r\nx-other: theirs\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
    "$address" "$FAKE_TOKEN" "${#body}" "$body" >&3
cat <&3
"#;

const PROFILE: &str = r#"
extends = "fake"
[kit]
provider = "openai"
credentials = [
  { file = "LOGIN", at = "/OPENAI_API_KEY", when = { at = "/auth_mode", is = "apikey" } },
  { file = "LOGIN", at = "/tokens/access_token", chatgpt_account = "/tokens/account_id", when = { at = "/auth_mode", is = "chatgpt" } },
]
"#;

impl Fake {
    /// An agent that keeps its login as Codex does.
    fn codex() -> Self {
        let fake = Self::new();
        fake.host.executable("fake", CODEX);
        let login = fake.host.path("login.json").display().to_string();
        fake.host.profile("codex", &PROFILE.replace("LOGIN", &login));
        fake
    }

    fn run_codex(&self, more: &[&str]) -> Command {
        self.command(&[&["--profile", "codex"], more, &[&self.agent()]].concat())
    }
}

/// A file with both: which of them counts, and the token.
fn both(mode: &str, token: &str, account: &str) -> String {
    format!(
        r#"{{"auth_mode":{mode},"OPENAI_API_KEY":"sk-fresh-api","tokens":{{"id_token":"i","access_token":"{token}","refresh_token":"r-0","account_id":"{account}"}},"last_refresh":"2026-01-01T00:00:00Z"}}"#
    )
}

/// An access token that expires then, in seconds since 1970.
fn token(expires: u64) -> String {
    let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.c2ln", part(r#"{"alg":"none"}"#), part(&format!(r#"{{"exp":{expires}}}"#)))
}

#[test]
fn a_login_with_chatgpt_goes_to_chatgpt_with_its_account_and_nowhere_else() {
    let (vendor, fake) = (Vendor::that_takes("ey", |_| http("500 Broken", "")), Fake::codex());
    let token = token(4_000_000_000);
    let login = both(r#""chatgpt""#, &token, "acct-of-the-host");
    fake.login(&login);
    let output = vendor.reached_by(fake.run_codex(&[])).output().unwrap();
    let printed = succeeds(&output);
    assert!(printed.contains("HTTP/1.1 200"), "{printed}");
    let (host, question) = vendor.calls.recv_timeout(LIMIT).unwrap();
    assert_eq!(host, "chatgpt.com");
    assert!(question.starts_with("POST /backend-api/codex/responses HTTP/1.1\r\n"), "{question}");
    let (head, body) = question.split_once("\r\n\r\n").unwrap();
    for line in [
        &*format!("authorization: Bearer {token}"),
        "chatgpt-account-id: acct-of-the-host",
        "originator: codex_exec",
        "user-agent: codex_exec/1.0",
        "session-id: s-1",
    ] {
        assert_eq!(head.lines().filter(|found| *found == line).count(), 1, "{line} in {head}");
    }
    assert!(!head.contains("theirs"), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["store"], body.get("max_output_tokens")), (&false.into(), None));
    for text in [&printed, &stderr(&output), &fake.logged()] {
        for secret in [token.as_str(), "acct-of-the-host", "r-0", "sk-fresh-api"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    // Nobody but ChatGPT was asked, and the file is the agent's own.
    assert!(vendor.calls.try_recv().is_err());
    assert_eq!(vendor.questions(), 0);
    assert_eq!(fs::read_to_string(fake.host.path("login.json")).unwrap(), login);
}

#[test]
fn of_a_key_and_a_login_in_one_file_the_one_is_used_that_it_names() {
    let (vendor, fake) = (Vendor::that_takes("", |_| http("500 Broken", "")), Fake::codex());
    for (mode, expected) in [
        (r#""chatgpt""#, ("chatgpt.com", true)),
        (r#""apikey""#, ("api.openai.com", false)),
        // Where the file does not say, a key comes first.
        ("null", ("api.openai.com", false)),
    ] {
        fake.login(&both(mode, &token(4_000_000_000), "acct"));
        succeeds(&vendor.reached_by(fake.run_codex(&[])).output().unwrap());
        let (host, question) = vendor.calls.recv_timeout(LIMIT).unwrap();
        assert_eq!((host.as_str(), question.contains("chatgpt-account-id: acct")), expected, "{mode}");
        let is_key = question.contains("authorization: Bearer sk-fresh-api");
        assert_eq!(is_key, !expected.1, "{question}");
        // Who it is, a provider of keys is not told.
        assert_eq!(question.contains("originator"), expected.1, "{question}");
    }
    fake.login(&both(r#""agentIdentity""#, &token(4_000_000_000), "acct"));
    let output = vendor.reached_by(fake.run_codex(&[])).output().unwrap();
    assert!(stderr(&output).contains("no credential"), "{}", stderr(&output));
    assert!(vendor.calls.try_recv().is_err());
}

#[test]
fn one_that_is_over_is_said_before_the_agent_runs_and_nothing_is_renewed() {
    let (vendor, fake) = (Vendor::new(|_| http("500 Broken", "")), Fake::codex());
    fake.login(&both(r#""chatgpt""#, &token(1000), "acct"));
    let output = vendor.reached_by(fake.run_codex(&[])).output().unwrap();
    assert_eq!((status(&output), stdout(&output).as_str()), (125, ""));
    let said = stderr(&output);
    assert!(said.contains("login.json expired; start the agent once without Ringfence"), "{said}");
    assert_eq!((vendor.questions(), vendor.keys().len()), (0, 0));
}

#[test]
fn one_that_its_agent_renewed_meanwhile_is_read_again_with_its_account() {
    let fake = Fake::codex();
    let file = fake.host.path("login.json");
    fake.login(&both(r#""chatgpt""#, "t-old", "acct-old"));
    let (url, asked) = provider_that(move |head| {
        fs::write(&file, both(r#""chatgpt""#, "t-new", "acct-new")).unwrap();
        head.contains("t-new")
    });
    // An address that was given is where it goes, account and all.
    let printed = succeeds(&fake.run_codex(&["--base-url", &url]).output().unwrap());
    assert!(printed.contains("HTTP/1.1 200"), "{printed}");
    for (token, account) in [("t-old", "acct-old"), ("t-new", "acct-new")] {
        let Asked { head, .. } = asked.recv_timeout(LIMIT).unwrap();
        assert!(head.starts_with("POST /responses"), "{head}");
        assert!(head.contains(&format!("Bearer {token}\r\n")), "{head}");
        assert!(head.contains(&format!("chatgpt-account-id: {account}\r\n")), "{head}");
    }
}

#[test]
fn a_limit_that_chatgpt_does_not_take_is_said_before_the_agent_runs() {
    let (vendor, fake) = (Vendor::that_takes("", |_| http("500 Broken", "")), Fake::codex());
    fs::create_dir_all(fake.host.path("user/ringfence")).unwrap();
    fs::write(fake.host.path("user/ringfence/registry.toml"), "[llm.codex]\nmax_tokens = 1000\n").unwrap();
    fake.login(&both(r#""chatgpt""#, &token(4_000_000_000), "acct"));
    let output = vendor.reached_by(fake.run_codex(&[])).output().unwrap();
    assert_eq!((status(&output), stdout(&output).as_str()), (125, ""));
    assert!(stderr(&output).contains("ChatGPT takes no such limit"), "{}", stderr(&output));
    // The control: with a key it holds.
    fake.login(&both(r#""apikey""#, "t", "acct"));
    succeeds(&vendor.reached_by(fake.run_codex(&[])).output().unwrap());
    assert!(vendor.calls.recv_timeout(LIMIT).unwrap().1.contains(r#""max_output_tokens":1000"#));
}
