//! The tables, as numbered migrations. A migration that shipped is never changed; the next one follows it. The columns of
//! conditions of rules are added without one (`condition_columns`).

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
    // 2: MCP sessions.
    super::mcp_schema::MIGRATION,
    // 3: the ledger of sessions, and what retention needs to know of them.
    "
    CREATE TABLE ledger (                   -- one chain for each user: mcp/ledger.rs
        uid     INTEGER NOT NULL,
        seq     INTEGER NOT NULL,           -- from 1, without gaps
        entry   TEXT NOT NULL,              -- JSON
        hash    TEXT NOT NULL,              -- hex SHA-256 of the hash before and the entry
        session TEXT,                       -- of which retention removed: to find it
        told    INTEGER NOT NULL DEFAULT 0, -- the host's journal has it
        PRIMARY KEY (uid, seq)
    );
    CREATE INDEX ledger_untold ON ledger (uid, seq) WHERE told = 0;
    CREATE INDEX ledger_removed ON ledger (session) WHERE session IS NOT NULL;

    CREATE TABLE session_bounds (           -- what retention needs to know of a session
        session_id TEXT PRIMARY KEY,
        bytes      INTEGER NOT NULL,        -- of its journal
        removing   INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX idx_sessions_ended ON sessions (ended_at);
    CREATE INDEX idx_intents_session ON intent_contexts (session_id);
    ",
    // 4: which rule file is in force, and changes that wait for a person.
    "
    CREATE TABLE rule_files (
        uid            INTEGER NOT NULL,
        path           TEXT NOT NULL,
        text           TEXT NOT NULL,       -- in force
        since          TIMESTAMP NOT NULL,
        used           TIMESTAMP NOT NULL,
        confirmed_by   TEXT,                -- who, where it loosened the one before
        pending        TEXT,                -- the file's text, where that loosens this one
        pending_sha256 TEXT,
        pending_at     TIMESTAMP,
        PRIMARY KEY (uid, path)
    );
    ",
    // 5: what holds a session's server.
    super::mcp_schema::GOVERNED,
    // 6: when an event happened on the clock that `start` is of too; `ts` is the time of day, which may be set.
    "
    ALTER TABLE events ADD COLUMN moment INTEGER NOT NULL DEFAULT 0; -- ns since boot; 0: was not kept yet
    DROP INDEX events_by_container;
    CREATE INDEX events_by_container ON events (container, moment);
    CREATE INDEX containers_by_public ON containers (public);
    ",
    // 7: agents. A provider's ids of calls are not unique, over time or at all: a row is one call, and its worker names it by its key.
    "
    CREATE TABLE intents (
        row    INTEGER PRIMARY KEY,
        agent  TEXT NOT NULL,
        uid    INTEGER NOT NULL,        -- may see it, beside root
        id     TEXT NOT NULL,
        at     INTEGER NOT NULL,        -- microseconds since 1970
        ended  INTEGER,
        sender INTEGER,                 -- user id
        text   TEXT NOT NULL,
        error  TEXT,
        UNIQUE (agent, id)
    ) STRICT;

    CREATE TABLE agent_calls (
        row      INTEGER PRIMARY KEY,
        agent    TEXT NOT NULL,
        uid      INTEGER NOT NULL,
        id       TEXT NOT NULL,         -- the provider's, or what replaces it
        intent   TEXT,
        at       INTEGER NOT NULL,
        ended    INTEGER,
        began    INTEGER NOT NULL,      -- ns since boot
        done     INTEGER,
        tool     TEXT NOT NULL,
        server   TEXT,                  -- NULL: the runtime
        input    TEXT NOT NULL,
        is_error INTEGER,
        output   TEXT
    ) STRICT;
    CREATE INDEX agent_calls_by_id ON agent_calls (agent, id);
    CREATE INDEX agent_calls_by_intent ON agent_calls (agent, intent);

    CREATE TABLE call_tags (            -- which tag in events is which call's: agent and container by the core's word
        tag       INTEGER PRIMARY KEY,
        agent     TEXT NOT NULL,
        uid       INTEGER NOT NULL,
        at        INTEGER NOT NULL,
        container TEXT NOT NULL,
        call      INTEGER               -- agent_calls.row, by the worker's word
    ) STRICT;
    CREATE INDEX call_tags_by_call ON call_tags (call);
    CREATE INDEX events_by_call ON events (call) WHERE call <> 0;

    CREATE TABLE refusals (
        id        INTEGER PRIMARY KEY,
        agent     TEXT NOT NULL,
        uid       INTEGER NOT NULL,
        at        INTEGER NOT NULL,
        what      TEXT NOT NULL,
        why       TEXT NOT NULL,
        pid       INTEGER,
        peer_uid  INTEGER,
        container TEXT
    ) STRICT;
    ",
    // 8: what ties calls to an intent.
    super::mcp_schema::EVIDENCE,
    // 9: an MCP client may name a call by its id alone.
    "CREATE INDEX agent_calls_by_call ON agent_calls (id);",
    // 10: what the client of an agent's HTTP endpoint asks for is no message of its owner's.
    "ALTER TABLE intents ADD COLUMN via TEXT NOT NULL DEFAULT 'send'; -- or 'http'",
    // 11: what servers wrote to standard error.
    super::mcp_schema::STDERR,
    // 12: denials that are in stored events, kept or deleted since, to be compared with what the kernel counted.
    "
    ALTER TABLE containers ADD COLUMN told INTEGER NOT NULL DEFAULT 0;
    UPDATE containers SET told = denied - min(denied, ring_denied + store_denied);
    ",
    // 13: what a provider calls a call is no key.
    "
    ALTER TABLE agent_calls ADD COLUMN key TEXT;        -- the worker's own name for it; NULL: from before
    ALTER TABLE agent_calls ADD COLUMN given TEXT;      -- the provider's id, where `id` replaces it
    ALTER TABLE agent_calls ADD COLUMN renamed TEXT;    -- why it does
    CREATE UNIQUE INDEX agent_calls_by_key ON agent_calls (agent, key);
    CREATE INDEX agent_calls_by_given ON agent_calls (given) WHERE given IS NOT NULL;
    ",
    // 14: what each row counts for, and the sums by agent, which triggers keep.
    //
    // A row counts for more than it takes: a page may be half empty, and short texts are in indexes again.
    "
    ALTER TABLE intents ADD COLUMN bytes INTEGER GENERATED ALWAYS AS (512
        + 6 * (length(CAST(agent AS BLOB)) + length(CAST(id AS BLOB)))
        + 2 * (length(CAST(text AS BLOB)) + coalesce(length(CAST(error AS BLOB)), 0))) VIRTUAL;
    ALTER TABLE agent_calls ADD COLUMN bytes INTEGER GENERATED ALWAYS AS (1024
        + 10 * length(CAST(agent AS BLOB)) + 6 * length(CAST(id AS BLOB))
        + 4 * (coalesce(length(CAST(intent AS BLOB)), 0) + coalesce(length(CAST(key AS BLOB)), 0)
            + coalesce(length(CAST(given AS BLOB)), 0))
        + 2 * (length(CAST(tool AS BLOB)) + coalesce(length(CAST(server AS BLOB)), 0) + length(CAST(input AS BLOB))
            + coalesce(length(CAST(output AS BLOB)), 0) + coalesce(length(CAST(renamed AS BLOB)), 0))) VIRTUAL;
    ALTER TABLE refusals ADD COLUMN bytes INTEGER GENERATED ALWAYS AS (256
        + 2 * (length(CAST(agent AS BLOB)) + length(CAST(what AS BLOB)) + length(CAST(why AS BLOB))
            + coalesce(length(CAST(container AS BLOB)), 0))) VIRTUAL;
    ALTER TABLE call_tags ADD COLUMN bytes INTEGER GENERATED ALWAYS AS (256
        + 2 * (length(CAST(agent AS BLOB)) + length(CAST(container AS BLOB)))) VIRTUAL;

    CREATE TABLE agent_bytes (
        agent TEXT PRIMARY KEY,
        bytes INTEGER NOT NULL
    ) STRICT;
    INSERT INTO agent_bytes SELECT agent, sum(bytes) FROM (
        SELECT agent, bytes FROM intents UNION ALL SELECT agent, bytes FROM agent_calls
        UNION ALL SELECT agent, bytes FROM refusals UNION ALL SELECT agent, bytes FROM call_tags) GROUP BY agent;

    CREATE TRIGGER intents_come AFTER INSERT ON intents BEGIN
        INSERT OR IGNORE INTO agent_bytes VALUES (NEW.agent, 0);
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER intents_change AFTER UPDATE ON intents WHEN NEW.bytes <> OLD.bytes BEGIN
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes - OLD.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER intents_go AFTER DELETE ON intents BEGIN
        UPDATE agent_bytes SET bytes = bytes - OLD.bytes WHERE agent = OLD.agent;
    END;
    CREATE TRIGGER agent_calls_come AFTER INSERT ON agent_calls BEGIN
        INSERT OR IGNORE INTO agent_bytes VALUES (NEW.agent, 0);
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER agent_calls_change AFTER UPDATE ON agent_calls WHEN NEW.bytes <> OLD.bytes BEGIN
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes - OLD.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER agent_calls_go AFTER DELETE ON agent_calls BEGIN
        UPDATE agent_bytes SET bytes = bytes - OLD.bytes WHERE agent = OLD.agent;
    END;
    CREATE TRIGGER refusals_come AFTER INSERT ON refusals BEGIN
        INSERT OR IGNORE INTO agent_bytes VALUES (NEW.agent, 0);
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER refusals_go AFTER DELETE ON refusals BEGIN
        UPDATE agent_bytes SET bytes = bytes - OLD.bytes WHERE agent = OLD.agent;
    END;
    CREATE TRIGGER call_tags_come AFTER INSERT ON call_tags BEGIN
        INSERT OR IGNORE INTO agent_bytes VALUES (NEW.agent, 0);
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER call_tags_go AFTER DELETE ON call_tags BEGIN
        UPDATE agent_bytes SET bytes = bytes - OLD.bytes WHERE agent = OLD.agent;
    END;
    ",
    // 15: which rows of an agent are the oldest is known without looking at all of them.
    "
    CREATE INDEX intents_by_age ON intents (agent, at);
    CREATE INDEX agent_calls_by_age ON agent_calls (agent, at);
    CREATE INDEX refusals_by_age ON refusals (agent, at);
    CREATE INDEX call_tags_by_age ON call_tags (agent, at);
    ",
    // 16: what is asked for each call is found without looking at all calls of its intent, its id or its user.
    "
    CREATE INDEX intent_tool_calls_by_order ON intent_tool_calls (intent_id, sequence_order);
    DROP INDEX idx_tool_calls_tool_use;
    CREATE INDEX idx_tool_calls_tool_use ON tool_calls (tool_use, requested_at) WHERE tool_use IS NOT NULL;
    CREATE INDEX idx_sessions_uid ON sessions (uid, ended_at);
    ",
    // 17: when a session was last written, on the auditor's own clock. Of one from before, or of one that was not
    // counted, as if it were now; what counts for no session is nobody's, and nothing would remove it.
    "
    ALTER TABLE session_bounds ADD COLUMN written INTEGER NOT NULL DEFAULT 0; -- microseconds since 1970
    DELETE FROM session_bounds WHERE session_id NOT IN (SELECT id FROM sessions);
    INSERT OR IGNORE INTO session_bounds (session_id, bytes) SELECT id, 0 FROM sessions;
    UPDATE session_bounds SET written = CAST(strftime('%s', 'now') AS INTEGER) * 1000000;
    CREATE INDEX session_bounds_by_time ON session_bounds (written);
    CREATE INDEX session_bounds_removing ON session_bounds (removing) WHERE removing <> 0;
    ",
    // 18: those that nobody uses are found without reading the texts of all.
    "CREATE INDEX rule_files_by_use ON rule_files (uid, used);",
    // 19: what a user asks for is found without looking at what others have. The table is an index over two tables.
    "
    CREATE TABLE calls_by_user (
        uid             INTEGER NOT NULL,   -- the session's
        requested_at    TIMESTAMP NOT NULL, -- the call's, as its id
        id              TEXT NOT NULL,
        flagged         INTEGER NOT NULL,   -- 1: some rule applies to it
        PRIMARY KEY (uid, requested_at, id)
    ) WITHOUT ROWID;
    INSERT INTO calls_by_user
        SELECT s.uid, c.requested_at, c.id, c.policy_action != 'pass' FROM tool_calls c JOIN sessions s ON s.id = c.session_id;
    CREATE INDEX calls_by_user_flagged ON calls_by_user (uid, requested_at, id) WHERE flagged = 1;
    CREATE TRIGGER tool_calls_come AFTER INSERT ON tool_calls BEGIN
        INSERT INTO calls_by_user
            SELECT uid, NEW.requested_at, NEW.id, NEW.policy_action != 'pass' FROM sessions WHERE id = NEW.session_id;
    END;
    CREATE TRIGGER tool_calls_go AFTER DELETE ON tool_calls BEGIN
        DELETE FROM calls_by_user WHERE id = OLD.id AND requested_at = OLD.requested_at
            AND uid = (SELECT uid FROM sessions WHERE id = OLD.session_id);
    END;
    CREATE INDEX tool_calls_flagged ON tool_calls (requested_at, id) WHERE policy_action != 'pass';
    CREATE INDEX sessions_by_time ON sessions (started_at);
    CREATE INDEX sessions_by_user ON sessions (uid, started_at);
    ",
    // 20: which session a client of an agent's HTTP endpoint says that it is in. It is short: a row's 512 bytes have room for it.
    "ALTER TABLE intents ADD COLUMN session TEXT;",
    // 21: what runs say of their own containers. Its 12 hex digits have room in a row's fixed bytes.
    "
    ALTER TABLE intents ADD COLUMN container TEXT;      -- the run's, by the core's word; NULL: of an agent of the daemon's
    ALTER TABLE agent_calls ADD COLUMN container TEXT;
    CREATE INDEX agent_calls_by_container ON agent_calls (container, began) WHERE container IS NOT NULL;

    CREATE TABLE run_lines (            -- containers whose runs report: calls of nobody else are theirs
        container TEXT PRIMARY KEY,
        agent     TEXT NOT NULL,
        uid       INTEGER NOT NULL,
        at        INTEGER NOT NULL,     -- microseconds since 1970
        until     INTEGER               -- ns since boot: later calls may be missing; NULL: it reports
    ) STRICT;
    CREATE INDEX run_lines_by_age ON run_lines (agent, at);
    CREATE INDEX run_lines_open ON run_lines (container) WHERE until IS NULL;
    ",
    // 22: the files that a call's arguments name. They count; a column that is computed can only be made anew, and its
    // triggers with it. The sums stay: of a row from before, it is what it was.
    "
    DROP TRIGGER agent_calls_come;
    DROP TRIGGER agent_calls_change;
    DROP TRIGGER agent_calls_go;
    ALTER TABLE agent_calls DROP COLUMN bytes;
    ALTER TABLE agent_calls ADD COLUMN paths TEXT;      -- JSON: a list of texts; NULL: not known
    ALTER TABLE agent_calls ADD COLUMN bytes INTEGER GENERATED ALWAYS AS (1024
        + 10 * length(CAST(agent AS BLOB)) + 6 * length(CAST(id AS BLOB))
        + 4 * (coalesce(length(CAST(intent AS BLOB)), 0) + coalesce(length(CAST(key AS BLOB)), 0)
            + coalesce(length(CAST(given AS BLOB)), 0))
        + 2 * (length(CAST(tool AS BLOB)) + coalesce(length(CAST(server AS BLOB)), 0) + length(CAST(input AS BLOB))
            + coalesce(length(CAST(output AS BLOB)), 0) + coalesce(length(CAST(renamed AS BLOB)), 0)
            + coalesce(length(CAST(paths AS BLOB)), 0))) VIRTUAL;
    CREATE TRIGGER agent_calls_come AFTER INSERT ON agent_calls BEGIN
        INSERT OR IGNORE INTO agent_bytes VALUES (NEW.agent, 0);
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER agent_calls_change AFTER UPDATE ON agent_calls WHEN NEW.bytes <> OLD.bytes BEGIN
        UPDATE agent_bytes SET bytes = bytes + NEW.bytes - OLD.bytes WHERE agent = NEW.agent;
    END;
    CREATE TRIGGER agent_calls_go AFTER DELETE ON agent_calls BEGIN
        UPDATE agent_bytes SET bytes = bytes - OLD.bytes WHERE agent = OLD.agent;
    END;
    ",
    // 23: how sure it is whose a tag is, where a run says so.
    "
    ALTER TABLE call_tags ADD COLUMN matched INTEGER NOT NULL DEFAULT 0;     -- 1: nothing named the call
    ALTER TABLE agent_calls ADD COLUMN contested INTEGER NOT NULL DEFAULT 0; -- 1: two processes say that they are it
    ",
    // 24: what agents' hooks say of calls. Its texts are short: a row's 1024 bytes have room for them.
    "
    ALTER TABLE agent_calls ADD COLUMN hook_at INTEGER;         -- microseconds since 1970; NULL: no hook said anything
    ALTER TABLE agent_calls ADD COLUMN hook_failed INTEGER;     -- NULL: it did not say
    ALTER TABLE agent_calls ADD COLUMN hook_session TEXT;
    CREATE INDEX agent_calls_by_user ON agent_calls (uid);
    CREATE INDEX agent_calls_by_user_and_agent ON agent_calls (uid, agent, at);
    ",
    // 25: the births of a process's eldest ancestors, where it has no tag: ns since boot, 8 bytes each, little-endian, eldest
    // first. NULL: it is the container's first process, or the row is from before.
    "ALTER TABLE events ADD COLUMN lineage BLOB;",
    // 26: which run a refusal is of. Its 12 hex digits have room in a row's fixed bytes.
    "ALTER TABLE refusals ADD COLUMN run TEXT;           -- the run's container, by the core's word; NULL: an agent's of the daemon's",
    // 27: of which times reports of runs are lost.
    "
    CREATE TABLE run_gaps (
        container TEXT NOT NULL,        -- the run's
        began     INTEGER NOT NULL,     -- ns since boot; 0: at any time
        ended     INTEGER,              -- ns since boot; NULL: it goes on
        PRIMARY KEY (container, began)
    ) STRICT;
    ",
    // 28: when the first call of a run began, also once retention has removed it: what is older belongs to no call.
    "
    ALTER TABLE run_lines ADD COLUMN first INTEGER;      -- ns since boot; NULL: none did
    UPDATE run_lines SET first = (SELECT min(began) FROM agent_calls WHERE agent_calls.container = run_lines.container);
    ",
    // 29
    super::mcp_schema::CLIENT,
    // 30: copies of rows that no journal makes.
    super::vouched::MIGRATION,
    // 31: what became of calls of MCP sessions, beside what was decided about them.
    super::mcp_schema::OUTCOMES,
    // 32: rules that can be changed.
    super::mcp_schema::RULES,
    // 33: how often verdicts named each rule, and when last, from this migration on.
    super::mcp_schema::HITS,
    // 34, 35: which server a session has; servers, their tools, and what is pinned of them.
    super::mcp_schema::SERVER,
    super::mcp_schema::TOOLS,
    // 36: approvals of more than one call.
    super::mcp_schema::APPROVALS,
    // 37: exceptions.
    super::mcp_schema::EXCEPTIONS,
    // 38: approvals of more than one call, by user.
    super::mcp_schema::APPROVALS_OF_OWNERS,
    // 39: servers of agents.
    super::mcp_schema::AGENT_SERVERS,
    // 40: servers of agents that a person forgot.
    super::mcp_schema::FORGOTTEN_SERVERS,
    // 41: what egress workers tell of connections by name. Both NULL: an event of the kernel's.
    "
    ALTER TABLE events ADD COLUMN name TEXT;            -- the host; '': the address stands for none
    ALTER TABLE events ADD COLUMN egress TEXT;          -- JSON
    ALTER TABLE containers ADD COLUMN egress_lost INTEGER NOT NULL DEFAULT 0; -- what is in no event
    CREATE INDEX events_by_name ON events (id) WHERE name IS NOT NULL;
    -- Which host an address of a container's block stood for when.
    CREATE INDEX events_by_address ON events (container, addr, ts) WHERE name IS NOT NULL AND addr IS NOT NULL;
    ",
];
