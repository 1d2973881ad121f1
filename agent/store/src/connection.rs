//! Connections: for one that writes, the file is created, checked and brought up to date. Reading all rows of a question.

use super::{Error, condition_columns, schema, sql, vouched};
use rusqlite::{Connection, OpenFlags, Params, Row, Transaction, TransactionBehavior};
use std::{fs, path::Path, time::Duration};

/// A database up to this size is checked page by page when it is opened; a bigger one where it is read.
const CHECK_BELOW: u64 = 64 << 20;

/// Opens a database for writing, and creates it or brings it up to date.
///
/// # Errors
/// [`Error::Open`]; [`Error::Newer`].
pub(crate) fn open_existing(path: &Path) -> Result<Connection, Error> {
    let fail = |source| Error::Open { path: path.to_owned(), source };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(fail)?;
    // auto_vacuum must come before the first table; it lets retention give pages back. The cache, 16 MiB, holds the indexes
    // over ids, which grow everywhere at once; the log is written back when it is about as long.
    connection
        .execute_batch(
            "PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             PRAGMA foreign_keys = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA journal_size_limit = 16777216;
             PRAGMA wal_autocheckpoint = 4000;
             PRAGMA cache_size = -16384;
             PRAGMA trusted_schema = OFF;",
        )
        .map_err(fail)?;
    let number =
        |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).map_err(fail);
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(fail)?;
    if tables > 0 && application != i64::from(schema::APPLICATION_ID) {
        return Err(not_ours(path));
    }
    let version = usize::try_from(version).map_err(|_| not_ours(path))?;
    if version > schema::MIGRATIONS.len() {
        return Err(Error::Newer { path: path.to_owned(), found: version, known: schema::MIGRATIONS.len() });
    }
    if fs::metadata(path).map_or(0, |m| m.len()) < CHECK_BELOW {
        let verdict: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(fail)?;
        if verdict != "ok" {
            return Err(not_ours(path));
        }
    }
    for (done, migration) in schema::MIGRATIONS.iter().enumerate().skip(version) {
        let step = connection.transaction().map_err(fail)?;
        step.execute_batch(migration).map_err(fail)?;
        step.pragma_update(None, "application_id", schema::APPLICATION_ID).map_err(fail)?;
        step.pragma_update(None, "user_version", (done + 1) as i64).map_err(fail)?;
        step.commit().map_err(fail)?;
    }
    condition_columns::add(&mut connection).map_err(fail)?;
    vouched::install(&mut connection).map_err(fail)?;
    Ok(connection)
}

/// Opens a database for reading.
///
/// # Errors
/// [`Error::Open`]: there is none yet, or it cannot be read.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, Error> {
    let fail = |source| Error::Open { path: path.to_owned(), source };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(fail)?;
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY;").map_err(fail)?;
    Ok(connection)
}

/// All rows that answer a question.
pub(crate) fn rows<T>(
    connection: &Connection,
    text: &str,
    values: impl Params,
    each: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare_cached(text)?.query_map(values, each)?.collect()
}

/// Begins a transaction that writes. Immediate: one that read first could not wait for the other writer.
///
/// # Errors
/// [`Error::Sql`].
pub(crate) fn begin(connection: &mut Connection) -> Result<Transaction<'_>, Error> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql("begin a transaction"))
}

/// The error for a file that SQLite can read but that is not this store: as corrupt as any other.
fn not_ours(path: &Path) -> Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
    Error::Open { path: path.to_owned(), source: rusqlite::Error::SqliteFailure(code, None) }
}
