//! What the guest gets beside its Debian: the agent, the job, ringfence, profiles and added files, as one tar that is a disk.

use crate::paths::workspace;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// A file or folder of the host and its place in the guest.
#[derive(Clone, Debug)]
pub(crate) struct Added {
    /// On the host.
    pub(crate) host: PathBuf,
    /// In the guest; absolute.
    pub(crate) guest: PathBuf,
}

impl std::str::FromStr for Added {
    type Err = String;

    fn from_str(text: &str) -> Result<Added, String> {
        // The guest's side is what follows the last colon: it has none, and the host's may.
        let Some((host, guest)) = text.rsplit_once(':') else {
            return Err("expected HOST:GUEST, for example ./data:/srv/data".to_owned());
        };
        let guest = PathBuf::from(guest);
        if host.is_empty()
            || !guest.is_absolute()
            || guest.components().any(|part| part == Component::ParentDir)
        {
            return Err(
                "expected HOST:GUEST with an absolute path in the guest, for example ./data:/srv/data"
                    .to_owned(),
            );
        }
        Ok(Added { host: PathBuf::from(host), guest })
    }
}

/// A disk of tar format being written.
pub(crate) struct Payload {
    tar: Builder<BufWriter<File>>,
}

impl Payload {
    /// Starts one with the guest's agent in it.
    pub(crate) fn create(path: &Path) -> Result<Payload> {
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut payload = Payload { tar: Builder::new(BufWriter::new(file)) };
        payload.tar.follow_symlinks(false);
        let agent = workspace().join("vm-tests/guest/agent.py");
        payload.add(&Added { host: agent, guest: "/run/ringfence-guest/agent.py".into() })?;
        Ok(payload)
    }

    /// Adds a file of ours.
    pub(crate) fn write(&mut self, guest: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let mut header = header(mode, EntryType::Regular, bytes.len() as u64);
        let name = guest.trim_start_matches('/');
        self.tar
            .append_data(&mut header, name, bytes)
            .with_context(|| format!("cannot add {guest} to the payload"))
    }

    /// Adds a file, or a folder and all in it: root's, with the modes they have.
    pub(crate) fn add(&mut self, added: &Added) -> Result<()> {
        let meta =
            fs::metadata(&added.host).with_context(|| format!("cannot add {}", added.host.display()))?;
        if meta.is_dir() {
            return self.add_folder(&added.host, &added.guest);
        }
        self.add_file(&added.host, &added.guest)
    }

    fn add_folder(&mut self, host: &Path, guest: &Path) -> Result<()> {
        let cannot = || format!("cannot add the folder {}", host.display());
        let meta = fs::metadata(host).with_context(cannot)?;
        // The guest's root keeps its own mode.
        if guest != Path::new("/") {
            let mut header = header(meta.permissions().mode(), EntryType::Directory, 0);
            self.tar.append_data(&mut header, inside(guest), std::io::empty()).with_context(cannot)?;
        }
        for entry in fs::read_dir(host).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let (path, kind) = (entry.path(), entry.file_type().with_context(cannot)?);
            let place = guest.join(entry.file_name());
            if kind.is_symlink() {
                let target =
                    fs::read_link(&path).with_context(|| format!("cannot read {}", path.display()))?;
                self.tar
                    .append_link(&mut header(0o777, EntryType::Symlink, 0), inside(&place), target)
                    .with_context(|| format!("cannot add {}", path.display()))?;
            } else if kind.is_dir() {
                self.add_folder(&path, &place)?;
            } else if kind.is_file() {
                self.add_file(&path, &place)?;
            } else if kind.is_socket() || kind.is_fifo() {
                bail!("cannot add {}: it is a socket or a pipe, not a file", path.display());
            }
        }
        Ok(())
    }

    fn add_file(&mut self, host: &Path, guest: &Path) -> Result<()> {
        let cannot = || format!("cannot add {}", host.display());
        let file = File::open(host).with_context(cannot)?;
        let meta = file.metadata().with_context(cannot)?;
        let mut header = header(meta.permissions().mode(), EntryType::Regular, meta.len());
        // A file that grows meanwhile must not break the archive.
        self.tar.append_data(&mut header, inside(guest), file.take(meta.len())).with_context(cannot)
    }

    /// Ends the archive, padded to whole sectors.
    pub(crate) fn finish(self) -> Result<()> {
        let mut file = self.tar.into_inner().context("cannot finish the payload")?;
        file.flush().context("cannot write the payload")?;
        let file =
            file.into_inner().map_err(|error| error.into_error()).context("cannot write the payload")?;
        let length = file.metadata().context("cannot measure the payload")?.len();
        file.set_len(length.next_multiple_of(1 << 20)).context("cannot pad the payload")
    }
}

fn inside(guest: &Path) -> &Path {
    guest.strip_prefix("/").unwrap_or(guest)
}

fn header(mode: u32, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode & 0o7777);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}

#[cfg(test)]
mod tests {
    use super::{Added, Payload, header};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_addition_names_an_absolute_place_in_the_guest() {
        let added: Added = "./a:b:/srv/x".parse().unwrap();
        assert_eq!((added.host.to_str(), added.guest.to_str()), (Some("./a:b"), Some("/srv/x")));
        for bad in ["x", "x:y", ":/y", "x:/../y", "x:"] {
            assert!(bad.parse::<Added>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_are_roots_and_keep_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "text").unwrap();
        std::fs::set_permissions(dir.path().join("d/f"), std::fs::Permissions::from_mode(0o4751)).unwrap();
        let mut payload = Payload {
            tar: tar::Builder::new(std::io::BufWriter::new(
                std::fs::File::create(dir.path().join("tar")).unwrap(),
            )),
        };
        payload.add(&Added { host: dir.path().join("d"), guest: "/srv".into() }).unwrap();
        payload.finish().unwrap();
        let mut archive = tar::Archive::new(std::fs::File::open(dir.path().join("tar")).unwrap());
        let seen: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let header = entry.unwrap().header().clone();
                (header.path().unwrap().display().to_string(), header.mode().unwrap(), header.uid().unwrap())
            })
            .collect();
        assert_eq!(seen[1], ("srv/f".to_owned(), 0o4751, 0));
        assert_eq!(header(0o100_644, tar::EntryType::Regular, 0).mode().unwrap(), 0o644);
    }
}
