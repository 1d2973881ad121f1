//! Why an event got its verdict, and the line that would change it. Pure: from the stored event alone.

mod names;

use super::{
    decode,
    manifests::Decider,
    present::{self, Stored},
};
use ringfence_base::escape;
use ringfence_common::{
    event::{FLAG_CUT, FLAG_DEBUGGED, FLAG_OUTSIDE, FLAG_UNLINKED, Fixed, op, verdict},
    policy::axis,
    unlisted,
};
use ringfence_grant::NamePattern;
use ringfence_wire::event::{Explanation, RuleText, Target};

/// The explanation of one event.
pub fn event(stored: &Stored) -> Explanation {
    let (rule, reason, advice, line) = match &stored.decider {
        decider if let Some(egress) = &stored.record.egress => names::told(stored, egress, decider),
        Decider::Rule(rule) => {
            let (reason, advice, line) = by_rule(stored, rule);
            (Some((**rule).clone()), reason, advice, line)
        }
        Decider::Default => by_default(stored),
        Decider::All => by_all(stored),
        Decider::Fixed(number) => by_fixed(stored, *number),
        Decider::Unknown => (
            None,
            "A rule decided, but the daemon no longer knew the policy's rules when this record was read."
                .to_owned(),
            format!("Ask `ringfence profile explain {} ...` about the same target.", stored.profile),
            None,
        ),
    };
    let mut reason = reason;
    if stored.record.flags & FLAG_DEBUGGED != 0 {
        reason += " Before this, a process of another tool call traced, read or signalled one of this event's call \
                   (`debug_between_calls`, or audit mode), so it may have been done for the other: the call is `ambiguous`.";
    }
    if let (Some(name), None) = (&stored.name, &stored.record.egress) {
        reason += &format!(
            " {} stands for {name} in this container, as its egress worker told.",
            present::socket_address(&stored.record).ip()
        );
    }
    Explanation {
        event: present::event(stored),
        generation: stored.record.generation,
        rule,
        reason,
        advice,
        line,
    }
}

type Parts = (Option<RuleText>, String, String, Option<String>);

fn is_allowed(stored: &Stored) -> bool {
    stored.record.verdict == verdict::ALLOWED
}

fn by_rule(stored: &Stored, rule: &RuleText) -> (String, String, Option<String>) {
    let place = place(rule);
    let id = escape::line(&rule.id);
    if is_allowed(stored) {
        let (advice, line) = to_deny(stored);
        return (format!("The rule {id} allows it ({place})."), advice, line);
    }
    if rule.key.starts_with("deny") {
        let reason = format!("The rule {id} denies it ({place}). A deny beats every allow, at any depth.");
        let advice = match &rule.file {
            Some(_) if rule.text.parse::<NamePattern>().is_ok() => format!(
                "To allow it, grant the name that {} means by itself (`**/NAME`): such a name is out of a pattern's reach. Or \
                 remove the pattern from `{}`, {place}.",
                escape::toml(&rule.text),
                rule.key
            ),
            Some(_) => format!(
                "To allow it, remove {} from `{}`, {place}, or replace it by a narrower entry; then grant it, if nothing \
                 grants it yet.",
                escape::toml(&rule.text),
                rule.key
            ),
            None => "The rule is built in and cannot be removed.".to_owned(),
        };
        return (reason, advice, None);
    }
    if rule.key == "source" {
        let reason = format!(
            "The container's own profile is made of this file, or is reached by this link ({}). A container never writes \
             what its policy comes from, whatever is granted.",
            escape::line(&rule.text)
        );
        let advice = "Edit it from outside; to let the container write there, keep the profile elsewhere.";
        return (reason, advice.to_owned(), None);
    }
    if rule.key == "protected" {
        let reason = format!(
            "It is a protected place ({id}): a grant of something above it does not reach in, only one that names it."
        );
        let (advice, line) = to_allow(stored);
        return (reason, format!("{advice} Think twice: what is here can undo the confinement."), line);
    }
    let (advice, line) = to_allow(stored);
    (format!("The rule {id} decided ({place})."), advice, line)
}

/// Where a rule stands, for a sentence.
fn place(rule: &RuleText) -> String {
    match &rule.file {
        Some(file) if rule.line > 0 => format!("{} line {}", escape::line(file), rule.line),
        Some(file) => escape::line(file),
        None => "built in".to_owned(),
    }
}

fn by_default(stored: &Stored) -> Parts {
    let keys = keys(stored).join("` and `");
    let reason = match is_allowed(stored) {
        true => "Nothing of it is judged by a rule.".to_owned(),
        false if keys.is_empty() => "No rule allows it, and what no rule allows is denied.".to_owned(),
        false => format!("No rule of `{keys}` allows it, and what no rule allows is denied."),
    };
    let (advice, line) = match is_allowed(stored) {
        true => to_deny(stored),
        false => to_allow(stored),
    };
    (None, reason, advice, line)
}

