//! A vendor in place of the real one: a proxy that every connection of a run goes through, and behind it, with a certificate of its
//! own, the token endpoint and the model's API.

use super::*;
use base64::Engine as _;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivatePkcs8KeyDer};
use std::sync::{Arc, Mutex};

/// Where the vendor's tokens are renewed, by the profile of these tests.
pub(super) const TOKENS: &str = "tokens.example";
/// Where the models of these tests are.
const APIS: [&str; 3] = ["api.anthropic.com", "api.openai.com", "chatgpt.com"];

/// How the token endpoint answers a question: the bytes.
type Answer = dyn Fn(&str) -> Vec<u8> + Send + Sync;

/// The vendor. Its threads end with the test process.
pub(super) struct Vendor {
    proxy: SocketAddr,
    certificate: tempfile::NamedTempFile,
    /// What the token endpoint was asked, each before it is answered.
    pub questions: mpsc::Receiver<String>,
    /// The keys that the models' APIs were sent.
    pub keys: mpsc::Receiver<String>,
    /// What they were asked, each behind the name of its host.
    pub calls: mpsc::Receiver<(String, String)>,
}

/// An answer over HTTP.
pub(super) fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// A token endpoint that takes each refresh token once, `r-0` first, and gives `sk-fresh-N` and `r-N` for it, `N` from 1.
pub(super) fn rotating() -> impl Fn(&str) -> Vec<u8> + Send + Sync + 'static {
    let given = Mutex::new(0);
    move |question| {
        let mut number = given.lock().unwrap();
        // A form's, and JSON's.
        let sent = [format!("refresh_token=r%2D{number}&"), format!(r#""refresh_token":"r-{number}""#)];
        if !sent.iter().any(|sent| question.contains(sent.as_str())) {
            return http("400 Bad Request", r#"{"error":"invalid_grant"}"#);
        }
        *number += 1;
        let body = format!(
            r#"{{"access_token":"sk-fresh-{number}","refresh_token":"r-{number}","expires_in":28800,"token_type":"Bearer"}}"#
        );
        http("200 OK", &body)
    }
}

impl Vendor {
    /// One whose model takes keys that begin with `sk-fresh`.
    pub(super) fn new(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::that_takes("sk-fresh", answer)
    }

    /// One whose model takes keys that begin so.
    pub(super) fn that_takes(
        key: &'static str,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let names: Vec<String> = [TOKENS].into_iter().chain(APIS).map(str::to_owned).collect();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
        let certificate = tempfile::NamedTempFile::new().unwrap();
        fs::write(&certificate, pem(cert.der())).unwrap();
        // For runs of other users, too.
        fs::set_permissions(&certificate, fs::Permissions::from_mode(0o644)).unwrap();
        let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![cert.der().clone()],
                PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into(),
            )
            .unwrap();
        let (config, answer): (_, Arc<Answer>) = (Arc::new(config), Arc::new(answer));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = listener.local_addr().unwrap();
        let ((asked, questions), (sent, keys), (called, calls)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, answer) = (config.clone(), answer.clone());
                let (asked, sent, called) = (asked.clone(), sent.clone(), called.clone());
                thread::spawn(move || {
                    let Some((name, mut stream)) = connected(stream.unwrap(), config) else { return };
                    let Some(question) = request(&mut stream) else { return };
                    let answer = if name == TOKENS {
                        let _ = asked.send(question.clone());
                        answer(&question)
                    } else {
                        let found = question.lines().find_map(key_in).unwrap_or_default().to_owned();
                        let _ = called.send((name, question));
                        let status = if found.starts_with(key) { "200 OK" } else { "401 Unauthorized" };
                        let _ = sent.send(found);
                        http(status, "{}")
                    };
                    let _ = stream.write_all(&answer);
                    let _ = stream.flush();
                });
            }
        });
        Self { proxy, certificate, questions, keys, calls }
    }

    /// Has a run find it.
    pub(super) fn reached_by(&self, mut command: Command) -> Command {
        for name in ["NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy", "SSL_CERT_DIR"] {
            command.env_remove(name);
        }
        command
            .env("HTTPS_PROXY", format!("http://{}", self.proxy))
            .env("SSL_CERT_FILE", self.certificate.path());
        command
    }

    /// All keys that the model's API was sent so far.
    pub(super) fn keys(&self) -> Vec<String> {
        self.keys.try_iter().collect()
    }

    /// How often the token endpoint was asked since somebody looked last.
    pub(super) fn questions(&self) -> usize {
        self.questions.try_iter().count()
    }
}

/// The key in a line of a request's head, if it has one.
fn key_in(line: &str) -> Option<&str> {
    ["x-api-key: ", "authorization: Bearer "].iter().find_map(|header| line.strip_prefix(header))
}

/// A certificate as a file has it.
fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// The host's name that a client of the proxy asks for, and the connection with the host of that name.
fn connected(
    mut stream: TcpStream,
    config: Arc<ServerConfig>,
) -> Option<(String, StreamOwned<ServerConnection, TcpStream>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).ok()?;
    let name = head.strip_prefix("CONNECT ")?.split(':').next()?.to_owned();
    stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
    Some((name, StreamOwned::new(ServerConnection::new(config).ok()?, stream)))
}

/// A request, head and body.
fn request(stream: &mut impl Read) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).ok()? > 2 {}
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(head + &String::from_utf8(body).ok()?)
}
