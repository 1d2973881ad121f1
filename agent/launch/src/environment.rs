//! The command's environment: an allowlist, and what the user names.

use super::identity::Identity;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    str::FromStr,
};

/// What every command gets, where it is set. Nothing here carries a credential.
const PASSED: &[&str] = &["PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "TZ", "COLORTERM"];
/// The same by prefix: locale categories.
const PASSED_PREFIX: &str = "LC_";
/// `PATH` where none is set.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One `--env`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// `K`: passed on, if it is set.
    Pass(String),
    /// `K=V`: set.
    Set(String, String),
}

/// A text that names no variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no environment variable: write NAME to pass one on, NAME=VALUE to set it")]
pub struct NoVariable(String);

impl FromStr for Variable {
    type Err = NoVariable;

    fn from_str(text: &str) -> Result<Self, NoVariable> {
        let variable = match text.split_once('=') {
            Some((name, value)) => Variable::Set(name.into(), value.into()),
            None => Variable::Pass(text.into()),
        };
        match &variable {
            Variable::Pass(name) | Variable::Set(name, _) if !name.is_empty() && !text.contains('\0') => {
                Ok(variable)
            }
            _ => Err(NoVariable(text.into())),
        }
    }
}

/// An environment, in order, each name once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// Takes the allowlist from `inherited`, adds what the user named, and the home, name and shell of another user.
    /// Second: names that the user asked to pass on and that are not set.
    pub(crate) fn build(
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
        named: &[Variable],
        user: Option<&Identity>,
    ) -> (Self, Vec<String>) {
        let inherited: Vec<_> = inherited.into_iter().collect();
        let mut environment = Self::default();
        environment.set("PATH", DEFAULT_PATH);
        for (name, value) in inherited.iter().filter(|(name, _)| is_passed(name)) {
            environment.set(name, value);
        }
        if let Some(user) = user {
            environment.set("HOME", &user.home);
            environment.set("USER", &user.name);
            environment.set("SHELL", &user.shell);
        }
        let mut unset = Vec::new();
        for variable in named {
            match variable {
                Variable::Set(name, value) => environment.set(name, value),
                Variable::Pass(name) => match inherited.iter().find(|(known, _)| known == OsStr::new(name)) {
                    Some((name, value)) => environment.set(name, value),
                    None => unset.push(name.clone()),
                },
            }
        }
        (environment, unset)
    }

    /// All of `inherited`, as it is: for a command that its user configured with its environment.
    pub(crate) fn whole(inherited: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Self::default();
        environment.set("PATH", DEFAULT_PATH);
        for (name, value) in inherited {
            environment.set(name, value);
        }
        environment
    }

    /// The same with these variables, but for those that the user named and that are set.
    pub(crate) fn led(mut self, variables: Vec<(&'static str, String)>, named: &[Variable]) -> Self {
        let is_named = |name: &str| {
            let is_it = |variable: &Variable| match variable {
                Variable::Pass(known) | Variable::Set(known, _) => known == name,
            };
            named.iter().any(is_it)
        };
        for (name, value) in variables {
            if !is_named(name) || self.value(name).is_none() {
                self.set(name, value);
            }
        }
        self
    }

    fn set(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) {
        let (name, value) = (name.as_ref(), value.as_ref());
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some(entry) => entry.1 = value.into(),
            None => self.0.push((name.into(), value.into())),
        }
    }

    /// Takes a variable out.
    pub(crate) fn unset(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != OsStr::new(name));
    }

    /// A variable's value.
    pub(crate) fn value(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(known, _)| known == OsStr::new(name)).map(|(_, value)| value.as_os_str())
    }

    /// `NAME=VALUE` of each, for exec. One with a NUL byte cannot be expressed and is left out.
    pub(crate) fn entries(&self) -> Vec<std::ffi::CString> {
        let join = |(name, value): &(OsString, OsString)| {
            std::ffi::CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        };
        self.0.iter().filter_map(join).collect()
    }
}

fn is_passed(name: &OsStr) -> bool {
    PASSED.iter().any(|passed| OsStr::new(passed) == name)
        || name.as_bytes().starts_with(PASSED_PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn only_the_allowlist_and_what_is_named_pass() {
        let outer = inherited(&[
            ("PATH", "/bin"),
            ("LC_ALL", "C.UTF-8"),
            ("TERM", "xterm"),
            ("LD_PRELOAD", "/tmp/x.so"),
            ("API_KEY", "secret"),
            ("EDITOR", "vi"),
        ]);
        let named = ["EDITOR", "MODE=a=b", "ABSENT", "TERM=dumb"].map(|text| text.parse().unwrap());
        let (environment, unset) = Environment::build(outer, &named, None);
        assert_eq!(environment.value("PATH"), Some(OsStr::new("/bin")));
        assert_eq!(environment.value("LC_ALL"), Some(OsStr::new("C.UTF-8")));
        assert_eq!(environment.value("EDITOR"), Some(OsStr::new("vi")));
        assert_eq!(environment.value("MODE"), Some(OsStr::new("a=b")));
        assert_eq!(environment.value("TERM"), Some(OsStr::new("dumb")));
        assert_eq!(environment.value("LD_PRELOAD"), None);
        assert_eq!(environment.value("API_KEY"), None);
        assert_eq!(unset, ["ABSENT"]);
        assert_eq!(environment.entries().len(), 5);
    }

    #[test]
    fn what_leads_to_a_proxy_is_set_unless_the_user_named_it() {
        let named = ["HTTP_PROXY=http://mine", "HTTPS_PROXY", "ALL_PROXY"].map(|text| text.parse().unwrap());
        let outer = inherited(&[("HTTPS_PROXY", "http://host"), ("NO_PROXY", "host")]);
        let (environment, unset) = Environment::build(outer, &named, None);
        let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"];
        let led = environment.led(names.map(|name| (name, "run".to_owned())).into(), &named);
        let values = names.map(|name| led.value(name).unwrap().to_str().unwrap());
        // One that is named and not set has the run's.
        assert_eq!(values, ["http://host", "http://mine", "run", "run"]);
        assert_eq!(unset, ["ALL_PROXY"]);
    }

    #[test]
    fn there_is_always_a_path() {
        let (environment, _) = Environment::build([], &[], None);
        assert_eq!(environment.value("PATH"), Some(OsStr::new(DEFAULT_PATH)));
    }

    #[test]
    fn what_names_no_variable_is_refused() {
        for text in ["", "=x", "a\0b"] {
            assert!(text.parse::<Variable>().is_err(), "{text:?}");
        }
    }
}
