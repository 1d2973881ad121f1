//! Headers that a user sends to a remote MCP server.

/// Most of them.
pub const MOST: usize = 32;

/// What MCP's HTTP transport, or HTTP itself, writes.
const RESERVED: &[&str] = &[
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// How others begin: arguments that are repeated in headers, and what is for a proxy.
const FAMILIES: &[&str] = &["mcp-param-", "proxy-"];

/// Whether a header of that name, in lower case, is one.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family))
}

#[cfg(test)]
mod tests {
    use super::is_reserved;

    #[test]
    fn credentials_are_the_user_s_and_the_rest_is_the_transport_s() {
        for name in ["mcp-session-id", "mcp-param-region", "proxy-authorization", "proxy-connection", "te"] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["authorization", "cookie", "x-api-key", "mcp-toolsets", "tea"] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
