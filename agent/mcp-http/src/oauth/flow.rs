//! The steps of a login, and revoking one.

use super::{
    answer::{self, Client, Refusal},
    callback,
    challenge::{Challenge, is_scope, scopes},
    fetch::{Fetch, send, shown, shown_name, whole},
    metadata::{self, Reach, Resource, Server},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use reqwest::{
    RequestBuilder, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use ringfence_credentials::Secret;
use ringfence_wire::{
    conn::{Conn, is_hung_up},
    mcp_login::{ClientAuth, LogIn, LoggedIn, Revoke, Said},
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};
use url::{Url, form_urlencoded};
use uuid::Uuid;
use zeroize::Zeroizing;

/// How long the user may take in the browser.
const IN_BROWSER: Duration = Duration::from_secs(600);
/// The first requests of clients of both eras of the protocol, with the version where that goes into a header.
const HELLOS: [(Option<&str>, &str, &str); 2] = [
    (
        None,
        "initialize",
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"ringfence","version":"1"}}"#,
    ),
    (
        Some("2026-07-28"),
        "server/discover",
        r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"ringfence","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}"#,
    ),
];

/// What came of an order.
pub(super) enum Done {
    /// The access token; behind it the refresh token and the client's secret, where there are any.
    LoggedIn {
        what: Box<LoggedIn>,
        tokens: Vec<Secret>,
    },
    Revoked,
}

/// Why nothing did, in words.
#[derive(Debug)]
pub(super) struct Failed(pub(super) String);

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.to_string())
    }
}

/// Logs in.
pub(super) async fn log_in(
    fetch: &Fetch,
    order: LogIn,
    listener: TcpListener,
    secret: Option<Secret>,
    conn: &mut Conn,
) -> Result<Done, Failed> {
    let url =
        Url::parse(&order.server).map_err(|_| "the address of the remote server is no URL".to_owned())?;
    let reach = Reach::of(&url);
    let challenge = challenge(fetch, &url).await?;
    let resource = resource(fetch, &url, &challenge, reach).await?;
    let server = server(fetch, &resource, reach, order.issuer.as_deref()).await?;
    if order.issuer.is_none() && !server.tells_apart() {
        return Err(Failed(mixed(&server, reach)));
    }
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let redirect = format!("http://127.0.0.1:{port}{}", callback::PATH);
    let asked = asked(&order, &challenge, &resource, &server);
    let client = client(fetch, &order, secret, &server, &redirect, &asked).await?;

    let state = random();
    let verifier = Zeroizing::new(random() + &random());
    let mut address = server.authorization.clone();
    // `extend_pairs` keeps what is there.
    address
        .query_pairs_mut()
        .append_pair("response_type", "code")
        .append_pair("client_id", &client.id)
        .append_pair("redirect_uri", &redirect)
        .append_pair("state", &state)
        .append_pair("code_challenge", &BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())))
        .append_pair("code_challenge_method", "S256")
        .append_pair("resource", &resource.resource);
    if !asked.is_empty() {
        address.query_pairs_mut().append_pair("scope", &asked.join(" "));
        // Without it, OpenID's servers give no refresh token to who had consented before.
        if asked.iter().any(|scope| scope == "offline_access") {
            address.query_pairs_mut().append_pair("prompt", "consent");
        }
    }
    let open = Said::Open { url: address.into(), issuer: server.issuer.clone() };
    conn.send(&open).map_err(|error| error.to_string())?;

    let end = Instant::now() + IN_BROWSER;
    let read = |query: &str| answer::code(query, &state, &server.issuer, server.says_issuer);
    let (browser, code) = callback::wait(&listener, end, || !is_hung_up(conn.stream()), read)?;
    let code = match code {
        Ok(code) => code,
        Err(refusal) => {
            browser.say(false, &format!("You are not logged in: {refusal}."));
            return Err(refusal.into());
        }
    };
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code.expose()),
        ("redirect_uri", &redirect),
        ("code_verifier", &verifier),
        ("resource", &resource.resource),
    ];
    match exchanged(fetch, &server, &client, &form).await {
        Ok(tokens) => {
            browser.say(true, "You are logged in. Ringfence has the login; you can close this window.");
            Ok(logged_in(resource, server, client, asked, tokens))
        }
        Err(why) => {
            browser.say(false, "You are not logged in. The terminal says why.");
            Err(why)
        }
    }
}

