//! Sets of hosts: those that ship, a host's own, and what stands beside a profile.

use super::{Lab, names::net, toml};
use crate::{
    decide::Decider,
    problem::{Problem, Wrong},
    *,
};
use ringfence_common::policy::axis::WRITE;
use ringfence_wire::egress::MAX_EXACT_NAMES;
use std::{fs, os::unix::ffi::OsStrExt};

#[test]
fn a_set_stands_for_its_hosts_each_with_its_own_line() {
    let lab = Lab::new();
    let profile = lab.load(&net(&["set:registries", "set:git-hosts", "pypi.org:443", "own.example"], &[]));
    let profile = profile.unwrap_or_else(|e| panic!("{e}"));
    let rules = profile.rules.net.listed();
    let of = |text: &str| rules.iter().filter(|rule| rule.text == text).collect::<Vec<_>>();
    let npm = of("registry.npmjs.org:443");
    assert_eq!((npm.len(), of("pypi.org:443").len(), of("own.example").len()), (1, 1, 1));
    assert_eq!(&*npm[0].file, Path::new("(built-in)/sets/registries.toml"));
    assert_eq!(of("pypi.org:443")[0].file.file_name().unwrap(), "p.toml", "what is written by itself stays");
    let text = include_str!("../../../../profiles/sets/registries.toml");
    let line = text.lines().nth(npm[0].line as usize - 1).unwrap();
    assert!(line.starts_with("\"registry.npmjs.org:443\""), "{line}");
    let (policy, _) = lab.compile_in(&profile, None).unwrap();
    assert!(policy.names.exact().len() <= MAX_EXACT_NAMES, "{}", policy.names.exact().len());
    assert_eq!(profile.sources.len(), 1, "no file but the profile");
    let grant = profile.grant(None);
    assert!(grant.net.contains(&"files.pythonhosted.org:443".parse().unwrap()));
}

