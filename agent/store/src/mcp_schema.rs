//! Tables of MCP sessions: the audit contract's, column for column, and below each what Ringfence adds.

/// The tables, in an order in which each refers only to those before it.
pub const TABLES: &[&str] =
    &["sessions", "messages", "tool_calls", "intent_contexts", "intent_tool_calls", "policy_rules", "stderr"];

/// The migrations that make a database of MCP sessions, in order.
pub(crate) const SCHEMA: &[&str] =
    &[MIGRATION, GOVERNED, EVIDENCE, STDERR, CLIENT, OUTCOMES, RULES, SERVER, EXCEPTIONS];

/// Migration 2. Times are RFC 3339 text in UTC with microseconds, so that any SQLite client reads and sorts them.
pub(crate) const MIGRATION: &str = "
    -- A session is one run of the interceptor.
    CREATE TABLE sessions (
        id              TEXT PRIMARY KEY,
        server_name     TEXT NOT NULL,
        server_command  TEXT NOT NULL,
        started_at      TIMESTAMP NOT NULL,
        ended_at        TIMESTAMP,
        client_info     JSON,
        -- Added: whose it is, as the auditor saw on the socket; where its journal is, how much of it is here.
        uid             INTEGER NOT NULL DEFAULT 0,
        exit_status     INTEGER,
        journal         TEXT NOT NULL DEFAULT '',
        journal_lines   INTEGER NOT NULL DEFAULT 0,
        journal_head    TEXT NOT NULL DEFAULT '',
        broken          TEXT
    );

    CREATE TABLE messages (
        id              TEXT PRIMARY KEY,
        session_id      TEXT NOT NULL REFERENCES sessions(id),
        direction       TEXT NOT NULL,
        timestamp       TIMESTAMP NOT NULL,
        jsonrpc_id      TEXT,
        method          TEXT,
        params          JSON,
        result          JSON,
        error           JSON,
        raw             TEXT NOT NULL,
        note            TEXT
    );

    CREATE TABLE tool_calls (
        id              TEXT PRIMARY KEY,
        session_id      TEXT NOT NULL REFERENCES sessions(id),
        request_msg_id  TEXT NOT NULL REFERENCES messages(id),
        response_msg_id TEXT REFERENCES messages(id),
        tool_name       TEXT NOT NULL,
        arguments       JSON NOT NULL,
        result          JSON,
        error           JSON,
        operation_type  TEXT NOT NULL,
        risk_score      INTEGER NOT NULL DEFAULT 0,
        risk_reasons    JSON,
        requested_at    TIMESTAMP NOT NULL,
        responded_at    TIMESTAMP,
        duration_ms     INTEGER,
        policy_action   TEXT NOT NULL DEFAULT 'pass',
        approved_by     TEXT,
        approved_at     TIMESTAMP,
        -- Added: the rules that asked for it; what became of a paused or cancelled call.
        rules           JSON,
        outcome         TEXT,
        decided_by      TEXT,
        decided_at      TIMESTAMP
    );

    CREATE TABLE intent_contexts (
        id              TEXT PRIMARY KEY,
        session_id      TEXT NOT NULL REFERENCES sessions(id),
        human_prompt    TEXT,
        prompt_summary  TEXT,
        created_at      TIMESTAMP NOT NULL,
        source          TEXT NOT NULL DEFAULT 'time'
    );

    CREATE TABLE intent_tool_calls (
        intent_id       TEXT NOT NULL REFERENCES intent_contexts(id),
        tool_call_id    TEXT NOT NULL REFERENCES tool_calls(id),
        sequence_order  INTEGER NOT NULL,
        PRIMARY KEY (intent_id, tool_call_id)
    );

    CREATE TABLE policy_rules (
        id              TEXT PRIMARY KEY,
        name            TEXT NOT NULL,
        description     TEXT,
        tool_pattern    TEXT,
        server_pattern  TEXT,
        min_risk_score  INTEGER DEFAULT 0,
        operation_types TEXT,
        action          TEXT NOT NULL,
        enabled         BOOLEAN NOT NULL DEFAULT TRUE,
        created_at      TIMESTAMP NOT NULL
    );

    CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
    CREATE INDEX idx_tool_calls_session ON tool_calls(session_id, requested_at);
    CREATE INDEX idx_tool_calls_risk ON tool_calls(risk_score DESC);
    CREATE INDEX idx_tool_calls_policy ON tool_calls(policy_action) WHERE policy_action != 'pass';
    CREATE INDEX idx_intent_tool_calls_intent ON intent_tool_calls(intent_id);
    CREATE INDEX idx_tool_calls_time ON tool_calls(requested_at);
    CREATE INDEX idx_intent_tool_calls_call ON intent_tool_calls(tool_call_id);
