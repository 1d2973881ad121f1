//! A compiled MCP server that answers at once: what `cargo xtask bench mcp` puts behind each of the ways it compares.

use serde_json::{Value, json};
use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let Ok(request) = serde_json::from_slice::<Value>(&line) else { continue };
        let Some(id) = request.get("id") else { continue };
        let mut answer = json!({ "jsonrpc": "2.0", "id": id });
        match result(&request) {
            Some(result) => answer["result"] = result,
            None => answer["error"] = json!({ "code": -32601, "message": "not known here" }),
        }
        let mut text = answer.to_string().into_bytes();
        text.push(b'\n');
        output.write_all(&text)?;
        output.flush()?;
    }
}

fn result(request: &Value) -> Option<Value> {
    Some(match request["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": request["params"]["protocolVersion"].as_str().unwrap_or("2025-06-18"),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "echo", "version": "1" }
        }),
        "ping" => json!({}),
        "tools/list" => json!({ "tools": [{
            "name": "get_echo", "description": "Says it again.",
            "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } } }
        }] }),
        "tools/call" => {
            let text = request["params"]["arguments"]["text"].as_str().unwrap_or_default();
            json!({ "content": [{ "type": "text", "text": text }] })
        }
        _ => return None,
    })
}
