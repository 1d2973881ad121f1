//! The sockets, with a kernel in memory, real children and real credentials.

use super::*;
use crate::state::tests::{Fixture as StateFixture, Sleeper, pidfd};
use nix::sys::eventfd::EfdFlags;
use ringfence_base::client;
use ringfence_bpf::{ContainerId, Coverage, Membership};
use ringfence_wire::{frame::FrameError, status::Enforcement};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{os::unix::net::UnixListener, path::Path};

type Fake = crate::state::tests::FakeKernel;

pub(crate) struct Fixture {
    _dir: tempfile::TempDir,
    pub(crate) kernel: Fake,
    pub(crate) socket: PathBuf,
    pub(crate) server: Arc<Server<Fake>>,
}

impl Fixture {
    /// A server that answers on one socket, for as long as the test runs.
    pub(crate) fn start(kind: SocketKind) -> Self {
        let StateFixture { dir, kernel, state } = StateFixture::new();
        let coverage = Coverage {
            attached: vec!["file_open"],
            missing: Vec::new(),
            unknown: Default::default(),
            refused: Vec::new(),
            adopted: false,
        };
        let detached = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let server = Server::new(
            state,
            About::new(&coverage, 0),
            dir.path().join("pins"),
            detached,
            Agents::default(),
        );
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                serving.serve(stream.unwrap(), kind);
            }
        });
        Self { _dir: dir, kernel, socket, server }
    }

    /// The admin socket; none for who is not root, and may not use it.
    fn for_root() -> Option<Self> {
        root().then(|| Self::start(SocketKind::Admin))
    }

    /// A profile `n` that grants a name.
    fn profile_with_names(&self) {
        let text = "[grant]\nfs_read = { only = [\"/usr\"] }\nfs_write = { only = [] }\nexec = { only = [] }\n\
                    net = { only = [\"example.org:443\"] }\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n";
        std::fs::write(self._dir.path().join("profiles/n.toml"), text).unwrap();
    }

    fn tag(&self, pid: u32, raw: u64) {
        let member = Membership { container: Some(ContainerId::from_raw(raw)), next: None };
        self.kernel.with(|inner| inner.tags.insert(pid, member));
    }
}

pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_launcher_enrols_its_own_child_and_nobody_else() {
    let fixture = Fixture::start(SocketKind::Enroll);
    let child = Sleeper::start();
    let ask = |pidfd: &OwnedFd, profile: &str| {
        client::enroll(&fixture.socket, pidfd.as_fd(), profile, None, false, client::Beside::default())
    };
    if root() {
        fixture.kernel.with(|inner| inner.caller = Some(ContainerId::from_raw(4097)));
        let error = ask(&child.pidfd(), "p").unwrap_err().to_string();
        assert!(error.contains("not in the same container"), "{error}");
        fixture.kernel.with(|inner| inner.caller = None);
        let enrolled = ask(&child.pidfd(), "p").unwrap();
        assert_eq!((enrolled.container.len(), enrolled.profile.as_str()), (12, "p"));
        let again = ask(&child.pidfd(), "p").unwrap_err().to_string();
        assert!(
            again.contains(&format!("already belongs to container {} (p)", enrolled.container)),
            "{again}"
        );
    }
    let error = ask(&pidfd(std::process::id()), "p").unwrap_err().to_string();
    assert!(error.contains("not a child"), "{error}");
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let error = ask(&file, "p").unwrap_err().to_string();
    assert!(error.contains("not a pidfd"), "{error}");
    for (profile, reason) in
        [("", "not a profile's name"), ("./p.toml", "must be absolute"), ("p\0", "not a profile's name")]
    {
        let other = Sleeper::start();
        let error = ask(&other.pidfd(), profile).unwrap_err().to_string();
        assert!(error.contains(reason), "{profile:?}: {error}");
    }
}

