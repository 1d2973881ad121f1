//! `ringfence mcp wrap`: rewrites an MCP client's configuration, shows the difference first, and undoes itself.

use crate::cli::{exit::Exit, output::agreed};
use anyhow::{Context, bail};
use nix::unistd::{Uid, User, geteuid};
use ringfence_base::{difference, escape::line as printable};
use ringfence_files::{Access, Dir, Meta, ResolvedPath};
use ringfence_interceptor::wrap::{self, Client, Left, PrivateFile, Store};
use ringfence_session::{journal::sha256, line::MAX_CONFIG};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// What a backup has behind the file's name.
const BACKUP: &str = ".before-ringfence";

/// Puts `ringfence mcp` before every server in a client's configuration.
///
/// A remote server's headers, and an address that holds a secret, go into private files in the user's configuration directory. It
/// shows the difference without them, asks, and keeps the file as it was beside it (with them: for its owner alone). `--undo`
/// restores it to the byte, and removes what was kept. A server that cannot be wrapped is left and reported: one that already
/// starts a Ringfence, but by another path or with other options than wrapping writes; a remote one where its user's client could
/// not read the private files, as below sudo.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  every server that can be wrapped is
  1  one may not be protected, one cannot be restored, or the file was not changed

Examples:
  ringfence mcp wrap ~/.config/Claude/claude_desktop_config.json
  ringfence mcp wrap .vscode/mcp.json --client vscode
  ringfence mcp wrap ~/.codex/config.toml
  ringfence mcp wrap .mcp.json --undo --yes")]
pub(crate) struct WrapArgs {
    /// The configuration file.
    file: PathBuf,
    /// The client that reads the file [default: recognised by the file's keys; codex for .toml].
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
    let is_toml = args.file.extension().is_some_and(|extension| extension == "toml");
    let client = args.client.or_else(|| is_toml.then_some(Client::Codex));
    let program = program();
    let store = PrivateFiles::of(&config, called_by())?;
    let mut rewritten = wrap::rewrite(&text, client, &program, args.undo, &store).with_context(named)?;
    if args.undo
        && let Some(kept) =
            config.kept().filter(|kept| wrap::is_original(kept, &text, client, &program, &store))
    {
        rewritten.text = kept;
    }
    for (name, why) in &rewritten.left {
        eprintln!("{}: left as it is: {}", printable(name), printable(&why.to_string()));
    }
    // What may not be protected is no success, whatever else is; nor is what should go and stays.
    let is_doubtful = rewritten.left.iter().any(|(_, why)| match why {
        Left::Because(_) => false,
        Left::Lost(_) => args.undo,
        _ => !args.undo,
    });
    let done = if is_doubtful { Exit::Failure } else { Exit::Success }.into();
    if rewritten.changed.is_empty() {
        eprintln!("ringfence: nothing to change in {}", named());
        return Ok(done);
    }
    show(&wrap::shown(&text, client), &wrap::shown(&rewritten.text, client))?;
    for name in &rewritten.bare {
        eprintln!(
            "{}: it has no credential. If it needs an OAuth login, log in to its address with `ringfence mcp login`; or run `--undo`, or give it a token in a header",
            printable(name)
        );
    }
    if !args.yes && !agreed(&format!("write this to {}?", named()))? {
        bail!("{} is unchanged; `--yes` writes without asking", named());
    }
    // Some of its servers may be wrapped already: what is kept is the file without Ringfence.
    let (original, is_whole) = match args.undo {
        true => (rewritten.text.clone(), true),
        false => {
            let undone = wrap::rewrite(&text, client, &program, true, &store).with_context(named)?;
            let is_whole = !undone.left.iter().any(|(_, why)| matches!(why, Left::Lost(_)));
            (undone.text, is_whole)
        }
    };
    store.write(&rewritten.needs)?;
    let has_secrets = wrap::shown(&original, client) != original;
    // What was kept without any Ringfence is not given away for what has some.
    let to_keep = (!args.undo && (is_whole || config.kept().is_none()))
        .then_some(Backup { text: original.as_str(), is_private: has_secrets });
    let put = config.put(&text, &rewritten.text, to_keep);
    if !matches!(put, Ok(true)) {
        store.remove(&rewritten.needs.iter().map(|file| file.name.clone()).collect::<Vec<_>>());
    }
    if !put.with_context(|| format!("cannot write {}", named()))? {
        bail!("{} was changed since it was read, and is left as it is now; run the command again", named());
    }
    store.remove(&rewritten.spares);
    let changed = format!("changed {} in {}", printable(&rewritten.changed.join(", ")), named());
    let backup = config.backup_path();
    match (args.undo, config.kept()) {
        (false, _) if has_secrets => eprintln!(
            "{changed}; the file as it was, with the credentials in it, is {}: keep it out of version control",
            backup.display()
        ),
        (false, _) => eprintln!("{changed}; the file as it was is {}", backup.display()),
        (true, Some(kept)) if kept == original => {
            config.let_go().with_context(|| format!("cannot remove {}", backup.display()))?;
            eprintln!("{changed}, and removed {}, which was the same", backup.display());
        }
        (true, Some(_)) => {
            eprintln!("{changed}; {} differs from it, and is left", backup.display());
        }
        (true, None) => eprintln!("{changed}"),
    }
    eprintln!("restart the client for it to take effect");
    Ok(done)
}

