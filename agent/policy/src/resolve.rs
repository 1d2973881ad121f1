//! Symlinks in rules, resolved inside a container's root, by names alone: nothing is opened.
//!
//! The kernel judges the path it ends up at, so a rule over `/bin` must be filed under `/usr/bin` where `/bin` is a
//! link. What does not exist is kept as it is written. Nothing below `/proc` is followed: its links answer
//! differently to each process.

use nix::sys::stat::{major, minor};
use std::{
    collections::{HashMap, VecDeque},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// Links followed before a path counts as a loop, as in the kernel.
const MAX_LINKS: usize = 40;

/// Longest path that a link is followed in, bytes: the kernel's PATH_MAX. The kernel holds each text of a link to that, not all of
/// them together; but what is longer on the way can be reached only through links that somebody made for it.
const LONGEST_PATH: usize = 4096;

/// Most bytes of [`Resolved::links`] and [`Resolved::before`] of one path. Every rule of a container may lead through the same
/// links, and what they come to is kept for each.
const MOST_BYTES: usize = 2 * LONGEST_PATH;

/// Most bytes that a resolver remembers of what it saw, and what each name takes beside its own bytes, about.
const MOST_SEEN: usize = 16 << 20;
const SEEN_EACH: usize = 96;

/// Most names that are taken of a directory: more than a compiled policy may have places, which so is refused.
const MOST_NAMES: usize = 1 << 17;

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
pub struct Resolved {
    /// Absolute, below the root.
    pub path: Vec<u8>,
    /// It was there.
    pub exists: bool,
    /// Each link that was followed: where it is.
    pub links: Vec<Vec<u8>>,
    /// The whole path as it was before each link was followed.
    pub before: Vec<Vec<u8>>,
}

impl Resolved {
    /// How long it is, all in all.
    pub fn bytes(&self) -> usize {
        let all = |paths: &[Vec<u8>]| paths.iter().map(Vec::len).sum::<usize>();
        self.path.len() + all(&self.links) + all(&self.before)
    }
}

/// Resolves paths in one root; remembers what it saw.
pub(crate) struct Resolver {
    root: PathBuf,
    seen: HashMap<Vec<u8>, Node>,
    seen_bytes: usize,
    is_full: bool,
}

impl Resolver {
    /// For a root directory.
    ///
    /// # Errors
    /// The root is not a directory, or cannot be looked at.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        if !fs::metadata(root)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { root: root.to_owned(), seen: HashMap::new(), seen_bytes: 0, is_full: false })
    }

    /// Whether it saw more than it may remember; its later results are not valid.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Follows every link in an absolute path, the last component's too. A path that links make longer than the kernel's paths
    /// leads nowhere, as one with too many links does: the next link is not followed.
    pub(crate) fn resolve(&mut self, path: &[u8]) -> Resolved {
        let mut out = Resolved { path: Vec::new(), exists: true, links: Vec::new(), before: Vec::new() };
        let mut left: VecDeque<Vec<u8>> = components(path);
        let (mut left_bytes, mut remembered) = (length(&left), 0);
        while let Some(name) = left.pop_front() {
            left_bytes -= name.len() + 1;
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
                Node::Link(target) => {
                    let end = out.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
                    let stem = if target.starts_with(b"/") { 0 } else { end };
                    let target = components(&target);
                    let further = length(&target) + left_bytes;
                    remembered += 2 * out.path.len() + left_bytes;
                    if out.links.len() == MAX_LINKS
                        || stem + further > LONGEST_PATH
                        || remembered > MOST_BYTES
                    {
                        out.exists = false;
                        continue;
                    }
                    out.links.push(out.path.clone());
                    let mut before = out.path.clone();
                    for later in &left {
                        before.push(b'/');
                        before.extend_from_slice(later);
                    }
                    out.before.push(before);
                    out.path.truncate(stem);
                    left_bytes = further;
                    for component in target.into_iter().rev() {
                        left.push_front(component);
                    }
                }
                Node::Missing => out.exists = false,
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
    pub(crate) fn program(&mut self, name: &str) -> Option<Resolved> {
        PATH_DIRS.iter().find_map(|dir| {
            let resolved = self.resolve(format!("{dir}/{name}").as_bytes());
            let found = resolved.exists && self.look(&resolved.path) == Node::File { executable: true };
            found.then_some(resolved)
        })
    }

    /// Whether a resolved path is a directory.
    pub(crate) fn is_directory(&mut self, path: &[u8]) -> bool {
        path == b"/" || self.look(path) == Node::Directory
    }

    /// The block devices and terminals directly in `/dev`, but for `/dev/tty`, which is the caller's own.
    pub(crate) fn disks_and_terminals(&mut self) -> Vec<String> {
        let dev = self.resolve(b"/dev");
        let Ok(entries) = fs::read_dir(self.host(&dev.path)) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| {
            let (kind, name) = (entry.file_type().ok()?, entry.file_name().into_string().ok()?);
            let is_terminal = name != "tty" && TERMINALS.iter().any(|prefix| name.starts_with(prefix));
            (kind.is_block_device() || kind.is_char_device() && is_terminal).then_some(name)
        });
        names.map(|name| format!("/dev/{name}")).collect()
    }

    /// The names in a directory, links to it followed; none: there is no such directory.
    pub(crate) fn names(&mut self, path: &[u8]) -> Vec<OsString> {
        let resolved = self.resolve(path).path;
        let Ok(entries) = fs::read_dir(self.host(&resolved)) else { return Vec::new() };
        // Each is a rule, of which a policy may have no more than so many.
        entries.flatten().take(MOST_NAMES).map(|entry| entry.file_name()).collect()
    }

    /// The number of the device at a path, links resolved, and whether it is a block device.
    pub(crate) fn device(&mut self, path: &str) -> Option<(u64, bool)> {
        let resolved = self.resolve(path.as_bytes()).path;
        let meta = fs::symlink_metadata(self.host(&resolved)).ok()?;
        let (kind, number) = (meta.file_type(), meta.rdev());
        // As the kernel has it inside, not as stat(2) gives it.
        let number = major(number) << 20 | minor(number);
        (kind.is_char_device() || kind.is_block_device()).then_some((number, kind.is_block_device()))
    }

    /// The device number of the file system that is mounted at a path; `None`: there is no directory, or nothing is mounted.
    pub(crate) fn mounted(&mut self, path: &str) -> Option<u64> {
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
        if self.is_full {
            return Node::Missing;
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
        let target = if let Node::Link(target) = &node { target.len() } else { 0 };
        self.seen_bytes += path.len() + target + SEEN_EACH;
        if self.seen_bytes > MOST_SEEN {
            self.is_full = true;
            return Node::Missing;
        }
        self.seen.insert(path.to_vec(), node.clone());
        node
    }
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".");
    names.map(<[u8]>::to_vec).collect()
}

/// Bytes of a path's components, each with the slash before it.
fn length(components: &VecDeque<Vec<u8>>) -> usize {
    components.iter().map(|name| name.len() + 1).sum()
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
    fn links_that_make_a_path_longer_than_the_kernel_s_lead_nowhere() {
        let (dir, mut r) = root();
        let at = |p: &str| dir.path().join(p);
        // As many links as are followed, and the rest of the path grows with each by as much as a link holds.
        let rest = "/x".repeat(1900);
        for link in 0..MAX_LINKS {
            let next = if link + 1 == MAX_LINKS { "a".into() } else { format!("l{}", link + 1) };
            symlink(format!("{next}{rest}"), at(&format!("l{link}"))).unwrap();
            let next = if link + 1 == MAX_LINKS { "a".into() } else { format!("s{}", link + 1) };
            symlink(next, at(&format!("s{link}"))).unwrap();
        }
        for path in ["/l0", "/l0/b"] {
            let led = r.resolve(path.as_bytes());
            assert!(!led.exists && led.path.len() <= LONGEST_PATH, "{path}: {} bytes", led.path.len());
            assert!(led.bytes() <= LONGEST_PATH + MOST_BYTES, "{path}: {} bytes", led.bytes());
        }
        let led = r.resolve(b"/s0/b");
        assert!(led.exists && led.links.len() == MAX_LINKS && led.path == b"/a/b", "the control");
        // Nor does a path that is long as it is written have what is kept of it multiplied.
        let long = format!("/s0{}", "/x".repeat(2000));
        let led = r.resolve(long.as_bytes());
        assert!(!led.exists && led.bytes() <= LONGEST_PATH + MOST_BYTES, "{} bytes", led.bytes());
    }

    #[test]
    fn what_is_remembered_of_a_root_is_bounded() {
        let (dir, mut r) = root();
        let many = |from: usize, many: usize| -> Vec<String> {
            (from..from + many).map(|n| format!("/{n:0200}")).collect()
        };
        for path in many(0, 100) {
            r.resolve(path.as_bytes());
        }
        assert!(!r.is_full() && r.resolve(b"/a/b").exists, "the control");
        for path in many(100, MOST_SEEN / 200) {
            r.resolve(path.as_bytes());
        }
        assert!(r.is_full() && r.seen_bytes <= MOST_SEEN + 1000);
        assert!(!r.resolve(b"/usr/bin/tool").exists, "and nothing is said of what is not remembered");
        drop(dir);
    }

    #[test]
    fn path_finds_the_first_executable() {
        let (_dir, mut r) = root();
        assert_eq!(r.program("tool").unwrap().path, b"/usr/bin/tool");
        assert_eq!(r.program("none"), None);
        assert_eq!(r.program(".."), None);
    }
}
