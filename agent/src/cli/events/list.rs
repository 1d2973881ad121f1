//! `ringfence events list`.

use anstyle::{AnsiColor, Style};
use anyhow::Context as _;
use jiff::{Timestamp, Zoned, civil};
use ringfence_base::{
    client::ClientError,
    escape::{apart, line as printable},
    paths::Paths,
};
use ringfence_client::events::Client;
use ringfence_session::export::events::ocsf;
use ringfence_wire::{
    event::{Event, Target, Verdict},
    message::{EventsQuery, QueryReply, QueryRequest},
};
use std::{io::Write, process::ExitCode, thread, time::Duration};

/// How often, and how many times, `--follow` tries to come back when the auditor is started anew.
const RETRY_EVERY: Duration = Duration::from_millis(250);
const RETRIES: u32 = 60;

/// Lists events, oldest first.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "Examples:
  ringfence events list --denied --since 10m
  ringfence events list --follow --container 3fa9c1d20b7e
  ringfence events list --name '*.pypi.org' --since today
  ringfence events list --json --since today | jq -r 'select(.op == \"connect\") | .addr'")]
pub(crate) struct ListArgs {
    /// Stay, and show events as they happen.
    #[arg(short, long)]
    follow: bool,
    /// Only denied events, and those that would have been denied in audit mode.
    #[arg(long)]
    denied: bool,
    /// Only events of this container (its id or the beginning of the id) or profile.
    #[arg(long, value_name = "C")]
    container: Option<String>,
    /// Only connections by name, and questions for names (docs/events.md).
    #[arg(long)]
    egress: bool,
    /// Of those, only the ones of this host; `*.HOST` for the hosts below it.
    #[arg(long, value_name = "HOST")]
    name: Option<String>,
    /// Only events since this time: `10m`, `2h`, `3d` (ago), `today`, `2026-11-20`, `2026-11-20T09:30` (local time) or RFC
    /// 3339 with an offset.
    #[arg(long, value_name = "T", value_parser = parse_since)]
    since: Option<i64>,
    /// One JSON object per line (docs/events.md).
    #[arg(long)]
    json: bool,
    /// Connections by name and questions for names as OCSF 1.4 has them, one JSON object per line: Network Activity and DNS Activity.
    #[arg(long, conflicts_with = "json")]
    ocsf: bool,
    /// Only the newest N of the events that have already happened.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u32>,
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let form = match (args.json, args.ocsf) {
        (_, true) => Form::Ocsf,
        (true, false) => Form::Json,
        (false, false) => Form::Table,
    };
    let mut out = Output { out: anstream::stdout().lock(), form, header: form == Form::Table };
    show(args, &mut out)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ListArgs, out: &mut Output<impl Write>) -> anyhow::Result<()> {
    let socket = Paths::from_env().query_socket();
    let mut query = EventsQuery {
        denied: args.denied,
        container: args.container.clone(),
        egress: args.egress || args.ocsf,
        name: args.name.clone(),
        since: args.since,
        after: None,
        limit: args.limit,
        follow: args.follow,
    };
    let mut client = Client::ask(&socket, &QueryRequest::Events(query.clone()))?;
    let mut shown = 0;
    loop {
        let ended = match client.next_reply() {
            Ok(Some(QueryReply::Events { events })) => {
                shown += events.len();
                query.after = events.last().map(|event| event.id).or(query.after);
                out.events(&events)?;
                continue;
            }
            Ok(Some(QueryReply::End { last, behind })) => {
                query.after = query.after.max(Some(last));
                if behind {
                    eprintln!(
                        "ringfence: the daemon did not answer in time; the most recent events may be missing"
                    );
                }
                if args.follow {
                    continue;
                }
                if shown == 0 {
                    eprintln!("ringfence: no events");
                }
                return Ok(());
            }
            Ok(Some(_)) => return Err(ringfence_client::events::unexpected().into()),
            Ok(None) => None,
            Err(error @ ClientError::Talk(_)) => Some(error),
            Err(error) => return Err(error.into()),
        };
        // The auditor ended; the daemon starts another, which continues after the last event shown.
        let again = args.follow.then(|| reconnect(&socket, &mut query)).flatten();
        client = match (again, ended) {
            (Some(client), _) => client,
            (None, Some(error)) => return Err(error.into()),
            (None, None) => {
                anyhow::bail!("the auditor closed the connection; `ringfence status` shows whether it runs")
            }
        };
    }
}

fn reconnect(socket: &std::path::Path, query: &mut EventsQuery) -> Option<Client> {
    // From now on all events after the last one shown are wanted.
    (query.limit, query.since) = (None, None);
    (0..RETRIES).find_map(|_| {
        thread::sleep(RETRY_EVERY);
        Client::ask(socket, &QueryRequest::Events(query.clone())).ok()
    })
}

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Json,
    Ocsf,
}

/// Where events go.
struct Output<W> {
    out: W,
    form: Form,
    header: bool,
}

