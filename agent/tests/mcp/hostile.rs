//! Lines that two parsers could read differently: refused with a reason, and the next call works.

use crate::support::{Client, Home, answered, verified};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A hostile line, the id its answer carries, what the reason says, and a harmless twin that must pass.
struct Case {
    line: Vec<u8>,
    id: &'static str,
    reason: &'static str,
    control: Vec<u8>,
}

fn case(line: impl AsRef<[u8]>, id: &'static str, reason: &'static str, control: impl AsRef<[u8]>) -> Case {
    let ended = |bytes: &[u8]| [bytes, b"\n"].concat();
    Case { line: ended(line.as_ref()), id, reason, control: ended(control.as_ref()) }
}

/// Calls `read_it` with these members of the message and of its params.
fn with(message: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0",{message}"method":"tools/call","params":{{{params}"arguments":{{}}}}}}"#)
}

fn nested(depth: usize) -> String {
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    format!(
        r#"{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{"name":"read_it","arguments":{{"a":{open}{close}}}}}}}"#
    )
}

fn cases() -> Vec<Case> {
    const ID: &str = r#""id":9,"#;
    const NAME: &str = r#""name":"read_it","#;
    const DELETE: &str = r#""name":"delete_it","#;
    let good = with(ID, NAME);
    let batch = |second: &str| format!("[{},{second}]", with(r#""id":9,"#, NAME));
    // The server answers no batch: these are in flight to the end.
    let batches = format!("[{},{}]", with(r#""id":"a","#, NAME), with(r#""id":"b","#, NAME));
    let twice = "stands twice in one object";
    let folds = "parsers that fold case";
    let hidden = "sees a second message inside this one";
    let mut cases = vec![
        case(with(ID, r#""name":"read_it","name":"delete_it","#), "9", twice, &good),
        case(with(r#""id":9,"id":10,"#, NAME), "null", twice, &good),
        case(with(r#""id":9,"method":"ping","#, NAME), "9", twice, &good),
        case(with(r#""id":9,"params":{"name":"delete_it"},"#, NAME), "9", twice, &good),
        case(with(ID, r#""name":"read_it","n\u0061me":"delete_it","#), "9", twice, &good),
        case(with(r#""id":9,"\u0069d":10,"#, NAME), "null", twice, &good),
        case(with(ID, r#""name":"read_it","Name":"delete_it","#), "9", folds, &good),
        case(with(ID, r#""name":"read_it","Arguments":{"sql":"DROP TABLE t"},"#), "9", folds, &good),
        case(with(r#""id":9,"Method":"ping","#, NAME), "9", folds, &good),
        case(with(r#""id":9,"param\u017f":{"name":"delete_it"},"#, NAME), "9", folds, &good),
        case(
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":{"sql":"DROP TABLE t","sql":"SELECT 1"}}}"#,
            "9",
            twice,
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":{"sql":"SELECT 1","Sql":"SELECT 1"}}}"#,
        ),
        case(
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":{"a":[{"b":1,"\u0062":2}]}}}"#,
            "9",
            twice,
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":{"a":[{"b":1},{"b":2}]}}}"#,
        ),
        case(
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":{"$serde_json::private::RawValue":"{}","sql":"DROP TABLE t"}}}"#,
            "9",
            "a meaning of its own",
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":{"$serde_json":"{}"}}}"#,
        ),
        case(with("", NAME), "null", "has no id", &good),
        case(with(r#""id":null,"#, NAME), "null", "has no id", &good),
        case(with(r#""id":[9],"#, NAME), "null", "neither string nor number", &good),
        case(with(r#""id":true,"#, NAME), "null", "neither string nor number", &good),
        case(with(r#""id":9,"result":{},"#, NAME), "9", "a method together with a result", &good),
        case(with(r#""id":9,"error":{},"#, NAME), "9", "a method together with a result or an error", &good),
        case(with(ID, r#""name":["read_it"],"#), "9", "something else than a string", &good),
        case(with(ID, ""), "9", "names no tool", &good),
        case(
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"read_it","arguments":["x"]}}"#,
            "9",
            "arguments that are not an object",
            &good,
        ),
        case(batch(&with("", DELETE)), "9", "has no id", &batches),
        case("[]", "null", "an empty batch", &good),
        case(batch("[]"), "9", "not one JSON value", &batches),
        case(format!("{good} {}", with(r#""id":10,"#, DELETE)), "null", "not one JSON value", &good),
        case(format!("{good}{}", with(r#""id":10,"#, DELETE)), "null", "not one JSON value", &good),
        case(
            good.replace("{}", r#"{"a":NaN}"#),
            "9",
            "not one JSON value",
            good.replace("{}", r#"{"a":"NaN"}"#),
        ),
        case(good.replace("{}", r#"{"a":-Infinity}"#), "9", "not one JSON value", &good),
        case(good.replace("{}", "{'a':1}"), "9", "not one JSON value", &good),
        case(good.replace("{}", r#"{"a":1,}"#), "9", "not one JSON value", &good),
        case(good.replace("{}", "{/* x */}"), "9", "not one JSON value", &good),
        case(
            good.replace("{}", "{\"a\":\"\t\"}"),
            "9",
            "not one JSON value",
            good.replace("{}", r#"{"a":"\t"}"#),
        ),
        case(format!("\u{feff}{good}"), "9", "a byte-order mark", good.replace("read_it", "read_\u{feff}it")),
        case(nested(5000), "9", "nested deeper than 100 levels", nested(97)),
        case(nested(98), "9", "nested deeper than 100 levels", nested(97)),
        case(nested(124), "9", "nested deeper than 100 levels", nested(97)),
        case(&good[..good.len() - 1], "9", "not one JSON value", &good),
        case("tools/call", "null", "not one JSON value", &good),
        case("\"tools/call\"", "null", "not one JSON value", &good),
        // Half a pair is repaired, except in an id: the client waits for what it sent, and nothing else is that.
        case(
            with(r#""id":"\ud83c","#, NAME),
            "null",
            "not one JSON value",
            with(r#""id":9,"x":"\ud83c\udf89","#, NAME),
        ),
        // An id of another case is one to some.
        case(with(r#""id":9,"ID":10,"#, NAME), "null", folds, &good),
        case(r#"{"jsonrpc":"2.0","id":9,"result":{},"error":{}}"#, "null", "both result and error", &good),
        case(b"\0", "null", "not one JSON value", &good),
    ];
    // Bytes that are no UTF-8: a stray one, an overlong slash, a surrogate.
    for bytes in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80"] {
        let (before, after) = good.split_once("{}").expect("arguments");
        let line = [before.as_bytes(), b"{\"a\":\"", bytes, b"\"}", after.as_bytes()].concat();
        cases.push(case(line, "9", "not UTF-8 from byte", good.replace("{}", r#"{"a":"ÿ"}"#)));
    }
    // A whole message between two characters that some readers end lines at.
    for end in ["\r", "\u{2028}", "\u{2029}", "\u{85}"] {
        let smuggled = with(r#""id":10,"#, DELETE);
        let (line, reason) = if end == "\r" {
            (
                format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\",\"x\":\r{smuggled}\r,\"params\":{{\"name\":\"read_it\"}}}}"
                ),
                hidden,
            )
        } else {
            (
                format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\",\"params\":{{\"name\":\"read_it\",\"arguments\":{{}},\"x\":\"{end}{{}}{end}\"}}}}"
                ),
                hidden,
            )
        };
        let harmless = good.replace("{}", &format!(r#"{{"a":"x{end}y"}}"#));
        let control = if end == "\r" { format!("{good}\r") } else { harmless };
        cases.push(case(line, "9", reason, control));
    }
    // Whatever follows the message that stands alone.
    let follows = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":[\r{},\r0]}}", with(ID, DELETE));
    cases.push(case(follows, "null", hidden, good.replace("{}", "{\"a\":[\r0,\r[1],\r2]}")));
    cases
}

/// Reads the answers of `count` requests.
fn answers(client: &Client, count: usize) -> String {
    (0..count).map(|_| client.out.line()).collect()
}

#[test]
fn each_is_refused_with_its_reason_and_the_next_call_works() {
    let (home, mut client) = Home::with_client(&[], &[]);
    let mut forwarded = Vec::new();
    for Case { line, id, reason, control } in cases() {
        let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        client.send(&line);
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{shown}: {answer}"));
        assert!(message.contains(reason), "{shown}: {message}");
        assert!(message.starts_with("Ringfence did not forward this message: "), "{message}");
        let whole = serde_json::json!({"jsonrpc": "2.0", "id": serde_json::from_str::<Value>(id).expect("an id"),
            "error": {"code": -32600, "message": message}});
        assert_eq!(answer, whole, "{shown}");

        client.send(&control);
        forwarded.extend_from_slice(&control);
        let text = String::from_utf8_lossy(&control);
        let expected = if text.starts_with('[') { String::new() } else { client.out.line() };
        assert!(expected.is_empty() || expected == answered("9"), "{text}: {expected}");
    }
    assert!(client.end().success());
    assert_eq!(
        String::from_utf8_lossy(&home.received()),
        String::from_utf8_lossy(&forwarded),
        "only the controls arrived, as they were sent"
    );

    let refused: Vec<Value> =
        home.journal().into_iter().filter(|entry| entry["refused"].is_string()).collect();
    assert_eq!(refused.len(), cases().len());
    for (Case { line, reason, .. }, entry) in cases().into_iter().zip(refused) {
        let body = &line[..line.len() - 1];
        let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(entry["refused"].as_str().is_some_and(|why| why.contains(reason)), "{entry}");
        assert_eq!(
            (entry["sha256"].as_str(), entry["bytes"].as_u64()),
            (Some(digest.as_str()), Some(body.len() as u64))
        );
    }
    let rows = home.calls(&[]);
    assert!(rows.iter().all(|row| !row["decision"].is_string()), "only forwarded calls are calls");
}

#[test]
fn lenient_forwards_the_very_bytes_and_says_so() {
    let (home, mut client) = Home::with_client(&["--lenient"], &[]);
    let mut sent = Vec::new();
    for Case { line, .. } in cases() {
        client.send(&line);
        sent.extend_from_slice(&line);
    }
    client.send("{\"jsonrpc\":\"2.0\",\"id\":\"last\",\"method\":\"ping\"}\n");
    sent.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":\"last\",\"method\":\"ping\"}\n");
    while client.out.line() != answered("\"last\"") {}
    assert!(client.end().success());
    assert!(home.received() == sent, "what was sent is what arrived");
    let notes = home.journal();
    let unjudged = notes.iter().filter(|entry| {
        entry["kind"] == "note"
            && entry["text"].as_str().is_some_and(|text| text.starts_with("forwarded unjudged"))
    });
    assert_eq!(unjudged.count(), cases().len());
}

#[test]
fn unusual_lines_that_mean_one_thing_pass_as_they_are() {
    let (home, mut client) = Home::with_client(&[], &[]);
    let mut sent = String::new();
    let ids = ["1", "\"1\"", "1.0", "9007199254740993", "-0", "\"\\u0061\"", "18446744073709551615", "1e2"];
    let answers = ["1", "\"1\"", "1.0", "9007199254740993", "0", "\"a\"", "18446744073709551615", "100.0"];
    for (id, answer) in ids.into_iter().zip(answers) {
        sent += &client.call(id, "read_it");
        assert_eq!(client.out.line(), answered(answer));
    }
    for line in [
        "{\"jsonrpc\" : \"2.0\",\t\"id\" : 2 , \"method\" : \"tools/call\" , \"params\" : { \"name\" : \"read_it\" } }\r\n",
        "{\"method\":\"tools/call\",\"id\":2,\"params\":{\"\\u006eame\":\"read_it\",\"arguments\":null},\"extra\":[1.50,1E400]}\n",
        "{\"id\":2,\"method\":\"tools\\/call\",\"params\":{\"name\":\"read_it\",\"arguments\":{\"a\":\"x\u{2028}{}\u{7f}\"}}}\n",
    ] {
        client.send(line);
        sent += line;
        if line.contains("1E400") {
            // No double holds this number: one parser says infinity, another refuses.
            let answer = client.out.line();
            assert!(answer.contains("not one JSON value"), "{answer}");
            sent.truncate(sent.len() - line.len());
        } else {
            assert_eq!(client.out.line(), answered("2"));
        }
    }
    for line in ["\n", "   \n", "\r\n", "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n"] {
        client.send(line);
        sent += line;
    }
    sent += &client.call("3", "read_it");
    assert_eq!(client.out.line(), answered("3"));
    assert!(client.end().success());
    assert_eq!(String::from_utf8_lossy(&home.received()), sent);
}

#[test]
fn ids_of_two_types_are_two_calls_and_each_answer_finds_its_own() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.call("1", "read_silence");
    client.call("\"1\"", "read_text");
    assert_eq!(client.out.line(), answered("\"1\""));
    client.call("9007199254740993", "read_odd");
    assert_eq!(client.out.line(), answered("9007199254740993"));
    assert!(client.end().success());
    let rows = home.calls(&[]);
    let answered: Vec<(&str, bool)> = rows
        .iter()
        .map(|row| (row["tool_name"].as_str().expect("a name"), row["responded_at"].is_string()))
        .collect();
    assert_eq!(answered, [("read_silence", false), ("read_text", true), ("read_odd", true)]);
}

#[test]
fn what_the_server_says_passes_whatever_it_is() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.call("1", "read_garbage");
    assert_eq!(client.out.line(), "this is not JSON\n");
    assert_eq!(client.out.line(), "\n");
    assert_eq!(client.out.line(), answered("\"nobody\""));
    assert_eq!(client.out.line(), answered("1"));
    client.works("2");
    assert!(client.end().success());
    let db = home.text("audit.db");
    let messages = home.output(&["audit", "export", "--format", "sql", "--db", &db]);
    assert!(messages.contains("this is not JSON") && messages.contains("not judged: "), "{messages}");
    assert!(messages.contains("answers no request that is known"), "{messages}");
}

#[test]
fn a_batch_goes_whole_or_not_at_all() {
    let (home, mut client) = Home::with_client(&[], &[]);
    let one = |id: &str, tool: &str| crate::support::call(id, tool).trim_end().to_owned();
    let good = format!("[{},{}]\n", one("1", "read_it"), one("2", "read_it"));
    client.send(&good);
    let bad = format!("[{},{}]\n", one("3", "read_it"), one("4", "delete_it"));
    client.send(&bad);
    let refused = answers(&client, 2);
    for id in ["\"id\":3,", "\"id\":4,"] {
        assert!(refused.contains(id) && refused.contains("the batch was not run"), "{refused}");
    }
    client.works("5");
    assert!(client.end().success());
    assert_eq!(String::from_utf8_lossy(&home.received()), good + &crate::support::call("5", "read_it"));
    let outcomes: Vec<Value> = home.calls(&[]).into_iter().map(|row| row["outcome"].clone()).collect();
    // The server answers no batch, and the session is over.
    assert_eq!(outcomes, ["killed", "killed", "blocked", "blocked", "answered"]);
}

#[test]
fn no_reader_of_the_record_ends_at_a_deep_message() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.send(nested(97) + "\n");
    assert_eq!(client.out.line(), answered("9"));
    for (id, tool) in [("1", "read_deep"), ("2", "read_deeper"), ("3", "read_deepest")] {
        client.call(id, tool);
        assert!(client.out.line().contains("[[[["), "the server's answers pass");
    }
    client.works("4");
    assert!(client.end().success());
    let rows = home.calls(&[]);
    assert_eq!(rows.len(), 5);
    assert!(rows[0]["arguments"]["a"].is_array(), "what may pass is shown taken apart");
    let whole = |row: &Value| {
        let id = row["id"].as_str().expect("an id");
        let shown = home.output(&["mcp", "calls", id, "--json", "--db", &home.text("audit.db")]);
        serde_json::from_str::<Value>(&shown).expect("JSON")["result"].clone()
    };
    assert!(whole(&rows[1])["a"].is_array(), "as deep as what may pass");
    assert!(whole(&rows[2]).as_str().is_some_and(|text| text.starts_with(r#"{"a":[[["#)), "the text it is");
    assert!(whole(&rows[3])["ringfence_unread"].is_string(), "what nobody parses");
    assert!(verified(&home, 1));
    for form in ["ndjson", "ocsf", "cef", "sql"] {
        let text = home.output(&["audit", "export", "--format", form, "--db", &home.text("audit.db")]);
        assert!(text.contains("read_deepest"), "{form}");
    }
}

#[test]
fn half_a_surrogate_pair_is_repaired_and_the_record_says_so() {
    let (home, mut client) = Home::with_client(&[], &[]);
    let call = |text: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"read_it\",\"arguments\":{{\"a\":\"{text}\"}}}}}}\n"
        )
    };
    // What JavaScript makes of `"🎉".slice(0, 1)`, and a whole one.
    let sent = [call(r"\ud83c and \udf89"), call(r"\ud83c\udf89")];
    for line in &sent {
        client.send(line);
        assert_eq!(client.out.line(), answered("1"));
    }
    // Rules and scores see what the server gets.
    client.send(
        call(r"\ud83c")
            .replace("read_it", "delete_all_databases")
            .replace("{\"a\"", "{\"sql\":\"DELETE FROM t\",\"a\""),
    );
    assert!(client.out.line().contains("Ringfence refused"));
    assert!(client.end().success());
    let repaired = call(r"\ufffd and \ufffd");
    assert_eq!(String::from_utf8_lossy(&home.received()), repaired.clone() + &sent[1]);
    let entry = home.journal().into_iter().find(|entry| entry["repaired"] == 2).expect("it is on record");
    assert_eq!(entry["raw"], repaired.trim_end());
    let digest = Sha256::digest(sent[0].trim_end().as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(entry["sha256"], digest.as_str(), "of the line as it came");
    let db = home.text("audit.db");
    let messages = home.output(&["audit", "export", "--format", "sql", "--db", &db]);
    assert!(messages.contains("repaired: U+FFFD for 2 escapes"), "{messages}");
    assert!(verified(&home, 1));
}

#[test]
fn a_refused_line_does_not_answer_for_a_request_that_has_an_answer_to_come() {
    let (_home, mut client) = Home::with_client(&[], &[]);
    let broken =
        |id: &str| format!("{{\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":NaN}}}}\n");
    let answer_of = |client: &mut Client, id: &str| {
        client.send(broken(id));
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        answer["id"].clone()
    };
    // In flight, held, and neither: the control.
    client.call("1", "read_silence");
    client.call("2", "delete_it");
    assert_eq!(answer_of(&mut client, "1"), Value::Null);
    assert_eq!(answer_of(&mut client, "2"), Value::Null);
    assert_eq!(answer_of(&mut client, "3"), 3);
    assert_eq!(answer_of(&mut client, "\"1\""), "1");
    client.works("3");
    assert_eq!(answer_of(&mut client, "3"), 3, "its answer came");
    // One answer for each request of a batch.
    client.send("[{\"id\":1,\"method\":\"ping\"},{\"id\":5,\"method\":\"ping\"},{\"id\":6,\"method\":7}]\n");
    assert_eq!([5, 6].map(|id| client.out.line().contains(&format!("\"id\":{id},"))), [true, true]);
    assert!(client.end().success());
}
