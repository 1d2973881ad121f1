//! Which names a listener on loopback answers to. A page of another site can have its own name lead to loopback; the browser
//! then sends that name as the host.

use std::net::SocketAddr;

/// Whether `host`, as a `Host` header or an origin has it, is a listener's own: its address, 127.0.0.1, `localhost` or
/// `[::1]`, with its port, which may be left out where that is 80.
pub fn is_own_host(listener: SocketAddr, host: &str) -> bool {
    let (own, port) = (listener.ip().to_string(), listener.port());
    let (name, given) =
        host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).unwrap_or((host, "80"));
    ["127.0.0.1", "localhost", "[::1]", &own].contains(&name) && given == port.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_with_the_listener_s_port_only() {
        let own = |host: &str| is_own_host(([127, 82, 1, 2], 4321).into(), host);
        for host in ["127.82.1.2:4321", "127.0.0.1:4321", "localhost:4321", "[::1]:4321"] {
            assert!(own(host), "{host}");
        }
        for host in
            ["", "localhost", "localhost:80", "localhost:04321", "evil.example:4321", "127.0.0.2:4321"]
        {
            assert!(!own(host), "{host}");
        }
        let at_80 = |host: &str| is_own_host(([127, 0, 0, 1], 80).into(), host);
        assert!(at_80("localhost") && at_80("[::1]") && at_80("localhost:80") && !at_80("localhost:81"));
    }
}
