//! The two sides that are compared: a client of the provider's own API, and a runtime on an agent's socket.

use super::PATIENCE;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// What the person says in each measured turn.
const ASKED: &str =
    "Which files are in the source directory, how many lines has each, and which of them has tests?";
/// What the compiled provider answers.
const ANSWERED: &str = "It has three files and a test.";

/// A message in Anthropic's form, which is the log's, too.
pub(super) fn message(role: &str, text: &str) -> String {
    format!(r#"{{"role":"{role}","content":[{{"type":"text","text":"{text}"}}]}}"#)
}

/// An HTTP/1.1 connection that is kept.
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Http {
    /// Connects to a port of loopback. `head`: the request line and headers but Content-Length, each with its line end.
    pub(super) fn connect(port: u16, head: String) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("nobody listens there")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::with_capacity(1 << 16, stream), head })
    }

    /// One request, in one write; its answer's status. The answer's body is in `body` then, as far as `until` wants it.
    pub(super) fn send(&mut self, request: &[u8]) -> Result<()> {
        let head = format!("{}Content-Length: {}\r\n\r\n", self.head, request.len());
        let whole = [head.as_bytes(), request].concat();
        self.stream.get_mut().write_all(&whole).context("the request cannot be sent")
    }

    /// The answer: whole, and when this text was first seen in it.
    pub(super) fn answer(&mut self, wanted: &str) -> Result<(String, Option<Instant>)> {
        let mut seen = None;
        let body = self.read(|body, _| {
            if seen.is_none() && contains(body, wanted) {
                seen = Some(Instant::now());
            }
        })?;
        Ok((body, seen))
    }

    /// A request, whose answer's pieces say when they were sent: how long each was on its way.
    pub(super) fn lags(&mut self, request: &[u8]) -> Result<Vec<Duration>> {
        self.send(request)?;
        let mut lags = Vec::new();
        let mut taken = 0;
        self.read(|body, now| {
            let text = String::from_utf8_lossy(body.get(taken..).unwrap_or_default());
            let mut rest = &*text;
            while let Some((before, behind)) = rest.split_once("sent=") {
                let Some((sent, behind)) = behind.split_once(';') else { break };
                taken += before.len() + "sent=;".len() + sent.len();
                rest = behind;
                let sent = sent.parse().unwrap_or_default();
                lags.push(now.saturating_sub(Duration::from_nanos(sent)));
            }
        })?;
        Ok(lags)
    }

    /// The answer's body, of which `each` sees what there is after each piece, with the time of the piece since the epoch.
    fn read(&mut self, mut each: impl FnMut(&[u8], Duration)) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("no answer")?;
        if !line.starts_with("HTTP/1.1 200") {
            let mut rest = vec![0; 4096];
            let read = self.stream.read(&mut rest).unwrap_or(0);
            bail!("the answer is {:?}: {}", line.trim_end(), String::from_utf8_lossy(&rest[..read]));
        }
        let (mut length, mut chunked) = (None, false);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse::<usize>().context("no length")?);
            }
            chunked |= name.eq_ignore_ascii_case("transfer-encoding") && value.contains("chunked");
        }
        let mut body = Vec::new();
        loop {
            let is_whole = match length {
                Some(length) => body.len() >= length,
                None if chunked => body.ends_with(b"0\r\n\r\n"),
                None => bail!("an answer without a length"),
            };
            if is_whole {
                return String::from_utf8(body).context("an answer that is no text");
            }
            let piece = self.stream.fill_buf().context("the answer broke off")?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            if piece.is_empty() {
                bail!("the answer broke off");
            }
            let read = piece.len();
            body.extend_from_slice(piece);
            self.stream.consume(read);
            each(&body, now);
        }
    }

    /// A request and its answer, which must have this text: how long it took, and how long until the text came.
    pub(super) fn ask(&mut self, request: &[u8], wanted: &str) -> Result<(Duration, Duration)> {
        let begin = Instant::now();
        self.send(request)?;
        let (body, seen) = self.answer(wanted)?;
        let took = begin.elapsed();
        let seen = seen.with_context(|| format!("the answer has no {wanted:?}: {body}"))?;
        Ok((took, seen - begin))
    }
}

fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

/// An agent that talks to the provider itself, and sends all of the conversation each time: what the worker is compared
/// with.
pub(super) struct Direct {
    http: Http,
    model: String,
    /// Messages in JSON, a comma behind each.
    conversation: String,
}

impl Direct {
    pub(super) fn new(port: u16, model: &str, history: &[String]) -> Result<Self> {
        let head = "POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                    x-api-key: sk-direct-0123456789\r\nanthropic-version: 2023-06-01\r\n"
            .to_owned();
        let conversation = history.iter().map(|message| format!("{message},")).collect();
        Ok(Self { http: Http::connect(port, head)?, model: model.to_owned(), conversation })
    }

    /// A turn: how long it took, and how long until its first text.
    pub(super) fn turn(&mut self) -> Result<(Duration, Duration)> {
        let begin = Instant::now();
        self.conversation += &message("user", ASKED);
        let body = format!(
            r#"{{"max_tokens":1000,"model":"{}","stream":true,"system":"You help.","messages":[{}]}}"#,
            self.model, self.conversation
        );
        self.http.send(body.as_bytes())?;
        let (body, seen) = self.http.answer("It has ")?;
        let took = begin.elapsed();
        let seen = seen.with_context(|| format!("an answer without its text: {body}"))?;
        self.conversation.push(',');
        self.conversation += &message("assistant", ANSWERED);
        self.conversation.push(',');
        Ok((took, seen - begin))
    }
}

/// A runtime.
pub(super) struct Runtime {
    stream: BufReader<UnixStream>,
    next: u64,
}

impl Runtime {
    /// Registers, and has the system prompt remembered by a first turn.
    pub(super) fn register(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("nobody serves the agent's socket")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut runtime = Self { stream: BufReader::with_capacity(1 << 16, stream), next: 1 };
        runtime.write(r#"{"jsonrpc":"2.0","method":"register","params":{"role":"runtime"}}"#)?;
        Ok(runtime)
    }

    fn write(&mut self, body: &str) -> Result<()> {
        let length = u32::try_from(body.len()).context("too long for a frame")?;
        let frame = [&length.to_be_bytes(), body.as_bytes()].concat();
        self.stream.get_mut().write_all(&frame).context("the worker does not read")
    }

    /// A turn: how long it took, and how long until its first text.
    pub(super) fn turn(&mut self) -> Result<(Duration, Duration)> {
        let begin = Instant::now();
        let id = self.next;
        self.next += 1;
        let system = if id == 1 { r#""system":"You help.","# } else { "" };
        let asked = message("user", ASKED);
        self.write(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"turn","params":{{{system}"messages":[{asked}]}}}}"#
        ))?;
        let mut seen = None;
        loop {
            let mut header = [0; 4];
            self.stream.read_exact(&mut header).context("the worker hung up")?;
            let mut body = vec![0; u32::from_be_bytes(header) as usize];
            self.stream.read_exact(&mut body).context("the worker hung up")?;
            if seen.is_none() && contains(&body, "It has ") {
                seen = Some(Instant::now());
            }
            if contains(&body, "\"method\":\"output\"") {
                continue;
            }
            let took = begin.elapsed();
            if !contains(&body, ANSWERED) {
                bail!("the worker answered {}", String::from_utf8_lossy(&body));
            }
            return Ok((took, seen.context("no text came before the answer")? - begin));
        }
    }
}
