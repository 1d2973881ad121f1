//! Texts of a megabyte in which is no secret: what most of what is recorded looks like.

/// How long each is, bytes.
const LENGTH: usize = 1_000_000;

const PROSE: &str = "The auditor reads what a session wrote while it ran, and keeps a row of each message. Where a line is \
longer than what may be kept, its end is left out and counted. Nobody waits for it: what a client asks is answered by the \
server, and the interceptor only looks at the line as it passes. If the key of a rule is unknown, the rule is not loaded, \
and the host's log says which. An author of a profile sees the same words in the manual.\n\n";

const CODE: &str = r#"/// Reads a line, and what it says of the one before.
pub(crate) fn read_line(&mut self, line: &str) -> Result<Option<Entry>, Error> {
    let Some((key, value)) = line.split_once('=') else { return Ok(None) };
    match key.trim() {
        "at" => self.at = value.parse().map_err(|_| Error::Number(value.len()))?,
        "kind" => self.kind = Kind::of(value.trim()),
        // What is unknown belongs to a later version.
        _ => self.unknown += 1,
    }
    for (index, part) in self.parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
        self.sizes[index] = part.len().saturating_sub(self.offset);
    }
    Ok(Some(Entry { at: self.at, kind: self.kind, sizes: self.sizes.clone() }))
}

"#;

const JSON: &str = r#"{"jsonrpc":"2.0","id":4711,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"/srv/app/src/main.rs","offset":120,"limit":200},"_meta":{"progressToken":17}}}
{"jsonrpc":"2.0","id":4711,"result":{"content":[{"type":"text","text":"fn main() {\n    let parts: Vec<&str> = line.split(\",\").collect();\n    println!(\"{}\", parts.len());\n}\n"}],"isError":false,"usage":{"input_tokens":512,"output_tokens":20,"max_tokens":4096}}}
"#;

const LOGS: &str = "2026-01-02T03:04:05.678Z INFO  http: request completed method=GET path=/v1/items status=200 bytes=5120 duration=12ms\n\
2026-01-02T03:04:05.700Z DEBUG pool: connection 17 of 32 returned after 3 queries, idle=21 waiting=0\n\
2026-01-02T03:04:06.001Z WARN  queue: 120 jobs wait; the oldest since 8.2s id=7b0c1f6e-5d3a-4a53-9b1e-0c2d4f6a8b9d\n";

/// Each with its name.
pub(crate) fn texts() -> [(&'static str, String); 5] {
    let long = |text: &str| text.repeat(LENGTH / text.len() + 1);
    let base64 = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ/QmFyb9t4KzU0pRzXvWn3Lg7d";
    [
        ("prose", long(PROSE)),
        ("code", long(CODE)),
        ("JSON, a message a line", long(JSON)),
        ("logs", long(LOGS)),
        ("an image in base64", format!("{{\"data\":\"{}\"}}", long(base64))),
    ]
}
