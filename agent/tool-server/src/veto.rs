//! A profile's denies at the gate: they beat every allow, and no grant has them. Only a pattern gives way, to a name that
//! the profile's own grant has whole.

use super::links;
use ringfence_grant::{
    Denied, ExecEntry, HostPattern, NamePattern, NetEntry, PathEntry, Scope,
    gate::{Question, ResolvedProgram, Veto},
};
use ringfence_policy::{
    AxisRules, Denials, Rule, Rules,
    casing::{folded, may_fold},
};
use std::{
    collections::BTreeSet, ffi::OsStr, fmt::Display, net::IpAddr, os::unix::ffi::OsStrExt, path::Path,
    str::FromStr,
};

/// The denies of a profile, each with its text.
#[derive(Debug, Default)]
pub struct Denies {
    fs_read: Axis<PathEntry>,
    fs_write: Axis<PathEntry>,
    exec: Axis<ExecEntry>,
    net: Vec<(String, NetEntry)>,
}

/// What is denied on an axis of files.
#[derive(Debug)]
struct Axis<E> {
    denied: Vec<(String, Denied<E>)>,
    /// The same as file systems that ignore case compare them.
    folded: Vec<(String, Denied<E>)>,
    /// The names that the grant has whole, which no pattern means.
    granted: BTreeSet<String>,
}

impl<E> Default for Axis<E> {
    fn default() -> Self {
        Self { denied: Vec::new(), folded: Vec::new(), granted: BTreeSet::new() }
    }
}

/// An entry whose names are folded; none if it has no other spelling that could be opened.
fn fold<E: Display + FromStr>(entry: &E) -> Option<E> {
    String::from_utf8(folded(entry.to_string().as_bytes())).ok()?.parse().ok()
}

impl<E: Display + FromStr> Axis<E> {
    fn new(denied: Vec<(String, Denied<E>)>, granted: BTreeSet<String>) -> Self {
        let fold_one = |(text, denied): &(String, Denied<E>)| {
            let folded = match denied {
                Denied::Entry(entry) => Denied::Entry(fold(entry)?),
                Denied::Pattern(pattern) => Denied::Pattern(fold(pattern)?),
            };
            Some((text.clone(), folded))
        };
        Self { folded: denied.iter().filter_map(fold_one).collect(), denied, granted }
    }
}

impl<E> Axis<E> {
    /// Whether a pattern means some component of a path.
    fn has(&self, pattern: &NamePattern, path: &PathEntry) -> bool {
        path.anchor().split('/').any(|part| pattern.matches(part) && !self.granted.contains(part))
    }
}

impl Denies {
    /// Reads them, and the grant that they stand beside. A path is denied as it is written and as it is with its links
    /// followed.
    pub fn new(denials: &Denials, granted: &Rules, workdir: &Path) -> Self {
        fn read<E>(rules: &[Rule], entry: impl Fn(&Rule) -> Vec<E>) -> Vec<(String, E)> {
            rules.iter().flat_map(|rule| entry(rule).into_iter().map(|e| (rule.text.clone(), e))).collect()
        }
        let both = |entry: PathEntry| {
            // Nothing is writable here: a deny may follow any link, for it only takes away.
            let followed = links::resolve_entry(&entry, &Scope::none());
            if followed == entry { vec![entry] } else { vec![entry, followed] }
        };
        let path = |rule: &Rule| match rule.denied_path(Some(workdir)) {
            Ok(Denied::Entry(entry)) => both(entry).into_iter().map(Denied::Entry).collect(),
            Ok(Denied::Pattern(pattern)) => vec![Denied::Pattern(pattern)],
            Err(_) => Vec::new(),
        };
        let exec = |rule: &Rule| match rule.denied_exec(Some(workdir)) {
            Ok(Denied::Entry(entry)) => {
                let paths = both(entry.paths().clone()).into_iter();
                paths.map(|path| Denied::Entry(entry.with_paths(path))).collect()
            }
            Ok(Denied::Pattern(pattern)) => vec![Denied::Pattern(pattern)],
            Err(_) => Vec::new(),
        };
        let net = |rule: &Rule| rule.net(Some(workdir)).into_iter().collect();
        let names = |rules: &AxisRules| {
            let entries = rules.listed().iter().filter_map(|rule| rule.path(Some(workdir)).ok());
            entries.filter_map(|entry| entry.anywhere().map(str::to_owned)).collect()
        };
        Self {
            fs_read: Axis::new(read(&denials.fs_read, path), names(&granted.fs_read)),
            fs_write: Axis::new(read(&denials.fs_write, path), names(&granted.fs_write)),
            exec: Axis::new(read(&denials.exec, exec), names(&granted.exec)),
            net: read(&denials.net, net),
        }
    }
}

impl Veto for Denies {
    fn forbids(&self, question: Question<'_>, found: Option<&ResolvedProgram>) -> Option<String> {
        match question {
            Question::Call => None,
            Question::Read(path) => on_path(&self.fs_read, path),
            Question::Write(path) => on_path(&self.fs_write, path),
            Question::Exec(_) => self.on_program(found?),
            Question::Net { host, addr, port } => self.on_host(host, addr, port),
        }
    }
}

