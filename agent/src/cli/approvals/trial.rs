//! What a changed profile does to those that extend it, before it is in force: all of the host's profiles are loaded from a folder
//! that has the changed one in the place of the other.

use anyhow::{Context, bail};
use ringfence_base::escape::line as printable;
use ringfence_files::Dir;
use ringfence_policy::{self as profile, Dirs, SETS_DIR};
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};
use toml_edit::DocumentMut;

/// Whether the profiles that extend a file would be valid with what is beside it in its place.
///
/// # Errors
/// Which would not be; that it cannot be told.
pub(super) fn dependants(dir: &Dir, (name, beside): (&OsStr, &OsStr), dirs: &Dirs) -> anyhow::Result<()> {
    // What an earlier one left that was ended in the middle is not in the way, nor what somebody else made.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let folder = OsString::from(format!(".{}.{now}.tried", std::process::id()));
    let tried = Tried::make(dir, folder).context("nothing can be made beside it")?;
    let (file, changed) = (dir.path().join(name), dir.path().join(beside));
    let (mut broken, mut unknown) = (Vec::new(), Vec::new());
    let there = dirs.names();
    for one in &there {
        tried.put(&dirs.system.join(format!("{one}.toml")), &file, &changed)?;
    }
    tried.put_sets(&dirs.system)?;
    let instead = Dirs { system: tried.path(), user: None };
    for one in there {
        // What is not valid as it is stays as it is.
        if profile::load(&one, dirs).is_err() {
            continue;
        }
        match profile::load(&one, &instead) {
            // It may have been written just now.
            Err(_) if profile::load(&one, dirs).is_err() => {}
            Err(_) => broken.push(printable(&one)),
            Ok(loaded) if loaded.sources.iter().any(|of| is_same(&of.file, &file)) => {
                unknown.push(printable(&one))
            }
            Ok(_) => {}
        }
    }
    drop(tried);
    if !broken.is_empty() {
        bail!("with that entry these profiles, which extend it, would not be valid: {}", broken.join(", "));
    }
    if !unknown.is_empty() {
        bail!(
            "these profiles extend it by its path, through others, so that nothing tells whether they would be valid: {}; add the entry by hand",
            unknown.join(", ")
        );
    }
    Ok(())
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().ok().is_some_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// The folder, which goes with this.
struct Tried<'a> {
    within: &'a Dir,
    name: OsString,
    folder: Dir,
}

impl<'a> Tried<'a> {
    fn make(within: &'a Dir, name: OsString) -> std::io::Result<Self> {
        let folder = within.make_new_below(&name, 0o700)?;
        Ok(Self { within, name, folder })
    }

    /// The host's own sets of hosts, as they are.
    fn put_sets(&self, system: &Path) -> anyhow::Result<()> {
        let sets = system.join(SETS_DIR);
        if sets.is_dir() {
            self.folder.link(&std::path::absolute(sets)?, OsStr::new(SETS_DIR))?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.within.path().join(&self.name)
    }

    /// A profile as it is, or changed; one that extends the changed one by its path extends that.
    fn put(&self, profile: &Path, file: &Path, changed: &Path) -> anyhow::Result<()> {
        let Some(name) = profile.file_name() else { return Ok(()) };
        let target = if is_same(profile, file) { changed } else { profile };
        let said = || format!("nothing can be written in {}", printable(&self.path().display().to_string()));
        match by_path(profile, file, changed) {
            Some(text) => {
                let access = ringfence_files::Access::like(fs::File::open(profile)?)?;
                self.folder.replace(name, text.as_bytes(), access).with_context(said)
            }
            None => self.folder.link(&std::path::absolute(target)?, name).with_context(said),
        }
    }
}

impl Drop for Tried<'_> {
    fn drop(&mut self) {
        for name in self.folder.names().unwrap_or_default() {
            let _ = self.folder.remove(&name);
        }
        let _ = self.within.remove_dir(&self.name);
    }
}

/// The text of a profile that extends a file by its path, with another path there.
fn by_path(profile: &Path, file: &Path, changed: &Path) -> Option<String> {
    let mut text: DocumentMut = fs::read_to_string(profile).ok()?.parse().ok()?;
    let extends = text.get("extends")?.as_str()?;
    if !extends.starts_with('/') || !is_same(Path::new(extends), file) {
        return None;
    }
    text["extends"] = toml_edit::value(std::path::absolute(changed).ok()?.to_str()?);
    Some(text.to_string())
}
