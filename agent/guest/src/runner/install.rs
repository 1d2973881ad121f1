//! `install-shims`: links to this binary by the names of tools, in a folder that PATH finds first.

use super::{find, say};
use ringfence_base::error::chain;
use std::{
    ffi::{OsStr, OsString},
    fmt, fs,
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The usual twenty: what agents call most and what can print much. All are in a plain Debian.
const USUAL: [&str; 20] = [
    "awk", "cat", "cut", "diff", "du", "find", "grep", "head", "ls", "nl", "od", "sed", "sort", "tac",
    "tail", "tee", "tr", "uniq", "wc", "xargs",
];

/// The file in /etc/profile.d. Late in its order, so that nothing else there comes before the shims.
const PROFILE: &str = "zz-ringfence-toolrunner.sh";

/// Links tools' names to this binary, and has login shells find them first.
///
/// Without NAMEs: the usual twenty (awk cat cut diff du find grep head ls nl od sed sort tac tail tee tr uniq wc xargs), those
/// of them that are installed. Debian's /etc/profile sets PATH anew, so a folder in a container's PATH never reaches
/// `bash -lc`: a file in /etc/profile.d puts it there again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ringfence-toolrunner install-shims /app/shims\n  \
    ringfence-toolrunner install-shims /app/shims cat grep git\n  \
    ringfence-toolrunner install-shims ~/shims --no-profile")]
pub struct Args {
    /// Folder of the links; made where it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Tools to stand before
    #[arg(value_name = "NAME")]
    names: Vec<OsString>,
    /// Folder of the scripts that login shells read
    #[arg(long, value_name = "DIR", default_value = "/etc/profile.d")]
    profile_dir: PathBuf,
    /// Do not touch what login shells read
    #[arg(long, conflicts_with = "profile_dir")]
    no_profile: bool,
}

/// Why shims cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("`{0}` is no name of a tool: a name without `/`, and not this binary's own")]
    Name(String),
    #[error("{0} cannot be in PATH: it has a colon or a line end in its name")]
    Folder(String),
    #[error(
        "none of the usual tools is in PATH, so there is nothing to stand before; give the names of others"
    )]
    Nothing,
    #[error("{0} is there and is no shim; remove it, or choose another folder")]
    Taken(String),
    #[error("cannot find this binary's own file")]
    Own(#[source] io::Error),
    #[error("cannot write {path}")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// Makes the links.
pub fn run(args: &Args) -> ExitCode {
    match install(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{}", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

fn install(args: &Args) -> Result<(), Error> {
    check(&args.names)?;
    let made = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::Write { path, source }
    };
    fs::create_dir_all(&args.dir).map_err(made(&args.dir))?;
    let dir = fs::canonicalize(&args.dir).map_err(made(&args.dir))?;
    let line = profile(&dir)?;
    let names = if args.names.is_empty() { installed() } else { args.names.clone() };
    for name in args.names.iter().filter(|name| !is_installed(name)) {
        say(format_args!(
            "{} is not installed here: until it is, its shim ends with status 127",
            name.display()
        ));
    }
    if names.is_empty() {
        return Err(Error::Nothing);
    }
    link(&dir, &names)?;
    let plural = if names.len() == 1 { "" } else { "s" };
    tell(format_args!("{} shim{plural} in {}", names.len(), dir.display()));
    if args.no_profile {
        return Ok(());
    }
    let file = args.profile_dir.join(PROFILE);
    let write = || {
        fs::create_dir_all(&args.profile_dir)?;
        fs::write(&file, line)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))
    };
    write().map_err(|source| {
        if source.kind() == io::ErrorKind::PermissionDenied {
            say(format_args!(
                "without root, give --no-profile, and put {} into PATH yourself",
                dir.display()
            ));
        }
        Error::Write { path: file.display().to_string(), source }
    })?;
    tell(format_args!("login shells find them by {}", file.display()));
    Ok(())
}

