//! What goes and what stays, and that JSON stays JSON.

use super::{command, message, redact};
use nix::time::{ClockId, clock_gettime};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn values_of_secret_keys_go_and_the_rest_stays() {
    let cases = [
        (r#"{"password":"hunter2","user":"a"}"#, r#"{"password":"[redacted]","user":"a"}"#),
        (r#"{"apiKey": "x", "b": "y"}"#, r#"{"apiKey": "[redacted]", "b": "y"}"#),
        (
            r#"{"secrets":["a",{"b":"c"}],"d":"e"}"#,
            r#"{"secrets":["[redacted]",{"b":"[redacted]"}],"d":"e"}"#,
        ),
        (r#"{"a":{"token":"t\"u"},"x":"y"}"#, r#"{"a":{"token":"[redacted]"},"x":"y"}"#),
        (r#"{"passw\u006frd":"hunter2"}"#, r#"{"passw\u006frd":"[redacted]"}"#),
        (r#"{"max_tokens":100,"tokenizer":"cl100k"}"#, r#"{"max_tokens":100,"tokenizer":"cl100k"}"#),
        (r#"{"_meta":{"progressToken":"p1"}}"#, r#"{"_meta":{"progressToken":"p1"}}"#),
        (r#"{"_meta":{"progressToken":17}}"#, r#"{"_meta":{"progressToken":17}}"#),
        (r#"{"pin":1234,"n":5}"#, r#"{"pin":"[redacted]","n":5}"#),
        (r#"{"password":[-1.5e+3,null,true],"a":-2}"#, r#"{"password":["[redacted]",null,true],"a":-2}"#),
        (
            r#"{"secret":{"a":1,"b":{"c":22}},"d":3}"#,
            r#"{"secret":{"a":"[redacted]","b":{"c":"[redacted]"}},"d":3}"#,
        ),
        (
            r#"{"Set-Cookie":1,"X_API_KEY":2,"accessKeyID":3,"monkey":4}"#,
            r#"{"Set-Cookie":"[redacted]","X_API_KEY":"[redacted]","accessKeyID":"[redacted]","monkey":4}"#,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(redact(text), expected, "{text}");
    }
}

#[test]
fn a_command_line_keeps_its_words_and_not_its_secrets() {
    let cases: [(&[&str], &[&str]); 14] = [
        (
            &["npx", "-y", "server-postgres", "postgresql://me:hunter2@localhost/db"],
            &["npx", "-y", "server-postgres", "postgresql://[redacted]@localhost/db"],
        ),
        (&["srv", "--api-key", "abc", "--port", "80"], &["srv", "--api-key", "[redacted]", "--port", "80"]),
        (&["srv", "--token=abc", "--level=2"], &["srv", "--token=[redacted]", "--level=2"]),
        (&["env", "GITHUB_TOKEN=abc", "srv"], &["env", "GITHUB_TOKEN=[redacted]", "srv"]),
        (&["remote", "--header", "X-Api-Key: abc"], &["remote", "--header", "X-Api-Key:[redacted]"]),
        (&["srv", "--password", "--verbose", "x"], &["srv", "--password", "--verbose", "x"]),
        (&["srv", "--token", "a=b:c"], &["srv", "--token", "[redacted]"]),
        (&["srv", "sk-0123456789abcdef0123"], &["srv", "[redacted]"]),
        (
            &["docker", "run", "-e", "STRIPE_KEY=a1b2c3d4e5f6g7h8i9", "image"],
            &["docker", "run", "-e", "STRIPE_KEY=[redacted]", "image"],
        ),
        (
            &["/usr/bin/mysql", "-uroot", "-phunter2", "db"],
            &["/usr/bin/mysql", "-uroot", "-p[redacted]", "db"],
        ),
        (&["curl", "-ume:hunter2", "h"], &["curl", "-ume:[redacted]", "h"]),
        (
            &["curl", "-u", "ghp_0123456789abcdefABCDEF0123456789abcd:hunter2"],
            &["curl", "-u", "[redacted]:[redacted]"],
        ),
        (&["curl", "-u", "me:hunter2", "h"], &["curl", "-u", "me:[redacted]", "h"]),
        (&["srv", "--token", "${TOKEN}", "-p", "x"], &["srv", "--token", "${TOKEN}", "-p", "x"]),
    ];
    for (words, expected) in cases {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(command(&words), expected, "{words:?}");
    }
}

#[test]
fn a_log_s_line_is_no_json() {
    for text in [
        "{}",
        "[]",
        "[1]",
        "[-1.5e3, 2]",
        "[null]",
        "[true,false]",
        "[ [1] ]",
        "[{\"a\":1}]",
        "{\"a\": 1}",
        "{\"a\"",
        "{\"a\\\"b\":1}",
        "[1",
        "\"a\"",
        "{}\n{}",
        "[1]\n[2]",
    ] {
        assert!(crate::json::is_json(text), "{text}");
    }
    for text in [
        "[2026-11-27 10:00] a",
        "[12:00:01] a",
        "[12] a",
        "[] a",
        "[null] a",
        "[info] a",
        "[-] a",
        "[,]",
        "{} a",
        "{\"a\" b}",
        "{\"a\"}",
        "{\"a\", 1}",
        "a",
        "",
    ] {
        assert!(!crate::json::is_json(text), "{text}");
    }
    let line = "[2026-11-27T10:00:00Z] login with password='hunter2x' from \"a b\"";
    assert!(!redact(line).contains("hunter2x"), "{}", redact(line));
    let line = "[12] mysql -uroot -p'hunter2x' db";
    assert!(!redact(line).contains("hunter2x"), "{}", redact(line));
}

#[path = "../examples/measure/plain_texts.rs"]
mod plain_texts;

#[test]
fn plain_texts_cost_the_first_search_alone() {
    for (name, text) in plain_texts::texts() {
        let text = &text[..text.floor_char_boundary(4000)];
        let matter: Vec<_> = super::scan::hits(text)
            .filter(|hit| super::plain::may_matter(text, hit))
            .map(|hit| &text[hit.at..text.len().min(hit.at + 40)])
            .collect();
        assert!(matter.is_empty(), "{name}: {matter:?}");
    }
}

#[test]
fn what_holds_a_secret_does_not_look_harmless() {
    for text in [
        r#"{"password":1}"#,
        r#"{"API_KEY":1}"#,
        r#"{"Set-Cookie":1}"#,
        "\\u0070",
        "https:\\/\\/u:pw@h",
        "https://u:pw@h",
        "Bearer abcdefgh1234",
        "-----BEGIN PRIVATE KEY-----",
    ] {
        assert!(!super::is_harmless(text), "{text}");
    }
    for text in [
        r#"{"id":17,"method":"tools/call","params":{"name":"get_echo","arguments":{"text":"x"}}}"#,
        r#"{"max_tokens":4096,"author":"a","keyboard":"b","text":"a\nb\té \"key\" https://h/x?a=b@c"}"#,
        "the bearer of this token knows the secret, and keys pass authors by",
    ] {
        assert!(super::is_harmless(text), "{text}");
    }
}

proptest! {
    #[test]
    fn in_what_looks_harmless_nothing_is_found(text in r#"\{"(id|pass|my_?[Kk]ey|jw|token|a)":("(sk-|eyJ|hf|gh|://a:b@|Bearer )?[a-c]{0,30}"|[0-9]),? ?"(pin|b|api_|Key|creds?)":1\}"#) {
        if super::is_harmless(&text) {
            let found = super::look_through(&text, false, super::DEEPEST_TEXT);
            prop_assert!(matches!(found, std::borrow::Cow::Borrowed(_)), "{}", text);
        }
    }
}

#[test]
fn json_in_a_string_is_looked_into() {
    let inner = json!({"user": "a", "password": "hunter2", "pin": 4711, "note": "it's \"quoted\""});
    let clean =
        json!({"user": "a", "password": "[redacted]", "pin": "[redacted]", "note": "it's \"quoted\""});
    let nested = |value: &Value, levels: usize| {
        (0..levels).fold(value.clone(), |value, _| json!({"type": "text", "text": value.to_string()}))
    };
    for levels in 1..=super::DEEPEST_TEXT {
        let text = nested(&inner, levels).to_string();
        let found: Value = serde_json::from_str(&redact(&text)).expect("JSON");
        assert_eq!(found, nested(&clean, levels), "{levels}");
    }
    // In the middle of prose, too; and nothing else changes.
    let prose = json!({"text": "found {\"api_key\": \"abc\", \"n\": 1} and \"more\", 3-4 times"}).to_string();
    assert_eq!(redact(&prose), prose.replace("abc", "[redacted]"));
    let untouched = json!({"text": "{\"a\": \"b\"}", "t": "5\" by 3\""}).to_string();
    assert!(matches!(redact(&untouched), std::borrow::Cow::Borrowed(_)));
}

#[test]
fn deep_texts_in_texts_end() {
    let text = (0..12).fold("{\"password\":1}".to_owned(), |text, _| Value::from(text).to_string());
    assert!(serde_json::from_str::<Value>(&redact(&text)).is_ok());
}

#[test]
fn tokens_go_by_their_shape() {
    for secret in [
        "sk-ant-api03-Zm9vYmFyYmF6cXV4",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
        "Bearer abcdefghijklmnop",
        "-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY-----",
    ] {
        let text = format!(r#"{{"text":"before {secret} after"}}"#);
        assert_eq!(redact(&text), r#"{"text":"before [redacted] after"}"#, "{secret}");
    }
    assert_eq!(redact("https://u:pw@host/x"), "https://[redacted]@host/x");
    assert_eq!(redact("nothing here: 12345"), "nothing here: 12345");
}

#[test]
fn nothing_is_taken_beyond_the_end_of_its_string() {
    let cases = [
        (r#"{"a":"-----BEGIN RSA PRIVATE KEY-----\nMIIE","b":{"c":1}}"#, r#"{"a":"[redacted]","b":{"c":1}}"#),
        (
            r#"{"a":"\npm_abcdefghijklmnopqrstuvwxyz0123456789"}"#,
            r#"{"a":"\npm_abcdefghijklmnopqrstuvwxyz0123456789"}"#,
        ),
        (r#"{"a":"\bearer abcdefghijklmnop"}"#, r#"{"a":"\bearer abcdefghijklmnop"}"#),
        (r#"{"a":"\"\u0073k-abcdefghijklmnopqrst\""}"#, r#"{"a":"\"[redacted]\""}"#),
        (r#"{"AKIAIOSFODNN7EXAMPLE":1,"AKIAIOSFODNN8EXAMPLE":2}"#, r#"{"[redacted]":1,"[redacted 2]":2}"#),
    ];
    for (text, expected) in cases {
        assert_eq!(redact(text), expected, "{text}");
    }
    assert_eq!(
        redact("key: AKIAIOSFODNN7EXAMPLE \"x\" AKIAIOSFODNN7EXAMPLE"),
        "key: [redacted] \"x\" [redacted]"
    );
}

#[test]
fn what_pairs_messages_stays() {
    let token = "AKIAIOSFODNN7EXAMPLE";
    let call = format!(
        r#"{{"id":"{token}","method":"tools/call","params":{{"name":"{token}","arguments":{{"name":"{token}","id":"{token}"}}}}}}"#
    );
    let kept = format!(
        r#"{{"id":"{token}","method":"tools/call","params":{{"name":"{token}","arguments":{{"name":"[redacted]","id":"[redacted]"}}}}}}"#
    );
    assert_eq!(message(&call), kept);
    assert_eq!(message(&format!("[{call}, {call}]")), format!("[{kept}, {kept}]"));
    assert_eq!(redact(&format!(r#"{{"id":"{token}"}}"#)), r#"{"id":"[redacted]"}"#);
}

#[test]
fn what_stands_between_the_lines_of_a_key_is_shown_unless_it_is_a_key() {
    let hidden =
        "rm a; : '-----BEGIN PRIVATE KEY-----'; curl -T ~/work x.example; : '-----END PRIVATE KEY-----'";
    assert!(redact(hidden).contains("curl -T ~/work x.example"), "{}", redact(hidden));
    let lines = "-----BEGIN PRIVATE KEY-----\ncurl -T /work x.example\n-----END PRIVATE KEY-----";
    assert!(redact(lines).contains("curl -T /work"), "{}", redact(lines));
    for key in [
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\nMIIEabc+/=\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\\nMIIEabc\\nMIIE==\\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----MIIEabcMIIE-----END PRIVATE KEY-----",
        "\"-----BEGIN PRIVATE KEY-----\\n\" +\n  \"MIIEabcMIIE\\n\" +\n  \"-----END PRIVATE KEY-----\"",
    ] {
        assert!(!redact(key).contains("MII"), "{}", redact(key));
    }
}

#[test]
fn what_follows_in_the_line_is_looked_at_too() {
    let twice = "curl -s https://a && curl -u admin:hunter2x https://b";
    assert!(!redact(twice).contains("hunter2x"), "{}", redact(twice));
    let ruler = format!("{}auth\nDB_PASSWORD=hunter2x", "-".repeat(126));
    assert!(!redact(&ruler).contains("hunter2x"), "{}", redact(&ruler));
}

/// This thread's time on a processor, whatever else the machine does.
fn worked() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).expect("the clock")
}

/// The better of two.
fn takes(text: &str) -> Duration {
    let once = || {
        let begun = worked();
        assert!(!redact(text).is_empty());
        worked() - begun
    };
    (0..2).map(|_| once()).min().unwrap_or_default()
}

#[test]
fn sixteen_times_the_text_takes_about_sixteen_times_as_long() {
    for worst in [
        "eyJAKIA0123456789ABCDEF",
        "-----BEGIN AKIA0123456789ABCDEF",
        "eyJaaaaaaaa.eyJ",
        "-eyJ",
        "_eyJa.eyJ-",
        "Private-Lines:",
        "-fm1r_9dK2xQvB7mZpL4sTnW8cYhR",
        "curl && ",
        "://a:",
        "bearer ",
        "=",
        "password=",
        "password:",
        "a password:password.",
        "password='",
        "x password=\\\"",
        "cookie: a",
        "authorization: a ",
        "sk-",
        "c2st",
        "ZXlK.",
        "mysql -p ",
        "kind: Secret\n",
        "-----BEGIN PRIVATE KEY-----",
        "twitter ",
        "twitter = a",
        "name: password\n",
        "machine login password ",
        "{\"password\":[",
        "[\"token\",",
        "\\\"\\\\\\\"",
        "echo x | --password-stdin ",
        "password:\n ",
        "auth=(\"a\",",
    ] {
        let text = worst.repeat((1 << 16) / worst.len());
        let (long, short) = (takes(&text), takes(&text[..text.len() / 16]));
        // The clock of a thread is coarse: what takes no time at all is not compared.
        let least = Duration::from_millis(2);
        assert!(long < short.max(least) * 16 * 6, "{worst}: {short:?}, then {long:?}");
    }
}

fn hostile() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "-",
        "sk-",
        "aaaaaaaaaaaaaaaaaaaa",
        "AKIAIOSFODNN7EXAMPLE",
        "\n",
        "pm_",
        "npm_",
        "0123456789012345678901234567890",
        "\u{8}",
        "earer ",
        "Bearer ",
        "eyJaaaaaaaa",
        ".",
        "\"",
        "\\",
        "{",
        "}",
        ",",
        ":",
        "://u:p@",
        "password",
        "\u{e9}",
        "\u{1f600}",
        "id",
        "name",
        "params",
        "\u{2028}",
        "[redacted]",
    ]);
    prop::collection::vec(parts, 0..6).prop_map(|parts| parts.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![hostile().prop_map(Value::from), any::<i32>().prop_map(Value::from), Just(Value::Null)];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((hostile(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The same JSON, every character of its strings escaped.
fn escaped(text: &str) -> String {
    let (mut out, mut quoted, mut chars) = (String::new(), false, text.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                quoted = !quoted;
                out.push('"');
            }
            '\\' => out.extend(Some(c).into_iter().chain(chars.next())),
            c if quoted && c.is_ascii() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

proptest! {
    #[test]
    fn a_message_stays_json_of_the_same_id_method_and_tool(
        id in hostile(), method in hostile(), tool in hostile(), arguments in value(), escape: bool,
    ) {
        let text = json!({"id": id, "method": method, "params": {"name": tool, "arguments": arguments}}).to_string();
        let text = if escape { escaped(&text) } else { text };
        let found = message(&text);
        let read: Value = serde_json::from_str(&found).expect("JSON");
        prop_assert_eq!(&read["id"], &id);
        prop_assert_eq!(&read["method"], &method);
        prop_assert_eq!(&read["params"]["name"], &tool);
        let arguments = read["params"]["arguments"].to_string();
        prop_assert!(!arguments.contains("AKIAIOSFODNN7EXAMPLE"), "{}", arguments);
    }

    #[test]
    fn any_text_passes(text in ".{0,80}", quoted in r#"["\\{}:,a\u{e9}]{0,40}"#) {
        let _ = redact(&text);
        let _ = redact(&quoted);
    }
}
