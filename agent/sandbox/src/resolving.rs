//! What a role that speaks HTTPS reads besides its own files: to resolve names, and to check certificates.

use std::{
    env,
    path::{Path, PathBuf},
};

/// What the C library reads to resolve a name, where certificates' roots are, and what the loader finds.
const PATHS: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/etc/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/etc/pki",
    "/run/systemd/resolve",
    "/usr/lib",
    "/lib",
    "/lib64",
    "/dev/urandom",
    "/dev/null",
];

/// Variables that name files of certificates in place of the system's.
pub const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// All of them.
pub fn paths() -> Vec<PathBuf> {
    let named = CERTIFICATES.iter().filter_map(|name| env::var_os(name).map(PathBuf::from));
    PATHS.iter().map(Path::new).map(Path::to_owned).chain(named).collect()
}
