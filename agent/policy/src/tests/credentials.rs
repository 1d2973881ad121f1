//! `[net.credentials]`: from a profile's text to what is put into requests, and everything that is refused.

use super::Lab;
use crate::decide::Decider;
use crate::*;
use ringfence_common::policy::axis::READ;
use ringfence_credentials::Source;
use ringfence_wire::credentials::{CredentialPlace, Otherwise};
use std::{fs, path::Path};

fn text(granted: &[&str], keys: &str) -> String {
    super::names::net(granted, &[]) + keys
}

fn errors(granted: &[&str], keys: &str) -> String {
    let loaded = Lab::new().load(&text(granted, keys));
    loaded.map(|profile| format!("{:?}", profile.credentials)).unwrap_err().to_string()
}

#[test]
fn a_table_says_what_is_put_where_into_which_requests() {
    let keys = concat!(
        "[net.credentials.\"API.Example.org\"]\n",
        "token_env = \"TOKEN\"\nallow = [\"GET /repos/**\", \"* /x?y=z\"]\n",
        "[net.credentials.\"git.example.org:8443\"]\n",
        "token_file = \"/etc/token\"\nuser = \"x-access-token\"\nallow = [\"POST /a\"]\notherwise = \"pass\"\n",
        "[net.credentials.\"lab.example.org\"]\n",
        "token_command = [\"pass\", \"lab\"]\nheader = \"PRIVATE-TOKEN\"\nallow = [\"* /**\"]\n",
    );
    let profile = Lab::new().load(&text(&["*.example.org"], keys)).unwrap_or_else(|e| panic!("{e}"));
    let mut found: Vec<_> = profile
        .credentials
        .iter()
        .map(|ToolCredential { rules, source, .. }| {
            let allow: Vec<String> = rules.allow.iter().map(ToString::to_string).collect();
            (
                rules.host.as_str(),
                rules.port,
                rules.place.clone(),
                allow.join(", "),
                rules.otherwise,
                source.clone(),
            )
        })
        .collect();
    found.sort_by_key(|found| found.0.to_owned());
    let (basic, header) = (
        CredentialPlace::basic("x-access-token").unwrap(),
        CredentialPlace::header("private-token").unwrap(),
    );
    assert_eq!(
        found,
        [
            (
                "api.example.org",
                443,
                CredentialPlace::Bearer,
                "GET /repos/**, * /x?y=z".to_owned(),
                Otherwise::Refuse,
                Source::Env("TOKEN".into())
            ),
            (
                "git.example.org",
                8443,
                basic,
                "POST /a".to_owned(),
                Otherwise::Pass,
                Source::File("/etc/token".into())
            ),
            (
                "lab.example.org",
                443,
                header,
                "* /**".to_owned(),
                Otherwise::Refuse,
                Source::Command(vec!["pass".into(), "lab".into()])
            ),
        ]
    );
}

#[test]
fn cookies_pass_only_where_the_table_says_so() {
    let of = |more: &str| {
        let keys = format!("[net.credentials.\"a.org\"]\ntoken_env = \"A\"\nallow = [\"GET /a\"]\n{more}");
        let profile = Lab::new().load(&text(&["a.org"], &keys)).unwrap_or_else(|e| panic!("{e}"));
        profile.credentials[0].rules.cookies
    };
    assert!(!of("") && !of("cookies = false\n") && of("cookies = true\n"));
}

#[test]
fn tables_are_inherited_as_a_whole() {
    let lab = Lab::new();
    let one = "[net.credentials.\"a.org\"]\ntoken_env = \"A\"\nallow = [\"GET /a\"]\n";
    let base = lab.root().join("base.toml");
    fs::write(&base, text(&["a.org", "b.org"], one)).unwrap();
    let hosts = |keys: &str| {
        let profile = lab.load(&format!("extends = {base:?}\n{keys}")).unwrap_or_else(|e| panic!("{e}"));
        profile.credentials.into_iter().map(|one| one.rules.host).collect::<Vec<_>>()
    };
    assert_eq!(hosts("[net]\nech = true\n"), ["a.org"]);
    assert_eq!(hosts(&one.replace("a.org", "b.org")), ["b.org"]);
    let narrower = format!("extends = {base:?}\n[grant]\nnet = {{ only = [\"b.org\"] }}\n");
    let refused = lab.load(&narrower).unwrap_err().to_string();
    assert!(refused.contains("`grant.net` does not grant a.org:443"), "{refused}");
}

