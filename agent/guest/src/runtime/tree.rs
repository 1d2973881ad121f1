//! Ending a process tree: all that descends from a process, in whatever group or session it hides.
//!
//! Done by the tree's supervisor, which is the subreaper of everything in it: an orphan becomes the supervisor's own
//! child and stays below it. Stopping comes first: a stopped process forks no more, and its dead children keep their ids,
//! because nobody reaps them. What runs as another user (sudo) cannot be ended from here.
//!
//! `ringfence_process::tree` does this on the host. It finds children only by lists that a container's kernel may not have,
//! and ends only the tree of the process that it runs in; the runtime also ends one whose supervisor was stopped.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends the group of `leader` and everything below `root`, which is this process. Whether all of it is gone.
pub(super) fn end(root: Pid, leader: Pid) -> bool {
    let deadline = Instant::now() + PATIENCE;
    // The whole answer where there is no /proc.
    let _ = kill_process_group(leader, Signal::KILL);
    let (stopped, below_now) = stop_below(root, deadline);
    // An id that was given to somebody else before the signal came: let that go on.
    for pid in stopped.difference(&below_now) {
        let _ = kill_process(*pid, Signal::CONT);
    }
    loop {
        for pid in below(root) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if !reap() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// How long it may take to stop another process's tree before it is ended as far as it is known.
const STOPPING: Duration = Duration::from_secs(2);

/// Ends a process that is not this one with everything below it. What is found is stopped before anything is killed: an
/// orphan would be somebody else's, and not found again.
pub(super) fn kill(root: Pid) {
    let deadline = Instant::now() + STOPPING;
    let _ = kill_process(root, Signal::STOP);
    stop_below(root, deadline);
    for pid in below(root) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = kill_process(root, Signal::KILL);
}

/// Stops what is below a process until nothing more is found there, or the deadline has passed: what was stopped, and what
/// was there in the end.
fn stop_below(root: Pid, deadline: Instant) -> (HashSet<Pid>, HashSet<Pid>) {
    let mut stopped = HashSet::new();
    loop {
        let below = below(root);
        let new: Vec<Pid> = below.difference(&stopped).copied().collect();
        if new.is_empty() || Instant::now() >= deadline {
            return (stopped, below);
        }
        for pid in new {
            let _ = kill_process(pid, Signal::STOP);
            stopped.insert(pid);
        }
    }
}

/// Whether a process is stopped, by a signal or by whoever traces it.
pub(super) fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let after = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(after, Some(b'T' | b't'))
}

/// Reaps what is dead; whether there are children left.
fn reap() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// What is below a process now; nothing where /proc cannot be read.
fn below(root: Pid) -> HashSet<Pid> {
    descendants(root).into_iter().collect()
}

/// What is below a process now, parents before their children.
pub(crate) fn descendants(root: Pid) -> Vec<Pid> {
    by_children(root).unwrap_or_else(|_| by_parents(root))
}

/// By the lists of children that the kernel has for each thread. On a machine with much else to do nothing else is quick
/// enough to catch up with a tree that moves. The dead are among them until somebody waits for them.
fn by_children(root: Pid) -> io::Result<Vec<Pid>> {
    let mut found = children_of(root)?;
    let mut at = 0;
    let mut seen = HashSet::from([root]);
    while let Some(pid) = found.get(at).copied() {
        at += 1;
        if seen.insert(pid) {
            // One that has ended meanwhile has none: they are found elsewhere at the next look.
            found.extend(children_of(pid).unwrap_or_default());
        }
    }
    Ok(found)
}

/// The children of all of a process's threads. An error, if not even one of them can be asked.
fn children_of(pid: Pid) -> io::Result<Vec<Pid>> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))?;
    let mut found: Option<Vec<Pid>> = None;
    for thread in threads.flatten() {
        let Ok(listed) = fs::read_to_string(thread.path().join("children")) else { continue };
        let listed = listed.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        found.get_or_insert_default().extend(listed);
    }
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// By every process's parent, where the kernel has no lists of children (CONFIG_PROC_CHILDREN). The dead are left out.
fn by_parents(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&stat, || has_threads(&entry.path())) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = VecDeque::from([root]);
    while let Some(parent) = next.pop_front() {
        // Taken out, so that numbers that were given anew while this was read make no circle.
        for child in children.remove(&parent).into_iter().flatten() {
            found.push(child);
            next.push_back(child);
        }
    }
    found
}

/// Whether a process has threads beside its first. With them it runs, though that one has ended and is a zombie.
fn has_threads(process: &Path) -> bool {
    fs::read_dir(process.join("task")).is_ok_and(|threads| threads.count() > 1)
}

/// The parent in a line of /proc/PID/stat, if the process is not dead: `PID (NAME) STATE PARENT ...`, where the name may
/// have anything in it.
fn parent_of(stat: &[u8], has_threads: impl FnOnce() -> bool) -> Option<Pid> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after..)?).ok()?.split_ascii_whitespace();
    match fields.next()? {
        "X" | "x" => None,
        "Z" if !has_threads() => None,
        _ => Pid::from_raw(fields.next()?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_hide_the_parent() {
        let parent = |line: &[u8]| parent_of(line, || false).map(Pid::as_raw_nonzero).map(|pid| pid.get());
        assert_eq!(parent(b"10 (bash) S 7 10 10 0"), Some(7));
        assert_eq!(parent(b"10 (a) Z 1 (\xff) R 8 1"), Some(8));
        assert_eq!(parent(b"10 (dead) Z 7 10"), None);
        assert_eq!(parent_of(b"10 (threads) Z 7 10", || true), Pid::from_raw(7));
        assert_eq!(parent(b"1 (init) S 0 1"), None);
        assert_eq!(parent(b""), None);
        assert_eq!(parent(b"10 (x)"), None);
    }

    #[test]
    fn a_stopped_tree_is_known_and_ended() {
        let script = "(setsid sh -c 'echo $$; exec sleep 60') & wait";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let root = Pid::from_child(&shell);
        let mut line = String::new();
        let mut out = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(!is_stopped(root));
        kill_process(root, Signal::STOP).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !is_stopped(root) {
            assert!(Instant::now() < until, "it does not stop");
            thread::sleep(Duration::from_millis(5));
        }
        kill(root);
        shell.wait().unwrap();
        // The end of the pipe: the one in a session of its own had it, too.
        assert_eq!(std::io::Read::read_to_end(&mut out, &mut Vec::new()).unwrap(), 0);
        assert!(!is_stopped(root), "nobody is there");
    }

    #[test]
    fn a_child_s_child_is_found() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line)
            .unwrap();
        let sleep = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let own = rustix::process::getpid();
        for found in [by_children(own).unwrap(), by_parents(own)] {
            assert!(found.contains(&sleep) && found.contains(&Pid::from_child(&shell)), "{found:?}");
        }
        kill_process(sleep, Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(!below(own).contains(&sleep) && !by_parents(own).contains(&sleep));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_found() {
        let script = "import threading, time, ctypes\n\
                      threading.Thread(target=time.sleep, args=(600,)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut python = std::process::Command::new("python3").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_child(&python);
        let stat = Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("stat");
        let until = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            assert!(Instant::now() < until, "its first thread does not end");
            thread::sleep(Duration::from_millis(5));
        }
        let own = rustix::process::getpid();
        assert!(by_children(own).unwrap().contains(&pid) && by_parents(own).contains(&pid));
        python.kill().unwrap();
        python.wait().unwrap();
        assert!(!by_parents(own).contains(&pid));
    }
}