/// The reason for a path that cannot be compared with a rule: where there are rules, it is forbidden.
const UNNAMEABLE: &str =
    "a path that no rule can name (not UTF-8, a control character, too long or too deep)";

/// The path alone, if rules can be compared with it.
fn exact(path: &Path) -> Option<PathEntry> {
    PathEntry::exact(path.to_str()?).ok()
}

fn on_path(axis: &Axis<PathEntry>, path: &Path) -> Option<String> {
    if axis.denied.is_empty() {
        return None;
    }
    let Some(exact) = exact(path) else { return Some(UNNAMEABLE.to_owned()) };
    let by = |rules: &[(String, Denied<PathEntry>)], path: &PathEntry| {
        let rule = rules.iter().find(|(_, denied)| match denied {
            Denied::Entry(entry) => entry.has(path),
            Denied::Pattern(pattern) => axis.has(pattern, path),
        });
        rule.map(|(text, _)| text.clone())
    };
    let other = || by(&axis.folded, &other_spelling(path)?).filter(|_| may_fold(path));
    by(&axis.denied, &exact).or_else(other)
}

/// The path as a file system that ignores case would compare it.
fn other_spelling(path: &Path) -> Option<PathEntry> {
    let folded = folded(path.as_os_str().as_bytes());
    exact(Path::new(OsStr::from_bytes(&folded)))
}

impl Denies {
    /// A name denies the program of that name wherever it is, and what a link of that name leads to.
    fn on_program(&self, ResolvedProgram { path, target }: &ResolvedProgram) -> Option<String> {
        if self.exec.denied.is_empty() {
            return None;
        }
        let (Some(exact_path), Some(exact_target)) = (exact(path), exact(target)) else {
            return Some(UNNAMEABLE.to_owned());
        };
        let names = |path: &Path, name: &str| path.file_name().is_some_and(|of| of == name);
        let forbids = |(_, denied): &&(String, Denied<ExecEntry>)| {
            [&exact_path, &exact_target].into_iter().any(|at| match denied {
                Denied::Entry(entry) => {
                    entry.paths().has(at)
                        && entry.programs().all(|name| names(path, name) || names(target, name))
                }
                Denied::Pattern(pattern) => self.exec.has(pattern, at),
            })
        };
        let rule = self.exec.denied.iter().find(forbids);
        rule.map(|(rule, _)| rule.clone()).or_else(|| self.on_other_spelling(path, target))
    }

    /// The same where case is ignored.
    fn on_other_spelling(&self, path: &Path, target: &Path) -> Option<String> {
        let forbids = |at: &Path| {
            let folded = other_spelling(at)?;
            let name = folded.anchor().rsplit('/').next().unwrap_or_default();
            let rule = self.exec.folded.iter().find(|(_, denied)| match denied {
                Denied::Entry(entry) => {
                    entry.paths().has(&folded) && entry.programs().all(|program| program == name)
                }
                Denied::Pattern(pattern) => self.exec.has(pattern, &folded),
            });
            rule.map(|(text, _)| text.clone()).filter(|_| may_fold(at))
        };
        forbids(path).or_else(|| forbids(target))
    }

