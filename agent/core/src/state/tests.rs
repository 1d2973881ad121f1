//! The core's decisions against a kernel that is a table in memory.

use super::*;
use crate::enroll;
pub(crate) use fake_kernel::FakeKernel;
use ringfence_bpf::Membership;
use ringfence_wire::status::Mode;
use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
};

mod fake_kernel;

#[test]
fn a_number_that_is_anothers_now_takes_nobody_out_of_a_container() {
    let kernel = FakeKernel::default();
    let process = Sleeper::start();
    let (pidfd, socket) = (process.pidfd(), fs::File::open("/dev/null").unwrap());
    let member = |raw| Membership { container: Some(ContainerId::from_raw(raw)), next: None };
    let belongs = |caller: Option<u64>, tag: Option<Membership>| {
        kernel.with(|inner| {
            inner.caller = caller.map(ContainerId::from_raw);
            inner.tags = tag.map(|tag| (process.0.id(), tag)).into_iter().collect();
        });
        kernel.belongs(socket.as_fd(), pidfd.as_fd()).unwrap()
    };
    assert_eq!(belongs(None, None), None);
    assert_eq!(belongs(None, Some(member(6))), Some(member(6)));
    assert_eq!(belongs(Some(5), None), Some(member(5)));
    assert_eq!(belongs(Some(5), Some(member(6))), Some(member(5)));
    // About to enter another: that is known of the process alone.
    let leaving = Membership { next: Some(ContainerId::from_raw(7)), ..member(5) };
    assert_eq!(belongs(Some(5), Some(leaving)), Some(leaving));
}

/// A core of its own directories.
pub(crate) struct Fixture {
    pub dir: tempfile::TempDir,
    pub kernel: FakeKernel,
    pub state: State<FakeKernel>,
}

const GRANT: &str = "max_calls = \"unlimited\"\nvalid_for_generation = \"all\"\nfs_write = { only = [] }\nexec = { only = [] }\nnet = { only = [] }\n";

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("profiles")).unwrap();
        let kernel = FakeKernel::default();
        let state = Self::state(&dir, &kernel);
        let fixture = Self { dir, kernel, state };
        fixture.profile("p", "/usr");
        fixture
    }

    fn state(dir: &tempfile::TempDir, kernel: &FakeKernel) -> State<FakeKernel> {
        let (registry, errors) = Registry::open(&dir.path().join("containers"), "boot").unwrap();
        assert!(errors.is_empty());
        let dirs = Dirs { system: dir.path().join("profiles"), user: None };
        let opener = crate::egress::tests::opener(&dir.path().join("auditor"), "serve");
        State::adopt(kernel.clone(), registry, Handle::new().unwrap(), opener, dirs, "boot".into())
    }

    /// What a core that was killed and started again knows.
    pub(crate) fn restart(&mut self) {
        self.state = Self::state(&self.dir, &self.kernel);
    }

    /// Writes a profile that allows reading one path.
    pub(crate) fn profile(&self, name: &str, path: &str) {
        let text = format!("[grant]\nfs_read = {{ only = [\"{path}\"] }}\n{GRANT}");
        fs::write(self.dir.path().join(format!("profiles/{name}.toml")), text).unwrap();
    }

    pub(crate) fn admit(&mut self, asked: &str, uid: u32, child: &Sleeper) -> Result<Enrolled, EnrollError> {
        let request = Request { asked: asked.into(), workdir: None, audit: false, uid, home: None };
        let place = self.place(None);
        let compiled = compiled(&request, &place, &self.state)?;
        self.state.enroll(&request, compiled, place, child.pidfd())
    }

    pub(crate) fn place(&self, inside: Option<ContainerId>) -> TaskContext {
        let outer = inside.map_or_else(Vec::new, |inside| self.state.enclosing(inside).unwrap());
        let (root, mounts) = (enroll::host_root().unwrap(), enroll::mounts_of(std::process::id()).unwrap());
        TaskContext { inside, outer, root, host_root: true, mounts }
    }

    pub(crate) fn only(&self) -> &Container {
        let all: Vec<_> = self.state.registry.iter().collect();
        assert_eq!(all.len(), 1);
        all[0]
    }
}

pub(crate) fn compiled(
    request: &Request,
    place: &TaskContext,
    state: &State<FakeKernel>,
) -> Result<enroll::Compiled, EnrollError> {
    let past = state.link_targets(request.uid);
    let around = enroll::Surroundings {
        outer: &place.outer,
        root: place.root.as_fd(),
        mounts: Some(&place.mounts),
        dirs: &state.dirs,
        history: None,
        past: past.as_deref(),
    };
    enroll::compile(request, around)
}

