//! A compiled profile for the eye and for machines: every rule that holds, where it holds, and where it comes from.

use super::{
    Profile, ToolCredential, commands,
    compiled::{CompiledPolicy, Kind, NetRule, Place, RuleId},
    sets,
};
use ringfence_common::policy::{
    axis::{EXEC, MAP, READ, UNIX, WRITE},
    named,
};
use ringfence_wire::{
    credentials::HostCredential,
    egress::{NameOptions, NameRule},
};
use serde::Serialize;
use serde_json::json;
use std::{collections::BTreeMap, net::IpAddr, path::Path};

/// One effective rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    /// `fs_read`, `fs_write`, `exec`, `map` (executable mapping without execution), `net`, `ioctl`,
    /// `socket_options`.
    axis: &'static str,
    /// `allow`, `deny`, `protect`.
    effect: &'static str,
    /// Where, with links resolved.
    place: String,
    /// The rule's id.
    rule: String,
    /// Its file; none: built in.
    file: Option<String>,
    /// Its line.
    line: Option<u32>,
}

const AXES: [(u16, &str); 5] =
    [(READ, "fs_read"), (WRITE, "fs_write"), (EXEC, "exec"), (MAP, "map"), (UNIX, "net")];

fn lines(policy: &CompiledPolicy) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |axis, effect, place: String, id: Option<RuleId>| {
        let rule = id.and_then(|id| policy.rules.get(id as usize));
        lines.push(Line {
            axis,
            effect,
            place,
            rule: rule.map_or_else(|| format!("{axis}:all"), |r| r.id.clone()),
            file: rule.and_then(|r| r.file.as_ref()).map(|f| f.display().to_string()),
            line: rule.map(|r| r.line).filter(|l| *l > 0),
        });
    };
    for (bit, axis) in AXES.iter().filter(|(bit, _)| *bit != MAP) {
        if policy.initial & bit != 0 {
            let key = format!("grant.{axis}");
            let rule = policy.rules.iter().position(|r| r.key == key && r.text == "all");
            add(axis, "allow", "everything".to_owned(), rule.and_then(|r| RuleId::try_from(r).ok()));
        }
    }
    for rule in &policy.places {
        let place = pattern(&rule.place, rule.kind);
        if let Place::Named { kind: named::SHARED_MEMORY, .. } = rule.place {
            continue; // shown with the capabilities
        }
        if let Place::Named { kind, .. } = rule.place {
            let axis = if kind == named::OPTION { "socket_options" } else { "ioctl" };
            add(axis, "allow", place, rule.allow_rules[0]);
            continue;
        }
        for (bit, (mask, axis)) in AXES.iter().enumerate() {
            let bit = if *mask == UNIX { 4 } else { bit };
            // Execution implies mapping, so it is shown once.
            let implied = |axes: u16| *mask == MAP && axes & EXEC != 0;
            if rule.allow & mask != 0 && !implied(rule.allow) {
                add(axis, "allow", place.clone(), rule.allow_rules[bit]);
            }
            if rule.deny & mask != 0 && !implied(rule.deny) {
                add(axis, "deny", place.clone(), rule.deny_rules[bit]);
            }
            if rule.reset & mask != 0 && *mask != MAP {
                add(axis, "protect", place.clone(), rule.reset_rule);
            }
        }
    }
    // The halves of a split range are one rule to its author.
    let mut ranges: BTreeMap<(RuleId, Option<u16>, bool), Vec<&NetRule>> = BTreeMap::new();
    for net in &policy.nets {
        ranges.entry((net.rule, net.port, net.allow)).or_default().push(net);
    }
    for ((rule, port, allow), ranges) in ranges {
        let text = match ranges.as_slice() {
            [net] => range(net.addr, net.prefix),
            many => format!("{} ranges", many.len()),
        };
        let text = port.map_or_else(|| text.clone(), |port| format!("{text} port {port}"));
        add("net", if allow { "allow" } else { "deny" }, text, Some(rule));
    }
    let names = &policy.names;
    for (effect, rules) in [("allow", &names.rules), ("deny", &names.denies)] {
        for NameRule { host, port, tcp, rule } in rules {
            let (tcp, port) = (if *tcp { "tcp:" } else { "" }, port.map(|port| format!(" port {port}")));
            add("net", effect, format!("{tcp}{host}{}", port.unwrap_or_default()), Some(*rule));
        }
    }
    lines
}

fn range(addr: std::net::Ipv6Addr, prefix: u8) -> String {
    match IpAddr::from(addr).to_canonical() {
        _ if prefix == 0 => "every address".to_owned(),
        IpAddr::V4(v4) if prefix >= 96 => format!("{v4}/{}", prefix - 96),
        addr => format!("{addr}/{prefix}"),
    }
}

