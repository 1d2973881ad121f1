//! Writing: a batch of events, and everything else that came with it, in one transaction.

use super::{
    Error, Retention, agents, connection::begin, event_retention, name_approvals, run_lines, sql, turn,
};
use ringfence_base::clock;
use ringfence_common::event::{rule, verdict};
use ringfence_events::{
    decode::Decoded,
    manifests::{Decider, Identity},
    report,
};
use ringfence_wire::{audit::Counted, event::RuleText};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use std::{collections::HashMap, sync::Arc};

/// Rows whose ids are kept in memory, per table; when full, forgotten and looked up again.
const REMEMBER: usize = 16_384;

/// One thing to write.
#[derive(Debug)]
pub enum Incoming {
    /// An event.
    Event(Box<Event>),
    /// A container was announced.
    Container {
        /// Kernel id.
        kernel: u64,
        /// Who it is.
        identity: Arc<Identity>,
    },
    /// A container ended.
    Ended {
        /// Kernel id.
        kernel: u64,
    },
    /// The programs' counters.
    Counted(Counted),
    /// Something about an agent.
    Report(Box<report::CheckedReport>),
    /// Events that were dropped before they came here.
    Dropped {
        /// Kernel id.
        kernel: u64,
        /// Denials.
        denied: u64,
        /// Allowed events.
        allowed: u64,
    },
    /// Connections by name, and questions for names, that are in no event.
    EgressLost {
        /// Kernel id.
        kernel: u64,
        /// Who it is.
        identity: Arc<Identity>,
        /// How many.
        count: u64,
    },
    /// The last batch of the core's session that is covered by what came before.
    Sequence(u64),
}

/// An event on its way into the store.
#[derive(Debug)]
pub struct Event {
    /// µs since 1970.
    pub ts: i64,
    /// The container; `None` if no manifest named it.
    pub identity: Option<Arc<Identity>>,
    /// What decided.
    pub decider: Decider,
    /// The record.
    pub record: Decoded,
}

/// The one connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    boot: String,
    session: String,
    containers: HashMap<u64, i64>,
    rules: HashMap<Arc<RuleText>, i64>,
}

/// What a transaction found out; kept once it is committed.
#[derive(Default)]
struct Uncommitted {
    containers: HashMap<u64, i64>,
    rules: HashMap<Arc<RuleText>, i64>,
    bytes: HashMap<i64, i64>,
    denials: HashMap<i64, i64>,
}