/// What the server says to somebody without a token.
async fn challenge(fetch: &Fetch, url: &Url) -> Result<Challenge, Failed> {
    for (version, method, params) in HELLOS {
        let mut asked = fetch
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(version) = version {
            asked = asked.header("mcp-protocol-version", version).header("mcp-method", method);
        }
        let asked =
            asked.body(format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{params}}}"#));
        let response = send(asked).await.map_err(|why| format!("{}: {why}", shown(url)))?;
        let headers = response.headers().get_all(WWW_AUTHENTICATE);
        let found = Challenge::of(headers.iter().filter_map(|value| value.to_str().ok()));
        if response.status() == StatusCode::UNAUTHORIZED {
            return Ok(found.unwrap_or_default());
        }
    }
    // Some let anybody in, and want a login for some calls only: they may describe themselves all the same.
    Ok(Challenge::default())
}

/// The server's description.
async fn resource(fetch: &Fetch, url: &Url, challenge: &Challenge, reach: Reach) -> Result<Resource, Failed> {
    let places = match &challenge.resource_metadata {
        Some(place) => vec![reach.url(place).map_err(|error| {
            format!("{}: what it says in WWW-Authenticate cannot be used: {error}", shown(url))
        })?],
        None => metadata::resource_places(url),
    };
    for place in &places {
        let answer = whole(fetch.get(place), metadata::MAX).await;
        let answer = answer.map_err(|why| format!("{}: {why}", shown(place)))?;
        if answer.status.is_success() {
            let found = metadata::resource(&answer.body, url, place);
            return found.map_err(|error| {
                Failed(format!("the description of the server in {} is refused: {error}", shown(place)))
            });
        }
    }
    Err(Failed(format!(
        "{} does not say where to log in: it has no description of itself (RFC 9728) at {}. If it wants a token, get one from whoever runs it, and give it with `ringfence mcp --url URL --token-file FILE`",
        shown(url),
        places.iter().map(shown).collect::<Vec<_>>().join(" or "),
    )))
}

/// Why an authorization server is not used whose answers could be another's.
fn mixed(server: &Server, reach: Reach) -> String {
    format!(
        "the authorization server {} has its login at {} and its tokens at {}, and does not say that its answers name it (RFC 9207): the code of one server could go to another so. If you know that both are its own, log in with --issuer {0}",
        shown_name(&server.issuer, reach),
        server.authorization.origin().ascii_serialization(),
        server.token.origin().ascii_serialization(),
    )
}

/// Its authorization server's description: the first of its servers that has one. `only`: it must be this one.
async fn server(
    fetch: &Fetch,
    resource: &Resource,
    reach: Reach,
    only: Option<&str>,
) -> Result<Server, Failed> {
    let mut why = None;
    // A slash at the end is easily lost where a name is copied, and no other server's.
    let plain = |name: &str| name.trim_end_matches('/').to_owned();
    let named: Vec<&String> =
        resource.servers.iter().filter(|name| only.is_none_or(|only| plain(only) == plain(name))).collect();
    if let (Some(only), true) = (only, named.is_empty()) {
        let others: Vec<String> =
            resource.servers.iter().take(3).map(|name| shown_name(name, reach)).collect();
        return Err(Failed(format!(
            "the server does not name {} (--issuer) as its authorization server, but {}; nothing was sent there. If that is right, register a client there, or leave --client-id and --issuer out",
            shown_name(only, reach),
            others.join(" and "),
        )));
    }
    // MCP leaves the choice to the client.
    for issuer in named.into_iter().take(3) {
        match server_of(fetch, issuer, reach).await {
            Ok(server) => return Ok(server),
            Err(error) => {
                why.get_or_insert(format!("{}: {error}", shown_name(issuer, reach)));
            }
        }
    }
    Err(Failed(format!("the authorization server cannot be used: {}", why.unwrap_or_default())))
}