#[test]
fn what_could_not_be_held_is_refused_with_its_line() {
    let of = |host: &str, keys: &str| format!("[net.credentials.\"{host}\"]\n{keys}");
    const FINE: &str = "token_env = \"A\"\nallow = [\"GET /a\"]\n";
    assert!(Lab::new().load(&text(&["a.org:443"], &of("a.org", FINE))).is_ok(), "the control");
    for (granted, keys, said) in [
        (["a.org:80"], of("a.org", FINE), "does not grant a.org:443"),
        (["a.org:443"], of("a.org:8443", FINE), "does not grant a.org:8443"),
        (["*.b.org"], of("b.org", FINE), "does not grant b.org:443"),
        (["tcp:a.org:443"], of("a.org", FINE), "grants a.org:443 as `tcp:`"),
        (["*.a.org"], of("*.a.org", FINE), "is not one host and a port"),
        (["10.0.0.1"], of("10.0.0.1", FINE), "is not one host and a port"),
        (["a.org"], of("tcp:a.org:22", FINE), "is not one host and a port"),
        (["a.org"], of("a.org", FINE) + &of("A.ORG:443", FINE), "is the host and port of line"),
        (["a.org\", \"192.0.2.0/24"], of("a.org", FINE), "grants the addresses \"192.0.2.0/24\" at port 443"),
        (["a.org\", \"[2001:db8::1]:443"], of("a.org", FINE), "grants the addresses"),
        (["a.org:8443\", \"0.0.0.0/0:8443"], of("a.org:8443", FINE), "at port 8443: if a.org is among them"),
        (["a.org\", \"126.0.0.0/7"], of("a.org", FINE), "grants the addresses"),
        (["a.org"], of("a.org", "allow = [\"GET /a\"]\n"), "has no source for its credential"),
        (["a.org"], of("a.org", "token_env = \"A\"\n"), "so that no request would have the credential"),
        (
            ["a.org"],
            of("a.org", "token_env = \"A\"\nallow = []\n"),
            "so that no request would have the credential",
        ),
        (["a.org"], of("a.org", "token_env = \"A\"\nallow = [\"get /a\"]\n"), "\"get /a\" is not a rule"),
        (["a.org"], of("a.org", "token_env = \"A\"\nallow = [\"GET /a/../b\"]\n"), "is not a rule"),
        (["a.org"], of("a.org", "token_env = \"A\"\nallow = [\"TRACE /\"]\n"), "TRACE is never let through"),
        (["a.org"], of("a.org", "token = \"secret-secret\"\nallow = [\"GET /a\"]\n"), "unknown key"),
        (["a.org"], of("a.org", &format!("token_file = \"/t\"\n{FINE}")), "a credential has one source"),
        (["a.org"], of("a.org", &format!("user = \"a:b\"\n{FINE}")), "is not a user"),
        (["a.org"], of("a.org", &format!("header = \"Host\"\n{FINE}")), "is not a header"),
        (
            ["a.org"],
            of("a.org", &format!("user = \"u\"\nheader = \"X-T\"\n{FINE}")),
            "a credential has one place",
        ),
        (["a.org"], of("a.org", &format!("otherwise = \"ask\"\n{FINE}")), "not one of refuse, pass"),
        (
            ["a.org"],
            format!("[net]\nmax_upload = \"1MB\"\n{}", of("a.org", FINE)),
            "`max_upload` does not count",
        ),
    ] {
        let errors = errors(&granted, &keys);
        assert!(errors.contains(said) && errors.contains("p.toml:"), "{keys}: {errors}");
        assert!(!errors.contains("secret-secret"), "{errors}");
    }
    for beside in [
        "192.0.2.0/24:80",
        "[2001:db8::1]:8443",
        "127.0.0.1",
        "127.0.0.0/8:443",
        "[::1]",
        "unix:/run/x",
        "*.b.org",
    ] {
        let loaded = Lab::new().load(&text(&["a.org", beside], &of("a.org", FINE)));
        assert!(loaded.is_ok(), "the control: {beside}: {loaded:?}");
    }
    let all = super::toml("net = \"all\"", "", "none") + &of("a.org", FINE);
    let errors = Lab::new().load(&all).unwrap_err().to_string();
    assert!(errors.contains("net = \"all\" grants every address"), "{errors}");
}

