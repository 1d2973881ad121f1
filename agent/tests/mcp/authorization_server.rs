//! A remote MCP server that wants a login, and its authorization server, both by hand at one address of loopback.

use crate::http_server::{HttpServer, Reply, Request};
use crate::remote::{done, manners};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    Nothing,
    State,
    Issuer,
    NoIssuer,
    Resource,
    NoPkce,
    Registration,
    NoRegistration,
    /// Its login is at one origin, its tokens at another, and its answers do not say whose they are.
    Mixed,
    /// Its description is elsewhere, and of all of its origin.
    Tenant,
    Denies,
    NoToken,
    /// It describes itself nowhere.
    Silent,
    /// It sends a login to this machine's other services.
    Leads,
    /// It never comes to an end.
    Long,
}

/// What it knows.
pub(crate) struct State {
    pub(crate) odd: Odd,
    /// The tokens that are good.
    pub(crate) access: Vec<String>,
    pub(crate) refresh: Vec<String>,
    /// How many tokens it made.
    pub(crate) made: u32,
    /// In how many seconds a token is over.
    pub(crate) life: Option<u64>,
    /// So many of the next renewals break off before anything is done.
    pub(crate) breaks: u32,
    challenge: String,
    pub(crate) forms: Vec<BTreeMap<String, String>>,
}

/// The server.
pub(crate) struct Server {
    pub(crate) http: HttpServer,
    state: Arc<Mutex<State>>,
    /// Its token endpoint answers nobody until this is false again.
    holds: Arc<AtomicBool>,
}

/// A form, or a query, as pairs.
pub(crate) fn pairs(text: &str) -> BTreeMap<String, String> {
    let decoded = |text: &str| {
        let (mut out, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            match first {
                b'+' => out.push(b' '),
                b'%' => {
                    let digits = std::str::from_utf8(&behind[..2]).expect("digits");
                    out.push(u8::from_str_radix(digits, 16).expect("a byte"));
                    rest = &behind[2..];
                }
                byte => out.push(*byte),
            }
        }
        String::from_utf8(out).expect("text")
    };
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (decoded(name), decoded(value)));
    text.split('&').filter_map(pair).collect()
}

fn digest(verifier: &str) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(verifier))
}

impl Server {
    pub(crate) fn start(odd: Odd) -> Self {
        let state = State {
            odd,
            access: Vec::new(),
            refresh: Vec::new(),
            made: 0,
            life: Some(3600),
            breaks: 0,
            challenge: String::new(),
            forms: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let own = Arc::clone(&state);
        let holds = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&holds);
        let http = HttpServer::start(move |request, reply| {
            while request.target == "/token" && held.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(5));
            }
            answer(&mut own.lock().expect("whole"), request, reply);
        });
        Self { http, state, holds }
    }

    /// Has its token endpoint wait before it does anything, or go on.
    pub(crate) fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
    }

    pub(crate) fn url(&self) -> String {
        self.http.url()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("whole")
    }

    /// How often it was asked to renew.
    pub(crate) fn renewals(&self) -> usize {
        self.state().forms.iter().filter(|form| form["grant_type"] == "refresh_token").count()
    }
}