async fn server_of(fetch: &Fetch, issuer: &str, reach: Reach) -> Result<Server, String> {
    let url = reach.url(issuer).map_err(|error| error.to_string())?;
    let mut why = None;
    for place in metadata::server_places(&url) {
        let answer = whole(fetch.get(&place), metadata::MAX).await?;
        if !answer.status.is_success() {
            continue;
        }
        match metadata::server(&answer.body, issuer, reach) {
            Ok(server) => return Ok(server),
            Err(error) => {
                why.get_or_insert(format!("its description in {} is refused: {error}", shown(&place)));
            }
        }
    }
    Err(why.unwrap_or_else(|| "it does not describe itself (RFC 8414, OpenID Connect Discovery)".to_owned()))
}

/// The scopes to ask for, by MCP's order; none: the parameter is left out.
fn asked(order: &LogIn, challenge: &Challenge, resource: &Resource, server: &Server) -> Vec<String> {
    let own = Some(&order.scopes).filter(|scopes| !scopes.is_empty());
    let mut asked =
        own.or(challenge.scope.as_ref()).or(resource.scopes.as_ref()).cloned().unwrap_or_default();
    // What was granted before is kept: servers name what one call needs.
    let before =
        order.before.iter().filter(|(issuer, _)| *issuer == server.issuer).flat_map(|(_, scopes)| scopes);
    asked.extend(before.cloned());
    // Without it some give no refresh token.
    if !asked.is_empty() && server.scopes.iter().any(|scope| scope == "offline_access") {
        asked.push("offline_access".to_owned());
    }
    asked.retain(|scope| is_scope(scope));
    scopes(&asked.join(" "))
}

/// The client: the one that the user named, or one that is registered now.
async fn client(
    fetch: &Fetch,
    order: &LogIn,
    secret: Option<Secret>,
    server: &Server,
    redirect: &str,
    asked: &[String],
) -> Result<Client, Failed> {
    let advice = "register a client there yourself, with the redirect address http://127.0.0.1:PORT/callback, and name it: --client-id ID --issuer ISSUER --port PORT, with the authorization server's address as ISSUER, and --client-secret-file FILE if it has a secret";
    if let Some(id) = &order.client {
        if id.starts_with("https://") && secret.is_none() && !server.takes_documents {
            return Err(Failed(
                "the authorization server does not say that it takes the address of a client's metadata for its id (client_id_metadata_document_supported); leave --client-id out, or name a client that is registered there".to_owned(),
            ));
        }
        let auth = answer::auth(None, secret.is_some(), server.auths.as_deref());
        return Ok(Client { id: id.clone(), secret, auth });
    }
    let Some(place) = &server.registration else {
        return Err(Failed(format!("the authorization server registers no clients by itself; {advice}")));
    };
    let takes = |name: &str| server.auths.as_ref().is_none_or(|auths| auths.iter().any(|auth| auth == name));
    // Who can read this program can read a secret of its own: it is best without one.
    let method = ["none", "client_secret_basic", "client_secret_post"].into_iter().find(|name| takes(name));
    let mut what = json!({
        "client_name": "Ringfence",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method.unwrap_or("none"),
        "application_type": "native",
    });
    if let (false, Some(object)) = (asked.is_empty(), what.as_object_mut()) {
        object.insert("scope".to_owned(), asked.join(" ").into());
    }
    let request = fetch.post(place).header(CONTENT_TYPE, "application/json").body(what.to_string());
    let answer = whole(request, answer::MAX)
        .await
        .map_err(|why| format!("the registration at {}: {why}", shown(place)))?;
    if !answer.status.is_success() {
        return Err(Failed(format!(
            "the authorization server registers no client for Ringfence: it answers {}; {advice}",
            refused(answer.status, &answer.body)
        )));
    }
    answer::registered(&answer.body, server.auths.as_deref()).ok_or_else(|| {
        Failed(format!("the authorization server registers a client, and does not say which; {advice}"))
    })
}

