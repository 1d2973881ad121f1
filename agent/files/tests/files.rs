//! What is changed is what was opened, whoever renames beside it.

#![allow(clippy::unwrap_used, reason = "tests")]

use ringfence_files::{Access, Dir, Others, Permissions, append, is_roots, read, replace, share};
use std::{
    ffi::OsStr,
    fs,
    io::{ErrorKind, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
        net::UnixStream,
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// How often the racing tests try: an attacker who swaps names all the time has hit long before.
const ROUNDS: usize = 4_000;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Runs `work` while another thread puts a file and a symlink to `victim` in turn under a name.
fn swapping(there: &Path, victim: &Path, work: impl FnOnce()) {
    let (file, link) = (there.with_extension("file"), there.with_extension("link"));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = symlink(victim, &link);
                let _ = fs::rename(&link, there);
                let _ = fs::write(&file, "theirs");
                let _ = fs::rename(&file, there);
            }
        });
        work();
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_entry_is_changed_and_never_what_its_name_leads_to_by_then() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "root's").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    let dir = Dir::open(&open).unwrap();
    let (mut files, mut links) = (0, 0);
    swapping(&open.join("x"), &victim, || {
        // The control: both are seen, so that there was something to be misled by.
        while files < ROUNDS || links < ROUNDS {
            let Some(entry) = dir.entry(name("x")).unwrap() else { continue };
            if entry.meta().unwrap().is_symlink() {
                links += 1;
                assert!(entry.set_mode(0o666).is_err(), "a symlink has no mode");
                if is_root() {
                    entry.set_owner(1234, 1234).unwrap();
                }
            } else {
                files += 1;
                entry.set_mode(0o666).unwrap();
                assert_eq!(entry.meta().unwrap().mode, 0o666);
                if is_root() {
                    entry.set_owner(1234, 1234).unwrap();
                    assert_eq!(entry.meta().unwrap().uid, 1234);
                }
            }
        }
    });
    let after = fs::metadata(&victim).unwrap();
    assert_eq!((after.mode() & 0o7777, after.uid()), (0o600, rustix::process::geteuid().as_raw()));
}

#[test]
fn what_is_written_goes_into_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "root's").unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    let dir = Dir::open(&open).unwrap();
    let there = open.join("x");
    let (mut appended, mut refused) = (0, 0);
    swapping(&there, &victim, || {
        while appended < ROUNDS || refused < ROUNDS {
            match dir.append(name("x")) {
                Ok(mut file) => {
                    appended += 1;
                    file.write_all(b"ours").unwrap();
                }
                Err(_) => refused += 1,
            }
        }
        for _ in 0..200 {
            dir.replace(name("x"), b"ours", Access::Mode(0o644)).unwrap();
        }
    });
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");
}

#[test]
fn a_replaced_file_is_whole_and_has_the_owner_and_mode_that_were_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    replace(&path, b"one", Access::Mode(0o640)).unwrap();
    assert_eq!((fs::read_to_string(&path).unwrap(), mode(&path)), ("one".into(), 0o640));
    if is_root() {
        chown(&path, Some(1234), Some(1235)).unwrap();
    }
    let dir = Dir::open(folder.path()).unwrap();
    let meta = dir.entry(name("x.json")).unwrap().unwrap().meta().unwrap();
    dir.replace(name("x.json"), b"two", Access::Like(meta)).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.uid(), after.gid(), mode(&path)), (meta.uid, meta.gid, 0o640));
    assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    let kept =
        dir.keep_beside(name("x.json"), [".a".into(), ".b".into()], b"old", Access::Like(meta)).unwrap();
    assert_eq!((kept.as_os_str(), mode(&folder.path().join("x.json.a"))), (name("x.json.a"), 0o640));
    let again =
        dir.keep_beside(name("x.json"), [".a".into(), ".b".into()], b"old", Access::Like(meta)).unwrap();
    assert_eq!(again, "x.json.b");
    assert!(dir.keep_beside(name("x.json"), [".a".into()], b"", Access::Mode(0o600)).is_err());
    // Nothing is left over, and a failure leaves the old text.
    fs::create_dir(folder.path().join("dir")).unwrap();
    assert!(dir.replace(name("dir"), b"x", Access::Mode(0o600)).is_err());
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["dir", "x.json", "x.json.a", "x.json.b"]);
}

