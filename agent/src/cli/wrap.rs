//! `ringfence mcp wrap`: rewrites an MCP client's configuration, shows the difference first, and undoes itself.

use crate::{
    auditor::printable,
    mcp::{
        line::MAX_CONFIG,
        wrap::{self, Client},
    },
};
use anyhow::{Context, bail};
use similar::{ChangeTag, TextDiff};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, IsTerminal, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Puts `ringfence mcp` before every stdio server of a client's configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp wrap ~/.config/Claude/claude_desktop_config.json
  ringfence mcp wrap .vscode/mcp.json --client vscode
  ringfence mcp wrap .mcp.json --undo --yes")]
pub(crate) struct Args {
    /// The configuration file.
    file: PathBuf,
    /// The client it belongs to [default: told from the file's keys].
    #[arg(long, value_enum)]
    client: Option<Client>,
    /// Take Ringfence out again.
    #[arg(long)]
    undo: bool,
    /// Write without asking.
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let named = || args.file.display().to_string();
    let mut text = String::new();
    File::open(&args.file)
        .and_then(|file| file.take(MAX_CONFIG as u64 + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", named()))?;
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
        // A project's file is its author's: what would hide a line from a person is shown, not obeyed.
        let line = change.value();
        let text = line.strip_suffix('\n').unwrap_or(line);
        let text: Vec<String> = text.trim_end_matches('\r').split('\t').map(printable).collect();
        writeln!(out, "{sign}{}", text.join("\t"))?;
    }
    out.flush()?;
    if !args.yes && !agreed(&named())? {
        bail!("{} is unchanged; `--yes` writes without asking", named());
    }
    let backup = back_up(&args.file, &text)?;
    replace(&args.file, &rewritten.text).with_context(|| format!("cannot write {}", named()))?;
    eprintln!(
        "changed {} in {}; the file as it was is {}",
        printable(&rewritten.changed.join(", ")),
        named(),
        backup.display()
    );
    eprintln!("restart the client for it to take effect");
    Ok(ExitCode::SUCCESS)
}

/// The name clients should start: the bare one where PATH finds this very program, else its path.
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

fn agreed(file: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("write this to {file}? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Keeps the file as it was, beside it, under a name that no earlier backup has.
fn back_up(file: &Path, text: &str) -> anyhow::Result<PathBuf> {
    for number in 0..1000 {
        let mut name = file.as_os_str().to_owned();
        name.push(if number == 0 {
            ".before-ringfence".to_owned()
        } else {
            format!(".before-ringfence.{number}")
        });
        let backup = PathBuf::from(name);
        match private().open(&backup) {
            Ok(mut kept) => {
                kept.write_all(text.as_bytes()).and_then(|()| keep_mode(file, &backup))?;
                return Ok(backup);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot keep a backup {}", backup.display()));
            }
        }
    }
    bail!("there are a thousand backups beside {}; remove some", file.display())
}

/// For a file that is new, and its owner's alone until it has the original's mode: a configuration holds secrets.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    options
}

fn keep_mode(file: &Path, copy: &Path) -> io::Result<()> {
    let mode = fs::metadata(file)?.permissions().mode();
    fs::set_permissions(copy, fs::Permissions::from_mode(mode))
}

/// Writes beside the file and renames over it: a reader sees the old text or the new. A link's target is replaced, not
/// the link.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let target = fs::canonicalize(file)?;
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".ringfence-{}", std::process::id()));
    let fresh = PathBuf::from(name);
    let written = private()
        .open(&fresh)
        .and_then(|mut out| out.write_all(text.as_bytes()).and_then(|()| out.sync_all()))
        .and_then(|()| keep_mode(&target, &fresh))
        .and_then(|()| fs::rename(&fresh, &target));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::{back_up, private, replace};
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    #[test]
    fn copies_are_never_more_open_than_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o7777;
        let fresh = folder.path().join("fresh");
        drop(private().open(&fresh).expect("a file"));
        assert_eq!(mode(&fresh) & 0o077, 0, "from the first moment on");
        for kept in [0o600, 0o640, 0o644] {
            let file = folder.path().join(format!("{kept:o}"));
            fs::write(&file, "old").expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(kept)).expect("its mode");
            let backup = back_up(&file, "old").expect("a backup");
            replace(&file, "new").expect("replaced");
            assert_eq!((mode(&file), mode(&backup)), (kept, kept));
            assert_eq!(fs::read_to_string(&file).expect("text"), "new");
        }
    }
}
