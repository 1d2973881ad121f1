//! `ringfence mcp wrap`: rewrites an MCP client's configuration, shows the difference first, and undoes itself.

use crate::cli::output::agreed;
use anyhow::{Context, bail};
use ringfence_base::escape::line as printable;
use ringfence_files::{Access, Dir, Meta, ResolvedPath};
use ringfence_interceptor::wrap::{self, Client};
use ringfence_session::line::MAX_CONFIG;
use similar::{ChangeTag, TextDiff};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Puts `ringfence mcp` before every stdio server in a client's configuration.
///
/// It shows the difference, asks, and keeps the file as it was beside it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp wrap ~/.config/Claude/claude_desktop_config.json
  ringfence mcp wrap .vscode/mcp.json --client vscode
  ringfence mcp wrap .mcp.json --undo --yes")]
pub(crate) struct WrapArgs {
    /// The configuration file.
    file: PathBuf,
    /// The client that reads the file [default: recognised by the file's keys].
    #[arg(long, value_enum)]
    client: Option<Client>,
    /// Undo: remove Ringfence from the configuration.
    #[arg(long)]
    undo: bool,
    /// Write without asking.
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &WrapArgs) -> anyhow::Result<ExitCode> {
    let named = || args.file.display().to_string();
    let (config, text) = Config::read(&args.file).with_context(|| format!("cannot read {}", named()))?;
    let rewritten = wrap::rewrite(&text, args.client, &program(), args.undo).with_context(named)?;
    for (name, why) in &rewritten.left {
        eprintln!("{}: left as it is: {why}", printable(name));
    }
    if rewritten.changed.is_empty() {
        eprintln!("ringfence: nothing to change in {}", named());
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::stdout().lock();
    for change in TextDiff::from_lines(&text, &rewritten.text).iter_all_changes() {
        let sign = match change.tag() {
            ChangeTag::Delete => "-",
            ChangeTag::Insert => "+",
            ChangeTag::Equal => continue,
        };
        // The author of a project's file may try to hide a line with control characters; show them escaped.
        let line = change.value();
        let text = line.strip_suffix('\n').unwrap_or(line);
        let text: Vec<String> = text.trim_end_matches('\r').split('\t').map(printable).collect();
        writeln!(out, "{sign}{}", text.join("\t"))?;
    }
    out.flush()?;
    if !args.yes && !agreed(&format!("write this to {}?", named()))? {
        bail!("{} is unchanged; `--yes` writes without asking", named());
    }
    let backup = config.back_up(&text)?;
    config.replace(&rewritten.text).with_context(|| format!("cannot write {}", named()))?;
    eprintln!(
        "changed {} in {}; the file as it was is {}",
        printable(&rewritten.changed.join(", ")),
        named(),
        backup.display()
    );
    eprintln!("restart the client for it to take effect");
    Ok(ExitCode::SUCCESS)
}

/// The program that clients should start: the bare name if PATH leads to this program, else its path.
fn program() -> String {
    let Ok(own) = std::env::current_exe().and_then(fs::canonicalize) else { return "ringfence".to_owned() };
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join("ringfence"))
            .find(|candidate| candidate.is_file())
            .is_some_and(|candidate| fs::canonicalize(candidate).is_ok_and(|found| found == own))
    });
    if found { "ringfence".to_owned() } else { own.display().to_string() }
}

/// A configuration file: its directory, its name there, and whose it was when it was read. If root changes a file in a user's
/// directory, the user may rename things meanwhile, so no path is resolved twice.
struct Config {
    dir: Dir,
    name: OsString,
    access: Access,
}

impl Config {
    /// Reads a file; for a link its target, since the target is replaced and not the link.
    fn read(file: &Path) -> io::Result<(Self, String)> {
        let ResolvedPath { dir, name, redirected_by } = Dir::resolve(file)?;
        let opened = dir.read(&name)?;
        let (meta, access) = (Meta::of(&opened)?, Access::like(&opened)?);
        // Another user's link must not decide whose file is changed.
        if let Some(user) = redirected_by.filter(|user| *user != meta.uid) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "a symlink of user {user} leads to {}, which belongs to user {}: name that file itself",
                    dir.path().join(&name).display(),
                    meta.uid
                ),
            ));
        }
        let mut text = String::new();
        opened.take(MAX_CONFIG as u64 + 1).read_to_string(&mut text)?;
        Ok((Self { dir, name, access }, text))
    }

    /// Keeps the file as it was, beside it, under a name that no earlier backup has.
    fn back_up(&self, text: &str) -> anyhow::Result<PathBuf> {
        let ending = |number| match number {
            0 => ".before-ringfence".to_owned(),
            number => format!(".before-ringfence.{number}"),
        };
        let path = self.dir.path().join(&self.name);
        let kept = self.dir.keep_beside(&self.name, (0..1000).map(ending), text.as_bytes(), self.access);
        match kept {
            Ok(backup) => Ok(self.dir.path().join(backup)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!("there are a thousand backups beside {}; remove some", path.display())
            }
            Err(error) => Err(error).with_context(|| format!("cannot keep a backup of {}", path.display())),
        }
    }

    /// Writes beside the file and renames over it: a reader sees the old text or the new. Owner and mode stay.
    fn replace(&self, text: &str) -> io::Result<()> {
        self.dir.replace(&self.name, text.as_bytes(), self.access)
    }
}

#[cfg(test)]
mod tests;
