//! What is wrong with `[net.credentials]`.

use ringfence_wire::{
    credentials::{MAX_HOSTS, MAX_RULES},
    requests::NotARule,
};
use std::path::PathBuf;

/// What is wrong with such a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what it is about")]
pub enum CredentialError {
    #[error("{0:?} is not one host and a port")]
    Host(String),
    #[error("`grant.net` does not grant {0}:{1}")]
    NotGranted(String, u16),
    #[error("`grant.net` grants {0}:{1} as `tcp:`, where nobody looks at what is said")]
    Tcp(String, u16),
    #[error(
        "net = \"all\" grants every address, so that requests need not pass where a credential is put in"
    )]
    NotHeld,
    #[error(
        "`grant.net` grants the addresses {entry:?} at port {port}: if {host} is among them, a client that dials it there goes by no \
         rule of this table, and with a credential of its own"
    )]
    Address { entry: String, host: String, port: u16 },
    #[error("`max_upload` does not count what is sent to hosts with credentials")]
    Upload,
    #[error("{host:?} is the host and port of line {line}, too")]
    Twice { host: String, line: u32 },
    #[error("is one host more than {MAX_HOSTS}, which is the most")]
    TooManyHosts,
    #[error("has more than {MAX_RULES} rules, which is the most")]
    TooManyRules,
    #[error("is not a user that basic auth could have")]
    User,
    #[error("is not a header that a credential may be put into")]
    Header,
    #[error("cannot stand beside `user`: a credential has one place")]
    TwoPlaces,
    #[error("has no source for its credential")]
    NoSource,
    #[error("is empty, so that no request would have the credential")]
    NoRules,
    #[error("{text:?} is not a rule for requests: {error}")]
    Rule { text: String, error: NotARule },
    #[error(
        "credentials are taken of profiles of which every file is in the directory of the host's profiles, in the user's own, out of \
         where the agent works, or in the binary, and {} is not", .0.display()
    )]
    Elsewhere(PathBuf),
    #[error("the daemon takes {} from root alone, so it would refuse this start", .file.display())]
    NotByName { file: PathBuf, system: PathBuf },
    #[error("{} can be changed by others than root, so the daemon would refuse this start", .0.display())]
    NotRoots(PathBuf),
    #[error("what runs under the profile may write {}, or what is on the way there, so it could say what the credential is", .0.display())]
    Written(PathBuf),
    #[error(
        "what runs under the profile may write {}, which is a directory of PATH or on the way to one: it could put a program there that \
         the credential's command runs, outside of the container", .0.display()
    )]
    PathWritten(PathBuf),
    #[error(
        "what runs under the profile may write {}, where the command {program} has a file that it names, or on the way there: it could \
         say what that runs, outside of the container", .place.display()
    )]
    CommandWritten { program: String, place: PathBuf },
    #[error(
        "what runs under the profile may write {}, of which the profile is made, or what is on the way there, so it could say where the \
         credential comes from and goes", .0.display()
    )]
    OwnFile(PathBuf),
    #[error(
        "{} has {names} names (hard links), and what runs under the profile may write some files, perhaps this one by another name, so \
         the daemon would refuse this start", .file.display()
    )]
    Linked { file: PathBuf, names: u64 },
    #[error("what runs under the profile may read {}, which systemd keeps the credential in", .0.display())]
    Readable(PathBuf),
}

impl CredentialError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Host(_) => {
                "write [net.credentials.\"host.example\"] or \"host.example:8443\": no `*`, no address"
                    .to_owned()
            }
            Self::NotGranted(host, port) => format!("add \"{host}:{port}\" to `net` under [grant]"),
            Self::Tcp(..) => "write the entry without `tcp:`".to_owned(),
            Self::NotHeld => "grant what is needed in place of \"all\": `net = { only = [...] }`".to_owned(),
            Self::Address { port, .. } => {
                format!("grant hosts by name in place of addresses, or the addresses at their ports, if none is {port}")
            }
            Self::Upload => "leave out `max_upload`, or the credentials".to_owned(),
            Self::User => "printable ASCII without `:` and spaces".to_owned(),
            Self::Header => {
                "a name of letters, digits and `-`, and not one that says where a request ends or goes"
                    .to_owned()
            }
            Self::NoSource => "give one of token_env, token_file, token_credential, token_command".to_owned(),
            Self::NoRules => {
                "write the requests: `allow = [\"GET /repos/**\"]`; all of them are `* /**`".to_owned()
            }
            Self::Rule { .. } => {
                "write METHOD /path: `GET /repos/**`, `POST /repos/acme/*/issues`, `* /api/**`".to_owned()
            }
            Self::Elsewhere(_) => {
                "as root, move it to /etc/ringfence/profiles; root's own runs take it from root's ~/.config/ringfence/agents, too".to_owned()
            }
            Self::NotByName { system, .. } => format!("as root, move it to {} and name it", system.display()),
            Self::NotRoots(_) => "chown root and chmod go-w the file, its directory and those above".to_owned(),
            Self::Written(_) => "keep it where `fs_write` does not reach, as in ~/.config".to_owned(),
            Self::PathWritten(_) => {
                "start this with a PATH without that directory, as in `PATH=/usr/bin:/bin ringfence run ...`, or give the credential by \
                 token_env or token_file"
                    .to_owned()
            }
            Self::CommandWritten { .. } => {
                "keep what the command runs and reads where `fs_write` does not reach".to_owned()
            }
            Self::OwnFile(_) => "keep the profile where `fs_write` does not reach, as in /etc/ringfence/profiles".to_owned(),
            Self::Linked { .. } => "make it a file of its own: cp FILE FILE.new && mv FILE.new FILE".to_owned(),
            Self::Readable(dir) => {
                format!("deny it: `fs_read = [\"{}\"]` under [deny]", dir.display())
            }
            Self::Twice { .. } | Self::TooManyHosts | Self::TooManyRules | Self::TwoPlaces => return None,
        })
    }
}
