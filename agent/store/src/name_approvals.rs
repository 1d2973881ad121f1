//! Approvals of connections by name: a person let a container reach a host and port for as long as the container lives.
//!
//! They are rows of `standing_approvals` with a scope of their own: the session is the container's public id, the server's name the
//! host, and the arguments are the port. No call of an MCP session is answered by one, and no connection by another.

use super::{
    ActiveApproval, Error, SessionWriter,
    connection::{begin, rows},
    sql,
    standing_approvals::{STANDS, end, has_room, note},
    turn,
};
use ringfence_base::clock::rfc3339;
use ringfence_wire::{approvals::ApprovalScope, egress_asks::CONNECT, tool_call::Named as _};
use rusqlite::{Params, Transaction, params};
use serde_json::json;

/// A connection of a container's that waits for a person.
#[derive(Debug, Clone, Copy)]
pub struct NameFacts<'a> {
    /// Our id of the question.
    pub call: &'a str,
    /// Whose container it is.
    pub uid: u32,
    /// The container's public id.
    pub container: &'a str,
    /// The host.
    pub host: &'a str,
    /// The port.
    pub port: u16,
}

impl SessionWriter {
    /// Gives an approval on behalf of `by`, until the container ends or until then (µs since 1970): its id.
    ///
    /// # Errors
    /// [`Error::Sql`], [`Error::TooManyApprovals`].
    pub fn add_name_approval(
        &mut self,
        of: &NameFacts<'_>,
        until: Option<i64>,
        by: &str,
        now: i64,
    ) -> Result<String, Error> {
        let fail = sql("store an approval");
        let owner = self.owners.of(of.uid);
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        has_room(&step, owner, now)?;
        let (id, scope) = (uuid::Uuid::new_v4().to_string(), ApprovalScope::Container.name());
        let shown = json!({ "host": of.host, "port": of.port }).to_string();
        step.prepare_cached(
            "INSERT INTO standing_approvals (id, uid, scope, session_id, call_id, server_name, server, tool, arguments, recorded,
                 shown, governed, created_at, created_by, until, owner)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, '', ?7, ?8, '', ?9, 1, ?10, ?11, ?12, ?13)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                id, of.uid, scope, of.container, of.call, of.host, CONNECT, of.port.to_string(), shown, rfc3339(now), by,
                until.map(rfc3339), owner
            ])
        })
        .map_err(&fail)?;
        note(&step, &id, ("add", by), now).map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(id)
    }

    /// The approval that answers a question, if one stands. Whoever lets connections go on by it says so with
    /// [`Self::count_use`].
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn name_approval_for(
        &mut self,
        of: &NameFacts<'_>,
        now: i64,
    ) -> Result<Option<ActiveApproval>, Error> {
        let text = format!(
            "SELECT a.id, a.created_by FROM standing_approvals a WHERE a.uid = ?2 AND a.tool = ?3 AND a.scope = ?4
                 AND a.session_id = ?5 AND a.server_name = ?6 AND a.arguments = ?7 AND {STANDS} LIMIT 1"
        );
        let values = params![
            rfc3339(now),
            of.uid,
            CONNECT,
            ApprovalScope::Container.name(),
            of.container,
            of.host,
            of.port.to_string()
        ];
        let read = |row: &rusqlite::Row<'_>| Ok(ActiveApproval { id: row.get(0)?, by: row.get(1)? });
        let mut found = rows(self.connection()?, &text, values, read).map_err(sql("look for an approval"))?;
        Ok(found.pop())
    }
}

/// Who ends an approval whose container is over, for the record.
const ENDED: &str = "the end of its container";

/// This container ended, and with it what was approved for it. While nothing says so they count as a user's, and the container's own
/// row goes when its events do.
pub(super) fn container_ended(step: &Transaction<'_>, public: &str, now: i64) -> rusqlite::Result<()> {
    end_those(step, "a.session_id = ?1", [public], now)
}

/// The same of containers whose end is on record, where approvals came at the same moment.
pub(super) fn containers_ended(step: &Transaction<'_>, now: i64) -> rusqlite::Result<()> {
    let ended = "EXISTS (SELECT 1 FROM containers c WHERE c.public = a.session_id AND c.ended IS NOT NULL)";
    end_those(step, ended, [], now)
}

