//! Where an agent is on this host: the user id and the directory of its worker, its socket.
//!
//! A worker's user id is a number of its own, in a range that neither distributions nor container engines nor systemd
//! give out, and needs no entry in the user database. It is kept as the owner of that directory.

use crate::{core::paths::Paths, llm::serve};
use nix::unistd::{Gid, Uid, chown};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

/// User ids of workers. Debian and systemd give out ids below 65536, `useradd` subordinate ones from 100000 on.
const UIDS: std::ops::RangeInclusive<u32> = 70_000..=74_095;

/// Why an agent has no place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A directory.
    #[error("cannot use {}", .0.display())]
    Dir(PathBuf, #[source] io::Error),
    /// More agents than ids.
    #[error("there are more agents than user ids for their workers ({} to {})", UIDS.start(), UIDS.end())]
    TooMany,
    /// The socket.
    #[error(transparent)]
    Socket(#[from] serve::Error),
}

/// Makes the directory of an agent's worker, if it is not there, and gives the user id of its worker: the directory's owner.
pub(super) fn own_dir(paths: &Paths, name: &str) -> Result<(PathBuf, u32), Error> {
    let all = paths.agents();
    let dir = all.join(name);
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Dir(path, source)
    };
    // Others than the worker see nothing in it but their own.
    make_dir(&all, 0o711).map_err(fail(&all))?;
    let mut taken = Vec::new();
    for entry in fs::read_dir(&all).map_err(fail(&all))? {
        let entry = entry.map_err(fail(&all))?;
        let owner = entry.metadata().map_err(fail(&all))?.uid();
        if UIDS.contains(&owner) {
            if entry.file_name().as_encoded_bytes() == name.as_bytes() {
                return Ok((dir, owner));
            }
            taken.push(owner);
        }
    }
    let uid = UIDS.into_iter().find(|uid| !taken.contains(uid)).ok_or(Error::TooMany)?;
    make_dir(&dir, 0o700).map_err(fail(&dir))?;
    give(&dir, uid).map_err(fail(&dir))?;
    Ok((dir, uid))
}

/// The socket and the link to it, as they are in the directory of all sockets.
pub(super) fn socket(paths: &Paths, name: &str) -> (PathBuf, PathBuf) {
    let all = paths.agent_sockets();
    (paths.agent_socket(name), all.join(format!("{name}.sock")))
}

/// What an agent's worker listens on.
#[derive(Debug)]
pub(super) struct Sockets {
    owner: u32,
    pub(super) agent: UnixListener,
    /// The provider's own API, where the profile has it served.
    pub(super) http: Option<UnixListener>,
}

impl Sockets {
    /// Binds an agent's sockets: 0600 in a directory of its own, 0700, all its owner's.
    pub(super) fn bind(paths: &Paths, name: &str, owner: u32, http: bool) -> Result<Self, Error> {
        let all = paths.agent_sockets();
        let (socket, link) = socket(paths, name);
        let dir = all.join(name);
        let fail = |source| Error::Dir(dir.clone(), source);
        make_dir(&all, 0o711).map_err(fail)?;
        // What was given away is taken back first: root without CAP_DAC_OVERRIDE enters no other's directory.
        if dir.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            give(&dir, 0).map_err(fail)?;
        }
        let agent = serve::bind(&socket)?;
        serve::link(&link, &socket)?;
        give(&socket, owner).map_err(fail)?;
        let path = paths.agent_http_socket(name);
        let http = match http {
            true => {
                let listener = serve::bind(&path)?;
                give(&path, owner).map_err(fail)?;
                Some(listener)
            }
            false => {
                // Of a profile that had one.
                let _ = fs::remove_file(&path);
                None
            }
        };
        give(&dir, owner).map_err(fail)?;
        Ok(Self { owner, agent, http })
    }

    /// Whether they are what such a profile wants.
    pub(super) fn fit(&self, owner: u32, http: bool) -> bool {
        self.owner == owner && self.http.is_some() == http
    }
}

/// Removes an agent's sockets.
pub(super) fn unbind(paths: &Paths, name: &str) {
    let (socket, link) = socket(paths, name);
    if let Some(dir) = socket.parent() {
        let _ = give(dir, 0);
    }
    let _ = fs::remove_file(paths.agent_http_socket(name));
    serve::unbind(&link, &socket);
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn give(path: &Path, uid: u32) -> io::Result<()> {
    Ok(chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path) -> Paths {
        Paths {
            runtime: dir.join("run"),
            state: dir.join("state"),
            config: dir.join("etc"),
            pins: dir.join("pins"),
        }
    }

    #[test]
    fn each_agent_has_a_user_id_of_its_own_and_keeps_it() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        let (a_dir, a) = own_dir(&paths, "a").unwrap();
        let (_, b) = own_dir(&paths, "b").unwrap();
        assert_ne!(a, b);
        assert!(UIDS.contains(&a) && UIDS.contains(&b));
        assert_eq!(own_dir(&paths, "a").unwrap().1, a);
        let meta = fs::metadata(&a_dir).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (a, 0o700));
        fs::remove_dir(&a_dir).unwrap();
        assert_eq!(own_dir(&paths, "c").unwrap().1, a, "an id that nobody has is given out again");
    }

    #[test]
    fn a_socket_is_its_owner_s_and_is_bound_again() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        for _ in 0..2 {
            let sockets = Sockets::bind(&paths, "a", 1234, true).unwrap();
            assert!(sockets.fit(1234, true) && !sockets.fit(1234, false) && !sockets.fit(0, true));
            let (path, link) = socket(&paths, "a");
            let http = paths.agent_http_socket("a");
            for (path, mode) in [(&*path, 0o600), (&*http, 0o600), (path.parent().unwrap(), 0o700)] {
                let meta = fs::metadata(path).unwrap();
                assert_eq!((meta.uid(), meta.mode() & 0o777), (1234, mode), "{}", path.display());
            }
            std::os::unix::net::UnixStream::connect(link).unwrap();
            std::os::unix::net::UnixStream::connect(http).unwrap();
            drop(sockets);
        }
        let sockets = Sockets::bind(&paths, "a", 1234, false).unwrap();
        assert!(sockets.http.is_none() && !paths.agent_http_socket("a").exists());
        unbind(&paths, "a");
        assert!(!socket(&paths, "a").0.parent().unwrap().exists());
    }
}
