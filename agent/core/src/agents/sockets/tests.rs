//! What agents have on this host, against their own sockets' owners and with the capabilities that the core has.

use super::*;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use ringfence_sandbox::caps;
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// A directory and the paths in it; none for who is not root, and cannot give files to others.
fn for_root() -> Option<(tempfile::TempDir, Paths)> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let [runtime, state, config, pins] = ["run", "state", "etc", "pins"].map(|name| dir.path().join(name));
    Some((dir, Paths { runtime, state, config, pins }))
}

/// Without a service manager, and none of before.
fn bind(paths: &Paths, name: &str, wanted: Wanted) -> Result<Sockets, Error> {
    Sockets::bind(paths, name, wanted, None, &Store::new(None, Vec::new()))
}

#[test]
fn each_agent_has_a_user_id_of_its_own_and_keeps_it() {
    let Some((_dir, paths)) = for_root() else { return };
    let (a_dir, a) = worker_dir(&paths, "a").unwrap();
    let (_, b) = worker_dir(&paths, "b").unwrap();
    assert_ne!(a, b);
    assert!(UIDS.contains(&a) && UIDS.contains(&b));
    assert_eq!(worker_dir(&paths, "a").unwrap().1, a);
    let meta = fs::metadata(&a_dir).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (a, 0o700));
    fs::remove_dir(&a_dir).unwrap();
    assert_eq!(worker_dir(&paths, "c").unwrap().1, a, "an id that nobody has is given out again");
}

#[test]
fn a_socket_is_its_owner_s_and_is_bound_again() {
    let Some((_dir, paths)) = for_root() else { return };
    // A port that is free now; the system gives out others for long.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let wanted = Wanted { owner: 1234, http: true, port: Some(port) };
    for _ in 0..2 {
        let sockets = bind(&paths, "a", wanted).unwrap();
        assert!(sockets.matches(wanted) && !sockets.matches(Wanted { owner: 0, ..wanted }));
        assert!(
            !sockets.matches(Wanted { http: false, ..wanted })
                && !sockets.matches(Wanted { port: None, ..wanted })
        );
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let other = bind(&paths, "b", wanted).unwrap();
        assert!(
            other.has_http() == (true, false) && !other.matches(wanted),
            "the port is taken, the rest is served"
        );
        assert!(other.missing_port().is_some_and(|why| why.contains(&port.to_string())));
        drop(other);
        let (path, link) = paths_of(&paths, "a");
        let http = paths.agent_http_socket("a");
        for (path, mode) in [(&*path, 0o600), (&*http, 0o600), (path.parent().unwrap(), 0o700)] {
            let meta = fs::metadata(path).unwrap();
            assert_eq!((meta.uid(), meta.mode() & 0o777), (1234, mode), "{}", path.display());
        }
        std::os::unix::net::UnixStream::connect(link).unwrap();
        std::os::unix::net::UnixStream::connect(http).unwrap();
        drop(sockets);
    }
    let wanted = Wanted { owner: 1234, http: false, port: None };
    let sockets = bind(&paths, "a", wanted).unwrap();
    assert!(sockets.has_http() == (false, false) && !paths.agent_http_socket("a").exists());
    unbind(&paths, "a");
    assert!(!paths_of(&paths, "a").0.parent().unwrap().exists());
}

#[test]
fn what_an_earlier_owner_left_does_not_keep_the_next_one_s_agent_from_its_socket() {
    let Some((_dir, paths)) = for_root() else { return };
    let (path, _) = paths_of(&paths, "a");
    let home = path.parent().unwrap();
    fs::create_dir_all(home).unwrap();
    // A directory with something in it, a file, and a socket that is served.
    fs::create_dir(&path).unwrap();
    fs::write(path.join("in"), "the way").unwrap();
    let http = paths.agent_http_socket("a");
    for round in 0..2 {
        let theirs = if round == 0 {
            fs::write(&http, "precious").unwrap();
            None
        } else {
            fs::remove_file(&http).unwrap();
            Some(UnixListener::bind(&http).unwrap())
        };
        chown(home, Some(OWNER), Some(OWNER)).unwrap();
        let wanted = Wanted { owner: OWNER + 1, http: true, port: None };
        let sockets = as_core(|| bind(&paths, "a", wanted).unwrap());
        for path in [&path, &http] {
            assert_eq!(fs::symlink_metadata(path).unwrap().uid(), OWNER + 1);
        }
        let _client = std::os::unix::net::UnixStream::connect(&http).unwrap();
        let api = &sockets.http.as_ref().unwrap().socket;
        assert!(api.accept().is_ok(), "who connects is ours, not the earlier owner's");
        drop((sockets, theirs));
    }
    let aside = |name: &str| {
        let mut all = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path());
        all.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(name)).unwrap()
    };
    assert_eq!(fs::read_to_string(aside("agent.sock.").join("in")).unwrap(), "the way");
    assert_eq!(fs::read_to_string(aside("http.sock.")).unwrap(), "precious");
}

