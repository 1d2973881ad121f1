//! What [`Names`] mean: which rule decides about a name and a port. The one reading of them, for the egress worker, for the
//! policy's addresses in the kernel and for `ringfence profile explain`.

use crate::egress::{MAX_EXACT_NAMES, NameRule, Names};

/// What is behind names that no public host has: special-use names (RFC 6761, 6762, 7686, 8375) and `internal`.
const NOT_PUBLIC: [&str; 5] = ["arpa", "internal", "local", "localhost", "onion"];
/// How long the end of a country's name is.
const COUNTRY: &str = ".br";

impl Names {
    /// Whether no name is granted, nor can be asked for.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.options.ask.is_none()
    }

    /// Whether a person may be asked for a name that is not granted: a host's, with a domain, which is not denied at every port. Not
    /// one that no host has in public ([`NOT_PUBLIC`]), nor a granted one with something behind it: a resolver puts the domains of a
    /// search list there, and whoever looks for `a.org` has to find that `a.org.corp.example` does not exist. `example.com.br`, though,
    /// is another than `example.com`.
    pub fn asks(&self, name: &str) -> bool {
        let is_denied = |deny: &NameRule| deny.port.is_none() && deny.names(name);
        let is_below = |above: &&str| {
            name.strip_suffix(*above).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let is_granted_and_more = || {
            let ends = name.match_indices('.').filter(|(dot, _)| name.len() - dot != COUNTRY.len());
            ends.filter_map(|(dot, _)| name.get(..dot))
                .any(|first| self.rules.iter().any(|rule| rule.names(first)))
        };
        self.options.ask.is_some()
            && name.contains('.')
            && !NOT_PUBLIC.iter().any(is_below)
            && !self.denies.iter().any(is_denied)
            && !is_granted_and_more()
    }

    /// The exact names, each once: the first has the address `.1` of a container's block, and so on. Some of them may not be
    /// granted any more.
    pub fn exact(&self) -> Vec<&str> {
        let mut exact: Vec<&str> = Vec::new();
        let of_rules =
            self.rules.iter().map(|rule| rule.host.as_str()).filter(|host| !host.starts_with("*."));
        for host in self.places.iter().map(String::as_str).chain(of_rules) {
            if !exact.contains(&host) {
                exact.push(host);
            }
        }
        exact
    }

    /// Leaves every exact name where the container's earlier policy had it: what a program resolved before must not lead to
    /// another name now. New ones come behind those, and in the places of names that are gone only where nothing else is left.
    pub fn keep_places(&mut self, earlier: &Self) {
        let granted: Vec<String> = self.exact().into_iter().map(str::to_owned).collect();
        let mut places: Vec<String> = earlier.exact().into_iter().map(str::to_owned).collect();
        places.truncate(MAX_EXACT_NAMES);
        for name in &granted {
            if places.contains(name) {
                continue;
            }
            if places.len() < MAX_EXACT_NAMES {
                places.push(name.clone());
            } else if let Some(gone) = places.iter_mut().find(|place| !granted.contains(place)) {
                gone.clone_from(name);
            }
        }
        self.places = places;
    }

    /// The rule that denies a name at a port: the closest of those that do. A deny does not depend on `tcp`.
    pub fn denied(&self, name: &str, port: u16) -> Option<&NameRule> {
        closest(&self.denies, name, port, NameRule::closeness)
    }

    /// The rule that grants a name at a port, denies aside: one with `tcp` if there is any, and of several the closest.
    pub fn granted(&self, name: &str, port: u16) -> Option<&NameRule> {
        closest(&self.rules, name, port, |rule| (rule.tcp, rule.closeness()))
    }

    /// Whether a name is granted at some port, so that it is to have an address.
    pub fn has(&self, name: &str) -> bool {
        let is_denied = |port: Option<u16>| {
            let all = |deny: &NameRule| deny.port.is_none() || deny.port == port;
            self.denies.iter().any(|deny| all(deny) && deny.names(name))
        };
        self.rules.iter().any(|rule| rule.names(name) && !is_denied(rule.port))
    }
}

impl NameRule {
    /// Whether a name is meant: lower-case ASCII, without the dot of the root. One that no host has is never meant, whatever it
    /// is below (`a@b.example.org`).
    pub fn names(&self, name: &str) -> bool {
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
        };
        match self.host.strip_prefix("*.") {
            None => self.host == name,
            Some(above) => {
                let labels = name.strip_suffix(above).and_then(|labels| labels.strip_suffix('.'));
                labels.is_some_and(|labels| labels.split('.').all(is_label))
            }
        }
    }

    /// Whether a name is meant at a port.
    pub fn matches(&self, name: &str, port: u16) -> bool {
        self.port.is_none_or(|of| of == port) && self.names(name)
    }

    /// An exact name is closer than a wildcard, a long one closer than a short one, a port closer than any port.
    fn closeness(&self) -> (bool, usize, bool) {
        (!self.host.starts_with("*."), self.host.len(), self.port.is_some())
    }
}

