//! `ringfence mcp login`: a login at a remote server, and the sessions that use it.

use crate::{
    authorization_server::{Odd, Server, browse},
    remote::{begin, call, initialize, line},
    support::{Client, Home, descendants, eventually},
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::ExitStatus};

/// What came of a login.
struct Done {
    status: ExitStatus,
    said: String,
    page: String,
}

/// Logs in as a user does: opens the address that is printed.
fn log_in(home: &Home, url: &str, more: &[&str]) -> Done {
    let mut command = home.ringfence(&["mcp", "login", "--no-browser", url]);
    let mut client = Client::start(command.args(more));
    let (mut said, mut page) = (String::new(), String::new());
    loop {
        let text = eventually("a line, or the end", || {
            let text = client.out.so_far();
            (text.contains('\n') || client.out.is_over()).then_some(text)
        });
        if !text.contains('\n') {
            break;
        }
        let line = client.out.line();
        if let Some(address) = line.strip_prefix("  ") {
            page = browse(address.trim_end());
        }
        said += &line;
    }
    let status = client.wait();
    Done { status, said: said + &client.errors.rest(), page }
}

/// The file of the only login.
fn file(home: &Home) -> Option<PathBuf> {
    let dir = home.path(".local/share/ringfence/mcp-logins");
    let mut files = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path().join("login.json"));
    files.find(|path| path.exists())
}

/// What was tried to renew it.
fn attempts(home: &Home) -> PathBuf {
    file(home).expect("a login").with_file_name(".ringfence-renewal/attempts.json")
}

fn change(home: &Home, key: &str, value: impl Into<Value>) {
    let path = file(home).expect("a login");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    json[key] = value.into();
    fs::write(&path, json.to_string()).expect("written");
}

fn kept(home: &Home) -> String {
    fs::read_to_string(file(home).expect("a login")).expect("read")
}

/// The message that a session's beginning is refused with.
fn refused(home: &Home, url: &str, more: &[&str]) -> String {
    let rules = home.text("rules.yaml");
    fs::write(&rules, "rules: []\n").expect("written");
    let mut client = Client::start(home.interceptor(&["--rules", &rules, "--url", url]).args(more));
    client.send(line(&initialize()));
    message(&client.out.line())
}

fn message(line: &str) -> String {
    let answer: Value = serde_json::from_str(line).expect("JSON");
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {line}")).to_owned()
}

fn works(client: &mut Client, id: u64) {
    client.send(line(&call(id, "read_it")));
    let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    assert_eq!((&answer["id"], answer["error"].is_null()), (&id.into(), true), "{answer}");
}

#[test]
fn a_login_is_made_listed_used_and_ended_and_its_tokens_are_nowhere() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    let said = refused(&home, &server.url(), &[]);
    assert!(said.contains(&format!("`ringfence mcp login {}`", server.url())), "{said}");
    let done = log_in(&home, &server.url(), &[]);
    assert!(done.status.success() && done.said.contains("Logged in to"), "{}", done.said);
    assert!(done.page.contains("You are logged in"), "{}", done.page);
    let path = file(&home).expect("a login");
    let mode = |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
    assert!(kept(&home).contains("acc3ss-t0ken-1"), "the control");
    let listed = home.output(&["mcp", "logins", "--json"]);
    let row: Value = serde_json::from_str(&listed).expect("one login");
    assert_eq!(
        (&row["server"], &row["authorization_server"]),
        (&server.url().into(), &server.http.origin.clone().into())
    );
    assert_eq!((&row["scopes"], &row["renewed"]), (&json!(["read"]), &true.into()));
    let table = home.output(&["mcp", "logins"]);
    assert!(table.contains(&server.url()), "{table}");

    let mut client = begin(&home, &server.url(), &[]);
    works(&mut client, 1);
    client.send(line(&call(2, "read_echo")));
    assert!(client.out.line().contains("[redacted]"), "what the server hands back is no token");
    client.send(line(&call(3, "read_more")));
    let said = message(&client.out.line());
    let advice = format!("`ringfence mcp login {} --scope files:write --scope admin`", server.url());
    assert!(said.contains(&advice), "{said}");
    client.send(line(&call(4, "read_trick")));
    let said = message(&client.out.line());
    assert!(said.contains("insufficient_scope") && !said.contains("touch"), "{said}");
    let mut roles = String::new();
    for pid in descendants(client.pid()) {
        let words = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(!words.is_empty() && !words.contains("t0ken"), "{words}");
        // Those that have tokens let only root read it.
        match fs::read(format!("/proc/{pid}/environ")) {
            Ok(text) => assert!(!String::from_utf8_lossy(&text).contains("t0ken"), "environ of {words}"),
            Err(_) => assert!(words.contains("mcp-remote") || words.contains("mcp-login-keeper"), "{words}"),
        }
        roles += &words;
    }
    assert!(roles.contains("mcp-remote") && roles.contains("mcp-login-keeper"), "the control: {roles}");
    assert!(client.end().success());
    let record = home.journal().iter().map(Value::to_string).collect::<String>();
    let rows = home.calls(&[]).iter().map(Value::to_string).collect::<String>();
    for text in [record, rows, client.errors.rest(), listed, table, done.said] {
        assert!(!text.contains("acc3ss") && !text.contains("r3fresh"), "{text}");
    }
    let out = home.output(&["mcp", "logout", &server.url()]);
    assert!(out.contains("and revoked it"), "{out}");
    assert!(file(&home).is_none() && server.state().refresh.is_empty());
    assert!(refused(&home, &server.url(), &[]).contains("ringfence mcp login"));
    let again = home.ringfence(&["mcp", "logout", &server.url()]).output().expect("it runs");
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("there is no login"));
}

