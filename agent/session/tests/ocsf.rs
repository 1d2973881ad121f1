//! Calls, and connections by name, in OCSF's form against OCSF's own schema, of which `ocsf/` has the part that is about them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ringfence_session::export::{events, ocsf};
use ringfence_wire::{
    egress::{EgressCause, EgressOutcome, NameOutcome},
    event::{Certainty, Connection, Event, Question, Target, Verdict},
};
use serde_json::{Map, Value, json};

fn schema() -> Value {
    serde_json::from_str(include_str!("ocsf/api_activity-1.4.0.json")).unwrap()
}

/// What of an event the schema does not allow, each with its place.
fn faults(schema: &Value, event: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    if event["metadata"]["version"] != schema["version"] {
        faults.push(format!("metadata.version: {}", event["metadata"]["version"]));
    }
    let profiles = event["metadata"]["profiles"].as_array().cloned().unwrap_or_default();
    let against = Against { schema, profiles };
    against.object(&schema["class"], event, "event", &mut faults);
    let [class, activity] = ["class_uid", "activity_id"].map(|key| event[key].as_i64().unwrap_or_default());
    if event["type_uid"] != class * 100 + activity {
        faults.push(format!("event.type_uid: {}", event["type_uid"]));
    }
    faults
}

struct Against<'a> {
    schema: &'a Value,
    /// Those that the event says it was made with.
    profiles: Vec<Value>,
}

impl Against<'_> {
    fn object(&self, form: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let Some(fields) = value.as_object() else { return faults.push(format!("{at}: no object")) };
        let attributes = form["attributes"].as_object().unwrap();
        // Of an object without attributes, any are allowed.
        if attributes.is_empty() {
            return;
        }
        let has = |attribute: &Value| match &attribute["profile"] {
            Value::Null => true,
            profile => self.profiles.contains(profile),
        };
        for (name, attribute) in attributes {
            if attribute["requirement"] == "required" && has(attribute) && !fields.contains_key(name) {
                faults.push(format!("{at}.{name}: missing"));
            }
        }
        for (name, value) in fields {
            let at = format!("{at}.{name}");
            match attributes.get(name).filter(|attribute| has(attribute)) {
                None => faults.push(format!("{at}: unknown")),
                Some(attribute) if attribute["array"] == true => match value.as_array() {
                    None => faults.push(format!("{at}: no list")),
                    Some(list) => list.iter().for_each(|item| self.value(attribute, item, &at, faults)),
                },
                Some(attribute) => self.value(attribute, value, &at, faults),
            }
        }
        self.constraints(&form["constraints"], fields, at, faults);
    }

    fn constraints(&self, rules: &Value, fields: &Map<String, Value>, at: &str, faults: &mut Vec<String>) {
        for (rule, names) in rules.as_object().into_iter().flatten() {
            let names = names.as_array().unwrap().iter();
            let there = names.filter(|name| fields.contains_key(name.as_str().unwrap())).count();
            let holds = match rule.as_str() {
                "at_least_one" => there > 0,
                "just_one" => there == 1,
                other => panic!("teach this test the constraint {other}"),
            };
            if !holds {
                faults.push(format!("{at}: not {rule}"));
            }
        }
    }

    fn value(&self, attribute: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        if let Some(object) = attribute["object"].as_str() {
            let form = &self.schema["objects"][object];
            assert!(form.is_object(), "{at}: the data have no {object}: add it from OCSF's schema");
            return self.object(form, value, at, faults);
        }
        let kind = &self.schema["types"][attribute["type"].as_str().unwrap()];
        if attribute["type"] == "ip_t" {
            // Its form is a regular expression of a page.
            if value.as_str().is_none_or(|text| text.parse::<std::net::IpAddr>().is_err()) {
                faults.push(format!("{at}: {value}"));
            }
            return;
        }
        assert!(kind["regex"].is_null(), "{at}: teach this test the form of {kind}");
        let fits = match kind["base"].as_str().unwrap() {
            "string_t" => value.as_str().is_some_and(|text| {
                kind["max_len"].as_u64().is_none_or(|most| text.chars().count() as u64 <= most)
            }),
            "integer_t" => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            "long_t" => value.is_i64(),
            "boolean_t" => value.is_boolean(),
            "json_t" => true,
            other => panic!("teach this test the type {other}"),
        };
        let range = kind["range"]
            .as_array()
            .and_then(|range| Some((range.first()?.as_i64()?, range.get(1)?.as_i64()?)));
        let in_range =
            range.is_none_or(|(least, most)| value.as_i64().is_some_and(|n| (least..=most).contains(&n)));
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let listed =
            attribute["enum"].as_array().is_none_or(|all| all.iter().any(|one| one == text.as_str()));
        if !fits || !in_range || !listed {
            faults.push(format!("{at}: {value}"));
        }
    }
}

