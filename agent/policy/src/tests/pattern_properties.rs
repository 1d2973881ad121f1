//! Denied patterns, from a profile's text to what is decided: against a matcher of globs that knows nothing of places.

use super::{Lab, toml};
use crate::{
    compiled::{Kind, Place},
    decide::{Decider, Why},
    fixed::Written,
    meet_policies,
};
use proptest::prelude::*;
use ringfence_common::policy::axis::{EXEC, MAP, READ, WRITE};
use std::collections::BTreeSet;

/// Whether a glob's stars can be filled so that it is the text.
fn fits(glob: &[u8], text: &[u8]) -> bool {
    match (glob.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => fits(rest, text),
        (Some((b'*', rest)), Some((_, less))) => fits(rest, text) || fits(glob, less),
        (Some((g, glob)), Some((t, text))) => g == t && fits(glob, text),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// What a deny beside a grant means of a path: by their texts alone.
fn denies(deny: &str, allows: &[String], path: &str) -> bool {
    let Some(glob) = deny.strip_prefix("**/") else {
        return path == deny || path.starts_with(&format!("{deny}/"));
    };
    path.split('/').filter(|component| !component.is_empty()).any(|component| {
        let is_granted = glob.contains('*') && allows.iter().any(|allow| *allow == format!("**/{component}"));
        fits(glob.as_bytes(), component.as_bytes()) && !is_granted
    })
}

fn allows(allow: &str, path: &str) -> bool {
    match allow.strip_prefix("**/") {
        Some(name) => path.split('/').any(|component| component == name),
        None => path == allow || path.starts_with(&format!("{allow}/")),
    }
}

const NAMES: &[&str] = &["a", "ab", "ba", "aba", "a.b", ".a", "b", "a.ba"];

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(NAMES).prop_map(str::to_owned)
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(name(), 1..5).prop_map(|names| format!("/{}", names.join("/")))
}

fn pattern() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", ".", "ab", "a.", ".b", "ba", "aba", "a.ba", "a.bab"]);
    (part, any::<bool>()).prop_map(|(part, begins)| match begins {
        true => format!("**/{part}*"),
        false => format!("**/*{part}"),
    })
}

fn quoted(rules: &[String]) -> String {
    let unique: BTreeSet<_> = rules.iter().collect();
    unique.into_iter().map(|rule| format!("{rule:?}")).collect::<Vec<_>>().join(", ")
}

proptest! {
    #![proptest_config(ringfence_test_support::properties::config(300))]

    #[test]
    fn a_pattern_decides_as_a_glob_does(
        granted in prop::collection::vec(prop_oneof![path(), name().prop_map(|n| format!("**/{n}"))], 0..5),
        denied in prop::collection::vec(prop_oneof![4 => pattern(), 1 => name().prop_map(|n| format!("**/{n}")), 1 => path()], 0..4),
        all in any::<bool>(),
        asked in prop::collection::vec(path(), 1..40),
    ) {
        let lab = Lab::new();
        // A grant that is "all" names nothing.
        let granted = if all { Vec::new() } else { granted };
        let scope = if all { "\"all\"".to_owned() } else { format!("{{ only = [{}] }}", quoted(&granted)) };
        let text = toml(&format!("fs_read = {scope}"), &format!("fs_read = [{}]", quoted(&denied)), "none");
        let policy = lab.compile(&text);
        let decider = Decider::new(&policy);
        for path in asked {
            let expected = (all || granted.iter().any(|rule| allows(rule, &path)))
                && !denied.iter().any(|rule| denies(rule, &granted, &path));
            let decision = decider.path(READ, path.as_bytes());
            prop_assert_eq!(decision.allowed(), expected, "{}", path);
            if decision.why == Why::Denied {
                let rule = &policy.rules[decision.rule.unwrap() as usize];
                prop_assert!(denies(&rule.text, &granted, &path), "{} of {}", rule.id, path);
            }
        }
    }
}

fn policy(granted: &str, denied: &str) -> crate::compiled::CompiledPolicy {
    let lab = Lab::new();
    lab.compile(&toml(granted, denied, "none"))
}

#[test]
fn a_pattern_is_a_tree_on_its_axis_alone() {
    let of = policy(
        "fs_read = \"all\"\nfs_write = \"all\"\nexec = \"all\"",
        "fs_read = [\"**/*.pem\"]\nexec = [\"**/python*\"]",
    );
    let denied = of.places.iter().filter(|rule| rule.deny != 0);
    let places: Vec<_> = denied.map(|rule| (rule.place.clone(), rule.kind, rule.deny)).collect();
    assert_eq!(
        places,
        [
            (Place::Prefix(b"python".to_vec()), Kind::Tree, EXEC | MAP),
            (Place::Suffix(b".pem".to_vec()), Kind::Tree, READ)
        ]
    );
    let decider = Decider::new(&of);
    let denied = |axis, path: &str| !decider.path(axis, path.as_bytes()).allowed();
    assert!(denied(READ, "/x/a.pem") && denied(READ, "/x/.pem/y") && !denied(READ, "/x/a.pem2"));
    assert!(denied(READ, &format!("/{}.pem", "x".repeat(200))) && !denied(WRITE, "/x/a.pem"));
    assert!(
        denied(EXEC, "/usr/bin/python")
            && denied(MAP, "/opt/python3.12/lib")
            && !denied(EXEC, "/bin/xpython")
    );
}

