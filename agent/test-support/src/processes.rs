//! What /proc says of other processes.

use std::{fmt::Display, fs, path::PathBuf};

/// Whether a process is there and not a zombie. A killed one's first thread is a zombie while others of it still end, and
/// with them its locks and sockets: every thread counts.
pub fn lives(pid: impl Display) -> bool {
    threads(pid)
        .map(|thread| fs::read_to_string(thread.join("stat")).unwrap_or_default())
        .any(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])))
}

/// The children of a process, whichever of its threads started them.
pub fn children(pid: impl Display) -> Vec<i32> {
    threads(pid)
        // A thread may end meanwhile: another has its children then.
        .filter_map(|thread| fs::read_to_string(thread.join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

fn threads(pid: impl Display) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path())
}
