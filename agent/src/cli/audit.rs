//! `ringfence audit`: verifies the record of MCP sessions, and exports it.

mod unvouched;

use super::{exit::Exit, output::print};
use anyhow::{Context, bail};
use ringfence_auditor::verify;
use ringfence_base::{counted::counted, error::chain, escape::line as printable};
use ringfence_client::{
    places::{JOURNALS, Places},
    sessions as client,
};
use ringfence_session::{
    export::{self, Format},
    heads::{self, Head, Of},
    ledger::{self, Checkpoint, Known, Ledger},
};
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Verifies the record of MCP sessions, and exports it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence audit verify
  journalctl -t ringfence-audit -o json | ringfence audit verify --heads -
  ringfence audit heads > /media/stick/heads
  ringfence audit export --format ocsf > calls.ndjson
  ringfence audit export --format sql | sqlite3 copy.db")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Verifies every session against its journal and the ledger.
    ///
    /// It finds changed, missing and truncated records, missing sessions, and intents and rules that somebody else wrote. Of a
    /// copy of a database, the journals beside the copy count. A session that retention removed has left a
    /// checkpoint and is not reported.
    #[command(after_help = "Exit status:
  0  the record is complete and unchanged
  1  it is not, or could not be read

Examples:
  ringfence audit verify
  journalctl -t ringfence-audit -o json | ringfence audit verify --heads -")]
    Verify {
        /// Heads that were stored elsewhere, to detect that the whole record was replaced by an older copy: the output of
        /// `journalctl -t ringfence-audit -o json` or of `ringfence audit heads`; `-` for standard input.
        #[arg(long, value_name = "FILE")]
        heads: Option<PathBuf>,
        /// The audit database [default: the daemon's, if it runs, else the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
    /// Prints the current heads of ledger and journals, to store where nobody can change them.
    #[command(after_help = "Example:\n  ringfence audit heads > /media/stick/heads")]
    Heads {
        /// The audit database [default: the daemon's, if it runs, else the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
    /// Writes all tool calls to standard output; as SQL, all tables.
    #[command(after_help = "Examples:
  ringfence audit export --format ndjson | jq .tool_name
  ringfence audit export --format sql | sqlite3 copy.db")]
    Export {
        /// The format.
        #[arg(long, value_enum)]
        format: Format,
        /// The audit database [default: the daemon's, if it runs, else the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Verify { heads, db } => verify(&Places::on_record(db.as_deref())?, heads.as_deref()),
        Command::Heads { db } => print_heads(&Places::on_record(db.as_deref())?),
        Command::Export { format, db } => export(&Places::on_record(db.as_deref())?, *format),
    }
}

/// All rows of a table, page by page.
fn each_row(
    places: &Places,
    table: &str,
    each: impl FnMut(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    each_page(places, table, false, each)
}

/// The same; with `as_text`, columns of JSON come as the stored text.
fn each_page(
    places: &Places,
    table: &str,
    as_text: bool,
    mut each: impl FnMut(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut after = 0;
    loop {
        let request = McpRequest::Table { table: table.to_owned(), after, limit: 500, as_text };
        let McpReply::Rows { rows } = client::ask(places, &request)? else {
            bail!("the auditor sent an unexpected answer");
        };
        for row in &rows {
            each(row)?;
        }
        match rows.last().and_then(|row| row["_rowid"].as_i64()) {
            Some(last) => after = last,
            None => return Ok(()),
        }
    }
}

/// Reads everything twice where it may change meanwhile: a session that runs, or that retention removes just now, is
/// no problem.
fn verify(places: &Places, heads: Option<&Path>) -> anyhow::Result<ExitCode> {
    let heads = heads.map(|file| read_heads(places, file)).transpose()?.unwrap_or_default();
    let mut before = rows_by_id(places, "sessions")?;
    let moved_from = own_journals(places, &mut before);
    let (ledgers, problems) = ledgers(places)?;
    let mut sums: HashMap<String, verify::Sums> = HashMap::new();
    each_row(places, "messages", |row| {
        sums.entry(text(row, "session_id")).or_default().message(row);
        Ok(())
    })?;
    each_row(places, "tool_calls", |row| {
        sums.entry(text(row, "session_id")).or_default().call(row);
        Ok(())
    })?;
    each_row(places, "stderr", |row| {
        sums.entry(text(row, "session_id")).or_default().stderr(row);
        Ok(())
    })?;
    let after = rows_by_id(places, "sessions")?;
    // A broken ledger is reported once, not for each session.
    let unread = Known::default();
    let known = |row: &Value, session: &str| {
        let uid = row["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok())?;
        match ledgers.get(&uid) {
            Some(ledger) => ledger.sessions.get(session),
            None => (!problems.is_empty()).then_some(&unread),
        }
    };

    // Anybody may send the host's journal heads of their own, as many as they like, and call them those of another user's
    // session.
    let mut of_sessions: HashMap<(&str, u64), Vec<&Head>> = HashMap::new();
    for head in &heads {
        if let Of::Session(session) = &head.of {
            of_sessions.entry((session.as_str(), head.uid.into())).or_default().push(head);
        }
    }
    let (mut whole, mut running) = (0u64, 0u64);
    let mut suspects = Vec::new();
    for (session, row) in &before {
        let of_it = row["uid"].as_u64().and_then(|uid| of_sessions.remove(&(session.as_str(), uid)));
        let of_it = of_it.unwrap_or_default();
        let still = after.get(session).is_some_and(|now| now["journal_lines"] == row["journal_lines"]);
        let sums = still.then(|| sums.get(session).copied().unwrap_or_default());
        running += u64::from(!still);
        match verify::session(row, known(row, session), &of_it, sums) {
            Ok(()) => whole += 1,
            Err(error) => suspects.push((session.clone(), error)),
        }
    }
    let mut problems = problems.clone();
    problems.extend(unvouched::problems(|each| each_row(places, "unvouched", each)));
    let named = ledgers.values().flat_map(|ledger| &ledger.sessions);
    let gone = named.filter(|(session, known)| known.removed.is_none() && !after.contains_key(*session));
    suspects.extend(gone.map(|(session, _)| (session.clone(), verify::Problem::Gone)));
    for (head, error) in verify::heads(&heads, &ledgers, |session| before.contains_key(session)) {
        // Whose head it is: the session that it names may be on record as removed, and another user's.
        match &head.of {
            Of::Session(session) => {
                problems.push(format!("session {session} of uid {}: {}", head.uid, chain(&error)));
            }
            Of::Ledger => problems.push(format!("ledger of uid {}: {error}", head.uid)),
        }
    }

    let (now, _) = self::ledgers(places)?;
    let removed: HashMap<&String, &Checkpoint> = now
        .values()
        .flat_map(|ledger| &ledger.sessions)
        .filter_map(|(session, known)| Some((session, known.removed.as_ref()?)))
        .collect();
    for (session, error) in suspects {
        let by_retention = removed.contains_key(&session)
            && matches!(
                error,
                verify::Problem::Journal { .. } | verify::Problem::Gone | verify::Problem::Rows(_)
            );
        if !by_retention {
            problems.push(format!("session {session}: {}", chain(&error)));
        }
    }
    for line in &problems {
        print(&format!("{}\n", printable(line)))?;
    }
    for from in &moved_from {
        print(&format!(
            "this database was made as {}: it was moved since, or is a copy; what is compared are the journals beside it\n",
            printable(&from.to_string_lossy())
        ))?;
    }
    report(whole, running, &removed, &now, heads.len())?;
    print(&format!("{}\n", counted(problems.len() as u64, "problem")))?;
    Ok(if problems.is_empty() { Exit::Success } else { Exit::Failure }.into())
}

/// Has each session of a user's own database checked against the journal beside that: of a database that was moved or
/// copied, rows name those of the place where it was made. Gives the databases' names there.
fn own_journals(places: &Places, sessions: &mut BTreeMap<String, Value>) -> BTreeSet<PathBuf> {
    // Journals of the daemon's database are in their users' homes.
    if client::connect_daemon(places).is_some() {
        return BTreeSet::new();
    }
    let mut others = BTreeSet::new();
    for (session, row) in sessions {
        let (named, own) = (PathBuf::from(text(row, "journal")), places.journal(session));
        let same =
            |one: &Path, other: &Path| one == other || one.canonicalize().ok() == other.canonicalize().ok();
        let [Some(was), Some(is)] = [&named, &own].map(|journal| journal.parent()) else { continue };
        if !named.is_absolute() || same(was, is) {
            continue;
        }
        others.extend(database_of(was));
        row["journal"] = own.to_string_lossy().into();
    }
    others
}

/// The database whose journals are in a directory.
fn database_of(journals: &Path) -> Option<PathBuf> {
    let name = journals.file_name()?.to_str()?.strip_suffix(JOURNALS)?;
    Some(journals.with_file_name(name))
}

fn report(
    whole: u64,
    running: u64,
    removed: &HashMap<&String, &Checkpoint>,
    ledgers: &HashMap<u32, Ledger>,
    heads: usize,
) -> anyhow::Result<()> {
    print(&format!("{} whole\n", counted(whole, "session")))?;
    if running > 0 {
        print(&format!("{running} of them changed meanwhile, so their rows were not compared\n"))?;
    }
    let folded = ledgers.values().fold((0, 0), |sum, l| (sum.0 + l.folded.0, sum.1 + l.folded.1));
    let sessions = removed.len() as u64 + folded.0;
    if sessions > 0 {
        let calls = removed.values().map(|checkpoint| checkpoint.calls).sum::<u64>() + folded.1;
        let newest = removed.values().map(|checkpoint| checkpoint.ended.as_str()).max().unwrap_or("before");
        print(&format!(
            "{} with {} removed by retention, checkpoints kept; the newest ended {}\n",
            counted(sessions, "session"),
            counted(calls, "call"),
            printable(newest)
        ))?;
    }
    if heads > 0 {
        print(&format!("{} kept elsewhere compared\n", counted(heads as u64, "head")))?;
    }
    Ok(())
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

fn rows_by_id(places: &Places, table: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut rows = BTreeMap::new();
    each_row(places, table, |row| {
        rows.insert(text(row, "id"), row.clone());
        Ok(())
    })?;
    Ok(rows)
}

/// The ledgers of all users whose rows are shown, and what is wrong with the broken ones.
fn ledgers(places: &Places) -> anyhow::Result<(HashMap<u32, Ledger>, Vec<String>)> {
    let mut rows: BTreeMap<u32, Vec<ledger::Row>> = BTreeMap::new();
    each_row(places, "ledger", |row| {
        let uid = row["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok()).unwrap_or(u32::MAX);
        let seq = row["seq"].as_u64().unwrap_or(0);
        rows.entry(uid).or_default().push(ledger::Row {
            uid,
            seq,
            entry: text(row, "entry"),
            hash: text(row, "hash"),
        });
        Ok(())
    })?;
    let (mut ledgers, mut problems) = (HashMap::new(), Vec::new());
    for (uid, mut rows) in rows {
        rows.sort_by_key(|row| row.seq);
        match Ledger::read(&rows) {
            Ok(ledger) => drop(ledgers.insert(uid, ledger)),
            Err(error) => problems.push(format!("ledger of uid {uid}: {error}")),
        }
    }
    Ok((ledgers, problems))
}

/// The present heads of this database.
fn present_heads(places: &Places) -> anyhow::Result<Vec<Head>> {
    let McpReply::Rows { rows } = client::ask(places, &McpRequest::Heads)? else {
        bail!("the auditor sent an unexpected answer");
    };
    Ok(rows.iter().filter_map(|row| heads::parse(row["head"].as_str()?)).map(|(head, _)| head).collect())
}

/// The heads of this database in a file. A file without any is an error, since it would prove nothing.
fn read_heads(places: &Places, file: &Path) -> anyhow::Result<Vec<Head>> {
    let named = || format!("the heads {}", file.display());
    let input: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).with_context(|| format!("cannot open {}", named()))?))
    };
    // Of one that was moved, they have the name of the place where it was.
    let mut dbs: BTreeSet<String> = own_journals(places, &mut rows_by_id(places, "sessions")?)
        .iter()
        .map(|db| heads::database(db))
        .collect();
    dbs.insert(match present_heads(places)?.first() {
        Some(head) => head.db.clone(),
        None => heads::database(&places.db),
    });
    let (mut found, mut other) = (Vec::new(), 0u64);
    for line in input.split(b'\n') {
        let line = line.with_context(|| format!("cannot read {}", named()))?;
        match heads::parse(&String::from_utf8_lossy(&line)) {
            // Anybody may write to the host's journal, so a head counts only if its own user or the auditor wrote it.
            Some((head, by))
                if dbs.contains(&head.db) && by.is_none_or(|by| by == head.uid || is_auditor(by)) =>
            {
                found.push(head);
            }
            Some(_) => other += 1,
            None => {}
        }
    }
    if found.is_empty() {
        bail!(
            "{} have no head of the database {} ({other} are of other databases); get them with `journalctl -t ringfence-audit -o json`",
            named(),
            places.db.display()
        );
    }
    Ok(found)
}

/// Whether this is the uid of root or of the daemon's auditor.
fn is_auditor(uid: u32) -> bool {
    let named = nix::unistd::User::from_name("ringfence-audit").ok().flatten();
    uid == 0 || named.is_some_and(|user| user.uid.as_raw() == uid)
}

fn print_heads(places: &Places) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    for head in present_heads(places)? {
        writeln!(out, "{head}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn export(places: &Places, format: Format) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    if format == Format::Sql {
        writeln!(out, "PRAGMA foreign_keys = OFF;\nBEGIN;\n{}", ringfence_auditor::mcp_schema_sql())?;
        for table in ringfence_auditor::MCP_TABLES {
            each_page(places, table, true, |row| Ok(writeln!(out, "{}", export::insert(table, row))?))?;
        }
        writeln!(out, "COMMIT;")?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    each_row(places, "tool_calls", |row| {
        match format {
            Format::Ocsf => writeln!(out, "{}", export::ocsf(row))?,
            Format::Cef => writeln!(out, "{}", export::cef(row))?,
            Format::Ndjson | Format::Sql => writeln!(out, "{}", export::ndjson(row))?,
        }
        Ok(())
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
