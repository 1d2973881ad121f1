//! `ringfence profile`: checks, shows and explains profiles, without a daemon and without changing anything.

mod explain;

use super::{exit::Exit, output::print};
use anyhow::bail;
use explain::explain;
use ringfence_policy::{
    self as profile, Compilation, CompileContext, Dirs, LoadErrors, Problem,
    problem::ProblemJson,
    remarks::{Remarks, remarks},
    show,
};
use serde_json::json;
use std::{env, path::PathBuf, process::ExitCode};

/// How many missing paths `check` lists by itself.
const MISSING: usize = 3;

/// Stands for the working directory where none is given and none is needed.
const ANY_WORKDIR: &str = "/workdir";

/// Checks, shows and explains profiles.
///
/// A profile is a path, or a name that is looked up in /etc/ringfence/profiles and then in ~/.config/ringfence/agents. No daemon
/// is needed, and nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence profile check
  ringfence profile show coder
  ringfence profile explain coder exec git")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reads and compiles profiles, and reports all errors.
    #[command(
        after_help = "Exit status:\n  0  all profiles can be used\n  1  one or more cannot\n\nExample:\n  ringfence profile check ./coder.toml"
    )]
    Check {
        /// Names or paths [default: every installed profile].
        profiles: Vec<String>,
        /// List all paths that do not exist on this host, however many there are.
        #[arg(long, short)]
        verbose: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Prints what a profile grants.
    ///
    /// The output includes what the profile extends, the base rules and the protected places, with symbolic links resolved.
    #[command(after_help = "Example:\n  ringfence profile show ./coder.toml --workdir /srv/project")]
    Show {
        /// Name or path.
        profile: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Tells which rule decides one access, and why.
    #[command(
        after_help = "Examples:\n  ringfence profile explain coder read ~/.ssh/id_rsa\n  ringfence profile explain coder exec git\n  \
                      ringfence profile explain coder net 10.0.0.1:443\n  \
                      ringfence profile explain coder net pypi.org:443\n  ringfence profile explain coder net unix:/run/docker.sock"
    )]
    Explain {
        /// Name or path.
        profile: String,
        /// The kind of access.
        #[arg(value_enum)]
        access: Access,
        /// A path; for exec also a bare name; for net ip:port, [v6]:port, host:port, tcp:host:port, unix:/path or unix:@name.
        target: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Prints the JSON Schema of a profile.
    #[command(after_help = "Example:\n  ringfence profile schema > profile.schema.json")]
    Schema,
}

/// A kind of access, here and in `ringfence grant explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Access {
    /// Executing a program.
    Exec,
    /// Reading a path.
    Read,
    /// Writing a path.
    Write,
    /// Connecting.
    Net,
}

#[derive(Debug, clap::Args)]
struct PlaceArgs {
    /// What `${WORKDIR}` stands for [default: the current directory].
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// The container's root directory.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// One JSON object per profile and line.
    #[arg(long)]
    json: bool,
}

impl PlaceArgs {
    fn context(&self, workdir: Option<PathBuf>) -> CompileContext<'_> {
        CompileContext::new(&self.root, workdir)
    }

    /// What was given, or the current directory.
    fn here(&self) -> Option<PathBuf> {
        match &self.workdir {
            Some(dir) => std::path::absolute(dir).ok(),
            None => env::current_dir().ok(),
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env();
    match &args.command {
        Command::Check { profiles, verbose, place } => check(profiles, *verbose, place, &dirs),
        Command::Show { profile, place } => {
            let profile = profile::load(profile, &dirs)?;
            let Compilation { policy, notes, .. } = profile.compile_whole(&place.context(place.here()))?;
            let notices: Vec<String> = profile.notices.iter().cloned().chain(notes).collect();
            let text = if place.json {
                format!("{}\n", show::json(&profile, &policy, place.here().as_deref(), &notices)?)
            } else {
                show::text(&profile, &policy, &notices)
            };
            print(&text)
        }
        Command::Explain { profile, access, target, place } => {
            let profile = profile::load(profile, &dirs)?;
            let policy = profile.compile(&place.context(place.here()))?;
            let mut answer = explain(&policy, *access, target, place)?;
            answer.on_this_host =
                explain::not_held(&profile, &policy, answer.axis(), place.here().as_deref());
            print(&if place.json { answer.json(&profile, &policy) } else { answer.text(&profile, &policy) })
        }
        Command::Schema => {
            let schema = serde_json::to_string_pretty(&profile::schema::schema())?;
            print(&format!("{schema}\n"))
        }
    }
}

fn check(names: &[String], verbose: bool, place: &PlaceArgs, dirs: &Dirs) -> anyhow::Result<ExitCode> {
    let names = if names.is_empty() { dirs.names() } else { names.to_vec() };
    if names.is_empty() {
        bail!("no profile is installed in {}: name a file to check", dirs.system.display());
    }
    let workdir = place.workdir.as_ref().and_then(|dir| std::path::absolute(dir).ok());
    let workdir = workdir.unwrap_or_else(|| PathBuf::from(ANY_WORKDIR));
    let mut failed = false;
    let mut out = String::new();
    for name in &names {
        let loaded = profile::load(name, dirs);
        let checked = loaded.and_then(|profile| {
            let mut done = profile.compile_whole(&place.context(Some(workdir.clone())))?;
            let given = place.workdir.as_ref().map(|_| workdir.as_path());
            let Remarks { denies, missing } = remarks(&profile, &done.policy, &place.root, given);
            done.notes.extend(denies);
            if verbose || place.json || missing.len() <= MISSING {
                done.notes.extend(missing);
            } else {
                done.notes.push(format!(
                    "{} of its paths do not exist on this host; --verbose lists them",
                    missing.len()
                ));
            }
            Ok((profile, done.notes))
        });
        match checked {
            Ok((profile, notes)) => {
                let notices: Vec<&String> = profile.notices.iter().chain(&notes).collect();
                if place.json {
                    let line = json!({ "profile": name, "file": profile.file, "ok": true, "errors": [], "notices": notices });
                    out += &format!("{line}\n");
                } else {
                    out += &format!("{}: ok ({})\n", profile.name, profile.file.display());
                    notices.iter().for_each(|n| out += &format!("    note: {n}\n"));
                }
            }
            Err(LoadErrors(problems)) => {
                failed = true;
                if place.json {
                    let errors: Vec<ProblemJson> = problems.iter().map(ProblemJson::from).collect();
                    let file = problems.first().map(|p: &Problem| p.at.file.clone());
                    let line = json!({ "profile": name, "file": file, "ok": false, "errors": errors, "notices": [] });
                    out += &format!("{line}\n");
                } else {
                    let count = problems.len();
                    eprintln!(
                        "{}\n{name}: {count} error{}",
                        LoadErrors(problems),
                        if count == 1 { "" } else { "s" }
                    );
                }
            }
        }
    }
    print(&out)?;
    Ok(if failed { Exit::Failure } else { Exit::Success }.into())
}