fn by_all(stored: &Stored) -> Parts {
    let keys = keys(stored).join("` and `");
    let (advice, line) = to_deny(stored);
    (None, format!("The profile grants `{keys}` as \"all\", and no rule is against it."), advice, line)
}

fn by_fixed(stored: &Stored, number: u32) -> Parts {
    let never = "No line of a profile can allow it.";
    let Some(fixed) = Fixed::of(number) else {
        let reason = "The kernel's programs gave a reason that this version does not know.";
        return (None, reason.to_owned(), never.to_owned(), None);
    };
    let (reason, advice) = match fixed {
        Fixed::NoPolicy => (
            "The container had no policy at that moment, and a governed task without a policy may do nothing.",
            "Look at `ringfence status`: a container without a policy is a fault of the daemon, not of a profile.",
        ),
        Fixed::TooLong => (
            "The path is longer than 4096 bytes or deeper than 64 directories, so it cannot be judged.",
            "Use a shorter path.",
        ),
        Fixed::Outside => (
            "The path does not lead to the container's root (a detached, internal or foreign mount), so no rule can \
             name it.",
            never,
        ),
        Fixed::Raced => (
            "Renames or mounts ran beside every try to read the path, so it could not be judged for certain.",
            "Try again; if it stays, look for a program that renames or mounts without pause.",
        ),
        Fixed::Unreadable => ("The kernel could not read the path, so it could not be judged.", never),
        Fixed::Mount => (
            "Mounting, unmounting and moving roots would change what every path rule means.",
            "No line of a profile can allow it. Mount what is needed before the container starts.",
        ),
        Fixed::Device => (
            "A device node would be a way around every path rule.",
            "No line of a profile can allow it. Make the node before the container starts, and grant its path.",
        ),
        Fixed::Family => return by_family(stored),
        Fixed::Option => return by_option(stored),
        Fixed::Privilege => (
            "bpf(2), perf_event_open(2), user namespaces and system calls that change the host are ways out of the confinement.",
            never,
        ),
        Fixed::OtherContainer => (
            "The other process does not belong to this container.",
            "No line of a profile can allow it. Processes of one container may trace and signal one another, within a tool call.",
        ),
        Fixed::OtherCall => return by_other_call(stored),
        Fixed::Unlinked => (
            "What was to be executed has no name (a memfd or a deleted file), so no rule can name it.",
            "No line of a profile can allow it. Write the program to a file that `exec` grants.",
        ),
        Fixed::UnnamedPeer => (
            "The other socket has no name that a rule could grant.",
            "No line of a profile can allow it. Let the server bind a path or an abstract name, and grant that.",
        ),
        Fixed::Internal => (
            "It is a file inside the kernel (a pipe, an event descriptor): opening it reaches nothing.",
            "It cannot be denied.",
        ),
        Fixed::Pinned => (
            "Something below this directory is denied or protected by its path, and moving the directory would take it \
             out from under its rule.",
            "To allow it, remove the entry of `[deny]` that names something below it (`ringfence profile show` lists \
             them), or replace it by a narrower one. What is above a protected place stays where it is.",
        ),
        Fixed::Command => (
            "This ioctl is not on the list of those that are harmless on a file of this kind.",
            "To allow it, name the command, or the device for every command to it, in `ioctl` of `[kernel]` in the profile.",
        ),
        Fixed::Capability => (
            "The profile does not name this capability, and root in a container has only those that it names.",
            "To allow it, add its name to `capabilities` of `[kernel]` in the profile.",
        ),
        Fixed::OtherIpc => (
            "The queue, semaphore set, memory segment or key was not made by this container.",
            "No line of a profile can allow it. Share files or unix sockets instead, which a profile can grant.",
        ),
        Fixed::Terminal => (
            "The terminal was neither opened by this container nor given to it when it started.",
            "No line of a profile can allow it. Start the command on the terminal that it is to use.",
        ),
        Fixed::Route => (
            "The packet would travel by way of a host that no rule was asked about, or that `net` does not grant.",
            never,
        ),
        Fixed::NamedAddress => (
            "The address stands for a host's name that `net` grants to some container: it is reached by TCP (not UDP, so no \
             QUIC), and from the container that was told it alone.",
            "Ask the container's resolver for the name that is meant, and connect by TCP to the address that it answers.",
        ),
        Fixed::Resolver => (
            "Hosts are granted by name, so that the container's own resolver answers, whichever nameserver is asked.",
            "To reach a nameserver of another's, grant its address and port 53 in `net`.",
        ),
        Fixed::Case => (
            "The file system does not tell case apart, so that the name may be another spelling of one that a rule is about: it \
             has a letter outside ASCII, or is that of a directory, which the file system would find by other spellings.",
            "Copy instead of moving, or keep the files on a file system that tells case apart.",
        ),
        Fixed::Widens => (
            "By its new name the file, or something below the directory, would be granted what it is not granted now, or \
             would leave a denial behind.",
            "Copy instead: `mv` and build tools do that by themselves when a move is answered with EXDEV, and each copied \
             file is judged.",
        ),
        Fixed::Setuid => (
            "Whoever ran the file outside would get the rights of its owner, or of its file capabilities.",
            "To allow it (installing packages needs it), set `setuid_files = true` in `[kernel]` of the profile.",
        ),
    };
    (None, reason.to_owned(), advice.to_owned(), None)
}

