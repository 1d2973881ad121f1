//! /etc/hosts, as the C library reads it: as long as it is, and never held whole. What it said of the names that were looked for is
//! kept for as long as the file is the same.

use crate::addresses::MOST_ADDRESSES;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, ErrorKind, Read},
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Where it is.
const PATH: &str = "/etc/hosts";
/// Bytes of it that are read at once.
const CHUNK: usize = 16 << 10;
/// Most bytes of a word: no name and no address is longer.
const MOST_WORD: usize = 255;
/// Names of which it is known what it says.
const MOST_KNOWN: usize = 256;
/// How long a file has to be as it is before that can be told by its times: they are no finer than the kernel's clock.
const SETTLED: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct Hosts {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The file that it is known of.
    of: Option<Version>,
    by_name: HashMap<String, Vec<IpAddr>>,
}

/// What tells a file from another, and from itself after a change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Default for Hosts {
    fn default() -> Self {
        Self::at(PATH.into())
    }
}

impl Hosts {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first addresses of a name in it, in its order; none where there is no file, or none that may be read.
    ///
    /// # Errors
    /// As open(2) and read(2): whether it has the name is not known then.
    pub(crate) fn find(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let version = Version::of(&file)?;
        if let Some(addrs) = self.known().of(version).get(name) {
            return Ok(addrs.clone());
        }
        let addrs = find(&file, name)?;
        if version.is_settled(SystemTime::now()) && Version::of(&file)? == version {
            let mut known = self.known();
            let by_name = known.of(version);
            if by_name.len() >= MOST_KNOWN {
                by_name.clear();
            }
            by_name.insert(name.to_owned(), addrs.clone());
        }
        Ok(addrs)
    }
}

impl Known {
    /// What is known of this file, and nothing of any other.
    fn of(&mut self, version: Version) -> &mut HashMap<String, Vec<IpAddr>> {
        if self.of.replace(version) != Some(version) {
            self.by_name.clear();
        }
        &mut self.by_name
    }
}

impl Version {
    fn of(file: &File) -> io::Result<Self> {
        let at = file.metadata()?;
        Ok(Self {
            file: (at.dev(), at.ino()),
            size: at.size(),
            written: (at.mtime(), at.mtime_nsec()),
            changed: (at.ctime(), at.ctime_nsec()),
        })
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let changed = u64::try_from(self.changed.0).ok().map(|at| UNIX_EPOCH + Duration::from_secs(at));
        changed.and_then(|at| now.duration_since(at).ok()).is_some_and(|since| since >= SETTLED)
    }
}