#[test]
fn a_copy_that_cannot_be_given_is_not_left() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let root_s = fs::File::open("/etc/passwd").unwrap();
    let dir = Dir::open(folder.path()).unwrap();
    let keep = |ending: &str, access| dir.keep_beside(name("x"), [ending.to_owned()], b"old", access);
    let like = Access::like(&root_s).unwrap();
    thread::scope(|scope| {
        let given = scope.spawn(|| {
            if is_root() {
                let id = rustix::process::Uid::from_raw(65534);
                // Of this thread alone.
                rustix::thread::set_thread_res_uid(id, id, id).unwrap();
            }
            assert_eq!(keep(".ours", Access::Mode(0o600)).unwrap(), "x.ours", "the control");
            keep(".theirs", like)
        });
        let refused = given.join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    });
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["x.ours"]);
}

#[test]
fn a_new_file_lets_in_nobody_whom_its_directory_s_default_acl_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Owner, user 1234, owning group, mask, others: all of it to the owner and to the user.
    let nobody = u32::MAX;
    let entries = [(1_u16, 7_u16, nobody), (2, 7, 1234), (4, 0, nobody), (16, 7, nobody), (32, 0, nobody)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(bits.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let none = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(folder.path(), "system.posix_acl_default", &acl, none).is_err() {
        return;
    }
    let name_of_acl = "system.posix_acl_access";
    let has_acl = |name: &str| rustix::fs::getxattr(at(name), name_of_acl, &mut [0_u8; 0]).is_ok();
    let dir = Dir::open(folder.path()).unwrap();
    drop(dir.create(name("control"), 0o660).unwrap());
    assert!(has_acl("control"));
    fs::write(at("old"), "").unwrap();
    let old = fs::File::open(at("old")).unwrap();
    share(&old, None, Permissions { own: 6, theirs: 0 }).unwrap();
    fs::set_permissions(at("old"), fs::Permissions::from_mode(0o640)).unwrap();
    let like = Access::like(&old).unwrap();
    dir.keep_beside(name("old"), [".kept".into()], b"old", like).unwrap();
    dir.replace(name("old"), b"new", like).unwrap();
    dir.replace(name("new"), b"new", Access::Mode(0o640)).unwrap();
    for name in ["old", "old.kept", "new"] {
        assert!(!has_acl(name) && mode(&at(name)) == 0o640, "{name}");
    }
}

#[test]
fn a_name_is_one_component() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::open(folder.path()).unwrap();
    for bad in ["", ".", "..", "a/b", "/etc/passwd", "../x"] {
        assert!(dir.entry(name(bad)).is_err(), "{bad}");
        assert!(dir.create(name(bad), 0o600).is_err(), "{bad}");
        assert!(dir.remove(name(bad)).is_err(), "{bad}");
        assert!(dir.replace(name(bad), b"", Access::Mode(0o600)).is_err(), "{bad}");
    }
    drop(dir.create(name("a"), 0o600).unwrap());
    assert!(dir.create(name("a"), 0o600).is_err(), "it is there");
    assert!(dir.remove(name("a")).unwrap() && !dir.remove(name("a")).unwrap());
}

#[test]
fn no_symlink_is_opened_and_no_fifo_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::open(folder.path()).unwrap();
    fs::write(folder.path().join("real"), "x").unwrap();
    symlink("real", folder.path().join("link")).unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    symlink("sub", folder.path().join("sublink")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(&dir, "fifo", fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(dir.read(name("real")).is_ok() && dir.below(name("sub")).is_ok());
    for bad in ["link", "fifo", "sub"] {
        assert!(dir.read(name(bad)).is_err() && dir.append(name(bad)).is_err(), "{bad}");
    }
    assert!(append(&folder.path().join("link")).is_err() && append(&folder.path().join("new")).is_ok());
    assert!(dir.below(name("sublink")).is_err() && dir.make_below(name("sublink"), 0o700).is_err());
    let refused = Dir::open(&folder.path().join("sublink")).unwrap_err().to_string();
    assert!(refused.contains("sublink") && refused.contains("symlink"), "{refused}");
    assert_eq!(dir.target(name("link")).unwrap().unwrap(), Path::new("real"));
    assert_eq!((dir.target(name("real")).unwrap(), dir.target(name("none")).unwrap()), (None, None));
}

#[test]
fn a_claimed_directory_is_ours_alone_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert_eq!(Dir::claim(&at("new")).unwrap().meta().unwrap().mode, 0o700);
    Dir::claim(&at("new")).unwrap();
    let refused = |path: &Path| Dir::claim(path).unwrap_err().to_string();
    fs::set_permissions(at("new"), fs::Permissions::from_mode(0o750)).unwrap();
    assert!(refused(&at("new")).contains("mode 0750"), "{}", refused(&at("new")));
    assert_eq!(mode(&at("new")), 0o750, "it is not repaired");
    fs::create_dir(at("real")).unwrap();
    fs::set_permissions(at("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("real", at("link")).unwrap();
    assert!(refused(&at("link")).contains("symlink"));
    if is_root() {
        chown(at("real"), Some(1234), None).unwrap();
        assert!(refused(&at("real")).contains("owner 1234"));
        assert!(Dir::make_private(&at("real")).unwrap_err().to_string().contains("belongs to user 1234"));
    }
    Dir::make_private(&at("new")).unwrap();
    assert_eq!(mode(&at("new")), 0o700);
}

#[test]
fn a_trusted_way_leads_through_nothing_that_others_can_change() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = Dir::make_trusted(&at("a/b"), 0o755).unwrap();
    assert!(made.meta().unwrap().is_dir() && made.path() == at("a/b"));
    // Root's own symlink is an administrator's.
    symlink("a", at("ours")).unwrap();
    Dir::open_trusted(&at("ours/b")).unwrap();
    symlink("a", at("theirs")).unwrap();
    lchown(at("theirs"), Some(1234), None).unwrap();
    let refused = |path: &str| Dir::open_trusted(&at(path)).unwrap_err().to_string();
    assert!(refused("theirs/b").contains("user 1234"), "{}", refused("theirs/b"));
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused("a/b").contains("mode 0777"), "{}", refused("a/b"));
    assert!(Dir::make_trusted(&at("a/c"), 0o700).is_err() && !at("a/c").exists());
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o1777)).unwrap();
    Dir::open_trusted(&at("a/b")).unwrap();
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o755)).unwrap();
    chown(at("a"), Some(1234), None).unwrap();
    assert!(refused("a/b").contains("owner 1234"));
    assert!(Dir::open_trusted(&at("none")).is_err());
    symlink("loop", at("loop")).unwrap();
    assert!(Dir::open_trusted(&at("loop")).is_err());
}

