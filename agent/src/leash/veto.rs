//! A profile's denies at the gate: they beat every allow, and no grant has them.

use super::place;
use crate::profile::{Denials, Rule};
use ringfence_grant::{
    ExecEntry, NetEntry, PathEntry, Scope,
    gate::{Found, Question, Veto},
};
use std::{net::IpAddr, path::Path};

/// The denies of a profile, each with its text.
#[derive(Debug, Default)]
pub(crate) struct Denies {
    fs_read: Vec<(String, PathEntry)>,
    fs_write: Vec<(String, PathEntry)>,
    exec: Vec<(String, ExecEntry)>,
    net: Vec<(String, NetEntry)>,
}

impl Denies {
    /// Reads them. A path is denied as it is written and as it is with its links followed.
    pub(crate) fn new(denials: &Denials, workdir: &Path) -> Self {
        fn read<E>(rules: &[Rule], entry: impl Fn(&Rule) -> Vec<E>) -> Vec<(String, E)> {
            rules.iter().flat_map(|rule| entry(rule).into_iter().map(|e| (rule.text.clone(), e))).collect()
        }
        let both = |entry: PathEntry| {
            // Nothing is writable here: a deny may follow any link, for it only takes away.
            let followed = place::placed(&entry, &Scope::none());
            if followed == entry { vec![entry] } else { vec![entry, followed] }
        };
        let path = |rule: &Rule| rule.path(Some(workdir)).map(both).unwrap_or_default();
        let exec = |rule: &Rule| match rule.exec(Some(workdir)) {
            Ok(entry) => both(entry.paths().clone()).into_iter().map(|p| entry.with_paths(p)).collect(),
            Err(_) => Vec::new(),
        };
        let net = |rule: &Rule| rule.net(Some(workdir)).into_iter().collect();
        Self {
            fs_read: read(&denials.fs_read, path),
            fs_write: read(&denials.fs_write, path),
            exec: read(&denials.exec, exec),
            net: read(&denials.net, net),
        }
    }
}

impl Veto for Denies {
    fn forbids(&self, question: Question<'_>, found: Option<&Found>) -> Option<String> {
        match question {
            Question::Call => None,
            Question::Read(path) => on_path(&self.fs_read, path),
            Question::Write(path) => on_path(&self.fs_write, path),
            Question::Exec(_) => self.on_program(found?),
            Question::Net { host, addr, port } => self.on_host(host, addr, port),
        }
    }
}

/// What is said of a path that cannot be compared with a rule: where there are rules, it is forbidden.
const UNNAMEABLE: &str =
    "a path that no rule can name (not UTF-8, a control character, too long or too deep)";

/// The path alone, if rules can be compared with it.
fn exact(path: &Path) -> Option<PathEntry> {
    PathEntry::exact(path.to_str()?).ok()
}

fn on_path(denies: &[(String, PathEntry)], path: &Path) -> Option<String> {
    if denies.is_empty() {
        return None;
    }
    let Some(exact) = exact(path) else { return Some(UNNAMEABLE.to_owned()) };
    let rule = denies.iter().find(|(_, entry)| entry.has(&exact))?;
    Some(rule.0.clone())
}

impl Denies {
    /// A name denies the program of that name wherever it is, and what a link of that name leads to.
    fn on_program(&self, Found { path, target }: &Found) -> Option<String> {
        if self.exec.is_empty() {
            return None;
        }
        let (Some(exact_path), Some(exact_target)) = (exact(path), exact(target)) else {
            return Some(UNNAMEABLE.to_owned());
        };
        let names = |path: &Path, name: &str| path.file_name().is_some_and(|of| of == name);
        let forbids = |(_, entry): &&(String, ExecEntry)| {
            [&exact_path, &exact_target].into_iter().any(|at| {
                entry.paths().has(at) && entry.programs().all(|name| names(path, name) || names(target, name))
            })
        };
        self.exec.iter().find(forbids).map(|(rule, _)| rule.clone())
    }

    fn on_host(&self, host: &str, addr: Option<IpAddr>, port: u16) -> Option<String> {
        let addr = addr.or_else(|| host.trim_matches(['[', ']']).parse().ok());
        let host = host.trim_end_matches('.');
        let forbids = |(_, entry): &&(String, NetEntry)| match entry {
            NetEntry::Host { name, port: at } => {
                name.eq_ignore_ascii_case(host) && at.is_none_or(|at| at == port)
            }
            entry => addr.is_some_and(|addr| entry.has(addr, port)),
        };
        self.net.iter().find(forbids).map(|(rule, _)| rule.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf, sync::Arc};

    fn denies(text: &str) -> Denies {
        let rule = Rule {
            text: text.to_owned(),
            file: Arc::from(Path::new("p.toml")),
            line: 1,
            key: "deny.exec",
            home: None,
        };
        let denials = Denials { exec: vec![rule.clone()], fs_read: vec![rule], ..Denials::default() };
        Denies::new(&denials, Path::new("/"))
    }

    #[test]
    fn a_path_that_no_rule_can_name_is_forbidden_where_there_are_rules() {
        let odd = [
            PathBuf::from("/opt/closed/a\nb"),
            PathBuf::from(OsStr::from_bytes(b"/opt/closed/\xff")),
            PathBuf::from(format!("/opt/closed{}", "/d".repeat(80))),
        ];
        for path in odd {
            let found = Found { path: path.clone(), target: path.clone() };
            let asked = [Question::Exec(&path), Question::Read(&path)];
            for question in asked {
                let said = denies("/opt/closed").forbids(question, Some(&found));
                assert_eq!(said.as_deref(), Some(UNNAMEABLE), "{path:?}");
                assert_eq!(Denies::default().forbids(question, Some(&found)), None, "no rule, no veto");
            }
        }
        let plain = Path::new("/opt/open/tool");
        let found = Found { path: plain.to_owned(), target: plain.to_owned() };
        assert_eq!(denies("/opt/closed").forbids(Question::Exec(plain), Some(&found)), None);
        let said = denies("/opt/open").forbids(Question::Exec(plain), Some(&found));
        assert_eq!(said.as_deref(), Some("/opt/open"));
    }
}