#[test]
fn a_profile_with_names_is_answered_once_they_are_served_or_refused_with_the_reason() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    fixture.profile_with_names();
    let child = Sleeper::start();
    let ask = || {
        client::enroll(&fixture.socket, child.pidfd().as_fd(), "n", None, false, client::Beside::default())
    };
    let before = {
        let nowhere = fixture._dir.path().join("auditor");
        let opener = crate::egress::tests::opener(&nowhere, "complain");
        std::mem::replace(&mut fixture.server.state().opener, opener)
    };
    let error = ask().unwrap_err().to_string();
    assert!(
        error.contains("the egress worker of the container does not serve") && error.contains("no room"),
        "{error}"
    );
    assert!(fixture.kernel.with(|inner| inner.containers.is_empty() && inner.redirects.is_empty()));
    fixture.server.state().opener = before;
    let enrolled = ask().unwrap();
    let status = fixture.server.state().status(&fixture.server.about);
    assert_eq!(status.containers[0].id, enrolled.container);
    let egress = status.containers[0].egress.clone().unwrap();
    assert_eq!(egress.state, ringfence_wire::status::AgentState::Running, "before the command may start");
    assert!(egress.block.starts_with("198.18.") || egress.block.starts_with("198.19."), "{egress:?}");
}

#[test]
fn a_request_without_a_pidfd_or_that_is_no_request_is_answered_or_cut_off() {
    let fixture = Fixture::start(SocketKind::Enroll);
    let mut conn = Conn::connect(&fixture.socket, LIMIT).unwrap();
    let request = EnrollRequest::Enroll { profile: "p".into(), workdir: None, audit: false };
    conn.send(&request).unwrap();
    let failure = conn.receive::<Reply<Enrolled>>().unwrap().into_result().unwrap_err();
    assert!(failure.error.contains("0 came"), "{failure}");
    let mut conn = Conn::connect(&fixture.socket, LIMIT).unwrap();
    conn.send(&"hello").unwrap();
    assert!(matches!(conn.receive::<Reply<Enrolled>>(), Err(FrameError::Closed)));
    let mut conn = Conn::connect(&fixture.socket, LIMIT).unwrap();
    conn.send(&"x".repeat(MAX_REQUEST)).unwrap_or(());
    assert!(conn.receive::<Reply<Enrolled>>().is_err());
}

#[test]
fn a_container_cannot_use_the_admin_socket() {
    let fixture = Fixture::start(SocketKind::Admin);
    let status = || client::admin::<Status>(&fixture.socket, &AdminRequest::Status, &[]);
    if !root() {
        assert!(status().unwrap_err().to_string().contains("only root"));
        return;
    }
    let before = status().unwrap();
    assert_eq!((before.pid, before.containers.len()), (std::process::id(), 0));
    assert_eq!(before.axes[0].enforcement, Enforcement::Kernel);
    assert_eq!(before.axes[3].enforcement, Enforcement::None);
    // Its process is by now another's number: what is kept with the socket counts.
    fixture.kernel.with(|inner| inner.caller = Some(ContainerId::from_raw(4097)));
    assert!(status().unwrap_err().to_string().contains("in a container may not"));
    fixture.kernel.with(|inner| inner.caller = None);
    status().unwrap();
    fixture.tag(std::process::id(), 4097);
    assert!(status().unwrap_err().to_string().contains("in a container may not"));
    let detach = client::admin::<Detached>(&fixture.socket, &AdminRequest::Detach, &[]);
    assert!(detach.is_err());
}