fn find(mut file: impl Read, name: &str) -> io::Result<Vec<IpAddr>> {
    let mut scan = Scan::new(name);
    let mut chunk = vec![0; CHUNK];
    while !scan.is_full() {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => scan.feed(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // The last line may have no end.
    scan.feed(b"\n");
    Ok(scan.found)
}

/// Looks for a name in what is fed, which may be cut anywhere.
struct Scan<'a> {
    name: &'a [u8],
    found: Vec<IpAddr>,
    at: At,
    /// The word that is being read, of which the first bytes count.
    word: Vec<u8>,
    /// The first word of the line.
    address: Vec<u8>,
}

#[derive(PartialEq, Eq)]
enum At {
    Address,
    Names,
    /// What nothing is looked for in: a comment, or behind the name.
    Rest,
}

impl<'a> Scan<'a> {
    fn new(name: &'a str) -> Self {
        Self {
            name: name.as_bytes(),
            found: Vec::new(),
            at: At::Address,
            word: Vec::new(),
            address: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.found.len() >= MOST_ADDRESSES
    }

    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => {
                    self.end_word();
                    self.at = At::Address;
                }
                _ if self.at == At::Rest => {}
                b'#' => {
                    self.end_word();
                    self.at = At::Rest;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.end_word(),
                // One byte more than any that counts has: it is none of those.
                _ if self.word.len() > MOST_WORD => {}
                _ => self.word.push(byte),
            }
        }
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        match self.at {
            At::Address => {
                std::mem::swap(&mut self.word, &mut self.address);
                self.at = At::Names;
            }
            At::Names if self.word.len() <= MOST_WORD && self.word.eq_ignore_ascii_case(self.name) => {
                let addr: Option<IpAddr> =
                    std::str::from_utf8(&self.address).ok().and_then(|addr| addr.parse().ok());
                let room = MOST_ADDRESSES.saturating_sub(self.found.len());
                self.found.extend(addr.into_iter().take(room));
                self.at = At::Rest;
            }
            At::Names | At::Rest => {}
        }
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    fn all(text: &[u8], name: &str) -> Vec<String> {
        let found = find(text, name).unwrap();
        // Wherever it is cut.
        for size in [1, 2, 7] {
            let mut scan = Scan::new(name);
            text.chunks(size).for_each(|some| scan.feed(some));
            scan.feed(b"\n");
            assert_eq!(scan.found, found, "{size}");
        }
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_has_the_addresses_of_its_lines() {
        let text = b"# 10.0.0.9 a.example\n10.0.0.1\tA.example b.example # a comment c.example\r\n\
            10.0.0.2  a.example\nfe80::1%eth0 a.example\nno.address a.example\n::1 a.example\xff\n\
            10.0.0.3 \xff a.example a.example#c.example\n a.example\n::1 a.example";
        assert_eq!(all(text, "a.example"), ["10.0.0.1", "10.0.0.2", "10.0.0.3", "::1"]);
        assert_eq!(all(text, "b.example"), ["10.0.0.1"]);
        for none in ["c.example", "example", "a", "10.0.0.1", "no.address", ""] {
            assert!(all(text, none).is_empty(), "{none}");
        }
    }

    #[test]
    fn neither_the_file_nor_a_line_is_too_long() {
        let mut text = b"10.0.0.9 ".to_vec();
        text.extend(b"x".repeat(5 << 20));
        text.extend(b".example tail.example\n");
        for at in 0..300_000 {
            text.extend(format!("0.0.0.0 {at}.ads.example\n").as_bytes());
        }
        text.extend(b"10.0.0.1 last.example\n");
        assert!(text.len() > 10 << 20);
        assert_eq!(find(&text[..], "tail.example").unwrap().len(), 1, "behind a word of five million bytes");
        assert_eq!(find(&text[..], "last.example").unwrap(), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(find(&text[..], &"x".repeat(MOST_WORD + 1)).unwrap().is_empty());
        let many = b"10.0.0.1 a.example\n".repeat(1000);
        assert_eq!(find(&many[..], "a.example").unwrap().len(), MOST_ADDRESSES);
    }

    #[test]
    fn what_cannot_be_read_is_no_file_without_the_name() {
        struct Breaks;
        impl Read for Breaks {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(ErrorKind::Other.into())
            }
        }
        assert!(find(b"10.0.0.1 b.example\n".chain(Breaks), "a.example").is_err());
        let dir = tempfile::tempdir().unwrap();
        assert!(Hosts::at(dir.path().join("none")).find("a.example").unwrap().is_empty());
        assert!(Hosts::at(dir.path().into()).find("a.example").is_err(), "a directory");
    }

    #[test]
    fn it_is_read_again_when_it_is_another_and_not_before() {
        fn settled(path: &Path) {
            let until = SystemTime::now() + Duration::from_secs(60);
            while !Version::of(&File::open(path).unwrap()).unwrap().is_settled(SystemTime::now()) {
                assert!(SystemTime::now() < until);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        let hosts = Hosts::at(path.clone());
        let found = |name| hosts.find(name).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        fs::write(&path, "10.0.0.1 a.example\n").unwrap();
        assert_eq!(found("a.example"), ["10.0.0.1"]);
        assert!(hosts.known().by_name.is_empty(), "as long as the clock is not finer than a change");
        settled(&path);
        assert_eq!(found("a.example"), ["10.0.0.1"]);
        assert!(found("b.example").is_empty());
        assert_eq!(hosts.known().by_name.len(), 2);
        // What is known is what is said.
        hosts.known().by_name.insert("known.example".into(), vec!["10.9.9.9".parse().unwrap()]);
        assert_eq!(found("known.example"), ["10.9.9.9"]);
        // Changed in place, with the same length.
        fs::write(&path, "10.0.0.2 a.example\n").unwrap();
        assert_eq!(found("a.example"), ["10.0.0.2"]);
        assert!(found("known.example").is_empty());
        // And another in its place.
        settled(&path);
        assert_eq!(found("a.example"), ["10.0.0.2"]);
        let other = dir.path().join("other");
        fs::write(&other, "10.0.0.3 a.example\n").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(found("a.example"), ["10.0.0.3"]);
        settled(&path);
        for at in 0..=MOST_KNOWN {
            hosts.find(&format!("{at}.example")).unwrap();
            assert!(hosts.known().by_name.len() <= MOST_KNOWN);
        }
    }
}
