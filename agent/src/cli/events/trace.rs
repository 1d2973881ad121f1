//! `ringfence events trace`.

use super::list;
use crate::cli::output::word;
use ringfence_base::{
    escape::{apart, line as printable},
    paths::Paths,
};
use ringfence_client::events::{Client, unexpected};
use ringfence_wire::{
    calls::CallResult,
    event::{Event, Verdict},
    message::{QueryReply, QueryRequest},
    trace::{Renamed, Trace, TraceQuery, TracedCall, TracedIntent, TracedRefusal, Via},
};
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Characters of a text that are shown in a line.
const LINE: usize = 100;

/// Shows requests to agents, their tool calls, and the kernel events of each call.
///
/// Behind each event is how certain its tool call is: `exact` (the kernel had tagged the process tree for the call), `sole` (no
/// other call was running during the life of the process), `matched` (it fits this one call by what was asked, its text or its
/// path) or `ambiguous` (one of several calls, none, or one that another call interfered with). What `ringfence run` reports of an agent with a kit is its user's word about that run's container, under
/// PROFILE@UID. `hook` behind a call's result: a hook of the agent's says that it is over. Agents of `ringfence agent start` do not appear: only the daemon sees both calls and events.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence events trace                   # the newest intents of all agents
  ringfence events trace coder --limit 3   # those of one agent, and of runs under its profile
  ringfence events trace 4f1d              # one intent, by the beginning of its id
  ringfence events trace toolu_01A2        # one tool call, by the provider's id or its key
  ringfence events trace --json | jq '.intents[].calls[].events[] | select(.verdict == \"denied\")'")]
pub(crate) struct TraceArgs {
    /// An agent's name, the beginning of an intent's id, or a tool call's id [default: the newest intents of all agents].
    #[arg(value_name = "AGENT|INTENT|CALL")]
    what: Option<String>,
    /// Show at most N intents, the newest, 1 to 200.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Print one JSON object (docs/llm.md).
    #[arg(long)]
    json: bool,
}

pub(super) fn trace(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let socket = Paths::from_env().query_socket();
    let query = TraceQuery { what: args.what.clone(), limit: Some(args.limit) };
    let Some(QueryReply::Trace(trace)) = Client::ask(&socket, &QueryRequest::Trace(query))?.next_reply()?
    else {
        return Err(unexpected().into());
    };
    let mut out = anstream::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &trace).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        show(&mut out, &trace)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    if trace.intents.is_empty() && trace.refusals.is_empty() {
        return writeln!(out, "no agent has received a message yet");
    }
    for intent in &trace.intents {
        self::intent(out, intent)?;
    }
    if trace.more {
        writeln!(out, "There are more calls than are shown.")?;
    }
    if !trace.refusals.is_empty() {
        writeln!(out, "refused on the agents' sockets")?;
        trace.refusals.iter().try_for_each(|refusal| refused(out, refusal))?;
    }
    Ok(())
}

fn intent(out: &mut impl Write, intent: &TracedIntent) -> io::Result<()> {
    let id = intent
        .intent
        .as_deref()
        .map_or_else(|| "no intent".to_owned(), |id| format!("intent {}", printable(id)));
    let by = match (intent.via, intent.uid) {
        (Via::Send, Some(uid)) => format!(", sent by user {uid}"),
        (Via::Send, None) => String::new(),
        // Only the container says so, and the output makes that clear.
        (Via::Http, _) => ", as its client over HTTP says".to_owned(),
    };
    let session = intent.session.as_deref().map(|id| format!(", session {}", word(id))).unwrap_or_default();
    let state = match (&intent.error, &intent.ended) {
        (Some(_), _) => "failed",
        (None, Some(_)) => "done",
        (None, None) => "under way",
    };
    let inside =
        intent.container.as_deref().map(|id| format!(" in container {}", printable(id))).unwrap_or_default();
    writeln!(out, "{id}  agent {}{inside}  {}{by}{session}  {state}", printable(&intent.agent), intent.ts)?;
    if !intent.text.is_empty() {
        writeln!(out, "  \"{}\"", short(&intent.text))?;
    }
    if let Some(error) = &intent.error {
        writeln!(out, "  ! {}", short(error))?;
    }
    for (at, call) in intent.calls.iter().enumerate() {
        self::call(out, call, at + 1 == intent.calls.len())?;
    }
    writeln!(out)
}

fn call(out: &mut impl Write, call: &TracedCall, is_last: bool) -> io::Result<()> {
    let (branch, below) = if is_last { ("└─", "   ") } else { ("├─", "│  ") };
    let place = call.server.as_deref().map_or("local".to_owned(), |server| format!("MCP {}", word(server)));
    let came_to = CallResult::of_agent(call.is_error, call.hook.as_ref(), call.ended.is_some());
    let hook = if call.hook.is_some() { "  hook" } else { "" };
    writeln!(
        out,
        "  {branch} {} {}  {place}  {came_to}{hook}  {}",
        word(&call.tool),
        word(&call.call),
        short(&call.input)
    )?;
    if let Some(Renamed { given, why }) = &call.renamed {
        writeln!(out, "  {below}  ! renamed: {}: the provider's id was \"{}\"", short(why), short(given))?;
    }
    call.events.iter().try_for_each(|event| self::event(out, event, below))?;
    if call.more {
        writeln!(out, "  {below}  ... and more: `ringfence events` shows them all")?;
    }
    Ok(())
}

