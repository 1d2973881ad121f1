//! Ids of the client's requests that the server has and has not answered: no answer of ours may be taken for one of those.

use ringfence_session::line::Id;
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
};

/// Requests that are counted at once. Whoever has more of them unanswered has used up what can be told apart.
const MOST: usize = 65_536;

/// The ids, by their hashes: an id can be long.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    hasher: RandomState,
    requests: HashMap<u64, u32>,
    /// There were too many once: from then on any id may be one of them.
    is_over: bool,
}

impl Outstanding {
    /// A request goes to the server.
    pub(crate) fn add(&mut self, id: &Id) {
        let key = self.hasher.hash_one(id);
        if self.requests.len() >= MOST && !self.requests.contains_key(&key) {
            self.is_over = true;
            return;
        }
        let many = self.requests.entry(key).or_default();
        *many = many.saturating_add(1);
    }

    /// A request of that id was answered, or did not go to the server after all.
    pub(crate) fn remove(&mut self, id: &Id) {
        let key = self.hasher.hash_one(id);
        if let Some(many) = self.requests.get_mut(&key) {
            *many = many.saturating_sub(1);
            if *many == 0 {
                self.requests.remove(&key);
            }
        }
    }

    /// How many there are: at least so many.
    pub(crate) fn count(&self) -> u64 {
        self.requests.values().map(|many| u64::from(*many)).sum()
    }

    /// Whether the server may still answer a request of that id.
    pub(crate) fn has(&self, id: &Id) -> bool {
        self.is_over || self.requests.contains_key(&self.hasher.hash_one(id))
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Outstanding};
    use ringfence_session::line::Id;

    fn id(n: usize) -> Id {
        Id::Number(n.to_string())
    }

    #[test]
    fn an_id_is_outstanding_until_each_of_its_requests_is_answered() {
        let mut outstanding = Outstanding::default();
        assert!(!outstanding.has(&id(1)));
        outstanding.add(&id(1));
        outstanding.add(&id(1));
        assert!(outstanding.has(&id(1)) && !outstanding.has(&Id::String("1".into())));
        outstanding.remove(&id(1));
        assert!(outstanding.has(&id(1)));
        outstanding.remove(&id(1));
        outstanding.remove(&id(1));
        assert!(!outstanding.has(&id(1)));
    }

    #[test]
    fn too_many_make_every_id_one_of_them() {
        let mut outstanding = Outstanding::default();
        (0..MOST).for_each(|n| outstanding.add(&id(n)));
        assert!(!outstanding.has(&id(MOST)));
        outstanding.add(&id(MOST));
        assert!(outstanding.has(&id(MOST)) && outstanding.has(&id(MOST + 1)));
        assert_eq!(outstanding.requests.len(), MOST);
    }
}