/// The user for whom sudo or pkexec runs this.
fn called_by() -> Option<Uid> {
    let variable = |name| std::env::var(name).ok()?.parse().ok().map(Uid::from_raw);
    variable("SUDO_UID").or_else(|| variable("PKEXEC_UID"))
}

/// The private files of wrapped remote servers, in the user's configuration directory.
struct PrivateFiles {
    place: PathBuf,
    /// Who starts what is in the configuration can read them, as far as that is known.
    is_own: bool,
}

impl PrivateFiles {
    /// Those of one configuration: two may have the same server. `called_by`: the user for whom sudo or pkexec runs this.
    fn of(file: &Config, called_by: Option<Uid>) -> anyhow::Result<Self> {
        let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let config = named.or_else(|| ringfence_base::home::home().map(|home| home.join(".config")));
        let config = config.context("the home directory is not known; set HOME")?;
        let path = file.dir.path().join(&file.name);
        let of: String = sha256(path.as_os_str().as_encoded_bytes()).chars().take(20).collect();
        Ok(Self {
            place: config.join("ringfence/remote").join(of),
            is_own: file.is_started_by(geteuid(), called_by),
        })
    }

    fn write(&self, files: &[PrivateFile]) -> anyhow::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let wrong = || format!("cannot keep what remote servers had in {}", self.place.display());
        let dir = Dir::make_private(&self.place).with_context(wrong)?;
        for PrivateFile { name, text } in files {
            dir.replace(name.as_ref(), text.as_bytes(), Access::Mode(0o600)).with_context(wrong)?;
        }
        Ok(())
    }

    /// What is not there is not needed either.
    fn remove(&self, names: &[String]) {
        if let Ok(dir) = Dir::open(&self.place) {
            names.iter().for_each(|name| drop(dir.remove(name.as_ref())));
        }
    }
}

impl Store for PrivateFiles {
    fn place(&self) -> &Path {
        &self.place
    }

    fn is_readable(&self) -> bool {
        self.is_own
    }

