//! What a destructive command is aimed at.

/// Where relative paths begin, as far as `cd` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Here {
    /// Where the script began: all of it is wide.
    #[default]
    Start,
    /// Somewhere below.
    Below,
    /// A root or a home.
    Wide,
}

impl Here {
    /// After `cd` there; with nothing: to the home.
    pub(super) fn after(self, to: Option<&str>) -> Self {
        match to {
            Some("." | "./") => self,
            Some("-") => Self::Start,
            Some(to) if to.starts_with("..") => Self::Start,
            Some(to) if is_wide(to, self) => Self::Wide,
            Some(to) if to.starts_with('$') => Self::Start,
            Some(_) => Self::Below,
            None => Self::Wide,
        }
    }
}

/// Directories of a system: whatever is below them is the system.
const SYSTEM: &[&str] =
    &["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "windows", "system32"];
/// Directories whose own entries are as wide.
const SHALLOW: &[&str] = &["home", "usr", "users", "var"];

/// Whether all there is goes with this target: a root, a home, a directory of the system, everything here.
pub(super) fn is_wide(target: &str, here: Here) -> bool {
    let mut path = target.trim_matches(['"', '\'']);
    let mut trimmed = false;
    loop {
        let shorter =
            ["/*", "/.", "/.*", "/**", "/", "\\*", "\\"].iter().find_map(|end| path.strip_suffix(end));
        match shorter {
            Some(shorter) => (path, trimmed) = (shorter, true),
            None => break,
        }
    }
    if matches!(path, "*" | "." | "" | "**" | ".*" | "?*" | "./*" | "$PWD" | "${PWD}") {
        // `/`, and everything in it.
        return path.is_empty() && trimmed || !path.is_empty() && here != Here::Below;
    }
    if path.starts_with("..") && path.trim_start_matches(['.', '/']).is_empty() {
        return true;
    }
    let home = matches!(path, "~" | "$HOME" | "${HOME}" | "%USERPROFILE%" | "$env:USERPROFILE");
    let others_home = path.strip_prefix('~').is_some_and(|name| !name.contains('/'));
    // `$DIR/` and `$DIR/*` are the root if the variable is empty.
    let empty = trimmed && path.starts_with('$') && !path.contains('/');
    let drive = path.len() == 2 && path.ends_with(':');
    home || others_home || empty || drive || path.starts_with('/') && is_systems(path)
}

/// The same of an absolute path.
fn is_systems(path: &str) -> bool {
    let mut components: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => drop(components.pop()),
            component => components.push(component),
        }
    }
    let first = components.first().copied().unwrap_or_default();
    let is = |list: &[&str]| list.iter().any(|known| first.eq_ignore_ascii_case(known));
    let scratch = matches!(components.as_slice(), ["dev", "shm", _, ..]);
    match components.len() {
        0 | 1 => true,
        2 => is(SYSTEM) && !scratch || is(SHALLOW) && components.get(1) != Some(&"tmp"),
        _ => is(SYSTEM) && !scratch,
    }
}

/// Whether it is a disk, or another device that is gone when it is overwritten.
pub(super) fn is_device(target: &str) -> bool {
    const HARMLESS: &[&str] = &[
        "null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty", "fd", "shm", "pts",
    ];
    target.strip_prefix("/dev/").is_some_and(|rest| {
        let name = rest.split('/').next().unwrap_or_default();
        let name = if name.starts_with("tty") { "tty" } else { name };
        !HARMLESS.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::{Here, is_device, is_wide};

    #[test]
    fn what_takes_everything_along() {
        for target in [
            "/",
            "//",
            "/*",
            "/.",
            "~",
            "~/",
            "~/*",
            "$HOME",
            "${HOME}/",
            "*",
            ".",
            "./",
            "./*",
            "..",
            "../..",
            "/etc",
            "/etc/nginx",
            "/usr",
            "/usr/lib",
            "/var/lib",
            "/home",
            "/home/a",
            "/home/a/",
            "/opt",
            "/x/..",
            "/{bin,etc}",
            "$DIR/",
            "$DIR/*",
            "C:\\",
            "~root",
            "/tmp",
        ] {
            assert!(is_wide(target, Here::Start), "{target}");
        }
    }

    #[test]
    fn what_is_somewhere() {
        for target in [
            "build",
            "./build",
            "a/*",
            "/tmp/x",
            "/home/a/x",
            "/var/tmp/",
            "/opt/app",
            "$X",
            "~/x",
            "/dev/shm/x",
            "",
        ] {
            assert!(!is_wide(target, Here::Start), "{target}");
        }
        assert!(!is_wide("*", Here::Below) && is_wide("/", Here::Below) && is_wide("*", Here::Wide));
    }

    #[test]
    fn a_directory_that_was_entered() {
        let start = Here::Start;
        assert_eq!(start.after(Some("build")), Here::Below);
        assert_eq!(start.after(Some("/")), Here::Wide);
        assert_eq!(start.after(None), Here::Wide);
        assert_eq!(start.after(Some("build")).after(Some("..")), Here::Start);
    }

    #[test]
    fn devices() {
        assert!(is_device("/dev/sda") && is_device("/dev/mapper/root") && is_device("/dev/nvme0n1p1"));
        assert!(
            !is_device("/dev/null") && !is_device("/dev/tty1") && !is_device("/dev/fd/3") && !is_device("a")
        );
    }
}
