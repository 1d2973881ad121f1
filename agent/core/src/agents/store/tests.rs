//! The store and an agent's sockets, with a service manager that the test plays.

use super::*;
use crate::agents::sockets::{self, Sockets, Wanted};
use ringfence_base::paths::Paths;
use rustix::net::RecvFlags;
use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{
        fs::MetadataExt,
        net::{UnixListener, UnixStream},
    },
};

/// A service manager with one service.
struct Manager {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
    stored: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("rf").tempdir_in("/tmp").unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { dir, socket, stored: BTreeMap::new() }
    }

    /// None for who is not root, and cannot give sockets to others.
    fn for_root() -> Option<Self> {
        is_root().then(Self::new)
    }

    fn address(&self) -> Option<SocketAddr> {
        address(self.dir.path().join("notify").as_os_str())
    }

    fn paths(&self) -> Paths {
        let dir = self.dir.path();
        Paths {
            runtime: dir.join("run"),
            state: dir.join("state"),
            config: dir.join("etc"),
            pins: dir.join("pins"),
        }
    }

    /// Does what it was told; gives the names of what it has.
    fn names(&mut self) -> Vec<String> {
        loop {
            let mut bytes = [0; 512];
            let Ok(mut got) = rights::receive(&self.socket, &mut bytes, RecvFlags::empty()) else {
                return self.stored.keys().cloned().collect();
            };
            let text = String::from_utf8(bytes[..got.bytes].to_vec()).unwrap();
            let (what, name) = text.split_once("\nFDNAME=").unwrap();
            let name = name.strip_suffix('\n').unwrap().to_owned();
            match (what, got.descriptors.pop()) {
                ("FDSTORE=1", Some(fd)) => drop(self.stored.insert(name, fd)),
                ("FDSTOREREMOVE=1", None) => drop(self.stored.remove(&name)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The service starts again: it gets what is stored, and the witness of the one before has gone with that.
    fn start(&mut self) -> Arc<Store> {
        self.names();
        self.stored.remove(WITNESS);
        let handed = self.stored.iter().map(|(name, fd)| (name.clone(), fd.try_clone().unwrap())).collect();
        Store::new(self.address(), handed)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn bind(store: &Arc<Store>, manager: &Manager, wanted: Wanted, before: Option<Sockets>) -> Sockets {
    Sockets::bind(&manager.paths(), "a", wanted, before, store).unwrap()
}

const ONLY: Wanted = Wanted { owner: 0, http: false, port: None };

#[test]
fn a_name_says_what_a_listener_is_and_no_other_does() {
    let label = Label { kind: Kind::Http, number: 42, agent: "a.b-c" };
    assert_eq!(label.name().as_deref(), Some("http.42.a.b-c"));
    assert_eq!(Label::parse("http.42.a.b-c"), Some(label));
    for odd in ["", "http", "http.42", "http.42.", "http.x.a", "http.042.a", "http.+42.a", "witness", "x.1.a"]
    {
        assert_eq!(Label::parse(odd), None, "{odd}");
    }
    for agent in ["a:b", "a\nREADY=1", "\u{e9}", "", &"x".repeat(LONGEST)] {
        assert_eq!(Label { agent, ..label }.name(), None, "{agent}");
    }
}

#[test]
fn what_nobody_keeps_is_not_counted_on() {
    let mut manager = Manager::new();
    let store = manager.start();
    assert_eq!(manager.names(), [WITNESS]);
    assert!(store.keeps());
    manager.stored.clear();
    assert!(!store.keeps(), "it has none");
    let none = Store::new(None, Vec::new());
    let listener = UnixListener::bind(manager.dir.path().join("s")).unwrap();
    assert!(!none.keeps() && none.keep(Kind::Agent, 1, "a", listener.as_fd()).is_none());
    let deaf = Store::new(address(OsStr::new("/nonexistent/notify")), Vec::new());
    assert!(!deaf.keeps() && deaf.keep(Kind::Agent, 1, "a", listener.as_fd()).is_none());
    assert!(address(OsStr::new("@name")).unwrap().as_abstract_name().is_some_and(|name| name == b"name"));
    assert!(address(OsStr::new("vsock:2:1234")).is_none());
}

#[test]
fn what_is_not_an_agent_s_is_closed_and_removed() {
    let mut manager = Manager::new();
    let (read, mut write) = io::pipe().unwrap();
    for name in ["junk", "agent.7.gone", "agent.8.there"] {
        manager.stored.insert(name.to_owned(), read.try_clone().unwrap().into());
    }
    drop(read);
    let store = manager.start();
    assert_eq!(manager.names(), ["agent.7.gone", "agent.8.there", WITNESS]);
    store.retain(|agent| agent == "there");
    assert_eq!(manager.names(), ["agent.8.there", WITNESS]);
    assert!(store.take("gone").is_empty());
    drop(store.take("there"));
    assert_eq!(manager.names(), [WITNESS]);
    assert!(write.write_all(b"x").is_err(), "every copy is closed");
}

#[test]
fn who_connects_while_no_daemon_runs_is_served_by_the_next() {
    let Some(mut manager) = Manager::for_root() else { return };
    let paths = manager.paths();
    let wanted = Wanted { owner: 1234, http: true, port: Some(free_port()) };
    let sockets = bind(&manager.start(), &manager, wanted, None);
    assert_eq!(manager.names().len(), 4);
    let (path, _) = sockets::paths_of(&paths, "a");
    let files = [path.clone(), paths.agent_http_socket("a")];
    let inodes = || files.each_ref().map(|file| fs::metadata(file).unwrap().ino());
    let before = inodes();
    assert!(sockets.leave());

    let mut waits = UnixStream::connect(&path).unwrap();
    waits.write_all(b"waited").unwrap();
    TcpStream::connect((Ipv4Addr::LOCALHOST, wanted.port.unwrap())).unwrap();
    // As the last one left them, and something touched them since.
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let store = manager.start();
    let sockets = bind(&store, &manager, wanted, None);
    assert_eq!(inodes(), before);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (1234, 0o600));
    let listener = UnixListener::from(sockets.each()[0].try_clone_to_owned().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    let mut heard = [0; 6];
    stream.set_nonblocking(false).unwrap();
    io::Read::read_exact(&mut stream, &mut heard).unwrap();
    assert_eq!(&heard, b"waited");
    TcpListener::from(sockets.each()[2].try_clone_to_owned().unwrap()).accept().unwrap();
    store.retain(|_| false);
    assert_eq!(manager.names().len(), 4, "taken is taken");
    drop((listener, sockets));
    assert_eq!(manager.names(), [WITNESS], "who connects now is to hear that nobody is there");
    assert!(UnixStream::connect(&path).is_err());
}

#[test]
fn a_socket_whose_file_is_another_s_by_now_is_bound_anew() {
    if !is_root() {
        return;
    }
    for replace in ["unlinked", "a stale socket"] {
        let mut manager = Manager::new();
        let (path, _) = sockets::paths_of(&manager.paths(), "a");
        assert!(bind(&manager.start(), &manager, ONLY, None).leave());
        let before = fs::metadata(&path).unwrap().ino();
        // So that its number is not given out again.
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).unwrap();
        if replace == "a stale socket" {
            drop(UnixListener::bind(&path).unwrap());
        }
        let names = manager.names();
        let sockets = bind(&manager.start(), &manager, ONLY, None);
        let now = fs::metadata(&path).unwrap().ino();
        assert_ne!(now, before, "{replace}");
        assert_ne!(manager.names(), names);
        assert_eq!(manager.names(), [format!("agent.{now}.a"), WITNESS.to_owned()]);
        UnixStream::connect(&path).unwrap();
        assert!(UnixStream::connect(&aside).is_err(), "the old one is closed everywhere");
        drop(sockets);
    }
    // Somebody serves there: the name is the agent's all the same.
    let mut manager = Manager::new();
    let (path, _) = sockets::paths_of(&manager.paths(), "a");
    assert!(bind(&manager.start(), &manager, ONLY, None).leave());
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    other.set_nonblocking(true).unwrap();
    let sockets = bind(&manager.start(), &manager, ONLY, None);
    let now = fs::metadata(&path).unwrap().ino();
    assert_eq!(manager.names(), [format!("agent.{now}.a"), WITNESS.to_owned()]);
    UnixStream::connect(&path).unwrap();
    assert!(other.accept().is_err(), "who connects is the agent's");
    drop(sockets);
}

#[test]
fn what_is_handed_over_is_checked() {
    let Some(mut manager) = Manager::for_root() else { return };
    let (path, _) = sockets::paths_of(&manager.paths(), "a");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let ours = || {
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        (fs::metadata(&path).unwrap().ino(), OwnedFd::from(listener))
    };
    let port = free_port();
    let wanted = Wanted { port: Some(port), ..ONLY };
    // By the socket: the next file at the path may have the number of the one before.
    let which = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|it| (it.st_dev, it.st_ino)).unwrap();
    let kept = |manager: &mut Manager, number: u64, fd: OwnedFd, name: &str| {
        let handed = which(&fd);
        manager.stored.clear();
        manager.stored.insert(format!("agent.{number}.a"), fd);
        if name == "loopback" {
            let fd = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().into();
            manager.stored.insert(format!("loopback.{port}.a"), fd);
        }
        let store = manager.start();
        let wanted = if name == "loopback" { wanted } else { ONLY };
        assert!(bind(&store, manager, wanted, None).leave());
        manager.names();
        manager.stored.values().any(|fd| which(fd) == handed)
    };
    // The positive control.
    let (number, fd) = ours();
    assert!(kept(&mut manager, number, fd, "agent"));
    let (number, fd) = ours();
    assert!(kept(&mut manager, number, fd, "loopback"));
    let bound = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    assert!(bound.is_ok(), "one that listens elsewhere is not taken for it");
    // No listener; another family; no socket at all.
    let (number, fd) = ours();
    drop(fd);
    assert!(!kept(&mut manager, number, UnixStream::pair().unwrap().0.into(), "agent"));
    let (number, fd) = ours();
    drop(fd);
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert!(!kept(&mut manager, number, tcp.into(), "agent"));
    let (number, fd) = ours();
    drop(fd);
    assert!(!kept(&mut manager, number, fs::File::open("/dev/null").unwrap().into(), "agent"));
}

#[test]
fn another_wish_keeps_what_it_can() {
    let Some(mut manager) = Manager::for_root() else { return };
    let (path, _) = sockets::paths_of(&manager.paths(), "a");
    let http = manager.paths().agent_http_socket("a");
    let port = free_port();
    let store = manager.start();
    let first = bind(&store, &manager, Wanted { owner: 1234, http: true, port: Some(port) }, None);
    let before = fs::metadata(&path).unwrap().ino();
    let second = bind(&store, &manager, Wanted { owner: 1234, http: false, port: None }, Some(first));
    assert_eq!(fs::metadata(&path).unwrap().ino(), before);
    assert!(!http.exists());
    assert_eq!(manager.names(), [format!("agent.{before}.a"), WITNESS.to_owned()]);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "the port is free");
    // It cannot have the port that it wants: it has all else.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = Some(taken.local_addr().unwrap().port());
    let wanted = Wanted { owner: 1234, http: false, port };
    let third = bind(&store, &manager, wanted, Some(second));
    assert!(third.missing_port().is_some() && !third.has_http().1);
    assert_eq!(manager.names(), [format!("agent.{before}.a"), WITNESS.to_owned()]);
    UnixStream::connect(&path).unwrap();
    // Once it is free, they are what is wanted.
    drop(taken);
    let fourth = bind(&store, &manager, wanted, Some(third));
    assert!(fourth.matches(wanted) && fourth.has_http().1);
}

#[test]
fn who_was_let_in_as_another_s_does_not_wait_for_this_owner_s_worker() {
    let Some(mut manager) = Manager::for_root() else { return };
    let (path, _) = sockets::paths_of(&manager.paths(), "a");
    let of = |owner| Wanted { owner, ..ONLY };
    let first = bind(&manager.start(), &manager, of(1234), None);
    let mut early = UnixStream::connect(&path).unwrap();
    assert!(first.leave());
    let second = bind(&manager.start(), &manager, of(4321), None);
    assert_eq!(fs::metadata(&path).unwrap().uid(), 4321);
    manager.names();
    assert!(matches!(io::Read::read(&mut early, &mut [0]), Ok(0) | Err(_)), "its listener is closed");
    // The positive control: one's own waits, and the listener is the same.
    UnixStream::connect(&path).unwrap();
    assert!(second.leave());
    let third = bind(&manager.start(), &manager, of(4321), None);
    UnixListener::from(third.each()[0].try_clone_to_owned().unwrap()).accept().unwrap();
}

#[test]
fn sockets_of_agents_that_are_no_more_go() {
    let Some(manager) = Manager::for_root() else { return };
    let (paths, store) = (manager.paths(), Store::new(None, Vec::new()));
    let wanted = Wanted { http: true, ..ONLY };
    for name in ["here", "gone"] {
        // Nobody keeps it: it is closed, and its file stays.
        assert!(!Sockets::bind(&paths, name, wanted, None, &store).unwrap().leave());
    }
    sockets::remove_stale(&paths, |name| name == "here");
    assert!(sockets::paths_of(&paths, "here").0.exists());
    let (gone, link) = sockets::paths_of(&paths, "gone");
    assert!(!gone.parent().unwrap().exists() && link.symlink_metadata().is_err());
}
