//! The paths of a grant as they are on this machine: links followed once, when the session begins.

use ringfence_grant::{Entry, Grant, NetEntry, PathEntry, Scope};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Most links on the way to one path, as the kernel has it.
const MAX_LINKS: usize = 40;

/// The same grant, with the links in its rules followed. What does not exist stays as it is written; so does a rule that
/// leads through a link which the grant itself lets be written, for whoever points it elsewhere would widen the grant.
///
/// Done once: a link that is changed later does not change what is granted.
pub fn resolve_links(grant: &Grant) -> Grant {
    let path = |entry: &PathEntry| resolve_entry(entry, &grant.fs_write);
    let paths = |scope: &Scope<PathEntry>| map(scope, path);
    Grant {
        fs_read: paths(&grant.fs_read),
        fs_write: paths(&grant.fs_write),
        // A bare name's paths are everywhere; what it finds is looked for at each call.
        exec: map(&grant.exec, |entry| entry.with_paths(path(entry.paths()))),
        net: map(&grant.net, |entry| match entry {
            NetEntry::Unix(socket) => NetEntry::Unix(path(socket)),
            other => other.clone(),
        }),
        ..grant.clone()
    }
}

fn map<E: Entry>(scope: &Scope<E>, with: impl Fn(&E) -> E) -> Scope<E> {
    match scope {
        Scope::All => Scope::All,
        Scope::Only(entries) => Scope::only(entries.iter().map(with)),
    }
}

/// One path entry, as [`resolve_links`] has it.
pub fn resolve_entry(entry: &PathEntry, writable: &Scope<PathEntry>) -> PathEntry {
    let followed = follow(Path::new(entry.anchor()), writable);
    let anchor = followed.as_deref().and_then(Path::to_str);
    anchor.and_then(|anchor| entry.moved_to(anchor).ok()).unwrap_or_else(|| entry.clone())
}

/// The path with every link on its way followed; `None`: one of them may be written, or they lead in a circle.
fn follow(path: &Path, writable: &Scope<PathEntry>) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let mut above: Vec<&Path> = path.ancestors().collect();
        above.reverse();
        let is_link = |part: &&&Path| fs::symlink_metadata(part).is_ok_and(|m| m.is_symlink());
        let Some(link) = above.iter().find(is_link) else { return Some(path) };
        let itself = PathEntry::exact(link.to_str()?).ok()?;
        if *writable != Scope::All && writable.contains(&itself) {
            return None;
        }
        let target = link.parent()?.join(fs::read_link(link).ok()?);
        // `..` right behind a link means the directory above what the link leads to; that part has no links any more.
        let rest = path.strip_prefix(link).ok()?;
        let before = target.canonicalize().unwrap_or(target);
        path = if rest.as_os_str().is_empty() { before } else { before.join(rest) };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_unless_they_may_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        fs::create_dir_all(dir.join("real/sub")).unwrap();
        fs::create_dir(dir.join("open")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        symlink("../real", dir.join("open/link")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let scope = |paths: &[String]| Scope::only(paths.iter().map(|p| p.parse::<PathEntry>().unwrap()));
        let grant =
            |read: &[String]| Grant { fs_read: scope(read), fs_write: scope(&[at("open")]), ..Grant::top() };
        let resolved = |path: &str| resolve_links(&grant(&[at(path)])).fs_read;
        assert_eq!(resolved("link/sub/*"), scope(&[at("real/sub/*")]));
        assert_eq!(resolved("link/absent"), scope(&[at("real/absent")]));
        assert_eq!(resolved("open/link"), scope(&[at("open/link")]));
        assert_eq!(resolved("loop"), scope(&[at("loop")]));
        assert_eq!(resolve_links(&grant(&["**/x".into()])).fs_read, scope(&["**/x".into()]));
        let bin = Grant { exec: Scope::only(["git".parse().unwrap()]), ..Grant::bottom() };
        assert_eq!(resolve_links(&bin), bin);
    }
}
