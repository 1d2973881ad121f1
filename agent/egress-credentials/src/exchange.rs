//! A request and its answer, for as long as any of both is under way: what ends them before their time.
//!
//! All of it happens at once. Once other rules are in force, or a connection is cut for another reason, not a byte more is written to its
//! server or its client, however much waits for that: [`crate::stream`] asks [`Counts::is_cut`]. What the kernel has taken it may still
//! send.

use crate::{hosts::Hosts, refusal::Refusal, request, stream::Counts};
use hyper::http::request::Parts;
use ringfence_wire::{credentials::HostCredential, egress::EgressCause};
use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    sync::Arc,
};
use tokio::sync::Notify;

/// Bytes of an answer that go on behind the first credential in it: enough for a list of tokens, and an end to a stream of guesses.
pub(crate) const BEHIND_A_CREDENTIAL: u64 = 1 << 20;

/// What ends a connection, and what is said of it when it is over.
pub(crate) struct Line {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) counts: Arc<Counts>,
    refused: RefCell<Option<Refusal>>,
    /// A credential came back.
    has_reflected: Cell<bool>,
    cut: Notify,
    /// Nothing may be asked on it behind what is under way.
    last: Rc<Notify>,
}

impl Line {
    pub(crate) fn new(host: String, port: u16) -> Self {
        Self {
            host,
            port,
            counts: Arc::default(),
            refused: RefCell::default(),
            has_reflected: Cell::default(),
            cut: Notify::new(),
            last: Rc::default(),
        }
    }

    /// The first refusal is the one that is told.
    pub(crate) fn keep(&self, refusal: &Refusal) {
        self.refused.borrow_mut().get_or_insert_with(|| refusal.clone());
    }

    pub(crate) fn refused(&self) -> Option<Refusal> {
        self.refused.borrow().clone()
    }

    /// Ends it here, both ways.
    pub(crate) fn cut(&self, refusal: &Refusal) {
        self.keep(refusal);
        self.counts.cut();
        self.cut.notify_one();
    }

    /// Waits until it is ended so.
    pub(crate) async fn is_cut(&self) {
        self.cut.notified().await;
    }

    /// Lets what is under way come to its end, and nothing behind that.
    pub(crate) fn end_soon(&self) {
        self.last.notify_one();
    }

    /// What says that.
    pub(crate) fn ends_soon(&self) -> Rc<Notify> {
        Rc::clone(&self.last)
    }

    /// A credential was in what its server sent: that is told whatever else was refused of it, and nothing more is asked.
    pub(crate) fn reflects(&self) {
        if self.has_reflected.replace(true) {
            return;
        }
        let reason = format!(
            "{} sent a credential back, which the container was given as asterisks; the connection ends with that",
            self.host
        );
        *self.refused.borrow_mut() = Some(Refusal::new(EgressCause::Reflects, &reason));
        self.end_soon();
    }
}

/// A request that the server is told, until nothing of it or of its answer is under way.
pub(crate) struct Exchange {
    asked: Parts,
    has_credential: bool,
    /// Cookies are taken out of its answer.
    takes_cookies: bool,
    /// Not the connection itself, whose tasks have this: it would never go.
    line: Rc<Line>,
    hosts: Rc<Hosts>,
}

impl Exchange {
    /// A credential was in its answer.
    pub(crate) fn reflects(&self) {
        self.line.reflects();
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Whether it may go on by the rules that are in force: where it had the credential, it has to get it still.
    fn is_allowed(&self) -> bool {
        let Ok(host) = self.hosts.find(&self.line.host, self.line.port) else { return false };
        let takes_cookies = self.takes_cookies || host.rules.cookies;
        let anew = request::anew(&self.asked, &host);
        anew.is_ok_and(|anew| !self.has_credential || anew.has_credential && takes_cookies)
    }
}

/// All that are under way.
#[derive(Default)]
pub(crate) struct Exchanges(RefCell<Vec<Weak<Exchange>>>);

impl Exchanges {
    /// One that begins.
    pub(crate) fn begin(
        &self,
        asked: Parts,
        (has_credential, takes_cookies): (bool, bool),
        line: &Rc<Line>,
        hosts: &Rc<Hosts>,
    ) -> Rc<Exchange> {
        let (line, hosts) = (Rc::clone(line), Rc::clone(hosts));
        let exchange = Rc::new(Exchange { asked, has_credential, takes_cookies, line, hosts });
        let mut all = self.0.borrow_mut();
        all.retain(|one| one.strong_count() > 0);
        all.push(Rc::downgrade(&exchange));
        exchange
    }

    /// Puts other rules in force, and ends what they do not allow, before anything else is done.
    pub(crate) fn replace_rules(&self, hosts: &Hosts, rules: &[HostCredential]) {
        hosts.replace(rules);
        for exchange in self.0.borrow().iter().filter_map(Weak::upgrade) {
            if !exchange.is_allowed() {
                let reason = "the profile was changed, and does not allow this request any more";
                exchange.line.cut(&Refusal::new(EgressCause::Revoked, reason));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use ringfence_credentials::Secret;
    use ringfence_wire::credentials::{CredentialPlace, Otherwise};

    fn rules(allow: &str) -> HostCredential {
        HostCredential {
            host: "a.org".into(),
            port: 443,
            place: CredentialPlace::Bearer,
            allow: vec![allow.parse().unwrap()],
            otherwise: Otherwise::Refuse,
            cookies: false,
        }
    }

    #[test]
    fn what_rules_do_not_allow_any_more_is_cut_before_they_are_said_to_be_in_force() {
        let secret = Secret::from("secret-token-0123".to_owned());
        let hosts = Rc::new(Hosts::new(vec![(rules("* /**"), secret)]).unwrap());
        let exchanges = Exchanges::default();
        let begin = |target: &str, takes_cookies| {
            let line = Rc::new(Line::new("a.org".into(), 443));
            let asked = Request::get(target).header("host", "a.org").body(()).unwrap().into_parts().0;
            (exchanges.begin(asked, (true, takes_cookies), &line, &hosts), line)
        };
        let ((_kept, goes_on), (_also, ends)) = (begin("/kept", true), begin("/gone", true));
        let (_and, gives_cookies) = begin("/kept", false);
        exchanges.replace_rules(&hosts, &[rules("GET /kept")]);
        assert!(!goes_on.counts.is_cut() && goes_on.refused().is_none(), "the control");
        assert!(ends.counts.is_cut() && gives_cookies.counts.is_cut());
        assert_eq!(ends.refused().unwrap().cause, EgressCause::Revoked);
    }

    #[test]
    fn a_credential_that_came_back_is_told_once_and_whatever_was_refused_before() {
        let line = Line::new("a.org".into(), 443);
        line.keep(&Refusal::new(EgressCause::NoRule, "another"));
        line.reflects();
        let told = line.refused().unwrap();
        line.reflects();
        assert_eq!(told.cause, EgressCause::Reflects);
        assert_eq!(line.refused().unwrap().reason, told.reason);
    }
}
