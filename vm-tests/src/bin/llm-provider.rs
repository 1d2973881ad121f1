//! A compiled provider that answers at once, with head and body in one write: what `cargo xtask bench llm` puts behind
//! each of the ways it compares. Prints its port; ends with its standard input.
//!
//! A request whose model is `pause` gets its first text, then nothing for three milliseconds, then the rest. One whose model is
//! `clock` gets [`TICKS`] pieces of text in between, a millisecond apart, each with the time at which it was sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, SystemTime};

/// What is looked at of a request: its model, and whether it streams, stand at its beginning or it is short.
const BEGINNING: usize = 8 << 10;
const PAUSE: Duration = Duration::from_millis(3);
/// Pieces of an answer of `clock`, and how far apart they are.
const TICKS: usize = 20;
const TICK: Duration = Duration::from_millis(1);

const ANTHROPIC_FIRST: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"It has "}}

"#;
const ANTHROPIC_REST: &str = r#"event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"three files"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" and a test."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":9}}

event: message_stop
data: {"type":"message_stop"}

"#;
const OPENAI_FIRST: &str = r#"data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"It has "},"finish_reason":null}]}

"#;
const OPENAI_REST: &str = r#"data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"three files and a test."},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":9,"total_tokens":19}}

data: [DONE]

"#;
const OPENAI_WHOLE: &str = r#"{"id":"c1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"It has three files and a test."},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":9,"total_tokens":19}}"#;

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A client that hangs up is no news.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let (mut line, mut body) = (String::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let is_openai = line.contains("/chat/completions");
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
        let beginning = body.get(..BEGINNING).unwrap_or(&body);
        let has = |text: &str| beginning.windows(text.len()).any(|part| part == text.as_bytes());
        let streams = has("\"stream\":true") || has("\"stream\": true");
        let pauses = has("\"model\":\"pause\"");
        if has("\"model\":\"clock\"") {
            ticks(&mut writer)?;
            continue;
        }
        match (streams, is_openai) {
            (false, _) => whole(&mut writer, "application/json", OPENAI_WHOLE)?,
            (true, true) => stream_out(&mut writer, OPENAI_FIRST, OPENAI_REST, pauses)?,
            (true, false) => stream_out(&mut writer, ANTHROPIC_FIRST, ANTHROPIC_REST, pauses)?,
        }
    }
}

fn whole(writer: &mut TcpStream, kind: &str, body: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    writer.write_all(format!("{head}{body}").as_bytes())
}

/// An answer in Anthropic's form, whose pieces have the time: nanoseconds since the epoch, which other processes have, too.
fn ticks(writer: &mut TcpStream) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    writer.write_all(format!("{head}{}", chunk(ANTHROPIC_FIRST)).as_bytes())?;
    for _ in 0..TICKS {
        thread::sleep(TICK);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let event = format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":\
             {{\"type\":\"text_delta\",\"text\":\"sent={now};\"}}}}\n\n"
        );
        writer.write_all(chunk(&event).as_bytes())?;
    }
    thread::sleep(TICK);
    writer.write_all(format!("{}0\r\n\r\n", chunk(ANTHROPIC_REST)).as_bytes())
}

fn stream_out(writer: &mut TcpStream, first: &str, rest: &str, pauses: bool) -> io::Result<()> {
    let kind = "text/event-stream";
    if !pauses {
        return whole(writer, kind, &format!("{first}{rest}"));
    }
    let length = first.len() + rest.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    writer.write_all(format!("{head}{first}").as_bytes())?;
    thread::sleep(PAUSE);
    writer.write_all(rest.as_bytes())
}
