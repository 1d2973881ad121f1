//! A container's process with credentials, which is this very test program: what it is handed, its links, its rules, its ends.

use super::*;
use crate::egress::credentials::{FILE, Handed};
use ringfence_wire::{
    credentials::{
        Certificate, CredentialPlace, CredentialsStart, FromCredentials, HostCredential, Otherwise,
        SecretFor, ToCredentials,
    },
    message::MAX_TRUSTED,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::{io::Seek, sync::Mutex};

/// What the process of the tests is to do.
const ROLE: &str = "RINGFENCE_TEST_CREDENTIALS";

fn sealed(bytes: &[u8]) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = fs::File::from(memory);
    file.write_all(bytes).unwrap();
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, all).unwrap();
    file.into()
}

/// A sequence of 300 bytes, all of them zero.
pub(crate) fn certificate() -> Certificate {
    let text = format!("MIIBLA{}", "A".repeat(400));
    let text = text.get(..406).unwrap().to_owned();
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let pem = format!("-----BEGIN CERTIFICATE-----\n{}==\n-----END CERTIFICATE-----\n", lines.join("\n"));
    serde_json::from_value(pem.into()).unwrap()
}

fn read(memory: OwnedFd) -> String {
    let mut file = fs::File::from(memory);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Not a test: the process. What it is handed, and each link, it writes into files of the directory that it is told.
#[test]
#[ignore = "the process with credentials, which other tests start"]
fn role() {
    let Ok(how) = env::var(ROLE) else { return };
    let (how, dir) = how.split_once(' ').unwrap();
    let note = |name: &str, text: &str| {
        let path = Path::new(dir).join(name);
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, before + text + "\n").unwrap();
    };
    let link = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut conn = Conn::new(link, PATIENCE, MAX_ORDER);
    let (order, key) = conn.receive_with_descriptors::<ToCredentials>().unwrap();
    let ToCredentials::Start(CredentialsStart { hosts, .. }) = order else { panic!("{order:?}") };
    note("pid", &std::process::id().to_string());
    note("key", &key.into_iter().next().map_or_else(|| "none".to_owned(), read));
    for _ in &hosts {
        let (order, secret) = conn.receive_with_descriptors::<ToCredentials>().unwrap();
        let ToCredentials::Secret(of) = order else { panic!("{order:?}") };
        note("secrets", &format!("{of} {}", read(secret.into_iter().next().unwrap())));
    }
    let ready = |conn: &mut Conn, key: OwnedFd| {
        conn.send_with_descriptors(&FromCredentials::Ready { certificate: certificate() }, &[key.as_fd()])
            .unwrap();
    };
    match how {
        "complain" => return conn.send(&FromCredentials::Complaint("too\nshort".into())).unwrap(),
        "keyless" => conn.send(&FromCredentials::Ready { certificate: certificate() }).unwrap(),
        "open" => ready(&mut conn, tempfile::tempfile().unwrap().into()),
        _ => ready(&mut conn, sealed(b"the key")),
    }
    if how == "twice" {
        ready(&mut conn, sealed(b"another"));
    }
    while let Ok((order, beside)) = conn.receive_with_descriptors::<ToCredentials>() {
        match order {
            ToCredentials::Link { id } => {
                let mut link = UnixStream::from(beside.into_iter().next().unwrap());
                link.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut said = [0; 8];
                link.read_exact(&mut said).unwrap();
                note("links", &format!("{id} {}", u64::from_be_bytes(said)));
            }
            ToCredentials::Rules { id, hosts } => {
                let hosts: Vec<_> = hosts.iter().map(|host| host.host.clone()).collect();
                note("rules", &hosts.join(" "));
                if how != "deaf" {
                    conn.send(&FromCredentials::InForce { id }).unwrap();
                }
            }
            ToCredentials::Stop if how == "stubborn" => std::thread::sleep(PATIENCE),
            ToCredentials::Stop => return note("stop", "stopped"),
            ToCredentials::Start(_) | ToCredentials::Secret(_) => panic!("again"),
        }
    }
}

