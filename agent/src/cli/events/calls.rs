//! `ringfence events calls`.

use crate::cli::output::{self, word};
use ringfence_base::{escape::line as printable, paths::Paths};
use ringfence_client::events::{Client, unexpected};
use ringfence_wire::{
    calls::{CallList, CallsQuery, ListedCall},
    message::{QueryReply, QueryRequest},
};
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Lists tool calls, whatever carried them, newest first.
///
/// BY is what a call is known by: `endpoint` (the model wanted it, as the agent's worker saw), `endpoint+hook` (the agent's own hook says
/// that it is over, too) or `mcp` (it passed `ringfence mcp`). RESULT is `ok`, `failed`, `denied`, `waiting` or
/// `none` (it is over, and nothing says how it ended). TIE is how sure it is which processes are the call's: `exact`, `matched`,
/// `ambiguous` or `none`. You see the calls of your own agents, runs and MCP sessions; root sees all. What runs report is their
/// users' word, and what hooks say their containers'.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence events calls                   # the newest of all
  ringfence events calls --agent claude    # those of one agent, and of runs under its profile
  ringfence events calls --json | jq -r '.calls[] | select(.result == \"failed\") | .tool'")]
pub(crate) struct CallsArgs {
    /// Only calls of this agent, and of runs under the profile of that name; none of MCP sessions.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Show at most N calls, the newest, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Print one JSON object (docs/see-what-happened.md).
    #[arg(long)]
    json: bool,
}

pub(super) fn calls(args: &CallsArgs) -> anyhow::Result<ExitCode> {
    let socket = Paths::from_env().query_socket();
    let query = CallsQuery { agent: args.agent.clone(), limit: Some(args.limit) };
    let Some(QueryReply::Calls(list)) = Client::ask(&socket, &QueryRequest::Calls(query))?.next_reply()?
    else {
        return Err(unexpected().into());
    };
    let mut out = anstream::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &list).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.calls.is_empty() {
        eprintln!("ringfence: no such call is on record");
        return Ok(ExitCode::SUCCESS);
    }
    show(&mut out, &list)?;
    Ok(ExitCode::SUCCESS)
}

fn show(out: &mut impl Write, list: &CallList) -> io::Result<()> {
    let titles = ["TIME", "AGENT OR SESSION", "CALL", "TOOL", "BY", "RESULT", "TIE"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(titles).chain(list.calls.iter().map(row)).collect();
    out.write_all(output::table(&rows).as_bytes())?;
    if list.more {
        writeln!(out, "There are more: `--limit N` shows up to 1000.")?;
    }
    Ok(())
}

/// A call's cells, escaped: names and ids come from agents and servers.
fn row(call: &ListedCall) -> [String; 7] {
    // Of a run, and of an MCP server in one, the container says which.
    let who = match (&call.agent, &call.mcp_session, &call.container) {
        (Some(agent), _, Some(container)) => format!("{agent} {container}"),
        (Some(agent), _, None) => agent.clone(),
        (None, Some(session), _) => format!("mcp {}", session.chars().take(8).collect::<String>()),
        (None, None, _) => "-".to_owned(),
    };
    let tool = match &call.server {
        Some(server) => format!("{}/{}", word(server), word(&call.tool)),
        None => word(&call.tool),
    };
    let id = word(call.call.as_ref().or(call.key.as_ref()).map_or("-", String::as_str));
    let [by, result, tie] =
        [call.by.to_string(), call.result.to_string(), call.tie.to_string()].map(|it| word(&it));
    [printable(&call.ts), printable(&who), id, tool, by, result, tie]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::calls::{CallResult, CallTie, KnownBy};

    fn call(agent: Option<&str>) -> ListedCall {
        ListedCall {
            ts: "2026-11-20T12:00:00.000000Z".into(),
            agent: agent.map(str::to_owned),
            container: Some("0123456789ab".into()),
            mcp_session: agent.is_none().then(|| "3f2a9c1b-0000".into()),
            call: agent.map(|_| "toolu_1".into()),
            key: Some("00112233".into()),
            tool: "Ed\u{1b}[2Jit\n".into(),
            server: agent.is_none().then(|| "files".into()),
            by: if agent.is_some() { KnownBy::Both } else { KnownBy::Mcp },
            result: CallResult::Other("a\nb".into()),
            is_error: None,
            hook: None,
            tie: CallTie::None,
        }
    }

    #[test]
    fn a_call_is_one_line_whatever_it_says() {
        let mut out = Vec::new();
        let list = CallList { calls: vec![call(Some("claude@1000")), call(None)], more: true };
        show(&mut out, &list).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        let first = [
            r"claude@1000",
            "0123456789ab",
            "toolu_1",
            r"Ed\x1b[2Jit\x0a",
            "endpoint+hook",
            r"a\x0ab",
            "none",
        ];
        assert_eq!(lines[1][1..], first);
        let second = ["mcp", "3f2a9c1b", "00112233", r"files/Ed\x1b[2Jit\x0a", "mcp", r"a\x0ab", "none"];
        assert_eq!(lines[2][1..], second);
    }

    /// An MCP client chooses its calls' ids and names.
    #[test]
    fn no_call_has_the_cells_of_another() {
        let mut forged = call(None);
        (forged.call, forged.tool) = (Some("toolu_1  Read  endpoint  ok  exact".into()), "x ".repeat(999));
        let mut out = Vec::new();
        show(&mut out, &CallList { calls: vec![forged], more: false }).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = text.lines().nth(1).unwrap();
        assert!(
            row.contains(r"  toolu_1\x20\x20Read\x20\x20endpoint\x20\x20ok\x20\x20exact  files/x\x20x"),
            "{text}"
        );
        assert!(row.split_whitespace().count() == 8 && row.len() < 300, "{text}");
    }
}
