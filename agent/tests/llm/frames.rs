//! Framing and requests that are none: an answer to each, and the agent goes on.

use crate::{
    mock::{Mock, says},
    support::{Client, Home, eventually, frame, send, turn, user},
};
use serde_json::{Value, json};

/// The error to one frame on a new connection, and whether the connection ends with it.
fn refused(home: &Home, bytes: &[u8]) -> (Value, bool) {
    let mut client = Client::connect(&home.socket("a"));
    client.raw(bytes);
    let error = client.expect();
    (error, client.next().is_none())
}

#[test]
fn what_is_no_frame_gets_an_error_frame_and_the_end() {
    let home = Home::with(&Mock::new());
    let _daemon = home.start();
    for (bytes, code) in [
        (&b"\0\0\0\0"[..], -32700),
        (b"\xff\xff\xff\xff", -32700),
        (b"\x01\0\0\x01", -32700),
        (&frame(b"{nope"), -32700),
        (&frame(b"\xff\xfe"), -32700),
        (&frame(b"[]"), -32600),
        (&frame(b"7"), -32600),
    ] {
        let (error, ended) = refused(&home, bytes);
        assert_eq!(
            (&error["error"]["code"], &error["id"]),
            (&json!(code), &Value::Null),
            "{bytes:?}: {error}"
        );
        assert!(ended, "{bytes:?}");
    }
    for bytes in [&b"\0\0"[..], b"\0\0\0\x10{"] {
        let mut client = Client::connect(&home.socket("a"));
        client.raw(bytes);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.expect()["error"]["code"], json!(-32700), "cut: {bytes:?}");
        assert!(client.next().is_none());
    }
}

#[test]
fn the_first_frame_says_what_a_connection_is() {
    let home = Home::with(&Mock::new());
    let _daemon = home.start();
    for (request, code) in [
        (turn(5, json!([user("x")])), -32600),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "what" }), -32600),
        (json!({ "jsonrpc": "1.0", "id": 5, "method": "send" }), -32600),
        (json!({ "id": 5, "method": "send" }), -32600),
        (json!({ "jsonrpc": "2.0", "id": 5 }), -32600),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "send" }), -32600),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "send", "params": {} }), -32602),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "send", "params": { "content": "text" } }), -32602),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "send", "params": { "content": [] } }), -32602),
        (
            json!({ "jsonrpc": "2.0", "id": 5, "method": "send", "params": { "content": [{ "text": "x" }] } }),
            -32602,
        ),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "register", "params": { "role": "admin" } }), -32602),
        (json!({ "jsonrpc": "2.0", "id": 5, "method": "register" }), -32600),
    ] {
        let (error, ended) = refused(&home, &frame(request.to_string().as_bytes()));
        assert_eq!((&error["error"]["code"], &error["id"]), (&json!(code), &json!(5)), "{request}: {error}");
        assert!(ended, "{request}");
    }
}

#[test]
fn a_runtime_survives_its_own_mistakes() {
    let mock = Mock::with([says(&["fine"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let image = json!([{ "role": "user", "content": [{ "type": "image" }] }]);
    for (request, code) in [
        (json!({ "jsonrpc": "2.0", "id": "s", "method": "what" }), -32601),
        (json!({ "jsonrpc": "2.0", "id": "s", "method": "send", "params": {} }), -32600),
        (json!({ "jsonrpc": "2.0", "id": "s", "method": "turn" }), -32600),
        (json!({ "jsonrpc": "2.0", "id": "s", "method": "turn", "params": {} }), -32602),
        (json!({ "jsonrpc": "2.0", "id": "s", "method": "turn", "params": { "messages": [] } }), -32602),
        (json!({ "jsonrpc": "2.0", "id": "s", "method": "turn", "params": { "messages": image } }), -32602),
        (
            json!({ "jsonrpc": "2.0", "id": "s", "method": "turn", "params": { "messages": [{ "role": "system", "content": [] }] } }),
            -32602,
        ),
        (
            json!({ "jsonrpc": "2.0", "id": "s", "method": "turn", "params": { "messages": [{ "role": "assistant", "content": [] }] } }),
            -32602,
        ),
        (
            json!({ "jsonrpc": "2.0", "id": "s", "method": "turn", "params": { "messages": [{ "role": "tool", "tool_call_id": "none", "content": [] }] } }),
            -32602,
        ),
    ] {
        runtime.write(&request);
        let (error, _) = runtime.answer();
        assert_eq!(
            (&error["error"]["code"], &error["id"]),
            (&json!(code), &json!("s")),
            "{request}: {error}"
        );
    }
    assert!(mock.asked().is_empty(), "none of them reached the provider");
    assert_eq!(runtime.says(9, "now properly")["result"]["content"][0]["text"], "fine");
    assert_eq!(mock.last().messages().len(), 1, "none of them is in the conversation");
}

#[test]
fn an_id_comes_back_as_it_was() {
    let mock = Mock::with([says(&["1"]), says(&["2"]), says(&["3"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    for id in [json!(7), json!("7"), json!(-1.5)] {
        let mut request = turn(0, json!([user("x")]));
        request["id"] = id.clone();
        runtime.write(&request);
        assert_eq!(runtime.answer().0["id"], id);
    }
}

#[test]
fn a_partial_frame_survives_what_is_sent_to_it_meanwhile() {
    let mock = Mock::with([says(&["one"]), says(&["two"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let request = frame(turn(1, json!([user("x")])).to_string().as_bytes());
    runtime.raw(&request[..7]);
    // While its frame is half there, the runtime is sent one.
    let mut sender = Client::sender(&home.socket("a"), "hello");
    assert_eq!(sender.expect()["result"]["status"], "delivered");
    assert_eq!(runtime.human()[0]["text"], "hello");
    runtime.raw(&request[7..]);
    assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "one");
    assert_eq!(runtime.says(2, "y")["result"]["content"][0]["text"], "two");
}

#[test]
fn a_header_without_a_body_is_not_waited_for_for_ever() {
    let home = Home::with(&Mock::new());
    let _daemon = home.start();
    // Others are not kept waiting by either: they are answered while both are still heard out. A machine that stood still for
    // the whole time of a frame says nothing about that, so that it is tried again there.
    let both = eventually("others are answered first", || {
        let mut half = Client::connect(&home.socket("a"));
        half.raw(b"\0\0\0\x10{");
        let mut silent = Client::connect(&home.socket("a"));
        assert_eq!(Client::sender(&home.socket("a"), "x").expect()["error"]["code"], -32000);
        (half.is_silent() && silent.is_silent()).then_some([half, silent])
    });
    for mut client in both {
        assert_eq!(client.expect()["error"]["code"], -32600);
        assert!(client.next().is_none());
    }
}

#[test]
fn connections_are_capped_and_come_back() {
    let home = Home::with(&Mock::new());
    let (daemon, mut runtime) = home.serve();
    eventually("the runtime", || (daemon.status("a")["worker"]["runtime"] == true).then_some(()));
    // Who says nothing is the first to go.
    let held: Vec<Client> = (0..300).map(|_| Client::connect(&home.socket("a"))).collect();
    let mut sender = Client::sender(&home.socket("a"), "x");
    assert_eq!(runtime.expect()["method"], "human_message");
    assert_eq!(sender.expect()["result"]["status"], "delivered");
    assert!(daemon.status("a")["worker"]["refused_connections"].as_u64() >= Some(300 - 128));
    drop((runtime, sender));
    drop(held);
    eventually("there is room again", || {
        let mut client = Client::connect(&home.socket("a"));
        client.write(&send("x"));
        (client.expect()["error"]["code"] == -32000).then_some(())
    });
}
