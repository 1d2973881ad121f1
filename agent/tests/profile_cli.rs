//! `ringfence profile` as its users meet it: good profiles, bad ones, and what is said of them.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A directory of profiles, a working directory, and a command line that sees nothing else.
struct Lab {
    dir: tempfile::TempDir,
}

const NOTHING: &str = "[grant]\nfs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }\n\
                       net = { only = [] }\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n";

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["etc/profiles", "user/ringfence/agents", "work"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn profile(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let file = self.path("etc/profiles").join(format!("{name}.toml"));
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        file
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo_bin("ringfence"));
        command.arg("profile").args(args);
        self.settle(&mut command);
        command
    }

    fn settle(&self, command: &mut Command) {
        command.current_dir(self.path("work"));
        command.env("RINGFENCE_CONFIG_DIR", self.path("etc")).env("XDG_CONFIG_HOME", self.path("user"));
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        said(self.command(args).output().unwrap())
    }

    /// The errors of a profile that must not be right.
    fn wrong(&self, text: impl AsRef<[u8]>) -> String {
        self.profile("bad", text);
        let (status, out, err) = self.run(&["check", "bad"]);
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        err
    }

    fn explain(&self, args: &[&str]) -> Value {
        let (status, out, err) = self.run(&[&["explain"], args, &["--json"]].concat());
        assert_eq!(status, 0, "{args:?}: {err}");
        serde_json::from_str(&out).unwrap()
    }
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn shipped(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles").join(format!("{name}.toml"));
    file.to_str().unwrap().to_owned()
}

#[test]
fn every_mistake_is_said_at_once_with_file_line_key_and_hint() {
    let lab = Lab::new();
    let err = lab.wrong(
        "descripton = \"x\"\n\
         mode = \"enforced\"\n\
         [grant]\n\
         fs_read = { only = [\"src\", \"/a/*.py\",\n  \"/a/../b\"] }\n\
         fs_write = [\"/a\"]\n\
         exec = { only = [\"bin/git\", \"/x\", \"/x/\"] }\n\
         net = { only = [\"*.com\", \"http://x\", \"10.0.0.1/8\", \"10.0.0.1:0\"] }\n\
         max_calls = { at_most = -1 }\n\
         [deny]\n\
         net = \"all\"\n\
         [kernel]\n\
         seccomp = \"strong\"\n\
         accept_partial = [\"fs\"]\n",
    );
    let file = lab.path("etc/profiles/bad.toml");
    for (line, key, what) in [
        (1, "descripton: unknown key", "did you mean `description`?"),
        (2, "mode: \"enforced\" is not one of enforce, audit", ""),
        (3, "grant.valid_for_generation: is missing", "valid_for_generation = { only = [] }"),
        (4, "grant.fs_read: \"src\": it is not an absolute path", "${WORKDIR}/src"),
        (4, "grant.fs_read: \"/a/*.py\": unsupported glob", "backslash"),
        (5, "grant.fs_read: \"/a/../b\": it has a `.` or `..`", "without"),
        (6, "grant.fs_write: expected \"all\" or { only = [...] }, found a list", ""),
        (7, "grant.exec: \"bin/git\": it is neither", "bare name"),
        (7, "grant.exec: \"/x/\" is a duplicate of line 7", "remove one"),
        (8, "grant.net: \"*.com\": anyone can have a name below com", "`*.example.com`"),
        (8, "grant.net: \"http://x\": it is a URL", ""),
        (8, "grant.net: \"10.0.0.1/8\": 10.0.0.1/8 has bits set", "10.0.0.0/8"),
        (8, "grant.net: \"10.0.0.1:0\": \"0\" is not a port", ""),
        (9, "grant.max_calls: ", "whole number"),
        (11, "deny.net: expected a list of strings, found a string", ""),
        (13, "kernel.seccomp: \"strong\" is not one of default, strict, off", ""),
        (14, "kernel.accept_partial: \"fs\" is not one of fs_read", ""),
    ] {
        let start = format!("{}:{line}: {key}", file.display());
        let found = err.find(&start).unwrap_or_else(|| panic!("{start} is not in:\n{err}"));
        assert!(err[found..].contains(what), "{what} is not in:\n{err}");
    }
    assert!(err.ends_with("bad: 17 errors\n"), "{err}");
}

