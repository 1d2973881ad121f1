//! What is remembered of the calls of each client that is linked, between two writes.

use ringfence_session::rows::intent::Grouping;
use std::collections::HashMap;

/// Whose calls may be for one thing, by nothing but time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// All sessions of this process of a user's.
    Process { uid: u32, name: String },
    /// This session alone: nobody knows whose it is.
    Session { uid: u32, session: String },
}

impl Client {
    pub(crate) fn new(uid: u32, name: Option<String>, session: &str) -> Self {
        match name {
            Some(name) => Self::Process { uid, name },
            None => Self::Session { uid, session: session.to_owned() },
        }
    }
}

/// Which sessions are whose, and the intents that their calls may go on with.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_client: HashMap<Client, Grouping>,
    /// The sessions that something was written of, and not unlinked since.
    clients: HashMap<String, Client>,
}

impl Groups {
    pub(crate) fn client_of(&self, session: &str) -> Option<Client> {
        self.clients.get(session).cloned()
    }

    pub(crate) fn take(&mut self, client: &Client) -> Option<Grouping> {
        self.by_client.remove(client)
    }

    pub(crate) fn put(&mut self, client: Client, session: &str, grouping: Grouping) {
        self.clients.insert(session.to_owned(), client.clone());
        self.by_client.insert(client, grouping);
    }

    /// Nobody is linked to a session any more.
    pub(crate) fn unlinked(&mut self, session: &str) {
        let Some(client) = self.clients.remove(session) else { return };
        if !self.clients.values().any(|other| *other == client) {
            self.by_client.remove(&client);
        } else if let Some(grouping) = self.by_client.get_mut(&client) {
            grouping.ended(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_forgotten_with_its_last_session() {
        let mut groups = Groups::default();
        let client = |name: &str| Client::new(1, Some(name.to_owned()), "s");
        for (name, session) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
            groups.put(client(name), session, Grouping::default());
        }
        groups.put(Client::new(1, None, "alone"), "alone", Grouping::default());
        groups.unlinked("a1");
        assert_eq!((groups.client_of("a1"), groups.client_of("a2")), (None, Some(client("a"))));
        assert!(groups.by_client.contains_key(&client("a")));
        groups.unlinked("a2");
        groups.unlinked("nobody");
        assert!(!groups.by_client.contains_key(&client("a")) && groups.by_client.contains_key(&client("b")));
        groups.unlinked("alone");
        groups.unlinked("b1");
        assert!(groups.by_client.is_empty() && groups.clients.is_empty());
    }
}