impl<W: Write> Output<W> {
    fn events(&mut self, events: &[Event]) -> anyhow::Result<()> {
        if std::mem::take(&mut self.header) {
            let dim = Style::new().dimmed();
            let head = columns(
                [
                    "TIME",
                    "CONTAINER/PROFILE",
                    "VERDICT",
                    "OPERATION",
                    "PATH OR ADDRESS",
                    "EXECUTABLE",
                    "RULE",
                    "EVENT",
                ]
                .map(str::to_owned),
                Style::new(),
            );
            writeln!(self.out, "{dim}{head}{dim:#}")?;
        }
        for event in events {
            match self.form {
                Form::Table => writeln!(self.out, "{}", row(event))?,
                Form::Json => {
                    let json = serde_json::to_string(event).context("an event cannot be written as JSON")?;
                    writeln!(self.out, "{json}")?;
                }
                Form::Ocsf => {
                    if let Some(event) = ocsf(event) {
                        writeln!(self.out, "{event}")?;
                    }
                }
            }
        }
        self.out.flush()?;
        Ok(())
    }
}

/// The colour of a verdict.
pub(super) fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Allowed => AnsiColor::Green.on_default(),
        Verdict::Denied => AnsiColor::Red.on_default().bold(),
        Verdict::WouldDeny => AnsiColor::Yellow.on_default().bold(),
    }
}

/// The target of an event for the terminal, between other columns: both ends of a rename, a connection's server and bytes, the host
/// that an address stands for; `-` for nothing.
pub(super) fn target(event: &Event) -> String {
    let (Target::Path(from) | Target::Addr(from)) = &event.target;
    let from = apart(from.as_deref().unwrap_or("-"));
    if let Some(connection) = &event.connection {
        let server = connection.dialled.map(|dialled| format!(" -> {dialled}")).unwrap_or_default();
        let bytes = match (connection.sent, connection.received) {
            (0, 0) => String::new(),
            (sent, received) => format!(" ({sent} B sent, {received} B received)"),
        };
        return format!("{from}{server}{bytes}");
    }
    if let Some(question) = &event.question {
        let answer = question.address.map(|address| format!(" -> {address}")).unwrap_or_default();
        return format!("{from} {}{answer}", apart(&question.kind));
    }
    if let Some(name) = &event.name {
        return format!("{from} ({})", apart(name));
    }
    match event.flags.iter().find_map(|flag| flag.strip_prefix("to=")) {
        Some(to) => format!("{from} -> {}", apart(to)),
        None => from,
    }
}

fn row(event: &Event) -> String {
    let time = event.ts.parse::<Timestamp>().map_or_else(
        |_| event.ts.clone(),
        |ts| ts.to_zoned(jiff::tz::TimeZone::system()).strftime("%F %T%.3f").to_string(),
    );
    let mut op = event.op.clone();
    if event.repeats > 1 {
        op.push_str(&format!(" x{}", event.repeats));
    }
    columns(
        [
            time,
            format!("{}/{}", event.container, printable(&event.profile)),
            event.verdict.word().to_owned(),
            op,
            target(event),
            apart(&event.exe),
            printable(&event.rule),
            event.id.to_string(),
        ],
        style(event.verdict),
    )
}

/// Columns of a fixed minimum width, so that each row can be written at once.
fn columns([time, container, verdict, op, target, exe, rule, id]: [String; 8], style: Style) -> String {
    format!(
        "{time:<23}  {container:<20}  {style}{verdict:<10}{style:#}  {op:<13}  {target:<40}  {exe:<24}  {rule:<28}  {id}"
    )
}

/// A time as people write it, in µs since 1970.
fn parse_since(text: &str) -> Result<i64, String> {
    since(text, &Zoned::now()).map(Timestamp::as_microsecond)
}

fn since(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let local = |date: civil::DateTime| date.to_zoned(now.time_zone().clone()).map(|zoned| zoned.timestamp());
    let fail = |error: jiff::Error| format!("{error}");
    if text == "today" {
        return now.start_of_day().map(|zoned| zoned.timestamp()).map_err(fail);
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(timestamp);
    }
    if let Ok(date) = text.parse::<civil::DateTime>() {
        return local(date).map_err(fail);
    }
    match text.parse::<jiff::Span>() {
        Ok(span) if !span.is_negative() && text.starts_with(|c: char| c.is_ascii_digit()) => {
            now.checked_sub(span).map(|zoned| zoned.timestamp()).map_err(fail)
        }
        _ => {
            Err("write `10m`, `2h` or `3d` (ago), `today`, `2026-11-20`, `2026-11-20T09:30` or RFC 3339"
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Result<String, String> {
        let now: Zoned = "2026-11-20T09:36:39.5+01:00[+01:00]".parse().expect("a time");
        since(text, &now).map(|timestamp| timestamp.to_string())
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let is = |text: &str, expected: &str| assert_eq!(at(text).as_deref(), Ok(expected), "{text}");
        is("10m", "2026-11-20T08:26:39.5Z");
        is("2h", "2026-11-20T06:36:39.5Z");
        is("1h30m", "2026-11-20T07:06:39.5Z");
        is("3d", "2026-11-17T08:36:39.5Z");
        is("45s", "2026-11-20T08:35:54.5Z");
        is("today", "2026-11-19T23:00:00Z");
        is("2026-11-20", "2026-11-19T23:00:00Z");
        is("2026-11-20T09:30", "2026-11-20T08:30:00Z");
        is("2026-11-20 09:30:15", "2026-11-20T08:30:15Z");
        is("2026-11-20T09:30:00Z", "2026-11-20T09:30:00Z");
        is("2026-11-20T09:30:00-05:00", "2026-11-20T14:30:00Z");
        for bad in ["", "10", "-10m", "yesteryear", "2026-13-40", "10 bananas", "99999999999999d"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
