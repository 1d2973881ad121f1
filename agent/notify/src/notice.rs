//! What is said of a call that waits: JSON for a webhook, text for a desktop. Pure.
//!
//! Names and arguments are an agent's and a server's: they are data. The auditor bounds them; a desktop gets them without anything
//! that it would obey.

use ringfence_base::{clock::rfc3339, escape};
use ringfence_wire::{egress_asks::WaitingConnection, mcp::WaitingCall};
use serde_json::json;

/// Characters of one text on a desktop.
const SHOWN: usize = 120;
/// Characters of a call's arguments there.
const SHOWN_ARGUMENTS: usize = 300;

/// A call, and whether its arguments may be told.
#[derive(Debug, Clone)]
pub(crate) struct Notice {
    call: WaitingCall,
    with_arguments: bool,
}

impl Notice {
    pub(crate) const fn new(call: WaitingCall, with_arguments: bool) -> Self {
        Self { call, with_arguments }
    }

    /// The message's id: the same for each attempt, and for whoever tells of the call as well.
    pub(crate) fn id(&self) -> String {
        format!("call_{}", self.call.id)
    }

    /// When the call is denied by itself, µs since 1970: nobody has to be told any more.
    pub(crate) const fn until(&self) -> i64 {
        self.call.until
    }

    /// The body of a webhook.
    pub(crate) fn body(&self) -> Vec<u8> {
        let WaitingCall {
            id,
            session,
            server,
            tool,
            arguments,
            arguments_bytes,
            score,
            reasons,
            rules,
            since,
            until,
            connection,
        } = &self.call;
        let mut data = json!({
            "id": id, "session_id": session, "server_name": server, "tool_name": tool, "risk_score": score,
            "risk_reasons": reasons, "rules": rules, "since": rfc3339(*since), "until": rfc3339(*until),
        });
        if let Some(connection) = connection {
            data["connection"] = json!(connection);
        }
        if self.with_arguments {
            // A text, as it may be cut.
            data["arguments"] = arguments.as_str().into();
            data["arguments_bytes"] = json!(arguments_bytes);
        }
        json!({ "type": "approval.waiting", "timestamp": rfc3339(*since), "data": data })
            .to_string()
            .into_bytes()
    }

    /// A title and a text for a desktop, which may read the text as markup.
    pub(crate) fn text(&self) -> (String, String) {
        let WaitingCall { id, server, tool, arguments, score, reasons, rules, connection, .. } = &self.call;
        let because: Vec<&str> = rules.iter().chain(reasons).map(String::as_str).collect();
        let because = if because.is_empty() { "its score".to_owned() } else { because.join(", ") };
        let (title, server) = match connection {
            None => ("Ringfence: a call waits for you", plain(server, SHOWN)),
            // Its end says whose a host is, whatever comes before that.
            Some(connection) => {
                ("Ringfence: a connection waits for you", plain(&domain(&connection.host), SHOWN))
            }
        };
        let mut text =
            format!("{server}: {}, risk {score}\nbecause: {}", plain(tool, SHOWN), plain(&because, SHOWN));
        if let Some(WaitingConnection { host, port, container, profile, within }) = connection {
            // Its profile was chosen by whoever runs there.
            let outer = within.as_ref().map_or_else(String::new, |outer| format!(" within {outer}"));
            let whose = format!("port {port}, container {container}{outer}, profile {profile}");
            text += &format!("\nto {}\n{}", plain(&end(host), SHOWN), plain(&whose, SHOWN));
        }
        if self.with_arguments {
            text += &format!("\n{}", plain(arguments, SHOWN_ARGUMENTS));
        }
        text += &format!("\nringfence approvals approve {}", plain(id.get(..8).unwrap_or(id), SHOWN));
        (title.to_owned(), text)
    }
}

/// The last three labels of a host.
fn domain(host: &str) -> String {
    match host.rmatch_indices('.').nth(2).and_then(|(dot, _)| host.get(dot..)) {
        Some(last) => end(&format!("…{last}")),
        None => end(host),
    }
}

/// A host, or as much of its end as is shown.
fn end(host: &str) -> String {
    let letters = host.chars().count();
    if letters <= SHOWN {
        return host.to_owned();
    }
    let rest = host.chars().skip(letters - (SHOWN - 1));
    std::iter::once('…').chain(rest).collect()
}

