//! The registry: every container with a live task, in memory and in `/run/ringfence/containers`, from where a restarted
//! core adopts them. A record is written before the container's first task is tagged, whole or not at all.

use super::{
    egress::{Egress, EgressRecord},
    link_targets::{self, LinkTargets},
};
use ringfence_files::Access;
use ringfence_policy::{
    KernelOptions,
    compiled::CompiledPolicy,
    fixed::{Fixed, History},
    mounts::Mount,
};
use ringfence_wire::{
    audit::Manifest,
    status::{Counts, Mode},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Version of the records' format.
const FORMAT: u32 = 1;
/// Most bytes of a record: of what is written as of what is read.
const MAX_RECORD: u64 = 64 << 20;

/// Why the registry cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The directory or a file in it cannot be used.
    #[error("cannot {what} {}: {hint}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A record that no core wrote.
    #[error("the container record {} is damaged; its container stays enforced, but cannot be reloaded", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A record that could not be read again.
    #[error(
        "the record of the container would have {bytes} bytes, and has at most {most}: its rules or those of the containers around it \
         lead to too many places; name directories instead of what is in them"
    )]
    TooLong {
        /// How long it would be.
        bytes: usize,
        /// How long it may be.
        most: u64,
    },
    /// A record in a format of another version.
    #[error("the container record {} has format {format}, this daemon knows {FORMAT}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
}

/// What is kept of a container across a restart of the core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// The boot it belongs to (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The kernel's id.
    pub(crate) kernel_id: u64,
    /// Public id: 12 hex digits.
    pub id: String,
    /// The profile as it was asked for: a name or an absolute path.
    pub asked: String,
    /// Name of the profile.
    pub profile: String,
    /// File of the profile.
    pub file: PathBuf,
    /// What `${WORKDIR}` stands for.
    pub workdir: Option<PathBuf>,
    /// Root asked for audit mode.
    pub audit: bool,
    /// Whether denials are recorded only (asked for, or the profile's own mode).
    pub audit_mode: bool,
    /// Generation of the policy in force.
    pub generation: u32,
    /// When it was enrolled, microseconds since 1970 UTC.
    pub created: i64,
    /// User id of who enrolled it.
    pub uid: u32,
    /// Whether the container's root is the host's: then a restarted core can compile its profile again.
    pub(crate) host_root: bool,
    /// Profiles as asked for, of the containers around this one, outermost first: their grants are met.
    pub outer: Vec<Outer>,
    /// What the ids in its events mean.
    pub manifest: Manifest,
    /// What `${HOME}` stands for.
    #[serde(default)]
    pub home: Option<PathBuf>,
    /// Where its paths lead, and what it could have written.
    #[serde(default)]
    pub history: History,
    /// What it saw mounted when it was entered. None: an earlier version did not look.
    #[serde(default)]
    pub mounts: Option<Vec<Mount>>,
    /// The files that its profile is made of.
    #[serde(default)]
    pub sources: Vec<PathBuf>,
    /// How the names are served that it may reach; None: it may reach none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRecord>,
    /// It may reach none by the daemon's network: whoever enrolled it was in another, and could not enter that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// The directory of the certificates that its programs trust, where it was started with credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<PathBuf>,
}

/// A container around a nested one, as it was when the inner one was enrolled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outer {
    /// Public id.
    pub id: String,
    /// The profile as it was asked for.
    pub asked: String,
    /// What `${WORKDIR}` stands for in it.
    pub workdir: Option<PathBuf>,
    /// Root asked for audit mode.
    pub audit: bool,
    /// What `${HOME}` stands for in it.
    #[serde(default)]
    pub home: Option<PathBuf>,
    /// Where its paths lead, and what it could have written.
    #[serde(default)]
    pub history: History,
}

/// One container.
#[derive(Debug)]
pub struct Container {
    /// What survives a restart of the core.
    pub record: Record,
    /// The root its rules were resolved in; none after a restart, unless it is the host's.
    pub root: Option<OwnedFd>,
    /// The task that was enrolled first, until the kernel has counted a live one.
    pub first: Option<OwnedFd>,
    /// The policy in force; none after a restart.
    pub policy: Option<CompiledPolicy>,
    /// What the launcher set from the profile; none after a restart.
    pub options: Option<KernelOptions>,
    /// Since when no live task was seen.
    pub idle: Option<Instant>,
    /// What was counted when it was looked at last.
    pub counts: Counts,
    /// Live tasks when it was looked at last.
    pub tasks: u64,
    /// Why the last change of its profile is not in force.
    pub reload_error: Option<String>,
    /// What serves the names that it may reach.
    pub egress: Egress,
}

impl Container {
    /// A container known by its record only, as after a restart.
    pub(crate) fn from_record(record: Record) -> Self {
        Self {
            record,
            root: None,
            first: None,
            policy: None,
            options: None,
            idle: None,
            counts: Counts::default(),
            tasks: 0,
            reload_error: None,
            egress: Egress::None,
        }
    }
}

