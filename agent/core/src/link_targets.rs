//! Where the paths led that a user's earlier containers could turn into links: the user's next container that is granted them has
//! them lead there still. It outlives the containers and the core, not the boot.
//!
//! Each user has a file, subordinate ids included. An enrolment adds a line with what is new, before its first task is tagged:
//! that takes no longer than what it adds. What does not fit is forgotten, and that something was: from then on no link is
//! followed that an earlier container could have made, unless it is known where it led.

use ringfence_files::Access;
use ringfence_policy::fixed::Fixed;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The file that had all users' paths, by user id, in versions before.
const OF_ALL: &str = "past";
/// How the name of a user's file begins; the user's id follows.
const PREFIX: &str = "past-";
/// Most paths of one user, and most bytes of them; and of all users.
const MOST_PATHS: usize = 1 << 14;
const MOST_BYTES: usize = 2 << 20;
const MOST_IN_ALL: usize = 32 << 20;
/// Bytes of a file beyond which it is written anew, and beyond which no core wrote it.
const LONGEST_FILE: u64 = 16 << 20;
const MOST_READ: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct LinkTargets {
    dir: PathBuf,
    of: BTreeMap<u32, Remembered>,
}

/// What is remembered of one user's containers.
#[derive(Debug, Default)]
struct Remembered {
    led: Arc<Fixed>,
    bytes: usize,
    /// How long the file is. `None`: it has to be written anew.
    file: Option<u64>,
}

/// Whether a file beside the containers' records has that name.
pub(crate) fn is_file(name: &str) -> bool {
    name == OF_ALL || owner(name).is_some()
}

fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

impl LinkTargets {
    /// What an earlier core of this boot knew. What cannot be read is logged, and counts as forgotten.
    pub(crate) fn open(dir: &Path) -> Self {
        let mut past = Self { dir: dir.to_owned(), of: BTreeMap::new() };
        let names = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((owner(&name)?, entry.path()))
        });
        for (owner, path) in names.collect::<Vec<_>>() {
            past.of.insert(owner, read(&path));
        }
        past.adopt(&dir.join(OF_ALL));
        past
    }

    /// Takes over the file of an earlier version, and removes it once everybody has their own.
    fn adopt(&mut self, path: &Path) {
        let all: BTreeMap<u32, Fixed> = match fs::read(path).map(|bytes| serde_json::from_slice(&bytes)) {
            Ok(Ok(all)) => all,
            Ok(Err(error)) => {
                tracing::error!("{} is damaged and not used: {error}", path.display());
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::error!("cannot read {}: {error}", path.display());
                return;
            }
        };
        all.iter().for_each(|(uid, led)| self.keep(*uid, led));
        if all.keys().all(|uid| self.of.get(uid).is_none_or(|of| of.file.is_some())) {
            let _ = fs::remove_file(path);
        }
    }

    /// Where such paths of a user led. What was kept under the id itself, before it was known whose it is, counts as well.
    pub(crate) fn of(&self, uid: u32, owner: u32) -> Option<Arc<Fixed>> {
        let led = |uid: u32| self.of.get(&uid).map(|of| Arc::clone(&of.led));
        let Some(own) = led(uid).filter(|_| uid != owner) else { return led(owner) };
        let mut both = own;
        if let Some(led) = led(owner) {
            Arc::make_mut(&mut both).take_in(&led);
        }
        Some(both)
    }

    /// Keeps where such paths lead, for the user's next container that is granted them.
    pub(crate) fn keep(&mut self, owner: u32, led: &Fixed) {
        let of = self.of.entry(owner).or_default();
        let new = of.led.unknown_of(led);
        if new.is_empty() {
            return;
        }
        let all = Arc::make_mut(&mut of.led);
        all.take_in(&new);
        of.bytes = all.bytes();
        if all.paths() > MOST_PATHS || of.bytes > MOST_BYTES {
            of.keep_only(led);
        }
        self.write(owner, &new);
        // Of all users, whoever has the most has to do without.
        while self.of.values().map(|of| of.bytes).sum::<usize>() > MOST_IN_ALL {
            let most = self.of.iter_mut().max_by_key(|(_, of)| of.bytes);
            let Some((owner, of)) = most.map(|(owner, of)| (*owner, of)) else { break };
            of.forget(&Fixed::default());
            self.write(owner, &Fixed::default());
        }
    }

    /// Adds a line to a user's file, or writes the file anew.
    fn write(&mut self, owner: u32, new: &Fixed) {
        let path = self.dir.join(format!("{PREFIX}{owner}"));
        let Some(of) = self.of.get_mut(&owner) else { return };
        let written = match of.file {
            Some(length) if length < LONGEST_FILE => append(&path, length, new),
            _ => line(&*of.led).and_then(|text| {
                ringfence_files::replace(&path, &text, Access::Mode(0o600)).map(|()| text.len() as u64)
            }),
        };
        of.file =
            written.inspect_err(|error| tracing::error!("cannot write {}: {error}", path.display())).ok();
    }
}

