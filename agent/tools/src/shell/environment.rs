//! The environment of a tool: what it gets of the server's, and which variables a script may use.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// Variables of the server's own environment that a tool gets. No other: what is not here cannot be printed.
const PASSED: &[&str] = &[
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
];

/// What a tool gets, and a script may use.
#[derive(Debug, Clone)]
pub(super) struct Environment {
    variables: Vec<(String, String)>,
}

impl Environment {
    /// The allowed part of `host`, with this PATH.
    pub(super) fn new(host: impl Iterator<Item = (OsString, OsString)>, path: &OsStr) -> Self {
        let mut variables: Vec<(String, String)> = host
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| PASSED.contains(&name.as_str()))
            .collect();
        if let Some(path) = path.to_str() {
            variables.push(("PATH".into(), path.into()));
        }
        variables.sort();
        Self { variables }
    }

    /// Adds a variable, or replaces its value.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(own, _)| own != name);
        self.variables.push((name.into(), value.into()));
        self.variables.sort();
    }

    /// What a script's `$NAME` stands for. Nothing: it is not allowed; an allowed one that is not set is empty, as in
    /// a shell.
    pub(super) fn value<'a>(&'a self, name: &str, dir: &'a Path) -> Option<&'a str> {
        if name == "PWD" {
            return dir.to_str();
        }
        let own = self.variables.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        own.or_else(|| PASSED.contains(&name).then_some(""))
    }

    /// The names that a script may use.
    pub(super) fn names(&self) -> String {
        let own = self.variables.iter().map(|(name, _)| name.as_str());
        let mut names: Vec<&str> = own.chain(PASSED.iter().copied()).chain(["PWD"]).collect();
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    }

    /// The whole environment of a process in `dir`.
    pub(super) fn of_process(&self, dir: &Path) -> Vec<(OsString, OsString)> {
        let own = self.variables.iter().map(|(name, value)| (name.into(), value.into()));
        own.chain([("PWD".into(), dir.into())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        let host = [
            ("HOME", "/h"),
            ("LC_ALL", "C"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("LD_PRELOAD", "/x"),
            ("PATH", "/evil"),
        ];
        Environment::new(host.into_iter().map(|(n, v)| (n.into(), v.into())), OsStr::new("/bin"))
    }

    #[test]
    fn a_process_gets_the_allowed_part_and_the_searched_path() {
        let pairs = environment().of_process(Path::new("/w"));
        let pairs: Vec<_> = pairs.iter().map(|(n, v)| (n.to_str().unwrap(), v.to_str().unwrap())).collect();
        assert_eq!(pairs, [("HOME", "/h"), ("LC_ALL", "C"), ("PATH", "/bin"), ("PWD", "/w")]);
    }

    #[test]
    fn a_script_sees_no_more() {
        let mut environment = environment();
        let dir = Path::new("/w");
        assert_eq!(environment.value("AWS_SECRET_ACCESS_KEY", dir), None);
        assert_eq!(environment.value("LD_PRELOAD", dir), None);
        assert_eq!(environment.value("LC_SECRET", dir), None);
        assert_eq!(environment.value("PATH", dir), Some("/bin"));
        assert_eq!(environment.value("PWD", dir), Some("/w"));
        assert_eq!(environment.value("TZ", dir), Some(""));
        environment.set("CI", "1");
        environment.set("HOME", "/other");
        assert_eq!(environment.value("CI", dir), Some("1"));
        assert_eq!(environment.value("HOME", dir), Some("/other"));
        assert!(environment.names().contains("CI, HOME"));
    }
}
