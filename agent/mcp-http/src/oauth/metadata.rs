//! Where a server and its authorization server describe themselves (RFC 9728, RFC 8414, OpenID Connect Discovery), and what is taken
//! of that. Pure. Hostile: whoever answers for the server wrote it.

use super::challenge::is_scope;
use ringfence_base::loopback;
use serde::Deserialize;
use std::net::IpAddr;
use url::Url;

/// Most bytes of a description.
pub const MAX: usize = 256 << 10;
/// Most entries of a list that are looked at.
const MOST: usize = 100;
/// Longest address, in bytes.
const MAX_URL: usize = 4096;

/// Why a description is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not JSON of that kind.
    #[error("it is not JSON with what the specification asks for")]
    Shape,
    /// Of another.
    #[error("it describes another server than the one that was asked")]
    Other,
    /// A place that no login leads to.
    #[error(
        "it names an address that a login does not go to: only https is used, and http at loopback for a server at loopback"
    )]
    Address,
    /// None.
    #[error("it names no authorization server")]
    NoServer,
    /// Without PKCE.
    #[error(
        "it does not say that it has PKCE with S256 (code_challenge_methods_supported), without which a code can be stolen"
    )]
    NoPkce,
}

/// A protected resource: the MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// What it is called at its authorization server: it goes there as it is.
    pub resource: String,
    /// Its authorization servers, by their names, in its order. One at least.
    pub servers: Vec<String>,
    /// What is to be asked for.
    pub scopes: Option<Vec<String>>,
}

/// An authorization server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its name.
    pub issuer: String,
    /// Where the browser goes.
    pub authorization: Url,
    /// Where tokens come from.
    pub token: Url,
    /// Where clients are registered.
    pub registration: Option<Url>,
    /// Where tokens are revoked.
    pub revocation: Option<Url>,
    /// How clients may show who they are; `None`: it does not say.
    pub auths: Option<Vec<String>>,
    /// Which scopes it has.
    pub scopes: Vec<String>,
    /// It says who it is in each answer (RFC 9207).
    pub says_issuer: bool,
    /// A client's id may be the address of its metadata.
    pub takes_documents: bool,
}

impl Server {
    /// Whether its answers are told from another server's: they say whose they are, or the code goes where it comes from. Otherwise a
    /// server that names another's login as its own gets that one's code.
    pub fn tells_apart(&self) -> bool {
        self.says_issuer || self.authorization.origin() == self.token.origin()
    }
}

#[derive(Deserialize)]
struct RawResource {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    scopes_supported: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawServer {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    registration_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
    code_challenge_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    scopes_supported: Option<Vec<String>>,
    authorization_response_iss_parameter_supported: Option<bool>,
    client_id_metadata_document_supported: Option<bool>,
}

/// Where a login may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// To http at loopback: the server is there itself. No other may make this machine speak to its own services.
    pub loopback: bool,
}

impl Reach {
    /// Of a login at this server.
    pub fn of(server: &Url) -> Self {
        Self { loopback: is_loopback(server) }
    }

    /// The same of an address that may be none.
    pub(super) fn of_text(server: &str) -> Self {
        Url::parse(server).map_or(Self { loopback: false }, |url| Self::of(&url))
    }

    /// An address, if a login may lead there.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn url(self, text: &str) -> Result<Url, Error> {
        let url = Some(text).filter(|text| text.len() <= MAX_URL).and_then(|text| Url::parse(text).ok());
        url.filter(|url| self.allows(url)).ok_or(Error::Address)
    }

    /// Whether it may.
    pub fn allows(self, url: &Url) -> bool {
        let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        let scheme = match url.scheme() {
            "https" => self.loopback || !is_loopback(url),
            "http" => self.loopback && url.host_str().is_some_and(loopback::is_name),
            _ => false,
        };
        is_plain && url.has_host() && scheme
    }
}

