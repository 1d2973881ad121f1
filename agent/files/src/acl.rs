//! Lets one user beside its owner use a file: a POSIX ACL, which an owner can set without being root. Whether there is one.
//!
//! acl(5); the form is that of `include/uapi/linux/posix_acl_xattr.h`.

use crate::entry::{by_proc, set_mode};
use rustix::{
    fd::BorrowedFd,
    fs::{XattrFlags, fremovexattr, fsetxattr, getxattr, removexattr, setxattr},
    io::Errno,
};
use std::io;

const NAME: &str = "system.posix_acl_access";
/// In place of a user's or group's id, where an entry has none.
const NOBODY: u32 = u32::MAX;

/// Who may do what, as bits of `rwx` (0 to 7): the owner, and the one other user. Nobody else may do anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permissions {
    /// The owner's.
    pub own: u16,
    /// The other user's.
    pub theirs: u16,
}

/// Whether it has one; also where that cannot be told. By its path, for a descriptor opened with `O_PATH` has no attributes.
pub(crate) fn is_there(fd: BorrowedFd<'_>) -> bool {
    !matches!(getxattr(by_proc(fd), NAME, &mut [0_u8; 0]), Err(Errno::NODATA | Errno::NOTSUP))
}

/// Takes away the one that it has, as a new file has the default one of its directory. The mode is to be set anew then.
pub(crate) fn remove(fd: BorrowedFd<'_>) -> io::Result<()> {
    let removed = match fremovexattr(fd, NAME) {
        Err(Errno::BADF) => removexattr(by_proc(fd), NAME),
        done => done,
    };
    match removed {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn share(fd: BorrowedFd<'_>, user: Option<u32>, permissions: Permissions) -> io::Result<()> {
    let Permissions { own, theirs } = permissions;
    let Some(user) = user else {
        remove(fd)?;
        // The bits that stood for the named user would now be the group's.
        return set_mode(fd, u32::from(own) << 6);
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
    match fsetxattr(fd, NAME, &acl, XattrFlags::empty()) {
        Err(Errno::BADF) => Ok(setxattr(by_proc(fd), NAME, &acl, XattrFlags::empty())?),
        done => Ok(done?),
    }
}
