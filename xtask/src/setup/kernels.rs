//! The kernels that the VM boots: Debian 12's two and sid's newest, taken from packages into the cache.

use super::apt::{Apt, Mirrors};
use crate::report::{quietly, say, step};
use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use ringfence_ebpf_build::cache_dir;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// How old a kernel's last look at the archive may be before setup looks again.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long setup leaves an archive alone that could not be reached.
const RETRY: Duration = Duration::from_secs(3600);

/// Modules without which the guest does not start.
const NEEDED: &[&str] = &["virtio_pci", "virtio_blk", "virtio_console"];
/// Modules that tests and people use: sockets of every family, file systems to mount.
const WANTED: &[&str] = &[
    "overlay",
    "loop",
    "sctp",
    "vsock",
    "vsock_loopback",
    "af_packet",
    "algif_hash",
    "algif_skcipher",
    "af_alg",
    "tun",
    "dummy",
    "veth",
    "fuse",
    "binfmt_misc",
    "squashfs",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "unix_diag",
    "autofs4",
];

/// A line of kernels; the newest of each is taken. The compiler names what a new one needs here, and a test asks for a boot
/// in `vm_test.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Series {
    /// Debian 12's own, the oldest supported.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's newer one.
    #[value(name = "6.12")]
    V6_12,
    /// Whatever Debian sid has.
    #[value(name = "newest")]
    Newest,
}

impl Series {
    /// Every line.
    pub(crate) fn all() -> &'static [Series] {
        Series::value_variants()
    }

    fn name(self) -> &'static str {
        match self {
            Series::V6_1 => "6.1",
            Series::V6_12 => "6.12",
            Series::Newest => "newest",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Series::V6_1 | Series::Newest => "linux-image-cloud-amd64",
            Series::V6_12 => "linux-image-6.12-cloud-amd64",
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The line it belongs to.
    pub(crate) series: Series,
    /// What `uname -r` says in it.
    pub(crate) release: String,
    dir: PathBuf,
}