fn host(name: &str) -> HostCredential {
    HostCredential {
        host: name.into(),
        port: 443,
        place: CredentialPlace::Bearer,
        allow: vec!["GET /a".parse().unwrap()],
        otherwise: Otherwise::Refuse,
        cookies: false,
    }
}

struct Scene {
    dir: tempfile::TempDir,
    opener: Opener,
    bundle: Arc<Mutex<Bundle>>,
}

impl Scene {
    fn new(how: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = format!("{how} {}", dir.path().display());
        let spawn = move |_uid| {
            let (ours, theirs) = UnixStream::pair()?;
            let child = Command::new(env::current_exe()?)
                .args([
                    "--exact",
                    "egress::tests::credentials::role",
                    "--ignored",
                    "--nocapture",
                    "--test-threads=1",
                ])
                .env(ROLE, &at)
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .spawn()?;
            Ok(Process::new(child, ours))
        };
        let opener =
            Opener { spawn_credentials: Arc::new(spawn), ..opener(&dir.path().join("auditor"), "serve") };
        let mut handed = Handed::default();
        handed.trusted(vec![sealed(b"host's")], &opener.bounds, 0).unwrap();
        let bundle = opener.bundles.make("0123456789ab", handed.trusted.unwrap()).unwrap();
        Self { dir, opener, bundle: Arc::new(Mutex::new(bundle)) }
    }

    /// A worker and the process beside it, for hosts of which these have a credential.
    fn start(&self, hosts: &[&str]) -> (Service, Result<(), EgressError>) {
        let mut service = service(&self.opener, hosts);
        service.wait_until_ready().unwrap();
        let mut handed = Handed::default();
        for name in hosts {
            let of = SecretFor::from(&host(name));
            handed
                .secret(of, vec![sealed(format!("secret of {name}").as_bytes())], &self.opener.bounds, 0)
                .unwrap();
        }
        let names = Names { credentials: hosts.iter().map(|name| host(name)).collect(), ..names(hosts) };
        let whose = Whose { container: "0123456789ab", profile: "n", names: &names, audit: false };
        let started =
            self.opener.add_credentials(&mut service, whose, handed.secrets, Arc::clone(&self.bundle), 0);
        (service, started)
    }

