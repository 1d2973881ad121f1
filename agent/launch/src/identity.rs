//! The user that `--user` names.

use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::{ffi::CString, path::PathBuf};

/// A user of this host, with everything a login would give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: Uid,
    /// Primary group.
    pub gid: Gid,
    /// All groups, the primary one included.
    pub groups: Vec<Gid>,
    /// Home directory.
    pub home: PathBuf,
    /// Login shell.
    pub shell: PathBuf,
}

/// Why a user cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error("there is no user {0} on this host")]
    Unknown(String),
    /// The user database cannot be read.
    #[error("cannot look up user {name}")]
    Lookup {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: nix::Error,
    },
    /// Only root may become another user.
    #[error("only root may run a command as another user ({0}); leave out --user, or use sudo")]
    NotRoot(String),
}

impl Identity {
    /// Looks a user up by name or, if there is no such name, by number.
    ///
    /// # Errors
    /// [`Error`]
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        let lookup = |source| Error::Lookup { name: name.into(), source };
        let by_name = User::from_name(name).map_err(lookup)?;
        let user = match (by_name, name.parse()) {
            (Some(user), _) => user,
            (None, Ok(uid)) => User::from_uid(Uid::from_raw(uid))
                .map_err(lookup)?
                .ok_or_else(|| Error::Unknown(name.into()))?,
            (None, Err(_)) => return Err(Error::Unknown(name.into())),
        };
        let this = nix::unistd::geteuid();
        if !this.is_root() && this != user.uid {
            return Err(Error::NotRoot(name.into()));
        }
        let c_name = CString::new(user.name.as_str()).map_err(|_| Error::Unknown(name.into()))?;
        let groups = getgrouplist(&c_name, user.gid).map_err(lookup)?;
        let User { name, uid, gid, dir: home, shell, .. } = user;
        Ok(Self { name, uid, gid, groups, home, shell })
    }

    /// Whether this is the user that the process already is.
    pub(crate) fn is_current(&self) -> bool {
        nix::unistd::geteuid() == self.uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_number() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let nobody = Identity::named("nobody").unwrap();
        assert_ne!(nobody.uid, Uid::from_raw(0));
        assert!(nobody.groups.contains(&nobody.gid));
        assert_eq!(Identity::named(&nobody.uid.to_string()).unwrap(), nobody);
        assert!(!nobody.is_current());
    }

    #[test]
    fn an_unknown_user_is_named() {
        for name in ["no-such-user-here", "4294967294", "a\0b"] {
            let error = Identity::named(name).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