impl Kernel {
    /// The image to boot.
    pub(crate) fn vmlinuz(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The folder of its modules, named as its release.
    pub(super) fn modules(&self) -> PathBuf {
        self.dir.join("modules").join(&self.release)
    }

    /// Names this very build of the kernel, and the choice of modules.
    pub(super) fn id(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The kernels in the cache, whatever their age.
pub(crate) fn installed() -> Vec<Kernel> {
    Series::all().iter().copied().filter_map(read).collect()
}

/// Fetches the kernels that are missing and looks for newer ones once a week.
///
/// An archive that cannot be reached is an error only where nothing is cached.
pub(crate) fn install(wanted: &[Series]) -> Result<Vec<Kernel>> {
    let stale: Vec<Series> = wanted.iter().copied().filter(|series| !is_fresh(*series)).collect();
    for series in stale {
        let why = if read(series).is_some() {
            "to see whether there is a newer one"
        } else {
            "the VM tests boot it"
        };
        let fetched = step(&format!("fetching the kernel {series}, {why}"), || fetch(series));
        match (fetched, read(series)) {
            (Ok(()), _) => {}
            (Err(error), Some(kernel)) => {
                say(&format!("notice: using the cached kernel {} for {series}: {error:#}", kernel.release));
                let _ = touch(series, FRESH.saturating_sub(RETRY));
            }
            (Err(error), None) => {
                return Err(error).with_context(|| format!("the kernel {series} cannot be had"));
            }
        }
    }
    Ok(installed())
}

fn folder() -> PathBuf {
    cache_dir().join("kernels")
}

/// The file that names the folder of a series' kernel; its time is when the archive was last looked at.
fn pointer(series: Series) -> PathBuf {
    folder().join(format!("{series}.current"))
}

fn read(series: Series) -> Option<Kernel> {
    let text = fs::read_to_string(pointer(series)).ok()?;
    let (name, release) = text.trim().split_once(' ')?;
    let dir = folder().join(name);
    let whole = dir.join("vmlinuz").is_file() && name.ends_with(&modules_id());
    whole.then(|| Kernel { series, release: release.to_owned(), dir })
}

fn is_fresh(series: Series) -> bool {
    let age = fs::metadata(pointer(series)).and_then(|meta| meta.modified()).map(|time| time.elapsed());
    read(series).is_some() && matches!(age, Ok(Ok(age)) if age < FRESH)
}

fn touch(series: Series, age: Duration) -> std::io::Result<()> {
    fs::File::options().write(true).open(pointer(series))?.set_modified(SystemTime::now() - age)
}

/// Changes when the choice of modules does.
fn modules_id() -> String {
    crate::digest::short(&[NEEDED.join(" ").as_bytes(), WANTED.join(" ").as_bytes()])
}

fn fetch(series: Series) -> Result<()> {
    let mirrors = Mirrors::of_this_machine()?;
    let apt_dir = cache_dir().join("apt");
    let apt = match series {
        Series::Newest => Apt::new(apt_dir.join("sid"), &[(&mirrors.main, "sid")])?,
        Series::V6_1 | Series::V6_12 => {
            let sources =
                [(mirrors.main.as_str(), "bookworm"), (mirrors.security.as_str(), "bookworm-security")];
            Apt::new(apt_dir.join("bookworm"), &sources)?
        }
    };
    let found = resolve(&apt, series.package())?;
    // Not every version is a file name: an epoch has a colon.
    let name = format!("{}_{}_{}", found.release, found.version.replace([':', '/'], "-"), modules_id());
    let dir = folder().join(&name);
    if !dir.join("vmlinuz").is_file() {
        fs::create_dir_all(folder()).with_context(|| format!("cannot create {}", folder().display()))?;
        let work = tempfile::tempdir_in(folder()).context("cannot make a working folder in the cache")?;
        unpack(&apt, &found, work.path())?;
        let _ = fs::remove_dir_all(&dir);
        fs::rename(work.path().join("kernel"), &dir)
            .with_context(|| format!("cannot move the kernel to {}", dir.display()))?;
    }
    let previous = read(series);
    let partial = folder().join(format!(".{series}.new"));
    fs::write(&partial, format!("{name} {}\n", found.release)).context("cannot write to the cache")?;
    fs::rename(&partial, pointer(series)).context("cannot write to the cache")?;
    say(&format!("kernel {series}: {} ({})", found.release, found.version));
    if let Some(previous) = previous.filter(|previous| previous.dir != dir) {
        let _ = fs::remove_dir_all(previous.dir);
    }
    Ok(())
}

/// How the names begin of the packages that a kernel is made of.
const PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];

struct Found {
    release: String,
    version: String,
    packages: Vec<String>,
}

/// Follows a meta package to the packages that hold the kernel and its modules: one in Debian 12, several in sid.
fn resolve(apt: &Apt, meta: &str) -> Result<Found> {
    let mut queue = vec![meta.to_owned()];
    let mut seen = BTreeSet::new();
    let (mut version, mut release) = (None, None);
    while let Some(package) = queue.pop() {
        if !seen.insert(package.clone()) {
            continue;
        }
        let shown = apt.show(&package)?;
        version.get_or_insert(shown.version);
        if let Some(name) = versioned(&package, &["linux-image-"]) {
            release.get_or_insert(name.to_owned());
        }
        queue.extend(shown.depends.into_iter().filter(|name| versioned(name, &PARTS).is_some()));
    }
    let packages = seen.into_iter().filter(|name| versioned(name, &PARTS).is_some());
    let (Some(version), Some(release)) = (version, release) else { bail!("{meta} does not name a kernel") };
    Ok(Found { release, version, packages: packages.collect() })
}

/// The kernel's release in a package name such as `linux-image-6.12.117+deb12-cloud-amd64`.
fn versioned<'a>(package: &'a str, prefixes: &[&str]) -> Option<&'a str> {
    let rest = prefixes.iter().find_map(|prefix| package.strip_prefix(prefix))?;
    // `6.12-cloud-amd64` is a meta package: a release has a third number.
    (rest.starts_with(|first: char| first.is_ascii_digit())
        && rest.split(['-', '+']).next()?.matches('.').count() >= 2)
        .then_some(rest)
}

