//! What needs to be fast in the VM tests: opens by the million, renames and mounts beside them.
//!
//! | command | does |
//! |---|---|
//! | `hammer opens PATH COUNT` | opens PATH for reading COUNT times |
//! | `hammer until PATH SECONDS` | the same for so long |
//! | `hammer race DENIED ALLOWED COUNT` | nine threads open both, by descriptors that survive renames, until DENIED was tried COUNT times |
//! | `hammer churn ONE TWO MOUNTPOINT SECONDS` | renames ONE to TWO and back, and mounts and unmounts a tmpfs |
//!
//! The first three print one JSON object with what they counted: `tried`, `opened`, `errors` (errno: count).

use anyhow::{Context, Result, bail};
use nix::{
    fcntl::{OFlag, open},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::Mode,
};
use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Threads beside the one that opens the denied file most.
const BESIDE: usize = 8;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["opens", path, count] => {
            let count: u64 = count.parse()?;
            let mut tally = Tally::default();
            for _ in 0..count {
                tally.open(path);
            }
            println!("{}", tally.json());
        }
        ["until", path, seconds] => {
            let end = end_after(seconds)?;
            let mut tally = Tally::default();
            while Instant::now() < end {
                for _ in 0..64 {
                    tally.open(path);
                }
            }
            println!("{}", tally.json());
        }
        ["race", denied, allowed, count] => race(denied, allowed, count.parse()?)?,
        ["churn", one, two, mountpoint, seconds] => churn(one, two, mountpoint, end_after(seconds)?)?,
        _ => bail!(
            "usage: hammer opens PATH COUNT | until PATH SECONDS | race DENIED ALLOWED COUNT | churn ONE TWO MOUNTPOINT SECONDS"
        ),
    }
    Ok(())
}

fn end_after(seconds: &str) -> Result<Instant> {
    Ok(Instant::now() + Duration::from_secs(seconds.parse().context("seconds")?))
}

/// What came of many opens.
#[derive(Default)]
struct Tally {
    tried: u64,
    opened: u64,
    errors: BTreeMap<i32, u64>,
}

impl Tally {
    /// One open for reading.
    fn open(&mut self, path: &str) {
        self.tried += 1;
        match open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty()) {
            Ok(_) => self.opened += 1,
            Err(errno) => *self.errors.entry(errno as i32).or_default() += 1,
        }
    }

    fn add(&mut self, other: &Self) {
        self.tried += other.tried;
        self.opened += other.opened;
        for (errno, count) in &other.errors {
            *self.errors.entry(*errno).or_default() += count;
        }
    }

    fn json(&self) -> String {
        let errors: Vec<String> =
            self.errors.iter().map(|(errno, count)| format!("\"{errno}\":{count}")).collect();
        format!("{{\"tried\":{},\"opened\":{},\"errors\":{{{}}}}}", self.tried, self.opened, errors.join(","))
    }
}

/// A descriptor that names a file whatever it is called meanwhile, and fires no hook: each open of its path in /proc does.
fn handle(path: &str) -> Result<OwnedFd> {
    // The churn beside takes the name away and brings it back.
    for _ in 0..100_000 {
        match open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
            Err(nix::errno::Errno::ENOENT) => thread::yield_now(),
            outcome => return outcome.with_context(|| format!("O_PATH open of {path}")),
        }
    }
    anyhow::bail!("O_PATH open of {path}: it was not there in a hundred thousand tries")
}

/// Nine threads walk paths at once: each opens the allowed file and the denied one, one of them only the denied one.
fn race(denied: &str, allowed: &str, count: u64) -> Result<()> {
    let denied_handle = handle(denied)?;
    let allowed_handle = handle(allowed)?;
    let denied_path = format!("/proc/self/fd/{}", denied_handle.as_raw_fd());
    let allowed_path = format!("/proc/self/fd/{}", allowed_handle.as_raw_fd());
    let total = AtomicU64::new(0);
    // On a busy machine the first thread could be done before the last one is there.
    let together = Barrier::new(BESIDE + 1);
    let mut denied_tally = Tally::default();
    let mut allowed_tally = Tally::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..=BESIDE)
            .map(|number| {
                let (denied_path, allowed_path, total, together) =
                    (&denied_path, &allowed_path, &total, &together);
                scope.spawn(move || {
                    let (mut refused, mut granted) = (Tally::default(), Tally::default());
                    together.wait();
                    while total.fetch_add(32, Ordering::Relaxed) < count {
                        for _ in 0..32 {
                            refused.open(denied_path);
                            if number > 0 {
                                granted.open(allowed_path);
                            }
                        }
                    }
                    (refused, granted)
                })
            })
            .collect();
        for one in threads {
            if let Ok((refused, granted)) = one.join() {
                denied_tally.add(&refused);
                allowed_tally.add(&granted);
            }
        }
    });
    println!("{{\"denied\":{},\"allowed\":{}}}", denied_tally.json(), allowed_tally.json());
    Ok(())
}

/// Moves a directory between two names with one rename each way, and mounts beside it, until the time is over.
fn churn(one: &str, two: &str, mountpoint: &str, end: Instant) -> Result<()> {
    let (mut renames, mut mounts) = (0_u64, 0_u64);
    while Instant::now() < end {
        for _ in 0..20 {
            fs::rename(one, two).with_context(|| format!("{one} to {two}"))?;
            fs::rename(two, one).with_context(|| format!("{two} to {one}"))?;
            renames += 2;
        }
        let target = Path::new(mountpoint);
        mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), None::<&str>).context("mount")?;
        umount2(target, MntFlags::MNT_DETACH).context("umount")?;
        mounts += 1;
    }
    println!("{{\"renames\":{renames},\"mounts\":{mounts}}}");
    Ok(())
}