/// A process to enrol.
pub(crate) struct Sleeper(pub(crate) Child);

impl Sleeper {
    pub(crate) fn start() -> Self {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pidfd(&self) -> OwnedFd {
        pidfd(self.0.id())
    }
}

pub(crate) fn pidfd(pid: u32) -> OwnedFd {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn set_tasks(fixture: &Fixture, raw: u64, tasks: u64, denied: u64) {
    fixture.kernel.with(|inner| {
        inner.counters.insert(raw, Counters { tasks, denied, ..Counters::default() });
    });
}

#[test]
fn a_container_lives_from_enrolment_to_its_last_task() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let enrolled = fixture.admit("p", 0, &child).unwrap();
    assert_eq!((enrolled.profile.as_str(), &enrolled.mode), ("p", &Mode::Enforce));
    let raw = fixture.only().record.kernel_id;
    let tag = fixture.kernel.with(|inner| inner.tags[&child.0.id()]);
    assert_eq!(tag, Membership { container: None, next: Some(ContainerId::from_raw(raw)) });
    // Enrolled, no exec yet: kept however long that takes.
    assert_eq!(fixture.state.live(), [format!("{} (p)", enrolled.container)]);
    set_tasks(&fixture, raw, 3, 7);
    fixture.state.sweep();
    assert_eq!((fixture.only().tasks, fixture.only().counts.denied), (3, 7));
    set_tasks(&fixture, raw, 0, 9);
    fixture.state.sweep();
    assert_eq!(fixture.state.live(), Vec::<String>::new());
    let past = Instant::now().checked_sub(IDLE).unwrap();
    fixture.state.registry.by_kernel_id_mut(raw).unwrap().idle = Some(past);
    fixture.state.sweep();
    assert!(fixture.state.registry.iter().next().is_none());
    assert_eq!(fixture.state.ended.denied, 9);
    assert!(fixture.kernel.with(|inner| inner.containers.is_empty()));
}

#[test]
fn nothing_is_left_of_an_enrolment_that_failed() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    fixture.kernel.with(|inner| inner.full = true);
    assert!(matches!(fixture.admit("p", 0, &child), Err(EnrollError::Policy(_))));
    fixture.kernel.with(|inner| inner.full = false);
    let other = Membership { container: Some(ContainerId::from_raw(77)), next: None };
    fixture.kernel.with(|inner| inner.tags.insert(child.0.id(), other));
    assert!(matches!(fixture.admit("p", 0, &child), Err(EnrollError::Task(TaskError::Governed(_)))));
    assert!(matches!(fixture.admit("nope", 0, &child), Err(EnrollError::Load(_))));
    assert!(fixture.kernel.with(|inner| inner.containers.is_empty()));
    assert_eq!(fs::read_dir(fixture.dir.path().join("containers")).unwrap().count(), 0);
}

#[test]
fn a_process_that_ended_is_not_enrolled() {
    let mut fixture = Fixture::new();
    let mut child = Sleeper::start();
    let pidfd = child.pidfd();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let request = Request { asked: "p".into(), workdir: None, audit: false, uid: 0, home: None };
    let place = fixture.place(None);
    let compiled = compiled(&request, &place, &fixture.state).unwrap();
    assert!(fixture.state.enroll(&request, compiled, place, pidfd).is_err());
    assert!(fixture.kernel.with(|inner| inner.containers.is_empty()));
}

#[test]
fn a_user_s_quota_is_theirs_alone() {
    let mut fixture = Fixture::new();
    let children: Vec<Sleeper> = (0..quota::CONTAINERS_PER_UID + 2).map(|_| Sleeper::start()).collect();
    // Ownership of files in a test directory is not root's for every tester: go around the check of the profile's file.
    let mut admit = |child: &Sleeper, uid| {
        let request = Request { asked: "p".into(), workdir: None, audit: false, uid, home: None };
        let place = fixture.place(None);
        let root = Request { uid: 0, asked: "p".into(), workdir: None, audit: false, home: None };
        let compiled = compiled(&root, &place, &fixture.state).unwrap();
        fixture.state.enroll(&request, compiled, place, child.pidfd())
    };
    let (extra, rest) = children.split_at(2);
    for child in rest {
        admit(child, 1000).unwrap();
    }
    assert!(matches!(admit(&extra[0], 1000), Err(EnrollError::Quota(_))));
    admit(&extra[0], 1001).unwrap();
    admit(&extra[1], 0).unwrap();
}