#[test]
fn what_is_not_this_login_s_is_refused_in_words_and_nothing_is_kept() {
    for (odd, words) in [
        (Odd::Issuer, "its iss is another"),
        (Odd::NoIssuer, "its iss is another, or missing"),
        (Odd::Resource, "describes another server"),
        (Odd::NoPkce, "PKCE"),
        (Odd::Registration, "HTTP 400 (invalid_redirect_uri)"),
        (Odd::NoRegistration, "--client-id ID --issuer ISSUER"),
        (Odd::Mixed, "--issuer http://127.0.0.1:"),
        (Odd::Tenant, "describes another server"),
        (Odd::Denies, "access was denied"),
        (Odd::NoToken, "(invalid_grant)"),
        (Odd::Silent, "does not say where to log in"),
        (Odd::Leads, "an address that a login does not go to"),
        (Odd::Long, "more than 262144 bytes"),
        (Odd::Nothing, "Logged in"),
    ] {
        let (server, home) = (Server::start(odd), Home::new());
        let done = log_in(&home, &server.url(), &[]);
        assert_eq!(done.status.success(), odd == Odd::Nothing, "{odd:?}: {}", done.said);
        assert!(done.said.contains(words), "{odd:?}: {}", done.said);
        assert!(!done.said.contains("hostile") && !done.said.contains('\u{1b}'), "{odd:?}: {}", done.said);
        assert_eq!(file(&home).is_some(), odd == Odd::Nothing, "{odd:?}");
        let sent = server.state().forms.len();
        assert_eq!(
            sent,
            usize::from(matches!(odd, Odd::NoToken | Odd::Nothing)),
            "{odd:?}: no code goes out"
        );
    }
}

#[test]
fn a_client_that_is_registered_shows_its_secret_and_another_credential_keeps_a_login_out() {
    let (server, home) = (Server::start(Odd::NoRegistration), Home::new());
    let secret = home.text("secret");
    fs::write(&secret, "cl1ent-s3cret\n").expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("closed");
    let named = ["--client-id", "mine", "--client-secret-file", &secret, "--scope", "write", "--issuer"];
    // Whose client that is, is said: a server that names another authorization server gets nothing of it.
    let unnamed = log_in(&home, &server.url(), &named[..6]);
    assert!(!unnamed.status.success() && unnamed.said.contains("--issuer"), "{}", unnamed.said);
    let other = log_in(&home, &server.url(), &[&named[..], &["https://good.example"]].concat());
    assert!(!other.status.success() && other.page.is_empty(), "{}", other.said);
    assert!(other.said.contains("does not name https://good.example"), "{}", other.said);
    assert!(server.state().forms.is_empty());
    let issuer = server.http.origin.clone();
    let named = [&named[..], &[&issuer]].concat();
    let done = log_in(&home, &server.url(), &named);
    assert!(done.status.success(), "{}", done.said);
    let is_basic = |request: &crate::http_server::Request| {
        request.target == "/token" && request.header("authorization") == "Basic bWluZTpjbDFlbnQtczNjcmV0"
    };
    server.http.wait_for("the client's secret", is_basic);
    // It is shown again when the login is renewed.
    change(&home, "expires", 1000);
    works(&mut begin(&home, &server.url(), &[]), 1);
    assert_eq!(server.http.received().iter().filter(|request| is_basic(request)).count(), 2);
    let token = home.text("token");
    fs::copy(&secret, &token).expect("copied");
    let said = refused(&home, &server.url(), &["--token-file", &token]);
    assert!(said.contains("HTTP 401") && !said.contains("cl1ent"), "{said}");
    let last = server.http.received().last().cloned().expect("a request");
    assert_eq!(last.header("authorization"), "Bearer cl1ent-s3cret");
    for wrong in [["http://h.example/mcp", "https"], ["https://me:x@h.example/mcp", "user and a password"]] {
        let done = log_in(&home, wrong[0], &[]);
        assert!(!done.status.success() && done.said.contains(wrong[1]), "{}", done.said);
    }
}

