//! Scopes over entries, and bounds on a count.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor},
    ser::SerializeMap,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    marker::PhantomData,
};

/// One entry of a scope: an element of a meet-semilattice, or nothing where two entries have nothing in common.
pub trait Entry: Clone + Ord + fmt::Debug {
    /// What entries are filed under. Two entries have something in common only if the key of one is among the
    /// covering keys of the other; that keeps large scopes from being compared pair by pair.
    type Key: Ord + Clone;

    /// What both have in common; `None`: nothing.
    fn meet(&self, other: &Self) -> Option<Self>;

    /// The key this entry is filed under.
    fn key(&self) -> Self::Key;

    /// The keys of all entries that could contain this one, its own included.
    fn covering(&self) -> Vec<Self::Key>;

    /// Whether this entry lies within `other`.
    fn leq(&self, other: &Self) -> bool {
        self.meet(other).as_ref() == Some(self)
    }
}

impl Entry for u64 {
    type Key = u64;

    fn meet(&self, other: &Self) -> Option<Self> {
        (self == other).then_some(*self)
    }

    fn key(&self) -> u64 {
        *self
    }

    fn covering(&self) -> Vec<u64> {
        vec![*self]
    }
}

/// A set of entries none of which lies within another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<E>(BTreeSet<E>);

impl<E: Entry> Entries<E> {
    /// The entries, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &E> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn index(&self) -> BTreeMap<E::Key, Vec<&E>> {
        let mut index: BTreeMap<E::Key, Vec<&E>> = BTreeMap::new();
        for entry in &self.0 {
            index.entry(entry.key()).or_default().push(entry);
        }
        index
    }

    fn reduced(all: BTreeSet<E>) -> Self {
        let all = Self(all);
        let index = all.index();
        let kept = all.0.iter().filter(|e| !above(&index, e).any(|other| other != *e && e.leq(other)));
        Self(kept.cloned().collect())
    }

    fn leq(&self, other: &Self) -> bool {
        let index = other.index();
        self.0.iter().all(|e| above(&index, e).any(|o| e.leq(o)))
    }

    fn meet(&self, other: &Self) -> Self {
        let (mine, theirs) = (self.index(), other.index());
        let down = self.0.iter().flat_map(|a| above(&theirs, a).filter_map(move |b| a.meet(b)));
        let up = other.0.iter().flat_map(|b| above(&mine, b).filter_map(move |a| a.meet(b)));
        Self::reduced(down.chain(up).collect())
    }
}

/// The entries of `index` that could contain `entry`.
fn above<'a, E: Entry>(index: &'a BTreeMap<E::Key, Vec<&'a E>>, entry: &E) -> impl Iterator<Item = &'a E> {
    entry.covering().into_iter().filter_map(|key| index.get(&key)).flatten().copied()
}

/// What one axis gives: everything, or what its entries name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope<E> {
    /// Everything. In JSON and TOML: `"all"`.
    All,
    /// What the entries name, and nothing else. In JSON `{"only": [...]}`, in TOML `{ only = [...] }`.
    Only(Entries<E>),
}

impl<E: Entry> Scope<E> {
    /// The scope of some entries. Those that lie within another are dropped.
    pub fn only(entries: impl IntoIterator<Item = E>) -> Self {
        Self::Only(Entries::reduced(entries.into_iter().collect()))
    }

    /// Nothing.
    pub fn none() -> Self {
        Self::only([])
    }

    /// Whether nothing is given.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Only(entries) if entries.is_empty())
    }

    /// The greatest scope below both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, scope) | (scope, Self::All) => scope.clone(),
            (Self::Only(a), Self::Only(b)) => Self::Only(a.meet(b)),
        }
    }

    /// Whether this scope gives nothing that `other` does not give.
    pub fn leq(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::All) => true,
            (Self::All, Self::Only(_)) => false,
            (Self::Only(a), Self::Only(b)) => a.leq(b),
        }
    }

    /// Whether one entry lies within this scope.
    pub fn contains(&self, entry: &E) -> bool {
        match self {
            Self::All => true,
            Self::Only(entries) => entries.0.iter().any(|e| entry.leq(e)),
        }
    }
}

impl<E: Serialize> Serialize for Scope<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Only(entries) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("only", &entries.0)?;
                map.end()
            }
        }
    }
}

impl<'de, E: Entry + Deserialize<'de>> Deserialize<'de> for Scope<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScopeVisitor(PhantomData))
    }
}

struct ScopeVisitor<E>(PhantomData<E>);

impl<'de, E: Entry + Deserialize<'de>> Visitor<'de> for ScopeVisitor<E> {
    type Value = Scope<E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\" or {only: [...]}")
    }

    fn visit_str<X: de::Error>(self, text: &str) -> Result<Self::Value, X> {
        match text {
            "all" => Ok(Scope::All),
            other => Err(X::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let key: Option<String> = map.next_key()?;
        match key.as_deref() {
            Some("only") => {}
            Some(other) => return Err(de::Error::unknown_field(other, &["only"])),
            None => return Err(de::Error::missing_field("only")),
        }
        let entries: Vec<E> = map.next_value()?;
        if let Some(extra) = map.next_key::<String>()? {
            return Err(de::Error::unknown_field(&extra, &["only"]));
        }
        Ok(Scope::only(entries))
    }
}

/// How often something may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountBound {
    /// As often as one likes. In JSON and TOML: `"unlimited"`.
    Unlimited,
    /// At most so often. In JSON `{"at_most": N}`, in TOML `{ at_most = N }`.
    AtMost(u64),
}

impl CountBound {
    /// The smaller of both.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unlimited, bound) | (bound, Self::Unlimited) => bound,
            (Self::AtMost(a), Self::AtMost(b)) => Self::AtMost(a.min(b)),
        }
    }

    /// Whether this bound allows nothing that `other` does not allow.
    pub fn leq(self, other: Self) -> bool {
        self.meet(other) == self
    }
}

/// How an entry is written: its text, or the list of texts that hold together.
macro_rules! written_as_atoms {
    ($entry:ty) => {
        impl std::fmt::Display for $entry {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.atoms().join(" and "))
            }
        }

        impl serde::Serialize for $entry {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.atoms().as_slice() {
                    [single] => serializer.serialize_str(single),
                    many => serde::Serialize::serialize(many, serializer),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $entry {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::scope::AtomsVisitor(std::marker::PhantomData))
            }
        }
    };
}
pub(crate) use written_as_atoms;

/// Reads an entry.
pub(crate) struct AtomsVisitor<E>(pub(crate) PhantomData<E>);

impl<'de, E: Entry + std::str::FromStr<Err: fmt::Display>> Visitor<'de> for AtomsVisitor<E> {
    type Value = E;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or a list of strings that hold together")
    }

    fn visit_str<X: de::Error>(self, text: &str) -> Result<E, X> {
        text.parse().map_err(X::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<E, A::Error> {
        let mut met: Option<E> = None;
        while let Some(text) = seq.next_element::<String>()? {
            let entry: E = text.parse().map_err(de::Error::custom)?;
            let both = match met {
                None => Some(entry),
                Some(before) => before.meet(&entry),
            };
            met =
                Some(both.ok_or_else(|| {
                    de::Error::custom(format!("{text:?} has nothing in common with the rest"))
                })?);
        }
        met.ok_or_else(|| de::Error::invalid_length(0, &"at least one string"))
    }
}