/// A status, and the name of its error if it has one.
fn refused(status: StatusCode, body: &[u8]) -> String {
    let name = answer::refusal(body).map(|name| format!(" ({name})")).unwrap_or_default();
    format!("HTTP {}{name}", status.as_u16())
}

/// A form, with who the client is.
fn form(
    request: RequestBuilder,
    (id, auth, secret): (&str, ClientAuth, Option<&Secret>),
    pairs: &[(&str, &str)],
) -> RequestBuilder {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(pairs);
    if auth != ClientAuth::Basic {
        form.append_pair("client_id", id);
    }
    let mut request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    match (auth, secret) {
        (ClientAuth::Basic, Some(secret)) => {
            // RFC 6749, section 2.3.1.
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            request = request.basic_auth(encoded(id), Some(encoded(secret.expose())));
        }
        (ClientAuth::Post, Some(secret)) => {
            form.append_pair("client_secret", secret.expose());
        }
        _ => {}
    }
    request.body(form.finish())
}

/// The tokens for a code.
async fn exchanged(
    fetch: &Fetch,
    server: &Server,
    client: &Client,
    pairs: &[(&str, &str)],
) -> Result<answer::Tokens, Failed> {
    let who = (client.id.as_str(), client.auth, client.secret.as_ref());
    let place = shown(&server.token);
    let answer = whole(form(fetch.post(&server.token), who, pairs), answer::MAX).await;
    let answer = answer.map_err(|why| format!("the token endpoint {place}: {why}; log in again"))?;
    if !answer.status.is_success() {
        let refused = refused(answer.status, &answer.body);
        return Err(Failed(format!(
            "the token endpoint {place} gives no token: it answers {refused}; log in again"
        )));
    }
    answer::tokens(&answer.body)
        .ok_or_else(|| Failed(format!("the token endpoint {place} answers with no token that can be used")))
}

fn logged_in(
    resource: Resource,
    server: Server,
    client: Client,
    asked: Vec<String>,
    tokens: answer::Tokens,
) -> Done {
    let what = LoggedIn {
        issuer: server.issuer,
        resource: resource.resource,
        token_endpoint: server.token.into(),
        revocation_endpoint: server.revocation.map(Into::into),
        client: client.id,
        auth: client.auth,
        // Where it does not say, all was granted.
        scopes: tokens.scopes.unwrap_or(asked),
        expires_in: tokens.expires_in,
        has_refresh: tokens.refresh.is_some(),
        has_secret: client.secret.is_some(),
    };
    let tokens = [Some(tokens.access), tokens.refresh, client.secret].into_iter().flatten().collect();
    Done::LoggedIn { what: Box::new(what), tokens }
}

/// Revokes a token (RFC 7009).
pub(super) async fn revoke(
    fetch: &Fetch,
    order: Revoke,
    token: &Secret,
    secret: Option<&Secret>,
) -> Result<Done, Failed> {
    let url = Url::parse(&order.url).map_err(|_| "its address is no URL".to_owned())?;
    let hint = if order.is_refresh { "refresh_token" } else { "access_token" };
    let pairs = [("token", token.expose()), ("token_type_hint", hint)];
    let answer =
        whole(form(fetch.post(&url), (&order.client, order.auth, secret), &pairs), answer::MAX).await?;
    if answer.status.is_success() {
        return Ok(Done::Revoked);
    }
    Err(Failed(format!("it answers {}", refused(answer.status, &answer.body))))
}

/// 122 bits that nobody can guess, in 32 digits.
fn random() -> String {
    Uuid::new_v4().simple().to_string()
}
