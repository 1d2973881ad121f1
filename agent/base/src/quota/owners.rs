//! Whose a user id is. `/etc/subuid` gives users ranges of further ids (subuid(5)), which they use in user namespaces:
//! whoever has the range is the one who acts.

use nix::unistd::User;
use ringfence_wire::audit::Subordinate;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

/// Where ranges are. Quotas count users: of `/etc/subgid`, which nobody's quota is about, nothing is needed.
const FILE: &str = "/etc/subuid";

/// Most ranges that are looked at.
const MOST: usize = 2048;

/// Most bytes of the file.
const LONGEST: u64 = 1 << 20;

/// Ranges of ids and their owners; shared by its clones.
#[derive(Debug, Clone, Default)]
pub struct Owners(Arc<RwLock<Vec<Subordinate>>>);

/// Which state of the file was read: when it changed, its number, its length.
pub(super) type Stamp = Option<(i64, i64, u64, u64)>;

impl Owners {
    /// Whose an id is: its own, or that of the user who has the range that it is in.
    pub fn of(&self, uid: u32) -> u32 {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = ranges.iter().find(|range| uid >= range.first && uid - range.first < range.count);
        match found {
            // Root's ranges are what engines give to containers: one user, and not root with its reserve.
            Some(range) if range.owner == 0 => range.first,
            Some(range) => range.owner,
            None => uid,
        }
    }

    /// From now on these ranges hold.
    pub fn replace(&self, mut ranges: Vec<Subordinate>) {
        ranges.truncate(MOST);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ranges;
    }

    /// The ranges.
    pub fn ranges(&self) -> Vec<Subordinate> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads `/etc/subuid`, if it is in another state than `seen`. True: it was.
    pub fn refresh(&self, seen: &mut Stamp) -> bool {
        self.refresh_from(Path::new(FILE), seen, |name| {
            User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
        })
    }

    fn refresh_from(&self, file: &Path, seen: &mut Stamp, id_of: impl Fn(&str) -> Option<u32>) -> bool {
        let now = stamp(file);
        if *seen == now {
            return false;
        }
        *seen = now;
        match read(file) {
            Ok(text) => self.replace(Self::parse(&text, id_of).ranges()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.replace(Vec::new()),
            Err(error) => {
                tracing::warn!("cannot read {}: {error}; subordinate ids count as before", file.display())
            }
        }
        true
    }

    /// The ranges of a file's text; `id_of` knows users by name. Lines that cannot be understood are left out.
    pub fn parse(text: &str, id_of: impl Fn(&str) -> Option<u32>) -> Self {
        let mut known: Option<(&str, Option<u32>)> = None;
        let mut ranges = Vec::new();
        for line in text.lines() {
            let mut fields = line.trim().splitn(3, ':');
            let (Some(name), Some(first), Some(count)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (Ok(first), Ok(count)) = (first.parse::<u32>(), count.parse::<u32>()) else { continue };
            // A range with root in it would make everybody's ids root's, or root somebody's.
            if first == 0 || count == 0 {
                continue;
            }
            if ranges.len() == MOST {
                tracing::warn!(
                    "{FILE} has more than {MOST} ranges: ids in the others count as users of their own"
                );
                break;
            }
            let owner = match known {
                Some((known, owner)) if known == name => owner,
                _ => name.parse().ok().or_else(|| id_of(name)),
            };
            known = Some((name, owner));
            // Of a name that nobody knows (a directory service that is away), a range is still one user's.
            ranges.push(Subordinate { first, count, owner: owner.unwrap_or(first) });
        }
        let owners = Self::default();
        owners.replace(ranges);
        owners
    }
}

fn stamp(file: &Path) -> Stamp {
    let meta = fs::metadata(file).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.ino(), meta.len()))
}

fn read(file: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(name: &str) -> Option<u32> {
        match name {
            "root" => Some(0),
            "alice" => Some(1000),
            "bob" => Some(1001),
            _ => None,
        }
    }

    #[test]
    fn ids_in_a_range_are_its_owner_s() {
        let text = "alice:100000:65536\nbob:165536:65536\nalice:300000:10\n1002:400000:5\nroot:500000:100\n";
        let owners = Owners::parse(text, id_of);
        for (uid, owner) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (300_009, 1000),
            (300_010, 300_010),
            (400_004, 1002),
            (500_050, 500_000),
        ] {
            assert_eq!(owners.of(uid), owner, "{uid}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_nobody_s() {
        let text = "alice:x:1\nalice:7\n\n#\nbob:0:4294967295\nbob:4294967290:4294967295\n:1:1\n";
        let owners = Owners::parse(text, id_of);
        assert_eq!((owners.of(0), owners.of(7), owners.of(1)), (0, 7, 1));
        assert_eq!(owners.of(4_294_967_295), 1001);
    }

    #[test]
    fn a_range_of_an_unknown_name_is_one_user_s() {
        let owners = Owners::parse("mallory:200000:65536\nalice:100000:65536\n", id_of);
        assert_eq!((owners.of(200_001), owners.of(265_535)), (200_000, 200_000));
        assert_eq!(owners.of(100_001), 1000, "the control");
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (file, owners) = (dir.path().join("subuid"), Owners::default());
        let mut seen = None;
        assert!(!owners.refresh_from(&file, &mut seen, id_of), "no file");
        fs::write(&file, "alice:100000:10\n").unwrap();
        assert!(
            owners.refresh_from(&file, &mut seen, id_of) && !owners.refresh_from(&file, &mut seen, id_of)
        );
        assert_eq!(owners.of(100_001), 1000);
        fs::write(&file, "alice:100000:10\nbob:100010:10\n").unwrap();
        assert!(owners.refresh_from(&file, &mut seen, id_of));
        assert_eq!(owners.of(100_011), 1001);
        fs::remove_file(&file).unwrap();
        assert!(owners.refresh_from(&file, &mut seen, id_of));
        assert_eq!(owners.of(100_001), 100_001);
    }
}