#[test]
fn a_restarted_core_adopts_and_reloads() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let enrolled = fixture.admit("p", 0, &child).unwrap();
    let raw = fixture.only().record.kernel_id;
    set_tasks(&fixture, raw, 1, 0);
    fixture.restart();
    assert_eq!(fixture.only().record.id, enrolled.container);
    // The kernel holds one that no record describes: it is shown and kept while it has tasks.
    fixture.kernel.with(|inner| inner.containers.insert(9 << 12 | 9, (1, None)));
    set_tasks(&fixture, 9 << 12 | 9, 1, 0);
    fixture.restart();
    assert_eq!(fixture.state.live().len(), 2);
    // And a record whose container is gone is dropped.
    fixture.kernel.with(|inner| inner.containers.remove(&raw));
    fixture.restart();
    assert!(fixture.state.registry.iter().next().is_none());
}

#[test]
fn a_reload_changes_a_container_as_one_or_not_at_all() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let id = fixture.admit("p", 0, &child).unwrap().container;
    let raw = fixture.only().record.kernel_id;
    let in_force = |fixture: &Fixture| fixture.kernel.with(|inner| inner.containers[&raw].clone());
    assert!(fixture.state.reload().changed.is_empty(), "nothing changed");
    assert_eq!(in_force(&fixture).0, 1);

    fixture.profile("p", "/usr/share");
    let outcome = fixture.state.reload();
    assert_eq!((outcome.changed.as_slice(), outcome.errors.len()), (&[id.clone()][..], 0));
    let (generation, policy) = in_force(&fixture);
    assert_eq!((generation, fixture.only().record.generation), (2, 2));

    fs::write(fixture.dir.path().join("profiles/p.toml"), "[grant]\nfs_raed = \"all\"\n").unwrap();
    let outcome = fixture.state.reload();
    assert!(outcome.changed.is_empty());
    assert!(outcome.errors[0].contains("fs_raed") && outcome.errors[0].contains(&id), "{outcome:?}");
    assert_eq!(in_force(&fixture), (2, policy.clone()), "the old one stays in force");
    assert!(fixture.only().reload_error.as_ref().unwrap().contains("fs_raed"));

    fs::remove_file(fixture.dir.path().join("profiles/p.toml")).unwrap();
    assert_eq!(fixture.state.reload().errors.len(), 1);
    assert_eq!(in_force(&fixture), (2, policy));

    fixture.profile("p", "/usr");
    assert_eq!(fixture.state.reload().changed, [id]);
    assert_eq!(in_force(&fixture).0, 3);
    assert!(fixture.only().reload_error.is_none());
}

#[test]
fn a_table_that_is_full_leaves_the_old_policy() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    fixture.admit("p", 0, &child).unwrap();
    fixture.profile("p", "/usr/share");
    fixture.kernel.with(|inner| inner.full = true);
    let outcome = fixture.state.reload();
    assert!(outcome.changed.is_empty() && outcome.errors.len() == 1, "{outcome:?}");
    assert_eq!(fixture.only().record.generation, 1);
}

#[test]
fn a_core_that_died_between_kernel_and_record_installs_again() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let id = fixture.admit("p", 0, &child).unwrap().container;
    let raw = fixture.only().record.kernel_id;
    set_tasks(&fixture, raw, 1, 0);
    fixture.kernel.with(|inner| inner.containers.get_mut(&raw).unwrap().0 = 5);
    fixture.restart();
    assert_eq!(fixture.state.reload().changed, [id]);
    assert_eq!(fixture.only().record.generation, 6);
}

#[test]
fn a_profile_that_nobody_uses_is_checked_as_well() {
    let mut fixture = Fixture::new();
    fs::write(fixture.dir.path().join("profiles/idle.toml"), "mode = 3\n").unwrap();
    let outcome = fixture.state.reload();
    assert_eq!(outcome.errors.len(), 1);
    assert!(outcome.errors[0].contains("idle.toml"), "{outcome:?}");
}