/// Says what was done, where somebody reads it: it was done in any case.
fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The usual tools that are there: a shim of what is missing would make it look installed.
pub(super) fn installed() -> Vec<OsString> {
    let (is_here, missing): (Vec<&str>, Vec<&str>) =
        USUAL.into_iter().partition(|name| is_installed(OsStr::new(name)));
    if !missing.is_empty() {
        say(format_args!("not installed here, so without a shim: {}", missing.join(" ")));
    }
    is_here.into_iter().map(OsString::from).collect()
}

fn is_installed(name: &OsStr) -> bool {
    find::tool(name, std::env::var_os("PATH"), None, find::own_file()).is_ok()
}

/// Links the names in a folder to this binary.
pub(super) fn link(dir: &Path, names: &[OsString]) -> Result<(), Error> {
    check(names)?;
    let own = std::env::current_exe().map_err(Error::Own)?;
    for name in names {
        let path = dir.join(name);
        match symlink(&own, &path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => replace(&own, &path)?,
            Err(source) => return Err(Error::Write { path: path.display().to_string(), source }),
        }
    }
    Ok(())
}

/// # Errors
/// [`Error::Name`]: one of them cannot be a shim's; nothing was made then.
fn check(names: &[OsString]) -> Result<(), Error> {
    let is_none = |name: &&OsString| {
        let bytes = name.as_bytes();
        let is_own = bytes.starts_with(b"ringfence-toolrunner");
        bytes.is_empty() || bytes.contains(&b'/') || is_own || [b".".as_slice(), b".."].contains(&bytes)
    };
    match names.iter().find(is_none) {
        Some(name) => Err(Error::Name(name.display().to_string())),
        None => Ok(()),
    }
}

/// A shim of an earlier time becomes one of this binary. Anything else stays.
fn replace(own: &Path, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.display().to_string(), source };
    let target = fs::read_link(path).map_err(|_| Error::Taken(path.display().to_string()))?;
    let is_shim = target.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ringfence-toolrunner"))
        || fs::metadata(path).is_ok_and(|meta| find::own_file() == Some((meta.dev(), meta.ino())));
    if !is_shim {
        return Err(Error::Taken(path.display().to_string()));
    }
    fs::remove_file(path).map_err(failed)?;
    symlink(own, path).map_err(failed)
}

/// What login shells run: sh, bash and others.
fn profile(dir: &Path) -> Result<Vec<u8>, Error> {
    let bytes = dir.as_os_str().as_bytes();
    if bytes.contains(&b':') || bytes.contains(&b'\n') {
        return Err(Error::Folder(dir.display().to_string()));
    }
    let quoted = bytes.iter().fold(Vec::new(), |mut quoted: Vec<u8>, byte| {
        quoted.extend(if *byte == b'\'' { br"'\''".as_slice() } else { std::slice::from_ref(byte) });
        quoted
    });
    let mut text =
        b"# The shims of ringfence-toolrunner, before the tools that they stand for.\nringfence_shims='"
            .to_vec();
    text.extend(quoted);
    text.extend_from_slice(
        b"'\ncase \"$PATH\" in\n\"$ringfence_shims\" | \"$ringfence_shims\":*) ;;\n\
          *) PATH=$ringfence_shims:$PATH; export PATH ;;\nesac\nunset ringfence_shims\n",
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_puts_the_shims_first_once() {
        let dir = Path::new("/opt/it's here");
        let text = String::from_utf8(profile(dir).unwrap()).unwrap();
        let path = |before: &str| {
            let script = format!("{text}\n{text}\nprintf %s \"$PATH\"");
            let output =
                std::process::Command::new("/bin/sh").args(["-euc", &script]).env("PATH", before).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        assert_eq!(path("/usr/bin:/bin"), "/opt/it's here:/usr/bin:/bin");
        assert_eq!(path("/opt/it's here:/bin"), "/opt/it's here:/bin");
        assert_eq!(path("/bin:/opt/it's here"), "/opt/it's here:/bin:/opt/it's here");
        assert!(profile(Path::new("/a:b")).is_err());
    }

    #[test]
    fn twenty_names_in_order() {
        let mut sorted = USUAL;
        sorted.sort_unstable();
        assert_eq!(sorted, USUAL);
    }
}