fn by_other_call(stored: &Stored) -> Parts {
    if is_allowed(stored) {
        return (
            None,
            "The other process belongs to another tool call, and the profile has `debug_between_calls = true`. What that call does \
             from here on may have been done for this one: its events are `ambiguous`."
                .to_owned(),
            "To deny it, leave `debug_between_calls` out of `[kernel]` in the profile.".to_owned(),
            None,
        );
    }
    let (reason, advice) = match stored.record.op {
        op::SIGNAL => (
            "The other process belongs to another tool call: whoever signals it could steer it, and the record would name the \
             wrong call.",
            "Within one tool call processes may signal one another, and what no call began may be signalled by all. For a \
             debugger, set `debug_between_calls = true` in `[kernel]` of the profile: the other call's events are then \
             `ambiguous`.",
        ),
        op::CONTROL => (
            "The other process belongs to another tool call, whose limits and priorities are not this one's to set: a limit of \
             CPU time ends a process as a signal does.",
            "No line of a profile can allow it. Within one tool call it is allowed, as it is of what no call began.",
        ),
        _ => (
            "The other process belongs to another tool call, or one of the two to none, as the agent's runtime does: whoever \
             traces it or reads its memory and descriptors could act as it, and the record would name the wrong call.",
            "Within one tool call processes may trace one another. For a debugger in a call of its own, set \
             `debug_between_calls = true` in `[kernel]` of the profile: it may then trace other calls' processes, whose events \
             are `ambiguous` from then on. What belongs to no call stays closed.",
        ),
    };
    (None, reason.to_owned(), advice.to_owned(), None)
}

fn by_family(stored: &Stored) -> Parts {
    let record = &stored.record;
    let family = match record.detail >> 16 {
        0 => u32::from(record.family),
        family => family,
    };
    // Streams and datagrams of the internet families are grantable; raw sockets and other protocols never.
    let grantable = matches!(family, 2 | 10) && matches!(record.detail & 0xffff, 0..=2);
    if grantable {
        return (
            None,
            "The profile's `net` names no internet address, so it gets no internet socket, or the protocol is neither \
             TCP nor UDP."
                .to_owned(),
            format!(
                "To allow TCP or UDP, add the address it is for to `net` under `[grant]` in the profile {}. Other \
                 protocols (MPTCP, SCTP) can never be granted.",
                stored.profile
            ),
            Some("[grant]\nnet = { only = [\"ADDRESS:PORT\"] }".to_owned()),
        );
    }
    (
        None,
        "Only unix sockets, TCP and UDP can be granted; this is another family or type of socket.".to_owned(),
        "No line of a profile can allow it.".to_owned(),
        None,
    )
}

fn by_option(stored: &Stored) -> Parts {
    // The halves of the target: see `ringfence_common::options::target`.
    let (level, option) = ((stored.record.target >> 16) as i32, (stored.record.target & 0xffff) as i32);
    let reason = match unlisted::name(level, option) {
        Some(name) => format!("{name} is not on the list of socket options that every container may set."),
        None => "This socket option is not on the list of those that every container may set.".to_owned(),
    };
    if let Some(why) = unlisted::refused(level, option) {
        let advice = format!("No line of a profile can allow it: it {why}. Most programs go on without it.");
        return (None, reason, advice, None);
    }
    let entry =
        unlisted::unique_name(level, option).map_or_else(|| format!("{level}/{option}"), str::to_owned);
    let entry = escape::toml(&entry);
    let advice = format!(
        "Most programs go on without it. To allow it, add {entry} to `socket_options` of `[kernel]` in the profile {}.",
        stored.profile
    );
    (None, reason, advice, Some(format!("[kernel]\nsocket_options = [{entry}]")))
}