fn event(out: &mut impl Write, event: &Event, below: &str) -> io::Result<()> {
    let style = match event.verdict {
        Verdict::Allowed => anstyle::Style::new(),
        Verdict::Denied => anstyle::AnsiColor::Red.on_default(),
        Verdict::WouldDeny => anstyle::AnsiColor::Yellow.on_default(),
    };
    let repeats = if event.repeats > 1 { format!(" x{}", event.repeats) } else { String::new() };
    writeln!(
        out,
        "  {below}  {style}{:<10}{style:#} {:<9} {}{repeats}  by {}  [{}]  #{}",
        event.verdict.word(),
        event.op,
        list::target(event),
        if event.exe.is_empty() { "-".to_owned() } else { apart(&event.exe) },
        event.attribution,
        event.id
    )
}

fn refused(out: &mut impl Write, refused: &TracedRefusal) -> io::Result<()> {
    let refusal = &refused.refusal;
    let who = refusal.pid.map_or("unknown".to_owned(), |pid| format!("process {pid}"));
    let user = refusal.uid.map(|uid| format!(" of user {uid}")).unwrap_or_default();
    let inside =
        refusal.container.as_deref().map(|id| format!(" in container {}", printable(id))).unwrap_or_default();
    writeln!(
        out,
        "  {}  agent {}  {}  {who}{user}{inside}: {}",
        refused.ts,
        printable(&refused.agent),
        printable(&refusal.what),
        short(&refusal.why)
    )
}

/// The beginning of a text, escaped, as one line.
fn short(text: &str) -> String {
    let mut shown: String = printable(text).chars().take(LINE).collect();
    if text.chars().count() > LINE {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::{
        event::{Certainty, Target},
        trace::TracedHook,
    };

    #[test]
    fn no_name_looks_like_what_stands_beside_it() {
        let mut out = Vec::new();
        let forged = Event {
            ts: "2026-11-20T12:00:00.000000Z".into(),
            id: 9,
            container: "0123456789ab".into(),
            profile: "claude".into(),
            verdict: Verdict::Denied,
            op: "open".into(),
            target: Target::Path(Some("/a  by /usr/bin/node  [exact]  #1".into())),
            flags: Vec::new(),
            pid: 1,
            tgid: 1,
            ppid: 1,
            exec_id: "1:1".into(),
            exe: "/b  [exact]  #2".into(),
            uid: 1000,
            rule: "default".into(),
            tool_call: None,
            attribution: Certainty::None,
            candidates: Vec::new(),
            repeats: 1,
            name: None,
            connection: None,
            question: None,
        };
        event(&mut out, &forged, "   ").unwrap();
        let text = String::from_utf8(out).unwrap();
        let shown = r"/a \x20by /usr/bin/node \x20[exact] \x20#1  by /b \x20[exact] \x20#2  [none]  #9";
        assert!(text.contains(shown), "{text}");
    }

    #[test]
    fn a_hostile_text_stays_in_its_line() {
        let trace = Trace {
            intents: vec![TracedIntent {
                intent: Some("0123456789ab".into()),
                agent: "coder".into(),
                container: None,
                ts: "2026-11-20T12:00:00.000000Z".into(),
                ended: None,
                uid: Some(0),
                via: Via::Send,
                session: Some("s\u{1b}[2J\n".into()),
                text: "look\u{1b}[2J\nintent forged".into(),
                error: None,
                calls: vec![TracedCall {
                    call: "call_00112233".into(),
                    key: Some("00112233".into()),
                    renamed: Some(Renamed { given: "a\u{1b}[2J\nb".into(), why: "it was odd".into() }),
                    ts: "2026-11-20T12:00:00.000000Z".into(),
                    ended: None,
                    tool: "ba\u{1b}]0;sh\u{7}  toolu_1".into(),
                    server: None,
                    input: "{\"a\":\n1}".into(),
                    is_error: None,
                    output: None,
                    hook: Some(TracedHook {
                        ts: "2026-11-20T12:00:00.000000Z".into(),
                        failed: Some(false),
                        session: Some("s\u{1b}[2J".into()),
                    }),
                    tagged: false,
                    events: Vec::new(),
                    more: false,
                }],
            }],
            ..Trace::default()
        };
        let mut out = Vec::new();
        show(&mut out, &trace).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(
            text.contains(r"it was odd: the provider's id was") && text.contains(r"a\x1b[2J\x0ab"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.contains(r"└─ ba\x1b]0;sh\x07\x20\x20toolu_1 call_00112233  local"), "{text}");
        assert!(text.contains(r", session s\x1b[2J\x0a  under way"), "{text}");
        assert!(text.contains("  local  ok  hook  {"), "{text}");
        assert!(text.contains("under way") && text.contains("sent by user 0"), "{text}");
    }
}