fn pattern(place: &Place, kind: Kind) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (place, kind) {
        (Place::Name(name), _) => format!("**/{}", text(name)),
        (Place::Prefix(name), _) => format!("**/{}*", text(name)),
        (Place::Suffix(name), _) => format!("**/*{}", text(name)),
        (Place::Abstract(name), _) => format!("unix:@{}", text(name)),
        (Place::Named { kind, value }, _) => commands::shown(*kind, *value),
        (Place::Path(path), Kind::Tree) => text(path),
        (Place::Path(path), Kind::Below) => format!("{}/**", text(path).trim_end_matches('/')),
        (Place::Path(path), Kind::Children) => format!("{}/*", text(path).trim_end_matches('/')),
        (Place::Path(path), Kind::Exact) => format!("{} alone", text(path)),
    }
}

/// A text without anything that a terminal would act on.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// As text for a terminal.
pub fn text(profile: &Profile, policy: &CompiledPolicy, notices: &[String]) -> String {
    let mut out = format!("profile      {} ({})\n", profile.name, profile.file.display());
    if let Some(description) = &profile.description {
        out += &format!("description  {}\n", printable(description));
    }
    for source in profile.sources.iter().skip(1) {
        let is_set = source.file.parent().is_some_and(|dir| dir.ends_with(sets::DIR));
        out += &format!("{:<12} {}\n", if is_set { "hosts from" } else { "extends" }, source.file.display());
    }
    let mode = if policy.audit_mode { "audit: recorded as would_deny, not denied" } else { "enforce" };
    out += &format!("mode         {mode}\n");
    out += &profile.kernel.text(policy.capabilities);
    out += &options(profile.net_options, !policy.names.is_empty());
    for credential in &profile.credentials {
        let HostCredential { host, port, allow, .. } = &credential.rules;
        let allow: Vec<String> = allow.iter().map(|rule| printable(&rule.to_string())).collect();
        let origin = printable(&credential.origin());
        out += &format!("credential   {host}:{port}, from {origin}, for {}\n", allow.join(", "));
    }
    let lines = lines(policy);
    for axis in ["fs_read", "fs_write", "exec", "map", "net", "ioctl", "socket_options"] {
        let of_axis: Vec<&Line> = lines.iter().filter(|l| l.axis == axis).collect();
        if matches!(axis, "ioctl" | "socket_options") && of_axis.is_empty() {
            continue; // beside those that every container may use
        }
        out += &format!("\n{axis}\n");
        if of_axis.is_empty() {
            out += "  nothing\n";
        }
        let width = of_axis.iter().map(|l| printable(&l.place).chars().count()).max().unwrap_or(0).min(48);
        // The rules of the profile's author come first.
        let groups = [("allow", true), ("deny", true), ("protect", false), ("allow", false)];
        for (effect, written) in groups {
            for line in of_axis.iter().filter(|l| l.effect == effect && l.file.is_some() == written) {
                let from = match (&line.file, line.line) {
                    (Some(file), Some(at)) => format!("{file}:{at}"),
                    _ => "built in".to_owned(),
                };
                let (place, rule) = (printable(&line.place), printable(&line.rule));
                out += &format!("  {effect:<7}  {place:<width$}  {rule}  ({from})\n");
            }
        }
    }
    for notice in notices {
        out += &format!("\nnote: {}\n", printable(notice));
    }
    out
}

/// What `[net]` says, where it says anything.
fn options(NameOptions { ech, max_upload, ask }: NameOptions, has_names: bool) -> String {
    let mut said = Vec::new();
    if ech {
        said.push("TLS clients may encrypt the name that they ask for".to_owned());
    }
    said.extend(max_upload.map(|most| format!("at most {most} bytes are sent to one name")));
    said.extend(ask.map(|seconds| format!("a person is asked for others, for {seconds} s")));
    if said.is_empty() {
        return String::new();
    }
    let none = if has_names { "" } else { " (no name is granted)" };
    format!("names        {}{none}\n", said.join("; "))
}

/// A credential without any of its value: what is done with it, and the kind and name of its source.
fn credential(credential: &ToolCredential) -> serde_json::Value {
    let HostCredential { host, port, place, allow, otherwise, cookies } = &credential.rules;
    json!({
        "host": host,
        "port": port,
        "place": place,
        "allow": allow,
        "otherwise": otherwise,
        "cookies": cookies,
        "source": credential.origin(),
    })
}

/// For machines.
///
/// # Errors
/// None that can be met: the types all serialise.
pub fn json(
    profile: &Profile,
    policy: &CompiledPolicy,
    workdir: Option<&Path>,
    notices: &[String],
) -> serde_json::Result<String> {
    serde_json::to_string(&json!({
        "profile": profile.name,
        "file": profile.file,
        "description": profile.description,
        "mode": if policy.audit_mode { "audit" } else { "enforce" },
        "match": profile.matches,
        "sources": profile.sources,
        "kernel": profile.kernel,
        "net": profile.net_options,
        "credentials": profile.credentials.iter().map(credential).collect::<Vec<_>>(),
        "grant": profile.grant(workdir),
        "effective": lines(policy),
        "notices": notices,
    }))
}