/// The grant's keys that an event asked for.
fn keys(stored: &Stored) -> Vec<&'static str> {
    let record = &stored.record;
    if decode::is_socket(record.op) {
        return vec!["net"];
    }
    let asked = |bits: u16| record.axes & u32::from(bits) != 0;
    [
        (axis::READ, "fs_read"),
        (axis::WRITE, "fs_write"),
        (axis::EXEC | axis::MAP, "exec"),
        (axis::UNIX, "net"),
    ]
    .into_iter()
    .filter(|(bits, _)| asked(*bits))
    .map(|(_, key)| key)
    .collect()
}

fn to_allow(stored: &Stored) -> (String, Option<String>) {
    let keys = keys(stored);
    match entries(stored) {
        Entries::Exact(entries) if !keys.is_empty() => (
            format!(
                "To allow it, add {} to `{}` under `[grant]` in the profile {}{}.",
                entries.join(" and "),
                keys.join("` and `"),
                stored.profile,
                if keys.len() > 1 { ", wherever it is not there yet" } else { "" }
            ),
            Some(lines("[grant]", &keys, |key| format!("{key} = {{ only = [{}] }}", entries.join(", ")))),
        ),
        Entries::Parent(parent) if !keys.is_empty() => (
            format!(
                "The path itself cannot be written in a profile. To allow it, add the directory {parent} to `{}` under \
                 `[grant]` in the profile {}.",
                keys.join("` and `"),
                stored.profile
            ),
            Some(lines("[grant]", &keys, |key| format!("{key} = {{ only = [{parent}] }}"))),
        ),
        _ => ("It has no name that a line of a profile could grant.".to_owned(), None),
    }
}

fn to_deny(stored: &Stored) -> (String, Option<String>) {
    let keys = keys(stored);
    match entries(stored) {
        Entries::Exact(entries) if !keys.is_empty() => (
            format!("To deny it, add this to the profile {}.", stored.profile),
            Some(lines("[deny]", &keys, |key| format!("{key} = [{}]", entries.join(", ")))),
        ),
        _ => ("It has no name that a line of a profile could deny.".to_owned(), None),
    }
}

fn lines(table: &str, keys: &[&str], line: impl Fn(&str) -> String) -> String {
    keys.iter().fold(table.to_owned(), |text, key| format!("{text}\n{}", line(key)))
}

/// How a profile could name an event's target.
enum Entries {
    /// By these quoted entries.
    Exact(Vec<String>),
    /// Only by this directory above it, quoted.
    Parent(String),
    /// Not at all.
    None,
}

fn entries(stored: &Stored) -> Entries {
    let record = &stored.record;
    if let Some(name) = &stored.name {
        // An address of the container's block is no line of a profile: the host that it stands for is.
        return names::entry(name, Some(record.port))
            .map_or(Entries::None, |entry| Entries::Exact(vec![escape::toml(&entry)]));
    }
    if let Target::Addr(addr) = present::target(record) {
        let written = addr.and_then(|addr| match addr.strip_prefix("unix:") {
            Some(name) if name.starts_with(['/', '@']) => Some(format!("unix:{}", plain(name)?)),
            Some(_) => None,
            None => Some(addr),
        });
        return written.map_or(Entries::None, |addr| Entries::Exact(vec![escape::toml(&addr)]));
    }
    if record.flags & (FLAG_CUT | FLAG_OUTSIDE | FLAG_UNLINKED) != 0 {
        return Entries::None;
    }
    let Some(path) = &record.path else { return Entries::None };
    let both: Option<Vec<_>> =
        [Some(path), record.path2.as_ref()].into_iter().flatten().map(|p| plain(p)).collect();
    if let Some(both) = both {
        return Entries::Exact(both.iter().map(|p| escape::toml(p)).collect());
    }
    // The nearest directory above that can be written.
    let mut parent = path.as_str();
    while let Some((above, _)) = parent.rsplit_once('/') {
        match plain(above) {
            Some(above) if !above.is_empty() => return Entries::Parent(escape::toml(&above)),
            _ => parent = above,
        }
    }
    Entries::None
}

/// An escaped name as a profile may have it: UTF-8, visible, nothing that reads as a pattern.
fn plain(escaped: &str) -> Option<String> {
    let text = String::from_utf8(escape::bytes(escaped)?).ok()?;
    let odd = |c: char| c.is_control() || "*?[]{}".contains(c);
    // An escape other than that of a backslash stands for something that should be looked at, not copied.
    let hidden = escaped.replace(r"\\", "").contains('\\');
    (!hidden && !text.chars().any(odd)).then_some(text)
}

#[cfg(test)]
mod tests;