/// Whether an address is, or may be, one of this machine.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(url::Host::Ipv4(ip)) => is_loopback_ip(ip.into()),
        Some(url::Host::Ipv6(ip)) => is_loopback_ip(ip.into()),
        None => false,
    }
}

/// Whether connecting there leads to this machine.
pub(super) fn is_loopback_ip(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified()
}

/// The well-known place of a resource's description.
const PLACE: &str = "/.well-known/oauth-protected-resource";

/// Where a server's description is by RFC 9728, in the order in which MCP asks: at its path, then at the root.
pub fn resource_places(server: &Url) -> Vec<Url> {
    let mut places = vec![inserted(server, PLACE)];
    let mut root = server.clone();
    root.set_path(PLACE);
    root.set_query(None);
    if !places.contains(&root) {
        places.push(root);
    }
    places
}

/// Where an authorization server's description is, in MCP's order.
pub fn server_places(issuer: &Url) -> Vec<Url> {
    const PLACES: [&str; 2] =
        ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"];
    let mut places = PLACES.map(|place| inserted(issuer, place)).to_vec();
    let path = issuer.path().trim_end_matches('/');
    if !path.is_empty() {
        let mut appended = issuer.clone();
        appended.set_path(&format!("{path}{}", PLACES[1]));
        places.push(appended);
    }
    places
}

/// An address with a well-known place before its path.
fn inserted(url: &Url, place: &str) -> Url {
    let mut whole = url.clone();
    whole.set_path(&format!("{place}{}", url.path().trim_end_matches('/')));
    whole
}

/// Reads a server's description, which was found at `place`. It must be the server's: of its address, or of a place above it whose
/// well-known place that is.
///
/// # Errors
/// [`Error`].
pub fn resource(text: &[u8], server: &Url, place: &Url) -> Result<Resource, Error> {
    let raw: RawResource = serde_json::from_slice(text).map_err(|_| Error::Shape)?;
    if raw.resource.len() > MAX_URL || !is_of(&raw.resource, server, place) {
        return Err(Error::Other);
    }
    let servers: Vec<String> = raw.authorization_servers.into_iter().take(MOST).collect();
    if servers.is_empty() {
        return Err(Error::NoServer);
    }
    let scopes = raw.scopes_supported.map(some);
    Ok(Resource { resource: raw.resource, servers, scopes })
}

/// Whether a resource's name, in a description at `place`, is this server's: its address, or a path above it at the same origin. What is
/// beside a server's address is another server, to which a token would be of use as well; so is what is above it, which only whoever
/// has the origin's well-known places says (RFC 9728, section 3.3): a server below could have a token made for all of it otherwise.
pub fn is_of(resource: &str, server: &Url, place: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let (above, path) = (resource.path().trim_end_matches('/'), server.path());
    let rest = path.strip_prefix(above);
    let is_above = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_whole = rest.is_some_and(|rest| rest.is_empty() || rest == "/");
    let is_exact = is_whole && resource.query() == server.query();
    let query = resource.query().is_none() || resource.query() == server.query();
    let own = inserted(&resource, PLACE);
    let is_well_known = place.origin() == own.origin() && place.path() == own.path();
    let is_plain =
        resource.username().is_empty() && resource.password().is_none() && resource.fragment().is_none();
    let is_here = resource.has_host() && resource.origin() == server.origin() && is_plain;
    is_here && (is_exact || is_above && query && is_well_known)
}

