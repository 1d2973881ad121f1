//! Symlinks in rules, resolved inside a container's root, by names alone: nothing is opened.
//!
//! The kernel judges the path it ends up at, so a rule over `/bin` must be filed under `/usr/bin` where `/bin` is a
//! link. What does not exist is kept as it is written. Nothing below `/proc` is followed: its links answer
//! differently to each process.

use nix::sys::stat::{major, minor};
use std::{
    collections::{HashMap, VecDeque},
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// Links followed before a path counts as a loop, as in the kernel.
const MAX_LINKS: usize = 40;

/// Where PATH is searched for bare names.
pub(crate) const PATH_DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// How the names of terminals and of consoles' memory begin.
const TERMINALS: [&str; 4] = ["tty", "console", "hvc", "vcs"];

/// What a name in the root is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Missing,
    Directory,
    BlockDevice,
    File { executable: bool },
    Link(Vec<u8>),
}

/// A path in its resolved form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Absolute, below the root.
    pub(super) path: Vec<u8>,
    /// It was there.
    pub(super) exists: bool,
    /// Each link that was followed: where it is.
    pub(super) links: Vec<Vec<u8>>,
    /// The whole path as it was before each link was followed.
    pub(super) before: Vec<Vec<u8>>,
}

/// Resolves paths in one root; remembers what it saw.
pub(super) struct Resolver {
    root: PathBuf,
    seen: HashMap<Vec<u8>, Node>,
}

