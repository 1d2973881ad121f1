//! Paths that lead to credentials: those that the profiles which ship deny, and some that no profile has to name, because
//! it does not grant them.

use serde::Deserialize;
use std::sync::LazyLock;

/// Where the list is kept: the profiles deny them to agents, so that there is one list.
const PROFILES: [&str; 2] =
    [include_str!("../../../profiles/coder.toml"), include_str!("../../../profiles/agents/agent.toml")];

/// What the profiles do not grant, and so need not deny. As there: `**/` is anywhere, `${HOME}/` in a home.
const MORE: &[&str] = &[
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/var/run/secrets",
    "/run/secrets",
    "**/.my.cnf",
    "**/.dockercfg",
    "**/.htpasswd",
    "**/.bash_history",
    "**/.zsh_history",
    "**/.python_history",
    "**/.node_repl_history",
    "**/.psql_history",
    "**/.mysql_history",
    "**/.sqlite_history",
    "**/fish_history",
    "**/application_default_credentials.json",
    "**/credentials.tfrc.json",
    "**/.mozilla",
    "**/Login Data",
    "**/key4.db",
    "**/logins.json",
    "**/cookies.sqlite",
    "${HOME}/.config/gcloud",
    "${HOME}/.config/gh/hosts.yml",
    "${HOME}/.config/google-chrome",
    "${HOME}/.config/chromium",
    "${HOME}/.config/BraveSoftware",
    "${HOME}/.config/rclone",
    "${HOME}/.config/sops/age",
    "${HOME}/Library/Keychains",
];

/// Files that a shell, a login or a scheduler reads, beside those that the profiles protect: changing one changes what
/// runs later.
const STARTED: &[&str] = &[
    "/etc",
    "**/.zprofile",
    "**/.zshenv",
    "**/.bash_login",
    "**/.xprofile",
    "**/.npmrc",
    "**/crontab",
    "${HOME}/.config",
    "/var/spool/cron",
    "/Library/LaunchDaemons",
    "**/LaunchAgents",
];

/// Longest text that is looked at as a path, bytes.
const LONGEST: usize = 4096;
/// What answers with a machine's credentials, at every cloud.
const METADATA: &[&str] = &["169.254.169.254", "metadata.google.internal", "fd00:ec2::254"];

/// Parts of a profile that are looked at.
#[derive(Debug, Deserialize)]
struct Profile {
    grant: Option<Lists>,
    deny: Lists,
}

#[derive(Debug, Default, Deserialize)]
struct Lists {
    #[serde(default)]
    fs_read: List,
    #[serde(default)]
    fs_write: List,
}

/// A list as profiles write them: alone, or what it adds or is.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum List {
    Alone(Vec<String>),
    Of {
        #[serde(default, alias = "only")]
        add: Vec<String>,
    },
}

impl Default for List {
    fn default() -> Self {
        Self::Alone(Vec::new())
    }
}

impl List {
    fn all(&self) -> &[String] {
        match self {
            Self::Alone(all) | Self::Of { add: all } => all,
        }
    }
}

/// Patterns, by where they match a path.
#[derive(Debug, Default)]
struct Patterns {
    /// Whole names of a component, in small letters.
    names: Vec<String>,
    /// Beginnings and ends of one.
    parts: Vec<(String, String)>,
    /// Components after one another, anywhere: what is in a home.
    within: Vec<Vec<String>>,
    /// The same, from the root.
    absolute: Vec<Vec<String>>,
}

impl Patterns {
    fn add(&mut self, pattern: &str) {
        let pattern = pattern.to_ascii_lowercase();
        let split = |path: &str| path.split('/').map(str::to_owned).collect();
        if let Some(name) = pattern.strip_prefix("**/") {
            match name.split_once('*') {
                None => self.names.push(name.to_owned()),
                Some((start, end)) => self.parts.push((start.to_owned(), end.to_owned())),
            }
        } else if let Some(path) = pattern.strip_prefix("${home}/") {
            self.within.push(split(path));
        } else if let Some(path) = pattern.strip_prefix('/') {
            self.absolute.push(split(path));
        }
    }

    /// Whether one is a path's, which is given as its components in small letters.
    fn has(&self, components: &[&str], from_root: bool) -> bool {
        let begins = |components: &[&str], pattern: &[String]| {
            components.len() >= pattern.len() && pattern.iter().zip(components).all(|(a, b)| a == b)
        };
        let named = |component: &str| {
            self.names.iter().any(|name| name == component)
                || self.parts.iter().any(|(start, end)| {
                    component.len() > start.len() + end.len()
                        && component.starts_with(start.as_str())
                        && component.ends_with(end.as_str())
                        || end.is_empty() && component == start
                })
        };
        components.iter().any(|component| named(component))
            || from_root && self.absolute.iter().any(|pattern| begins(components, pattern))
            || (0..components.len())
                .any(|at| self.within.iter().any(|pattern| begins(&components[at..], pattern)))
    }
}

