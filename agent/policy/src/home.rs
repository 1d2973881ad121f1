//! What `${HOME}` stands for: the home, in the host's user database, of the user that a command runs as. Not the variable
//! HOME, which the caller can set to anything.

use super::base;
use nix::unistd::{Uid, User, geteuid};
use ringfence_common::policy::axis::{READ, WRITE};
use std::path::{Component, Path, PathBuf};

/// The home of a user; `None` if there is no such user, or if the home is `/` or a protected place.
pub fn of(uid: u32) -> Option<PathBuf> {
    let home = User::from_uid(Uid::from_raw(uid)).ok()??.dir;
    is_own(&home).then_some(home)
}

/// The home of the user that this process acts as.
pub(crate) fn of_this_user() -> Option<PathBuf> {
    of(geteuid().as_raw())
}

fn is_own(home: &Path) -> bool {
    let plain = home.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let protected = base::PROTECTED.iter().filter(|(_, axes)| axes & (READ | WRITE) != 0);
    home.is_absolute()
        && plain
        && home.components().count() > 1
        && home.to_str().is_some()
        && protected.map(|(place, _)| *place).chain(["/proc"]).all(|place| !home.starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_a_directory_of_one_s_own() {
        for own in ["/root", "/home/u", "/var/lib/postgresql"] {
            assert!(is_own(Path::new(own)), "{own}");
        }
        for other in
            ["/", "", "home", "/home/../etc", "/proc/1", "/dev", "/run/ringfence/x", "/etc/ringfence"]
        {
            assert!(!is_own(Path::new(other)), "{other}");
        }
    }
}