/// All containers, by the kernel's id.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
    containers: BTreeMap<u64, Container>,
    link_targets: LinkTargets,
}

impl Registry {
    /// Opens the directory and reads the records of this boot; those of another boot are removed. What cannot be read
    /// is reported beside the registry, and left where it is.
    ///
    /// # Errors
    /// If the directory cannot be made or listed.
    pub fn open(dir: &Path, boot: &str) -> Result<(Self, Vec<RegistryError>), RegistryError> {
        make_private_dir(dir)?;
        let mut registry =
            Self { dir: dir.to_owned(), containers: BTreeMap::new(), link_targets: LinkTargets::open(dir) };
        let mut errors = Vec::new();
        let list = |source| io_error("list", dir, "it must be root's", source);
        for entry in fs::read_dir(dir).map_err(list)? {
            let path = entry.map_err(list)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                match read_record(&path) {
                    Ok(record) if record.boot == boot => {
                        registry.containers.insert(record.kernel_id, Container::from_record(record));
                    }
                    Ok(_) => remove(&path),
                    Err(error) => errors.push(error),
                }
            } else if !path.file_name().and_then(OsStr::to_str).is_some_and(link_targets::is_file) {
                // What a core that was killed left half written.
                remove(&path);
            }
        }
        Ok((registry, errors))
    }

    /// Adds a container, on disk first.
    ///
    /// # Errors
    /// If the record cannot be written whole: then nothing was added.
    pub fn add(&mut self, container: Container) -> Result<(), RegistryError> {
        self.write(&container.record)?;
        self.containers.insert(container.record.kernel_id, container);
        Ok(())
    }

    /// Writes a container's changed record.
    ///
    /// # Errors
    /// If it cannot be written whole, or could not be read again; the old one is still there.
    pub fn write(&self, record: &Record) -> Result<(), RegistryError> {
        let path = self.path(&record.id);
        let fail = |source| io_error("write", &path, "is the runtime directory full or read-only?", source);
        let text = serde_json::to_vec(record).map_err(|error| fail(error.into()))?;
        if text.len() as u64 > MAX_RECORD {
            return Err(RegistryError::TooLong { bytes: text.len(), most: MAX_RECORD });
        }
        ringfence_files::replace(&path, &text, Access::Mode(0o600)).map_err(fail)
    }

    /// Removes a container, on disk too.
    pub fn remove(&mut self, kernel_id: u64) -> Option<Container> {
        let container = self.containers.remove(&kernel_id)?;
        remove(&self.path(&container.record.id));
        Some(container)
    }

    /// A container by the kernel's id.
    pub(crate) fn by_kernel_id(&self, kernel_id: u64) -> Option<&Container> {
        self.containers.get(&kernel_id)
    }

    /// A container by the kernel's id, to change.
    pub(crate) fn by_kernel_id_mut(&mut self, kernel_id: u64) -> Option<&mut Container> {
        self.containers.get_mut(&kernel_id)
    }

    /// All containers, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Container> {
        self.containers.values()
    }

    /// A public id that no container has.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn new_id(&self) -> io::Result<String> {
        loop {
            let id = random_hex::<6>()?;
            if self.containers.values().all(|container| container.record.id != id) {
                return Ok(id);
            }
        }
    }

    /// A public id that was made before, which no container has taken since.
    ///
    /// # Errors
    /// One has.
    pub(crate) fn unless_taken(&self, id: String) -> io::Result<String> {
        match self.containers.values().any(|container| container.record.id == id) {
            true => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "another container has the id that was chosen; try again",
            )),
            false => Ok(id),
        }
    }

    /// Where the paths led that earlier containers of this user, and of whoever has its ids, could turn into links.
    pub fn link_targets(&self, uid: u32, owner: u32) -> Option<Arc<Fixed>> {
        self.link_targets.of(uid, owner)
    }

    /// Keeps where such paths lead, for the next container of `owner` that is granted them.
    pub(crate) fn keep_link_targets(&mut self, owner: u32, led: &Fixed) {
        self.link_targets.keep(owner, led);
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(id).with_extension("json")
    }
}

/// Random bytes as hex digits.
///
/// # Errors
/// If /dev/urandom cannot be read.
pub(crate) fn random_hex<const N: usize>() -> io::Result<String> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Makes a directory of mode 0700, unless it is there.
fn make_private_dir(dir: &Path) -> Result<(), RegistryError> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(io_error("make", dir, "is the runtime directory there and writable?", source))
        }
        _ => Ok(()),
    }
}

fn read_record(path: &Path) -> Result<Record, RegistryError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_RECORD).read_to_end(&mut bytes))
        .map_err(|source| io_error("read", path, "it must be root's", source))?;
    let damaged = |source| RegistryError::Damaged { path: path.to_owned(), source };
    match serde_json::from_slice::<Format>(&bytes).map_err(damaged)?.format {
        FORMAT => serde_json::from_slice(&bytes).map_err(damaged),
        format => Err(RegistryError::Format { path: path.to_owned(), format }),
    }
}

