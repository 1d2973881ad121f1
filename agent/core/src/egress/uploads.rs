//! How much a container's workers said that they send to what each entry of its profile grants: what one of them said, the next
//! begins with. A worker that was taken over can say more than it is, to its own container's loss, and never less than one said.

use ringfence_wire::{
    conn::Conn,
    egress::{FromEgress, MAX_QUESTION, Names, Upload},
};
use std::{
    collections::{HashMap, HashSet},
    os::unix::net::UnixStream,
    time::Duration,
};

/// How long what a worker said that is no more may take to be read, and messages of it that are: it is there.
const LAST_TIME: Duration = Duration::from_secs(1);
const MOST_LAST: usize = 4096;

/// Entries that are kept, beyond those of the policy that is in force.
const MOST_FORMER: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Uploads(HashMap<String, u64>);

impl Uploads {
    /// These are what may be heard of from now on, beside those of before.
    pub(super) fn expect(&mut self, names: &Names) {
        let hosts: HashSet<&str> = names.rules.iter().map(|rule| rule.host.as_str()).collect();
        self.0.retain(|host, bytes| *bytes > 0 || hosts.contains(host.as_str()));
        if self.0.len() > MOST_FORMER {
            self.0.retain(|host, _| hosts.contains(host.as_str()));
        }
        for host in hosts {
            if !self.0.contains_key(host) {
                self.0.insert(host.to_owned(), 0);
            }
        }
    }

    /// A worker says so. What it was not told of is nobody's.
    pub(super) fn heard(&mut self, said: Vec<Upload>) {
        for Upload { host, bytes } in said {
            if let Some(known) = self.0.get_mut(&host) {
                *known = bytes.max(*known);
            }
        }
    }

    /// What the next worker is told.
    pub(super) fn all(&self) -> Vec<Upload> {
        let sent = self.0.iter().filter(|(_, bytes)| **bytes > 0);
        sent.map(|(host, bytes)| Upload { host: host.clone(), bytes: *bytes }).collect()
    }
}

/// What a worker said that is no more, where it ended before that was heard.
pub(super) fn last_said(link: UnixStream) -> Vec<Upload> {
    let mut conn = Conn::new(link, LAST_TIME, MAX_QUESTION);
    let mut last = Vec::new();
    for _ in 0..MOST_LAST {
        match conn.receive() {
            Ok(FromEgress::Uploads(said)) => last.extend(said),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::egress::{EgressStart, MAX_NAME, MAX_ORDER, NameRule, ToEgress};

    fn names(hosts: &[String]) -> Names {
        let rule = |host: &String| NameRule { host: host.clone(), port: None, tcp: false, rule: 0 };
        Names { rules: hosts.iter().map(rule).collect(), ..Names::default() }
    }

    fn said(host: &str, bytes: u64) -> Vec<Upload> {
        vec![Upload { host: host.into(), bytes }]
    }

    #[test]
    fn no_worker_says_less_than_one_before_it_nor_of_what_is_not_granted() {
        let mut uploads = Uploads::default();
        uploads.expect(&names(&["a.org".into(), "b.org".into()]));
        assert!(uploads.all().is_empty());
        uploads.heard(said("a.org", 7));
        uploads.heard(said("a.org", 3));
        uploads.heard(said("evil.example", 9));
        assert_eq!(uploads.all(), said("a.org", 7));
        // It is kept when it is not granted any more.
        uploads.expect(&names(&["c.org".into()]));
        uploads.heard(said("c.org", 0));
        assert_eq!(uploads.all(), said("a.org", 7));
        assert_eq!(uploads.0.len(), 2);
    }

    #[test]
    fn policies_that_change_without_end_are_not_kept_without_end_and_what_is_fits_a_message() {
        let mut uploads = Uploads::default();
        let mut last = Names::default();
        for at in 0..10 {
            let hosts: Vec<String> = (0..1024).map(|host| format!("{host:0>MAX_NAME$}{at}")).collect();
            last = names(&hosts);
            uploads.expect(&last);
            hosts.iter().for_each(|host| uploads.heard(said(host, u64::MAX)));
            assert!(uploads.all().len() <= MOST_FORMER + 1024);
        }
        let start = EgressStart {
            container: "0123456789ab".into(),
            profile: "p".into(),
            block: "198.18.7.0/24".parse().unwrap(),
            names: last,
            audit: false,
            v6: false,
            host_network: true,
            uploads: uploads.all(),
        };
        assert!(serde_json::to_vec(&ToEgress::Start(start)).unwrap().len() < MAX_ORDER);
    }
}
