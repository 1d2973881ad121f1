//! A shim: asks the daemon, then becomes the tool, or runs it as its own child where its output is to be cut.

use super::{
    ask::{self, Error, Permission},
    child::{self, Child},
    find, notice, pipeline_end, relay, say,
};
use ringfence_base::error::chain;
use ringfence_wire::runner::{Ask, Truncate};
use std::{
    ffi::{CString, OsStr, OsString},
    path::{Path, PathBuf},
};

/// `1`: a tool that the daemon cannot be asked about does not run.
const STRICT: &str = "RINGFENCE_STRICT";

/// `off`, `end` or `each`, instead of the daemon's choice.
const TRUNCATE: &str = "RINGFENCE_TRUNCATE";

/// Status of a tool that was not run though it is there.
const NOT_RUN: u8 = 126;

/// The tool that this process is to stand for: the name that it was started by, unless that is the binary's own.
pub fn name() -> Option<OsString> {
    let started = started_as();
    let name = started.file_name()?;
    let is_own = name.as_encoded_bytes().starts_with(b"ringfence-toolrunner");
    (!is_own).then(|| name.to_owned())
}

/// The path that the kernel was given, which no caller can choose apart from what it starts; where that is a descriptor,
/// the first argument.
fn started_as() -> PathBuf {
    let path = rustix::param::linux_execfn().to_string_lossy();
    if path.is_empty() || path.starts_with("/dev/fd/") || path.starts_with("/proc/") {
        return std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    }
    PathBuf::from(path.as_ref())
}

/// Runs the tool; returns its status where it was not this process that became it.
pub fn run(name: &OsStr) -> u8 {
    match tool(name) {
        Ok(status) => status,
        Err((status, why)) => {
            say(format_args!("{why}"));
            status
        }
    }
}

fn tool(name: &OsStr) -> Result<u8, (u8, String)> {
    let path = find::tool(name, std::env::var_os("PATH"), Some(&started_as()), find::own_file())
        .map_err(|error| (error.status(), behind(&error)))?;
    let args = child::c_strings(std::env::args_os()).map_err(|error| (NOT_RUN, error.to_string()))?;
    let out = pipeline_end::kind();
    let is_end = out.is_some_and(|(_, out)| pipeline_end::is_here(&out));
    let permission = match ask_permission(name, is_end) {
        Ok(permission) => permission,
        Err(Error::Refused { message, status }) => {
            return Err((status, format!("{}: {message}", name.display())));
        }
        Err(error) => {
            away(&error)?;
            return Err(become_tool(&path, &args));
        }
    };
    let is_truncated = match own_choice().unwrap_or(permission.shape.truncate) {
        Truncate::Off => false,
        Truncate::End => is_end,
        Truncate::Each => !crate::sys::was_closed(1),
    };
    if !is_truncated {
        return Err(become_tool(&path, &args));
    }
    let kind = out.map_or(pipeline_end::OutputKind::Pipe, |(kind, _)| kind);
    truncate(permission, kind, name, &path, &args)
}

/// Why there is no tool. Where nothing has its name: a copy of this binary under a name of its own is a shim, too.
fn behind(error: &find::Error) -> String {
    match error {
        find::Error::NotFound(_) => {
            format!("{error}; {} is ringfence-toolrunner, standing for it", started_as().display())
        }
        find::Error::NotExecutable(_) => error.to_string(),
    }
}

fn ask_permission(name: &OsStr, is_end: bool) -> Result<Permission, Error> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let cwd = std::env::current_dir().unwrap_or_default();
    let ask = Ask::new(
        name.to_string_lossy().into_owned(),
        args.iter().map(|arg| arg.to_string_lossy()),
        cwd.to_string_lossy().into_owned(),
        is_end,
    );
    ask::ask(&ask::socket(), ask)
}

fn own_choice() -> Option<Truncate> {
    match std::env::var_os(TRUNCATE)?.as_encoded_bytes() {
        b"off" => Some(Truncate::Off),
        b"end" => Some(Truncate::End),
        b"each" => Some(Truncate::Each),
        _ => None,
    }
}

/// The daemon cannot be asked: a tool must not stop working for that, unless somebody wants just this.
fn away(error: &Error) -> Result<(), (u8, String)> {
    let why = chain(error);
    if std::env::var_os(STRICT).is_some_and(|value| value == "1") {
        return Err((
            NOT_RUN,
            format!("{why}; with {STRICT}=1 no tool runs without the daemon: start `ringfence-toolrunner`"),
        ));
    }
    if notice::is_first(&ask::socket()) {
        say(format_args!(
            "{why}; tools run without it, and long output is not cut. Start `ringfence-toolrunner`, or set {STRICT}=1 to stop \
             them"
        ));
    }
    Ok(())
}

/// Returns only where that failed.
fn become_tool(path: &Path, args: &[CString]) -> (u8, String) {
    let Err(error) = child::exec(path, args);
    (NOT_RUN, format!("cannot run {}: {error}", path.display()))
}

/// Runs the tool as a child and cuts its output.
fn truncate(
    permission: Permission,
    kind: pipeline_end::OutputKind,
    name: &OsStr,
    path: &Path,
    args: &[CString],
) -> Result<u8, (u8, String)> {
    let (relay, streams) = match relay::between(kind, name, &permission.shape) {
        Ok(both) => both,
        Err(error) => {
            say(format_args!("{}: its output is not cut: {error}", name.display()));
            return Err(become_tool(path, args));
        }
    };
    let failed = |error: std::io::Error| (NOT_RUN, format!("cannot run {}: {error}", path.display()));
    let mut streams = Some(streams);
    let mut child = Child::start(|| {
        let installed = streams.take().map_or(Ok(()), relay::ToolStreams::install);
        let (status, why) = match installed {
            Ok(()) => become_tool(path, args),
            Err(error) => failed(error),
        };
        say(format_args!("{why}"));
        status
    })
    .map_err(failed)?;
    // The tool's streams are the tool's alone, or its outputs would never end.
    drop(streams);
    let (end, done) = relay.run(&mut child).map_err(failed)?;
    permission.done(done);
    Ok(end.repeat())
}