#[test]
fn the_sets_that_ship_say_why_each_host_is_there() {
    for name in ["registries", "git-hosts"] {
        let text = fs::read_to_string(format!("../../profiles/sets/{name}.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let hosts = table["hosts"].as_table().unwrap();
        assert!(hosts.len() >= 10 && table["description"].is_str(), "{name}");
        for (host, reason) in hosts {
            let entry: ringfence_grant::NetEntry = host.parse().unwrap_or_else(|e| panic!("{host}: {e}"));
            assert_eq!(entry.to_string(), *host, "in the spelling that is stored");
            assert!(
                matches!(entry, ringfence_grant::NetEntry::Host { port: Some(_), .. }),
                "{host} has no port"
            );
            assert!(reason.as_str().is_some_and(|why| why.len() > 8), "{host}: {reason}");
        }
    }
}

#[test]
fn a_set_of_ones_own_is_beside_the_profile_and_part_of_its_sources() {
    let lab = Lab::new();
    let sets = lab.root().parent().unwrap().join("sets");
    fs::create_dir(&sets).unwrap();
    let write = |name: &str, text: &str| fs::write(sets.join(name), text).unwrap();
    write(
        "mine.toml",
        "description = \"x\"\n[hosts]\n\"b.example\" = \"second\"\n\"*.a.example:443\" = \"first\"\n",
    );
    let profile = lab.load(&net(&["set:mine"], &["set:mine"])).unwrap_or_else(|e| panic!("{e}"));
    let texts: Vec<&str> = profile.rules.net.listed().iter().map(|rule| rule.text.as_str()).collect();
    assert_eq!(texts, ["b.example", "*.a.example:443"], "in the order of the file");
    assert_eq!(profile.denials.net.len(), 2);
    assert_eq!(profile.denials.net[0].id(), "deny.net:b.example");
    let files: Vec<_> =
        profile.sources.iter().filter_map(|source| source.file.file_name()?.to_str()).collect();
    assert_eq!(files, ["p.toml", "mine.toml"]);
    for (text, expected) in [
        ("[hosts]\n\"10.0.0.1\" = \"an address\"\n", "is no host name"),
        ("[hosts]\n\"unix:/x\" = \"a socket\"\n", "is no host name"),
        ("[hosts]\n\"set:mine\" = \"another set\"\n", "`set:NAME` is for `net` of a profile"),
        ("[hosts]\n\"a.example\" = \"\"\n", "must not be empty"),
        ("[hosts]\n\"a.example\" = 1\n", "expected a string"),
        ("[hosts]\n\"*.com\" = \"too much\"\n", "public suffix"),
        ("[hosts]\n", "has no `hosts`"),
        ("description = \"x\"\n", "has no `hosts`"),
        ("host = 1\n", "unknown key"),
        ("[hosts\n", "bad.toml:1"),
        ("", "is empty"),
    ] {
        write("bad.toml", text);
        let errors = lab.load(&net(&["set:bad"], &[])).unwrap_err();
        assert!(errors.to_string().contains(expected), "{text}: {errors}");
        assert!(errors.to_string().contains("sets/bad.toml"), "{text}: {errors}");
    }
    fs::remove_file(sets.join("bad.toml")).unwrap();
    let errors = lab.load(&net(&["set:bad"], &[])).unwrap_err();
    assert!(matches!(errors.0[..], [Problem { what: Wrong::NoSet { .. }, .. }]), "{errors}");
}

/// What an agent puts beside a profile that is not protected, because it was not there before, changes nothing.
#[test]
fn a_file_beside_the_profile_takes_no_shipped_set_s_place() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let file = dir.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    let dirs = Dirs { system: dir.path().join("installed"), user: None };
    let hosts = || {
        let file = dir.path().join("own/p.toml");
        let profile = load(file.to_str().unwrap(), &dirs).unwrap_or_else(|e| panic!("{e}"));
        profile.rules.net.listed().iter().map(|rule| rule.text.clone()).collect::<Vec<_>>()
    };
    write("own/p.toml", &net(&["set:registries"], &[]));
    let shipped = hosts();
    assert!(shipped.contains(&"registry.npmjs.org:443".to_owned()), "{shipped:?}");
    write("own/sets/registries.toml", "[hosts]\n\"evil.example:443\" = \"an agent's own\"\n");
    assert_eq!(hosts(), shipped);
    write("installed/sets/registries.toml", "[hosts]\n\"mirror.example:443\" = \"the company's mirror\"\n");
    assert_eq!(hosts(), ["mirror.example:443"], "the host's own file does");
}

/// A set's file cannot be written, nor another put in its place by way of its directory, whatever is granted there.
#[test]
fn a_set_beside_the_profile_is_protected_as_the_profile_is() {
    let dir = tempfile::tempdir().unwrap();
    let sets = dir.path().join("sets");
    fs::create_dir(&sets).unwrap();
    fs::write(sets.join("mine.toml"), "[hosts]\n\"b.example\" = \"a test\"\n").unwrap();
    let file = dir.path().join("p.toml");
    let grant = format!("net = {{ only = [\"set:mine\"] }}\nfs_write = {{ only = [{:?}] }}", dir.path());
    fs::write(&file, toml(&grant, "", "none")).unwrap();
    let profile = load(file.to_str().unwrap(), &Dirs::system()).unwrap_or_else(|e| panic!("{e}"));
    let context = CompileContext::new(std::path::Path::new("/"), None);
    let policy = profile.compile(&context).unwrap_or_else(|e| panic!("{e}"));
    let decider = Decider::new(&policy);
    let writable = |path: &std::path::Path| decider.path(WRITE, path.as_os_str().as_bytes()).allowed();
    assert!(writable(&dir.path().join("other")) && writable(&sets.join("other.toml")), "the control");
    assert!(!writable(&sets.join("mine.toml")) && !writable(&file));
}