#[test]
fn broken_files_are_refused_with_a_reason() {
    let lab = Lab::new();
    assert!(lab.wrong("[grant\nfs_read = \n").contains("bad.toml:1:"));
    assert!(lab.wrong("").contains("is empty"));
    assert!(lab.wrong(" \n\n").contains("is empty"));
    assert!(lab.wrong(b"mode = \"enforce\"\nx = \"\xff\"\n").contains("bad.toml:2: is not UTF-8"));
    assert!(lab.wrong("a = ".repeat(3 << 20)).contains("12582912 bytes; a profile may have at most 4194304"));
    assert!(lab.wrong(format!("x = {}", "[".repeat(100_000))).contains("bad.toml:1:"), "depth is bounded");
    let read = |text: &str| NOTHING.replacen("only = []", &format!("only = [{text}]"), 1);
    assert!(lab.wrong(read("\"/a\\u0000b\"")).contains("control character"));
    assert!(lab.wrong(read("\"/a\\nb\"")).contains("control character"));
    assert!(lab.wrong(read("\"/a\", 7")).contains("expected a string, found a whole number"));
    let long = format!("\"/{}\"", "a/".repeat(70));
    assert!(lab.wrong(read(&long)).contains("too deep: at most 64"));
    assert!(lab.wrong(NOTHING.replace("all", "some")).contains("\"some\" is not one of"));
}

#[test]
fn a_hundred_thousand_rules_are_one_error_and_ten_thousand_are_quick() {
    let lab = Lab::new();
    let rules = |n: u32| (0..n).map(|i| format!("\"/srv/{i}\"")).collect::<Vec<_>>().join(",\n");
    let with = |n| NOTHING.replacen("only = []", &format!("only = [{}]", rules(n).replace('\n', "")), 1);
    let err = lab.wrong(with(100_000));
    assert!(
        err.contains("100000 rules; a profile may have at most 16384") && err.contains("directories"),
        "{err}"
    );
    assert!(err.ends_with("bad: 1 error\n"), "{err}");
    lab.profile("many", with(10_000));
    // Seconds of the processor, which are the same on a busy machine: beyond them the kernel ends it.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -t 20; exec \"$0\" profile check many"]).arg(cargo_bin("ringfence"));
    lab.settle(&mut limited);
    let (status, _, err) = said(limited.output().unwrap());
    assert_eq!(status, 0, "{err}");
}

#[test]
fn files_that_others_control_or_that_are_none_are_refused() {
    let lab = Lab::new();
    let file = lab.profile("open", NOTHING);
    assert_eq!(lab.run(&["check", "open"]).0, 0, "the control");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o646)).unwrap();
    let (status, _, err) = lab.run(&["check", "open"]);
    assert!(
        status == 1 && err.contains("can be written by everyone (mode 0646)") && err.contains("chmod o-w"),
        "{err}"
    );

    fs::create_dir(lab.path("etc/profiles/dir.toml")).unwrap();
    assert!(lab.run(&["check", "dir"]).2.contains("is not a regular file"));
    let fifo = lab.path("etc/profiles/fifo.toml");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert!(lab.run(&["check", "fifo"]).2.contains("is not a regular file"));

    let (status, _, err) = lab.run(&["check", "nothere"]);
    assert!(
        status == 1
            && err.contains("no profile named \"nothere\"")
            && err.contains("there are: dir, fifo, open"),
        "{err}"
    );
    assert!(lab.run(&["check", "../open"]).2.contains("cannot be read"));
    assert!(lab.run(&["check", "a b"]).2.contains("is not a profile's name"));
}