/// Rounds of the race: the swap of a name takes far less than a round.
const ROUNDS: usize = 3_000;
/// An ordinary user, whose socket it is.
const OWNER: u32 = 1234;

/// Runs `work` with the capabilities that the daemon keeps once it serves, and no others.
fn as_core<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let run = || {
            caps::retain_in_this_thread(caps::CORE).unwrap();
            work()
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn a_listener_of_an_ordinary_user_is_used_again_by_a_daemon_without_more_capabilities() {
    let Some((_dir, paths)) = for_root() else { return };
    let (path, link) = paths_of(&paths, "a");
    as_core(|| {
        let wanted = Wanted { owner: OWNER, http: false, port: None };
        let first = bind(&paths, "a", wanted).unwrap();
        let inode = fs::symlink_metadata(&path).unwrap().ino();
        let store = Store::new(None, Vec::new());
        // As with a change of `http`, and with what a service manager kept.
        let wanted = Wanted { http: true, ..wanted };
        let second = Sockets::bind(&paths, "a", wanted, Some(first), &store).unwrap();
        for (path, mode) in [
            (path.clone(), 0o600),
            (paths.agent_http_socket("a"), 0o600),
            (path.parent().unwrap().to_owned(), 0o700),
        ] {
            let meta = fs::symlink_metadata(&path).unwrap();
            assert_eq!(
                (meta.uid(), meta.gid(), meta.mode() & 0o777),
                (OWNER, OWNER, mode),
                "{}",
                path.display()
            );
        }
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), inode, "the same socket");
        assert!(second.has_http().0);
        // Another owner's: whom the old file let in does not wait for the new one's worker.
        let wanted = Wanted { owner: OWNER + 1, ..wanted };
        drop(Sockets::bind(&paths, "a", wanted, Some(second), &store).unwrap());
        assert_eq!(fs::symlink_metadata(&path).unwrap().uid(), OWNER + 1);
    });
    assert!(link.symlink_metadata().is_ok());
    as_core(|| unbind(&paths, "a"));
    assert!(!path.parent().unwrap().exists());
}

/// What the owner of an agent's socket could have made theirs: nothing of it may change.
#[test]
fn an_owner_who_swaps_the_socket_for_a_link_gains_nothing() {
    let Some((dir, paths)) = for_root() else { return };
    // The attacker has to reach it.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let victim = dir.path().join("shadow");
    fs::write(&victim, "root:*:").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o640)).unwrap();
    let (path, _) = paths_of(&paths, "a");
    let home = path.parent().unwrap().to_owned();
    let wanted = Wanted { owner: OWNER, http: false, port: None };
    let store = Store::new(None, Vec::new());
    let mut sockets = Some(bind(&paths, "a", wanted).unwrap());
    let (over, swapped) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // The kernel takes the capabilities over files with it: this thread may do what that user may.
            setfsgid(Gid::from_raw(OWNER));
            setfsuid(Uid::from_raw(OWNER));
            assert!(fs::write(&victim, "theirs").is_err(), "the attacker is no root");
            while !over.load(Ordering::Relaxed) {
                let _ = fs::set_permissions(&home, fs::Permissions::from_mode(0o777));
                // The socket stays within reach, so that it is found to be the agent's own at one moment, and is a link at
                // the next.
                for name in ["agent.sock", "http.sock"] {
                    let (path, aside) = (home.join(name), home.join("aside"));
                    if fs::symlink_metadata(&path).is_ok_and(|there| there.file_type().is_socket())
                        && fs::rename(&path, &aside).is_ok()
                    {
                        swapped.fetch_or(symlink(&victim, &path).is_ok(), Ordering::Relaxed);
                        let _ = fs::rename(&aside, &path);
                    }
                }
            }
        });
        for round in 0..ROUNDS {
            // Each round is a change of `http`. What cannot be bound for the attacker's files is bound in a later one.
            let wanted = Wanted { http: round % 2 == 0, ..wanted };
            sockets = Sockets::bind(&paths, "a", wanted, sockets.take(), &store).ok();
            let meta = fs::symlink_metadata(&victim).unwrap();
            if (meta.uid(), meta.gid(), meta.mode() & 0o7777) != (0, 0, 0o640) {
                over.store(true, Ordering::Relaxed);
                panic!("round {round}: the victim is {}'s, mode {:o}", meta.uid(), meta.mode() & 0o7777);
            }
            if round % 50 == 0 && sockets.is_some() {
                // Time for the attacker, on a machine of any speed.
                while !swapped.swap(false, Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root:*:");
    // Once the attacker rests, the agent's socket is there again.
    drop(sockets.take());
    drop(bind(&paths, "a", wanted).unwrap());
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
}
