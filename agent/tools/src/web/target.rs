//! What a URL asks for: a host, a port, and nothing that could mean two things. Pure.

use ringfence_grant::{HostPattern, NetEntry};
use std::{fmt, net::IpAddr};
use url::Url;

/// Most bytes of a URL, typed or redirected to. RFC 9110 section 4.1 asks for 8000 at least.
pub const MAX_URL: usize = 8192;

/// Why a URL is not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// More than [`MAX_URL`] bytes.
    #[error("the URL has more than {MAX_URL} bytes")]
    Long,
    /// Characters that parsers of URLs disagree about.
    #[error("the URL has a control character or a backslash: write it percent-encoded")]
    Character,
    /// No URL.
    #[error("{url:?} is not an absolute URL: {source}")]
    Syntax {
        /// What was given.
        url: String,
        /// What is wrong with it.
        source: url::ParseError,
    },
    /// Neither http nor https.
    #[error("the scheme {0:?} is not fetched: only http and https are")]
    Scheme(String),
    /// A user or password.
    #[error("the URL names a user or password: web_fetch sends no credentials, leave them out")]
    Userinfo,
    /// A host that is none.
    #[error("{0:?} is not a host name")]
    Host(String),
    /// Port 0.
    #[error("port 0 cannot be connected to")]
    Port,
}

/// A host, as it is looked up in the grant and in DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// In lower case and ASCII (RFC 5891), without the dot of the root.
    Name(String),
    /// An address, however it was spelt; v4-mapped as the v4 one.
    Addr(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Addr(addr) => addr.fmt(f),
        }
    }
}

/// What one request goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The URL as it is sent and shown: its host as [`Host`] has it.
    pub url: Url,
    /// The host.
    pub host: Host,
    /// The port, written or the scheme's own.
    pub port: u16,
}

impl Target {
    /// Reads a URL as browsers do (<https://url.spec.whatwg.org>), so a decimal, octal, hexadecimal or shortened
    /// address is that address and a name in any script is its ASCII form.
    ///
    /// # Errors
    /// [`UrlError`]
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        check(text)?;
        let url = Url::parse(text).map_err(|source| UrlError::Syntax { url: text.to_owned(), source })?;
        Self::new(url)
    }

    /// What `location`, absolute or relative to this, leads to.
    ///
    /// # Errors
    /// [`UrlError`]
    pub fn follow(&self, location: &str) -> Result<Self, UrlError> {
        check(location)?;
        let url = self.url.join(location);
        Self::new(url.map_err(|source| UrlError::Syntax { url: location.to_owned(), source })?)
    }

    fn new(mut url: Url) -> Result<Self, UrlError> {
        if url.as_str().len() > MAX_URL {
            return Err(UrlError::Long);
        }
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlError::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Userinfo);
        }
        let written = url.host_str().unwrap_or_default().to_owned();
        let bad_host = || UrlError::Host(written.clone());
        let host = match url.host() {
            Some(url::Host::Ipv4(v4)) => Host::Addr(v4.into()),
            Some(url::Host::Ipv6(v6)) => Host::Addr(IpAddr::V6(v6).to_canonical()),
            // What is a name here is what is one in a grant.
            Some(url::Host::Domain(name)) => match name.parse() {
                Ok(NetEntry::Host { host: HostPattern::Exact(name), port: None, tcp: false }) => {
                    Host::Name(name)
                }
                _ => return Err(bad_host()),
            },
            None => return Err(bad_host()),
        };
        if let Host::Name(name) = &host
            && *name != written
        {
            url.set_host(Some(name)).map_err(|_| bad_host())?;
        }
        let port = url.port_or_known_default().filter(|port| *port > 0).ok_or(UrlError::Port)?;
        Ok(Self { url, host, port })
    }

    /// Whether it is fetched over TLS.
    pub fn tls(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// The entry that a grant must give for this.
    pub fn entry(&self) -> NetEntry {
        let port = Some(self.port);
        match &self.host {
            Host::Name(name) => NetEntry::Host { host: HostPattern::Exact(name.clone()), port, tcp: false },
            Host::Addr(addr) => NetEntry::Inet { net: (*addr).into(), port },
        }
    }

    /// The path and query, as a request line has them.
    pub fn path(&self) -> &str {
        &self.url[url::Position::BeforePath..url::Position::AfterQuery]
    }

    /// The host and the port unless it is the scheme's own, as the header `Host` has them.
    pub fn authority(&self) -> &str {
        &self.url[url::Position::BeforeHost..url::Position::AfterPort]
    }
}