/// A text on one line, of at most so many characters, with nothing in it that a desktop would take for markup. `notify-send` undoes
/// escapes by backslashes in what it is given: each backslash is two.
fn plain(text: &str, most: usize) -> String {
    let line = escape::line(text);
    let mut shown = String::new();
    let mut letters = line.chars();
    for letter in letters.by_ref().take(most) {
        match letter {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            '\\' => shown.push_str("\\\\"),
            letter => shown.push(letter),
        }
    }
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn call() -> WaitingCall {
        WaitingCall {
            id: "3f2a9c1b-0000-4000-8000-000000000000".into(),
            session: "s".into(),
            server: "<b>fs</b>".into(),
            tool: "a\u{1b}[31m\u{202e}\n&x".into(),
            arguments: format!("{{\"path\":\"{}\"}}", "<a href='x'>".repeat(100)),
            arguments_bytes: Some(9_999),
            score: 70,
            reasons: vec!["destructive".into()],
            rules: vec!["r".into()],
            since: 1_000_000,
            until: 51_000_000,
            connection: None,
        }
    }

    #[test]
    fn a_webhook_has_no_arguments_unless_they_are_asked_for() {
        let of = |with: bool| -> Value {
            serde_json::from_slice(&Notice::new(call(), with).body()).expect("JSON")
        };
        let expected = json!({ "type": "approval.waiting", "timestamp": "1970-01-01T00:00:01.000000Z", "data": {
            "id": "3f2a9c1b-0000-4000-8000-000000000000", "session_id": "s", "server_name": "<b>fs</b>",
            "tool_name": "a\u{1b}[31m\u{202e}\n&x", "risk_score": 70, "risk_reasons": ["destructive"], "rules": ["r"],
            "since": "1970-01-01T00:00:01.000000Z", "until": "1970-01-01T00:00:51.000000Z" } });
        assert_eq!(of(false), expected);
        let mut with = of(true);
        assert_eq!(
            (with["data"]["arguments_bytes"].as_u64(), &with["data"]["arguments"]),
            (Some(9_999), &call().arguments.into())
        );
        with["data"].as_object_mut().expect("an object").retain(|key, _| !key.starts_with("arguments"));
        assert_eq!(with, expected);
    }

    #[test]
    fn a_connection_is_told_with_whose_it_is() {
        let connection = WaitingConnection {
            host: "a.org".into(),
            port: 443,
            container: "0123456789ab".into(),
            profile: "coder".into(),
            within: None,
        };
        let call = WaitingCall { server: "a.org".into(), connection: Some(connection.clone()), ..call() };
        let notice = Notice::new(call, false);
        let body: Value = serde_json::from_slice(&notice.body()).expect("JSON");
        let told = json!({ "host": "a.org", "port": 443, "container": "0123456789ab", "profile": "coder" });
        assert_eq!(body["data"]["connection"], told);
        let (title, text) = notice.text();
        assert_eq!(title, "Ringfence: a connection waits for you");
        assert!(text.starts_with("a.org: "), "{text}");
        assert!(text.contains("\nto a.org\nport 443, container 0123456789ab, profile coder\n"), "{text}");
        let inner = WaitingConnection { within: Some("00000000000a".into()), ..connection.clone() };
        let call = WaitingCall { connection: Some(inner), ..notice.call.clone() };
        let (_, text) = Notice::new(call, false).text();
        assert!(text.contains(", container 0123456789ab within 00000000000a, profile coder\n"), "{text}");
        // Whoever makes up a name has much room before its end.
        let long = "a".repeat(60);
        let host = format!("github.com.{long}.{long}.{long}.evil.example");
        let connection = WaitingConnection { host: host.clone(), ..connection };
        let call = WaitingCall { server: host, connection: Some(connection), ..notice.call };
        let (_, text) = Notice::new(call, false).text();
        assert!(text.starts_with(&format!("….{long}.evil.example: ")), "{text}");
        let to = text.lines().find_map(|line| line.strip_prefix("to ")).expect("where to");
        assert!(to.starts_with('…') && to.ends_with(".evil.example") && to.chars().count() == SHOWN, "{to}");
        assert!(!text.contains("github"), "{text}");
    }

    #[test]
    fn a_desktop_gets_text_that_it_cannot_obey() {
        for with in [false, true] {
            let (title, text) = Notice::new(call(), with).text();
            assert_eq!(title, "Ringfence: a call waits for you");
            assert!(text.starts_with(r"&lt;b&gt;fs&lt;/b&gt;: a\\x1b[31m"), "{text}");
            assert!(!text.contains(['<', '>', '\u{1b}', '\u{202e}', '"', '\'']), "{text}");
            assert_eq!(text.lines().count(), if with { 4 } else { 3 }, "{text}");
            assert!(text.ends_with("\nringfence approvals approve 3f2a9c1b"), "{text}");
            assert!(text.chars().count() < 3_000 && text.contains('…') == with, "{text}");
        }
    }
}