/// Leaves `kernel/vmlinuz` and `kernel/modules/RELEASE` in `work`.
fn unpack(apt: &Apt, found: &Found, work: &Path) -> Result<()> {
    apt.download(&found.packages, work)?;
    let tree = work.join("tree");
    for entry in fs::read_dir(work)
        .context("cannot read the working folder")?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "deb"))
    {
        quietly(Command::new("dpkg-deb").arg("--extract").arg(entry.path()).arg(&tree))?;
    }
    let release = &found.release;
    if !tree.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", tree.join("lib"))
            .with_context(|| format!("cannot link in {}", tree.display()))?;
    }
    let modules = tree.join("lib/modules").join(release);
    let boot = [tree.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")];
    let Some(vmlinuz) = boot.iter().find(|path| path.is_file()) else {
        bail!("the packages {} hold no vmlinuz", found.packages.join(", "));
    };
    let kernel = work.join("kernel");
    let chosen = kernel.join("modules").join(release);
    fs::create_dir_all(&chosen).with_context(|| format!("cannot create {}", chosen.display()))?;
    copy(vmlinuz, &kernel.join("vmlinuz"))?;
    quietly(Command::new("/sbin/depmod").arg("-b").arg(&tree).arg(release))?;
    for file in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        copy(&modules.join(file), &chosen.join(file))?;
    }
    for path in closure(&tree, release)? {
        let inside = path.strip_prefix(&modules).unwrap_or(Path::new("kernel/module.ko"));
        let target = chosen.join(inside);
        copy(&path, &target)?;
        if target.extension().is_some_and(|end| end == "xz") {
            quietly(Command::new("xz").arg("--decompress").arg(&target))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let cannot = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).with_context(cannot)?;
    fs::copy(from, to).map(drop).with_context(cannot)
}

/// The files of the modules that the guest needs or wants, with what they depend on.
fn closure(tree: &Path, release: &str) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for (module, needed) in
        NEEDED.iter().map(|name| (name, true)).chain(WANTED.iter().map(|name| (name, false)))
    {
        let mut modprobe = Command::new("/sbin/modprobe");
        modprobe.arg("--dirname").arg(tree).args(["--set-version", release, "--show-depends", module]);
        match quietly(&mut modprobe) {
            Ok(said) => {
                files.extend(said.lines().filter_map(module_file));
            }
            Err(error) if needed => return Err(error),
            // Not every kernel has every module.
            Err(_) => {}
        }
    }
    Ok(files)
}

/// The file in a line such as `insmod /lib/.../dummy.ko numdummies=0`; a folder's name may have spaces.
fn module_file(line: &str) -> Option<PathBuf> {
    let path = line.strip_prefix("insmod ")?;
    let name = path.rfind(".ko")?;
    let end = path[name..].find(' ').map_or(path.len(), |space| name + space);
    Some(PathBuf::from(&path[..end]))
}

#[cfg(test)]
mod tests {
    use super::{module_file, versioned};
    use std::path::Path;

    #[test]
    fn a_module_is_found_with_and_without_options() {
        let file = |line| module_file(line);
        assert_eq!(file("insmod /a b/dummy.ko numdummies=0").as_deref(), Some(Path::new("/a b/dummy.ko")));
        assert_eq!(file("insmod /a/virtio.ko.xz ").as_deref(), Some(Path::new("/a/virtio.ko.xz")));
        assert_eq!(file("builtin unix"), None);
    }

    #[test]
    fn a_release_has_three_numbers_and_a_meta_package_has_not() {
        let release = |name| versioned(name, &["linux-image-", "linux-binary-"]);
        assert_eq!(release("linux-image-6.12.117+deb12-cloud-amd64"), Some("6.12.117+deb12-cloud-amd64"));
        assert_eq!(release("linux-image-6.1.0-56-cloud-amd64"), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(release("linux-binary-7.2.13+deb14-cloud-amd64"), Some("7.2.13+deb14-cloud-amd64"));
        assert_eq!(release("linux-image-6.12-cloud-amd64"), None);
        assert_eq!(release("linux-image-cloud-amd64"), None);
        assert_eq!(release("linux-base-7.2.13"), None);
    }
}
