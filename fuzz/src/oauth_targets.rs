//! What a remote server and its authorization server say of a login.

use ringfence_mcp_http::oauth::{
    answer,
    challenge::{Challenge, MOST_SCOPES, is_plain, is_scope},
    metadata::{self, Reach},
};
use url::Url;

/// The server that is logged in to, and the name of its authorization server.
const SERVER: &str = "https://h.example/a/mcp";
const ISSUER: &str = "https://as.example/tenant";

/// The same bytes as a `WWW-Authenticate`, as both descriptions, and as the answers of the browser, the registration and the token
/// endpoint. Whatever is taken of them leads to no other place than a login may, and is no other server's.
pub fn oauth(data: &[u8]) {
    let server: Url = SERVER.parse().expect("an address");
    let far = Reach::of(&server);
    let text = String::from_utf8_lossy(data);
    if let Some(challenge) = Challenge::of([&*text]) {
        let scopes = challenge.scope.unwrap_or_default();
        assert!(scopes.len() <= MOST_SCOPES && scopes.iter().all(|scope| is_scope(scope)));
        let plain = scopes.iter().filter(|scope| is_plain(scope));
        assert!(plain.into_iter().all(|scope| !scope.contains(['`', '$', ';', '\'', ' ', '\n'])));
    }
    let anywhere: Url = "https://evil.example/x".parse().expect("an address");
    for place in metadata::resource_places(&server).iter().chain([&anywhere]) {
        let Ok(resource) = metadata::resource(data, &server, place) else { continue };
        let named: Url = resource.resource.parse().expect("an address");
        assert_eq!(named.origin(), server.origin());
        assert!(*place != anywhere || named.path().trim_end_matches('/') == server.path());
        assert!(!resource.servers.is_empty());
        assert!(resource.scopes.unwrap_or_default().iter().all(|scope| is_scope(scope)));
    }
    for reach in [far, Reach { loopback: true }] {
        let Ok(found) = metadata::server(data, ISSUER, reach) else { continue };
        assert_eq!(found.issuer, ISSUER);
        let places = [
            Some(&found.authorization),
            Some(&found.token),
            found.registration.as_ref(),
            found.revocation.as_ref(),
        ];
        for place in places.into_iter().flatten() {
            assert!(reach.allows(place) && (place.scheme() == "https" || metadata::is_loopback(place)));
        }
    }
    if let Ok(url) = far.url(&text) {
        assert!(url.scheme() == "https" && !metadata::is_loopback(&url));
        let places = [metadata::resource_places(&url), metadata::server_places(&url)].concat();
        assert!(places.iter().all(|place| place.origin() == url.origin()));
    }
    if let Ok(code) = answer::code(&text, "state-1", ISSUER, true) {
        assert!(!code.expose().is_empty() && text.contains("state-1"));
    }
    if let Some(name) = answer::refusal(data) {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
    }
    if let Some(tokens) = answer::tokens(data) {
        assert!(tokens.access.expose().bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
    }
    if let Some(client) = answer::registered(data, None) {
        assert!(answer::is_client(&client.id));
    }
}