/// Reads an authorization server's description, which was asked for by the name `issuer`.
///
/// # Errors
/// [`Error`].
pub fn server(text: &[u8], issuer: &str, reach: Reach) -> Result<Server, Error> {
    let raw: RawServer = serde_json::from_slice(text).map_err(|_| Error::Shape)?;
    // To the byte (RFC 8414, section 3.3): another's name would be believed in its answers.
    if raw.issuer != issuer {
        return Err(Error::Other);
    }
    let has_pkce = |methods: &Vec<String>| methods.iter().any(|method| method == "S256");
    if !raw.code_challenge_methods_supported.as_ref().is_some_and(has_pkce) {
        return Err(Error::NoPkce);
    }
    let url = |text: &String| reach.url(text);
    Ok(Server {
        authorization: url(&raw.authorization_endpoint)?,
        token: url(&raw.token_endpoint)?,
        registration: raw.registration_endpoint.as_ref().map(url).transpose()?,
        revocation: raw.revocation_endpoint.as_ref().map(url).transpose()?,
        auths: raw.token_endpoint_auth_methods_supported,
        scopes: some(raw.scopes_supported.unwrap_or_default()),
        says_issuer: raw.authorization_response_iss_parameter_supported.unwrap_or_default(),
        takes_documents: raw.client_id_metadata_document_supported.unwrap_or_default(),
        issuer: raw.issuer,
    })
}