/// All of them.
#[derive(Debug, Default)]
struct Known {
    denied: Patterns,
    /// Whole names that the profiles grant although a pattern denies them: templates, public certificates.
    granted: Vec<String>,
    started: Patterns,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let mut known = Known::default();
    MORE.iter().for_each(|pattern| known.denied.add(pattern));
    STARTED.iter().for_each(|pattern| known.started.add(pattern));
    for text in PROFILES {
        let Ok(Profile { grant, deny }) = toml::from_str(text) else { continue };
        deny.fs_read.all().iter().for_each(|pattern| known.denied.add(pattern));
        deny.fs_write.all().iter().for_each(|pattern| known.started.add(pattern));
        let granted = grant.unwrap_or_default();
        let names = granted.fs_read.all().iter().filter_map(|path| path.strip_prefix("**/"));
        known.granted.extend(names.map(str::to_ascii_lowercase));
    }
    known
});

/// Makes the list, which takes a moment: for whoever has time before there is anything to look up.
pub fn prepare() {
    LazyLock::force(&KNOWN);
}

/// Whether a text is a path, or a URL, that leads to credentials.
pub(crate) fn is_secret(text: &str) -> bool {
    text.len() <= LONGEST && METADATA.iter().any(|host| text.contains(host))
        || with_components(text, |components, from_root| {
            let granted = |name: &&str| KNOWN.granted.iter().any(|granted| granted == name);
            let process = from_root
                && components.first() == Some(&"proc")
                && components.last().is_some_and(|last| matches!(*last, "environ" | "mem"));
            process || !components.last().is_some_and(granted) && KNOWN.denied.has(components, from_root)
        })
}

/// Whether what is written there changes what runs later, or how.
pub(crate) fn is_started(path: &str) -> bool {
    with_components(path, |components, from_root| KNOWN.started.has(components, from_root))
}

/// The components of a path in small letters, `.` left out and `..` resolved, and whether it begins at the root.
fn with_components(text: &str, look: impl Fn(&[&str], bool) -> bool) -> bool {
    if text.len() > LONGEST {
        return false;
    }
    // Cheap, and true of nearly every text: no name of the list is without a dot, but for those of keys and below a slash.
    let plain = !text.bytes().any(|byte| matches!(byte, b'/' | b'\\' | b'.' | b'_' | b' '));
    if plain || text.contains('\n') {
        return false;
    }
    let lower = text.to_ascii_lowercase();
    let path = lower.strip_prefix("file://").unwrap_or(&lower);
    let path = path.trim_start_matches(['@', '"', '\'']).trim_end_matches(['"', '\'']);
    let mut components = Vec::new();
    for component in path.split(['/', '\\']) {
        match component {
            "" | "." => {}
            ".." => drop(components.pop()),
            component => components.push(component),
        }
    }
    look(&components, path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, is_secret, is_started};

    #[test]
    fn the_profiles_lists_are_read() {
        for name in [".ssh", ".npmrc", ".vault-token", ".credentials.json"] {
            assert!(KNOWN.denied.names.iter().any(|known| known == name), "{name}");
        }
        assert!(KNOWN.granted.iter().any(|name| name == ".env.example"));
        assert!(KNOWN.started.names.iter().any(|name| name == ".gitconfig"));
    }

    #[test]
    fn paths_to_credentials() {
        for path in [
            "~/.ssh/id_ed25519",
            "/home/a/.SSH/config",
            "id_rsa",
            "backup/id_rsa.bak",
            ".env",
            "app/.env.production",
            "/home/a/.npmrc",
            "../.netrc",
            "/proc/self/environ",
            "/proc/./1/task/2/environ",
            "/etc/shadow",
            "/etc/../etc/shadow",
            "file:///home/a/.aws/credentials",
            "C:\\Users\\a\\.ssh\\id_rsa",
            "$HOME/.kube/config",
            "@/home/a/.docker/config.json",
            "/home/a/.config/gcloud/credentials.db",
            "/home/a/.codex/auth.json",
            "/home/a/.config/google-chrome/Default/Login Data",
            "server.pem",
            "http://169.254.169.254/latest/meta-data/iam",
        ] {
            assert!(is_secret(path), "{path}");
        }
    }

    #[test]
    fn and_to_none() {
        for path in [
            "",
            "src/main.rs",
            ".env.example",
            "app/.env.sample",
            "certs/cacert.pem",
            "docs/environment.md",
            "proc/self/environ.md",
            "keyboard.ts",
            "author.json",
            "see .ssh for more\n.ssh",
            "https://example.org/a/b",
            "monkey",
        ] {
            assert!(!is_secret(path), "{path}");
        }
    }

    #[test]
    fn files_that_something_runs_later() {
        assert!(
            is_started("~/.bashrc")
                && is_started("/etc/cron.d/x")
                && is_started("/home/a/.ssh/authorized_keys")
        );
        assert!(!is_started("src/bashrc.md") && !is_started("out.txt") && !is_started("etc/x"));
    }
}
