//! Who has a say about credentials: what of a profile, and of what its credentials come from, what runs under it reaches.

use super::Lab;
use crate::decide::Decider;
use crate::*;
use ringfence_common::policy::axis::READ;
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{chown, symlink},
};

const TABLE: &str = "[net.credentials.\"a.org\"]\nallow = [\"GET /a\"]\n";

fn text(read: &[&str], write: &[&str], token: &str) -> String {
    format!(
        "[grant]\nfs_read = {{ only = {read:?} }}\nfs_write = {{ only = {write:?} }}\nexec = {{ only = [] }}\n\
         net = {{ only = [\"a.org\"] }}\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n{TABLE}{token}\n"
    )
}

/// What is said against a credential from there, with this PATH and CREDENTIALS_DIRECTORY; the home is `/home`.
fn closed(lab: &Lab, profile: &str, variables: &[(&str, &str)]) -> Result<(), String> {
    let profile =
        lab.load(profile).unwrap_or_else(|e| panic!("{e}")).with_tokens_of(Some(Path::new("/home")));
    let variable =
        |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| OsString::from(value));
    let root = lab.root();
    let context = CompileContext::new(&root, None);
    profile.require_closed_credentials(&context, &variable).map_err(|error| error.to_string())
}

#[test]
fn nothing_that_a_command_runs_is_where_the_agent_writes() {
    let lab = Lab::new();
    for dir in ["home/work/bin", "home/own", "usr/local/bin", "opt"] {
        lab.dir(dir);
    }
    lab.program("usr/bin/pass");
    lab.link("opt/bin", "/home/work/bin");
    lab.link("usr/bin/linked", "/home/work/bin/linked");
    let said = |write: &str, command: &str, path: &str| {
        closed(&lab, &text(&[], &[write], &format!("token_command = {command}")), &[("PATH", path)])
    };
    let usual = "/usr/local/bin:/usr/bin";
    for (write, command, path) in [
        ("/home/work", "\"pass show x | head -1\"", usual),
        ("/home/work", "[\"pass\", \"show\", \"x\"]", usual),
        ("/home/work", "\"~/own/token\"", usual),
        ("/home/work/**", "[\"python3\", \"/home/own\"]", usual),
        ("/home/work", "[\"bash\", \"-c\", \"~/own/token\"]", "/home/own:/usr/bin"),
        // Nobody makes the directory that is not there, nor what is above it.
        ("/home/work", "\"pass show x\"", "/home/none/bin:/usr/bin"),
        // Below a directory of PATH nothing is looked for.
        ("/usr/local/bin/sub/dir", "\"pass show x\"", usual),
    ] {
        assert_eq!(said(write, command, path), Ok(()), "the control: {write}: {command}: {path}");
    }
    let (words, dirs) = ("has a file that it names", "is a directory of PATH");
    for (write, command, path, why) in [
        ("/home/work", "\"~/work/bin/token | head -1\"", usual, words),
        ("/home/work", "\"cat \\\"$HOME/work/token\\\"\"", usual, words),
        ("/home/work", "[\"bash\", \"-c\", \"exec ~/work/bin/token\"]", usual, words),
        ("/home/work", "[\"python3\", \"/home/work/token.py\"]", usual, words),
        ("/home/work", "[\"env\", \"--chdir=/home/work\", \"pass\"]", usual, words),
        ("/home/work/**", "[\"env\", \"--chdir=/home/work\", \"pass\"]", usual, words),
        ("/home/work/**", "\"run-parts ~/work\"", usual, words),
        ("/home/work/*", "[\"python3\", \"/home/work\"]", usual, words),
        ("/home/work", "[\"/opt/bin/token\"]", usual, words),
        ("/home/work", "\"linked\"", usual, words),
        ("/home/work", "[\"env\", \"linked\"]", usual, words),
        ("/home/work", "\"pass show x\"", "/home/work/bin:/usr/bin", dirs),
        ("/home/work", "\"pass show x\"", "/usr/bin:/home/work/bin", dirs),
        ("/home/work", "[\"env\", \"tok\"]", "/home/work/bin:/usr/bin", dirs),
        ("/home/work", "[\"/usr/bin/pass\"]", "/usr/bin:/opt/bin", dirs),
        ("/home/work", "\"pass show x\"", "/usr/bin:/home/work/none/bin", dirs),
        ("/opt/bin", "\"pass show x\"", "/usr/bin:/opt/bin", dirs),
        ("/usr/local/bin/*", "\"pass show x\"", usual, dirs),
        ("/usr/local/bin/**", "\"pass show x\"", usual, dirs),
        ("/usr/local/bin/tool", "\"pass show x\"", usual, dirs),
        ("/usr/*", "\"pass show x\"", usual, dirs),
        ("**/bin", "\"pass show x\"", usual, dirs),
        ("**/pass", "\"pass show x\"", usual, words),
    ] {
        let error = said(write, command, path).expect_err(command);
        assert!(
            error.contains(why) && error.contains("outside of the container"),
            "{command}: {path}: {error}"
        );
    }
    // What stands in a command may be the credential itself.
    let error =
        said("/home/work", "[\"echo\", \"secret-argument\", \"/home/work/secret-path\"]", usual).unwrap_err();
    assert!(error.contains("may write /home/work,") && !error.contains("secret"), "{error}");
    // A variable is looked for nowhere.
    let env = text(&[], &["/home/work"], "token_env = \"A\"");
    assert_eq!(closed(&lab, &env, &[("PATH", "/home/work/bin")]), Ok(()));
}