#[test]
fn who_runs_without_a_filter_is_not_taken_in_where_there_are_calls_that_nobody_knows() {
    let Some(fixture) = Fixture::for_root() else { return };
    let child = Sleeper::start();
    let take = || {
        let request = AdminRequest::EnrollPid { profile: "p".into() };
        client::admin::<Enrolled>(&fixture.socket, &request, &[child.pidfd().as_fd()])
    };
    fixture.kernel.with(|inner| inner.unknown_calls = vec!["brew".into()]);
    // A test that is itself run under a filter gives it to the child.
    if std::fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:\t0") {
        let error = take().unwrap_err().to_string();
        assert!(error.contains("without a seccomp filter") && error.contains("brew"), "{error}");
        assert!(fixture.kernel.with(|inner| inner.containers.is_empty()), "nothing was made for it");
    }
    fixture.kernel.with(|inner| inner.unknown_calls.clear());
    take().unwrap();
}

#[test]
fn root_takes_in_a_tree_that_runs() {
    let Some(fixture) = Fixture::for_root() else { return };
    let take = |pidfd: &OwnedFd| {
        let request = AdminRequest::EnrollPid { profile: "p".into() };
        client::admin::<Enrolled>(&fixture.socket, &request, &[pidfd.as_fd()])
    };
    let child = Sleeper::start();
    let enrolled = take(&child.pidfd()).unwrap();
    let status = client::admin::<Status>(&fixture.socket, &AdminRequest::Status, &[]).unwrap();
    assert_eq!(
        (status.containers[0].id.as_str(), status.containers[0].tasks),
        (enrolled.container.as_str(), 1)
    );
    assert!(take(&child.pidfd()).unwrap_err().to_string().contains("already belongs"));
    let own = take(&pidfd(std::process::id())).unwrap_err().to_string();
    assert!(own.contains("never put under a profile"), "{own}");
    let request = AdminRequest::EnrollCgroup { path: "/tmp".into(), profile: "p".into() };
    let error = client::admin::<Enrolled>(&fixture.socket, &request, &[]).unwrap_err().to_string();
    assert!(error.contains("not a cgroup"), "{error}");
}

#[test]
fn a_detach_is_refused_while_a_container_runs() {
    let Some(fixture) = Fixture::for_root() else { return };
    let raw = 3 << 12 | 3;
    fixture.kernel.with(|inner| {
        inner.containers.insert(raw, (1, None));
        inner.counters.insert(raw, ringfence_common::policy::Counters { tasks: 1, ..Default::default() })
    });
    fixture.server.state().unknown.insert(ContainerId::from_raw(raw), None);
    let detach = || client::admin::<Detached>(&fixture.socket, &AdminRequest::Detach, &[]);
    let error = detach().unwrap_err().to_string();
    assert!(error.contains("containers run"), "{error}");
    assert!(fixture.server.detached().read().is_err());
    fixture.kernel.with(|inner| inner.counters.clear());
    assert_eq!(detach().unwrap(), Detached { removed: 0 });
    // The answer comes before the word to the main thread.
    let told = &mut [PollFd::new(fixture.server.detached(), PollFlags::IN)];
    let soon = Timespec { tv_sec: 120, tv_nsec: 0 };
    assert_eq!(poll(told, Some(&soon)), Ok(1), "the daemon was not told to end");
    assert!(fixture.server.detached().read().is_ok());
}

#[test]
fn requests_are_checked_before_anything_is_done() {
    let ask = |profile: &str, workdir: Option<&str>| {
        request_of(profile.into(), workdir.map(str::to_owned), false, 0)
    };
    assert!(ask("coder", Some("/srv/app")).is_ok());
    assert!(ask("/etc/x.toml", None).is_ok());
    assert!(matches!(ask("x.toml", None), Err(EnrollError::RelativePath(_))));
    assert!(matches!(ask("../x", None), Err(EnrollError::RelativePath(_))));
    assert!(matches!(ask(&"x".repeat(5000), None), Err(EnrollError::BadName)));
    for dir in ["srv", "", "/srv/../etc", &format!("/{}", "x".repeat(5000))] {
        assert!(matches!(ask("coder", Some(dir)), Err(EnrollError::BadWorkdir(_))), "{dir}");
    }
    assert!(Path::new("/").is_absolute());
}