#[test]
fn a_nested_container_gets_what_both_allow() {
    let mut fixture = Fixture::new();
    fixture.profile("outer", "/usr");
    fixture.profile("inner", "/usr/share");
    fixture.profile("other", "/srv");
    let outer = Sleeper::start();
    fixture.admit("outer", 0, &outer).unwrap();
    let inside = ContainerId::from_raw(fixture.only().record.kernel_id);
    // Rules are resolved in the root that the kernel goes on judging from, and in no other.
    let elsewhere = OwnedFd::from(fs::File::open(fixture.dir.path()).unwrap());
    assert!(fixture.state.check_root(inside, &enroll::host_root().unwrap()).is_ok());
    assert!(matches!(fixture.state.check_root(inside, &elsewhere), Err(EnrollError::OtherRoot(_))));
    for (asked, path, allowed) in [("inner", "/usr/share", true), ("other", "/srv", false)] {
        let child = Sleeper::start();
        fixture.kernel.with(|inner| {
            inner.tags.insert(child.0.id(), Membership { container: Some(inside), next: None })
        });
        let request = Request { asked: asked.into(), workdir: None, audit: false, uid: 0, home: None };
        let place = fixture.place(Some(inside));
        let compiled = compiled(&request, &place, &fixture.state).unwrap();
        let allows = compiled.policy.places.iter().any(|rule| {
            let here = rule.place == ringfence_policy::compiled::Place::Path(path.into());
            here && rule.allow & ringfence_common::policy::axis::READ != 0
        });
        assert_eq!(allows, allowed, "{asked}");
        fixture.state.enroll(&request, compiled, place, child.pidfd()).unwrap();
        let tag = fixture.kernel.with(|inner| inner.tags[&child.0.id()]);
        assert_eq!(tag.container, Some(inside));
        assert!(tag.next.is_some_and(|next| next != inside));
    }
}

#[test]
fn what_a_container_did_to_its_paths_does_not_outlive_a_restart_or_the_next_start() {
    let mut fixture = Fixture::new();
    let dir = fixture.dir.path().canonicalize().unwrap();
    let at = |name: &str| dir.join(name);
    for name in ["work", "work/d", "secret"] {
        fs::create_dir(at(name)).unwrap();
    }
    let file = at("work/p.toml");
    let write = |more: &str| {
        let work = at("work");
        let axis = format!("{{ only = [{:?}, {:?}] }}", work, at("work/d"));
        let grant = GRANT.replace("fs_write = { only = [] }", "");
        assert_ne!(grant, GRANT);
        fs::write(&file, format!("[grant]\nfs_read = {axis}\nfs_write = {axis}\n{grant}{more}")).unwrap();
    };
    write("");
    let child = Sleeper::start();
    fixture.admit(file.to_str().unwrap(), 0, &child).unwrap();
    let raw = fixture.only().record.kernel_id;
    let may = |fixture: &Fixture, axis, path: &Path| {
        let policy = fixture.kernel.with(|inner| inner.containers[&raw].1.clone().unwrap());
        let decider = ringfence_policy::decide::Decider::new(&policy);
        decider.path(axis, path.as_os_str().as_bytes()).allowed()
    };
    use ringfence_common::policy::axis::{READ, WRITE};
    assert!(
        may(&fixture, WRITE, &at("work/d/x")) && !may(&fixture, WRITE, &file),
        "the profile is closed to it"
    );
    // The container's doing.
    fs::remove_dir(at("work/d")).unwrap();
    std::os::unix::fs::symlink(at("secret"), at("work/d")).unwrap();
    // Root's edit, from outside, is put in force.
    write("[deny]\nfs_read = [\"**/later\"]\n");
    let outcome = fixture.state.reload();
    assert_eq!(outcome.changed.len(), 1, "{outcome:?}");
    assert!(outcome.notes.iter().any(|note| note.contains("secret")), "{outcome:?}");
    assert!(!may(&fixture, READ, &at("work/x/later")) && may(&fixture, READ, &at("work/d/x")));
    assert!(!may(&fixture, READ, &at("secret/key")) && !may(&fixture, WRITE, &at("secret/key")));
    // A restarted core knows it by its record only.
    fixture.restart();
    let outcome = fixture.state.reload();
    assert!(outcome.errors.is_empty(), "{outcome:?}");
    assert!(!may(&fixture, READ, &at("secret/key")) && may(&fixture, READ, &at("work/d/x")));
    // The same profile for the next container.
    let next = Sleeper::start();
    let request =
        Request { asked: file.to_str().unwrap().into(), workdir: None, audit: false, uid: 0, home: None };
    let place = fixture.place(None);
    let policy = compiled(&request, &place, &fixture.state).unwrap().policy;
    let decider = ringfence_policy::decide::Decider::new(&policy);
    assert!(!decider.path(READ, at("secret/key").as_os_str().as_bytes()).allowed());
    drop(next);
}
