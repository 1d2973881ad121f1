//! `ringfence audit`: whether the record of MCP sessions is whole, and the record in other forms.

use crate::{
    auditor::printable,
    mcp::{
        client,
        export::{self, Format},
        journal::Reader,
        state::Places,
    },
};
use anyhow::{Context, bail};
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde_json::Value;
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    process::ExitCode,
};

/// Checks the record of MCP sessions, and exports it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence audit verify
  ringfence audit export --format ocsf > calls.ndjson
  ringfence audit export --format sql | sqlite3 copy.db")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reads every session's journal and compares it with the database: any edit, gap or cut is found. Exit status 1
    /// if something is amiss.
    Verify {
        /// The audit database [default: the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
    /// Writes all tool calls (or, as SQL, all tables) to standard output.
    Export {
        /// The form.
        #[arg(long, value_enum)]
        format: Format,
        /// The audit database [default: the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Verify { db } => verify(&Places::find(db.as_deref())?),
        Command::Export { format, db } => {
            match export(&Places::find(db.as_deref())?, *format) {
                // Whoever reads has enough.
                Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
                outcome => outcome.map(|()| ExitCode::SUCCESS),
            }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// All rows of a table, page by page.
fn each_row(
    places: &Places,
    table: &str,
    mut each: impl FnMut(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut after = 0;
    loop {
        let request = McpRequest::Table { table: table.to_owned(), after, limit: 500 };
        let McpReply::Rows { rows } = client::ask(places, &request)? else {
            bail!("the auditor answered something else");
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

fn verify(places: &Places) -> anyhow::Result<ExitCode> {
    let (mut whole, mut amiss) = (0u64, 0u64);
    each_row(places, "sessions", |row| {
        let session = row["id"].as_str().unwrap_or_default();
        match check(row) {
            Ok(()) => whole += 1,
            Err(error) => {
                amiss += 1;
                println!("session {}: {}", printable(session), printable(&format!("{error:#}")));
            }
        }
        Ok(())
    })?;
    println!("{whole} sessions whole, {amiss} amiss");
    Ok(if amiss == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Reads a session's journal to its end; the store must stand on its chain.
fn check(row: &Value) -> anyhow::Result<()> {
    if let Some(why) = row["broken"].as_str() {
        bail!("the auditor found it broken: {why}");
    }
    let path = row["journal"].as_str().unwrap_or_default();
    let (stored, head) =
        (row["journal_lines"].as_u64().unwrap_or(0), row["journal_head"].as_str().unwrap_or_default());
    let file = File::open(path).with_context(|| format!("its journal {path} cannot be opened"))?;
    let mut reader = Reader::new(BufReader::new(file));
    let mut met = stored == 0;
    while reader.next_entry().with_context(|| format!("its journal {path}"))?.is_some() {
        let (hash, lines) = reader.position();
        if lines == stored {
            if hash != head {
                bail!("its journal {path} is another one than the database was made from (line {lines})");
            }
            met = true;
        }
    }
    if !met {
        bail!("its journal {path} ends after {} lines, and the database has {stored}", reader.position().1);
    }
    Ok(())
}

fn export(places: &Places, format: Format) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    if format == Format::Sql {
        writeln!(out, "PRAGMA foreign_keys = OFF;\nBEGIN;\n{}", crate::auditor::MCP_SCHEMA)?;
        for table in crate::auditor::MCP_TABLES {
            each_row(places, table, |row| Ok(writeln!(out, "{}", export::insert(table, row))?))?;
        }
        writeln!(out, "COMMIT;")?;
        return Ok(out.flush()?);
    }
    each_row(places, "tool_calls", |row| {
        match format {
            Format::Ocsf => writeln!(out, "{}", export::ocsf(row))?,
            Format::Cef => writeln!(out, "{}", export::cef(row))?,
            Format::Ndjson | Format::Sql => {
                let mut row = row.clone();
                if let Value::Object(fields) = &mut row {
                    fields.retain(|key, _| !key.starts_with('_'));
                }
                writeln!(out, "{row}")?;
            }
        }
        Ok(())
    })?;
    Ok(out.flush()?)
}