impl Resolver {
    /// For a root directory.
    ///
    /// # Errors
    /// The root is not a directory, or cannot be looked at.
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        if !fs::metadata(root)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { root: root.to_owned(), seen: HashMap::new() })
    }

    /// Follows every link in an absolute path, the last component's too.
    pub(super) fn resolve(&mut self, path: &[u8]) -> Resolved {
        let mut out = Resolved { path: Vec::new(), exists: true, links: Vec::new(), before: Vec::new() };
        let mut left: VecDeque<Vec<u8>> = components(path);
        while let Some(name) = left.pop_front() {
            if name == b".." {
                let end = out.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
                out.path.truncate(end);
                continue;
            }
            let literal = !out.exists || out.path == b"/proc";
            out.path.push(b'/');
            out.path.extend_from_slice(&name);
            if literal {
                continue;
            }
            match self.look(&out.path) {
                Node::Link(target) if out.links.len() < MAX_LINKS => {
                    out.links.push(out.path.clone());
                    let mut before = out.path.clone();
                    for later in &left {
                        before.push(b'/');
                        before.extend_from_slice(later);
                    }
                    out.before.push(before);
                    let end = out.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
                    out.path.truncate(if target.starts_with(b"/") { 0 } else { end });
                    for component in components(&target).into_iter().rev() {
                        left.push_front(component);
                    }
                }
                Node::Link(_) | Node::Missing => out.exists = false,
                Node::Directory | Node::File { .. } | Node::BlockDevice => {}
            }
            // The rest of a path below /proc is taken as it is.
            if out.path.starts_with(b"/proc/") {
                for later in left.drain(..).filter(|c| c != b"..") {
                    out.path.push(b'/');
                    out.path.extend_from_slice(&later);
                }
            }
        }
        if out.path.is_empty() {
            out.path.push(b'/');
        }
        out
    }

    /// The file that PATH finds for a bare name: the first that may be executed.
    pub(super) fn program(&mut self, name: &str) -> Option<Resolved> {
        PATH_DIRS.iter().find_map(|dir| {
            let resolved = self.resolve(format!("{dir}/{name}").as_bytes());
            let found = resolved.exists && self.look(&resolved.path) == Node::File { executable: true };
            found.then_some(resolved)
        })
    }

    /// Whether a resolved path is a directory.
    pub(super) fn is_directory(&mut self, path: &[u8]) -> bool {
        path == b"/" || self.look(path) == Node::Directory
    }

    /// The block devices and terminals directly in `/dev`, but for `/dev/tty`, which is the caller's own.
    pub(super) fn disks_and_terminals(&mut self) -> Vec<String> {
        let dev = self.resolve(b"/dev");
        let Ok(entries) = fs::read_dir(self.host(&dev.path)) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| {
            let (kind, name) = (entry.file_type().ok()?, entry.file_name().into_string().ok()?);
            let is_terminal = name != "tty" && TERMINALS.iter().any(|prefix| name.starts_with(prefix));
            (kind.is_block_device() || kind.is_char_device() && is_terminal).then_some(name)
        });
        names.map(|name| format!("/dev/{name}")).collect()
    }

    /// The number of the device at a path, links resolved, and whether it is a block device.
    pub(super) fn device(&mut self, path: &str) -> Option<(u64, bool)> {
        let resolved = self.resolve(path.as_bytes()).path;
        let meta = fs::symlink_metadata(self.host(&resolved)).ok()?;
        let (kind, number) = (meta.file_type(), meta.rdev());
        // As the kernel has it inside, not as stat(2) gives it.
        let number = major(number) << 20 | minor(number);
        (kind.is_char_device() || kind.is_block_device()).then_some((number, kind.is_block_device()))
    }

    /// The device number of the file system that is mounted at a path; `None`: there is no directory, or nothing is mounted.
    pub(super) fn mounted(&mut self, path: &str) -> Option<u64> {
        let resolved = self.resolve(path.as_bytes()).path;
        let resolved = self.host(&resolved);
        let (meta, above) =
            (fs::symlink_metadata(&resolved).ok()?, fs::symlink_metadata(resolved.parent()?).ok()?);
        // As the kernel has it inside, not as stat(2) gives it.
        let number = major(meta.dev()) << 20 | minor(meta.dev());
        (meta.is_dir() && meta.dev() != above.dev()).then_some(number)
    }

    fn host(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
    }

    fn look(&mut self, path: &[u8]) -> Node {
        if let Some(node) = self.seen.get(path) {
            return node.clone();
        }
        let host = self.host(path);
        let node = match fs::symlink_metadata(&host) {
            Err(_) => Node::Missing,
            Ok(meta) if meta.is_symlink() => match fs::read_link(&host) {
                Ok(target) => Node::Link(target.as_os_str().as_bytes().to_vec()),
                Err(_) => Node::Missing,
            },
            Ok(meta) if meta.is_dir() => Node::Directory,
            Ok(meta) if meta.file_type().is_block_device() => Node::BlockDevice,
            Ok(meta) => Node::File { executable: meta.is_file() && meta.permissions().mode() & 0o111 != 0 },
        };
        self.seen.insert(path.to_vec(), node.clone());
        node
    }
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".");
    names.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root() -> (tempfile::TempDir, Resolver) {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        for d in ["usr/bin", "usr/local/bin", "a/b", "proc/self"] {
            fs::create_dir_all(at(d)).unwrap();
        }
        symlink("usr/bin", at("bin")).unwrap();
        symlink("/a/b", at("abs")).unwrap();
        symlink("../../../../../../../a", at("a/b/up")).unwrap();
        symlink("loop2", at("loop1")).unwrap();
        symlink("loop1", at("loop2")).unwrap();
        symlink("/gone/x", at("dangling")).unwrap();
        symlink("/proc/self/fd", at("fd")).unwrap();
        fs::write(at("usr/bin/tool"), "").unwrap();
        fs::set_permissions(at("usr/bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at("usr/local/bin/tool"), "not executable").unwrap();
        fs::set_permissions(at("usr/local/bin/tool"), fs::Permissions::from_mode(0o644)).unwrap();
        let resolver = Resolver::new(dir.path()).unwrap();
        (dir, resolver)
    }

    fn text(resolver: &mut Resolver, path: &str) -> String {
        String::from_utf8(resolver.resolve(path.as_bytes()).path).unwrap()
    }

    #[test]
    fn follows_links_inside_the_root() {
        let (_dir, mut r) = root();
        assert_eq!(text(&mut r, "/bin/tool"), "/usr/bin/tool");
        assert_eq!(text(&mut r, "/abs/c"), "/a/b/c");
        assert_eq!(text(&mut r, "/a/b/up/b"), "/a/b", "`..` stops at the root");
        assert_eq!(text(&mut r, "/"), "/");
        assert_eq!(r.resolve(b"/bin/tool").links, [b"/bin"]);
        assert_eq!(r.resolve(b"/bin/tool").before, [b"/bin/tool"]);
    }

    #[test]
    fn keeps_what_is_not_there_and_what_is_in_proc() {
        let (_dir, mut r) = root();
        assert_eq!(text(&mut r, "/bin/none/x"), "/usr/bin/none/x");
        assert!(!r.resolve(b"/bin/none/x").exists);
        assert_eq!(text(&mut r, "/dangling/y"), "/gone/x/y");
        assert!(!r.resolve(b"/loop1").exists);
        assert_eq!(text(&mut r, "/fd/3"), "/proc/self/fd/3");
    }

    #[test]
    fn path_finds_the_first_executable() {
        let (_dir, mut r) = root();
        assert_eq!(r.program("tool").unwrap().path, b"/usr/bin/tool");
        assert_eq!(r.program("none"), None);
        assert_eq!(r.program(".."), None);
    }
}
