//! Files that are shipped, kept and removed, and what the unit says.

use super::*;

#[test]
fn the_unit_takes_no_mount_away() {
    let mounting = [
        "Protect(Proc|KernelTunables|KernelModules|KernelLogs|ControlGroups)",
        "Private(Tmp|Devices|Mounts|IPC|PIDs|Users)",
        "(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec|BindReadOnly|Bind)Paths",
        "(Temporary|Root)[A-Za-z]+",
        "(MountFlags|MountImages|MountAPIVFS|ProcSubset|DynamicUser|ExtensionImages)",
    ];
    let mounting = regex::Regex::new(&format!("^({})=", mounting.join("|"))).unwrap();
    assert!(mounting.is_match("PrivateTmp=yes"));
    let found: Vec<&str> = UNIT.lines().filter(|line| mounting.is_match(line)).collect();
    assert_eq!(
        found,
        Vec::<&str>::new(),
        "containers' roots, the pins or agents' sockets would not be the host's"
    );
}

fn installation(dir: &Path) -> Installation {
    let sub = |name: &str| dir.join(name);
    let paths = Paths { runtime: sub("run"), state: sub("state"), config: sub("config"), pins: sub("pins") };
    for dir in [paths.profiles(), paths.config.join("shipped"), sub("units")] {
        fs::create_dir_all(dir).unwrap();
    }
    Installation { paths, units: sub("units") }
}

fn ship(installation: &Installation, text: &str) -> Vec<String> {
    let mut done = Vec::new();
    installation.ship(&installation.paths.profiles().join("p.toml"), text, &mut done).unwrap();
    done
}

#[test]
fn a_shipped_file_follows_upgrades_until_somebody_edits_it() {
    let dir = tempfile::tempdir().unwrap();
    let installation = installation(dir.path());
    let path = installation.paths.profiles().join("p.toml");
    assert!(ship(&installation, "one")[0].ends_with("installed"));
    assert!(ship(&installation, "one").is_empty());
    assert!(ship(&installation, "two")[0].ends_with("updated"));
    assert_eq!(fs::read(&path).unwrap(), b"two");
    fs::write(&path, "mine").unwrap();
    assert!(ship(&installation, "two").is_empty());
    assert!(ship(&installation, "three")[0].contains("was edited and is kept"));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert!(ship(&installation, "three").is_empty(), "reported once");
}

#[test]
fn a_deleted_file_stays_deleted_and_a_foreign_one_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let installation = installation(dir.path());
    let path = installation.paths.profiles().join("p.toml");
    ship(&installation, "one");
    fs::remove_file(&path).unwrap();
    assert!(ship(&installation, "one").is_empty());
    assert!(!path.exists());
    let other = tempfile::tempdir().unwrap();
    let installation = self::installation(other.path());
    let path = installation.paths.profiles().join("p.toml");
    fs::write(&path, "somebody's own").unwrap();
    assert!(ship(&installation, "one")[0].contains("kept"));
    assert_eq!(fs::read(&path).unwrap(), b"somebody's own");
}

#[test]
fn the_unit_names_the_binary_and_every_capability() {
    let text = unit(Path::new("/opt/ringfence"));
    assert!(text.contains("ExecStart=/opt/ringfence daemon\n"));
    assert!(!text.contains('@'), "every place is filled");
    for keep in caps::CORE.iter().chain(caps::CORE_START) {
        assert!(text.contains(&keep.capability.to_string()));
    }
}

#[test]
fn the_error_of_a_tool_has_its_message() {
    let error = run("sh", &["-c", "echo no such luck >&2; exit 3"]).unwrap_err().to_string();
    assert!(error.contains("no such luck"), "{error}");
    let error = run_first(&[("no-such-tool-1", &[]), ("no-such-tool-2", &[])]).unwrap_err().to_string();
    assert!(error.contains("no-such-tool-1` or `no-such-tool-2"), "{error}");
}

#[test]
fn a_missing_file_need_not_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut done = Vec::new();
    remove(&dir.path().join("none"), &mut done).unwrap();
    assert!(done.is_empty());
}
