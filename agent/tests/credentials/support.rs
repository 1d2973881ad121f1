//! The core's side of the process, and the egress worker's.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_credentials::Secret;
use ringfence_wire::{
    conn::Conn,
    credentials::{
        CredentialPlace, CredentialsStart, FromCredentials, FromLink, HostCredential, MAX_ANSWER, MAX_TAKE,
        MAX_TOLD, Otherwise, SecretFor, Take, TakenRefusal, ToCredentials,
    },
    egress::EgressCause,
    frame::read_message,
};
use std::{
    fs::{self, File},
    io::Read,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

pub(crate) use ringfence_test_support::wait::{PATIENCE, eventually};

/// The credential of all tests.
pub(crate) const KEY: &str = "ghp/0123456789+abcdef";
pub(crate) const HOST: &str = "a.example";

/// What is known of a connection that is over.
#[derive(Debug, Clone)]
pub(crate) struct Over {
    pub(crate) id: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) refused: Option<TakenRefusal>,
}

/// See the module.
pub(crate) struct Proxy {
    dir: tempfile::TempDir,
    process: Child,
    pub(crate) core: UnixStream,
    link: Arc<Mutex<UnixStream>>,
    /// What the process said first.
    pub(crate) said: FromCredentials,
    /// The key of its CA.
    pub(crate) kept: OwnedFd,
    /// What it said to the core since.
    pub(crate) heard: Arc<Mutex<Vec<FromCredentials>>>,
    links: Arc<AtomicU64>,
    /// Where a client connects: what comes there is handed over.
    pub(crate) port: u16,
    over: Arc<Mutex<Vec<Over>>>,
}

/// What a process is given beside its rules.
#[derive(Default)]
pub(crate) struct Given {
    /// The key of an earlier one's CA.
    pub(crate) earlier: Option<OwnedFd>,
    /// It is none, and a complaint is due.
    pub(crate) is_bad: bool,
    /// Whose the credential is said to be, if not the host's.
    pub(crate) of: Option<SecretFor>,
}

/// How a credential is put in, and into what.
pub(crate) struct Rules {
    pub(crate) place: CredentialPlace,
    pub(crate) allow: Vec<&'static str>,
    pub(crate) otherwise: Otherwise,
    pub(crate) cookies: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            place: CredentialPlace::Bearer,
            allow: vec!["* /with/**"],
            otherwise: Otherwise::Refuse,
            cookies: false,
        }
    }
}

impl Rules {
    pub(crate) fn at(&self, port: u16) -> HostCredential {
        let allow = self.allow.iter().map(|rule| rule.parse().unwrap()).collect();
        HostCredential {
            host: HOST.into(),
            port,
            place: self.place.clone(),
            allow,
            otherwise: self.otherwise,
            cookies: self.cookies,
        }
    }
}

impl Proxy {
    /// One for the host, whose server is at a port of loopback, and which trusts that root.
    pub(crate) fn start(rules: &Rules, server: u16, root: &str) -> Self {
        Self::start_with(rules, server, root, KEY).unwrap_or_else(|(why, _)| panic!("{why:?}"))
    }

    /// The same, with another credential, which it may not take: what it says then.
    pub(crate) fn start_with(
        rules: &Rules,
        server: u16,
        root: &str,
        key: &str,
    ) -> Result<Self, (FromCredentials, ExitStatus)> {
        Self::start_after(rules, server, root, key, Given::default())
    }

