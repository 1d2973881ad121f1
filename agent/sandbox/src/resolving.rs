//! What a role that speaks HTTPS reads besides its own files: to resolve names, and to check certificates.

use std::{env, ffi::OsString, path::PathBuf};

/// What the C library reads to resolve a name, and what the loader finds: the C library's modules for that are shared objects.
const NAMES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/usr/lib",
    "/lib",
    "/lib64",
    "/dev/urandom",
    "/dev/null",
];

/// Where certificates' roots are.
const ROOTS: &[&str] =
    &["/etc/ssl", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/etc/pki"];

/// Variables that name certificates in place of the system's: a file, and directories with colons between them.
pub const CERTIFICATES: [&str; 2] = [FILE, DIRECTORIES];
const FILE: &str = "SSL_CERT_FILE";
const DIRECTORIES: &str = "SSL_CERT_DIR";

/// What it takes to resolve names, and to check certificates.
pub fn paths() -> Vec<PathBuf> {
    let roots = ROOTS.iter().map(PathBuf::from).chain(named(|name| env::var_os(name)));
    names().into_iter().chain(roots).collect()
}

/// What it takes to resolve names.
pub fn names() -> Vec<PathBuf> {
    NAMES.iter().map(PathBuf::from).collect()
}

/// What the environment names. Nothing between two colons is no directory.
fn named(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let file = variable(FILE).map(PathBuf::from);
    let directories = variable(DIRECTORIES).unwrap_or_default();
    let directories = env::split_paths(&directories).filter(|path| !path.as_os_str().is_empty());
    file.into_iter().chain(directories).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn several_directories_of_certificates_may_be_named() {
        let named = |file: &str, directories: &str| {
            named(|name| Some(OsString::from(if name == FILE { file } else { directories })))
        };
        let paths = ["/a:b", "/c", "/d e"].map(Path::new);
        assert_eq!(named("/a:b", "/c::/d e:"), paths);
        assert_eq!(named("/a:b", ""), paths[..1]);
        assert!(super::named(|_| None).is_empty());
    }
}