/// A row of `tool_calls` as the auditor gives it.
fn row() -> Value {
    json!({
        "_rowid": 1, "id": "c1", "session_id": "s1", "request_msg_id": "m1", "response_msg_id": null, "tool_name": "delete_file",
        "arguments": { "path": "/x" }, "result": null, "error": null, "operation_type": "delete", "risk_score": 85,
        "risk_reasons": ["destructive"], "requested_at": "2026-01-02T03:04:05.678901Z", "responded_at": null,
        "duration_ms": null, "policy_action": "pass", "approved_by": null, "approved_at": null, "rules": [], "outcome": null, "decision": null,
        "decided_by": null, "decided_at": null, "_server_name": "files", "_uid": 1000, "_client_info": null,
    })
}

#[test]
fn every_call_is_an_api_activity() {
    let schema = schema();
    let outcomes = [json!(null), json!("blocked"), json!("denied"), json!("approved"), json!("timeout")]
        .into_iter()
        .chain(
            ["cancelled", "ended", "answered", "tool_error", "error", "task", "task_answered"]
                .map(Value::from),
        )
        .chain(["cancelled_in_flight", "killed", "something new"].map(Value::from));
    for outcome in outcomes {
        for operation in ["read", "write", "delete", "execute", "unknown", "something new"] {
            for action in ["pass", "flag", "pause", "block"] {
                for (score, client) in [
                    (0, json!(null)),
                    (31, json!({ "name": "claude-code", "version": "2" })),
                    (100, json!({ "name": "" })),
                ] {
                    let mut row = row();
                    (row["outcome"], row["operation_type"]) = (outcome.clone(), operation.into());
                    row["decision"] = outcome.clone();
                    (row["policy_action"], row["risk_score"], row["_client_info"]) =
                        (action.into(), score.into(), client);
                    let event = ocsf(&row);
                    assert_eq!(faults(&schema, &event), Vec::<String>::new(), "{event}");
                }
            }
        }
    }
}

#[test]
fn answers_of_any_form_are_api_activities() {
    let schema = schema();
    let arguments =
        [json!({}), json!([1]), json!("text"), json!(null), json!({ "deep": { "er": [null, 1.5] } })];
    let answers = [
        (json!({ "content": [] }), json!(null)),
        (json!({ "isError": true }), json!(null)),
        (json!(null), json!({ "code": -32602, "message": "no" })),
        (json!(null), json!("odd")),
    ];
    for arguments in arguments {
        for (result, error) in &answers {
            let mut row = row();
            (row["arguments"], row["result"], row["error"]) =
                (arguments.clone(), result.clone(), error.clone());
            (row["responded_at"], row["duration_ms"]) = ("2026-01-02T03:04:06Z".into(), 321.into());
            (row["approved_by"], row["risk_reasons"]) = ("uid 0".into(), json!(null));
            let event = ocsf(&row);
            assert_eq!(faults(&schema, &event), Vec::<String>::new(), "{event}");
        }
    }
}

