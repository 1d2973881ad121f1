//! Where long output is kept whole: a file for each, in a folder of the user's own, bounded in number and size.

use super::truncate::Truncation;
use ringfence_wire::runner::Shape;
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    process::geteuid,
};
use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Most files of one user; of more, the oldest go.
const MOST_FILES: usize = 64;

/// Most bytes of one user's files when a new one is begun: so many full ones as these.
const MOST_FULL: u64 = 4;

/// One output, kept from its first byte in case it will be cut, and in a file from then on.
#[derive(Debug)]
pub(super) struct Spiller {
    tool: String,
    dir: PathBuf,
    most: u64,
    early: Vec<u8>,
    file: Option<Spill>,
    failed: Option<io::Error>,
}

#[derive(Debug)]
struct Spill {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Spiller {
    /// Nothing so far. `tool` goes into the file's name.
    pub(super) fn new(tool: &OsStr, shape: &Shape) -> Self {
        let safe = |letter: char| {
            if letter.is_ascii_alphanumeric() || "._+-".contains(letter) { letter } else { '_' }
        };
        Self {
            tool: tool.to_string_lossy().chars().take(32).map(safe).collect(),
            dir: shape.spill_dir.clone(),
            most: shape.spill_bytes,
            early: Vec::new(),
            file: None,
            failed: None,
        }
    }

    /// Takes in a piece; `over`: not all of the output will be shown. Until it is over, it is small: the limit of what is
    /// shown.
    pub(super) fn push(&mut self, piece: &[u8], over: bool) {
        if self.failed.is_some() || self.most == 0 {
            return;
        }
        if !over && self.file.is_none() {
            self.early.extend_from_slice(piece);
            return;
        }
        if let Err(error) = self.write(piece) {
            self.failed = Some(error);
            self.early = Vec::new();
        }
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let spill = match &mut self.file {
            Some(spill) => spill,
            None => self.file.insert(Spill::create(&self.dir, &self.tool, self.most)?),
        };
        for bytes in [std::mem::take(&mut self.early).as_slice(), piece] {
            let room = usize::try_from(self.most - spill.bytes).unwrap_or(usize::MAX);
            let bytes = &bytes[..bytes.len().min(room)];
            spill.file.write_all(bytes)?;
            spill.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    /// The remark about a cut output, and the file that has it. `None` where nothing was cut.
    pub(super) fn remark(self, cut: Truncation) -> (String, Option<PathBuf>) {
        let mut text = String::new();
        if !cut.at_line_start {
            text.push('\n');
        }
        // Writing to a string does not fail.
        let _ = if cut.binary {
            write!(text, "...[binary output] {} bytes, not shown", cut.bytes)
        } else {
            write!(text, "...[truncated] {} bytes, {} lines in all", cut.bytes, cut.lines)
        };
        let path = match (self.file, self.failed) {
            (_, Some(error)) => {
                let _ = write!(text, "; not kept: {}: {error}", self.dir.display());
                None
            }
            (Some(spill), None) => {
                let what = if spill.bytes < cut.bytes { "the first" } else { "all" };
                let _ = write!(text, "; {what} {} bytes are in {}", spill.bytes, spill.path.display());
                Some(spill.path)
            }
            (None, None) => {
                text.push_str("; not kept");
                None
            }
        };
        text.push('\n');
        (text, path)
    }
}

impl Spill {
    fn create(below: &Path, tool: &str, most: u64) -> io::Result<Self> {
        let dir = own_folder(below)?;
        make_room(&dir, most.saturating_mul(MOST_FULL));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A tool's two outputs may begin within a millisecond.
        let mut number = 0;
        loop {
            let path = dir.join(format!("{tool}-{}-{}-{number}.out", now.as_millis(), std::process::id()));
            match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Err(rustix::io::Errno::EXIST) if number < MOST_FILES => number += 1,
                opened => return Ok(Self { path, file: opened?.into(), bytes: 0 }),
            }
        }
    }
}

/// `ringfence-tools-UID`: made where it is not there; refused where it is somebody else's or others may write to it.
fn own_folder(below: &Path) -> io::Result<PathBuf> {
    let dir = below.join(format!("ringfence-tools-{}", geteuid().as_raw()));
    match rustix::fs::mkdir(&dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let stat = rustix::fs::statat(rustix::fs::CWD, &dir, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_own = stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o170_022 == 0o040_000;
    if is_own { Ok(dir) } else { Err(io::Error::other("the folder there is not this user's own")) }
}

/// Removes the oldest files until there is room for one more. What cannot be removed stays.
fn make_room(dir: &Path, most: u64) {
    let mut files: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().ends_with(b".out"))
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            meta.is_file().then(|| (meta.modified().unwrap_or(UNIX_EPOCH), meta.len(), entry.path()))
        })
        .collect();
    files.sort_unstable();
    let mut bytes: u64 = files.iter().map(|(_, length, _)| length).sum();
    let mut left = files.len();
    for (_, length, path) in files {
        if left < MOST_FILES && bytes <= most {
            return;
        }
        let _ = fs::remove_file(path);
        bytes -= length;
        left -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::runner::{Keep, Truncate};

    fn shape(dir: &Path, most: u64) -> Shape {
        Shape {
            truncate: Truncate::Each,
            keep: Keep::Head,
            max_bytes: 4,
            max_lines: 9,
            name_binary: true,
            spill_dir: dir.to_owned(),
            spill_bytes: most,
        }
    }

    const CUT: Truncation = Truncation { binary: false, bytes: 9, lines: 1, at_line_start: false };

    fn kept(dir: &Path, most: u64) -> (String, Option<PathBuf>) {
        let mut kept = Spiller::new(OsStr::new("a/b c"), &shape(dir, most));
        kept.push(b"abc", false);
        kept.push(b"def", true);
        kept.push(b"ghi", true);
        kept.remark(CUT)
    }

    #[test]
    fn all_of_it_is_in_the_file_that_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (text, path) = kept(dir.path(), 1000);
        let path = path.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abcdefghi");
        let expected =
            format!("\n...[truncated] 9 bytes, 1 lines in all; all 9 bytes are in {}\n", path.display());
        assert_eq!(text, expected);
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("a_b_c-"));
        let (text, path) = kept(dir.path(), 5);
        assert_eq!(fs::read(path.unwrap()).unwrap(), b"abcde");
        assert!(text.contains("the first 5 bytes are in"), "{text}");
    }

