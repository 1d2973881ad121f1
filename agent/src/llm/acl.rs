//! Lets one user beside its owner use a file: a POSIX ACL, which an owner can set without being root.
//!
//! acl(5); the form is that of `include/uapi/linux/posix_acl_xattr.h`.

use rustix::{
    fs::{XattrFlags, lremovexattr, lsetxattr},
    io::Errno,
};
use std::{fs, io, os::unix::fs::PermissionsExt, path::Path};

const NAME: &str = "system.posix_acl_access";
/// In place of a user's or group's id, where an entry has none.
const NOBODY: u32 = u32::MAX;

/// Gives `user` the permissions `theirs` (`rwx` as bits), its owner `own`, and nobody else any. Without a user it takes
/// an earlier one's away.
///
/// # Errors
/// Not the owner, or a file system without ACLs.
pub(super) fn share(path: &Path, user: Option<u32>, own: u16, theirs: u16) -> io::Result<()> {
    let Some(user) = user else {
        match lremovexattr(path, NAME) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
        // The bits that stood for the named user would now be the group's.
        return fs::set_permissions(path, fs::Permissions::from_mode(u32::from(own) << 6));
    };
    // Owner, one named user, owning group, mask, others: in ascending order of tags.
    let entries = [
        (0x01, own, NOBODY),
        (0x02, theirs, user),
        (0x04, 0, NOBODY),
        (0x10, theirs, NOBODY),
        (0x20, 0, NOBODY),
    ];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(permissions));
        acl.extend(u32::to_le_bytes(id));
    }
    lsetxattr(path, NAME, &acl, XattrFlags::empty()).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_taken_away_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "").unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        share(&path, Some(12345), 0o6, 0o4).unwrap();
        assert_eq!(mode(), 0o640, "the mask");
        share(&path, None, 0o6, 0o4).unwrap();
        assert_eq!(mode(), 0o600);
        share(&path, None, 0o6, 0o4).unwrap();
    }
}