/// Lets one more user write something. False: the file system has no ACLs.
fn let_in(path: &Path) -> bool {
    share(&fs::File::open(path).unwrap(), Some(1234), Permissions { own: 7, theirs: 7 }).is_ok()
}

#[test]
fn whom_an_acl_lets_write_is_not_root_s_group() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    chown(at("a"), None, Some(0)).unwrap();
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o775)).unwrap();
    Dir::open_trusted(&at("a/b")).unwrap();
    assert!(is_roots(&at("a/b"), Others::AddNames).unwrap(), "root's group is root");
    if !let_in(&at("a")) {
        return;
    }
    assert_eq!(mode(&at("a")), 0o770, "which looks like root's group");
    let refused = Dir::open_trusted(&at("a/b")).unwrap_err().to_string();
    assert!(refused.contains("can be changed by others"), "{refused}");
    assert!(!is_roots(&at("a/b"), Others::AddNames).unwrap());
}

#[test]
fn what_is_root_s_has_a_way_that_is_root_s() {
    assert!(is_roots("/etc/passwd".as_ref(), Others::Nothing).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("/etc/passwd", at("link")).unwrap();
    assert!(!is_roots(&at("link"), Others::Nothing).unwrap(), "where anybody can make one");
    assert!(is_roots(&at("none"), Others::AddNames).is_err() || !is_root());
    if !is_root() {
        return;
    }
    assert!(is_roots(&at("link"), Others::AddNames).unwrap(), "the control");
    lchown(at("link"), Some(1234), None).unwrap();
    assert!(!is_roots(&at("link"), Others::AddNames).unwrap(), "another's link");
    // Root's own leads through a directory of somebody else's.
    fs::create_dir(at("theirs")).unwrap();
    symlink("/etc/passwd", at("theirs/on")).unwrap();
    symlink("theirs/on", at("through")).unwrap();
    assert!(is_roots(&at("through"), Others::AddNames).unwrap(), "the control");
    chown(at("theirs"), Some(1234), None).unwrap();
    assert!(!is_roots(&at("through"), Others::AddNames).unwrap());
    // What a sticky file's mode says of others counts.
    fs::write(at("file"), "").unwrap();
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o1666)).unwrap();
    assert!(!is_roots(&at("file"), Others::AddNames).unwrap());
}

#[test]
fn a_device_is_not_opened_to_be_looked_at() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::open(folder.path()).unwrap();
    // Nothing has this number: the open of it, and nothing else, would say so.
    let (device, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o600));
    if rustix::fs::mknodat(&dir, "device", device, mode, rustix::fs::makedev(511, 1_048_575)).is_err() {
        // Nobody makes one here.
        return;
    }
    for refused in [dir.read(name("device")), dir.update(name("device")), dir.append(name("device"))] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("device is not a regular file"), "{error}");
    }
}