    #[test]
    fn what_cannot_be_kept_is_said() {
        assert!(kept(Path::new("/nonexistent"), 9).0.contains("not kept: /nonexistent: No such file"));
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            kept(dir.path(), 0),
            ("\n...[truncated] 9 bytes, 1 lines in all; not kept\n".to_owned(), None)
        );
        let own = dir.path().join(format!("ringfence-tools-{}", geteuid().as_raw()));
        std::os::unix::fs::symlink("/tmp", own).unwrap();
        assert!(kept(dir.path(), 9).0.contains("not this user's own"));
    }

    #[test]
    fn the_oldest_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let first = kept(dir.path(), 1000).1.unwrap();
        let own = first.parent().unwrap();
        let old = SystemTime::now() - std::time::Duration::from_secs(60);
        File::open(&first).unwrap().set_modified(old).unwrap();
        for number in 0..MOST_FILES - 1 {
            fs::write(own.join(format!("{number}.out")), "x").unwrap();
        }
        fs::write(own.join("other"), "x").unwrap();
        make_room(own, 1000);
        assert!(!first.exists());
        assert_eq!(fs::read_dir(own).unwrap().count(), MOST_FILES);
        make_room(own, 10);
        assert!(own.join("other").exists());
        let left = fs::read_dir(own).unwrap().count();
        assert!(left <= 11, "{left}");
    }
}
