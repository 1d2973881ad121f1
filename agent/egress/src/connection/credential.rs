//! A connection to a host that the profile has a credential for: whether it is one, and its way to the process that has the secret.

use super::{Connection, Opened, head::Head};
use crate::{
    credentials::{self, Went},
    refusal::Refusal,
    share::Portion,
    worker::Policy,
};
use ringfence_wire::egress::{EgressCause, EgressOutcome};
use tokio::net::TcpStream;

impl<'a> Connection<'a> {
    /// Whether it is for a host that has a credential, where TLS alone passes. Of audit mode: what would be refused passes, without.
    pub(super) fn judge_credential(&self, policy: &Policy) -> Result<bool, Refusal> {
        if !credentials::has(&policy.names, &self.name, self.port) {
            return Ok(false);
        }
        if !self.tls.get() {
            let reason = "the profile has a credential for it, which is put in where TLS is ended, and the client does not speak TLS";
            return self.unless_audit(policy, Refusal::new(EgressCause::NotTls, reason)).map(|()| false);
        }
        if self.would_deny.borrow().is_some() {
            return Ok(false);
        }
        self.worker.credentials.is_there().map(|()| true)
    }

    /// Has the process that has the host's credential serve it, until it is over.
    pub(super) async fn hand_over(&self, client: TcpStream, opened: Opened<'a>) {
        let Opened { server, passing, head: Head { held, .. }, .. } = opened;
        let known = self.worker.know(passing);
        // Whatever becomes of this process, it is known that there was one.
        let begun = self.as_record(EgressOutcome::Open, None);
        self.begun.set(self.worker.records.begun(self.at, self.flow, begun));
        let place = (self.name.as_str(), self.port);
        let served = async {
            // Of the message to the other process there are two copies while it is written.
            let message = Portion::new(self.share);
            message.grow(held.len().saturating_mul(4)).await;
            let said = held.bytes().to_vec();
            let kept = (held, message);
            self.worker.credentials.serve(place, (said, kept), &client, &server).await
        };
        let ended = tokio::select! {
            ended = served => ended,
            refusal = self.share.overdue() => Err(refusal),
            () = known.live.cut.notified() => match known.live.why.take() {
                Some(why) => Err(why),
                None => return,
            },
        };
        match ended {
            Ok(Went { sent, received, refused }) => {
                self.sent.set(sent);
                self.received.set(received);
                let outcome = match &refused {
                    None => EgressOutcome::Passed,
                    Some(refusal) if refusal.is_failure() => EgressOutcome::Failed,
                    Some(_) if sent == 0 => EgressOutcome::Refused,
                    Some(_) => EgressOutcome::Ended,
                };
                self.record(outcome, refused);
            }
            Err(refusal) => self.record(EgressOutcome::Ended, Some(refusal)),
        }
        // Whoever else has the sockets has no connection any more.
        for socket in [&client, &server] {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}