#[test]
fn an_unreadable_file_is_said_to_be_one() {
    let lab = Lab::new();
    let file = lab.profile("closed", NOTHING);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root reads everything: ask as somebody else, with a binary that they can reach.
    let binary = lab.path("ringfence");
    // By another process: a child of another test, forked while we write, would keep the copy busy.
    assert!(Command::new("cp").arg(cargo_bin("ringfence")).arg(&binary).status().unwrap().success());
    let mut command = Command::new(binary);
    command.args(["profile", "check", file.to_str().unwrap()]).current_dir("/");
    if fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0) {
        command.uid(65534).gid(65534);
    }
    let (status, _, err) = said(command.output().unwrap());
    assert!(
        status == 1 && err.contains("cannot be read: Permission denied") && err.contains("hint"),
        "{err}"
    );
}

#[test]
fn extends_replaces_key_by_key_and_finds_loops() {
    let lab = Lab::new();
    let base = NOTHING.replacen("only = []", "only = [\"/srv/base\"]", 1);
    lab.profile(
        "base",
        format!("description = \"base\"\nmode = \"audit\"\n{base}[deny]\nfs_read = [\"/srv/base/x\"]\n"),
    );
    lab.profile(
        "child",
        "extends = \"base\"\nmode = \"enforce\"\n[grant]\nfs_write = { only = [\"/srv/child\"] }\n[deny]\nexec = [\"su\"]\n",
    );
    let (status, out, err) = lab.run(&["show", "child", "--json"]);
    assert_eq!(status, 0, "{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&shown["description"], &shown["mode"]), (&"base".into(), &"enforce".into()));
    assert_eq!(shown["grant"]["fs_read"]["only"][0], "/srv/base");
    assert_eq!(shown["grant"]["fs_write"]["only"][0], "/srv/child");
    assert_eq!(shown["sources"].as_array().unwrap().len(), 2);
    assert_eq!(lab.explain(&["child", "read", "/srv/base/x"])["rule"], "deny.fs_read:/srv/base/x");

    lab.profile("a", format!("extends = \"b\"\n{NOTHING}"));
    lab.profile("b", "extends = \"c\"\n");
    lab.profile("c", "extends = \"a\"\n");
    let (status, _, err) = lab.run(&["check", "a"]);
    assert!(
        status == 1 && err.contains("c.toml:1: extends: extends itself: ") && err.contains("->"),
        "{err}"
    );
    symlink("a.toml", lab.path("etc/profiles/a2.toml")).unwrap();
    lab.profile("self", "extends = \"self\"\n");
    assert!(lab.run(&["check", "self"]).2.contains("extends itself"));
    lab.profile("c", "extends = \"a2\"\n");
    assert!(lab.run(&["check", "a"]).2.contains("extends itself"), "another name of the same file");

    lab.profile("orphan", format!("extends = \"gone\"\n{NOTHING}"));
    let (_, _, err) = lab.run(&["check", "orphan"]);
    assert!(err.contains("orphan.toml:1: extends: the profile it extends cannot be loaded"), "{err}");
    assert!(err.contains("gone.toml: cannot be read"), "{err}");
    // What is wrong in a file that is extended is said of that file, beside the child's own mistakes.
    lab.profile("parent", "kernal = 1\n");
    lab.profile("kid", "extends = \"parent\"\nmod = 1\n");
    let (_, _, err) = lab.run(&["check", "kid"]);
    assert!(err.contains("parent.toml:1: kernal") && err.contains("kid.toml:2: mod"), "{err}");
}

#[test]
fn many_missing_paths_are_one_note_unless_all_are_wanted() {
    let lab = Lab::new();
    let check = |paths: usize, options: &[&str]| {
        let paths: Vec<String> = (0..paths).map(|n| format!("\"/nonexistent/{n}\"")).collect();
        lab.profile("p", NOTHING.replacen("only = []", &format!("only = [{}]", paths.join(", ")), 1));
        let (status, out, err) = lab.run(&[&["check", "p"], options].concat());
        assert_eq!(status, 0, "{err}");
        out
    };
    let lines = |text: &str| text.matches("does not exist on this host").count();
    assert_eq!(lines(&check(3, &[])), 3);
    let short = check(4, &[]);
    assert!(lines(&short) == 0 && short.contains("note: 4 of its paths do not exist"), "{short}");
    assert_eq!(lines(&check(4, &["--verbose"])), 4);
    assert_eq!(lines(&check(4, &["--json"])), 4);
}

#[test]
fn a_profile_without_a_grant_grants_nothing_though_it_has_a_model() {
    let lab = Lab::new();
    let agents = lab.path("user/ringfence/agents");
    fs::write(agents.join("bot.toml"), "[llm.claude]\n[mcp.github]\ntools = [\"x\"]\n").unwrap();
    let (status, out, err) = lab.run(&["check", "bot", "--json"]);
    assert_eq!(status, 0, "{err}");
    let checked: Value = serde_json::from_str(&out).unwrap();
    let notices = checked["notices"].to_string();
    assert!(notices.contains("nothing is granted"), "{notices}");
    for (access, target) in
        [("read", "/etc/ssl/private/x"), ("exec", "/bin/sh"), ("write", "/tmp/x"), ("net", "127.0.0.1:80")]
    {
        assert_eq!(lab.explain(&["bot", access, target])["verdict"], "denied", "{access} {target}");
    }
    assert_eq!(lab.explain(&["bot", "write", "/dev/null"])["verdict"], "allowed", "the base");
    // The host's profile of the same name wins.
    lab.profile("bot", NOTHING.replacen("only = []", "only = [\"/srv\"]", 1));
    assert_eq!(lab.explain(&["bot", "read", "/srv/x"])["verdict"], "allowed");
}

#[test]
fn explain_names_the_rule_its_line_and_what_to_change() {
    let lab = Lab::new();
    fs::create_dir(lab.path("real")).unwrap();
    symlink(lab.path("real"), lab.path("alias")).unwrap();
    let root = lab.path("").display().to_string();
    let file = lab.profile(
        "p",
        NOTHING.replacen("only = []", &format!("only = [\"{root}alias\", \"${{WORKDIR}}\"]"), 1)
            + "[deny]\nfs_read = [\"**/secret\", \"**/*.pem\"]\nnet = [\"unix:/srv/x\"]\n",
    );
    let (status, out, _) = lab.run(&["explain", "p", "read", &format!("{root}alias/f")]);
    assert_eq!(status, 0);
    assert!(out.starts_with("allowed: read ") && out.contains(&format!("seen as: {root}real/f")), "{out}");
    assert!(out.contains(&format!("where:   {}:2 (grant.fs_read)", file.display())), "{out}");
    let answer = lab.explain(&["p", "read", "sub/secret"]);
    assert_eq!(
        (&answer["verdict"], &answer["rule"], &answer["line"]),
        (&"denied".into(), &"deny.fs_read:**/secret".into(), &9.into())
    );
    let answer = lab.explain(&["p", "read", "sub/a.pem/x"]);
    assert_eq!(answer["rule"], "deny.fs_read:**/*.pem");
    assert!(answer["change"].as_str().unwrap().contains("add \"**/a.pem\" to grant.fs_read"), "{answer}");
    assert_eq!(
        lab.explain(&["p", "read", "f"])["rule"],
        "fs_read:${WORKDIR}",
        "relative to the current directory"
    );
    let answer = lab.explain(&["p", "net", "10.0.0.1:443"]);
    assert_eq!(answer["rule"], "default");
    assert!(answer["change"].as_str().unwrap().contains("\"10.0.0.1:443\" to grant.net"));
    assert_eq!(lab.explain(&["p", "net", "unix:/srv/x/y"])["rule"], "deny.net:unix:/srv/x");
    assert_eq!(lab.explain(&["p", "net", "unix:@x"])["verdict"], "denied");
    for target in
        ["example.com", "*.example.com:443", "tcp:10.0.0.1:22", "10.0.0.1", "10.0.0.0/8:1", "nonsense:x"]
    {
        assert_eq!(lab.run(&["explain", "p", "net", target]).0, 1, "{target}");
    }
    lab.profile("audit", format!("mode = \"audit\"\n{NOTHING}"));
    assert_eq!(lab.explain(&["audit", "read", "/root/x"])["verdict"], "would_deny");
}

#[test]
fn hosts_are_explained_by_name_and_sets_by_their_own_lines() {
    let lab = Lab::new();
    let net = "net = { only = [\"set:registries\", \"*.example.org:443\", \"tcp:git.example:22\"] }";
    let text = NOTHING.replacen("net = { only = [] }", net, 1) + "[deny]\nnet = [\"no.example.org\"]\n";
    let file = lab.profile("p", text);
    let answer = lab.explain(&["p", "net", "A.example.org:443"]);
    assert_eq!((&answer["verdict"], &answer["seen"]), (&"allowed".into(), &"a.example.org:443".into()));
    assert_eq!((&answer["rule"], &answer["line"]), (&"net:*.example.org:443".into(), &5.into()));
    assert!(answer["client"].as_str().unwrap().contains("TLS"), "{answer}");
    assert_eq!(lab.explain(&["p", "net", "no.example.org:443"])["rule"], "deny.net:no.example.org");
    assert_eq!(lab.explain(&["p", "net", "tcp:git.example:22"])["verdict"], "allowed");
    let answer = lab.explain(&["p", "net", "tcp:a.example.org:443"]);
    assert!(
        answer["change"].as_str().unwrap().contains("\"tcp:a.example.org:443\" to grant.net"),
        "{answer}"
    );
    let answer = lab.explain(&["p", "net", "example.org:443"]);
    assert_eq!((&answer["verdict"], &answer["rule"]), (&"denied".into(), &"default".into()));
    assert!(answer["change"].as_str().unwrap().contains("\"example.org:443\" to grant.net"), "{answer}");
    let answer = lab.explain(&["p", "net", "registry.npmjs.org:443"]);
    assert_eq!(answer["file"], "(built-in)/sets/registries.toml");
    let (status, out, err) = lab.run(&["show", "p"]);
    assert_eq!(status, 0, "{err}");
    assert!(
        out.contains("files.pythonhosted.org port 443") && out.contains("(built-in)/sets/registries.toml:"),
        "{out}"
    );
    assert!(
        out.contains("tcp:git.example port 22") && out.contains(&format!("{}:5)", file.display())),
        "{out}"
    );
    fs::create_dir(lab.path("etc/profiles/sets")).unwrap();
    let set = lab.path("etc/profiles/sets/registries.toml");
    fs::write(&set, "[hosts]\n\"mirror.example:443\" = \"the company's mirror\"\n").unwrap();
    let answer = lab.explain(&["p", "net", "mirror.example:443"]);
    assert_eq!((&answer["file"], &answer["line"]), (&set.display().to_string().into(), &2.into()));
    assert!(lab.run(&["show", "p"]).1.contains(&format!("hosts from   {}", set.display())));
    assert_eq!(lab.run(&["check"]).0, 0, "a set is no profile");
}

#[test]
fn show_prints_rules_with_links_resolved_and_nothing_a_terminal_acts_on() {
    let lab = Lab::new();
    lab.profile(
        "p",
        format!(
            "description = \"red\\u001b[31m\"\n{}",
            NOTHING.replace("exec = { only = []", "exec = { only = [\"/bin/sh\"]")
        ),
    );
    let (status, out, err) = lab.run(&["show", "p"]);
    assert_eq!(status, 0, "{err}");
    assert!(!out.contains('\x1b') && out.contains("red\\u{1b}[31m"), "{out}");
    let sh = fs::canonicalize("/bin/sh").unwrap();
    assert!(out.lines().any(|l| l.contains(sh.to_str().unwrap()) && l.contains("exec:/bin/sh")), "{out}");
    assert!(out.contains("base:map:") && out.contains("protected:/proc/kcore"), "{out}");
}

#[test]
fn the_schema_is_json_and_names_every_key() {
    let lab = Lab::new();
    let (status, out, _) = lab.run(&["schema"]);
    assert_eq!(status, 0);
    let schema: Value = serde_json::from_str(&out).unwrap();
    for key in ["extends", "description", "mode", "match", "grant", "deny", "kernel"] {
        assert!(schema["properties"][key]["description"].is_string(), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn shipped_profiles_allow_and_deny() {
    let lab = Lab::new();
    let cases: [(&str, &str, &str, &str); 49] = [
        ("coder", "write", "src/main.rs", "allowed"),
        ("coder", "read", "src/main.rs", "allowed"),
        ("coder", "read", ".env", "denied"),
        ("coder", "read", ".env.local", "denied"),
        ("coder", "read", "app/.env.production.local", "denied"),
        ("coder", "read", ".env.example", "allowed"),
        ("coder", "write", ".env.example", "allowed"),
        ("coder", "read", "tls/server.pem", "denied"),
        ("coder", "read", "tls/server.key", "denied"),
        ("coder", "read", "AuthKey_1.p8", "denied"),
        ("coder", "read", "app.p12", "denied"),
        ("coder", "read", "app.pfx", "denied"),
        ("coder", "read", "app.ppk", "denied"),
        ("coder", "read", "app.jks", "denied"),
        ("coder", "read", "app.keystore", "denied"),
        ("coder", "read", "backup/id_rsa.bak", "denied"),
        ("coder", "read", "src/key.rs", "allowed"),
        ("coder", "read", ".venv/lib/python3.13/site-packages/certifi/cacert.pem", "allowed"),
        ("coder", "read", "/usr/lib/python3/dist-packages/pip/_vendor/certifi/cacert.pem", "allowed"),
        ("coder", "read", "/etc/ssl/certs/ca-certificates.crt", "allowed"),
        ("coder", "read", "cacert.pem/server.pem", "denied"),
        ("coder", "read", "/root/.ssh/id_ed25519", "denied"),
        ("coder", "write", "/root/.bashrc", "denied"),
        ("coder", "write", "/etc/passwd", "denied"),
        ("coder", "read", "/etc/shadow", "denied"),
        ("coder", "exec", "/usr/bin/git", "allowed"),
        ("coder", "exec", "target/debug/build", "allowed"),
        ("coder", "exec", "nc", "denied"),
        ("coder", "exec", "/usr/bin/ssh", "denied"),
        ("coder", "exec", "/usr/sbin/useradd", "denied"),
        ("coder", "net", "127.0.0.1:80", "denied"),
        ("coder", "net", "unix:/run/docker.sock", "denied"),
        ("coder", "net", "unix:test.sock", "allowed"),
        ("reader", "read", "README.md", "allowed"),
        ("reader", "read", "tls/server.pem", "denied"),
        ("reader", "read", ".env.sample", "allowed"),
        ("reader", "read", "/home/other/README.md", "denied"),
        ("reader", "write", "README.md", "denied"),
        ("reader", "write", "/tmp/x", "denied"),
        ("reader", "exec", "cat", "allowed"),
        ("reader", "exec", "rm", "denied"),
        ("shell", "exec", "bash", "allowed"),
        ("shell", "exec", "ssh", "denied"),
        ("shell", "write", "/tmp/x", "allowed"),
        ("shell", "read", "/etc/hostname", "allowed"),
        ("shell", "read", "/etc/shadow", "denied"),
        ("shell", "read", "/etc/tls/server.key", "denied"),
        ("shell", "read", ".env.sample", "allowed"),
        ("shell", "net", "8.8.8.8:53", "denied"),
    ];
    for (profile, access, target, verdict) in cases {
        let workdir = lab.path("work").display().to_string();
        let target = match target.strip_prefix("unix:") {
            Some(path) if !path.starts_with('/') => format!("unix:{workdir}/{path}"),
            _ => target.to_owned(),
        };
        let answer = lab.explain(&[&shipped(profile), access, &target]);
        assert_eq!(answer["verdict"], verdict, "{profile} {access} {target}: {answer}");
    }
    for name in ["coder", "reader", "shell"] {
        let (status, out, err) = lab.run(&["check", &shipped(name)]);
        assert!(status == 0 && out.starts_with(&format!("{name}: ok")), "{out}{err}");
    }
}