";

/// Migration 5: sessions in containers, the times of calls on the clock of the kernel's events, whose a rule is.
pub(crate) const GOVERNED: &str = "
    ALTER TABLE sessions ADD COLUMN profile TEXT;        -- the server's profile, where it has one
    ALTER TABLE sessions ADD COLUMN enforcement TEXT;    -- what holds it, as the launcher said
    ALTER TABLE sessions ADD COLUMN container TEXT;      -- public id, as the interceptor says: compare its owner
    ALTER TABLE sessions ADD COLUMN gap INTEGER NOT NULL DEFAULT 0;     -- 1: a call may have gone by unseen
    ALTER TABLE sessions ADD COLUMN read_to INTEGER NOT NULL DEFAULT 0; -- ns since boot: the last entry's time
    ALTER TABLE tool_calls ADD COLUMN began INTEGER;     -- ns since boot: forwarded; NULL: never
    ALTER TABLE tool_calls ADD COLUMN ended INTEGER;     -- ns since boot: answered; NULL: not yet
    ALTER TABLE policy_rules ADD COLUMN uid INTEGER NOT NULL DEFAULT 0; -- whose sessions it binds; 0: everybody's
    CREATE INDEX idx_sessions_container ON sessions(container) WHERE container IS NOT NULL;
";

/// Migration 8: what better than time tells which calls belong together.
pub(crate) const EVIDENCE: &str = "
    ALTER TABLE tool_calls ADD COLUMN tool_use TEXT;         -- the id by which a model asked for it, as the client says
    ALTER TABLE intent_contexts ADD COLUMN evidence TEXT;    -- what all its calls name; NULL: nothing that calls name
    CREATE INDEX idx_tool_calls_tool_use ON tool_calls(tool_use) WHERE tool_use IS NOT NULL;
    CREATE INDEX idx_intents_evidence ON intent_contexts(evidence) WHERE evidence IS NOT NULL;
";

/// Migration 11: what servers say on standard error.
pub(crate) const STDERR: &str = "
    CREATE TABLE stderr (
        session_id      TEXT NOT NULL REFERENCES sessions(id),
        number          INTEGER NOT NULL,            -- its place in the session, from 1
        timestamp       TIMESTAMP NOT NULL,
        text            TEXT NOT NULL,               -- lines
        dropped         INTEGER NOT NULL DEFAULT 0,  -- bytes that were left out before it
        PRIMARY KEY (session_id, number)
    );
    ALTER TABLE sessions ADD COLUMN stderr_bytes INTEGER;    -- that are in that table; NULL: it began before there was one
    ALTER TABLE sessions ADD COLUMN stderr_dropped INTEGER;  -- that were left out
";

/// Migration 29: whose sessions are.
pub(crate) const CLIENT: &str = "ALTER TABLE sessions ADD COLUMN client TEXT;    -- which process of its user's, as the interceptor says; NULL: not known\n";

/// Migration 31: what was decided about a call, and what became of it. Rows of before keep what they have: what is not in
/// these columns is read from the answer itself ([`OUTCOME`]).
pub(crate) const OUTCOMES: &str = "
    ALTER TABLE tool_calls RENAME COLUMN outcome TO decision; -- what became of a call before the server could have it
    ALTER TABLE tool_calls ADD COLUMN answer TEXT;            -- what kind of answer it had; NULL: none, or a row of before
    ALTER TABLE tool_calls ADD COLUMN cancelled_at TIMESTAMP; -- the client cancelled it in flight
    ALTER TABLE tool_calls ADD COLUMN task_answer TEXT;       -- of a task: what kind of result came later
    ALTER TABLE tool_calls ADD COLUMN task_msg_id TEXT;       -- the message that has it
    ALTER TABLE tool_calls ADD COLUMN task_result JSON;       -- or the error
    ALTER TABLE sessions ADD COLUMN outcomes INTEGER;         -- 1: its calls have these columns from the first on
";

/// What became of a call `c` of a session `s`, in one word; NULL: nothing yet. Of a row of before, a long result is not
/// looked into.
pub(crate) const OUTCOME: &str = "CASE
    WHEN c.decision <> 'approved' THEN c.decision
    WHEN c.cancelled_at IS NOT NULL THEN 'cancelled_in_flight'
    WHEN c.task_answer IS NOT NULL THEN c.task_answer
    WHEN c.answer IS NOT NULL THEN c.answer
    WHEN c.error IS NOT NULL THEN 'error'
    WHEN c.responded_at IS NOT NULL THEN
        iif(octet_length(c.result) <= 4096 AND iif(json_valid(c.result), json_extract(c.result, '$.isError') IS 1, 0),
            'tool_error', 'answered')
    WHEN s.ended_at IS NULL THEN NULL
    WHEN c.decision IS NULL AND c.policy_action = 'pause' THEN iif(s.gap, NULL, 'ended') -- an approval may be what is missing
    ELSE 'killed' END";