    fn read(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        let file = Dir::open(&self.place).ok()?.read(name.as_ref()).ok()?;
        file.take(MAX_CONFIG as u64).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

/// Prints the lines that differ.
fn show(old: &str, new: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (is_new, line) in difference::changed(old, new) {
        let sign = if is_new { "+" } else { "-" };
        // The author of a project's file may try to hide a line with control characters; show them escaped.
        let text = line.strip_suffix('\n').unwrap_or(&line);
        let text: Vec<String> = text.trim_end_matches('\r').split('\t').map(printable).collect();
        writeln!(out, "{sign}{}", text.join("\t"))?;
    }
    out.flush()
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

/// What is kept beside a configuration.
#[derive(Debug, Clone, Copy)]
struct Backup<'a> {
    text: &'a str,
    /// It holds credentials.
    is_private: bool,
}

/// A configuration file: its directory, its name there, and whose it was when it was read. If root changes a file in a user's
/// directory, the user may rename things meanwhile, so no path is resolved twice.
struct Config {
    dir: Dir,
    name: OsString,
    access: Access,
    owner: Uid,
    mode: u32,
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
        Ok((Self { dir, name, access, owner: Uid::from_raw(meta.uid), mode: meta.mode }, text))
    }

    /// Whether the client that reads this runs as the caller, as far as that is known: as the file's owner. Root's own client may
    /// read any file, as in a container; if root acts for somebody else, that one's reads what others may read.
    fn is_started_by(&self, caller: Uid, called_by: Option<Uid>) -> bool {
        if !caller.is_root() || called_by.is_some_and(|user| !user.is_root()) && !self.owner.is_root() {
            return self.owner == caller;
        }
        let home = || User::from_uid(caller).ok().flatten().map(|root| root.dir);
        called_by.is_none_or(Uid::is_root)
            || self.mode & 0o044 == 0
            || home().is_some_and(|home| home != Path::new("/") && self.dir.path().starts_with(home))
    }

    /// What the file without Ringfence is kept as. There is one at most: an older one is older than what the file was
    /// since.
    fn backup(&self) -> OsString {
        let mut name = self.name.clone();
        name.push(BACKUP);
        name
    }

    fn backup_path(&self) -> PathBuf {
        self.dir.path().join(self.backup())
    }

    /// Keeps `original` beside the file. What holds credentials is its owner's alone, whoever may read the file.
    fn keep(&self, Backup { text: original, is_private }: Backup<'_>) -> anyhow::Result<()> {
        if self.kept().as_deref() == Some(original) {
            return Ok(());
        }
        let access = match self.access {
            Access::Like(mut meta) if is_private => {
                meta.mode &= !0o077;
                Access::Like(meta)
            }
            access => access,
        };
        let kept = self.dir.replace(&self.backup(), original.as_bytes(), access);
        kept.with_context(|| format!("cannot keep a backup as {}", self.backup_path().display()))
    }

    /// What is kept beside the file, if that is a text which a configuration may be.
    fn kept(&self) -> Option<String> {
        let mut text = String::new();
        let file = self.dir.read(&self.backup()).ok()?;
        file.take(MAX_CONFIG as u64 + 1).read_to_string(&mut text).ok()?;
        (text.len() <= MAX_CONFIG).then_some(text)
    }

    /// Removes what is kept beside the file.
    fn let_go(&self) -> io::Result<bool> {
        self.dir.remove(&self.backup())
    }

    /// Puts `text` in the file's place, with `original` kept beside it if there is one, if the file still says what it did
    /// `before`: the client may have written to it while the question stood. False: it says something else, and nothing was
    /// changed. A reader sees the old text or the new. Owner and mode stay.
    ///
    /// # Errors
    /// As [`Prepared::put`](ringfence_files::Prepared::put); the backup cannot be written.
    fn put(&self, before: &str, text: &str, original: Option<Backup<'_>>) -> anyhow::Result<bool> {
        let room = u64::try_from(text.len())?;
        let mut prepared = self.dir.prepare(&self.name, self.access, room)?;
        if !self.says(before)? {
            return Ok(false);
        }
        let kept = self.kept();
        if let Some(original) = original {
            self.keep(original)?;
        }
        let put = prepared.put(text.as_bytes(), before.as_bytes(), || self.says(before));
        if original.is_some() && !matches!(put, Ok(true)) {
            // Of another text than the one that is there now.
            match kept {
                Some(kept) => self.keep(Backup { text: &kept, is_private: true })?,
                None => drop(self.let_go()?),
            }
        }
        Ok(put?)
    }

    /// Whether the file has this text.
    fn says(&self, text: &str) -> io::Result<bool> {
        let mut there = Vec::with_capacity(text.len() + 1);
        self.dir.read(&self.name)?.take(text.len() as u64 + 1).read_to_end(&mut there)?;
        Ok(there == text.as_bytes())
    }
}

#[cfg(test)]
mod tests;