fn io_error(what: &'static str, path: &Path, hint: &'static str, source: io::Error) -> RegistryError {
    RegistryError::Io { what, path: path.to_owned(), hint, source }
}

/// Removes a file of ours. One that stays is looked at again at the next start.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

impl Record {
    /// The present format.
    pub(crate) const FORMAT: u32 = FORMAT;

    /// What people know it by: `ID (PROFILE)`.
    pub fn label(&self) -> String {
        format!("{} ({})", self.id, self.profile)
    }

    /// Whether denials are enforced.
    pub fn mode(&self) -> Mode {
        if self.audit_mode { Mode::Audit } else { Mode::Enforce }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(kernel_id: u64, id: &str, boot: &str) -> Record {
        let manifest = Manifest {
            container: kernel_id,
            public: id.into(),
            profile: "coder".into(),
            uid: 1000,
            created: 7,
            generation: 1,
            rules: Vec::new(),
            slots: Vec::new(),
            more: false,
        };
        Record {
            format: FORMAT,
            boot: boot.into(),
            kernel_id,
            id: id.into(),
            asked: "coder".into(),
            profile: "coder".into(),
            file: "/etc/ringfence/profiles/coder.toml".into(),
            workdir: None,
            audit: false,
            audit_mode: false,
            generation: 1,
            created: 7,
            uid: 1000,
            host_root: true,
            outer: Vec::new(),
            manifest,
            home: None,
            history: History::default(),
            mounts: None,
            sources: Vec::new(),
            egress: None,
            elsewhere: false,
            bundle: None,
        }
    }

    fn container(record: Record) -> Container {
        Container::from_record(record)
    }

    #[test]
    fn a_restarted_core_finds_what_the_first_one_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("containers");
        let (mut registry, errors) = Registry::open(&dir, "boot").unwrap();
        assert!(errors.is_empty());
        registry.add(container(record(4097, "aaaaaaaaaaaa", "boot"))).unwrap();
        registry.add(container(record(8194, "bbbbbbbbbbbb", "boot"))).unwrap();
        registry.remove(4097).unwrap();
        let (again, errors) = Registry::open(&dir, "boot").unwrap();
        assert!(errors.is_empty());
        let records: Vec<_> = again.iter().map(|container| container.record.clone()).collect();
        assert_eq!(records, [record(8194, "bbbbbbbbbbbb", "boot")]);
    }

    #[test]
    fn another_boot_s_records_and_half_written_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut registry, _) = Registry::open(dir.path(), "old").unwrap();
        registry.add(container(record(4097, "aaaaaaaaaaaa", "old"))).unwrap();
        fs::write(dir.path().join("bbbbbbbbbbbb.new"), "{").unwrap();
        let (registry, errors) = Registry::open(dir.path(), "new").unwrap();
        assert!(errors.is_empty() && registry.iter().next().is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn damaged_records_are_reported_and_do_not_hide_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let (mut registry, _) = Registry::open(dir.path(), "boot").unwrap();
        registry.add(container(record(4097, "aaaaaaaaaaaa", "boot"))).unwrap();
        fs::write(dir.path().join("cut.json"), r#"{"format":1,"boot":"bo"#).unwrap();
        fs::write(dir.path().join("empty.json"), "").unwrap();
        fs::write(dir.path().join("later.json"), r#"{"format":2}"#).unwrap();
        let (registry, errors) = Registry::open(dir.path(), "boot").unwrap();
        assert_eq!(registry.iter().count(), 1);
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors.iter().any(|error| matches!(error, RegistryError::Format { format: 2, .. })));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = Registry::open(Path::new("/nonexistent/containers"), "boot").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/containers"), "{error}");
    }

    #[test]
    fn a_record_that_no_core_could_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let (mut registry, _) = Registry::open(dir.path(), "boot").unwrap();
        let long = |bytes: usize| {
            let mut record = record(4097, "aaaaaaaaaaaa", "boot");
            record.asked = "x".repeat(bytes);
            container(record)
        };
        let rest = serde_json::to_vec(&long(0).record).unwrap().len();
        let most = MAX_RECORD as usize - rest;
        let error = registry.add(long(most + 1)).unwrap_err();
        assert!(matches!(error, RegistryError::TooLong { .. }), "{error}");
        assert!(registry.iter().next().is_none() && fs::read_dir(dir.path()).unwrap().count() == 0);
        registry.add(long(most)).unwrap();
        let (again, errors) = Registry::open(dir.path(), "boot").unwrap();
        assert!(errors.is_empty(), "the control: {errors:?}");
        assert_eq!(again.iter().count(), 1);
    }

    #[test]
    fn ids_are_twelve_hex_digits_and_differ() {
        let dir = tempfile::tempdir().unwrap();
        let (registry, _) = Registry::open(dir.path(), "boot").unwrap();
        let (a, b) = (registry.new_id().unwrap(), registry.new_id().unwrap());
        assert!(a.len() == 12 && a.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(a, b);
    }
}