/// Migration 32: rules of the database can be changed. Those from before keep their order.
pub(crate) const RULES: &str = "
    ALTER TABLE policy_rules ADD COLUMN position INTEGER NOT NULL DEFAULT 0; -- orders the rules of one owner
    ALTER TABLE policy_rules ADD COLUMN version INTEGER NOT NULL DEFAULT 1;  -- counts its changes
    ALTER TABLE policy_rules ADD COLUMN changed_at TIMESTAMP;                -- NULL: never changed
    ALTER TABLE policy_rules ADD COLUMN changed_by TEXT;
    UPDATE policy_rules SET position = (SELECT count(*) FROM policy_rules p WHERE p.uid = policy_rules.uid
        AND (p.created_at, p.id) <= (policy_rules.created_at, policy_rules.id));
";

/// Migration 36: approvals of more than one call.
pub(crate) const APPROVALS: &str = "
    CREATE TABLE standing_approvals (
        id          TEXT PRIMARY KEY,
        uid         INTEGER NOT NULL,       -- whose sessions'
        scope       TEXT NOT NULL,
        session_id  TEXT NOT NULL,          -- of the call that it was given for; with that scope, the only one
        call_id     TEXT NOT NULL,          -- that call
        server_name TEXT NOT NULL,
        server      TEXT NOT NULL,          -- hash of what the interceptor knows of the server; '' where it said nothing
        tool        TEXT NOT NULL,
        arguments   TEXT NOT NULL,          -- hash of the call as it came, by the interceptor; likewise
        recorded    TEXT NOT NULL,          -- hash of its arguments as they are on record
        shown       TEXT NOT NULL,          -- their beginning, for people
        governed    INTEGER NOT NULL,       -- 1: it came out of a container
        created_at  TIMESTAMP NOT NULL,
        created_by  TEXT NOT NULL,
        until       TIMESTAMP,              -- NULL: the session's end
        uses        INTEGER NOT NULL DEFAULT 0,
        last_use    TIMESTAMP,
        ended_at    TIMESTAMP,              -- before its time
        ended_by    TEXT
    );
    CREATE INDEX standing_approvals_by_tool ON standing_approvals (uid, tool) WHERE ended_at IS NULL;
    CREATE INDEX standing_approvals_by_time ON standing_approvals (uid, created_at);
";

/// Migration 38: approvals are bounded by user, subordinate ids included, and cleared without a look at all of them. What is NULL changes no
/// copy of [`super::vouched`].
pub(crate) const APPROVALS_OF_OWNERS: &str = "
    ALTER TABLE standing_approvals ADD COLUMN owner INTEGER;     -- the user whose id that was then: what bounds are about; NULL: its uid
    ALTER TABLE standing_approvals ADD COLUMN is_left INTEGER;   -- 1: its session was removed while it stood, and it shows what that had
    CREATE INDEX standing_approvals_by_owner ON standing_approvals (coalesce(owner, uid), created_at);
    CREATE INDEX standing_approvals_by_age ON standing_approvals (created_at);
    CREATE INDEX standing_approvals_by_session ON standing_approvals (session_id) WHERE shown <> '';
    CREATE INDEX standing_approvals_left ON standing_approvals (id) WHERE is_left = 1;
";

/// Migration 37: reasons that are not counted.
pub(crate) const EXCEPTIONS: &str = "
    ALTER TABLE policy_rules ADD COLUMN exception JSON;  -- of a rule with that action: what it is about
    ALTER TABLE tool_calls ADD COLUMN exceptions JSON;   -- those that lowered its score, with their reasons; NULL: none did
";

/// Migration 33: how often verdicts name each rule. It looks at no calls of before: a database may have very many, and everybody would wait.
pub(crate) const HITS: &str = "
    CREATE TABLE rule_hits (
        uid   INTEGER NOT NULL,     -- the sessions'
        name  TEXT NOT NULL,
        owner INTEGER NOT NULL,     -- the user whose id that was then: what the bound is about
        hits  INTEGER NOT NULL,
        last  TIMESTAMP NOT NULL,   -- when the last such call was asked for
        PRIMARY KEY (uid, name)
    ) WITHOUT ROWID;
    CREATE INDEX rule_hits_by_name ON rule_hits (name);
    CREATE INDEX rule_hits_by_owner ON rule_hits (owner, last);
    CREATE INDEX policy_rules_by_name ON policy_rules (name);
