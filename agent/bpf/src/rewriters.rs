//! The programs at the root of cgroup v2 that send outbound names to egress workers. They cost every process of the host
//! something, so they are loaded with all others, pinned, and attached only while there is a container that needs them.
//!
//! ```text
//! links/N/programs/NAME   the loaded program
//! links/N/NAME            its link: it is attached
//! ```
//!
//! Attached before the first policy that grants hosts by name is in force; detached when the last container is gone that had
//! such a policy, and every task of it. Not when the last such policy is: a call that was let go by an LSM program because it
//! would be sent elsewhere may be on its way, for as long as its caller has the socket locked.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        CgroupAttachMode, CgroupSockAddr, CgroupSockAddrAttachType as At, Program, ProgramError,
        links::FdLink,
    },
};
use ringfence_common::egress::REWRITERS;
use ringfence_sandbox::host;

use super::{
    ContainerId,
    load::{LoadError, pin, refused},
};

/// The inode of the root of every kernfs, cgroup v2 among them.
const ROOT_INODE: u64 = 1;
/// Where the programs are pinned, beside the links.
const PROGRAMS: &str = "programs";
/// Where each is attached, in the order of [`REWRITERS`].
const PLACES: [At; REWRITERS.len()] = [
    At::Connect4,
    At::Connect6,
    At::UDPSendMsg4,
    At::UDPSendMsg6,
    At::UDPRecvMsg4,
    At::UDPRecvMsg6,
    At::GetPeerName4,
    At::GetPeerName6,
];

/// The root of cgroup v2.
pub(crate) fn cgroup_root() -> Result<File, LoadError> {
    let mount = host::cgroup2().ok_or(LoadError::NoCgroup)?;
    let root = File::open(&mount).ok();
    let is_root = |root: &File| root.metadata().is_ok_and(|meta| meta.ino() == ROOT_INODE);
    root.filter(is_root).ok_or(LoadError::PartOfCgroups(mount))
}

/// Loads the programs and pins them below a load's directory of links.
pub(crate) fn load(loaded: &mut Ebpf, links: &Path) -> Result<(), LoadError> {
    let dir = links.join(PROGRAMS);
    let kept = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Keep { path, source }
    };
    DirBuilder::new().mode(0o700).create(&dir).map_err(kept(&dir))?;
    for name in REWRITERS {
        let Some(Program::CgroupSockAddr(program)) = loaded.program_mut(name) else {
            return Err(LoadError::Mismatch(format!("there is no program `{name}`")));
        };
        program.load().map_err(|error| refused(name, error))?;
        let path = dir.join(name);
        program.pin(&path).map_err(|source| LoadError::Pin { path, source })?;
    }
    Ok(())
}

/// Whether a load's directory of links has each of the programs.
pub(crate) fn are_loaded(links: &Path) -> bool {
    let dir = links.join(PROGRAMS);
    REWRITERS.iter().all(|name| dir.join(name).exists())
}

/// How many of them are attached.
pub(crate) fn attached(links: &Path) -> usize {
    REWRITERS.iter().filter(|name| links.join(name).exists()).count()
}