    fn on_host(&self, host: &str, addr: Option<IpAddr>, port: u16) -> Option<String> {
        let addr = addr.or_else(|| host.trim_matches(['[', ']']).parse().ok());
        // The spelling that rules have; what is no name at all is no rule's.
        let name: Option<HostPattern> = host.parse().ok();
        let host = name.as_ref().map_or_else(|| host.trim_end_matches('.'), HostPattern::host);
        let forbids = |(_, entry): &&(String, NetEntry)| match entry {
            NetEntry::Host { host: denied, port: at, .. } => {
                denied.matches(host) && at.is_none_or(|at| at == port)
            }
            entry => addr.is_some_and(|addr| entry.has(addr, port)),
        };
        self.net.iter().find(forbids).map(|(rule, _)| rule.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{path::PathBuf, sync::Arc};

    fn denies(text: &str) -> Denies {
        beside(text, &[])
    }

    /// The denies, beside a grant of some entries.
    fn beside(text: &str, granted: &[&str]) -> Denies {
        let rule = |text: &str| Rule {
            text: text.to_owned(),
            file: Arc::from(Path::new("p.toml")),
            line: 1,
            key: "deny.exec",
            home: None,
        };
        let denials = Denials { exec: vec![rule(text)], fs_read: vec![rule(text)], ..Denials::default() };
        let granted = || AxisRules::Only(granted.iter().map(|text| rule(text)).collect());
        let rules = Rules { exec: granted(), fs_read: granted(), ..Rules::default() };
        Denies::new(&denials, &rules, Path::new("/"))
    }

    #[test]
    fn a_pattern_gives_way_to_a_name_that_is_granted_whole() {
        let forbidden = |denies: &Denies, path: &str| {
            let path = Path::new(path);
            let found = ResolvedProgram { path: path.to_owned(), target: path.to_owned() };
            let said =
                [Question::Read(path), Question::Exec(path)].map(|of| denies.forbids(of, Some(&found)));
            assert_eq!(said[0], said[1]);
            said[0].as_deref() == Some("**/*.pem")
        };
        let all = denies("**/*.pem");
        for path in ["/a/b.pem", "/.pem", "/a.pem/below", "/a/cacert.pem"] {
            assert!(forbidden(&all, path), "{path}");
        }
        assert!(!forbidden(&all, "/a/b.pem.txt"));
        let some = beside("**/*.pem", &["**/cacert.pem", "/srv/ca.pem", "tool"]);
        assert!(!forbidden(&some, "/a/cacert.pem") && !forbidden(&some, "/cacert.pem/x"));
        for path in ["/a/b.pem", "/cacert.pem/b.pem", "/b.pem/cacert.pem", "/srv/ca.pem", "/xcacert.pem"] {
            assert!(forbidden(&some, path), "{path}");
        }
    }

    #[test]
    fn another_spelling_of_the_same_file_is_denied() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in [".env", "a.pem", "plain"] {
            std::fs::write(path(name), "").unwrap();
        }
        // Two files where case matters.
        std::fs::write(path("A.PEM"), "").unwrap();
        // One where it is not: a hard link is as much one file under two names.
        std::fs::hard_link(path(".env"), path(".ENV")).unwrap();
        let forbidden = |rule: &str, name: &str| {
            let (path, denies) = (path(name), denies(rule));
            let found = ResolvedProgram { path: path.clone(), target: path.clone() };
            let said =
                [Question::Read(&path), Question::Exec(&path)].map(|of| denies.forbids(of, Some(&found)));
            assert_eq!(said[0], said[1], "{rule} {name}");
            said[0].is_some()
        };
        assert!(forbidden("**/.env", ".env") && forbidden("**/.env", ".ENV") && forbidden("**/.Env", ".ENV"));
        assert!(forbidden("**/*.pem", "a.pem") && !forbidden("**/*.pem", "A.PEM"));
        assert!(forbidden(&format!("{}/.env", dir.path().display()), ".ENV"));
        assert!(!forbidden("**/.env", "plain") && !forbidden("**/.env", "PLAIN"));
    }

    #[test]
    fn a_host_is_denied_by_its_name_and_below_it_however_it_is_spelt() {
        let forbids = |rule: &str, host: &str, port: u16| {
            let rule = Rule {
                text: rule.to_owned(),
                key: "deny.net",
                file: Arc::from(Path::new("p.toml")),
                line: 1,
                home: None,
            };
            let denials = Denials { net: vec![rule], ..Denials::default() };
            let denies = Denies::new(&denials, &Rules::default(), Path::new("/"));
            denies.forbids(Question::Net { host, addr: None, port }, None).is_some()
        };
        for (rule, host, port) in [
            ("b\u{fc}cher.example", "xn--bcher-kva.example", 443),
            ("b\u{fc}cher.example", "B\u{fc}cher.example.", 443),
            ("*.a.example", "b.a.example", 443),
            ("*.a.example", "C.b.A.example.", 443),
            ("tcp:a.example:22", "a.example", 22),
            ("127.0.0.1", "127.0.0.1", 80),
        ] {
            assert!(forbids(rule, host, port), "{rule} {host}:{port}");
        }
        for (rule, host, port) in [
            ("*.a.example", "a.example", 443),
            ("tcp:a.example:22", "a.example", 443),
            ("a.example", "b.a.example", 443),
        ] {
            assert!(!forbids(rule, host, port), "{rule} {host}:{port}");
        }
    }

    #[test]
    fn a_path_that_no_rule_can_name_is_forbidden_where_there_are_rules() {
        let odd = [
            PathBuf::from("/opt/closed/a\nb"),
            PathBuf::from(OsStr::from_bytes(b"/opt/closed/\xff")),
            PathBuf::from(format!("/opt/closed{}", "/d".repeat(80))),
        ];
        for path in odd {
            let found = ResolvedProgram { path: path.clone(), target: path.clone() };
            let asked = [Question::Exec(&path), Question::Read(&path)];
            for question in asked {
                let said = denies("/opt/closed").forbids(question, Some(&found));
                assert_eq!(said.as_deref(), Some(UNNAMEABLE), "{path:?}");
                assert_eq!(Denies::default().forbids(question, Some(&found)), None, "no rule, no veto");
            }
        }
        let plain = Path::new("/opt/open/tool");
        let found = ResolvedProgram { path: plain.to_owned(), target: plain.to_owned() };
        assert_eq!(denies("/opt/closed").forbids(Question::Exec(plain), Some(&found)), None);
        let said = denies("/opt/open").forbids(Question::Exec(plain), Some(&found));
        assert_eq!(said.as_deref(), Some("/opt/open"));
    }
}