impl Writer {
    pub(crate) fn new(connection: Connection, after: u64) -> Result<Self, Error> {
        connection.set_prepared_statement_cache_capacity(32);
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        if last_id(&connection)? < after {
            // A new file after a corrupt one: ids go on, or those who follow would miss what comes.
            connection
                .execute("DELETE FROM sqlite_sequence WHERE name = 'events'", [])
                .and_then(|_| {
                    connection
                        .execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?1)", [after])
                })
                .map_err(sql("continue the numbers of events"))?;
        }
        let (containers, rules) = (HashMap::new(), HashMap::new());
        Ok(Self { connection, boot: String::new(), session: String::new(), containers, rules })
    }

    /// Begins a session of the core, on this boot. Returns the last batch of it that is stored.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn hello(&mut self, session: &str, boot: &str) -> Result<u64, Error> {
        if self.boot != boot {
            self.containers.clear();
        }
        (self.session, self.boot) = (session.to_owned(), boot.to_owned());
        let stored: Option<i64> = self
            .connection
            .query_row("SELECT sequence FROM core_sessions WHERE session = ?1", [session], |row| row.get(0))
            .optional()
            .map_err(sql("read the core's session"))?;
        if stored.is_none() {
            // Of the cores before this one. Nothing of this one's is stored yet.
            run_lines::broken(&mut self.connection)?;
        }
        let _turn = turn::wait();
        let step = begin(&mut self.connection)?;
        name_approvals::booted(&step, boot, clock::now_micros())
            .map_err(sql("end approvals of containers"))?;
        step.commit().map_err(sql("commit"))?;
        Ok(stored.map_or(0, i64::cast_unsigned))
    }

    /// Writes all of it, or nothing.
    ///
    /// # Errors
    /// [`Error::Sql`]; the same batch may be tried again.
    pub fn write(&mut self, batch: &[Incoming]) -> Result<(), Error> {
        let _turn = turn::wait();
        let Self { connection, boot, session, containers, rules, .. } = self;
        let step = begin(connection)?;
        let mut uncommitted = Uncommitted::default();
        let mut at = Rows { step: &step, boot, containers, rules, uncommitted: &mut uncommitted };
        let mut sequence = None;
        for incoming in batch {
            match incoming {
                Incoming::Event(event) => at.event(event).map_err(sql("store an event"))?,
                Incoming::Container { kernel, identity } => {
                    at.announced(*kernel, identity).map_err(sql("store a container"))?;
                }
                Incoming::Ended { kernel } => at.ended(*kernel).map_err(sql("store a container's end"))?,
                Incoming::Counted(counted) => at.counted(counted).map_err(sql("store counters"))?,
                Incoming::Report(report) => {
                    agents::store(&step, report).map_err(sql("store what an agent did"))?;
                }
                Incoming::Dropped { kernel, denied, allowed } => {
                    at.dropped(*kernel, *denied, *allowed).map_err(sql("store counters"))?;
                }
                Incoming::EgressLost { kernel, identity, count } => {
                    at.egress_lost(*kernel, identity, *count).map_err(sql("store counters"))?;
                }
                Incoming::Sequence(number) => sequence = Some(*number),
            }
        }
        for (container, bytes) in &uncommitted.bytes {
            step.prepare_cached("UPDATE containers SET bytes = bytes + ?2 WHERE id = ?1")
                .and_then(|mut s| s.execute([container, bytes]))
                .map_err(sql("store counters"))?;
        }
        for (container, denials) in &uncommitted.denials {
            step.prepare_cached("UPDATE containers SET told = told + ?2 WHERE id = ?1")
                .and_then(|mut s| s.execute([container, denials]))
                .map_err(sql("store counters"))?;
        }
        if let Some(sequence) = sequence {
            step.prepare_cached(
                "INSERT OR REPLACE INTO core_sessions (session, sequence, at) VALUES (?1, ?2, ?3)",
            )
            .and_then(|mut s| s.execute(params![&*session, sequence.cast_signed(), clock::now_micros()]))
            .map_err(sql("store the core's session"))?;
        }
        step.commit().map_err(sql("commit"))?;
        remember(containers, uncommitted.containers);
        remember(rules, uncommitted.rules);
        Ok(())
    }

    /// Deletes what is too old or too much, a little at a time. True: there is more to delete.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn retain(&mut self, retention: &Retention, now: i64) -> Result<bool, Error> {
        let _turn = turn::wait();
        let again = event_retention::step(&mut self.connection, retention, now)?;
        // A container that ended long ago may be gone with its events.
        self.containers.clear();
        Ok(again)
    }

    /// Highest id an event ever had here.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn last_id(&self) -> Result<u64, Error> {
        last_id(&self.connection).map(i64::cast_unsigned)
    }

    /// Moves the write-ahead log into the database. For a quiet end; a crash needs nothing.
    pub fn finish(self) {
        if let Err(error) = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!("the write-ahead log stays for the next start: {error}");
        }
    }

    #[cfg(test)]
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

fn last_id(connection: &Connection) -> Result<i64, Error> {
    connection
        .query_row("SELECT seq FROM sqlite_sequence WHERE name = 'events'", [], |row| row.get(0))
        .optional()
        .map(Option::unwrap_or_default)
        .map_err(sql("read the last event's number"))
}

fn remember<K: Eq + std::hash::Hash>(all: &mut HashMap<K, i64>, new: HashMap<K, i64>) {
    if all.len() + new.len() > REMEMBER {
        all.clear();
    }
    all.extend(new);
}