";

/// Migration 34: which server a session has. With [`TOOLS`].
pub(crate) const SERVER: &str = "
    ALTER TABLE sessions ADD COLUMN server INTEGER;     -- of the inventory; NULL: its interceptor does not say which
    CREATE INDEX sessions_by_server ON sessions (server) WHERE server IS NOT NULL;
";

/// Migration 39: servers of agents.
pub(crate) const AGENT_SERVERS: &str = "
    ALTER TABLE mcp_servers ADD COLUMN agent TEXT;      -- whose worker speaks to it; NULL: the server of sessions
    ALTER TABLE mcp_servers ADD COLUMN of_daemon INTEGER NOT NULL DEFAULT 0; -- 1: the daemon serves that agent
    CREATE INDEX mcp_servers_by_agent ON mcp_servers (agent, of_daemon) WHERE agent IS NOT NULL;
";

/// Migration 40: servers of agents that a person had forgotten, until they are listed next: what is pinned then is what they say, and
/// not what their workers remember.
pub(crate) const FORGOTTEN_SERVERS: &str = "
    CREATE TABLE forgotten_servers (
        id    INTEGER PRIMARY KEY,
        uid   INTEGER NOT NULL,
        key   TEXT NOT NULL,
        UNIQUE (uid, key)
    );
";

/// Migration 35: servers, their tools, and what is pinned of them.
pub(crate) const TOOLS: &str = "
    CREATE TABLE mcp_servers (
        id         INTEGER PRIMARY KEY AUTOINCREMENT, -- a person who has one in mind gets no other's
        uid        INTEGER NOT NULL,        -- the sessions'
        owner      INTEGER NOT NULL,        -- the user whose id that was then: what bounds are about
        key        TEXT NOT NULL,           -- name and command, hashed
        contained  INTEGER NOT NULL,        -- 1: of sessions that begin in containers
        name       TEXT NOT NULL,
        command    TEXT NOT NULL,
        info       JSON,                    -- name and version by its own word
        first_seen TIMESTAMP NOT NULL,
        last_seen  TIMESTAMP NOT NULL,
        bytes      INTEGER NOT NULL DEFAULT 0, -- of its definitions
        UNIQUE (uid, key, contained)
    );
    CREATE INDEX mcp_servers_by_owner ON mcp_servers (owner, contained, last_seen);
    CREATE INDEX mcp_servers_by_name ON mcp_servers (uid, name);

    CREATE TABLE mcp_tools (
        server     INTEGER NOT NULL,
        name       TEXT NOT NULL,
        first_seen TIMESTAMP NOT NULL,
        last_seen  TIMESTAMP NOT NULL,
        gone_at    TIMESTAMP,               -- the server's list is without it
        held       TEXT,                    -- why clients got that list without it
        calls      INTEGER NOT NULL DEFAULT 0,
        last_call  TIMESTAMP,
        PRIMARY KEY (server, name)
    ) WITHOUT ROWID;
    CREATE INDEX mcp_tools_by_name ON mcp_tools (name);

    CREATE TABLE tool_pins (
        uid            INTEGER NOT NULL,
        server         INTEGER NOT NULL,
        name           TEXT NOT NULL,
        sha256         TEXT NOT NULL,       -- of the definition that is trusted
        parts          JSON NOT NULL,       -- short hashes of its parts
        flags          JSON NOT NULL,       -- what is odd about it
        since          TIMESTAMP NOT NULL,
        approved_by    TEXT,                -- NULL: it was seen first
        approved_at    TIMESTAMP,
        changed_sha256 TEXT,                -- of another that its server has now
        changed_parts  JSON,
        changed_flags  JSON,
        changed_at     TIMESTAMP,
        rejected_by    TEXT,                -- who said that this one is not to be trusted
        rejected_at    TIMESTAMP,
        PRIMARY KEY (server, name)
    );
    CREATE INDEX tool_pins_waiting ON tool_pins (uid) WHERE changed_sha256 IS NOT NULL OR flags <> '[]';

    CREATE TABLE tool_definitions (         -- redacted, unless its session stores everything
        server     INTEGER NOT NULL,
        sha256     TEXT NOT NULL,           -- of the definition as it came
        definition JSON NOT NULL,
        PRIMARY KEY (server, sha256)
    ) WITHOUT ROWID;

    CREATE TABLE tool_changes (
        id     INTEGER PRIMARY KEY,
        server INTEGER NOT NULL,
        tool   TEXT,                        -- NULL: of the server itself
        at     TIMESTAMP NOT NULL,
        change TEXT NOT NULL,
        detail TEXT NOT NULL
    );
    CREATE INDEX tool_changes_by_server ON tool_changes (server, id);
";
