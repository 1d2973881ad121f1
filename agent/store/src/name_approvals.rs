//! Approvals of connections by name: a person let a container reach a host and port for as long as the container lives.
//!
//! They are rows of `standing_approvals` with a scope of their own: the session is the container's public id, the server's name the
//! host, and the arguments are the port. No call of an MCP session is answered by one, and no connection by another.

use super::{
    ActiveApproval, Error, SessionWriter,
    connection::{begin, rows},
    sql,
    standing_approvals::{STANDS, has_room, note},
    turn,
};
use ringfence_base::clock::rfc3339;
use ringfence_wire::{approvals::ApprovalScope, egress_asks::CONNECT, tool_call::Named as _};
use rusqlite::params;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallFacts, SessionReader, Viewer};
    use ringfence_wire::approvals::Fingerprint;

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
