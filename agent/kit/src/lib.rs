//! Kits: what `ringfence run` adds for an agent that knows nothing of Ringfence (`[kit]` of its profile). Its model is served to
//! its container by a worker of this run, which has the credential; the container has a token that opens nothing else.
//!
//! | file | what |
//! |---|---|
//! | `credential` | where on the host the credential is |
//! | `endpoint` | the run's worker: its sockets, its directories, its end |
//! | `denials` | what the run's tool calls were denied, as the auditor has it |
//! | `tie` | what ties the run's tool calls to their processes |
//! | `client` | the variables and arguments that lead the agent to it; the agent's own directory |
//! | `renewal` | a login that is over is renewed |
//! | `token_endpoint` | who is asked for that, by a process of its own |
//! | `unwritten` | what came of it, until it is in the login's file |
//! | `hidden` | nobody looks into the launcher meanwhile |
//! | `attempts` | when that was tried last, what was spent, and where what came for it may be |
//! | `agent_lock` | nobody does so at once: the agent's own lock on its login |
//! | `mcp_login` | logins at remote MCP servers, which the same renews |
//! | `version` | which version of the agent this is |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod agent_lock;
mod attempts;
mod client;
mod credential;
mod denials;
mod endpoint;
mod hidden;
pub mod mcp_login;
mod renewal;
mod tie;
mod token_endpoint;
mod unwritten;
mod version;

pub use client::{Client, Runner};
pub use credential::describe;
pub use denials::DenialRecord;
pub use endpoint::Endpoint;
pub use tie::{NoTie, Tie};
pub use version::of as version;

use nix::unistd::geteuid;
use renewal::Renewer;
use ringfence_credentials::{self as secret, Source};
use ringfence_files::{Dir, Others};
use ringfence_policy::{
    self as profile, Dirs, LoadErrors, Problem, Profile,
    agents::{
        home::Home,
        registry::{self, Given, Registry},
    },
    is_in_reach, is_name, is_own,
    kit::Kit,
    problem::Wrong,
};
use std::{
    ffi::OsStr,
    fmt,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Tells the user. Where nobody reads standard error any more, `eprintln!` would end the launcher, and with it what it holds.
fn say(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "ringfence: {what}");
}