/// The first of the greatest.
fn closest<'a, K: Ord>(
    rules: &'a [NameRule],
    name: &str,
    port: u16,
    key: impl Fn(&NameRule) -> K,
) -> Option<&'a NameRule> {
    rules.iter().rev().filter(|rule| rule.matches(name, port)).max_by_key(|rule| key(rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<NameRule> {
        let rule = |(at, text): (usize, &&str)| {
            let (text, tcp) = text.strip_prefix("tcp:").map_or((*text, false), |rest| (rest, true));
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            let port = port.map(|port| port.parse().unwrap());
            NameRule { host: host.to_owned(), port, tcp, rule: u32::try_from(at).unwrap() }
        };
        texts.iter().enumerate().map(rule).collect()
    }

    fn names(granted: &[&str], denied: &[&str]) -> Names {
        Names { rules: rules(granted), denies: rules(denied), ..Names::default() }
    }

    #[test]
    fn a_person_is_asked_for_what_is_not_denied() {
        let mut names = names(&[], &["evil.org", "*.evil.org", "web.org:80"]);
        assert!(names.is_empty() && !names.asks("a.org"), "the control");
        names.options.ask = Some(60);
        assert!(!names.is_empty() && names.asks("a.org") && names.asks("web.org"), "another port of it");
        for denied in ["evil.org", "x.evil.org", "localhost", "intranet"] {
            assert!(!names.asks(denied), "{denied}");
        }
        for nowhere in ["metadata.google.internal", "printer.local", "app.localhost", "nas.home.arpa"] {
            assert!(!names.asks(nowhere), "{nowhere}");
        }
        assert!(
            names.asks("mylocal.example") && names.asks("local.example") && names.asks("xlocal.xinternal")
        );
    }

    #[test]
    fn a_granted_name_with_a_search_list_s_domain_is_asked_about_by_nobody() {
        let mut names = names(&["pypi.org:443", "*.pythonhosted.org"], &[]);
        names.options.ask = Some(60);
        for searched in [
            "pypi.org.corp.example",
            "pypi.org.ns.svc.cluster.example",
            "files.pythonhosted.org.corp.example",
            "pypi.org.lan",
        ] {
            assert!(!names.asks(searched), "{searched}");
        }
        for other in [
            "pypi.org.br",
            "xpypi.org.corp.example",
            "pypi.organic",
            "pythonhosted.org.corp.example",
            "github.com",
        ] {
            assert!(names.asks(other), "{other}");
        }
    }

    #[test]
    fn exact_names_keep_their_places() {
        let names = names(&["b.org:443", "*.c.org", "a.org", "b.org:80", "d.org"], &["a.org"]);
        assert_eq!(names.exact(), ["b.org", "a.org", "d.org"], "a deny moves nothing");
    }

    #[test]
    fn a_changed_policy_leaves_names_where_they_were() {
        let first = names(&["a.org", "b.org:443", "tcp:c.org:22"], &[]);
        let mut second = names(&["new.org", "tcp:c.org:22", "*.d.org"], &[]);
        second.keep_places(&first);
        assert_eq!(second.exact(), ["a.org", "b.org", "c.org", "new.org"]);
        assert!(!second.has("a.org") && second.has("c.org") && second.has("new.org"));
        let mut third = names(&["b.org", "new.org"], &[]);
        third.keep_places(&second);
        assert_eq!(third.exact(), ["a.org", "b.org", "c.org", "new.org"], "there again, where it was");
        let mut same = names(&["b.org"], &[]);
        same.keep_places(&names(&["b.org"], &[]));
        assert_eq!(same.exact(), ["b.org"]);
        // As many as there are addresses for, then others.
        let texts: Vec<String> = (0..MAX_EXACT_NAMES).map(|at| format!("h{at}.org")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (full, mut later) = (names(&texts, &[]), names(&[&texts[..126], &["late.org"]].concat(), &[]));
        later.keep_places(&full);
        let exact = later.exact();
        assert_eq!((exact.len(), exact[125], exact[126]), (MAX_EXACT_NAMES, "h125.org", "late.org"));
    }

    #[test]
    fn the_closest_rule_decides_and_an_uninspected_one_before_it() {
        let names = names(
            &["*.org:443", "*.a.org", "x.a.org", "x.a.org:443", "x.a.org:443", "tcp:*.a.org:22"],
            &["*.bad.a.org", "y.a.org:80", "tcp:z.a.org:22"],
        );
        let granted = |name, port| names.granted(name, port).map(|rule| rule.rule);
        assert_eq!(granted("x.a.org", 443), Some(3), "the first of those that are alike");
        assert_eq!(granted("x.a.org", 80), Some(2));
        assert_eq!(granted("w.a.org", 443), Some(1));
        assert_eq!(granted("x.a.org", 22), Some(5), "looked at less");
        assert_eq!(granted("a.org", 443), Some(0));
        assert_eq!((granted("a.org", 80), granted("org", 443), granted("a.net", 443)), (None, None, None));
        let denied = |name, port| names.denied(name, port).map(|rule| rule.rule);
        assert_eq!((denied("q.bad.a.org", 1), denied("bad.a.org", 1)), (Some(0), None));
        assert_eq!((denied("y.a.org", 80), denied("y.a.org", 443)), (Some(1), None));
        assert_eq!(denied("z.a.org", 22), Some(2));
    }

    #[test]
    fn a_name_has_an_address_where_some_port_of_it_is_open() {
        let names = names(
            &["*.a.org:443", "b.org", "*.c.org:443", "*.c.org:80"],
            &["x.a.org:443", "b.org:80", "*.no.c.org", "y.c.org:80"],
        );
        for name in ["w.a.org", "b.org", "z.c.org", "y.c.org"] {
            assert!(names.has(name), "{name}");
        }
        for name in ["x.a.org", "a.org", "n.no.c.org", "c.org", ".a.org", "a..a.org", "", "w.a.org."] {
            assert!(!names.has(name), "{name}");
        }
        for name in
            ["a@b.a.org", "a\\046b.a.org", "$(id).a.org", "a b.a.org", "*.a.org", "W.a.org", "\u{e4}.a.org"]
        {
            assert!(!names.has(name), "{name}");
        }
    }
}