#[test]
fn a_command_may_have_devices_that_the_agent_writes_to() {
    let lab = Lab::new();
    let context = CompileContext::new(Path::new("/"), None);
    let said = |write: &[&str], line: &str| {
        let text = text(&[], write, &format!("token_command = \"{line}\""));
        let profile = lab.load(&text).unwrap_or_else(|e| panic!("{e}"));
        profile.require_closed_credentials(&context, &|_| None).map_err(|error| error.to_string())
    };
    let line = "pass show x 2>/dev/null </etc/hostname";
    assert_eq!(said(&["/dev/null"], line), Ok(()));
    // That one is the base's.
    assert_eq!(said(&[], line), Ok(()));
    assert!(said(&["/etc/hostname"], line).is_err(), "the control");
    assert!(said(&["/dev"], "cat /dev/no-device").is_err(), "the control");
}

#[test]
fn what_is_above_a_protected_place_is_not_replaced() {
    let lab = Lab::new();
    lab.dir("etc/ringfence");
    let of = |file: &str| closed(&lab, &text(&[], &["/etc"], &format!("token_file = \"{file}\"")), &[]);
    assert_eq!(of("/etc/ringfence/token"), Ok(()));
    assert!(of("/etc/token").is_err(), "the control");
}

#[test]
fn what_systemd_keeps_credentials_in_is_closed() {
    let lab = Lab::new();
    for dir in ["run/credentials/a.service", "run/user/1000/credentials/b.service", "run/other", "srv/own"] {
        lab.dir(dir);
    }
    let root = lab.root();
    let reads = |token: &str| {
        let profile = lab.load(&text(&["/run", "/srv"], &[], token)).unwrap_or_else(|e| panic!("{e}"));
        let policy = profile.compile(&CompileContext::new(&root, None)).unwrap_or_else(|e| panic!("{e}"));
        let decider = Decider::new(&policy);
        [
            "/run/credentials/a.service/t",
            "/run/user/1000/credentials/b.service/t",
            "/run/other/t",
            "/run/user/1000/t",
        ]
        .map(|path| decider.path(READ, path.as_bytes()).allowed())
    };
    assert_eq!(reads("token_credential = \"t\""), [false, false, true, true]);
    assert_eq!(reads("token_env = \"T\""), [true; 4], "the control");
    // Who starts the container knows where theirs is.
    let of = |read: &str, dir: &str| {
        closed(&lab, &text(&[read], &[], "token_credential = \"t\""), &[("CREDENTIALS_DIRECTORY", dir)])
    };
    for (read, dir) in [
        ("/run", "/run/credentials/a.service"),
        ("/", "/run/user/1000/credentials/b.service"),
        ("/run", "/srv/own"),
    ] {
        assert_eq!(of(read, dir), Ok(()), "the control: {read}: {dir}");
    }
    symlink("/srv/own", root.join("run/linked")).unwrap();
    for (read, dir) in [("/srv", "/srv/own"), ("/srv/own/t", "/srv/own"), ("/srv", "/run/linked")] {
        let error = of(read, dir).unwrap_err();
        assert!(error.contains(&format!("may read {dir}")), "{read}: {error}");
    }
}

/// Directories as those of profiles, all of whoever runs this.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["system/sets", "user", "repository", "dotfiles", "work"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn dirs(&self) -> Dirs {
        Dirs { system: self.path("system"), user: Some(self.path("user")) }
    }

    fn put(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn load(&self, name: &str) -> Profile {
        load(self.path(name).to_str().unwrap(), &self.dirs()).unwrap_or_else(|e| panic!("{e}"))
    }

    fn own(&self, name: &str) -> Result<(), String> {
        let work = self.path("work");
        self.load(name).require_own_credentials(&self.dirs(), &work).map_err(|error| error.to_string())
    }
}

