//! What `cargo xtask bench mcp` compares with: the least that any recorder of these lines does. It reads each line as
//! strictly as the interceptor does, hashes it, writes it to a hash-chained file, and passes it on. Nothing is judged,
//! scored, redacted or reported; there are no rules and nobody is asked.
//!
//! `floor JOURNAL SERVER [ARGUMENT...]`

use ringfence_session::{
    journal,
    line::{self, Line},
    lines::{Lines, Taken},
};
use std::{
    env,
    fs::File,
    io::{self, Read, Write},
    process::{Command, ExitCode, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// The longest line, bytes: the interceptor's own limit.
const LONGEST: usize = 64 << 20;

struct Chain {
    file: File,
    head: [u8; 64],
}

impl Chain {
    /// Appends an entry for each line, by one write.
    fn append(&mut self, direction: &str, lines: &[u8], text: &mut Vec<u8>) -> io::Result<()> {
        text.clear();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let body = line.strip_suffix(b"\n").unwrap_or(line);
            if !matches!(line::judge(body), Ok(Line::Message(_))) {
                return Err(io::Error::other("a line that no echo server and its client write"));
            }
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            let body_hash = journal::text(&journal::digest(body));
            let start = text.len() + self.head.len() + 1;
            text.resize(start, b' ');
            write!(text, r#"{{"direction":"{direction}","at":{at},"sha256":"{body_hash}","raw":"#)?;
            serde_json::to_writer(&mut *text, &String::from_utf8_lossy(body))?;
            text.push(b'}');
            self.head = journal::link(&self.head, &text[start..]);
            text[start - 1 - self.head.len()..start - 1].copy_from_slice(&self.head);
            text.push(b'\n');
        }
        self.file.write_all(text)
    }
}

fn pass(from: impl Read, mut to: impl Write, direction: &str, chain: &Mutex<Chain>) -> io::Result<()> {
    let (mut lines, mut text) = (Lines::new(from, LONGEST), Vec::new());
    while let Taken::Line(taken) = lines.next_lines()? {
        chain.lock().unwrap_or_else(PoisonError::into_inner).append(direction, taken, &mut text)?;
        to.write_all(taken)?;
        to.flush()?;
    }
    Ok(())
}

fn run() -> io::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let (Some(journal), Some(server)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("floor JOURNAL SERVER [ARGUMENT...]"));
    };
    let chain = Mutex::new(Chain { file: File::create(journal)?, head: [b'0'; 64] });
    let mut child =
        Command::new(server).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the server has no pipes"));
    };
    thread::scope(|scope| {
        let requests = scope.spawn(|| pass(io::stdin(), stdin, "request", &chain));
        pass(stdout, io::stdout().lock(), "answer", &chain)?;
        requests.join().map_err(|_| io::Error::other("a thread panicked"))?
    })?;
    child.wait().map(drop)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}
