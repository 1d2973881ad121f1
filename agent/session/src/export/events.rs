//! Connections by name and questions for names, in the form that other tools read.

use super::milliseconds;
use ringfence_wire::{
    egress::{EgressOutcome, NameOutcome},
    event::{Connection, Event, Question, Target, Verdict},
};
use serde_json::{Map, Value, json};

/// A connection by name as OCSF Network Activity, a question for a name as OCSF DNS Activity. `None`: the event is neither.
/// <https://schema.ocsf.io/1.4.0/classes/network_activity> <https://schema.ocsf.io/1.4.0/classes/dns_activity>
pub fn ocsf(event: &Event) -> Option<Value> {
    let class = match (&event.connection, &event.question) {
        (Some(connection), _) => network_activity(event, connection),
        (None, Some(question)) => dns_activity(event, question),
        (None, None) => return None,
    };
    let (allowed, denied, observed) = ((1, "Allowed"), (2, "Denied"), (3, "Observed"));
    // OCSF: severity 1 informational, 2 low, 3 medium.
    let (action, disposition, severity) = match event.verdict {
        Verdict::Allowed => (allowed, (1, "Allowed"), 1),
        Verdict::Denied if is_cut(event) => (denied, (6, "Dropped"), 3),
        Verdict::Denied => (denied, (2, "Blocked"), 3),
        Verdict::WouldDeny => (observed, (17, "Logged"), 2),
    };
    let Class { uid, name, activity, status, own } = class;
    let mut all = json!({
        "class_uid": uid, "class_name": name, "category_uid": 4, "category_name": "Network Activity",
        "activity_id": activity.0, "activity_name": activity.1, "type_uid": uid * 100 + activity.0,
        "time": milliseconds(&event.ts), "count": event.repeats.min(i32::MAX.unsigned_abs()), "severity_id": severity,
        "status_id": status.0, "status": status.1,
        "action_id": action.0, "action": action.1, "disposition_id": disposition.0, "disposition": disposition.1,
        "firewall_rule": {"uid": event.rule},
        // The client is a process of a container on this very host.
        "src_endpoint": {"uid": event.container, "name": event.profile},
        "metadata": {"version": "1.4.0", "uid": event.id.to_string(), "profiles": ["security_control"],
                     "product": {"name": "Ringfence", "vendor_name": "Ringfence", "version": env!("CARGO_PKG_VERSION")}},
        "unmapped": {"pid": event.pid, "exec_id": event.exec_id, "uid": event.uid, "tool_call": event.tool_call,
                     "attribution": event.attribution.to_string(), "connection": event.connection, "question": event.question},
    });
    if let (Value::Object(all), Value::Object(own)) = (&mut all, own) {
        all.extend(own.into_iter().filter(|(_, value)| !value.is_null()));
    }
    Some(all)
}

/// What the two classes have apart.
struct Class {
    uid: u32,
    name: &'static str,
    activity: (u32, &'static str),
    status: (u32, &'static str),
    own: Value,
}

const SUCCESS: (u32, &str) = (1, "Success");
const FAILURE: (u32, &str) = (2, "Failure");

/// Whether the worker ended what had begun.
fn is_cut(event: &Event) -> bool {
    event.connection.as_ref().is_some_and(|connection| connection.outcome == EgressOutcome::Ended)
}

fn network_activity(event: &Event, connection: &Connection) -> Class {
    let (activity, status) = match connection.outcome {
        EgressOutcome::Open => ((1, "Open"), SUCCESS),
        EgressOutcome::Passed | EgressOutcome::WouldDeny => ((2, "Close"), SUCCESS),
        EgressOutcome::Ended => ((3, "Reset"), FAILURE),
        EgressOutcome::Failed => ((4, "Fail"), FAILURE),
        EgressOutcome::Refused => ((5, "Refuse"), FAILURE),
    };
    // OCSF's numbers are signed.
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (sent, received) = (number(connection.sent), number(connection.received));
    let ip = connection.dialled.map(|dialled| dialled.ip().to_string());
    let ip = ip.or_else(|| {
        event.name.is_none().then(|| connection.address.map(|address| address.to_string())).flatten()
    });
    let server = [
        ("hostname", event.name.clone().map(Value::from)),
        ("ip", ip.map(Value::from)),
        ("port", port(event).map(Value::from)),
    ];
    let server: Map<String, Value> =
        server.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    // A port alone is no endpoint.
    let is_known = server.contains_key("hostname") || server.contains_key("ip");
    let duration = connection.duration_us / 1000;
    let end = milliseconds(&event.ts);
    Class {
        uid: 4001,
        name: "Network Activity",
        activity,
        status,
        own: json!({
            "dst_endpoint": is_known.then_some(server),
            "connection_info": {"direction_id": 2, "direction": "Outbound", "protocol_name": "tcp", "protocol_num": 6},
            "traffic": {"bytes_out": sent, "bytes_in": received, "bytes": sent.saturating_add(received)},
            "start_time": end.map(|end| end.saturating_sub(number(duration))), "end_time": end, "duration": number(duration),
            "status_detail": connection.reason,
        }),
    }
}

/// The port that was connected to.
fn port(event: &Event) -> Option<u16> {
    let (Target::Addr(target) | Target::Path(target)) = &event.target;
    target.as_deref()?.rsplit_once(':')?.1.parse().ok()
}

fn dns_activity(event: &Event, question: &Question) -> Class {
    let (rcode, status) = match question.outcome {
        NameOutcome::Answered | NameOutcome::Asked | NameOutcome::WouldDeny => ((0, "NoError"), SUCCESS),
        NameOutcome::Refused if ["A", "AAAA", "HTTPS", "SVCB"].contains(&question.kind.as_str()) => {
            ((3, "NXDomain"), FAILURE)
        }
        NameOutcome::Refused => ((5, "Refused"), FAILURE),
        NameOutcome::NoRoom => ((2, "ServError"), FAILURE),
    };
    let answers = question.address.map(|address| json!([{"rdata": address.to_string(), "type": "A"}]));
    Class {
        uid: 4003,
        name: "DNS Activity",
        activity: (2, "Response"),
        status,
        own: json!({
            "query": {"hostname": event.name.as_deref().unwrap_or_default(), "type": question.kind, "class": "IN"},
            "answers": answers, "rcode_id": rcode.0, "rcode": rcode.1,
        }),
    }
}
