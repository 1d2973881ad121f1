//! `mcp wrap` as root in a directory of somebody else, and what its copies are.

use super::{Backup, Config, PrivateFiles};
use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};
use ringfence_interceptor::wrap::rewrite;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const ORIGINAL: Backup<'_> = Backup { text: "original", is_private: false };
/// Rounds of the race.
const ROUNDS: usize = 1_000;
/// An ordinary user, in whose directory root works.
const OWNER: u32 = 1234;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn wrap(file: &Path) -> std::io::Result<std::path::PathBuf> {
    let (config, text) = Config::read(file)?;
    match config
        .put(&text, "new", Some(Backup { text: &text, is_private: false }))
        .map_err(std::io::Error::other)?
    {
        true => Ok(config.backup_path()),
        false => Err(std::io::Error::other("it was changed meanwhile")),
    }
}

#[test]
fn what_the_client_wrote_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (file, aside) = (folder.path().join("file"), folder.path().join("aside"));
    let names = || {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    for (theirs, renamed) in [("theirs", false), ("old and longer", true), ("ol", true), ("", false)] {
        fs::write(&file, "old").unwrap();
        let (config, text) = Config::read(&file).unwrap();
        if renamed {
            fs::write(&aside, theirs).unwrap();
            fs::rename(&aside, &file).unwrap();
        } else {
            fs::write(&file, theirs).unwrap();
        }
        assert!(!config.put(&text, "new", Some(ORIGINAL)).unwrap(), "{theirs}");
        assert!(!config.put(&text, "new", None).unwrap(), "{theirs}");
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), names()), (theirs, vec!["file".to_owned()]));
    }
    // The control; a backup of before stays where nothing is put.
    fs::write(&file, "old").unwrap();
    let (config, text) = Config::read(&file).unwrap();
    assert!(config.put(&text, "new", Some(ORIGINAL)).unwrap());
    assert!(!config.put(&text, "newer", Some(Backup { text: "another", is_private: false })).unwrap());
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    assert_eq!(fs::read_to_string(config.backup_path()).unwrap(), "original");
    assert_eq!(names(), ["file", "file.before-ringfence"]);
}

#[test]
fn copies_have_the_owner_and_the_mode_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for kept in [0o600, 0o640, 0o644] {
        let file = folder.path().join(format!("{kept:o}"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(kept)).unwrap();
        if geteuid().is_root() {
            chown(&file, Some(OWNER), Some(OWNER + 1)).unwrap();
        }
        let before = fs::metadata(&file).unwrap();
        let backup = wrap(&file).unwrap();
        for path in [&file, &backup] {
            let after = fs::metadata(path).unwrap();
            assert_eq!((after.uid(), after.gid(), mode(path)), (before.uid(), before.gid(), kept));
        }
        assert_eq!(
            (fs::read(&file).unwrap(), fs::read(&backup).unwrap()),
            (b"new".to_vec(), b"old".to_vec())
        );
    }
}

#[test]
fn what_an_acl_lets_somebody_do_the_group_of_a_copy_may_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    let one_more = ringfence_files::Permissions { own: 6, theirs: 6 };
    // Not every file system has ACLs.
    if ringfence_files::share(&fs::File::open(&file).unwrap(), Some(OWNER), one_more).is_err() {
        return;
    }
    assert_eq!(mode(&file), 0o660, "the mask stands where the group's bits were");
    let backup = wrap(&file).unwrap();
    assert_eq!([mode(&file), mode(&backup)], [0o600; 2]);
}

#[test]
fn a_link_is_followed_unless_somebody_else_made_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "old").unwrap();
    symlink("file", &link).unwrap();
    wrap(&link).unwrap();
    assert!(link.is_symlink() && fs::read_to_string(&file).unwrap() == "new");
    if !geteuid().is_root() {
        return;
    }
    lchown(&link, Some(OWNER), None).unwrap();
    let refused = wrap(&link).unwrap_err().to_string();
    assert!(refused.contains("symlink of user 1234"), "{refused}");
    // Their own file by their own link.
    chown(&file, Some(OWNER), None).unwrap();
    wrap(&link).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().uid(), OWNER);
}

#[test]
fn private_files_are_written_where_who_starts_the_servers_can_read_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mcp.json");
    fs::write(&file, r#"{"mcpServers": {"a": {"url": "https://h.example/?key=x"}}}"#).unwrap();
    let wrapped = |called_by: Option<u32>| {
        let (config, text) = Config::read(&file).unwrap();
        let files = PrivateFiles::of(&config, called_by.map(Uid::from_raw)).unwrap();
        rewrite(&text, None, "ringfence", false, &files).unwrap()
    };
    assert_eq!(wrapped(None).changed, ["a"], "the control");
    if !geteuid().is_root() {
        return;
    }
    let is_left = || {
        let left = wrapped(Some(OWNER));
        assert!(left.changed.is_empty() && left.needs.is_empty());
        assert!(left.left[0].1.to_string().contains("run this as the file's owner"), "{:?}", left.left);
    };
    // Root's, and others read it: a user's client does.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    is_left();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(wrapped(Some(OWNER)).changed, ["a"], "nobody else's client reads it");
    chown(&file, Some(OWNER), None).unwrap();
    is_left();
    for nobody_else in [None, Some(0)] {
        assert_eq!(wrapped(nobody_else).changed, ["a"], "root's client reads it, as in a container");
    }
}

#[test]
fn a_user_who_swaps_names_while_root_wraps_changes_no_other_file() {
    if !geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (home, victim) = (folder.path().join("home"), folder.path().join("shadow"));
    fs::create_dir(&home).unwrap();
    chown(&home, Some(OWNER), Some(OWNER)).unwrap();
    fs::write(&victim, "root:*:").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o640)).unwrap();
    let file = home.join("mcp.json");
    let (over, swapped) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // The kernel takes the capabilities over files with it: this thread may do what that user may.
            setfsgid(Gid::from_raw(OWNER));
            setfsuid(Uid::from_raw(OWNER));
            assert!(fs::write(&victim, "theirs").is_err(), "the attacker is no root");
            while !over.load(Ordering::Relaxed) {
                // The file is there with a mode of the user's choice, and whatever root makes beside it becomes a link.
                let _ = fs::write(home.join("aside"), "old");
                let _ = fs::set_permissions(home.join("aside"), fs::Permissions::from_mode(0o666));
                let _ = fs::rename(home.join("aside"), &file);
                for entry in fs::read_dir(&home).into_iter().flatten().flatten() {
                    let path = entry.path();
                    if path != file && fs::remove_file(&path).is_ok() {
                        swapped.fetch_or(symlink(&victim, &path).is_ok(), Ordering::Relaxed);
                    }
                }
            }
        });
        for round in 0..ROUNDS {
            let done = wrap(&file);
            let meta = fs::metadata(&victim).unwrap();
            if (meta.uid(), mode(&victim)) != (0, 0o640) {
                over.store(true, Ordering::Relaxed);
                panic!("round {round}: mode {:o} of user {}", meta.mode() & 0o7777, meta.uid());
            }
            if round % 50 == 0 && done.is_ok() {
                // Time for the attacker, on a machine of any speed.
                while !swapped.swap(false, Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root:*:");
}
