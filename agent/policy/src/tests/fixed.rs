//! What a container can do to where its rules lead, between one policy and the next: nothing.

use super::{Lab, toml};
use crate::{
    Compilation,
    compiled::CompiledPolicy,
    decide::Decider,
    fixed::{Fixed, History},
    *,
};
use ringfence_common::policy::axis::{EXEC, READ, WRITE};
use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

fn may(policy: &CompiledPolicy, axis: u16, path: impl AsRef<Path>) -> bool {
    Decider::new(policy).path(axis, path.as_ref().as_os_str().as_bytes()).allowed()
}

/// A profile in a root, as one container after the other has it.
struct Life {
    lab: Lab,
    workdir: Option<&'static str>,
    history: History,
    past: Fixed,
}

impl Life {
    fn new(lab: Lab) -> Self {
        Self { lab, workdir: None, history: History::default(), past: Fixed::default() }
    }

    /// The next policy of the same container.
    fn reload(&mut self, toml: &str) -> Compilation {
        let profile = self.lab.load(toml).unwrap_or_else(|e| panic!("{e}"));
        let root = self.lab.root();
        let context = CompileContext {
            history: Some(&self.history),
            past: Some(&self.past),
            ..CompileContext::new(&root, self.workdir.map(PathBuf::from))
        };
        let done = profile.compile_whole(&context).unwrap_or_else(|e| panic!("{e}"));
        self.history.fixed = done.fixed.clone();
        self.history.written.add(&done.policy);
        self.past = done.own.clone();
        // As a restarted core finds it.
        self.history = serde_json::from_str(&serde_json::to_string(&self.history).unwrap()).unwrap();
        done
    }

    /// The container has ended; the next one begins.
    fn end(&mut self) {
        self.history = History::default();
    }

    /// What the container does to a directory of its own.
    fn turn(&self, at: &str, target: &str) {
        let at = self.lab.root().join(at);
        fs::remove_dir_all(&at).or_else(|_| fs::remove_file(&at)).unwrap();
        symlink(target, at).unwrap();
    }
}

#[test]
fn a_granted_directory_that_becomes_a_link_keeps_its_meaning() {
    let mut life = Life::new(Lab::new());
    for dir in ["work/d", "work/e", "secret", "elsewhere"] {
        life.lab.dir(dir);
    }
    life.lab.link("outside", "/work/e");
    let granted =
        "fs_read = { only = [\"/work/d\", \"/outside\"] }\nfs_write = { only = [\"/work/d\", \"/outside\"] }";
    let text = toml(granted, "", "none");
    let first = life.reload(&text).policy;
    assert!(may(&first, WRITE, "/work/d/x") && may(&first, WRITE, "/work/e/x"), "the control");
    life.turn("work/d", "/secret");
    life.turn("outside", "/elsewhere");
    for edit in ["", "# edited\n"] {
        let again = life.reload(&format!("{edit}{text}"));
        for secret in ["/secret/key", "/elsewhere/key"] {
            assert!(!may(&again.policy, READ, secret) && !may(&again.policy, WRITE, secret), "{secret}");
        }
        assert!(may(&again.policy, READ, "/work/d/x") && may(&again.policy, READ, "/work/e/x"));
        let told = again.moved.join("\n");
        assert!(
            told.contains("/secret") && told.contains("/elsewhere") && told.contains("p.toml:"),
            "{told}"
        );
    }
    // The next container of the same profile, when nothing of the first is left but where its paths led.
    life.end();
    let next = life.reload(&text);
    assert!(!may(&next.policy, READ, "/secret/key"), "{:?}", next.moved);
    assert!(may(&next.policy, READ, "/work/d/x"));
}

#[test]
fn a_link_that_an_earlier_container_could_have_made_is_not_followed_when_where_it_led_was_forgotten() {
    let text = toml("fs_read = { only = [\"/work/d\"] }\nfs_write = { only = [\"/work/d\"] }", "", "none");
    for (past, follows) in [(Fixed::default(), true), (Fixed::default().with_more(), false)] {
        let mut life = Life { past, ..Life::new(Lab::new()) };
        life.lab.dir("work");
        life.lab.dir("secret");
        life.lab.link("work/d", "/secret");
        let first = life.reload(&text);
        assert_eq!(may(&first.policy, READ, "/secret/key"), follows, "{:?}", first.notes);
        assert_eq!(first.notes.iter().any(|note| note.contains("not followed")), !follows);
    }
}

#[test]
fn the_working_directory_is_followed_once() {
    let mut life = Life { workdir: Some("/link/d"), ..Life::new(Lab::new()) };
    for dir in ["work/d", "secret"] {
        life.lab.dir(dir);
    }
    life.lab.link("link", "/work");
    let granted =
        "fs_read = { only = [\"${WORKDIR}\"] }\nfs_write = { only = [\"${WORKDIR}\", \"${WORKDIR}/sub\"] }";
    let text = toml(granted, "", "none");
    let first = life.reload(&text).policy;
    assert!(may(&first, WRITE, "/work/d/x") && !may(&first, WRITE, "/work/x"), "the control");
    life.turn("work/d", "/secret");
    for _ in 0..2 {
        let again = life.reload(&text);
        assert!(!may(&again.policy, READ, "/secret/key") && may(&again.policy, READ, "/work/d/x"));
        assert!(again.moved.iter().any(|note| note.contains("/secret")), "{:?}", again.moved);
    }
}