/// No container outlives its boot, and nobody says of those before this one that they ended.
pub(super) fn booted(step: &Transaction<'_>, boot: &str, now: i64) -> rusqlite::Result<()> {
    let is_other = "NOT EXISTS (SELECT 1 FROM containers c WHERE c.public = a.session_id AND c.boot = ?1)";
    end_those(step, is_other, [boot], now)
}

fn end_those(step: &Transaction<'_>, which: &str, values: impl Params, now: i64) -> rusqlite::Result<()> {
    let scope = ApprovalScope::Container.name();
    let text = format!(
        "SELECT a.id FROM standing_approvals a WHERE a.scope = '{scope}' AND a.ended_at IS NULL AND {which}"
    );
    let ids: Vec<String> =
        step.prepare_cached(&text)?.query_map(values, |row| row.get(0))?.collect::<Result<_, _>>()?;
    ids.iter().try_for_each(|id| end(step, id, ("revoke", ENDED), now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallFacts, Incoming, Retention, SessionReader, Viewer, open};
    use ringfence_events::manifests::Identity;
    use ringfence_wire::approvals::Fingerprint;
    use std::sync::Arc;

    const OF: NameFacts<'_> =
        NameFacts { call: "c1", uid: 5, container: "0123456789ab", host: "a.org", port: 443 };

    #[test]
    fn an_approval_of_a_connection_answers_that_container_host_and_port_until_it_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        assert_eq!(writer.name_approval_for(&OF, 1).expect("asked"), None, "the control");
        let id = writer.add_name_approval(&OF, None, "uid 5", 1).expect("given");
        let year = 400 * 24 * 3_600 * 1_000_000;
        let found = writer.name_approval_for(&OF, year).expect("asked").expect("it stands");
        assert_eq!((&found.id, found.by.as_str()), (&id, "uid 5"));
        writer.count_use(&id, 2).expect("counted");
        for other in [
            NameFacts { uid: 6, ..OF },
            NameFacts { container: "0123456789ac", ..OF },
            NameFacts { host: "b.org", ..OF },
            NameFacts { host: "A.org", ..OF },
            NameFacts { port: 80, ..OF },
        ] {
            assert_eq!(writer.name_approval_for(&other, 2).expect("asked"), None, "{other:?}");
        }
        // A call that is made to look like one is answered by none.
        writer
            .connection()
            .expect("open")
            .execute_batch(
                "INSERT INTO sessions (id, server_name, server_command, started_at, uid) VALUES ('0123456789ab', 'a.org', 'x', '', 5);
                 INSERT INTO messages (id, session_id, direction, timestamp, raw) VALUES ('m', '0123456789ab', '', '', '');
                 INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at)
                     VALUES ('call', '0123456789ab', 'm', 'net.connect', '{}', 'write', '');",
            )
            .expect("stored");
        let fingerprint = Fingerprint { arguments: "443".into(), server: String::new(), unsettled: false };
        let call = CallFacts {
            call: "call",
            uid: 5,
            session: "0123456789ab",
            governed: true,
            fingerprint: Some(&fingerprint),
        };
        assert_eq!(writer.approval_for(&call, 2).expect("asked"), None);

        let reader = SessionReader::open(&path).expect("opens");
        let listed = reader.approvals(Viewer(5), 2).expect("read");
        assert_eq!((&listed[0]["scope"], &listed[0]["uses"]), (&"container".into(), &1.into()));
        assert_eq!(listed[0]["beginning"], r#"{"host":"a.org","port":443}"#);
        let end = |writer: &mut SessionWriter, ended: &str| {
            let text = format!(
                "INSERT OR REPLACE INTO containers (boot, kernel, public, profile, uid, created, ended)
                 VALUES ('b', 7, '0123456789ab', 'p', 5, 1, {ended})"
            );
            writer.connection().expect("open").execute_batch(&text).expect("stored");
        };
        end(&mut writer, "NULL");
        assert!(writer.name_approval_for(&OF, 3).expect("asked").is_some(), "it lives");
        end(&mut writer, "9");
        assert_eq!(writer.name_approval_for(&OF, 3).expect("asked"), None, "it ended");
        assert!(reader.approvals(Viewer(5), 3).expect("read").is_empty());

        let other = NameFacts { container: "00000000000b", ..OF };
        let id = writer.add_name_approval(&other, Some(10), "uid 5", 4).expect("given");
        assert!(writer.name_approval_for(&other, 9).expect("asked").is_some());
        assert_eq!(writer.name_approval_for(&other, 10).expect("asked"), None, "its time is over");
        let id = writer.add_name_approval(&other, None, "uid 5", 11).map(|next| (id, next)).expect("given").1;
        assert_eq!(writer.revoke_approval(Viewer(5), &id[..8], "uid 5", 12).expect("asked"), Some(id));
        assert_eq!(writer.name_approval_for(&other, 13).expect("asked"), None, "revoked");
    }

    #[test]
    fn they_end_with_their_container_its_boot_or_its_row_and_make_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut store = open(&path, 0).expect("opens").writer;
        let mut sessions = SessionWriter::new(path.clone(), None);
        let public = |at: u64| format!("{at:012x}");
        let announced = |kernel: u64| Incoming::Container {
            kernel,
            identity: Arc::new(Identity {
                public: format!("{kernel:012x}"),
                profile: "p".into(),
                uid: 5,
                created: 1,
            }),
        };
        store.hello("first", "boot").expect("said");
        store.write(&[announced(1), announced(2), announced(3)]).expect("stored");
        let give = |sessions: &mut SessionWriter, at: u64, port: u16| {
            let container = public(at);
            let of = NameFacts { container: &container, port, ..OF };
            sessions.add_name_approval(&of, None, "uid 5", 1)
        };
        (0..98).for_each(|port| drop(give(&mut sessions, 1, port).expect("given")));
        let (second, third) =
            (give(&mut sessions, 2, 1).expect("given"), give(&mut sessions, 3, 1).expect("given"));
        assert!(give(&mut sessions, 2, 2).is_err(), "as many as may stand");
        let reader = SessionReader::open(&path).expect("opens");
        let standing = || {
            let rows = reader.approvals(Viewer(5), 2).expect("read");
            let mut ids: Vec<String> =
                rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect();
            ids.sort();
            ids
        };
        assert_eq!(standing().len(), 100);
        store.write(&[Incoming::Ended { kernel: 1 }]).expect("stored");
        let mut left = vec![second.clone(), third.clone()];
        left.sort();
        assert_eq!(standing(), left);
        let late = give(&mut sessions, 1, 99).expect("at the same moment as its end");
        assert_eq!(standing(), left, "it stands for nobody");
        // Its container's row goes with its events, and it does not come back.
        let retention = Retention { age: 1, ..Retention::default() };
        let mut rounds = 0;
        while store.retain(&retention, i64::MAX / 2).expect("deleted") {
            rounds += 1;
            assert!(rounds < 100);
        }
        let known: i64 = sessions
            .connection()
            .expect("open")
            .query_row("SELECT count(*) FROM containers WHERE kernel = 1", [], |row| row.get(0))
            .expect("read");
        assert_eq!((known, standing()), (0, left.clone()), "{late}");
        // The same boot changes nothing, another ends what nobody said had ended.
        store.hello("second", "boot").expect("said");
        assert_eq!(standing(), left);
        store.hello("third", "next boot").expect("said");
        assert!(standing().is_empty());
        let row = reader.approval(Viewer(5), &second).expect("read").expect("it is kept");
        assert_eq!(row["ended_by"], "the end of its container");
        let ended: i64 = sessions
            .connection()
            .expect("open")
            .query_row(
                "SELECT count(*) FROM ledger WHERE entry LIKE '%the end of its container%'",
                [],
                |row| row.get(0),
            )
            .expect("read");
        assert_eq!(ended, 101, "each is in the ledger");
    }

    #[test]
    fn they_count_with_a_user_s_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
        for port in 0..100 {
            writer.add_name_approval(&NameFacts { port, ..OF }, None, "uid 5", 1).expect("given");
        }
        let more = writer.add_name_approval(&OF, None, "uid 5", 1);
        assert!(matches!(more, Err(Error::TooManyApprovals)), "{more:?}");
        writer.add_name_approval(&NameFacts { uid: 6, ..OF }, None, "uid 6", 1).expect("another's");
    }
}
