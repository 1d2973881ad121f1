//! What `${WORKDIR}` may stand for.

use super::{
    base,
    fixed::Fixed,
    problem::Wrong,
    resolve::{Resolved, Resolver},
};
use ringfence_common::policy::axis::{READ, WRITE};
use ringfence_grant::PathEntry;
use std::path::{Path, PathBuf};

/// What `${WORKDIR}` stands for.
pub(crate) enum Workdir {
    /// Nothing: none was given.
    None,
    /// A directory, with its links resolved.
    Dir(PathBuf),
    /// A directory that must not be granted by this name, and why.
    Closed(PathBuf, &'static str),
}

/// The user who starts the command chooses the working directory, so it must not grant a protected place, or everything. Its
/// links are followed once, when the container is entered, since the container may be able to replace them.
pub(crate) fn check(resolver: &mut Resolver, fixed: &mut Fixed, dir: &Path) -> Result<Workdir, Wrong> {
    let bad = |why| Wrong::BadWorkdir { dir: dir.to_owned(), why };
    let text = dir.to_str().ok_or_else(|| bad("its name is not UTF-8"))?;
    let literal =
        PathEntry::tree(text).map_err(|_| bad("it is not an absolute path without `.` and `..`"))?;
    let named = literal.anchor().as_bytes();
    let resolved = match fixed.path(named) {
        Some(then) => then,
        None => {
            let now = resolver.resolve(named);
            fixed.fix(named, &now);
            // The rules that begin with it say its real name.
            let real = Resolved {
                path: now.path.clone(),
                exists: now.exists,
                links: Vec::new(),
                before: Vec::new(),
            };
            fixed.fix(&now.path, &real);
            now
        }
    };
    let path = String::from_utf8(resolved.path).map_err(|_| bad("its name is not UTF-8"))?;
    if path == "/" {
        return Ok(Workdir::Closed(
            path.into(),
            "the working directory is the root, so this would grant everything",
        ));
    }
    let protected =
        base::PROTECTED.iter().filter(|(_, axes)| axes & (READ | WRITE) != 0).map(|(place, _)| *place);
    for place in protected.chain(["/proc"]) {
        let place = resolver.resolve(place.as_bytes()).path;
        let inside = path.as_bytes().strip_prefix(place.as_slice());
        if inside.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
            return Ok(Workdir::Closed(path.into(), "the working directory lies in a protected place"));
        }
    }
    Ok(Workdir::Dir(path.into()))
}