/// Births of ancestors as a row has them: those that there are.
fn kept(lineage: &[u64]) -> Option<Vec<u8>> {
    let there = lineage.iter().take_while(|birth| **birth != 0);
    let bytes: Vec<u8> = there.flat_map(|birth| birth.to_le_bytes()).collect();
    (!bytes.is_empty()).then_some(bytes)
}

/// The rows of one transaction.
struct Rows<'a> {
    step: &'a Transaction<'a>,
    boot: &'a str,
    containers: &'a HashMap<u64, i64>,
    rules: &'a HashMap<Arc<RuleText>, i64>,
    uncommitted: &'a mut Uncommitted,
}

impl Rows<'_> {
    fn event(&mut self, event: &Event) -> rusqlite::Result<()> {
        let record = &event.record;
        // Every field has a column: a new one is an error here.
        let Decoded {
            op,
            verdict,
            flags,
            time,
            container: kernel,
            call,
            start,
            lineage,
            generation,
            pid,
            tgid,
            ppid,
            uid,
            detail,
            repeats,
            // Of what decided, the columns have what the manifest says.
            rule_kind: _,
            rule: _,
            axes,
            family,
            port,
            addr,
            target,
            path,
            path2,
            exe,
            egress,
        } = record;
        let container = self.container(*kernel, event.identity.as_deref())?;
        let (rule_kind, fixed, rule) = match &event.decider {
            Decider::Rule(rule) => (rule::SLOT, 0, Some(self.rule(rule)?)),
            Decider::Default => (rule::DEFAULT, 0, None),
            Decider::All => (rule::ALL, 0, None),
            Decider::Fixed(number) => (rule::FIXED, *number, None),
            Decider::Unknown => (rule::SLOT, 0, None),
        };
        let text = |t: &Option<String>| t.as_ref().map_or(0, String::len);
        // Of a process that is tagged, nothing goes by its ancestors.
        let lineage = if *call == 0 { kept(lineage) } else { None };
        let name = egress.as_ref().map(|egress| egress.name.as_str());
        let egress = egress.as_ref().map(|egress| serde_json::to_string(&egress.told)).transpose();
        let egress = egress.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        // The row's numbers and its index entries take about 120 bytes.
        let bytes = 120
            + text(path)
            + text(path2)
            + exe.len()
            + lineage.as_ref().map_or(0, Vec::len)
            + name.map_or(0, str::len)
            + text(&egress);
        *self.uncommitted.bytes.entry(container).or_default() += bytes as i64;
        if is_denied(record) {
            *self.uncommitted.denials.entry(container).or_default() += i64::from(*repeats);
        }
        self.step
            .prepare_cached(
                "INSERT INTO events (ts, container, op, verdict, flags, detail, target, pid, tgid, ppid, uid, start,
                     call, generation, repeats, rule_kind, fixed, rule, axes, family, port, addr, path, path2, exe, moment, lineage,
                     name, egress)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
                     ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29)",
            )?
            .execute(params![
                event.ts,
                container,
                op,
                verdict,
                flags,
                detail,
                target,
                pid,
                tgid,
                ppid,
                uid,
                start.cast_signed(),
                call.cast_signed(),
                generation,
                repeats,
                rule_kind,
                fixed,
                rule,
                axes,
                family,
                port,
                (*family != 0).then_some(*addr),
                path,
                path2,
                exe,
                time.cast_signed(),
                lineage,
                name,
                egress,
            ])?;
        Ok(())
    }

    /// The row of a container, made if need be: without an identity, for root's eyes only.
    fn container(&mut self, kernel: u64, identity: Option<&Identity>) -> rusqlite::Result<i64> {
        if let Some(id) = self.containers.get(&kernel).or_else(|| self.uncommitted.containers.get(&kernel)) {
            return Ok(*id);
        }
        let unknown = Identity {
            public: format!("{:012x}", kernel & 0xffff_ffff_ffff),
            profile: "unknown".to_owned(),
            uid: 0,
            created: 0,
        };
        let identity = identity.unwrap_or(&unknown);
        self.step
            .prepare_cached(
                "INSERT INTO containers (boot, kernel, public, profile, uid, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (boot, kernel) DO NOTHING",
            )?
            .execute(params![
                self.boot,
                kernel.cast_signed(),
                identity.public,
                identity.profile,
                identity.uid,
                identity.created,
            ])?;
        let id = self
            .step
            .prepare_cached("SELECT id FROM containers WHERE boot = ?1 AND kernel = ?2")?
            .query_row(params![self.boot, kernel.cast_signed()], |row| row.get(0))?;
        self.uncommitted.containers.insert(kernel, id);
        Ok(id)
    }

    fn announced(&mut self, kernel: u64, identity: &Identity) -> rusqlite::Result<()> {
        let id = self.container(kernel, Some(identity))?;
        self.step
            .prepare_cached(
                "UPDATE containers SET public = ?2, profile = ?3, uid = ?4, created = ?5 WHERE id = ?1",
            )?
            .execute(params![id, identity.public, identity.profile, identity.uid, identity.created])?;
        Ok(())
    }

    fn ended(&mut self, kernel: u64) -> rusqlite::Result<()> {
        let id = self.container(kernel, None)?;
        let now = clock::now_micros();
        let public: String = self
            .step
            .prepare_cached("UPDATE containers SET ended = ?2 WHERE id = ?1 RETURNING public")?
            .query_row([id, now], |row| row.get(0))?;
        name_approvals::container_ended(self.step, &public, now)
    }

    fn counted(&mut self, counted: &Counted) -> rusqlite::Result<()> {
        let id = self.container(counted.container, None)?;
        self.step
            .prepare_cached(
                "UPDATE containers SET denied = ?2, ring_denied = ?3, ring_allowed = ?4, aggregated = ?5 WHERE id = ?1",
            )?
            .execute([
                id,
                counted.denied.cast_signed(),
                counted.lost_denied.cast_signed(),
                counted.lost_allowed.cast_signed(),
                counted.aggregated.cast_signed(),
            ])?;
        Ok(())
    }

    fn dropped(&mut self, kernel: u64, denied: u64, allowed: u64) -> rusqlite::Result<()> {
        let id = self.container(kernel, None)?;
        self.step
            .prepare_cached(
                "UPDATE containers SET store_denied = store_denied + ?2, store_allowed = store_allowed + ?3
                 WHERE id = ?1",
            )?
            .execute([id, denied.cast_signed(), allowed.cast_signed()])?;
        Ok(())
    }

    fn egress_lost(&mut self, kernel: u64, identity: &Identity, count: u64) -> rusqlite::Result<()> {
        let id = self.container(kernel, Some(identity))?;
        // A worker says how many, and may say so for years.
        self.step
            .prepare_cached(
                "UPDATE containers SET egress_lost = min(egress_lost + ?2, 9007199254740991) WHERE id = ?1",
            )?
            .execute([id, i64::from(u32::try_from(count).unwrap_or(u32::MAX))])?;
        Ok(())
    }

    fn rule(&mut self, rule: &Arc<RuleText>) -> rusqlite::Result<i64> {
        if let Some(id) = self.rules.get(rule).or_else(|| self.uncommitted.rules.get(rule)) {
            return Ok(*id);
        }
        let values =
            params![rule.id, rule.file.as_deref().unwrap_or_default(), rule.line, rule.key, rule.text];
        self.step
            .prepare_cached(
                "INSERT INTO rules (rule, file, line, key, text) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
            )?
            .execute(values)?;
        let id = self
            .step
            .prepare_cached(
                "SELECT id FROM rules WHERE rule = ?1 AND file = ?2 AND line = ?3 AND key = ?4 AND text = ?5",
            )?
            .query_row(values, |row| row.get(0))?;
        self.uncommitted.rules.insert(Arc::clone(rule), id);
        Ok(id)
    }
}

/// Whether an event is one of the denials that the kernel counts. What audit mode would have denied was done, and is none; what an
/// egress worker refused the kernel never saw, and would hide as many that are missing.
pub fn is_denied(record: &Decoded) -> bool {
    record.verdict == verdict::DENIED && record.egress.is_none()
}