#[test]
fn a_login_is_renewed_before_it_is_over_and_when_it_is_refused() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    assert!(log_in(&home, &server.url(), &[]).status.success());
    change(&home, "expires", 1000);
    let mut client = begin(&home, &server.url(), &[]);
    works(&mut client, 1);
    assert_eq!(server.renewals(), 1);
    assert!(kept(&home).contains("acc3ss-t0ken-2") && kept(&home).contains("r3fresh-t0ken-2"));
    let sent = server.http.received();
    assert!(sent.iter().all(|request| request.header("authorization") != "Bearer acc3ss-t0ken-1"));
    // What was renewed only now is not renewed for a refusal: that of long ago is.
    fs::remove_file(attempts(&home)).expect("there");
    server.state().access.clear();
    works(&mut client, 2);
    assert_eq!(server.renewals(), 2);
    client.send(line(&call(3, "read_echo")));
    let echo = client.out.line();
    assert!(echo.contains("[redacted]") && !echo.contains("acc3ss"), "{echo}");
    server.state().access.clear();
    client.send(line(&call(4, "read_it")));
    let said = message(&client.out.line());
    assert!(said.contains("HTTP 401") && said.contains("ringfence mcp login"), "{said}");
    assert_eq!(server.renewals(), 2, "no server makes us ask for tokens as fast as it can");
}

#[test]
fn sessions_that_renew_at_once_spend_one_refresh_token() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    assert!(log_in(&home, &server.url(), &[]).status.success());
    let mut clients: Vec<Client> = (0..3).map(|_| begin(&home, &server.url(), &[])).collect();
    clients.iter_mut().for_each(|client| works(client, 1));
    assert_eq!(server.renewals(), 0);
    server.state().access.clear();
    for client in &mut clients {
        client.send(line(&call(2, "read_it")));
    }
    for client in &mut clients {
        let answer = client.out.line();
        assert!(answer.contains("\"result\""), "{answer}");
    }
    assert_eq!(server.renewals(), 1);
    assert_eq!(server.state().refresh, ["r3fresh-t0ken-2"]);
}

#[test]
fn a_login_that_is_revoked_says_what_to_do() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    assert!(log_in(&home, &server.url(), &[]).status.success());
    let mut client = begin(&home, &server.url(), &[]);
    server.state().refresh.clear();
    server.state().access.clear();
    client.send(line(&call(1, "read_it")));
    let said = message(&client.out.line());
    assert!(
        said.contains("invalid_grant") && said.contains(&format!("`ringfence mcp login {}`", server.url())),
        "{said}"
    );
    assert!(!said.contains("r3fresh"), "{said}");
    // The same before a session begins.
    change(&home, "expires", 1000);
    let said = refused(&home, &server.url(), &[]);
    assert!(said.contains("ringfence mcp login"), "{said}");
    assert!(log_in(&home, &server.url(), &[]).status.success());
    works(&mut begin(&home, &server.url(), &[]), 1);
}

#[test]
fn a_renewal_whose_answer_is_lost_is_tried_again() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    assert!(log_in(&home, &server.url(), &[]).status.success());
    let spent = attempts(&home);
    change(&home, "expires", 1000);
    server.state().breaks = 1;
    assert!(refused(&home, &server.url(), &[]).contains("ringfence mcp login"));
    assert!(spent.exists());
    assert_eq!(server.renewals(), 1);
    works(&mut begin(&home, &server.url(), &[]), 1);
    assert_eq!(server.renewals(), 2);
    assert!(kept(&home).contains("r3fresh-t0ken-2"));
}

