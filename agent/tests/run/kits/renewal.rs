//! Logins that are over or refused, and are renewed at their vendor's token endpoint. A refresh token is good once there.

mod losses;

use super::*;
use std::os::unix::fs::MetadataExt as _;
use vendor::{TOKENS, Vendor, http, rotating};

const PROFILE: &str = r#"
extends = "fake"
[kit]
credentials = [{ file = "LOGIN", at = "/oauth/access", expires = "/oauth/expires", renew = {
  url = "https://HOST/token", client = "fake-client", at = "/oauth/refresh",
  locks = ["LOCK", "LOCK.old"], write_lock = "LOCK.write", MORE
} }]
"#;

const OVER: &str =
    r#"{ "oauth": {"access":"sk-old", "refresh":"r-0","expires": 1000,"scopes":["a"]}, "other": 1.50 }"#;

/// A login that is not over.
fn valid() -> String {
    OVER.replace("1000", "4000000000000")
}

impl Fake {
    /// An agent whose login is renewed, with `more` in its kit, and that has this login.
    fn renewing(more: &str, login: &str) -> Self {
        let fake = Self::new();
        fake.host.profile("renewing", &fake.renewing_profile("login.json", more));
        fake.login(login);
        fake
    }

    fn renewing_profile(&self, login: &str, more: &str) -> String {
        let path = |name: &str| self.host.path(name).display().to_string();
        PROFILE
            .replace("LOGIN", &path(login))
            .replace("LOCK", &path("agent.lock"))
            .replace("HOST", TOKENS)
            .replace("MORE", more)
    }

    /// A run of it.
    fn run(&self, vendor: &Vendor) -> Command {
        vendor.reached_by(self.command(&["--profile", "renewing", &self.agent()]))
    }

    fn login_file(&self) -> String {
        fs::read_to_string(self.host.path("login.json")).unwrap()
    }

    /// When a login was renewed last.
    fn record(&self) -> PathBuf {
        self.host.path(".ringfence-renewal/attempts.json")
    }

    /// Makes it long ago.
    fn age(&self) {
        let mut attempts: Value = serde_json::from_str(&fs::read_to_string(self.record()).unwrap()).unwrap();
        for attempt in attempts.as_object_mut().unwrap().values_mut() {
            attempt["time"] = 1000.into();
        }
        fs::write(self.record(), attempts.to_string()).unwrap();
    }

    /// Forgets that.
    fn forget(&self) {
        fs::remove_file(self.record()).unwrap();
    }

    /// Nothing is left of what was there for a moment only.
    #[track_caller]
    fn has_nothing_left(&self) {
        let names = self.host.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = names.filter(|name| name.to_string_lossy().contains(['~', '.'])).collect();
        left.sort();
        assert_eq!(left, [".ringfence-renewal", "login.json"]);
    }
}

/// What a run that was refused says. The agent did not run.
#[track_caller]
fn refused(output: &Output) -> String {
    assert_eq!((super::super::status(output), stdout(output).as_str()), (125, ""), "{}", stderr(output));
    stderr(output)
}