#[test]
fn a_granted_name_lifts_patterns_of_its_own_component_and_axis() {
    let of = policy(
        "fs_read = { only = [\"/srv\", \"**/cacert.pem\", \"**/.env.example\"] }\nfs_write = { only = [\"/srv\"] }",
        "fs_read = [\"**/*.pem\", \"**/.env*\", \"/srv/closed\"]\nfs_write = [\"**/*.pem\"]",
    );
    let decider = Decider::new(&of);
    let reads = |path: &str| decider.path(READ, path.as_bytes()).allowed();
    for path in ["/srv/cacert.pem", "/opt/cacert.pem", "/srv/cacert.pem/x", "/srv/.env.example"] {
        assert!(reads(path), "{path}");
    }
    for path in [
        "/srv/xcacert.pem",
        "/srv/cacert.pem/key.pem",
        "/srv/a.pem/cacert.pem",
        "/srv/closed/cacert.pem",
        "/srv/.env",
        "/srv/.env.example.local",
    ] {
        assert!(!reads(path), "{path}");
    }
    assert!(!decider.path(WRITE, b"/srv/cacert.pem").allowed(), "the name is granted for reading only");
    let named = policy("fs_read = { only = [\"**/a.pem\"] }", "fs_read = [\"**/*.pem\", \"**/a.pem\"]");
    assert!(!Decider::new(&named).path(READ, b"/a.pem").allowed(), "a name that is denied stays denied");
}

#[test]
fn a_nested_grant_lifts_no_pattern_of_the_other() {
    let denies = "fs_read = [\"**/*.pem\"]";
    let broad = policy("fs_read = \"all\"", denies);
    let named = policy("fs_read = { only = [\"**/cacert.pem\"] }", denies);
    let free = policy("fs_read = { only = [\"**/cacert.pem\"] }", "");
    for (one, other) in [(&broad, &named), (&named, &broad), (&broad, &free), (&free, &broad)] {
        let met = meet_policies(one, other);
        let decision = Decider::new(&met).path(READ, b"/srv/cacert.pem");
        assert_eq!(decision.why, Why::Denied);
        assert!(met.rules[decision.rule.unwrap() as usize].id.ends_with("deny.fs_read:**/*.pem"));
    }
    for (one, other) in [(&named, &named), (&named, &free), (&free, &named)] {
        let met = meet_policies(one, other);
        assert!(Decider::new(&met).path(READ, b"/srv/cacert.pem").allowed());
    }
}

#[test]
fn what_could_be_written_remembers_patterns() {
    let of = policy("fs_write = { only = [\"/srv\"] }", "fs_write = [\"**/*.pem\", \"**/id_*\"]");
    let mut written = Written::default();
    written.add(&of);
    let again: Written = serde_json::from_str(&serde_json::to_string(&written).unwrap()).unwrap();
    let could = again.policies();
    let judge = could.judge();
    assert!(judge(b"/srv/a") && !judge(b"/srv/a.pem") && !judge(b"/srv/id_rsa"));
}

#[test]
fn what_is_no_pattern_is_refused_with_its_place_and_what_is_possible() {
    let said = |granted: &str, denied: &str| {
        let errors = Lab::new().load(&toml(granted, denied, "none")).unwrap_err().to_string();
        errors.split_once("p.toml:").unwrap().1.to_owned()
    };
    let long = format!("fs_read = [\"**/*{}\"]", "x".repeat(32));
    let error = said("", &long);
    assert!(error.starts_with("9: deny.fs_read: ") && error.contains("at most 31 bytes"), "{error}");
    for glob in ["**/*.p?m", "**/*a*", "**/a*b", "**/*", "/srv/*.pem", "/srv/**/*.pem"] {
        let error = said("", &format!("fs_write = [{glob:?}]"));
        assert!(
            error.starts_with("9: deny.fs_write: ") && error.contains("`**/NAME*`, `**/*NAME`"),
            "{error}"
        );
    }
    let error = said("", "exec = [\"python*\"]");
    assert!(error.starts_with("9: deny.exec: ") && error.contains("`**/NAME*`"), "{error}");
    for axis in ["fs_read", "fs_write", "exec"] {
        let error = said(&format!("{axis} = {{ only = [\"**/*.pem\"] }}"), "");
        assert!(error.contains(&format!("grant.{axis}: ")), "{error}");
        assert!(error.contains("a pattern can only be denied") && error.contains("`**/NAME`"), "{error}");
    }
    let error = said("", "net = [\"unix:**/*.sock\"]");
    assert!(error.starts_with("9: deny.net: ") && error.contains("fs_read, fs_write and exec"), "{error}");
    let error = said("", "fs_read = [\"**/*.pem\", \"**/*.pem\"]");
    assert!(error.contains("is a duplicate of line"), "{error}");
}
