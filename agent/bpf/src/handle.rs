//! The kernel's side, as the core holds it: one type over containers, policies and tags.

use std::{
    io,
    num::NonZeroU64,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use aya::maps::{HashMap, LpmTrie, Map, MapData};
use ringfence_common::{
    egress::PORT_WORDS,
    enroll::{ITERATOR, Outcome},
    hash::Keys,
    policy::{BUCKET_SLOTS, Counters, TABLE_BUCKETS},
};

use ringfence_coverage::Table;

use super::{
    ContainerId, Coverage, Installed, LoadError, Membership, PolicyError, Rings, TaskError,
    arrays::Arrays,
    egress::{Flows, Listeners, Redirects},
    load::{self, Ready},
    net::KernelTrie,
    object::{Object, Shape},
    pins::Pins,
    policies::Policies,
    rewriters::Rewriters,
    rings,
    running::Running,
    sys::{Mapped, Shared},
    tasks::{Callers, Calls, Tags},
};
use ringfence_policy::compiled::CompiledPolicy;

/// The owners of the rule table's slots; a map of the agent's alone.
const OWNERS: &str = "OWNERS";
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// The kernel's side, as the core holds it.
#[derive(Debug)]
pub struct Kernel {
    policies: Policies<KernelTrie>,
    tags: Tags,
    calls: Calls,
    callers: Callers,
    running: Running,
    redirects: Redirects,
    rewriters: Rewriters,
    coverage: Coverage,
}

impl Kernel {
    /// Loads the programs and pins them below `pin_dir`, or adopts what an earlier daemon pinned there: programs of
    /// the same build stay as they are, others are attached before the pinned ones are detached.
    ///
    /// The rings are the only consumer of the records; there must be no other daemon with the same `pin_dir`.
    pub fn load_or_adopt(pin_dir: &Path) -> Result<(Self, Rings), LoadError> {
        Self::load_with(pin_dir, &super::surface::table())
    }

    /// The same, with a coverage table: what it does not name of the running kernel is refused.
    pub(crate) fn load_with(pin_dir: &Path, table: &Table) -> Result<(Self, Rings), LoadError> {
        let Ready { object, pins, keys, coverage } = load::prepare(pin_dir, table)?;
        open(&object, &pins, keys, coverage)
    }

    /// Which hooks have a program, and which the kernel lacks.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Every container in the kernel, those of an earlier daemon included.
    pub fn containers(&self) -> Vec<ContainerId> {
        self.policies.ids()
    }

    /// The generation of the policy in force for a container; `None`: none yet, and everything is denied.
    pub fn generation(&self, id: ContainerId) -> Option<u32> {
        self.policies.generation(id)
    }

    /// The capabilities that the policy in force leaves a container, bit by bit.
    pub fn capabilities(&self, id: ContainerId) -> Option<u64> {
        self.policies.capabilities(id)
    }

    /// A new, empty container that user `owner` answers for. Until [`Self::install`], whoever enters it is denied
    /// everything.
    pub fn create_container(&mut self, owner: u32) -> Result<ContainerId, PolicyError> {
        self.settle();
        self.policies.create(owner)
    }

    /// Puts a policy in force for a container, its first or its next, in one step. Where it grants hosts by name, the programs
    /// that need to be there for that are attached before.
    pub fn install(&mut self, id: ContainerId, policy: &CompiledPolicy) -> Result<Installed, PolicyError> {
        if !policy.names.is_empty() {
            self.rewriters.hold(id).map_err(|error| PolicyError::NamePrograms(Box::new(error)))?;
        }
        self.policies.install(id, policy)
    }

    /// Forgets a container and frees what it had; returns what was counted. Tasks that still carry its tag, pending ones
    /// included, are denied everything for the rest of their lives.
    pub fn release(&mut self, id: ContainerId) -> Result<Counters, PolicyError> {
        let counters = self.policies.release(id)?;
        self.redirects.clear(id);
        self.settle();
        Ok(counters)
    }

    /// What only outbound names need goes with the last container that had any.
    fn settle(&mut self) {
        let policies = &self.policies;
        if self.rewriters.settle(|id| policies.is_inhabited(id)) {
            self.redirects.forget_ports();
        }
    }

    /// Where a container's egress worker listens, from now on; `None`: nowhere, and what would go there is refused. Without
    /// a word it stays as an earlier daemon left it, whose sockets are gone, which comes to the same.
    ///
    /// # Errors
    /// One of the sockets is not what [`Listeners`] says; nothing goes to any of them then.
    pub fn set_redirect(&mut self, id: ContainerId, listeners: Option<&Listeners<'_>>) -> io::Result<()> {
        self.redirects.set(id, listeners)
    }

    /// Whose the connections to egress workers are, for whoever is asked while this is in use.
    pub fn flows(&self) -> Flows {
        self.redirects.flows()
    }

    /// What was counted for a container; `tasks` is the number of its live threads, pending ones not included.
    pub fn counters(&self, id: ContainerId) -> Result<Counters, PolicyError> {
        self.policies.counters(id)
    }

    /// Counts tasks that do not exist.
    #[cfg(test)]
    pub(crate) fn pretend_tasks(&self, id: ContainerId, tasks: u64) {
        self.policies.pretend_tasks(id, tasks);
    }

    /// What the tag of the process behind a pidfd says; `None`: it is not governed. Its first thread's tag, that is:
    /// every other thread was born with the same.
    ///
    /// # Errors
    /// A failure does not mean "not governed".
    pub fn lookup(&self, pidfd: BorrowedFd<'_>) -> Result<Option<Membership>, TaskError> {
        self.tags.lookup(pidfd)
    }

    /// The container whose task made the connection that `socket` accepted; `None`: no governed task did, or it did so
    /// before the programs were there. Unlike a process id it cannot become another's.
    pub fn caller(&self, socket: BorrowedFd<'_>) -> Result<Option<ContainerId>, TaskError> {
        self.callers.of(socket)
    }

    /// Enrols an ungoverned process of one thread: its next exec is judged by the container's policy and enters it.
    pub fn enroll(&self, pidfd: BorrowedFd<'_>, id: ContainerId) -> Result<(), TaskError> {
        self.tags.enroll(pidfd, id)
    }

    /// Makes every thread of processes that run already members of the container, at once and as they are: what they have
    /// open stays open. Returns how many threads were tagged.
    ///
    /// # Errors
    /// A process of another container: it stays there, and the others are members all the same. One that has ended is
    /// no error.
    pub fn enroll_running(&mut self, processes: &[OwnedFd], id: ContainerId) -> Result<u64, TaskError> {
        self.running.enroll(processes, id)
    }

    /// Gives a process of container `outer`, of one thread, a nested grant: its next exec must be allowed by both
    /// policies and enters `inner`.
    pub fn nest(
        &self,
        pidfd: BorrowedFd<'_>,
        outer: ContainerId,
        inner: ContainerId,
    ) -> Result<(), TaskError> {
        self.tags.nest(pidfd, outer, inner)
    }

    /// Ties a process of one thread, and all that it will start, to a tool call. Once: a tag is never changed. It says
    /// nothing about what the process may do.
    pub fn tag(&self, pidfd: BorrowedFd<'_>, call: NonZeroU64) -> Result<(), TaskError> {
        self.calls.tag(pidfd, call)
    }

    /// The tool call that a process is tied to, if any. `None` also where it has ended.
    pub fn call(&self, pidfd: BorrowedFd<'_>) -> Result<Option<NonZeroU64>, TaskError> {
        self.calls.of(pidfd)
    }
}

/// Opens the pinned maps.
fn open(object: &Object, pins: &Pins, keys: Keys, coverage: Coverage) -> Result<(Kernel, Rings), LoadError> {
    let map = |name: &'static str| -> Result<MapData, LoadError> {
        let absent = || LoadError::Mismatch(format!("there is no map {name}"));
        let shape: &Shape = object.maps.get(name).ok_or_else(absent)?;
        pins.map(name, shape)?.ok_or_else(absent)
    };
    let owners = pins.own_array::<[u16; BUCKET_SLOTS]>(OWNERS, TABLE_BUCKETS as u32, BPF_F_MMAPABLE)?;
    let [slots_len, owners_len, policies_len, containers_len, counters_len, users_len] = Arrays::LENGTHS;
    let arrays = Arrays {
        slots: share("TABLE", &map("TABLE")?, slots_len)?,
        owners: share(OWNERS, &owners, owners_len)?,
        policies: share("POLICIES", &map("POLICIES")?, policies_len)?,
        containers: share("CONTAINERS", &map("CONTAINERS")?, containers_len)?,
        counters: share("COUNTERS", &map("COUNTERS")?, counters_len)?,
        users: share("USERS", &map("USERS")?, users_len)?,
    };
    let net = Map::from_map_data(map("NET")?)
        .and_then(LpmTrie::try_from)
        .map_err(|source| LoadError::Map { map: "NET", source })?;
    let policies = Policies::adopt(arrays, KernelTrie(net), keys).map_err(LoadError::Adopt)?;
    let rings = Rings::new(
        [map(rings::MAPS[0])?, map(rings::MAPS[1])?, map(rings::MAPS[2])?],
        share("FOLDING", &map("FOLDING")?, rings::FOLDING_WORDS)?,
        share("COUNTERS", &map("COUNTERS")?, counters_len)?,
    )?;
    let listed = Map::from_map_data(map("LISTED")?)
        .and_then(HashMap::try_from)
        .map_err(|source| LoadError::Map { map: "LISTED", source })?;
    let outcome = share("OUTCOME", &map("OUTCOME")?, size_of::<Outcome>() / 8)?;
    let iterator = pins
        .beside_hooks(ITERATOR)?
        .ok_or_else(|| LoadError::Mismatch(format!("there is no program `{ITERATOR}`")))?;
    let running = Running { listed, outcome, iterator };
    let redirects = Redirects::new(
        share("REDIRECTS", &map("REDIRECTS")?, Redirects::WORDS)?,
        share("PORTS", &map("PORTS")?, PORT_WORDS)?,
        map("LISTENERS")?,
        map("FLOWS")?,
    );
    let links = pins.newest()?.ok_or_else(|| LoadError::Mismatch("nothing is loaded".into()))?;
    let all = policies.ids();
    let needing = all.iter().copied().filter(|id| policies.reaches_names(*id)).collect();
    let rewriters = Rewriters::adopt(links, all, needing)?;
    let (tags, calls) = (Tags(map("TASKS")?), Calls(map("CALLS")?));
    let callers = Callers(map("CALLERS")?);
    Ok((Kernel { policies, tags, calls, callers, running, redirects, rewriters, coverage }, rings))
}

fn share<A: Shared>(name: &'static str, map: &MapData, len: usize) -> Result<Mapped<A>, LoadError> {
    Mapped::new(map.fd().as_fd(), len).map_err(|source| LoadError::Share { map: name, source })
}