#[test]
fn who_led_the_way_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/file"), "x").unwrap();
    symlink("dir/../dir/file", at("link")).unwrap();
    let found = Dir::resolve(&at("link")).unwrap();
    assert_eq!(
        (found.dir.path(), found.name.as_os_str(), found.redirected_by),
        (&*at("dir"), name("file"), None)
    );
    assert_eq!(Dir::resolve(&at("dir/new")).unwrap().name, "new");
    assert!(Dir::resolve(&at("dir/..")).is_err() && Dir::resolve(&at("none/new")).is_err());
    if is_root() {
        lchown(at("link"), Some(1234), None).unwrap();
        assert_eq!(Dir::resolve(&at("link")).unwrap().redirected_by, Some(1234));
        assert_eq!(Dir::resolve(&at("dir/file")).unwrap().redirected_by, None);
    }
}

#[test]
fn a_socket_is_bound_in_a_directory_of_ours_only() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::make_private(&folder.path().join("s")).unwrap();
    let (listener, entry) = dir.bind(name("a.sock")).unwrap();
    entry.set_mode(0o600).unwrap();
    assert_eq!(mode(&folder.path().join("s/a.sock")), 0o600);
    assert_eq!(listener.local_addr().unwrap().as_pathname().unwrap(), folder.path().join("s/a.sock"));
    UnixStream::connect(folder.path().join("s/a.sock")).unwrap();
    assert!(dir.bind(name("a.sock")).is_err(), "it is there");
    dir.set_mode(0o770).unwrap();
    assert!(dir.bind(name("b.sock")).unwrap_err().to_string().contains("mode 0770"));
    dir.set_mode(0o700).unwrap();
    // The path leads to another directory by now.
    fs::rename(folder.path().join("s"), folder.path().join("t")).unwrap();
    fs::create_dir(folder.path().join("s")).unwrap();
    assert!(dir.bind(name("b.sock")).unwrap_err().to_string().contains("another directory"));
    if is_root() {
        let dir = Dir::open(&folder.path().join("t")).unwrap();
        dir.set_owner(1234, 1234).unwrap();
        assert!(dir.bind(name("c.sock")).unwrap_err().to_string().contains("owner 1234"));
        dir.take_back().unwrap();
        assert!(dir.entry(name("a.sock")).unwrap().unwrap().meta().unwrap().is_socket());
    }
}

#[test]
fn a_second_user_is_let_in_and_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::make_private(&folder.path().join("s")).unwrap();
    let (_listener, entry) = dir.bind(name("a.sock")).unwrap();
    drop(dir.create(name("file"), 0o600).unwrap());
    let file = dir.entry(name("file")).unwrap().unwrap();
    for entry in [&entry, &file] {
        let permissions = Permissions { own: 6, theirs: 4 };
        if let Err(error) = entry.share(Some(1234), permissions) {
            // A file system without ACLs, and nobody is let in.
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
            continue;
        }
        assert_eq!(entry.meta().unwrap().mode, 0o640, "the mask stands where the group's bits were");
        entry.share(None, permissions).unwrap();
        assert_eq!(entry.meta().unwrap().mode, 0o600);
    }
}

#[test]
fn an_entry_is_read_only_where_it_is_a_regular_file_and_whatever_has_its_name_later() {
    let scene = tempfile::tempdir().unwrap();
    let at = |name: &str| scene.path().join(name);
    let dir = Dir::open(scene.path()).unwrap();
    let entry = |text: &str| dir.entry(name(text)).unwrap().unwrap();
    fs::write(at("file"), "text").unwrap();
    fs::create_dir(at("folder")).unwrap();
    symlink("file", at("link")).unwrap();
    let _socket = dir.bind(name("socket")).unwrap();
    for other in ["folder", "link", "socket"] {
        let error = entry(other).read().unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{other}: {error}");
    }
    let file = entry("file");
    fs::rename(at("link"), at("file")).unwrap();
    assert_eq!(std::io::read_to_string(file.read().unwrap()).unwrap(), "text");
}

#[test]
fn a_path_is_read_through_symlinks_and_only_where_it_leads_to_a_regular_file() {
    let scene = tempfile::tempdir().unwrap();
    let at = |name: &str| scene.path().join(name);
    fs::write(at("file"), "text").unwrap();
    symlink("file", at("link")).unwrap();
    for path in [at("file"), at("link")] {
        assert_eq!(std::io::read_to_string(read(&path).unwrap()).unwrap(), "text");
    }
    let (dir, fifo) = (Dir::open(scene.path()).unwrap(), rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(&dir, "fifo", fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    symlink("fifo", at("to_fifo")).unwrap();
    symlink("/dev/zero", at("to_device")).unwrap();
    for other in ["fifo", "to_fifo", "to_device"] {
        let error = read(&at(other)).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{other}: {error}");
    }
    assert_eq!(read(&at("none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}
