//! Domains that resolvers put behind a name that they are asked for. Where a person is asked about names, `pypi.org.corp.example` would
//! have an address, and whoever wants `pypi.org` and has `corp.example` in its search list would go there: to a name that it never
//! asks for, and whose server it does not expect. No name below such a domain is asked about.
//!
//! They are those of /etc/resolv.conf, and of a container that has another one, those that are noticed: a client goes to the address
//! of `pypi.org.corp.example` and asks for `pypi.org` there.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Where they are.
const PATH: &str = "/etc/resolv.conf";
/// Most bytes of it that are read.
const MOST_BYTES: u64 = 64 << 10;
/// Most domains of a list, and most that are noticed: beyond that the oldest goes.
const MOST_DOMAINS: usize = 32;
/// How often it is looked whether there are others.
const LOOK: Duration = Duration::from_secs(30);
/// Most bytes of a name.
const MOST_NAME: usize = 253;

/// See the module.
pub(crate) struct Search {
    path: PathBuf,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    listed: Vec<String>,
    looked: Option<Instant>,
    noticed: VecDeque<String>,
}

impl Default for Search {
    fn default() -> Self {
        Self::at(PATH.into())
    }
}

impl Search {
    fn at(path: PathBuf) -> Self {
        Self { path, state: RefCell::default() }
    }

    /// Whether a name is below one of them.
    pub(crate) fn has(&self, name: &str, now: Instant) -> bool {
        let mut state = self.state.borrow_mut();
        if state.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK) {
            state.looked = Some(now);
            match read(&self.path) {
                Ok(text) => state.listed = domains(&text, &host_name()),
                // There is none, as the C library has it then.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    state.listed = domains("", &host_name());
                }
                // Clients of a container read one of their own: they still have those.
                Err(error) => tracing::debug!("{} cannot be read: {error}", self.path.display()),
            }
        }
        let is_above = |domain: &String| behind(name, domain).is_some();
        state.listed.iter().chain(&state.noticed).any(is_above)
    }

    /// A client went to the address of `name`, and asked for `other` there, which is granted or not. Gives the domain, if `name` is
    /// `other` with one behind it.
    pub(crate) fn notice(&self, name: &str, other: &str, is_granted: bool) -> Option<String> {
        let domain = name.strip_prefix(other)?.strip_prefix('.')?;
        // `example.com.br` is no `example.com` with a domain behind it. Who asks for `github` at the address of `github.com` is not to keep
        // everything below `com` from being asked about.
        let is_plain = !is_granted && !domain.contains('.');
        if !is_domain(domain) || other.is_empty() || is_country(domain) || is_plain {
            return None;
        }
        let mut state = self.state.borrow_mut();
        if !state.noticed.iter().any(|known| known == domain) {
            state.noticed.truncate(MOST_DOMAINS - 1);
            state.noticed.push_front(domain.to_owned());
        }
        Some(domain.to_owned())
    }
}

fn read(path: &PathBuf) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// This host's whole name, if it has one.
fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What a resolv.conf says: of several lines the last counts. Where there is none, it is the domain of the host's name.
fn domains(text: &str, host: &str) -> Vec<String> {
    let mut lists = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        matches!(words.next(), Some("search" | "domain")).then_some(words)
    });
    let named = |word: &str| word.trim_matches('.').to_ascii_lowercase();
    let listed: Vec<String> = match lists.next_back() {
        Some(list) => list.take(MOST_DOMAINS).map(named).collect(),
        None => host.split_once('.').map(|(_, domain)| named(domain)).into_iter().collect(),
    };
    listed.into_iter().filter(|domain| is_domain(domain)).collect()
}

/// What is before a domain in a name that is below it.
fn behind<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    name.strip_suffix(domain)?.strip_suffix('.').filter(|labels| !labels.is_empty())
}

fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    text.len() <= MOST_NAME && text.split('.').all(is_label)
}

/// One label of two letters.
fn is_country(domain: &str) -> bool {
    domain.len() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_list_counts_and_names_below_it_are_asked_about_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let now = Instant::now();
        assert!(!Search::at(path.clone()).has("a.corp.example", now), "there is none");
        std::fs::write(
            &path,
            "domain old.example\nsearch ns.svc.example Corp.Example. .\n# search x.org\nnameserver 1.2.3.4\n",
        )
        .unwrap();
        let search = Search::at(path.clone());
        for name in ["pypi.org.corp.example", "jenkins.corp.example", "pypi.org.ns.svc.example"] {
            assert!(search.has(name, now), "{name}");
        }
        for name in ["corp.example", "xcorp.example", "pypi.org", "a.old.example", "a.x.org"] {
            assert!(!search.has(name, now), "{name}");
        }
        std::fs::write(&path, "search other.example\n").unwrap();
        assert!(!search.has("a.other.example", now + LOOK / 2));
        assert!(search.has("a.other.example", now + LOOK), "it is looked at again");
    }

    #[test]
    fn a_list_that_cannot_be_read_is_the_one_that_was_read_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        std::fs::write(&path, "search corp.example\n").unwrap();
        let (search, now) = (Search::at(path.clone()), Instant::now());
        assert!(search.has("pypi.org.corp.example", now), "the control");
        // As one that Landlock does not know is: there, and not to be read.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(search.has("pypi.org.corp.example", now + LOOK));
        std::fs::remove_dir(&path).unwrap();
        assert!(!search.has("pypi.org.corp.example", now + 2 * LOOK), "there is none");
    }

    #[test]
    fn without_a_list_it_is_the_domain_of_the_host_s_name() {
        let none: [&str; 0] = [];
        for (text, host, found) in [
            ("nameserver 1.2.3.4\n", "web1.Corp.Example", &["corp.example"][..]),
            ("", "web1", &none),
            ("", "web1.", &none),
            ("search other.example\n", "web1.corp.example", &["other.example"]),
            ("search .\n", "web1.corp.example", &none),
        ] {
            assert_eq!(domains(text, host), found, "{text:?} {host}");
        }
    }

    #[test]
    fn a_domain_is_noticed_by_what_clients_ask_for_at_a_name_s_address() {
        let dir = tempfile::tempdir().unwrap();
        let (search, now) = (Search::at(dir.path().join("none")), Instant::now());
        for (name, other) in [
            ("evil.org", "good.org"),
            ("example.com.br", "example.com"),
            ("pypi.org", "pypi.org"),
            ("pypi.orgx.example", "pypi.org"),
            ("corp.example", ""),
        ] {
            assert_eq!(search.notice(name, other, true), None, "{name} {other}");
        }
        assert!(!search.has("pypi.org.corp.example", now), "the control");
        assert_eq!(search.notice("github.com", "github", false), None);
        let noticed = search.notice("pypi.org.corp.example", "pypi.org", false);
        assert_eq!(noticed.as_deref(), Some("corp.example"));
        assert!(search.has("pypi.org.corp.example", now) && search.has("github.com.corp.example", now));
        assert_eq!(
            search.notice("db.lan", "db", true).as_deref(),
            Some("lan"),
            "a granted name, however short"
        );
        for at in 0..100 {
            search.notice(&format!("a.org.d{at}.example"), "a.org", false);
        }
        assert_eq!(search.state.borrow().noticed.len(), MOST_DOMAINS);
        assert!(search.has("x.d99.example", now) && !search.has("x.d1.example", now), "the newest stay");
    }
}
