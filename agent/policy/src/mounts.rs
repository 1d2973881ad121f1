//! Where a file of the host's is found in a container: a bind mount may show it at another path, or at several.

use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// One line of `/proc/PID/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The file system: its device's numbers.
    device: String,
    /// Which directory of it is mounted.
    root: PathBuf,
    /// Where.
    at: PathBuf,
}

/// The mounts that a process sees.
///
/// # Errors
/// If its list cannot be read: the process is gone, or none.
pub fn of(process: &str) -> io::Result<Vec<Mount>> {
    let text = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(text.split(|b| *b == b'\n').filter_map(line).collect())
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ').skip(2);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    Some(Mount { device, root: unescape(fields.next()?), at: unescape(fields.next()?) })
}

/// Blanks, newlines, backslashes are octal there.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Every path at which `theirs` show what is at `path` by `own`; `path` has no links.
pub(crate) fn seen_at(path: &Path, own: &[Mount], theirs: &[Mount]) -> Vec<Vec<u8>> {
    // Of several at one place the last is on top.
    let around = own.iter().filter(|mount| path.starts_with(&mount.at));
    let Some(mount) = around.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
    let Ok(below) = path.strip_prefix(&mount.at) else { return Vec::new() };
    let inside = join(&mount.root, below);
    let seen = theirs.iter().filter(|other| other.device == mount.device);
    let seen = seen.filter_map(|other| Some(join(&other.at, inside.strip_prefix(&other.root).ok()?)));
    let mut seen: Vec<Vec<u8>> = seen.map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    seen.sort();
    seen.dedup();
    seen
}

/// A join that adds no slash where there is nothing below.
fn join(above: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { above.to_owned() } else { above.join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(text: &str) -> Vec<Mount> {
        text.as_bytes().split(|b| *b == b'\n').filter_map(line).collect()
    }

    #[test]
    fn a_file_is_found_by_each_mount_that_shows_it() {
        let own = mounts(
            "22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 8:2 / /srv rw - ext4 /dev/sdb rw\n24 22 8:1 /work /bound\\040here rw - ext4 /dev/sda rw",
        );
        let seen = |path: &str, theirs: &[Mount]| -> Vec<String> {
            let seen = seen_at(Path::new(path), &own, theirs);
            seen.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
        };
        assert_eq!(seen("/work/p.toml", &own), ["/bound here/p.toml", "/work/p.toml"]);
        assert_eq!(seen("/bound here/p.toml", &own), ["/bound here/p.toml", "/work/p.toml"]);
        assert_eq!(seen("/srv/p.toml", &own), ["/srv/p.toml"]);
        let container = mounts(
            "90 80 0:50 / / rw - overlay overlay rw\n91 90 8:1 /work/project /src rw - ext4 /dev/sda rw",
        );
        assert_eq!(seen("/work/project/p.toml", &container), ["/src/p.toml"]);
        assert_eq!(seen("/work/project", &container), ["/src"]);
        assert_eq!(seen("/work/p.toml", &container), Vec::<String>::new());
        assert_eq!(seen("/srv/p.toml", &container), Vec::<String>::new());
    }

    #[test]
    fn the_own_list_can_be_read() {
        let own = of("self").unwrap();
        assert_eq!(seen_at(Path::new("/"), &own, &own).first().map(Vec::as_slice), Some(b"/".as_slice()));
    }
}
