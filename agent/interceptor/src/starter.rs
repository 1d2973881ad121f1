//! The process that an interceptor works for: its client's, so that calls of two clients are never taken for one.

use ringfence_process::peer::read;
use std::fs;

/// Shells in one another that are looked through.
const MOST_SHELLS: usize = 4;
/// The inode of the host's own namespace of process ids (`PROC_PID_INIT_INO` in the kernel's include/linux/proc_ns.h).
const HOSTS: &str = "pid:[4026531836]";
/// Programs through which clients start commands: with `-c`.
const SHELLS: &[&str] = &["ash", "bash", "dash", "fish", "ksh", "sh", "zsh"];

/// Which process that is, while this computer is up: the namespace, the process's id and when it was started, in clock ticks since
/// boot. `None`: nobody knows, as of what the host's first process has taken over.
pub fn client() -> Option<String> {
    // Not as a path that is used: only its text.
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let namespace = namespace.to_str()?;
    let mut pid = u32::try_from(nix::unistd::getppid().as_raw()).ok().filter(|pid| *pid > 0)?;
    for _ in 0..MOST_SHELLS {
        let parent = stat(pid)?.0;
        if !is_command(pid) || parent == 0 {
            break;
        }
        pid = parent;
    }
    if pid == 1 && namespace == HOSTS {
        return None;
    }
    Some(format!("{namespace}/{pid}/{}", stat(pid)?.1))
}

/// A process's parent, and when it was started.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let (_, text) = read(pid, "stat").ok()?;
    // Its name stands in brackets, and may have any.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    // The 22nd of all, proc_pid_stat(5).
    Some((parent, fields.nth(17)?.parse().ok()?))
}

/// Whether a process is a shell that runs a command for somebody.
fn is_command(pid: u32) -> bool {
    read(pid, "cmdline").is_ok_and(|(_, line)| is_command_line(&line))
}

fn is_command_line(line: &str) -> bool {
    let mut words = line.split('\0');
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    let options = words.next().and_then(|word| word.strip_prefix('-')).unwrap_or_default();
    SHELLS.contains(&name) && !options.starts_with('-') && options.contains('c')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_whoever_started_this_process() {
        let (id, started) = (std::os::unix::process::parent_id(), client());
        let (parent, time) = stat(std::process::id()).expect("this process");
        assert!(parent == id && time > 0);
        if let Some(started) = started {
            let parts: Vec<&str> = started.split('/').collect();
            assert!(
                matches!(parts.as_slice(), [namespace, _, _] if namespace.starts_with("pid:[")),
                "{started}"
            );
            assert_eq!(client(), Some(started), "it is the same");
        }
    }

    #[test]
    fn shells_that_run_a_command_are_looked_through() {
        for line in ["sh\0-c\0ringfence mcp", "/usr/bin/bash\0-lc\0x", "zsh\0-c\0x\0"] {
            assert!(is_command_line(line), "{line}");
        }
        for line in ["bash", "-bash", "bash\0script.sh", "bash\0--rcfile\0c", "node\0-c\0x", "claude", ""] {
            assert!(!is_command_line(line), "{line}");
        }
    }
}