impl Remembered {
    /// There is no room for all: what a container that comes now is granted is what the next is likeliest to be, too.
    fn keep_only(&mut self, led: &Fixed) {
        self.forget(led);
        if self.led.paths() > MOST_PATHS || self.bytes > MOST_BYTES {
            self.forget(&Fixed::default());
        }
    }

    fn forget(&mut self, all_but: &Fixed) {
        self.led = Arc::new(all_but.with_more());
        (self.bytes, self.file) = (self.led.bytes(), None);
    }
}

fn line(what: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(what)?;
    text.push(b'\n');
    Ok(text)
}

/// Adds a line behind what a file has; its length then.
fn append(path: &Path, length: u64, new: &Fixed) -> io::Result<u64> {
    let text = line(new)?;
    let mut file = ringfence_files::append(path)?;
    if file.metadata()?.len() != length {
        return Err(io::Error::other("it is not as it was left"));
    }
    file.write_all(&text)?;
    Ok(length + text.len() as u64)
}

/// A user's file. A last line without an end is one of an enrolment that did not take place.
fn read(path: &Path) -> Remembered {
    let lost = |why: &dyn std::fmt::Display| {
        tracing::error!("{} is damaged, what it has counts as forgotten: {why}", path.display());
        Fixed::default().with_more()
    };
    let text = match fs::metadata(path) {
        Ok(meta) if meta.len() > MOST_READ => Err(io::ErrorKind::FileTooLarge.into()),
        _ => fs::read(path),
    };
    let (led, is_whole) = match text {
        Err(error) => (lost(&error), false),
        Ok(text) => {
            let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
            let each = lines.map(serde_json::from_slice::<Fixed>);
            let all = each.collect::<Result<Vec<_>, _>>().map(|all| {
                all.iter().fold(Fixed::default(), |mut led, new| {
                    led.take_in(new);
                    led
                })
            });
            match all {
                Ok(led) => (led, text.is_empty() || text.ends_with(b"\n")),
                Err(error) => (lost(&error), false),
            }
        }
    };
    let file = fs::metadata(path).ok().filter(|_| is_whole).map(|meta| meta.len());
    Remembered { bytes: led.bytes(), led: Arc::new(led), file }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(paths: &[(&str, &str)]) -> Fixed {
        let mut led = Fixed::default();
        paths.iter().for_each(|(path, to)| led.fix_to(path.as_bytes(), to.as_bytes()));
        led
    }

    fn led(past: &LinkTargets, uid: u32, owner: u32, path: &str) -> Option<String> {
        let led = past.of(uid, owner)?.led_to(path.as_bytes())?;
        Some(String::from_utf8(led).unwrap())
    }

    #[test]
    fn a_restarted_core_knows_where_each_user_s_paths_led() {
        let dir = tempfile::tempdir().unwrap();
        let mut past = LinkTargets::open(dir.path());
        past.keep(5, &of(&[("/a", "/a"), ("/b", "/b")]));
        past.keep(6, &of(&[("/a", "/six")]));
        let six = fs::metadata(dir.path().join("past-6")).unwrap();
        past.keep(5, &of(&[("/b", "/else"), ("/c", "/c")]));
        past.keep(5, &of(&[("/c", "/c")]));
        let text = fs::read_to_string(dir.path().join("past-5")).unwrap();
        assert_eq!(text.lines().count(), 2, "a line for what is new: {text}");
        assert!(!text.lines().nth(1).unwrap().contains("/a"), "and that alone: {text}");
        use std::os::unix::fs::MetadataExt;
        let again = fs::metadata(dir.path().join("past-6")).unwrap();
        assert_eq!((six.ino(), six.len()), (again.ino(), again.len()), "another user's is left alone");
        for past in [past, LinkTargets::open(dir.path())] {
            for (path, to) in [("/a", "/a"), ("/b", "/else"), ("/c", "/c")] {
                assert_eq!(led(&past, 5, 5, path).as_deref(), Some(to), "{path}");
                // By any id of the user's.
                assert_eq!(led(&past, 100_001, 5, path).as_deref(), Some(to), "{path}");
            }
            assert_eq!(led(&past, 6, 6, "/a").as_deref(), Some("/six"));
            assert_eq!(led(&past, 7, 7, "/a"), None);
            assert!(!past.of(5, 5).unwrap().has_more());
        }
    }

    #[test]
    fn what_an_earlier_version_kept_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let all: BTreeMap<u32, Fixed> = [(5, of(&[("/a", "/b")])), (100_001, of(&[("/c", "/d")]))].into();
        fs::write(dir.path().join(OF_ALL), serde_json::to_vec(&all).unwrap()).unwrap();
        for _ in 0..2 {
            let past = LinkTargets::open(dir.path());
            assert_eq!(led(&past, 5, 5, "/a").as_deref(), Some("/b"));
            assert_eq!(led(&past, 100_001, 5, "/c").as_deref(), Some("/d"), "kept under the id itself");
            assert_eq!(led(&past, 100_001, 5, "/a").as_deref(), Some("/b"));
            assert!(!dir.path().join(OF_ALL).exists());
        }
    }

    #[test]
    fn each_user_s_paths_are_bounded_and_that_some_were_forgotten_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let mut past = LinkTargets::open(dir.path());
        let long = "x".repeat(3000);
        let many = |past: &mut LinkTargets, owner: u32, from: usize| {
            for n in from..from + 100 {
                past.keep(owner, &of(&[(&format!("/{n}{long}"), "/")]));
            }
        };
        past.keep(6, &of(&[("/six", "/six")]));
        past.keep(5, &of(&[("/a", "/b")]));
        many(&mut past, 5, 0);
        assert!(!past.of(5, 5).unwrap().has_more() && led(&past, 5, 5, "/a").is_some(), "the control");
        (1..20).for_each(|round| many(&mut past, 5, 100 * round));
        let newest = format!("/1999{long}");
        past.keep(5, &of(&[("/last", "/last")]));
        for past in [past, LinkTargets::open(dir.path())] {
            assert!(past.of[&5].bytes <= MOST_BYTES && past.of(5, 5).unwrap().has_more());
            assert_eq!(led(&past, 5, 5, "/a"), None);
            assert!(led(&past, 5, 5, &newest).is_some() && led(&past, 5, 5, "/last").is_some());
            assert!(led(&past, 6, 6, "/six").is_some() && !past.of(6, 6).unwrap().has_more());
        }
        let file = fs::metadata(dir.path().join("past-5")).unwrap();
        assert!(file.len() < LONGEST_FILE, "{} bytes", file.len());
    }

    #[test]
    fn all_users_paths_are_bounded_and_whoever_has_the_most_does_without() {
        let dir = tempfile::tempdir().unwrap();
        let mut past = LinkTargets::open(dir.path());
        past.keep(1, &of(&[("/one", "/one")]));
        let half = "x".repeat(MOST_BYTES / 2);
        for owner in 2..=(2 * MOST_IN_ALL / MOST_BYTES) as u32 {
            past.keep(owner, &of(&[(&format!("/{half}"), "/")]));
        }
        let forgetful = |past: &LinkTargets| past.of.values().filter(|of| of.led.has_more()).count();
        assert_eq!(forgetful(&past), 0, "the control");
        for owner in 1000..1003 {
            past.keep(owner, &of(&[(&format!("/{half}"), "/")]));
        }
        assert!(past.of.values().map(|of| of.bytes).sum::<usize>() <= MOST_IN_ALL);
        assert!((1..=4).contains(&forgetful(&past)), "{}", forgetful(&past));
        assert!(led(&past, 1, 1, "/one").is_some());
    }

    #[test]
    fn half_a_line_is_left_out_and_what_is_damaged_counts_as_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("past-5");
        let mut past = LinkTargets::open(dir.path());
        past.keep(5, &of(&[("/a", "/b")]));
        let text = fs::read_to_string(&path).unwrap();
        // The core was killed while it wrote; the enrolment did not take place.
        fs::write(&path, format!("{text}{{\"paths\":{{\"/c\"")).unwrap();
        let mut past = LinkTargets::open(dir.path());
        assert!(led(&past, 5, 5, "/a").is_some() && !past.of(5, 5).unwrap().has_more());
        past.keep(5, &of(&[("/d", "/e")]));
        let past = LinkTargets::open(dir.path());
        assert_eq!(led(&past, 5, 5, "/d").as_deref(), Some("/e"), "what comes after is not lost with it");
        assert!(led(&past, 5, 5, "/a").is_some() && !past.of(5, 5).unwrap().has_more());
        fs::write(&path, format!("oops\n{text}")).unwrap();
        assert!(LinkTargets::open(dir.path()).of(5, 5).unwrap().has_more());
    }
}