fn answer(state: &mut State, request: &Request, reply: &mut Reply) {
    // By whichever of its names it is asked.
    let origin = format!("http://{}", request.header("host").replace("localhost", "127.0.0.1"));
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let body = String::from_utf8_lossy(&request.body).into_owned();
    match (request.method.as_str(), path) {
        (_, "/mcp") => mcp(state, &origin, request, reply),
        ("GET", "/.well-known/oauth-protected-resource/mcp") if state.odd != Odd::Silent => {
            let resource = match state.odd {
                Odd::Resource => "https://other.example/mcp",
                Odd::Tenant => &format!("{origin}/"),
                _ => &format!("{origin}/mcp"),
            };
            let server = if state.odd == Odd::Leads { "http://10.0.0.1" } else { &origin };
            let scopes = json!(["read", "write"]);
            reply.json(
                json!({"resource": resource, "authorization_servers": [server], "scopes_supported": scopes})
                    .to_string(),
            );
        }
        ("GET", "/.well-known/oauth-authorization-server") => {
            let mut server = json!({
                "issuer": origin, "authorization_endpoint": format!("{origin}/authorize?tenant=1"),
                "token_endpoint": format!("{origin}/token"), "revocation_endpoint": format!("{origin}/revoke"),
                "code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": true,
                "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            });
            if state.odd != Odd::NoRegistration {
                server["registration_endpoint"] = format!("{origin}/register").into();
            }
            if state.odd == Odd::Mixed {
                server["token_endpoint"] =
                    format!("{}/token", origin.replace("127.0.0.1", "localhost")).into();
                server["authorization_response_iss_parameter_supported"] = false.into();
            }
            if state.odd == Odd::NoPkce {
                server["code_challenge_methods_supported"] = Value::Null;
            }
            let much = if state.odd == Odd::Long { " ".repeat(300 << 10) } else { String::new() };
            reply.json(much + &server.to_string());
        }
        ("POST", "/register") if state.odd == Odd::Registration => {
            let error = json!({"error": "invalid_redirect_uri", "error_description": "\u{1b}[31mhostile"});
            reply.whole("400 Bad Request", &[("Content-Type", "application/json")], error.to_string());
        }
        ("POST", "/register") => {
            let asked: Value = request.json();
            assert_eq!(
                (&asked["application_type"], &asked["token_endpoint_auth_method"]),
                (&"native".into(), &"none".into())
            );
            let client = json!({"client_id": "registered-1", "redirect_uris": asked["redirect_uris"]});
            reply.whole("201 Created", &[("Content-Type", "application/json")], client.to_string());
        }
        ("GET", "/authorize") => {
            let asked = pairs(query);
            assert_eq!(
                (asked["response_type"].as_str(), asked["code_challenge_method"].as_str()),
                ("code", "S256")
            );
            assert_eq!((&asked["resource"], asked["tenant"].as_str()), (&format!("{origin}/mcp"), "1"));
            state.challenge.clone_from(&asked["code_challenge"]);
            let issuer = match state.odd {
                Odd::Issuer => "&iss=https%3A%2F%2Fother.example".to_owned(),
                Odd::NoIssuer | Odd::Mixed => String::new(),
                _ => format!("&iss={origin}"),
            };
            let what = if state.odd == Odd::Denies { "error=access_denied" } else { "code=the-c0de" };
            let given = if state.odd == Odd::State { "another" } else { &asked["state"] };
            let to = format!("{}?{what}&state={given}{issuer}", asked["redirect_uri"]);
            reply.whole("302 Found", &[("Location", &to)], "");
        }
        ("POST", "/token") => token(state, &origin, &body, request, reply),
        ("POST", "/revoke") => {
            let form = pairs(&body);
            state.refresh.retain(|token| *token != form["token"]);
            state.access.clear();
            reply.whole("200 OK", &[], "");
        }
        _ => reply.whole("404 Not Found", &[], ""),
    }
}

fn mcp(state: &State, origin: &str, request: &Request, reply: &mut Reply) {
    let token = request.header("authorization").strip_prefix("Bearer ").unwrap_or_default();
    if !state.access.iter().any(|good| good == token) {
        let place = format!("{origin}/.well-known/oauth-protected-resource/mcp");
        let challenge = if state.odd == Odd::Silent {
            "Bearer".to_owned()
        } else {
            format!("Bearer error=\"invalid_token\", resource_metadata=\"{place}\"")
        };
        return reply.whole("401 Unauthorized", &[("WWW-Authenticate", &challenge)], "");
    }
    let json = request.json();
    match json["params"]["name"].as_str() {
        Some("read_more") => {
            let challenge = r#"Bearer error="insufficient_scope", scope="files:write admin""#;
            reply.whole("403 Forbidden", &[("WWW-Authenticate", challenge)], "");
        }
        Some("read_trick") => {
            let challenge = r#"Bearer error="insufficient_scope", scope="x;$(touch${IFS}hit)""#;
            reply.whole("403 Forbidden", &[("WWW-Authenticate", challenge)], "");
        }
        // It hands back what it was given.
        Some("read_echo") => {
            let text = json!({"jsonrpc": "2.0", "id": json["id"], "result": {"content": [{"type": "text", "text": token}]}});
            reply.json(text.to_string());
        }
        Some(_) => reply.json(done(&json["id"]).to_string()),
        None => assert!(manners(request, reply), "{request:?}"),
    }
}

fn token(state: &mut State, origin: &str, body: &str, request: &Request, reply: &mut Reply) {
    let form = pairs(body);
    state.forms.push(form.clone());
    assert_eq!(form["resource"], format!("{origin}/mcp"));
    let is_good = match form["grant_type"].as_str() {
        "authorization_code" => {
            form["code"] == "the-c0de"
                && digest(&form["code_verifier"]) == state.challenge
                && state.odd != Odd::NoToken
        }
        _ if state.breaks > 0 => {
            state.breaks -= 1;
            return reply.end();
        }
        _ => {
            // Good once.
            let before = state.refresh.len();
            state.refresh.retain(|token| *token != form["refresh_token"]);
            state.refresh.len() < before
        }
    };
    let _ = request;
    if !is_good {
        let error = json!({"error": "invalid_grant", "error_description": form.get("refresh_token")});
        return reply.whole("400 Bad Request", &[("Content-Type", "application/json")], error.to_string());
    }
    state.made += 1;
    let (access, refresh) = (format!("acc3ss-t0ken-{}", state.made), format!("r3fresh-t0ken-{}", state.made));
    state.access = vec![access.clone()];
    state.refresh.push(refresh.clone());
    let mut tokens =
        json!({"access_token": access, "token_type": "Bearer", "refresh_token": refresh, "scope": "read"});
    if let Some(life) = state.life {
        tokens["expires_in"] = life.into();
    }
    reply.json(tokens.to_string());
}

/// A browser: opens an address, and goes where it is sent. What is at the end.
pub(crate) fn browse(address: &str) -> String {
    let mut address = address.to_owned();
    loop {
        let answer = get(&address);
        let Some(to) = answer.lines().find_map(|line| line.strip_prefix("Location: ")) else { return answer };
        address = to.trim_end().to_owned();
    }
}

fn get(address: &str) -> String {
    let rest = address.strip_prefix("http://").expect("at loopback");
    let (host, target) = rest.split_once('/').expect("a path");
    let mut stream = TcpStream::connect(host).expect("it listens");
    let head = format!("GET /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    // Our own server keeps connections open.
    loop {
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.trim().parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text.into_owned();
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return text.into_owned(),
            Ok(n) => answer.extend_from_slice(&chunk[..n]),
        }
    }
}
