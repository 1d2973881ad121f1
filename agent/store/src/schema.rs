//! The tables, as numbered migrations. A migration that shipped is never changed; the next one follows it.

/// Marks a SQLite file as ours: "RFnc".
pub(crate) const APPLICATION_ID: i32 = 0x5246_6e63;

/// The migrations; `PRAGMA user_version` counts those that ran.
///
/// Numbers that are unsigned 64-bit (container ids, starts, tags) are kept as the same 64 bits, signed.
pub(crate) const MIGRATIONS: &[&str] = &[
    // 1: events, and whom and what they name.
    "
    CREATE TABLE containers (
        id      INTEGER PRIMARY KEY,
        boot    TEXT NOT NULL,              -- boot id: kernel ids count from boot
        kernel  INTEGER NOT NULL,
        public  TEXT NOT NULL,
        profile TEXT NOT NULL,
        uid     INTEGER NOT NULL,           -- may see the container's events
        created INTEGER NOT NULL,           -- microseconds since 1970
        ended   INTEGER,
        bytes   INTEGER NOT NULL DEFAULT 0, -- what its events take, for the quota
        denied       INTEGER NOT NULL DEFAULT 0, -- the programs' counters, absolute
        ring_denied  INTEGER NOT NULL DEFAULT 0,
        ring_allowed INTEGER NOT NULL DEFAULT 0,
        aggregated   INTEGER NOT NULL DEFAULT 0,
        store_denied  INTEGER NOT NULL DEFAULT 0, -- what could not be stored
        store_allowed INTEGER NOT NULL DEFAULT 0,
        UNIQUE (boot, kernel)
    ) STRICT;

    CREATE TABLE rules (                    -- only rules that decided a stored event
        id   INTEGER PRIMARY KEY,
        rule TEXT NOT NULL,
        file TEXT NOT NULL,                 -- '' for built-in rules
        line INTEGER NOT NULL,
        key  TEXT NOT NULL,
        text TEXT NOT NULL,
        UNIQUE (rule, file, line, key, text)
    ) STRICT;

    CREATE TABLE events (
        id         INTEGER PRIMARY KEY AUTOINCREMENT,
        ts         INTEGER NOT NULL,        -- microseconds since 1970
        container  INTEGER NOT NULL REFERENCES containers (id),
        op         INTEGER NOT NULL,
        verdict    INTEGER NOT NULL,
        flags      INTEGER NOT NULL,
        detail     INTEGER NOT NULL,
        target     INTEGER NOT NULL,
        pid        INTEGER NOT NULL,
        tgid       INTEGER NOT NULL,
        ppid       INTEGER NOT NULL,
        uid        INTEGER NOT NULL,
        start      INTEGER NOT NULL,
        call       INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        repeats    INTEGER NOT NULL,
        rule_kind  INTEGER NOT NULL,
        fixed      INTEGER NOT NULL,        -- with rule_kind 3
        rule       INTEGER REFERENCES rules (id),
        axes       INTEGER NOT NULL,
        family     INTEGER NOT NULL,
        port       INTEGER NOT NULL,
        addr       BLOB,
        path       TEXT,
        path2      TEXT,
        exe        TEXT NOT NULL
    ) STRICT;
    CREATE INDEX events_by_time ON events (ts);
    CREATE INDEX events_by_container ON events (container);
    CREATE INDEX events_refused ON events (id) WHERE verdict <> 1;

    CREATE TABLE core_sessions (            -- runs of the core: which batches are stored
        session  TEXT PRIMARY KEY,
        sequence INTEGER NOT NULL,
        at       INTEGER NOT NULL
    ) STRICT;
    ",
    super::mcp_schema::MIGRATION,
    super::ledger::MIGRATION,
    super::rule_files::MIGRATION,
    super::mcp_schema::GOVERNED,
    // 6: when an event happened on the clock that `start` is of too; `ts` is the time of day, which may be set.
    "
    ALTER TABLE events ADD COLUMN moment INTEGER NOT NULL DEFAULT 0; -- ns since boot; 0: was not kept yet
    DROP INDEX events_by_container;
    CREATE INDEX events_by_container ON events (container, moment);
    CREATE INDEX containers_by_public ON containers (public);
    ",
    super::agents::MIGRATION,
    super::mcp_schema::EVIDENCE,
    super::agents::BY_CALL,
    super::agents::VIA,
    super::mcp_schema::STDERR,
    // 12: denials that are in stored events, kept or deleted since, to be compared with what the kernel counted.
    "
    ALTER TABLE containers ADD COLUMN told INTEGER NOT NULL DEFAULT 0;
    UPDATE containers SET told = denied - min(denied, ring_denied + store_denied);
    ",
    super::agents::KEYS,
    super::agent_bytes::MIGRATION,
    super::agent_bytes::BY_AGE,
    super::intents::BY_ORDER,
    super::session_retention::MIGRATION,
    super::rule_files::BY_USE,
];
