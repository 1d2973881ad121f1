//! Other spellings of what a rule names: in lower case, for file systems that do not tell case apart, and by its ends, for
//! patterns.

use ringfence_common::patterns::{End, MAX_PATTERN, Patterns};

use ringfence_policy::{
    casing::folded,
    compiled::{Place, PlaceRule},
};

/// The same place as file systems that do not tell case apart compare it; `None`: it is no name of a file.
pub(crate) fn lower(place: &Place) -> Option<Place> {
    match place {
        Place::Path(path) => Some(Place::Path(folded(path))),
        Place::Name(name) => Some(Place::Name(folded(name))),
        Place::Prefix(name) => Some(Place::Prefix(lower_pattern(End::Head, name))),
        Place::Suffix(name) => Some(Place::Suffix(lower_pattern(End::Tail, name))),
        Place::Abstract(_) | Place::Named { .. } => None,
    }
}

/// A pattern's name in lower case. One letter can become several: what is too long then is cut, and denies more.
fn lower_pattern(end: End, name: &[u8]) -> Vec<u8> {
    let mut name = folded(name);
    match end {
        End::Head => name.truncate(MAX_PATTERN),
        End::Tail => _ = name.drain(..name.len().saturating_sub(MAX_PATTERN)),
    }
    name
}

/// Which names the rules over patterns may match, in whatever case.
pub(crate) fn patterns(places: &[PlaceRule]) -> Patterns {
    let mut patterns = Patterns::NONE;
    for rule in places {
        let (end, name) = match &rule.place {
            Place::Prefix(name) => (End::Head, name),
            Place::Suffix(name) => (End::Tail, name),
            _ => continue,
        };
        for name in [name.clone(), lower_pattern(end, name)] {
            if !name.is_empty() {
                patterns.add(end, &name);
            }
        }
    }
    patterns
}