/// Attaches those that are not. Where an earlier load's are attached too, both run: what the one has changed is nothing to the
/// other.
pub(crate) fn attach(links: &Path) -> Result<(), LoadError> {
    let root = cgroup_root()?;
    for (name, place) in REWRITERS.into_iter().zip(PLACES) {
        if links.join(name).exists() {
            continue;
        }
        let failed = |source: ProgramError| LoadError::Attach { hook: name, source: Box::new(source) };
        let mut program = CgroupSockAddr::from_pin(links.join(PROGRAMS).join(name), place).map_err(failed)?;
        // A link is always one of several, and takes no mode.
        let id = program.attach(&root, CgroupAttachMode::Single).map_err(failed)?;
        let link = program.take_link(id).map_err(failed)?;
        let link: FdLink =
            link.try_into().map_err(|source| LoadError::Link { hook: name, source: Box::new(source) })?;
        pin(link, links, name)?;
    }
    Ok(())
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rewriters {
    /// The newest load's links.
    links: PathBuf,
    are_attached: bool,
    /// Containers whose tasks may rely on them.
    held_by: BTreeSet<ContainerId>,
}

impl Rewriters {
    /// Takes over what is pinned. `all`: every container there is; `needing`: those whose policy grants hosts by name.
    pub(crate) fn adopt(
        links: PathBuf,
        all: Vec<ContainerId>,
        needing: Vec<ContainerId>,
    ) -> Result<Self, LoadError> {
        let count = attached(&links);
        // Of those that there are, each may have had such a policy.
        let held_by = if count == 0 { &needing } else { &all }.iter().copied().collect();
        let mut this = Self { links, are_attached: count == REWRITERS.len(), held_by };
        if !this.are_attached && !needing.is_empty() {
            attach(&this.links)?;
            this.are_attached = true;
        }
        if !this.are_attached || this.held_by.is_empty() {
            // An earlier core was killed while it attached or detached them, for nobody that is there.
            this.detach();
        }
        Ok(this)
    }

    /// They are attached from now on, for this container's sake.
    ///
    /// # Errors
    /// Then none is, and nothing has changed.
    pub(crate) fn hold(&mut self, id: ContainerId) -> Result<(), LoadError> {
        if !self.are_attached {
            if let Err(error) = attach(&self.links) {
                self.detach();
                return Err(error);
            }
            self.are_attached = true;
        }
        self.held_by.insert(id);
        Ok(())
    }

    /// Detaches them if nobody needs them any more: whether that was now. `is_there`: the container is, or a task of it.
    pub(crate) fn settle(&mut self, is_there: impl Fn(ContainerId) -> bool) -> bool {
        self.held_by.retain(|id| is_there(*id));
        let is_over = self.are_attached && self.held_by.is_empty();
        if is_over {
            self.detach();
        }
        is_over
    }

    fn detach(&mut self) {
        self.are_attached = false;
        for name in REWRITERS {
            match fs::remove_file(self.links.join(name)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // It does nothing for whoever needs nothing of it.
                Err(error) => tracing::warn!(
                    "{}: cannot be unpinned: {error}; the program stays attached, which costs every process of this host a little",
                    self.links.join(name).display()
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: u64) -> ContainerId {
        ContainerId::from_raw(raw)
    }

    fn links(pinned: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in pinned {
            fs::write(dir.path().join(name), "").unwrap();
        }
        dir
    }

    #[test]
    fn they_stay_until_the_last_container_is_gone_that_had_names() {
        let dir = links(&REWRITERS);
        let mut those = Rewriters::adopt(dir.path().into(), vec![id(1), id(2)], vec![id(1)]).unwrap();
        those.hold(id(3)).unwrap();
        those.settle(|_| true);
        those.settle(|one| one == id(2));
        assert_eq!(attached(dir.path()), REWRITERS.len(), "an earlier core may have granted it names");
        those.settle(|_| false);
        assert_eq!(attached(dir.path()), 0);
        those.settle(|_| false);
    }

    #[test]
    fn what_nobody_needs_is_detached_at_the_start() {
        let dir = links(&REWRITERS);
        Rewriters::adopt(dir.path().into(), Vec::new(), Vec::new()).unwrap();
        assert_eq!(attached(dir.path()), 0);
        // Half of them are nobody's, whoever is there.
        let dir = links(&REWRITERS[..3]);
        Rewriters::adopt(dir.path().into(), vec![id(1)], Vec::new()).unwrap();
        assert_eq!(attached(dir.path()), 0);
    }

    #[test]
    fn what_cannot_be_attached_is_refused_and_leaves_nothing() {
        let dir = links(&REWRITERS[..3]);
        assert!(Rewriters::adopt(dir.path().into(), vec![id(1)], vec![id(1)]).is_err());
        let dir = links(&[]);
        let mut those = Rewriters::adopt(dir.path().into(), vec![id(1)], Vec::new()).unwrap();
        assert!(those.hold(id(1)).is_err(), "there is no such program");
        assert!(those.held_by.is_empty() && !those.are_attached && attached(dir.path()) == 0);
    }
}