    fn noted(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn with(names: &Names, hosts: &[&str]) -> Names {
    Names { credentials: hosts.iter().map(|name| host(name)).collect(), ..names.clone() }
}

#[test]
fn it_is_there_linked_and_trusted_before_anybody_is_told_and_is_followed_by_another_with_the_same_key() {
    let scene = Scene::new("serve");
    let (service, started) = scene.start(&["a.test", "b.test"]);
    started.unwrap();
    let bundle = fs::read_to_string(scene.bundle.lock().unwrap().path().join(FILE)).unwrap();
    assert_eq!(bundle, format!("host's\n{}", certificate().as_str()));
    assert!(bundle.len() < MAX_TRUSTED);
    assert_eq!(
        scene.noted("secrets"),
        ["a.test:443 (bearer) secret of a.test", "b.test:443 (bearer) secret of b.test"]
    );
    // The worker of the tests loses the first one.
    wait_for("another link is made", || scene.noted("links") == ["1 1", "2 2"]);
    let of = |service: &Service| service.credentials.clone().unwrap();
    wait_for("nothing is wrong", || of(&service).trouble().is_none());
    of(&service).kill();
    wait_for("another is started and linked", || {
        scene.noted("key") == ["none", "the key"]
            && scene.noted("links").last().is_some_and(|link| link == "3 3")
    });
    assert_eq!(scene.noted("secrets").len(), 4, "with all of them again");
    // Another worker has a link as well.
    service.supervisor.kill();
    wait_for("the next worker is linked", || scene.noted("links").len() > 3);
    let process = pidfd(scene.noted("pid").last().unwrap().parse().unwrap());
    drop(service);
    wait_for("it ends with its container", || !alive(process.as_fd()));
    assert_eq!(scene.noted("stop"), ["stopped"]);
}

#[test]
fn rules_are_told_and_a_credential_that_was_taken_away_and_given_back_is_handed_over_anew() {
    let scene = Scene::new("serve");
    let (service, started) = scene.start(&["a.test", "b.test"]);
    started.unwrap();
    let all = names(&["a.test", "b.test", "c.test"]);
    service.replace(&with(&all, &["a.test", "c.test"]), false);
    // Of the third there is none here.
    wait_for("it is told", || scene.noted("rules") == ["a.test"]);
    let lacks: Vec<_> =
        service.lacks(&with(&all, &["a.test", "c.test"])).iter().map(|of| of.host.clone()).collect();
    assert_eq!(lacks, ["c.test"]);
    let record = service.record(&with(&all, &["a.test", "c.test"]));
    let egress = Egress::Served(service);
    let said = egress.status(Some(&record)).unwrap().error.unwrap_or_default();
    assert!(said.contains("c.test:443") && !said.contains("a.test"), "{said}");
    let Egress::Served(service) = &egress else { panic!("{egress:?}") };
    service.replace(&with(&all, &["a.test", "b.test"]), false);
    wait_for("another is handed both", || scene.noted("secrets").len() == 4);
    // None at all needs no process.
    service.replace(&all, false);
    wait_for("it is told", || scene.noted("rules") == ["a.test", ""]);
}

#[test]
fn one_that_does_not_put_rules_in_force_or_does_not_end_is_killed() {
    for how in ["deaf", "stubborn"] {
        let scene = Scene::new(how);
        let (service, started) = scene.start(&["a.test"]);
        started.unwrap();
        let process = pidfd(scene.noted("pid").last().unwrap().parse().unwrap());
        if how == "deaf" {
            let other = HostCredential { otherwise: Otherwise::Pass, ..host("a.test") };
            let names = Names { credentials: vec![other], ..names(&["a.test"]) };
            service.replace(&names, false);
        } else {
            drop(service);
        }
        wait_for("it is ended", || !alive(process.as_fd()));
    }
}

#[test]
fn rules_of_before_are_nobody_s_when_a_reload_is_answered() {
    for how in ["serve", "deaf"] {
        let scene = Scene::new(how);
        let (service, started) = scene.start(&["a.test"]);
        started.unwrap();
        let first = scene.noted("pid");
        let process = pidfd(first.last().unwrap().parse().unwrap());
        let other = HostCredential { otherwise: Otherwise::Pass, ..host("a.test") };
        service.replace(&Names { credentials: vec![other], ..names(&["a.test"]) }, false);
        // One that says nothing has no time at all; the other one as much as it needs.
        let time = if how == "deaf" { Duration::ZERO } else { PATIENCE };
        service.rules().unwrap().in_force_by(Instant::now() + time);
        if how == "serve" {
            assert_eq!(scene.noted("rules"), ["a.test"]);
            assert!(alive(process.as_fd()), "the control");
        } else {
            wait_for("it is killed", || !alive(process.as_fd()));
            wait_for("another one has them from the start", || scene.noted("pid").len() > first.len());
            let trouble = || service.credentials.as_ref().and_then(|one| one.trouble());
            wait_for("which serves", || trouble().is_none());
            service.rules().unwrap().in_force_by(Instant::now());
        }
    }
}

#[test]
fn what_is_not_as_it_should_be_is_no_start() {
    for (how, why) in [
        ("complain", "too short"),
        ("keyless", "without the key"),
        ("open", "no key that could be kept"),
        ("twice", "ready twice"),
    ] {
        let scene = Scene::new(how);
        let (service, started) = scene.start(&["a.test"]);
        let said = move || match &started {
            Err(error) => error.to_string(),
            Ok(()) => String::new(),
        };
        let credentials = service.credentials.clone().unwrap();
        wait_for(why, || {
            said().contains(why) || credentials.trouble().is_some_and(|trouble| trouble.contains(why))
        });
    }
}