#[test]
fn the_file_of_a_credential_is_closed_whatever_is_granted() {
    let lab = Lab::new();
    let root = lab.root();
    for dir in ["home/secrets", "home/work", "elsewhere"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::write(root.join("elsewhere/token"), "x").unwrap();
    std::os::unix::fs::symlink("/elsewhere/token", root.join("home/secrets/token")).unwrap();
    let grant = |write: &str| {
        format!(
            "[grant]\nfs_read = {{ only = [\"/home\", \"/elsewhere\"] }}\nfs_write = {{ only = [\"{write}\"] }}\n\
             exec = {{ only = [] }}\nnet = {{ only = [\"a.org\"] }}\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n"
        )
    };
    let keys = "[net.credentials.\"a.org\"]\ntoken_file = \"~/secrets/token\"\nallow = [\"GET /a\"]\n";
    let load = |write: &str| {
        let profile = lab.load(&(grant(write) + keys)).unwrap_or_else(|e| panic!("{e}"));
        profile.with_tokens_of(Some(Path::new("/home")))
    };
    let context = CompileContext::new(&root, None);
    let policy = load("/home/work").compile(&context).unwrap_or_else(|e| panic!("{e}"));
    let decider = Decider::new(&policy);
    for path in ["/home/secrets/token", "/elsewhere/token"] {
        assert!(!decider.path(READ, path.as_bytes()).allowed(), "{path}");
    }
    assert!(decider.path(READ, b"/home/secrets/other").allowed(), "the control");
    let unwritten = |write: &str| load(write).require_closed_credentials(&context, &|_| None);
    assert!(unwritten("/home/work").is_ok(), "the control");
    for write in ["/home/secrets", "/home", "/elsewhere/token", "/elsewhere"] {
        let error = unwritten(write).unwrap_err().to_string();
        assert!(error.contains("it could say what the credential is"), "{write}: {error}");
    }
    // Nobody's home: nothing is closed by a name that means something else, and nothing is read either.
    let of_nobody = load("/home/work").with_tokens_of(None);
    assert_eq!(of_nobody.token_files().count(), 0);
    assert_eq!(of_nobody.credentials[0].source_of(None), None);
}

#[test]
fn a_profile_that_came_with_the_work_has_no_say_about_credentials() {
    let lab = Lab::new();
    let keys =
        "[net.credentials.\"a.org\"]\ntoken_command = [\"cat\", \"/etc/hostname\"]\nallow = [\"GET /a\"]\n";
    let profile = lab.load(&text(&["a.org"], keys)).unwrap_or_else(|e| panic!("{e}"));
    let of = |system: &Path| Dirs { system: system.to_owned(), user: None };
    let dir = profile.file.parent().unwrap().to_owned();
    let nowhere = Path::new("/nowhere");
    let error = profile.require_own_credentials(&of(nowhere), nowhere).unwrap_err().to_string();
    assert!(error.contains("p.toml is not") && error.contains("p.toml:"), "{error}");
    let users = Dirs { system: nowhere.to_owned(), user: Some(dir.clone()) };
    assert!(profile.require_own_credentials(&users, &dir).is_err(), "the agent works there");
    assert!(profile.require_own_credentials(&users, nowhere).is_ok(), "the control");
    let without = lab.load(&text(&["a.org"], "")).unwrap_or_else(|e| panic!("{e}"));
    assert!(without.require_own_credentials(&of(nowhere), nowhere).is_ok());
}

#[test]
fn what_is_shown_of_a_credential_is_where_it_comes_from() {
    let lab = Lab::new();
    for (token, shown) in [
        ("token_env = \"GITHUB_TOKEN\"", "the variable GITHUB_TOKEN"),
        ("token_file = \"~/t\"", "the file ~/t"),
        ("token_credential = \"gh\"", "the systemd credential gh"),
        ("token_command = [\"pass\", \"secret-argument\"]", "the command pass"),
    ] {
        let keys = format!("[net.credentials.\"a.org\"]\n{token}\nallow = [\"GET /a\"]\n");
        let profile = lab.load(&text(&["a.org"], &keys)).unwrap_or_else(|e| panic!("{e}"));
        let root = lab.root();
        let policy = profile.compile(&CompileContext::new(&root, None)).unwrap_or_else(|e| panic!("{e}"));
        let text = show::text(&profile, &policy, &[]);
        let json = show::json(&profile, &policy, None, &[]).unwrap();
        for said in [text, json] {
            assert!(said.contains(shown), "{shown}: {said}");
            assert!(!said.contains("secret-argument"), "{said}");
        }
    }
}

#[test]
fn inside_another_container_no_host_of_either_s_credentials_passes_by_itself() {
    use ringfence_wire::credentials::HostCredential;
    let of = |host: &str, port, rule: &str, otherwise| HostCredential {
        host: host.into(),
        port,
        place: CredentialPlace::Bearer,
        allow: vec![rule.parse().unwrap()],
        otherwise,
        cookies: false,
    };
    let a = of("a.org", 443, "GET /a", Otherwise::Refuse);
    let b = of("b.org", 443, "GET /b", Otherwise::Pass);
    let other = of("a.org", 443, "POST /a", Otherwise::Pass);
    let elsewhere = of("a.org", 8443, "GET /a", Otherwise::Refuse);
    let meet = |inner: &[&HostCredential], outer: &[&HostCredential]| {
        let all = |of: &[&HostCredential]| of.iter().copied().cloned().collect::<Vec<_>>();
        crate::names::meet_credentials(&all(inner), &all(outer))
    };
    assert_eq!(meet(&[], &[&a]), std::slice::from_ref(&a), "the outer one's are not lost");
    assert_eq!(meet(&[&a], &[&b]), [a.clone(), b.clone()]);
    assert_eq!(meet(&[&a], &[&a, &elsewhere]), [a.clone(), elsewhere]);
    let neither = HostCredential { allow: Vec::new(), ..a.clone() };
    assert_eq!(meet(&[&a], &[&other]), std::slice::from_ref(&neither), "no request is both's");
    assert_eq!(meet(&[&other], &[&a]), [neither], "nor passes");
}