    /// The same, as the next process of a container, or with what no core gives.
    pub(crate) fn start_after(
        rules: &Rules,
        server: u16,
        root: &str,
        key: &str,
        given: Given,
    ) -> Result<Self, (FromCredentials, ExitStatus)> {
        let dir = tempfile::tempdir().unwrap();
        let roots = dir.path().join("roots.pem");
        fs::write(&roots, root).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (core, theirs) = UnixStream::pair().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .arg("egress-credentials")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("stderr")).unwrap())
            .env_clear()
            .env("RUST_LOG", "info")
            .env("SSL_CERT_FILE", roots)
            .spawn()
            .unwrap();
        let mut conn = Conn::new(core.try_clone().unwrap(), PATIENCE, MAX_ANSWER);
        let start = CredentialsStart {
            container: "0123456789ab".into(),
            profile: "tested".into(),
            hosts: vec![rules.at(port)],
        };
        let of = given.of.unwrap_or_else(|| SecretFor::from(&start.hosts[0]));
        let earlier: Vec<_> = given.earlier.iter().map(AsFd::as_fd).collect();
        conn.send_with_descriptors(&ToCredentials::Start(start), &earlier).unwrap();
        let secret = Secret::from(key.to_owned()).pipe().unwrap();
        conn.send_with_descriptors(&ToCredentials::Secret(of), &[secret.as_fd()]).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (said, kept) = loop {
            let (said, mut beside) = conn.receive_with_descriptors::<FromCredentials>().unwrap();
            match (&said, beside.pop(), beside.is_empty()) {
                (FromCredentials::Ready { .. }, Some(kept), true) => break (said, kept),
                (FromCredentials::Complaint(_), None, true) if given.is_bad => {
                    heard.lock().unwrap().push(said)
                }
                (FromCredentials::Complaint(_), None, true) => return Err((said, process.wait().unwrap())),
                other => panic!("{other:?}"),
            }
        };
        let (hears, all) = (core.try_clone().unwrap(), Arc::clone(&heard));
        thread::spawn(move || {
            let mut hears = hears;
            while let Ok(said) = read_message(&mut hears, MAX_ANSWER) {
                all.lock().unwrap().push(said);
            }
        });
        let (over, links) = (Arc::default(), Arc::new(AtomicU64::new(0)));
        let link = Arc::new(Mutex::new(linked(&core, &over, &links)));
        hand_over(listener, server, Arc::clone(&link));
        Ok(Self { dir, process, core, link, said, kept, heard, links, port, over })
    }

    /// The container's CA, in a file.
    pub(crate) fn authority(&self) -> PathBuf {
        let FromCredentials::Ready { certificate } = &self.said else { panic!("{:?}", self.said) };
        let path = self.dir.path().join("ca.pem");
        fs::write(&path, certificate.as_str()).unwrap();
        path
    }

    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(crate) fn order(&self, order: &ToCredentials) {
        Conn::new(self.core.try_clone().unwrap(), PATIENCE, MAX_ANSWER).send(order).unwrap();
    }

    /// Another egress worker in the place of the one of before.
    pub(crate) fn relink(&self) {
        let link = linked(&self.core, &self.over, &self.links);
        *self.link.lock().unwrap() = link;
    }

    /// The egress worker's end.
    pub(crate) fn link(&self) -> UnixStream {
        self.link.lock().unwrap().try_clone().unwrap()
    }

    /// `curl` that trusts the container's CA: what it prints.
    pub(crate) fn curl(&self, target: &str, arguments: &[&str]) -> (String, i32) {
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "60", "--noproxy", "*"])
            .args(["--resolve", &format!("{HOST}:{}:127.0.0.1", self.port)])
            .args(arguments)
            .arg(format!("https://{HOST}:{}{target}", self.port))
            .env("CURL_CA_BUNDLE", self.authority())
            .output()
            .unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (said, output.status.code().unwrap())
    }

    /// All connections that are over.
    pub(crate) fn over(&self) -> Vec<Over> {
        self.over.lock().unwrap().clone()
    }

    /// Waits for a connection that was refused so: the sentence.
    pub(crate) fn refused(&self, cause: EgressCause) -> String {
        eventually(&format!("{cause:?}"), || {
            let refusals = self.over().into_iter().filter_map(|over| over.refused);
            refusals.filter(|refused| refused.cause == cause).map(|refused| refused.reason).next()
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let process = &mut self.process;
        eventually("the process ends", || process.try_wait().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("it said: {}", fs::read_to_string(self.dir.path().join("stderr")).unwrap());
            eprintln!("what is over: {:#?}", self.over.lock().unwrap());
        }
    }
}

fn linked(core: &UnixStream, over: &Arc<Mutex<Vec<Over>>>, links: &AtomicU64) -> UnixStream {
    let id = links.fetch_add(1, Ordering::SeqCst) + 1;
    let (link, theirs) = UnixStream::pair().unwrap();
    Conn::new(core.try_clone().unwrap(), PATIENCE, MAX_ANSWER)
        .send_with_descriptors(&ToCredentials::Link { id }, &[theirs.as_fd()])
        .unwrap();
    let (mut hears, over) = (link.try_clone().unwrap(), Arc::clone(over));
    thread::spawn(move || {
        while let Ok(FromLink::Over { id, sent, received, refused }) = read_message(&mut hears, MAX_TOLD) {
            over.lock().unwrap().push(Over { id, sent, received, refused });
        }
    });
    link
}

/// What an egress worker does: takes some of what a client says, dials the server, hands both over.
fn hand_over(listener: TcpListener, server: u16, link: Arc<Mutex<UnixStream>>) {
    static IDS: AtomicU64 = AtomicU64::new(1);
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), link) = (client, Arc::clone(&link)) else { return };
            thread::spawn(move || {
                let mut said = vec![0; 100];
                let count = client.read(&mut said).unwrap();
                let take = Take {
                    id: IDS.fetch_add(1, Ordering::SeqCst),
                    host: HOST.into(),
                    port,
                    said: STANDARD.encode(&said[..count]),
                };
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let link = link.lock().unwrap();
                let sent = Conn::new(link.try_clone().unwrap(), PATIENCE, MAX_TAKE)
                    .send_with_descriptors(&take, &[client.as_fd(), server.as_fd()]);
                if let Err(error) = sent {
                    eprintln!("it takes no connection: {error}");
                }
            });
        }
    });
}