#[test]
fn a_login_that_is_over_is_renewed_and_its_file_kept_up() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    let file = fake.host.path("login.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let before = fs::metadata(&file).unwrap();
    let output = fake.run(&vendor).output().unwrap();
    let printed = succeeds(&output);
    assert!(printed.contains("HTTP/1.1 200"), "{printed}");
    assert_eq!(vendor.keys(), ["sk-fresh-1"]);
    let question = vendor.questions.recv_timeout(LIMIT).unwrap();
    assert!(question.starts_with("POST /token HTTP/1.1\r\n"), "{question}");
    let body = "\r\n\r\ngrant_type=refresh_token&refresh_token=r%2D0&client_id=fake%2Dclient";
    assert!(question.ends_with(body), "{question}");
    let text = fake.login_file();
    let (before_time, rest) = text.split_at(text.find("\"expires\": ").unwrap() + "\"expires\": ".len());
    assert_eq!(before_time, r#"{ "oauth": {"access":"sk-fresh-1", "refresh":"r-1","expires": "#);
    let (time, after) = rest.split_once(',').unwrap();
    assert!(time.parse::<u64>().unwrap() > 1_700_000_000_000, "{time}");
    assert_eq!(after, r#""scopes":["a"]}, "other": 1.50 }"#);
    let now = fs::metadata(&file).unwrap();
    let of = |meta: &fs::Metadata| (meta.permissions().mode(), meta.uid(), meta.gid());
    assert_eq!(of(&now), of(&before));
    assert!(stderr(&output).contains("renewing the login in"), "{}", stderr(&output));
    for secret in ["sk-fresh", "sk-old", "r-0", "r-1"] {
        for text in [&printed, &stderr(&output), &fake.logged()] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    fake.has_nothing_left();
    // The next run has it from the file.
    let output = fake.run(&vendor).output().unwrap();
    succeeds(&output);
    assert_eq!((vendor.keys(), vendor.questions()), (vec!["sk-fresh-1".to_owned()], 0));
    assert!(!stderr(&output).contains("renewing"), "{}", stderr(&output));
}

#[test]
fn one_that_the_provider_refuses_is_renewed_while_the_call_waits() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("json = true", &valid()));
    let printed = succeeds(&fake.run(&vendor).output().unwrap());
    assert!(printed.contains("HTTP/1.1 200"), "{printed}");
    assert_eq!(vendor.keys(), ["sk-old", "sk-fresh-1"]);
    let question = vendor.questions.recv_timeout(LIMIT).unwrap();
    let (_, body) = question.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"grant_type": "refresh_token", "refresh_token": "r-0", "client_id": "fake-client"})
    );
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
    fake.has_nothing_left();
}

#[test]
fn a_provider_that_refuses_a_fresh_one_too_costs_one_renewal() {
    let (vendor, fake) = (Vendor::that_takes("none", rotating()), Fake::renewing("", &valid()));
    let ask = String::from_utf8(AGENT.to_vec()).unwrap();
    fake.host.executable("ask", ask.as_bytes());
    let twice = format!("#!/bin/bash\n{0}\n{0}\n", fake.host.path("ask").display());
    fake.host.executable("fake", twice.as_bytes());
    let output = fake.run(&vendor).output().unwrap();
    assert_eq!(succeeds(&output).matches("HTTP/1.1 401").count(), 2, "{}", stdout(&output));
    assert_eq!(vendor.questions(), 1);
    assert_eq!(vendor.keys(), ["sk-old", "sk-fresh-1", "sk-fresh-1"]);
    // The next run knows, too: what was renewed only now is refused for something else.
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), fake.login_file().contains("r-1")), (0, true));
    // The control: later it is asked again.
    fake.forget();
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), fake.login_file().contains("r-2")), (1, true));
}

#[test]
fn runs_at_once_renew_it_once() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    let runs: Vec<_> = (0..3)
        .map(|_| fake.run(&vendor).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for run in runs {
        succeeds(&run.wait_with_output().unwrap());
    }
    assert_eq!((vendor.keys(), vendor.questions()), (vec!["sk-fresh-1".to_owned(); 3], 1));
}