#[test]
fn a_renewal_goes_on_after_the_session_has_ended() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    assert!(log_in(&home, &server.url(), &[]).status.success());
    let mut client = begin(&home, &server.url(), &[]);
    let mut keepers = Vec::new();
    for pid in descendants(client.pid()) {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        keepers.extend(words.windows(16).any(|part| part == b"mcp-login-keeper").then_some(pid));
    }
    assert_eq!(keepers.len(), 1);
    server.hold(true);
    server.state().access.clear();
    client.send(line(&call(1, "read_it")));
    let renews = |request: &crate::http_server::Request| {
        String::from_utf8_lossy(&request.body).contains("grant_type=refresh_token")
    };
    server.http.wait_for("a renewal", renews);
    // The client is gone, and all that its server was; what asks for the token is not.
    client.end();
    assert!(kept(&home).contains("acc3ss-t0ken-1"), "the control: nothing came yet");
    server.hold(false);
    eventually("what came is kept", || kept(&home).contains("r3fresh-t0ken-2").then_some(()));
    assert!(kept(&home).contains("acc3ss-t0ken-2"));
    works(&mut begin(&home, &server.url(), &[]), 1);
    assert_eq!(server.renewals(), 1);
    // It ends when that is done.
    eventually("the keeper's end", || {
        let state = fs::read_to_string(format!("/proc/{}/stat", keepers[0])).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    });
}

#[test]
fn an_answer_that_is_not_this_login_s_does_not_end_it() {
    let (server, home) = (Server::start(Odd::State), Home::new());
    let mut client = Client::start(&mut home.ringfence(&["mcp", "login", "--no-browser", &server.url()]));
    let address = loop {
        if let Some(address) = client.out.line().strip_prefix("  ") {
            break address.trim_end().to_owned();
        }
    };
    let page = browse(&address);
    assert!(page.starts_with("HTTP/1.1 400") && page.contains("its state is another"), "{page}");
    assert!(file(&home).is_none() && server.state().forms.is_empty());
    server.state().odd = Odd::Nothing;
    let page = browse(&address);
    assert!(page.contains("You are logged in"), "{page}");
    assert!(client.wait().success());
    works(&mut begin(&home, &server.url(), &[]), 1);
}

#[test]
fn who_knows_that_both_are_one_server_s_says_so_and_is_told_of_another_one() {
    let (server, home) = (Server::start(Odd::Mixed), Home::new());
    let issuer = server.http.origin.clone();
    let done = log_in(&home, &server.url(), &["--issuer", &issuer]);
    assert!(done.status.success() && done.page.contains("You are logged in"), "{}", done.said);
    assert!(done.said.contains(&format!("Log in at {issuer} (authorization server: {issuer})")));
    assert!(!done.said.contains("another authorization server"), "{}", done.said);
    change(&home, "issuer", "https://before.example");
    server.state().odd = Odd::Nothing;
    let done = log_in(&home, &server.url(), &[]);
    assert!(done.status.success(), "{}", done.said);
    assert!(
        done.said.contains("another authorization server") && done.said.contains("https://before.example")
    );
}

#[test]
fn the_command_of_an_error_is_for_the_login_that_is_meant() {
    let (server, home) = (Server::start(Odd::Nothing), Home::new());
    let url = format!("{}?project=1", server.url());
    // Logged in to without its query, it would be another's login.
    let said = refused(&home, &url, &[]);
    assert!(said.contains("`ringfence mcp login URL`") && !said.contains("project"), "{said}");
    let path = home.text("address");
    fs::write(&path, &url).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("closed");
    let done = log_in(&home, "--url-file", &[&path]);
    assert!(done.status.success(), "{}", done.said);
    assert!(!done.said.contains("project") && done.said.contains("--url-file"), "{}", done.said);
    // Both have it.
    works(&mut begin(&home, &url, &[]), 1);
    assert!(refused(&home, &server.url(), &[]).contains(&format!("`ringfence mcp login {}`", server.url())));
    server.state().refresh.clear();
    server.state().access.clear();
    change(&home, "expires", 1000);
    let said = refused(&home, &url, &[]);
    assert!(said.contains("invalid_grant") && said.contains("`ringfence mcp login URL`"), "{said}");
    assert!(!said.contains("project"), "{said}");
    let out = home.output(&["mcp", "logout", "--url-file", &path]);
    assert!(out.contains("Removed the login") && !out.contains("project"), "{out}");
    assert!(file(&home).is_none());
}
