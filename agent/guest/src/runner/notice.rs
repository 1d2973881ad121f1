//! Prints a notice once for each run, however many tools it has: a file beside the socket names the last run that got it.

use super::pipeline_end;
use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open},
    process::{geteuid, getpid},
};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// Whether this run has not had the notice yet. Where that cannot be stored, each tool prints it.
pub(super) fn is_first(socket: &Path) -> bool {
    remember(socket).unwrap_or(true)
}

fn remember(socket: &Path) -> io::Result<bool> {
    let mut path = socket.as_os_str().to_owned();
    path.push(format!(".away-{}", geteuid().as_raw()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(PathBuf::from(path), flags, Mode::RUSR | Mode::WUSR)?;
    let stat = fstat(&file)?;
    if stat.st_uid != geteuid().as_raw() || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(true);
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // Somebody is telling right now.
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    let run = this_run()?;
    let mut file = File::from(file);
    let mut told = String::new();
    (&file).take(256).read_to_string(&mut told)?;
    if told == run {
        return Ok(false);
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(run.as_bytes())?;
    Ok(true)
}

/// A name for the run: its outermost process, and when that began (field 22 of /proc/PID/stat, proc(5)).
fn this_run() -> io::Result<String> {
    let outermost = pipeline_end::outermost().unwrap_or_else(getpid).as_raw_nonzero();
    let line = fs::read_to_string(format!("/proc/{outermost}/stat"))?;
    let began = line.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19));
    Ok(format!("{outermost} {}", began.unwrap_or("?")))
}