/// Those of a list that are scopes.
fn some(scopes: Vec<String>) -> Vec<String> {
    scopes.into_iter().filter(|scope| is_scope(scope)).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn texts(places: Vec<Url>) -> Vec<String> {
        places.iter().map(Url::to_string).collect()
    }

    #[test]
    fn descriptions_are_at_the_places_of_the_specifications() {
        assert_eq!(
            texts(resource_places(&url("https://h.example/a/mcp"))),
            [
                "https://h.example/.well-known/oauth-protected-resource/a/mcp",
                "https://h.example/.well-known/oauth-protected-resource",
            ]
        );
        for root in ["https://h.example", "https://h.example/"] {
            assert_eq!(
                texts(resource_places(&url(root))),
                ["https://h.example/.well-known/oauth-protected-resource"]
            );
        }
        assert_eq!(
            texts(server_places(&url("https://as.example/tenant1"))),
            [
                "https://as.example/.well-known/oauth-authorization-server/tenant1",
                "https://as.example/.well-known/openid-configuration/tenant1",
                "https://as.example/tenant1/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            texts(server_places(&url("https://as.example:8443"))),
            [
                "https://as.example:8443/.well-known/oauth-authorization-server",
                "https://as.example:8443/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn a_resource_is_the_server_or_above_it_where_the_origin_says_so() {
        let server = url("https://h.example/a/mcp?x=1");
        let own = |resource: &str| Url::parse(resource).map_or(server.clone(), |url| inserted(&url, PLACE));
        let stranger = url("https://evil.example/x");
        for exact in ["https://h.example/a/mcp?x=1", "https://H.example:443/a/mcp/?x=1"] {
            assert!(is_of(exact, &server, &stranger), "{exact}");
        }
        for above in [
            "https://h.example/a/mcp",
            "https://h.example/a",
            "https://h.example/a/",
            "https://h.example",
            "https://H.example:443/",
        ] {
            assert!(is_of(above, &server, &own(above)), "{above}");
            // A server of many at one origin, which has its description anywhere.
            for place in [
                "https://evil.example/x",
                "https://h.example/a/mcp/x",
                "https://h.example/.well-known/oauth-protected-resource/other",
                "https://evil.example/.well-known/oauth-protected-resource",
            ] {
                assert!(!is_of(above, &server, &url(place)), "{above} at {place}");
            }
        }
        for other in [
            "",
            "h.example",
            "https://other.example/a/mcp",
            "http://h.example/a/mcp",
            "https://h.example:8443/a/mcp",
            "https://h.example/a/mc",
            "https://h.example/a/mcp/more",
            "https://h.example/b",
            "https://h.example/a/mcp?x=2",
            "https://h.example/a/mcp#x",
            "https://me@h.example/a/mcp",
            "https://h.example/a/mcp/../../b",
        ] {
            assert!(!is_of(other, &server, &own(other)), "{other}");
        }
        // Each of the places at which a server is looked for is one of a resource that may be its own.
        let places = resource_places(&server);
        assert!(is_of("https://h.example/a/mcp", &server, &places[0]));
        assert!(is_of("https://h.example", &server, &places[1]));
    }

    #[test]
    fn a_login_leads_to_no_service_of_this_machine_unless_the_server_is_there() {
        let (far, near) =
            (Reach::of(&url("https://h.example/mcp")), Reach::of(&url("http://127.0.0.1:1/mcp")));
        assert!(far.url("https://as.example/x?y=z").is_ok() && near.url("https://as.example/x").is_ok());
        for local in [
            "http://127.0.0.1:9/",
            "http://localhost/",
            "http://[::1]/",
            "https://localhost/",
            "https://a.localhost/",
        ] {
            assert!(near.url(local).is_ok(), "{local}");
            assert_eq!(far.url(local), Err(Error::Address), "{local}");
        }
        assert_eq!(far.url("https://[::ffff:127.0.0.1]/"), Err(Error::Address));
        for none in [
            "http://as.example/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "https://me:x@as.example/",
            "",
            "/x",
            "https://a/#x",
        ] {
            assert_eq!((far.url(none), near.url(none)), (Err(Error::Address), Err(Error::Address)), "{none}");
        }
        assert!(far.url(&format!("https://h/{}", "x".repeat(MAX_URL))).is_err());
    }

    fn described(change: impl FnOnce(&mut Value)) -> Result<Server, Error> {
        let mut value = json!({
            "issuer": "https://as.example",
            "authorization_endpoint": "https://as.example/authorize",
            "token_endpoint": "https://as.example/token",
            "code_challenge_methods_supported": ["plain", "S256"],
        });
        change(&mut value);
        server(value.to_string().as_bytes(), "https://as.example", Reach { loopback: false })
    }

    #[test]
    fn an_authorization_server_has_its_name_pkce_and_addresses_that_can_be_used() {
        assert!(described(|_| {}).is_ok());
        for name in ["https://as.example/", "https://AS.example", "https://other.example"] {
            assert_eq!(described(|value| value["issuer"] = name.into()), Err(Error::Other), "{name}");
        }
        for methods in [json!(["plain"]), json!([]), Value::Null] {
            assert_eq!(
                described(|value| value["code_challenge_methods_supported"] = methods),
                Err(Error::NoPkce)
            );
        }
        for key in
            ["authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"]
        {
            assert_eq!(
                described(|value| value[key] = "http://127.0.0.1/".into()),
                Err(Error::Address),
                "{key}"
            );
        }
        assert_eq!(described(|value| value["token_endpoint"] = 7.into()), Err(Error::Shape));
        for text in ["", "[]", "null", "{}", "<html>"] {
            assert_eq!(server(text.as_bytes(), "", Reach { loopback: true }), Err(Error::Shape), "{text}");
        }
        let elsewhere = |value: &mut Value| value["token_endpoint"] = "https://tokens.example/token".into();
        assert!(described(|_| {}).unwrap().tells_apart() && !described(elsewhere).unwrap().tells_apart());
        let says = |value: &mut Value| {
            elsewhere(value);
            value["authorization_response_iss_parameter_supported"] = true.into();
        };
        assert!(described(says).unwrap().tells_apart());
        let scopes =
            described(|value| value["scopes_supported"] = json!(["a", "b c", "", "d"])).unwrap().scopes;
        assert_eq!(scopes, ["a", "d"]);
    }

    #[test]
    fn a_server_names_itself_and_who_logs_in() {
        let server = url("https://h.example/mcp");
        let of = |value: Value| resource(value.to_string().as_bytes(), &server, &resource_places(&server)[0]);
        let found =
            of(json!({"resource": "https://h.example/mcp", "authorization_servers": ["https://as.example"]}));
        assert_eq!(found.unwrap().servers, ["https://as.example"]);
        assert_eq!(
            of(json!({"resource": "https://evil.example/mcp", "authorization_servers": ["x"]})),
            Err(Error::Other)
        );
        assert_eq!(of(json!({"resource": "https://h.example/mcp"})), Err(Error::NoServer));
        assert_eq!(of(json!({"authorization_servers": ["x"]})), Err(Error::Shape));
    }
}
