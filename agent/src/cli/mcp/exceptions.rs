//! An exception that is made from a call on record, and what one is about in words.

use crate::cli::output::word;
use anyhow::{Context, bail};
use ringfence_grant::{HostPattern, NetEntry};
use ringfence_redact::REDACTED;
use ringfence_session::{exceptions, risk};
use ringfence_wire::{
    egress_asks::CONNECT,
    exception::{Argument, Exception, JsonType},
};
use serde_json::Value;

/// An exception about calls like this one, by the auditor's suggestion: with these reasons, where some are named, and the values of
/// these arguments.
pub(super) fn like(call: &Value, reasons: &[String], same: &[String]) -> anyhow::Result<Exception> {
    if let Some(name) = call["arguments"].as_object().and_then(exceptions::without_type) {
        bail!(
            "no exception can be made from this call: the value of {name:?} is redacted, and its type is not on record"
        );
    }
    let mut exception: Exception = serde_json::from_value(call["suggested_exception"].clone())
        .context("no exception can be made from this call: its arguments are not on record as an object")?;
    let of_call: Vec<&str> =
        call["risk_reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !reasons.is_empty() {
        if let Some(other) = reasons.iter().find(|reason| !of_call.contains(&reason.as_str())) {
            bail!("{other:?} is no reason of this call's score; those are {}", of_call.join(", "));
        }
        exception.reasons = reasons.to_vec();
    } else if exception.reasons.is_empty() {
        if of_call.is_empty() {
            bail!("this call has no reasons: its score is 0 already");
        }
        bail!(
            "the reasons of this call are {}: name those that are not to count, by --reason",
            of_call.join(", ")
        );
    }
    for name in same {
        let argument = exception.arguments.iter_mut().find(|argument| argument.name == *name);
        let argument = argument.with_context(|| format!("this call has no argument {name:?}"))?;
        let value = &call["arguments"][name];
        if value.as_str().is_some_and(|text| text.contains(REDACTED)) {
            bail!("the value of {name:?} is not on record: it is redacted, and cannot be asked for");
        }
        argument.equals = Some(value.clone());
    }
    Ok(exception)
}

/// An exception about connections to a host and port, for which a person would be asked.
pub(super) fn of_connection(text: &str) -> anyhow::Result<Exception> {
    let Ok(NetEntry::Host { host: HostPattern::Exact(host), port: Some(port), tcp: false }) = text.parse()
    else {
        bail!("{text:?}: write one host and one port: example.org:443");
    };
    let argument = |name: &str, value: Value| Argument {
        name: name.to_owned(),
        kind: JsonType::of(&value),
        equals: Some(value),
    };
    Ok(Exception {
        arguments: vec![argument("host", host.as_str().into()), argument("port", port.into())],
        server: host,
        tool: CONNECT.to_owned(),
        reasons: risk::Risk::of_connection().reasons.iter().map(|reason| (*reason).to_owned()).collect(),
    })
}

/// What an exception is about, in a few words; grave reasons in capitals.
pub(super) fn about(exception: &Exception) -> String {
    let Exception { server, tool, arguments, reasons } = exception;
    let argument = |Argument { name, kind, equals }: &Argument| match equals {
        Some(value) => format!("{}={}", word(name), word(&value.to_string())),
        None => format!("{}:{}", word(name), kind.name()),
    };
    let arguments: Vec<String> = arguments.iter().map(argument).collect();
    let reason = |reason: &String| {
        let is_grave = risk::GRAVE.contains(&reason.as_str());
        if is_grave { word(reason).to_uppercase() } else { word(reason) }
    };
    let reasons: Vec<String> = reasons.iter().map(reason).collect();
    format!(
        "tool={} server={} arguments=({}) not counted: {}",
        word(tool),
        word(server),
        arguments.join(","),
        reasons.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call() -> Value {
        let mut call = json!({ "server_name": "fs", "tool_name": "clean", "risk_reasons": ["destructive", "bulk_operation"],
            "arguments": {"folder": "rm -rf build", "token": "x [redacted]", "n": 3} });
        call["suggested_exception"] = ringfence_session::exceptions::suggested(&call);
        call
    }

    #[test]
    fn what_destroys_counts_unless_it_is_named() {
        let of = |reasons: &[&str]| {
            let reasons: Vec<String> = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            like(&call(), &reasons, &[]).map(|exception| exception.reasons)
        };
        assert_eq!(of(&[]).expect("made"), ["bulk_operation"]);
        assert_eq!(of(&["destructive"]).expect("made"), ["destructive"]);
        assert!(
            of(&["write"]).expect_err("not of this call").to_string().contains("destructive, bulk_operation")
        );
        let mut grave = call();
        grave["risk_reasons"] = json!(["destructive"]);
        grave["suggested_exception"] = ringfence_session::exceptions::suggested(&grave);
        assert!(like(&grave, &[], &[]).expect_err("none is named").to_string().contains("--reason"));
        grave["risk_reasons"] = json!([]);
        assert!(like(&grave, &[], &[]).expect_err("nothing to lower").to_string().contains("0 already"));
    }

    #[test]
    fn connections_to_one_host_and_port_are_excepted() {
        let exception = of_connection("API.example.org:443").expect("made");
        exceptions::check(&exception).expect("one that can be");
        let arguments = json!({ "host": "api.example.org", "port": 443 });
        assert!(exceptions::is_about(&exception, "api.example.org", "net.connect", &arguments));
        let other = json!({ "host": "api.example.org", "port": 80 });
        assert!(!exceptions::is_about(&exception, "api.example.org", "net.connect", &other));
        for text in
            ["", "example.org", "*.example.org:443", "10.0.0.1:443", "tcp:example.org:22", "example.org:0"]
        {
            assert!(of_connection(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_is_asked_for_where_it_is_named_and_on_record() {
        let same = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            like(&call(), &[], &names)
        };
        let exception = same(&["folder", "n"]).expect("made");
        ringfence_session::exceptions::check(&exception).expect("one that can be");
        assert_eq!(
            about(&exception),
            "tool=clean server=fs arguments=(folder=\"rm\\x20-rf\\x20build\",n=3,token:string) not counted: bulk_operation"
        );
        assert!(same(&["token"]).expect_err("redacted").to_string().contains("redacted"));
        let mut secret = call();
        secret["arguments"]["pin"] = json!("[redacted]");
        secret["suggested_exception"] = ringfence_session::exceptions::suggested(&secret);
        let refused = like(&secret, &[], &[]).expect_err("its type is unknown").to_string();
        assert!(refused.contains("\"pin\" is redacted"), "{refused}");
        assert!(same(&["other"]).expect_err("missing").to_string().contains("no argument"));
    }
}
