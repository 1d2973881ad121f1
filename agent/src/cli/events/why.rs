//! `ringfence events why`.

use super::list;
use anyhow::Context as _;
use ringfence_base::{escape::line as printable, paths::Paths};
use ringfence_client::events::{Client, unexpected};
use ringfence_wire::{
    event::Explanation,
    message::{EventsQuery, QueryReply, QueryRequest},
};
use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

/// Explains one event: the rule that decided it, where that rule is, and which line would change it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence events why 42
  ringfence events why last
  ringfence events why 42 --json | jq -r .line")]
pub(crate) struct WhyArgs {
    /// The event's number (the last column of `ringfence events`), or `last` for the newest denial.
    #[arg(value_name = "EVENT", value_parser = parse_event)]
    event: Wanted,
    /// Print one JSON object (docs/events.md).
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Number(u64),
    Last,
}

fn parse_event(text: &str) -> Result<Wanted, String> {
    match text {
        "last" => Ok(Wanted::Last),
        _ => {
            text.trim_start_matches('#').parse().map(Wanted::Number).map_err(|_| {
                "write a number from the last column of `ringfence events`, or `last`".to_owned()
            })
        }
    }
}

pub(super) fn why(args: &WhyArgs) -> anyhow::Result<ExitCode> {
    let socket = Paths::from_env().query_socket();
    let event = match args.event {
        Wanted::Number(number) => number,
        Wanted::Last => last_denial(&socket)?,
    };
    let explanation = match Client::ask(&socket, &QueryRequest::Why { event })?.next_reply()? {
        Some(QueryReply::Why(explanation)) => explanation,
        _ => return Err(unexpected().into()),
    };
    let mut out = anstream::stdout().lock();
    if args.json {
        let json =
            serde_json::to_string(&explanation).context("the explanation cannot be written as JSON")?;
        writeln!(out, "{json}")?;
    } else {
        write(&mut out, &explanation)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn last_denial(socket: &Path) -> anyhow::Result<u64> {
    let query = EventsQuery { denied: true, limit: Some(1), ..EventsQuery::default() };
    match Client::ask(socket, &QueryRequest::Events(query))?.next_reply()? {
        Some(QueryReply::Events { events }) if !events.is_empty() => Ok(events[0].id),
        Some(QueryReply::End { .. }) => anyhow::bail!("nothing has been denied yet"),
        _ => Err(unexpected().into()),
    }
}

fn write(out: &mut impl Write, why: &Explanation) -> io::Result<()> {
    let event = &why.event;
    let style = list::style(event.verdict);
    writeln!(
        out,
        "event {} at {}, container {}, profile {} (generation {})",
        event.id,
        event.ts,
        event.container,
        printable(&event.profile),
        why.generation
    )?;
    let verdict = event.verdict.word();
    writeln!(out, "  {style}{verdict:<10}{style:#}  {} {}", event.op, list::target(event))?;
    let flags: Vec<_> =
        event.flags.iter().filter(|flag| !flag.starts_with("to=")).map(String::as_str).collect();
    if !flags.is_empty() {
        writeln!(out, "  {:<10}  {}", "flags", flags.join(" "))?;
    }
    // Nobody knows who asked for a name.
    if event.question.is_none() {
        writeln!(
            out,
            "  {:<10}  {} (pid {}, parent {}, uid {})",
            "by",
            if event.exe.is_empty() { "-" } else { &event.exe },
            event.tgid,
            event.ppid,
            event.uid
        )?;
    }
    if let Some(connection) = &event.connection {
        let address = connection.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        let lasted = Duration::from_micros(connection.duration_us);
        writeln!(out, "  {:<10}  to {address}, {lasted:?}", "connected")?;
        if let Some(told) = &connection.reason {
            // A server or an agent may have chosen some of its words.
            writeln!(out, "  {:<10}  \"{}\"", "worker", printable(told))?;
        }
    }
    if event.repeats > 1 {
        writeln!(out, "  {:<10}  {}", "repeats", event.repeats)?;
    }
    writeln!(out, "  {:<10}  {}", "rule", printable(&event.rule))?;
    if let Some(rule) = &why.rule {
        let file = rule.file.as_deref().map_or("built in".to_owned(), printable);
        let line = if rule.line > 0 { format!(":{}", rule.line) } else { String::new() };
        writeln!(
            out,
            "  {:<10}  {file}{line}  {} {}",
            "defined in",
            printable(&rule.key),
            printable(&rule.text)
        )?;
    }
    writeln!(out, "  {:<10}  {}", "reason", printable(&why.reason))?;
    writeln!(out, "  {:<10}  {}", "change", printable(&why.advice))?;
    if let Some(line) = &why.line {
        writeln!(out)?;
        for line in line.lines() {
            writeln!(out, "      {}", printable(line))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_number_or_last() {
        assert_eq!(parse_event("42"), Ok(Wanted::Number(42)));
        assert_eq!(parse_event("#42"), Ok(Wanted::Number(42)));
        assert_eq!(parse_event("last"), Ok(Wanted::Last));
        for bad in ["", "-1", "4x", "#"] {
            assert!(parse_event(bad).is_err(), "{bad}");
        }
    }
}