#[test]
fn what_the_schema_does_not_allow_is_found() {
    let (schema, whole) = (schema(), ocsf(&row()));
    let changes: [(&str, Value, &str); 9] = [
        ("/activity_id", json!(5), "event.activity_id: 5"),
        ("/class_uid", json!(6004), "event.class_uid: 6004"),
        ("/type_uid", json!(600_301), "event.type_uid: 600301"),
        ("/time", json!("now"), "event.time: \"now\""),
        ("/severity_id", json!(1_u64 << 40), "event.severity_id: 1099511627776"),
        ("/metadata/version", json!("1.0.0"), "metadata.version: \"1.0.0\""),
        ("/metadata/product", json!({ "vendor_name": "x" }), "event.metadata.product: not at_least_one"),
        ("/src_endpoint", json!({}), "event.src_endpoint: not at_least_one"),
        ("/actor/user", json!({ "uid": 7 }), "event.actor.user.uid: 7"),
    ];
    for (place, value, fault) in changes {
        let mut event = whole.clone();
        *event.pointer_mut(place).unwrap() = value;
        assert!(faults(&schema, &event).contains(&fault.to_owned()), "{:?}", faults(&schema, &event));
    }
    let mut event = whole.clone();
    event.as_object_mut().unwrap().remove("api");
    event["cloud"] = json!({});
    event["metadata"]["profiles"] = json!([]);
    let of_profile = ["action", "action_id", "cloud", "disposition", "disposition_id"];
    let expected: Vec<String> = std::iter::once("event.api: missing".to_owned())
        .chain(of_profile.map(|name| format!("event.{name}: unknown")))
        .collect();
    assert_eq!(faults(&schema, &event), expected, "of profiles that the event was not made with");
}

fn schema_of(class: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("ocsf/network-1.4.0.json")).unwrap();
    let mut schema = all.clone();
    schema["class"] = all["classes"][class].clone();
    assert!(schema["class"].is_object(), "{class}");
    schema
}

/// An event of the kernel's, without what makes it one by name.
fn event() -> Event {
    Event {
        ts: "2026-01-02T03:04:05.678901Z".into(),
        id: 7,
        container: "0123456789ab".into(),
        profile: "coder".into(),
        verdict: Verdict::Allowed,
        op: "net.connection".into(),
        target: Target::Addr(Some("pypi.org:443".into())),
        flags: Vec::new(),
        pid: 11,
        tgid: 10,
        ppid: 0,
        exec_id: "10:7".into(),
        exe: String::new(),
        uid: 1000,
        rule: "net:pypi.org:443".into(),
        tool_call: Some("toolu_1".into()),
        attribution: Certainty::Exact,
        candidates: Vec::new(),
        repeats: 1,
        name: Some("pypi.org".into()),
        connection: None,
        question: None,
    }
}

fn connection(outcome: EgressOutcome) -> Connection {
    Connection {
        outcome,
        cause: None,
        reason: None,
        address: Some([198, 18, 3, 1].into()),
        dialled: Some(([151, 101, 0, 223], 443).into()),
        tls: true,
        sent: 2101,
        received: 48_210,
        duration_us: 412_007,
    }
}