#[test]
fn every_file_of_a_profile_has_a_say_about_the_credentials_that_it_inherits() {
    let home = Home::new();
    let tables = text(&[], &[], "token_env = \"A\"");
    let corp = home.put("system/corp.toml", &tables);
    let extends =
        |file: &Path| format!("extends = {file:?}\n[grant]\nnet = {{ add = [\"evil.example\"] }}\n");
    home.put("user/own.toml", &extends(&corp));
    home.put("repository/ci.toml", &extends(&corp));
    let theirs = home.put("repository/tables.toml", &tables);
    home.put("system/theirs.toml", &extends(&theirs));
    // In the middle of the chain, with the tables from where they may be.
    home.put("system/middle.toml", &extends(&home.path("repository/ci.toml")));
    home.put("system/sets/hosts.toml", "description = \"x\"\n[hosts]\n\"b.org\" = \"x\"\n");
    home.put("system/set.toml", &tables.replace("[\"a.org\"]", "[\"a.org\", \"set:hosts\"]"));
    for own in ["system/corp.toml", "user/own.toml", "system/set.toml"] {
        assert_eq!(home.own(own), Ok(()), "the control: {own}");
    }
    for (name, file) in [
        ("repository/ci.toml", "repository/ci.toml"),
        ("system/middle.toml", "repository/ci.toml"),
        ("system/theirs.toml", "repository/tables.toml"),
    ] {
        let error = home.own(name).expect_err(name);
        assert!(error.contains(&format!("{} is not", home.path(file).display())), "{name}: {error}");
    }
    // Nothing is asked of a profile without any.
    home.put("repository/none.toml", tables.split("[net.").next().unwrap());
    assert_eq!(home.own("repository/none.toml"), Ok(()));
}

#[test]
fn what_the_daemon_takes_from_root_alone_is_refused_first() {
    let home = Home::new();
    let tables = text(&[], &[], "token_env = \"A\"");
    let corp = home.put("system/corp.toml", &tables);
    home.put("user/own.toml", &tables);
    home.put("user/base.toml", &tables);
    home.put("system/extends.toml", &format!("extends = {:?}\n", home.path("user/base.toml")));
    let of = |name: &str| {
        home.load(name).require_roots_credentials(&home.dirs()).map_err(|error| error.to_string())
    };
    let error = of("user/own.toml").unwrap_err();
    assert!(error.contains("from root alone") && error.contains("user/own.toml"), "{error}");
    if !nix::unistd::geteuid().is_root() {
        return assert!(of("system/corp.toml").unwrap_err().contains("by others than root"));
    }
    assert_eq!((of("system/corp.toml"), of("system/extends.toml")), (Ok(()), Ok(())), "the control");
    chown(&corp, Some(4711), None).unwrap();
    chown(home.path("user/base.toml"), Some(4711), None).unwrap();
    for (name, file) in [("system/corp.toml", "system/corp.toml"), ("system/extends.toml", "user/base.toml")]
    {
        let error = of(name).unwrap_err();
        assert!(error.contains(&format!("{file} can be changed by others than root")), "{name}: {error}");
    }
}

#[test]
fn no_profile_lets_its_own_files_be_written_by_any_name() {
    let home = Home::new();
    let written = |write: &Path, name: &str| {
        let write = write.to_str().unwrap();
        let tables = text(&[], &[write], "token_env = \"A\"");
        home.put("dotfiles/p.toml", &tables);
        home.put("user/q.toml", &tables);
        let loaded = home.load(name);
        let context = CompileContext::new(Path::new("/"), None);
        loaded.require_closed_credentials(&context, &|_| None).map_err(|error| error.to_string())
    };
    symlink(home.path("dotfiles/p.toml"), home.path("user/p.toml")).unwrap();
    for name in ["user/p.toml", "user/q.toml"] {
        assert_eq!(written(&home.path("work"), name), Ok(()), "the control: {name}");
    }
    for (write, name) in [
        ("dotfiles", "user/p.toml"),
        ("user", "user/p.toml"),
        ("dotfiles/p.toml", "user/p.toml"),
        ("user", "user/q.toml"),
        ("", "user/q.toml"),
    ] {
        let error = written(&home.path(write), name).expect_err(write);
        assert!(error.contains("of which the profile is made"), "{write}: {name}: {error}");
    }
    // By another name of the same file.
    fs::hard_link(home.path("user/q.toml"), home.path("work/q.toml")).unwrap();
    assert!(written(&home.path("nowhere"), "user/q.toml").unwrap_err().contains("has 2 names"));
    home.put("user/q.toml", &text(&[], &[], "token_env = \"A\""));
    let context = CompileContext::new(Path::new("/"), None);
    let loaded = home.load("user/q.toml").require_closed_credentials(&context, &|_| None);
    assert!(loaded.is_ok(), "the control: nothing is written");
}