#[test]
fn a_rule_that_comes_later_goes_through_no_link_that_the_container_could_have_made() {
    let mut life = Life::new(Lab::new());
    for dir in ["own", "secret", "etc"] {
        life.lab.dir(dir);
    }
    let own = "fs_write = { only = [\"/own\"] }";
    life.reload(&toml(own, "", "none"));
    life.lab.link("own/l", "/secret");
    life.lab.link("etc/l", "/secret");
    // It may not write there any more: it could.
    let narrowed = life.reload(&toml("fs_read = { only = [\"/own/l\"] }", "", "none"));
    assert!(!may(&narrowed.policy, READ, "/secret/key"));
    assert!(narrowed.notes.iter().any(|note| note.contains("may change")), "{:?}", narrowed.notes);
    let again = life.reload(&toml("fs_read = { only = [\"/own/l\"] }", "", "none"));
    assert!(!may(&again.policy, READ, "/secret/key"), "what was not followed stays so");
    let outside = life.reload(&toml("fs_read = { only = [\"/etc/l\"] }", "", "none"));
    assert!(may(&outside.policy, READ, "/secret/key"), "the control: a link of somebody else's is followed");
}

#[test]
fn a_bare_name_stays_the_file_that_it_was() {
    let mut life = Life::new(Lab::new());
    life.lab.dir("usr/local/bin");
    life.lab.program("usr/bin/tool");
    let text = toml(
        "fs_write = { only = [\"/usr/local/bin\"] }\nexec = { only = [\"tool\", \"late\", \"mine\"] }",
        "",
        "none",
    );
    assert!(may(&life.reload(&text).policy, EXEC, "/usr/bin/tool"));
    for path in ["usr/local/bin/tool", "usr/local/bin/mine", "usr/bin/late"] {
        life.lab.program(path);
    }
    let again = life.reload(&text).policy;
    assert!(may(&again, EXEC, "/usr/bin/tool") && !may(&again, EXEC, "/usr/local/bin/tool"));
    assert!(!may(&again, EXEC, "/usr/local/bin/mine"), "the container wrote it");
    assert!(may(&again, EXEC, "/usr/bin/late"), "the control: somebody else installed it");
}

#[test]
fn a_deny_holds_where_its_path_led_and_where_it_leads() {
    let mut life = Life::new(Lab::new());
    for dir in ["a", "b"] {
        life.lab.dir(dir);
    }
    life.lab.link("link", "/a");
    let text = toml("fs_read = { only = [\"/\"] }", "fs_read = [\"/link/x\"]", "none");
    let first = life.reload(&text).policy;
    assert!(!may(&first, READ, "/a/x") && !may(&first, READ, "/link/x") && may(&first, READ, "/b/x"));
    life.turn("link", "/b");
    let again = life.reload(&text).policy;
    for path in ["/a/x", "/b/x", "/link/x"] {
        assert!(!may(&again, READ, path), "{path}");
    }
    assert!(may(&again, READ, "/b/y"));
}

#[test]
fn the_base_follows_no_link_that_the_container_may_change() {
    let lab = Lab::new();
    for dir in ["etc", "secret", "usr/share/zoneinfo"] {
        lab.dir(dir);
    }
    lab.link("etc/localtime", "/secret");
    let policy = lab.compile(&toml("fs_read = { only = [\"/etc\"] }", "", "userland"));
    assert!(may(&policy, READ, "/secret/x"), "the control: root's link is followed");
    let policy = lab.compile(&toml("fs_write = { only = [\"/etc\"] }", "", "userland"));
    assert!(!may(&policy, READ, "/secret/x"));
}

#[test]
fn the_files_of_a_profile_and_the_links_to_them_are_never_written() {
    let dir = tempfile::tempdir().unwrap();
    // Where the temporary directory is itself reached by a link, names are the real ones here.
    let dir = dir.path().canonicalize().unwrap();
    let at = |path: &str| dir.join(path);
    for name in ["work/real", "parents"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    symlink(at("work/real"), at("work/way")).unwrap();
    symlink(at("parents/p.toml"), at("work/base.toml")).unwrap();
    fs::write(at("parents/p.toml"), "description = \"x\"").unwrap();
    for (grant, inner) in
        [(at("work").to_str().unwrap(), true), ("/", true), (at("other").to_str().unwrap(), false)]
    {
        let text =
            toml(&format!("fs_write = {{ only = [{grant:?}, {:?}] }}", at("work/real/p.toml")), "", "none");
        let extends = format!("extends = {:?}\n", at("work/base.toml"));
        fs::write(at("work/real/p.toml"), format!("{extends}{text}")).unwrap();
        let named = at("work/way/p.toml");
        let profile = load(named.to_str().unwrap(), &Dirs::system()).unwrap_or_else(|e| panic!("{e}"));
        let policy =
            profile.compile(&CompileContext::new(Path::new("/"), None)).unwrap_or_else(|e| panic!("{e}"));
        for closed in ["work/real/p.toml", "work/way", "work/base.toml", "parents/p.toml"] {
            assert!(!may(&policy, WRITE, at(closed)), "{closed} with {grant}");
        }
        for open in ["work/real/other", "work/x"] {
            assert_eq!(may(&policy, WRITE, at(open)), inner, "{open} with {grant}");
        }
    }
}