#[test]
fn every_connection_is_a_network_activity() {
    let schema = schema_of("network_activity");
    for (outcome, verdict, expected) in [
        (EgressOutcome::Passed, Verdict::Allowed, ("Close", "Success", "Allowed", "Allowed")),
        (EgressOutcome::Failed, Verdict::Allowed, ("Fail", "Failure", "Allowed", "Allowed")),
        (EgressOutcome::Refused, Verdict::Denied, ("Refuse", "Failure", "Denied", "Blocked")),
        (EgressOutcome::Ended, Verdict::Denied, ("Reset", "Failure", "Denied", "Dropped")),
        (EgressOutcome::WouldDeny, Verdict::WouldDeny, ("Close", "Success", "Observed", "Logged")),
    ] {
        for (name, dialled) in [
            (Some("pypi.org"), Some("151.101.0.223:443")),
            (Some("pypi.org"), Some("[2a04:4e42::223]:443")),
            (Some("pypi.org"), None),
            (None, None),
        ] {
            let mut told = connection(outcome);
            told.dialled = dialled.map(|dialled| dialled.parse().unwrap());
            (told.cause, told.reason) = (Some(EgressCause::NotTls), Some("it said nothing".into()));
            (told.sent, told.received) = (u64::MAX, u64::MAX);
            let name = name.map(str::to_owned);
            let event = Event { verdict, name, connection: Some(told), repeats: u32::MAX, ..event() };
            let ocsf = events::ocsf(&event).unwrap();
            assert_eq!(faults(&schema, &ocsf), Vec::<String>::new(), "{ocsf}");
            let words =
                ["activity_name", "status", "action", "disposition"].map(|key| ocsf[key].as_str().unwrap());
            assert_eq!(words, [expected.0, expected.1, expected.2, expected.3]);
        }
    }
    let mut nowhere = connection(EgressOutcome::Refused);
    (nowhere.address, nowhere.dialled) = (None, None);
    let ocsf = events::ocsf(&Event { name: None, connection: Some(nowhere), ..event() }).unwrap();
    assert_eq!(faults(&schema, &ocsf), Vec::<String>::new(), "{ocsf}");
    let ocsf =
        events::ocsf(&Event { connection: Some(connection(EgressOutcome::Passed)), ..event() }).unwrap();
    assert_eq!(ocsf["dst_endpoint"], json!({ "hostname": "pypi.org", "ip": "151.101.0.223", "port": 443 }));
    assert_eq!(ocsf["traffic"], json!({ "bytes_out": 2101, "bytes_in": 48_210, "bytes": 50_311 }));
    assert_eq!(
        (&ocsf["end_time"], &ocsf["start_time"]),
        (&json!(1_767_323_045_678_i64), &json!(1_767_323_045_266_i64))
    );
    assert!(events::ocsf(&event()).is_none(), "the kernel's own");
}

#[test]
fn every_question_is_a_dns_activity() {
    let schema = schema_of("dns_activity");
    for (kind, outcome, verdict, rcode) in [
        ("A", NameOutcome::Answered, Verdict::Allowed, "NoError"),
        ("AAAA", NameOutcome::Refused, Verdict::Denied, "NXDomain"),
        ("HTTPS", NameOutcome::Refused, Verdict::Denied, "NXDomain"),
        ("TXT", NameOutcome::Refused, Verdict::Denied, "Refused"),
        ("A", NameOutcome::NoRoom, Verdict::Denied, "ServError"),
        ("A", NameOutcome::WouldDeny, Verdict::WouldDeny, "NoError"),
    ] {
        let address = (verdict != Verdict::Denied).then(|| [198, 18, 3, 1].into());
        let question = Question { kind: kind.into(), outcome, address };
        let told = Event { verdict, question: Some(question), repeats: 5, ..event() };
        let ocsf = events::ocsf(&told).unwrap();
        assert_eq!(faults(&schema, &ocsf), Vec::<String>::new(), "{ocsf}");
        assert_eq!((&ocsf["rcode"], &ocsf["count"]), (&json!(rcode), &json!(5)));
        assert_eq!(ocsf["query"]["hostname"], "pypi.org");
        assert_eq!(ocsf.get("answers").is_some(), address.is_some());
    }
}

#[test]
fn what_the_schema_of_networks_does_not_allow_is_found() {
    let schema = schema_of("network_activity");
    let whole =
        events::ocsf(&Event { connection: Some(connection(EgressOutcome::Passed)), ..event() }).unwrap();
    let changes: [(&str, Value, &str); 5] = [
        ("/activity_id", json!(8), "event.activity_id: 8"),
        ("/dst_endpoint/ip", json!("pypi.org"), "event.dst_endpoint.ip: \"pypi.org\""),
        ("/dst_endpoint/port", json!(65_536), "event.dst_endpoint.port: 65536"),
        ("/connection_info", json!({}), "event.connection_info.direction_id: missing"),
        ("/traffic/bytes", json!("many"), "event.traffic.bytes: \"many\""),
    ];
    for (place, value, fault) in changes {
        let mut event = whole.clone();
        *event.pointer_mut(place).unwrap() = value;
        assert!(faults(&schema, &event).contains(&fault.to_owned()), "{:?}", faults(&schema, &event));
    }
}