#[test]
fn runs_at_once_renew_it_once_whatever_their_environment_and_by_whatever_name() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    std::os::unix::fs::symlink("login.json", fake.host.path("link")).unwrap();
    // Nor do they wait for an agent that has locks of its own.
    let other = fake.renewing_profile("link", "").replace("agent.lock", "another.lock");
    fake.host.profile("linked", &other);
    let runs: Vec<_> = ["renewing", "linked"]
        .into_iter()
        .enumerate()
        .map(|(number, profile)| {
            let mut run = vendor.reached_by(fake.command(&["--profile", profile, &fake.agent()]));
            run.env("XDG_DATA_HOME", fake.host.path(&format!("data{number}")));
            run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for run in runs {
        succeeds(&run.wait_with_output().unwrap());
    }
    assert_eq!((vendor.keys(), vendor.questions()), (vec!["sk-fresh-1".to_owned(); 2], 1));
    // What was renewed only now is known to both.
    for profile in ["renewing", "linked"] {
        fake.login(&fake.login_file().replace("sk-fresh", "sk-refused"));
        let mut run = vendor.reached_by(fake.command(&["--profile", profile, &fake.agent()]));
        succeeds(&run.env("XDG_DATA_HOME", fake.host.path("more")).output().unwrap());
        assert_eq!(vendor.questions(), 0, "{profile}");
    }
}

#[test]
fn nothing_beside_it_costs_a_fresh_token() {
    for (status, more, refresh) in [
        ("200 OK", r#""refresh_token":"r-1","expires_in":3599.5"#, "r-1"),
        ("200 OK", r#""refresh_token":"r-1""#, "r-1"),
        ("201 Created", r#""refresh_token":"r-1","expires_in":"soon""#, "r-1"),
        ("200 OK", r#""refresh_token":"","expires_in":3600"#, "r-0"),
        ("200 OK", r#""refresh_token":null,"expires_in":-1"#, "r-0"),
    ] {
        let answer = http(status, &format!(r#"{{"access_token":"sk-fresh",{more}}}"#));
        let (vendor, fake) = (Vendor::new(move |_| answer.clone()), Fake::renewing("", OVER));
        let printed = succeeds(&fake.run(&vendor).output().unwrap());
        assert!(printed.contains("HTTP/1.1 200"), "{more}: {printed}");
        let login: Value = serde_json::from_str(&fake.login_file()).unwrap();
        assert_eq!(
            (&login["oauth"]["access"], &login["oauth"]["refresh"]),
            (&"sk-fresh".into(), &refresh.into())
        );
        // A time to come, so that the next run takes it for a good one.
        succeeds(&fake.run(&vendor).output().unwrap());
        assert_eq!((vendor.keys(), vendor.questions()), (vec!["sk-fresh".to_owned(); 2], 1), "{more}");
    }
}

#[test]
fn with_an_address_of_one_s_own_none_is_renewed() {
    let (vendor, (url, _asked)) = (Vendor::new(rotating()), provider_that(|_| false));
    let fake = Fake::renewing("", OVER);
    let run = |words: &[&str]| {
        let agent = fake.agent();
        let words = [&["--profile", "renewing"], words, &[agent.as_str()]].concat();
        vendor.reached_by(fake.command(&words)).output().unwrap()
    };
    let said = refused(&run(&["--base-url", &url]));
    assert!(said.contains("login.json expired"), "{said}");
    fake.login(&valid());
    assert!(succeeds(&run(&["--base-url", &url])).contains("HTTP/1.1 401"));
    assert_eq!((vendor.questions(), fake.login_file()), (0, valid()));
    assert!(succeeds(&run(&[])).contains("HTTP/1.1 200"), "the control");
    assert_eq!(vendor.questions(), 1);
}

#[test]
fn only_a_profile_of_the_host_s_or_the_user_s_says_where_it_is_sent() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    let run = |profile: &str| {
        vendor.reached_by(fake.command(&["--profile", profile, &fake.agent()])).output().unwrap()
    };
    let put = |name: &str, text: &str| {
        let path = fake.host.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path.display().to_string()
    };
    let own = fake.renewing_profile("login.json", "");
    // Of the repository, and of any other place.
    for name in ["work/theirs.toml", "work/agents/theirs.toml", "elsewhere/theirs.toml"] {
        put(
            &format!("{}/fake.toml", name.rsplit_once('/').unwrap().0),
            &fs::read_to_string(fake.host.path("config/profiles/fake.toml")).unwrap(),
        );
        let said = refused(&run(&put(name, &own)));
        assert!(said.contains("theirs.toml:4") && said.contains("renews a login"), "{said}");
    }
    let through =
        put("config/profiles/there.toml", &own.replace("https://tokens.example", "http://127.0.0.1:1"));
    let said = refused(&run(&through));
    assert!(said.contains("a refresh token goes over https only"), "{said}");
    assert_eq!((vendor.questions(), fake.login_file().as_str()), (0, OVER));
    // One of the user's.
    put("user/ringfence/agents/mine.toml", &own);
    succeeds(&run("mine"));
    assert_eq!((vendor.questions(), vendor.keys()), (1, vec!["sk-fresh-1".to_owned()]));
}