/// Why an agent's model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry, or what is given with the command.
    #[error("{0}")]
    Config(LoadErrors),
    /// None is found.
    #[error("there is no credential for {agent}'s model on this host{}: {login}; or name one with --api-key-env, --api-key-file or --api-key-command", tried(.reasons))]
    NoCredential {
        /// The profile.
        agent: String,
        /// How to get one.
        login: String,
        /// Why those that are there cannot be used.
        reasons: Vec<String>,
    },
    /// The one that was named cannot be had.
    #[error("the credential for {0}'s model cannot be used")]
    Credential(String, #[source] secret::Error),
    /// The agent could read it.
    #[error("{} has the credential of {agent}'s model, and the agent may read its working directory {}: start it elsewhere, or move that file", .file.display(), .workdir.display())]
    InReach {
        /// The profile.
        agent: String,
        /// The file.
        file: PathBuf,
        /// The agent's working directory.
        workdir: PathBuf,
    },
    /// Nothing says where home is.
    #[error("the home directory is not known; set HOME")]
    NoHome,
    /// A directory of the run.
    #[error("cannot make {}", .0.display())]
    Dir(PathBuf, #[source] io::Error),
    /// The agent's own directory, or a file in it.
    #[error("cannot make {}, where {agent} keeps its files, as the user who runs it: {why}", .dir.display())]
    State {
        /// The profile.
        agent: String,
        /// The directory or file.
        dir: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Its sockets.
    #[error("cannot listen for the agent")]
    Listen(#[source] io::Error),
    /// Its process.
    #[error("the worker that serves {0}'s model cannot be started: {1}")]
    Worker(String, String),
}

fn tried(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" that can be used ({})", reasons.join("; ")) }
}

/// The profile that `ringfence run` takes for a command where none is named: the host's, or one in the binary, of the command's
/// name, if it has a kit.
///
/// # Errors
/// The host's is broken.
pub fn find(command: &OsStr, dirs: &Dirs) -> Result<Option<Profile>, LoadErrors> {
    let name = Path::new(command).file_name().and_then(OsStr::to_str).filter(|name| is_name(name));
    let Some(name) = name else { return Ok(None) };
    let host = Dirs { user: None, ..dirs.clone() };
    // Any other name may be no profile's.
    if !profile::built_in::names().any(|known| known == name)
        && !host.names().iter().any(|known| known == name)
    {
        return Ok(None);
    }
    let found = profile::load(name, &host)?;
    Ok(Some(found).filter(|found| found.kit.is_some()))
}

/// The profiles with a kit that the host has or the binary, by name; those that cannot be read are left out.
pub fn all(dirs: &Dirs) -> Vec<Profile> {
    let host = Dirs { user: None, ..dirs.clone() };
    let mut names = host.names();
    names.extend(profile::built_in::names().map(str::to_owned));
    names.sort();
    names.dedup();
    names
        .iter()
        .filter_map(|name| profile::load(name, &host).ok())
        .filter(|found| found.kit.is_some())
        .collect()
}

/// Serves an agent's model for one run. `workdir`: the directory that the agent works in.
///
/// # Errors
/// [`Error`]; nothing runs then.
pub fn serve(profile: &Profile, kit: &Kit, given: Given, workdir: &Path) -> Result<Endpoint, Error> {
    let home = Home::from_env().ok_or(Error::NoHome)?;
    let registry = Registry::load(&home.registry()).map_err(Error::Config)?;
    let has_address = given.base_url.is_some() || registry.has_address(&profile.name);
    require_known(profile, kit, workdir).map_err(Error::Config)?;
    // One that the agent can write is the user's choice for a run, but no reason to spend a refresh token.
    let is_written = |file: &Path| !profile::built_in::has(file) && is_in_reach(file, workdir);
    let is_foreign = profile.sources.iter().any(|source| is_written(&source.file));
    let renewer = Arc::new(Renewer::new(!has_address && !is_foreign));
    let with = |source: &Source| {
        let given = Given { credential: Some(source.clone()), ..given.clone() };
        registry::of_kit(profile, &registry, given).map_err(Error::Config)
    };
    let read = |source: &Source| match source.read() {
        Err(secret::Error::Expired(_)) if renewer.renews(source) => {
            // Whatever else keeps the agent from running is found before a refresh token is spent.
            require_out_of_reach(profile, source, workdir)?;
            with(source)?;
            Ok(renewer.at_start(source))
        }
        read => Ok(read),
    };
    let named = given.credential.as_ref().or(registry.credential(&profile.name));
    let credential = match named {
        Some(source) => {
            let secret = read(source)?.map_err(|error| Error::Credential(profile.name.clone(), error))?;
            Some((source.clone(), secret))
        }
        None => match credential::find(&kit.credentials, read)? {
            Ok(found) => Some(found),
            // A server of one's own may want none.
            Err(reasons) if has_address && reasons.is_empty() => None,
            Err(reasons) => {
                let login = kit.login.clone().unwrap_or_else(|| "get one from the provider".to_owned());
                return Err(Error::NoCredential { agent: profile.name.clone(), login, reasons });
            }
        },
    };
    if let Some((source, _)) = &credential {
        require_out_of_reach(profile, source, workdir)?;
    }
    // Where it comes from is known; a worker is handed it beside its configuration.
    let given = Given { credential: credential.as_ref().map(|(source, _)| source.clone()), ..given };
    let mut config = registry::of_kit(profile, &registry, given).map_err(Error::Config)?;
    // As the kernel has it, in which events are.
    config.workdir = workdir.canonicalize().ok().and_then(|path| path.to_str().map(str::to_owned));
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
    Endpoint::start(&config, &home, credential, renewer)
}

/// The agent may read what is in its working directory.
fn require_out_of_reach(profile: &Profile, source: &Source, workdir: &Path) -> Result<(), Error> {
    match source.file() {
        Some(file) if is_in_reach(&file, workdir) => {
            Err(Error::InReach { agent: profile.name.clone(), file, workdir: workdir.to_owned() })
        }
        _ => Ok(()),
    }
}

/// A refresh token goes where the profile says: so that is one in the binary, of root's, or of the user's own agents, and none
/// that came with a repository, or that an agent can write.
fn require_known(profile: &Profile, kit: &Kit, workdir: &Path) -> Result<(), LoadErrors> {
    let Some(at) = kit.credentials_at.as_ref().filter(|_| kit.renews()) else { return Ok(()) };
    let Dirs { system, user } = Dirs::from_env();
    let is_known = profile::built_in::has(&at.file) || is_own(&at.file, [Some(system), user], workdir);
    if is_known {
        return Ok(());
    }
    tracing::debug!("the profile {} renews a login, and is in {}", profile.name, at.file.display());
    Err(Problem::new(at.clone(), Wrong::RenewalElsewhere).into())
}

/// A directory that is ours, made where it is missing.
fn make(dir: &Path) -> Result<Dir, Error> {
    let error = |error| Error::Dir(dir.to_owned(), error);
    let require_roots = |path: &Path| {
        // Where sudo keeps a user's HOME, that user could put another one in its place.
        let is_ours = !geteuid().is_root() || ringfence_files::is_roots(path, Others::AddNames)?;
        let why = "others than root can change what is on the way there; set HOME to root's";
        if is_ours { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, why)) }
    };
    // Nothing is made on a way that is another's: what is there of it, first.
    for there in dir.ancestors() {
        match require_roots(there) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            looked => {
                looked.map_err(error)?;
                break;
            }
        }
    }
    let made = Dir::make_private(dir).map_err(error)?;
    require_roots(dir).map_err(error)?;
    Ok(made)
}
