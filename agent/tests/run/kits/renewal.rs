//! Logins that are over or refused, and are renewed at their provider's token endpoint.

use super::*;

const PROFILE: &str = r#"
extends = "fake"
[kit]
credentials = [{ file = "LOGIN", at = "/oauth/access", expires = "/oauth/expires", renew = { url = "URL/token", client = "fake-client", at = "/oauth/refresh" } }]
"#;

/// A token endpoint that answers each question so. Its thread ends with the test process.
fn token_endpoint(status: &'static str, answer: &'static str) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap() > 2 {}
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let _ = asked.send(format!("{head}{}", String::from_utf8(body).unwrap()));
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            let _ = reader.get_mut().write_all(format!("{head}{answer}").as_bytes());
        }
    });
    (address, received)
}

impl Fake {
    /// An agent whose login is renewed there, and the words that run it.
    fn renewing(endpoint: &str, more: &str) -> Self {
        let fake = Self::new();
        let login = fake.host.path("login.json").display().to_string();
        let profile = PROFILE
            .replace("LOGIN", &login)
            .replace("URL", endpoint)
            .replace("\" } }", &format!("\"{more} }} }}"));
        fake.host.profile("renewing", &profile);
        fake
    }

    fn run(&self, provider: &str) -> Command {
        self.command(&["--profile", "renewing", "--base-url", provider, &self.agent()])
    }

    fn login_file(&self) -> String {
        fs::read_to_string(self.host.path("login.json")).unwrap()
    }
}

const ANSWER: &str =
    r#"{"access_token":"sk-fresh","refresh_token":"r-next","expires_in":28800,"token_type":"Bearer"}"#;
const OVER: &str =
    r#"{ "oauth": {"access":"sk-old", "refresh":"r-first","expires": 1000,"scopes":["a"]}, "other": 1.50 }"#;

fn key(asked: &Asked) -> &str {
    asked.head.lines().find_map(|line| line.strip_prefix("x-api-key: ")).unwrap_or_default()
}

#[test]
fn a_login_that_is_over_is_renewed_and_its_file_kept_up() {
    let ((endpoint, questions), (url, asked)) = (token_endpoint("200 OK", ANSWER), provider());
    let fake = Fake::renewing(&endpoint, "");
    fake.login(OVER);
    let output = fake.run(&url).output().unwrap();
    let printed = succeeds(&output);
    assert_eq!(key(&asked.recv_timeout(LIMIT).unwrap()), "sk-fresh");
    let question = questions.recv_timeout(LIMIT).unwrap();
    assert!(question.starts_with("POST /token HTTP/1.1\r\n"), "{question}");
    assert!(
        question
            .ends_with("\r\n\r\ngrant_type=refresh_token&refresh_token=r%2Dfirst&client_id=fake%2Dclient"),
        "{question}"
    );
    let text = fake.login_file();
    let (before, after) = text.split_once("1000").map_or_else(
        || {
            let at = text.find("\"expires\": ").unwrap() + "\"expires\": ".len();
            (text[..at].to_owned(), text[at..].to_owned())
        },
        |_| panic!("it still says that it is over: {text}"),
    );
    assert_eq!(before, r#"{ "oauth": {"access":"sk-fresh", "refresh":"r-next","expires": "#);
    let time: u64 = after.split(',').next().unwrap().parse().unwrap();
    assert!(time > 1_700_000_000_000, "{time}");
    assert!(after.ends_with(r#","scopes":["a"]}, "other": 1.50 }"#), "{after}");
    assert_eq!(fs::metadata(fake.host.path("login.json")).unwrap().permissions().mode() & 0o777, 0o600);
    for secret in ["sk-fresh", "sk-old", "r-first", "r-next"] {
        for text in [&printed, &stderr(&output), &fake.logged()] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    // The next run has it from the file.
    succeeds(&fake.run(&url).output().unwrap());
    assert_eq!(key(&asked.recv_timeout(LIMIT).unwrap()), "sk-fresh");
    assert!(questions.try_recv().is_err(), "it was renewed again");
}

#[test]
fn one_that_the_provider_refuses_is_renewed_while_the_call_waits() {
    let (endpoint, questions) = token_endpoint("200 OK", ANSWER);
    let (url, asked) = provider_that(|head| !head.contains("sk-old"));
    let fake = Fake::renewing(&endpoint, ", json = true");
    fake.login(&OVER.replace("1000", "4000000000000"));
    let printed = succeeds(&fake.run(&url).output().unwrap());
    assert!(printed.contains("HTTP/1.1 200"), "{printed}");
    let keys: Vec<String> = asked.try_iter().map(|asked| key(&asked).to_owned()).collect();
    assert_eq!(keys, ["sk-old", "sk-fresh"]);
    let question = questions.recv_timeout(LIMIT).unwrap();
    let (_, body) = question.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"grant_type": "refresh_token", "refresh_token": "r-first", "client_id": "fake-client"})
    );
    assert!(fake.login_file().contains("r-next"), "{}", fake.login_file());
}

#[test]
fn one_that_cannot_be_renewed_is_said_and_left_as_it_is() {
    let (url, asked) = provider();
    for (status, answer, why) in [
        (
            "400 Bad Request",
            r#"{"error":"invalid_grant","error_description":"r-first"}"#,
            "400 (invalid_grant)",
        ),
        ("200 OK", r#"{"access_token":""}"#, "no token that can be used"),
        ("200 OK", "<html>", "not that of a token endpoint"),
    ] {
        let (endpoint, _questions) = token_endpoint(status, answer);
        let fake = Fake::renewing(&endpoint, "");
        fake.login(OVER);
        // With an address of its own, an agent needs no credential: one that is there and useless is no reason to go without.
        let output = fake.run(&url).output().unwrap();
        assert_eq!((super::super::status(&output), stdout(&output).as_str()), (125, ""), "{status}");
        let said = stderr(&output);
        assert!(
            said.contains("cannot be renewed") && said.contains(why) && !said.contains("r-first"),
            "{said}"
        );
        assert_eq!(fake.login_file(), OVER);
    }
    assert!(asked.try_recv().is_err(), "the provider was asked");
}

#[test]
fn runs_at_once_renew_it_once() {
    let ((endpoint, questions), (url, asked)) = (token_endpoint("200 OK", ANSWER), provider());
    let fake = Fake::renewing(&endpoint, "");
    fake.login(OVER);
    let runs: Vec<_> = (0..3)
        .map(|_| fake.run(&url).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for run in runs {
        succeeds(&run.wait_with_output().unwrap());
    }
    assert_eq!(asked.try_iter().map(|asked| key(&asked).to_owned()).collect::<Vec<_>>(), ["sk-fresh"; 3]);
    assert_eq!(questions.try_iter().count(), 1);
}
