//! How much of the kernel's tables of rules one user's containers may take, so that nobody fills them for the others.

use std::fmt;

use ringfence_common::net::MAX_NETS;

use super::{net::Key, table::SLOTS};

/// What one policy holds of the tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// Its keys in the net trie.
    pub nets: Vec<Key>,
    /// How many slots of the rule table it has.
    pub slots: usize,
    /// The user who answers for its container.
    pub owner: u32,
}

/// A table of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The net trie.
    Nets,
    /// The rule table.
    Slots,
}

impl Kind {
    /// Most entries of one user who is not root.
    pub(crate) const fn of_user(self) -> usize {
        match self {
            Self::Nets => MAX_NETS / 8,
            Self::Slots => SLOTS / 16,
        }
    }

    /// Most entries of all users who are not root. The rule table's buckets fill unevenly, so that beyond a quarter of
    /// it larger policies would find no place.
    pub(crate) const fn of_users(self) -> usize {
        match self {
            Self::Nets => MAX_NETS / 4 * 3,
            Self::Slots => SLOTS / 4,
        }
    }

    fn held(self, held: &Held) -> usize {
        match self {
            Self::Nets => held.nets.len(),
            Self::Slots => held.slots,
        }
    }
}

/// More of a table than may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    kind: Kind,
    /// The user; `None`: all users but root.
    user: Option<u32>,
    rules: usize,
    held: usize,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, user, rules, held } = self;
        let (what, merge) = match kind {
            Kind::Nets => ("network rules", "merge addresses into networks"),
            Kind::Slots => ("rules over paths", "merge rules into directories"),
        };
        match user {
            Some(user) => write!(
                f,
                "its {rules} {what} and the {held} of other containers of user {user} are more than the {} that one \
                 user may have; {merge}, or end some containers",
                kind.of_user()
            ),
            None => write!(
                f,
                "its {rules} {what} and the {held} of all users are more than the {} that are not kept for root; \
                 {merge}, or end some containers",
                kind.of_users()
            ),
        }
    }
}

/// What is left to one user of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    kind: Kind,
    owner: u32,
    own: usize,
    users: usize,
    before: usize,
}

impl Share {
    /// Of `owner`, beside the policies `held`; `before` is the one that will be replaced.
    pub(crate) fn of(owner: u32, kind: Kind, held: &[&Held], before: Option<&Held>) -> Self {
        let sum = |of: &dyn Fn(u32) -> bool| {
            held.iter().filter(|held| of(held.owner)).map(|held| kind.held(held)).sum::<usize>()
        };
        Self {
            kind,
            owner,
            own: sum(&|user| user == owner),
            users: sum(&|user| user != 0),
            before: before.map_or(0, |before| kind.held(before)),
        }
    }

    /// Whether a policy with so many rules is within the share. One that takes no more than the one before is: the others
    /// may have come to their limit meanwhile.
    ///
    /// # Errors
    /// [`Need`]; never for root, whose limit is the table.
    pub(crate) fn take(&self, rules: usize) -> Result<(), Need> {
        let Self { kind, owner, own, users, before } = *self;
        if owner == 0 || rules <= before {
            return Ok(());
        }
        if own + rules > kind.of_user() {
            return Err(Need { kind, user: Some(owner), rules, held: own });
        }
        if users + rules > kind.of_users() {
            return Err(Need { kind, user: None, rules, held: users });
        }
        Ok(())
    }
}