fn check(text: &str) -> Result<(), UrlError> {
    if text.len() > MAX_URL {
        return Err(UrlError::Long);
    }
    // Parsers drop the first and read the second as a slash, or do not: what is checked must be what is fetched.
    if text.chars().any(|c| c.is_control() || c == '\\') {
        return Err(UrlError::Character);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(text: &str) -> Target {
        Target::parse(text).unwrap()
    }

    #[test]
    fn every_spelling_of_an_address_is_that_address() {
        for (url, host) in [
            ("http://127.0.0.1/", "127.0.0.1"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://0x7f000001/", "127.0.0.1"),
            ("http://0x7F.0.0.1/", "127.0.0.1"),
            ("http://0177.0.0.1/", "127.0.0.1"),
            ("http://017700000001/", "127.0.0.1"),
            ("http://127.1/", "127.0.0.1"),
            ("http://127.0.1/", "127.0.0.1"),
            ("http://127.0.0.1./", "127.0.0.1"),
            ("http://127.0.0.0x1/", "127.0.0.1"),
            ("http://%31%32%37.0.0.1/", "127.0.0.1"),
            ("http://\u{ff11}\u{ff12}\u{ff17}.0.0.1/", "127.0.0.1"),
            ("http://127\u{3002}0\u{3002}0\u{3002}1/", "127.0.0.1"),
            ("http://\u{2460}\u{2461}7.1/", "127.0.0.1"),
            ("http://[::ffff:127.0.0.1]/", "127.0.0.1"),
            ("http://[::ffff:7f00:1]/", "127.0.0.1"),
            ("http://[0:0:0:0:0:0:0:1]/", "::1"),
            ("http://0/", "0.0.0.0"),
            ("http:127.0.0.1", "127.0.0.1"),
            ("http:///127.0.0.1", "127.0.0.1"),
            ("http://127.0.0.1#@example.com", "127.0.0.1"),
            ("http://127.0.0.1?@example.com", "127.0.0.1"),
        ] {
            assert_eq!(target(url).host, Host::Addr(host.parse().unwrap()), "{url}");
        }
    }

    #[test]
    fn names_are_as_a_grant_has_them() {
        for (url, host, shown) in [
            ("HTTPS://Example.COM", "example.com", "https://example.com/"),
            ("https://example.com./a?b#c", "example.com", "https://example.com/a?b#c"),
            ("https://b\u{fc}cher.example/", "xn--bcher-kva.example", "https://xn--bcher-kva.example/"),
            ("https://\u{ff45}xample.com/", "example.com", "https://example.com/"),
            ("https://exam\u{ad}ple.com/", "example.com", "https://example.com/"),
        ] {
            let target = target(url);
            assert_eq!((target.host, target.url.as_str()), (Host::Name(host.into()), shown));
        }
    }

    #[test]
    fn refuses_what_it_does_not_fetch() {
        for (url, said) in [
            ("file:///etc/passwd", "\"file\""),
            ("ftp://example.com/", "\"ftp\""),
            ("data:text/html,x", "\"data\""),
            ("javascript:alert(1)", "\"javascript\""),
            ("gopher://127.0.0.1:6379/_x", "\"gopher\""),
            ("ws://example.com", "\"ws\""),
            ("blob:https://example.com/1", "\"blob\""),
            ("view-source:http://example.com", "\"view-source\""),
            ("http://user@example.com/", "user or password"),
            ("http://user:pass@example.com/", "user or password"),
            ("http://:pass@example.com/", "user or password"),
            ("http://example.com@127.0.0.1/", "user or password"),
            ("http://example.com:0/", "port 0"),
            ("http://example.com:99999/", "invalid port"),
            ("http://example.com:80:81/", "invalid port"),
            ("http://example.com:+80/", "invalid port"),
            ("http://exa\tmple.com/", "control character"),
            ("http://example.com\r\nX: y/", "control character"),
            ("http://example.com\\@127.0.0.1/", "backslash"),
            ("http://example.com../", "not a host name"),
            ("http://.example.com/", "not a host name"),
            ("http://a..b/", "not a host name"),
            ("http://*.example.com/", "not a host name"),
            ("http://256.256.256.256/", "invalid IPv4"),
            ("http://1.2.3.4.5/", "invalid IPv4"),
            ("http://[fe80::1%25eth0]/", "invalid IPv6"),
            ("http://[::1/", "invalid IPv6"),
            ("http://exam ple.com/", "invalid"),
            ("http://", "empty host"),
            ("example.com", "not an absolute URL"),
            ("//example.com", "not an absolute URL"),
            ("", "not an absolute URL"),
        ] {
            let error = Target::parse(url).expect_err(url).to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
        assert_eq!(Target::parse(&format!("http://x/{}", "a".repeat(MAX_URL))), Err(UrlError::Long));
    }

    #[test]
    fn follows_redirects_by_the_same_rules() {
        let from = target("https://example.com:8443/a/b?c");
        for (location, url) in [
            ("d", "https://example.com:8443/a/d"),
            ("/d", "https://example.com:8443/d"),
            ("?d", "https://example.com:8443/a/b?d"),
            ("//other.example/", "https://other.example/"),
            ("http://169.254.169.254/", "http://169.254.169.254/"),
        ] {
            assert_eq!(from.follow(location).unwrap().url.as_str(), url);
        }
        for location in ["file:///etc/passwd", "//user@example.com", "data:,x", "\\\\evil", "//a..b"] {
            assert!(from.follow(location).is_err(), "{location}");
        }
    }

    #[test]
    fn asks_for_one_entry() {
        for (url, entry) in [
            ("https://example.com./", "example.com:443"),
            ("http://example.com:8080/", "example.com:8080"),
            ("http://[::ffff:10.0.0.1]/", "10.0.0.1:80"),
            ("http://[::1]:81/", "[::1]:81"),
        ] {
            assert_eq!(target(url).entry().to_string(), entry);
        }
    }

    proptest! {
        /// Of hostile text nothing is made but a host that a grant can name, and what is made reads back as itself.
        #[test]
        fn reads_back_as_itself(text in "(https?:(//)?)?([a-zA-Z0-9.:@/%\\[\\]#?\\-_ ]|\\PC){0,40}") {
            if let Ok(target) = Target::parse(&text) {
                let entry: NetEntry = target.entry().to_string().parse().unwrap();
                prop_assert_eq!(&entry, &target.entry());
                prop_assert_eq!(Target::parse(target.url.as_str()), Ok(target));
            }
        }

        /// However an address is written, it is the same place.
        #[test]
        fn spellings_agree(bits: u32) {
            let addr = std::net::Ipv4Addr::from(bits);
            let [a, b, c, d] = addr.octets();
            for text in [
                format!("{bits}"),
                format!("{bits:#x}"),
                format!("0{bits:o}"),
                format!("{a:#x}.{b}.0{c:o}.{d:#X}").replace("0X", "0x"),
                format!("{a}.{}", bits & 0xff_ffff),
                format!("{a}.{b}.{}", bits & 0xffff),
                format!("[::ffff:{addr}]"),
            ] {
                prop_assert_eq!(&target(&format!("http://{text}/")).host, &Host::Addr(addr.into()), "{}", text);
            }
        }
    }
}
